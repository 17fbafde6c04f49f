//! The guest's scheduler: a fair class of its own, a run queue for each vCPU.

use stealtime_hypervisor::fair::{Block, Resched, RqId};

use super::{
    Guests, Micro, RESCHEDULE_VECTOR, ThreadState, clock, idle, mutex, spin, stretch, timer,
};
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::{ThreadNr, VcpuNr};
use crate::kvm::{Exit, IpiTo};
use crate::program::QueueId;

impl Guests {
    /// Picks the thread that runs on the vCPU.
    pub(crate) fn schedule(&mut self, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim {
        let v = &self.cpus[vcpu];
        let (vm, index, prev) = (v.vm, v.index, v.current);
        let clock = clock::task_clock(self, host, vm, index);
        let kernel = &mut self.vms[vm].kernel;
        let rq = RqId::nth(index);
        let mut picked = kernel.fair.pick(rq, clock)?;
        if picked.task.is_none() && self.pull(host, vm, index)? {
            let clock = clock::task_clock(self, host, vm, index);
            picked = self.vms[vm].kernel.fair.pick(rq, clock)?;
        }
        let kernel = &self.vms[vm].kernel;
        let next = picked.task.map(|id| kernel.by_slot[id.slot()]);
        self.cpus[vcpu].resched = picked.actions.resched;
        if next == prev {
            return Ok(());
        }
        mutex::owner_descheduled(self, host, vcpu);
        idle::reflect(self, host, vcpu);
        let v = &mut self.cpus[vcpu];
        let kernel = &mut self.vms[vm].kernel;
        // Lists change hands, not their steps: none is made or given back.
        if let Some(thread) = prev {
            core::mem::swap(&mut kernel.threads[thread].saved, &mut v.base);
        }
        v.base.clear();
        v.current = next;
        v.idle = next.is_none();
        if let Some(thread) = next {
            let t = &mut kernel.threads[thread];
            core::mem::swap(&mut v.base, &mut t.saved);
            t.vcpu = index;
            let ns = u64::from(host.costs().guest_switch_ns);
            v.base.push_front(Micro::Run { ns, kernel: true });
            timer::start_tick(self, host, vcpu);
        }
        Ok(())
    }

    /// Asks for a reschedule of the vCPU.
    pub(crate) fn request_resched(&mut self, host: &mut Host<'_>, vcpu: VcpuNr, resched: Resched) {
        let g = &mut self.cpus[vcpu];
        if g.resched != Resched::Now && resched != Resched::None {
            g.resched = resched;
            stretch::cut(self, host, vcpu);
            spin::poke(self, host, vcpu);
        }
    }

    /// The current thread blocks.
    pub(crate) fn block(&mut self, host: &mut Host<'_>, vcpu: VcpuNr, state: ThreadState) -> Sim {
        let v = &self.cpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        let Some(thread) = v.current else {
            return Ok(());
        };
        if v.preempt_off > 0 {
            return spin::wrong_program(
                self,
                vcpu,
                "sleeps or ends with a spinlock held: release it first",
            );
        }
        let clock = clock::task_clock(self, host, vm, index);
        let kernel = &mut self.vms[vm].kernel;
        kernel.runnable[index as usize] -= 1;
        kernel.threads[thread].state = state;
        kernel.threads[thread].off_queue = true;
        let mode = if state == ThreadState::Dead {
            Block::Exit
        } else {
            Block::Sleep
        };
        kernel.fair.block(RqId::nth(index), mode, clock)?;
        self.schedule(host, vcpu)
    }

    /// The current thread says for what it will wait. A wakeup before it blocks is not lost.
    pub(crate) fn expect(&mut self, vcpu: VcpuNr, state: ThreadState) {
        let v = &self.cpus[vcpu];
        if let Some(thread) = v.current {
            self.vms[v.vm].kernel.threads[thread].state = state;
        }
    }

    /// The current thread blocks for what it said, unless it was woken meanwhile.
    pub(crate) fn block_unless_woken(&mut self, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim {
        let v = &self.cpus[vcpu];
        let Some(thread) = v.current else {
            return Ok(());
        };
        match self.vms[v.vm].kernel.threads[thread].state {
            ThreadState::Runnable => Ok(()),
            state => self.block(host, vcpu, state),
        }
    }

    /// Wakes a thread, as `vcpu` does it.
    pub(crate) fn wake(&mut self, host: &mut Host<'_>, vcpu: VcpuNr, thread: ThreadNr) -> Sim {
        let v = &self.cpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        if matches!(
            self.vms[vm].kernel.threads[thread].state,
            ThreadState::Runnable | ThreadState::Dead
        ) {
            return Ok(());
        }
        // It is about to block and still in its run queue: `ttwu_runnable` leaves it there.
        if !self.vms[vm].kernel.threads[thread].off_queue {
            self.vms[vm].kernel.threads[thread].state = ThreadState::Runnable;
            return Ok(());
        }
        let delayed = {
            let kernel = &self.vms[vm].kernel;
            kernel.fair.delayed_on(kernel.threads[thread].fair)?
        };
        let target = match delayed {
            Some(rq) => rq.slot() as u32,
            None => self.select_vcpu(vm, thread, index),
        };
        let clock = clock::task_clock(self, host, vm, target);
        let kernel = &mut self.vms[vm].kernel;
        let rq = RqId::nth(target);
        let t = &mut kernel.threads[thread];
        t.state = ThreadState::Runnable;
        t.off_queue = false;
        t.vcpu = target;
        kernel.runnable[target as usize] += 1;
        let actions = kernel.fair.wake(t.fair, rq, clock)?;
        let cost = Micro::Run {
            ns: u64::from(host.costs().guest_wakeup_ns),
            kernel: true,
        };
        let target_vcpu = self.vcpu_of(vm, target);
        let idle = self.cpus[target_vcpu].current.is_none();
        let resched = if idle { Resched::Now } else { actions.resched };
        let previous = self.cpus[target_vcpu].resched;
        self.request_resched(host, target_vcpu, resched);
        // A vCPU with an earlier request has its interrupt on the way.
        let wanted = target != index && resched == Resched::Now && previous != Resched::Now;
        if wanted && idle::is_polling(self, target_vcpu) {
            host.stats_mut().guest_ipis_spared += 1;
        } else if wanted {
            let vector = RESCHEDULE_VECTOR;
            let destination = IpiTo::One(target);
            self.cpus[vcpu].push_next(Micro::Exit(Exit::Icr {
                vector,
                to: destination,
            }));
        }
        self.cpus[vcpu].push_next(cost);
        Ok(())
    }

    /// Where a thread wakes: its last vCPU if idle, the waker's if that is, any idle one, else its
    /// last.
    fn select_vcpu(&self, vm: crate::ids::VmNr, thread: ThreadNr, waker: u32) -> u32 {
        let t = &self.vms[vm].kernel.threads[thread];
        let first = self.vms[vm].first_vcpu.0;
        let idle = |index: u32| {
            let g = &self.cpus[VcpuNr(first + index)];
            g.current.is_none() && g.resched == Resched::None
        };
        // `select_idle_sibling` prefers the last vCPU: its cache may still be warm.
        if t.pinned || idle(t.vcpu) {
            return t.vcpu;
        }
        if idle(waker) {
            return waker;
        }
        let n = self.vms[vm].vcpus;
        let rest = (1..n).map(|step| (t.vcpu + step) % n);
        rest.into_iter()
            .find(|&index| idle(index))
            .unwrap_or(t.vcpu)
    }

    /// A vCPU that runs out of threads takes one that waits on the vCPU with most of them
    /// (`sched_balance_newidle`).
    fn pull(&mut self, host: &mut Host<'_>, vm: crate::ids::VmNr, index: u32) -> Sim<bool> {
        let runnable = &self.vms[vm].kernel.runnable;
        let mut busiest: Option<(u32, u32)> = None;
        for (peer, &count) in (0u32..).zip(runnable) {
            // One of the two is current, and the other waits.
            if count >= 2 && busiest.is_none_or(|(_, maximum)| count > maximum) {
                busiest = Some((peer, count));
            }
        }
        let Some((busiest, _)) = busiest else {
            return Ok(false);
        };
        let (clock, own_clock) = (
            clock::task_clock(self, host, vm, busiest),
            clock::task_clock(self, host, vm, index),
        );
        let kernel = &mut self.vms[vm].kernel;
        let (by_slot, threads) = (&kernel.by_slot, &kernel.threads);
        let mut found: Option<ThreadNr> = None;
        let rq = RqId::nth(busiest);
        kernel.fair.for_each_waiting(rq, &mut |id| {
            let t = &threads[by_slot[id.slot()]];
            if found.is_none() && t.state == ThreadState::Runnable && !t.off_queue && !t.pinned {
                found = Some(by_slot[id.slot()]);
            }
        })?;
        let Some(thread) = found else {
            return Ok(false);
        };
        let fair = kernel.threads[thread].fair;
        kernel.fair.detach(fair, clock)?;
        kernel.fair.attach(fair, RqId::nth(index), own_clock)?;
        kernel.threads[thread].vcpu = index;
        kernel.runnable[busiest as usize] -= 1;
        kernel.runnable[index as usize] += 1;
        host.stats_mut().guest_migrations += 1;
        Ok(true)
    }

    pub(crate) fn yield_current(&mut self, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim {
        let v = &self.cpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        let clock = clock::task_clock(self, host, vm, index);
        let kernel = &mut self.vms[vm].kernel;
        kernel.fair.yield_task(RqId::nth(index), clock)?;
        self.schedule(host, vcpu)
    }

    /// Takes a count of a queue, or waits.
    pub(crate) fn wait(&mut self, host: &mut Host<'_>, vcpu: VcpuNr, queue: QueueId) -> Sim {
        let v = &self.cpus[vcpu];
        let (vm, thread) = (v.vm, v.current);
        if self.vms[vm].kernel.queues.take(queue) {
            return Ok(());
        }
        stretch::cut_passes(self, host, vm, queue);
        let queues = &mut self.vms[vm].kernel.queues;
        if queues.take(queue) {
            return Ok(());
        }
        if let Some(thread) = thread {
            queues.wait(queue, thread);
        }
        self.block(host, vcpu, ThreadState::Waits(queue.0))
    }

    /// Gives counts: to waiters first.
    pub(crate) fn give_counts(
        &mut self,
        host: &mut Host<'_>,
        vcpu: VcpuNr,
        queue: QueueId,
        n: u32,
    ) -> Sim {
        let vm = self.cpus[vcpu].vm;
        for _ in 0..n {
            if let Some(thread) = self.vms[vm].kernel.queues.give(queue) {
                self.wake(host, vcpu, thread)?;
            }
        }
        Ok(())
    }
}
