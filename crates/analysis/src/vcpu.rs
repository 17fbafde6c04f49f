//! One vCPU thread: its state, where its time went, and what was counted of it.

use stealtime_events::VcpuId;

use crate::hash::IntMap;
use crate::interrupts::HitVectors;
use crate::latency::Latencies;
use crate::options::Window;
use crate::ready::{self, Cause};
use crate::stats::Durations;
use crate::threads::{IDLE, ThreadId};

/// A shorter wait beside an idle CPU is no throttling, in ns. The shortest period of a limit is 1 ms
/// (`min_cfs_quota_period`), and a thread whose runtime is used up waits for a good part of one; a CPU
/// that leaves idle late takes microseconds.
const THROTTLED_NS: u64 = 500_000;

/// What the scheduler does with the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Run {
    /// Nothing is known: before the first sign of the thread, or since events were lost.
    #[default]
    Unknown,
    /// On a CPU.
    Running,
    /// Runnable, but another has its CPU.
    Preempted,
    /// Woken, not yet on a CPU.
    Waking,
    /// Asleep.
    Sleeping,
    /// It has exited.
    Dead,
}

/// What the thread does when it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mode {
    /// No entry or exit was seen since its state became known.
    #[default]
    Unknown,
    /// In the guest.
    Guest,
    /// Outside the guest because of the reason in this slot of the table of reasons.
    Exit(usize),
}

/// Sums in ns, clipped to the selection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Split {
    pub(crate) guest: u64,
    /// On a CPU while it was not known whether in the guest.
    pub(crate) mode_unknown: u64,
    pub(crate) preempted: u64,
    pub(crate) wake_wait: u64,
    pub(crate) halt: u64,
    pub(crate) blocked: u64,
    pub(crate) poll_useful: u64,
    pub(crate) poll_wasted: u64,
    pub(crate) spin: u64,
    pub(crate) unknown: u64,
}

/// What was counted for one exit reason of one vCPU thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot {
    /// `kvm_exit` events.
    pub(crate) count: u64,
    /// On-CPU time outside the guest.
    pub(crate) ns: u64,
    /// From exit to entry, as perf measures it.
    pub(crate) durations: Durations,
}

/// An exit for which perf waits for the entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) time: u64,
    pub(crate) slot: usize,
}

/// Counts of halts, polls, spins and clock writes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) halts: u64,
    pub(crate) poll_success: u64,
    pub(crate) poll_fail: u64,
    pub(crate) poll_success_ns: u64,
    pub(crate) poll_fail_ns: u64,
    pub(crate) poll_grow: u64,
    pub(crate) poll_shrink: u64,
    pub(crate) pause_exits: u64,
    pub(crate) ple_grow: u64,
    pub(crate) ple_shrink: u64,
    pub(crate) ple_window_max: u32,
    pub(crate) switches_in: u64,
    pub(crate) tsc_writes: u64,
    pub(crate) timer_msr_writes: u64,
}

/// A vCPU thread.
#[derive(Debug)]
pub(crate) struct Vcpu {
    /// Its thread.
    pub(crate) thread: ThreadId,
    /// Its number in its VM.
    pub(crate) id: VcpuId,
    /// Whether KVM events were seen in its context: without any, a thread that is only named like
    /// a vCPU is none.
    pub(crate) is_seen: bool,
    /// Whether it entered or left a guest.
    pub(crate) has_exits: bool,
    /// The guest's name that the recording gives.
    pub(crate) recorded_vm: Option<stealtime_events::NameId>,

    /// Nothing at all was seen of it yet.
    pub(crate) is_unborn: bool,
    pub(crate) run: Run,
    pub(crate) mode: Mode,
    /// Up to here its time is accounted.
    pub(crate) since: u64,
    /// The CPU that it runs on, waits for, or last ran on.
    pub(crate) cpu: u16,
    /// Whether it stands in that CPU's list of waiters.
    pub(crate) is_queued: bool,
    /// When it was last switched in.
    pub(crate) run_start: u64,
    /// When it last entered or left the guest.
    pub(crate) mode_start: u64,
    pub(crate) time: Split,
    pub(crate) slots: Vec<Slot>,
    pub(crate) begun: Option<Begun>,
    /// perf counts a thread from its first entry on.
    pub(crate) perf_counts: bool,

    /// Its latest stretches on a CPU since it last entered or left the guest.
    pub(crate) stretches: crate::polls::Stretches,
    /// When its latest sleep began.
    pub(crate) slept_at: u64,
    /// `sched_waking` was seen of it, and when.
    pub(crate) woken_at: Option<u64>,
    /// The CPU that it was to run on then.
    pub(crate) woken_on: u16,
    /// The latest wait that ended away from the CPU that it waited for.
    pub(crate) left: Option<crate::gaps::Left>,
    /// How many losses there were when it fell asleep.
    pub(crate) sleep_losses: u64,
    /// Sleep of which it is not yet known whether it was a halt.
    pub(crate) sleep_open: u64,
    /// Whether it sleeps after an exit of class `Halt`.
    pub(crate) sleep_in_halt: bool,

    /// Since when it waits for a CPU, and bandwidth timer expiries until then.
    pub(crate) wait_start: u64,
    /// Since when it waits for this CPU.
    pub(crate) queue_start: u64,
    pub(crate) wait_bandwidth: u64,
    /// Waiting in this wait while its CPU was idle.
    pub(crate) wait_idle: u64,
    /// That of it whatever is selected: what it means does not depend on the part that is shown.
    pub(crate) wait_beside_idle: u64,
    /// Waiting by who had the CPU.
    pub(crate) ready: IntMap<u32, u64>,

    /// Guest time since the latest entry.
    pub(crate) stretch: u64,
    /// Whether its latest exit was a PAUSE.
    pub(crate) after_pause: bool,
    /// Whether a PAUSE exit waits for its outcome.
    pub(crate) pause_open: bool,
    /// Who was switched to after a PAUSE exit.
    pub(crate) yielded_to: IntMap<u32, u64>,
    pub(crate) tally: Tally,
    /// Polling: see `polls`.
    pub(crate) poll: crate::polls::Poll,
    pub(crate) latencies: Latencies,
    pub(crate) hits: HitVectors,
    /// Offset of its TSC, where it was written in the trace.
    pub(crate) tsc_offset: Option<u64>,
}

impl Vcpu {
    /// A vCPU of which nothing was counted yet, unknown since `since`.
    pub(crate) fn new(thread: ThreadId, id: VcpuId, since: u64) -> Self {
        Self {
            thread,
            id,
            is_seen: false,
            has_exits: false,
            recorded_vm: None,
            is_unborn: true,
            run: Run::Unknown,
            mode: Mode::Unknown,
            since,
            cpu: 0,
            is_queued: false,
            run_start: since,
            mode_start: since,
            time: Split::default(),
            slots: vec![Slot::default()],
            begun: None,
            perf_counts: false,
            stretches: crate::polls::Stretches::default(),
            slept_at: since,
            woken_at: None,
            woken_on: 0,
            left: None,
            sleep_losses: 0,
            sleep_open: 0,
            sleep_in_halt: false,
            wait_start: 0,
            queue_start: 0,
            wait_bandwidth: 0,
            wait_idle: 0,
            wait_beside_idle: 0,
            ready: IntMap::default(),
            stretch: 0,
            after_pause: false,
            pause_open: false,
            yielded_to: IntMap::default(),
            tally: Tally::default(),
            poll: crate::polls::Poll::default(),
            latencies: Latencies::default(),
            hits: HitVectors::default(),
            tsc_offset: None,
        }
    }

    /// Whether it waits for a CPU.
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.run, Run::Preempted | Run::Waking)
    }

    /// What was counted for the reason in this slot.
    #[inline]
    pub(crate) fn slot(&mut self, slot: usize) -> &mut Slot {
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, Slot::default);
        }
        &mut self.slots[slot]
    }

    /// Accounts its time up to `now` to its present state; `cause` is who has the CPU that it waits
    /// for.
    #[inline]
    pub(crate) fn settle(&mut self, window: &Window, now: u64, cause: Cause) {
        if now <= self.since {
            return;
        }
        let ns = window.clip(self.since, now, self.cpu);
        if cause == Cause::of(IDLE) {
            self.wait_beside_idle += now - self.since;
        }
        self.since = now;
        match self.run {
            Run::Unknown => self.time.unknown += ns,
            Run::Running => self.settle_running(ns),
            Run::Preempted => {
                self.time.preempted += ns;
                self.wait_for(cause, ns);
            }
            Run::Waking => {
                self.time.wake_wait += ns;
                self.wait_for(cause, ns);
            }
            Run::Sleeping => {
                self.time.halt += ns;
                self.sleep_open += ns;
            }
            Run::Dead => {}
        }
    }

    fn settle_running(&mut self, ns: u64) {
        match self.mode {
            Mode::Unknown => self.time.mode_unknown += ns,
            Mode::Guest => {
                self.time.guest += ns;
                self.stretch += ns;
            }
            Mode::Exit(slot) => self.slot(slot).ns += ns,
        }
    }

    fn wait_for(&mut self, cause: Cause, ns: u64) {
        if ns == 0 {
            return;
        }
        if cause == Cause::of(IDLE) {
            // Whether it was throttled meanwhile shows at the end of the wait.
            self.wait_idle += ns;
        } else {
            ready::add(&mut self.ready, cause, ns);
        }
    }

    /// Ends a wait: decides what idle time in it means. `expiries` counts bandwidth timers.
    ///
    /// A limit takes the CPU from a thread that runs: a wait that begins with a wakeup is none of its
    /// doing. A CPU that is slow to leave idle beside the timer of another VM's limit is none either.
    pub(crate) fn end_wait(&mut self, expiries: u64) {
        let idle = std::mem::take(&mut self.wait_idle);
        let beside_idle = std::mem::take(&mut self.wait_beside_idle);
        let is_throttled = self.run == Run::Preempted
            && expiries != self.wait_bandwidth
            && beside_idle >= THROTTLED_NS;
        let cause = match is_throttled {
            true => Cause::THROTTLED,
            false => Cause::of(IDLE),
        };
        self.idle_meant(cause);
        if idle > 0 {
            ready::add(&mut self.ready, cause, idle);
        }
    }

    /// Takes up to `ns` out of the on-CPU time of the present mode (what was accounted to it last)
    /// and returns how much it was.
    pub(crate) fn take_back(&mut self, mode: Mode, ns: u64) -> u64 {
        let bucket = match mode {
            Mode::Unknown => &mut self.time.mode_unknown,
            Mode::Guest => &mut self.time.guest,
            Mode::Exit(slot) => &mut self.slot(slot).ns,
        };
        let taken = ns.min(*bucket);
        *bucket -= taken;
        taken
    }

    /// A sleep is over whose kind no `kvm_vcpu_wakeup` has told: what it was follows from the exit
    /// before it.
    pub(crate) fn close_sleep(&mut self) {
        let open = std::mem::take(&mut self.sleep_open);
        if !self.sleep_in_halt {
            self.time.blocked += open;
        }
    }

    /// What it does is no longer known, from `now` on.
    pub(crate) fn forget(&mut self) {
        self.run = Run::Unknown;
        self.is_unborn = false;
        self.mode = Mode::Unknown;
        self.after_pause = false;
        self.pause_open = false;
        self.stretch = 0;
        self.stretches.clear();
        self.woken_at = None;
        self.latencies.forget();
        self.hits.forget();
    }
}
