//! IPI records and candidate selection over 8, 64 and 1024 vCPUs.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;

use stealtime_hypervisor::directed_yield::{
    CandidateOrder, DirectedYield, SchedOut, YieldHost, YieldKnobs, YieldState, YieldTo,
};
use stealtime_hypervisor::ipi_tracking::{
    IpiContext, IpiKnobs, Unicast, eoi, is_ipi_receiver, record,
};

use crate::Operation;

/// The receiver is known and can be taken; must not grow with the VM.
pub(crate) const KNOWN_RECEIVER: &str = "select-known-receiver";

struct Vm {
    states: Vec<YieldState<AtomicU64>>,
    contexts: Vec<IpiContext<AtomicU64>>,
}

impl YieldHost for Vm {
    type Word = AtomicU64;

    fn online_vcpus(&self) -> u32 {
        self.states.len() as u32
    }
    fn state(&self, vcpu: u32) -> Option<&YieldState<AtomicU64>> {
        self.states.get(vcpu as usize)
    }
    fn ipi_contexts(&self) -> &[IpiContext<AtomicU64>] {
        &self.contexts
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
        black_box(vcpu);
        YieldTo::Yielded
    }
}

/// A VM in which vCPU 0 spins and those of `preempted` wait for a CPU.
fn vm(vcpus: u32, preempted: impl IntoIterator<Item = u32>) -> Vm {
    let vm = Vm {
        states: (0..vcpus).map(|_| YieldState::new()).collect(),
        contexts: (0..vcpus).map(|_| IpiContext::new()).collect(),
    };
    for vcpu in preempted {
        vm.states[vcpu as usize].sched_out(SchedOut {
            runnable: true,
            wants_to_run: true,
            in_kernel: true,
        });
    }
    vm
}

/// Every spin begins its scan at vCPU 1.
fn select(name: &str, mut vm: Vm, knobs: YieldKnobs) -> Operation {
    let name = format!("{name}-{}", vm.states.len());
    Operation::new(name, move |_| {
        let yields = DirectedYield::<AtomicU64>::new();
        let outcome = yields.on_spin(&mut vm, black_box(&knobs), 0, true, 1000, &());
        let _ = black_box(outcome);
    })
    .iterations(20_000)
}

pub(crate) fn operations() -> Vec<Operation> {
    let knobs = IpiKnobs::default();
    let of = |order| YieldKnobs {
        order,
        ..YieldKnobs::default()
    };
    let contexts: Vec<IpiContext<AtomicU64>> = (0..64).map(|_| IpiContext::new()).collect();
    let (settled, asked) = (contexts.clone_all(), contexts.clone_all());
    let ipi = |receiver| Unicast {
        sender: 0,
        receiver,
        vector: 0xfb,
    };
    let _ = record(&asked, &knobs, &ipi(9), 1000, &());
    let mut operations = vec![
        Operation::new("ipi-record", move |n| {
            let receiver = 1 + (n as u32 & 31);
            let _ = black_box(record(&contexts, &knobs, &ipi(receiver), n, &()));
        }),
        Operation::new("ipi-record-and-eoi", move |n| {
            let _ = record(&settled, &knobs, &ipi(9), n, &());
            let _ = black_box(eoi(&settled, &knobs, 9, Some(0xfb), n, &()));
        })
        .without("ipi-record"),
        Operation::new("is-ipi-receiver", move |n| {
            black_box(is_ipi_receiver(&asked, &knobs, 0, n as u32 & 15, 1000));
        }),
    ];
    for vcpus in [8, 64, 1024] {
        let crowded = vm(vcpus, 1..vcpus);
        let _ = record(&crowded.contexts, &knobs, &ipi(vcpus - 1), 1000, &());
        let last = vcpus - 1..vcpus;
        let none = || vm(vcpus, 0..0);
        operations.extend([
            select(KNOWN_RECEIVER, crowded, of(CandidateOrder::Priority)),
            select(
                "select-scan-last",
                vm(vcpus, last.clone()),
                of(CandidateOrder::Scan),
            ),
            select(
                "select-priority-last",
                vm(vcpus, last),
                of(CandidateOrder::Priority),
            ),
            select("select-scan-none", none(), of(CandidateOrder::Scan)),
            select("select-upstream-none", none(), YieldKnobs::upstream()),
        ]);
    }
    operations
}

/// Contexts of atomics are not `Clone`: the same number of fresh ones.
trait CloneAll {
    fn clone_all(&self) -> Self;
}

impl CloneAll for Vec<IpiContext<AtomicU64>> {
    fn clone_all(&self) -> Self {
        self.iter().map(|_| IpiContext::new()).collect()
    }
}
