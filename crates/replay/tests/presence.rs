//! Guests that begin and end in the middle of a recording.

use common::{extracted, kinds};
use stealtime_events::{CpuId, Event, Kind, NameId, Names, Tid, VcpuId};
use stealtime_replay::Begins;
use stealtime_replay::host::{Assumed, as_recorded, knobs};
use stealtime_replay::predict::{Errors, recorded, replay};
use stealtime_simulator::config::Config;
use stealtime_simulator::script::{Moves, ScriptConfig, Scripts, Spent, Step, Until};
use stealtime_simulator::{Collected, run};

use crate::common;

const MS: u64 = 1_000_000;

/// A vCPU that computes 1 ms and halts until the next multiple of 2 ms, from `from` to `to`.
fn vcpu(vm: u32, from: u64, to: u64) -> ScriptConfig {
    let mut steps = Vec::new();
    let mut now = from;
    while now < to {
        now += 2 * MS;
        let spent = Spent::Guest;
        steps.push(Step::Run { ns: MS, spent });
        let spent = Spent::Exit(12);
        steps.push(Step::Run { ns: 10_000, spent });
        steps.push(Step::Halt(Until::Time(now)));
    }
    ScriptConfig {
        first_cpu: vm,
        starts_ns: from,
        moves: Moves::Scheduler,
        ..common::vcpu(vm, 0, steps)
    }
}

/// One VM that is there all the time, one from 200 to 350 ms.
fn host() -> Config {
    let mut config = common::host(2, Vec::new(), 500 * MS, 1);
    config.scripts = Scripts {
        tasks: vec![vcpu(0, 0, 500 * MS), vcpu(1, 200 * MS, 350 * MS)],
        tell: true,
        ..Scripts::default()
    };
    config
}

/// Checks the second VM of what was recorded, and of its replay.
fn check(events: &[Event], names: &dyn Names, is_seen: bool) {
    let (recording, answers) = extracted(events, names);
    let second = recording.tasks.iter().find(|task| task.tid == 1001);
    let second = second.expect("the second task");
    let Some(Begins {
        at_ns,
        is_seen: seen,
    }) = second.begins
    else {
        panic!("it begins: {second:?}");
    };
    assert!((200 * MS..201 * MS).contains(&at_ns), "{at_ns}");
    assert_eq!(seen, is_seen);
    let ends = second.ends_ns.expect("it ends");
    assert!((350 * MS..352 * MS).contains(&ends), "{ends}");
    assert!(
        recording.tasks[0]
            .begins
            .is_none_or(|begins| begins.at_ns == 0)
    );
    let was = recorded(&recording, &answers);
    let config = as_recorded(&recording, knobs(&recording), &Assumed::default(), 0);
    let is = replay(&recording, &config).expect("it can be replayed");
    for times in [&was.vcpus[1], &is.vcpus[1]] {
        let all = times.run_ns + times.ready_ns + times.halted_ns;
        assert!((149 * MS..152 * MS).contains(&all), "{times:?}");
        assert!(times.halted_ns < 77 * MS, "{times:?}");
    }
    let errors = Errors::between(&was, &is, recording.span_ns);
    assert!(errors.percentile(100) < 5_000, "{errors:?}");
}

#[test]
fn a_guest_is_there_in_a_replay_when_it_was_in_the_recording() {
    let mut sink = Collected::default();
    run(&host(), &mut sink).expect("a good configuration");
    check(&sink.events, &sink.names, true);
    // Without the events of forks it begins where it is first seen.
    let without = sink
        .events
        .iter()
        .filter(|event| !matches!(event.kind, Kind::SchedWakeupNew { .. }));
    let without: Vec<Event> = without.copied().collect();
    check(&without, &sink.names, false);
}

#[test]
fn what_only_names_a_task_may_have_any_time() {
    let mut sink = Collected::default();
    run(&host(), &mut sink).expect("a good configuration");
    let named = |time_ns| Event {
        time_ns,
        tid: Tid(0),
        cpu: CpuId(0),
        context: Default::default(),
        kind: Kind::Task {
            tid: Tid(4000),
            process: Tid(4000),
            name: NameId::NONE,
        },
    };
    // As of a host that has been up for a day.
    for event in &mut sink.events {
        event.time_ns += 86_400_000 * MS;
    }
    let (plain, _) = extracted(&sink.events, &sink.names);
    sink.events.insert(0, named(0));
    sink.events.push(named(u64::MAX));
    let (with_names, _) = extracted(&sink.events, &sink.names);
    assert_eq!(with_names.span_ns, plain.span_ns);
    assert!(
        (499 * MS..=500 * MS).contains(&plain.span_ns),
        "{}",
        plain.span_ns
    );
}

struct NoNames;

impl Names for NoNames {
    fn name(&self, _: NameId) -> &str {
        ""
    }
}

/// The thread of a vCPU ends, and another vCPU's gets its id.
#[test]
fn a_thread_id_that_is_given_out_again_is_another_task() {
    let at = |time_ns, tid, kind| Event {
        time_ns,
        tid: Tid(tid),
        cpu: CpuId(0),
        context: Default::default(),
        kind,
    };
    let switch =
        |time, prev, next, prev_state| at(time, prev, kinds::switch(prev, next, prev_state));
    let reason = stealtime_events::ExitReason::vmx(48);
    let life = |from: u64, vcpu: u32| {
        let vcpu = VcpuId(vcpu);
        let exit = Kind::KvmExit {
            reason,
            vcpu,
            intr_vector: None,
            info1: 0,
        };
        [
            switch(from, 0, 7, 0),
            at(from + MS, 7, Kind::KvmEntry { vcpu }),
            at(from + 3 * MS, 7, exit),
            switch(from + 4 * MS, 7, 0, 0x10),
        ]
    };
    let fork = at(
        49 * MS,
        0,
        Kind::SchedProcessFork {
            parent: Tid(1),
            child: Tid(7),
        },
    );
    let events = [&life(0, 0)[..], &[fork], &life(50 * MS, 0)[..]].concat();
    let (recording, answers) = extracted(&events, &NoNames);
    let lives: Vec<_> = recording
        .tasks
        .iter()
        .map(|task| (task.tid, task.ends_ns))
        .collect();
    assert_eq!(lives, [(7, Some(4 * MS)), (7, Some(54 * MS))]);
    let begins = recording.tasks[1].begins.map(|begins| begins.at_ns);
    assert_eq!(begins, Some(49 * MS));
    let times = recorded(&recording, &answers);
    let ran: Vec<u64> = times.vcpus.iter().map(|vcpu| vcpu.run_ns).collect();
    // That it is a vCPU shows at the first event of KVM: before it nothing is accounted.
    assert_eq!(ran, [3 * MS, 3 * MS], "{:?}", answers.vcpus);
}
