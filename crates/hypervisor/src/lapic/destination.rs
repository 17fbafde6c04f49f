//! Which LAPICs a destination names, by KVM's rules (`kvm_apic_match_dest`).

use core::fmt;

#[cfg(feature = "alloc")]
use super::icr::{Interrupt, Shorthand};

/// A vCPU index beyond the VM's vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchVcpu {
    /// The index asked for.
    pub vcpu: usize,
    /// How many vCPUs there are.
    pub vcpus: usize,
}

impl fmt::Display for NoSuchVcpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vcpu, vcpus } = self;
        write!(f, "no vCPU {vcpu}: the VM has {vcpus}, counted from 0")
    }
}

impl core::error::Error for NoSuchVcpu {}

/// The mode of a LAPIC, from its base MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ApicMode {
    /// Globally disabled.
    Disabled = 0,
    /// xAPIC: 8-bit ids, memory-mapped.
    Xapic = 1,
    /// x2APIC: 32-bit ids, MSRs.
    X2apic = 2,
}

/// What of a LAPIC decides whether an interrupt reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Apic {
    /// The vCPU's id, which is its x2APIC id.
    pub vcpu_id: u32,
    /// Its mode.
    pub mode: ApicMode,
    /// Software-enabled: bit 8 of the spurious-interrupt vector register.
    pub sw_enabled: bool,
    /// ID register as read: the xAPIC id is its top byte.
    pub id: u32,
    /// Logical destination register.
    pub ldr: u32,
    /// Destination format register: all ones is flat, 0x0fff_ffff is cluster.
    pub dfr: u32,
    /// How many lowest-priority interrupts it has got: the arbitration priority.
    pub arb_prio: u32,
}

/// DFR of the flat model.
pub(super) const DFR_FLAT: u32 = 0xffff_ffff;
/// DFR of the cluster model.
pub(super) const DFR_CLUSTER: u32 = 0x0fff_ffff;
/// Destination of everybody, xAPIC.
pub(super) const BROADCAST: u32 = 0xff;
/// Destination of everybody, x2APIC.
pub(super) const X2APIC_BROADCAST: u32 = 0xffff_ffff;

/// The sender of an interrupt by its index, or [`NO_SOURCE`] for a device.
pub type Source = Option<usize>;
/// The interrupt does not come from a LAPIC.
pub const NO_SOURCE: Source = None;

impl Apic {
    /// Whether it takes part at all.
    #[must_use]
    pub const fn present(&self) -> bool {
        !matches!(self.mode, ApicMode::Disabled)
    }
    /// Whether it is in x2APIC mode.
    #[must_use]
    pub const fn x2apic(&self) -> bool {
        matches!(self.mode, ApicMode::X2apic)
    }
    /// The 8-bit id that xAPIC mode goes by.
    #[must_use]
    pub const fn xapic_id(&self) -> u32 {
        self.id >> 24
    }
    /// The 8-bit logical id that xAPIC mode goes by.
    #[must_use]
    pub const fn xapic_logical_id(&self) -> u32 {
        self.ldr >> 24
    }
    #[cfg(feature = "alloc")]
    const fn broadcast(&self) -> u32 {
        if self.x2apic() {
            X2APIC_BROADCAST
        } else {
            BROADCAST
        }
    }

    #[cfg(feature = "alloc")]
    /// Whether `dest` names this LAPIC (no shorthand). `from_apic`: sent by a LAPIC. A
    /// device's 8-bit broadcast is widened unless `quirk_disabled`.
    fn named_by(&self, dest: u32, logical: bool, from_apic: bool, quirk_disabled: bool) -> bool {
        let widen = dest == BROADCAST && !from_apic && self.x2apic() && !quirk_disabled;
        let mda = if widen { X2APIC_BROADCAST } else { dest };
        if mda == self.broadcast() {
            return true;
        }
        if logical {
            self.named_logically(mda)
        } else if self.x2apic() || mda > BROADCAST {
            // An xAPIC vCPU with a large id is hit by that id, its low byte aside.
            mda == self.vcpu_id
        } else {
            mda == self.xapic_id()
        }
    }

    #[cfg(feature = "alloc")]
    fn named_logically(&self, mda: u32) -> bool {
        if self.x2apic() {
            return self.ldr >> 16 == mda >> 16 && self.ldr & mda & 0xffff != 0;
        }
        let id = self.xapic_logical_id();
        match self.dfr {
            DFR_FLAT => id & mda != 0,
            // The cluster is compared uncut: beyond 8 bits it names no LAPIC.
            DFR_CLUSTER => id >> 4 == mda >> 4 && id & mda & 0xf != 0,
            _ => false,
        }
    }
}

#[cfg(feature = "alloc")]
/// Whether `interrupt` from `source` is for `apics[target]`. The mode "disabled" and the
/// software-enable bit play no part. An index out of range matches nothing.
#[must_use]
pub(super) fn matches(
    apics: &[Apic],
    target: usize,
    source: Source,
    interrupt: &Interrupt,
    quirk_disabled: bool,
) -> bool {
    let Some(apic) = apics.get(target) else {
        return false;
    };
    match interrupt.shorthand {
        Shorthand::None => apic.named_by(
            interrupt.dest,
            interrupt.logical,
            source.is_some(),
            quirk_disabled,
        ),
        Shorthand::SelfOnly => source == Some(target),
        Shorthand::All => true,
        Shorthand::AllButSelf => source != Some(target),
    }
}
