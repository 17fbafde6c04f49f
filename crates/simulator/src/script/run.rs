//! Running scripts.

use std::collections::BTreeMap;
use std::sync::Arc;

use stealtime_events::{ExitReason, Kind, Tid, VcpuId};
use stealtime_hypervisor::eevdf::Resched;
use stealtime_hypervisor::halt_poll::{Halt, HaltEnd, HaltPoll, PollTurn};

use super::moves::Timed;
use super::points::Waiter;
use super::{Edge, Late, Moves, ScriptConfig, Spent, Step, Then, Ticks, Until};
use crate::books::TaskBooks;
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr, TimerNr};
use crate::machine::{Body, Machine, Message, Phase, TaskState};

/// What a script that computes on does at once when its steps are done, in ns.
const MORE_NS: u64 = 10_000_000;

/// Where a script is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
    halt: Halt,
    /// When it began, in ns.
    since: u64,
    /// How long it has polled, in ns.
    poll_ns: u64,
    /// It is to go on.
    pub(super) woken: bool,
}

/// A task that runs a script.
#[derive(Debug)]
pub(crate) struct ScriptTask {
    steps: Arc<[Step]>,
    next: usize,
    /// Moves to come.
    pub(super) moves: Timed,
    /// It moves where its steps say so.
    pub(super) moves_by_steps: bool,
    state: State,
    timer: TimerNr,
    halt_poll: HaltPoll,
    pub(super) halt: Option<Halting>,
    /// The last halt slept.
    slept: bool,
    turn: u32,
    /// It has been woken, and is on its way through the kernel.
    waking: bool,
    /// When its timer was set last, in ns.
    armed: u64,
    /// When the guest's timer ends the next wait for another script, or the one that goes on, in ns.
    alarm: Option<u64>,
    alarm_ns: u32,
    pub(super) ticks: Option<Ticks>,
    then: Then,
    /// The VM whose vCPU it is.
    pub(super) vcpu_of: Option<u32>,
    /// Its number there.
    pub(super) number: Option<u32>,
    /// It has yielded its CPU as it spun.
    spun: bool,
    /// How often its steps were done, and when the last time, in ns.
    pub(super) passes: u32,
    pass_began: u64,
    /// What the wait that goes on waits for: times alone are left, [`Until::Edge`] and [`Until::Work`].
    awaited: Until,
    /// The wait that goes on, or that its alarm has interrupted, is over when its VM has computed for so
    /// long in all, in ns.
    pub(super) work_until: Option<u64>,
    /// What it computes in the step that it takes, in ns.
    pub(super) computes_ns: u64,
    /// Index among the scripts.
    index: usize,
    running: Option<(Spent, u64)>,
    /// It was to give its CPU up before the recorded host's interrupt that it handles.
    was_asked: bool,
    /// An entry was told, and no exit since.
    in_guest: bool,
    spent: BTreeMap<Spent, (u64, u64)>,
    poll_ns: u64,
    sleeping_ns: u64,
    halts: u64,
    polled: u64,
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
    pub(crate) fn new(config: &ScriptConfig, timer: TimerNr, index: usize) -> Self {
        Self {
            steps: config.steps.clone(),
            alarm_ns: config.alarm_ns,
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
            state: State::Steps,
            timer,
            halt_poll: HaltPoll::default(),
            halt: None,
            slept: false,
            turn: 0,
            waking: false,
            armed: 0,
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

    /// It handles an exit.
    pub(crate) const fn in_kernel(&self) -> bool {
        matches!(
            self.running,
            Some((Spent::Exit(_) | Spent::Interrupt(_), _))
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

    fn over(&mut self) {
        if let Some((spent, ns)) = self.running.take() {
            let sum = self.spent.entry(spent).or_default();
            sum.0 += ns;
            sum.1 += 1;
        }
    }
}

/// Whether a step leads to user mode or into the guest: on the way there a request to reschedule counts, a
/// lazy one too.
const fn to_user(step: Step) -> bool {
    match step {
        Step::Run { spent, .. } => !matches!(spent, Spent::Exit(_) | Spent::Interrupt(_)),
        _ => false,
    }
}

/// The `nth` point of a grid after `now`; the 0th is the last one before.
pub(super) fn on_grid(now: u64, phase_ns: u32, period_ns: u32, nth: u16) -> u64 {
    let period = u64::from(period_ns);
    if period == 0 {
        return now;
    }
    let phase = u64::from(phase_ns) % period;
    let passed = (now + period - phase) / period;
    ((passed + u64::from(nth)) * period + phase).saturating_sub(period)
}

impl Machine<'_> {
    pub(super) fn script(&mut self, task: TaskNr) -> Sim<&mut ScriptTask> {
        match &mut self.tasks[task].body {
            Body::Script(script) => Ok(script),
            _ => Err(Box::new(crate::fault::Fault::Broken {
                at_ns: 0,
                what: "a task without a script runs one".to_owned(),
            })),
        }
    }

    /// What a script did is over: its next step.
    pub(crate) fn script_step(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        match self.script(task)?.state {
            State::Polls => return self.script_poll_over(cpu, task),
            State::Blocks => return self.script_block(cpu, task),
            State::Sleeps => {
                self.script_awake(task)?;
                if self.alarmed(task)? {
                    return self.run_task(cpu, task);
                }
            }
            State::Steps => {}
        }
        if core::mem::take(&mut self.script(task)?.spun) {
            self.script_spun(task)?;
        }
        loop {
            let now = self.now;
            let resched = self.cpus[cpu].resched != Resched::None;
            self.works(cpu, task)?;
            let script = self.script(task)?;
            script.over();
            let was_asked = script.was_asked;
            let Some(&step) = script.steps.get(script.next) else {
                if self.again(task)? {
                    continue;
                }
                return self.script_done(cpu, task);
            };
            if resched && !was_asked && to_user(step) {
                return self.schedule(cpu);
            }
            script.next += 1;
            match step {
                Step::Run { ns: 0, .. } => {}
                Step::Run { ns, spent } => {
                    self.tell(cpu, task, spent)?;
                    let script = self.script(task)?;
                    script.running = Some((spent, ns));
                    script.was_asked = resched && matches!(spent, Spent::Interrupt(_));
                    script.computes_ns = ns;
                    self.tasks[task].left_ns = ns;
                    return self.run_task(cpu, task);
                }
                Step::Reach(edge) => self.reach(cpu, task, edge)?,
                Step::Spin => {
                    if self.script_spins(cpu, task)? {
                        self.script(task)?.spun = true;
                        return self.schedule(cpu);
                    }
                }
                Step::YieldTo(number) => {
                    if self.script_yields_to(cpu, task, number)? {
                        return self.schedule(cpu);
                    }
                }
                Step::Arm => self.script(task)?.armed = now,
                Step::Alarm(until) => {
                    let until = self.instant(task, until)?;
                    if let Until::Time(at) = until {
                        self.script(task)?.alarm = Some(at).filter(|&at| at > now);
                    }
                }
                Step::Sleep(until) => {
                    let until = self.instant(task, until)?;
                    if !self.reached(task, until)? {
                        return self.script_sleep(cpu, task, until);
                    }
                    self.script(task)?.alarm = None;
                }
                Step::Move(to) => self.move_by_step(task, to)?,
                Step::Halt(until) => {
                    let until = self.instant(task, until)?;
                    if !self.reached(task, until)? {
                        return self.script_halt(cpu, task, until);
                    }
                    let script = self.script(task)?;
                    script.alarm = None;
                    script.work_until = None;
                    script.slept = false;
                }
                Step::Slept(ns) => {
                    let script = self.script(task)?;
                    if script.slept && ns > 0 {
                        script.sleeping_ns += u64::from(ns);
                        script.running = Some((Spent::Host, u64::from(ns)));
                        self.tasks[task].left_ns = u64::from(ns);
                        return self.run_task(cpu, task);
                    }
                }
            }
        }
    }

    /// All steps are done: whether they are taken again.
    fn again(&mut self, task: TaskNr) -> Sim<bool> {
        let now = self.now;
        self.finished.entry(task).or_insert(now);
        let script = self.script(task)?;
        // Steps that take no time would be taken forever.
        if script.then != Then::Repeat || now == script.pass_began {
            return Ok(false);
        }
        script.next = 0;
        script.passes += 1;
        script.pass_began = now;
        Ok(true)
    }

    /// The steps are done: it ends, or computes on.
    fn script_done(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        if self.script(task)?.then != Then::Compute {
            self.script_ends(cpu, task)?;
            self.tasks[task].state = TaskState::Dead;
            return self.block_current(cpu);
        }
        if self.cpus[cpu].resched != Resched::None {
            return self.schedule(cpu);
        }
        self.tell(cpu, task, Spent::Guest)?;
        let script = self.script(task)?;
        script.running = Some((Spent::Guest, MORE_NS));
        script.computes_ns = MORE_NS;
        self.tasks[task].left_ns = MORE_NS;
        self.run_task(cpu, task)
    }

    /// Tells that a vCPU enters or leaves the guest, if it does.
    fn tell(&mut self, cpu: CpuNr, task: TaskNr, spent: Spent) -> Sim {
        if !self.cfg.scripts.tell {
            return Ok(());
        }
        let vcpu = VcpuId::UNKNOWN;
        let script = self.script(task)?;
        let kind = match (spent, script.in_guest) {
            (Spent::Guest, false) => Kind::KvmEntry { vcpu },
            (Spent::Exit(number) | Spent::Interrupt(number), true) => Kind::KvmExit {
                reason: ExitReason::vmx(number),
                vcpu,
                intr_vector: None,
                info1: 0,
            },
            _ => return Ok(()),
        };
        script.in_guest = !script.in_guest;
        self.emit(cpu, kind);
        Ok(())
    }

    /// Whether what this script waits for has come.
    fn reached(&mut self, task: TaskNr, until: Until) -> Sim<bool> {
        let pass = self.script(task)?.passes;
        Ok(match until {
            Until::Edge(edge) | Until::Work { edge, .. } => self.points.is_reached(edge, pass),
            Until::Time(at) => at <= self.now,
            // [`Self::instant`] has made times of them.
            Until::Armed(_) | Until::After(_) | Until::Grid { .. } => true,
        })
    }

    /// A wait that begins now, with its time told.
    fn instant(&mut self, task: TaskNr, until: Until) -> Sim<Until> {
        let now = self.now;
        let balanced = self.cfg.scripts.balanced;
        let script = self.script(task)?;
        let until = match until {
            Until::Work { edge, .. } if !balanced => Until::Edge(edge),
            Until::Time(at) if script.passes > 0 => {
                Until::Time(script.pass_began.saturating_add(at))
            }
            Until::Armed(ns) => Until::Time(script.armed.saturating_add(ns)),
            Until::After(ns) => Until::Time(now.saturating_add(ns)),
            Until::Grid {
                phase_ns,
                period_ns,
                nth,
                late_us,
            } => {
                let due = on_grid(now, phase_ns, period_ns, nth);
                Until::Time(due.saturating_add(u64::from(late_us) * 1_000))
            }
            other => other,
        };
        script.awaited = until;
        Ok(until)
    }

    /// A script reaches a point: who waits there is woken.
    fn reach(&mut self, cpu: CpuNr, by: TaskNr, edge: Edge) -> Sim {
        let vcpu_of = self.script(by)?.vcpu_of;
        match self.points.reach(edge, vcpu_of) {
            Some(task) => self.goes_on(cpu, task),
            None => Ok(()),
        }
    }

    /// What a script waits for has come.
    pub(super) fn goes_on(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        let now = self.now;
        let script = self.script(task)?;
        script.awaited = Until::Time(now);
        script.work_until = None;
        let timer = script.timer;
        if script.alarm.take().is_some() {
            self.cancel_timer(timer, cpu);
        }
        self.script_wake(task, cpu)
    }

    /// A script has woken: if by its alarm, it is to work for that, and then to wait again.
    fn alarmed(&mut self, task: TaskNr) -> Sim<bool> {
        let script = self.script(task)?;
        let Some(edge) = script.awaited_edge() else {
            return Ok(false);
        };
        if script.alarm.take().is_none() {
            return Ok(false);
        }
        let work = u64::from(script.alarm_ns).max(1);
        script.next -= 1;
        script.running = Some((Spent::Guest, work));
        let vcpu_of = script.vcpu_of;
        self.points.leave(Some(edge), task, vcpu_of);
        self.tasks[task].left_ns = work;
        Ok(true)
    }

    /// What a script waits for has come: its poll ends, or its sleep.
    pub(crate) fn script_wake(&mut self, task: TaskNr, by: CpuNr) -> Sim {
        self.halts_no_longer(task)?;
        let script = self.script(task)?;
        if script.state == State::Polls {
            let turn = script.turn;
            let at = self.now + self.cpus[by].debt_ns + self.poll_told_ns(task, by);
            self.post(at, Message::ScriptPollOver { task, turn });
            return Ok(());
        }
        // Its alarm and what it waits for may both come before it runs.
        if self.tasks[task].state != TaskState::Blocked {
            return Ok(());
        }
        let script = self.script(task)?;
        if script.alarm.is_none()
            && let Some(&Step::Move(to)) = script.steps.get(script.next)
        {
            script.next += 1;
            self.move_by_step(task, to)?;
        }
        let wake_ns = u64::from(self.cfg.scripts.wake_ns);
        if wake_ns == 0 {
            return self.wake(task, by).map(|_| ());
        }
        if core::mem::replace(&mut self.script(task)?.waking, true) {
            return Ok(());
        }
        // It waits from now on, though it does not compete yet.
        let now = self.now;
        self.tasks[task].books.enter(TaskState::Runnable, now);
        self.post(now + wake_ns, Message::ScriptWake { task, by });
        Ok(())
    }

    /// How long a poll goes on when `by` has ended it, in ns: the line has to be fetched, and its CPU to run.
    pub(crate) fn poll_told_ns(&self, task: TaskNr, by: CpuNr) -> u64 {
        let cpu = self.tasks[task].cpu;
        let late_ns = match cpu == by {
            true => None,
            false => Late::on(&self.cfg.scripts.poll_called, cpu, self.now),
        };
        u64::from(self.costs.cache_line_ns) + late_ns.unwrap_or(0)
    }

    /// The way of a wakeup through the kernel is over. What took it, an interrupt or an exit, ends
    /// here too: on its way back a lazy request counts.
    pub(crate) fn script_woken(&mut self, task: TaskNr, by: CpuNr) -> Sim {
        self.script(task)?.waking = false;
        self.wake(task, by)?;
        let c = &self.cpus[by];
        let Some(current) = c.current else {
            return Ok(());
        };
        if c.phase != Phase::Run || !self.gives_way(by, current) {
            return Ok(());
        }
        let left = self.interrupted(by);
        self.tasks[current].left_ns = self.work_in(by, left);
        self.schedule(by)
    }

    /// Says who is to be woken, and by what.
    fn expect(&mut self, cpu: CpuNr, task: TaskNr, until: Until) -> Sim {
        match until {
            Until::Edge(edge) => {
                let script = self.script(task)?;
                let waiter = Waiter {
                    task,
                    pass: script.passes,
                    idle_in: script.vcpu_of.filter(|_| script.halt.is_some()),
                    work_ns: None,
                };
                self.points.wait(edge, waiter);
                self.expect_alarm(cpu, task)?;
            }
            Until::Work { edge, ns, busy } => {
                self.expect_work(task, edge, ns, busy)?;
                self.expect_alarm(cpu, task)?;
            }
            Until::Time(at) => {
                let script = self.script(task)?;
                script.alarm = None;
                let timer = script.timer;
                self.start_pinned(timer, cpu, at);
            }
            Until::Armed(_) | Until::After(_) | Until::Grid { .. } => {}
        }
        Ok(())
    }

    /// The guest's timer is set for the wait that begins.
    fn expect_alarm(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        let script = self.script(task)?;
        let (timer, alarm) = (script.timer, script.alarm);
        if let Some(at) = alarm {
            self.start_pinned(timer, cpu, at);
        }
        Ok(())
    }

    fn script_sleep(&mut self, cpu: CpuNr, task: TaskNr, until: Until) -> Sim {
        self.expect(cpu, task, until)?;
        self.script(task)?.state = State::Sleeps;
        self.block_current(cpu)
    }

    fn script_halt(&mut self, cpu: CpuNr, task: TaskNr, until: Until) -> Sim {
        let now = self.now;
        let alone = self.single_task_running(cpu)?;
        let need_resched = self.cpus[cpu].resched != Resched::None;
        let knobs = self.cfg.knobs.kvm.halt_poll;
        let script = self.script(task)?;
        let halt = script.halt_poll.begin(&knobs, true);
        script.halt = Some(Halting {
            halt,
            since: now,
            poll_ns: 0,
            woken: false,
        });
        script.halts += 1;
        script.turn = script.turn.wrapping_add(1);
        self.expect(cpu, task, until)?;
        if self.vm_idles(cpu, task)? == Some(task) {
            return self.script_poll_over(cpu, task);
        }
        let turn = PollTurn {
            elapsed_ns: 0,
            alone,
            need_resched,
        };
        let script = self.script(task)?;
        if halt.keeps_polling(&turn) {
            script.state = State::Polls;
            self.tasks[task].left_ns = u64::from(halt.poll_ns());
            return self.run_task(cpu, task);
        }
        self.script_block_begins(cpu, task)
    }

    fn script_poll_over(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        let now = self.now;
        let script = self.script(task)?;
        if let Some(halting) = &mut script.halt {
            halting.poll_ns = now - halting.since;
            script.poll_ns += halting.poll_ns;
        }
        match self.came(cpu, task)? {
            true => Ok(()),
            false => self.script_block_begins(cpu, task),
        }
    }

    /// It has polled in vain, or not at all: it is on its way to sleep.
    fn script_block_begins(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        let ns = u64::from(self.cfg.scripts.block_ns);
        let script = self.script(task)?;
        if ns == 0 {
            script.state = State::Sleeps;
            return self.block_current(cpu);
        }
        script.state = State::Blocks;
        self.tasks[task].left_ns = ns;
        self.run_task(cpu, task)
    }

    /// It is about to sleep: if nothing has come meanwhile, it does.
    fn script_block(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        let ns = u64::from(self.cfg.scripts.block_ns);
        self.script(task)?.sleeping_ns += ns;
        if self.came(cpu, task)? {
            return Ok(());
        }
        self.script(task)?.state = State::Sleeps;
        self.block_current(cpu)
    }

    /// Whether what a halt waits for has come before it slept: it goes on then.
    fn came(&mut self, cpu: CpuNr, task: TaskNr) -> Sim<bool> {
        let now = self.now;
        let until = self.script(task)?.awaited;
        if self.reached(task, until)? {
            let script = self.script(task)?;
            script.polled += 1;
            script.slept = false;
            self.script_halt_over(task, false)?;
            let timer = self.script(task)?.timer;
            self.cancel_timer(timer, cpu);
            self.script(task)?.state = State::Steps;
            self.script_step(cpu, task)?;
            return Ok(true);
        }
        let alarm = self.script(task)?.alarm;
        if alarm.is_some_and(|at| at <= now) {
            self.script_halt_over(task, false)?;
            self.script(task)?.state = State::Steps;
            self.alarmed(task)?;
            self.run_task(cpu, task)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// It was woken.
    fn script_awake(&mut self, task: TaskNr) -> Sim {
        let script = self.script(task)?;
        script.state = State::Steps;
        script.slept = true;
        self.script_halt_over(task, true)
    }

    fn script_halt_over(&mut self, task: TaskNr, waited: bool) -> Sim {
        self.halts_no_longer(task)?;
        let now = self.now;
        let knobs = self.cfg.knobs.kvm.halt_poll;
        let script = self.script(task)?;
        if let Some(halting) = script.halt.take() {
            let halt_ns = now - halting.since;
            let end = HaltEnd {
                waited,
                halt_ns,
                poll_ns: halting.poll_ns,
                valid_wakeup: true,
            };
            script.halt_poll.end(&knobs, &halting.halt, &end, &());
            if self.cfg.scripts.tell {
                let kind = Kind::KvmVcpuWakeup {
                    ns: halt_ns,
                    waited,
                    valid: true,
                };
                self.emit(self.tasks[task].cpu, kind);
            }
        }
        Ok(())
    }

    pub(crate) fn script_polls(&self, task: TaskNr) -> Option<u32> {
        match &self.tasks[task].body {
            Body::Script(script) if script.state == State::Polls => Some(script.turn),
            _ => None,
        }
    }

    pub(crate) fn script_noticed(&mut self, task: TaskNr, turn: u32) -> Sim {
        if self.script_polls(task) != Some(turn) {
            return Ok(());
        }
        let cpu = self.tasks[task].cpu;
        self.tasks[task].left_ns = 0;
        if self.cpus[cpu].current == Some(task) && self.cpus[cpu].phase == Phase::Run {
            self.interrupted(cpu);
            return self.script_poll_over(cpu, task);
        }
        Ok(())
    }
}
