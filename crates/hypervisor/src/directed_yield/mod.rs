//! Directed yield: a spinning vCPU yields its CPU to the vCPU that it probably waits for.
//!
//! Three reasons make a vCPU a candidate, in this order of strength:
//!
//! 1. it is the confirmed receiver of a recent IPI of the spinner, or the vCPU that the guest has
//!    named ([`crate::ipi_tracking`]);
//! 2. an interrupt is pending for it;
//! 3. it was preempted, in kernel mode if the spinner is.
//!
//! Upstream and the code of the posted series scan once, round robin, and take the first candidate
//! with *any* of these reasons ([`CandidateOrder::Scan`]). The description of the series has the
//! order above ([`CandidateOrder::Priority`]), which needs no scan while the confirmed receiver is
//! known and eligible.
//!
//! | knob | default | |
//! |---|---|---|
//! | `kvm.ipi_tracking_enabled` | 1 | reason 1 |
//! | `kvm.ipi_window_ns` | 50 000 000 | longest age of a record |
//! | `kvm.enable_relaxed_boost` | 1 | a second pass for any preempted vCPU |
//! | `kvm.ipi_aware_yield` | 1 (no upstream name) | off: 7.2's filter, bit for bit |
//! | `kvm.yield_order` | scan (no upstream name) | scan or priority |
//! | `kvm.last_boosted` | index (no upstream name) | where the next search begins |
//!
//! # Example
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use stealtime_hypervisor::directed_yield::{
//!     DirectedYield, Reason, SchedOut, YieldHost, YieldKnobs, YieldState, YieldTo,
//! };
//! use stealtime_hypervisor::ipi_tracking::{IpiContext, NoSuchVcpu};
//!
//! struct Vm([YieldState<AtomicU64>; 2]);
//!
//! impl YieldHost for Vm {
//!     type Word = AtomicU64;
//!     fn online_vcpus(&self) -> u32 { 2 }
//!     fn state(&self, vcpu: u32) -> Option<&YieldState<AtomicU64>> { self.0.get(vcpu as usize) }
//!     fn ipi_contexts(&self) -> &[IpiContext<AtomicU64>] { &[] }
//!     fn blocking(&self, _vcpu: u32) -> bool { false }
//!     fn dy_runnable(&self, _vcpu: u32) -> bool { false }
//!     fn pending_interrupt(&self, _vcpu: u32) -> bool { false }
//!     fn yield_to(&mut self, _vcpu: u32) -> YieldTo { YieldTo::Yielded }
//! }
//!
//! // vCPU 1 is preempted in kernel mode; vCPU 0 spins in kernel mode on a lock.
//! let mut vm = Vm([YieldState::new(), YieldState::new()]);
//! vm.0[1].sched_out(SchedOut { runnable: true, wants_to_run: true, in_kernel: true });
//! let yields = DirectedYield::<AtomicU64>::new();
//! let outcome = yields.on_spin(&mut vm, &YieldKnobs::default(), 0, true, 0, &())?;
//! let boost = outcome.boosted.expect("the only candidate");
//! assert_eq!((boost.vcpu, boost.reason), (1, Reason::Preempted));
//! # Ok::<(), NoSuchVcpu>(())
//! ```

mod state;

pub mod ple;

use core::cell::Cell;
use core::sync::atomic::Ordering;

pub use self::state::{SchedOut, YieldFlags, YieldState};
use crate::events::Events;
use crate::ipi_tracking::{
    Awaited, IpiContext, IpiKnobs, NoSuchVcpu, confirmed_receiver, is_ipi_receiver,
};
use crate::word::AtomicWord;

/// The order in which candidates are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CandidateOrder {
    /// Round robin: the first candidate, regardless of its reason.
    #[default]
    Scan,
    /// The confirmed receiver, then vCPUs with a pending interrupt, then preempted ones.
    Priority,
}

/// The value of `last_boosted_vcpu` after a yield: the next search begins after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LastBoosted {
    /// The index of the boosted vCPU.
    #[default]
    Index,
    /// The number of vCPUs that the search has passed (commit 7e513617da71, fixed by 32bd348be3fa
    /// in 6.19), so that searches begin near vCPU 1.
    Steps,
}

/// Parameters of the selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct YieldKnobs {
    /// IPI tracking and its window.
    pub ipi: IpiKnobs,
    /// `kvm.ipi_aware_yield`: the filter of the series. Off: that of 7.2, without a relaxed pass.
    pub ipi_aware: bool,
    /// `kvm.enable_relaxed_boost`.
    pub enable_relaxed_boost: bool,
    /// `kvm.yield_order`.
    pub order: CandidateOrder,
    /// `kvm.last_boosted`.
    pub last_boosted: LastBoosted,
}

impl Default for YieldKnobs {
    fn default() -> Self {
        Self {
            ipi: IpiKnobs::default(),
            ipi_aware: true,
            enable_relaxed_boost: true,
            order: CandidateOrder::Scan,
            last_boosted: LastBoosted::Index,
        }
    }
}

impl YieldKnobs {
    /// The behaviour of Linux 7.2.
    #[must_use]
    pub fn upstream() -> Self {
        Self {
            ipi_aware: false,
            enable_relaxed_boost: false,
            ..Self::default()
        }
    }
}

/// The scheduler's answer to a yield (the return value of `yield_to`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum YieldTo {
    /// Above 0: the target is nominated and the caller yields its CPU.
    Yielded,
    /// 0: the target is current, of another class, has its lock contended, or has no task.
    Declined,
    /// `-ESRCH`: neither CPU has another task.
    BothAlone,
}

/// The reason for which a candidate is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The confirmed receiver of the spinner's IPI, or the guest's hint.
    Confirmed,
    /// An interrupt is pending for it.
    PendingInterrupt,
    /// Preempted (in kernel mode if the spinner is); under 7.2's filter also woken and waiting.
    Preempted,
    /// The relaxed pass: preempted.
    Relaxed,
}

/// The caller's side of a directed yield: the VM's vCPUs and the scheduler.
pub trait YieldHost {
    /// The words of the vCPUs' shared flags.
    type Word: AtomicWord;

    /// Number of online vCPUs; their indexes are below it.
    fn online_vcpus(&self) -> u32;
    /// A vCPU's flags; `None` while it is created or destroyed.
    fn state(&self, vcpu: u32) -> Option<&YieldState<Self::Word>>;
    /// The contexts of IPI tracking, by index; empty without tracking.
    fn ipi_contexts(&self) -> &[IpiContext<Self::Word>];
    /// Whether the vCPU blocks.
    fn blocking(&self, vcpu: u32) -> bool;
    /// Whether a halted vCPU has work (`kvm_arch_dy_runnable`, except pending interrupts). That is
    /// an unhalt by a PV lock, an NMI, SMI or event request, or a completed asynchronous page
    /// fault.
    fn dy_runnable(&self, vcpu: u32) -> bool;
    /// Whether an interrupt is posted, with APICv (`kvm_arch_dy_has_pending_interrupt`).
    fn pending_interrupt(&self, vcpu: u32) -> bool;
    /// Yields to the vCPU's task (`kvm_vcpu_yield_to`).
    fn yield_to(&mut self, vcpu: u32) -> YieldTo;
}

/// A vCPU that a spinner has boosted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Boost {
    /// The vCPU.
    pub vcpu: u32,
    /// The reason for its choice.
    pub reason: Reason,
}

/// The outcome of a spin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpinOutcome {
    /// The boosted vCPU, if any.
    pub boosted: Option<Boost>,
    /// Number of yields tried.
    pub yields: u32,
    /// Number of vCPUs considered.
    pub looked_at: u32,
    /// Whether the relaxed pass was needed.
    pub relaxed: bool,
}

/// Yields that end in `-ESRCH` before a spin gives up (`try` of `kvm_vcpu_on_spin`).
const TRIES: u32 = 3;

/// The state of a VM's directed yields.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DirectedYield<W> {
    last_boosted_vcpu: W,
}

impl<W: AtomicWord> Default for DirectedYield<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: AtomicWord> DirectedYield<W> {
    /// The state of a new VM.
    #[must_use]
    pub fn new() -> Self {
        Self {
            last_boosted_vcpu: W::new(0),
        }
    }

    /// The last boosted vCPU; the next scan starts after it.
    #[must_use]
    pub fn last_boosted_vcpu(&self) -> u32 {
        self.last_boosted_vcpu.load(Ordering::Relaxed) as u32
    }

    /// vCPU `me` spins, at CPL 0 if `kernel_mode` (`kvm_vcpu_on_spin`).
    ///
    /// # Errors
    /// [`NoSuchVcpu`] if `me` is not one of at least two vCPUs.
    pub fn on_spin<H: YieldHost, E: Events>(
        &self,
        host: &mut H,
        knobs: &YieldKnobs,
        me: u32,
        kernel_mode: bool,
        now_ns: u64,
        events: &E,
    ) -> Result<SpinOutcome, NoSuchVcpu> {
        let online = host.online_vcpus();
        if online < 2 {
            return Ok(SpinOutcome::default());
        }
        let spinner = (me < online).then(|| host.state(me)).flatten();
        spinner
            .ok_or(NoSuchVcpu {
                vcpu: me,
                vcpus: online as usize,
            })?
            .begin_spin();
        let mut spin = Spin {
            host,
            knobs,
            me,
            kernel_mode,
            now_ns,
            online,
            // `READ_ONCE` without a lock, as upstream. Spinners that race begin at the same vCPU,
            // which costs fairness only.
            start: self.last_boosted_vcpu(),
            tries: TRIES,
            outcome: SpinOutcome::default(),
        };
        spin.run();
        let (outcome, first) = (spin.outcome, spin.first());
        debug_assert!(
            outcome.yields <= outcome.looked_at,
            "a yield without a candidate"
        );
        if let Some(Boost { vcpu, .. }) = outcome.boosted {
            debug_assert!(vcpu < online && vcpu != me);
            let last = match knobs.last_boosted {
                LastBoosted::Index => vcpu,
                // The steps from `first` to the boosted vCPU, around the end of the array.
                LastBoosted::Steps if vcpu >= first => vcpu - first,
                LastBoosted::Steps => online - first + vcpu,
            };
            self.last_boosted_vcpu
                .store(u64::from(last), Ordering::Relaxed);
        }
        if let Some(spinner) = host.state(me) {
            spinner.end_spin();
        }
        events.spin(me, outcome.yields, outcome.looked_at, outcome.relaxed);
        if let Some(Boost { vcpu, reason }) = outcome.boosted {
            events.boosted(me, vcpu, reason);
        }
        Ok(outcome)
    }
}

/// Whether the search continues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    Continues,
    Over,
}

/// One call of `on_spin`.
struct Spin<'a, H> {
    host: &'a mut H,
    knobs: &'a YieldKnobs,
    me: u32,
    kernel_mode: bool,
    now_ns: u64,
    online: u32,
    start: u32,
    tries: u32,
    outcome: SpinOutcome,
}

impl<H: YieldHost> Spin<'_, H> {
    fn run(&mut self) {
        match (self.knobs.ipi_aware, self.knobs.order) {
            (false, _) => {
                self.scan(Self::upstream_reason);
                return;
            }
            (true, CandidateOrder::Scan) => {
                self.scan(Self::any_reason);
            }
            (true, CandidateOrder::Priority) => self.by_priority(),
        }
        if self.outcome.boosted.is_none() && self.knobs.enable_relaxed_boost {
            self.outcome.relaxed = true;
            self.scan(Self::relaxed_reason);
        }
    }

    fn by_priority(&mut self) {
        let contexts = self.host.ipi_contexts();
        let awaited = confirmed_receiver(contexts, &self.knobs.ipi, self.me, self.now_ns);
        let confirmed = awaited.map(|Awaited { receiver, .. }| receiver);
        if let Some(vcpu) = confirmed.filter(|&vcpu| vcpu < self.online && vcpu != self.me) {
            let search = self.consider(vcpu, &|_, _, _| Some(Reason::Confirmed));
            if search == Search::Over {
                return;
            }
        }
        // Each vCPU is considered in the pass of its strongest reason only. The first pass also
        // finds the first vCPU of the second, if there is one.
        let first_preempted = Cell::new(None);
        let pending = |spin: &Self, vcpu, flags| {
            // It was considered above, and refused.
            if Some(vcpu) == confirmed {
                None
            } else if spin.host.pending_interrupt(vcpu) {
                Some(Reason::PendingInterrupt)
            } else {
                if first_preempted.get().is_none() && spin.preempted_reason(flags).is_some() {
                    first_preempted.set(Some(vcpu));
                }
                None
            }
        };
        if self.scan(pending) == Search::Over {
            return;
        }
        if let Some(first) = first_preempted.get() {
            self.scan_from(first, |spin, vcpu, flags| {
                (Some(vcpu) != confirmed && !spin.host.pending_interrupt(vcpu))
                    .then(|| spin.preempted_reason(flags))
                    .flatten()
            });
        }
    }

    /// One round, beginning after the last boosted vCPU.
    fn scan(&mut self, reason: impl Fn(&Self, u32, YieldFlags) -> Option<Reason>) -> Search {
        self.scan_from(self.first(), reason)
    }

    /// First vCPU of a round: the one after the last boosted vCPU.
    fn first(&self) -> u32 {
        ((u64::from(self.start) + 1) % u64::from(self.online)) as u32
    }

    /// The rest of a round, from `vcpu` on.
    fn scan_from(
        &mut self,
        vcpu: u32,
        reason: impl Fn(&Self, u32, YieldFlags) -> Option<Reason>,
    ) -> Search {
        let first = self.first();
        let (to_end, wrapped) = if vcpu < first {
            (0..0, vcpu..first)
        } else {
            (vcpu..self.online, 0..first)
        };
        for vcpu in to_end.chain(wrapped) {
            if vcpu != self.me && self.consider(vcpu, &reason) == Search::Over {
                return Search::Over;
            }
        }
        Search::Continues
    }

    fn consider(
        &mut self,
        vcpu: u32,
        reason: &impl Fn(&Self, u32, YieldFlags) -> Option<Reason>,
    ) -> Search {
        self.outcome.looked_at += 1;
        let Some(state) = self.host.state(vcpu) else {
            return Search::Continues;
        };
        let flags = state.flags();
        if !flags.has(YieldFlags::READY) || !self.worth_running(vcpu) {
            return Search::Continues;
        }
        let Some(reason) = reason(self, vcpu, flags) else {
            return Search::Continues;
        };
        // The last filter, because it toggles the eligibility of a spinner each time. A candidate
        // that another filter refuses must not use up its turn.
        if !state.check_eligible(flags) {
            return Search::Continues;
        }
        self.outcome.yields += 1;
        match self.host.yield_to(vcpu) {
            YieldTo::Yielded => {
                self.outcome.boosted = Some(Boost { vcpu, reason });
                Search::Over
            }
            // A return of 0: the task runs, has just blocked, or is throttled.
            YieldTo::Declined => Search::Continues,
            YieldTo::BothAlone => {
                // `-ESRCH`: both CPUs have one task each, so a yield gains nothing. A few of these
                // show that the host is not overcommitted, and the search ends.
                self.tries = self.tries.saturating_sub(1);
                if self.tries == 0 {
                    Search::Over
                } else {
                    Search::Continues
                }
            }
        }
    }

    /// Whether a vCPU has work: a halted one only with an event or an interrupt.
    fn worth_running(&self, vcpu: u32) -> bool {
        // A halted vCPU without work would halt again at once.
        !self.host.blocking(vcpu)
            || self.host.dy_runnable(vcpu)
            || self.host.pending_interrupt(vcpu)
    }

    /// The filter of 7.2, which accepts a ready vCPU that was not preempted.
    fn upstream_reason(&self, vcpu: u32, flags: YieldFlags) -> Option<Reason> {
        let in_kernel = flags.has(YieldFlags::PREEMPTED_IN_KERNEL);
        // A woken vCPU that waits for a CPU is ready and was not preempted. Its CPL is not asked
        // for.
        if !flags.has(YieldFlags::PREEMPTED) || !self.kernel_mode || in_kernel {
            Some(Reason::Preempted)
        } else if self.host.pending_interrupt(vcpu) {
            Some(Reason::PendingInterrupt)
        } else {
            None
        }
    }

    fn any_reason(&self, vcpu: u32, flags: YieldFlags) -> Option<Reason> {
        let contexts = self.host.ipi_contexts();
        if is_ipi_receiver(contexts, &self.knobs.ipi, self.me, vcpu, self.now_ns) {
            Some(Reason::Confirmed)
        } else if self.host.pending_interrupt(vcpu) {
            Some(Reason::PendingInterrupt)
        } else {
            self.preempted_reason(flags)
        }
    }

    fn preempted_reason(&self, flags: YieldFlags) -> Option<Reason> {
        let in_kernel = flags.has(YieldFlags::PREEMPTED_IN_KERNEL);
        (flags.has(YieldFlags::PREEMPTED) && (!self.kernel_mode || in_kernel))
            .then_some(Reason::Preempted)
    }

    fn relaxed_reason(&self, _vcpu: u32, flags: YieldFlags) -> Option<Reason> {
        flags.has(YieldFlags::PREEMPTED).then_some(Reason::Relaxed)
    }
}
