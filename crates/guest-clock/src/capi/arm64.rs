//! arm64: the counter offset of the VM.

use std::ffi::{c_char, c_int};
use std::os::fd::BorrowedFd;

use super::structures::{Explained, narrow};
use super::{CExplanation, Failure, Mode, Status, borrow, finish, give};
use crate::arm64::{Arm64Error, Arm64Vm};
use crate::kvm::KvmArm64Vm;
use crate::policy::Options;
use crate::save::GuestClocks;
use crate::saved::{Saved, State};

/// Nothing is kept on arm64: neither a device nor a VM.
pub(super) fn init() -> Result<(), Failure> {
    Ok(())
}

pub(super) fn restore(
    vm: BorrowedFd<'_>,
    vcpus: Vec<BorrowedFd<'_>>,
    saved: &Saved,
    options: &Options,
    mode: Mode,
) -> Result<Explained, Failure> {
    let vm = KvmArm64Vm::new(vm, vcpus);
    let plan = saved
        .plan_arm64(&vm, options)
        .map_err(|error| (Status::Refused, error.to_string()))?;
    let explanation = match mode {
        Mode::Plan => *plan.explanation(),
        Mode::Restore => plan.carry_out(&vm).map_err(|error| {
            let status = match error {
                // The offset itself: nothing is written.
                Arm64Error::Ioctl(ref failed) if failed.call.contains("SET") => Status::Refused,
                _ => Status::Partial,
            };
            (status, error.to_string())
        })?,
    };
    let is_measured = match saved.state() {
        State::Arm64(state) => state.offset_bound_ticks > 0,
        State::X86(_) => false,
    };
    Ok(Explained {
        values: CExplanation {
            elapsed_ns: narrow(explanation.elapsed_ns),
            advanced_ns: explanation.advanced_ns,
            offset_from: explanation.offset_from,
            offset_to: explanation.offset_to,
            clock_against_real_ns: explanation.bound_ns,
            tsc_against_its_rate_ns: explanation.bound_ns,
            counter_khz: vm.counter_hz() / 1000,
            vcpus: vm.vcpus(),
            is_exact: (!is_measured).into(),
            master_clock: 1,
            ..CExplanation::default()
        },
        json: super::json(&explanation),
    })
}

/// Saves the counter of a stopped guest; see the header.
///
/// # Safety
/// `vcpus` points to `count` open vCPU descriptors. `offset` is null or points to an integer, `buffer` to
/// `*length` writable bytes, and `length` to an integer. `message` is null or points to 512 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_save_arm64(
    vm: c_int,
    vcpus: *const c_int,
    count: usize,
    offset: *const u64,
    buffer: *mut u8,
    length: *mut usize,
    message: *mut c_char,
) -> c_int {
    let save = || {
        // SAFETY: the caller vouches for the array and the descriptors.
        let (vm, vcpus) = unsafe { borrow(vm, vcpus, count)? };
        // SAFETY: null or an integer of the caller's. Needed: C's integer is a pointer.
        let offset = unsafe { offset.as_ref() }.copied();
        let saved = GuestClocks::save_arm64(&KvmArm64Vm::new(vm, vcpus), offset);
        let saved = saved.map_err(|error| (Status::Save, error.to_string()))?;
        // SAFETY: the caller vouches for the buffer and its length.
        unsafe { give(&saved, buffer, length) }
    };
    finish(save, message)
}
