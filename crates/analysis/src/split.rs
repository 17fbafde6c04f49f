//! Where time goes: what scheduler events do to the state of vCPU threads and CPUs.

use stealtime_events::{Event, Tid};

use crate::Analysis;
use crate::cpu::NO_VCPU;
use crate::latency::Waker;
use crate::ready::Cause;
use crate::threads::{OVERFLOW, ThreadId};
use crate::vcpu::{Mode, Run};

/// `TASK_REPORT_MAX` since Linux 4.14 (`__trace_sched_switch_state`): set if the task was
/// preempted.
const PREEMPTED: u32 = 0x100;
/// `TASK_STATE_MAX` before.
const PREEMPTED_OLD: u32 = 0x1000;
/// The states that `sched_switch` reports, `TASK_REPORT | TASK_REPORT_IDLE`.
const REPORTED: u32 = 0xff;
/// `EXIT_DEAD | EXIT_ZOMBIE`: the task does not come back.
const GONE: u32 = 0x30;

/// Whether a task that was switched out is still runnable, by `prev_state` of `sched_switch`.
#[must_use]
pub const fn is_runnable(prev_state: u32) -> bool {
    prev_state & REPORTED == 0 || prev_state & (PREEMPTED | PREEMPTED_OLD) != 0
}

/// Whether a task that was switched out has exited, by the same.
#[must_use]
pub const fn is_gone(prev_state: u32) -> bool {
    !is_runnable(prev_state) && prev_state & GONE != 0
}

impl Analysis {
    /// Who has the CPU.
    pub(crate) fn cause_on(&self, cpu: u16) -> Cause {
        self.cpus
            .get(usize::from(cpu))
            .map_or(Cause::UNKNOWN, crate::cpu::Cpu::cause)
    }

    /// Accounts a vCPU's time up to `now`.
    pub(crate) fn settle(&mut self, index: u32, now: u64) {
        let Some(vcpu) = self.vcpus.get_mut(index as usize) else {
            return;
        };
        let cause = if vcpu.is_queued {
            let cpu = self.cpus.get(usize::from(vcpu.cpu));
            cpu.map_or(Cause::UNKNOWN, crate::cpu::Cpu::cause)
        } else {
            Cause::UNKNOWN
        };
        vcpu.settle(&self.window, now, cause);
    }

    /// Whoever has the CPU changes: the time of those that wait for it counts for `cause`.
    pub(crate) fn boundary(&mut self, cpu: u16, now: u64, cause: Cause) {
        let Some(cpu) = self.cpus.get(usize::from(cpu)) else {
            return;
        };
        for &waiter in &cpu.waiters {
            if let Some(vcpu) = self.vcpus.get_mut(waiter as usize) {
                vcpu.settle(&self.window, now, cause);
            }
        }
    }

    /// An interrupt handler begins or ends.
    pub(crate) fn on_interrupt(&mut self, number: u16, now: u64, begins: Option<Cause>) {
        let Some(cpu) = self.cpus.get(usize::from(number)) else {
            return;
        };
        if !cpu.waiters.is_empty() {
            let cause = cpu.cause();
            self.boundary(number, now, cause);
        }
        if let Some(cpu) = self.cpus.get_mut(usize::from(number)) {
            match begins {
                Some(cause) => cpu.enter(cause),
                None => cpu.leave(),
            }
        }
    }

    /// The event's task is current on the event's CPU: where that is news, something was missed.
    pub(crate) fn make_current(&mut self, event: &Event, now: u64) {
        let number = event.cpu.0;
        let thread = self.threads.find(event.tid);
        let next = self.threads.get(thread).vcpu.unwrap_or(NO_VCPU);
        let Some(cpu) = self.cpus.get_mut(usize::from(number)) else {
            return;
        };
        let (old, last) = (cpu.vcpu, cpu.last);
        let was_seen = std::mem::replace(&mut cpu.was_seen, true);
        let had_current = cpu.current.is_some();
        if self.has_sched && had_current {
            // A switch is missing. The old task was here at the CPU's latest event.
            self.boundary(number, last, self.cause_on(number));
            self.boundary(number, now, Cause::UNKNOWN);
            self.lose_sight(old, last);
        } else {
            self.boundary(number, now, Cause::UNKNOWN);
        }
        if let Some(cpu) = self.cpus.get_mut(usize::from(number)) {
            cpu.leave_all();
            cpu.switch(&self.window, number, now, (thread, event.tid.0, next));
        }
        if next != NO_VCPU {
            let is_first = self.loss_count == 0 && !was_seen;
            if let Some(vcpu) = self.vcpus.get_mut(next as usize).filter(|_| is_first)
                && vcpu.is_unborn
            {
                // The CPU's first event is of this thread, so it has run here from the start.
                vcpu.run = Run::Running;
                vcpu.run_start = vcpu.since;
                vcpu.is_unborn = false;
                vcpu.cpu = number;
                return;
            }
            self.found_running(next, number, now);
        }
    }

    /// A vCPU's thread shows up on a CPU without having been seen to be switched in.
    pub(crate) fn found_running(&mut self, index: u32, cpu: u16, now: u64) {
        let run = self.vcpus.get(index as usize).map(|vcpu| vcpu.run);
        if run == Some(Run::Dead) {
            return;
        }
        if run == Some(Run::Running) && !self.has_sched {
            // Nobody traces switches: it has run, or waited, all the time.
            self.settle(index, now);
            if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
                vcpu.cpu = cpu;
            }
            return;
        }
        self.leave_queue(index, now);
        if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
            vcpu.end_wait(self.bandwidth_expiries);
            let was_known = vcpu.run != Run::Unknown;
            if was_known {
                // What it did last, and until when, is not known.
                vcpu.forget();
            }
            vcpu.settle(&self.window, now, Cause::UNKNOWN);
            vcpu.since = vcpu.since.max(now);
            vcpu.is_unborn = false;
            vcpu.run = Run::Running;
            vcpu.cpu = cpu;
            vcpu.run_start = now;
            vcpu.mode_start = now;
        }
    }

    /// What a vCPU does is no longer known since `last`.
    pub(crate) fn lose_sight(&mut self, index: u32, last: u64) {
        self.settle(index, last);
        self.leave_queue(index, last);
        if let Some(vcpu) = self.vcpus.get_mut(index as usize)
            && vcpu.run != Run::Dead
        {
            vcpu.end_wait(self.bandwidth_expiries);
            vcpu.close_sleep();
            vcpu.forget();
        }
    }

    /// Puts a waiting vCPU into a CPU's run queue.
    fn enter_queue(&mut self, index: u32, now: u64, target: u16) {
        self.ensure_cpu(target);
        if let (Some(vcpu), Some(cpu)) = (
            self.vcpus.get_mut(index as usize),
            self.cpus.get_mut(usize::from(target)),
        ) {
            vcpu.cpu = target;
            vcpu.queue_start = now;
            vcpu.is_queued = cpu.push_waiter(index);
        }
    }

    /// Takes a vCPU out of the run queue that it stands in.
    fn leave_queue(&mut self, index: u32, now: u64) {
        self.settle_waiting(index, now);
        if let Some(vcpu) = self.vcpus.get_mut(index as usize)
            && std::mem::take(&mut vcpu.is_queued)
            && let Some(cpu) = self.cpus.get_mut(usize::from(vcpu.cpu))
        {
            cpu.remove_waiter(index);
        }
    }

    fn settle_waiting(&mut self, index: u32, now: u64) {
        if self
            .vcpus
            .get(index as usize)
            .is_some_and(crate::vcpu::Vcpu::is_waiting)
        {
            self.settle(index, now);
        }
    }

    /// Begins a wait for a CPU.
    fn begin_wait(&mut self, index: u32, now: u64, run: Run, cpu: u16) {
        let expiries = self.bandwidth_expiries;
        if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
            vcpu.run = run;
            vcpu.wait_start = now;
            vcpu.wait_bandwidth = expiries;
            vcpu.wait_beside_idle = 0;
        }
        self.enter_queue(index, now, cpu);
    }

    /// `sched_switch`.
    pub(crate) fn on_switch(&mut self, number: u16, now: u64, prev: Tid, next: Tid, state: u32) {
        let prev = self.threads.find(prev);
        let mut next_id = self.threads.find(next);
        if self.threads.get(next_id).dead {
            // The dead are not switched in: the id was given out again.
            next_id = self.threads.born(next, Tid(0));
        }
        let Some(cpu) = self.cpus.get_mut(usize::from(number)) else {
            return;
        };
        if !self.has_sched {
            self.has_sched = true;
            for vcpu in &mut self.vcpus {
                vcpu.undo_assumed_halts();
            }
        }
        // No handler runs across a switch.
        cpu.leave_all();
        let cause = if cpu.current == Some(prev) {
            Cause::of(prev)
        } else {
            Cause::UNKNOWN
        };
        let stale = cpu.vcpu;
        let last = cpu.last;
        self.boundary(number, now, cause);
        let out = self.threads.get(prev).vcpu;
        if stale != NO_VCPU && Some(stale) != out {
            self.lose_sight(stale, last);
        }
        if let Some(out) = out {
            self.switch_out(out, number, now, next_id, state);
        }
        if is_gone(state) {
            self.on_death(prev, now);
        }
        let vcpu = self.threads.get(next_id).vcpu.unwrap_or(NO_VCPU);
        if let Some(cpu) = self.cpus.get_mut(usize::from(number)) {
            cpu.switch(&self.window, number, now, (next_id, next.0, vcpu));
        }
        if vcpu != NO_VCPU {
            self.switch_in(vcpu, number, now);
        }
    }

    fn switch_out(&mut self, index: u32, cpu: u16, now: u64, next: ThreadId, state: u32) {
        match self.vcpus.get(index as usize).map(|vcpu| vcpu.run) {
            Some(Run::Running) => {}
            Some(Run::Dead) | None => return,
            Some(_) => self.found_running(index, cpu, now),
        }
        self.settle(index, now);
        let losses = self.loss_count;
        let Some(vcpu) = self.vcpus.get_mut(index as usize) else {
            return;
        };
        if vcpu.mode == Mode::Guest {
            // An entry that was called off (there was work to do): it is not in the guest.
            vcpu.mode = Mode::Exit(0);
            vcpu.mode_start = now;
        }
        vcpu.cpu = cpu;
        vcpu.stretches.push(vcpu.run_start, now, cpu);
        vcpu.woken_at = None;
        if is_runnable(state) {
            vcpu.on_yielded(next);
            self.begin_wait(index, now, Run::Preempted, cpu);
        } else {
            vcpu.close_sleep();
            vcpu.run = Run::Sleeping;
            vcpu.sleep_losses = losses;
            vcpu.slept_at = now;
            vcpu.sleep_in_halt = match vcpu.mode {
                Mode::Exit(slot) => self.reasons.is_halt(slot),
                _ => false,
            };
        }
    }

    fn switch_in(&mut self, index: u32, cpu: u16, now: u64) {
        let losses = self.loss_count;
        if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
            match vcpu.run {
                Run::Sleeping if vcpu.woken_at.is_some() => {
                    // Only the begin of the wakeup was recorded: since then it was runnable.
                    let woken = vcpu.woken_at.unwrap_or(now);
                    vcpu.settle(&self.window, woken, Cause::UNKNOWN);
                    vcpu.run = Run::Waking;
                    vcpu.wait_start = woken;
                    // A move may have settled sleep beyond that.
                    vcpu.queue_start = vcpu.since.max(woken);
                    vcpu.cpu = vcpu.woken_on;
                    self.lacks_wakeups = true;
                }
                Run::Sleeping if vcpu.sleep_losses != losses => {
                    // It was woken in what was lost: who knows when.
                    vcpu.close_sleep();
                    vcpu.run = Run::Unknown;
                }
                Run::Dead => return,
                Run::Running => vcpu.forget(),
                _ => {}
            }
            vcpu.leaves_for(cpu, now);
        }
        self.leave_queue(index, now);
        self.settle(index, now);
        let counts = self.window.has(now, cpu);
        let expiries = self.bandwidth_expiries;
        let Some(vcpu) = self.vcpus.get_mut(index as usize) else {
            return;
        };
        vcpu.end_wait(expiries);
        if vcpu.run == Run::Waking
            && let Some(waker) = vcpu.latencies.waker.take()
            && counts
        {
            let woken = vcpu.woken_at.unwrap_or(vcpu.wait_start);
            vcpu.count_wakeup(waker, woken, now);
        }
        vcpu.run = Run::Running;
        vcpu.is_unborn = false;
        vcpu.woken_at = None;
        vcpu.since = vcpu.since.max(now);
        vcpu.cpu = cpu;
        vcpu.run_start = now;
        vcpu.tally.switches_in += u64::from(counts);
    }

    /// `sched_waking` of a vCPU's thread: in the waker's context, before the thread is put into a
    /// run queue.
    pub(crate) fn on_waking(&mut self, event: &Event, now: u64, index: u32, target: u32) {
        let waker = self.waker(event, index);
        if let Some(vcpu) = self.vcpus.get_mut(index as usize)
            && matches!(vcpu.run, Run::Sleeping | Run::Unknown)
        {
            vcpu.latencies.waker = Some(waker);
            vcpu.woken_at = Some(now);
            vcpu.woken_on = u16::try_from(target).unwrap_or(vcpu.cpu);
            if self.lacks_wakeups {
                self.on_wakeup(event, now, index, target);
            }
        }
    }

    /// `sched_wakeup` of a vCPU's thread (`sched_waking` where the trace has no other): it stands
    /// in the run queue of `target`.
    pub(crate) fn on_wakeup(&mut self, event: &Event, now: u64, index: u32, target: u32) {
        let Some(vcpu) = self.vcpus.get(index as usize) else {
            return;
        };
        let (run, queue) = (vcpu.run, vcpu.cpu);
        let target = u16::try_from(target).unwrap_or(queue);
        match run {
            Run::Sleeping | Run::Unknown => {
                let waker = self.waker(event, index);
                if let Some(vcpu) = self.vcpus.get_mut(index as usize)
                    && std::mem::take(&mut vcpu.is_unborn)
                {
                    // The first sign of it is that it is woken: it was asleep.
                    vcpu.run = Run::Sleeping;
                }
                self.settle(index, now);
                if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
                    vcpu.latencies.waker.get_or_insert(waker);
                    vcpu.since = vcpu.since.max(now);
                }
                self.begin_wait(index, now, Run::Waking, target);
            }
            Run::Waking if target != queue => self.requeue(index, now, target),
            _ => {}
        }
    }

    fn waker(&self, event: &Event, woken: u32) -> Waker {
        let Some(cpu) = self.cpus.get(usize::from(event.cpu.0)) else {
            return Waker::Task;
        };
        if cpu.expiring == woken {
            Waker::Timer
        } else if event.context.in_interrupt() || cpu.in_interrupt() && !event.context.in_task() {
            Waker::Irq
        } else if cpu.vcpu != NO_VCPU && cpu.vcpu != woken && cpu.accepted.is_some() {
            Waker::Ipi
        } else if event.context.in_task() {
            Waker::Task
        } else {
            Waker::Unknown
        }
    }

    fn requeue(&mut self, index: u32, now: u64, target: u16) {
        if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
            vcpu.leaves_for(target, now);
        }
        self.leave_queue(index, now);
        self.enter_queue(index, now, target);
    }

    /// `sched_migrate_task`.
    pub(crate) fn on_migrate(&mut self, index: u32, now: u64, dest: u32) {
        let Ok(dest) = u16::try_from(dest) else {
            return;
        };
        match self.vcpus.get(index as usize) {
            Some(vcpu) if vcpu.is_waiting() => self.requeue(index, now, dest),
            Some(vcpu) if vcpu.run == Run::Sleeping => {
                self.settle(index, now);
                if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
                    vcpu.cpu = dest;
                }
            }
            _ => {}
        }
    }

    /// Events of this CPU were lost since its latest one.
    pub(crate) fn on_lost(&mut self, number: u16) {
        self.loss_count += 1;
        let Some(cpu) = self.cpus.get(usize::from(number)) else {
            return;
        };
        let (last, current) = (cpu.last, cpu.vcpu);
        let cause = cpu.cause();
        self.boundary(number, last, cause);
        self.doubt_silence(number, last, cause);
        let waiters = self
            .cpus
            .get_mut(usize::from(number))
            .map(|cpu| std::mem::take(&mut cpu.waiters))
            .unwrap_or_default();
        for waiter in waiters {
            if let Some(vcpu) = self.vcpus.get_mut(waiter as usize) {
                vcpu.is_queued = false;
            }
            self.lose_sight(waiter, last);
        }
        if current != NO_VCPU {
            self.lose_sight(current, last);
        }
        if let Some(cpu) = self.cpus.get_mut(usize::from(number)) {
            cpu.forget(&self.window, number);
        }
    }

    /// A task begins: before, it was not there, whatever is known of it by name.
    pub(crate) fn on_birth(&mut self, child: Tid, parent: Tid, now: u64) {
        let thread = self.threads.born(child, parent);
        let index = self.threads.get(thread).vcpu;
        if let Some(vcpu) = index.and_then(|index| self.vcpus.get_mut(index as usize))
            && std::mem::take(&mut vcpu.is_unborn)
        {
            vcpu.since = vcpu.since.max(now);
        }
    }

    /// A task has ended, and its id may be given out again.
    pub(crate) fn on_death(&mut self, thread: ThreadId, now: u64) {
        if let Some(vcpu) = self.threads.get(thread).vcpu {
            self.on_vcpu_exit(vcpu, now);
        }
        if let Some(thread) = self.threads.get_mut(thread).filter(|_| thread > OVERFLOW) {
            thread.dead = true;
        }
    }

    /// The end of a vCPU's thread.
    fn on_vcpu_exit(&mut self, index: u32, now: u64) {
        self.settle(index, now);
        self.leave_queue(index, now);
        if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
            vcpu.end_wait(self.bandwidth_expiries);
            vcpu.close_sleep();
            vcpu.run = Run::Dead;
        }
    }

    /// The trace is over: every state lasts until its last event.
    pub(crate) fn close(&mut self) {
        let now = self.now;
        for index in 0..u32::try_from(self.vcpus.len()).unwrap_or(u32::MAX) {
            self.settle(index, now);
            if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
                vcpu.end_wait(self.bandwidth_expiries);
                vcpu.close_sleep();
                vcpu.close_polls();
                vcpu.trust_left();
                if vcpu.has_exits {
                    // On a CPU, but neither entry nor exit came any more.
                    vcpu.time.unknown += std::mem::take(&mut vcpu.time.mode_unknown);
                }
            }
        }
        for (number, cpu) in self.cpus.iter_mut().enumerate() {
            cpu.last = now;
            cpu.forget(&self.window, u16::try_from(number).unwrap_or(u16::MAX));
        }
    }
}
