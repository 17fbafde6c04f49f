//! vCPUs that the host knows and KVM's events do not show.

use stealtime_collector::{Collector, KnownVm, Sample};
use stealtime_events::{Context, CpuId, Event, Kind, NameId, Names, Tid};

const SECOND: u64 = 1_000_000_000;
/// Time of a turn of each vCPU, in ns.
const TURN: u64 = SECOND / 10;
const VCPU: NameId = NameId(1);

struct OneName;

impl Names for OneName {
    fn name(&self, id: NameId) -> &str {
        match id {
            VCPU => "CPU 0/KVM",
            _ => "",
        }
    }
}

fn known(name: &str, tid: i32) -> KnownVm {
    KnownVm {
        name: name.to_owned(),
        pid: tid - 1,
        threads: vec![tid - 1, tid],
    }
}

/// A second in which threads 10 and 20 take turns on a CPU, without an event of KVM. In the midst of it the
/// host knows the VMs of `later`.
fn second(vms: &[KnownVm], later: &[KnownVm]) -> Sample {
    let mut collector = Collector::new(SECOND);
    collector.set_vms(vms);
    let push = |collector: &mut Collector, turn: u64, tid: i32, kind: Kind| {
        let event = Event {
            time_ns: SECOND + turn * TURN,
            tid: Tid(tid),
            cpu: CpuId(0),
            context: Context::from_bits(0),
            kind,
        };
        collector.event(&event, &OneName);
    };
    for tid in [10, 20].map(Tid) {
        let (process, name) = (Tid(0), VCPU);
        push(&mut collector, 0, 0, Kind::Task { tid, process, name });
    }
    for turn in 0..30 {
        if turn == 15 {
            collector.set_vms(later);
        }
        let (prev, next) = if turn % 2 == 0 { (10, 20) } else { (20, 10) };
        let kind = Kind::SchedSwitch {
            prev: Tid(prev),
            next: Tid(next),
            prev_prio: 120,
            next_prio: 120,
            prev_state: 0,
        };
        push(&mut collector, turn, prev, kind);
    }
    collector.next_sample();
    collector.next_sample().expect("a second sample")
}

fn names(sample: &Sample) -> Vec<&str> {
    sample.vms.iter().map(|vm| vm.vm.as_str()).collect()
}

#[test]
fn a_vm_that_ends_within_a_sample_keeps_its_name_there() {
    let vms = [known("web", 10), known("db", 20)];
    let sample = second(&vms, &vms[1..]);
    assert_eq!(names(&sample), ["web", "db"]);
    let renamed = [known("shop", 10), known("db", 20)];
    assert_eq!(names(&second(&vms, &renamed)), ["shop", "db"]);
}

#[test]
fn without_kvm_events_the_host_says_which_threads_are_vcpus() {
    assert!(
        second(&[], &[]).vms.is_empty(),
        "a name alone is no evidence"
    );
    let vms = [known("web", 10), known("db", 20)];
    let sample = second(&vms, &vms);
    assert_eq!(names(&sample), ["web", "db"]);
    for vm in &sample.vms {
        assert_eq!(vm.times.ready.vcpu_other_vm, SECOND / 2, "{}", vm.vm);
    }
}
