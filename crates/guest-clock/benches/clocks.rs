//! What saving and restoring cost, and what reading a clock costs, on this host:
//! `cargo bench -p guest-clock [-- VCPUS]`.
//!
//! Time in ioctls is measured around each call, separately from this library's own. The median is of
//! all repetitions, and the least shows the cost of the calls without disturbance. Up to 64 vCPUs the
//! benchmark fails where the least is a millisecond or more.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    // Cargo passes `--bench`.
    let given = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    if let Err(error) = clocks::run(given.unwrap_or(64)) {
        println!("skipped: {error}");
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("skipped: guests of our own are x86-64 on Linux");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod clocks {
    use std::error::Error;

    use guest_clock::bench::{costs, ioctls};

    const REPETITIONS: u32 = 500;

    /// Prints all of it.
    pub(crate) fn run(vcpus: usize) -> Result<(), Box<dyn Error>> {
        let times = ioctls(vcpus, REPETITIONS)?;
        println!("{times}\n");
        println!("{}", costs()?);
        let slowest = times.save.ioctl_least_ns.max(times.restore.ioctl_least_ns);
        if vcpus <= 64 && slowest >= 1_000_000 {
            println!("FAILED: {slowest} ns in ioctls, a millisecond at most");
            std::process::exit(1);
        }
        Ok(())
    }
}
