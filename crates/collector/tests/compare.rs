//! Samples of recordings next to the analysis of the same seconds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stealtime_analysis::{Analysis, Answers, HostThread, HostVm, HostVms, Options, Selection};
use stealtime_collector::{Collector, KnownVm, Sample};

/// Length of an interval, in ns.
const INTERVAL: u64 = 1_000_000_000;
/// Differences below this do not count, in ns a second: 0.1 %.
const FLOOR: u64 = INTERVAL / 1000;

fn recording(name: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    data.join(name)
}

fn samples(path: &Path, known: &[KnownVm]) -> Vec<Sample> {
    let mut source = stealtime_trace::open(path).expect("a recording");
    let mut collector = Collector::new(INTERVAL);
    collector.set_vms(known);
    while let Some(event) = source.next_event().expect("whole") {
        collector.event(&event, source.names());
    }
    collector.finish(source.names());
    std::iter::from_fn(|| collector.next_sample()).collect()
}

fn answers(path: &Path, host: &HostVms, from: u64, until: u64) -> Answers {
    let mut source = stealtime_trace::open(path).expect("a recording");
    let mut analysis = Analysis::new(Options {
        host: host.clone(),
        selection: Selection {
            from_ns: Some(from),
            to_ns: Some(until),
            ..Selection::default()
        },
        ..Options::default()
    });
    while let Some(event) = source.next_event().expect("whole") {
        analysis.event(&event, source.names());
    }
    analysis.finish(source.names())
}

fn close(a: u64, b: u64, what: &str) {
    let allowed = (a.max(b) / 100).max(FLOOR);
    assert!(a.abs_diff(b) <= allowed, "{what}: {a} and {b}");
}

/// Compares each whole second of a recording, from `first` on.
fn compare(name: &str, first: usize) {
    let path = recording(name);
    let samples = samples(&path, &[]);
    let begin = samples.first().expect("a sample").start_ns;
    let mut seconds = 0;
    for sample in samples.iter().skip(first) {
        if sample.length_ns() < INTERVAL {
            continue;
        }
        seconds += 1;
        let (from, until) = (sample.start_ns - begin, sample.end_ns - begin);
        let answers = answers(&path, &HostVms::default(), from, until);
        compare_second(name, sample, &answers);
    }
    assert!(seconds > 0, "{name} has no whole second");
}

fn compare_second(name: &str, sample: &Sample, answers: &Answers) {
    assert_eq!(sample.events, answers.source.events, "{name}");
    let mut ready = BTreeMap::<(&str, u32, &str), u64>::new();
    for row in &answers.ready {
        *ready.entry((&row.vm, row.vcpu, &row.cause)).or_default() += row.ns;
    }
    for expected in &answers.vcpus {
        let second = sample.start_ns;
        let what = |part: &str| {
            format!(
                "{name} at {second}: {} vCPU {} {part}",
                expected.vm, expected.vcpu
            )
        };
        let vms = sample.vms.iter();
        let vm = vms.clone().find(|vm| vm.vm == expected.vm);
        let vm = vm.unwrap_or_else(|| panic!("{}: {:?}", what(""), vms.map(|vm| &vm.vm)));
        let vcpu = vm.vcpus.iter().find(|vcpu| vcpu.tid == expected.tid);
        let times = vcpu.expect("a vCPU").times;
        let pairs = [
            ("guest", times.guest_ns, expected.guest_ns.unwrap_or(0)),
            ("exit", times.exit_ns, expected.exit_ns.unwrap_or(0)),
            ("poll", times.poll_ns, expected.poll_ns.unwrap_or(0)),
            ("halt", times.halt_ns, expected.halt_ns),
            (
                "ready",
                times.ready_ns,
                expected.preempted_ns + expected.wake_wait_ns,
            ),
        ];
        for (part, mine, theirs) in pairs {
            close(mine, theirs, &what(part));
        }
        for (cause, mine) in times.ready.rows() {
            let key = (expected.vm.as_str(), expected.vcpu, cause);
            let theirs = ready.get(&key).copied().unwrap_or(0);
            close(mine, theirs, &what(cause));
        }
        let counted = expected.exit_ns_by_reason.iter();
        let exits: u64 = counted.map(|row| row.count).sum();
        assert_eq!(times.exits, exits, "{}", what("exits"));
    }
    for vm in &sample.vms {
        let latencies = answers.latencies.iter();
        let wakeups = latencies.filter(|row| row.vm == vm.vm && row.kind == "wakeup");
        let (count, max) = wakeups.fold((0, 0), |(count, max), row| {
            (count + row.count, row.max_ns.max(max))
        });
        assert_eq!(vm.wakeups.count, count, "{name}: wakeups of {}", vm.vm);
        assert_eq!(vm.wakeups.max_ns, max, "{name}: wakeups of {}", vm.vm);
    }
    for expected in &answers.host.cpus {
        let cpu = sample.cpus.iter().find(|cpu| cpu.cpu == expected.cpu);
        let cpu = cpu.expect("a CPU");
        let pairs = [
            ("vCPUs", cpu.vcpu_ns, expected.vcpu_ns),
            ("others", cpu.other_ns, expected.other_ns),
            ("idle", cpu.idle_ns, expected.idle_ns),
            ("waiting", cpu.waiting_ns, expected.waiting_ns),
        ];
        for (part, mine, theirs) in pairs {
            let what = format!("{name}: CPU {} {part}", expected.cpu);
            close(mine, theirs.unwrap_or(0), &what);
        }
    }
}

#[test]
fn a_second_has_the_numbers_of_analyze() {
    compare("live/quotas/trace.dat.zst", 0);
    compare("live/nested/trace.dat.zst", 0);
    compare("live/plain/trace.dat.zst", 0);
}

#[test]
fn names_of_the_host_are_taken() {
    let path = recording("live/plain/trace.dat.zst");
    let unnamed = samples(&path, &[]);
    let vm = unnamed[0].vms.first().expect("a VM");
    let pid = vm.pid.expect("a process");
    let known = KnownVm {
        name: "shop \u{1b}[31m".to_owned(),
        pid,
        threads: vm.vcpus.iter().map(|vcpu| vcpu.tid).collect(),
    };
    let host = HostVms {
        vms: vec![HostVm {
            name: known.name.clone(),
            pid,
        }],
        threads: BTreeMap::from([(
            vm.vcpus[0].tid,
            HostThread {
                vm: 0,
                is_vcpu: true,
                vcpu: None,
            },
        )]),
    };
    let named = samples(&path, std::slice::from_ref(&known));
    let sample = &named[1];
    assert!(sample.vms.iter().any(|vm| vm.vm == known.name));
    let begin = named[0].start_ns;
    let (from, until) = (sample.start_ns - begin, sample.end_ns - begin);
    compare_second("named", sample, &answers(&path, &host, from, until));
}
