//! The destination map: from ids to vCPUs without asking each (`kvm_recalculate_apic_map`).

use alloc::vec::Vec;

use super::destination::{Apic, BROADCAST, DFR_FLAT, X2APIC_BROADCAST};
use super::icr::Interrupt;

/// How logical destinations are decoded, by agreement of all enabled LAPICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LogicalMode {
    /// No LAPIC has a logical id.
    SwDisabled = 0,
    /// xAPIC cluster.
    XapicCluster = 1,
    /// xAPIC flat.
    XapicFlat = 2,
    /// x2APIC cluster.
    X2apic = 3,
    /// They disagree or share an id: each must be asked.
    MapDisabled = 4,
}

/// Why APICv cannot virtualize IPIs of this VM, as reasons that accumulate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Inhibit {
    /// Two LAPICs share a physical id.
    pub physical_id_aliased: bool,
    /// Logical ids are shared, or there is no map.
    pub logical_id_aliased: bool,
    /// A guest changed an xAPIC id.
    pub apic_id_modified: bool,
}

/// The map of one configuration of LAPICs; rebuilt when an id, LDR, DFR or mode changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationMap {
    max_apic_id: u32,
    logical_mode: LogicalMode,
    /// (APIC id, vCPU index), ascending by id.
    physical: Vec<(u32, usize)>,
    /// Flat: slots 0–7. Cluster: four slots for each of 16 clusters.
    logical: [Option<usize>; 64],
}

/// Candidates of an interrupt: each bit of the bitmap stands for a slot, which may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPath {
    /// vCPU indexes, [`EMPTY`] where no vCPU is or no bit is set.
    slots: [u32; 16],
    bitmap: u16,
}

/// No vCPU, in a slot.
const EMPTY: u32 = u32::MAX;

impl FastPath {
    /// No candidate.
    pub const NONE: Self = Self {
        slots: [EMPTY; 16],
        bitmap: 0,
    };

    /// One slot, which may be empty.
    #[inline]
    pub(super) fn one(vcpu: Option<usize>) -> Self {
        let mut found = Self::NONE;
        found.bitmap = 1;
        found.fill(0, vcpu);
        found
    }

    /// Which slots are meant.
    #[must_use]
    pub fn bitmap(&self) -> u16 {
        self.bitmap
    }

    /// The vCPU in a slot, 0 to 15.
    #[must_use]
    #[inline]
    pub fn slot(&self, n: u32) -> Option<usize> {
        let vcpu = self.slots.get(n as usize).copied();
        vcpu.filter(|&v| v != EMPTY).map(|v| v as usize)
    }

    #[inline]
    fn fill(&mut self, n: u32, vcpu: Option<usize>) {
        // More than 2^32 - 2 vCPUs cannot have APIC ids of 32 bits.
        let vcpu = vcpu.and_then(|v| u32::try_from(v).ok());
        if let Some(slot) = self.slots.get_mut(n as usize) {
            *slot = vcpu.unwrap_or(EMPTY);
        }
    }

    /// The numbers of the slots that are meant, ascending.
    #[inline]
    fn meant(&self) -> impl Iterator<Item = u32> + use<> {
        let mut bits = self.bitmap;
        core::iter::from_fn(move || {
            let n = (bits != 0).then(|| bits.trailing_zeros());
            bits &= bits.wrapping_sub(1);
            n
        })
    }

    /// The filled slots that the bitmap names, in order of their bits.
    #[inline]
    pub fn reached(&self) -> impl Iterator<Item = usize> + '_ {
        self.meant().filter_map(|n| self.slot(n))
    }
}

/// A LAPIC that has the id already.
struct Taken;

impl DestinationMap {
    /// Builds the map over the present LAPICs in order. `None`: two share a physical id and the
    /// VM does not use 32-bit ids (`x2apic_format`).
    #[must_use]
    pub fn build(apics: &[Apic], x2apic_format: bool) -> (Option<Self>, Inhibit) {
        let present = || apics.iter().enumerate().filter(|(_, a)| a.present());
        let mut map = Self {
            max_apic_id: present().map(|(_, a)| a.vcpu_id).fold(255, u32::max),
            logical_mode: LogicalMode::SwDisabled,
            physical: Vec::new(),
            logical: [None; 64],
        };
        let mut inhibit = Inhibit::default();
        for (index, apic) in present() {
            if !apic.x2apic() && apic.xapic_id() != apic.vcpu_id & 0xff {
                inhibit.apic_id_modified = true;
            }
            if map.add_physical(index, apic, x2apic_format).is_err() {
                inhibit.physical_id_aliased = true;
                inhibit.logical_id_aliased = true;
                return (None, inhibit);
            }
            map.add_logical(index, apic);
        }
        inhibit.logical_id_aliased = map.logical_mode == LogicalMode::MapDisabled;
        (Some(map), inhibit)
    }

    fn add_physical(
        &mut self,
        index: usize,
        apic: &Apic,
        x2apic_format: bool,
    ) -> Result<(), Taken> {
        if x2apic_format {
            if apic.x2apic() || apic.vcpu_id > BROADCAST {
                self.enter(apic.vcpu_id, index, true);
            }
            if !apic.x2apic() {
                self.enter(apic.xapic_id(), index, false);
            }
            return Ok(());
        }
        let id = if apic.x2apic() {
            apic.vcpu_id
        } else {
            apic.xapic_id()
        };
        if self.physical(id).is_some() {
            return Err(Taken);
        }
        self.enter(id, index, true);
        Ok(())
    }

    fn enter(&mut self, id: u32, index: usize, overwrite: bool) {
        match self.physical.binary_search_by_key(&id, |&(id, _)| id) {
            Ok(at) => {
                if let Some(entry) = self.physical.get_mut(at).filter(|_| overwrite) {
                    entry.1 = index;
                }
            }
            Err(at) => self.physical.insert(at, (id, index)),
        }
    }

    fn add_logical(&mut self, index: usize, apic: &Apic) {
        if self.logical_mode == LogicalMode::MapDisabled || !apic.sw_enabled || apic.ldr == 0 {
            return;
        }
        let kind = if apic.x2apic() {
            LogicalMode::X2apic
        } else if apic.dfr == DFR_FLAT {
            LogicalMode::XapicFlat
        } else {
            LogicalMode::XapicCluster
        };
        if self.logical_mode == LogicalMode::SwDisabled {
            self.logical_mode = kind;
        } else if self.logical_mode != kind {
            self.logical_mode = LogicalMode::MapDisabled;
            return;
        }
        let id = apic.xapic_logical_id();
        let (first, bits) = match kind {
            LogicalMode::XapicFlat => (0, id),
            LogicalMode::XapicCluster => (4 * (id >> 4), id & 0xf),
            _ => return,
        };
        if bits == 0 {
            return;
        }
        let slot = self
            .logical
            .get_mut((first + bits.trailing_zeros()) as usize);
        match slot {
            Some(slot) if bits.is_power_of_two() && slot.is_none() => *slot = Some(index),
            _ => self.logical_mode = LogicalMode::MapDisabled,
        }
    }

    /// The highest id that may be entered: at least 255.
    #[must_use]
    pub fn max_apic_id(&self) -> u32 {
        self.max_apic_id
    }
    /// How logical destinations are decoded.
    #[must_use]
    pub fn logical_mode(&self) -> LogicalMode {
        self.logical_mode
    }
    /// The physical entries (APIC id, vCPU index), ascending.
    #[must_use]
    pub fn physical_entries(&self) -> &[(u32, usize)] {
        &self.physical
    }
    /// The filled logical slots (slot, vCPU index); none when the map is disabled.
    pub fn logical_entries(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let usable = self.logical_mode != LogicalMode::MapDisabled;
        let slots = self.logical.iter().enumerate().filter(move |_| usable);
        slots.filter_map(|(n, slot)| slot.map(|index| (n, index)))
    }
    /// The vCPU with a physical id.
    #[must_use]
    #[inline]
    pub fn physical(&self, id: u32) -> Option<usize> {
        // Ids are usually dense from 0: then an entry is where its id says.
        if let Some(&(found, index)) = self.physical.get(id as usize)
            && found == id
        {
            return Some(index);
        }
        let position = self
            .physical
            .binary_search_by_key(&id, |&(id, _)| id)
            .ok()?;
        self.physical.get(position).map(|&(_, index)| index)
    }

    /// Whether an interrupt without shorthand goes to everybody.
    pub(super) fn is_broadcast(
        &self,
        dest: u32,
        x2apic_source: bool,
        quirk_disabled: bool,
    ) -> bool {
        if quirk_disabled {
            (dest == BROADCAST && self.logical_mode != LogicalMode::X2apic)
                || dest == X2APIC_BROADCAST
        } else if x2apic_source {
            dest == X2APIC_BROADCAST
        } else {
            dest == BROADCAST
        }
    }

    /// Looks a destination up that is no broadcast. `None`: each LAPIC must be asked.
    pub(super) fn look_up(
        &self,
        interrupt: &Interrupt,
        apics: &[Apic],
        vector_hashing: bool,
    ) -> Option<FastPath> {
        let dest = interrupt.dest;
        if !interrupt.logical {
            return Some(if dest > self.max_apic_id {
                FastPath::NONE
            } else {
                FastPath::one(self.physical(dest))
            });
        }
        let mut found = self.look_up_logical(dest)?;
        if interrupt.is_lowest_priority() {
            found.bitmap = if vector_hashing {
                hashed(&found, interrupt.vector)
            } else {
                least_priority(&found, apics)
            };
        }
        Some(found)
    }

    #[inline]
    fn look_up_logical(&self, dest: u32) -> Option<FastPath> {
        let mut found = FastPath::NONE;
        match self.logical_mode {
            LogicalMode::SwDisabled => {}
            LogicalMode::MapDisabled => return None,
            LogicalMode::XapicFlat => {
                found.bitmap = (dest & 0xff) as u16;
                self.fill_from_slots(&mut found, 0);
            }
            LogicalMode::XapicCluster => {
                found.bitmap = (dest & 0xf) as u16;
                self.fill_from_slots(&mut found, 4 * (dest >> 4 & 0xf));
            }
            LogicalMode::X2apic => {
                let first = (dest >> 16) * 16;
                if first <= self.max_apic_id {
                    // At most 16 bits remain, and those above `last` name no id.
                    let last = (self.max_apic_id - first).min(15);
                    let mask = (2u32 << last) - 1;
                    found.bitmap = (dest & mask & 0xffff) as u16;
                    self.fill_from_ids(&mut found, first, last);
                }
            }
        }
        Some(found)
    }

    /// Fills the slots that are meant with the vCPUs of `first` to `first + last`.
    #[inline]
    fn fill_from_ids(&self, found: &mut FastPath, first: u32, last: u32) {
        let dense = self.physical.get(first as usize);
        let start = if dense.is_some_and(|&(id, _)| id == first) {
            first as usize
        } else {
            self.physical.partition_point(|&(id, _)| id < first)
        };
        let entries = self.physical.get(start..).unwrap_or(&[]);
        for &(id, vcpu) in entries {
            let n = id - first;
            if n > last {
                break;
            }
            if found.bitmap & 1 << n != 0 {
                found.fill(n, Some(vcpu));
            }
        }
    }

    #[inline]
    fn fill_from_slots(&self, found: &mut FastPath, first: u32) {
        for n in found.meant() {
            let slot = self.logical.get((first + n) as usize);
            found.fill(n, slot.copied().flatten());
        }
    }
}

/// The bit of the mask that the vector picks. It counts bits, not vCPUs: an empty slot may be hit,
/// and then no vCPU gets the interrupt.
fn hashed(found: &FastPath, vector: u8) -> u16 {
    let count = found.bitmap.count_ones();
    let nth = u32::from(vector).checked_rem(count).unwrap_or(0);
    let picked = found.meant().nth(nth as usize);
    let filled = picked.filter(|&n| found.slot(n).is_some());
    filled.map_or(0, |n| 1 << n)
}

/// The filled slot of the LAPIC that has got the fewest lowest-priority interrupts.
fn least_priority(found: &FastPath, apics: &[Apic]) -> u16 {
    let priority = |n: u32| {
        let apic = apics.get(found.slot(n)?)?;
        Some((apic.arb_prio, n))
    };
    // The least of pairs: the lowest slot on a tie.
    let best = found.meant().filter_map(priority).min();
    best.map_or(0, |(_, n)| 1 << n)
}
