//! arm64's: the counter offset of a VM, and one register.

use std::os::fd::BorrowedFd;

use super::{Argument, WRITE, by_structure, code};
use crate::error::Errno;

const GET_ONE_REG: u64 = code(WRITE, 0xab, 16);
const SET_COUNTER_OFFSET: u64 = code(WRITE, 0xb5, 16);

/// `KVM_REG_ARM_TIMER_CNT`, the guest's `CNTVCT_EL0`. (It is encoded as `CNTV_CVAL_EL0` is: the
/// interface has the two the wrong way round, for good.)
pub(in crate::kvm) const REG_ARM_TIMER_CNT: u64 = 0x6030_0000_0013_df1a;

/// `struct kvm_arm_counter_offset`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CounterOffset {
    counter_offset: u64,
    /// 0, or it is refused.
    reserved: u64,
}

/// `struct kvm_one_reg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct OneRegister {
    id: u64,
    addr: u64,
}

impl Argument for CounterOffset {}
impl Argument for OneRegister {}

/// `KVM_ARM_SET_COUNTER_OFFSET` of a VM.
pub(in crate::kvm) fn counter_offset(vm: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    let mut argument = CounterOffset {
        counter_offset: offset,
        reserved: 0,
    };
    by_structure(vm, SET_COUNTER_OFFSET, &mut argument).map(|_| ())
}

/// `KVM_GET_ONE_REG` of a vCPU, for a register of 64 bits.
pub(in crate::kvm) fn one_register(vcpu: BorrowedFd<'_>, id: u64) -> Result<u64, Errno> {
    let mut value = 0u64;
    let mut argument = OneRegister {
        id,
        addr: std::ptr::from_mut(&mut value).expose_provenance() as u64,
    };
    by_structure(vcpu, GET_ONE_REG, &mut argument)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_and_numbers_are_those_of_the_interface() {
        assert_eq!(size_of::<CounterOffset>(), 16);
        assert_eq!(size_of::<OneRegister>(), 16);
        assert_eq!(std::mem::offset_of!(CounterOffset, reserved), 8);
        assert_eq!(SET_COUNTER_OFFSET, 0x4010_aeb5);
        assert_eq!(GET_ONE_REG, 0x4010_aeab);
        // arm64, 64 bits, system register, 3 3 14 3 2 as op0, op1, CRn, CRm, op2.
        let (arm64, u64_size, system) = (0x60u64 << 56, 0x30u64 << 48, 0x13u64 << 16);
        let encoding = 3 << 14 | 3 << 11 | 14 << 7 | 3 << 3 | 2;
        assert_eq!(REG_ARM_TIMER_CNT, arm64 | u64_size | system | encoding);
    }

    /// The numbers reach the kernel: an x86 KVM knows neither call.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn another_architecture_refuses_both() {
        use std::os::fd::AsFd;

        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        let refused = Err(Errno(libc::ENOTTY));
        assert_eq!(counter_offset(file.as_fd(), 1), refused);
        assert_eq!(
            one_register(file.as_fd(), REG_ARM_TIMER_CNT),
            Err(Errno(libc::ENOTTY))
        );
        if let Ok(vm) = crate::kvm::open()
            .and_then(|kvm| kvm.create_vm().map_err(|_| crate::HostError::NoDevice))
        {
            assert_eq!(counter_offset(crate::kvm::borrow(&vm), 1), refused);
        }
    }
}
