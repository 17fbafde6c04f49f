//! Events of a small host, for all tests.

use proptest::prelude::*;
use stealtime_events::{Context, CpuId, Event, ExitReason, Kind, NameId, Names, Tid, VcpuId};

/// CPUs of the host.
pub const CPUS: u16 = 3;
/// `EXIT_ZOMBIE`.
pub const ZOMBIE: u32 = 0x20;
/// `TASK_INTERRUPTIBLE`.
pub const ASLEEP: u32 = 1;

const NAMES: [&str; 3] = ["CPU 0/KVM", "CPU 1/KVM", "worker"];

/// Names of threads.
pub struct Table;

impl Names for Table {
    fn name(&self, id: NameId) -> &str {
        NAMES.get(id.0 as usize).copied().unwrap_or("")
    }
}

/// An event in task context.
pub fn event(time_ns: u64, cpu: u16, tid: i32, kind: Kind) -> Event {
    Event {
        time_ns,
        cpu: CpuId(cpu),
        tid: Tid(tid),
        context: Context::default(),
        kind,
    }
}

/// `sched_switch` to a task of nice 0.
pub fn switch(time_ns: u64, cpu: u16, prev: i32, next: i32, prev_state: u32) -> Event {
    let kind = Kind::SchedSwitch {
        prev: Tid(prev),
        next: Tid(next),
        prev_prio: 120,
        next_prio: 120,
        prev_state,
    };
    event(time_ns, cpu, prev, kind)
}

/// `sched_wakeup` by the idle task.
pub fn wakeup(time_ns: u64, cpu: u16, tid: i32, target_cpu: u16) -> Event {
    let kind = Kind::SchedWakeup {
        tid: Tid(tid),
        prio: 120,
        target_cpu: target_cpu.into(),
    };
    event(time_ns, cpu, 0, kind)
}

/// `kvm_entry` of a vCPU's thread.
pub fn entry(time_ns: u64, cpu: u16, tid: i32, vcpu: u32) -> Event {
    let vcpu = VcpuId(vcpu);
    event(time_ns, cpu, tid, Kind::KvmEntry { vcpu })
}

/// `sched_process_exit` of the current task.
pub fn process_exit(time_ns: u64, cpu: u16, tid: i32) -> Event {
    event(time_ns, cpu, tid, Kind::SchedProcessExit { tid: Tid(tid) })
}

/// A loss on a CPU.
pub fn lost(time_ns: u64, cpu: u16) -> Event {
    event(time_ns, cpu, -1, Kind::Lost { count: 1 })
}

fn tid() -> impl Strategy<Value = Tid> {
    (0..6i32).prop_map(Tid)
}

fn kind() -> impl Strategy<Value = Kind> {
    let cpu = || 0..u32::from(CPUS);
    let state = prop_oneof![Just(0), Just(ASLEEP), Just(0x10), Just(ZOMBIE), Just(0x80)];
    let vcpu = || (0..2u32).prop_map(VcpuId);
    prop_oneof![
        8 => (tid(), tid(), state).prop_map(|(prev, next, prev_state)| Kind::SchedSwitch {
            prev, next, prev_prio: 120, next_prio: 120, prev_state
        }),
        2 => (tid(), cpu()).prop_map(|(tid, target_cpu)| Kind::SchedWaking {
            tid, prio: 120, target_cpu
        }),
        2 => (tid(), cpu()).prop_map(|(tid, target_cpu)| Kind::SchedWakeup {
            tid, prio: 120, target_cpu
        }),
        1 => (tid(), cpu()).prop_map(|(tid, target_cpu)| Kind::SchedWakeupNew {
            tid, prio: 120, target_cpu
        }),
        1 => (tid(), cpu()).prop_map(|(tid, dest_cpu)| Kind::SchedMigrateTask {
            tid, prio: 120, orig_cpu: 0, dest_cpu
        }),
        1 => tid().prop_map(|tid| Kind::SchedProcessExit { tid }),
        1 => (tid(), tid()).prop_map(|(parent, child)| Kind::SchedProcessFork { parent, child }),
        1 => (tid(), 0..4u32).prop_map(|(tid, name)| Kind::Task {
            tid, process: Tid(0), name: NameId(name)
        }),
        1 => Just(Kind::Lost { count: 0 }),
        3 => vcpu().prop_map(|vcpu| Kind::KvmEntry { vcpu }),
        3 => (vcpu(), prop_oneof![Just(12), Just(40)]).prop_map(|(vcpu, code)| Kind::KvmExit {
            reason: ExitReason::vmx(code), vcpu, intr_vector: None, info1: 0
        }),
        1 => any::<u8>().prop_map(|vec| Kind::SoftirqEntry { vec: u32::from(vec % 10) }),
        1 => any::<u8>().prop_map(|vec| Kind::SoftirqExit { vec: u32::from(vec % 10) }),
    ]
}

/// Any events: of a task that may be elsewhere, out of order at times, with gaps and ids given out again.
pub fn events() -> impl Strategy<Value = Vec<Event>> {
    let step = (0..2_000u64, 0..20u64, 0..CPUS, tid(), kind());
    proptest::collection::vec(step, 1..200).prop_map(|steps| {
        let mut now = 1_000_000;
        let event = |(ahead, early, cpu, current, kind)| {
            now += ahead;
            // One event in 20 comes late.
            let time_ns = if early == 0 { now - ahead / 2 } else { now };
            let tid = match kind {
                Kind::SchedSwitch { prev, .. } => prev,
                _ => current,
            };
            event(time_ns, cpu, tid.0, kind)
        };
        steps.into_iter().map(event).collect()
    })
}
