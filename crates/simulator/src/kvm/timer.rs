//! The LAPIC timer's backends: preemption timer, hrtimer, posting.

use stealtime_events::{Kind, VcpuId};
use stealtime_hypervisor::lapic_timer::advance::Spin;
use stealtime_hypervisor::lapic_timer::{Action, Actions, Now, TimerEnvironment};
use stealtime_hypervisor::posted_interrupt::{Requests, kick};

use super::VcpuRun;
use crate::at::At;
use crate::fault::Sim;
use crate::guest::LOCAL_TIMER_VECTOR;
use crate::ids::{CpuNr, VcpuNr};
use crate::machine::Machine;
use crate::scale::{mul_div, mul_div_ceil};

impl Machine<'_> {
    pub(crate) fn tsc(&self, ns: u64) -> u64 {
        mul_div(ns, u64::from(self.costs.tsc_khz), 1_000_000)
    }

    fn ns_of_tsc(&self, cycles: u64) -> u64 {
        mul_div_ceil(cycles, 1_000_000, u64::from(self.costs.tsc_khz.max(1)))
    }

    fn timer_now(&self) -> Now {
        Now {
            ns: self.now as i64,
            host_tsc: self.tsc(self.now),
        }
    }

    fn timer_environment(&self, vcpu: VcpuNr) -> TimerEnvironment {
        let v = &self.vcpus[vcpu];
        let guest = &self.vms[v.vm].cfg.guest;
        let knobs = &self.cfg.knobs;
        let hv = self.cfg.host.profile.features.hv_timer_shift;
        TimerEnvironment {
            pi_inject_timer: match knobs.kvm.pi_inject_timer {
                0 => false,
                1 => true,
                _ => !knobs.host.nohz_full.is_empty(),
            },
            apicv: v.shared.apicv(),
            mwait_in_guest: guest.mwait_in_guest,
            hlt_in_guest: guest.hlt_in_guest,
            hv_shift: hv.filter(|_| knobs.kvm.preemption_timer),
            // The vCPU's CPU: a posted timer fires on another.
            on_housekeeping_cpu: self.cpus[self.tasks[v.task].cpu].housekeeping,
            wants_to_run: true,
        }
    }

    /// The guest writes IA32_TSC_DEADLINE.
    pub(crate) fn write_tsc_deadline(&mut self, cpu: CpuNr, vcpu: VcpuNr, at_ns: u64) -> Sim {
        let (now, env) = (self.timer_now(), self.timer_environment(vcpu));
        // The first cycle that is not before the deadline.
        let deadline = if at_ns == 0 { 0 } else { self.tsc(at_ns) + 1 };
        let events = &self.stats.mechanisms;
        let actions = self.vcpus[vcpu]
            .timer
            .write_tscdeadline(deadline, now, &env, events);
        self.act_timer(cpu, vcpu, actions)
    }

    /// The preemption timer made the guest exit.
    pub(crate) fn hv_timer_fired(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let (now, env) = (self.timer_now(), self.timer_environment(vcpu));
        let actions = self.vcpus[vcpu]
            .timer
            .hv_expired(now, &env, &self.stats.mechanisms);
        self.act_timer(cpu, vcpu, actions)
    }

    /// The hrtimer fired, on whatever CPU.
    pub(crate) fn lapic_hrtimer_fired(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let (now, env) = (self.timer_now(), self.timer_environment(vcpu));
        let v = &mut self.vcpus[vcpu];
        let mode = v.shared.mode();
        let actions = v
            .timer
            .hrtimer_fired(now, mode, &env, &self.stats.mechanisms);
        self.act_timer(cpu, vcpu, actions)
    }

    pub(crate) fn timer_begin_blocking(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let (now, env) = (self.timer_now(), self.timer_environment(vcpu));
        let actions = self.vcpus[vcpu]
            .timer
            .begin_blocking(now, &env, &self.stats.mechanisms);
        self.act_timer(cpu, vcpu, actions)
    }

    pub(crate) fn timer_end_blocking(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let (now, env) = (self.timer_now(), self.timer_environment(vcpu));
        let actions = self.vcpus[vcpu]
            .timer
            .end_blocking(now, &env, &self.stats.mechanisms);
        self.act_timer(cpu, vcpu, actions)
    }

    pub(crate) fn timer_cpu_changed(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let (now, env) = (self.timer_now(), self.timer_environment(vcpu));
        let actions = self.vcpus[vcpu]
            .timer
            .cpu_changed(now, &env, &self.stats.mechanisms);
        self.act_timer(cpu, vcpu, actions)
    }

    /// Before an entry: injects what expired.
    pub(crate) fn inject_timer(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        if self.vcpus[vcpu].timer.pending() == 0 {
            return Ok(());
        }
        let actions = self.vcpus[vcpu].timer.inject_pending();
        self.act_timer(cpu, vcpu, actions)
    }

    /// The preemption timer's value for this entry, and how long to wait for an early expiry.
    pub(crate) fn prepare_timer(&mut self, vcpu: VcpuNr) -> u64 {
        let tsc = self.tsc(self.now);
        let v = &mut self.vcpus[vcpu];
        v.hv_at = At::NEVER;
        if let Some(shift) = self.cfg.host.profile.features.hv_timer_shift
            && let Some(armed) = v.timer.hv()
            && v.timer.hv_value_at_entry(tsc, shift, false).is_some()
        {
            let deadline = armed.host_deadline;
            let at = self.ns_of_tsc(deadline).max(self.now);
            self.vcpus[vcpu].hv_at = At::ns(at);
        }
        let v = &mut self.vcpus[vcpu];
        let requested = if v.shared.apicv() {
            v.shared.irr.snapshot().contains(LOCAL_TIMER_VECTOR)
        } else {
            v.lapic.isr().contains(LOCAL_TIMER_VECTOR)
        };
        let spin = v
            .timer
            .wait_at_entry(tsc, requested, &self.stats.mechanisms);
        self.spin_ns(spin)
    }

    fn spin_ns(&self, spin: Spin) -> u64 {
        match spin {
            Spin::None => 0,
            Spin::Cycles(cycles) => self.ns_of_tsc(cycles),
            Spin::Ns(ns) => u64::from(ns),
        }
    }

    /// Does what the timer wants done.
    fn act_timer(&mut self, cpu: CpuNr, vcpu: VcpuNr, actions: Actions) -> Sim {
        for action in actions.iter() {
            match action {
                Action::StartHrtimer { at_ns } => {
                    let timer = self.vcpus[vcpu].hrtimer;
                    let at = (at_ns.max(0) as u64).max(self.now);
                    let refused = self.start_unpinned(timer, cpu, at)?;
                    let env = self.timer_environment(vcpu);
                    self.vcpus[vcpu].timer.note_placement(refused, &env);
                }
                Action::CancelHrtimer => {
                    let timer = self.vcpus[vcpu].hrtimer;
                    self.cancel_timer(timer, cpu);
                }
                Action::ArmHv { .. } => self.trace_hv(cpu, vcpu, true),
                Action::CancelHv => {
                    self.vcpus[vcpu].hv_at = At::NEVER;
                    self.trace_hv(cpu, vcpu, false);
                }
                Action::Inject { vector } | Action::Post { vector } => {
                    self.accept(cpu, vcpu, vector)?
                }
                Action::Spin(spin) => {
                    let ns = self.spin_ns(spin);
                    self.cpus[cpu].debt_ns += ns;
                }
                Action::Unblock => {
                    self.vcpus[vcpu].shared.request(Requests::UNBLOCK);
                    if matches!(self.vcpus[vcpu].run, VcpuRun::Polling | VcpuRun::Blocked) {
                        self.wake_vcpu(vcpu, cpu)?;
                    }
                }
                Action::Kick => {
                    let own = self.cpus[cpu].current == Some(self.vcpus[vcpu].task);
                    let kick = kick(&self.vcpus[vcpu].shared, Requests::UNBLOCK, own);
                    self.kicked(cpu, vcpu, kick)?;
                }
            }
        }
        Ok(())
    }

    fn trace_hv(&mut self, cpu: CpuNr, vcpu: VcpuNr, on: bool) {
        let index = self.vcpus[vcpu].index;
        self.emit(
            cpu,
            Kind::KvmHvTimerState {
                vcpu: VcpuId(index),
                hv_timer_in_use: on,
            },
        );
    }
}
