use super::*;
use std::fs;

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let expected = undisturbed();
    for count in [2, 7] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sweep = open(folder.path());
        finish(&mut sweep, count);
        assert!(bytes(&sweep) == expected, "{count} threads");
    }
}

#[test]
fn a_sweep_goes_on_where_it_was_stopped() {
    let expected = undisturbed();
    for stop_after in [1, 5, 17, 40, 89] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sweep = open(folder.path());
        let runner = Fake {
            stop_after,
            ..Fake::default()
        };
        let stop = AtomicBool::new(false);
        sweep
            .run(&runner, threads(1), &stop, &mut |_| {})
            .expect("it runs");
        assert!(!sweep.is_done());
        assert_eq!(sweep.journal().done(), stop_after);
        drop(sweep);
        let mut sweep = open(folder.path());
        assert_eq!(
            (sweep.journal().done(), sweep.journal().cut()),
            (stop_after, 0)
        );
        sweep
            .verify(&Fake::default(), &AtomicBool::new(false))
            .expect("the same build");
        let mut progress = Vec::new();
        let go = AtomicBool::new(false);
        let again = Fake::default();
        sweep
            .run(&again, threads(1), &go, &mut |done| progress.push(done))
            .expect("it runs");
        assert_eq!(
            again.runs.load(Ordering::Relaxed),
            90 - stop_after,
            "none is done twice"
        );
        assert_eq!(progress, (stop_after + 1..=90).collect::<Vec<_>>());
        assert!(bytes(&sweep) == expected, "{stop_after}");
    }
}

#[test]
fn a_journal_that_is_cut_anywhere_loses_its_last_run_alone() {
    let expected = undisturbed();
    let folder = tempfile::tempdir().expect("a folder");
    let mut sweep = open(folder.path());
    finish(&mut sweep, 1);
    let path = folder.path().join("runs.journal");
    drop(sweep);
    let whole = fs::read(&path).expect("a journal");
    let mut last = 0;
    // Every length near the beginning, where lists of metrics are, and some of the rest.
    for length in (0..700).chain((700..whole.len()).step_by(97)) {
        fs::write(&path, &whole[..length]).expect("a file");
        let sweep = open(folder.path());
        let done = sweep.journal().done();
        assert!(done >= last && done <= 90, "{length}");
        last = done;
        drop(sweep);
        // What was cut off is gone, and the rest is as it was.
        let left = fs::read(&path).expect("a journal");
        assert!(whole.starts_with(&left) || length < 24, "{length}");
    }
    fs::write(&path, &whole[..whole.len() / 2]).expect("a file");
    let mut sweep = open(folder.path());
    assert!(sweep.journal().cut() > 0);
    finish(&mut sweep, 2);
    assert!(bytes(&sweep) == expected);
}

#[test]
fn a_byte_that_changed_is_seen() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sweep = open(folder.path());
    finish(&mut sweep, 1);
    drop(sweep);
    let path = folder.path().join("runs.journal");
    let whole = fs::read(&path).expect("a journal");
    for at in (24..whole.len()).step_by(131) {
        let mut wrong = whole.clone();
        wrong[at] ^= 0x10;
        fs::write(&path, &wrong).expect("a file");
        let sweep = open(folder.path());
        assert!(
            sweep.journal().done() < 90 && sweep.journal().cut() > 0,
            "{at}"
        );
    }
    fs::write(&path, "something else that is long enough").expect("a file");
    let plan = plan(&GRID).expect("a plan");
    let error = Sweep::open(folder.path(), plan, None, false)
        .expect_err("no journal")
        .to_string();
    assert!(error.contains("this is no journal"), "{error}");
}

#[test]
fn another_sweeps_folder_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sweep = open(folder.path());
    finish(&mut sweep, 1);
    let before = bytes(&sweep);
    // While it is open, a second opening fails.
    let busy = Sweep::open(folder.path(), plan(&GRID).expect("a plan"), None, false);
    assert!(matches!(busy, Err(SweepError::Busy { .. })), "{busy:?}");
    drop(sweep);
    let other = |texts: &[&str]| {
        let plan = plan(texts).expect("a plan");
        Sweep::open(folder.path(), plan, None, false)
            .expect_err("another")
            .to_string()
    };
    let error = other(&["kvm.halt_poll_ns=0,5us", GRID[1]]);
    let says = "--vary: there kvm.halt_poll_ns=0ns,10us,20us,30us,40us host.cpus=2,4,8, here \
                kvm.halt_poll_ns=0,5us host.cpus=2,4,8";
    assert!(error.contains(says), "{error}");
    let error = other(&[GRID[0], GRID[1], "run.seeds=2"]);
    assert!(error.contains("seeds: there 1,2,3, here 1,2"), "{error}");
    let changed = |from: &str, to: &str| {
        let scenario = Scenario::from_text("a.toml", &TEXT.replace(from, to)).expect("a scenario");
        let variants = scenario.variants.clone();
        let vary = GRID.iter().map(|text| vary(text).expect(text)).collect();
        let plan = Plan::new(scenario, variants, vary).expect("a plan");
        Sweep::open(folder.path(), plan, None, false)
            .expect_err("another")
            .to_string()
    };
    let error = changed("ple_gap = 0", "ple_gap = 1");
    assert!(
        error.contains("the scenario's text, from line 13 on"),
        "{error}"
    );
    let error = changed("\"1ms\"", "\"2ms\"");
    assert!(error.contains("duration: there 1ms, here 2ms"), "{error}");
    assert!(bytes(&open(folder.path())) == before, "nothing was lost");
    // The same text under another name is the same sweep.
    let scenario = Scenario::from_text("b/c.toml", TEXT).expect("a scenario");
    let variants = scenario.variants.clone();
    let vary = GRID.iter().map(|text| vary(text).expect(text)).collect();
    let same = Plan::new(scenario, variants, vary).expect("a plan");
    assert!(
        Sweep::open(folder.path(), same, None, false)
            .expect("the same")
            .is_done()
    );
    // Opened with the flag to discard it, it starts anew.
    let small = plan(&["host.cpus=2"]).expect("a plan");
    let sweep = Sweep::open(folder.path(), small, None, true).expect("a new one");
    assert_eq!((sweep.plan.runs(), sweep.journal().done()), (6, 0));
    assert!(!sweep.has_results(Form::Parquet));
}

#[test]
fn what_is_no_sweep_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notes.txt");
    fs::write(&path, "mine").expect("a file");
    for restart in [false, true] {
        let plan = plan(&GRID).expect("a plan");
        let error = Sweep::open(folder.path(), plan, None, restart).expect_err("not ours");
        assert!(matches!(error, SweepError::NotASweep { .. }), "{error}");
    }
    let error = Sweep::open(&path, plan(&GRID).expect("a plan"), None, false).expect_err("a file");
    assert!(error.to_string().contains("notes.txt"), "{error}");
    fs::write(folder.path().join("sweep.json"), "{\"format\": 9}").expect("a file");
    let error = Sweep::open(folder.path(), plan(&GRID).expect("a plan"), None, false);
    assert!(
        matches!(error, Err(SweepError::Manifest { .. })),
        "{error:?}"
    );
    assert_eq!(fs::read_to_string(path).expect("a file"), "mine");
}

#[test]
fn another_builds_runs_are_not_mixed_with_this_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sweep = open(folder.path());
    let go = AtomicBool::new(false);
    let few = Fake {
        stop_after: 9,
        ..Fake::default()
    };
    sweep
        .run(&few, threads(1), &AtomicBool::new(false), &mut |_| {})
        .expect("it runs");
    sweep.verify(&Fake::default(), &go).expect("the same");
    let other = Fake {
        more: 1e-12,
        ..Fake::default()
    };
    let error = sweep
        .verify(&other, &go)
        .expect_err("another build")
        .to_string();
    assert!(
        error.contains("another build") && error.contains("the 9 runs"),
        "{error}"
    );
}

#[test]
fn an_estimate_is_of_runs_from_all_over_and_keeps_them() {
    let expected = undisturbed();
    let folder = tempfile::tempdir().expect("a folder");
    let mut sweep = open(folder.path());
    let go = AtomicBool::new(false);
    let estimate = sweep
        .estimate(&Fake::default(), threads(2), &go)
        .expect("it runs");
    let estimate = estimate.expect("an estimate");
    assert_eq!((estimate.remaining, estimate.at_least), (82, false));
    assert_eq!(sweep.journal().done(), 8);
    let done: Vec<u64> = (0..90).filter(|run| sweep.journal().has(*run)).collect();
    assert!(done[0] < 11 && done[7] >= 77, "{done:?}");
    finish(&mut sweep, 2);
    assert!(bytes(&sweep) == expected);
    assert_eq!(
        sweep
            .estimate(&Fake::default(), threads(2), &go)
            .expect("it runs"),
        None
    );
}
