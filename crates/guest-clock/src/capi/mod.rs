//! The C interface: `include/guest_clock.h`.
//!
//! `scripts/install-c` installs header, shared and static library, and a file for pkg-config.
//!
//! States travel as bytes of the compact binary form, so that nothing of Rust's is on C's side.
//! Functions return 0 or a negative [status](Status); the message of what went wrong, with every
//! operand, goes to the caller's buffer.
//!
//! ```
//! use std::ffi::CStr;
//! use guest_clock::capi::{guest_clock_state_version, guest_clock_version};
//!
//! // SAFETY: the text ends with 0 and is never freed.
//! let version = unsafe { CStr::from_ptr(guest_clock_version()) };
//! println!("{}, states of version {}", version.to_str()?, guest_clock_state_version());
//! # Ok::<(), std::str::Utf8Error>(())
//! ```

#[cfg(target_arch = "aarch64")]
#[path = "arm64.rs"]
mod guest;
#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod guest;
mod import;
mod structures;
mod vm;
mod words;

use std::any::Any;
use std::ffi::{c_char, c_int};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::LoadError;
use crate::saved::{MAX_BYTES, Saved};
use structures::{check, explain};
use vm::Machine;
use words::in_c;

pub use guest::*;
pub use import::{CByValue, CValues, guest_clock_import};
pub use structures::{CExplanation, COptions};
pub use vm::{CVm, OnVcpu, Work};

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
    /// This host cannot be used, or not found out.
    Host = -8,
    /// TSCs were not made equal.
    Equalize = -9,
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
        Ok(Err((status, text))) => (status, in_c(&text)),
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

/// What an error becomes with this status.
fn failed<E: Display>(status: Status) -> impl FnOnce(E) -> Failure {
    move |error| (status, error.to_string())
}

fn argument(text: &str) -> Failure {
    (Status::Argument, text.to_owned())
}

/// Hands a state to the caller, or the length that it needs.
///
/// # Safety
/// `buffer` is null or points to `*length` writable bytes, and `length` is null or points to an integer.
unsafe fn give(saved: &Saved, buffer: *mut u8, length: *mut usize) -> Result<(), Failure> {
    if length.is_null() {
        return Err(argument("length is a null pointer"));
    }
    let bytes = saved.to_bytes();
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
}

/// # Safety
/// `state` is null or points to `length` readable bytes.
unsafe fn load(state: *const u8, length: usize) -> Result<Saved, Failure> {
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
    Saved::load(bytes).map_err(failed(Status::Load))
}

/// An explanation as a document.
fn json(explanation: &impl serde::Serialize) -> String {
    // Plain numbers, names and lists: nothing in it can fail.
    serde_json::to_string(explanation).unwrap_or_default()
}

/// This library's version, as text that ends with 0.
#[unsafe(no_mangle)]
pub extern "C" fn guest_clock_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The newest version of states that this library loads, and the one that it saves.
#[unsafe(no_mangle)]
pub extern "C" fn guest_clock_state_version() -> u32 {
    crate::VERSION
}

/// Opens and probes `/dev/kvm`; see the header.
///
/// # Safety
/// `message` is null or points to 512 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_init(message: *mut c_char) -> c_int {
    finish(guest::init, message)
}

/// Whether a restore writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Plan,
    Restore,
}

/// Plans a restore and writes nothing; see the header.
///
/// # Safety
/// As [`guest_clock_restore`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_plan(
    vm: *const CVm,
    state: *const u8,
    length: usize,
    options: *const COptions,
    explanation: *mut CExplanation,
    message: *mut c_char,
) -> c_int {
    // SAFETY: the caller vouches for all.
    let plan = || unsafe { restore(vm, state, length, options, explanation, Mode::Plan) };
    finish(plan, message)
}

/// Restores clocks into a VM that has not run yet; see the header.
///
/// # Safety
/// `vm` points to as many readable bytes as its size says, and its `vcpus` to `count` open vCPU descriptors.
/// Its `on_vcpu` is null or keeps what the header says. `state` points to `length` readable bytes, `options`
/// to as many as its size says. `explanation` is null or points to as many writable bytes as its size says.
/// Its `json` is null or points to `json_bytes` writable bytes. `message` is null or points to 512 writable
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_restore(
    vm: *const CVm,
    state: *const u8,
    length: usize,
    options: *const COptions,
    explanation: *mut CExplanation,
    message: *mut c_char,
) -> c_int {
    // SAFETY: the caller vouches for all.
    let restore = || unsafe { restore(vm, state, length, options, explanation, Mode::Restore) };
    finish(restore, message)
}

/// # Safety
/// As [`guest_clock_restore`].
unsafe fn restore(
    vm: *const CVm,
    state: *const u8,
    length: usize,
    options: *const COptions,
    explanation: *mut CExplanation,
    mode: Mode,
) -> Result<(), Failure> {
    // SAFETY: the caller vouches for all.
    unsafe {
        let options = COptions::read(options)?;
        check(explanation)?;
        let saved = load(state, length)?;
        let machine = Machine::read(vm)?;
        let options = options.stopping(machine.stopping);
        explain(
            explanation,
            guest::restore(machine, &saved, &options, mode)?,
        );
    }
    Ok(())
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
