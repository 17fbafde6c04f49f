use super::*;
use std::path::PathBuf;

/// Runs shard `number` of `count` in a folder of its own.
fn run_shard(root: &Path, number: u64, count: u64, runner: &Fake) -> PathBuf {
    let path = root.join(format!("{number}-of-{count}"));
    let shard = Shard::new(number, count).expect("a shard");
    let plan = plan(&GRID).expect("a plan");
    let mut sweep = Sweep::open(&path, plan, Some(shard), false).expect("a sweep");
    let go = AtomicBool::new(false);
    sweep
        .run(runner, threads(2), &go, &mut |_| {})
        .expect("it runs");
    path
}

fn merge(root: &Path, folders: &[PathBuf]) -> Result<Merged, SweepError> {
    Sweep::merge(&root.join("whole"), folders, false)
}

#[test]
fn shards_in_any_order_and_some_twice_give_the_bytes_of_one_sweep() {
    let expected = undisturbed();
    for count in [1, 2, 8] {
        let root = tempfile::tempdir().expect("a folder");
        let shards = (1..=count).rev();
        let mut folders: Vec<PathBuf> = shards
            .map(|number| run_shard(root.path(), number, count, &Fake::default()))
            .collect();
        // Parts of another partition, and the same folder again.
        folders.push(run_shard(root.path(), 2, 3, &Fake::default()));
        folders.push(folders[0].clone());
        let merged = merge(root.path(), &folders).expect("one sweep");
        merged.check().expect("all runs");
        assert!(merged.sweep.is_done());
        assert!(bytes(&merged.sweep) == expected, "{count}");
        drop(merged);
        // Once more: the whole is there.
        let merged = merge(root.path(), &folders[..1]).expect("one sweep");
        assert!(bytes(&merged.sweep) == expected, "{count}");
    }
}

#[test]
fn a_merge_lists_the_shards_or_seeds_that_lack_runs() {
    let root = tempfile::tempdir().expect("a folder");
    let folders: Vec<PathBuf> = [1, 3]
        .map(|number| run_shard(root.path(), number, 3, &Fake::default()))
        .into();
    let merged = merge(root.path(), &folders).expect("one sweep");
    let error = merged.check().expect_err("a third is missing").to_string();
    assert!(error.contains("shard 2/3 lacks "), "{error}");
    assert!(!error.contains("shard 1/3"), "{error}");
    drop(merged);
    // The whole's own command does the rest.
    let mut sweep = open(&root.path().join("whole"));
    finish(&mut sweep, 2);
    assert!(bytes(&sweep) == undisturbed());

    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("stopped");
    let runner = Fake {
        stop_after: 40,
        ..Fake::default()
    };
    let stop = AtomicBool::new(false);
    let run = open(&path).run(&runner, threads(1), &stop, &mut |_| {});
    run.expect("it stops");
    let merged = merge(root.path(), &[path]).expect("a part");
    let error = merged.check().expect_err("runs are missing").to_string();
    assert!(error.contains("50 of 90 runs are in no folder"), "{error}");
    assert!(error.contains("seed 1 lacks "), "{error}");
}

#[test]
fn a_shard_that_was_cut_lacks_its_last_run_and_stays_as_it_is() {
    let root = tempfile::tempdir().expect("a folder");
    let shard = run_shard(root.path(), 1, 1, &Fake::default());
    let journal = shard.join("runs.journal");
    let bytes = std::fs::read(&journal).expect("a journal");
    let cut = &bytes[..bytes.len() - 1];
    std::fs::write(&journal, cut).expect("a journal");
    let merged = merge(root.path(), std::slice::from_ref(&shard)).expect("one sweep");
    let error = merged.check().expect_err("a run is missing").to_string();
    assert!(error.contains("shard 1/1 lacks 1 of 90 runs"), "{error}");
    drop(merged);
    assert!(std::fs::read(&journal).expect("a journal") == cut);
    // A kill before the first run.
    std::fs::remove_file(&journal).expect("a journal");
    let merged = Sweep::merge(&root.path().join("none"), &[shard], false).expect("one sweep");
    let error = merged.check().expect_err("all are missing").to_string();
    assert!(error.contains("shard 1/1 lacks 90 of 90 runs"), "{error}");
    assert!(!journal.exists());
}

#[test]
fn folders_that_disagree_or_are_of_another_sweep_are_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let first = run_shard(root.path(), 1, 2, &Fake::default());
    let other_build = Fake {
        more: 1.0,
        ..Fake::default()
    };
    let second = run_shard(root.path(), 1, 1, &other_build);
    let error = merge(root.path(), &[first.clone(), second]).expect_err("other results");
    assert!(matches!(error, SweepError::Disagree { .. }), "{error}");

    let smaller = root.path().join("smaller");
    let small = plan(&GRID[..1]).expect("a plan");
    drop(Sweep::open(&smaller, small, None, false).expect("a sweep"));
    let error = merge(root.path(), &[first.clone(), smaller]).expect_err("another grid");
    assert!(error.to_string().contains("--vary: there"), "{error}");

    for (name, from, to, expected) in [
        (
            "other",
            "duration = \\\"1ms",
            "duration = \\\"2ms",
            "the scenario's text, from line 15 on",
        ),
        (
            "older",
            env!("CARGO_PKG_VERSION"),
            "0.0.1",
            "version: there 0.0.1",
        ),
    ] {
        let folder = root.path().join(name);
        let plan = self::plan(&GRID).expect("a plan");
        drop(Sweep::open(&folder, plan, None, false).expect("a sweep"));
        let manifest = folder.join("sweep.json");
        let text = std::fs::read_to_string(&manifest).expect("a description");
        std::fs::write(&manifest, text.replacen(from, to, 1)).expect("a description");
        let error = merge(root.path(), &[first.clone(), folder]).expect_err(name);
        assert!(matches!(error, SweepError::Unlike { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = merge(root.path(), &[root.path().to_owned()]).expect_err("no sweep");
    assert!(matches!(error, SweepError::NoSweep { .. }), "{error}");
    let shard = Shard::new(2, 2).expect("a shard");
    let plan = plan(&GRID).expect("a plan");
    let error = Sweep::open(&first, plan, Some(shard), false).expect_err("another shard");
    assert!(
        error.to_string().contains("--shard: there 1/2, here 2/2"),
        "{error}"
    );
}
