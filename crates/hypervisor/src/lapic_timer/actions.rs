//! What a timer wants done.

use super::advance::Spin;

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Start the hrtimer, or move it, absolute and unpinned (`HRTIMER_MODE_ABS_HARD`): see
    /// [`place_hrtimer`](super::place_hrtimer).
    StartHrtimer {
        /// Host time, in ns.
        at_ns: i64,
    },
    /// Cancel the hrtimer.
    CancelHrtimer,
    /// Arm the preemption timer.
    ArmHv {
        /// Host TSC of the expiry.
        host_deadline: u64,
    },
    /// Disarm the preemption timer.
    CancelHv,
    /// Set the LVT timer's vector in the IRR of this LAPIC: we are the vCPU's thread.
    Inject {
        /// The vector.
        vector: u8,
    },
    /// Spin on this CPU, which is not the vCPU's, until the deadline.
    Spin(Spin),
    /// Post the LVT timer's vector to the vCPU, which is in guest mode
    /// ([`deliver`](crate::posted_interrupt::deliver)).
    Post {
        /// The vector.
        vector: u8,
    },
    /// The expiry is pending: request that the vCPU stops blocking
    /// ([`Requests::UNBLOCK`](crate::posted_interrupt::Requests::UNBLOCK)).
    Unblock,
    /// Kick the vCPU, so that it injects what is pending.
    Kick,
}

/// The longest answer: an expiry while a periodic timer is restarted.
const CAPACITY: usize = 8;

/// Things to do, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct Actions {
    list: [Option<Action>; CAPACITY],
}

impl Actions {
    /// Nothing to do.
    pub const NONE: Self = Self {
        list: [None; CAPACITY],
    };

    pub(super) fn push(&mut self, action: Action) {
        let free = self.list.iter_mut().find(|slot| slot.is_none());
        debug_assert!(free.is_some(), "no answer has more than {CAPACITY} actions");
        if let Some(slot) = free {
            *slot = Some(action);
        }
    }

    /// The actions in order.
    pub fn iter(&self) -> impl Iterator<Item = Action> + '_ {
        self.list.iter().map_while(|action| *action)
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list[0].is_none()
    }

    /// Whether an action is among them.
    #[must_use]
    pub fn contains(&self, action: Action) -> bool {
        self.iter().any(|a| a == action)
    }
}
