//! The rings of all CPUs, read as they fill.
//!
//! A program reserves its record before it reads the clock. So what is earlier than a look at the rings is in
//! them, though perhaps not finished. A round gives all that is earlier, but nothing behind an unfinished
//! record.
//!
//! Records stay in their rings until they are given: what is put in order is 16 bytes for each. An interrupt
//! between a record's reservation and its clock makes records of one ring change places.

use std::time::{Duration, Instant};

use stealtime_events::{Context, CpuId, Event, Kind, Tid};
use stealtime_trace::NameTable;

use super::BpfError;
use super::due::{Due, Sorter};
use super::load::Loaded;
use super::record::{Naming, Record};
use super::ring::CpuRing;
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
    ///
    /// It is not generic: the caller's crate may be compiled without optimization.
    pub fn round(&mut self, take: &mut dyn FnMut(&Event, &NameTable)) -> u64 {
        let mut limit = monotonic().saturating_sub(UNSEEN_NS);
        let (order, is_vcpu) = (&mut self.order, self.is_vcpu);
        let marks = &self.loaded.marks;
        let named = |tid, name: &str| {
            if is_vcpu(name) {
                marks.mark(tid);
            }
        };
        for (index, ring) in self.loaded.rings.iter_mut().enumerate() {
            if order.scan(index, ring, named) {
                limit = limit.min(order.latest(index));
            }
        }
        if self.looked.elapsed() >= LOOK {
            self.look(limit);
        }
        self.order.take(limit, &mut self.loaded.rings, take);
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
                self.loaded.marks.mark(tid);
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

/// The number of the ring for losses and names, which are in none.
const NO_RING: u32 = u32::MAX;

/// Records of all CPUs to events in the order of time.
struct Order {
    naming: Naming,
    cpus: Vec<Cpu>,
    /// Those of each CPU are in the order of its ring.
    due: Vec<Due>,
    sorter: Sorter,
    /// Events that no record has.
    others: Vec<Event>,
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
            due: Vec::new(),
            sorter: Sorter::default(),
            others: Vec::new(),
            since: begin,
        }
    }

    /// Looks at the new records of the CPU at `index`. `named` gets threads that they name. Returns whether
    /// one behind them is not finished.
    fn scan(&mut self, index: usize, ring: &mut CpuRing, named: impl Fn(i32, &str)) -> bool {
        ring.scan(|position, bytes| self.push(index, position, bytes, &named))
    }

    #[inline]
    fn push(&mut self, index: usize, position: u32, bytes: &[u8], named: impl Fn(i32, &str)) {
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
            let event = lost(cpu.number, time, count.into());
            self.add(event);
        }
        let ring = index as u32;
        self.due.push(Due {
            time,
            ring,
            position,
        });
        if let Some(thread) = record.thread() {
            named(thread.tid, &String::from_utf8_lossy(thread.name));
        }
    }

    /// Time of the latest record of a CPU, in ns.
    fn latest(&self, index: usize) -> u64 {
        self.cpus.get(index).map_or(0, |cpu| cpu.latest)
    }

    /// Adds an event that no record has.
    fn add(&mut self, event: Event) {
        self.due.push(Due {
            time: event.time_ns,
            ring: NO_RING,
            position: self.others.len() as u32,
        });
        self.others.push(event);
    }

    /// Adds the name and the process of a thread.
    fn name(&mut self, tid: i32, process: i32, name: &[u8]) {
        let name = self.naming.names.intern_bytes(name);
        self.add(Event {
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
        self.add(lost(cpu, now.saturating_sub(1), count));
    }

    /// Gives the events before `limit`, in ns, and releases their records.
    fn take(
        &mut self,
        limit: u64,
        rings: &mut [CpuRing],
        take: &mut dyn FnMut(&Event, &NameTable),
    ) {
        self.sorter.sort(&mut self.due);
        let count = self.due.partition_point(|due| due.time < limit);
        for due in self.due.drain(..count) {
            let Some(ring) = rings.get(due.ring as usize) else {
                let event = self.others.get(due.position as usize);
                debug_assert!(event.is_some(), "{due:?}");
                event
                    .into_iter()
                    .for_each(|event| take(event, &self.naming.names));
                continue;
            };
            let record = ring.record(due.position).and_then(Record::new);
            debug_assert!(record.is_some(), "{due:?}");
            if let Some(record) = record {
                record.events(ring.cpu, &mut self.naming, take);
            }
        }
        self.release(rings);
    }

    /// Keeps what is not given, and nothing else.
    fn release(&mut self, rings: &mut [CpuRing]) {
        let mut firsts = vec![None::<u32>; rings.len()];
        let events = std::mem::take(&mut self.others);
        for due in &mut self.due {
            let index = due.ring as usize;
            if let Some((ring, first)) = rings.get(index).zip(firsts.get_mut(index)) {
                let former =
                    first.filter(|&former| ring.distance(former) < ring.distance(due.position));
                *first = Some(former.unwrap_or(due.position));
            } else if let Some(event) = events.get(due.position as usize) {
                due.position = self.others.len() as u32;
                self.others.push(*event);
            }
        }
        for (ring, first) in rings.iter_mut().zip(firsts) {
            ring.release(first);
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
    use stealtime_events::ExitReason;

    use super::super::record::{RecordKind, written};
    use super::super::ring::writer::Writer;
    use super::*;

    /// CPUs with their rings, and the kernel's side of these.
    struct Host {
        order: Order,
        rings: Vec<CpuRing>,
        writers: Vec<Writer>,
    }

    impl Host {
        /// Programs run since 100 ns.
        fn new(cpus: &[u16], ring: usize) -> Self {
            let (writers, rings) = cpus.iter().map(|&cpu| Writer::new(cpu, ring)).unzip();
            let order = Order::new(cpus, 100);
            Self {
                order,
                rings,
                writers,
            }
        }

        fn write(&mut self, index: usize, time: u64, losses: u32) {
            let bytes = written(RecordKind::Entry, time, 7, losses, [0; 3]);
            self.writers[index].write(&bytes, false);
        }

        /// A round, as of `limit`.
        fn round(&mut self, mut limit: u64) -> Vec<(u64, u16, Kind)> {
            for (index, ring) in self.rings.iter_mut().enumerate() {
                if self.order.scan(index, ring, |_, _| {}) {
                    limit = limit.min(self.order.latest(index));
                }
            }
            let mut events = Vec::new();
            self.order.take(limit, &mut self.rings, &mut |event, _| {
                events.push((event.time_ns, event.cpu.0, event.kind));
            });
            events
        }
    }

    const ENTRY: Kind = Kind::KvmEntry {
        vcpu: stealtime_events::VcpuId::UNKNOWN,
    };

    #[test]
    fn cpus_are_merged_by_time_and_losses_shown() {
        let mut host = Host::new(&[0, 4], 4096);
        // Before all programs were attached.
        host.write(0, 90, 3);
        host.write(0, 110, 3);
        host.write(0, 130, 5);
        host.write(1, 120, 0);
        host.write(1, 140, 0);
        host.write(1, 150, 1);
        assert_eq!(
            host.round(140),
            [
                (110, 0, ENTRY),
                (120, 4, ENTRY),
                (130, 0, Kind::Lost { count: 2 }),
                (130, 0, ENTRY),
            ]
        );
        // A record has 16 bytes and a head of 8.
        assert_eq!(host.writers[0].released(), 3 * 24);
        assert_eq!(host.writers[1].released(), 24);
        assert_eq!(host.round(150), [(140, 4, ENTRY)]);
        let last = [(150, 4, Kind::Lost { count: 1 }), (150, 4, ENTRY)];
        assert_eq!(host.round(200), last);
        assert_eq!(host.writers[1].released(), 3 * 24);
        assert_eq!(host.round(300), []);
    }

    /// An interrupt between the reservation of a record and its clock: the record behind it is earlier.
    #[test]
    fn a_record_stays_while_an_earlier_one_is_kept() {
        let mut host = Host::new(&[0], 4096);
        for time in [110, 160, 150, 170] {
            host.write(0, time, 0);
        }
        let times = |events: Vec<(u64, u16, Kind)>| -> Vec<u64> {
            events.iter().map(|event| event.0).collect()
        };
        assert_eq!(times(host.round(155)), [110, 150]);
        assert_eq!(host.writers[0].released(), 24);
        assert_eq!(times(host.round(200)), [160, 170]);
        assert_eq!(host.writers[0].released(), 4 * 24);
    }

    #[test]
    fn nothing_behind_an_unfinished_record_is_given() {
        let mut host = Host::new(&[0, 1], 4096);
        host.write(0, 110, 0);
        let unfinished = written(RecordKind::Entry, 0, 7, 0, [0; 3]);
        host.writers[0].write(&unfinished, true);
        host.write(0, 130, 0);
        host.write(1, 105, 0);
        host.write(1, 120, 0);
        assert_eq!(host.round(200), [(105, 1, ENTRY)]);
    }

    /// Records of 40 bytes with their heads lie across the end of a ring of 4096.
    #[test]
    fn a_ring_goes_round() {
        const EACH: u64 = 80;
        let mut host = Host::new(&[0], 4096);
        let mut given = 0_u32;
        for round in 0..200 {
            for number in round * EACH..(round + 1) * EACH {
                let words = [number as u32, 0, 1];
                let bytes = written(RecordKind::KvmExit, 200 + number, 7, 0, words);
                host.writers[0].write(&bytes, false);
            }
            for (_, _, kind) in host.round(200 + (round + 1) * EACH - 10) {
                let expected = ExitReason::vmx(given);
                assert!(
                    matches!(kind, Kind::KvmExit { reason, .. } if reason == expected),
                    "{kind:?} {expected:?}"
                );
                given += 1;
            }
        }
        assert_eq!(u64::from(given), 200 * EACH - 10);
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
        let numbers: Vec<u16> = (0..CPUS).collect();
        let mut host = Host::new(&numbers, 256 << 10);
        let cpu_time = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let (mut spent, mut events) = (0, 0_u64);
        for round in 1..=ROUNDS {
            for (cpu, writer) in host.writers.iter_mut().enumerate() {
                let tid = 1000 + cpu as u32;
                for number in 0..each {
                    let time = round * ROUND_NS + number * (ROUND_NS / each) + cpu as u64;
                    let kind = kinds[number as usize % kinds.len()];
                    let words = [tid, 7, 1];
                    writer.write(&written(kind, time, tid as i32, 0, words), false);
                }
            }
            let (order, rings) = (&mut host.order, &mut host.rings);
            let began = cpu_time();
            for (index, ring) in rings.iter_mut().enumerate() {
                order.scan(index, ring, |_, _| {});
            }
            order.take(u64::MAX, rings, &mut |event, _| {
                events += u64::from(event.kind.is_host_event());
            });
            spent += cpu_time() - began;
        }
        println!("{events} events, {} ns of CPU time each", spent / events);
        assert_eq!(events, ROUNDS * each * u64::from(CPUS));
    }
}
