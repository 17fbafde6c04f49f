//! Pause-loop exits and directed yield (`handle_pause`, `kvm_vcpu_on_spin`).

use stealtime_events::hypercall::KVM_HC_SCHED_YIELD;
use stealtime_events::{Kind, VcpuId};
use stealtime_hypervisor::directed_yield::ple::spins_in_kernel;
use stealtime_hypervisor::directed_yield::{YieldFlags, YieldHost, YieldState, YieldTo};
use stealtime_hypervisor::eevdf;
use stealtime_hypervisor::ipi_tracking::IpiContext;
use stealtime_hypervisor::posted_interrupt::Requests;

use super::{VcpuRun, Word};
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr, VcpuNr, VmNr};
use crate::machine::{Irq, Machine, TaskState};

/// What the search for a vCPU asks.
struct Asked<'m, 'a> {
    machine: &'m mut Machine<'a>,
    cpu: CpuNr,
    vm: VmNr,
    yielded: bool,
    failed: Option<eevdf::Error>,
}

impl Asked<'_, '_> {
    fn vcpu(&self, index: u32) -> Option<&super::Vcpu> {
        let vm = &self.machine.vms[self.vm];
        (index < vm.vcpus).then(|| &self.machine.vcpus[VcpuNr(vm.first_vcpu.0 + index)])
    }
}

impl YieldHost for Asked<'_, '_> {
    type Word = Word;

    fn online_vcpus(&self) -> u32 {
        self.machine.vms[self.vm].vcpus
    }

    fn state(&self, vcpu: u32) -> Option<&YieldState<Word>> {
        self.vcpu(vcpu).map(|v| &v.yields)
    }

    fn ipi_contexts(&self) -> &[IpiContext<Word>] {
        &self.machine.vms[self.vm].ipi_contexts
    }

    fn blocking(&self, vcpu: u32) -> bool {
        self.vcpu(vcpu).is_some_and(|v| v.run == VcpuRun::Blocked)
    }

    fn dy_runnable(&self, vcpu: u32) -> bool {
        self.vcpu(vcpu).is_some_and(|v| {
            v.guest.pv_unhalted
                || v.shared.requests().0 & Requests::EVENT.0 != 0
                || self.pending_interrupt(vcpu)
        })
    }

    fn pending_interrupt(&self, vcpu: u32) -> bool {
        self.vcpu(vcpu)
            .is_some_and(|v| v.shared.apicv() && v.shared.desc.has_pending())
    }

    fn yield_to(&mut self, vcpu: u32) -> YieldTo {
        let Some(task) = self.vcpu(vcpu).map(|v| v.task) else {
            return YieldTo::Declined;
        };
        match self.machine.yield_to(self.cpu, task) {
            Ok(answer) => {
                self.yielded |= answer == YieldTo::Yielded;
                answer
            }
            Err(error) => {
                self.failed = Some(error);
                YieldTo::Declined
            }
        }
    }
}

impl<'a> Machine<'a> {
    /// `kvm_vcpu_yield_to`: what runs on `cpu` yields to a vCPU's thread. If it did, the caller picks.
    pub(crate) fn yield_to(&mut self, cpu: CpuNr, task: TaskNr) -> Result<YieldTo, eevdf::Error> {
        if matches!(self.tasks[task].state, TaskState::Dead | TaskState::New) {
            // No thread runs it any more, or yet.
            return Ok(YieldTo::Declined);
        }
        if self.cfg.knobs.sched.lag_credit.across_run_queues && self.make_part(task, cpu).is_err() {
            return Ok(YieldTo::Declined);
        }
        let rq = self.cpus[cpu].rq;
        let t = &self.tasks[task];
        let (fair, on, may) = (t.fair, t.cpu, t.allowed.has(cpu));
        if on != cpu && self.cpus[on].current.is_none() {
            // An idle CPU enqueues itself who is woken there (`ttwu_queue_wakelist`); until then `yield_to`
            // finds no running task.
            return Ok(YieldTo::Declined);
        }
        Ok(match self.fair.yield_to_pulling(rq, fair, may, self.now)? {
            eevdf::YieldTo::Yielded { kicked, pulled, .. } => {
                if pulled.is_some() {
                    self.tasks[task].cpu = cpu;
                    self.tasks[task].moved_ns = self.now;
                    self.one_less(on);
                    self.one_more(cpu);
                    self.stats.migrations += 1;
                }
                if kicked.is_some() && on != cpu {
                    self.cpus[on].resched = eevdf::Resched::Now;
                    self.send_ipi(cpu, on, Irq::Reschedule);
                }
                YieldTo::Yielded
            }
            eevdf::YieldTo::OnlyOne => YieldTo::BothAlone,
            eevdf::YieldTo::Refused => YieldTo::Declined,
        })
    }

    /// Puts a question to the vCPUs of `vm`: the answer, and whether `cpu` is given away by it.
    fn ask<T>(
        &mut self,
        cpu: CpuNr,
        vm: VmNr,
        question: impl FnOnce(&mut Asked<'_, 'a>) -> T,
    ) -> Sim<(T, bool)> {
        let mut asked = Asked {
            machine: self,
            cpu,
            vm,
            yielded: false,
            failed: None,
        };
        let answer = question(&mut asked);
        match asked.failed {
            Some(error) => Err(error.into()),
            None => Ok((answer, asked.yielded)),
        }
    }

    /// The guest spun longer than its window. Whether the CPU was given away.
    pub(crate) fn vcpu_on_spin(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim<bool> {
        let v = &mut self.vcpus[vcpu];
        let old = v.ple.window();
        v.ple.grow(&self.cfg.knobs.kvm.ple);
        let (new, index, vm) = (v.ple.window(), v.index, v.vm);
        self.stats.pause_exits += 1;
        if new != old {
            self.emit(
                cpu,
                Kind::KvmPleWindowUpdate {
                    vcpu: VcpuId(index),
                    new,
                    old,
                },
            );
        }
        self.read_yield_hint(vcpu)?;
        let search = core::mem::take(&mut self.vms[vm].directed_yield);
        let knobs = self.cfg.knobs.kvm.directed_yield;
        let now = self.now;
        let cpl = if self.vcpus[vcpu].guest.in_kernel() {
            0
        } else {
            3
        };
        // No guest's registers are encrypted here.
        let in_kernel = spins_in_kernel(self.cfg.knobs.kvm.ple.vendor, cpl, false);
        // The outcome says all that the events would.
        let asked = self.ask(cpu, vm, |vcpus| {
            search.on_spin(vcpus, &knobs, index, in_kernel, now, &())
        });
        self.vms[vm].directed_yield = search;
        let (outcome, yielded) = asked?;
        let Ok(outcome) = outcome else {
            return self.broken("a spinning vCPU is not of its VM");
        };
        let per = u64::from(self.costs.yield_candidate_ns);
        self.cpus[cpu].debt_ns += per * u64::from(outcome.looked_at);
        if let Some((boosted, _)) = outcome.boosted {
            self.stats.directed_yields += 1;
            let awaited = self.spin_waits_for(vcpu) == Some(boosted);
            self.stats.yields_to_awaited += u64::from(awaited);
        }
        if yielded {
            // The thread is switched out within `kvm_vcpu_on_spin`: until it is back, on its way
            // into the guest, others see that it spins.
            self.vcpus[vcpu].yields.begin_spin();
            self.schedule(cpu)?;
        }
        Ok(yielded)
    }

    /// `KVM_HC_SCHED_YIELD`; and DIAGNOSE 9c of s390, which asks and does the same
    /// (`__diag_time_slice_end_directed`).
    pub(crate) fn pv_yield(&mut self, cpu: CpuNr, from: VcpuNr, target: u32) -> Sim<bool> {
        self.stats.yield_hypercalls += 1;
        let kind = Kind::KvmHypercall {
            nr: KVM_HC_SCHED_YIELD,
            a0: u64::from(target),
            a1: 0,
        };
        self.emit(cpu, kind);
        self.sched_yield(cpu, from, target)
    }

    /// `kvm_sched_yield`. Whether the CPU was given away.
    pub(super) fn sched_yield(&mut self, cpu: CpuNr, from: VcpuNr, target: u32) -> Sim<bool> {
        let vm = self.vcpus[from].vm;
        // s390's does not ask that.
        let is_s390 = self.vms[vm].cfg.guest.spin_yield;
        if !is_s390 && self.single_task_running(cpu)? {
            return Ok(false);
        }
        let ((), yielded) = self.ask(cpu, vm, |vcpus| {
            let state = vcpus.state(target);
            if state.is_some_and(|state| state.flags().has(YieldFlags::READY)) {
                vcpus.yield_to(target);
            }
        })?;
        if yielded {
            self.schedule(cpu)?;
        }
        Ok(yielded)
    }
}
