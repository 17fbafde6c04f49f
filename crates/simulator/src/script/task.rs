//! A task that runs a script: where it is, and what it has spent.

use std::collections::BTreeMap;
use std::sync::Arc;

use stealtime_events::Tid;
use stealtime_hypervisor::halt_poll::{Halt, HaltPoll};

use super::moves::Timed;
use super::{Edge, Late, Moves, Preempted, ScriptConfig, Spent, Stall, Step, Then, Ticks, Until};
use crate::books::TaskBooks;
use crate::ids::TimerNr;

/// Where a script is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its next step is to be taken.
    Steps,
    /// It polls for what the step before waits for.
    Polls,
    /// It is about to sleep until then.
    Blocks,
    /// It sleeps.
    Sleeps,
}

/// A halt that goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halting {
    pub(super) halt: Halt,
    /// When it began, in ns.
    pub(super) since: u64,
    /// How long it has polled, in ns.
    pub(super) poll_ns: u64,
    /// It is to go on.
    pub(super) woken: bool,
}

/// A task that runs a script.
#[derive(Debug)]
pub(crate) struct ScriptTask {
    pub(super) steps: Arc<[Step]>,
    pub(super) next: usize,
    stalls: Arc<[Stall]>,
    /// Stalls that are over.
    stalled: usize,
    /// What is left of the step that it takes, after the stretch or stall that it computes, in ns.
    left_ns: u64,
    /// What is behind it of that step, in ns.
    passed_ns: u64,
    /// That is a stall.
    stalls_next: bool,
    /// Moves to come.
    pub(super) moves: Timed,
    /// It moves where its steps say so.
    pub(super) moves_by_steps: bool,
    pub(super) state: State,
    pub(super) timer: TimerNr,
    pub(super) halt_poll: HaltPoll,
    pub(super) halt: Option<Halting>,
    /// The last halt slept.
    pub(super) slept: bool,
    /// It has been woken, and is on its way through the kernel.
    pub(super) waking: bool,
    /// When its timer was set last, in ns.
    pub(super) armed: u64,
    /// What an idle CPU takes before it takes the interrupt that ends the wait, in us.
    pub(super) wait_exit_us: u16,
    /// As of its configuration.
    pub(super) called: Late,
    /// When the guest's timer ends the next wait for another script, or the one that goes on, in ns.
    pub(super) alarm: Option<u64>,
    pub(super) alarm_ns: u32,
    /// As of its configuration.
    preempted: Preempted,
    preemptions: u64,
    /// Of them: those that have cost something.
    costly: u64,
    /// Whether the guest does without the halt that is next, once that is known. Its exit has two parts.
    pub(super) skips_halt: Option<bool>,
    pub(super) ticks: Option<Ticks>,
    pub(super) then: Then,
    /// The VM that it is a vCPU of.
    pub(super) vcpu_of: Option<u32>,
    /// Its number there.
    pub(super) number: Option<u32>,
    /// It has yielded its CPU as it spun.
    pub(super) spun: bool,
    /// How often its steps were done, and when the last time, in ns.
    pub(super) passes: u32,
    pub(super) pass_began: u64,
    /// What the wait that goes on waits for: times alone are left, [`Until::Edge`] and [`Until::Work`].
    pub(super) awaited: Until,
    /// The wait that goes on, or that its alarm has interrupted, is over when its VM has computed for so
    /// long in all, in ns.
    pub(super) work_until: Option<u64>,
    /// What it computes in the step that it takes, in ns.
    pub(super) computes_ns: u64,
    /// Index among the scripts.
    pub(super) index: usize,
    pub(super) running: Option<(Spent, u64)>,
    /// It was to give its CPU up before the recorded host's interrupt that it handles.
    pub(super) was_asked: bool,
    /// An entry was emitted, and no exit since.
    pub(super) in_guest: bool,
    pub(super) spent: BTreeMap<Spent, (u64, u64)>,
    pub(super) poll_ns: u64,
    pub(super) sleeping_ns: u64,
    pub(super) halts: u64,
    pub(super) polled: u64,
}

/// What became of a script.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptOutcome {
    /// Index among the scripts.
    pub index: usize,
    /// Its task, as events name it.
    pub tid: Tid,
    /// Its time. Polling is part of `run_ns`.
    pub books: TaskBooks,
    /// Time on a CPU and number of stretches, by what it was for.
    pub spent: BTreeMap<Spent, (u64, u64)>,
    /// Polling in halts, in ns.
    pub poll_ns: u64,
    /// Time on a CPU of going to sleep in halts and of coming back, in ns.
    pub sleeping_ns: u64,
    /// Halts.
    pub halts: u64,
    /// Of them: ended by polling.
    pub polled: u64,
    /// Steps taken since they were last done.
    pub steps: usize,
    /// How often all were done.
    pub passes: u32,
    /// Steps there were.
    pub of_steps: usize,
    /// When it was through for the first time, in ns; `None` if it was not.
    pub finished_ns: Option<u64>,
}

impl ScriptTask {
    pub(crate) fn wait_exit_ns(&self) -> u64 {
        u64::from(self.wait_exit_us) * 1_000
    }

    pub(crate) fn new(config: &ScriptConfig, timer: TimerNr, index: usize) -> Self {
        Self {
            steps: config.steps.clone(),
            alarm_ns: config.alarm_ns,
            preempted: config.preempted,
            preemptions: 0,
            costly: 0,
            skips_halt: None,
            ticks: config.ticks,
            then: config.then,
            vcpu_of: config.vm.filter(|_| config.vcpu.is_some()),
            number: config.vcpu,
            spun: false,
            moves: Timed::new(&config.moves),
            moves_by_steps: config.moves == Moves::Steps,
            passes: 0,
            pass_began: 0,
            alarm: None,
            next: 0,
            stalls: config.stalls.clone(),
            stalled: 0,
            left_ns: 0,
            passed_ns: 0,
            stalls_next: false,
            state: State::Steps,
            timer,
            halt_poll: HaltPoll::default(),
            halt: None,
            slept: false,
            waking: false,
            armed: 0,
            wait_exit_us: 0,
            called: config.called.clone(),
            awaited: Until::Time(0),
            work_until: None,
            computes_ns: 0,
            index,
            running: None,
            was_asked: false,
            in_guest: false,
            spent: BTreeMap::new(),
            poll_ns: 0,
            sleeping_ns: 0,
            halts: 0,
            polled: 0,
        }
    }

    pub(crate) fn outcome(
        &self,
        tid: Tid,
        books: TaskBooks,
        finished_ns: Option<u64>,
    ) -> ScriptOutcome {
        ScriptOutcome {
            index: self.index,
            tid,
            books,
            spent: self.spent.clone(),
            poll_ns: self.poll_ns,
            sleeping_ns: self.sleeping_ns,
            halts: self.halts,
            polled: self.polled,
            steps: self.next,
            passes: self.passes,
            of_steps: self.steps.len(),
            finished_ns,
        }
    }

    /// It loses its CPU, after so much CPU time: what that costs it when it goes on, in ns.
    pub(crate) fn preempted(&mut self, run_ns: u64) -> u64 {
        let Preempted { every_ns, cost_ns } = self.preempted;
        if cost_ns == 0 || self.state != State::Steps {
            return 0;
        }
        self.preemptions += 1;
        let recorded = run_ns.checked_div(every_ns).unwrap_or(0);
        if self.preemptions - self.costly <= recorded {
            return 0;
        }
        self.costly += 1;
        u64::from(cost_ns)
    }

    /// It handles an exit.
    pub(crate) const fn in_kernel(&self) -> bool {
        matches!(
            self.running,
            Some((Spent::Exit(_) | Spent::Interrupt(_) | Spent::Halt(_), _))
        )
    }

    /// It computes in the guest.
    pub(super) fn in_guest(&self) -> bool {
        self.state == State::Steps && matches!(self.running, Some((Spent::Guest, _)))
    }

    /// It is in the kernel, to go on in a moment or to sleep: not where a task without runtime
    /// left stops.
    pub(crate) fn on_halt(&self) -> bool {
        self.in_kernel() || self.state != State::Steps
    }

    /// The point that the wait which goes on waits for.
    pub(super) const fn awaited_edge(&self) -> Option<Edge> {
        match self.awaited {
            Until::Edge(edge) | Until::Work { edge, .. } => Some(edge),
            _ => None,
        }
    }

    /// It takes a step of so many ns. [`Self::next_stretch`] has its parts. `resched`: its CPU is asked to
    /// reschedule.
    pub(super) fn begin_run(&mut self, spent: Spent, ns: u64, resched: bool) {
        if spent == Spent::Guest {
            self.skips_halt = None;
        }
        self.running = Some((spent, ns));
        self.was_asked = resched && matches!(spent, Spent::Interrupt(_));
        self.computes_ns = ns;
        self.left_ns = ns;
        self.passed_ns = 0;
        self.stalls_next = false;
    }

    /// From `passed_ns` of the step to its next stall, or to its end.
    fn next_stall(&mut self, passed_ns: u64) -> u64 {
        let step = self.next.saturating_sub(1) as u32;
        while self
            .stalls
            .get(self.stalled)
            .is_some_and(|stall| stall.step < step)
        {
            self.stalled += 1;
        }
        let stall = self
            .stalls
            .get(self.stalled)
            .filter(|stall| stall.step == step);
        let ns = stall.map_or(self.left_ns, |stall| {
            stall.after_ns.saturating_sub(passed_ns).min(self.left_ns)
        });
        self.stalls_next = stall.is_some();
        self.passed_ns = passed_ns + ns;
        self.left_ns -= ns;
        ns
    }

    /// A stretch of a step is over: the next one of it in ns, and whether that is a stall.
    pub(super) fn next_stretch(&mut self) -> Option<(u64, bool)> {
        if self.left_ns == 0 {
            self.stalls_next = false;
            return None;
        }
        if core::mem::take(&mut self.stalls_next) {
            let ns = self.stalls.get(self.stalled).map_or(0, |stall| stall.ns);
            let ns = ns.min(self.left_ns);
            self.stalled += 1;
            self.passed_ns += ns;
            self.left_ns -= ns;
            if ns > 0 {
                return Some((ns, true));
            }
        }
        let passed = self.passed_ns;
        Some((self.next_stall(passed), false))
    }

    /// Its steps are taken again.
    pub(super) fn repeat(&mut self) {
        self.next = 0;
        self.stalled = 0;
    }

    pub(super) fn over(&mut self) {
        if let Some((spent, ns)) = self.running.take() {
            let sum = self.spent.entry(spent).or_default();
            sum.0 += ns;
            sum.1 += 1;
        }
    }
}
