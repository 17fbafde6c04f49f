//! The C interface: `include/guest_clock.h`.
//!
//! `cargo rustc -p guest-clock --release --crate-type staticlib` makes `libguest_clock.a` of it.
//!
//! States travel as bytes of the compact binary form, so that nothing of Rust's is on C's side.
//! Functions return 0 or a negative [status](Status); the message of what went wrong, with every
//! operand, goes to the caller's buffer.

use std::any::Any;
use std::ffi::{c_char, c_int};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::device::Stopping;
use crate::error::{LoadError, RestoreError};
use crate::kvm::{RawVcpu, RawVm};
use crate::policy::{Inexact, Options, Policy};
use crate::save::GuestClocks;
use crate::saved::{MAX_BYTES, Saved};

/// What a function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// Done.
    Done = 0,
    /// An argument cannot be.
    Argument = -1,
    /// The clocks were not saved.
    Save = -2,
    /// The bytes are not a state.
    Load = -3,
    /// The restore was refused; nothing was written.
    Refused = -4,
    /// The restore did not complete: do not run the vCPUs.
    Partial = -5,
    /// The buffer is too small; the length needed was stored.
    TooSmall = -6,
    /// A fault of this library: it panicked. Nothing is known of what was written.
    Fault = -7,
}

/// Bytes of the caller's buffer for a message, with its final 0.
const MESSAGE_BYTES: usize = 512;

/// Why a call failed: the status, and the message.
type Failure = (Status, String);

/// Calls what does the work. A panic ends here: unwinding into C would abort the VMM.
fn finish(work: impl FnOnce() -> Result<(), Failure>, message: *mut c_char) -> c_int {
    // What the closures borrow is the caller's, and not looked at after a panic.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let (status, text) = match outcome {
        Ok(Ok(())) => (Status::Done, String::new()),
        Ok(Err((status, text))) => (status, text),
        Err(panic) => (Status::Fault, fault(panic.as_ref())),
    };
    if !message.is_null() {
        let bytes = text.bytes().filter(|b| *b != 0).take(MESSAGE_BYTES - 1);
        for (offset, byte) in bytes.chain([0]).enumerate() {
            // SAFETY: the caller gives 512 bytes (so says the header), and `offset` is below that.
            // Needed: C's buffer is a pointer.
            unsafe { message.add(offset).write(byte as c_char) };
        }
    }
    status as c_int
}

fn fault(panic: &(dyn Any + Send)) -> String {
    let said = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    let said = said.unwrap_or("no message");
    format!("a fault of this library, please report it: {said}; do not run the vCPUs")
}

fn argument(text: &str) -> Failure {
    (Status::Argument, text.to_owned())
}

/// # Safety
/// `fds` points to `count` descriptors that stay open for `'a`, and so does `vm`.
unsafe fn borrow<'a>(
    vm: c_int,
    fds: *const c_int,
    count: usize,
) -> Result<(RawVm<'a>, Vec<RawVcpu<'a>>), Failure> {
    if fds.is_null() || count == 0 || count > crate::MAX_VCPUS || vm < 0 {
        return Err(argument(
            "give the VM's descriptor and those of 1 to 4096 vCPUs",
        ));
    }
    // SAFETY: the caller vouches for `count` readable integers. Needed: C's array is a pointer.
    let fds = unsafe { std::slice::from_raw_parts(fds, count) };
    if fds.iter().any(|fd| *fd < 0) {
        return Err(argument("a vCPU's descriptor is negative"));
    }
    // SAFETY: not -1, and the caller vouches that they stay open. Needed: C has no borrows.
    let (vm, vcpus) = unsafe {
        let vcpus = fds
            .iter()
            .map(|fd| RawVcpu::new(BorrowedFd::borrow_raw(*fd)));
        (RawVm::new(BorrowedFd::borrow_raw(vm)), vcpus.collect())
    };
    Ok((vm, vcpus))
}

/// Saves the clocks of a stopped guest; see the header.
///
/// # Safety
/// `vcpus` points to `count` open vCPU descriptors, `buffer` to `*length` writable bytes, and `length`
/// to an integer. `message` is null or points to 512 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_save(
    vm: c_int,
    vcpus: *const c_int,
    count: usize,
    patience_ms: u32,
    buffer: *mut u8,
    length: *mut usize,
    message: *mut c_char,
) -> c_int {
    let save = || {
        if length.is_null() {
            return Err(argument("length is a null pointer"));
        }
        // SAFETY: the caller vouches for the array and the descriptors.
        let (vm, vcpus) = unsafe { borrow(vm, vcpus, count)? };
        let saved = GuestClocks::save_with(&vm, &vcpus, stopping(patience_ms));
        let bytes = saved
            .map_err(|error| (Status::Save, error.to_string()))?
            .to_bytes();
        // SAFETY: not null, and the caller vouches for it.
        let room = unsafe { length.replace(bytes.len()) };
        if buffer.is_null() || room < bytes.len() {
            let text = format!("{room} bytes given, {} needed", bytes.len());
            return Err((Status::TooSmall, text));
        }
        // SAFETY: the caller vouches for `room` bytes, which are enough; a fresh vector does not
        // overlap them.
        unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    };
    finish(save, message)
}

/// Restores clocks into a VM that has not run yet; see the header.
///
/// # Safety
/// `state` points to `length` readable bytes; otherwise as [`guest_clock_save`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_restore(
    vm: c_int,
    vcpus: *const c_int,
    count: usize,
    patience_ms: u32,
    state: *const u8,
    length: usize,
    policy: c_int,
    limit_ns: u64,
    accept_inexact: c_int,
    message: *mut c_char,
) -> c_int {
    let restore = || {
        let options = options(policy, limit_ns, accept_inexact)?.stopping(stopping(patience_ms));
        if state.is_null() {
            return Err(argument("state is a null pointer"));
        }
        // Not even looked at: a length that went below 0 is none that a slice may have.
        if length > MAX_BYTES {
            let refused = LoadError::TooLarge {
                bytes: length,
                most: MAX_BYTES,
            };
            return Err((Status::Load, refused.to_string()));
        }
        // SAFETY: not null, short enough, and the caller vouches for `length` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(state, length) };
        let saved = Saved::load(bytes).map_err(|error| (Status::Load, error.to_string()))?;
        // SAFETY: the caller vouches for the array and the descriptors.
        let (vm, vcpus) = unsafe { borrow(vm, vcpus, count)? };
        match saved.restore(&vm, &vcpus, options) {
            Ok(_) => Ok(()),
            Err(error @ RestoreError::Refused(_)) => Err((Status::Refused, error.to_string())),
            Err(error) => Err((Status::Partial, error.to_string())),
        }
    };
    finish(restore, message)
}

fn stopping(patience_ms: u32) -> Stopping {
    match patience_ms {
        0 => Stopping::Done,
        ms => Stopping::Within(Duration::from_millis(ms.into())),
    }
}

fn options(policy: c_int, limit_ns: u64, accept_inexact: c_int) -> Result<Options, Failure> {
    let policy = match policy {
        0 => Policy::Stopped,
        1 => Policy::Elapsed {
            refuse_above_ns: limit_ns,
        },
        2 => Policy::AtMost { max_ns: limit_ns },
        _ => {
            return Err(argument(
                "policy is none of GUEST_CLOCK_STOPPED, _ELAPSED, _AT_MOST",
            ));
        }
    };
    let mut options = Options::new(policy);
    if accept_inexact != 0 {
        options.inexact = Inexact::Accept;
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_panic_is_a_status_and_a_message() {
        let mut message = [0; MESSAGE_BYTES];
        let status = finish(|| panic!("{} of {}", 3, "a kind"), message.as_mut_ptr());
        assert_eq!(status, Status::Fault as i32);
        // SAFETY: `finish` ends it with 0.
        let text = unsafe { CStr::from_ptr(message.as_ptr()) };
        let text = text.to_str().expect("UTF-8");
        assert!(text.contains("please report it: 3 of a kind"), "{text}");
        let status = finish(|| std::panic::panic_any(7), std::ptr::null_mut());
        assert_eq!(status, Status::Fault as i32);
    }
}
