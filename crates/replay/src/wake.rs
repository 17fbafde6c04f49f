//! What woke a task, or made an interrupt pending at it.

use stealtime_events::{Context, Event};
use stealtime_simulator::script::{Step, Until};
use stealtime_track::{Place, ThreadIndex, ThreadRef, Waking};

use crate::recording::Caller;
use crate::scripts::Scripts;
use crate::task::{Cause, State, Woken};

/// The longest way to sleep, in ns. In a recording without `sched_wakeup` an earlier wakeup was for something
/// else.
const ON_THE_WAY_NS: u64 = 100_000;

/// In which context something happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The current task.
    pub(crate) thread: ThreadRef,
    pub(crate) cpu: u16,
    /// Whether it does it, or an interrupt.
    pub(crate) context: Context,
}

impl Origin {
    pub(crate) fn new(event: &Event, place: &Place) -> Self {
        Self {
            thread: place.thread_ref(),
            cpu: place.cpu,
            context: event.context,
        }
    }
}

impl From<&Waking> for Origin {
    fn from(waking: &Waking) -> Self {
        Self {
            thread: waking.current,
            cpu: waking.cpu,
            context: waking.context,
        }
    }
}

/// A wakeup of a task that had a CPU. If it was about to sleep, it leaves its CPU first and is woken at once
/// (`try_to_wake_up` waits for `on_cpu`). Otherwise there is nothing to wake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early {
    origin: Origin,
    /// When, by the recording's clock in ns.
    time: u64,
    /// The timer that was expiring there.
    expiring: Option<u64>,
    target: u32,
}

impl Scripts {
    /// `sched_waking`: a task is to run on `target`.
    pub(crate) fn on_waking(&mut self, waking: &Waking) {
        let context = waking.context;
        let has_flags = context.in_task() || context.in_interrupt();
        self.resolved.without_flags += u64::from(!has_flags);
        let wakeup = Early {
            origin: Origin::from(waking),
            time: waking.time,
            expiring: self.timers.expiring(waking.cpu),
            target: waking.target,
        };
        let first = self.first;
        let task = self.task_in(waking.woken, State::Asleep { since: first });
        match task.state {
            State::Asleep { .. } => self.woken(wakeup, waking.woken),
            State::Running { .. } => task.early = Some(wakeup),
            // It waits for a CPU as it is, or has ended.
            State::Runnable | State::Gone => {}
        }
    }

    /// `sched_wakeup`: a task that has a CPU still had not left it, and does not sleep. Another one waits on
    /// this CPU; `sched_waking` has the one before.
    pub(crate) fn on_wakeup(&mut self, index: ThreadIndex, target: u32) {
        self.has_wakeups = true;
        let idle = self.is_idle(target);
        if let Some(task) = self.tasks.get_mut(index) {
            task.early = None;
            if let Some(woken) = &mut task.woken {
                woken.idle = idle;
            }
        }
    }

    fn is_idle(&self, cpu: u32) -> bool {
        let cpu = self.cpus.get(cpu as usize);
        cpu.is_some_and(crate::cpu::Cpu::is_idle)
    }

    /// A task has gone to sleep: it may have been woken on its way there.
    pub(crate) fn woken_early(&mut self, thread: ThreadRef) {
        let task = self.tasks.get_mut(thread.index);
        let early = task.and_then(|task| task.early.take());
        // `sched_wakeup` drops a wakeup that kept its task awake; without that event time decides.
        let (now, has_wakeups) = (self.now, self.has_wakeups);
        let counts = |early: &Early| has_wakeups || now.saturating_sub(early.time) <= ON_THE_WAY_NS;
        if let Some(early) = early.filter(counts) {
            self.woken(early, thread);
        }
    }

    fn woken(&mut self, wakeup: Early, thread: ThreadRef) {
        let now = self.now;
        let cause = self.cause(&wakeup.origin, wakeup.expiring, thread.index);
        let idle = self.is_idle(wakeup.target);
        if idle && u32::from(wakeup.origin.cpu) != wakeup.target {
            let cpu = self.cpus.get_mut(wakeup.target as usize);
            cpu.map(|cpu| *cpu.called.get_or_insert(now));
        }
        let task = self.task(thread);
        let is_other = u32::from(wakeup.origin.cpu) != wakeup.target;
        task.caller = is_other.then_some(Caller {
            cpu: wakeup.origin.cpu,
            is_idle: wakeup.origin.thread.tid.is_idle(),
        });
        task.wake(now, cause);
        task.woken = Some(Woken {
            time: now,
            idle,
            waker_cpu: wakeup.origin.cpu,
        });
        task.is_woken_for(wakeup.target);
    }

    /// The cause of what happens to `target`, with the timer that was expiring on the CPU. It is a timer of
    /// its own, a point of the script of the current task, or else the time.
    pub(crate) fn cause(
        &mut self,
        origin: &Origin,
        expiring: Option<u64>,
        target: ThreadIndex,
    ) -> Cause {
        let time = self.now.saturating_sub(self.first);
        if let Some(hrtimer) = expiring {
            self.resolved.timers += 1;
            return match self.timers.expires_for(hrtimer, target) {
                Some(expires) => Cause::Timer { expires },
                None => Cause::Known(Until::Time(time)),
            };
        }
        let waker = origin.thread;
        // Without an id (perf's -1, of a task that exits) no script has the point.
        let is_other = waker.tid.0 > 0 && waker.index != target;
        if !(is_other && self.may_be_task(origin)) {
            self.resolved.unknown += 1;
            return Cause::Known(Until::Time(time));
        }
        self.resolved.edges += 1;
        let now = self.now;
        let edge = self.new_edge();
        let task = self.task_on(origin.cpu, waker);
        task.settle(now);
        task.steps.push(Step::Reach(edge));
        let waker_vm = task.vcpu.map(|(vm, _)| vm);
        let woken = self.tasks.get(target);
        let (woken_tid, woken_vcpu) = woken.map_or((0, None), |task| (task.tid, task.vcpu));
        match (waker_vm, woken_vcpu.map(|(vm, _)| vm)) {
            (Some(waker), Some(woken)) if waker == woken => return Cause::Vcpu(edge),
            // One of them can be a thread of the other's VMM.
            (Some(vm), None) => self.vmm_threads.wakes(woken_tid, vm),
            (None, Some(vm)) => self.vmm_threads.wakes(waker.tid.0, vm),
            _ => {}
        }
        Cause::Known(Until::Edge(edge))
    }
}

#[cfg(test)]
mod tests {
    use crate::task::{State, Task};

    #[test]
    fn a_woken_task_has_the_cpu_that_it_waits_for() {
        let mut task = Task::new(State::Running { since: 0 });
        assert_eq!(task.cpu(), None);
        task.is_woken_for(3);
        assert_eq!(task.cpu(), Some(3));
    }
}
