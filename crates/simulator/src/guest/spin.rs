//! Spinning: what ends it, and what limits it.

use stealtime_hypervisor::directed_yield::ple::PleVendor;

use super::{Micro, Spin, SpinLimit, SpinOn};
use crate::at::At;
use crate::fault::{Fault, Sim};
use crate::ids::{CpuNr, Number, ThreadNr, VcpuNr};
use crate::kvm::{Exit, Vcpu, VcpuRun};
use crate::machine::{Machine, Message};
use crate::scale::mul_div;

/// Cycles of a PAUSE: Skylake and later (Intel's optimization manual, section 2.5.4). Before, it
/// was about 10.
const PAUSE_CYCLES: u64 = 140;
/// Rounds of PAUSE before the waiter for a paravirtual spinlock halts (`SPIN_THRESHOLD`).
const SPIN_THRESHOLD: u64 = 1 << 15;
/// Rounds of looking before the waiter for a spinlock that yields does so again (`spin_retry` of
/// s390), and the cycles of one: a load from the first level, two tests and a branch (estimate).
const SPIN_RETRY: u64 = 1000;
const LOOK_CYCLES: u64 = 8;
/// A spin that is longer than this is looked at: it may never end. In ns.
const LOOK_AFTER_NS: u64 = 10_000_000_000;

/// What a spinner finds when it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// What it waited for.
    Over,
    /// Nothing; it goes on.
    Wait,
    /// Nothing, and it has waited long enough: it halts until it is kicked.
    Halt,
    /// Nothing; its CPU goes to this vCPU of the VM, which it waits for.
    Yield(u32),
}

impl Machine<'_> {
    /// The vCPU begins to spin, or looks again. `true`: it goes on spinning, and time passes.
    pub(crate) fn guest_spin(&mut self, cpu: CpuNr, vcpu: VcpuNr, on: SpinOn) -> Sim<bool> {
        let now = self.now;
        let spin = self.vcpus[vcpu].guest.spin.get_or_insert(Spin {
            on,
            since_ns: now,
            running_since: At::NEVER,
            spun_ns: 0,
        });
        let since = spin.since_ns;
        match self.look(vcpu, on)? {
            Look::Over => {
                self.vcpus[vcpu].guest.spin = None;
                if on == SpinOn::IdlePoll {
                    self.guest_polled(vcpu, now - since);
                }
                Ok(false)
            }
            Look::Halt => {
                let g = &mut self.vcpus[vcpu].guest;
                g.push_next(Micro::Spin(on));
                g.push_next(Micro::Exit(Exit::Hlt));
                Ok(false)
            }
            Look::Yield(owner) => {
                let g = &mut self.vcpus[vcpu].guest;
                g.push_next(Micro::Spin(on));
                g.push_next(Micro::Exit(Exit::SchedYield { vcpu: owner }));
                Ok(false)
            }
            Look::Wait => {
                if now - since > LOOK_AFTER_NS && !matches!(on, SpinOn::IdlePoll | SpinOn::Mwait) {
                    self.check_guest(self.vcpus[vcpu].vm)?;
                }
                self.spin_on(cpu, vcpu, on);
                Ok(true)
            }
        }
    }

    /// What the spinner sees. This is where a paravirtual lock changes hands and waiters halt.
    fn look(&mut self, vcpu: VcpuNr, on: SpinOn) -> Sim<Look> {
        match on {
            SpinOn::Lock(lock) => Ok(self.look_at_lock(vcpu, lock)),
            SpinOn::Mutex(_) | SpinOn::Call | SpinOn::IdlePoll | SpinOn::Mwait => {
                let over = self.spin_is_over(vcpu, on);
                Ok(if over { Look::Over } else { Look::Wait })
            }
        }
    }

    /// Whether the spinner would stop if it looked now.
    fn spin_is_over(&self, vcpu: VcpuNr, on: SpinOn) -> bool {
        let g = &self.vcpus[vcpu].guest;
        let wanted = g.resched != stealtime_hypervisor::eevdf::Resched::None;
        match on {
            SpinOn::Lock(lock) => self.lock_wants_look(vcpu, lock),
            SpinOn::Mutex(mutex) => {
                !self.mutex_may_spin(vcpu, mutex) || self.mutex_is_free(vcpu, mutex)
            }
            SpinOn::Call => g.awaited_calls == 0,
            SpinOn::Mwait => wanted || !g.calls.is_empty(),
            SpinOn::IdlePoll => {
                let waited = g.spin.map_or(0, |spin| self.now - spin.since_ns);
                wanted || !g.calls.is_empty() || waited >= g.halt_poll.limit_ns()
            }
        }
    }

    /// Spins until a limit, or until it is told that there is something to see.
    fn spin_on(&mut self, cpu: CpuNr, vcpu: VcpuNr, on: SpinOn) {
        let now = self.now + self.cpus[cpu].debt_ns;
        let vm = self.vcpus[vcpu].vm;
        let pauses = on != SpinOn::Mwait;
        // VMX counts pause loops at CPL 0 only.
        let pauses =
            pauses && (self.cfg.host.profile.features.svm || self.vcpus[vcpu].guest.in_kernel());
        let ple = self.cfg.host.profile.features.ple
            && self.cfg.knobs.kvm.ple.gap > 0
            && !self.vms[vm].cfg.guest.pause_in_guest
            && pauses;
        let ple = ple.then(|| self.ple_window_ns(vcpu));
        let own = self.patience_ns(vcpu, on);
        let (limit, until) = match (ple, own) {
            (Some(a), Some(b)) if b <= a => (SpinLimit::Own, Some(b)),
            (None, Some(b)) => (SpinLimit::Own, Some(b)),
            (Some(a), _) => (SpinLimit::Ple, Some(a)),
            (None, None) => (SpinLimit::None, None),
        };
        let v = &mut self.vcpus[vcpu];
        v.guest.running = Some(Micro::Spin(on));
        v.guest.spin_limit = limit;
        if let Some(spin) = &mut v.guest.spin {
            spin.running_since = At::ns(now);
        }
        let hv = v.hv_at.get().map(|at| at.saturating_sub(now));
        let until = match (until, hv) {
            (Some(ns), hv) if limit == SpinLimit::Ple && hv.is_none_or(|hv| ns < hv) => {
                // Nobody but the vCPU has to do with its exit: the window and the way out of the
                // guest pass as one.
                v.step_ends = now + ns;
                v.guest.spin_limit = SpinLimit::PleAndExit;
                Some(ns + u64::from(self.costs.vmexit_ns))
            }
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if let Some(ns) = until {
            self.stay(cpu, ns);
        }
    }

    /// A spinner whose window is over by now is on its way out of the guest.
    pub(crate) fn spin_left(&mut self, cpu: CpuNr, vcpu: VcpuNr) {
        let v = &mut self.vcpus[vcpu];
        if !matches!(v.guest.running, Some(Micro::Spin(_)))
            || v.guest.spin_limit != SpinLimit::PleAndExit
            || self.now < v.step_ends
        {
            return;
        }
        if let Some(spin) = v.guest.running.take() {
            v.guest.push_next(spin);
        }
        let at = v.step_ends;
        (v.run, v.exit) = (VcpuRun::Exiting, Exit::Pause);
        self.cpus[cpu].irqs_off = true;
        self.spin_stretch_over(vcpu, at);
    }

    fn ple_window_ns(&self, vcpu: VcpuNr) -> u64 {
        let window = u64::from(self.vcpus[vcpu].ple.window());
        let cycles = match self.cfg.knobs.kvm.ple.vendor {
            PleVendor::Vmx => window,
            PleVendor::Svm => window * PAUSE_CYCLES,
        };
        self.ns_of_cycles(cycles).max(1)
    }

    fn ns_of_cycles(&self, cycles: u64) -> u64 {
        mul_div(cycles, 1_000_000, u64::from(self.costs.tsc_khz.max(1)))
    }

    /// How much longer the spinner itself would go on.
    fn patience_ns(&self, vcpu: VcpuNr, on: SpinOn) -> Option<u64> {
        let v = &self.vcpus[vcpu];
        let spin = v.guest.spin?;
        match on {
            SpinOn::Lock(lock) if self.halts_for_lock(v.vm, lock) => {
                Some(self.spin_threshold_ns().saturating_sub(spin.spun_ns).max(1))
            }
            SpinOn::Lock(lock) if self.yields_to_owner(v.vm, lock) => {
                Some(self.spin_retry_ns().saturating_sub(spin.spun_ns).max(1))
            }
            SpinOn::IdlePoll => {
                let waited = self.now - spin.since_ns;
                Some(v.guest.halt_poll.limit_ns().saturating_sub(waited).max(1))
            }
            _ => None,
        }
    }

    pub(crate) fn spin_retry_ns(&self) -> u64 {
        self.ns_of_cycles(SPIN_RETRY * LOOK_CYCLES).max(1)
    }

    pub(crate) fn spin_threshold_ns(&self) -> u64 {
        self.ns_of_cycles(SPIN_THRESHOLD * PAUSE_CYCLES).max(1)
    }

    /// The stretch of spinning ended at `at`, for whatever reason.
    pub(crate) fn spin_stretch_over(&mut self, vcpu: VcpuNr, at: u64) {
        let v = &mut self.vcpus[vcpu];
        let Some(spin) = &mut v.guest.spin else {
            return;
        };
        if let Some(since) = spin.running_since.take() {
            let spent = at.saturating_sub(since);
            spin.spun_ns += spent;
            if !matches!(spin.on, SpinOn::IdlePoll | SpinOn::Mwait) {
                v.books.spun(spent);
            }
        }
    }

    /// What a vCPU may be spinning for has happened. It sees that when the line reaches it, or
    /// when it runs again.
    pub(crate) fn poke(&mut self, vcpu: VcpuNr) {
        if self.spins_now(vcpu) {
            let at = self.now + u64::from(self.costs.cache_line_ns);
            self.post(at, Message::SpinOver { vcpu });
        }
    }

    fn spins_now(&self, vcpu: VcpuNr) -> bool {
        let v = &self.vcpus[vcpu];
        let left = v.guest.spin_limit == SpinLimit::PleAndExit && self.now >= v.step_ends;
        v.run == VcpuRun::Guest && !left && matches!(v.guest.running, Some(Micro::Spin(_)))
    }

    /// The line has reached a spinner.
    pub(crate) fn spin_noticed(&mut self, vcpu: VcpuNr) -> Sim {
        let v = &self.vcpus[vcpu];
        let cpu = self.tasks[v.task].cpu;
        if !self.spins_now(vcpu) || self.guest_on(cpu) != Some(vcpu) {
            return Ok(());
        }
        let Some(spin) = v.guest.spin else {
            return Ok(());
        };
        if !self.spin_is_over(vcpu, spin.on) {
            return Ok(());
        }
        self.stop_guest(cpu, vcpu);
        self.guest_resume(cpu, vcpu)
    }

    /// The vCPU of its VM that a spinning vCPU waits for, as the guest and the simulator know it: of
    /// several whose answers it needs, the first.
    pub(crate) fn spin_waits_for(&self, vcpu: VcpuNr) -> Option<u32> {
        let v = &self.vcpus[vcpu];
        let kernel = &self.vms[v.vm].kernel;
        match v.guest.spin?.on {
            SpinOn::Lock(lock) => Some(kernel.spinlocks[lock.0 as usize].owner?.vcpu),
            SpinOn::Mutex(mutex) => {
                let owner: Option<ThreadNr> = kernel.mutexes[mutex.0 as usize].owner;
                Some(kernel.threads[owner?].vcpu)
            }
            SpinOn::Call => {
                let first = self.vms[v.vm].first_vcpu.index();
                let all = first..first + self.vms[v.vm].vcpus as usize;
                let mut all = self.vcpus.as_slice().get(all).unwrap_or_default().iter();
                let called = |one: &&Vcpu| one.guest.calls.contains(&v.index);
                Some(all.find(called)?.index)
            }
            SpinOn::IdlePoll | SpinOn::Mwait => None,
        }
    }

    /// The program did what no kernel would survive.
    pub(crate) fn wrong_program<T>(&self, vcpu: VcpuNr, what: &str) -> Sim<T> {
        let v = &self.vcpus[vcpu];
        let vm = &self.vms[v.vm];
        let thread = v.guest.current.map_or("the idle thread", |thread| {
            vm.kernel.threads[thread].name.as_str()
        });
        Err(Box::new(Fault::Workload {
            vm: vm.cfg.name.to_string(),
            what: format!("{thread} {what}"),
        }))
    }
}
