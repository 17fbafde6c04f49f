//! vCPUs that yield their CPU to another one of their VM.

use std::collections::BTreeMap;

use stealtime_events::Kind;
use stealtime_events::hypercall::KVM_HC_SCHED_YIELD;
use stealtime_hypervisor::directed_yield::{
    DirectedYield, YieldFlags, YieldHost, YieldState, YieldTo,
};
use stealtime_hypervisor::fair;
use stealtime_hypervisor::ipi_tracking::IpiContext;
use stealtime_hypervisor::scx::Awaits;

use crate::fault::Sim;
use crate::host::{Host, TaskState, poll};
use crate::ids::{CpuNr, TaskNr};
use crate::kvm::Word;

/// A vCPU, as those see it that spin.
#[derive(Debug)]
struct Vcpu {
    number: u32,
    task: TaskNr,
    yields: YieldState<Word>,
}

/// vCPUs of a VM in the order of their numbers, of which some may be missing, and the last target of a yield.
#[derive(Debug, Default)]
struct Vm {
    search: DirectedYield<Word>,
    vcpus: Vec<Vcpu>,
}

impl Vm {
    fn place(&self, number: u32) -> Result<usize, usize> {
        self.vcpus.binary_search_by_key(&number, |vcpu| vcpu.number)
    }
}

/// vCPUs by VM and number.
#[derive(Debug, Default)]
pub(crate) struct Yields {
    vms: BTreeMap<u32, Vm>,
}

impl Yields {
    /// This task is the vCPU of a VM that has this number.
    pub(crate) fn add(&mut self, vm: u32, number: u32, task: TaskNr) {
        let vm = self.vms.entry(vm).or_default();
        if let Err(place) = vm.place(number) {
            let vcpu = Vcpu {
                number,
                task,
                yields: YieldState::new(),
            };
            vm.vcpus.insert(place, vcpu);
        }
    }

    /// This task begins in the middle of the run. If an earlier vCPU had its number, yields go to
    /// this one from now on.
    pub(crate) fn begins(&mut self, vm: u32, number: u32, task: TaskNr) {
        if let Some(vm) = self.vms.get_mut(&vm)
            && let Ok(place) = vm.place(number)
            && let Some(vcpu) = vm.vcpus.get_mut(place)
        {
            vcpu.task = task;
        }
    }

    fn vcpu(&self, vm: u32, number: u32) -> Option<&Vcpu> {
        let vm = self.vms.get(&vm)?;
        vm.vcpus.get(vm.place(number).ok()?)
    }
}

/// What the search for a vCPU asks.
struct Asked<'m, 'a> {
    host: &'m mut Host<'a>,
    cpu: CpuNr,
    vcpus: &'m [Vcpu],
    failed: Option<fair::Error>,
}

impl YieldHost for Asked<'_, '_> {
    type Word = Word;

    fn online_vcpus(&self) -> u32 {
        self.vcpus.len() as u32
    }

    fn state(&self, vcpu: u32) -> Option<&YieldState<Word>> {
        self.vcpus.get(vcpu as usize).map(|vcpu| &vcpu.yields)
    }

    fn ipi_contexts(&self) -> &[IpiContext<Word>] {
        &[]
    }

    fn blocking(&self, vcpu: u32) -> bool {
        let task = self.vcpus.get(vcpu as usize).map(|vcpu| vcpu.task);
        task.is_some_and(|task| self.host.tasks()[task].state == TaskState::Blocked)
    }

    fn dy_runnable(&self, _vcpu: u32) -> bool {
        false
    }

    fn pending_interrupt(&self, _vcpu: u32) -> bool {
        false
    }

    fn yield_to(&mut self, vcpu: u32) -> YieldTo {
        let Some(vcpu) = self.vcpus.get(vcpu as usize) else {
            return YieldTo::Declined;
        };
        match self.host.yield_to(self.cpu, vcpu.task, Awaits::Nothing) {
            Ok(answer) => answer,
            Err(error) => {
                self.failed = Some(error);
                YieldTo::Declined
            }
        }
    }
}

impl Yields {
    /// The guest asks for its CPU to be given to the vCPU with this number (`kvm_sched_yield`). Whether the
    /// caller is to pick.
    pub(super) fn yield_to(
        &self,
        host: &mut Host<'_>,
        cpu: CpuNr,
        task: TaskNr,
        number: u32,
    ) -> Sim<bool> {
        if host.cfg().scripts.tell {
            let kind = Kind::KvmHypercall {
                nr: KVM_HC_SCHED_YIELD,
                a0: number.into(),
                a1: 0,
            };
            host.emit(cpu, kind);
        }
        let vm = host.script(task)?.vcpu_of;
        let target = vm.and_then(|vm| self.vcpu(vm, number));
        let target = target.map(|vcpu| vcpu.task);
        let Some(target) = target.filter(|&target| target != task) else {
            return Ok(false);
        };
        // The scheduler refuses a target that is not ready.
        if poll::single_task_running(host, cpu)? {
            return Ok(false);
        }
        let yielded = host.yield_to(cpu, target, Awaits::Nothing)? == YieldTo::Yielded;
        host.stats_mut().directed_yields += u64::from(yielded);
        Ok(yielded)
    }

    /// A vCPU has spun for longer than its window (`kvm_vcpu_on_spin`). Whether the caller is to pick.
    ///
    /// A preempted vCPU counts as preempted in the guest's kernel: the recording does not say.
    pub(super) fn on_spin(&self, host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim<bool> {
        let Some((vm, number)) = vcpu_of_spinner(host, task)? else {
            return Ok(false);
        };
        let Some(of_vm) = self.vms.get(&vm) else {
            return Ok(false);
        };
        let Ok(me) = of_vm.place(number) else {
            return Ok(false);
        };
        for vcpu in &of_vm.vcpus {
            vcpu.yields.restore(flags(host, vcpu));
        }
        let knobs = host.cfg().knobs.kvm.directed_yield;
        let now = host.now();
        let mut query = Asked {
            host,
            cpu,
            vcpus: &of_vm.vcpus,
            failed: None,
        };
        let search = &of_vm.search;
        let outcome = search.on_spin(&mut query, &knobs, me as u32, true, now, &());
        let failed = query.failed;
        let yielded = outcome.is_ok_and(|outcome| outcome.boosted.is_some());
        if yielded && let Some(spinner) = of_vm.vcpus.get(me) {
            // It is switched out within the search.
            spinner.yields.begin_spin();
        }
        match failed {
            Some(error) => Err(error.into()),
            None => {
                host.stats_mut().directed_yields += u64::from(yielded);
                Ok(yielded)
            }
        }
    }

    /// It has its CPU again and spins no longer.
    pub(super) fn end_spin(&self, host: &mut Host<'_>, task: TaskNr) -> Sim {
        if let Some((vm, number)) = vcpu_of_spinner(host, task)?
            && let Some(vcpu) = self.vcpu(vm, number)
        {
            vcpu.yields.end_spin();
        }
        Ok(())
    }
}

fn vcpu_of_spinner(host: &mut Host<'_>, task: TaskNr) -> Sim<Option<(u32, u32)>> {
    let script = host.script(task)?;
    Ok(script.vcpu_of.zip(script.number))
}

fn flags(host: &Host<'_>, vcpu: &Vcpu) -> YieldFlags {
    let current = vcpu.yields.flags();
    let waits = host.tasks()[vcpu.task].state == TaskState::Runnable;
    let ready = YieldFlags::READY
        .with(YieldFlags::PREEMPTED)
        .with(YieldFlags::PREEMPTED_IN_KERNEL);
    let mut flags = if waits { ready } else { YieldFlags::default() };
    for retained in [YieldFlags::IN_SPIN_LOOP, YieldFlags::DY_ELIGIBLE] {
        if current.has(retained) {
            flags = flags.with(retained);
        }
    }
    flags
}
