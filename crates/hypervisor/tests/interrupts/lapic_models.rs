//! The local APIC against plain models: sets of vectors, and asking each LAPIC in turn.

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use stealtime_hypervisor::lapic::{
    Apic, ApicBus, ApicMode, BusOptions, DeliveryMode, IllegalVector, Interrupt, Irr, Lapic,
    NoSuchVcpu, PvIpi, PvIpiError, Shorthand, VectorSet, xen,
};
use stealtime_hypervisor::posted_interrupt::ipi_virtualization::{
    ExitReason, PidPointerTable, Route,
};
use stealtime_hypervisor::posted_interrupt::{
    Control, Descriptor, LocalLists, NotOnACpu, PostedVcpu, Requests, SharedVcpu, Suppression, vtd,
};

use crate::rig::{Counts, IPIV_HOST, SLEEPS};

type Word = Cell<u64>;

/// Bits of an entry of the table for interrupt remapping (VT-d 9.11).
const PRESENT_IN_IRTE: u128 = 1;
const POSTED_IN_IRTE: u128 = 1 << 15;

/// A LAPIC as the manual tells it: two sets and a task priority.
#[derive(Debug, Default)]
struct Model {
    irr: BTreeSet<u8>,
    isr: BTreeSet<u8>,
    tpr: u8,
}

impl Model {
    fn ppr(&self) -> u8 {
        let in_service = self.isr.last().copied().unwrap_or(0) & 0xf0;
        if self.tpr & 0xf0 >= in_service {
            self.tpr
        } else {
            in_service
        }
    }

    fn deliverable(&self) -> Option<u8> {
        let highest = self.irr.last().copied()?;
        (highest >> 4 > self.ppr() >> 4).then_some(highest)
    }

    fn deliver(&mut self) -> Option<u8> {
        let vector = self.deliverable()?;
        self.irr.remove(&vector);
        self.isr.insert(vector);
        Some(vector)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request(u8),
    Deliver,
    Eoi,
    Tpr(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (16u8..).prop_map(Step::Request),
        3 => Just(Step::Deliver),
        2 => Just(Step::Eoi),
        1 => any::<u8>().prop_map(Step::Tpr),
    ]
}

fn vectors(set: VectorSet) -> BTreeSet<u8> {
    set.iter().collect()
}

fn cases(many: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 4 } else { many })
    }
}

proptest! {
    #![proptest_config(cases(512))]

    /// Without APICv: everything in software.
    #[test]
    fn software_lapic_is_two_sets(steps in prop::collection::vec(step(), 0..120)) {
        let (irr, mut lapic, mut model) = (Irr::<Word>::default(), Lapic::new(false), Model::default());
        for step in steps {
            match step {
                Step::Request(v) => prop_assert_eq!(irr.set(v), model.irr.insert(v)),
                Step::Deliver => {
                    prop_assert_eq!(lapic.has_interrupt(&irr), model.deliverable());
                    prop_assert_eq!(lapic.inject(&irr), model.deliver());
                }
                Step::Eoi => prop_assert_eq!(lapic.eoi(&irr), model.isr.pop_last()),
                Step::Tpr(v) => {
                    model.tpr = v;
                    lapic.set_tpr(v, &irr);
                }
            }
            prop_assert_eq!(lapic.ppr() & 0xf0, model.ppr() & 0xf0);
            prop_assert_eq!(vectors(irr.snapshot()), model.irr.clone());
            prop_assert_eq!(vectors(lapic.isr()), model.isr.clone());
            prop_assert_eq!(lapic.highest_isr(), model.isr.last().copied());
        }
    }

    /// In guest mode: virtual-interrupt delivery by the processor.
    #[test]
    fn virtual_interrupt_delivery_is_two_sets(steps in prop::collection::vec(step(), 0..120)) {
        let own = PostedVcpu::new(0, IPIV_HOST, Suppression::Put);
        let vcpu = SharedVcpu::<Word>::new(true);
        let (mut lapic, mut model) = (Lapic::new(true), Model::default());
        for step in steps {
            match step {
                Step::Request(v) => {
                    vcpu.irr.set(v);
                    model.irr.insert(v);
                    own.sync(&vcpu, &mut lapic, &());
                    lapic.virtual_entry();
                }
                Step::Deliver => {
                    prop_assert_eq!(lapic.virtual_deliver(&vcpu.irr), model.deliver());
                }
                Step::Eoi => {
                    let done = lapic.virtual_eoi(&());
                    prop_assert_eq!(done.vector, model.isr.pop_last().unwrap_or(0));
                    prop_assert!(!done.exits);
                }
                Step::Tpr(v) => {
                    model.tpr = v;
                    prop_assert_eq!(lapic.virtual_tpr(v), model.deliverable().is_some());
                }
            }
            prop_assert_eq!(vectors(vcpu.irr.snapshot()), model.irr.clone());
            prop_assert_eq!(vectors(lapic.isr()), model.isr.clone());
            prop_assert_eq!(lapic.svi(), model.isr.last().copied().unwrap_or(0));
        }
    }

    /// What was posted is what a synchronization finds, whatever was in the IRR.
    #[test]
    fn synchronization_is_a_union(
        posted in prop::collection::btree_set(any::<u8>(), 0..40),
        requested in prop::collection::btree_set(any::<u8>(), 0..40),
    ) {
        let own = PostedVcpu::new(0, IPIV_HOST, Suppression::Put);
        let vcpu = SharedVcpu::<Word>::new(true);
        vcpu.desc.clear_sn();
        let mut lapic = Lapic::new(true);
        requested.iter().for_each(|&v| { vcpu.irr.set(v); });
        let notified = posted.iter().filter(|&&v| vtd::post(&vcpu.desc, v, false, &()).is_some());
        prop_assert_eq!(notified.count(), usize::from(!posted.is_empty()), "one notification");
        let both: BTreeSet<u8> = posted.union(&requested).copied().collect();
        let highest = own.sync(&vcpu, &mut lapic, &());
        prop_assert_eq!(highest, both.last().copied());
        prop_assert_eq!(lapic.rvi(), both.last().copied().unwrap_or(0));
        prop_assert_eq!(vectors(vcpu.irr.snapshot()), both);
        prop_assert!(vcpu.desc.is_pir_empty() && !vcpu.desc.test_on());
    }

    #[test]
    fn vector_set_is_a_set(list in prop::collection::vec((any::<bool>(), any::<u8>()), 0..80)) {
        let (mut set, mut model) = (VectorSet::EMPTY, BTreeSet::new());
        for (insert, v) in list {
            if insert {
                prop_assert_eq!(set.insert(v), model.insert(v));
            } else {
                prop_assert_eq!(set.remove(v), model.remove(&v));
            }
        }
        prop_assert_eq!(set.highest(), model.last().copied());
        prop_assert_eq!(set.len() as usize, model.len());
        prop_assert_eq!(set.is_empty(), model.is_empty());
        prop_assert_eq!(vectors(set), model);
    }

    #[test]
    fn icr_decodes_to_what_encodes_it(low in any::<u32>(), high in any::<u32>()) {
        for x2apic in [false, true] {
            let decoded = Interrupt::from_icr(low, high, x2apic);
            let (l, h) = decoded.to_icr(x2apic);
            // Vector, mode, destination mode, level, trigger and shorthand are kept.
            prop_assert_eq!(l, low & 0x000c_cfff);
            prop_assert_eq!(h, if x2apic { high } else { high & 0xff00_0000 });
            prop_assert_eq!(Interrupt::from_icr(l, h, x2apic), decoded);
        }
    }

    #[test]
    fn irte_decodes_to_what_encodes_it(
        flags in any::<[bool; 3]>(), vector in any::<u8>(), line in 0u64..1 << 58, source in 0u32..1 << 20,
    ) {
        let irte = vtd::PostedIrte {
            present: flags[0],
            fault_processing_disable: flags[1],
            urgent: flags[2],
            vector,
            descriptor: line << 6,
            source,
        };
        prop_assert_eq!(vtd::PostedIrte::decode(irte.encode().unwrap()), Some(irte));
        let address = (line << 6) + 1 + u64::from(vector & 0x1f);
        let askew = vtd::PostedIrte { descriptor: address, ..irte };
        prop_assert_eq!(askew.encode(), Err(vtd::MisalignedDescriptor { address }));
    }

    /// The descriptor's bytes are where the manual says.
    #[test]
    fn descriptor_has_the_layout_of_the_manual(
        pir in prop::collection::btree_set(any::<u8>(), 0..20),
        (on, sn) in any::<(bool, bool)>(), nv in any::<u8>(), ndst in any::<u32>(),
    ) {
        let mut control = Control(0).with_sn(sn).with_nv(nv).with_ndst(ndst);
        if on {
            control = control.with_on();
        }
        let desc = Descriptor::<Word>::from_image([0, 0, 0, 0, control.0, 0, 0, 0]);
        let mut bytes = [0; 64];
        for &v in &pir {
            prop_assert!(!desc.test_and_set_pir(v));
            bytes[usize::from(v / 8)] |= 1 << (v % 8);
        }
        bytes[32] = u8::from(on) | u8::from(sn) << 1;
        bytes[34] = nv;
        bytes[36..40].copy_from_slice(&ndst.to_le_bytes());
        prop_assert_eq!(desc.to_bytes(), bytes);
        let c = desc.control();
        prop_assert_eq!((c.on(), c.sn(), c.nv(), c.ndst()), (on, sn, nv, ndst));
        let c = c.with_on();
        prop_assert_eq!((c.on(), c.sn(), c.nv(), c.ndst()), (true, sn, nv, ndst));
    }

    /// Where the map answers a fixed interrupt of a well-formed VM, asking each LAPIC agrees.
    #[test]
    fn map_agrees_with_asking_each(
        count in 1u32..20, x2apic in any::<bool>(), cluster in any::<bool>(), lowest in 0u32..40,
        low in any::<u32>(), high in any::<u32>(), from in any::<u32>(),
    ) {
        // Ids of x2APIC need not begin at 0.
        let lowest = if x2apic { lowest } else { 0 };
        let ids = lowest..lowest + count;
        let apics: Vec<_> = ids.map(|n| well_formed(n, x2apic, cluster)).collect();
        let bus = ApicBus::new(apics, BusOptions::default());
        let source = Some((from % count) as usize);
        // Fixed delivery, no shorthand: those are decided elsewhere.
        let mut interrupt = Interrupt::from_icr(low & !0xc_0700, high, x2apic);
        interrupt.dest %= if x2apic { 0x2_0000 } else { 0xff };
        if let Some(fast) = bus.fast_path(source, &interrupt) {
            let fast: BTreeSet<_> = fast.reached().collect();
            let slow: BTreeSet<_> = (0..bus.apics().len())
                .filter(|&v| bus.matches(v, source, &interrupt))
                .collect();
            prop_assert_eq!(fast, slow);
        }
    }

    /// No input makes delivery panic, hang, or reach a vCPU twice.
    #[test]
    fn delivery_survives_anything(
        rows in prop::collection::vec(any::<(u32, u8, bool, u32, u32, u32)>(), 0..12),
        options in any::<[bool; 3]>(), low in any::<u32>(), high in any::<u32>(),
        source in 0usize..14, pv in any::<(u64, u64, u32, u64)>(), hint in any::<bool>(),
    ) {
        let apics: Vec<_> = rows.iter().map(|&(vcpu_id, mode, sw_enabled, id, ldr, dfr)| Apic {
            vcpu_id,
            mode: [ApicMode::Disabled, ApicMode::Xapic, ApicMode::X2apic][usize::from(mode % 3)],
            sw_enabled, id, ldr, dfr, arb_prio: u32::MAX,
        }).collect();
        let vcpus = apics.len();
        let [x2apic_format, quirk_disabled, vector_hashing] = options;
        let options = BusOptions { x2apic_format, quirk_disabled, vector_hashing };
        let mut bus = ApicBus::new(apics, options);
        let interrupt = Interrupt {
            redirection_hint: hint,
            ..Interrupt::from_icr(low, high, true)
        };
        let mut reached = Vec::new();
        let done = bus.deliver(Some(source), &interrupt, &(), |v, _| reached.push(v));
        if source >= vcpus {
            prop_assert_eq!(done, Err(NoSuchVcpu { vcpu: source, vcpus }));
            prop_assert!(reached.is_empty());
        } else {
            let distinct: BTreeSet<_> = reached.iter().collect();
            prop_assert!(distinct.len() == reached.len() || options.x2apic_format);
            prop_assert!(reached.iter().all(|&v| v < vcpus));
        }
        let _ = bus.single_target(&interrupt);
        let (l, h, min, icr) = pv;
        let ipi = PvIpi { low: l, high: h, min, icr, op_64bit: hint };
        let done = bus.pv_ipi(&ipi, &(), |_, _| {});
        if icr & 0xc_0800 != 0 {
            prop_assert_eq!(done, Err(PvIpiError::InvalidIcr { icr }));
        }
        let vlapics: Vec<_> = rows.iter().map(|&(id, ppr, x2apic, ldr, dfr, _)| xen::Vlapic {
            x2apic, id, ldr, dfr, enabled: ppr & 1 != 0, ppr,
        }).collect();
        let mut round_robin = high as usize;
        let _ = xen::ipi(&vlapics, &mut round_robin, source, &interrupt, &(), |_| {});
    }
}

pub(crate) fn well_formed(n: u32, x2apic: bool, cluster: bool) -> Apic {
    Apic {
        vcpu_id: n,
        mode: if x2apic {
            ApicMode::X2apic
        } else {
            ApicMode::Xapic
        },
        sw_enabled: true,
        id: if x2apic { n } else { n << 24 },
        ldr: match (x2apic, cluster) {
            (true, _) => (n >> 4) << 16 | 1 << (n & 15),
            (false, true) => ((n >> 2) << 4 | 1 << (n & 3)) << 24,
            (false, false) => 1u32.checked_shl(24 + n).unwrap_or(0),
        },
        dfr: if cluster { 0x0fff_ffff } else { u32::MAX },
        arb_prio: 0,
    }
}

#[test]
fn reserved_vectors_are_refused_as_hardware_does() {
    for (delivery, refused) in [
        (DeliveryMode::Fixed, true),
        (DeliveryMode::LowestPriority, true),
        (DeliveryMode::Nmi, false),
        (DeliveryMode::Startup, false),
    ] {
        let ipi = Interrupt {
            delivery,
            ..Interrupt::from_icr(0x400f, 0, true)
        };
        let vector = 15;
        let expected = refused.then_some(IllegalVector { vector, delivery });
        assert_eq!(ipi.check_vector().err(), expected);
    }
    assert!(Interrupt::from_icr(0x4010, 0, true).check_vector().is_ok());
    let own = Interrupt::from_self_ipi(0xffff_ff31);
    assert_eq!((own.vector, own.shorthand), (0x31, Shorthand::SelfOnly));
}

#[test]
fn ipi_virtualization_takes_plain_ipis_only() {
    let table = PidPointerTable {
        entries: &[0x1001, 0x1040, 0x1081],
    };
    let fixed = Interrupt::from_icr(0x40fd, 2, true);
    let exit = |reason| Route::Exit(reason);
    let apic_id = 2;
    let address = 0x1080;
    let lowest = Interrupt::from_icr(0x4010, 2, true);
    for ipi in [fixed, lowest] {
        assert_eq!(
            table.route(&ipi, true, &()),
            Route::Post { apic_id, address }
        );
    }
    for (low, high, reason) in [
        (0x48fd, 2, ExitReason::Form),
        (0x44fd, 2, ExitReason::Form),
        (0xc0fd, 2, ExitReason::Form),
        (0x4_40fd, 2, ExitReason::Form),
        (0x41fd, 2, ExitReason::Form),
        (0x400f, 2, ExitReason::Vector(15)),
        (0x40fd, 1, ExitReason::InvalidEntry(1)),
        (0x40fd, 3, ExitReason::OutOfTable(3)),
        (0x40fd, u32::MAX, ExitReason::Broadcast),
    ] {
        let ipi = Interrupt::from_icr(low, high, true);
        assert_eq!(
            table.route(&ipi, true, &()),
            exit(reason),
            "{low:#x} {high}"
        );
    }
    let everybody = Interrupt::from_icr(0x40fd, 0xff00_0000, false);
    assert_eq!(
        table.route(&everybody, false, &()),
        exit(ExitReason::Broadcast)
    );
    let far = Interrupt::from_icr(0x40fd, 0xff, true);
    assert_eq!(
        table.route(&far, true, &()),
        exit(ExitReason::OutOfTable(0xff))
    );
}

#[test]
fn level_triggered_interrupts_leave_at_their_eoi() {
    let (irr, mut lapic) = (Irr::<Word>::default(), Lapic::new(true));
    for (vector, level, exits) in [(0x40, true, true), (0x50, false, false)] {
        irr.set(vector);
        lapic.note_trigger(vector, level);
        assert_eq!(lapic.tmr().contains(vector), level);
        lapic.set_rvi(vector);
        lapic.virtual_entry();
        assert_eq!(lapic.virtual_deliver(&irr), Some(vector));
        let done = lapic.virtual_eoi(&());
        assert_eq!((done.vector, done.exits), (vector, exits));
    }
    // Edge-triggered next time: TMR forgets, the bitmap waits for the next scan.
    lapic.note_trigger(0x40, false);
    assert!(!lapic.tmr().contains(0x40) && lapic.eoi_exit_bitmap().contains(0x40));
    lapic.load_eoi_exit_bitmap(VectorSet::EMPTY);
    assert!(lapic.eoi_exit_bitmap().is_empty());
    // An EOI with nothing in service is harmless.
    assert_eq!(lapic.virtual_eoi(&()).vector, 0);
}

#[test]
fn a_scan_loads_the_bitmap_before_any_level_triggered_interrupt() {
    let mut lapic = Lapic::new(true);
    let mut vectors = VectorSet::EMPTY;
    vectors.insert(0x40);
    lapic.load_eoi_exit_bitmap(vectors);
    assert!(lapic.eoi_exit_bitmap() == vectors);
}

/// Without APICv the IRR is searched only if the hint says so.
#[test]
fn posted_vectors_set_the_hint_of_an_empty_irr() {
    let (mut lapic, irr) = (Lapic::new(false), Irr::<Word>::default());
    irr.set(0x31);
    assert_eq!(lapic.inject(&irr), Some(0x31));
    assert_eq!(lapic.eoi(&irr), Some(0x31));
    let mut posted = VectorSet::EMPTY;
    posted.insert(0x32);
    // APICv needs no hint.
    assert!(!lapic.merge_pir(&irr, &VectorSet::EMPTY).highest_is_new);
    assert!(Lapic::new(true).merge_pir(&irr, &posted).highest_is_new);
    assert!(!irr.is_pending());
    assert!(irr.clear(0x32, false));
    assert!(lapic.merge_pir(&irr, &posted).highest_is_new);
    assert_eq!(lapic.has_interrupt(&irr), Some(0x32));
}

/// Also where two words have the same bit.
#[test]
fn a_set_with_a_vector_is_not_empty() {
    for (low, high) in [
        (7, 71),
        (7, 135),
        (7, 199),
        (71, 135),
        (71, 199),
        (135, 199),
    ] {
        assert!(
            !VectorSet::from_iter([low, high]).is_empty(),
            "{low} {high}"
        );
        assert!(!VectorSet::from_iter([high]).is_empty(), "{high}");
    }
    assert!(VectorSet::EMPTY.is_empty());
}

/// For the virtual-APIC page, before an entry with virtual-interrupt delivery.
#[test]
fn all_requests_are_taken_at_once() {
    let irr = Irr::<Word>::default();
    assert!(irr.take().is_empty());
    let vectors: VectorSet = [0x31, 0x52, 0xfe].into_iter().collect();
    for vector in [0x31, 0x52, 0xfe] {
        irr.set(vector);
    }
    assert!(irr.take() == vectors);
    assert!(irr.snapshot().is_empty());
}

#[test]
fn a_request_is_withdrawn_once() {
    let irr = Irr::<Word>::default();
    for apicv in [false, true] {
        irr.set(0x31);
        irr.set(0x32);
        assert!(irr.clear(0x31, apicv), "{apicv}");
        assert!(!irr.clear(0x31, apicv), "{apicv}");
        assert_eq!(irr.highest(), Some(0x32));
    }
}

#[test]
fn registers_of_an_apic_page_hold_32_vectors_each() {
    let registers = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| 1 << n);
    let vectors = VectorSet::from_registers(registers);
    let found = (0..=255).filter(|vector| vectors.contains(*vector));
    assert!(found.eq((0..8).map(|n| 33 * n)));
    assert_eq!(vectors.to_registers(), registers);
}

#[test]
fn a_vcpu_without_a_wakeup_list_is_refused() {
    let vcpu = SharedVcpu::<Word>::new(true);
    let mut own = PostedVcpu::new(3, IPIV_HOST, Suppression::Put);
    let lists = LocalLists::new(1, 1);
    assert!(!own.is_blocking());
    own.begin_blocking(&vcpu, &());
    assert!(own.is_blocking());
    let never = NotOnACpu { vcpu: 3, cpu: None };
    assert_eq!(own.put(&vcpu, SLEEPS, &lists, &()), Err(never));
    own.load(&vcpu, 9, 9, &lists, &()).unwrap();
    let no_list = NotOnACpu {
        vcpu: 3,
        cpu: Some(9),
    };
    assert_eq!(own.put(&vcpu, SLEEPS, &lists, &()), Err(no_list));
    assert!(no_list.to_string().contains("CPU 9"));
}

/// Nothing is posted where ON is clear. Under SN a post leaves ON clear, and policies that notify no CPU in
/// the host look at PIR then.
#[test]
fn a_synchronization_without_a_post_is_spared() {
    for (policy, spared_under_sn) in [(Suppression::Put, 1), (Suppression::Corrected, 0)] {
        for (sn, spared) in [(false, 1), (true, spared_under_sn)] {
            let vcpu = SharedVcpu::<Word>::new(true);
            let own = PostedVcpu::new(3, IPIV_HOST, policy);
            match sn {
                true => vcpu.desc.set_sn(),
                false => vcpu.desc.clear_sn(),
            }
            let counted = Counts::default();
            let mut lapic = Lapic::new(true);
            assert_eq!(own.sync(&vcpu, &mut lapic, &counted), None);
            assert_eq!(counted.skipped.get(), spared, "{policy:?}, SN {sn}");
        }
    }
}

#[test]
fn only_pending_requests_are_taken() {
    let vcpu = SharedVcpu::<Word>::new(true);
    let both = Requests(Requests::EVENT.0 | Requests::UNBLOCK.0);
    let others = Requests(Requests::EVENT.0 | Requests::MIGRATE_TIMER.0);
    assert_eq!(vcpu.take(both), Requests(0));
    vcpu.request(both);
    assert_eq!(vcpu.take(others), Requests::EVENT);
    assert_eq!(vcpu.requests(), Requests::UNBLOCK);
    vcpu.request(Requests::MIGRATE_TIMER);
    assert_eq!(vcpu.take(both), Requests::UNBLOCK);
    assert_eq!(vcpu.requests(), Requests(1 << 3));
    vcpu.request(Requests::NESTED_POSTED);
    assert_eq!(vcpu.requests(), Requests(3 << 2));
}

#[test]
fn policies_are_known_by_name() {
    for policy in Suppression::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    let unknown = "as-posted-v4".parse::<Suppression>().unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "no such suppression policy; there are off, put, as-posted-v1, as-posted-v2, as-posted-v3, corrected"
    );
    let flaws = Suppression::ALL.map(Suppression::flaws);
    let none: &[u8] = &[];
    assert_eq!(
        flaws,
        [none, none, &[1, 2, 3, 5], &[5], &[1, 2, 8, 9], none]
    );
}

#[test]
fn while_a_nested_guest_runs_rvi_stays_its_hypervisors() {
    let mut lapic = Lapic::new(true);
    lapic.note_highest(Some(0x41), true);
    assert_eq!((lapic.rvi(), lapic.event_requested()), (0x41, false));
    lapic.set_nested_guest(true);
    lapic.note_highest(Some(0x52), true);
    assert_eq!((lapic.rvi(), lapic.take_event()), (0x41, true));
    // What was highest before asks for nothing.
    lapic.note_highest(Some(0x52), false);
    assert_eq!((lapic.rvi(), lapic.event_requested()), (0x41, false));
    lapic.set_nested_guest(false);
    lapic.note_highest(Some(0x52), false);
    assert_eq!(lapic.rvi(), 0x52);
}

/// The VMCS is written only then.
#[test]
fn rvi_says_whether_it_changed() {
    let mut lapic = Lapic::new(true);
    assert!(lapic.set_rvi(0x31));
    assert!(!lapic.set_rvi(0x31));
    assert!(lapic.set_rvi(0));
    assert_eq!(lapic.rvi(), 0);
}

#[test]
fn an_entry_in_remapped_format_is_no_posted_one() {
    let remapped = PRESENT_IN_IRTE | 0x31 << 16;
    assert_eq!(vtd::PostedIrte::decode(remapped), None);
    assert!(vtd::PostedIrte::decode(remapped | POSTED_IN_IRTE).is_some());
}

/// What a processor with virtual-interrupt delivery leaves behind: RVI, SVI, ISR and TPR, and PPR by the
/// manual's rule ("PPR Virtualization").
#[test]
fn a_vm_exit_hands_over_what_the_processor_has_changed() {
    for (tpr, svi, ppr) in [(0x2f, 0x51, 0x50), (0x62, 0x51, 0x62), (0x52, 0x51, 0x52)] {
        let mut lapic = Lapic::new(true);
        let isr: VectorSet = [0x31, svi].into_iter().collect();
        let status = u16::from_le_bytes([0x41, svi]);
        lapic.read_back(status, isr, tpr);
        assert_eq!(lapic.interrupt_status(), status);
        assert_eq!((lapic.isr(), lapic.tpr(), lapic.ppr()), (isr, tpr, ppr));
    }
}

/// Bits 5 and 6 of the error status register, by the manual's figure of it.
#[test]
fn illegal_vectors_have_bits_of_the_error_status_register() {
    assert_eq!(IllegalVector::ESR_SEND, 0x20);
    assert_eq!(IllegalVector::ESR_RECEIVE, 0x40);
}
