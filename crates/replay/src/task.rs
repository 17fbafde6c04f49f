//! A task of the recording: what it has done so far, as steps of its script.

use std::collections::BTreeSet;

use stealtime_events::ExitReason;
use stealtime_simulator::script::{Edge, Spent, Stall, Step, Until};

use crate::coupled::{Asleep, Computed, Coupled, Stretch};
use crate::cpu::Latency;
use crate::recording::Caller;
use crate::scripts::Vcpu;
use crate::sleep_costs::SleepCosts;
use crate::ticks::GuestTicks;
use crate::wake::Early;

/// Whether a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running {
        since: u64,
    },
    Runnable,
    Asleep {
        since: u64,
    },
    /// It has ended.
    Gone,
}

/// When a task began, where that was in the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth {
    /// By the recording's clock, in ns.
    pub(crate) time: u64,
    /// The recording has its fork; otherwise it was first seen then, where it cannot have waited
    /// since the recording began.
    pub(crate) is_seen: bool,
}

/// What ended a wait, as far as it is known before the whole recording is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// This.
    Known(Until),
    /// Another vCPU of the same VM, at this point.
    Vcpu(Edge),
    /// The task's own timer, which was to expire at this time of the recording.
    Timer { expires: u64 },
}

/// A wait that the task's own timer ended. What kind of timer it was is found at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) step: usize,
    pub(crate) began: u64,
    /// When the wakeup was.
    pub(crate) woken: u64,
    pub(crate) expires: u64,
    /// When the task set a timer last.
    pub(crate) armed: Option<u64>,
}

/// A wait of a script, by the recording's clock in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) step: usize,
    pub(crate) began: u64,
    pub(crate) woken: u64,
    pub(crate) caller: Option<Caller>,
}

/// A wakeup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Woken {
    /// When, by the recording's clock in ns.
    pub(crate) time: u64,
    /// To run on an idle CPU.
    pub(crate) idle: bool,
    /// The CPU that woke it.
    pub(crate) waker_cpu: u16,
}

/// A halt that is going on. What of it was polling is known at its end only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Halting {
    /// Stretches on a CPU since the exit, before the sleep if there was one.
    before: Vec<Stretch>,
    /// The same after it.
    after: Vec<Stretch>,
    /// What ended the sleep.
    pub(crate) slept_until: Option<(Cause, u64)>,
    /// What made an interrupt pending while it did not sleep.
    interrupted: Option<(Cause, u64)>,
    /// Another CPU did.
    called: bool,
    /// When it went to sleep first.
    slept_since: Option<u64>,
    moved: Option<u32>,
}

fn total_ns(stretches: &[Stretch]) -> u64 {
    stretches.iter().map(|stretch| stretch.ns()).sum()
}

impl Halting {
    /// When another CPU ended its poll, and how long it polled on, in ns.
    fn noticed(&self) -> Option<(u64, u64)> {
        let (_, came) = self.interrupted.filter(|_| self.called)?;
        let polled_ns = |stretch: &Stretch| stretch.after(came).ns();
        let polled = self.slept_since.is_none();
        polled.then(|| (came, self.before.iter().map(polled_ns).sum()))
    }
}

/// A task.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Its thread id.
    pub(crate) tid: i32,
    /// The vCPU that it is.
    pub(crate) vcpu: Vcpu,
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    /// Stalls of its CPU while it computed, in the order of time.
    pub(crate) stalls: Vec<Stall>,
    pub(crate) state: State,
    pub(crate) spent: Spent,
    pub(crate) halting: Option<Halting>,
    /// The step of a sleep outside of halts that has not ended yet.
    open_sleep: Option<usize>,
    /// Where it has run.
    pub(crate) cpus: BTreeSet<u16>,
    pub(crate) first_cpu: Option<u16>,
    /// Where it ran last: while it counts as running, the CPU that has it.
    pub(crate) ran_on: Option<u16>,
    /// Where it ran last, or was moved to since.
    at_cpu: Option<u32>,
    /// A wakeup that came while it had a CPU.
    pub(crate) early: Option<Early>,
    /// Wakeups on idle CPUs by others: when they were, and how long until it ran.
    pub(crate) calls: Vec<Latency>,
    /// The CPU that woke it last, if it is another one than it was woken for.
    pub(crate) caller: Option<Caller>,
    /// The CPU that it was woken for and has neither run on nor been moved from.
    woken_for: Option<u32>,
    /// When it moved, by the recording's clock in ns, and to which CPU.
    pub(crate) moves: Vec<(u64, u32)>,
    pub(crate) switches_in: u64,
    pub(crate) prio: i16,
    /// All its waits, in the order of their steps.
    pub(crate) waits: Vec<Wait>,
    /// Waits that its own timer ended.
    pub(crate) timed: Vec<Timed>,
    /// Waits that another vCPU of its VM ended.
    pub(crate) coupled: Vec<Coupled>,
    /// What it computed outside of halts, by time.
    pub(crate) computed: Computed,
    pub(crate) asleep: Asleep,
    pub(crate) computed_ns: u64,
    /// Alarms of waits that something else ended before.
    pub(crate) alarms: Vec<Timed>,
    /// Its guest's timer: which hrtimer that is, and when it is to expire by the recording's clock.
    pub(crate) timer: Option<(u64, u64)>,
    armed: Option<u64>,
    /// The recording has its guest's writes to the LAPIC's timer: those set it, and nothing else.
    has_timer_writes: bool,
    /// It handles an exit by PAUSE.
    pub(crate) spins: bool,
    /// It handles a hypercall by which its guest asks for its CPU to be given to the vCPU with this APIC id.
    pub(crate) yields_to: Option<u32>,
    pub(crate) guest_ticks: GuestTicks,
    /// Exits: before which step, and why.
    pub(crate) exits: Vec<(usize, ExitReason)>,
    /// Its time on CPUs, in ns.
    pub(crate) ran_ns: u64,
    /// When it had a CPU last.
    pub(crate) last_ran: u64,
    /// It was woken, and does not run yet.
    pub(crate) woken: Option<Woken>,
    /// It began in the recording.
    pub(crate) born: Option<Birth>,
    /// It is exiting: when it next leaves its CPU for good, it has ended.
    pub(crate) exits_now: bool,
    /// When it ended, if it did.
    pub(crate) died: Option<u64>,
    /// What its sleeps in halts took.
    pub(crate) costs: SleepCosts,
    /// Ends of halts that polled: the cost of these steps, had they slept, is known at the end.
    polled_halts: Vec<usize>,
}

impl Task {
    /// A task that was in `state` when the recording began.
    pub(crate) fn new(state: State) -> Self {
        let mut task = Self {
            tid: 0,
            vcpu: None,
            name: String::new(),
            steps: Vec::new(),
            stalls: Vec::new(),
            state,
            spent: Spent::Host,
            halting: None,
            open_sleep: None,
            cpus: BTreeSet::new(),
            first_cpu: None,
            ran_on: None,
            at_cpu: None,
            early: None,
            calls: Vec::new(),
            caller: None,
            woken_for: None,
            moves: Vec::new(),
            switches_in: 0,
            prio: 120,
            waits: Vec::new(),
            timed: Vec::new(),
            coupled: Vec::new(),
            computed: Computed::default(),
            asleep: Asleep::default(),
            computed_ns: 0,
            alarms: Vec::new(),
            timer: None,
            armed: None,
            has_timer_writes: false,
            spins: false,
            yields_to: None,
            guest_ticks: GuestTicks::default(),
            exits: Vec::new(),
            ran_ns: 0,
            last_ran: 0,
            woken: None,
            born: None,
            exits_now: false,
            died: None,
            costs: SleepCosts::default(),
            polled_halts: Vec::new(),
        };
        if let State::Asleep { since } = state {
            task.asleep.begins(since);
            task.open();
        }
        task
    }

    /// A task that begins.
    pub(crate) fn born(birth: Birth) -> Self {
        let mut task = Self {
            born: Some(birth),
            ..Self::new(State::Runnable)
        };
        task.asleep.begins(0);
        task.asleep.ends(birth.time);
        task
    }

    /// It ends.
    pub(crate) fn ends(&mut self, now: u64) {
        self.settle(now);
        self.end_halt_unseen();
        self.state = State::Gone;
        self.asleep.begins(now);
        self.died = Some(now);
    }

    /// Adds what it has run until now.
    pub(crate) fn settle(&mut self, now: u64) {
        match self.state {
            State::Running { since } => self.settle_stretch(Stretch {
                start: since,
                end: now,
            }),
            // It has nothing to add.
            State::Runnable | State::Asleep { .. } | State::Gone => {}
        }
    }

    fn settle_stretch(&mut self, ran: Stretch) {
        if ran.end < ran.start {
            // A hidden switch is found later than it was: this time is counted already.
            return;
        }
        self.state = State::Running { since: ran.end };
        self.last_ran = ran.end;
        if ran.ns() == 0 {
            return;
        }
        self.ran_ns += ran.ns();
        match &mut self.halting {
            Some(halting) if halting.slept_since.is_some() => halting.after.push(ran),
            Some(halting) => halting.before.push(ran),
            None => {
                self.computed_ns += ran.ns();
                self.ran(ran.ns());
            }
        }
    }

    /// It may have begun to compute, or stopped; what it ran until now is settled.
    pub(crate) fn computes(&mut self, now: u64) {
        if self.vcpu.is_none() {
            // Only vCPUs are waited for by what they compute.
            return;
        }
        let computes = matches!(self.state, State::Running { .. }) && self.halting.is_none();
        let counted_to = now.max(self.last_ran);
        self.computed.change(counted_to, self.computed_ns, computes);
    }

    fn ran(&mut self, added_ns: u64) {
        if added_ns == 0 {
            return;
        }
        let spent = self.spent;
        match self.steps.last_mut() {
            Some(Step::Run { ns, spent: last }) if *last == spent => *ns += added_ns,
            _ => self.steps.push(Step::Run {
                ns: added_ns,
                spent,
            }),
        }
    }

    /// It sleeps from now on.
    pub(crate) fn sleep(&mut self, now: u64) {
        self.settle(now);
        self.state = State::Asleep { since: now };
        self.asleep.begins(now);
        match &mut self.halting {
            Some(halting) => {
                halting.slept_since.get_or_insert(now);
                // What woke it before has not ended the halt.
                halting.slept_until = None;
            }
            None => self.open(),
        }
    }

    /// Events of its CPU were lost from `gap_start` on: it waits until it is seen again.
    pub(crate) fn lost(&mut self, gap_start: u64, now: u64) {
        if let State::Running { since: began } = self.state {
            self.settle(gap_start.max(began));
        }
        // Timers may have been set meanwhile.
        self.armed = None;
        self.timer = None;
        let asleep = matches!(self.state, State::Asleep { .. });
        match self.halting.take_if(|_| asleep) {
            // It sleeps on, and what ends that may not end the halt.
            Some(halting) => {
                self.ran(total_ns(&halting.before) + total_ns(&halting.after));
                self.open();
            }
            None => self.end_halt_unseen(),
        }
        if !matches!(self.state, State::Asleep { .. } | State::Gone) {
            self.sleep(gap_start.min(now));
        }
    }

    fn open(&mut self) {
        self.alarm();
        self.open_sleep = Some(self.steps.len());
        self.steps.push(Step::Sleep(Until::Time(u64::MAX)));
    }

    /// It was woken, by this.
    pub(crate) fn wake(&mut self, now: u64, cause: Cause) {
        let began = match self.state {
            State::Asleep { since } => since,
            _ => now,
        };
        self.state = State::Runnable;
        self.asleep.ends(now);
        if let Some(halting) = &mut self.halting {
            halting.slept_until = Some((cause, now));
        } else if let Some(step) = self.open_sleep.take() {
            let end = self.end_of_wait(step, began, now, cause);
            if let Some(step) = self.steps.get_mut(step) {
                *step = Step::Sleep(end);
            }
        }
    }

    /// It runs on a CPU that was idle when another one woke it then.
    pub(crate) fn called(&mut self, woken: u64, now: u64) {
        self.calls
            .push(Latency::new(woken, now.saturating_sub(woken)));
    }

    /// It gets a CPU without a wakeup in the recording: the time, in ns of the recording, is all that is
    /// known.
    pub(crate) fn wake_unseen(&mut self, now: u64, time: u64) {
        self.wake(now, Cause::Known(Until::Time(time)));
    }

    /// Its guest's timer may end the wait that comes next; its time is set at the end.
    fn alarm(&mut self) {
        if self.timer.is_some() {
            self.steps.push(Step::Alarm(Until::Time(u64::MAX)));
        }
    }

    /// The wait at this step was ended by another task before the guest's timer expired.
    fn alarmed(&mut self, step: usize, began: u64, woken: u64) {
        // Without a timer that is set and has not expired, the wait had none.
        let timer = self.timer.filter(|&(_, expires)| expires > woken);
        if let (Some((_, expires)), Some(alarm)) = (timer, step.checked_sub(1))
            && let Some(Step::Alarm(_)) = self.steps.get(alarm)
        {
            self.alarms.push(Timed {
                step: alarm,
                began,
                woken: expires,
                expires,
                armed: self.armed,
            });
        }
    }

    /// What a wait at this step waits for. The time of a timer is set at the end; so is the alarm of a
    /// wait that another task ended.
    fn end_of_wait(&mut self, step: usize, began: u64, woken: u64, cause: Cause) -> Until {
        self.waits.push(Wait {
            step,
            began,
            woken,
            caller: self.caller.take(),
        });
        match cause {
            Cause::Known(until) => {
                if let Until::Edge(_) = until {
                    self.alarmed(step, began, woken);
                }
                until
            }
            Cause::Vcpu(edge) => {
                self.alarmed(step, began, woken);
                self.coupled.push(Coupled {
                    step,
                    edge,
                    began,
                    woken,
                });
                Until::Edge(edge)
            }
            Cause::Timer { expires } => {
                self.timed.push(Timed {
                    step,
                    began,
                    woken,
                    expires,
                    armed: self.armed,
                });
                Until::Time(0)
            }
        }
    }

    /// Its guest sets its LAPIC's timer.
    pub(crate) fn guest_arms(&mut self, now: u64) {
        self.has_timer_writes = true;
        self.arms(now);
    }

    /// It sets a timer of the host. For a vCPU that is its guest's, if nothing else tells of that;
    /// KVM sets it anew at halts and after migrations.
    pub(crate) fn arm(&mut self, now: u64) {
        if !self.has_timer_writes && self.halting.is_none() {
            self.arms(now);
        }
    }

    fn arms(&mut self, now: u64) {
        self.settle(now);
        self.guest_ticks.armed();
        self.armed = Some(now);
        self.steps.push(Step::Arm);
    }

    /// It yields its CPU if its guest spins or has asked for that, after what else the exit did.
    pub(crate) fn yields(&mut self) {
        if core::mem::take(&mut self.spins) {
            self.steps.push(Step::Spin);
        }
        let target = self.yields_to.take();
        self.steps.extend(target.map(Step::YieldTo));
    }

    /// It moves to another CPU.
    pub(crate) fn moves(&mut self, now: u64, target: u32) {
        self.at_cpu = Some(target);
        self.woken_for = None;
        self.moves.push((now, target));
        match &mut self.halting {
            Some(halting) => halting.moved = Some(target),
            None => self.steps.push(Step::Move(target)),
        }
    }

    /// It gets this CPU. If it was on another one, it has moved without the recording's telling.
    pub(crate) fn gets(&mut self, now: u64, cpu: u16) {
        if self
            .at_cpu
            .is_some_and(|previous| previous != u32::from(cpu))
        {
            self.moves(now, cpu.into());
        }
        self.runs_on(cpu);
    }

    /// It runs from `now` on, or from where its time is counted to.
    pub(crate) fn runs(&mut self, now: u64) {
        self.state = State::Running {
            since: now.max(self.last_ran),
        };
    }

    /// It has this CPU, or had it until now.
    pub(crate) fn runs_on(&mut self, cpu: u16) {
        self.cpus.insert(cpu);
        self.first_cpu.get_or_insert(cpu);
        self.ran_on = Some(cpu);
        self.at_cpu = Some(cpu.into());
        self.woken_for = None;
    }

    /// It is woken to run on this CPU.
    pub(crate) fn is_woken_for(&mut self, cpu: u32) {
        self.woken_for = Some(cpu);
    }

    /// The CPU that it has, or waits for.
    pub(crate) fn cpu(&self) -> Option<u32> {
        self.woken_for.or(self.at_cpu)
    }

    /// The guest exits.
    pub(crate) fn exit(&mut self, reason: ExitReason) {
        self.guest_ticks.exit(self.steps.len(), self.computed_ns);
        self.exits.push((self.steps.len(), reason));
    }

    /// The guest has halted: what follows is the halt.
    pub(crate) fn begin_halt(&mut self) {
        self.halting = Some(Halting::default());
    }

    /// Something on this CPU has made an interrupt pending at it while it polls. The first one ends the poll.
    pub(crate) fn interrupted(&mut self, cause: Cause, now: u64, cpu: u16) {
        let called = self.ran_on != Some(cpu);
        let halting = self.halting.as_mut();
        if let Some(halting) = halting.filter(|halting| halting.interrupted.is_none()) {
            halting.interrupted = Some((cause, now));
            halting.called = called;
        }
    }

    /// It polls, or is about to, in a halt.
    pub(crate) fn polls(&self) -> bool {
        let on_cpu = !matches!(self.state, State::Asleep { .. });
        let halting = self.halting.as_ref();
        on_cpu && halting.is_some_and(|halting| halting.slept_since.is_none())
    }

    /// KVM says that the halt, `ns` long, is over now, which is `time` of the recording. If another CPU ended
    /// its poll: when, and how long it polled on, in ns.
    pub(crate) fn halt_over(&mut self, now: u64, ns: u64, time: u64) -> Option<(u64, u64)> {
        self.settle(now);
        let halting = self.halting.take()?;
        let began = now.saturating_sub(ns);
        let cause = halting.slept_until.or(halting.interrupted);
        let (cause, woken) = cause.unwrap_or((Cause::Known(Until::Time(time)), now));
        let ran_before = |ran: &Stretch| ran.end.min(began).saturating_sub(ran.start);
        self.ran(halting.before.iter().map(ran_before).sum());
        self.halts(&halting, began, woken, cause);
        halting.noticed()
    }

    /// The guest is entered without `kvm_vcpu_wakeup` after a halt: there was nothing to wait
    /// for, or the recording has no such event.
    pub(crate) fn end_halt_unseen(&mut self) {
        // Most entries are not from a halt.
        if let Some(halting) = self.halting.take() {
            self.ran(total_ns(&halting.before));
            match halting.slept_until {
                Some((cause, woken)) => {
                    let began = halting.before.last().map_or(woken, |last| last.end);
                    self.halts(&halting, began, woken, cause);
                }
                None => self.ran(total_ns(&halting.after)),
            }
        }
    }

    /// Halts that polled would have taken this at their ends if they had slept, in ns.
    pub(crate) fn set_sleep_costs(&mut self, slept_ns: u32) {
        for step in core::mem::take(&mut self.polled_halts) {
            if let Some(Step::Slept(ns)) = self.steps.get_mut(step) {
                *ns = slept_ns;
            }
        }
    }

    /// What it computes for a timer that has nothing else to do, in ns. It is the 10th percentile from a wait
    /// that a timer ended to the next wait.
    pub(crate) fn alarm_ns(&self) -> u32 {
        let mut worked = Vec::new();
        for wait in &self.timed {
            let following = self.steps.iter().skip(wait.step + 1);
            let waits = |step: &&Step| !matches!(step, Step::Sleep(_) | Step::Halt(_));
            let runs = following.take_while(waits).map(|step| match *step {
                Step::Run { ns, .. } => ns,
                Step::Slept(ns) => u64::from(ns),
                _ => 0,
            });
            worked.push(runs.sum::<u64>());
        }
        worked.sort_unstable();
        let least = worked.get(worked.len() / 10).copied().unwrap_or(0);
        u32::try_from(least).unwrap_or(u32::MAX)
    }

    /// Whether it always ran or could have, but for a moment at the beginning, and is seen to the end.
    pub(crate) fn never_waits(&self, first: u64, now: u64) -> bool {
        const BEGINNING_NS: u64 = 1_000_000;
        let waits = self.steps.iter().any(|step| match *step {
            Step::Sleep(Until::Time(at)) => at > BEGINNING_NS,
            Step::Sleep(_) | Step::Halt(_) => true,
            _ => false,
        });
        // A tenth of the recording without it may be a wait with a lost begin.
        let ran_lately = now.saturating_sub(self.last_ran) < now.saturating_sub(first) / 10;
        !waits && ran_lately && self.switches_in > 0
    }

    /// Whether it yields its CPU to others of its VM at times.
    pub(crate) fn yields_at_times(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Step::Spin | Step::YieldTo(_)))
    }

    /// The recording is over. A wait that continues lasts at least as long as it was seen to, if the task
    /// `goes_on`. Otherwise what would end it is not known.
    pub(crate) fn finish(&mut self, now: u64, goes_on: bool) {
        self.settle(now);
        if let State::Asleep { since } = self.state {
            let began = self
                .halting
                .as_ref()
                .and_then(|halting| halting.slept_since)
                .unwrap_or(since);
            let end = match goes_on {
                true => Until::After(now.saturating_sub(began)),
                false => Until::Time(u64::MAX),
            };
            if let Some(step) = self.open_sleep
                && let Some(Step::Sleep(open)) = self.steps.get_mut(step)
            {
                *open = end;
                let woken = now;
                self.waits.push(Wait {
                    step,
                    began,
                    woken,
                    caller: None,
                });
            }
            if let Some(halting) = self
                .halting
                .take_if(|halting| halting.slept_until.is_none())
            {
                self.ran(total_ns(&halting.before));
                self.halts(&halting, began, now, Cause::Known(end));
            }
        }
        self.end_halt_unseen();
    }

    fn halts(&mut self, halting: &Halting, began: u64, woken: u64, cause: Cause) {
        self.alarm();
        let step = self.steps.len();
        let end = self.end_of_wait(step, began, woken, cause);
        self.steps.push(Step::Halt(end));
        self.steps.extend(halting.moved.map(Step::Move));
        let after_ns = total_ns(&halting.after);
        match halting.slept_until {
            Some(_) => {
                let short = |ns| u32::try_from(ns).unwrap_or(u32::MAX);
                let awake_ns = |ran: &Stretch| ran.after(began).ns();
                let block_ns = halting.before.iter().map(awake_ns).sum();
                self.costs.block.push(short(block_ns));
                self.costs.wake.push(short(after_ns));
                self.steps.push(Step::Slept(short(after_ns)));
            }
            // It polled; what sleeping would have taken is set at the end.
            None => {
                self.ran(after_ns);
                self.polled_halts.push(self.steps.len());
                self.steps.push(Step::Slept(0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stealtime_simulator::script::{Edge, Spent, Step, Until};

    use super::{Cause, State, Task};

    /// A vCPU that has computed for 100 ns and sleeps in a halt from 200 on.
    fn halted() -> Task {
        let mut task = Task::new(State::Running { since: 0 });
        task.settle(100);
        task.begin_halt();
        task.sleep(200);
        task
    }

    #[test]
    fn a_wakeup_that_ends_no_halt_is_not_its_end() {
        let mut task = halted();
        task.wake(1_000, Cause::Known(Until::Time(1_000)));
        task.state = State::Running { since: 1_010 };
        task.sleep(1_020);
        task.finish(50_000, true);
        let halts = |step: &&Step| matches!(step, Step::Halt(_));
        let halts: Vec<&Step> = task.steps.iter().filter(halts).collect();
        assert_eq!(halts, [&Step::Halt(Until::After(49_800))]);
    }

    #[test]
    fn a_halted_task_sleeps_on_where_events_are_lost() {
        let mut task = halted();
        task.lost(500, 700);
        task.wake(9_000, Cause::Known(Until::Time(9_000)));
        let last = task.steps.last();
        assert_eq!(last, Some(&Step::Sleep(Until::Time(9_000))));
    }

    #[test]
    fn a_poll_that_another_cpu_ended_is_known_by_how_long_it_went_on() {
        let polls = |called, preempted: bool| {
            let mut task = Task::new(State::Running { since: 0 });
            task.settle(100);
            task.begin_halt();
            if let Some(halting) = &mut task.halting {
                halting.interrupted = Some((Cause::Known(Until::Edge(Edge(0))), 300));
                halting.called = called;
            }
            if preempted {
                task.settle(500);
                task.state = State::Runnable;
                task.runs(800);
            }
            task.halt_over(900, 750, 900)
        };
        assert_eq!(polls(true, false), Some((300, 600)));
        assert_eq!(polls(true, true), Some((300, 300)));
        assert_eq!(polls(false, false), None);
        // One that sleeps does not poll any more.
        let mut slept = halted();
        slept.wake(1_000, Cause::Known(Until::Edge(Edge(0))));
        slept.state = State::Running { since: 1_010 };
        assert_eq!(slept.halt_over(1_020, 900, 1_020), None);
    }

    #[test]
    fn what_ran_is_counted_once_where_a_hidden_switch_is_past() {
        let mut task = Task::new(State::Running { since: 0 });
        task.settle(150);
        task.settle(120);
        task.runs(120);
        task.settle(200);
        let ran = Step::Run {
            ns: 200,
            spent: Spent::Host,
        };
        assert_eq!((task.ran_ns, task.steps), (200, vec![ran]));
    }

    #[test]
    fn a_task_may_sleep_in_the_first_millisecond_only() {
        const MS: u64 = 1_000_000;
        for (step, never) in [
            (Step::Sleep(Until::Time(MS)), true),
            (Step::Sleep(Until::Time(MS + 1)), false),
            (Step::Halt(Until::Time(MS)), false),
        ] {
            let mut task = Task::new(State::Running { since: 0 });
            task.steps.push(step);
            (task.switches_in, task.last_ran) = (1, 91 * MS);
            assert_eq!(task.never_waits(0, 100 * MS), never, "{step:?}");
            // Its end may be lost.
            task.last_ran = 90 * MS;
            assert!(!task.never_waits(0, 100 * MS));
        }
    }
}
