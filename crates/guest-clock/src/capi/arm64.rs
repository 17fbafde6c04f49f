//! arm64: the counter offset of the VM.

use std::ffi::{c_char, c_int};

use super::structures::Explained;
use super::vm::{CVm, Machine, Threads};
use super::{CExplanation, Failure, Mode, Status, failed, finish, give};
use crate::arm64::{Arm64Error, Arm64Vm};
use crate::device::Bracket;
use crate::error::Errno;
use crate::kvm::KvmArm64Vm;
use crate::policy::Options;
use crate::save::{GuestClocks, narrow};
use crate::saved::{Saved, State};

/// Nothing is kept on arm64: neither a device nor a VM.
pub(super) fn init() -> Result<(), Failure> {
    Ok(())
}

/// A VM by its descriptors. The ioctl of a vCPU is made in its thread, where the program has named the way
/// there.
struct CArm64Vm<'a> {
    raw: KvmArm64Vm<'a>,
    threads: Threads,
}

impl<'a> CArm64Vm<'a> {
    fn new(machine: Machine<'a>) -> Self {
        Self {
            raw: KvmArm64Vm::new(machine.vm, machine.vcpus),
            threads: machine.threads,
        }
    }
}

impl Arm64Vm for CArm64Vm<'_> {
    fn counter_hz(&self) -> u32 {
        self.raw.counter_hz()
    }
    fn bracket(&self) -> Bracket {
        self.raw.bracket()
    }
    fn guest_counter(&self) -> Result<u64, Errno> {
        self.threads.call(0, || self.raw.guest_counter())
    }
    fn has_counter_offset(&self) -> bool {
        self.raw.has_counter_offset()
    }
    fn set_counter_offset(&self, offset: u64) -> Result<(), Errno> {
        self.raw.set_counter_offset(offset)
    }
    fn vcpus(&self) -> u32 {
        self.raw.vcpus()
    }
}

pub(super) fn restore(
    machine: Machine<'_>,
    saved: &Saved,
    options: &Options,
    mode: Mode,
) -> Result<Explained, Failure> {
    let vm = CArm64Vm::new(machine);
    let plan = saved.plan_arm64(&vm, options);
    let plan = plan.map_err(failed(Status::Refused))?;
    let explanation = match mode {
        Mode::Plan => *plan.explanation(),
        Mode::Restore => plan.carry_out(&vm).map_err(|error| {
            let status = match error {
                // The offset itself: nothing is written.
                Arm64Error::Ioctl(ref failed) if failed.call.contains("SET") => Status::Refused,
                _ => Status::Partial,
            };
            failed(status)(error)
        })?,
    };
    let is_exact = match saved.state() {
        State::Arm64(state) => explanation.is_exact(state, options.policy),
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
            is_exact: is_exact.into(),
            master_clock: 1,
            ..CExplanation::default().for_guest(&explanation.for_guest)
        },
        json: super::json(&explanation),
    })
}

/// Saves the counter of a stopped guest; see the header.
///
/// # Safety
/// `vm` is that of [`guest_clock_restore`](super::guest_clock_restore). `offset` is null or points to an
/// integer, `buffer` to `*length` writable bytes, and `length` to an integer. `message` is null or points to
/// 512 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_save_arm64(
    vm: *const CVm,
    offset: *const u64,
    buffer: *mut u8,
    length: *mut usize,
    message: *mut c_char,
) -> c_int {
    let save = || {
        // SAFETY: the caller vouches for the structure and the descriptors.
        let machine = unsafe { Machine::read(vm)? };
        // SAFETY: null or an integer of the caller's. Needed: C's integer is a pointer.
        let offset = unsafe { offset.as_ref() }.copied();
        let saved = GuestClocks::save_arm64(&CArm64Vm::new(machine), offset);
        let saved = saved.map_err(failed(Status::Save))?;
        // SAFETY: the caller vouches for the buffer and its length.
        unsafe { give(&saved, buffer, length) }
    };
    finish(save, message)
}
