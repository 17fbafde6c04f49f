//! One vCPU's sums of an interval. The rules are those of `stealtime_analysis`: docs/analysis.md has them.

use stealtime_track::{
    Cause, Halt, IntMap, Mode, OpenWait, Place, ReasonIndex, Retracted, Run, Span, Stretches,
    SwitchedOut, Wait,
};

use crate::histogram::Distribution;

/// A limit's timer that expired so long ago, in ns, still shows a limit. The longest period is 1 s
/// (`max_cfs_quota_period`).
const PERIOD_NS: u64 = 1_000_000_000;
/// Occupants of the CPU that are kept apart in one interval; the rest is [`Cause::OTHERS`].
const MAX_CAUSES: usize = 64;
/// Longest waits of an interval that are kept.
const STALLS: usize = 4;

/// What was counted for one exit reason.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Slot {
    pub(crate) count: u64,
    /// On-CPU time outside the guest, in ns.
    pub(crate) ns: u64,
}

/// What a vCPU, or its VM, was counted for in one interval.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// By [`ReasonIndex`].
    pub(crate) slots: Vec<Slot>,
    pub(crate) wakeups: Distribution,
    /// Lengths of ended waits.
    pub(crate) waits: Distribution,
}

impl Counts {
    /// Adds those of another.
    pub(crate) fn add(&mut self, added: &Self) {
        if self.slots.len() < added.slots.len() {
            self.slots.resize(added.slots.len(), Slot::default());
        }
        for (sum, slot) in self.slots.iter_mut().zip(&added.slots) {
            sum.count += slot.count;
            sum.ns += slot.ns;
        }
        self.wakeups.add(&added.wakeups);
        self.waits.add(&added.waits);
    }

    /// Forgets all, and keeps the room.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(Slot::default());
        self.wakeups.clear();
        self.waits.clear();
    }
}

/// Sums of one interval, in ns.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    pub(crate) guest: u64,
    pub(crate) exit: u64,
    pub(crate) poll: u64,
    pub(crate) halt: u64,
    /// On a CPU while it was not known whether in the guest.
    pub(crate) mode_unknown: u64,
    pub(crate) unknown: u64,
    pub(crate) exits: u64,
}

/// The timers of bandwidth limits, over all limits of the host.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bandwidth {
    /// Expiries so far.
    pub(crate) expiries: u64,
    /// Time of the latest, in ns.
    pub(crate) latest: u64,
}

/// The account of a vCPU thread.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) sums: Sums,
    pub(crate) counts: Counts,
    /// Waiting by occupant of the CPU, in ns.
    pub(crate) ready: IntMap<Cause, u64>,
    /// Ended waits, the longest of the interval in no order.
    pub(crate) waits: Vec<Wait>,
    /// Whether it entered or left a guest.
    pub(crate) has_exits: bool,

    open: OpenWait,
    /// The thread's state in the wait under way.
    open_run: Run,
    /// Idle time of the wait under way, in ns: in this interval, and in all.
    idle: u64,
    idle_whole: u64,
    /// Expiries of limits' timers when the wait under way began.
    expiries: u64,
    stretches: Stretches,
    /// The polling window for the next halt, where a change of it was seen; that for the halt that ends.
    poll_window: Option<u32>,
    poll_used: Option<u32>,
    /// On-CPU time before sleeps in this interval while the window is not known, in ns, and the mode of the
    /// latest.
    poll_open: (Mode, u64),
}

impl Default for Account {
    fn default() -> Self {
        Self {
            sums: Sums::default(),
            counts: Counts::default(),
            ready: IntMap::default(),
            waits: Vec::new(),
            has_exits: false,
            open: OpenWait::NONE,
            open_run: Run::Unknown,
            idle: 0,
            idle_whole: 0,
            expiries: 0,
            stretches: Stretches::default(),
            poll_window: None,
            poll_used: None,
            poll_open: (Mode::Unknown, 0),
        }
    }
}

impl Account {
    /// What was counted for the reason.
    pub(crate) fn slot(&mut self, reason: ReasonIndex) -> &mut Slot {
        let slots = &mut self.counts.slots;
        if reason.0 >= slots.len() {
            slots.resize(reason.0 + 1, Slot::default());
        }
        &mut slots[reason.0]
    }

    /// Adds a part of its life.
    pub(crate) fn add(&mut self, span: &Span) {
        let ns = span.end.saturating_sub(span.start);
        match span.run {
            Run::Running => self.add_running(span.mode, ns),
            Run::Sleeping => self.sums.halt += ns,
            Run::Preempted | Run::Waking => {
                self.open.add(span.start, span.end, span.cpu, span.cause);
                self.open_run = span.run;
                if span.cause == Cause::IDLE {
                    self.idle += ns;
                    self.idle_whole += ns;
                } else {
                    self.add_ready(span.cause, ns);
                }
            }
            Run::Unknown => self.sums.unknown += ns,
            Run::Dead => debug_assert!(false, "the dead have no spans"),
        }
    }

    fn add_running(&mut self, mode: Mode, ns: u64) {
        match mode {
            Mode::Unknown => self.sums.mode_unknown += ns,
            Mode::Guest => self.sums.guest += ns,
            Mode::Exit(reason) => {
                self.slot(reason).ns += ns;
                self.sums.exit += ns;
            }
        }
    }

    fn add_ready(&mut self, cause: Cause, ns: u64) {
        if let Some(sum) = self.ready.get_mut(&cause) {
            *sum += ns;
        } else if self.ready.len() < MAX_CAUSES || cause.thread().is_none() {
            self.ready.insert(cause, ns);
        } else {
            *self.ready.entry(Cause::OTHERS).or_default() += ns;
        }
    }

    /// A wait begins.
    pub(crate) fn begin_wait(&mut self, bandwidth: Bandwidth) {
        self.expiries = bandwidth.expiries;
        self.idle_whole = 0;
        self.clear_wait();
    }

    fn clear_wait(&mut self) {
        self.open.clear();
        self.open_run = Run::Unknown;
    }

    /// A wait ends, and idle time in it gets its meaning.
    pub(crate) fn end_wait(&mut self, run: Run, bandwidth: Bandwidth) {
        let cause = Cause::of_idle(run, self.idle_whole, bandwidth.expiries != self.expiries);
        self.settle_idle(cause);
        self.idle_whole = 0;
        if let Some(wait) = self.open.wait(self.open_run, cause) {
            self.counts.waits.record(wait.ns);
            self.keep(wait);
        }
        self.clear_wait();
    }

    fn settle_idle(&mut self, cause: Cause) {
        let idle = std::mem::take(&mut self.idle);
        if idle > 0 {
            self.add_ready(cause, idle);
        }
    }

    /// Keeps the longest waits.
    fn keep(&mut self, wait: Wait) {
        if self.waits.len() < STALLS {
            self.waits.push(wait);
        } else if let Some(shortest) = self.waits.iter_mut().min_by_key(|wait| wait.ns)
            && shortest.ns < wait.ns
        {
            *shortest = wait;
        }
    }

    /// The interval ends at `now`, in ns, perhaps within a wait. Idle time of its CPU has no meaning yet.
    /// A preempted thread does not wait long for an idle CPU unless it is throttled.
    pub(crate) fn settle(&mut self, now: u64, bandwidth: Bandwidth) {
        self.counts.wakeups.settle();
        self.counts.waits.settle();
        let has_limit = bandwidth.expiries != self.expiries
            || bandwidth.expiries > 0 && now.saturating_sub(bandwidth.latest) < PERIOD_NS;
        self.settle_idle(Cause::of_idle(self.open_run, self.idle_whole, has_limit));
        if self.has_exits {
            self.sums.unknown += std::mem::take(&mut self.sums.mode_unknown);
        }
    }

    /// The wait under way at the end of an interval.
    pub(crate) fn open_wait(&self) -> Option<Wait> {
        let meaning = match self.ready.contains_key(&Cause::THROTTLED) {
            true => Cause::THROTTLED,
            false => Cause::IDLE,
        };
        self.open.wait(self.open_run, meaning)
    }

    /// The next interval begins.
    pub(crate) fn clear(&mut self) {
        self.sums = Sums::default();
        self.counts.clear();
        self.ready.clear();
        self.waits.clear();
        self.poll_open.1 = 0;
    }

    /// A part of a wait was not seen. `begin` is the interval's begin, in ns.
    pub(crate) fn retract(&mut self, wait: &Retracted, begin: u64) {
        let mut ns = wait.end.saturating_sub(wait.start.max(begin));
        if wait.cause == Cause::IDLE && self.idle > 0 {
            let moved = ns.min(self.idle);
            self.idle -= moved;
            self.idle_whole = self.idle_whole.saturating_sub(moved);
            self.sums.unknown += moved;
            ns -= moved;
        }
        for cause in [wait.cause, Cause::THROTTLED, Cause::OTHERS] {
            let is_possible = cause == wait.cause
                || cause == Cause::OTHERS
                || cause == Cause::THROTTLED && wait.cause == Cause::IDLE;
            if let Some(sum) = self.ready.get_mut(&cause).filter(|_| is_possible) {
                let moved = ns.min(*sum);
                *sum -= moved;
                self.sums.unknown += moved;
                ns -= moved;
            }
        }
    }

    /// It woke up after `ns`.
    pub(crate) fn woken(&mut self, ns: u64) {
        self.counts.wakeups.record(ns);
    }

    /// It leaves its CPU.
    pub(crate) fn switched_out(&mut self, switch: &SwitchedOut) {
        self.stretches.push(switch.start, switch.end, switch.cpu);
    }

    /// `kvm_exit`.
    pub(crate) fn exit(&mut self, reason: ReasonIndex) {
        // It can only have come out of the guest.
        self.sums.guest += std::mem::take(&mut self.sums.mode_unknown);
        self.has_exits = true;
        self.stretches.clear();
        self.slot(reason).count += 1;
        self.sums.exits += 1;
    }

    /// `kvm_entry`.
    pub(crate) fn entry(&mut self) {
        let unknown = std::mem::take(&mut self.sums.mode_unknown);
        self.slot(ReasonIndex::NO_EXIT).ns += unknown;
        self.sums.exit += unknown;
        self.has_exits = true;
        self.stretches.clear();
    }

    /// What it does is not known any more.
    pub(crate) fn forget(&mut self) {
        self.stretches.clear();
    }

    /// `kvm_halt_poll_ns`.
    pub(crate) fn poll_window(&mut self, new: u32, old: u32) {
        let (mode, polled) = std::mem::take(&mut self.poll_open);
        if self.poll_window.is_none() && old > 0 {
            self.sums.poll += self.take_back(mode, polled);
        }
        self.poll_used = Some(old);
        self.poll_window = Some(new);
    }

    /// A halt is over; `begin` is the interval's begin, in ns.
    pub(crate) fn halt(&mut self, place: &Place, halt: &Halt, begin: u64) {
        let now = place.time;
        let used = self.poll_used.take().or(self.poll_window);
        let start = halt.start.max(begin);
        if !halt.waited {
            self.stretches.push(halt.running_since, now, place.cpu);
            let polled = self.polled(start, now);
            self.sums.poll += self.take_back(halt.mode, polled);
            return;
        }
        if !halt.has_switches {
            self.sums.halt += self.take_back(halt.mode, now.saturating_sub(start));
            return;
        }
        let polled = self.polled(start, halt.poll_end(used));
        match used {
            Some(0) => {}
            Some(_) => self.sums.poll += self.take_back(halt.mode, polled),
            None => self.poll_open = (halt.mode, self.poll_open.1 + polled),
        }
    }

    /// Time on a CPU within `[start, end)` of the halt that ends.
    fn polled(&mut self, start: u64, end: u64) -> u64 {
        let ns = self
            .stretches
            .within(start, end, |begin, finish, _cpu| finish - begin);
        self.stretches.clear();
        ns
    }

    /// Takes up to `ns` out of the on-CPU time of a mode, and returns the amount. Less is left where the
    /// interval began meanwhile.
    fn take_back(&mut self, mode: Mode, ns: u64) -> u64 {
        let bucket = match mode {
            Mode::Unknown => &mut self.sums.mode_unknown,
            Mode::Guest => &mut self.sums.guest,
            Mode::Exit(reason) => {
                let slot = self.slot(reason);
                let moved = ns.min(slot.ns);
                slot.ns -= moved;
                self.sums.exit = self.sums.exit.saturating_sub(moved);
                return moved;
            }
        };
        let moved = ns.min(*bucket);
        *bucket -= moved;
        moved
    }
}
