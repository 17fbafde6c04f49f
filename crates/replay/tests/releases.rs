//! What a host's kernel has, by its release.

use common::made::recording;
use stealtime_hypervisor::fair::{Feature, Features, Preempt};
use stealtime_replay::host::{knobs, recorded_slice_ns};
use stealtime_replay::{Recording, Release};

use crate::common;

fn release(uname: &str) -> Release {
    Release::of_uname(uname).expect("a release")
}

#[test]
fn features_come_with_their_releases() {
    let has = |uname, feature| release(uname).features(Features::LINUX_7_2).has(feature);
    for feature in [
        Feature::DelayDequeue,
        Feature::DelayZero,
        Feature::PreemptShort,
        Feature::PlaceRelDeadline,
    ] {
        let of = ["6.6", "6.11", "6.12", "7.0"].map(|uname| has(uname, feature));
        assert_eq!(of, [false, false, true, true], "{feature:?}");
    }
    let timers = ["6.12", "7.0", "7.1"].map(|uname| has(uname, Feature::Hrtick));
    assert_eq!(timers, [false, false, true]);
    let of_today = ["6.11", "6.12"].map(|uname| release(uname).has_features_of_today());
    assert_eq!(of_today, [false, true]);
    let searches = ["5.19", "6.0"].map(|uname| release(uname).searches_by_utilization());
    let skips = ["6.19", "7.0"].map(|uname| release(uname).skips_newidle());
    assert_eq!((searches, skips), ([false, true], [false, true]));
    // A kernel with CFS keeps those of EEVDF, for a replay that asks what these would do.
    assert_eq!(
        release("6.5").features(Features::LINUX_7_2),
        Features::LINUX_7_2
    );
}

#[test]
fn a_kernel_before_lazy_preemption_preempts_at_once() {
    let mut recorded = recording(1_000, 1, Vec::new());
    for (uname, preempt) in [
        ("5.14", Some(Preempt::Full)),
        ("6.12", Some(Preempt::Full)),
        ("6.13", None),
        ("7.2", None),
    ] {
        recorded.release = Some(release(uname));
        assert_eq!(recorded.preempt(), preempt, "{uname}");
        let usual = knobs(&recording(1_000, 1, Vec::new())).sched.preempt;
        let expected = preempt.unwrap_or(usual);
        assert_eq!(knobs(&recorded).sched.preempt, expected, "{uname}");
    }
    recorded.release = None;
    assert_eq!(recorded.preempt(), None);
}

#[test]
fn slices_of_eevdf_are_those_of_the_release() {
    let mut recorded = recording(1_000, 4, Vec::new());
    for (uname, slice_ns) in [
        ("6.5", None),
        ("6.6", Some(2_250_000)),
        ("6.11", Some(2_250_000)),
        ("6.12", None),
    ] {
        let release = release(uname);
        assert_eq!(release.base_slice_ns(4), slice_ns, "{uname}");
        recorded.release = Some(release);
        assert_eq!(knobs(&recorded).sched.base_slice_ns, slice_ns, "{uname}");
        // No timers show another one.
        assert_eq!(recorded_slice_ns(&recorded), None, "{uname}");
        assert_eq!(knobs(&recorded).sched.cfs.is_some(), uname == "6.5");
    }
}

#[test]
fn how_slices_end_is_found_by_timers_unless_the_host_has_cfs() {
    let mut recorded = recording(1_000, 1, Vec::new());
    for uname in ["6.12", "7.2"] {
        recorded.release = Some(release(uname));
        for has_timers in [true, false] {
            recorded.hrtick = Some(has_timers);
            let features = knobs(&recorded).sched.features;
            assert_eq!(features.has(Feature::Hrtick), has_timers, "{uname}");
        }
    }
    recorded.release = Some(release("6.5"));
    let cfs = |recorded: &Recording| knobs(recorded).sched;
    recorded.hrtick = None;
    let usual = cfs(&recorded);
    for has_timers in [true, false] {
        recorded.hrtick = Some(has_timers);
        assert_eq!(cfs(&recorded), usual);
    }
}
