//! Directed yields on PAUSE-loop exits: which vCPU a spinner makes room for.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};

use stealtime_hypervisor::directed_yield::{
    DirectedYield, SchedOut, YieldHost, YieldKnobs, YieldState, YieldTo,
};
use stealtime_hypervisor::ipi_tracking::{self, IpiContext, Unicast};

use crate::counters::COUNTERS;
use crate::host;
use crate::sched;
use crate::vcpu::{RUNNING, Vcpu, now};

/// A VM's state of yields and IPIs.
struct Vm {
    knobs: YieldKnobs,
    contexts: Vec<IpiContext<AtomicU64>>,
    states: Vec<YieldState<AtomicU64>>,
    directed: DirectedYield<AtomicU64>,
}

static VM: AtomicPtr<Vm> = AtomicPtr::new(core::ptr::null_mut());

/// A phase begins, with so many vCPUs.
pub fn begin(vcpus: usize, knobs: YieldKnobs) {
    let vm = Vm {
        knobs,
        contexts: (0..vcpus).map(|_| IpiContext::new()).collect(),
        states: (0..vcpus).map(|_| YieldState::new()).collect(),
        directed: DirectedYield::new(),
    };
    VM.store(alloc::boxed::Box::leak(alloc::boxed::Box::new(vm)), SeqCst);
}

fn vm() -> &'static Vm {
    // SAFETY: `begin` comes before the first vCPU runs, and its memory is never freed.
    unsafe { VM.load(SeqCst).as_ref() }.expect("a phase")
}

/// A vCPU becomes current.
pub fn sched_in(vcpu: u32) {
    vm().states[vcpu as usize].sched_in();
}

/// A vCPU leaves its CPU. All guests run at CPL 0.
pub fn sched_out(vcpu: u32, runnable: bool) {
    vm().states[vcpu as usize].sched_out(SchedOut {
        runnable,
        wants_to_run: true,
        in_kernel: true,
    });
}

/// A sleeping vCPU is woken.
pub fn woken(vcpu: u32) {
    vm().states[vcpu as usize].wake_up(true);
}

/// A guest sent an IPI to one vCPU.
pub fn ipi_sent(sender: u32, receiver: u32, vector: u8) {
    let vm = vm();
    let ipi = Unicast {
        sender,
        receiver,
        vector,
    };
    let now_ns = now().ns.unsigned_abs();
    // Tracking may be off.
    let _ = ipi_tracking::record(&vm.contexts, &vm.knobs.ipi, &ipi, now_ns, &COUNTERS);
}

/// A vCPU spins, on `cpu`.
pub fn on_spin(vcpu: u32, cpu: u32) {
    let vm = vm();
    let mut scheduler = Scheduler { vm, cpu };
    let now_ns = now().ns.unsigned_abs();
    vm.directed
        .on_spin(&mut scheduler, &vm.knobs, vcpu, true, now_ns, &COUNTERS)
        .expect("a vCPU of the VM");
}

/// The run queues, as the selection sees them.
struct Scheduler {
    vm: &'static Vm,
    cpu: u32,
}

impl Scheduler {
    fn reads<R>(vcpu: u32, read: impl FnOnce(&Vcpu) -> R) -> Option<R> {
        host::vcpu(vcpu).map(read)
    }
}

impl YieldHost for Scheduler {
    type Word = AtomicU64;

    fn online_vcpus(&self) -> u32 {
        self.vm.states.len() as u32
    }
    fn state(&self, vcpu: u32) -> Option<&YieldState<AtomicU64>> {
        self.vm.states.get(vcpu as usize)
    }
    fn ipi_contexts(&self) -> &[IpiContext<AtomicU64>] {
        &self.vm.contexts
    }
    fn blocking(&self, vcpu: u32) -> bool {
        Self::reads(vcpu, |vcpu| vcpu.shared.still_waiting()).unwrap_or(false)
    }
    fn dy_runnable(&self, _: u32) -> bool {
        false
    }
    fn pending_interrupt(&self, vcpu: u32) -> bool {
        Self::reads(vcpu, |vcpu| vcpu.shared.desc.has_pending()).unwrap_or(false)
    }
    fn yield_to(&mut self, vcpu: u32) -> YieldTo {
        let Some(target) = host::vcpu(vcpu) else {
            return YieldTo::Declined;
        };
        // Run queues are of one CPU here: a target that waits on another one is not pulled.
        if target.state.load(SeqCst) == RUNNING || target.home.load(SeqCst) != self.cpu {
            return YieldTo::Declined;
        }
        if sched::is_active() {
            let outcome = sched::yield_to(self.cpu, vcpu);
            if outcome == YieldTo::Yielded {
                host::reschedule(self.cpu);
            }
            return outcome;
        }
        host::nominate(self.cpu, vcpu);
        YieldTo::Yielded
    }
}
