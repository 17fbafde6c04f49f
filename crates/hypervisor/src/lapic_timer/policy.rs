//! When a timer interrupt is posted from another CPU, and when the preemption timer is used.

use core::fmt;
use core::str::FromStr;

use super::observed::Observed;

/// The rule by which expiries are posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TimerPolicy {
    /// Never.
    Off,
    /// Linux 5.3 (2019): whenever APICv is active. Wrong on a mixed host, where guests that
    /// leave guest mode to idle lose the preemption timer and gain nothing.
    Always,
    /// Proposed in 2021: unless the vCPU's CPU is a housekeeping CPU. Isolation is not
    /// dedication, and the answer changes when the vCPU moves.
    IsolatedOnly,
    /// Linux since 5.17: if MWAIT or HLT does not leave the guest.
    #[default]
    ExitsOff,
    /// Ours: per vCPU, from what was [`Observed`].
    Adaptive,
}

/// A name that is no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTimerPolicy;

impl fmt::Display for UnknownTimerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such timer policy; there are")?;
        for (n, policy) in TimerPolicy::ALL.iter().enumerate() {
            write!(f, "{} {}", if n == 0 { "" } else { "," }, policy.name())?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownTimerPolicy {}

/// What of host and VM the timer must know. It may change between calls; each decision uses the
/// values passed to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerEnvironment {
    /// `kvm.pi_inject_timer`: by default whether the host isolates CPUs from timers.
    pub pi_inject_timer: bool,
    /// APICv is active on the vCPU.
    pub apicv: bool,
    /// MWAIT does not leave the guest. The preemption timer may stop in the C-states that MWAIT
    /// enters, and is not used then, whether posting is on or off.
    pub mwait_in_guest: bool,
    /// HLT does not leave the guest.
    pub hlt_in_guest: bool,
    /// The preemption timer's rate, one count each 2^shift cycles (0–31); `None` without it, or
    /// on parts with the erratum.
    pub hv_shift: Option<u32>,
    /// The CPU that the vCPU is on is a housekeeping CPU.
    pub on_housekeeping_cpu: bool,
    /// The vCPU's thread means to run the guest (not to return to its VMM).
    pub wants_to_run: bool,
}

impl TimerPolicy {
    /// All policies.
    pub const ALL: [Self; 5] = [
        Self::Off,
        Self::Always,
        Self::IsolatedOnly,
        Self::ExitsOff,
        Self::Adaptive,
    ];

    /// The name that knobs use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Always => "always",
            Self::IsolatedOnly => "isolated-only",
            Self::ExitsOff => "exits-off",
            Self::Adaptive => "adaptive",
        }
    }

    /// Whether expiries may be posted (`kvm_can_post_timer_interrupt`).
    #[must_use]
    pub fn can_post(self, env: &TimerEnvironment, observed: &Observed) -> bool {
        let possible = env.pi_inject_timer && env.apicv;
        possible
            && match self {
                Self::Off => false,
                Self::Always => true,
                Self::IsolatedOnly => !env.on_housekeeping_cpu,
                Self::ExitsOff => env.mwait_in_guest || env.hlt_in_guest,
                Self::Adaptive => observed.favours_posting(),
            }
    }
}

impl FromStr for TimerPolicy {
    type Err = UnknownTimerPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownTimerPolicy> {
        let found = Self::ALL.into_iter().find(|p| p.name() == name);
        found.ok_or(UnknownTimerPolicy)
    }
}
