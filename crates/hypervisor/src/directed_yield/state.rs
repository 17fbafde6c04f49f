//! The state of each vCPU that directed yields read.

use core::sync::atomic::Ordering;

use crate::word::AtomicWord;

/// One vCPU's flags, read by every spinning vCPU: one word, so that a candidate costs one load.
///
/// Unlike upstream's separate fields they change by atomic read-modify-writes, so that concurrent
/// changes lose no flag. Readers take no lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct YieldState<W> {
    flags: W,
}

/// A copy of a vCPU's flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct YieldFlags(u64);

impl YieldFlags {
    /// Preempted while runnable, or woken and waiting for a CPU.
    pub const READY: Self = Self(1);
    /// Preempted inside `KVM_RUN` while runnable.
    pub const PREEMPTED: Self = Self(1 << 1);
    /// Preempted with the guest at CPL 0, or with its CPL protected from the host.
    pub const PREEMPTED_IN_KERNEL: Self = Self(1 << 2);
    /// Between [`begin_spin`](YieldState::begin_spin) and [`end_spin`](YieldState::end_spin).
    pub const IN_SPIN_LOOP: Self = Self(1 << 3);
    /// While spinning, eligible for the next spinner that considers it.
    pub const DY_ELIGIBLE: Self = Self(1 << 4);

    /// Whether all `flags` are set.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The union with `flags`.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// The state of a vCPU's task that leaves its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SchedOut {
    /// The task is still runnable: it is preempted.
    pub runnable: bool,
    /// The vCPU is inside `KVM_RUN` and not returning to its VMM.
    pub wants_to_run: bool,
    /// The guest is at CPL 0, or its CPL is protected from the host.
    pub in_kernel: bool,
}

impl<W: AtomicWord> Default for YieldState<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: AtomicWord> YieldState<W> {
    /// A vCPU that has not run.
    #[must_use]
    pub fn new() -> Self {
        Self { flags: W::new(0) }
    }

    /// A copy of the flags.
    #[must_use]
    pub fn flags(&self) -> YieldFlags {
        // Relaxed: the flags are hints. A stale one costs a yield in vain, or one that is missed.
        YieldFlags(self.flags.load(Ordering::Relaxed))
    }

    /// Replaces the flags, as a saved state is restored.
    pub fn restore(&self, flags: YieldFlags) {
        self.flags.store(flags.0, Ordering::Relaxed);
    }

    /// The vCPU starts to search a yield target (`kvm_vcpu_set_in_spin_loop`).
    ///
    /// [`on_spin`](super::DirectedYield::on_spin) calls this. A simulation that switches tasks only
    /// afterwards calls it again, because upstream switches inside the loop.
    pub fn begin_spin(&self) {
        self.set(YieldFlags::IN_SPIN_LOOP);
    }

    /// The search ends; clears the eligibility among spinners.
    pub fn end_spin(&self) {
        self.clear(YieldFlags::IN_SPIN_LOOP.with(YieldFlags::DY_ELIGIBLE));
    }

    fn set(&self, flags: YieldFlags) {
        self.flags.fetch_or(flags.0, Ordering::Relaxed);
    }

    fn clear(&self, flags: YieldFlags) {
        self.flags.fetch_and(!flags.0, Ordering::Relaxed);
    }

    /// The task becomes current (`kvm_sched_in`). `PREEMPTED_IN_KERNEL` stays.
    pub fn sched_in(&self) {
        self.clear(YieldFlags::READY.with(YieldFlags::PREEMPTED));
    }

    /// The task leaves its CPU (`kvm_sched_out`).
    pub fn sched_out(&self, task: SchedOut) {
        if task.runnable && task.wants_to_run {
            self.set(YieldFlags::READY.with(YieldFlags::PREEMPTED));
        }
        // `kvm_arch_vcpu_put` looks at the CPL of a preempted vCPU only. Readers test `PREEMPTED`
        // first.
        if self.flags().has(YieldFlags::PREEMPTED) {
            if task.in_kernel {
                self.set(YieldFlags::PREEMPTED_IN_KERNEL);
            } else {
                self.clear(YieldFlags::PREEMPTED_IN_KERNEL);
            }
        }
    }

    /// The vCPU is woken (`kvm_vcpu_wake_up`), and was asleep if `woken`. Returns `woken`.
    pub fn wake_up(&self, woken: bool) -> bool {
        if woken {
            self.set(YieldFlags::READY);
        }
        woken
    }

    /// Whether a vCPU may be chosen (`kvm_vcpu_eligible_for_directed_yield`).
    ///
    /// The answer of a spinning vCPU alternates, so that spinners do not yield to each other
    /// without end.
    pub(super) fn check_eligible(&self, flags: YieldFlags) -> bool {
        if !flags.has(YieldFlags::IN_SPIN_LOOP) {
            return true;
        }
        let eligible = flags.has(YieldFlags::DY_ELIGIBLE);
        if eligible {
            self.clear(YieldFlags::DY_ELIGIBLE);
        } else {
            self.set(YieldFlags::DY_ELIGIBLE);
        }
        eligible
    }
}
