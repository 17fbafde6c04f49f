//! x86: kvmclock and TSCs.

use std::ffi::{c_char, c_int};
use std::os::fd::RawFd;

use super::structures::Explained;
use super::vm::{CVm, Machine, Threads};
use super::{CExplanation, Failure, Mode, Status, failed, finish, give};
use crate::device::{MsrValue, NoAnswer, Stopping, Vcpu, VcpuIdentity, each_frequency};
use crate::equalize::Equalize;
use crate::error::{EqualizeError, Errno, RestoreError};
use crate::explanation::Explanation;
use crate::kvm::{RawVcpu, RawVm, host};
use crate::policy::Options;
use crate::save::{GuestClocks, narrow};
use crate::saved::Saved;

pub(super) fn init() -> Result<(), Failure> {
    let found = host().map_err(failed(Status::Host))?;
    // The first reading of the wall clock maps nothing later either.
    let _ = found.instant();
    Ok(())
}

/// A vCPU by its descriptor. Its ioctls are made in its thread, where the program has named the way there.
struct CVcpu<'a> {
    raw: RawVcpu<'a>,
    position: usize,
    threads: Threads,
}

impl CVcpu<'_> {
    fn call<T>(&self, act: impl FnOnce(&dyn Vcpu) -> Result<T, Errno>) -> Result<T, Errno> {
        self.threads.call(self.position, || act(&self.raw))
    }
}

impl Vcpu for CVcpu<'_> {
    fn tsc_offset(&self) -> Result<u64, Errno> {
        self.call(|vcpu| vcpu.tsc_offset())
    }
    fn set_tsc_offset(&self, offset: u64) -> Result<(), Errno> {
        self.call(|vcpu| vcpu.set_tsc_offset(offset))
    }
    fn tsc_khz(&self) -> Result<u32, Errno> {
        self.call(|vcpu| vcpu.tsc_khz())
    }
    fn set_tsc_khz(&self, khz: u32) -> Result<(), Errno> {
        self.call(|vcpu| vcpu.set_tsc_khz(khz))
    }
    fn msr(&self, index: u32) -> Result<Option<u64>, Errno> {
        self.call(|vcpu| vcpu.msr(index))
    }
    fn two_msrs(&self, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
        self.call(|vcpu| vcpu.two_msrs(indices))
    }
    fn set_msr(&self, index: u32, value: u64) -> Result<bool, Errno> {
        self.call(|vcpu| vcpu.set_msr(index, value))
    }
    fn set_two_msrs(&self, registers: [MsrValue; 2]) -> Result<usize, Errno> {
        self.call(|vcpu| vcpu.set_two_msrs(registers))
    }
    fn kvmclock_ctrl(&self) -> Result<(), Errno> {
        self.call(|vcpu| vcpu.kvmclock_ctrl())
    }
    fn descriptor(&self) -> Option<RawFd> {
        self.raw.descriptor()
    }
    fn identity(&self) -> Option<VcpuIdentity> {
        self.raw.identity()
    }
    fn frequencies(vcpus: &[Self], stopping: Stopping) -> Result<Vec<u32>, NoAnswer> {
        match vcpus.first() {
            Some(first) if !first.threads.make_calls() => {
                let raw: Vec<_> = vcpus.iter().map(|vcpu| vcpu.raw).collect();
                RawVcpu::frequencies(&raw, stopping)
            }
            _ => each_frequency(vcpus),
        }
    }
}

fn devices<'a>(machine: &Machine<'a>) -> (RawVm<'a>, Vec<CVcpu<'a>>) {
    let vcpus = machine.vcpus.iter().enumerate();
    let vcpus = vcpus.map(|(position, fd)| CVcpu {
        raw: RawVcpu::new(*fd),
        position,
        threads: machine.threads,
    });
    (RawVm::new(machine.vm), vcpus.collect())
}

pub(super) fn restore(
    machine: Machine<'_>,
    saved: &Saved,
    options: &Options,
    mode: Mode,
) -> Result<Explained, Failure> {
    let (vm, vcpus) = devices(&machine);
    let plan = saved.plan(&vm, &vcpus, options);
    let plan = plan.map_err(failed(Status::Refused))?;
    let explanation = match mode {
        Mode::Plan => plan.expected(),
        Mode::Restore => plan.carry_out(&vm, &vcpus).map_err(|error| {
            let status = match error {
                RestoreError::Refused(_) => Status::Refused,
                _ => Status::Partial,
            };
            failed(status)(error)
        })?,
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
            ..CExplanation::default().for_guest(&explanation.for_guest)
        },
        json: super::json(explanation),
    }
}

/// Saves the clocks of a stopped guest; see the header.
///
/// # Safety
/// `vm` is that of [`guest_clock_restore`](super::guest_clock_restore). `buffer` points to `*length` writable
/// bytes, and `length` to an integer. `message` is null or points to 512 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_save(
    vm: *const CVm,
    buffer: *mut u8,
    length: *mut usize,
    message: *mut c_char,
) -> c_int {
    let save = || {
        // SAFETY: the caller vouches for the structure and the descriptors.
        let machine = unsafe { Machine::read(vm)? };
        let (vm, vcpus) = devices(&machine);
        let saved = GuestClocks::save_with(&vm, &vcpus, machine.stopping);
        let saved = saved.map_err(failed(Status::Save))?;
        // SAFETY: the caller vouches for the buffer and its length.
        unsafe { give(&saved, buffer, length) }
    };
    finish(save, message)
}

/// [`Status::Equalize`] says that nothing was written.
const fn equalize_status(error: &EqualizeError) -> Status {
    match error {
        EqualizeError::Partial { .. } | EqualizeError::NotTaken { .. } => Status::Partial,
        EqualizeError::Vcpus(_)
        | EqualizeError::NoOffsets
        | EqualizeError::TooFar { .. }
        | EqualizeError::SetApartByGuest { .. }
        | EqualizeError::Ioctl(_) => Status::Equalize,
    }
}

/// Makes the TSCs of a guest equal that was restored by value; see the header.
///
/// # Safety
/// `vm` is that of [`guest_clock_restore`](super::guest_clock_restore). `bound_ns` is null or points to an
/// integer, and `message` is null or points to 512 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_equalize(
    vm: *const CVm,
    at_most_ns: u64,
    bound_ns: *mut u64,
    message: *mut c_char,
) -> c_int {
    let equalize = || {
        // SAFETY: the caller vouches for the structure and the descriptors.
        let machine = unsafe { Machine::read(vm)? };
        let (vm, vcpus) = devices(&machine);
        let options = Equalize::within(at_most_ns).stopping(machine.stopping);
        let equal = GuestClocks::equalize(&vm, &vcpus, options)
            .map_err(|error| failed(equalize_status(&error))(error))?;
        if !bound_ns.is_null() {
            // SAFETY: not null, and the caller vouches for it. Needed: C's integer is a pointer.
            unsafe { bound_ns.write(equal.bound_ns) };
        }
        Ok(())
    };
    finish(equalize, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::IoctlError;
    use crate::written::Written;

    /// After what has been written, the header forbids to run the vCPUs.
    #[test]
    fn only_what_wrote_nothing_leaves_the_guest_as_before() {
        let written = vec![Written::Counter(0), Written::Counter(1)];
        let ignored = EqualizeError::NotTaken {
            vcpu: 1,
            wanted: 7,
            read: 0,
            written: written.clone(),
        };
        let failed = IoctlError {
            call: "KVM_SET_DEVICE_ATTR",
            vcpu: Some(1),
            errno: Errno(libc::EIO),
        };
        let partial = EqualizeError::Partial { failed, written };
        for error in [ignored, partial] {
            assert!(error.to_string().contains("Do not run"), "{error}");
            assert_eq!(equalize_status(&error), Status::Partial, "{error}");
        }
        let far = EqualizeError::TooFar {
            vcpu: 1,
            cycles: 2,
            ns: 1,
            at_most_ns: 0,
        };
        for error in [far, EqualizeError::NoOffsets, EqualizeError::Ioctl(failed)] {
            assert!(!error.to_string().contains("Do not run"), "{error}");
            assert_eq!(equalize_status(&error), Status::Equalize, "{error}");
        }
    }
}
