//! On the real device. What cannot run here says why, and counts as skipped.
//!
//! As the first process of a machine it makes `/dev` and loads modules first, and powers the machine off
//! at the end (`scripts/test-clocks`).
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod cases;
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
#[path = "cases/arm64.rs"]
mod cases;
#[cfg(target_os = "linux")]
#[path = "cases/machine.rs"]
mod machine;

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
fn main() {
    if let Some(alone) = std::env::var_os(cases::limits::ALONE) {
        let mut all = cases::ALL.into_iter();
        let (_, case) = all.find(|(name, _)| *name == alone).unwrap();
        case().unwrap();
        return;
    }
    let is_first = std::process::id() == 1;
    if is_first {
        machine::begin();
    }
    let (mut failed, mut skipped, mut passed) = (0, 0, 0);
    for (name, case) in cases::ALL {
        match std::panic::catch_unwind(case) {
            Ok(Ok(())) => {
                passed += 1;
                println!("test {name} ... ok");
            }
            Ok(Err(why)) => {
                skipped += 1;
                println!("test {name} ... skipped: {why}");
            }
            Err(_) => {
                failed += 1;
                println!("test {name} ... FAILED");
            }
        }
    }
    if is_first {
        failed += machine::failed_programs();
    }
    println!("\nlive: {passed} passed; {failed} failed; {skipped} skipped");
    if is_first {
        machine::end();
    }
    assert_eq!(failed, 0, "live tests failed");
}

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
fn main() {
    println!("live: skipped: guests of our own are x86-64 or arm64 on Linux");
}
