//! The guest's timers: sleepers, the tick, and what the LAPIC is programmed to.

use stealtime_hypervisor::eevdf::RqId;

use super::{Micro, ThreadState};
use crate::at::At;
use crate::fault::Sim;
use crate::ids::VcpuNr;
use crate::kvm::Exit;
use crate::machine::Machine;

impl Machine<'_> {
    /// The current thread sleeps until `at`.
    pub(crate) fn guest_sleep(&mut self, vcpu: VcpuNr, at: u64) -> Sim {
        if at <= self.now {
            return Ok(());
        }
        let g = &mut self.vcpus[vcpu].guest;
        let Some(thread) = g.current else {
            return Ok(());
        };
        let place = g.sleepers.partition_point(|sleeper| sleeper.0 > at);
        g.sleepers.insert(place, (at, thread));
        self.guest_expect(vcpu, ThreadState::Sleeps);
        self.vcpus[vcpu].guest.push_next(Micro::Block);
        self.guest_program(vcpu);
        Ok(())
    }

    /// The first thing that the timer is needed for.
    fn guest_next_timer(&self, vcpu: VcpuNr) -> Option<u64> {
        let g = &self.vcpus[vcpu].guest;
        let sleeper = g.sleepers.last().map(|sleeper| sleeper.0);
        match (sleeper, g.tick_at.get()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Programs the LAPIC timer if that must fire at another time than it will.
    pub(crate) fn guest_program(&mut self, vcpu: VcpuNr) {
        let want = self.guest_next_timer(vcpu);
        let now = self.now;
        let g = &mut self.vcpus[vcpu].guest;
        if g.programmed.get() == want {
            return;
        }
        g.programmed = want.into();
        let at_ns = want.map_or(0, |at| at.max(now + 1));
        g.push_next(Micro::Exit(Exit::TscDeadline { at_ns }));
    }

    /// The timer interrupt: wakes who has slept enough, and ticks.
    pub(crate) fn guest_timer(&mut self, vcpu: VcpuNr) -> Sim {
        let now = self.now;
        self.vcpus[vcpu].guest.programmed = At::NEVER;
        while let Some(&(at, thread)) = self.vcpus[vcpu].guest.sleepers.last() {
            if at > now {
                break;
            }
            self.vcpus[vcpu].guest.sleepers.pop();
            self.guest_wake(vcpu, thread)?;
        }
        if self.vcpus[vcpu]
            .guest
            .tick_at
            .get()
            .is_some_and(|at| at <= now)
        {
            self.guest_tick(vcpu)?;
        }
        self.guest_program(vcpu);
        Ok(())
    }

    fn guest_tick(&mut self, vcpu: VcpuNr) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, index, idle) = (v.vm, v.index, v.guest.current.is_none());
        let clock = self.guest_clock(vm, index);
        let kernel = &mut self.vms[vm].kernel;
        let tick = kernel.tick_ns;
        let rq = RqId::nth(index);
        let next = (self.now / tick + 1) * tick;
        if !idle {
            let actions = kernel.fair.tick(rq, clock)?;
            self.guest_want(vcpu, actions.resched);
        }
        let cost = u64::from(self.costs.tick_ns);
        let g = &mut self.vcpus[vcpu].guest;
        g.tick_at = At::ns(next);
        g.push(Micro::Run {
            ns: cost,
            kernel: true,
        });
        Ok(())
    }

    /// A vCPU with a thread to run has a tick.
    pub(crate) fn guest_start_tick(&mut self, vcpu: VcpuNr) {
        let tick = self.vms[self.vcpus[vcpu].vm].kernel.tick_ns;
        let next = (self.now / tick + 1) * tick;
        let g = &mut self.vcpus[vcpu].guest;
        if !g.tick_at.is_some() {
            g.tick_at = At::ns(next);
            self.guest_program(vcpu);
        }
    }

    /// An idle one has none (`tick_nohz_idle_stop_tick`).
    pub(crate) fn guest_stop_tick(&mut self, vcpu: VcpuNr) {
        let g = &mut self.vcpus[vcpu].guest;
        if g.tick_at.take().is_some() {
            self.guest_program(vcpu);
        }
    }
}
