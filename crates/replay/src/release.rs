//! What a host's kernel has, by its release.

use std::fmt;

use stealtime_hypervisor::fair::{Feature, Features, Preempt, weights};

/// A kernel's release, as `uname -r` begins. Distributions backport features of later ones; a file about the
/// host can say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// `6` of 6.12.
    pub major: u32,
    /// `12` of 6.12.
    pub minor: u32,
}

/// The first one with EEVDF, by `147f3efaa241`.
const EEVDF: Release = Release::new(6, 6);
/// That delays dequeues (`152e11f6df29`), and lets shorter slices preempt (`85e511df3cec`).
const DELAYS: Release = Release::new(6, 12);
/// That preempts lazily (`7c70cb94d29c`).
const LAZY: Release = Release::new(6, 13);
/// The first one with shorter slices (`2ae891b82695` of 6.15, which stable releases from here on have taken
/// over).
const SHORTER: Release = Release::new(6, 12);
/// Before which slices end at ticks, unless timers are asked for.
const SLICE_TIMERS: Release = Release::new(7, 1);

/// That searches for idle CPUs by utilization (`70fb5ccf2ebb`).
const SEARCHES: Release = Release::new(6, 0);
/// In which CPUs that run out of tasks look for others at chance (`NI_RANDOM`).
const RANDOM: Release = Release::new(7, 0);

/// The slice on one CPU before [`SHORTER`], in ns.
const LONGER_SLICE_NS: u64 = 750_000;

impl Release {
    const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Of what `uname` says of a host: `Linux host 6.12.95 x86_64`.
    #[must_use]
    pub fn of_uname(uname: &str) -> Option<Self> {
        let mut words = uname.split_whitespace();
        let release = match words.next()? {
            "Linux" => words.nth(1)?,
            release => release,
        };
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next()?.parse().ok();
        Some(Self::new(next()?, next()?))
    }

    /// Whether it schedules by EEVDF; CFS came before.
    #[must_use]
    pub fn has_eevdf(self) -> bool {
        self >= EEVDF
    }

    /// Whether wakeups search for an idle CPU as far as utilization lets them (`SIS_UTIL`).
    #[must_use]
    pub fn searches_by_utilization(self) -> bool {
        self >= SEARCHES
    }

    /// Whether a CPU that runs out of tasks looks for others at chance.
    #[must_use]
    pub fn skips_newidle(self) -> bool {
        self >= RANDOM
    }

    /// How it preempts, where there is one way only.
    #[must_use]
    pub fn preempt(self) -> Option<Preempt> {
        (self < LAZY).then_some(Preempt::Full)
    }

    /// Whether it has all features that are on today; but for `HRTICK`, which timers show.
    #[must_use]
    pub fn has_features_of_today(self) -> bool {
        self >= DELAYS
    }

    /// Those features that it has; where it has none of EEVDF all of them, as a kernel that has would.
    #[must_use]
    pub fn features(self, features: Features) -> Features {
        if !self.has_eevdf() {
            return features;
        }
        let later = [
            Feature::DelayDequeue,
            Feature::DelayZero,
            Feature::PreemptShort,
            Feature::PlaceRelDeadline,
        ];
        let features = match self.has_features_of_today() {
            true => features,
            false => later.into_iter().fold(features, Features::without),
        };
        match self < SLICE_TIMERS {
            true => features.without(Feature::Hrtick),
            false => features,
        }
    }

    /// The slice that it sets for so many CPUs, in ns, if it is another one than today's.
    #[must_use]
    pub fn base_slice_ns(self, cpus: u32) -> Option<u64> {
        (self.has_eevdf() && self < SHORTER)
            .then_some(LONGER_SLICE_NS * weights::tunable_scaling(cpus))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linux {}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_uname_says_them() {
        let version =
            |uname| Release::of_uname(uname).map(|release| (release.major, release.minor));
        assert_eq!(version("Linux (none) 6.1.0-56-amd64 x86_64"), Some((6, 1)));
        assert_eq!(
            version("Linux host 7.2.13+deb14-amd64 x86_64"),
            Some((7, 2))
        );
        assert_eq!(version("6.12-rc3"), Some((6, 12)));
        for unknown in [
            "",
            "Linux",
            "Linux host",
            "Linux host six.one x86_64",
            "Linux host 6",
        ] {
            assert_eq!(version(unknown), None, "{unknown}");
        }
        assert_eq!(version("Linux host 99999999999.1"), None);
    }

    #[test]
    fn a_kernel_has_what_came_before_it() {
        let usual = Features::LINUX_7_2;
        let (cfs, first) = (Release::new(5, 14), Release::new(6, 6));
        let (delays, today) = (Release::new(6, 12), Release::new(7, 2));
        assert!(!cfs.has_eevdf() && first.has_eevdf());
        assert_eq!(delays.features(usual), usual.without(Feature::Hrtick));
        assert_eq!(today.features(usual), usual);
        assert!(!first.features(usual).has(Feature::DelayDequeue));
        assert!(first.features(usual).has(Feature::RunToParity));
        assert_eq!(delays.preempt(), Some(Preempt::Full));
        assert_eq!((today.preempt(), today.base_slice_ns(8)), (None, None));
        assert_eq!(delays.base_slice_ns(8), None);
        assert_eq!(first.base_slice_ns(8), Some(3_000_000));
        assert_eq!(first.base_slice_ns(1), Some(750_000));
        assert_eq!(first.to_string(), "Linux 6.6");
    }
}
