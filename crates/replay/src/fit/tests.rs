//! The order of misfits, and what a search keeps of its trials.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stealtime_hypervisor::fair::Preempt;
use stealtime_simulator::script::{Edge, Until};

use super::hypothesis::{CgroupLayout, Dimension, Hypothesis, Source};
use super::misfit::{Misfit, Scale, Term, Trial};
use super::search::Trials;
use crate::clocked::tests::{ARMED, recording, task};
use crate::host::{Assumed, Placement};
use crate::predict::{Times, VcpuTimes};

/// A host; `number` makes it differ from others.
fn host(number: usize) -> Hypothesis {
    Hypothesis {
        stalls: false,
        placement: Placement::Recorded,
        timed_moves: false,
        balanced: false,
        cgroups: CgroupLayout {
            single_vms: [number].into(),
            ..CgroupLayout::default()
        },
        weights: BTreeMap::new(),
        preempt: Preempt::Lazy,
        wakeups_preempt: true,
    }
}

fn trial(number: usize, misfit: Misfit) -> Trial {
    Trial {
        hypothesis: host(number),
        misfit,
    }
}

fn by_times(times_ns: u64) -> Trial {
    let misfit = Misfit {
        times_ns,
        ..Misfit::default()
    };
    trial(times_ns as usize, misfit)
}

/// A recording of 1 s of vCPU time: times that differ by less than 1 ms are equal.
fn scale() -> Scale {
    let vcpu = VcpuTimes {
        run_ns: 1_000_000_000,
        ..VcpuTimes::default()
    };
    let recorded = Times {
        vcpus: vec![vcpu],
        ..Times::default()
    };
    Scale::new(&recorded, false)
}

const MS: u64 = 1_000_000;

#[track_caller]
fn decides(later: &Trial, earlier: &Trial, is_nearer: bool, term: Term) {
    let verdict = scale().compare(later, earlier);
    assert_eq!((verdict.is_nearer, verdict.term), (is_nearer, term));
}

#[test]
fn times_decide_from_a_tenth_on() {
    decides(&by_times(89 * MS), &by_times(100 * MS), true, Term::Times);
    decides(&by_times(91 * MS), &by_times(100 * MS), false, Term::Order);
    decides(&by_times(100 * MS), &by_times(89 * MS), false, Term::Times);
    // Guests without work stealing fit by a quarter better trivially.
    let mut stealing = by_times(100 * MS);
    stealing.hypothesis.balanced = true;
    decides(&stealing, &by_times(80 * MS), false, Term::Order);
    decides(&stealing, &by_times(90 * MS), true, Term::Times);
    decides(&stealing, &by_times(70 * MS), false, Term::Times);
}

#[test]
fn slice_timers_decide_where_times_are_near() {
    let with = |number, times_ns, slices| {
        let misfit = Misfit {
            times_ns,
            slices_permille: Some(slices),
            ..Misfit::default()
        };
        trial(number, misfit)
    };
    let far = with(1, 100 * MS, 200);
    decides(&with(2, 105 * MS, 100), &far, true, Term::SliceTimers);
    decides(&with(2, 95 * MS, 160), &far, false, Term::Order);
    decides(&with(2, 80 * MS, 300), &far, true, Term::Times);
    // Below 0.1 % of vCPUs' time a tenth is chance.
    let exact = with(3, MS / 2, 300);
    decides(&with(4, MS, 100), &exact, true, Term::SliceTimers);
}

#[test]
fn decisions_come_first_unless_times_or_exits_contradict() {
    let with = |times_ns, decisions, exits_ppm| {
        let misfit = Misfit {
            times_ns,
            decisions_permille: Some(decisions),
            exits_ppm,
            ..Misfit::default()
        };
        trial(decisions as usize, misfit)
    };
    let far = with(100 * MS, 200, 0);
    decides(&with(149 * MS, 100, 0), &far, true, Term::Decisions);
    decides(&with(149 * MS, 119, 0), &far, true, Term::Decisions);
    decides(&with(149 * MS, 120, 0), &far, false, Term::Times);
    decides(&with(151 * MS, 100, 0), &far, false, Term::Times);
    decides(&with(149 * MS, 100, 60_000), &far, false, Term::Times);
    decides(&far, &with(100 * MS, 100, 0), false, Term::Decisions);
}

#[test]
fn weights_must_explain_half_of_a_large_misfit() {
    let weighted = |times_ns| Trial {
        hypothesis: Hypothesis {
            weights: BTreeMap::from([(0, 300)]),
            ..host(0)
        },
        ..by_times(times_ns)
    };
    let equal = by_times(200 * MS);
    decides(&weighted(90 * MS), &equal, true, Term::Weights);
    decides(&weighted(110 * MS), &equal, false, Term::Weights);
    // Half of it, but less than 6 % of vCPUs' time.
    let near = by_times(100 * MS);
    decides(&weighted(45 * MS), &near, false, Term::Weights);
    decides(&weighted(45 * MS), &weighted(60 * MS), true, Term::Times);
}

#[test]
fn hypotheses_differ_in_dimensions_that_have_an_effect() {
    let first = host(0);
    let simulated = Hypothesis {
        placement: Placement::Simulated,
        ..host(0)
    };
    assert_eq!(first.differences(&simulated), [Dimension::Placement]);
    assert_eq!(
        simulated.differences(&first),
        [Dimension::Placement, Dimension::MoveTimes]
    );
    assert_eq!(first.differences(&host(1)), [Dimension::Cgroups]);
    assert!(first.differences(&first).is_empty());
}

/// The table of the page has each dimension.
#[test]
fn dimensions_are_documented() {
    let page = include_str!("../../../../docs/replay-accuracy.md");
    for row in Dimension::ALL.map(Dimension::row) {
        let (values, known_by, terms) = (row.values, row.known_by, row.terms);
        let row = format!("| `{}` | {values} | {known_by} | {terms} |", row.name);
        assert!(page.contains(&row), "docs/replay-accuracy.md lacks:\n{row}");
    }
}

fn misfits() -> impl Strategy<Value = Misfit> {
    let permille = || proptest::option::of(0..600_u64);
    let terms = (0..200 * MS, permille(), permille(), 0..100_000_u64);
    terms.prop_map(
        |(times_ns, decisions_permille, slices_permille, exits_ppm)| Misfit {
            times_ns,
            decisions_permille,
            slices_permille,
            exits_ppm,
        },
    )
}

#[test]
fn weights_are_tried_where_a_vm_has_the_only_cgroup_of_a_host_with_cfs() {
    let single = by_times(0);
    let without = Trial {
        hypothesis: Hypothesis {
            cgroups: CgroupLayout::default(),
            ..host(0)
        },
        misfit: Misfit::default(),
    };
    let cfs = Scale::new(&Times::default(), true);
    assert!(cfs.needs_weights(&single) && !cfs.needs_weights(&without));
    assert!(!scale().needs_weights(&single));
    // Or where times are far off.
    assert!(scale().needs_weights(&by_times(100 * MS)));
}

#[test]
fn weights_are_stated_where_there_are_none_or_the_host_has_them() {
    let recording = recording(vec![task(ARMED)]);
    let known = |groups, weights_known| Assumed {
        groups,
        weights_known,
        ..Assumed::default()
    };
    for (known, source) in [
        (known(None, false), Source::Fitted),
        (known(Some(true), false), Source::Fitted),
        (known(Some(false), false), Source::Stated),
        (known(None, true), Source::Stated),
    ] {
        assert_eq!(
            Dimension::Weights.source(&recording, &known),
            source,
            "{known:?}"
        );
    }
}

#[test]
fn guests_that_do_not_wait_for_each_other_are_known() {
    let alone = recording(vec![task(ARMED)]);
    let coupled = recording(vec![task(Until::Work {
        edge: Edge(0),
        ns: 1_000,
        busy: true,
    })]);
    let source = |recording| Dimension::Guests.source(recording, &Assumed::default());
    assert_eq!(
        (source(&alone), source(&coupled)),
        (Source::Recorded, Source::Fitted)
    );
}

#[test]
fn sources_have_names() {
    let sources = [Source::Stated, Source::Recorded, Source::Fitted];
    assert_eq!(sources.map(Source::name), ["stated", "recorded", "fitted"]);
}

fn trials() -> impl Strategy<Value = Vec<Trial>> {
    let one = (misfits(), any::<bool>());
    proptest::collection::vec(one, 1..20).prop_map(|list| {
        let numbered = list.into_iter().enumerate();
        let trial = |(number, (misfit, balanced))| Trial {
            hypothesis: Hypothesis {
                balanced,
                ..host(number)
            },
            misfit,
        };
        numbered.map(trial).collect()
    })
}

fn searched(list: &[Trial]) -> Trials {
    let mut trials = Trials::default();
    for trial in list {
        trials.challenge(trial.clone(), &scale());
    }
    trials
}

proptest! {
    /// No hypothesis fits better than another that also fits better than it.
    #[test]
    fn comparisons_have_one_winner(list in trials()) {
        for one in &list {
            for second in &list {
                let forth = scale().compare(one, second);
                let back = scale().compare(second, one);
                prop_assert!(!(forth.is_nearer && back.is_nearer));
                prop_assert_eq!(forth.term, back.term);
            }
        }
    }

    /// No later trial fits better than the best one, and none that it replaced does.
    #[test]
    fn the_best_holds_against_later_trials(list in trials()) {
        let trials = searched(&list);
        let best = trials.best().expect("a trial");
        let place = list.iter().position(|trial| trial == best).expect("one of them");
        for later in &list[place + 1..] {
            prop_assert!(!scale().compare(later, best).is_nearer);
        }
        let held = searched(&list[..place]);
        if let Some(replaced) = held.best() {
            prop_assert!(scale().compare(best, replaced).is_nearer);
        }
    }

    /// Two searches have the best one of the first, unless that of the second fits better.
    #[test]
    fn joined_searches_have_the_better_of_two(earlier in trials(), later in trials()) {
        let [mut trials, second] = [&earlier, &later].map(|list| searched(list));
        let held = trials.best().cloned().expect("a trial");
        let challenger = second.best().cloned().expect("a trial");
        let is_replaced = trials.join(second, &scale());
        prop_assert_eq!(is_replaced, scale().compare(&challenger, &held).is_nearer);
        let better = if is_replaced { challenger } else { held };
        prop_assert_eq!(trials.best(), Some(&better));
    }

    /// The runner-up is the answer of a search without the best.
    #[test]
    fn the_runner_up_is_best_without_the_best(list in trials()) {
        let trials = searched(&list);
        let best = trials.best().expect("a trial");
        let others: Vec<Trial> = list.iter().filter(|trial| *trial != best).cloned().collect();
        let without = searched(&others);
        let second = trials.runner_up(&scale()).map(|second| second.trial);
        prop_assert_eq!(second.as_ref(), without.best());
    }

    /// Where times are clearly apart the best has the least, and the runner-up the second least.
    #[test]
    fn clear_times_rank_the_first_two(
        order in Just((1..9_u32).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let list: Vec<Trial> = order.iter().map(|&n| by_times(MS << n)).collect();
        let trials = searched(&list);
        prop_assert_eq!(trials.best().expect("a trial").misfit.times_ns, MS << 1);
        let second = trials.runner_up(&scale()).expect("another");
        prop_assert_eq!(second.trial.misfit.times_ns, MS << 2);
        prop_assert_eq!(second.lost_by, Term::Times);
    }
}
