//! The guest's scheduler: a fair class of its own, a run queue for each vCPU.

use stealtime_hypervisor::eevdf::{Block, Resched, RqId};

use super::{Micro, RESCHEDULE_VECTOR, ThreadState};
use crate::fault::Sim;
use crate::ids::{ThreadNr, VcpuNr};
use crate::kvm::{Exit, IpiTo};
use crate::machine::Machine;
use crate::program::QueueId;

impl Machine<'_> {
    /// Picks who runs on the vCPU.
    pub(crate) fn guest_schedule(&mut self, vcpu: VcpuNr) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, index, prev) = (v.vm, v.index, v.guest.current);
        let clock = self.guest_clock(vm, index);
        let kernel = &mut self.vms[vm].kernel;
        let rq = RqId::nth(index);
        let mut picked = kernel.fair.pick(rq, clock)?;
        if picked.task.is_none() && self.guest_pull(vm, index)? {
            let clock = self.guest_clock(vm, index);
            picked = self.vms[vm].kernel.fair.pick(rq, clock)?;
        }
        let kernel = &self.vms[vm].kernel;
        let next = picked.task.map(|id| kernel.by_slot[id.slot()]);
        self.vcpus[vcpu].guest.resched = picked.actions.resched;
        if next == prev {
            return Ok(());
        }
        self.owner_off_cpu(vcpu);
        self.guest_halted(vcpu);
        let v = &mut self.vcpus[vcpu];
        let kernel = &mut self.vms[vm].kernel;
        // Lists change hands, not their steps: none is made or given back.
        if let Some(thread) = prev {
            core::mem::swap(&mut kernel.threads[thread].saved, &mut v.guest.base);
        }
        v.guest.base.clear();
        v.guest.current = next;
        v.guest.idle = next.is_none();
        if let Some(thread) = next {
            let t = &mut kernel.threads[thread];
            core::mem::swap(&mut v.guest.base, &mut t.saved);
            t.vcpu = index;
            let ns = u64::from(self.costs.guest_switch_ns);
            v.guest.base.push_front(Micro::Run { ns, kernel: true });
            self.guest_start_tick(vcpu);
        }
        Ok(())
    }

    /// Asks for a reschedule of the vCPU.
    pub(crate) fn guest_want(&mut self, vcpu: VcpuNr, resched: Resched) {
        let g = &mut self.vcpus[vcpu].guest;
        if g.resched != Resched::Now && resched != Resched::None {
            g.resched = resched;
            self.cut(vcpu);
            self.poke(vcpu);
        }
    }

    /// The current thread blocks.
    pub(crate) fn guest_block(&mut self, vcpu: VcpuNr, state: ThreadState) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        let Some(thread) = v.guest.current else {
            return Ok(());
        };
        if v.guest.preempt_off > 0 {
            return self.wrong_program(
                vcpu,
                "sleeps or ends with a spinlock held: release it first",
            );
        }
        let clock = self.guest_clock(vm, index);
        let kernel = &mut self.vms[vm].kernel;
        kernel.runnable[index as usize] -= 1;
        kernel.threads[thread].state = state;
        kernel.threads[thread].off_queue = true;
        let how = if state == ThreadState::Dead {
            Block::Exit
        } else {
            Block::Sleep
        };
        kernel.fair.block(RqId::nth(index), how, clock)?;
        self.guest_schedule(vcpu)
    }

    /// The current thread says for what it will wait. A wakeup before it blocks is not lost.
    pub(crate) fn guest_expect(&mut self, vcpu: VcpuNr, state: ThreadState) {
        let v = &self.vcpus[vcpu];
        if let Some(thread) = v.guest.current {
            self.vms[v.vm].kernel.threads[thread].state = state;
        }
    }

    /// The current thread blocks for what it said, unless it was woken meanwhile.
    pub(crate) fn guest_block_unless_woken(&mut self, vcpu: VcpuNr) -> Sim {
        let v = &self.vcpus[vcpu];
        let Some(thread) = v.guest.current else {
            return Ok(());
        };
        match self.vms[v.vm].kernel.threads[thread].state {
            ThreadState::Runnable => Ok(()),
            state => self.guest_block(vcpu, state),
        }
    }

    /// Wakes a thread, as `vcpu` does it.
    pub(crate) fn guest_wake(&mut self, vcpu: VcpuNr, thread: ThreadNr) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        if matches!(
            self.vms[vm].kernel.threads[thread].state,
            ThreadState::Runnable | ThreadState::Dead
        ) {
            return Ok(());
        }
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
            None => self.guest_select(vm, thread, index),
        };
        let clock = self.guest_clock(vm, target);
        let kernel = &mut self.vms[vm].kernel;
        let rq = RqId::nth(target);
        let t = &mut kernel.threads[thread];
        t.state = ThreadState::Runnable;
        t.off_queue = false;
        t.vcpu = target;
        kernel.runnable[target as usize] += 1;
        let actions = kernel.fair.wake(t.fair, rq, clock)?;
        let cost = Micro::Run {
            ns: u64::from(self.costs.guest_wakeup_ns),
            kernel: true,
        };
        let on = self.vcpu_of(vm, target);
        let idle = self.vcpus[on].guest.current.is_none();
        let resched = if idle { Resched::Now } else { actions.resched };
        let had = self.vcpus[on].guest.resched;
        self.guest_want(on, resched);
        let wanted = target != index && resched == Resched::Now && had != Resched::Now;
        if wanted && self.guest_polls(on) {
            self.stats.guest_ipis_spared += 1;
        } else if wanted {
            let vector = RESCHEDULE_VECTOR;
            let to = IpiTo::One(target);
            self.vcpus[vcpu]
                .guest
                .push_next(Micro::Exit(Exit::Icr { vector, to }));
        }
        self.vcpus[vcpu].guest.push_next(cost);
        Ok(())
    }

    /// Where a thread wakes: its last vCPU if idle, the waker's if that is, any idle one, else its
    /// last.
    fn guest_select(&self, vm: crate::ids::VmNr, thread: ThreadNr, waker: u32) -> u32 {
        let t = &self.vms[vm].kernel.threads[thread];
        let first = self.vms[vm].first_vcpu.0;
        let idle = |index: u32| {
            let g = &self.vcpus[VcpuNr(first + index)].guest;
            g.current.is_none() && g.resched == Resched::None
        };
        if t.pinned || idle(t.vcpu) {
            return t.vcpu;
        }
        if idle(waker) {
            return waker;
        }
        let n = self.vms[vm].vcpus;
        let others = (1..n).map(|step| (t.vcpu + step) % n);
        others
            .into_iter()
            .find(|&index| idle(index))
            .unwrap_or(t.vcpu)
    }

    /// A vCPU that runs out of threads takes one that waits on the vCPU with most of them
    /// (`sched_balance_newidle`).
    fn guest_pull(&mut self, vm: crate::ids::VmNr, index: u32) -> Sim<bool> {
        let runnable = &self.vms[vm].kernel.runnable;
        let mut from: Option<(u32, u32)> = None;
        for (other, &count) in (0u32..).zip(runnable) {
            if count >= 2 && from.is_none_or(|(_, most)| count > most) {
                from = Some((other, count));
            }
        }
        let Some((from, _)) = from else {
            return Ok(false);
        };
        let (clock, own) = (self.guest_clock(vm, from), self.guest_clock(vm, index));
        let kernel = &mut self.vms[vm].kernel;
        let (by_slot, threads) = (&kernel.by_slot, &kernel.threads);
        let mut found: Option<ThreadNr> = None;
        let rq = RqId::nth(from);
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
        kernel.fair.attach(fair, RqId::nth(index), own)?;
        kernel.threads[thread].vcpu = index;
        kernel.runnable[from as usize] -= 1;
        kernel.runnable[index as usize] += 1;
        self.stats.guest_migrations += 1;
        Ok(true)
    }

    pub(crate) fn guest_yield(&mut self, vcpu: VcpuNr) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        let clock = self.guest_clock(vm, index);
        let kernel = &mut self.vms[vm].kernel;
        kernel.fair.yield_task(RqId::nth(index), clock)?;
        self.guest_schedule(vcpu)
    }

    /// Takes a count of a queue, or waits.
    pub(crate) fn guest_wait(&mut self, vcpu: VcpuNr, queue: QueueId) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, thread) = (v.vm, v.guest.current);
        if self.vms[vm].kernel.queues.take(queue) {
            return Ok(());
        }
        self.cut_passes(vm, queue);
        let queues = &mut self.vms[vm].kernel.queues;
        if queues.take(queue) {
            return Ok(());
        }
        if let Some(thread) = thread {
            queues.wait(queue, thread);
        }
        self.guest_block(vcpu, ThreadState::Waits(queue.0))
    }

    /// Gives counts: to waiters first.
    pub(crate) fn guest_give(&mut self, vcpu: VcpuNr, queue: QueueId, n: u32) -> Sim {
        let vm = self.vcpus[vcpu].vm;
        for _ in 0..n {
            if let Some(thread) = self.vms[vm].kernel.queues.give(queue) {
                self.guest_wake(vcpu, thread)?;
            }
        }
        Ok(())
    }
}
