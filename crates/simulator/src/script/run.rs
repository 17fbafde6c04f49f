//! Running scripts.

use std::collections::BTreeMap;

use stealtime_events::{ExitReason, Kind, VcpuId};
use stealtime_hypervisor::fair::Resched;

use super::moves::move_by_step;
use super::points::Waiter;
use super::task::State;
use super::{Edge, Points, Spent, Step, Then, Until, Yields};
use crate::fault::Sim;
use crate::host::{Flow, Host, Message, Phase, Resume, TaskState, hrtimer, idle, poll};
use crate::ids::{CpuNr, TaskNr};

/// What a script that computes on does at once when its steps are done, in ns.
const MORE_NS: u64 = 10_000_000;

/// Whether a step leads to user mode or into the guest: on the way there a request to reschedule counts, a
/// lazy one too.
const fn to_user(step: Step) -> bool {
    match step {
        Step::Run { spent, .. } => {
            !matches!(spent, Spent::Exit(_) | Spent::Interrupt(_) | Spent::Halt(_))
        }
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

/// All scripts of a run, as far as they depend on each other.
#[derive(Debug)]
pub(crate) struct ScriptRunner {
    pub(super) points: Points,
    pub(super) yields: Yields,
    /// When scripts were through for the first time, in ns.
    finished: BTreeMap<TaskNr, u64>,
}

impl ScriptRunner {
    pub(crate) fn new(scripts: &super::Scripts) -> Self {
        Self {
            points: Points::new(scripts),
            yields: Yields::default(),
            finished: BTreeMap::new(),
        }
    }

    /// When a script was through for the first time, in ns.
    pub(crate) fn finished_ns(&self, task: TaskNr) -> Option<u64> {
        self.finished.get(&task).copied()
    }

    /// What a script did is over: its next step.
    pub(crate) fn step(&mut self, host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim<Flow> {
        match host.script(task)?.state {
            State::Polls => return self.end_poll(host, cpu, task),
            State::Blocks => return self.block(host, cpu, task),
            State::Sleeps => {
                self.wake_up(host, task)?;
                if self.alarmed(host, task)? {
                    return Ok(Flow::Run);
                }
            }
            State::Steps => {}
        }
        if core::mem::take(&mut host.script(task)?.spun) {
            self.yields.end_spin(host, task)?;
        }
        loop {
            if begin_stretch(host, cpu, task)? {
                return Ok(Flow::Run);
            }
            let now = host.now();
            let resched = host.cpus()[cpu].resched != Resched::None;
            self.works(host, cpu, task)?;
            let script = host.script(task)?;
            script.over();
            let was_asked = script.was_asked;
            let Some(&step) = script.steps.get(script.next) else {
                if self.again(host, task)? {
                    continue;
                }
                return self.finish_steps(host, cpu, task);
            };
            // On the way to user mode or into the guest a lazy request counts
            // (`exit_to_user_mode_loop`).
            if resched && !was_asked && to_user(step) {
                return Ok(Flow::Schedule);
            }
            script.next += 1;
            match step {
                Step::Run { ns: 0, .. } => {}
                Step::Run {
                    spent: Spent::Halt(_),
                    ..
                } if self.skips_halt(host, task)? => {}
                Step::Run { ns, spent } => {
                    tell(host, cpu, task, spent)?;
                    host.script(task)?.begin_run(spent, ns, resched);
                }
                Step::Reach(edge) => self.reach(host, cpu, task, edge)?,
                Step::Spin => {
                    if self.yields.on_spin(host, cpu, task)? {
                        host.script(task)?.spun = true;
                        return Ok(Flow::Schedule);
                    }
                }
                Step::YieldTo(number) => {
                    if self.yields.yield_to(host, cpu, task, number)? {
                        return Ok(Flow::Schedule);
                    }
                }
                Step::Arm => host.script(task)?.armed = now,
                Step::Alarm(wait) => {
                    let wait = instant(host, task, wait)?;
                    if let Until::Time(time) = wait {
                        host.script(task)?.alarm = Some(time).filter(|&time| time > now);
                    }
                }
                Step::Sleep(wait) => {
                    let wait = instant(host, task, wait)?;
                    if !self.reached(host, task, wait)? {
                        return self.sleep(host, cpu, task, wait);
                    }
                    host.script(task)?.alarm = None;
                }
                Step::Move(target) => move_by_step(host, task, target)?,
                Step::Halt(wait) => {
                    let wait = instant(host, task, wait)?;
                    if !self.reached(host, task, wait)? {
                        return self.halt(host, cpu, task, wait);
                    }
                    let script = host.script(task)?;
                    script.alarm = None;
                    script.work_until = None;
                    script.slept = false;
                }
                Step::Slept(ns) => {
                    let script = host.script(task)?;
                    if script.slept && ns > 0 {
                        script.sleeping_ns += u64::from(ns);
                        script.running = Some((Spent::Host, u64::from(ns)));
                        host.set_left(task, u64::from(ns));
                        return Ok(Flow::Run);
                    }
                }
            }
        }
    }

    /// Whether the script is at an exit that halts, and its guest does not halt.
    fn skips_halt(&mut self, host: &mut Host<'_>, task: TaskNr) -> Sim<bool> {
        /// Alarms and points may come between the exit and the halt.
        const NEAR: usize = 4;
        if !host.cfg().scripts.skips_halts {
            return Ok(false);
        }
        let script = host.script(task)?;
        if let Some(skips) = script.skips_halt.take() {
            return Ok(skips);
        }
        let steps = script.steps.iter().skip(script.next).take(NEAR);
        let mut steps = steps.take_while(|step| !matches!(step, Step::Run { .. }));
        let halt = steps.find_map(|step| match *step {
            Step::Halt(wait) => Some(wait),
            _ => None,
        });
        let Some(wait) = halt else {
            return Ok(false);
        };
        let wait = instant(host, task, wait)?;
        let skips = self.reached(host, task, wait)?;
        host.script(task)?.skips_halt = Some(skips);
        Ok(skips)
    }

    /// All steps are done: whether they are taken again.
    fn again(&mut self, host: &mut Host<'_>, task: TaskNr) -> Sim<bool> {
        let now = host.now();
        self.finished.entry(task).or_insert(now);
        let script = host.script(task)?;
        // Steps that take no time would be taken forever.
        if script.then != Then::Repeat || now == script.pass_began {
            return Ok(false);
        }
        script.repeat();
        script.passes += 1;
        script.pass_began = now;
        Ok(true)
    }

    /// The steps are done: it ends, or computes on.
    fn finish_steps(&mut self, host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim<Flow> {
        if host.script(task)?.then != Then::Compute {
            self.end(host, cpu, task)?;
            host.end(task);
            return Ok(Flow::Block);
        }
        if host.cpus()[cpu].resched != Resched::None {
            return Ok(Flow::Schedule);
        }
        tell(host, cpu, task, Spent::Guest)?;
        let script = host.script(task)?;
        script.running = Some((Spent::Guest, MORE_NS));
        script.computes_ns = MORE_NS;
        host.set_left(task, MORE_NS);
        Ok(Flow::Run)
    }

    /// Whether what this script waits for has come.
    pub(super) fn reached(&mut self, host: &mut Host<'_>, task: TaskNr, wait: Until) -> Sim<bool> {
        let pass = host.script(task)?.passes;
        Ok(match wait {
            Until::Edge(edge) | Until::Work { edge, .. } => self.points.is_reached(edge, pass),
            Until::AfterEdge { edge, ns, .. } => {
                let answered_ns = self.answered_ns(edge, ns, pass);
                answered_ns.is_some_and(|time| time <= host.now())
            }
            Until::Time(time) | Until::Called { time_ns: time, .. } => time <= host.now(),
            // [`instant`] has made times of them.
            Until::Armed { .. }
            | Until::After(_)
            | Until::Rest { .. }
            | Until::Sooner { .. }
            | Until::Grid { .. } => true,
        })
    }

    /// A script reaches a point: the script that waits there is woken.
    fn reach(&mut self, host: &mut Host<'_>, cpu: CpuNr, reaching: TaskNr, edge: Edge) -> Sim {
        let vcpu_of = host.script(reaching)?.vcpu_of;
        let Some(task) = self.points.reach(edge, vcpu_of, host.now()) else {
            // No script waits there.
            return Ok(());
        };
        let awaited = host.script(task)?.awaited;
        if let Until::AfterEdge { ns, .. } = awaited {
            let (cpu, time) = (host.tasks()[task].cpu, host.now().saturating_add(ns.into()));
            return expect_answer(host, cpu, task, time, awaited);
        }
        self.goes_on(host, cpu, task)
    }

    /// When the answer comes for a script that waits in this pass, in ns, if its request has been passed on.
    fn answered_ns(&self, edge: Edge, ns: u32, pass: u32) -> Option<u64> {
        let reached_ns = self.points.reached_ns(edge, pass)?;
        Some(reached_ns.saturating_add(ns.into()))
    }

    /// A CPU ends a script's wait. An idle one leaves its state first.
    pub(crate) fn called(
        &mut self,
        host: &mut Host<'_>,
        task: TaskNr,
        waker: CpuNr,
        exit_us: u16,
    ) -> Sim<Option<Resume>> {
        if exit_us > 0 && host.cpus()[waker].phase == Phase::Idle {
            let time_ns = host.now() + u64::from(exit_us) * 1_000;
            let message = Message::ScriptCalled {
                task,
                waker,
                exit_us: 0,
            };
            host.post(time_ns, message);
            return Ok(None);
        }
        self.goes_on(host, waker, task)?;
        Ok(preempted(host, waker))
    }

    /// What a script waits for has come.
    pub(super) fn goes_on(&mut self, host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim {
        let now = host.now();
        let script = host.script(task)?;
        script.awaited = Until::Time(now);
        script.work_until = None;
        let timer = script.timer;
        if script.alarm.take().is_some() {
            hrtimer::cancel(host, timer, cpu);
        }
        self.wake(host, task, cpu)
    }

    /// A script has woken: if by its alarm, it is to work for that, and then to wait again.
    pub(super) fn alarmed(&mut self, host: &mut Host<'_>, task: TaskNr) -> Sim<bool> {
        let script = host.script(task)?;
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
        host.set_left(task, work);
        Ok(true)
    }

    /// What a script waits for has come: its poll ends, or its sleep.
    pub(crate) fn wake(&mut self, host: &mut Host<'_>, task: TaskNr, waker: CpuNr) -> Sim {
        self.halts_no_longer(host, task)?;
        let script = host.script(task)?;
        if script.state == State::Polls {
            poll::notify(host, task, waker);
            return Ok(());
        }
        // Its alarm and what it waits for may both come before it runs.
        if host.tasks()[task].state != TaskState::Blocked {
            return Ok(());
        }
        let script = host.script(task)?;
        if script.alarm.is_none()
            && let Some(&Step::Move(target)) = script.steps.get(script.next)
        {
            script.next += 1;
            move_by_step(host, task, target)?;
        }
        let wake_ns = u64::from(host.cfg().scripts.wake_ns);
        if wake_ns == 0 {
            return wakes(host, task, waker);
        }
        if core::mem::replace(&mut host.script(task)?.waking, true) {
            return Ok(());
        }
        // It waits from now on, though it does not compete yet.
        let now = host.now();
        host.begin_wait(task);
        host.post(now + wake_ns, Message::ScriptWake { task, by: waker });
        Ok(())
    }

    /// Registers the wait with what will end it.
    pub(super) fn expect(
        &mut self,
        host: &mut Host<'_>,
        cpu: CpuNr,
        task: TaskNr,
        wait: Until,
    ) -> Sim {
        match wait {
            Until::Edge(edge) => {
                let script = host.script(task)?;
                let waiter = Waiter {
                    task,
                    pass: script.passes,
                    idle_in: script.vcpu_of.filter(|_| script.halt.is_some()),
                    work_ns: None,
                };
                self.points.wait(edge, waiter);
                expect_alarm(host, cpu, task)?;
            }
            Until::Work { edge, ns, busy } => {
                self.expect_work(host, task, edge, ns, busy)?;
                expect_alarm(host, cpu, task)?;
            }
            Until::Time(time) => expect_time(host, cpu, task, time)?,
            Until::Called { time_ns, waker } => expect_call(host, task, time_ns, waker, 0)?,
            Until::AfterEdge { edge, ns, .. } => {
                let script = host.script(task)?;
                script.alarm = None;
                let pass = script.passes;
                if let Some(time) = self.answered_ns(edge, ns, pass) {
                    expect_answer(host, cpu, task, time, wait)?;
                } else {
                    let waiter = Waiter {
                        task,
                        pass,
                        idle_in: None,
                        work_ns: None,
                    };
                    self.points.wait(edge, waiter);
                }
            }
            Until::Armed { .. }
            | Until::After(_)
            | Until::Rest { .. }
            | Until::Sooner { .. }
            | Until::Grid { .. } => {}
        }
        Ok(())
    }
}

/// The script's timer ends its wait.
fn expect_time(host: &mut Host<'_>, cpu: CpuNr, task: TaskNr, time_ns: u64) -> Sim {
    let script = host.script(task)?;
    script.alarm = None;
    script.awaited = Until::Time(time_ns);
    let timer = script.timer;
    hrtimer::start_pinned(host, timer, cpu, time_ns);
    Ok(())
}

/// Another CPU ends the script's wait. An idle one takes so many us before.
fn expect_call(host: &mut Host<'_>, task: TaskNr, time_ns: u64, waker: u16, exit_us: u16) -> Sim {
    host.script(task)?.alarm = None;
    let waker = CpuNr(u32::from(waker) % host.cfg().host.topology.cpus());
    let message = Message::ScriptCalled {
        task,
        waker,
        exit_us,
    };
    host.post(time_ns, message);
    Ok(())
}

/// An answer ends this wait of a script that has slept on `cpu`.
fn expect_answer(host: &mut Host<'_>, cpu: CpuNr, task: TaskNr, time_ns: u64, wait: Until) -> Sim {
    match wait {
        Until::AfterEdge {
            waker: Some(waker),
            exit_us,
            ..
        } => expect_call(host, task, time_ns, waker, exit_us),
        _ => expect_time(host, cpu, task, time_ns),
    }
}

/// Begins the next stretch of a step up to a stall, or the stall. Whether there is one.
fn begin_stretch(host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim<bool> {
    while let Some((ns, stalls)) = host.script(task)?.next_stretch() {
        if stalls {
            host.stall(cpu, ns);
        }
        if ns > 0 {
            host.set_left(task, ns);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Tells that a vCPU enters or leaves the guest, if it does.
fn tell(host: &mut Host<'_>, cpu: CpuNr, task: TaskNr, spent: Spent) -> Sim {
    if !host.cfg().scripts.tell {
        return Ok(());
    }
    let vcpu = VcpuId::UNKNOWN;
    let script = host.script(task)?;
    let kind = match (spent, script.in_guest) {
        (Spent::Guest, false) => Kind::KvmEntry { vcpu },
        (Spent::Exit(number) | Spent::Interrupt(number) | Spent::Halt(number), true) => {
            Kind::KvmExit {
                reason: ExitReason::vmx(number),
                vcpu,
                intr_vector: None,
                info1: 0,
            }
        }
        _ => return Ok(()),
    };
    script.in_guest = !script.in_guest;
    host.emit(cpu, kind);
    Ok(())
}

/// A wait that begins now, with its relative times made absolute.
fn instant(host: &mut Host<'_>, task: TaskNr, wait: Until) -> Sim<Until> {
    let now = host.now();
    let balanced = host.cfg().scripts.balanced;
    let run = &host.cfg().run;
    let end_ns = run.warmup_ns.saturating_add(run.duration_ns);
    let script = host.script(task)?;
    script.wait_exit_us = match wait {
        Until::AfterEdge {
            exit_us,
            waker: None,
            ..
        }
        | Until::Armed { exit_us, .. } => exit_us,
        _ => 0,
    };
    let wait = match wait {
        Until::Work { edge, .. } if !balanced => Until::Edge(edge),
        Until::Time(time) if script.passes > 0 => {
            Until::Time(script.pass_began.saturating_add(time))
        }
        Until::Called { time_ns, waker } if script.passes > 0 => Until::Called {
            time_ns: script.pass_began.saturating_add(time_ns),
            waker,
        },
        Until::Armed { ns, .. } => Until::Time(script.armed.saturating_add(ns)),
        Until::After(ns) => Until::Time(now.saturating_add(ns)),
        // What passes requests on does not repeat its steps.
        Until::AfterEdge { ns, .. } if script.passes > 0 => {
            Until::Time(now.saturating_add(ns.into()))
        }
        Until::Sooner { time_ns, after_us } => {
            let began_ns = if script.passes > 0 {
                script.pass_began
            } else {
                0
            };
            let after_ns = now.saturating_add(u64::from(after_us) * 1_000);
            Until::Time(began_ns.saturating_add(time_ns).min(after_ns))
        }
        Until::Rest { permille } => {
            let rest_ns = u128::from(end_ns.saturating_sub(now)) * u128::from(permille) / 1000;
            Until::Time(now.saturating_add(u64::try_from(rest_ns).unwrap_or(u64::MAX)))
        }
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
    script.awaited = wait;
    Ok(wait)
}

/// The way of a wakeup through the kernel is over. What took it, an interrupt or an exit, ends
/// here too: on its way back a lazy request counts.
pub(crate) fn finish_wake(host: &mut Host<'_>, task: TaskNr, waker: CpuNr) -> Sim<Option<Resume>> {
    host.script(task)?.waking = false;
    wakes(host, task, waker)?;
    Ok(preempted(host, waker))
}

/// A CPU wakes a script's task. An idle CPU takes a while to notice what another one does.
fn wakes(host: &mut Host<'_>, task: TaskNr, waker: CpuNr) -> Sim {
    host.wake(task, waker)?;
    let (cpu, now) = (host.tasks()[task].cpu, host.now());
    if cpu != waker && host.cpus()[cpu].phase == Phase::Idle {
        let exit_ns = host.script(task)?.called.at(now);
        idle::called(host, cpu, exit_ns);
    }
    Ok(())
}

/// Has the CPU switch to another task if its own is to be preempted.
fn preempted(host: &mut Host<'_>, waker: CpuNr) -> Option<Resume> {
    let c = &host.cpus()[waker];
    let current = c.current?;
    if c.phase != Phase::Run || host.stalled(waker).is_some() || !host.reschedules(waker, current) {
        return None;
    }
    let remaining = host.interrupted(waker);
    host.set_left(current, host.work_in(waker, remaining));
    Some(Resume {
        cpu: waker,
        flow: Flow::Schedule,
    })
}

/// The guest's timer is set for the wait that begins.
fn expect_alarm(host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim {
    let script = host.script(task)?;
    let (timer, alarm) = (script.timer, script.alarm);
    if let Some(time) = alarm {
        hrtimer::start_pinned(host, timer, cpu, time);
    }
    Ok(())
}
