//! The policies of suppressing notifications, and known faults that can be injected.

use core::fmt;
use core::str::FromStr;

/// When SN is set and cleared (`kvm.suppress_notification`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Suppression {
    /// Up to 2021: SN only while a vCPU is preempted. A preempted vCPU that blocks is on the wakeup
    /// list as well.
    Off,
    /// Linux 7.2: SN while the vCPU is put, unless it blocks on the wakeup list.
    #[default]
    Put,
    /// The first posting (June 2022): SN from each VM exit to the next synchronization in guest
    /// mode; software posters return early on SN. **Faulty**: flaws 1, 2, 3 and 5.
    AsPostedV1,
    /// The second posting (September 2022): SN around the world switch, cleared directly before the
    /// VM entry and set directly after the exit. Blocking tests PIR and sets ON. Software posters
    /// return early on SN. **Faulty**: flaw 5.
    ///
    /// Its handling of a vector between the last synchronization and the switch is unknown: here
    /// the switch synchronizes again.
    AsPostedV2,
    /// The third posting (September 2022): SN with the vCPU's mode and with blocking.
    /// **Faulty**: flaws 1, 2, 8 and 9.
    AsPostedV3,
    /// The third posting with every flaw fixed (specification 1.7).
    Corrected,
}

/// No policy has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSuppression;

impl fmt::Display for UnknownSuppression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such suppression policy; there are")?;
        for (n, policy) in Suppression::ALL.iter().enumerate() {
            write!(f, "{} {}", if n == 0 { "" } else { "," }, policy.name())?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownSuppression {}

impl Suppression {
    /// All policies.
    pub const ALL: [Self; 6] = [
        Self::Off,
        Self::Put,
        Self::AsPostedV1,
        Self::AsPostedV2,
        Self::AsPostedV3,
        Self::Corrected,
    ];

    /// The name that knobs use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Put => "put",
            Self::AsPostedV1 => "as-posted-v1",
            Self::AsPostedV2 => "as-posted-v2",
            Self::AsPostedV3 => "as-posted-v3",
            Self::Corrected => "corrected",
        }
    }

    /// The flaws (specification 1.6) of this policy; empty if it is sound.
    #[must_use]
    pub const fn flaws(self) -> &'static [u8] {
        match self {
            Self::AsPostedV1 => &[1, 2, 3, 5],
            Self::AsPostedV2 => &[5],
            Self::AsPostedV3 => &[1, 2, 8, 9],
            _ => &[],
        }
    }

    /// Software posters leave when SN is set (flaw 5).
    pub(super) const fn software_honours_sn(self) -> bool {
        matches!(self, Self::AsPostedV1 | Self::AsPostedV2)
    }
    /// Synchronization reads PIR when SN is set, even if ON is not.
    pub(super) const fn syncs_under_sn(self) -> bool {
        matches!(
            self,
            Self::AsPostedV1 | Self::AsPostedV2 | Self::AsPostedV3 | Self::Corrected
        )
    }
    /// Synchronization clears ON without a test whether it is set.
    pub(super) const fn clears_on_unseen(self) -> bool {
        matches!(self, Self::AsPostedV1 | Self::AsPostedV2 | Self::AsPostedV3)
    }
    /// SN is set by each VM exit, also by one that is handled with interrupts off.
    #[must_use]
    pub const fn suppresses_at_exit(self) -> bool {
        matches!(self, Self::AsPostedV1 | Self::AsPostedV2)
    }
    /// SN follows the vCPU's mode and its blocking.
    #[must_use]
    pub const fn follows_mode(self) -> bool {
        matches!(self, Self::AsPostedV3 | Self::Corrected)
    }
    /// SN is cleared whenever the vCPU is loaded.
    pub(super) const fn clears_at_load(self) -> bool {
        matches!(self, Self::Off | Self::Put)
    }
    /// A preempted vCPU is put by the rules of kernels up to 2024.
    pub(super) const fn puts_as_before_2025(self) -> bool {
        matches!(self, Self::Off | Self::AsPostedV1 | Self::AsPostedV3)
    }
    /// The switch to the wakeup vector clears SN.
    pub(super) const fn wakeup_clears_sn(self) -> bool {
        matches!(self, Self::AsPostedV1 | Self::AsPostedV2 | Self::Corrected)
    }
    /// Arming the wakeup vector tests PIR, and not ON alone.
    pub(super) const fn wakeup_tests_pir(self) -> bool {
        matches!(self, Self::AsPostedV2 | Self::Corrected)
    }
}

impl FromStr for Suppression {
    type Err = UnknownSuppression;

    fn from_str(name: &str) -> Result<Self, UnknownSuppression> {
        let found = Self::ALL.into_iter().find(|p| p.name() == name);
        found.ok_or(UnknownSuppression)
    }
}

/// A fault of a released hypervisor, for a checker to find. Run hosts with [`Fault::None`] only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fault {
    /// None.
    #[default]
    None,
    /// ON is not recomputed when SN is cleared (fixed by Linux c112b5f50232).
    OnNotRecomputed,
    /// vCPUs that block while a device is assigned are not kicked, and their notification vector
    /// stays (fixed by Linux a2486020a82e).
    BlockedNotKicked,
    /// Load does not remove the vCPU from its wakeup list (fixed by Linux 8b306e2f3c41).
    NotUnlinked,
    /// The self-IPI after the switch to the wakeup vector is lost, and ON stays set (ACRN 4978).
    SelfIpiLost,
}
