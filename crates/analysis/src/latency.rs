//! Latencies: wakeups, IPIs, LAPIC timers and interrupt injection.
//!
//! Interrupts are matched through a table of 256 vectors per vCPU: what made the vector pending,
//! and when. Nothing is guessed where an APIC id may mean vCPUs of different VMs.

use stealtime_events::{Context, NameId, Names};

use crate::Analysis;
use crate::cpu::{NO_VCPU, Sent};
use crate::hash::IntMap;
use crate::stats::Histogram;

/// Most LAPIC timers whose owner is remembered.
const MAX_TIMERS: usize = 1 << 16;
/// Most names of functions that are remembered.
const MAX_FUNCTIONS: usize = 1 << 12;

/// What woke a vCPU thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waker {
    /// Its LAPIC timer.
    Timer,
    /// An interrupt that another vCPU sent.
    Ipi,
    /// A hard interrupt or softirq.
    Irq,
    /// A task.
    Task,
    /// A task or an interrupt: the recording does not tell.
    Unknown,
}

/// All wakers, in the order of the enum, with their names.
pub(crate) const WAKERS: [&str; 5] = ["timer", "ipi", "irq", "task", "unknown"];

/// What fires a vCPU's LAPIC timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Backend {
    /// An hrtimer of the host, delivered by the vCPU itself.
    #[default]
    Hrtimer,
    /// The VMX preemption timer.
    PreemptionTimer,
    /// An hrtimer whose handler makes the interrupt pending at once (posted).
    Posted,
}

/// All backends, in the order of the enum, with their names.
pub(crate) const BACKENDS: [&str; 3] = ["hrtimer", "preemption_timer", "posted"];

/// A vector on its way to the guest.
#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    /// When the ICR was written for it.
    ipi: Option<u64>,
    /// When it was set in IRR.
    accepted: Option<u64>,
    /// When the timer fired for it, and by what.
    timer: Option<(u64, Backend)>,
    /// When the ICR was written for the one that the guest now handles.
    in_service: Option<u64>,
}

/// Latencies of one vCPU.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies {
    /// Runnable to running, by waker.
    pub(crate) wakeup: [Histogram; WAKERS.len()],
    pub(crate) ipi_accept: Histogram,
    pub(crate) ipi_inject: Histogram,
    pub(crate) ipi_eoi: Histogram,
    pub(crate) injection: Histogram,
    /// Expiry to injection, by backend.
    pub(crate) timer: [Histogram; BACKENDS.len()],
    pub(crate) timer_expire: Histogram,
    /// Timers whose interrupt was made pending by the handler of their hrtimer.
    pub(crate) posted: u64,
    /// The waker of the wakeup under way.
    pub(crate) waker: Option<Waker>,
    vectors: Option<Box<[Pending; 256]>>,
    /// A timer that fired and whose vector is not pending yet.
    fired: Option<(u64, Backend)>,
    /// Whether injections are traced for this vCPU at all.
    injects: bool,
    /// The hrtimer that its thread started last, and its expiry.
    last_started: Option<(u64, u64)>,
}

impl Latencies {
    /// Events were lost: nothing under way can be trusted.
    pub(crate) fn forget(&mut self) {
        self.vectors = None;
        self.fired = None;
        self.waker = None;
        self.last_started = None;
    }

    fn vector(&mut self, vector: u8) -> &mut Pending {
        let vectors = self
            .vectors
            .get_or_insert_with(|| Box::new([Pending::default(); 256]));
        &mut vectors[usize::from(vector)]
    }

    fn accept(&mut self, vector: u8, now: u64, sent: Option<u64>, counts: bool) {
        let fired = if sent.is_none() {
            self.fired.take()
        } else {
            None
        };
        if let (Some(sent), true) = (sent, counts) {
            self.ipi_accept.record(now.saturating_sub(sent));
        }
        let injects = self.injects;
        let pending = self.vector(vector);
        // A vector that is pending already is delivered once: the first request waits longest.
        // Without injections in the trace nobody says when it was taken.
        let is_fresh = pending.accepted.is_none() || !injects;
        if is_fresh {
            pending.accepted = Some(now);
            pending.ipi = sent;
            pending.timer = fired;
        } else {
            pending.ipi = pending.ipi.or(sent);
            pending.timer = pending.timer.or(fired);
        }
    }

    /// The timer that fired last was posted to hardware: nothing more will show of it.
    fn timer_posted(&mut self, now: u64, counts: bool) {
        if let (Some((fired, backend)), true) = (self.fired.take(), counts) {
            self.timer[backend as usize].record(now.saturating_sub(fired));
        }
    }

    fn inject(&mut self, vector: u8, now: u64, counts: bool) {
        self.injects = true;
        let pending = std::mem::take(self.vector(vector));
        self.vector(vector).in_service = pending.ipi;
        if !counts {
            return;
        }
        if let Some(accepted) = pending.accepted {
            self.injection.record(now.saturating_sub(accepted));
        }
        if let Some(sent) = pending.ipi {
            self.ipi_inject.record(now.saturating_sub(sent));
        }
        if let Some((fired, backend)) = pending.timer {
            self.timer[backend as usize].record(now.saturating_sub(fired));
        }
    }

    fn eoi(&mut self, vector: u8, now: u64, counts: bool) {
        let injects = self.injects;
        let pending = self.vector(vector);
        let mut sent = pending.in_service.take();
        if !injects {
            sent = sent.or(pending.ipi);
            *pending = Pending::default();
        }
        if let (Some(sent), true) = (sent, counts) {
            self.ipi_eoi.record(now.saturating_sub(sent));
        }
    }
}

/// What an hrtimer's function is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Function {
    /// A LAPIC timer of a guest.
    ApicTimer,
    /// The period timer of a bandwidth limit.
    BandwidthPeriod,
    /// Its slack timer, which runs only while a thread of its cgroup is throttled.
    BandwidthSlack,
    /// What makes another CPU's throttled threads runnable again.
    Unthrottle,
    /// The trace has no name for it.
    Unnamed,
    Other,
}

/// Signs that a bandwidth limit held back some thread of the host, which do not tell whose.
#[derive(Debug, Default)]
pub(crate) struct Throttling {
    /// Starts of slack timers.
    pub(crate) slack_starts: u64,
    /// CPUs told by another one to let throttled threads run again.
    pub(crate) unthrottled: u64,
}

/// hrtimers that matter.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// Owner and programmed expiry.
    owned: IntMap<u64, (u32, u64)>,
    functions: IntMap<u32, Function>,
}

impl Timers {
    fn function(&mut self, name: NameId, names: &dyn Names) -> Function {
        if let Some(&function) = self.functions.get(&name.0) {
            return function;
        }
        let function = match names.name(name).split(['/', '+']).next().unwrap_or("") {
            "apic_timer_fn" => Function::ApicTimer,
            "sched_cfs_period_timer" => Function::BandwidthPeriod,
            "sched_cfs_slack_timer" => Function::BandwidthSlack,
            "__cfsb_csd_unthrottle" => Function::Unthrottle,
            "" => Function::Unnamed,
            address if address.starts_with("0x") => Function::Unnamed,
            _ => Function::Other,
        };
        if self.functions.len() < MAX_FUNCTIONS {
            self.functions.insert(name.0, function);
        }
        function
    }

    fn own(&mut self, hrtimer: u64, vcpu: u32, expires: u64) {
        if self.owned.len() < MAX_TIMERS || self.owned.contains_key(&hrtimer) {
            self.owned.insert(hrtimer, (vcpu, expires));
        }
    }
}

impl Analysis {
    /// `hrtimer_start` in the context of `vcpu`'s thread.
    pub(crate) fn on_hrtimer_start(
        &mut self,
        (vcpu, counts): (Option<u32>, bool),
        context: Context,
        timer: (u64, u64),
        function: NameId,
        names: &dyn Names,
    ) {
        let (hrtimer, expires) = timer;
        let function = self.timers.function(function, names);
        if function == Function::BandwidthSlack && counts {
            self.throttling.slack_starts += 1;
        }
        if let Some(owned) = self.timers.owned.get_mut(&hrtimer) {
            owned.1 = expires;
            // Armed again: what an earlier expiry led to is over.
            if let Some(owner) = self.vcpus.get_mut(owned.0 as usize) {
                owner.latencies.fired = None;
            }
        }
        // One that is known already may be started anew by its handler, whoever is current.
        let is_own = context.in_task()
            || !context.in_interrupt() && !self.timers.owned.contains_key(&hrtimer);
        let Some(index) = vcpu.filter(|_| is_own) else {
            return;
        };
        match function {
            Function::ApicTimer => self.timers.own(hrtimer, index, expires),
            Function::Unnamed => {
                if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
                    vcpu.latencies.last_started = Some((hrtimer, expires));
                }
            }
            _ => {}
        }
    }

    /// `csd_function_entry`.
    pub(crate) fn on_csd_function(&mut self, counts: bool, function: NameId, names: &dyn Names) {
        if self.timers.function(function, names) == Function::Unthrottle && counts {
            self.throttling.unthrottled += 1;
        }
    }

    /// `kvm_hv_timer_state` in the vCPU's own context: when the timer is not in hardware, the
    /// hrtimer that the thread has just started is it.
    pub(crate) fn on_hv_timer(&mut self, index: u32, in_use: bool) {
        if let Some(vcpu) = self.vcpus.get_mut(index as usize)
            && let Some((hrtimer, expires)) = vcpu.latencies.last_started.take()
            && !in_use
        {
            self.timers.own(hrtimer, index, expires);
        }
    }

    /// `hrtimer_expire_entry`.
    pub(crate) fn on_hrtimer_expire(
        &mut self,
        cpu: u16,
        now: u64,
        timer: (u64, u64),
        function: NameId,
        names: &dyn Names,
    ) {
        let (hrtimer, now_ns) = timer;
        let function = self.timers.function(function, names);
        if matches!(
            function,
            Function::BandwidthPeriod | Function::BandwidthSlack
        ) {
            self.bandwidth_expiries += 1;
        }
        let Some(&(index, expires)) = self.timers.owned.get(&hrtimer) else {
            return;
        };
        let counts = self.window.has(now, cpu);
        if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
            vcpu.latencies.fired = Some((now, Backend::Hrtimer));
            if counts && now_ns >= expires {
                vcpu.latencies.timer_expire.record(now_ns - expires);
            }
        }
        if let Some(cpu) = self.cpus.get_mut(usize::from(cpu)) {
            cpu.expiring = index;
        }
    }

    /// The VMX preemption timer fired.
    pub(crate) fn on_preemption_timer(&mut self, index: u32, now: u64) {
        if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
            vcpu.latencies.fired = Some((now, Backend::PreemptionTimer));
        }
    }

    /// A vCPU asks for an interrupt at others: `kvm_apic_ipi`, or a hypercall that sends IPIs.
    pub(crate) fn on_ipi(&mut self, cpu: u16, now: u64, vcpu: u32, vector: Option<u8>) {
        if let Some(cpu) = self.cpus.get_mut(usize::from(cpu)) {
            cpu.sent = Some(Sent {
                time: now,
                vcpu,
                vector,
            });
        }
    }

    /// `kvm_apic_accept_irq`, or `kvm_apicv_accept_irq` of a vector that the hardware delivers.
    pub(crate) fn on_accept(
        &mut self,
        number: u16,
        now: u64,
        (apicid, vector): (u32, u8),
        by_hardware: bool,
    ) {
        let Some(cpu) = self.cpus.get_mut(usize::from(number)) else {
            return;
        };
        let in_task = cpu.expiring == NO_VCPU && !cpu.in_interrupt();
        let current = Some(cpu.vcpu).filter(|&vcpu| in_task && vcpu != NO_VCPU);
        let expiring = cpu.expiring;
        let sent = cpu.sent.filter(|sent| {
            in_task && sent.vcpu == cpu.vcpu && sent.vector.is_none_or(|asked| asked == vector)
        });
        cpu.accepted = current.map(|_| apicid);
        if self.options.skip.latencies {
            return;
        }
        let Some(target) = self.target_of(apicid, current, expiring) else {
            return;
        };
        let counts = self.window.has(now, number);
        if let Some(vcpu) = self.vcpus.get_mut(target as usize) {
            if target == expiring
                && let Some(fired) = &mut vcpu.latencies.fired
            {
                fired.1 = Backend::Posted;
                vcpu.latencies.posted += u64::from(counts);
                if by_hardware {
                    vcpu.latencies.timer_posted(now, counts);
                }
            }
            vcpu.latencies
                .accept(vector, now, sent.map(|sent| sent.time), counts);
        }
    }

    /// The vCPU with this APIC id, seen from the vCPU whose thread is current or whose timer is
    /// expiring; `None` if it could be one of several VMs'.
    fn target_of(&self, apicid: u32, current: Option<u32>, expiring: u32) -> Option<u32> {
        let seen_from = current.or(Some(expiring).filter(|&vcpu| vcpu != NO_VCPU));
        if let Some(from) = seen_from
            && self.vcpus.get(from as usize)?.id.0 == apicid
        {
            return Some(from);
        }
        let all = self.by_id.get(&apicid)?;
        let alive = |index: u32| self.is_alive(index);
        if let Some(from) = seen_from
            && let Some(&linked) = all
                .iter()
                .find(|&&to| alive(to) && self.are_linked(from, to))
        {
            return Some(linked);
        }
        let mut alive = all.iter().copied().filter(|&index| alive(index));
        let only = alive.next()?;
        alive.next().is_none().then_some(only)
    }

    /// `kvm_inj_virq` in the vCPU's own context.
    pub(crate) fn on_inject(&mut self, index: u32, cpu: u16, now: u64, vector: u32) {
        let counts = self.window.has(now, cpu);
        if let (Some(vcpu), Ok(vector)) = (self.vcpus.get_mut(index as usize), u8::try_from(vector))
        {
            vcpu.latencies.inject(vector, now, counts);
        }
    }

    /// `kvm_eoi` in the vCPU's own context. KVM writes vector -1 if nothing was in service.
    pub(crate) fn on_eoi(&mut self, index: u32, cpu: u16, now: u64, vector: i32) {
        let counts = self.window.has(now, cpu);
        if let (Some(vcpu), Ok(vector)) = (self.vcpus.get_mut(index as usize), u8::try_from(vector))
        {
            vcpu.latencies.eoi(vector, now, counts);
        }
    }
}
