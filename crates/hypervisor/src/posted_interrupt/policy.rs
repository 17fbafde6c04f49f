//! When notifications are suppressed, and the faults of old that can be switched back on.

use core::fmt;
use core::str::FromStr;

/// Who sets and clears SN, and when (`kvm.suppress_notification`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Suppression {
    /// Before 2022: SN only while a vCPU is preempted; a preempted blocker goes on the wakeup
    /// list as well.
    Off,
    /// Linux 7.2: SN whenever the vCPU is put, unless it blocks on the wakeup list.
    #[default]
    Put,
    /// The first posting (June 2022): SN from each VM exit to the next synchronization in guest
    /// mode; software posters return early on SN. **Faulty**: flaws 1, 2, 3 and 5.
    AsPostedV1,
    /// The second posting (September 2022): SN around the world switch itself, cleared right before
    /// the VM entry and set right after the exit; blocking tests PIR and sets ON. Software posters
    /// still return early on SN. **Faulty**: flaw 5.
    ///
    /// What that posting did about a vector that comes between the last synchronization and the
    /// switch is not known here: this one takes it over at the switch.
    AsPostedV2,
    /// The third posting (September 2022): SN with the vCPU's mode and with blocking.
    /// **Faulty**: flaws 1, 2, 8 and 9.
    AsPostedV3,
    /// The third posting with every flaw mended (specification 1.7).
    Corrected,
}

/// A name that is no policy.
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

    /// The flaws (specification 1.6) that can be seen under this policy; empty if it is sound.
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
    /// Synchronization looks at PIR when SN is set, even if ON is not.
    pub(super) const fn syncs_under_sn(self) -> bool {
        matches!(
            self,
            Self::AsPostedV1 | Self::AsPostedV2 | Self::AsPostedV3 | Self::Corrected
        )
    }
    /// Synchronization clears ON without looking whether it is set.
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
    /// A preempted vCPU is put as it was before the simplification of 2025.
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

/// A fault that was once in a released hypervisor. [`Fault::None`] is the only one to run; the
/// others exist so that a checker can find them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fault {
    /// None.
    #[default]
    None,
    /// ON is not recomputed when SN is cleared (mended by Linux c112b5f50232).
    OnNotRecomputed,
    /// vCPUs that are blocked when a device is assigned are left alone, their notification
    /// vector unprogrammed (mended by Linux a2486020a82e).
    BlockedNotTold,
    /// Load forgets to take the vCPU off its wakeup list (mended by Linux 8b306e2f3c41).
    NotUnlinked,
    /// The self-IPI after the switch to the wakeup vector is lost, ON stays set (ACRN 4978).
    SelfIpiLost,
}
