//! Guests that spin, or ask for their CPU to be given to another vCPU (`KVM_HC_SCHED_YIELD`).

use common::{extracted, host, replayed, vcpu};
use stealtime_events::{Kind, Names, Tid};
use stealtime_hypervisor::fair::Feature;
use stealtime_replay::predict::recorded;
use stealtime_replay::{Recording, host as hosts};
use stealtime_simulator::config::Config;
use stealtime_simulator::script::{Scripts, Spent, Step};
use stealtime_simulator::{Collected, run};

use crate::common;

const MS: u64 = 1_000_000;
const BUSY: [Step; 1] = [Step::Run {
    ns: 1_000 * MS,
    spent: Spent::Guest,
}];

/// On one CPU, vCPU 0 of a VM yields to vCPU 1 as soon as it has sent work to it, as a TLB shootdown does.
/// vCPU 1 and another VM compute.
fn yields() -> Config {
    let once = [
        Step::Run {
            ns: 100_000,
            spent: Spent::Guest,
        },
        Step::Run {
            ns: 5_000,
            spent: Spent::Exit(18),
        },
        Step::YieldTo(1),
    ];
    let mut config = host(1, Vec::new(), 500 * MS, 1);
    config.scripts = Scripts {
        tasks: vec![
            vcpu(0, 0, once.repeat(6_000)),
            vcpu(0, 1, BUSY.to_vec()),
            vcpu(1, 0, BUSY.to_vec()),
        ],
        tell: true,
        ..Scripts::default()
    };
    for task in &mut config.scripts.tasks {
        task.first_cpu = 0;
    }
    config
}

fn recording_of(config: &Config) -> (Recording, Collected) {
    let mut sink = Collected::default();
    run(config, &mut sink).expect("a good configuration");
    for event in &mut sink.events {
        if let Kind::Task { tid, process, name } = &mut event.kind {
            // The first two are one VM's.
            *process = match sink.names.name(*name) {
                "CPU 1/KVM" => Tid(tid.0 - 1),
                _ => *tid,
            };
        }
    }
    (extracted(&sink.events, &sink.names).0, sink)
}

/// What each task ran, in ms.
fn ran(config: &Config) -> Vec<u64> {
    let outcome = run(config, &mut ()).expect("a good configuration");
    let scripts = outcome.scripts.iter();
    scripts.map(|script| script.books.run_ns / MS).collect()
}

#[test]
fn what_a_guest_yields_is_yielded_in_replays() {
    let truth = ran(&yields());
    // It loses more than half of its share to the others.
    assert!(truth[0] * 2 < truth[2], "{truth:?}");
    let (recording, sink) = recording_of(&yields());
    let asks = |kind: &Kind| matches!(kind, Kind::KvmHypercall { nr: 11, a0: 1, .. });
    let asked = sink.events.iter().filter(|event| asks(&event.kind)).count();
    let steps = recording.tasks[0].steps.iter();
    let yields_to = steps.filter(|step| **step == Step::YieldTo(1)).count();
    assert!(asked > 100 && yields_to == asked, "{yields_to} {asked}");
    let knobs = hosts::knobs(&recording);
    let replay = |recording: &Recording, knobs| {
        ran(&hosts::as_recorded(
            recording,
            knobs,
            &hosts::Assumed::default(),
            0,
        ))
    };
    let again = replay(&recording, knobs.clone());
    for (was, is) in truth.iter().zip(&again) {
        assert!(was.abs_diff(*is) <= 5, "{truth:?} {again:?}");
    }
    // What a host does that lends the one that is waited for what it lacks.
    let mut credit = knobs;
    credit.sched.features = credit.sched.features.with(Feature::YieldToLagCredit);
    let with_credit = replay(&recording, credit);
    assert!(with_credit[1] > again[1] + 10, "{with_credit:?} {again:?}");
}

#[test]
fn the_host_of_a_vcpu_that_yields_is_found() {
    let (recording, sink) = recording_of(&yields());
    let (_, answers) = extracted(&sink.events, &sink.names);
    let was = recorded(&recording, &answers);
    let (_, _, times) = replayed(&recording, &was);
    for (was, is) in was.vcpus.iter().zip(&times.vcpus) {
        assert!(was.run_ns.abs_diff(is.run_ns) < 5 * MS, "{was:?} {is:?}");
    }
    // An exit takes 5 us, and a yield a little.
    for times in [&was, &times] {
        let yielding = &times.vcpus[0];
        let exits: u64 = yielding.exits.values().sum();
        assert!(
            (5_000..7_000).contains(&(yielding.host_ns / exits)),
            "{yielding:?}"
        );
        let others = times.vcpus.iter().skip(1);
        assert!(
            others.clone().all(|vcpu| vcpu.host_ns * 100 < vcpu.run_ns),
            "{others:?}"
        );
    }
}

#[test]
fn a_vcpu_at_the_end_of_its_recording_goes_on_to_yield() {
    let (recording, _) = recording_of(&yields());
    let knobs = hosts::knobs(&recording);
    let mut longer = hosts::as_recorded(&recording, knobs, &hosts::Assumed::default(), 0);
    longer.run.duration_ns *= 2;
    let mut truth = yields();
    truth.run.duration_ns *= 2;
    for (was, is) in ran(&truth).iter().zip(&ran(&longer)) {
        assert!(was.abs_diff(*is) <= 5, "{was} {is}");
    }
}

/// An exit by PAUSE, as VMX numbers it.
const PAUSE: u32 = 40;

#[test]
fn an_exit_by_pause_is_a_search_for_a_yield_target() {
    let mut config = yields();
    let mut steps = config.scripts.tasks[0].steps.to_vec();
    for step in &mut steps {
        match step {
            Step::Run {
                spent: Spent::Exit(number),
                ..
            } => *number = PAUSE,
            Step::YieldTo(_) => *step = Step::Spin,
            _ => {}
        }
    }
    config.scripts.tasks[0].steps = steps.into();
    let truth = ran(&config);
    let (recording, sink) = recording_of(&config);
    let steps = recording.tasks[0].steps.iter();
    let spins = steps.filter(|step| **step == Step::Spin).count();
    let is_pause =
        |kind: &Kind| matches!(kind, Kind::KvmExit { reason, .. } if reason.code == PAUSE);
    let exits = sink
        .events
        .iter()
        .filter(|event| is_pause(&event.kind))
        .count();
    // The last exit may not be over.
    assert!(exits > 100 && exits - spins <= 1, "{exits} {spins}");
    assert_eq!(recording.yields, spins as u64);
    let knobs = hosts::knobs(&recording);
    let again = ran(&hosts::as_recorded(
        &recording,
        knobs,
        &hosts::Assumed::default(),
        0,
    ));
    for (was, is) in truth.iter().zip(&again) {
        assert!(was.abs_diff(*is) <= 5, "{truth:?} {again:?}");
    }
}
