use super::*;
use std::fs::{self, File};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

/// A file of results as its own crate reads it: by row, by name.
fn read(path: &Path) -> Vec<Vec<(String, Field)>> {
    let file = File::open(path).expect("a file");
    let reader = SerializedFileReader::new(file).expect("Parquet");
    let rows = reader.get_row_iter(None).expect("rows");
    let fields = |row: parquet::record::Row| {
        let columns = row.get_column_iter();
        columns
            .map(|(name, field)| (name.clone(), field.clone()))
            .collect()
    };
    rows.map(|row| fields(row.expect("a row"))).collect()
}

fn of<'r>(row: &'r [(String, Field)], name: &str) -> &'r Field {
    let found = row.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("no {name} in {row:?}")).1
}

#[test]
fn parquet_comes_back_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let texts = [
        "kvm.halt_poll_ns=0,20us",
        "kvm.ipi_aware_yield=true,false",
        "run.duration=1ms,2ms",
    ];
    let plan = plan(&texts).expect("a plan");
    let mut sweep = Sweep::open(folder.path(), plan, None, false).expect("a sweep");
    finish(&mut sweep, 2);
    let rows = read(&sweep.write(Form::Parquet, threads(2)).expect("results"));
    assert_eq!(rows.len(), 2 * 2 * 2 * 2 * 3);
    let names: Vec<&str> = rows[0].iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "kvm.halt_poll_ns",
            "kvm.ipi_aware_yield",
            "run.duration_ns",
            "variant",
            "seed",
            "status",
            "fault",
            "events",
            "host.throughput_per_s",
            "host.exits_HLT_per_s",
            "host.latency_mean_ns",
        ]
    );
    let first = &rows[0];
    assert_eq!(*of(first, "kvm.halt_poll_ns"), Field::Long(0));
    assert_eq!(*of(first, "kvm.ipi_aware_yield"), Field::Bool(true));
    assert_eq!(*of(first, "run.duration_ns"), Field::Long(1_000_000));
    assert_eq!(*of(first, "variant"), Field::Str("a".into()));
    assert_eq!(*of(first, "status"), Field::Str("done".into()));
    assert_eq!(*of(first, "fault"), Field::Null);
    // Nothing counted is 0; a time that is not a number was not measured.
    assert_eq!(*of(first, "host.exits_HLT_per_s"), Field::Double(0.0));
    assert_eq!(*of(first, "host.latency_mean_ns"), Field::Null);
    for (run, row) in rows.iter().enumerate() {
        let place = sweep.plan.place(run as u64);
        let seed = sweep.plan.seeds[place.seed];
        assert_eq!(*of(row, "seed"), Field::Long(seed as i64));
        let fails = place.values[0] == 1 && seed > 1;
        let expected = match (fails, seed) {
            (true, 2) => ("failed", Field::Str("no, with \"quotes\"".into())),
            (true, _) => (
                "panicked",
                Field::Str("a defect of the simulator: a defect".into()),
            ),
            _ => ("done", Field::Null),
        };
        assert_eq!(
            (of(row, "status"), of(row, "fault")),
            (&Field::Str(expected.0.into()), &expected.1)
        );
        let poll = place.values[0] as u64 * 20;
        let value = (seed * 7_919 % 101 + poll * 4) as f64 / 3.0;
        let field = match fails {
            true => Field::Null,
            false => Field::Double(value),
        };
        assert_eq!(*of(row, "host.throughput_per_s"), field, "{run}");
    }
    let summary = sweep.summary(&[], threads(2)).expect("a summary");
    assert_eq!((summary.runs, summary.failed), (48, 16));
    assert_eq!(
        summary.first_failure.as_deref(),
        Some("no, with \"quotes\"")
    );
}

#[test]
fn csv_and_parquet_say_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sweep = open(folder.path());
    finish(&mut sweep, 2);
    let rows = read(&sweep.write(Form::Parquet, threads(2)).expect("results"));
    let csv =
        fs::read_to_string(sweep.write(Form::Csv, threads(3)).expect("results")).expect("a file");
    let mut lines = csv.lines();
    let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
    assert_eq!((rows.len(), lines.clone().count()), (90, 90));
    for (row, line) in rows.iter().zip(lines) {
        assert_eq!(row.len(), head.len());
        if *of(row, "status") == Field::Str("failed".into()) {
            assert!(
                line.contains(",failed,\"no, with \"\"quotes\"\"\","),
                "{line}"
            );
            continue;
        }
        for (name, text) in head.iter().zip(line.split(',')) {
            match of(row, name) {
                Field::Null => assert_eq!(text, "", "{name}"),
                Field::Str(value) => assert_eq!(text, value, "{name}"),
                Field::Double(value) => assert_eq!(text.parse(), Ok(*value), "{name}"),
                Field::Long(value) => assert_eq!(text.parse(), Ok(*value), "{name}"),
                other => panic!("{name}: {other}"),
            }
        }
    }
}

#[test]
fn effects_are_paired_by_point_and_seed() {
    let folder = tempfile::tempdir().expect("a folder");
    let grid = ["kvm.halt_poll_ns=0,3us,30us", "host.cpus=2,4"];
    let mut sweep =
        Sweep::open(folder.path(), plan(&grid).expect("a plan"), None, false).expect("a sweep");
    finish(&mut sweep, 2);
    let names = ["host.throughput_per_s".to_owned()];
    let summary = sweep.summary(&names, threads(2)).expect("a summary");
    assert!(!summary.identical_seeds);
    let knobs: Vec<&str> = summary.effects.iter().map(|e| e.knob.as_str()).collect();
    assert_eq!(knobs, ["kvm.halt_poll_ns", "host.cpus", "variant"]);
    let difference = |effect: usize, level: usize| {
        let difference = summary.effects[effect].levels[level].difference;
        let estimate = difference.expect("a difference").estimate;
        (
            estimate.mean,
            estimate.half_width.expect("three seeds"),
            estimate.n,
        )
    };
    // Poll times CPUs, a third of it, and the mean of 2 and 4 CPUs; the seeds' noise falls out.
    let close = |a: (f64, f64, usize), b: f64| (a.0 - b).abs() < 1e-9 && a.1 < 1e-9 && a.2 == 3;
    assert!(close(difference(0, 1), 3.0), "{:?}", difference(0, 1));
    assert!(close(difference(0, 2), 30.0), "{:?}", difference(0, 2));
    assert!(
        close(difference(1, 1), (0.0 + 6.0 + 60.0) / 9.0),
        "{:?}",
        difference(1, 1)
    );
    assert_eq!(difference(2, 1).0, 0.0);
    assert!(summary.effects[0].levels[0].difference.is_none());
    let best = &summary.best[0].points;
    assert_eq!(best.len(), 3);
    let settings: Vec<&str> = best[0].settings.iter().map(|s| s.value.as_str()).collect();
    assert_eq!(
        (best[0].variant.as_str(), &settings[..]),
        ("a", &["30us", "4"][..])
    );
    let error = sweep
        .summary(&["host.throughput".to_owned()], threads(2))
        .expect_err("no column");
    assert!(
        error
            .to_string()
            .contains("did you mean `host.throughput_per_s`?"),
        "{error}"
    );
}

#[test]
fn equal_seeds_are_one_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let grid = ["kvm.halt_poll_ns=0,3us"];
    let mut sweep =
        Sweep::open(folder.path(), plan(&grid).expect("a plan"), None, false).expect("a sweep");
    let fake = Fake {
        ignores_seed: true,
        ..Fake::default()
    };
    let go = AtomicBool::new(false);
    sweep
        .run(&fake, threads(2), &go, &mut |_| {})
        .expect("it runs");
    let names = ["host.throughput_per_s".to_owned()];
    let summary = sweep.summary(&names, threads(2)).expect("a summary");
    assert!(summary.identical_seeds);
    let level = &summary.effects[0].levels[1];
    let (estimate, difference) = (level.estimate.expect("a mean"), level.difference);
    assert_eq!((estimate.n, estimate.half_width), (1, None));
    let difference = difference.expect("a difference");
    let mean = difference.estimate.mean;
    assert!((mean - 4.0).abs() < 1e-9 && difference.estimate.n == 1);
    assert_eq!(summary.best[0].points[0].estimate.n, 1);
}
