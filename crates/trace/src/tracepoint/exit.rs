//! `kvm_exit`: its records differ between architectures.

use stealtime_events::{ExitReason, Isa, Kind, VcpuId};

/// `KVM_ISA_VMX` and `KVM_ISA_SVM` (arch/x86/kvm/trace.h). Other modules (`kvm_pvm`) have numbers of
/// their own.
const VMX: u32 = 1;
const SVM: u32 = 2;
/// The number written for a module of [`Isa::Other`]: any number but the two above.
const OTHER: u32 = 3;
/// `VECTORING_INFO_VALID_MASK`: bit 31 of the VM-exit interruption information (Intel SDM vol. 3,
/// table 26-19).
const VALID: u32 = 1 << 31;
/// `ARM_EXCEPTION_TRAP`.
const TRAP: u32 = 2;
/// `ARM_EXCEPTION_HYP_GONE` (`HVC_STUB_ERR`).
const HYP_GONE: u32 = 0x0bad_ca11;
/// Codes of [`Isa::Arm64`] from here on are kinds of exceptions; those below are classes of traps.
const EXCEPTIONS: u32 = 0x100;
/// The code of [`HYP_GONE`], which is too large to be a kind of exception.
const HYP_GONE_CODE: u32 = EXCEPTIONS + 4;
/// RISC-V: `scause` has the mark of an interrupt in bit 63, a code in bit 31.
const INTERRUPT: u64 = 1 << 63;

/// The exit of an x86 module.
#[inline]
pub(super) fn x86(exit_reason: u32, isa: u32, info1: u64, intr_info: u32, vcpu_id: VcpuId) -> Kind {
    let isa = match isa {
        VMX => Isa::Vmx,
        SVM => Isa::Svm,
        _ => Isa::Other,
    };
    Kind::KvmExit {
        reason: ExitReason {
            isa,
            code: exit_reason,
        },
        vcpu: vcpu_id,
        intr_vector: interrupt_vector(isa, intr_info),
        info1,
    }
}

/// The vector of the interrupt or exception that ended guest mode. On SVM `intr_info` is EXITINTINFO:
/// an event that the exit interrupted in its delivery, so it is no cause.
#[inline]
pub(crate) fn interrupt_vector(isa: Isa, intr_info: u32) -> Option<u8> {
    (isa == Isa::Vmx && intr_info & VALID != 0).then_some(intr_info as u8)
}

/// The exit of arm64: the exception class of a trap, else the kind of the exception.
pub(super) fn arm64(ret: u32, esr_ec: u32) -> Kind {
    let code = match ret {
        TRAP => esr_ec,
        HYP_GONE => HYP_GONE_CODE,
        ret => ret.saturating_add(EXCEPTIONS),
    };
    bare(Isa::Arm64, code)
}

/// The exit of RISC-V.
pub(super) fn riscv(scause: u64) -> Kind {
    let interrupt = u32::from(scause & INTERRUPT != 0) << 31;
    bare(Isa::Riscv, scause as u32 | interrupt)
}

/// An exit with nothing but its reason recorded.
fn bare(isa: Isa, code: u32) -> Kind {
    Kind::KvmExit {
        reason: ExitReason { isa, code },
        vcpu: VcpuId::UNKNOWN,
        intr_vector: None,
        info1: 0,
    }
}

/// The fields of an exit's record, in the layout of its architecture.
pub(super) enum Record {
    X86([u64; 7]),
    Arm64([u64; 2]),
    Riscv([u64; 1]),
}

/// The record of an exit.
pub(super) fn write(
    reason: ExitReason,
    vcpu: VcpuId,
    intr_vector: Option<u8>,
    info1: u64,
) -> Record {
    let code = reason.code;
    let x86 = |isa: u32| {
        let intr_info = intr_vector.map_or(0, |vector| VALID | u32::from(vector));
        let (intr_info, vcpu) = (intr_info.into(), vcpu.0.into());
        Record::X86([code.into(), 0, isa.into(), info1, 0, intr_info, vcpu])
    };
    match reason.isa {
        Isa::Vmx => x86(VMX),
        Isa::Svm => x86(SVM),
        Isa::Other => x86(OTHER),
        Isa::Arm64 => {
            let (ret, esr_ec) = match code {
                HYP_GONE_CODE => (HYP_GONE, 0),
                EXCEPTIONS..0x200 if code != EXCEPTIONS + TRAP => (code - EXCEPTIONS, 0),
                _ => (TRAP, code),
            };
            Record::Arm64([ret.into(), esr_ec.into()])
        }
        Isa::Riscv => {
            let interrupt = if code >> 31 == 1 { INTERRUPT } else { 0 };
            let scause = u64::from(code & !(1 << 31)) | interrupt;
            Record::Riscv([scause])
        }
    }
}
