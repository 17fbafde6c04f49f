//! Limits of descriptors.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use guest_clock::device::Stopping;

use super::limits::{alone, pair};
use super::{Case, Outcome, save_and_restore};

/// Sets the limit of descriptors, and returns the one before.
pub fn limit(most: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes the structure, which is borrowed exclusively, and then reads it. Needed:
    // there is no safe call.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let earlier = limit.rlim_cur;
        limit.rlim_cur = most;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        earlier
    }
}

/// Descriptors of the process, and threads that are helpers of the library. KVM has threads of its own for
/// a VM that has run (`kvm-nx-lpage-recovery`).
pub fn used() -> [usize; 2] {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let names = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")));
    // A thread may end meanwhile.
    let helpers = names
        .flatten()
        .filter(|name| name.trim_end() == "guest-clock");
    [descriptors, helpers.count()]
}

/// The numbers of [`used`] when no helper is left, or after some seconds: helpers end by themselves.
pub fn settled() -> [usize; 2] {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let now = used();
        if now[1] == 0 || Instant::now() > deadline {
            return now;
        }
        std::thread::yield_now();
    }
}

pub const RUN_OUT: Case = (
    "no descriptor left, at each place: an error and none kept",
    || alone(RUN_OUT.0, run_out),
);

/// `ulimit -n` reached at each descriptor in turn: an error, or not needed, and none left behind.
fn run_out() -> Outcome {
    let [source, target] = pair()?;
    let within = Stopping::Within(Duration::from_secs(10));
    save_and_restore(&source, &target, within)?;
    // Numbers up to the highest in use: behind them `spare` are all that is free.
    let highest = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest = highest.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let highest: i32 = highest.max().unwrap();
    let null = || std::fs::File::open("/dev/null").unwrap();
    let mut filler = vec![null()];
    while filler.iter().all(|file| file.as_raw_fd() <= highest) {
        filler.push(null());
    }
    let before = settled();
    let free = null().as_raw_fd();
    let mut failed = 0;
    for spare in 0..8 {
        let earlier = limit(free as libc::rlim_t + spare);
        let outcome = save_and_restore(&source, &target, within);
        limit(earlier);
        if let Err(error) = outcome {
            assert!(error.contains("os error 24"), "{error}");
            failed += 1;
        }
        assert_eq!(settled(), before, "descriptors, threads");
    }
    println!("  {failed} of 8 limits were errors");
    save_and_restore(&source, &target, within)
}
