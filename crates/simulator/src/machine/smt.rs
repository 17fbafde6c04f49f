//! Two busy threads of a core slow each other.
//!
//! What tasks compute, on the host and in guests, takes longer while the core's other thread has a
//! task; what the host's kernel does is not scaled. When the other thread becomes busy or idle
//! the work in progress is rescaled.

use super::{Body, Machine, Phase};
use crate::guest::Micro;
use crate::ids::CpuNr;
use crate::scale::{mul_div, mul_div_ceil};

impl Machine<'_> {
    /// How long `work_ns` take on `cpu` now.
    pub(crate) fn slowed(&self, cpu: CpuNr, work_ns: u64) -> u64 {
        if !self.cpus[cpu].slow {
            return work_ns;
        }
        let percent = self.cfg.host.profile.smt_percent.max(1);
        mul_div_ceil(work_ns, 100, percent.into())
    }

    /// How much work is done in `ns` on `cpu` now.
    pub(crate) fn work_in(&self, cpu: CpuNr, ns: u64) -> u64 {
        if !self.cpus[cpu].slow {
            return ns;
        }
        mul_div(ns, self.cfg.host.profile.smt_percent.into(), 100)
    }

    /// `cpu` has got or lost a task: its sibling goes on at another speed.
    pub(crate) fn smt_changed(&mut self, cpu: CpuNr) {
        if self.cfg.host.profile.smt_percent >= 100 {
            return;
        }
        let Some(sibling) = self.cfg.host.topology.sibling_of(cpu.0) else {
            return;
        };
        let (sibling, slow) = (CpuNr(sibling), self.cpus[cpu].current.is_some());
        if self.cpus[sibling].slow == slow {
            return;
        }
        let segment = self.segment(sibling);
        let work = segment.map(|left| self.work_in(sibling, left));
        self.cpus[sibling].slow = slow;
        let Some(work) = work else {
            return;
        };
        let left = self.slowed(sibling, work);
        let until = self.now + left;
        let mut end = until;
        if let Some(vcpu) = self.guest_on(sibling) {
            let v = &mut self.vcpus[vcpu];
            v.step_ends = until;
            end = v.hv_at.get().map_or(until, |at| at.min(until));
        }
        let timer = self.cpus[sibling].timer;
        self.queue.arm(timer, end.max(self.now));
    }

    /// What is left, by the clock, of the computing in progress on `cpu`.
    fn segment(&self, cpu: CpuNr) -> Option<u64> {
        let c = &self.cpus[cpu];
        if c.phase != Phase::Run {
            return None;
        }
        match &self.tasks[c.current?].body {
            Body::Vcpu(vcpu) => {
                let v = &self.vcpus[*vcpu];
                let computes = matches!(v.guest.running, Some(Micro::Run { .. }));
                (self.guest_on(cpu).is_some() && computes)
                    .then(|| v.step_ends.saturating_sub(self.now))
            }
            _ => self.queue.when(c.timer).map(|at| at - self.now),
        }
    }
}
