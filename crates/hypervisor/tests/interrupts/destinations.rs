//! Where an interrupt goes: maps of destinations, broadcasts, and interrupts without a target.

use std::cell::Cell;

use stealtime_hypervisor::events::Events;
use stealtime_hypervisor::lapic::{
    Apic, ApicBus, ApicMode, BusOptions, DestinationMap, Interrupt, LogicalMode, xen,
};

use crate::lapic_models::well_formed;

/// `kvm_recalculate_phys_map` with 32-bit ids: a vCPU in xAPIC mode is found by an id beyond 8 bits, next to
/// the 8 bits that its register has.
#[test]
fn an_id_beyond_8_bits_is_mapped_in_xapic_mode_too() {
    let apic = |vcpu_id: u32| Apic {
        vcpu_id,
        mode: ApicMode::Xapic,
        sw_enabled: true,
        id: vcpu_id << 24,
        ldr: 0,
        dfr: u32::MAX,
        arb_prio: 0,
    };
    let (map, _) = DestinationMap::build(&[apic(3), apic(0x102), apic(0x104)], true);
    let map = map.unwrap();
    let found = [3, 2, 4, 0x102, 0x104, 0x103].map(|id| map.physical(id));
    assert_eq!(found, [Some(0), Some(1), Some(2), Some(1), Some(2), None]);
    // An id of 8 bits is the first one's that has it in its register.
    let renamed = Apic {
        id: 0xff << 24,
        ..apic(3)
    };
    let (map, _) = DestinationMap::build(&[renamed, apic(0xff)], true);
    assert_eq!(map.unwrap().physical(0xff), Some(0));
}

/// `kvm_recalculate_logical_map`: a LAPIC that software has disabled has no place in the map. The others need
/// not agree with its format.
#[test]
fn a_disabled_lapic_has_no_logical_destination() {
    let apic = |vcpu_id: u32, sw_enabled, dfr| Apic {
        vcpu_id,
        mode: ApicMode::Xapic,
        sw_enabled,
        id: vcpu_id << 24,
        ldr: 1 << (24 + vcpu_id),
        dfr,
        arb_prio: 0,
    };
    let (flat, cluster) = (u32::MAX, u32::MAX >> 4);
    for (sw_enabled, mode) in [
        (false, LogicalMode::XapicFlat),
        (true, LogicalMode::MapDisabled),
    ] {
        let apics = [apic(0, true, flat), apic(1, sw_enabled, cluster)];
        let (map, inhibit) = DestinationMap::build(&apics, false);
        assert_eq!(map.unwrap().logical_mode(), mode);
        assert_eq!(inhibit.logical_id_aliased, sw_enabled);
    }
}

/// `kvm_apic_broadcast`: 0xff is everybody unless LAPICs are in x2APIC mode.
#[test]
fn a_destination_of_8_bits_is_everybody_in_xapic_mode_alone() {
    for (x2apic, expected) in [(false, vec![0, 1, 2]), (true, vec![])] {
        let apics = (0..3).map(|n| well_formed(n, x2apic, false)).collect();
        let mut bus = ApicBus::new(apics, BusOptions::default());
        let interrupt = Interrupt {
            dest: 0xff,
            ..Interrupt::from_icr(0x31, 0, true)
        };
        let mut reached = Vec::new();
        let done = bus.deliver(None, &interrupt, &(), |vcpu, _| reached.push(vcpu));
        assert!(done.is_ok());
        assert_eq!(reached, expected, "x2APIC {x2apic}");
    }
}

/// Counts the interrupts that no LAPIC gets.
#[derive(Default)]
struct Unreached(Cell<u32>);

impl Events for Unreached {
    fn ipi_reached_nobody(&self, _: u8) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn an_interrupt_without_a_target_is_counted() {
    let apics = (0..3).map(|n| well_formed(n, true, false)).collect();
    let mut bus = ApicBus::new(apics, BusOptions::default());
    let unreached = Unreached::default();
    for (dest, count) in [(1, 0), (7, 1), (2, 1)] {
        let interrupt = Interrupt::from_icr(0x31, dest, true);
        let done = bus.deliver(Some(0), &interrupt, &unreached, |_, _| {});
        assert_eq!(done.map(|done| done.handed == 0), Ok(dest == 7));
        assert_eq!(unreached.0.get(), count, "to {dest}");
    }
}

/// The same by Xen's rules.
#[test]
fn an_interrupt_without_a_target_is_counted_on_xen() {
    let vlapic = |id| xen::Vlapic {
        x2apic: true,
        id,
        ldr: 0,
        dfr: u32::MAX,
        enabled: true,
        ppr: 0,
    };
    let (vlapics, mut round_robin) = ([0, 1, 2].map(vlapic), 0);
    let unreached = Unreached::default();
    for (dest, count) in [(1, 0), (7, 1), (2, 1)] {
        let interrupt = Interrupt::from_icr(0x31, dest, true);
        let mut handed = 0;
        let count_handed = |_| handed += 1;
        let sent = xen::ipi(
            &vlapics,
            &mut round_robin,
            0,
            &interrupt,
            &unreached,
            count_handed,
        );
        assert!(sent.is_ok());
        assert_eq!(
            (handed, unreached.0.get()),
            (u32::from(dest != 7), count),
            "to {dest}"
        );
    }
}

/// `kvm_recalculate_logical_map` in the cluster model: the upper four bits are the cluster, the lower ones
/// its members.
#[test]
fn members_of_clusters_have_slots_of_their_own() {
    let apic = |vcpu_id: u32, logical: u32| Apic {
        vcpu_id,
        mode: ApicMode::Xapic,
        sw_enabled: true,
        id: vcpu_id << 24,
        ldr: logical << 24,
        dfr: u32::MAX >> 4,
        arb_prio: 0,
    };
    let apics = [apic(0, 0x01), apic(1, 0x08), apic(2, 0x12), apic(3, 0x20)];
    let (map, _) = DestinationMap::build(&apics, false);
    let map = map.unwrap();
    assert_eq!(map.logical_mode(), LogicalMode::XapicCluster);
    let entries: Vec<_> = map.logical_entries().collect();
    assert_eq!(entries, [(0, 0), (3, 1), (5, 2)]);
}

/// Bits of a logical destination beyond the last id are no candidates of the hash.
#[test]
fn vector_hashing_counts_ids_of_the_vm_alone() {
    let apics = (298..301).map(|n| well_formed(n, true, false)).collect();
    let options = BusOptions {
        vector_hashing: true,
        ..BusOptions::default()
    };
    let mut bus = ApicBus::new(apics, options);
    for vector in 0x30u8..0x3c {
        // Lowest priority, logical: cluster 18 with the ids 298 to 301.
        let interrupt = Interrupt::from_icr(u32::from(vector) | 0x900, 0x12_3c00, true);
        let mut reached = Vec::new();
        let done = bus.deliver(Some(0), &interrupt, &(), |vcpu, _| reached.push(vcpu));
        assert!(done.is_ok());
        assert_eq!(reached, [usize::from(vector) % 3]);
    }
}

/// Others of the cluster are left out, also of the slots.
#[test]
fn a_logical_destination_fills_the_slots_that_it_names() {
    let apics = (0..3).map(|n| well_formed(n, true, false)).collect();
    let bus = ApicBus::new(apics, BusOptions::default());
    // Logical: members 0 and 2 of cluster 0.
    let interrupt = Interrupt::from_icr(0x831, 0b101, true);
    let found = bus.fast_path(Some(0), &interrupt).unwrap();
    assert_eq!(found.bitmap(), 0b101);
    let slots = [0, 1, 2, 3].map(|n| found.slot(n));
    assert_eq!(slots, [Some(0), None, Some(2), None]);
}

/// `__apic_accept_irq`: a level-triggered INIT that is de-asserted reaches a LAPIC and resets no vCPU.
#[test]
fn an_init_that_is_deasserted_is_not_accepted() {
    let (assert, level_triggered) = (1 << 14, 1 << 15);
    let (nmi, init) = (0x400, 0x500);
    for (low, accepted) in [
        (init, true),
        (init | assert | level_triggered, true),
        (init | level_triggered, false),
        (nmi | level_triggered, true),
    ] {
        let apics = (0..2).map(|n| well_formed(n, true, false)).collect();
        let mut bus = ApicBus::new(apics, BusOptions::default());
        let mut reached = Vec::new();
        let done = bus.write_icr(0, low, 1, &(), |vcpu, ok| reached.push((vcpu, ok)));
        assert_eq!(reached, [(1, accepted)], "{low:#x}");
        let counts = done.map(|done| (done.handed, done.taken));
        assert_eq!(counts, Ok((1, u32::from(accepted))), "{low:#x}");
    }
}
