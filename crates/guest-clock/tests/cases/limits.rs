//! Limits of a VMM's process: a jail, a forked child.

use std::process::Command;

use guest_clock::device::Stopping;
use guest_clock::guest::Guest;

use super::{CALLS, Case, IOCTLS, Outcome, guest, save_and_restore};

#[path = "seccomp.rs"]
pub mod seccomp;
use seccomp::{end, equal, install, word};

/// The case that this process is for, by its name.
pub const ALONE: &str = "GUEST_CLOCK_ALONE";

/// Makes a case in a process of its own: threads of other cases may go on for seconds, and a jail has no way
/// back.
pub fn alone(name: &str, case: fn() -> Outcome) -> Outcome {
    if std::env::var_os(ALONE).is_some() {
        return case();
    }
    pair()?;
    let program = std::env::current_exe().unwrap();
    let status = Command::new(program).env(ALONE, name).status().unwrap();
    assert!(status.success(), "{status}");
    Ok(())
}

/// What is saved and restored: a stopped guest, and a VM with its memory.
pub fn pair() -> Result<[Guest; 2], String> {
    let mut source = guest(2)?;
    source.run(5).unwrap();
    let target = Guest::with_memory(source.memory(), 2).unwrap();
    Ok([source, target])
}

pub const JAIL: Case = (
    "under a filter that kills on clone and on other ioctls",
    || alone(JAIL.0, jailed),
);

pub const FORKED: Case = ("a forked child is refused", || alone(FORKED.0, forked));

/// A filter kills the process at any call and any ioctl that docs/guest-clocks-c.md does not name, such as
/// `clone`.
fn jailed() -> Outcome {
    let [source, target] = pair()?;
    save_and_restore(&source, &target, Stopping::Done)?;
    forbid_other_calls();
    let done = save_and_restore(&source, &target, Stopping::Done);
    let status = i32::from(done.is_err());
    // SAFETY: it ends the process. Needed: destructors make calls that the filter forbids.
    unsafe { libc::_exit(status) }
}

fn forbid_other_calls() {
    let allow = |value: u32| [equal(value, 0, 1), end(libc::SECCOMP_RET_ALLOW)];
    // `struct seccomp_data` begins with the call's number; its second argument is at byte 24.
    let mut program = vec![word(0)];
    let ends = [libc::SYS_exit_group, libc::SYS_clock_gettime];
    let calls = CALLS.iter().chain(&ends).map(|call| *call as u32);
    program.extend(calls.flat_map(allow));
    program.push(equal(libc::SYS_ioctl as u32, 1, 0));
    program.push(end(libc::SECCOMP_RET_KILL_PROCESS));
    program.push(word(24));
    program.extend(IOCTLS.into_iter().flat_map(allow));
    program.push(end(libc::SECCOMP_RET_KILL_PROCESS));
    install(&mut program);
}

/// KVM serves a VM to the process that created it: a forked child is refused, and named as the reason.
fn forked() -> Outcome {
    let [source, target] = pair()?;
    // SAFETY: no other thread runs, so that the child may do what this process may. Needed: there is no safe
    // way to fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = save_and_restore(&source, &target, Stopping::Done);
        let is_named = refused.is_err_and(|error| error.contains("another process"));
        // SAFETY: it ends the child. Needed: what the parent owns is not for the child to drop.
        unsafe { libc::_exit(i32::from(!is_named)) }
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let mut status = -1;
    // SAFETY: the kernel writes the status, which is borrowed exclusively. Needed: the child is no
    // `std::process::Child`.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child was not refused");
    save_and_restore(&source, &target, Stopping::Done)
}
