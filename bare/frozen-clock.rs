//! A clock of the host that stands still, for Bochs (`ld.so --preload`).
//!
//! Its timer for the LEDs of the status bar follows the host's clock with every setting. The time between
//! two of its events moves the turns of the emulated CPUs by an instruction, so that equal runs differ.
#![no_std]

/// `struct timeval`.
#[repr(C)]
pub struct Time {
    seconds: i64,
    microseconds: i64,
}

/// Always one second after the epoch.
///
/// # Safety
/// `time` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut Time, _zone: *mut u8) -> i32 {
    let still = Time {
        seconds: 1,
        microseconds: 0,
    };
    if !time.is_null() {
        // SAFETY: by the caller.
        unsafe { time.write(still) };
    }
    0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
