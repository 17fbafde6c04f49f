//! The order of misfits, and what a search keeps of its trials.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stealtime_hypervisor::fair::{Feature, Preempt};
use stealtime_simulator::script::{Edge, Stall, Until};

use super::hypothesis::{CgroupLayout, Dimension, Hypothesis, Moves, Source, hosts, moves};
use super::misfit::{Misfit, Scale, Term, Trial};
use super::search::Trials;
use super::weights::WeightFit;
use crate::clocked::tests::{ARMED, recording, task};
use crate::host::{Assumed, Placement};
use crate::predict::{Times, VcpuTimes};
use crate::{Recording, Release};

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

/// One with a wait of a vCPU for another one.
fn coupled() -> Recording {
    recording(vec![task(Until::Work {
        edge: Edge(0),
        ns: 1_000,
        busy: true,
    })])
}

/// One in which a CPU stalled.
fn stalled() -> Recording {
    let mut stalled = task(ARMED);
    let stall = Stall {
        step: 0,
        after_ns: MS,
        ns: MS,
    };
    stalled.stalls = [stall].into();
    recording(vec![stalled])
}

/// One that another kernel made: without lazy preemption.
fn of_old_kernel() -> Recording {
    let release = Release {
        major: 6,
        minor: 12,
    };
    Recording {
        release: Some(release),
        ..recording(vec![task(ARMED)])
    }
}

#[test]
fn values_that_the_recording_shows_are_not_fitted() {
    use Dimension::{Guests, MoveTimes, Placement as Placed, Preemption, Stalls};
    let plain = recording(vec![task(ARMED)]);
    let moving = Recording {
        migrations: 1,
        ..plain.clone()
    };
    for (dimension, recording, source) in [
        (MoveTimes, &plain, Source::Recorded),
        (MoveTimes, &moving, Source::Fitted),
        (Guests, &plain, Source::Recorded),
        (Guests, &coupled(), Source::Fitted),
        (Stalls, &plain, Source::Recorded),
        (Stalls, &stalled(), Source::Fitted),
        (Preemption, &plain, Source::Fitted),
        (Preemption, &of_old_kernel(), Source::Recorded),
        (Placed, &plain, Source::Fitted),
    ] {
        let found = dimension.source(recording, &Assumed::default());
        assert_eq!(found, source, "{dimension:?}");
    }
}

#[test]
fn values_that_the_user_has_are_stated() {
    let old = of_old_kernel();
    let moving = Recording {
        migrations: 1,
        ..old.clone()
    };
    let source = |dimension: Dimension, known| dimension.source(&moving, &known);
    let placed = |placement| Assumed {
        placement: Some(placement),
        ..Assumed::default()
    };
    // Where the simulated scheduler places tasks, no recorded moves are left.
    let (as_recorded, simulated) = (placed(Placement::Recorded), placed(Placement::Simulated));
    assert_eq!(source(Dimension::MoveTimes, as_recorded), Source::Fitted);
    assert_eq!(source(Dimension::MoveTimes, simulated), Source::Stated);
    let cgroups = |groups, vcpu_groups| {
        let known = Assumed {
            groups,
            vcpu_groups,
            ..Assumed::default()
        };
        source(Dimension::Cgroups, known)
    };
    for (groups, vcpu_groups, found) in [
        (None, None, Source::Fitted),
        (None, Some(true), Source::Fitted),
        (Some(true), None, Source::Fitted),
        (Some(true), Some(false), Source::Stated),
        (Some(false), None, Source::Stated),
    ] {
        assert_eq!(cgroups(groups, vcpu_groups), found, "{groups:?}");
    }
    // A stated value that the recording shows too counts as recorded.
    let preempts = |preempt| Assumed {
        preempt,
        ..Assumed::default()
    };
    for (preempt, found) in [
        (None, Source::Recorded),
        (Some(Preempt::Full), Source::Recorded),
        (Some(Preempt::Lazy), Source::Stated),
    ] {
        let known = preempts(preempt);
        assert_eq!(source(Dimension::Preemption, known), found, "{preempt:?}");
    }
    assert_eq!(
        Dimension::Preemption.source(&coupled(), &preempts(None)),
        Source::Fitted
    );
}

const fn moves_of(placement: Placement, timed_moves: bool) -> Moves {
    Moves {
        placement,
        timed_moves,
    }
}

#[test]
fn recorded_moves_are_tried_at_their_times_where_tasks_moved() {
    let [progress, simulated, timed] = [
        moves_of(Placement::Recorded, false),
        moves_of(Placement::Simulated, false),
        moves_of(Placement::Recorded, true),
    ];
    let tried = |migrations, placement| {
        let recording = Recording {
            migrations,
            ..recording(vec![task(ARMED)])
        };
        let known = Assumed {
            placement,
            ..Assumed::default()
        };
        moves(&recording, &known)
    };
    assert_eq!(tried(0, None), [progress, simulated]);
    assert_eq!(tried(2, None), [progress, simulated, timed]);
    assert_eq!(tried(2, Some(Placement::Recorded)), [progress, timed]);
    assert_eq!(tried(2, Some(Placement::Simulated)), [simulated]);
    for moves in [progress, simulated, timed] {
        assert_eq!(host(0).with_moves(moves).moves(), moves);
    }
}

/// The hosts that are tried: guests that balance, each VM in a cgroup, each vCPU in one, and the preemption.
fn tried_hosts(recording: &Recording, known: &Assumed) -> Vec<(bool, bool, bool, Preempt)> {
    let hosts = hosts(recording, known, moves_of(Placement::Recorded, true));
    let host = |host: &Hypothesis| {
        assert!(host.timed_moves && host.placement == Placement::Recorded);
        let cgroups = &host.cgroups;
        let (every_vm, per_vcpu) = (cgroups.every_vm, cgroups.per_vcpu);
        (host.balanced, every_vm, per_vcpu, host.preempt)
    };
    hosts.iter().map(host).collect()
}

#[test]
fn all_hosts_are_tried_that_are_left_open() {
    let (lazy, full) = (Preempt::Lazy, Preempt::Full);
    let plain = recording(vec![task(ARMED)]);
    let layouts = [(false, false), (true, false), (true, true)];
    let each = |balanced| {
        let of_layout =
            move |(every, nested)| [lazy, full].map(|preempt| (balanced, every, nested, preempt));
        layouts.into_iter().flat_map(of_layout)
    };
    let alone: Vec<_> = each(false).collect();
    assert_eq!(tried_hosts(&plain, &Assumed::default()), alone);
    let both: Vec<_> = each(false).chain(each(true)).collect();
    assert_eq!(tried_hosts(&coupled(), &Assumed::default()), both);
    let of_kernel = alone.iter().copied().filter(|host| host.3 == full);
    let of_kernel: Vec<_> = of_kernel.collect();
    assert_eq!(
        tried_hosts(&of_old_kernel(), &Assumed::default()),
        of_kernel
    );
    // What the user says of guests and preemption counts more than the recording.
    let stated = Assumed {
        balanced: Some(true),
        preempt: Some(lazy),
        ..Assumed::default()
    };
    let stated_hosts: Vec<_> = each(true).filter(|host| host.3 == lazy).collect();
    assert_eq!(tried_hosts(&of_old_kernel(), &stated), stated_hosts);
}

#[test]
fn layouts_of_cgroups_are_those_that_are_left_open() {
    let plain = recording(vec![task(ARMED)]);
    let (none, flat, nested) = ((false, false), (true, false), (true, true));
    // No VM has a cgroup, but one with a limit would have one for each vCPU.
    let none_nested = (false, true);
    for (groups, vcpu_groups, expected) in [
        (None, Some(false), vec![none, flat]),
        (None, Some(true), vec![none_nested, nested]),
        (Some(true), None, vec![flat, nested]),
        (Some(true), Some(true), vec![nested]),
        (Some(true), Some(false), vec![flat]),
        (Some(false), None, vec![none]),
        (Some(false), Some(false), vec![none]),
        (Some(false), Some(true), vec![none_nested]),
    ] {
        let known = Assumed {
            groups,
            vcpu_groups,
            preempt: Some(Preempt::Full),
            ..Assumed::default()
        };
        let found = tried_hosts(&plain, &known).into_iter();
        let found: Vec<_> = found.map(|host| (host.1, host.2)).collect();
        assert_eq!(found, expected, "{groups:?} {vcpu_groups:?}");
    }
}

#[test]
fn a_hypothesis_sets_two_of_the_recorded_knobs() {
    let recording = Recording {
        halt_poll_ns: Some(7_000),
        hz: Some(300),
        ..recording(vec![task(ARMED)])
    };
    for (preempt, wakeups_preempt) in [(Preempt::Lazy, true), (Preempt::Full, false)] {
        let hypothesis = Hypothesis {
            preempt,
            wakeups_preempt,
            ..host(0)
        };
        let knobs = hypothesis.knobs(&recording);
        let has_feature = knobs.sched.features.has(Feature::WakeupPreemption);
        assert_eq!(
            (knobs.sched.preempt, has_feature),
            (preempt, wakeups_preempt)
        );
        let recorded = (knobs.kvm.halt_poll.halt_poll_ns, knobs.sched.hz);
        assert_eq!(recorded, (7_000, 300));
    }
}

#[test]
fn a_replay_assumes_the_hypothesis_and_what_else_is_known() {
    let hypothesis = Hypothesis {
        stalls: true,
        placement: Placement::Simulated,
        timed_moves: true,
        balanced: true,
        cgroups: CgroupLayout {
            every_vm: true,
            per_vcpu: true,
            single_vms: [2].into(),
        },
        weights: BTreeMap::from([(1, 300)]),
        ..host(0)
    };
    let known = Assumed {
        task_pins: vec![(7, vec![0])],
        ..Assumed::default()
    };
    let expected = Assumed {
        groups: Some(true),
        vcpu_groups: Some(true),
        own_group: [2].into(),
        weights: BTreeMap::from([(1, 300)]),
        placement: Some(Placement::Simulated),
        timed_moves: true,
        balanced: Some(true),
        stalls: true,
        ..known.clone()
    };
    assert_eq!(hypothesis.assumed(&known), expected);
}

#[test]
fn weights_are_named_by_their_vms() {
    let words = |weights: &[(usize, u32)]| {
        let hypothesis = Hypothesis {
            weights: weights.iter().copied().collect(),
            ..host(0)
        };
        Dimension::Weights.value(&hypothesis, &["web".to_owned()])
    };
    assert_eq!(words(&[]).as_deref(), Some("equal weights"));
    let unequal = words(&[(0, 300), (4, 50)]);
    assert_eq!(unequal.as_deref(), Some("weights: web 300, VM 4 50"));
}

#[test]
fn terms_have_names() {
    use Term::{Decisions, Order, SliceTimers, Times, Weights};
    let names = [Weights, Decisions, Times, SliceTimers, Order].map(Term::name);
    let expected = ["weights", "decisions", "times", "slice_timers", "order"];
    assert_eq!(names, expected);
}

#[test]
fn times_apart_are_those_of_all_vcpus_and_of_their_work() {
    let vcpu = |run_ns, ready_ns, halted_ns, done_permille| VcpuTimes {
        run_ns,
        ready_ns,
        halted_ns,
        poll_ns: 200,
        done_permille,
        ..VcpuTimes::default()
    };
    let of = |vcpus: [VcpuTimes; 2]| Times {
        vcpus: vcpus.into(),
        ..Times::default()
    };
    let was = of([vcpu(1_000, 300, 500, 1_000), vcpu(700, 0, 900, 1_000)]);
    let is = of([vcpu(1_020, 270, 510, 900), vcpu(700, 0, 896, 1_010)]);
    // A tenth of 800 ns of computing is not done, and 1 % of 500 ns in addition to what was.
    let misfit = Misfit::between(&was, &is, 1_800);
    assert_eq!(misfit.times_ns, (20 + 30 + 10 + 80) + (4 + 5));
    assert_eq!(
        (misfit.decisions_permille, misfit.slices_permille),
        (None, None)
    );
}

#[test]
fn what_is_at_a_threshold_does_not_decide() {
    decides(&by_times(90 * MS), &by_times(100 * MS), false, Term::Order);
    let with = |times_ns, slices| {
        let mut trial = by_times(times_ns);
        trial.misfit.slices_permille = Some(slices);
        trial
    };
    // Times are apart by 0.1 % of vCPUs' time, and slice timers by a quarter.
    let (near, far) = (with(2 * MS, 300), with(3 * MS, 100));
    decides(&near, &far, false, Term::SliceTimers);
    let (near, far) = (with(99 * MS, 150), with(100 * MS, 200));
    decides(&near, &far, false, Term::Order);
    // Weights explain 6 % of vCPUs' time, or half of what is off.
    let weighted = |times_ns| {
        let mut trial = by_times(times_ns);
        trial.hypothesis.weights.insert(0, 300);
        trial
    };
    decides(
        &weighted(40 * MS),
        &by_times(100 * MS),
        false,
        Term::Weights,
    );
    decides(
        &weighted(100 * MS),
        &by_times(200 * MS),
        false,
        Term::Weights,
    );
}

#[test]
fn weights_and_no_weights_are_compared_in_the_order_of_trials() {
    let mut weighted = by_times(90 * MS);
    weighted.hypothesis.weights.insert(0, 300);
    let mut useless = by_times(190 * MS);
    useless.hypothesis.weights.insert(0, 300);
    let equal = by_times(200 * MS);
    for (list, best) in [([&equal, &weighted], 1), ([&equal, &useless], 0)] {
        let list = list.map(Trial::clone);
        let trials = searched(&list);
        assert_eq!(trials.best(), Some(&list[best]));
        let second = trials.runner_up(&scale()).expect("another one");
        assert_eq!(
            (second.trial, second.lost_by),
            (list[1 - best].clone(), Term::Weights)
        );
    }
    // Tried first, they need no threshold.
    let list = [useless, equal.clone()];
    let second = searched(&list).runner_up(&scale()).expect("another one");
    assert_eq!((second.trial, second.lost_by), (equal, Term::Order));
}

/// VMs that run and wait for so long, in ms.
fn waiting<const N: usize>(vms: [[u64; 2]; N]) -> Times {
    let vcpu = |(vm, [run, ready]): (usize, [u64; 2])| VcpuTimes {
        vm,
        run_ns: run * MS,
        ready_ns: ready * MS,
        ..VcpuTimes::default()
    };
    Times {
        vcpus: vms.into_iter().enumerate().map(vcpu).collect(),
        ..Times::default()
    }
}

#[test]
fn the_second_step_of_weights_is_as_long_as_the_first_one_left_to_do() {
    let recorded = waiting([[450, 450]; 3]);
    let mut fit = WeightFit::default();
    // Odds to run of 1/8, 2 and 4: three, minus one and minus two doublings are missing.
    // Half of them is done at once.
    assert!(fit.step(&recorded, &waiting([[100, 800], [600, 300], [720, 180]])));
    // 2^2.5 and 2^0.5 of the least.
    assert_eq!(fit.weights(false), BTreeMap::from([(0, 570), (1, 140)]));
    // Now one, none and minus one. That is 5/14 of the first in its direction, so that 9/14 came of a half: a
    // whole is 7/9, and the weights are 2^(1.5 + 7/9), 2^-0.5 and 2^(-1 - 7/9).
    assert!(fit.step(&recorded, &waiting([[300, 600], [450, 450], [600, 300]])));
    assert_eq!(fit.weights(false), BTreeMap::from([(0, 1_700), (1, 240)]));
}

#[test]
fn a_vm_that_never_ran_or_hardly_waits_has_no_weight() {
    for idle in [[0, 900], [990, 10]] {
        let recorded = waiting([[300, 600], [600, 300], idle]);
        let mut fit = WeightFit::default();
        assert!(fit.step(&recorded, &waiting([[450, 450]; 3])));
        // Odds of a half and of two are apart by four. Half of the way, as logarithms, is done at once.
        assert_eq!(fit.weights(false), BTreeMap::from([(1, 200)]), "{idle:?}");
    }
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
