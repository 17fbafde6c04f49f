//! What a directed yield knows of each vCPU.

use core::sync::atomic::Ordering;

use crate::word::AtomicWord;

/// One vCPU's flags, shared with every vCPU that spins: one word, so a candidate costs one load.
///
/// Unlike upstream's separate fields they change by atomic read-modify-writes, so that no flag is
/// lost; a reader still sees them without any lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct YieldState<W> {
    flags: W,
}

/// A copy of a vCPU's flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct YieldFlags(u64);

impl YieldFlags {
    /// Preempted while it could run, or woken and waiting for a CPU.
    pub const READY: Self = Self(1);
    /// Preempted inside `KVM_RUN` while it could run.
    pub const PREEMPTED: Self = Self(1 << 1);
    /// … with the guest at CPL 0, or protected from such questions.
    pub const PREEMPTED_IN_KERNEL: Self = Self(1 << 2);
    /// Between [`begin_spin`](YieldState::begin_spin) and [`end_spin`](YieldState::end_spin).
    pub const IN_SPIN_LOOP: Self = Self(1 << 3);
    /// The next time that it is asked while spinning, it is eligible.
    pub const DY_ELIGIBLE: Self = Self(1 << 4);

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets of flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How a vCPU's task leaves its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SchedOut {
    /// The task can still run.
    pub runnable: bool,
    /// The vCPU is inside `KVM_RUN` and not on its way out.
    pub wants_to_run: bool,
    /// The guest was at CPL 0, or is protected so that nobody can tell.
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
        YieldFlags(self.flags.load(Ordering::Relaxed))
    }

    /// Replaces the flags, as a saved state is restored.
    pub fn restore(&self, flags: YieldFlags) {
        self.flags.store(flags.0, Ordering::Relaxed);
    }

    /// The vCPU looks for one to yield to (`kvm_vcpu_set_in_spin_loop`).
    /// [`on_spin`](super::DirectedYield::on_spin) does it itself; a simulation whose thread
    /// switches out only afterwards says it again, since upstream's is still inside the loop then.
    pub fn begin_spin(&self) {
        self.set(YieldFlags::IN_SPIN_LOOP);
    }

    /// … and is done with it: nobody's question is remembered either.
    pub fn end_spin(&self) {
        self.clear(YieldFlags::IN_SPIN_LOOP.with(YieldFlags::DY_ELIGIBLE));
    }

    fn set(&self, flags: YieldFlags) {
        self.flags.fetch_or(flags.0, Ordering::Relaxed);
    }

    fn clear(&self, flags: YieldFlags) {
        self.flags.fetch_and(!flags.0, Ordering::Relaxed);
    }

    /// The task gets a CPU (`kvm_sched_in`). Where it was preempted stays on record.
    pub fn sched_in(&self) {
        self.clear(YieldFlags::READY.with(YieldFlags::PREEMPTED));
    }

    /// The task loses its CPU (`kvm_sched_out`).
    pub fn sched_out(&self, how: SchedOut) {
        if how.runnable && how.wants_to_run {
            self.set(YieldFlags::READY.with(YieldFlags::PREEMPTED));
        }
        if self.flags().has(YieldFlags::PREEMPTED) {
            if how.in_kernel {
                self.set(YieldFlags::PREEMPTED_IN_KERNEL);
            } else {
                self.clear(YieldFlags::PREEMPTED_IN_KERNEL);
            }
        }
    }

    /// The vCPU is woken (`kvm_vcpu_wake_up`); `woken`: a sleeper was there. Returns that.
    pub fn wake_up(&self, woken: bool) -> bool {
        if woken {
            self.set(YieldFlags::READY);
        }
        woken
    }

    /// Whether a spinner may be chosen (`kvm_vcpu_eligible_for_directed_yield`).
    ///
    /// Asking a vCPU that spins itself flips its answer: of fellow spinners, every second
    /// question finds one eligible.
    pub(super) fn ask_eligible(&self, flags: YieldFlags) -> bool {
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
