//! A vCPU's general registers, as they are kept with a snapshot.

use kvm_bindings::kvm_regs;
use serde::{Deserialize, Serialize};

/// The registers that the program of [`program`](super::program) uses; the rest is as a new vCPU
/// has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Registers {
    /// `EAX`.
    pub rax: u64,
    /// `EBX`.
    pub rbx: u64,
    /// `ECX`.
    pub rcx: u64,
    /// `EDX`.
    pub rdx: u64,
    /// `SI`: the vCPU's kvmclock page.
    pub rsi: u64,
    /// `DI`: its block.
    pub rdi: u64,
    /// Where it is.
    pub rip: u64,
    /// Flags.
    pub rflags: u64,
}

impl From<kvm_regs> for Registers {
    fn from(regs: kvm_regs) -> Self {
        Self {
            rax: regs.rax,
            rbx: regs.rbx,
            rcx: regs.rcx,
            rdx: regs.rdx,
            rsi: regs.rsi,
            rdi: regs.rdi,
            rip: regs.rip,
            rflags: regs.rflags,
        }
    }
}

impl From<&Registers> for kvm_regs {
    fn from(registers: &Registers) -> Self {
        Self {
            rax: registers.rax,
            rbx: registers.rbx,
            rcx: registers.rcx,
            rdx: registers.rdx,
            rsi: registers.rsi,
            rdi: registers.rdi,
            rip: registers.rip,
            rflags: registers.rflags,
            ..Self::default()
        }
    }
}
