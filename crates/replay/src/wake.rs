//! What woke a task, or made an interrupt pending at it.

use stealtime_events::Event;
use stealtime_simulator::script::{Step, Until};

use crate::extract::Extractor;
use crate::task::{Cause, State, Woken};

/// In a recording without `sched_wakeup` a wakeup this long before its task sleeps, in ns, is one on the way
/// to sleep; any before it was for something else.
const ON_THE_WAY_NS: u64 = 100_000;

/// A wakeup of a task that had a CPU. If it was about to sleep, its CPU lets go of it first, and it is woken
/// at once (`try_to_wake_up` waits for `on_cpu`); otherwise there is nothing to wake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early {
    event: Event,
    /// The timer that was expiring there.
    expiring: Option<u64>,
    target: u32,
}

impl Extractor {
    /// `sched_waking`: a task is to run on `target`.
    pub(crate) fn waking(&mut self, event: &Event, tid: i32, target: u32) {
        let is_told = event.context.in_task() || event.context.in_interrupt();
        self.resolved.without_flags += u64::from(!is_told);
        let expiring = self.expiring(event);
        let first = self.first;
        let task = self.task_that_was(tid, State::Asleep { since: first });
        let wakeup = Early {
            event: *event,
            expiring,
            target,
        };
        match task.state {
            State::Asleep { .. } => self.woken(wakeup, tid),
            State::Running { .. } => task.early = Some(wakeup),
            _ => {}
        }
    }

    /// `sched_wakeup`: who has a CPU still had not let go of it, and does not sleep. Who does waits on this
    /// CPU; `sched_waking` has told where it was before.
    pub(crate) fn wakeup(&mut self, tid: i32, target: u32) {
        self.tells_wakeups = true;
        let idle = self.is_idle(target);
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.early = None;
            if let Some(woken) = &mut task.woken {
                woken.idle = idle;
            }
        }
    }

    fn is_idle(&self, cpu: u32) -> bool {
        let cpu = self.cpus.get(cpu as usize);
        cpu.is_some_and(|cpu| cpu.current == Some(0))
    }

    /// A task has gone to sleep: it may have been woken on its way there.
    pub(crate) fn woken_early(&mut self, tid: i32) {
        let early = self.tasks.get_mut(&tid).and_then(|task| task.early.take());
        let Some(early) = early else {
            return;
        };
        let since = self.now.saturating_sub(early.event.time_ns);
        if self.tells_wakeups || since <= ON_THE_WAY_NS {
            self.woken(early, tid);
        }
    }

    fn woken(&mut self, wakeup: Early, tid: i32) {
        let now = self.now;
        let cause = self.cause(&wakeup.event, wakeup.expiring, tid);
        let idle = self.is_idle(wakeup.target);
        let task = self.task(tid);
        task.wake(now, cause);
        task.woken = Some(Woken {
            at: now,
            idle,
            by: wakeup.event.cpu.0,
        });
        task.is_woken_for(wakeup.target);
    }

    /// The timer that expires on an event's CPU as it happens.
    pub(crate) fn expiring(&self, event: &Event) -> Option<u64> {
        let cpu = self.cpus.get(event.cpu.0 as usize);
        cpu.and_then(|cpu| cpu.expiring)
    }

    /// The cause of what this event does to another task, with the timer that was expiring on its CPU: a
    /// point of the script of the task in whose context it happened, a timer of its own, or else the time.
    pub(crate) fn cause(&mut self, event: &Event, expiring: Option<u64>, of: i32) -> Cause {
        let from = event.tid.0;
        let at = self.now.saturating_sub(self.first);
        if let Some(hrtimer) = expiring {
            self.resolved.timers += 1;
            return match self.timers.expires_for(hrtimer, of) {
                Some(expires) => Cause::Timer { expires },
                None => Cause::Known(Until::Time(at)),
            };
        }
        let in_task = self.may_be_task(event) && from != 0 && from != of;
        if !in_task {
            self.resolved.unknown += 1;
            return Cause::Known(Until::Time(at));
        }
        self.resolved.edges += 1;
        self.meet(from, of);
        let now = self.now;
        let edge = self.new_edge();
        let waker = self.task(from);
        waker.settle(now);
        waker.steps.push(Step::Reach(edge));
        let vm_of = |tid: i32| self.vcpus.get(&tid).map(|vcpu| vcpu.0);
        match vm_of(from) {
            Some(vm) if vm_of(of) == Some(vm) => Cause::Vcpu(edge),
            _ => Cause::Known(Until::Edge(edge)),
        }
    }

    /// One task woke the other: if one of them is a vCPU and the other is not, that may be a thread
    /// of its VM's process.
    fn meet(&mut self, from: i32, of: i32) {
        let vm_of = |tid: i32| self.vcpus.get(&tid).map(|vcpu| vcpu.0);
        let (vm, tid) = match (vm_of(from), vm_of(of)) {
            (Some(vm), None) => (vm, of),
            (None, Some(vm)) => (vm, from),
            _ => return,
        };
        self.owners.meets(tid, vm);
    }
}
