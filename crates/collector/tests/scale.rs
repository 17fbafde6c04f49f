//! Cost and memory on a large host: 500 VMs with 8 vCPUs each on 64 CPUs.

use std::time::Instant;

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
        self.now += 1_500;
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
            self.turn = (self.turn + 1) % (VMS * VCPUS);
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
        for vcpu in 0..VMS * VCPUS {
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
        for vcpu in 0..VMS * VCPUS {
            let gone = Kind::SchedProcessExit {
                tid: Tid(tid(vcpu, age)),
            };
            self.push(0, 0, gone);
        }
    }
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
    let mut load = Load::new();
    let before = resident_mib();
    let began = Instant::now();
    load.name(0);
    // 60 s of the host's time at 667,000 events a second.
    while load.now < 61_000_000_000 {
        load.round(0);
        load.samples.truncate(1);
    }
    let each = began.elapsed().as_nanos() / u128::from(load.events);
    let used = resident_mib() - before;
    println!("{} events, {each} ns each, {used} MiB", load.events);
    assert!(used < 64, "{used} MiB");
    assert_eq!(load.samples[0].vms.len(), VMS as usize);
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
