//! Exit reasons: the numbers that hardware reports and the names that the kernel prints for them.

mod tables;

/// Which table an exit's number belongs to (`isa` of `kvm_exit`, and the architectures that KVM
/// traces without that field).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Intel VMX: basic exit reasons, Intel SDM vol. 3 appendix C.
    Vmx,
    /// AMD SVM: intercept codes, AMD APM vol. 2 appendix C.
    Svm,
    /// arm64: exception class of a trap (`esr_ec`), or the exception's kind above 0xff.
    Arm64,
    /// RISC-V: `scause`.
    Riscv,
    /// A module without hardware virtualization (`kvm_pvm`), or one that is not known: numbers have no
    /// names.
    Other,
}

/// One reason why a vCPU left the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExitReason {
    /// The table that `code` belongs to.
    pub isa: Isa,
    /// The number that hardware reported, whole: on VMX bit 31 marks a failed VM entry.
    pub code: u32,
}

/// Bit 31 of a VMX exit reason: VM-entry failure.
pub const VMX_FAILED_VMENTRY: u32 = 0x8000_0000;

/// What an exit is for, whatever the hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A host interrupt arrived.
    HostInterrupt,
    /// The guest halted (HLT, WFI).
    Halt,
    /// The guest spun (PAUSE exiting, WFE).
    Pause,
    /// Access to a model-specific or system register.
    Msr,
    /// Port I/O.
    Pio,
    /// Access to memory that is not mapped: MMIO or a page to be brought in.
    Memory,
    /// The VMX preemption timer expired.
    PreemptionTimer,
    /// The guest can take an interrupt now.
    InterruptWindow,
    /// APIC access, APIC write, EOI-induced, AVIC.
    Apic,
    /// CPUID.
    Cpuid,
    /// A hypercall.
    Hypercall,
    /// Anything else.
    Other,
}

impl ExitReason {
    /// An exit reason of VMX. `code` is the 32-bit field of the VMCS.
    #[must_use]
    pub const fn vmx(code: u32) -> Self {
        Self {
            isa: Isa::Vmx,
            code,
        }
    }

    /// An exit code of SVM. `code` is the low half of the VMCB field.
    #[must_use]
    pub const fn svm(code: u32) -> Self {
        Self {
            isa: Isa::Svm,
            code,
        }
    }

    /// The kernel's name, as `kvm_exit` and `perf kvm stat` print it (`EPT_VIOLATION`, `npf`), or
    /// `None` for a number that no table has.
    ///
    /// ```
    /// use stealtime_events::ExitReason;
    /// assert_eq!(ExitReason::vmx(48).name(), Some("EPT_VIOLATION"));
    /// assert_eq!(ExitReason::svm(0x400).name(), Some("npf"));
    /// assert_eq!(ExitReason::svm(0x3ff).name(), None);
    /// ```
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        tables::lookup(tables::of(self.isa), self.table_code())
    }

    /// Whether a VMX exit is a VM entry that failed (the kernel prints `FAILED_VMENTRY` behind it).
    #[must_use]
    pub const fn is_failed_vmentry(self) -> bool {
        matches!(self.isa, Isa::Vmx) && self.code & VMX_FAILED_VMENTRY != 0
    }

    /// The reason with this name. Both the kernel's names and the forms that `trace-cmd report`
    /// prints for SVM (`EXIT_NPF`) are understood.
    ///
    /// ```
    /// use stealtime_events::{ExitReason, Isa};
    /// assert_eq!(ExitReason::from_name("EXIT_HLT"), Some(ExitReason::svm(0x78)));
    /// assert_eq!(ExitReason::from_name("HLT"), Some(ExitReason::vmx(12)));
    /// assert_eq!(ExitReason::from_name("hlt"), Some(ExitReason::svm(0x78)));
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Isa::Vmx, Isa::Svm, Isa::Arm64, Isa::Riscv]
            .into_iter()
            .find_map(|isa| {
                let code = tables::find(tables::of(isa), name)?;
                Some(Self { isa, code })
            })
            .or_else(|| tables::from_trace_cmd(name).map(Self::svm))
            // `trace-cmd report`'s name for an interrupt window of VMX.
            .or_else(|| (name == "PENDING_INTERRUPT").then_some(Self::vmx(7)))
    }

    /// What the exit is for.
    #[must_use]
    pub fn class(self) -> Class {
        match self.isa {
            Isa::Vmx => vmx_class(self.table_code()),
            Isa::Svm => svm_class(self.code),
            Isa::Arm64 => arm64_class(self.code),
            Isa::Riscv | Isa::Other => Class::Other,
        }
    }

    const fn table_code(self) -> u32 {
        match self.isa {
            Isa::Vmx => self.code & 0xffff,
            _ => self.code,
        }
    }
}

const fn vmx_class(code: u32) -> Class {
    match code {
        1 => Class::HostInterrupt,
        7 => Class::InterruptWindow,
        10 => Class::Cpuid,
        12 | 36 => Class::Halt,
        18 => Class::Hypercall,
        30 => Class::Pio,
        31 | 32 | 84 | 85 => Class::Msr,
        40 => Class::Pause,
        43 | 44 | 45 | 56 => Class::Apic,
        48 | 49 => Class::Memory,
        52 => Class::PreemptionTimer,
        _ => Class::Other,
    }
}

const fn svm_class(code: u32) -> Class {
    match code {
        0x60 => Class::HostInterrupt,
        0x64 => Class::InterruptWindow,
        0x72 => Class::Cpuid,
        0x77 => Class::Pause,
        0x78 | 0x8b | 0xa6 => Class::Halt,
        0x7b => Class::Pio,
        0x7c => Class::Msr,
        0x81 => Class::Hypercall,
        0x400 => Class::Memory,
        0x401 | 0x402 => Class::Apic,
        _ => Class::Other,
    }
}

const fn arm64_class(code: u32) -> Class {
    match code {
        0x01 => Class::Halt,
        0x12 | 0x13 | 0x16 | 0x17 => Class::Hypercall,
        0x18 => Class::Msr,
        0x20 | 0x24 => Class::Memory,
        tables::ARM64_IRQ => Class::HostInterrupt,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_number() {
        for isa in [Isa::Vmx, Isa::Svm, Isa::Arm64, Isa::Riscv] {
            for &(code, name) in tables::of(isa) {
                let reason = ExitReason { isa, code };
                assert_eq!(reason.name(), Some(name));
                let back = ExitReason::from_name(name).expect("a name of a table");
                assert_eq!(back.name(), Some(name), "{name}");
            }
        }
    }

    #[test]
    fn tables_are_sorted_for_the_search() {
        for isa in [Isa::Vmx, Isa::Svm, Isa::Arm64, Isa::Riscv] {
            assert!(tables::of(isa).is_sorted_by(|a, b| a.0 < b.0), "{isa:?}");
        }
    }

    #[test]
    fn names_of_trace_cmd_are_understood() {
        for (name, reason) in [
            ("EXIT_EXCP_PF", ExitReason::svm(0x4e)),
            ("EXIT_EXCP_BASE 14", ExitReason::svm(0x4e)),
            ("EXIT_INTR", ExitReason::svm(0x60)),
            ("PENDING_INTERRUPT", ExitReason::vmx(7)),
        ] {
            assert_eq!(ExitReason::from_name(name), Some(reason), "{name}");
        }
        for unknown in ["EXIT_EXCP_", "EXIT_EXCP_ZZ", "EXIT_EXCP_BASE 32", "EXIT_"] {
            assert_eq!(ExitReason::from_name(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_failed_entry_keeps_its_reason() {
        let reason = ExitReason::vmx(VMX_FAILED_VMENTRY | 33);
        assert_eq!(reason.name(), Some("INVALID_STATE"));
        assert!(reason.is_failed_vmentry());
    }
}
