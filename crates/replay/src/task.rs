//! A task of the recording: what it has done so far, as steps of its script.

use std::collections::BTreeSet;

use stealtime_simulator::script::{Spent, Step, Until};

/// Whether a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running { since: u64 },
    Runnable,
    Asleep { since: u64 },
}

/// A halt that is going on. What of it was polling is known at its end only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Halting {
    /// Stretches on a CPU since the exit, before the sleep if there was one.
    before: Vec<(u64, u64)>,
    /// The same after it.
    after: Vec<(u64, u64)>,
    /// What ended the sleep.
    pub(crate) slept_until: Option<Until>,
    /// What made an interrupt pending while it did not sleep.
    pub(crate) interrupted: Option<Until>,
    slept: bool,
}

/// A task.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    pub(crate) state: State,
    pub(crate) spent: Spent,
    pub(crate) halting: Option<Halting>,
    /// A sleep outside of halts whose end is not known yet: its step.
    open_sleep: Option<usize>,
    pub(crate) cpus: BTreeSet<u16>,
    pub(crate) first_cpu: Option<u16>,
    pub(crate) switches_in: u64,
    pub(crate) migrations: u64,
    pub(crate) prio: i16,
    /// Woken at this time on an idle CPU, and not running yet.
    pub(crate) woken_idle: Option<u64>,
}

impl Task {
    /// A task that was in `state` when the recording began.
    pub(crate) fn new(state: State) -> Self {
        let mut task = Self {
            name: String::new(),
            steps: Vec::new(),
            state,
            spent: Spent::Host,
            halting: None,
            open_sleep: None,
            cpus: BTreeSet::new(),
            first_cpu: None,
            switches_in: 0,
            migrations: 0,
            prio: 120,
            woken_idle: None,
        };
        if let State::Asleep { .. } = state {
            task.open();
        }
        task
    }

    /// Adds what it has run until now.
    pub(crate) fn settle(&mut self, now: u64) {
        let State::Running { since } = self.state else {
            return;
        };
        self.state = State::Running { since: now };
        if now == since {
            return;
        }
        match &mut self.halting {
            Some(halting) if halting.slept => halting.after.push((since, now)),
            Some(halting) => halting.before.push((since, now)),
            None => self.ran(now - since),
        }
    }

    fn ran(&mut self, more: u64) {
        if more == 0 {
            return;
        }
        let spent = self.spent;
        match self.steps.last_mut() {
            Some(Step::Run { ns, spent: last }) if *last == spent => *ns += more,
            _ => self.steps.push(Step::Run { ns: more, spent }),
        }
    }

    /// It sleeps from now on.
    pub(crate) fn sleep(&mut self, now: u64) {
        self.settle(now);
        self.state = State::Asleep { since: now };
        match &mut self.halting {
            Some(halting) => halting.slept = true,
            None => self.open(),
        }
    }

    fn open(&mut self) {
        self.open_sleep = Some(self.steps.len());
        self.steps.push(Step::Sleep(Until::Time(u64::MAX)));
    }

    /// It was woken, by this.
    pub(crate) fn wake(&mut self, until: Until) {
        self.state = State::Runnable;
        if let Some(halting) = &mut self.halting {
            halting.slept_until = Some(until);
        } else if let Some(at) = self.open_sleep.take()
            && let Some(step) = self.steps.get_mut(at)
        {
            *step = Step::Sleep(until);
        }
    }

    /// The guest has halted: what follows is the halt.
    pub(crate) fn begin_halt(&mut self) {
        self.halting = Some(Halting::default());
    }

    /// It polls, or is about to, in a halt.
    pub(crate) fn polls(&self) -> bool {
        let on_cpu = !matches!(self.state, State::Asleep { .. });
        on_cpu && self.halting.as_ref().is_some_and(|halting| !halting.slept)
    }

    /// KVM says that the halt, `ns` long, is over now, which is `at` of the recording.
    pub(crate) fn halt_over(&mut self, now: u64, ns: u64, at: u64) {
        self.settle(now);
        let Some(halting) = self.halting.take() else {
            return;
        };
        let began = now.saturating_sub(ns);
        let until = halting
            .slept_until
            .or(halting.interrupted)
            .unwrap_or(Until::Time(at));
        let handled: u64 = halting
            .before
            .iter()
            .map(|&(a, b)| b.min(began).saturating_sub(a))
            .sum();
        self.ran(handled);
        self.steps.push(Step::Halt(until));
        self.ran(halting.after.iter().map(|&(a, b)| b - a).sum());
    }

    /// The guest is entered without KVM having told the end of a halt: there was nothing to wait
    /// for, or the recording has no such event.
    pub(crate) fn halt_untold(&mut self) {
        let Some(halting) = self.halting.take() else {
            return;
        };
        self.ran(halting.before.iter().map(|&(a, b)| b - a).sum());
        if let Some(until) = halting.slept_until {
            self.steps.push(Step::Halt(until));
        }
        self.ran(halting.after.iter().map(|&(a, b)| b - a).sum());
    }
}
