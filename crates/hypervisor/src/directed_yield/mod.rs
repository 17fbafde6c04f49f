//! Directed yield: a vCPU that spins gives its CPU to the one it probably waits for.
//!
//! Three reasons make a vCPU a good candidate, in this order of strength:
//!
//! 1. it is the confirmed receiver of an IPI that the spinner sent a moment ago, or the vCPU that
//!    the guest named ([`crate::ipi_tracking`]);
//! 2. an interrupt is pending for it;
//! 3. it was preempted, in kernel mode if the spinner is.
//!
//! Upstream's code (and the posted series) scans once, round robin, and takes the first candidate
//! with *any* of these reasons, though the series' prose promises the order above. Both are here:
//! [`CandidateOrder::Scan`] and [`CandidateOrder::Priority`]. The second needs no scan at all while the
//! confirmed receiver is known and eligible.
//!
//! | knob | default | |
//! |---|---|---|
//! | `kvm.ipi_tracking_enabled` | 1 | reason 1 |
//! | `kvm.ipi_window_ns` | 50 000 000 | how long it is believed |
//! | `kvm.enable_relaxed_boost` | 1 | a second pass that asks for "preempted" only |
//! | `kvm.ipi_aware_yield` | 1 (no upstream name) | off: 7.2's filter, bit for bit |
//! | `kvm.yield_order` | scan (no upstream name) | scan or priority |
//! | `kvm.last_boosted` | index (no upstream name) | what a search leaves for the next one |

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

/// In which order candidates are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CandidateOrder {
    /// Round robin; the first acceptable one, whatever the reason.
    #[default]
    Scan,
    /// The confirmed receiver, then those with a pending interrupt, then the preempted.
    Priority,
}

/// What `last_boosted_vcpu` holds after a yield: the next search begins one after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LastBoosted {
    /// The index of the vCPU that was boosted.
    #[default]
    Index,
    /// How many vCPUs the search had looked past (commit 7e513617da71, mended by 32bd348be3fa in 6.19): it
    /// begins near vCPU 1 again and again.
    Steps,
}

/// Parameters of the selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct YieldKnobs {
    /// IPI tracking and its window.
    pub ipi: IpiKnobs,
    /// `kvm.ipi_aware_yield`: the series' filter; off, it is 7.2's, without a relaxed pass.
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
    /// What 7.2 does.
    #[must_use]
    pub fn upstream() -> Self {
        Self {
            ipi_aware: false,
            enable_relaxed_boost: false,
            ..Self::default()
        }
    }
}

/// What the scheduler said to a yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum YieldTo {
    /// Above 0: the target is nominated and the caller gives up its CPU.
    Yielded,
    /// 0: not now (running already, other class, its task's lock contended, no task).
    Declined,
    /// `-ESRCH`: neither CPU has anybody else to run.
    BothAlone,
}

/// Why a candidate was taken.
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

/// The rest of what must be known, by the hypervisor that calls.
pub trait YieldHost {
    /// The words of the vCPUs' shared flags.
    type Word: AtomicWord;

    /// vCPUs that are online; their indexes are 0 up to this.
    fn online_vcpus(&self) -> u32;
    /// A vCPU's flags; `None` while it is created or destroyed.
    fn state(&self, vcpu: u32) -> Option<&YieldState<Self::Word>>;
    /// The contexts of IPI tracking, by index; empty where nothing is tracked.
    fn ipi_contexts(&self) -> &[IpiContext<Self::Word>];
    /// The vCPU is inside its wait.
    fn blocking(&self, vcpu: u32) -> bool;
    /// A halted vCPU has something to do: an unhalt by a PV lock, an NMI, SMI or event request, a
    /// finished asynchronous page fault (`kvm_arch_dy_runnable`, without the next one).
    fn dy_runnable(&self, vcpu: u32) -> bool;
    /// With APICv, an interrupt is posted (`kvm_arch_dy_has_pending_interrupt`).
    fn pending_interrupt(&self, vcpu: u32) -> bool;
    /// Yields to the vCPU's task (`kvm_vcpu_yield_to`).
    fn yield_to(&mut self, vcpu: u32) -> YieldTo;
}

/// How a spin ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpinOutcome {
    /// The vCPU that was boosted, and why it was chosen.
    pub boosted: Option<(u32, Reason)>,
    /// Yields tried, whatever came of them.
    pub yields: u32,
    /// vCPUs looked at.
    pub looked_at: u32,
    /// The relaxed pass was needed.
    pub relaxed: bool,
}

/// Yields that end in `-ESRCH` before a spin gives up.
const TRIES: u32 = 3;

/// A VM's memory of directed yields.
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
    /// A VM that has not yielded yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            last_boosted_vcpu: W::new(0),
        }
    }

    /// The vCPU that was boosted last; the next scan starts after it.
    #[must_use]
    pub fn last_boosted_vcpu(&self) -> u32 {
        self.last_boosted_vcpu.load(Ordering::Relaxed) as u32
    }

    /// vCPU `me` spins; `kernel_mode`: it does so at CPL 0 (`kvm_vcpu_on_spin`).
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
            start: self.last_boosted_vcpu(),
            tries: TRIES,
            outcome: SpinOutcome::default(),
        };
        spin.run();
        let (outcome, first) = (spin.outcome, spin.first());
        if let Some((vcpu, _)) = outcome.boosted {
            let last = match knobs.last_boosted {
                LastBoosted::Index => vcpu,
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
        if let Some((vcpu, reason)) = outcome.boosted {
            events.boosted(me, vcpu, reason);
        }
        Ok(outcome)
    }
}

/// Whether the search goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    GoesOn,
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
        // A vCPU has one turn: in the pass of its strongest reason. The first pass also sees
        // where the second has to begin, if at all.
        let weaker_from = Cell::new(None);
        let pending = |spin: &Self, vcpu, flags| {
            if Some(vcpu) == confirmed {
                None
            } else if spin.host.pending_interrupt(vcpu) {
                Some(Reason::PendingInterrupt)
            } else {
                if weaker_from.get().is_none() && spin.preempted_reason(flags).is_some() {
                    weaker_from.set(Some(vcpu));
                }
                None
            }
        };
        if self.scan(pending) == Search::Over {
            return;
        }
        let Some(from) = weaker_from.get() else {
            return;
        };
        self.scan_from(from, |spin, vcpu, flags| {
            (Some(vcpu) != confirmed && !spin.host.pending_interrupt(vcpu))
                .then(|| spin.preempted_reason(flags))
                .flatten()
        });
    }

    /// Once around, beginning after the vCPU boosted last.
    fn scan(&mut self, reason: impl Fn(&Self, u32, YieldFlags) -> Option<Reason>) -> Search {
        self.scan_from(self.first(), reason)
    }

    /// Where a round begins: after the vCPU boosted last.
    fn first(&self) -> u32 {
        ((u64::from(self.start) + 1) % u64::from(self.online)) as u32
    }

    /// The rest of the round, from `vcpu` on.
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
        Search::GoesOn
    }

    fn consider(
        &mut self,
        vcpu: u32,
        reason: &impl Fn(&Self, u32, YieldFlags) -> Option<Reason>,
    ) -> Search {
        self.outcome.looked_at += 1;
        let Some(state) = self.host.state(vcpu) else {
            return Search::GoesOn;
        };
        let flags = state.flags();
        if !flags.has(YieldFlags::READY) || !self.worth_running(vcpu) {
            return Search::GoesOn;
        }
        let Some(reason) = reason(self, vcpu, flags) else {
            return Search::GoesOn;
        };
        if !state.ask_eligible(flags) {
            return Search::GoesOn;
        }
        self.outcome.yields += 1;
        match self.host.yield_to(vcpu) {
            YieldTo::Yielded => {
                self.outcome.boosted = Some((vcpu, reason));
                Search::Over
            }
            YieldTo::Declined => Search::GoesOn,
            YieldTo::BothAlone => {
                self.tries = self.tries.saturating_sub(1);
                if self.tries == 0 {
                    Search::Over
                } else {
                    Search::GoesOn
                }
            }
        }
    }

    /// A halted vCPU is only worth a CPU if something is there for it.
    fn worth_running(&self, vcpu: u32) -> bool {
        !self.host.blocking(vcpu)
            || self.host.dy_runnable(vcpu)
            || self.host.pending_interrupt(vcpu)
    }

    /// 7.2: a vCPU that is ready without having been preempted passes.
    fn upstream_reason(&self, vcpu: u32, flags: YieldFlags) -> Option<Reason> {
        let in_kernel = flags.has(YieldFlags::PREEMPTED_IN_KERNEL);
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
