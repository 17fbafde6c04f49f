//! CFS by its public face; that it decides as the kernel's functions do is in `golden/cfs.rs`.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use stealtime_hypervisor::fair::{
    Attr, Block, Cfs, Config, Error, Fair, Feature, PickMode, Preempt, Resched,
};

fn config(cpus: u32) -> Config {
    let mut config = Config::linux_7_2(cpus);
    config.preempt = Preempt::Full;
    config.cfs = Some(Cfs::linux_6_1(cpus));
    config
}

#[test]
fn tunables_scale_with_the_logarithm_of_the_cpus() {
    let of = |cpus| {
        let cfs = Cfs::linux_6_1(cpus);
        (
            cfs.latency_ns,
            cfs.min_granularity_ns,
            cfs.wakeup_granularity_ns,
        )
    };
    assert_eq!(of(0), of(1));
    assert_eq!(of(1), (6_000_000, 750_000, 1_000_000));
    assert_eq!(of(3), (12_000_000, 1_500_000, 2_000_000));
    assert_eq!(of(64), (24_000_000, 3_000_000, 4_000_000));
}

#[test]
fn what_is_of_eevdf_is_refused() {
    let mut fair = Fair::new(config(2)).unwrap();
    let flat = fair.create_rq(PickMode::Flat);
    assert_eq!(flat, Err(Error::NotWithCfs("flat picking")));
    let mut credits = config(2);
    credits.features = credits.features.with(Feature::YieldToLagCredit);
    let refused = Fair::new(credits).err();
    assert_eq!(refused, Some(Error::NotWithCfs("YIELD_TO_LAG_CREDIT")));
    let mut short = config(2);
    short.cfs = Some(Cfs {
        min_granularity_ns: 99_999,
        ..Cfs::linux_6_1(2)
    });
    let said = Fair::new(short).err().map(|error| format!("{error}"));
    let said = said.unwrap_or_default();
    assert!(said.starts_with("min_granularity_ns = 99999"), "{said}");
}

/// With three at work on one CPU each runs for a third of the latency, to the next tick.
#[test]
fn ticks_end_who_has_had_its_part_of_the_latency() {
    let mut fair = Fair::new(config(1)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    for _ in 0..3 {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, 0).unwrap();
    }
    let mut now = 0;
    let mut last = fair.pick(rq, now).unwrap().task;
    let mut runs = Vec::new();
    let mut since = now;
    for _ in 0..300 {
        now += 1_000_000;
        if fair.tick(rq, now).unwrap().resched == Resched::Now {
            let picked = fair.pick(rq, now).unwrap().task;
            if picked != last {
                runs.push(now - since);
                (last, since) = (picked, now);
            }
        }
    }
    // 2 ms of 6, which at a tick of 1 ms have passed at the third.
    assert!(runs.len() > 80, "{runs:?}");
    assert!(
        runs.iter()
            .skip(3)
            .all(|&ns| ns == 3_000_000 || ns == 2_000_000),
        "{runs:?}"
    );
}

/// Who slept comes back up to half a latency ahead of the others, and preempts if that is more than the
/// granularity.
#[test]
fn sleepers_preempt_but_not_those_who_slept_for_a_moment() {
    let preempts = |slept_ns: u64| {
        let mut fair = Fair::new(config(2)).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let new = |fair: &mut Fair| fair.create_task(Attr::default(), None).unwrap();
        let (sleeper, busy) = (new(&mut fair), new(&mut fair));
        fair.fork(sleeper, rq, 0).unwrap();
        fair.pick(rq, 0).unwrap();
        fair.fork(busy, rq, 0).unwrap();
        // It runs until it has caught up with who comes later by a slice.
        fair.block(rq, Block::Sleep, 6_000_000).unwrap();
        fair.pick(rq, 6_000_000).unwrap();
        let at = 6_000_000 + slept_ns;
        fair.wake(sleeper, rq, at).unwrap().resched == Resched::Now
    };
    assert!(!preempts(1_000_000));
    assert!(preempts(20_000_000));
}

/// `check_preempt_tick`: a task is preempted once it has run for more than its part. That is half of 6 ms by
/// the inverse weight `(2^32 - 1) / 2048`: `6000000 * 1024 * 2097151 >> 32`.
#[test]
fn a_part_of_the_latency_may_be_used_up() {
    for (ran_ns, resched) in [(2_999_998, Resched::None), (2_999_999, Resched::Now)] {
        let mut fair = Fair::new(config(1)).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let tasks = [(); 2].map(|()| fair.create_task(Attr::default(), None).unwrap());
        fair.fork(tasks[0], rq, 0).unwrap();
        fair.pick(rq, 0).unwrap();
        fair.fork(tasks[1], rq, 0).unwrap();
        assert_eq!(fair.pending(rq).unwrap().resched, Resched::None);
        assert_eq!(fair.tick(rq, ran_ns).unwrap().resched, resched, "{ran_ns}");
    }
}

/// Without `NEXT_BUDDY` a new task that preempts nothing is no buddy, however many there are.
#[test]
fn forks_nominate_no_buddy() {
    let mut fair = Fair::new(config(1)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    for n in 0..20 {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, 0).unwrap();
        if n == 0 {
            fair.pick(rq, 0).unwrap();
        }
        assert_eq!(fair.queue(rq, None).unwrap().next, None, "{n}");
    }
}
