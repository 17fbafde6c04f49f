//! The changes that scheduler events make to the state of vCPU threads and CPUs.

use stealtime_events::exit_reason::Class;
use stealtime_events::{Event, Kind, Tid};

use crate::cpu::Current;
use crate::host::Host;
use crate::observer::{FoundCurrent, Observer, Place, Switch, SwitchedOut, Waker, Wakeup, Waking};
use crate::{Cause, Mode, ReasonIndex, Run, SwitchOut, ThreadIndex, ThreadRef, VcpuIndex};

impl<O: Observer> Host<O> {
    /// Reports a vCPU's time up to `now`.
    #[inline]
    pub(crate) fn settle(&mut self, vcpu: VcpuIndex, now: u64) {
        let state = &self.vcpus[vcpu.index()];
        let cause = match state.is_queued {
            true => self.cpus[usize::from(state.cpu)].cause(),
            false => Cause::UNKNOWN,
        };
        self.report(vcpu, now, cause);
    }

    #[inline]
    pub(crate) fn report(&mut self, vcpu: VcpuIndex, now: u64, cause: Cause) {
        if let Some(span) = self.vcpus[vcpu.index()].close_span(now, cause) {
            self.observer.span(vcpu, &span);
        }
    }

    /// The occupant of a CPU changes. Until `now`, the threads in its run queue waited for `cause`.
    pub(crate) fn boundary(&mut self, cpu: u16, now: u64, cause: Cause) {
        for &waiter in self.cpus[usize::from(cpu)].waiters() {
            if let Some(span) = self.vcpus[waiter.index()].close_span(now, cause) {
                self.observer.span(waiter, &span);
            }
        }
    }

    /// An interrupt handler begins, or ends (`None`).
    pub(crate) fn on_interrupt(&mut self, number: u16, begins: Option<Cause>) {
        let cpu = &self.cpus[usize::from(number)];
        if !cpu.waiters().is_empty() {
            self.boundary(number, self.now, cpu.cause());
        }
        let cpu = &mut self.cpus[usize::from(number)];
        match begins {
            Some(cause) => cpu.enter(cause),
            None => cpu.leave(),
        }
    }

    fn switch_cpu(&mut self, number: u16, next: Current) {
        let cpu = &mut self.cpus[usize::from(number)];
        if let Some(span) = cpu.switch(number, self.now, next) {
            self.observer.cpu_span(&span);
        }
        self.observer.task_current(number, Tid(next.tid), self.now);
    }

    /// An event shows another current task than is known: a switch is missing, or it is the CPU's first
    /// event.
    pub(crate) fn make_current(&mut self, event: &Event) {
        let (number, now) = (event.cpu.0, self.now);
        let thread = self.threads.find(event.tid);
        let next = self.threads.get(thread).vcpu;
        let cpu = &mut self.cpus[usize::from(number)];
        let (old, last, cause) = (cpu.current, cpu.last, cpu.cause());
        self.observer.current_found(&FoundCurrent {
            cpu: number,
            thread: ThreadRef {
                index: thread,
                tid: event.tid,
            },
            since: last,
        });
        let is_first = !std::mem::replace(&mut cpu.is_seen, true) && self.losses == 0;
        if let Some(old) = old.filter(|_| self.has_switches) {
            // The old task was here at the CPU's latest event, and nothing is known since.
            self.boundary(number, last, cause);
            self.boundary(number, now, Cause::UNKNOWN);
            if let Some(old) = old.vcpu {
                self.lose_sight(old, last);
            }
        } else {
            self.boundary(number, now, Cause::UNKNOWN);
        }
        self.cpus[usize::from(number)].leave_all();
        self.switch_cpu(
            number,
            Current {
                thread,
                tid: event.tid.0,
                vcpu: next,
            },
        );
        if let Some(vcpu) = next {
            let state = &mut self.vcpus[vcpu.index()];
            if is_first && state.is_unborn {
                // The CPU's first event is of this thread, so it has run here from the start.
                state.run = Run::Running;
                state.run_start = state.since;
                state.is_unborn = false;
                state.cpu = number;
            } else {
                self.find_running(vcpu, number);
            }
        }
    }

    /// A vCPU's thread shows up on a CPU without a switch to it.
    pub(crate) fn find_running(&mut self, vcpu: VcpuIndex, cpu: u16) {
        let now = self.now;
        match self.vcpus[vcpu.index()].run {
            Run::Dead => return,
            Run::Running if !self.has_switches => {
                // Switches are not recorded: it has run, or waited, all the time.
                self.settle(vcpu, now);
                self.vcpus[vcpu.index()].cpu = cpu;
                return;
            }
            _ => {}
        }
        self.leave_queue(vcpu, now);
        self.end_wait(vcpu);
        if self.vcpus[vcpu.index()].run != Run::Unknown {
            // Its latest state ended at an unknown time.
            self.vcpus[vcpu.index()].forget();
            self.observer.found_running(vcpu);
        }
        self.report(vcpu, now, Cause::UNKNOWN);
        let state = &mut self.vcpus[vcpu.index()];
        state.since = state.since.max(now);
        state.is_unborn = false;
        state.run = Run::Running;
        state.cpu = cpu;
        state.run_start = now;
        state.mode_start = now;
    }

    /// The state of a vCPU is unknown since `last`, in ns.
    pub(crate) fn lose_sight(&mut self, vcpu: VcpuIndex, last: u64) {
        self.settle(vcpu, last);
        self.leave_queue(vcpu, last);
        if self.vcpus[vcpu.index()].run != Run::Dead {
            self.end_wait(vcpu);
            self.vcpus[vcpu.index()].forget();
            self.observer.sight_lost(vcpu);
        }
    }

    fn end_wait(&mut self, vcpu: VcpuIndex) {
        let state = &self.vcpus[vcpu.index()];
        if state.is_waiting() {
            self.observer.wait_ends(vcpu, state.run);
        }
    }

    /// Puts a waiting vCPU into a CPU's run queue.
    fn enter_queue(&mut self, vcpu: VcpuIndex, target: u16) {
        self.ensure_cpu(target);
        let is_queued = self.cpus[usize::from(target)].push_waiter(vcpu);
        let state = &mut self.vcpus[vcpu.index()];
        state.cpu = target;
        state.queue_start = self.now;
        state.is_queued = is_queued;
    }

    /// Takes a vCPU out of the run queue that it stands in.
    fn leave_queue(&mut self, vcpu: VcpuIndex, now: u64) {
        if self.vcpus[vcpu.index()].is_waiting() {
            self.settle(vcpu, now);
        }
        let state = &mut self.vcpus[vcpu.index()];
        if std::mem::take(&mut state.is_queued) {
            self.cpus[usize::from(state.cpu)].remove_waiter(vcpu);
        }
    }

    /// Begins a wait for a CPU.
    fn begin_wait(&mut self, vcpu: VcpuIndex, run: Run, cpu: u16) {
        let state = &mut self.vcpus[vcpu.index()];
        state.run = run;
        state.wait_start = self.now;
        self.observer.wait_begins(vcpu);
        self.enter_queue(vcpu, cpu);
    }

    /// `sched_switch`.
    pub(crate) fn on_switch(
        &mut self,
        number: u16,
        prev_tid: Tid,
        departure: SwitchOut,
        next: Tid,
        next_prio: i16,
    ) {
        let now = self.now;
        let current = self.cpus[usize::from(number)].current;
        let prev = match current.filter(|current| current.tid == prev_tid.0) {
            Some(current) => current.thread,
            None => self.threads.find(prev_tid),
        };
        let mut thread = self.threads.find(next);
        if self.threads.get(thread).dead && thread != prev {
            // A dead task is not switched in: `alloc_pid` gave its id to another one.
            thread = self.replace(thread, next);
        }
        self.observer.switch(&Switch {
            cpu: number,
            time: now,
            prev: ThreadRef {
                index: prev,
                tid: prev_tid,
            },
            out: departure,
            next: ThreadRef {
                index: thread,
                tid: next,
            },
            next_prio,
        });
        if !self.has_switches {
            self.has_switches = true;
            self.observer.first_switch();
        }
        let cpu = &mut self.cpus[usize::from(number)];
        // No handler runs across a switch: `__schedule` is in task context.
        cpu.leave_all();
        let cause = match cpu.thread() == Some(prev) {
            true => Cause::task(prev),
            false => Cause::UNKNOWN,
        };
        let (stale, last) = (cpu.vcpu(), cpu.last);
        self.boundary(number, now, cause);
        let leaving = self.threads.get(prev).vcpu;
        if let Some(stale) = stale.filter(|_| stale != leaving) {
            self.lose_sight(stale, last);
        }
        if let Some(vcpu) = leaving {
            self.switch_out(vcpu, number, thread, departure);
        }
        if departure.is_exited() {
            self.on_death(prev);
        }
        let vcpu = self.threads.get(thread).vcpu;
        self.switch_cpu(
            number,
            Current {
                thread,
                tid: next.0,
                vcpu,
            },
        );
        if let Some(vcpu) = vcpu {
            self.switch_in(vcpu, number);
        }
    }

    fn switch_out(&mut self, vcpu: VcpuIndex, cpu: u16, next: ThreadIndex, departure: SwitchOut) {
        let now = self.now;
        match self.vcpus[vcpu.index()].run {
            Run::Running => {}
            Run::Dead => return,
            _ => self.find_running(vcpu, cpu),
        }
        self.settle(vcpu, now);
        let state = &mut self.vcpus[vcpu.index()];
        if state.mode == Mode::Guest {
            // `vcpu_enter_guest` traces `kvm_entry` and can still cancel the entry, without an exit, where
            // work is pending (`kvm_vcpu_exit_request`).
            state.mode = Mode::Exit(ReasonIndex::NO_EXIT);
            state.mode_start = now;
        }
        state.cpu = cpu;
        state.woken_at = None;
        let in_halt = match state.mode {
            Mode::Exit(reason) => self.reasons.class(reason) == Class::Halt,
            _ => false,
        };
        let state = &mut self.vcpus[vcpu.index()];
        let run = match departure.is_runnable() {
            true => Run::Preempted,
            false => Run::Sleeping,
        };
        self.observer.switched_out(
            vcpu,
            &SwitchedOut {
                start: state.run_start,
                end: now,
                cpu,
                next,
                run,
                in_halt,
            },
        );
        if run == Run::Preempted {
            self.begin_wait(vcpu, run, cpu);
        } else {
            state.run = run;
            state.sleep_losses = self.losses;
            state.slept_at = now;
        }
    }

    fn switch_in(&mut self, vcpu: VcpuIndex, cpu: u16) {
        let now = self.now;
        let state = &mut self.vcpus[vcpu.index()];
        match (state.run, state.woken_at) {
            (Run::Sleeping, Some(woken)) => {
                // Only the begin of the wakeup was recorded: since then it was runnable.
                self.report(vcpu, woken, Cause::UNKNOWN);
                let state = &mut self.vcpus[vcpu.index()];
                state.run = Run::Waking;
                state.wait_start = woken;
                // A move may have settled sleep beyond that.
                state.queue_start = state.since.max(woken);
                state.cpu = state.woken_on;
                self.lacks_wakeups = true;
            }
            (Run::Sleeping, None) if state.sleep_losses != self.losses => {
                // It was woken in what was lost, at an unknown time.
                state.run = Run::Unknown;
                self.observer.wakeup_lost(vcpu);
            }
            (Run::Dead, _) => return,
            (Run::Running, _) => {
                state.forget();
                self.observer.found_running(vcpu);
            }
            _ => {}
        }
        self.leave_for(vcpu, cpu);
        self.leave_queue(vcpu, now);
        self.settle(vcpu, now);
        self.end_wait(vcpu);
        let state = &mut self.vcpus[vcpu.index()];
        if state.run == Run::Waking
            && let Some(waker) = state.waker.take()
        {
            let woken = state.woken_at.unwrap_or(state.wait_start);
            let wakeup = Wakeup {
                waker,
                woken,
                running: now,
                cpu,
                is_doubted: state.left_queue.is_some_and(|wait| wait.end > woken),
            };
            self.observer.woken(vcpu, &wakeup);
        }
        state.run = Run::Running;
        state.is_unborn = false;
        state.woken_at = None;
        state.since = state.since.max(now);
        state.cpu = cpu;
        state.run_start = now;
        self.observer.switched_in(vcpu, now, cpu);
    }

    /// Events of the scheduler but for `sched_switch`.
    pub(crate) fn on_sched(&mut self, event: &Event, place: &Place) {
        match event.kind {
            Kind::SchedWaking {
                tid, target_cpu, ..
            } => {
                let thread = self.threads.find(tid);
                self.observer.waking(&Waking {
                    woken: ThreadRef { index: thread, tid },
                    target: target_cpu,
                    time: place.time,
                    cpu: place.cpu,
                    current: place.thread_ref(),
                    context: event.context,
                });
                match (self.threads.get(thread).vcpu, place.own) {
                    (Some(woken), _) => {
                        self.on_waking(event, woken, target_cpu);
                        if event.context.in_task() {
                            self.on_wakeup_evidence(place.cpu, woken);
                        }
                    }
                    // A vCPU's thread wakes a task that is no vCPU.
                    (None, Some(vcpu)) if event.context.in_task() => {
                        self.links.helped(thread, vcpu);
                    }
                    (None, _) => {}
                }
            }
            Kind::SchedWakeup {
                tid, target_cpu, ..
            }
            | Kind::SchedWakeupNew {
                tid, target_cpu, ..
            } => {
                self.lacks_wakeups = false;
                if let Kind::SchedWakeupNew { .. } = event.kind {
                    self.on_birth(tid, Tid(0), u16::try_from(target_cpu).ok());
                }
                let thread = self.threads.find(tid);
                if let Kind::SchedWakeup { .. } = event.kind {
                    let woken = ThreadRef { index: thread, tid };
                    self.observer.wakeup(woken, target_cpu);
                }
                if let Some(woken) = self.threads.get(thread).vcpu {
                    self.on_wakeup(event, woken, target_cpu);
                }
            }
            Kind::SchedMigrateTask { tid, dest_cpu, .. } => {
                let thread = self.threads.find(tid);
                let moved = ThreadRef { index: thread, tid };
                self.observer.migrates(moved, dest_cpu);
                if let Some(vcpu) = self.threads.get(thread).vcpu {
                    self.on_migrate(vcpu, dest_cpu);
                }
            }
            Kind::SchedProcessFork { parent, child } => self.on_birth(child, parent, None),
            Kind::SchedProcessExit { tid } => {
                let thread = self.threads.find(tid);
                self.observer.thread_exits(ThreadRef { index: thread, tid });
                self.on_death(thread);
            }
            _ => {}
        }
    }

    /// `sched_waking` of a vCPU's thread: in the waker's context, before the thread is put into a
    /// run queue.
    pub(crate) fn on_waking(&mut self, event: &Event, vcpu: VcpuIndex, target: u32) {
        let waker = self.waker(event, vcpu);
        let state = &mut self.vcpus[vcpu.index()];
        if matches!(state.run, Run::Sleeping | Run::Unknown) {
            state.waker = Some(waker);
            state.woken_at = Some(self.now);
            state.woken_on = u16::try_from(target).unwrap_or(state.cpu);
            if self.lacks_wakeups {
                self.on_wakeup(event, vcpu, target);
            }
        }
    }

    /// `sched_wakeup` of a vCPU's thread (`sched_waking` where the trace has no other): it stands
    /// in the run queue of `target`.
    pub(crate) fn on_wakeup(&mut self, event: &Event, vcpu: VcpuIndex, target: u32) {
        let now = self.now;
        let state = &mut self.vcpus[vcpu.index()];
        let target = u16::try_from(target).unwrap_or(state.cpu);
        match state.run {
            Run::Sleeping | Run::Unknown => {
                if std::mem::take(&mut state.is_unborn) {
                    // The first sign of it is that it is woken: it was asleep.
                    state.run = Run::Sleeping;
                }
                let waker = self.waker(event, vcpu);
                self.settle(vcpu, now);
                let state = &mut self.vcpus[vcpu.index()];
                state.waker.get_or_insert(waker);
                state.since = state.since.max(now);
                self.begin_wait(vcpu, Run::Waking, target);
            }
            Run::Waking if target != state.cpu => self.requeue(vcpu, target),
            _ => {}
        }
    }

    /// What wakes a vCPU's thread by this event.
    fn waker(&self, event: &Event, woken: VcpuIndex) -> Waker {
        let cpu = &self.cpus[usize::from(event.cpu.0)];
        let context = event.context;
        if cpu.expiring == Some(woken) {
            Waker::Timer
        } else if context.in_interrupt() || cpu.in_interrupt() && !context.in_task() {
            Waker::Irq
        } else if cpu.vcpu().is_some_and(|vcpu| vcpu != woken) && cpu.accepted.is_some() {
            Waker::Ipi
        } else if context.in_task() {
            Waker::Task
        } else {
            Waker::Unknown
        }
    }

    fn leave_for(&mut self, vcpu: VcpuIndex, target: u16) {
        if self.vcpus[vcpu.index()].leaves_queue_for(target, self.now) {
            self.observer.queue_left(vcpu);
        }
    }

    fn requeue(&mut self, vcpu: VcpuIndex, target: u16) {
        self.leave_for(vcpu, target);
        self.leave_queue(vcpu, self.now);
        self.enter_queue(vcpu, target);
    }

    /// `sched_migrate_task`.
    pub(crate) fn on_migrate(&mut self, vcpu: VcpuIndex, dest: u32) {
        let state = &self.vcpus[vcpu.index()];
        // Only damaged recordings have larger numbers: `NR_CPUS` is at most 8192.
        let dest = u16::try_from(dest).unwrap_or(state.cpu);
        match state.run {
            Run::Preempted | Run::Waking => self.requeue(vcpu, dest),
            // A sleeping thread changes its CPU at its wakeup (`set_task_cpu` in `try_to_wake_up`).
            Run::Sleeping => {
                self.settle(vcpu, self.now);
                self.vcpus[vcpu.index()].cpu = dest;
            }
            _ => {}
        }
    }

    /// A task begins. A name that is known already can come from the reader, ahead of the event.
    pub(crate) fn on_birth(&mut self, child: Tid, parent: Tid, cpu: Option<u16>) {
        let old = self.threads.find(child);
        let was_dead = self.threads.get(old).dead;
        let thread = self.threads.born(child, parent);
        let born = ThreadRef {
            index: thread,
            tid: child,
        };
        if was_dead {
            self.observer.thread_replaced(old, born);
        }
        self.observer.thread_begins(born, cpu);
        if let Some(vcpu) = self.threads.get(thread).vcpu {
            let state = &mut self.vcpus[vcpu.index()];
            if std::mem::take(&mut state.is_unborn) {
                state.since = state.since.max(self.now);
            }
        }
    }

    /// The id of a task that has ended shows that it was given to another one.
    pub(crate) fn replace(&mut self, old: ThreadIndex, tid: Tid) -> ThreadIndex {
        let index = self.threads.born(tid, Tid(0));
        self.observer.thread_replaced(old, ThreadRef { index, tid });
        index
    }

    /// A task has ended, and its id can be given out again.
    pub(crate) fn on_death(&mut self, thread: ThreadIndex) {
        if let Some(vcpu) = self.threads.get(thread).vcpu {
            self.end_vcpu(vcpu);
        }
        self.threads.exited(thread);
    }

    fn end_vcpu(&mut self, vcpu: VcpuIndex) {
        self.settle(vcpu, self.now);
        self.leave_queue(vcpu, self.now);
        self.end_wait(vcpu);
        let state = &mut self.vcpus[vcpu.index()];
        // The first event of a CPU can be of an ended thread, which has not run since the begin.
        state.is_unborn = false;
        if std::mem::replace(&mut state.run, Run::Dead) != Run::Dead {
            if O::RECYCLES {
                self.free.push(vcpu);
            }
            self.observer.ended(vcpu);
        }
    }

    /// Reports the time of all threads and CPUs up to `time`, in ns. Their states go on.
    pub(crate) fn report_until(&mut self, time: u64) {
        self.now = self.now.max(time);
        for index in 0..self.vcpus.len() {
            self.settle(VcpuIndex(index as u32), self.now);
        }
        for (number, cpu) in (0..=u16::MAX).zip(&mut self.cpus) {
            if let Some(span) = cpu.split(number, self.now) {
                self.observer.cpu_span(&span);
            }
        }
    }

    /// The trace ends at `time`, in ns, or at its last event if that is later: every state lasts until then.
    pub(crate) fn close_at(&mut self, time: u64) {
        self.now = self.now.max(time);
        for index in 0..self.vcpus.len() {
            let vcpu = VcpuIndex(index as u32);
            self.settle(vcpu, self.now);
            self.end_wait(vcpu);
        }
        for (number, cpu) in (0..=u16::MAX).zip(&mut self.cpus) {
            cpu.last = self.now;
            if let Some(span) = cpu.forget(number) {
                self.observer.cpu_span(&span);
            }
        }
    }
}
