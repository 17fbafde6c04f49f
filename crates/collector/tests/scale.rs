//! Cost and memory on a large host: 500 VMs with 8 vCPUs each on 64 CPUs.

use stealtime_collector::{Collector, Sample};
use stealtime_events::{Context, CpuId, Event, ExitReason, Kind, NameId, Names, Tid, VcpuId};

const VMS: i32 = 500;
const VCPUS: i32 = 8;
const CPUS: u16 = 64;

struct NoNames;

impl Names for NoNames {
    fn name(&self, _: NameId) -> &str {
        ""
    }
}

/// Events of a host on which each CPU switches from vCPU to vCPU, in the order of time.
struct Load {
    collector: Collector,
    now: u64,
    /// The thread on each CPU.
    current: [i32; CPUS as usize],
    turn: i32,
    /// vCPUs of all VMs.
    vcpus: i32,
    /// Time from event to event, in ns.
    step: u64,
    events: u64,
    samples: Vec<Sample>,
}

/// The thread id of a vCPU. VMs that come later have other ones.
const fn tid(vcpu: i32, age: i32) -> i32 {
    1000 + vcpu + age * 10_000
}

impl Load {
    fn new() -> Self {
        Self {
            collector: Collector::new(1_000_000_000),
            now: 1_000_000_000,
            current: [0; CPUS as usize],
            turn: 0,
            vcpus: VMS * VCPUS,
            step: 1_500,
            events: 0,
            samples: Vec::new(),
        }
    }

    fn push(&mut self, cpu: u16, tid: i32, kind: Kind) {
        let event = Event {
            time_ns: self.now,
            tid: Tid(tid),
            cpu: CpuId(cpu),
            context: Context::from_bits(0),
            kind,
        };
        self.now += self.step;
        self.events += 1;
        self.collector.event(&event, &NoNames);
        self.samples.extend(self.collector.next_sample());
    }

    /// One round over all CPUs: each takes the next vCPU, which exits and enters.
    fn round(&mut self, age: i32) {
        let vcpu = VcpuId(0);
        let reason = ExitReason::vmx(48);
        for cpu in 0..CPUS {
            let previous = self.current[usize::from(cpu)];
            self.turn = (self.turn + 1) % self.vcpus;
            let next = tid(self.turn, age);
            let woken = Tid(next);
            let waking = Kind::SchedWaking {
                tid: woken,
                prio: 120,
                target_cpu: u32::from(cpu),
            };
            self.push(cpu, previous, waking);
            let switch = Kind::SchedSwitch {
                prev: Tid(previous),
                prev_prio: 120,
                prev_state: 1,
                next: woken,
                next_prio: 120,
            };
            self.push(cpu, previous, switch);
            self.current[usize::from(cpu)] = next;
            self.push(cpu, next, Kind::KvmEntry { vcpu });
            let exit = Kind::KvmExit {
                reason,
                vcpu,
                intr_vector: None,
                info1: 0,
            };
            self.push(cpu, next, exit);
        }
    }

    /// Threads of all VMs appear, with their processes.
    fn name(&mut self, age: i32) {
        for vcpu in 0..self.vcpus {
            let process = Tid(tid(vcpu - vcpu % VCPUS, age));
            let kind = Kind::Task {
                tid: Tid(tid(vcpu, age)),
                process,
                name: NameId::NONE,
            };
            self.push(0, 0, kind);
        }
    }

    /// All VMs end.
    fn end(&mut self, age: i32) {
        for vcpu in 0..self.vcpus {
            let gone = Kind::SchedProcessExit {
                tid: Tid(tid(vcpu, age)),
            };
            self.push(0, 0, gone);
        }
    }
}

/// A VM that lives for a moment: its process and its vCPU appear, run once and end.
fn pass(load: &mut Load, process: i32) {
    for tid in [process, process + 1] {
        let kind = Kind::Task {
            tid: Tid(tid),
            process: Tid(process),
            name: NameId::NONE,
        };
        load.push(0, 0, kind);
    }
    let previous = load.current[0];
    let switch = |prev, next| Kind::SchedSwitch {
        prev: Tid(prev),
        prev_prio: 120,
        prev_state: 1,
        next: Tid(next),
        next_prio: 120,
    };
    load.push(0, previous, switch(previous, process + 1));
    let vcpu = VcpuId(0);
    load.push(0, process + 1, Kind::KvmEntry { vcpu });
    let exit = Kind::KvmExit {
        reason: ExitReason::vmx(process as u32 / 2 % 64),
        vcpu,
        intr_vector: None,
        info1: 0,
    };
    load.push(0, process + 1, exit);
    load.push(0, process + 1, switch(process + 1, previous));
    for tid in [process + 1, process] {
        load.push(0, previous, Kind::SchedProcessExit { tid: Tid(tid) });
    }
}

/// CPU time of this thread in ns: other work of the machine does not count.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let spent = text.split(' ').next().and_then(|ns| ns.parse().ok());
    spent.unwrap_or(0)
}

/// Resident memory of this process in MiB.
fn resident_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0_u64) * 4096 / (1 << 20)
}

#[test]
#[ignore = "a measurement of some seconds: cargo test -p stealtime-collector -- --ignored --nocapture"]
fn a_large_host_takes_little() {
    // 60 s of the host's time at 667,000 and at 100,000 events a second.
    for step in [1_500, 10_000] {
        let mut load = Load::new();
        load.step = step;
        let before = resident_mib();
        let began = cpu_ns();
        load.name(0);
        while load.now < 61_000_000_000 {
            load.round(0);
            load.samples.truncate(1);
        }
        let each = (cpu_ns() - began) / load.events;
        let used = resident_mib().saturating_sub(before);
        let events = load.events;
        println!("{events} events, {each} ns of CPU time each, {used} MiB");
        assert!(used < 64, "{used} MiB");
        assert_eq!(load.samples[0].vms.len(), VMS as usize);
    }
}

#[test]
fn vms_that_come_and_go_leave_nothing() {
    let mut load = Load::new();
    let mut sizes = Vec::new();
    for age in 0..3 {
        load.name(age);
        (0..40).for_each(|_| load.round(age));
        load.end(age);
        load.now += 1_000_000_000;
        load.round(age + 1);
        let samples = std::mem::take(&mut load.samples);
        sizes.push(samples.iter().map(|sample| sample.vms.len()).max());
        let exits: u64 = samples
            .iter()
            .flat_map(|sample| &sample.vms)
            .map(|vm| vm.times.exits)
            .sum();
        assert!(exits >= 40 * u64::from(CPUS), "{exits}");
    }
    assert!(
        sizes
            .iter()
            .all(|size| size.is_some_and(|size| size <= 520)),
        "{sizes:?}"
    );
}

/// 24 hours of a host with few events. In one of them 100 VMs a second start and end, with ids that come
/// again as the kernel's do.
#[test]
fn a_day_leaves_nothing() {
    const IDS: std::ops::Range<i32> = 100_000..600_000;
    let mut load = Load::new();
    load.vcpus = 160;
    load.collector = Collector::new(30_000_000_000);
    load.name(0);
    let (mut process, mut passed, mut sizes, mut vms) = (IDS.start, 0_u64, Vec::new(), 0);
    for hour in 1..=24_u64 {
        let end = 1_000_000_000 * (3600 * hour + 1);
        while load.now < end {
            // 256 events in 26 s, or in 0.3 s: no silence is a jump of the clock.
            let has_births = hour == 4;
            load.step = if has_births { 1_000_000 } else { 100_000_000 };
            load.round(0);
            // A VM has eight events.
            load.step = 1_250_000;
            for _ in 0..if has_births { 2_560 } else { 0 } {
                pass(&mut load, process);
                passed += 1;
                process = if process + 4 < IDS.end {
                    process + 2
                } else {
                    IDS.start
                };
            }
            for sample in load.samples.drain(..) {
                assert!(!sample.partial, "hour {hour}");
                vms = vms.max(sample.vms.len());
            }
        }
        sizes.push(resident_mib());
    }
    println!(
        "{} events, {passed} VMs came and went, MiB by the hour: {sizes:?}",
        load.events
    );
    // Their buffers stay: the hour after them has all. Other tests of this process run meanwhile.
    let settled = sizes[4];
    let last = sizes[23];
    assert!(passed > 300_000 && vms > 2_000, "{passed} {vms}");
    assert!(last <= settled + 1, "{sizes:?}");
}
