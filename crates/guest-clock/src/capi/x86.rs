//! x86: kvmclock and TSCs.

use std::ffi::{c_char, c_int};
use std::os::fd::BorrowedFd;

use super::structures::{Explained, narrow, stopping};
use super::{CExplanation, Failure, Mode, Status, borrow, finish, give};
use crate::equalize::Equalize;
use crate::error::{EqualizeError, RestoreError};
use crate::explanation::Explanation;
use crate::kvm::{RawVcpu, RawVm, host};
use crate::policy::Options;
use crate::save::GuestClocks;
use crate::saved::Saved;

pub(super) fn init() -> Result<(), Failure> {
    let found = host().map_err(|error| (Status::Host, error.to_string()))?;
    // The first reading of the wall clock maps nothing later either.
    let _ = found.instant();
    Ok(())
}

fn raw<'a>(vm: BorrowedFd<'a>, vcpus: Vec<BorrowedFd<'a>>) -> (RawVm<'a>, Vec<RawVcpu<'a>>) {
    let vcpus = vcpus.into_iter().map(RawVcpu::new);
    (RawVm::new(vm), vcpus.collect())
}

pub(super) fn restore(
    vm: BorrowedFd<'_>,
    vcpus: Vec<BorrowedFd<'_>>,
    saved: &Saved,
    options: &Options,
    mode: Mode,
) -> Result<Explained, Failure> {
    let (vm, vcpus) = raw(vm, vcpus);
    let refused = |error: &dyn std::fmt::Display| (Status::Refused, error.to_string());
    let plan = saved
        .plan(&vm, &vcpus, options)
        .map_err(|error| refused(&error))?;
    let explanation = match mode {
        Mode::Plan => plan.expected(),
        Mode::Restore => match plan.carry_out(&vm, &vcpus) {
            Ok(explanation) => explanation,
            Err(error @ RestoreError::Refused(_)) => return Err(refused(&error)),
            Err(error) => return Err((Status::Partial, error.to_string())),
        },
    };
    Ok(explained(&explanation))
}

fn explained(explanation: &Explanation) -> Explained {
    let first = explanation.vcpus.first();
    Explained {
        values: CExplanation {
            elapsed_ns: narrow(explanation.elapsed_ns),
            advanced_ns: explanation.advanced_ns,
            clock_from_ns: explanation.clock_from_ns,
            clock_to_ns: explanation.clock_to_ns,
            offset_from: first.map_or(0, |vcpu| vcpu.offset_from),
            offset_to: first.map_or(0, |vcpu| vcpu.offset_to),
            tsc_against_kvmclock_ns: explanation.tsc_against_kvmclock_ns,
            clock_against_real_ns: explanation.kvmclock_against_real_ns,
            tsc_against_its_rate_ns: explanation.tsc_against_its_rate_ns,
            clock_residual_ns: explanation.clock_residual_ns.unwrap_or(i64::MIN),
            counter_khz: explanation.tsc_khz,
            vcpus: u32::try_from(explanation.vcpus.len()).unwrap_or(u32::MAX),
            is_exact: explanation.is_exact().into(),
            master_clock: explanation.master_clock.into(),
            ..CExplanation::default()
        },
        json: super::json(explanation),
    }
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
        // SAFETY: the caller vouches for the array and the descriptors.
        let (vm, vcpus) = unsafe { borrow(vm, vcpus, count)? };
        let (vm, vcpus) = raw(vm, vcpus);
        let saved = GuestClocks::save_with(&vm, &vcpus, stopping(patience_ms));
        let saved = saved.map_err(|error| (Status::Save, error.to_string()))?;
        // SAFETY: the caller vouches for the buffer and its length.
        unsafe { give(&saved, buffer, length) }
    };
    finish(save, message)
}

/// Makes the TSCs of a guest equal that was restored by value; see the header.
///
/// # Safety
/// `vcpus` points to `count` open vCPU descriptors. `bound_ns` is null or points to an integer, and `message`
/// is null or points to 512 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_equalize(
    vm: c_int,
    vcpus: *const c_int,
    count: usize,
    patience_ms: u32,
    at_most_ns: u64,
    bound_ns: *mut u64,
    message: *mut c_char,
) -> c_int {
    let equalize = || {
        // SAFETY: the caller vouches for the array and the descriptors.
        let (vm, vcpus) = unsafe { borrow(vm, vcpus, count)? };
        let (vm, vcpus) = raw(vm, vcpus);
        let options = Equalize::within(at_most_ns).stopping(stopping(patience_ms));
        let equal = GuestClocks::equalize(&vm, &vcpus, options).map_err(|error| {
            let status = match error {
                EqualizeError::Partial { .. } => Status::Partial,
                _ => Status::Equalize,
            };
            (status, error.to_string())
        })?;
        if !bound_ns.is_null() {
            // SAFETY: not null, and the caller vouches for it. Needed: C's integer is a pointer.
            unsafe { bound_ns.write(equal.bound_ns) };
        }
        Ok(())
    };
    finish(equalize, message)
}
