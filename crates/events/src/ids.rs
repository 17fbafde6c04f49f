//! Identities: host CPUs, tasks, vCPUs and names.

/// A host CPU number as Linux numbers them (0-based).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CpuId(pub u16);

/// A Linux thread id in the host's initial PID namespace; 0 is a CPU's idle task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tid(pub i32);

impl Tid {
    /// The idle task of any CPU (`swapper/N`).
    pub const IDLE: Self = Self(0);

    /// Whether this is the idle task of some CPU.
    #[must_use]
    pub const fn is_idle(self) -> bool {
        self.0 == 0
    }
}

/// `vcpu->vcpu_id`: unique within one VM only, set by the VMM (on x86 the initial APIC id).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct VcpuId(pub u32);

impl VcpuId {
    /// The trace does not say which vCPU (no VM has this many: `KVM_MAX_VCPU_IDS` is 16384).
    pub const UNKNOWN: Self = Self(u32::MAX);
}

/// A name (of a task, a kernel function, an event) in the table that the source of the events keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

impl NameId {
    /// No name is known. Every table of names holds the empty string under this id.
    pub const NONE: Self = Self(0);
}

impl Default for NameId {
    fn default() -> Self {
        Self::NONE
    }
}

/// The table behind [`NameId`]: kept by whoever makes events, read by whoever shows them.
pub trait Names {
    /// The name, as it stands in the source: it may hold anything, and whoever shows it escapes it.
    /// An id that this table never gave out is the empty string.
    fn name(&self, id: NameId) -> &str;
}
