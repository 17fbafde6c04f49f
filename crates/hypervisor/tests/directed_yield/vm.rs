//! A VM of vCPUs with states that the tests set.

use std::cell::Cell;

use stealtime_hypervisor::directed_yield::{
    Boost, DirectedYield, Reason, SchedOut, SpinOutcome, YieldFlags, YieldHost, YieldKnobs,
    YieldState, YieldTo,
};
use stealtime_hypervisor::ipi_tracking::{self, IpiContext, Unicast};

pub(crate) const VECTOR: u8 = 0xfb;

#[derive(Clone, Default)]
pub(crate) struct Vcpu {
    pub(crate) state: YieldState<Cell<u64>>,
    pub(crate) blocking: bool,
    pub(crate) runnable: bool,
    pub(crate) pending: bool,
}

#[derive(Clone)]
pub(crate) struct Vm {
    pub(crate) vcpus: Vec<Vcpu>,
    /// How many of them, at the end, are not online.
    pub(crate) offline: u32,
    pub(crate) contexts: Vec<IpiContext<Cell<u64>>>,
    /// What `yield_to` answers, in order; `Yielded` beyond the end.
    pub(crate) answers: Vec<YieldTo>,
    pub(crate) asked: Vec<u32>,
    pub(crate) yields: DirectedYield<Cell<u64>>,
    pub(crate) knobs: YieldKnobs,
    pub(crate) now_ns: u64,
}

impl Vm {
    /// No vCPU runs or is ready.
    pub(crate) fn new(vcpus: usize, knobs: YieldKnobs) -> Self {
        Self {
            vcpus: vec![Vcpu::default(); vcpus],
            offline: 0,
            contexts: vec![IpiContext::new(); vcpus],
            answers: Vec::new(),
            asked: Vec::new(),
            yields: DirectedYield::new(),
            knobs,
            now_ns: 1_000_000_000,
        }
    }

    pub(crate) fn preempt(&mut self, vcpu: usize, in_kernel: bool) {
        self.vcpus[vcpu].state.sched_out(SchedOut {
            runnable: true,
            wants_to_run: true,
            in_kernel,
        });
    }

    /// Puts a vCPU into the state of one that spins itself.
    pub(crate) fn spins_too(&mut self, vcpu: usize) {
        let flags = self.vcpus[vcpu].state.flags();
        let spinning = flags.with(YieldFlags::IN_SPIN_LOOP);
        self.vcpus[vcpu].state.restore(spinning);
    }

    pub(crate) fn eligible(&self, vcpu: usize) -> bool {
        let flags = self.vcpus[vcpu].state.flags();
        flags.has(YieldFlags::DY_ELIGIBLE)
    }

    pub(crate) fn ipi(&mut self, sender: u32, receiver: u32) {
        ipi_tracking::record(
            &self.contexts,
            &self.knobs.ipi,
            &Unicast {
                sender,
                receiver,
                vector: VECTOR,
            },
            self.now_ns,
            &(),
        )
        .unwrap();
    }

    pub(crate) fn spin(&mut self, me: u32, kernel_mode: bool) -> SpinOutcome {
        self.asked.clear();
        let (yields, knobs, now) = (self.yields.clone(), self.knobs, self.now_ns);
        let outcome = yields.on_spin(self, &knobs, me, kernel_mode, now, &());
        self.yields = yields;
        outcome.unwrap()
    }

    pub(crate) fn boosted(&mut self, me: u32) -> Option<(u32, Reason)> {
        named(self.spin(me, true).boosted)
    }
}

pub(crate) fn named(boost: Option<Boost>) -> Option<(u32, Reason)> {
    boost.map(|boost| (boost.vcpu, boost.reason))
}

impl YieldHost for Vm {
    type Word = Cell<u64>;

    fn online_vcpus(&self) -> u32 {
        self.vcpus.len() as u32 - self.offline
    }
    fn state(&self, vcpu: u32) -> Option<&YieldState<Cell<u64>>> {
        self.vcpus.get(vcpu as usize).map(|v| &v.state)
    }
    fn ipi_contexts(&self) -> &[IpiContext<Cell<u64>>] {
        &self.contexts
    }
    fn blocking(&self, vcpu: u32) -> bool {
        self.vcpus[vcpu as usize].blocking
    }
    fn dy_runnable(&self, vcpu: u32) -> bool {
        self.vcpus[vcpu as usize].runnable
    }
    fn pending_interrupt(&self, vcpu: u32) -> bool {
        self.vcpus[vcpu as usize].pending
    }
    fn yield_to(&mut self, vcpu: u32) -> YieldTo {
        let answer = self.answers.get(self.asked.len()).copied();
        self.asked.push(vcpu);
        answer.unwrap_or(YieldTo::Yielded)
    }
}
