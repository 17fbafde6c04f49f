//! The search against exhaustive search, on hosts with figures of a formula.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;

use crate::capacity::cause::Taker;
use crate::capacity::error::FitError;
use crate::capacity::{Capacity, HostVm, Limit, Outcome, Question, Replays};
use crate::count::VmCount;
use crate::population::{Population, VmFigures};

/// Enough that results come out of order.
pub(super) const THREADS: NonZeroUsize = NonZeroUsize::new(2).expect("not 0");

/// A host on which ready time grows with demand beyond half of its CPUs.
pub(super) struct Formula {
    pub(super) vms: Vec<HostVm>,
    cpus: u32,
    /// Most that chance adds to a VM's ready time, in percent.
    noise: f64,
    /// Counts that were replayed, with how often.
    replayed: Mutex<BTreeMap<Vec<u32>, u64>>,
}

pub(super) fn vm(name: &str, run_ms: f64, is_elastic: bool) -> HostVm {
    HostVm {
        name: name.to_owned(),
        vcpus: 1,
        run_ms,
        ready_percent: 0.0,
        wakeup_p50_us: 100.0,
        wakeup_p99_us: 100.0,
        work_ms: run_ms,
        demand_error: 0.0,
        is_elastic,
        is_added: false,
        first: 1,
    }
}

impl Formula {
    pub(super) fn new(vms: Vec<HostVm>, cpus: u32, noise: f64) -> Self {
        let mut host = Self {
            vms,
            cpus,
            noise,
            replayed: Mutex::default(),
        };
        let recorded = host.population(&[], 0);
        for (vm, copy) in host.vms.iter_mut().zip(&recorded.vms) {
            vm.ready_percent = copy.ready_percent;
            vm.wakeup_p99_us = copy.wakeup_p99_us.unwrap_or(0.0);
            vm.work_ms = copy.work_ms_per_s;
        }
        host
    }

    fn counts(&self, counts: &[VmCount]) -> Vec<u32> {
        let count = |vm: &HostVm| {
            let named = counts.iter().find(|count| count.vm == vm.name);
            named.map_or(vm.first, |count| count.count)
        };
        self.vms.iter().map(count).collect()
    }

    fn population(&self, counts: &[VmCount], seed: u64) -> Population {
        let counts = self.counts(counts);
        let pairs = self.vms.iter().zip(&counts);
        let demand: f64 = pairs
            .clone()
            .map(|(vm, count)| vm.run_ms * f64::from(*count))
            .sum();
        let load = demand / f64::from(self.cpus) / 1_000.0;
        let mut vms = Vec::new();
        for (index, (vm, count)) in pairs.enumerate() {
            for number in 1..=*count {
                // The same for each count, as replays have it.
                let chance = seed.wrapping_mul(6_364_136_223_846_793_005)
                    ^ u64::from(number).wrapping_mul(1_442_695_040_888_963_407)
                    ^ index as u64;
                let noise = (chance >> 40) as f64 / (1u64 << 24) as f64 * self.noise;
                vms.push(VmFigures {
                    name: format!("{}#{number}", vm.name),
                    vm: vm.name.clone(),
                    number,
                    vcpus: 1,
                    is_elastic: vm.is_elastic,
                    ready_percent: (load - 0.5).max(0.0) * 20.0 + noise,
                    run_percent: vm.run_ms / 10.0,
                    wakeup_p50_us: Some(100.0),
                    wakeup_p99_us: Some(100.0 + load * 1_000.0),
                    work_ms_per_s: vm.run_ms / load.max(1.0),
                    done_percent: 100.0 / load.max(1.0),
                    overhead_ms_per_s: vm.run_ms / 10.0,
                });
            }
        }
        Population {
            vms,
            host_tasks_ms_per_s: 0.0,
            switches_per_s: demand,
            cpu_ms_per_s: demand.min(f64::from(self.cpus) * 1_000.0),
        }
    }
}

impl Replays for Formula {
    fn vms(&self) -> &[HostVm] {
        &self.vms
    }

    fn cpus(&self) -> u32 {
        self.cpus
    }

    fn replay(&self, lists: &[Vec<VmCount>], seeds: u64) -> Result<Vec<Vec<Population>>, FitError> {
        let replay = |list: &Vec<VmCount>| {
            let mut replayed = self.replayed.lock().expect("no panic");
            *replayed.entry(self.counts(list)).or_default() += seeds;
            (1..=seeds)
                .map(|seed| self.population(list, seed))
                .collect()
        };
        Ok(lists.iter().map(replay).collect())
    }

    fn takers(&self, _counts: &[VmCount], vm: &str) -> Result<Vec<Taker>, FitError> {
        Ok(vec![Taker {
            name: vm.to_owned(),
            is_same_vm: true,
            percent: 100.0,
        }])
    }
}

fn question(added: &[&str], limits: &[&str]) -> Question {
    let texts = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    Question {
        added: texts(added),
        limits: Limit::parse_all(&texts(limits)).expect("limits"),
        moves: None,
    }
}

fn answer(host: &Formula, question: &Question) -> Capacity {
    let answer = Capacity::answer(host, question, 5, THREADS, 10_000_000_000, &[500, 500, 500]);
    answer.expect("an answer")
}

#[test]
fn the_search_gives_what_exhaustive_search_gives() {
    for cpus in [1, 2, 4, 16] {
        for run_ms in [20.0, 150.0, 430.0, 900.0] {
            for limit in [
                "ready<1%",
                "ready<5%",
                "ready<30%",
                "wakeup.p99<1ms",
                "work>90%",
            ] {
                let host = Formula::new(vec![vm("web", run_ms, false)], cpus, 0.0);
                let document = answer(&host, &question(&["web"], &[limit]));
                let [curve] = &document.curves[..] else {
                    panic!("one curve");
                };
                let parsed = Limit::parse(limit).expect("a limit");
                let holds = |count: u32| {
                    let counts = [VmCount {
                        vm: "web".to_owned(),
                        count,
                    }];
                    let population = host.population(&counts, 1);
                    let copy = population.vms.first().expect("a VM");
                    parsed.holds(match limit.split(['<', '>']).next() {
                        Some("ready") => copy.ready_percent,
                        Some("work") => {
                            copy.work_ms_per_s
                                / run_ms.min(run_ms / (run_ms / f64::from(cpus) / 1_000.0).max(1.0))
                                * 100.0
                        }
                        _ => copy.wakeup_p99_us.expect("wakeups"),
                    })
                };
                let expected = (1..=curve.bound).take_while(|count| holds(*count)).last();
                assert_eq!(curve.largest, expected, "{cpus} CPUs, {run_ms} ms, {limit}");
                // Without noise the interval is the count itself.
                let count = expected.unwrap_or(0);
                assert_eq!((curve.least, curve.greatest), (count, count));
                assert!(curve.points.len() <= 2 * 10 + 2, "{}", curve.points.len());
            }
        }
    }
}

#[test]
fn noise_widens_the_interval_around_the_count() {
    let quiet = Formula::new(vec![vm("web", 150.0, false)], 4, 0.0);
    let truth = answer(&quiet, &question(&["web"], &["ready<5%"]));
    let noisy = Formula::new(vec![vm("web", 150.0, false)], 4, 2.0);
    let noisy = answer(&noisy, &question(&["web"], &["ready<5%"]));
    let (truth, curve) = (&truth.curves[0], &noisy.curves[0]);
    let largest = truth.largest.expect("a count");
    assert!(curve.least < curve.greatest, "{}", curve.sentence);
    assert!(
        (curve.least..=curve.greatest).contains(&largest),
        "{}",
        curve.sentence
    );
}

#[test]
fn a_demand_that_is_uncertain_widens_the_interval() {
    let interval = |error: f64, other: f64| {
        let with = |name, run_ms, demand_error| HostVm {
            demand_error,
            ..vm(name, run_ms, false)
        };
        let vms = vec![with("web", 150.0, error), with("db", 300.0, other)];
        let host = Formula::new(vms, 4, 0.0);
        let document = answer(&host, &question(&["web"], &["ready<5%"]));
        let curve = &document.curves[0];
        assert_eq!(curve.largest, Some(17));
        (curve.least, curve.greatest)
    };
    // Limits fail at the demand of 18 of web.
    assert_eq!(interval(0.0, 0.0), (17, 17));
    assert_eq!(interval(0.1, 0.0), (16, 19));
    // One of db demands as much as two of web.
    assert_eq!(interval(0.0, 0.6), (16, 19));
}

#[test]
fn more_of_one_vm_is_bounded_by_another_one() {
    let host = Formula::new(
        vec![vm("db", 300.0, false), vm("web", 400.0, false)],
        2,
        0.5,
    );
    let document = answer(&host, &question(&["web"], &["db.ready<5%", "work>50%"]));
    let curve = &document.curves[0];
    let failure = curve.failure.as_ref().expect("a limit fails");
    assert_eq!(failure.check.vm.as_deref(), Some("db"));
    assert_eq!(
        Some(failure.count),
        curve.largest.map(|largest| largest + 1)
    );
    assert_eq!(
        curve.sentence,
        "1 more of web fits (95 %: 1 to 2); the second makes db wait 5.2 % ±0.5 of its time \
         (limit 5.0 %), taken by its own vCPUs."
    );
}

#[test]
fn limits_that_fail_as_recorded_are_said_with_their_vm() {
    let host = Formula::new(
        vec![vm("db", 900.0, false), vm("web", 900.0, false)],
        1,
        0.5,
    );
    let document = answer(&host, &question(&["web"], &["ready<5%"]));
    let curve = &document.curves[0];
    assert_eq!((curve.largest, curve.least), (None, 0));
    // Nothing beyond the recorded counts is replayed for it.
    assert_eq!(curve.points.len(), 1);
    assert_eq!(
        curve.sentence,
        "The limits do not hold even as recorded: web waits 26.2 % ±0.5 of its time (limit 5.0 \
         %), taken by its own vCPUs."
    );
}

#[test]
fn elastic_vms_are_judged_only_by_name() {
    let host = || {
        Formula::new(
            vec![vm("db", 100.0, false), vm("batch", 1_000.0, true)],
            2,
            0.0,
        )
    };
    let document = answer(&host(), &question(&["db"], &["ready<8%"]));
    let of_batch = |document: &Capacity| {
        let mut checks = document.curves[0]
            .points
            .iter()
            .flat_map(|point| &point.checks);
        checks.any(|check| check.vm.as_deref() == Some("batch"))
    };
    assert!(!of_batch(&document));
    assert_eq!(document.elastic, ["batch"]);
    assert!(
        document
            .unknown
            .iter()
            .any(|line| line.contains("batch") && line.contains("elastic"))
    );
    let document = answer(&host(), &question(&["db"], &["batch.ready<8%"]));
    assert!(of_batch(&document));
}

#[test]
fn without_a_limit_the_search_ends_at_the_knee() {
    let host = Formula::new(
        vec![vm("db", 300.0, false), vm("web", 400.0, false)],
        2,
        0.0,
    );
    let document = answer(&host, &Question::default());
    assert!(document.knee.is_some());
    // Each of the VMs, and the mix.
    assert_eq!(document.curves.len(), 3);
    for curve in &document.curves {
        let end = curve.end().expect("it holds as recorded");
        assert!(end.holds(|outcome| outcome == Outcome::Holds));
    }
    let sentences: Vec<&str> = document
        .curves
        .iter()
        .map(|curve| curve.sentence.as_str())
        .collect();
    assert_eq!(
        sentences.join("\n"),
        "4 more of db fit; the fifth makes db do 90.9 % ±0.0 of its work alone (limit 95.0 %), \
         taken by its own vCPUs.\n3 more of web fit; the fourth makes web do 87.0 % ±0.0 of its \
         work alone (limit 95.0 %), taken by its own vCPUs.\n2 more of every VM fit; 3 more make \
         web do 71.4 % ±0.0 of its work alone (limit 95.0 %), taken by its own vCPUs."
    );
}

#[test]
fn counts_without_end_are_bounded() {
    let host = Formula::new(vec![vm("tiny", 1.0, false)], 64, 0.0);
    let document = answer(&host, &question(&[], &["ready<50%"]));
    let curve = &document.curves[0];
    assert!(curve.is_bounded && curve.failure.is_none());
    assert_eq!(curve.largest, Some(256));
    assert_eq!(
        curve.sentence,
        "At least 255 more of tiny fit: all limits hold up to there, and no larger count is tried."
    );
}

#[test]
fn each_count_is_replayed_for_few_seeds_unless_it_is_near_a_limit() {
    let host = Formula::new(vec![vm("web", 50.0, false)], 16, 0.2);
    let document = answer(&host, &question(&["web"], &["ready<5%"]));
    let curve = &document.curves[0];
    let seeds: Vec<(u32, usize)> = curve
        .points
        .iter()
        .map(|point| (point.count, point.seeds))
        .collect();
    assert!(seeds.iter().any(|(_, seeds)| *seeds == 3), "{seeds:?}");
    let replayed = host.replayed.lock().expect("no panic");
    // Every count at most twice: with few seeds, and with all.
    assert!(
        replayed
            .iter()
            .all(|(counts, seeds)| counts == &[1] || *seeds <= 8),
        "{replayed:?}"
    );
}

#[test]
fn removals_are_ranked_by_what_the_others_gain() {
    let vms = vec![
        vm("db", 300.0, false),
        vm("web", 700.0, false),
        vm("batch", 900.0, true),
    ];
    let host = Formula::new(vms, 1, 0.5);
    let removed = |moves| {
        let question = Question {
            moves: Some(moves),
            ..Question::default()
        };
        Capacity::answer(&host, &question, 5, THREADS, 10_000_000_000, &[500, 500, 0])
    };
    let document = removed(1).expect("an answer");
    let removals = document.removals.expect("removals");
    let names: Vec<&str> = removals.ranked.iter().map(|row| row.vm.as_str()).collect();
    assert_eq!(names, ["batch", "web", "db"]);
    assert!(removals.ranked.iter().all(|row| row.vms.len() == 2));
    assert_eq!(
        removals.sentence,
        "Take away batch: it spares the others 360 ±0 ms of waiting per second, db most: it waits \
         10.2 % of its time instead of 28.2 %. web waits most now, 28.0 % of its time, taken by \
         its own vCPUs."
    );
    let document = removed(2).expect("an answer");
    let removals = document.removals.expect("removals");
    let names: Vec<&str> = removals.steps.iter().map(|row| row.vm.as_str()).collect();
    assert_eq!(names, ["batch", "web"]);
    assert_eq!(
        removals.sentence,
        "Take away batch, then web: batch alone spares the others 360 ±0 ms of waiting per \
         second, db most: it waits 10.2 % of its time instead of 28.2 %. These are 2 one after \
         the other, each the best after those before: another set of 2 may be better. web waits \
         most now, 28.0 % of its time, taken by its own vCPUs."
    );
    let error = removed(3).expect_err("one VM stays");
    assert_eq!(
        error.to_string(),
        "--move 3: the recording has 3 VMs, and one of them stays"
    );
}

#[test]
fn names_are_checked_first() {
    let host = Formula::new(
        vec![vm("db", 300.0, false), vm("web", 400.0, false)],
        2,
        0.0,
    );
    let refused = |added: &[&str], limits: &[&str]| {
        let question = question(added, limits);
        let answer = Capacity::answer(&host, &question, 5, THREADS, 10_000_000_000, &[500, 500]);
        answer.expect_err("refused").to_string()
    };
    assert_eq!(
        refused(&["webb"], &[]),
        "--add webb: no VM \"webb\" in the recording: did you mean `web`?"
    );
    assert_eq!(
        refused(&[], &["dbb.ready<5%"]),
        "--limit dbb.ready<5%: no VM \"dbb\" in the recording: did you mean `db`?"
    );
    assert!(host.replayed.lock().expect("no panic").is_empty());
    let host = Formula::new(vec![vm("db", 300.0, false), vm("db", 400.0, false)], 2, 0.0);
    let error = Capacity::answer(&host, &Question::default(), 5, THREADS, 1, &[5, 5]);
    assert_eq!(
        error.expect_err("refused").to_string(),
        "the recording has two VMs named \"db\": name their threads by --vm-of NAME=TID,TID…, each VM by a name of its own"
    );
}

#[test]
fn a_limit_that_bounds_nothing_is_refused() {
    let refused = |vms: Vec<HostVm>, limits: &[&str], moves| {
        let mut host = Formula::new(vms, 2, 0.0);
        for db in host.vms.iter_mut().filter(|vm| vm.name == "db") {
            db.wakeup_p99_us = 0.0;
        }
        let question = Question {
            moves,
            ..question(&[], limits)
        };
        let answer = Capacity::answer(&host, &question, 5, THREADS, 10_000_000_000, &[500, 500]);
        answer.map_or_else(|error| error.to_string(), |_| String::new())
    };
    let mut hog = vm("hog", 900.0, true);
    hog.vcpus = 2;
    let hogs = || vec![hog.clone(), vm("busy", 900.0, true)];
    let elastic = "every VM of the recording is elastic: it takes what CPU time it gets, and a limit is \
                   for such a VM only by its name: give --limit 'hog.work>50%'";
    assert_eq!(refused(hogs(), &[], None), elastic);
    assert_eq!(refused(hogs(), &["ready<5%"], Some(1)), elastic);
    // The knee is no limit of what to take away, and a named limit is one of an elastic VM.
    assert_eq!(refused(hogs(), &[], Some(1)), "");
    assert_eq!(refused(hogs(), &["hog.work>50%", "overhead<90%"], None), "");
    let pair = || vec![vm("db", 300.0, false), vm("web", 300.0, false)];
    assert_eq!(
        refused(pair(), &["db.wakeup.p99<2ms"], None),
        "--limit db.wakeup.p99<2ms: VM \"db\" never wakes up in the recording, so that the limit bounds \
         nothing"
    );
    assert_eq!(refused(pair(), &["wakeup.p99<2ms"], None), "");
}
