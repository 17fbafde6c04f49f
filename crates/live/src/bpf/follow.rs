//! The rings of all CPUs, read as they fill.
//!
//! A program reserves its record before it reads the clock. So what is earlier than a look at the rings is in
//! them, though perhaps not finished. A round gives all that is earlier, but nothing behind an unfinished
//! record.

use std::time::{Duration, Instant};

use stealtime_events::{Context, CpuId, Event, Kind, Tid};
use stealtime_trace::NameTable;

use super::BpfError;
use super::load::Loaded;
use super::record::{Naming, Record};
use crate::follow::{NICE, is_sampled};
use crate::select::{Missing, Selection};
use crate::session::{cpu_time, cpus, raise_file_limit};
use crate::tasks::Threads;
use crate::tracefs::Folder;

/// Bytes of all rings together by default, and of one at least and at most. A CPU with 256 KiB has room for
/// 8,000 records, of which 160,000 a second are 50 ms.
const ALL_RINGS: usize = 16 << 20;
const SMALLEST: usize = 64 << 10;
const LARGEST: usize = 1 << 20;
/// What is so late may not show yet in a ring: a store of another CPU takes less, in ns.
const UNSEEN_NS: u64 = 1_000_000;
/// Time between looks at the kernel's counts, and between scans for threads after a loss.
const LOOK: Duration = Duration::from_secs(1);
/// Losses in records are counted modulo this.
const LOSSES: u32 = 1 << 24;

/// What the programs have cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelCost {
    /// Time of their runs, in ns.
    pub ns: u64,
    /// Number of these.
    pub runs: u64,
}

/// A host that BPF programs follow. Dropping it removes them.
pub struct BpfFollower {
    loaded: Loaded,
    selection: Selection,
    order: Order,
    is_vcpu: fn(&str) -> bool,
    looked: Instant,
    /// Runs missed so far.
    misses: u64,
    /// Lost records at the latest look.
    lost: u64,
    cpu_before: Duration,
    /// KiB of each CPU's ring.
    ring_kb: u64,
}

impl BpfFollower {
    /// Loads the programs. `is_vcpu` says whether a thread of this name runs a vCPU. `ring_kb` is the size of
    /// each CPU's ring, rounded up to a power of two.
    ///
    /// # Errors
    /// The kernel forbids or refuses BPF programs, or lacks what they need. The host is left as it was.
    pub fn start(ring_kb: Option<u64>, is_vcpu: fn(&str) -> bool) -> Result<Self, BpfError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(BpfError::Machine);
        }
        let cpu_before = cpu_time();
        let tracefs = Folder::tracefs().map_err(BpfError::Tracefs)?;
        let mut selection = Selection::probe(&tracefs).map_err(BpfError::Tracefs)?;
        selection.keep(is_sampled);
        raise_file_limit();
        let cpus = cpus(&tracefs);
        let bytes = ring_bytes(cpus.len(), ring_kb);
        let loaded = Loaded::new(&tracefs, &mut selection, &cpus, bytes)?;
        // Without the right to it, rings of some rounds still suffice.
        let _ = rustix::process::setpriority_process(None, NICE);
        let mut follower = Self {
            order: Order::new(&cpus, monotonic()),
            misses: loaded.counts().misses,
            lost: 0,
            loaded,
            selection,
            is_vcpu,
            looked: Instant::now(),
            cpu_before,
            ring_kb: bytes as u64 / 1024,
        };
        follower.scan();
        Ok(follower)
    }

    /// Reads what there is, and gives the events that are known to be in order. Returns the time up to which
    /// all events were given, in ns of CLOCK_MONOTONIC.
    pub fn round(&mut self, take: impl FnMut(&Event, &NameTable)) -> u64 {
        let mut limit = monotonic().saturating_sub(UNSEEN_NS);
        let (loaded, order, is_vcpu) = (&self.loaded, &mut self.order, self.is_vcpu);
        let named = |tid, name: &str| {
            if is_vcpu(name) {
                loaded.mark(tid);
            }
        };
        for (index, ring) in loaded.rings.iter().enumerate() {
            let is_busy = ring.drain(|bytes| order.push(index, bytes, named));
            if is_busy {
                limit = limit.min(order.latest(index));
            }
        }
        if self.looked.elapsed() >= LOOK {
            self.look(limit);
        }
        self.order.take(limit, take);
        limit
    }

    /// Looks at the kernel's counts.
    fn look(&mut self, now: u64) {
        self.looked = Instant::now();
        let misses = self.loaded.counts().misses;
        let missed = misses.saturating_sub(std::mem::replace(&mut self.misses, misses));
        if missed > 0 {
            self.order.lose(now, missed);
        }
        let lost = self.loaded.lost();
        if missed > 0 || lost != std::mem::replace(&mut self.lost, lost) {
            // Names of threads may be among what was lost.
            self.scan();
        }
    }

    /// Names all threads of the host.
    fn scan(&mut self) {
        let mut threads = Threads::default();
        threads.scan("/proc".as_ref());
        for (tid, process, name) in threads.iter() {
            if (self.is_vcpu)(&String::from_utf8_lossy(name)) {
                self.loaded.mark(tid);
            }
            self.order.name(tid, process, name);
        }
    }

    /// Names so far.
    #[must_use]
    pub const fn names(&self) -> &NameTable {
        &self.order.naming.names
    }

    /// Tracepoints that samples need and this kernel does not give.
    #[must_use]
    pub fn missing(&self) -> &[Missing] {
        &self.selection.missing
    }

    /// KiB of each CPU's ring.
    #[must_use]
    pub const fn ring_kb(&self) -> u64 {
        self.ring_kb
    }

    /// CPU time of this process since it follows the host.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        cpu_time().saturating_sub(self.cpu_before)
    }

    /// What the programs have cost; `None` unless `kernel.bpf_stats_enabled` is 1.
    #[must_use]
    pub fn kernel_cost(&self) -> Option<KernelCost> {
        let counts = self.loaded.counts();
        let cost = KernelCost {
            ns: counts.run_ns,
            runs: counts.runs,
        };
        (cost.ns > 0).then_some(cost)
    }
}

/// Bytes of each CPU's ring, a power of two.
fn ring_bytes(cpus: usize, asked_kb: Option<u64>) -> usize {
    let largest_map = 1 << 30;
    match asked_kb {
        Some(kb) => {
            let bytes = usize::try_from(kb)
                .unwrap_or(largest_map)
                .saturating_mul(1024);
            bytes.clamp(SMALLEST, largest_map).next_power_of_two()
        }
        None => {
            let share = (ALL_RINGS / cpus.max(1)).clamp(SMALLEST, LARGEST);
            1 << share.ilog2()
        }
    }
}

/// The clock of the programs, in ns.
fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.max(0).unsigned_abs() * 1_000_000_000 + time.tv_nsec.max(0).unsigned_abs()
}

/// What is known of a CPU's records.
#[derive(Debug, Clone, Copy)]
struct Cpu {
    number: u16,
    /// Time of its latest record, in ns.
    latest: u64,
    /// Losses by its latest record; `None` before the first.
    losses: Option<u32>,
}

/// Records of all CPUs to events in the order of time.
struct Order {
    naming: Naming,
    cpus: Vec<Cpu>,
    /// Events that are not given yet, each CPU's in the order of its ring.
    events: Vec<Event>,
    /// Records from before all programs were attached are left out, in ns.
    since: u64,
}

impl Order {
    fn new(cpus: &[u16], begin: u64) -> Self {
        let cpus = cpus.iter().map(|&number| Cpu {
            number,
            latest: begin,
            losses: None,
        });
        Self {
            naming: Naming::new(),
            cpus: cpus.collect(),
            events: Vec::new(),
            since: begin,
        }
    }

    /// The next record of the CPU at `index`. `named` gets threads that it names.
    #[inline]
    fn push(&mut self, index: usize, bytes: &[u8], named: impl Fn(i32, &str)) {
        let Some((record, cpu)) = Record::new(bytes).zip(self.cpus.get_mut(index)) else {
            debug_assert!(false, "{} bytes of CPU {index}", bytes.len());
            return;
        };
        let time = record.time();
        let losses = record.losses();
        let former = cpu.losses.replace(losses).unwrap_or(losses);
        if time < self.since {
            return;
        }
        cpu.latest = cpu.latest.max(time);
        let count = losses.wrapping_sub(former) % LOSSES;
        if count > 0 {
            self.events.push(lost(cpu.number, time, count.into()));
        }
        let thread = record.events(cpu.number, &mut self.naming, &mut self.events);
        if let Some(thread) = thread {
            named(thread.tid, &String::from_utf8_lossy(thread.name));
        }
    }

    /// Time of the latest record of a CPU, in ns.
    fn latest(&self, index: usize) -> u64 {
        self.cpus.get(index).map_or(0, |cpu| cpu.latest)
    }

    /// Adds the name and the process of a thread.
    fn name(&mut self, tid: i32, process: i32, name: &[u8]) {
        let name = self.naming.names.intern_bytes(name);
        self.events.push(Event {
            time_ns: self.since,
            tid: Tid(0),
            cpu: CpuId(0),
            context: Context::UNKNOWN,
            kind: Kind::Task {
                tid: Tid(tid),
                process: Tid(process),
                name,
            },
        });
    }

    /// So many events are missing, of CPUs that are not known.
    fn lose(&mut self, now: u64, count: u64) {
        let cpu = self.cpus.first().map_or(0, |cpu| cpu.number);
        self.events.push(lost(cpu, now.saturating_sub(1), count));
    }

    /// Gives the events before `limit`, in ns.
    fn take(&mut self, limit: u64, mut take: impl FnMut(&Event, &NameTable)) {
        // Runs that are in order already, one of each CPU: the sort merges them.
        self.events.sort_by_key(|event| event.time_ns);
        let due = self.events.partition_point(|event| event.time_ns < limit);
        for event in self.events.drain(..due) {
            take(&event, &self.naming.names);
        }
    }
}

/// A loss shows at the next record of its CPU.
const fn lost(cpu: u16, time: u64, count: u64) -> Event {
    Event {
        time_ns: time,
        tid: Tid(0),
        cpu: CpuId(cpu),
        context: Context::UNKNOWN,
        kind: Kind::Lost { count },
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{RecordKind, written};
    use super::*;

    fn taken(order: &mut Order, limit: u64) -> Vec<(u64, u16, Kind)> {
        let mut events = Vec::new();
        order.take(limit, |event, _| {
            events.push((event.time_ns, event.cpu.0, event.kind));
        });
        events
    }

    #[test]
    fn cpus_are_merged_by_time_and_losses_shown() {
        let mut order = Order::new(&[0, 4], 100);
        let mut push = |index, time, losses| {
            let bytes = written(RecordKind::Entry, time, 7, losses, [0; 3]);
            order.push(index, &bytes, |_, _| {});
        };
        // Before all programs were attached.
        push(0, 90, 3);
        push(0, 110, 3);
        push(0, 130, 5);
        push(1, 120, 0);
        push(1, 140, 0);
        let times: Vec<_> = taken(&mut order, 140);
        let entry = Kind::KvmEntry {
            vcpu: stealtime_events::VcpuId::UNKNOWN,
        };
        assert_eq!(
            times,
            [
                (110, 0, entry),
                (120, 4, entry),
                (130, 0, Kind::Lost { count: 2 }),
                (130, 0, entry),
            ]
        );
        assert_eq!(order.latest(1), 140);
        assert_eq!(taken(&mut order, 200).len(), 1);
    }

    #[test]
    fn rings_fit_the_host() {
        assert_eq!(ring_bytes(2, None), 1 << 20);
        assert_eq!(ring_bytes(64, None), 256 << 10);
        assert_eq!(ring_bytes(96, None), 128 << 10);
        assert_eq!(ring_bytes(4096, None), 64 << 10);
        assert_eq!(ring_bytes(64, Some(3 << 10)), 4 << 20);
        assert_eq!(ring_bytes(64, Some(u64::MAX)), 1 << 30);
    }

    /// Rounds of 50 ms at 100,000 events a second on 64 CPUs, each of which switches, enters and exits. The
    /// time in the collector comes in addition: `a_large_host_takes_little` in its crate measures it.
    #[test]
    #[ignore = "a measurement: cargo test --release -p stealtime-live -- --ignored --nocapture a_round"]
    fn a_round_takes_little() {
        const CPUS: u16 = 64;
        const ROUNDS: u64 = 2_000;
        const ROUND_NS: u64 = 50_000_000;
        let kinds = [
            RecordKind::Waking,
            RecordKind::Wakeup,
            RecordKind::Switch,
            RecordKind::Entry,
            RecordKind::KvmExit,
            RecordKind::Entry,
            RecordKind::KvmExit,
            RecordKind::Entry,
            RecordKind::KvmExit,
            RecordKind::HaltEnd,
        ];
        let each = 5_000 / u64::from(CPUS);
        let records = |cpu: u16, round: u64| {
            let record = move |number: u64| {
                let time = round * ROUND_NS + number * (ROUND_NS / each) + u64::from(cpu);
                let kind = kinds[number as usize % kinds.len()];
                written(
                    kind,
                    time,
                    1000 + i32::from(cpu),
                    0,
                    [1000 + u32::from(cpu), 7, 1],
                )
            };
            (0..each).map(record).collect::<Vec<_>>()
        };
        let numbers: Vec<u16> = (0..CPUS).collect();
        let mut order = Order::new(&numbers, 0);
        let cpu_time = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let (mut spent, mut events) = (0, 0_u64);
        for round in 1..=ROUNDS {
            let records: Vec<_> = numbers.iter().map(|&cpu| records(cpu, round)).collect();
            let began = cpu_time();
            for (index, records) in records.iter().enumerate() {
                for record in records {
                    order.push(index, record, |_, _| {});
                }
            }
            order.take(u64::MAX, |event, _| {
                events += u64::from(event.kind.is_host_event())
            });
            spent += cpu_time() - began;
        }
        println!("{events} events, {} ns of CPU time each", spent / events);
        assert_eq!(events, ROUNDS * each * u64::from(CPUS));
    }
}
