//! Halt polling: the time that a halted vCPU polls before it sleeps, and its adaptation.
//!
//! ```text
//!  begin ──poll for own_ns──▶ woken while polling ─────────────────────┐
//!    │                          │ no                                   ▼
//!    └──own_ns 0 or forbidden──▶ block ──▶ woken after halt_ns ──▶ end: grow, keep or shrink
//! ```
//!
//! Kernel: `kvm_vcpu_halt`, `grow_halt_poll_ns`, `shrink_halt_poll_ns`. The window has 32 bits, and
//! products wrap, as upstream.
//!
//! ```
//! use stealtime_hypervisor::halt_poll::{Adaptation, HaltEnd, HaltPoll, HaltPollKnobs};
//!
//! let knobs = HaltPollKnobs::default();
//! let mut poll = HaltPoll::default();
//! let halt = poll.begin(&knobs, true);
//! assert!(!halt.polls()); // The first window is 0.
//!
//! // A sleep of 50 us is short: polling would have caught the wakeup.
//! let end = HaltEnd { waited: true, halt_ns: 50_000, poll_ns: 0, valid_wakeup: true };
//! assert_eq!(poll.end(&knobs, &halt, &end, &()), Adaptation::Grown);
//! assert_eq!(poll.own_ns(), 10_000);
//! ```

use crate::events::Events;

/// Module parameters of `kvm`, and a VM's own cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HaltPollKnobs {
    /// `kvm.halt_poll_ns`: longest window, unless the VM overrides it.
    pub halt_poll_ns: u32,
    /// `kvm.halt_poll_ns_grow`: factor; 0 never grows.
    pub grow: u32,
    /// `kvm.halt_poll_ns_grow_start`: the first and shortest window, in ns.
    pub grow_start_ns: u32,
    /// `kvm.halt_poll_ns_shrink`: divisor; 0 shrinks to 0 at once.
    pub shrink: u32,
    /// `KVM_CAP_HALT_POLL` of the VM: replaces `halt_poll_ns`, in ns.
    pub vm_max_ns: Option<u32>,
}

impl Default for HaltPollKnobs {
    /// x86 and generic defaults.
    fn default() -> Self {
        Self {
            halt_poll_ns: 200_000,
            grow: 2,
            grow_start_ns: 10_000,
            shrink: 2,
            vm_max_ns: None,
        }
    }
}

impl HaltPollKnobs {
    /// arm64's default window is larger.
    pub const ARM64_HALT_POLL_NS: u32 = 500_000;

    /// The cap in effect, in ns.
    #[must_use]
    pub const fn limit_ns(&self) -> u32 {
        match self.vm_max_ns {
            Some(max) => max,
            None => self.halt_poll_ns,
        }
    }
}

/// The change of the window by a halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adaptation {
    /// It stayed.
    Kept,
    /// A short sleep: polling longer would have caught it.
    Grown,
    /// A long sleep or an invalid wakeup: polling was useless.
    Shrunk,
    /// The cap is 0.
    Disabled,
}

/// The end of a halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HaltEnd {
    /// The vCPU has slept; false if polling or the last check before sleeping found work.
    pub waited: bool,
    /// Time from the start of the halt to its end, in ns.
    pub halt_ns: u64,
    /// Time from the start of the halt to the end of polling, in ns; 0 without polling.
    pub poll_ns: u64,
    /// The wakeup was for this vCPU (may be false on s390; always true on x86).
    pub valid_wakeup: bool,
}

/// The state of the CPU in one iteration of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PollTurn {
    /// Time since the start of the halt, in ns.
    pub elapsed_ns: u64,
    /// No other task is runnable on this CPU (`single_task_running`).
    pub alone: bool,
    /// A reschedule is requested.
    pub need_resched: bool,
}

/// A halt in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Halt {
    allowed: bool,
    own_ns: u32,
}

impl Halt {
    /// Whether to poll at all before sleeping.
    #[must_use]
    pub const fn polls(&self) -> bool {
        self.allowed && self.own_ns != 0
    }

    /// How long to poll, in ns; 0 if not at all.
    #[must_use]
    pub const fn poll_ns(&self) -> u32 {
        if self.allowed { self.own_ns } else { 0 }
    }

    /// Whether to poll another iteration (`kvm_vcpu_can_poll`).
    #[must_use]
    pub const fn keeps_polling(&self, turn: &PollTurn) -> bool {
        self.polls() && turn.alone && !turn.need_resched && turn.elapsed_ns < self.own_ns as u64
    }
}

/// A vCPU's polling window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HaltPoll {
    own_ns: u32,
}

impl HaltPoll {
    /// The window, in ns. Growth may exceed the cap until the next halt.
    #[must_use]
    pub const fn own_ns(&self) -> u32 {
        self.own_ns
    }

    /// The vCPU halts. `allowed`: the guest has not forbidden polling (bit 0 of its
    /// `MSR_KVM_POLL_CONTROL`).
    pub fn begin(&mut self, knobs: &HaltPollKnobs, allowed: bool) -> Halt {
        self.own_ns = self.own_ns.min(knobs.limit_ns());
        Halt {
            allowed,
            own_ns: self.own_ns,
        }
    }

    /// The halt ended: counts it and adapts the window.
    ///
    /// The knobs are a parameter again, because an administrator may have changed them during the
    /// halt.
    pub fn end<E: Events>(
        &mut self,
        knobs: &HaltPollKnobs,
        halt: &Halt,
        end: &HaltEnd,
        events: &E,
    ) -> Adaptation {
        debug_assert!(end.poll_ns <= end.halt_ns, "polling is part of the halt");
        if halt.polls() {
            events.halt_polled(!end.waited, end.poll_ns);
            if !end.waited && !end.valid_wakeup {
                events.halt_poll_invalid();
            }
        }
        if !halt.allowed {
            return Adaptation::Kept;
        }
        let adaptation = self.adapt(knobs, end);
        events.halt_poll_window(self.own_ns);
        adaptation
    }

    fn adapt(&mut self, knobs: &HaltPollKnobs, end: &HaltEnd) -> Adaptation {
        let limit = knobs.limit_ns();
        let beyond_limit = end.halt_ns > u64::from(limit);
        if !end.valid_wakeup {
            self.shrink(knobs)
        } else if limit == 0 {
            self.own_ns = 0;
            Adaptation::Disabled
        } else if end.halt_ns <= u64::from(self.own_ns) {
            Adaptation::Kept
        } else if self.own_ns != 0 && beyond_limit {
            self.shrink(knobs)
        } else if self.own_ns < limit && end.halt_ns < u64::from(limit) {
            self.grow(knobs)
        } else {
            Adaptation::Kept
        }
    }

    fn grow(&mut self, knobs: &HaltPollKnobs) -> Adaptation {
        if knobs.grow == 0 {
            return Adaptation::Kept;
        }
        // Wraps at 32 bits like the kernel's `unsigned int`.
        self.own_ns = self
            .own_ns
            .wrapping_mul(knobs.grow)
            .max(knobs.grow_start_ns);
        Adaptation::Grown
    }

    fn shrink(&mut self, knobs: &HaltPollKnobs) -> Adaptation {
        let shrunk = self.own_ns.checked_div(knobs.shrink).unwrap_or(0);
        self.own_ns = if shrunk < knobs.grow_start_ns {
            0
        } else {
            shrunk
        };
        Adaptation::Shrunk
    }
}
