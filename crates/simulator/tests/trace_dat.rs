//! A run's events, written as a trace.dat and read again, are those of the run, and give the same
//! answers.

use stealtime_analysis::{Analysis, Options};
use stealtime_events::{Event, Names};
use stealtime_simulator::config::{
    Config, HostConfig, Knobs, RunConfig, Topology, VmConfig, WorkloadConfig,
};
use stealtime_simulator::{Collected, run};
use stealtime_trace::write::{self, TraceDatWriter};
use stealtime_trace::{EventSource, TraceDat};

fn config(workload: &str) -> Config {
    let vm = |n| VmConfig {
        name: format!("vm{n}"),
        vcpus: 4,
        workload: WorkloadConfig::named(workload),
        ..VmConfig::default()
    };
    Config {
        host: HostConfig::generic(Topology::flat(3)),
        vms: (0..2).map(vm).collect(),
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 100_000_000,
            warmup_ns: 0,
            seed: 3,
        },
    }
}

fn file(sink: &Collected) -> TraceDat {
    let mut file = Vec::new();
    let options = write::Options {
        cpus: sink.cpus,
        ..write::Options::default()
    };
    let mut writer = TraceDatWriter::new(options).expect("good options");
    for event in &sink.events {
        writer.push(event, &sink.names).expect("room");
    }
    let stats = writer.finish(&mut file).expect("memory");
    assert_eq!(stats.out_of_order, 0);
    let len = file.len() as u64;
    TraceDat::new(Box::new(file), "simulated", len).expect("a good file")
}

fn answers<'a>(events: impl IntoIterator<Item = &'a Event>, names: &dyn Names) -> String {
    let mut analysis = Analysis::new(Options::default());
    for event in events {
        analysis.event(event, names);
    }
    format!("{:#?}", analysis.finish(names))
}

#[test]
fn a_written_run_gives_the_same_answers() {
    for workload in ["ticks", "busy"] {
        let mut sink = Collected::default();
        run(&config(workload), &mut sink).expect("a good configuration");
        assert!(sink.events.len() > 1000, "{workload}");
        let mut source = file(&sink);
        let mut events = Vec::new();
        while let Some(event) = source.next_event().expect("no error") {
            events.push(event);
        }
        assert_eq!(source.info().notes, []);
        let host = |events: &[Event]| events.iter().filter(|e| e.kind.is_host_event()).count();
        assert_eq!(host(&events), host(&sink.events));
        let (before, after) = (
            answers(&sink.events, &sink.names),
            answers(&events, source.names()),
        );
        let differ = before.lines().zip(after.lines()).find(|(a, b)| a != b);
        assert_eq!(differ, None, "{workload}");
        assert_eq!(before, after, "{workload}");
    }
}
