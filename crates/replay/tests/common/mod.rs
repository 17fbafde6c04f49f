//! Simulated runs as recordings.

pub mod drawn;
#[path = "../../src/tests/kinds.rs"]
pub(crate) mod kinds;
pub mod made;
pub mod text;

use std::sync::Arc;

use stealtime_analysis::{Analysis, Answers, Options};
use stealtime_events::{Context, CpuId, Event, Kind, Names, Tid};
use stealtime_hypervisor::fair::Policy;
use stealtime_replay::fit::fit;
use stealtime_replay::host::Assumed;
use stealtime_replay::predict::{Errors, Times, recorded};
use stealtime_replay::{Extractor, Recording};
use stealtime_simulator::config::{Config, HostConfig, Knobs, RunConfig, Topology, VmConfig};
use stealtime_simulator::script::{Late, Moves, ScriptConfig, Step, Then};
use stealtime_simulator::{Collected, Fault, NameList, run};

/// VMs on a host of so many CPUs for so long, in ns.
pub fn host(cpus: u32, vms: Vec<VmConfig>, duration_ns: u64, seed: u64) -> Config {
    Config {
        host: HostConfig::generic(Topology::flat(cpus)),
        vms,
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns,
            warmup_ns: 0,
            seed,
        },
    }
}

/// A vCPU of a VM with this script; it begins at time 0 on the CPU of its number.
pub fn vcpu(vm: u32, number: u32, steps: Vec<Step>) -> ScriptConfig {
    ScriptConfig {
        preempted: Default::default(),
        name: format!("CPU {number}/KVM"),
        nice: 0,
        policy: Policy::Normal,
        cpus: Vec::new(),
        first_cpu: number,
        starts_ns: 0,
        vm: Some(vm),
        vcpu: Some(number),
        moves: Moves::Steps,
        then: Then::End,
        alarm_ns: 0,
        called: Late::default(),
        ticks: None,
        stalls: [].into(),
        steps: Arc::from(steps),
    }
}

/// Events that a test makes.
#[derive(Default)]
pub struct Log {
    pub events: Vec<Event>,
    pub names: NameList,
}

impl Log {
    /// An event in the context of a task, the idle one if `tid` is 0.
    pub fn add(&mut self, time_ns: u64, cpu: u16, tid: i32, kind: Kind) {
        self.events.push(Event {
            time_ns,
            cpu: CpuId(cpu),
            tid: Tid(tid),
            context: Context::default(),
            kind,
        });
    }

    /// The same in an interrupt.
    pub fn interrupt(&mut self, time_ns: u64, cpu: u16, tid: i32, kind: Kind) {
        self.add(time_ns, cpu, tid, kind);
        if let Some(event) = self.events.last_mut() {
            event.context = Context::from_bits(Context::HARDIRQ);
        }
    }

    pub fn extracted(&self) -> Recording {
        extracted(&self.events, &self.names).0
    }
}

/// What is found in a recording.
pub fn extracted(events: &[Event], names: &dyn Names) -> (Recording, Answers) {
    extracted_with(Options::default(), events, names)
}

/// The same with what a user knows of it.
pub fn extracted_with(
    options: Options,
    events: &[Event],
    names: &dyn Names,
) -> (Recording, Answers) {
    let mut analysis = Analysis::new(options);
    analysis.events(events, names);
    let answers = analysis.finish(names);
    let mut extractor = Extractor::new(&answers);
    extractor.events(events, names);
    (extractor.finish(), answers)
}

/// A run as a recording, and its times.
pub fn record(config: &Config) -> (Recording, Times) {
    let mut sink = Collected::default();
    run(config, &mut sink).expect("a good configuration");
    let (recording, answers) = extracted(&sink.events, &sink.names);
    let times = recorded(&recording, &answers);
    (recording, times)
}

/// A recording replayed as recorded: what was assumed, on which host, and the times.
pub fn replayed(recording: &Recording, was: &Times) -> (Assumed, Config, Times) {
    let none_given = |_: &mut Config| Ok::<(), Fault>(());
    let fitted = fit(recording, was, &Assumed::default(), none_given).expect("it can be replayed");
    (fitted.assumed, fitted.config, fitted.times)
}

/// Errors of the replay of a simulated run.
pub fn round_trip(config: &Config) -> (Recording, Times, Errors) {
    let (recording, was) = record(config);
    let (_, _, times) = replayed(&recording, &was);
    let errors = Errors::between(&was, &times, recording.span_ns);
    (recording, times, errors)
}
