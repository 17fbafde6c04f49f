//! What errors leave behind: nothing.

use std::time::Duration;

use guest_clock::device::Stopping;
use guest_clock::guest::Guest;

use super::descriptors::settled;
use super::limits::seccomp::{end, equal, install, word};
use super::limits::{alone, pair};
use super::{Case, IOCTLS, Outcome, refusals, save_and_restore};

pub const ERRORS: Case = (
    "each ioctl fails, each refusal: no descriptor and no thread left",
    || alone(ERRORS.0, errors),
);

/// An ioctl that a save or a restore makes fails, one after the other, in the threads of the library too.
fn errors() -> Outcome {
    let [source, target] = pair()?;
    let within = Stopping::Within(Duration::from_secs(10));
    save_and_restore(&source, &target, within)?;
    let before = settled();
    let mut failed = 0;
    for ioctl in IOCTLS {
        let outcome = with_failing(ioctl, &source, &target, within);
        failed += usize::from(outcome.is_err());
        assert_eq!(settled(), before, "{ioctl:#x}: descriptors, threads");
    }
    // Some a VM does without: a notice of the pause, a frequency that is the host's.
    assert!(failed > IOCTLS.len() / 2, "{failed}");
    let refused = refusals(&source, &target);
    for outcome in &refused {
        assert!(outcome.is_err());
    }
    assert_eq!(settled(), before, "descriptors, threads");
    println!(
        "  {failed} of {} ioctls were errors, {} refusals",
        IOCTLS.len(),
        refused.len()
    );
    save_and_restore(&source, &target, within)
}

/// In a thread of its own: the filter ends with the thread.
fn with_failing(ioctl: u32, source: &Guest, target: &Guest, stopping: Stopping) -> Outcome {
    let run = || {
        // `struct seccomp_data` begins with the call's number; its second argument is at byte 24.
        install(&mut [
            word(0),
            equal(libc::SYS_ioctl as u32, 0, 2),
            word(24),
            equal(ioctl, 1, 0),
            end(libc::SECCOMP_RET_ALLOW),
            end(libc::SECCOMP_RET_ERRNO | libc::EIO as u32),
        ]);
        save_and_restore(source, target, stopping)
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}
