//! The LAPICs of one VM and the delivery of interrupts between them, by KVM's rules
//! (`kvm_irq_delivery_to_apic`). Delivery reports the vCPUs that it reached.

use alloc::vec::Vec;
use core::fmt;

use super::destination::{self, Apic, NoSuchVcpu, Source};
use super::destination_map::{DestinationMap, FastPath, Inhibit};
use super::icr::{DeliveryMode, Interrupt, Shorthand};
use crate::events::Events;

/// Switches of a VM's interrupt routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BusOptions {
    /// 32-bit ids (`KVM_X2APIC_API_USE_32BIT_IDS`).
    pub x2apic_format: bool,
    /// A device's 0xff is no x2APIC broadcast (`KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK`).
    pub quirk_disabled: bool,
    /// Lowest priority by vector instead of arbitration (`kvm.vector_hashing`, default on).
    pub vector_hashing: bool,
}

impl Default for BusOptions {
    fn default() -> Self {
        Self {
            x2apic_format: true,
            quirk_disabled: true,
            vector_hashing: true,
        }
    }
}

/// The LAPICs of one VM, by vCPU index.
#[derive(Clone, Debug)]
pub struct ApicBus {
    apics: Vec<Apic>,
    options: BusOptions,
    map: Option<DestinationMap>,
    inhibit: Inhibit,
}

/// What became of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// How many LAPICs were handed it.
    pub handed: u32,
    /// How many of them took it.
    pub taken: u32,
    /// Whether the map excluded every LAPIC at once, or some LAPIC matched. KVM returns -1
    /// without this and `taken` with it.
    pub resolved: bool,
}

impl Delivered {
    const NONE: Self = Self {
        handed: 0,
        taken: 0,
        resolved: true,
    };

    /// The return value of `kvm_irq_delivery_to_apic`.
    #[must_use]
    pub fn kvm_ret(&self) -> i64 {
        if self.resolved {
            i64::from(self.taken)
        } else {
            -1
        }
    }
}

/// A paravirtual IPI hypercall (`KVM_HC_SEND_IPI`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PvIpi {
    /// Destinations `min` and on.
    pub low: u64,
    /// Destinations `min` + 64 and on, or + 32 from 32-bit code.
    pub high: u64,
    /// The lowest APIC id.
    pub min: u32,
    /// Vector, delivery mode, level and trigger as in an ICR.
    pub icr: u64,
    /// The caller runs 64-bit code.
    pub op_64bit: bool,
}

/// Why a paravirtual IPI is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PvIpiError {
    /// The ICR has a logical destination or a shorthand (`-EINVAL`).
    InvalidIcr {
        /// The ICR.
        icr: u64,
    },
    /// APIC ids are shared, so that there is no map (`-EOPNOTSUPP`).
    NoMap {
        /// The lowest APIC id asked for.
        min: u32,
    },
}

impl fmt::Display for PvIpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidIcr { icr } => write!(
                f,
                "ICR {icr:#x} of a paravirtual IPI has bit 11, 18 or 19 set: \
                 send to physical ids without a shorthand"
            ),
            Self::NoMap { min } => write!(
                f,
                "no paravirtual IPI to APIC ids {min} and on: vCPUs share APIC ids; \
                 give each its own, or send through the ICR"
            ),
        }
    }
}

impl core::error::Error for PvIpiError {}

impl ApicBus {
    /// A VM's LAPICs in order of vCPU index.
    #[must_use]
    pub fn new(apics: Vec<Apic>, options: BusOptions) -> Self {
        let (map, inhibit) = DestinationMap::build(&apics, options.x2apic_format);
        Self {
            apics,
            options,
            map,
            inhibit,
        }
    }

    /// The LAPICs.
    #[must_use]
    pub fn apics(&self) -> &[Apic] {
        &self.apics
    }
    /// The map, if ids allow one.
    #[must_use]
    pub fn map(&self) -> Option<&DestinationMap> {
        self.map.as_ref()
    }
    /// What keeps APICv from virtualizing IPIs.
    #[must_use]
    pub fn inhibit(&self) -> Inhibit {
        self.inhibit
    }

    /// Changes one LAPIC and rebuilds the map.
    ///
    /// # Errors
    /// [`NoSuchVcpu`], and nothing is changed.
    pub fn set(&mut self, vcpu: usize, apic: Apic) -> Result<(), NoSuchVcpu> {
        self.check(Some(vcpu))?;
        if let Some(slot) = self.apics.get_mut(vcpu) {
            *slot = apic;
        }
        (self.map, self.inhibit) = DestinationMap::build(&self.apics, self.options.x2apic_format);
        Ok(())
    }

    fn check(&self, source: Source) -> Result<(), NoSuchVcpu> {
        let vcpus = self.apics.len();
        match source {
            Some(vcpu) if vcpu >= vcpus => Err(NoSuchVcpu { vcpu, vcpus }),
            _ => Ok(()),
        }
    }

    /// Whether an interrupt is for a vCPU (`kvm_apic_match_dest`).
    #[must_use]
    pub fn matches(&self, target: usize, source: Source, interrupt: &Interrupt) -> bool {
        destination::matches(
            &self.apics,
            target,
            source,
            interrupt,
            self.options.quirk_disabled,
        )
    }

    /// The candidates by the map (`kvm_apic_map_get_dest_lapic`). `None`: each must be asked.
    #[must_use]
    #[inline]
    pub fn fast_path(&self, source: Source, interrupt: &Interrupt) -> Option<FastPath> {
        match (interrupt.shorthand, source) {
            (Shorthand::None, _) => {}
            (Shorthand::SelfOnly, Some(source)) => return Some(FastPath::one(Some(source))),
            _ => return None,
        }
        let map = self.map.as_ref()?;
        let x2apic = source
            .and_then(|s| self.apics.get(s))
            .is_some_and(Apic::x2apic);
        if map.is_broadcast(interrupt.dest, x2apic, self.options.quirk_disabled) {
            return None;
        }
        map.look_up(interrupt, &self.apics, self.options.vector_hashing)
    }

    fn present_matches<'a>(
        &'a self,
        source: Source,
        interrupt: &'a Interrupt,
    ) -> impl Iterator<Item = usize> + 'a {
        let present = self.apics.iter().enumerate().filter(|(_, a)| a.present());
        present
            .map(|(index, _)| index)
            .filter(move |&index| self.matches(index, source, interrupt))
    }

    /// The one vCPU that a device's interrupt reaches, if it is exactly one, so that an IOMMU
    /// can post it (`kvm_intr_is_single_vcpu`).
    #[must_use]
    pub fn single_target(&self, interrupt: &Interrupt) -> Option<usize> {
        if interrupt.shorthand != Shorthand::None {
            return None;
        }
        if let Some(fast) = self.fast_path(None, interrupt)
            && fast.bitmap().is_power_of_two()
            && let Some(target) = fast.reached().next()
        {
            return Some(target);
        }
        let mut matching = self.present_matches(None, interrupt);
        let first = matching.next();
        first.filter(|_| matching.next().is_none())
    }

    /// Delivers an interrupt. `hand` is called for each LAPIC that it is handed to, in order, with
    /// whether the LAPIC takes it. The caller then sets the IRR, or posts the vector.
    ///
    /// # Errors
    /// [`NoSuchVcpu`] for a source that does not exist; no LAPIC is handed anything.
    pub fn deliver(
        &mut self,
        source: Source,
        interrupt: &Interrupt,
        events: &impl Events,
        mut hand: impl FnMut(usize, bool),
    ) -> Result<Delivered, NoSuchVcpu> {
        self.check(source)?;
        let mut delivered = Delivered::NONE;
        if interrupt.shorthand == Shorthand::SelfOnly {
            if let Some(source) = source {
                self.hand_over(source, interrupt, events, &mut hand, &mut delivered);
            }
        } else if let Some(fast) = self.fast_path(source, interrupt) {
            for target in fast.reached() {
                self.hand_over(target, interrupt, events, &mut hand, &mut delivered);
            }
        } else {
            events.destination_slow_path();
            self.deliver_slowly(source, interrupt, events, &mut hand, &mut delivered);
        }
        if delivered.handed == 0 {
            events.ipi_reached_nobody(interrupt.vector);
        }
        Ok(delivered)
    }

    fn deliver_slowly(
        &mut self,
        source: Source,
        interrupt: &Interrupt,
        events: &impl Events,
        hand: &mut impl FnMut(usize, bool),
        delivered: &mut Delivered,
    ) {
        let mut interrupt = *interrupt;
        let everybody = !interrupt.logical && interrupt.dest == destination::BROADCAST;
        if everybody && interrupt.is_lowest_priority() {
            interrupt.delivery = DeliveryMode::Fixed;
        }
        delivered.resolved = false;
        if interrupt.is_lowest_priority() {
            if let Some(target) = self.arbitrate(source, &interrupt) {
                delivered.resolved = true;
                self.hand_over(target, &interrupt, events, hand, delivered);
            }
            return;
        }
        for target in 0..self.apics.len() {
            let present = self.apics.get(target).is_some_and(Apic::present);
            if present && self.matches(target, source, &interrupt) {
                delivered.resolved = true;
                self.hand_over(target, &interrupt, events, hand, delivered);
            }
        }
    }

    /// The winner of lowest-priority arbitration among the software-enabled.
    fn arbitrate(&self, source: Source, interrupt: &Interrupt) -> Option<usize> {
        let candidates = || {
            let apic_at = |index: &usize| self.apics.get(*index);
            self.present_matches(source, interrupt)
                .filter(move |index| apic_at(index).is_some_and(|a| a.sw_enabled))
        };
        if self.options.vector_hashing {
            let count = candidates().count();
            let nth = usize::from(interrupt.vector).checked_rem(count)?;
            candidates().nth(nth)
        } else {
            // The first of the least: `min_by_key` takes the first on a tie.
            candidates().min_by_key(|&index| self.apics.get(index).map(|a| a.arb_prio))
        }
    }

    /// Hands an interrupt to one LAPIC (`__apic_accept_irq`).
    fn hand_over(
        &mut self,
        target: usize,
        interrupt: &Interrupt,
        events: &impl Events,
        hand: &mut impl FnMut(usize, bool),
        delivered: &mut Delivered,
    ) {
        let Some(apic) = self.apics.get_mut(target) else {
            debug_assert!(false, "a map or a match names no LAPIC of this VM");
            return;
        };
        let deassert = interrupt.level_triggered && !interrupt.assert;
        let accepted = match interrupt.delivery {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => {
                if interrupt.delivery == DeliveryMode::LowestPriority {
                    apic.arb_prio = apic.arb_prio.wrapping_add(1);
                }
                !deassert && apic.present() && apic.sw_enabled
            }
            DeliveryMode::Init => !deassert,
            DeliveryMode::ExtInt => false,
            _ => true,
        };
        delivered.handed += 1;
        delivered.taken += u32::from(accepted);
        events.interrupt_accepted(interrupt.vector, accepted);
        hand(target, accepted);
    }

    /// A guest's ICR write: decodes it by the sender's mode and delivers it.
    ///
    /// # Errors
    /// [`NoSuchVcpu`] for a source that does not exist.
    pub fn write_icr(
        &mut self,
        source: usize,
        low: u32,
        high: u32,
        events: &impl Events,
        hand: impl FnMut(usize, bool),
    ) -> Result<Delivered, NoSuchVcpu> {
        let x2apic = self.apics.get(source).is_some_and(Apic::x2apic);
        let interrupt = Interrupt::from_icr(low, high, x2apic);
        self.deliver(Some(source), &interrupt, events, hand)
    }

    /// A paravirtual IPI (`kvm_pv_send_ipi`). How many took it.
    ///
    /// # Errors
    /// [`PvIpiError`]; no LAPIC is handed anything.
    pub fn pv_ipi(
        &mut self,
        ipi: &PvIpi,
        events: &impl Events,
        mut hand: impl FnMut(usize, bool),
    ) -> Result<u32, PvIpiError> {
        if ipi.icr & (1 << 11 | 3 << 18) != 0 {
            return Err(PvIpiError::InvalidIcr { icr: ipi.icr });
        }
        let Some(max_apic_id) = self.map.as_ref().map(DestinationMap::max_apic_id) else {
            return Err(PvIpiError::NoMap { min: ipi.min });
        };
        // Only vector, mode, level and trigger are left in the low half.
        let interrupt = Interrupt::from_icr(ipi.icr as u32, 0, true);
        let mut delivered = Delivered::NONE;
        let second = ipi.min.wrapping_add(if ipi.op_64bit { 64 } else { 32 });
        for (bits, first) in [(ipi.low, ipi.min), (ipi.high, second)] {
            for bit in (0..64).filter(|bit| bits & (1 << bit) != 0) {
                let id = first.checked_add(bit).filter(|&id| id <= max_apic_id);
                let target = id.and_then(|id| self.map.as_ref()?.physical(id));
                if let Some(target) = target {
                    self.hand_over(target, &interrupt, events, &mut hand, &mut delivered);
                }
            }
        }
        Ok(delivered.taken)
    }
}
