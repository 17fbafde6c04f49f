//! On the real device. What cannot run here says why, and counts as skipped.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod cases;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
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
    println!("\nlive: {passed} passed; {failed} failed; {skipped} skipped");
    assert_eq!(failed, 0, "live tests failed");
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("live: skipped: guests of our own are x86-64 on Linux");
}
