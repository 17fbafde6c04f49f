//! The writes of a restore, for its errors.

use std::fmt;

/// A part of a VM that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Written {
    /// `KVM_SET_TSC_KHZ` of a vCPU.
    Frequency(usize),
    /// The TSC of a vCPU, by offset or by value.
    Counter(usize),
    /// `KVM_SET_CLOCK`.
    Clock,
    /// `IA32_TSC_ADJUST` of a vCPU.
    Adjust(usize),
    /// `IA32_TSC_DEADLINE` of a vCPU.
    Deadline(usize),
    /// `KVM_KVMCLOCK_CTRL` of a vCPU.
    Stopped(usize),
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frequency(vcpu) => write!(f, "frequency of vCPU {vcpu}"),
            Self::Counter(vcpu) => write!(f, "TSC of vCPU {vcpu}"),
            Self::Clock => write!(f, "kvmclock"),
            Self::Adjust(vcpu) => write!(f, "TSC_ADJUST of vCPU {vcpu}"),
            Self::Deadline(vcpu) => write!(f, "deadline of vCPU {vcpu}"),
            Self::Stopped(vcpu) => write!(f, "notice of the pause to vCPU {vcpu}"),
        }
    }
}
