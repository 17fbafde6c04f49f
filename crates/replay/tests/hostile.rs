//! Whatever comes, a recording is extracted and replayed, and nothing panics.

use common::extracted;
use proptest::prelude::*;
use stealtime_events::{Context, CpuId, Event, ExitReason, Kind, NameId, Names, Tid, VcpuId};
use stealtime_replay::host::{Assumed, as_recorded};
use stealtime_replay::predict::{recorded, replay};
use stealtime_simulator::config::Knobs;

use crate::common;

const NAMES: [&str; 7] = [
    "CPU 0/KVM",
    "CPU 1/KVM",
    "hrtick",
    "tick_nohz_handler",
    "apic_timer_fn",
    "sched_cfs_period_timer",
    "0xffff",
];

/// So much of a recording is replayed, in ns: some that are random would last for centuries.
const REPLAYED_NS: u64 = 20_000_000;

struct Few;

impl Names for Few {
    fn name(&self, id: NameId) -> &str {
        NAMES.get(id.0 as usize).copied().unwrap_or("")
    }
}

fn tid() -> impl Strategy<Value = Tid> {
    prop_oneof![8 => (0..5i32).prop_map(Tid), 1 => any::<i32>().prop_map(Tid)]
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..3u32, 1 => any::<u32>()]
}

/// Names of threads come first in [`NAMES`], those of functions after them.
fn name() -> impl Strategy<Value = NameId> {
    (0..NAMES.len() as u32 + 1).prop_map(NameId)
}

fn time() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..100_000_000u64, 1 => any::<u64>()]
}

fn sched() -> impl Strategy<Value = Kind> {
    let state = prop_oneof![Just(0), Just(1), Just(0x10), Just(0x100), any::<u32>()];
    let prio = prop_oneof![4 => Just(120i16), 1 => any::<i16>()];
    prop_oneof![
        6 => (tid(), tid(), state, prio).prop_map(|(prev, next, prev_state, next_prio)| {
            Kind::SchedSwitch { prev, next, prev_prio: 120, next_prio, prev_state }
        }),
        3 => (tid(), number()).prop_map(|(tid, target_cpu)| Kind::SchedWaking {
            tid, prio: 120, target_cpu
        }),
        1 => (tid(), number()).prop_map(|(tid, target_cpu)| Kind::SchedWakeupNew {
            tid, prio: 120, target_cpu
        }),
        1 => (tid(), number()).prop_map(|(tid, dest_cpu)| Kind::SchedMigrateTask {
            tid, prio: 120, orig_cpu: 0, dest_cpu
        }),
        1 => tid().prop_map(|tid| Kind::SchedProcessExit { tid }),
        1 => (tid(), tid()).prop_map(|(parent, child)| Kind::SchedProcessFork { parent, child }),
        1 => (tid(), tid(), name()).prop_map(|(tid, process, name)| {
            Kind::Task { tid, process, name }
        }),
        1 => any::<u64>().prop_map(|count| Kind::Lost { count }),
    ]
}

fn kvm() -> impl Strategy<Value = Kind> {
    let vcpu = || number().prop_map(VcpuId);
    let code = prop_oneof![
        Just(1),
        Just(12),
        Just(32),
        Just(40),
        Just(52),
        any::<u32>()
    ];
    prop_oneof![
        4 => vcpu().prop_map(|vcpu| Kind::KvmEntry { vcpu }),
        4 => (vcpu(), code).prop_map(|(vcpu, code)| Kind::KvmExit {
            reason: ExitReason::vmx(code), vcpu, intr_vector: None, info1: 0
        }),
        2 => (time(), any::<bool>()).prop_map(|(ns, waited)| Kind::KvmVcpuWakeup {
            ns, waited, valid: true
        }),
        1 => (vcpu(), any::<u32>(), number()).prop_map(|(vcpu, new, old)| Kind::KvmHaltPollNs {
            vcpu, grow: true, new, old
        }),
        1 => (number(), any::<u8>()).prop_map(|(apicid, vec)| Kind::KvmApicAcceptIrq {
            apicid, dm: 0, tm: 0, vec
        }),
        1 => Just(Kind::KvmMsr { write: true, exception: false, ecx: 0x6e0, data: 0 }),
    ]
}

fn timer() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => (0..4u64, time(), name()).prop_map(|(hrtimer, expires_ns, function)| {
            Kind::HrtimerStart { hrtimer, expires_ns, function }
        }),
        4 => (0..4u64, time(), name()).prop_map(|(hrtimer, now_ns, function)| {
            Kind::HrtimerExpireEntry { hrtimer, now_ns, function }
        }),
        1 => (0..4u64).prop_map(|hrtimer| Kind::HrtimerExpireExit { hrtimer }),
        1 => (0..4u64).prop_map(|hrtimer| Kind::HrtimerCancel { hrtimer }),
    ]
}

/// How much later than the one before, and the event.
fn event() -> impl Strategy<Value = (u64, Event)> {
    let kind = prop_oneof![5 => sched(), 5 => kvm(), 3 => timer()];
    let step = prop_oneof![20 => 0..2_000_000u64, 1 => any::<u64>()];
    let cpu = prop_oneof![8 => 0..3u16, 1 => Just(300u16)];
    let event = (step, tid(), cpu, any::<bool>(), kind);
    event.prop_map(|(step, tid, cpu, in_interrupt, kind)| {
        let event = Event {
            time_ns: 0,
            tid,
            cpu: CpuId(cpu),
            context: Context::from_bits(u8::from(in_interrupt) * Context::HARDIRQ),
            kind,
        };
        (step, event)
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A step over the end of the clock makes time go back.
    #[test]
    fn whatever_was_recorded_is_replayed(list in proptest::collection::vec(event(), 1..300)) {
        let mut now = 1_000u64;
        let events: Vec<Event> = list
            .into_iter()
            .map(|(step, event)| {
                now = now.wrapping_add(step);
                Event { time_ns: now, ..event }
            })
            .collect();
        let (recording, answers) = extracted(&events, &Few);
        let times = recorded(&recording, &answers);
        prop_assert!(times.vcpus.len() <= answers.vcpus.len());
        let mut config = as_recorded(&recording, Knobs::default(), &Assumed::default(), 1);
        prop_assert_eq!(config.scripts.tasks.len(), recording.tasks.len());
        config.run.duration_ns = config.run.duration_ns.min(REPLAYED_NS);
        // A recording without tasks is refused.
        if !recording.tasks.is_empty() {
            let replayed = replay(&recording, &config);
            prop_assert!(replayed.is_ok(), "{:?}", replayed.err());
        }
    }
}
