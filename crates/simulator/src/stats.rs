//! What is counted in a run.

use core::cell::Cell;
use core::fmt;

use stealtime_hypervisor::events::Events;
use stealtime_hypervisor::posted_interrupt::LocalLists;

use crate::program::Record;

/// Values in buckets no wider than a sixteenth of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// The bucket that `counts` begins with: most histograms use few of them.
    first: u16,
    counts: Vec<u32>,
    /// How many values.
    pub count: u64,
    /// Their sum.
    pub sum: u128,
    /// The largest.
    pub max: u64,
    /// The sum of their squares.
    squares: u128,
}

impl Histogram {
    fn bucket(value: u64) -> usize {
        if value < 16 {
            return value as usize;
        }
        let exponent = 63 - value.leading_zeros();
        let mantissa = (value >> (exponent - 4)) & 15;
        ((exponent - 3) * 16 + mantissa as u32) as usize
    }

    /// The largest value that falls into a bucket.
    fn upper(bucket: usize) -> u64 {
        if bucket < 16 {
            return bucket as u64;
        }
        let (exponent, mantissa) = (bucket as u32 / 16 + 3, bucket as u64 % 16);
        let width = 1u64 << (exponent - 4);
        (16 + mantissa) * width + (width - 1)
    }

    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.add_to(Self::bucket(value), 1);
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
        self.squares += u128::from(value) * u128::from(value);
    }

    /// A bucket holds 2^32 - 1 values at most; more of them still count in `count` and `sum`.
    fn add_to(&mut self, bucket: usize, n: u32) {
        if self.counts.is_empty() {
            self.first = bucket as u16;
        }
        let first = usize::from(self.first);
        if bucket < first {
            let missing = first - bucket;
            self.counts.splice(0..0, core::iter::repeat_n(0, missing));
            self.first = bucket as u16;
        }
        let place = bucket - usize::from(self.first);
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] = self.counts[place].saturating_add(n);
    }

    /// Adds all values of another.
    pub fn merge(&mut self, histogram: &Self) {
        for (place, &n) in histogram.counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            self.add_to(usize::from(histogram.first) + place, n);
        }
        self.count += histogram.count;
        self.sum += histogram.sum;
        self.max = self.max.max(histogram.max);
        self.squares += histogram.squares;
    }

    /// Standard deviation, rounded down; `None` without values.
    #[must_use]
    pub fn deviation(&self) -> Option<u64> {
        let n = u128::from(self.count);
        // n times the sum of squares is no less than the square of the sum.
        let of_squares = self.squares.checked_mul(n)?;
        let variance = of_squares.checked_sub(self.sum.checked_mul(self.sum)?)?;
        (n > 0).then(|| (variance.isqrt() / n) as u64)
    }

    /// Mean, rounded down; `None` without values.
    #[must_use]
    pub fn mean(&self) -> Option<u64> {
        self.sum
            .checked_div(u128::from(self.count))
            .map(|mean| mean as u64)
    }

    /// The value below or at which `per_mille` of all are, to a sixteenth; `None` without values.
    #[must_use]
    pub fn quantile(&self, per_mille: u32) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let rank = (u128::from(self.count) * u128::from(per_mille))
            .div_ceil(1000)
            .max(1) as u64;
        let mut counted = 0;
        for (place, &count) in self.counts.iter().enumerate() {
            counted += u64::from(count);
            if counted >= rank {
                return Some(Self::upper(usize::from(self.first) + place).min(self.max));
            }
        }
        Some(self.max)
    }
}

/// What a workload reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meter {
    /// Of which VM or task.
    pub name: String,
    /// Operations done.
    pub done: u64,
    /// How long operations took, in ns.
    pub latency: Histogram,
}

impl Meter {
    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn record(&mut self, record: Record) {
        match record {
            Record::Done(n) => self.done += n,
            Record::Latency(ns) => {
                self.done += 1;
                self.latency.add(ns);
            }
            Record::Lasted(ns) => self.latency.add(ns),
        }
    }
}

/// Exits for one reason, from the exit to the next entry, as `perf kvm stat` counts them. A halt's
/// exit lasts until the next entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitTimes {
    /// How many came to their entry.
    pub count: u64,
    /// Their sum, in ns.
    pub sum_ns: u64,
    /// The shortest, in ns.
    pub min_ns: u64,
    /// The longest, in ns.
    pub max_ns: u64,
}

impl ExitTimes {
    pub(crate) fn add(&mut self, ns: u64) {
        self.min_ns = if self.count == 0 {
            ns
        } else {
            self.min_ns.min(ns)
        };
        self.max_ns = self.max_ns.max(ns);
        self.count += 1;
        self.sum_ns += ns;
    }
}

/// What the mechanisms count.
#[derive(Clone, Default, PartialEq)]
pub struct Mechanisms {
    /// Posts that found their bit set.
    pub post_coalesced: Cell<u64>,
    /// Notifications that hardware processed in guest mode.
    pub notified_in_guest: Cell<u64>,
    /// Of these: those that found an empty PIR.
    pub notified_too_late: Cell<u64>,
    /// Posts of hardware without a notification, because SN was set.
    pub notifications_spared: Cell<u64>,
    /// Posts of hardware that found ON set.
    pub hw_on_already_set: Cell<u64>,
    /// Locked operations on SN.
    pub sn_toggles: Cell<u64>,
    /// IPIs of which it was recorded that their sender waits for their receiver.
    pub ipis_recorded: Cell<u64>,
    /// Such records that the receiver's EOI ended.
    pub ipis_settled: Cell<u64>,
    /// Times that a guest named the vCPU that one of its vCPUs waits for.
    pub guest_hints: Cell<u64>,
}

impl fmt::Debug for Mechanisms {
    /// Without the counts of notifications by their effect. Digests of whole runs, which are kept, are
    /// older than these.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mechanisms")
            .field("post_coalesced", &self.post_coalesced)
            .field("notified_in_guest", &self.notified_in_guest)
            .field("sn_toggles", &self.sn_toggles)
            .field("ipis_recorded", &self.ipis_recorded)
            .field("ipis_settled", &self.ipis_settled)
            .field("guest_hints", &self.guest_hints)
            .finish()
    }
}

fn count(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

impl Events for Mechanisms {
    fn post_coalesced(&self, _vector: u8) {
        count(&self.post_coalesced);
    }

    fn notification_in_guest(&self, merged: u32) {
        count(&self.notified_in_guest);
        if merged == 0 {
            count(&self.notified_too_late);
        }
    }

    fn hw_post_suppressed(&self, _vector: u8) {
        count(&self.notifications_spared);
    }

    fn hw_post_on_already_set(&self, _vector: u8) {
        count(&self.hw_on_already_set);
    }

    fn sn_set(&self) {
        count(&self.sn_toggles);
    }

    fn sn_cleared(&self) {
        count(&self.sn_toggles);
    }

    fn ipi_recorded(&self, _sender: u32, _receiver: u32, _vector: u8) {
        count(&self.ipis_recorded);
    }

    fn ipi_settled(&self, _sender: u32, _receiver: u32) {
        count(&self.ipis_settled);
    }

    fn guest_hint(&self, _waiter: u32, _holder: u32) {
        count(&self.guest_hints);
    }
}

/// Counts of a run, since the warm-up unless said otherwise.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "each name says what is counted")]
pub struct Stats {
    /// Events of the engine, warm-up included.
    pub events: u64,
    /// Events that a trace would hold, warm-up included.
    pub trace_events: u64,
    pub context_switches: u64,
    pub migrations: u64,
    pub host_irqs: u64,
    pub ipis_sent: u64,
    /// Time that senders waited for their ICR in xAPIC mode, in ns.
    pub icr_wait_ns: u64,
    pub ticks: u64,
    pub timers_started: u64,
    pub exits: u64,
    pub entries: u64,
    pub entries_cancelled: u64,
    pub notifications: u64,
    pub spurious_notifications: u64,
    pub guest_ipis: u64,
    pub guest_irqs: u64,
    pub pause_exits: u64,
    pub directed_yields: u64,
    /// Of them: to the vCPU that the spinner waited for.
    pub yields_to_awaited: u64,
    /// Hypercalls by which a guest's vCPU asked for its CPU to be given to another.
    pub yield_hypercalls: u64,
    /// Writes to the ICR (Xen).
    pub icr_writes: u64,
    /// CPUs of a batch that had noticed by themselves.
    pub wakeups_noticed: u64,
    /// Multicast IPIs of guests (Xen).
    pub broadcasts: u64,
    /// How long they took their sender, in ns.
    pub broadcast_ns: Histogram,
    /// From the pending bit of a target until its CPU is notified, in ns: what batching lengthens.
    /// It is 0 where the store notifies (MWAIT), or where no softirq was needed.
    pub target_delay_ns: Histogram,
    /// The same by the quarter of the loop over the targets that a target is in.
    pub target_delay_quarters: [Histogram; 4],
    /// Exits by the number of their reason.
    pub exit_times: Vec<(u32, ExitTimes)>,
    /// Reads of a guest's counter that were served at EL2 (arm64).
    pub counter_traps: u64,
    pub lock_waits: u64,
    /// Halts of vCPUs that waited for a paravirtual spinlock.
    pub pv_waits: u64,
    /// Kicks of such vCPUs.
    pub pv_kicks: u64,
    /// Threads that an idle vCPU took from another.
    pub guest_migrations: u64,
    /// Sleeps for a mutex.
    pub mutex_waits: u64,
    /// Wakeups of idle vCPUs that polled or used MWAIT, without an IPI.
    pub guest_ipis_spared: u64,
    pub function_calls: u64,
    pub flushes_spared: u64,
    pub(crate) steps_without_time: u64,
    /// What the workloads report.
    pub meters: Vec<Meter>,
    /// What the mechanisms count.
    pub mechanisms: Mechanisms,
    pub(crate) lists: LocalLists,
}

impl Stats {
    /// An exit is over.
    pub(crate) fn exit_took(&mut self, reason: u32, ns: u64) {
        let known = self
            .exit_times
            .iter()
            .position(|(known, _)| *known == reason);
        let place = known.unwrap_or_else(|| {
            self.exit_times.push((reason, ExitTimes::default()));
            self.exit_times.len() - 1
        });
        self.exit_times[place].1.add(ns);
    }

    /// The delays of a broadcast's targets, in the order of the loop.
    pub(crate) fn targets_notified(&mut self, delays_ns: &[u64]) {
        for (n, &delay) in delays_ns.iter().enumerate() {
            self.target_delay_ns.add(delay);
            self.target_delay_quarters[n * 4 / delays_ns.len()].add(delay);
        }
    }

    pub(crate) fn new(cpus: u32) -> Self {
        Self {
            // A simulated lock is no spinlock: lists grow as vCPUs block. Room for each vCPU on each
            // CPU would be 32 MB for 8,192 vCPUs on 1,024 CPUs.
            lists: LocalLists::new(cpus, 0),
            ..Self::default()
        }
    }

    /// Starts counting anew; what is no count stays.
    pub(crate) fn clear(&mut self) {
        let old = core::mem::take(self);
        *self = Self {
            events: old.events,
            trace_events: old.trace_events,
            timers_started: old.timers_started,
            meters: old
                .meters
                .iter()
                .map(|meter| Meter::named(&meter.name))
                .collect(),
            lists: old.lists,
            ..Self::default()
        };
    }
}
