//! The guest's idle loop: polling before HLT (`drivers/cpuidle/governors/haltpoll.c`), or MWAIT
//! where the hypervisor allows it. Wakeups of a vCPU that polls need no IPI.

use stealtime_hypervisor::fair::Resched;

use super::{Guests, Micro, SpinOn, call, timer};
use crate::at::At;
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::VcpuNr;
use crate::kvm::Exit;

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

/// Nothing to run: polls, or stops the tick and halts.
pub(crate) fn enter(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    reflect(guests, host, vcpu);
    let now = host.now();
    let guest = guests.vms[guests.cpus[vcpu].vm].cfg.guest;
    let max = guest.guest_halt_poll_ns;
    let g = &mut guests.cpus[vcpu];
    g.idle = true;
    g.polling = true;
    if guest.mwait_in_guest {
        g.base.push_back(Micro::Spin(SpinOn::Mwait));
        timer::stop_tick(guests, host, vcpu);
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
    timer::stop_tick(guests, host, vcpu);
}

/// If HLT has just ended: the governor learns how long it took (`haltpoll_reflect`).
pub(crate) fn reflect(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    let v = &mut guests.cpus[vcpu];
    let max = guests.vms[v.vm].cfg.guest.guest_halt_poll_ns;
    if let Some(time) = v.halt_poll.halted_at.take() {
        v.halt_poll.adjust(host.now() - time, max);
    }
}

/// Polling in the idle loop took so long.
pub(crate) fn poll_ended(guests: &mut Guests, vcpu: VcpuNr, ns: u64) {
    let poll = &mut guests.cpus[vcpu].halt_poll;
    poll.in_vain = ns >= poll.limit_ns();
}

/// `TIF_POLLING_NRFLAG`: the idle vCPU sees that it is wanted without an IPI.
pub(crate) fn is_polling(guests: &Guests, vcpu: VcpuNr) -> bool {
    let g = &guests.cpus[vcpu];
    g.polling && g.current.is_none()
}

/// HLT is next. The idle loop leaves it out if there is something to do
/// (`current_clr_polling_and_test`), and from here on wants IPIs.
pub(crate) fn skips_halt(guests: &mut Guests, vcpu: VcpuNr) -> bool {
    let g = &mut guests.cpus[vcpu];
    if g.current.is_some() {
        return false;
    }
    g.polling = false;
    g.resched != Resched::None || !g.calls.is_empty()
}

/// On the way out of the idle loop (`flush_smp_call_function_queue`): what was asked for
/// without an IPI.
pub(crate) fn leave_poll(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim {
    if guests.cpus[vcpu].calls.is_empty() {
        return Ok(());
    }
    call::answer(guests, host, vcpu)
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
