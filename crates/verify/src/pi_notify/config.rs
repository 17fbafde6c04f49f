//! What is explored: policy, host, agents, and what was taken away.

use stealtime_hypervisor::posted_interrupt::{Capabilities, Fault, Suppression};

/// The barriers of the protocol (specification 1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Barrier {
    /// Entry: between mode and ON.
    R1,
    /// Synchronization: between clearing ON and reading PIR.
    R2,
    /// Load: between clearing SN and reading PIR.
    R3,
    /// Wait: between publishing the waiter and reading ON.
    R4,
    /// Put: the test of ON after the switch to the wakeup vector.
    R5,
    /// Entry: between mode and requests.
    R6,
    /// Interrupts off from the mode to VM entry.
    R7,
    /// Nested post: between request and mode.
    R8,
    /// Load: the list of the previous CPU.
    R10,
}

impl Barrier {
    pub(crate) const ALL: [(&'static str, Self); 9] = [
        ("without-r1", Self::R1),
        ("without-r2", Self::R2),
        ("without-r3", Self::R3),
        ("without-r4", Self::R4),
        ("without-r5", Self::R5),
        ("without-r6", Self::R6),
        ("without-r7", Self::R7),
        ("without-r8", Self::R8),
        ("without-r10", Self::R10),
    ];
}

/// A configuration of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) policy: Suppression,
    pub(crate) fault: Fault,
    pub(crate) capabilities: Capabilities,
    /// How many interrupts the device posts.
    pub(crate) device: u8,
    /// How many interrupts software posts from elsewhere.
    pub(crate) poster: u8,
    /// Software posts for a nested guest.
    pub(crate) nested: bool,
    /// How many IPIs vCPU 1 sends by IPI virtualization.
    pub(crate) ipi: u8,
    /// vCPU 1 is there.
    pub(crate) second_vcpu: bool,
    pub(crate) kicks: u8,
    /// Interrupts with a handler that kicks vCPU 0, on either CPU.
    pub(crate) irq_kicks: u8,
    /// A kick on the vCPU's own CPU compares first and loses the wakeup.
    pub(crate) kick_compares_first: bool,
    pub(crate) migrations: u8,
    pub(crate) preempt: bool,
    /// The device is assigned while the VM runs.
    pub(crate) late_assignment: bool,
    /// The wakeup path of the first posting with the half repair of its review: a self-IPI if PIR
    /// is not empty, without setting ON.
    pub(crate) half_repair: bool,
    /// Only this barrier is missing.
    pub(crate) without: Option<Barrier>,
    /// Stores are buffered.
    pub(crate) tso: bool,
}

/// Everything hardware could want.
pub(crate) const IPIV_HOST: Capabilities = Capabilities {
    apicv: true,
    irqchip: true,
    ipiv: true,
    vtd_posting: true,
    host_x2apic: true,
};

/// APICv, with posts by software only.
pub(crate) const PLAIN_HOST: Capabilities = Capabilities {
    ipiv: false,
    vtd_posting: false,
    ..IPIV_HOST
};

impl Config {
    /// 2 vCPUs, 1 device, 1 remote poster, 2 vectors, with preemption and one migration.
    pub(crate) fn full(policy: Suppression) -> Self {
        Self {
            policy,
            fault: Fault::None,
            capabilities: IPIV_HOST,
            device: 1,
            poster: 1,
            nested: false,
            ipi: 0,
            second_vcpu: true,
            kicks: 0,
            irq_kicks: 0,
            kick_compares_first: false,
            migrations: 1,
            preempt: true,
            late_assignment: false,
            half_repair: false,
            without: None,
            tso: true,
        }
    }

    /// vCPU 1 sends an IPI by IPI virtualization too.
    pub(crate) fn with_ipi(policy: Suppression) -> Self {
        Self {
            ipi: 1,
            preempt: false,
            migrations: 0,
            ..Self::full(policy)
        }
    }

    /// One vCPU alone with the posters.
    pub(crate) fn alone(policy: Suppression) -> Self {
        Self {
            second_vcpu: false,
            ..Self::full(policy)
        }
    }

    /// A host on which only software posts.
    pub(crate) fn plain(policy: Suppression) -> Self {
        Self {
            capabilities: PLAIN_HOST,
            device: 0,
            ..Self::alone(policy)
        }
    }

    /// A remote CPU kicks, so that entries are cancelled.
    pub(crate) fn kicked(policy: Suppression) -> Self {
        Self {
            kicks: 1,
            ..Self::alone(policy)
        }
    }
}
