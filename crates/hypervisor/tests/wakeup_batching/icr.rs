//! ICR writes: item 14, all four modes, and machines that cannot be.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stealtime_hypervisor::wakeup_batch::icr::{
    ApicMode, Bystanders, CpuApic, IcrError, IcrWrite, Topology,
};

use crate::machine::{ALL_BUT_SELF, Machine, SCHEDULE, mask, to};

fn topology(mode: ApicMode, ids: &[u32]) -> Result<Topology<Vec<CpuApic>>, IcrError> {
    let apics = ids.iter().map(|&id| CpuApic::new(id, true)).collect();
    Topology::new(mode, apics)
}

fn writes(topology: &Topology<Vec<CpuApic>>, targets: &[u32]) -> Vec<IcrWrite> {
    let mut sent = Vec::new();
    let mut targets = mask(targets.iter().copied());
    let count = topology.send(0, 0xfc, &mut targets, &mut |w| sent.push(w));
    assert_eq!(count, Ok(sent.len() as u32));
    assert!(targets.is_empty());
    sent
}

#[test]
fn wakeup_sloppy_14_one_write_for_each_cluster() {
    let mut m = Machine::new(64, ApicMode::X2apicCluster);
    m.batch.begin().unwrap();
    for cpu in [1, 2, 17, 40, 41, 47] {
        m.raise(cpu, SCHEDULE);
    }
    m.finish();
    let write =
        |cluster: u64, members: u64| IcrWrite::X2apic((cluster << 16 | members) << 32 | 0x8fc);
    assert_eq!(m.sent(), [write(0, 6), write(1, 2), write(2, 0x8300)]);
    // Ids that jump between clusters: the order is that of each one's lowest CPU.
    let jumping = topology(ApicMode::X2apicCluster, &[0, 0x21, 0x11, 0x22, 0x12, 1]).unwrap();
    let sent = writes(&jumping, &[1, 2, 3, 4, 5]);
    assert_eq!(sent, [write(2, 6), write(1, 6), write(0, 2)]);
}

/// The ICR writes of a batch to `targets` on a machine of four CPUs, of which `offline` is.
fn batch_of_four(offline: Option<u32>, bystanders: Bystanders, targets: &[u32]) -> Vec<IcrWrite> {
    let mut m = Machine::new(4, ApicMode::X2apicPhysical);
    let apics = (0..4).map(|cpu| CpuApic::new(cpu, Some(cpu) != offline));
    let topology = Topology::new(ApicMode::X2apicPhysical, apics.collect()).unwrap();
    m.topology = topology.with_bystanders(bystanders);
    m.batch.begin().unwrap();
    for &cpu in targets {
        m.raise(cpu, SCHEDULE);
    }
    m.finish();
    m.sent()
}

#[test]
fn cpus_that_are_online_are_counted() {
    let apics: Vec<_> = (0..4).map(|cpu| CpuApic::new(cpu, cpu % 3 == 0)).collect();
    let topology = Topology::new(ApicMode::X2apicPhysical, apics).unwrap();
    assert_eq!((topology.cpus(), topology.online()), (4, 2));
}

/// Xen's `send_IPI_mask`: the shorthand reaches every LAPIC that is powered, wanted or not.
#[test]
fn the_shorthand_reaches_no_cpu_that_is_not_a_target() {
    let none = Bystanders::default();
    let parked = Bystanders {
        parked: true,
        ..none
    };
    let all = [1, 2, 3];
    assert_eq!(batch_of_four(None, none, &all), [ALL_BUT_SELF]);
    assert_eq!(batch_of_four(None, none, &[1, 2]), [to(1), to(2)]);
    // The online CPUs are all targets, and one more would be reached.
    assert_eq!(batch_of_four(Some(3), none, &[1, 2]), [to(1), to(2)]);
    assert_eq!(batch_of_four(Some(3), parked, &[1, 2]), [ALL_BUT_SELF]);
    // As many targets as there are other online CPUs, but one of them is offline.
    assert_eq!(batch_of_four(Some(3), parked, &[1, 3]), [to(1)]);
    assert_eq!(batch_of_four(Some(3), none, &[3]), []);
    // The sender itself is going offline.
    assert_eq!(batch_of_four(Some(0), parked, &all), all.map(to));
    // CPUs that the topology does not list.
    let unaccounted = Bystanders {
        unaccounted: true,
        ..parked
    };
    let disabled = Bystanders {
        disabled: 1,
        ..parked
    };
    for bystanders in [unaccounted, disabled] {
        assert_eq!(batch_of_four(None, bystanders, &all), all.map(to));
    }
}

/// The same for a single target, which on a machine of two online CPUs is all but self.
#[test]
fn one_target_is_all_but_self_on_two_cpus_only() {
    let raised = |cpus: u32, online: u32, parked| {
        let mut m = Machine::new(cpus, ApicMode::X2apicPhysical);
        let apics = (0..cpus).map(|cpu| CpuApic::new(cpu, cpu < online));
        let topology = Topology::new(ApicMode::X2apicPhysical, apics.collect()).unwrap();
        m.topology = topology.with_bystanders(Bystanders {
            parked,
            ..Bystanders::default()
        });
        m.raise(1, SCHEDULE);
        m.sent()
    };
    assert_eq!(raised(2, 2, false), [ALL_BUT_SELF]);
    assert_eq!(raised(3, 2, true), [ALL_BUT_SELF]);
    assert_eq!(raised(3, 2, false), [to(1)], "CPU 2 is offline");
    assert_eq!(raised(3, 3, false), [to(1)]);
}

#[test]
fn each_mode_in_its_own_way() {
    let ids = [0, 1, 2, 3, 4, 5, 6, 7];
    let flat = topology(ApicMode::XapicFlat, &ids).unwrap();
    let low = 0x8fc;
    let one = IcrWrite::Xapic {
        high: 0x8600_0000,
        low,
    };
    assert_eq!(writes(&flat, &[1, 2, 7]), [one]);
    assert_eq!(writes(&flat, &[0]), []);
    let physical = topology(ApicMode::XapicPhysical, &ids).unwrap();
    let each = |high| IcrWrite::Xapic { high, low: 0xfc };
    let expected = [each(1 << 24), each(7 << 24)];
    assert_eq!(writes(&physical, &[1, 7]), expected);
    assert!(ApicMode::XapicPhysical.waits_for_icr_idle());
    assert!(!ApicMode::X2apicPhysical.waits_for_icr_idle());
    assert_eq!(
        flat.unicast(3, 0xfc),
        Some(IcrWrite::Xapic { high: 8 << 24, low })
    );
}

#[test]
fn machines_that_cannot_be() {
    let mode = ApicMode::X2apicCluster;
    let double = IcrError::DuplicateApicId {
        apic_id: 5,
        first: 1,
        second: 3,
    };
    assert_eq!(topology(mode, &[4, 5, 6, 5]).err(), Some(double));
    let broadcast = IcrError::ApicIdOutOfRange {
        cpu: 1,
        apic_id: u32::MAX,
        mode,
    };
    assert_eq!(topology(mode, &[0, u32::MAX]).err(), Some(broadcast));
    // The logical id of cluster 0x10000 is that of cluster 0.
    let alias = IcrError::ApicIdOutOfRange {
        cpu: 1,
        apic_id: 1 << 20,
        mode,
    };
    assert_eq!(topology(mode, &[0, 1 << 20]).err(), Some(alias));
    assert!(topology(mode, &[0, (1 << 20) - 1]).is_ok());
    assert!(topology(ApicMode::X2apicPhysical, &[0, 1 << 20]).is_ok());
    let mode = ApicMode::XapicPhysical;
    let beyond = IcrError::ApicIdOutOfRange {
        cpu: 0,
        apic_id: 255,
        mode,
    };
    assert_eq!(topology(mode, &[255]).err(), Some(beyond));
    let mode = ApicMode::XapicFlat;
    let ids: Vec<u32> = (0..9).collect();
    let many = IcrError::TooManyCpus { cpus: 9, mode };
    assert_eq!(topology(mode, &ids).err(), Some(many));
    let good = topology(ApicMode::X2apicPhysical, &[0, 1]).unwrap();
    let low = good.send(0, 15, &mut mask([1]), &mut |w| panic!("sent {w:?}"));
    assert_eq!(low, Err(IcrError::IllegalVector { vector: 15 }));
    let lowest = good.send(0, 16, &mut mask([1]), &mut |w| {
        assert_eq!(w, IcrWrite::X2apic(1 << 32 | 16))
    });
    assert_eq!(lowest, Ok(1));
    assert!(many.to_string().contains("9 CPUs"), "{many}");
}

proptest! {
    /// Both x2APIC modes reach the online targets without self, each once; the cluster mode in as
    /// many writes as there are clusters.
    #[test]
    fn every_target_once(
        ids in prop::collection::btree_set(0u32..400, 1..120)
            .prop_map(|ids| ids.into_iter().collect::<Vec<_>>())
            .prop_shuffle(),
        offline in prop::collection::vec(any::<bool>(), 120),
        targets in prop::collection::btree_set(0u32..120, 0..120),
    ) {
        let apics = ids.iter().zip(&offline).map(|(&id, &off)| CpuApic::new(id, !off));
        let apics: Vec<_> = apics.collect();
        let targets: Vec<u32> = targets.into_iter().collect();
        let expected: BTreeMap<u32, u32> = targets
            .iter()
            .filter(|&&cpu| cpu != 0 && (cpu as usize) < ids.len() && !offline[cpu as usize])
            .map(|&cpu| (ids[cpu as usize], cpu))
            .collect();
        for mode in [ApicMode::X2apicPhysical, ApicMode::X2apicCluster] {
            let topology = Topology::new(mode, apics.clone()).unwrap();
            let sent = writes(&topology, &targets);
            let mut reached = Vec::new();
            for write in &sent {
                let IcrWrite::X2apic(value) = write else { panic!("{write:?}") };
                prop_assert_eq!(value & 0xff, 0xfc);
                let dest = (value >> 32) as u32;
                if mode == ApicMode::X2apicPhysical {
                    reached.push(dest);
                } else {
                    let members = (0..16).filter(|bit| dest >> bit & 1 == 1);
                    reached.extend(members.map(|bit| dest >> 16 << 4 | bit));
                }
            }
            reached.sort_unstable();
            prop_assert_eq!(&reached, &expected.keys().copied().collect::<Vec<_>>());
            let clusters: std::collections::BTreeSet<_> = reached.iter().map(|id| id >> 4).collect();
            let number = if mode == ApicMode::X2apicCluster { clusters.len() } else { reached.len() };
            prop_assert_eq!(sent.len(), number);
        }
    }
}
