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

/// Candidates of an interrupt: bit `n` of `bitmap` stands for `slots[n]`, which may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPath {
    /// The vCPU of each bit.
    pub slots: [Option<usize>; 16],
    /// Which slots are meant.
    pub bitmap: u16,
}

impl FastPath {
    /// Nobody.
    pub const NOBODY: Self = Self {
        slots: [None; 16],
        bitmap: 0,
    };

    /// One slot, which may be empty.
    pub(super) const fn one(slot: Option<usize>) -> Self {
        let mut slots = [None; 16];
        slots[0] = slot;
        Self { slots, bitmap: 1 }
    }

    /// The filled slots that are meant, in order of their bits.
    pub fn reached(&self) -> impl Iterator<Item = usize> + '_ {
        let meant = |n: usize| self.bitmap & (1 << n) != 0;
        let slots = self.slots.iter().enumerate();
        slots.filter_map(move |(n, slot)| slot.filter(|_| meant(n)))
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
        let at = self
            .physical
            .binary_search_by_key(&id, |&(id, _)| id)
            .ok()?;
        self.physical.get(at).map(|&(_, index)| index)
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
                FastPath::NOBODY
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

    fn look_up_logical(&self, dest: u32) -> Option<FastPath> {
        let mut found = FastPath::NOBODY;
        let from_slots = |found: &mut FastPath, first: usize, count: usize| {
            let slots = self.logical.iter().skip(first).take(count);
            for (to, slot) in found.slots.iter_mut().zip(slots) {
                *to = *slot;
            }
        };
        match self.logical_mode {
            LogicalMode::SwDisabled => {}
            LogicalMode::MapDisabled => return None,
            LogicalMode::XapicFlat => {
                from_slots(&mut found, 0, 8);
                found.bitmap = (dest & 0xff) as u16;
            }
            LogicalMode::XapicCluster => {
                from_slots(&mut found, 4 * ((dest >> 4) & 0xf) as usize, 4);
                found.bitmap = (dest & 0xf) as u16;
            }
            LogicalMode::X2apic => {
                let first = (dest >> 16) * 16;
                if first <= self.max_apic_id {
                    let last = self.max_apic_id - first;
                    for (id, slot) in (0..=last.min(15)).zip(found.slots.iter_mut()) {
                        *slot = self.physical(first + id);
                    }
                    // At most 16 bits remain, and those above `last` name no id.
                    let mask = (2u32 << last.min(15)) - 1;
                    found.bitmap = (dest & mask & 0xffff) as u16;
                }
            }
        }
        Some(found)
    }
}

/// The bit of the mask that the vector picks, counting bits, not vCPUs: an empty slot may be hit
/// and then nobody gets the interrupt.
fn hashed(found: &FastPath, vector: u8) -> u16 {
    let count = found.bitmap.count_ones();
    if count == 0 {
        return 0;
    }
    let nth = u32::from(vector) % count;
    let mut left = found.bitmap;
    for _ in 0..nth {
        left &= left.wrapping_sub(1);
    }
    let at = left.trailing_zeros();
    match found.slots.get(at as usize) {
        Some(Some(_)) => 1 << at,
        _ => 0,
    }
}

/// The filled slot whose LAPIC has got the fewest lowest-priority interrupts.
fn least_priority(found: &FastPath, apics: &[Apic]) -> u16 {
    let mut best: Option<(u32, usize)> = None;
    for (n, slot) in found.slots.iter().enumerate() {
        let Some(apic) = slot.and_then(|index| apics.get(index)) else {
            continue;
        };
        let meant = found.bitmap & (1 << n) != 0;
        if meant && best.is_none_or(|(prio, _)| apic.arb_prio < prio) {
            best = Some((apic.arb_prio, n));
        }
    }
    best.map_or(0, |(_, n)| 1 << n)
}
