//! Clocks that jump: no sample without a mark has a wrong number, and no sample has time that was not.

use stealtime_collector::{Collector, Sample, Vm};
use stealtime_events::{Context, CpuId, Event, ExitReason, Kind, NameId, Names, Tid, VcpuId};

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
/// Each CPU does the same in each period, in ns; a sample has 100 of them.
const PERIOD: u64 = SECOND / 100;
/// The vCPU of each VM runs once in a period, after a wait, in ns.
const WAIT: u64 = 1_000_000;
const GUEST: u64 = 3_000_000;

struct NoNames;

impl Names for NoNames {
    fn name(&self, _: NameId) -> &str {
        ""
    }
}

/// Two CPUs with a vCPU of one VM each, which a host's task holds up.
struct Host {
    collector: Collector,
    /// Time of the host, and of its clock: in ns.
    time: u64,
    clock: u64,
    samples: Vec<Sample>,
}

impl Host {
    fn new() -> Self {
        let mut host = Self {
            collector: Collector::new(SECOND),
            time: 0,
            clock: 24 * HOUR,
            samples: Vec::new(),
        };
        for tid in [100, 101] {
            let kind = Kind::Task {
                tid: Tid(tid),
                process: Tid(tid),
                name: NameId::NONE,
            };
            host.push(0, 0, kind);
        }
        host
    }

    fn push(&mut self, cpu: u16, tid: i32, kind: Kind) {
        let event = Event {
            time_ns: self.clock,
            tid: Tid(tid),
            cpu: CpuId(cpu),
            context: Context::from_bits(0),
            kind,
        };
        self.collector.event(&event, &NoNames);
        self.samples
            .extend(std::iter::from_fn(|| self.collector.next_sample()));
    }

    fn pass(&mut self, ns: u64) {
        self.time += ns;
        self.clock += ns;
    }

    fn switch(&mut self, cpu: u16, prev: i32, next: i32, prev_state: u32) {
        let kind = Kind::SchedSwitch {
            prev: Tid(prev),
            prev_prio: 120,
            prev_state,
            next: Tid(next),
            next_prio: 120,
        };
        self.push(cpu, prev, kind);
    }

    /// A period; the clock jumps by `jump`, in ns, after so many of its steps.
    fn period(&mut self, jump: Option<(usize, i64)>) {
        for step in 0..6 {
            for cpu in [0, 1] {
                let (task, vcpu) = (50 + i32::from(cpu), 100 + i32::from(cpu));
                match step {
                    0 => self.switch(cpu, 0, task, 0),
                    1 => {
                        let kind = Kind::SchedWaking {
                            tid: Tid(vcpu),
                            prio: 120,
                            target_cpu: cpu.into(),
                        };
                        self.push(cpu, task, kind);
                    }
                    2 => self.switch(cpu, task, vcpu, 1),
                    3 => self.push(cpu, vcpu, Kind::KvmEntry { vcpu: VcpuId(0) }),
                    4 => {
                        let kind = Kind::KvmExit {
                            reason: ExitReason::vmx(12),
                            vcpu: VcpuId(0),
                            intr_vector: None,
                            info1: 0,
                        };
                        self.push(cpu, vcpu, kind);
                    }
                    _ => self.switch(cpu, vcpu, 0, 1),
                }
            }
            let ns = [500_000, WAIT, 500_000, GUEST, 1_000_000, 0][step];
            self.pass(ns);
            if let Some((_, ns)) = jump.filter(|(after, _)| *after == step) {
                self.clock = self.clock.saturating_add_signed(ns);
            }
        }
        self.pass(PERIOD - 6_000_000);
    }

    fn run(&mut self, seconds: u64) {
        (0..seconds * SECOND / PERIOD).for_each(|_| self.period(None));
    }
}

/// What no sample may exceed, by mistake of a jump for time.
fn check_bounds(sample: &Sample, what: &str) {
    let length = sample.length_ns();
    assert!(length <= SECOND, "{what}: {length}");
    for vm in &sample.vms {
        let times = &vm.times;
        let sum = times.guest_ns + times.exit_ns + times.poll_ns + times.halt_ns;
        let sum = sum + times.ready_ns + times.unknown_ns;
        assert!(sum <= length, "{what}: {times:?} in {length}");
        assert!(vm.wakeups.max_ns <= WAIT, "{what}: {:?}", vm.wakeups);
        let longest = vm.stalls.iter().map(|stall| stall.ns).max();
        assert!(longest.unwrap_or(0) <= WAIT, "{what}: {longest:?}");
        let begins = vm.stalls.iter().map(|stall| stall.start_ns);
        let span = sample.start_ns.saturating_sub(WAIT)..=sample.end_ns;
        assert!(begins.clone().all(|begin| span.contains(&begin)), "{what}");
    }
    for cpu in &sample.cpus {
        let sum = cpu.vcpu_ns + cpu.other_ns + cpu.idle_ns;
        assert!(sum <= length, "{what}: {cpu:?} in {length}");
    }
}

/// Without a mark, all but unknown time is where it belongs.
fn check_numbers(vm: &Vm, what: &str) {
    let times = &vm.times;
    let expected = [
        ("guest", times.guest_ns, GUEST * 100),
        ("exit", times.exit_ns, 1_500_000 * 100),
        ("ready", times.ready_ns, WAIT * 100),
        ("halt", times.halt_ns, (PERIOD - 6_000_000 + 500_000) * 100),
    ];
    for (part, ns, expected) in expected {
        let missing = expected.checked_sub(ns);
        assert!(
            missing.is_some_and(|ns| ns <= times.unknown_ns),
            "{what}: {part} {ns}, {times:?}"
        );
    }
    // At the edge of a jump a period may not be seen whole.
    assert!(times.unknown_ns < PERIOD, "{what}: {times:?}");
    assert!((98..=101).contains(&times.exits), "{what}: {times:?}");
    assert!(
        (98..=101).contains(&vm.wakeups.count),
        "{what}: {:?}",
        vm.wakeups
    );
}

#[test]
fn a_jump_of_hours_marks_its_sample_alone() {
    for jump in [
        3 * HOUR as i64,
        -3 * HOUR as i64,
        61 * SECOND as i64,
        -2 * SECOND as i64,
    ] {
        for step in 0..6 {
            let what = format!("{jump} after step {step}");
            let mut host = Host::new();
            host.run(3);
            (0..40).for_each(|_| host.period(None));
            host.period(Some((step, jump)));
            host.run(4);
            for sample in &host.samples {
                check_bounds(sample, &what);
            }
            let marked: Vec<usize> = (0..)
                .zip(&host.samples)
                .filter(|(_, sample)| sample.partial)
                .map(|(number, _)| number)
                .collect();
            // Intervals begin with the first event: the fourth has the jump.
            assert_eq!(marked, [3], "{what}");
            let whole = host.samples.iter().filter(|sample| !sample.partial);
            for sample in whole.clone().skip(1) {
                assert_eq!(sample.vms.len(), 2, "{what}");
                sample.vms.iter().for_each(|vm| check_numbers(vm, &what));
            }
            // The clock's own time is in the samples.
            let last = host.samples.last().expect("samples").end_ns;
            assert!(last <= host.clock && host.clock - last <= SECOND, "{what}");
        }
    }
}

#[test]
fn a_clock_that_jumps_all_the_time_makes_no_time() {
    let mut host = Host::new();
    host.run(2);
    let mut jump = HOUR as i64;
    for round in 0..200 {
        for period in 0..30 {
            let is_last = period == 29;
            host.period(is_last.then_some((round % 6, jump)));
        }
        jump = [-2 * HOUR as i64, -5_000_000, HOUR as i64, 2 * HOUR as i64][round % 4];
    }
    assert!(host.samples.iter().any(|sample| sample.partial));
    let mut guest = 0;
    for sample in &host.samples {
        check_bounds(sample, "jumps");
        guest += sample.vms.iter().map(|vm| vm.times.guest_ns).sum::<u64>();
    }
    assert!(guest <= 2 * host.time / PERIOD * GUEST, "{guest}");
}

/// A step within an interval: the sample has it, and the next is as usual.
#[test]
fn a_small_step_back_is_marked() {
    let mut host = Host::new();
    host.run(3);
    host.period(Some((3, -300_000_000)));
    host.run(4);
    let marked = host.samples.iter().filter(|sample| sample.partial);
    assert_eq!(marked.count(), 1);
    assert!(host.samples.last().is_some_and(|sample| !sample.partial));
}

#[test]
fn samples_that_are_dropped_leave_a_mark() {
    let mut collector = Collector::new(SECOND / 10);
    let event = |time_ns| Event {
        time_ns,
        tid: Tid(0),
        cpu: CpuId(0),
        context: Context::from_bits(0),
        kind: Kind::SchedProcessExit { tid: Tid(9) },
    };
    collector.event(&event(SECOND), &NoNames);
    collector.advance(50 * SECOND, &NoNames);
    let samples: Vec<Sample> = std::iter::from_fn(|| collector.next_sample()).collect();
    assert_eq!(samples.len(), 64);
    let marks: Vec<bool> = samples.iter().map(|sample| sample.partial).collect();
    assert!(marks[0] && !marks[1..].contains(&true), "{marks:?}");
}
