//! Scheduler features, by the kernel's names and defaults.

use core::fmt;

/// A switch of `kernel/sched/features.h` that the fair class's core reads.
///
/// Features of load balancing and wake placement are not here: this crate has neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Feature {
    /// Keep an entity's lag across sleep and migration.
    PlaceLag,
    /// Place the first deadline of a new task after half a slice.
    PlaceDeadlineInitial,
    /// Keep the distance to the deadline across migration and changes of attributes.
    PlaceRelDeadline,
    /// Protect the current entity until the end of its slice, or of a shorter queued one.
    RunToParity,
    /// End the current entity's protection at a wakeup with a shorter slice.
    PreemptShort,
    /// Nominate a waking task as buddy. Off in 7.2.
    NextBuddy,
    /// Pick the buddy that a yield or a sleep has nominated, if it is eligible.
    PickBuddy,
    /// Keep a sleeper that is not eligible on the queue until it has paid its debt.
    DelayDequeue,
    /// Clip the lag that a delayed entity earns at zero.
    DelayZero,
    /// Wakeups preempt.
    WakeupPreemption,
    /// Arm a timer for the end of the current task's slice.
    Hrtick,
    /// Credit lag to the target of a directed yield: not in 7.2, see [`crate::lag_credit`].
    YieldToLagCredit,
}

impl Feature {
    /// All features, in the order of their names' first appearance in the kernel.
    pub const ALL: [Self; 12] = [
        Self::PlaceLag,
        Self::PlaceDeadlineInitial,
        Self::PlaceRelDeadline,
        Self::RunToParity,
        Self::PreemptShort,
        Self::NextBuddy,
        Self::PickBuddy,
        Self::DelayDequeue,
        Self::DelayZero,
        Self::WakeupPreemption,
        Self::Hrtick,
        Self::YieldToLagCredit,
    ];

    /// The name under `/sys/kernel/debug/sched/features`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PlaceLag => "PLACE_LAG",
            Self::PlaceDeadlineInitial => "PLACE_DEADLINE_INITIAL",
            Self::PlaceRelDeadline => "PLACE_REL_DEADLINE",
            Self::RunToParity => "RUN_TO_PARITY",
            Self::PreemptShort => "PREEMPT_SHORT",
            Self::NextBuddy => "NEXT_BUDDY",
            Self::PickBuddy => "PICK_BUDDY",
            Self::DelayDequeue => "DELAY_DEQUEUE",
            Self::DelayZero => "DELAY_ZERO",
            Self::WakeupPreemption => "WAKEUP_PREEMPTION",
            Self::Hrtick => "HRTICK",
            Self::YieldToLagCredit => "YIELD_TO_LAG_CREDIT",
        }
    }
}

/// No [`Feature`] has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFeature;

impl fmt::Display for UnknownFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such scheduler feature; there are")?;
        for feature in Feature::ALL {
            write!(f, " {}", feature.name())?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownFeature {}

/// The features that are on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Features(u16);

impl Features {
    /// Nothing on.
    pub const NONE: Self = Self(0);

    /// The defaults of Linux 7.2 on x86-64: all on but `NEXT_BUDDY`; the lag credit off.
    pub const LINUX_7_2: Self = {
        let mut set = Self::NONE;
        let mut i = 0;
        while i < Feature::ALL.len() {
            set = set.with(Feature::ALL[i]);
            i += 1;
        }
        set.without(Feature::NextBuddy)
            .without(Feature::YieldToLagCredit)
    };

    /// The set with `feature` on.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Self {
        Self(self.0 | 1 << feature as u8)
    }

    /// The set with `feature` off.
    #[must_use]
    pub const fn without(self, feature: Feature) -> Self {
        Self(self.0 & !(1 << feature as u8))
    }

    /// Whether `feature` is on (`sched_feat`).
    #[inline]
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u8) != 0
    }

    /// Switches one feature as a write to the kernel's file does: `NAME` on, `NO_NAME` off.
    ///
    /// # Errors
    ///
    /// [`UnknownFeature`] for any other word; the set is unchanged.
    pub fn set(&mut self, word: &str) -> Result<(), UnknownFeature> {
        let (name, enabled) = match word.strip_prefix("NO_") {
            Some(name) => (name, false),
            None => (word, true),
        };
        let feature = Feature::ALL.into_iter().find(|f| f.name() == name);
        let feature = feature.ok_or(UnknownFeature)?;
        *self = if enabled {
            self.with(feature)
        } else {
            self.without(feature)
        };
        Ok(())
    }
}

impl Default for Features {
    fn default() -> Self {
        Self::LINUX_7_2
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, feature) in Feature::ALL.into_iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            let prefix = if self.has(feature) { "" } else { "NO_" };
            write!(f, "{space}{prefix}{}", feature.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({self})")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn words_switch_features() {
        let mut set = Features::default();
        assert!(!set.has(Feature::YieldToLagCredit));
        set.set("YIELD_TO_LAG_CREDIT").unwrap();
        set.set("NO_RUN_TO_PARITY").unwrap();
        assert!(set.has(Feature::YieldToLagCredit));
        assert!(!set.has(Feature::RunToParity));
        assert!(set.to_string().contains(" NO_RUN_TO_PARITY "));
        assert_eq!(set.set("NEXT_BUDY"), Err(UnknownFeature));
    }
}
