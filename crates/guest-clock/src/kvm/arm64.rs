//! arm64: the VM-wide counter offset.

use std::os::fd::{AsRawFd, BorrowedFd};

use kvm_ioctls::{VcpuFd, VmFd};

use super::ioctl::{self, counter_offset, one_register};
use super::real_ns;
use crate::arm64::Arm64Vm;
use crate::device::Bracket;
use crate::error::Errno;

/// An arm64 VM of this process with its vCPUs, all initialised (`KVM_ARM_VCPU_INIT`).
#[derive(Clone, Debug)]
pub struct KvmArm64Vm<'fd> {
    vm: BorrowedFd<'fd>,
    vcpus: Vec<BorrowedFd<'fd>>,
}

impl<'fd> KvmArm64Vm<'fd> {
    /// By descriptors.
    #[must_use]
    pub const fn new(vm: BorrowedFd<'fd>, vcpus: Vec<BorrowedFd<'fd>>) -> Self {
        Self { vm, vcpus }
    }

    /// By those of `kvm-ioctls`.
    #[must_use]
    pub fn of(vm: &'fd VmFd, vcpus: &'fd [VcpuFd]) -> Self {
        Self::new(borrow(vm), vcpus.iter().map(borrow).collect())
    }
}

fn borrow<T: AsRawFd>(owner: &T) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as its owner lives, and the borrow ends with the
    // owner's. Needed: `kvm-ioctls`' types have no `AsFd`.
    unsafe { BorrowedFd::borrow_raw(owner.as_raw_fd()) }
}

/// The host's `CNTVCT_EL0`, after all earlier instructions. For a process of the host that is the
/// physical count, which KVM takes a guest's offset from: the host's own virtual offset is 0.
#[must_use]
pub fn count() -> u64 {
    let count: u64;
    // SAFETY: an EL0 process may read the counter unless the kernel forbids it, which ends the
    // process; nothing but the register is touched. Needed: there is no intrinsic.
    unsafe {
        core::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack));
    }
    count
}

/// `CNTFRQ_EL0`: the frequency of the counters in Hz, as firmware has set it.
#[must_use]
pub fn counter_hz() -> u64 {
    let hz: u64;
    // SAFETY: as in `count`. Needed: there is no intrinsic.
    unsafe {
        core::arch::asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack));
    }
    hz
}

impl Arm64Vm for KvmArm64Vm<'_> {
    fn counter_hz(&self) -> u32 {
        // The register has 32 bits; 0 is refused later.
        u32::try_from(counter_hz()).unwrap_or(0)
    }

    fn bracket(&self) -> Bracket {
        let tsc_before = count();
        Bracket {
            tsc_before,
            realtime_ns: real_ns(),
            tsc_after: count(),
        }
    }

    fn guest_counter(&self) -> Result<u64, Errno> {
        let vcpu = self.vcpus.first().ok_or(Errno(libc::EBADF))?;
        one_register(*vcpu, ioctl::REG_ARM_TIMER_CNT)
    }

    fn has_counter_offset(&self) -> bool {
        let capability = u64::from(kvm_bindings::KVM_CAP_COUNTER_OFFSET);
        ioctl::by_number(self.vm, ioctl::CHECK_EXTENSION, capability)
            .is_ok_and(|support| support > 0)
    }

    fn set_counter_offset(&self, offset: u64) -> Result<(), Errno> {
        counter_offset(self.vm, offset)
    }

    fn vcpus(&self) -> u32 {
        u32::try_from(self.vcpus.len()).unwrap_or(u32::MAX)
    }
}
