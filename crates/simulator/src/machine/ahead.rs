//! Looking ahead: asks for the memory that the wakeups to come will need.
//!
//! A wakeup of one of thousands of vCPUs touches some eighty cache lines that have left the processor's
//! caches since its last turn, and that hang together by numbers and pointers: read when they are
//! needed, they are waited for one after the other. But from a clock event until its handler wakes the
//! vCPU the host's other CPUs have hundreds of events. So the last few wakeups that have begun are
//! kept, and with each further clock event one link more is asked for of each of them. Nothing here
//! changes what happens.

use stealtime_hypervisor::eevdf::Climb;
use stealtime_hypervisor::prefetch::prefetch;

use super::{Callback, Machine};
use crate::guest::{Thread as GuestThread, Vm};
use crate::ids::{CpuNr, TimerNr, VcpuNr};

/// With fewer vCPUs than this what they need stays in a processor's own caches, or there are too few
/// events until the handler.
const MANY_VCPUS: usize = 2048;

/// What is kept of what has begun, which is how many links are asked for of each.
const WAYS: usize = 12;

/// So soon after the interrupt its handler looks which timers have expired, in ns, or a little later.
const HANDLER_NS: u64 = 2_000;

/// What a vCPU's thread is about to do.
#[derive(Clone, Copy, Debug)]
enum Coming {
    /// It wakes, by this timer.
    Wakeup(TimerNr),
    /// It may sleep: what its guest computed is done.
    Sleep(VcpuNr),
}

/// How far it has been asked for what that needs.
#[derive(Clone, Copy, Debug)]
struct Way {
    coming: Coming,
    /// Links asked for.
    links: usize,
    /// Up from the vCPU's thread, and from the thread that sleeps in the guest.
    host: Option<Climb>,
    guest: Option<Climb>,
}

/// The last things that have begun to come, each in the place of the one so many before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead {
    ways: [Option<Way>; WAYS],
    next: usize,
}

impl Machine<'_> {
    /// A clock event of `cpu` is about to be handled.
    #[inline]
    pub(super) fn look_ahead_to_wakeup(&mut self, cpu: CpuNr) {
        if self.is_large() {
            self.look_ahead_to_wakeups(cpu);
        }
    }

    /// All timers that expire before the handler looks, or one.
    #[inline(never)]
    fn look_ahead_to_wakeups(&mut self, cpu: CpuNr) {
        let until_ns = self.now + HANDLER_NS;
        let mut n = 0;
        while let Some(&(at_ns, timer)) = self.cpus[cpu].hrtimers.get(n)
            && (n == 0 || at_ns <= until_ns)
        {
            self.look_ahead(Coming::Wakeup(timer));
            n += 1;
        }
    }

    /// What the guest computed is done.
    #[inline]
    pub(crate) fn look_ahead_to_sleep(&mut self, vcpu: VcpuNr) {
        if self.is_large() {
            self.look_ahead(Coming::Sleep(vcpu));
        }
    }

    fn is_large(&self) -> bool {
        self.vcpus.len() >= MANY_VCPUS
    }

    #[inline(never)]
    fn look_ahead(&mut self, coming: Coming) {
        let begun = Way {
            coming,
            links: 0,
            host: None,
            guest: None,
        };
        self.ahead.ways[self.ahead.next] = Some(begun);
        self.ahead.next = (self.ahead.next + 1) % WAYS;
        let mut ways = self.ahead.ways;
        for way in ways.iter_mut().flatten() {
            self.ask_for_link(way);
            way.links += 1;
        }
        self.ahead.ways = ways;
    }

    /// Asks for the next link. It is reached by what the links before it have brought.
    fn ask_for_link(&self, way: &mut Way) {
        match way.coming {
            Coming::Wakeup(timer) => self.ask_for_wakeup(way, timer),
            Coming::Sleep(vcpu) => self.ask_for_sleep(way, vcpu),
        }
        if let Some(climb) = &mut way.host {
            self.fair.prefetch(climb);
        }
    }

    fn ask_for_wakeup(&self, way: &mut Way, timer: TimerNr) {
        let timer = &self.timers[timer];
        if way.links == 0 {
            return prefetch(timer);
        }
        let Callback::LapicTimer(vcpu) = timer.callback else {
            return;
        };
        let v = &self.vcpus[vcpu];
        if way.links == 1 {
            return prefetch(v);
        }
        let (task, vm) = (&self.tasks[v.task], &self.vms[v.vm]);
        if way.links == 2 {
            prefetch(task);
            prefetch(vm);
            v.guest.prefetch();
            return v.books.prefetch();
        }
        if way.links == 3 {
            way.host = Some(Climb::to(task.fair));
        }
        if let Some(&(_, thread)) = v.guest.sleepers.last() {
            self.ask_for_sleeper(way, vm, &vm.kernel.threads[thread]);
        }
    }

    fn ask_for_sleeper(&self, way: &mut Way, vm: &Vm, thread: &GuestThread) {
        match way.links {
            3 => prefetch(thread),
            4 => {
                way.guest = Some(Climb::to(thread.fair));
                prefetch(&*thread.program);
                thread.saved.prefetch();
            }
            5 => thread.program.prefetch(),
            _ => {}
        }
        if let Some(climb) = &mut way.guest {
            vm.kernel.fair.prefetch(climb);
        }
    }

    fn ask_for_sleep(&self, way: &mut Way, vcpu: VcpuNr) {
        let task = &self.tasks[self.vcpus[vcpu].task];
        match way.links {
            0 => prefetch(task),
            1 => way.host = Some(Climb::to(task.fair)),
            _ => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail")]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::swarm;

    /// Whether ways have come to a thread in the guest, and whether there are any for a sleep.
    fn ways(config: &Config) -> (bool, bool) {
        let mut sink = ();
        let mut machine = Machine::new(config, &mut sink).unwrap();
        machine.set_checks(false);
        machine.run(&|| false).unwrap();
        let mut ways = machine.ahead.ways.iter().flatten();
        let wakes = ways.clone().any(|way| way.guest.is_some());
        (
            wakes,
            ways.any(|way| matches!(way.coming, Coming::Sleep(_))),
        )
    }

    #[test]
    fn a_large_host_looks_ahead_and_a_small_one_does_not() {
        let ways_of = |vms| ways(&swarm::ticking(vms, 256, 7_300_000));
        assert_eq!(ways_of(128), (true, true));
        assert_eq!(ways_of(4), (false, false));
    }
}
