//! What woke a task, or made an interrupt pending at it.

use stealtime_events::Event;
use stealtime_simulator::script::{Step, Until};

use crate::extract::Extractor;
use crate::task::Cause;

/// So many wakeups between a task and vCPUs of a VM are more than chance.
const MET_FROM: u32 = 10;

impl Extractor {
    /// The cause of what this event does to another task: a point of the script of the task in
    /// whose context it happened, a timer of its own, or else the time.
    pub(crate) fn cause(&mut self, event: &Event, of: i32) -> Cause {
        let from = event.tid.0;
        let at = self.now.saturating_sub(self.first);
        let expiring = self
            .cpus
            .get(event.cpu.0 as usize)
            .and_then(|cpu| cpu.expiring);
        if let Some(hrtimer) = expiring {
            self.resolved.timers += 1;
            return match self.timers.expires_for(hrtimer, of) {
                Some(expires) => Cause::Timer { expires },
                None => Cause::Known(Until::Time(at)),
            };
        }
        let in_task = event.context.in_task() && from != 0 && from != of;
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
        *self.met.entry(tid).or_default().entry(vm).or_default() += 1;
    }

    /// The VM that a task which is no vCPU works for: the only one whose vCPUs it wakes or is woken
    /// by, or nearly.
    pub(crate) fn works_for(&self, tid: i32) -> Option<usize> {
        let met = self.met.get(&tid)?;
        let all: u32 = met.values().sum();
        let (&vm, &most) = met.iter().max_by_key(|entry| entry.1)?;
        (most >= MET_FROM && u64::from(most) * 10 >= u64::from(all) * 9).then_some(vm)
    }
}
