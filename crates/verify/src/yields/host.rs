//! The hypervisor around a spinning vCPU.

use std::sync::Arc;

use stealtime_hypervisor::directed_yield::{YieldHost, YieldState, YieldTo};
use stealtime_hypervisor::ipi_tracking::IpiContext;

use super::{Local, WINDOW_NS, Wrong, Yields};
use crate::word::{self, Word};

/// The host's side of a spinning vCPU.
pub(super) struct Host<'a> {
    pub(super) model: &'a Yields,
    pub(super) local: &'a mut Local,
    pub(super) me: u32,
    /// The spinner's CPU.
    pub(super) cpu: usize,
}

impl Host<'_> {
    /// `yield_to` and the `schedule` that follows it, under the run queues' locks.
    fn yield_and_pick(&mut self, vcpu: u32) -> u64 {
        let (cpu, local) = (self.cpu, &mut *self.local);
        let now = local.now_ns;
        let Some(target) = u8::try_from(vcpu).ok().filter(|v| *v < super::THIRD as u8) else {
            local.wrong = Some(Wrong::NoSuchTarget {
                spinner: self.me,
                named: vcpu,
            });
            return 0;
        };
        let sched = Arc::make_mut(&mut local.sched);
        let yielded = sched.yield_to(cpu, target, now);
        if yielded.forced {
            if let Some(apart_ns) = local.forced[cpu].map(|last| now - last)
                && apart_ns < WINDOW_NS
            {
                let cpu = cpu as u8;
                local.wrong = Some(Wrong::Forced { cpu, apart_ns });
            }
            local.forced[cpu] = Some(now);
        }
        if let Some((lag, bound)) = yielded.lag_out_of_bounds {
            local.wrong = Some(Wrong::Lag { lag, bound });
        }
        local.look_at_sums();
        if yielded.answer == YieldTo::Yielded && local.wrong.is_none() {
            let sched = Arc::make_mut(&mut local.sched);
            local.switching[cpu] = sched.pick(cpu, now);
            local.look_at_sums();
        }
        match yielded.answer {
            YieldTo::Declined => 0,
            YieldTo::Yielded => 1,
            YieldTo::BothAlone => 2,
        }
    }
}

impl YieldHost for Host<'_> {
    type Word = Word;

    fn online_vcpus(&self) -> u32 {
        super::VCPUS as u32
    }
    fn state(&self, vcpu: u32) -> Option<&YieldState<Word>> {
        self.model.states.get(vcpu as usize)
    }
    fn ipi_contexts(&self) -> &[IpiContext<Word>] {
        &self.model.contexts
    }
    fn blocking(&self, _vcpu: u32) -> bool {
        false
    }
    fn dy_runnable(&self, _vcpu: u32) -> bool {
        false
    }
    fn pending_interrupt(&self, _vcpu: u32) -> bool {
        false
    }
    fn yield_to(&mut self, vcpu: u32) -> YieldTo {
        match word::call(|| self.yield_and_pick(vcpu)) {
            1 => YieldTo::Yielded,
            2 => YieldTo::BothAlone,
            _ => YieldTo::Declined,
        }
    }
}
