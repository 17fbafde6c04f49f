//! A folder of parts, without recordings: answers are made up.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use stealtime_analysis::Answers;
use stealtime_analysis::answers::{Bucket, Source, VcpuTime};
use stealtime_report::Key;
use stealtime_results::{Cell, Form};

use super::{Fleet, FleetError, Identity, Outcome, RecordingTables, Table};

const TABLES: [Table; 4] = [
    Table::Recordings,
    Table::Errors,
    Table::Answers(Key::Time),
    Table::Histograms,
];

/// Fewer than tables, so that each thread writes some.
const JOBS: NonZeroUsize = NonZeroUsize::new(3).expect("not 0");

/// Answers that differ by a number.
fn answers(number: u64) -> Answers {
    Answers {
        source: Source {
            path: format!("{number}.dat"),
            events: number,
            ..Source::default()
        },
        vcpus: vec![VcpuTime {
            vm: format!("vm{number}, \"quoted\"\n"),
            halt_ns: number,
            ..VcpuTime::default()
        }],
        histograms: vec![Bucket {
            up_to_ns: number,
            count: 1,
            ..Bucket::default()
        }],
        ..Answers::default()
    }
}

fn outcome(number: u64) -> Outcome {
    Outcome {
        host: Some("node".to_owned()),
        tables: Some(RecordingTables::new(&answers(number))),
        error: None,
    }
}

/// So many files to stand for recordings.
fn recordings(folder: &Path, count: u64) -> Vec<PathBuf> {
    let paths = (0..count).map(|number| folder.join(format!("{number}.dat")));
    let paths: Vec<PathBuf> = paths.collect();
    for path in &paths {
        fs::write(path, "events").expect("a file");
    }
    paths
}

fn keep_all(fleet: &Fleet, paths: &[PathBuf]) {
    let missing = fleet.missing(paths).expect("parts");
    for (number, path) in (0..).zip(paths) {
        if missing.contains(path) {
            let kept = fleet.keep(path, Identity::of(path), outcome(number));
            kept.expect("a part");
        }
    }
}

fn bytes(fleet: &Fleet, paths: &[PathBuf]) -> Vec<Vec<u8>> {
    let written = fleet
        .write(paths, &TABLES, Form::Parquet, JOBS)
        .expect("tables");
    let files = written.iter();
    files
        .map(|written| fs::read(&written.path).expect("a file"))
        .collect()
}

#[test]
fn a_fleet_that_was_stopped_has_the_bytes_of_one_that_was_not() {
    let place = tempfile::tempdir().expect("a folder");
    let paths = recordings(place.path(), 5);
    let whole = Fleet::open(&place.path().join("whole"), "", false).expect("a folder");
    keep_all(&whole, &paths);
    let parted = place.path().join("parted");
    let first = Fleet::open(&parted, "", false).expect("a folder");
    let order = [paths[3].clone(), paths[1].clone()];
    for (path, number) in order.iter().zip([3, 1]) {
        let kept = first.keep(path, Identity::of(path), outcome(number));
        kept.expect("a part");
    }
    drop(first);
    let second = Fleet::open(&parted, "", false).expect("the same folder");
    let missing = second.missing(&paths).expect("parts");
    assert_eq!(
        missing,
        [0, 2, 4].map(|number: usize| paths[number].clone())
    );
    keep_all(&second, &paths);
    assert_eq!(
        second.missing(&paths).expect("parts"),
        Vec::<PathBuf>::new()
    );
    assert_eq!(bytes(&whole, &paths), bytes(&second, &paths));
}

#[test]
fn rows_come_back_as_they_were() {
    let place = tempfile::tempdir().expect("a folder");
    let paths = recordings(place.path(), 2);
    let fleet = Fleet::open(&place.path().join("out"), "", false).expect("a folder");
    keep_all(&fleet, &paths);
    let written = fleet
        .write(&paths, &TABLES, Form::Parquet, JOBS)
        .expect("tables");
    let time = &written[2];
    assert_eq!((time.table, time.rows), ("time", 2));
    let file = fs::File::open(&time.path).expect("a file");
    let reader = SerializedFileReader::new(file).expect("Parquet");
    let rows: Vec<String> = reader
        .get_row_iter(None)
        .expect("rows")
        .map(|row| row.expect("a row").to_string())
        .collect();
    assert!(rows[1].contains("host: \"node\""), "{}", rows[1]);
    assert!(rows[1].contains("halt_ns: 1"), "{}", rows[1]);
    assert!(rows[1].contains("guest_ns: null"), "{}", rows[1]);
    let csv = fleet
        .write(&paths, &TABLES, Form::Csv, JOBS)
        .expect("tables");
    let text = fs::read_to_string(&csv[2].path).expect("a file");
    assert!(text.starts_with("host,recording,vm,"), "{text}");
}

#[test]
fn a_recording_that_fails_is_a_row_of_errors_and_is_tried_again() {
    let place = tempfile::tempdir().expect("a folder");
    let mut paths = recordings(place.path(), 2);
    paths.push(place.path().join("none.dat"));
    let fleet = Fleet::open(&place.path().join("out"), "", false).expect("a folder");
    for (number, path) in (0..).zip(&paths) {
        let outcome = match number {
            0 => outcome(0),
            1 => Outcome {
                error: Some("cut".to_owned()),
                ..outcome(1)
            },
            _ => Outcome {
                error: Some("no such file".to_owned()),
                ..Outcome::default()
            },
        };
        let kept = fleet.keep(path, Identity::of(path), outcome);
        kept.expect("a part");
    }
    assert_eq!(fleet.troubles(&paths).expect("parts"), (1, 1));
    let missing = fleet.missing(&paths).expect("parts");
    assert_eq!(missing.len(), 1, "{missing:?}");
    let written = fleet
        .write(&paths, &TABLES, Form::Csv, JOBS)
        .expect("tables");
    let rows: Vec<u64> = written.iter().map(|written| written.rows).collect();
    assert_eq!(rows, [3, 2, 2, 2]);
    let errors = fs::read_to_string(&written[1].path).expect("a file");
    assert!(errors.contains("partial,cut"), "{errors}");
    assert!(errors.contains("failed,no such file"), "{errors}");
}

#[test]
fn a_recording_that_changes_has_no_rows_of_its_former_state() {
    let place = tempfile::tempdir().expect("a folder");
    let paths = recordings(place.path(), 1);
    let path = &paths[0];
    let fleet = Fleet::open(&place.path().join("out"), "", false).expect("a folder");
    let before = Identity::of(path);
    fs::write(path, "more events").expect("a file");
    fleet.keep(path, before, outcome(0)).expect("a part");
    assert_eq!(fleet.troubles(&paths).expect("parts"), (1, 0));
    // Between two analyses it is analyzed again.
    keep_all(&fleet, &paths);
    assert_eq!(fleet.missing(&paths).expect("parts"), Vec::<PathBuf>::new());
    fs::write(path, "other").expect("a file");
    assert_eq!(fleet.missing(&paths).expect("parts").len(), 1);
}

#[test]
fn a_folder_of_something_else_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("out");
    let fleet = Fleet::open(&path, "--vm db", false).expect("a folder");
    let busy = Fleet::open(&path, "--vm db", false).expect_err("locked");
    assert!(matches!(busy, FleetError::Busy { .. }), "{busy}");
    drop(fleet);
    let other = Fleet::open(&path, "", false).expect_err("options differ");
    assert!(other.to_string().contains("`--vm db`"), "{other}");
    Fleet::open(&path, "", true).expect("begun again");
    let foreign = place.path().join("foreign");
    fs::create_dir(&foreign).expect("a folder");
    fs::write(foreign.join("letter.txt"), "").expect("a file");
    let refused = Fleet::open(&foreign, "", true).expect_err("has files");
    assert!(matches!(refused, FleetError::NotAFleet { .. }), "{refused}");
}

#[test]
fn texts_of_csv_are_those_of_the_csv_of_one_table() {
    let place = tempfile::tempdir().expect("a folder");
    let paths = recordings(place.path(), 1);
    let fleet = Fleet::open(&place.path().join("out"), "", false).expect("a folder");
    let answers = Answers {
        vcpus: vec![VcpuTime {
            vm: "=HYPERLINK(\"x\")".to_owned(),
            task: "a\u{1b}[2J\u{202e}\n".to_owned(),
            ..VcpuTime::default()
        }],
        ..Answers::default()
    };
    let outcome = Outcome {
        tables: Some(RecordingTables::new(&answers)),
        ..Outcome::default()
    };
    let kept = fleet.keep(&paths[0], Identity::of(&paths[0]), outcome);
    kept.expect("a part");
    let written = fleet.write(&paths, &TABLES, Form::Csv, JOBS);
    let time = fs::read_to_string(&written.expect("tables")[2].path).expect("a file");
    let mut single = Vec::new();
    stealtime_report::csv::write(&answers, Key::Time, &mut single).expect("memory");
    let single = String::from_utf8(single).expect("text");
    let row = |text: &str| text.lines().nth(1).map(str::to_owned).expect("a row");
    assert!(row(&time).ends_with(&row(&single)), "{time}\n{single}");
    assert!(row(&single).starts_with("\"'=HYPERLINK("), "{single}");
    assert_eq!(time.lines().count(), 2, "{time}");
}

#[test]
fn numbers_of_a_part_come_back_to_the_last_digit() {
    // A parser without correct rounding gets every seventh of them wrong.
    let numbers = (1..1000).map(|number| Cell::Number(f64::from(number) * 100.0 / 459.0));
    let numbers: Vec<Cell> = numbers.collect();
    let text = serde_json::to_string(&numbers).expect("JSON");
    let read: Vec<Cell> = serde_json::from_str(&text).expect("cells");
    assert_eq!(read, numbers);
}

#[test]
fn cells_of_a_part_have_the_types_of_their_json() {
    let text = r#"[null,true,-1,1,1.5,"a, \"quoted\"\n"]"#;
    let cells: Vec<Cell> = serde_json::from_str(text).expect("cells");
    let expected = [
        Cell::Null,
        Cell::Switch(true),
        Cell::Integer(-1),
        Cell::Integer(1),
        Cell::Number(1.5),
        Cell::Text("a, \"quoted\"\n".to_owned()),
    ];
    assert_eq!(cells, expected);
    assert_eq!(serde_json::to_string(&cells).expect("JSON"), text);
    let no_number = serde_json::to_string(&Cell::Number(f64::NAN));
    assert_eq!(no_number.expect("JSON"), "null");
    for (text, part) in [
        ("18446744073709551615", "beyond 64 bits with a sign"),
        ("[1]", "a boolean, a number or a text"),
    ] {
        let refused = serde_json::from_str::<Cell>(text).expect_err(text);
        assert!(refused.to_string().contains(part), "{refused}");
    }
}

#[test]
fn a_damaged_part_is_analyzed_again() {
    let place = tempfile::tempdir().expect("a folder");
    let paths = recordings(place.path(), 1);
    let fleet = Fleet::open(&place.path().join("out"), "", false).expect("a folder");
    keep_all(&fleet, &paths);
    let parts = fs::read_dir(place.path().join("out/parts")).expect("a folder");
    let part = parts.last().expect("a part").expect("a part").path();
    let whole = fs::read(&part).expect("a part");
    fs::write(&part, &whole[..whole.len() - 9]).expect("a part");
    let error = fleet
        .write(&paths, &TABLES, Form::Csv, JOBS)
        .expect_err("cut");
    assert!(matches!(error, FleetError::Damaged { .. }), "{error}");
    fs::write(&part, "no part").expect("a part");
    assert_eq!(fleet.missing(&paths).expect("parts").len(), 1);
}
