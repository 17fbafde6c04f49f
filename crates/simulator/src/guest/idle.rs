//! The guest's idle loop: polling before HLT (`drivers/cpuidle/governors/haltpoll.c`), MWAIT where
//! the hypervisor lets the guest have it, and the wakeups that then need no IPI.

use stealtime_hypervisor::eevdf::Resched;

use super::{Micro, SpinOn};
use crate::at::At;
use crate::fault::Sim;
use crate::ids::VcpuNr;
use crate::kvm::Exit;
use crate::machine::Machine;

/// `guest_halt_poll_grow_start`.
const GROW_START_NS: u32 = 50_000;
/// `guest_halt_poll_grow`.
const GROW: u32 = 2;
/// `guest_halt_poll_shrink`.
const SHRINK: u32 = 2;

/// The state of the governor on a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuestHaltPoll {
    /// At most `guest_halt_poll_ns`.
    limit_ns: u32,
    /// The last poll ended by its limit.
    in_vain: bool,
    halted_at: At,
}

impl GuestHaltPoll {
    pub(crate) const fn limit_ns(&self) -> u64 {
        self.limit_ns as u64
    }

    /// `adjust_poll_limit`, after a halt of `halt_ns`. `max_ns` is `guest_halt_poll_ns`.
    fn adjust(&mut self, halt_ns: u64, max_ns: u32) {
        let max = u64::from(max_ns);
        if halt_ns > u64::from(self.limit_ns) && halt_ns <= max {
            let grown = self.limit_ns.saturating_mul(GROW);
            self.limit_ns = grown.max(GROW_START_NS).min(max_ns);
        } else if halt_ns > max {
            self.limit_ns /= SHRINK;
        }
    }
}

impl Machine<'_> {
    /// Nothing to run: polls, or stops the tick and halts.
    pub(crate) fn guest_idles(&mut self, vcpu: VcpuNr) {
        self.guest_halted(vcpu);
        let now = self.now;
        let guest = self.vms[self.vcpus[vcpu].vm].cfg.guest;
        let max = guest.guest_halt_poll_ns;
        let g = &mut self.vcpus[vcpu].guest;
        g.idle = true;
        g.polling = true;
        if guest.mwait_in_guest {
            g.base.push_back(Micro::Spin(SpinOn::Mwait));
            self.guest_stop_tick(vcpu);
            return;
        }
        let poll = &mut g.halt_poll;
        if max > 0 && poll.limit_ns > 0 && !core::mem::take(&mut poll.in_vain) {
            // The tick goes on while polling.
            g.base.push_back(Micro::Spin(SpinOn::IdlePoll));
            return;
        }
        poll.halted_at = At::ns(now);
        g.base.push_back(Micro::Exit(Exit::Hlt));
        self.guest_stop_tick(vcpu);
    }

    /// If HLT has just ended: the governor learns how long it took (`haltpoll_reflect`).
    pub(crate) fn guest_halted(&mut self, vcpu: VcpuNr) {
        let v = &mut self.vcpus[vcpu];
        let max = self.vms[v.vm].cfg.guest.guest_halt_poll_ns;
        if let Some(at) = v.guest.halt_poll.halted_at.take() {
            v.guest.halt_poll.adjust(self.now - at, max);
        }
    }

    /// Polling in the idle loop took so long.
    pub(crate) fn guest_polled(&mut self, vcpu: VcpuNr, ns: u64) {
        let poll = &mut self.vcpus[vcpu].guest.halt_poll;
        poll.in_vain = ns >= poll.limit_ns();
    }

    /// `TIF_POLLING_NRFLAG`: the idle vCPU sees that it is wanted without an IPI.
    pub(crate) fn guest_polls(&self, vcpu: VcpuNr) -> bool {
        let g = &self.vcpus[vcpu].guest;
        g.polling && g.current.is_none()
    }

    /// HLT is next. The idle loop leaves it out if there is something to do
    /// (`current_clr_polling_and_test`), and from here on wants IPIs.
    pub(crate) fn guest_skips_halt(&mut self, vcpu: VcpuNr) -> bool {
        let g = &mut self.vcpus[vcpu].guest;
        if g.current.is_some() {
            return false;
        }
        g.polling = false;
        g.resched != Resched::None || !g.calls.is_empty()
    }

    /// On the way out of the idle loop (`flush_smp_call_function_queue`): what was asked for
    /// without an IPI.
    pub(crate) fn guest_leaves_poll(&mut self, vcpu: VcpuNr) -> Sim {
        if self.vcpus[vcpu].guest.calls.is_empty() {
            return Ok(());
        }
        self.guest_answer_calls(vcpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `guest-halt-polling.rst`: grows after halts within the maximum, from its start by doubling;
    /// shrinks by halves after longer ones.
    #[test]
    fn limit_grows_and_shrinks() {
        let mut poll = GuestHaltPoll::default();
        let limits: Vec<u64> = [
            100_000, 100_000, 200_000, 150_000, 150_000, 900_000, 900_000,
        ]
        .into_iter()
        .map(|halt| {
            poll.adjust(halt, 200_000);
            poll.limit_ns()
        })
        .collect();
        let expected = [50_000, 100_000, 200_000, 200_000, 200_000, 100_000, 50_000];
        assert_eq!(limits, expected);
    }
}
