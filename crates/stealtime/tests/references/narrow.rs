//! Asked for exits alone, a reader may leave other events out: the answers are the same.

use serde_json::Value;

use super::{Recording, recordings};
use crate::recordings::repeats;

/// One recording of each series.
fn kinds() -> impl Iterator<Item = Recording> {
    let mut found = recordings();
    found.retain(|recording| !recording.file.ancestors().skip(1).take(2).any(repeats));
    found.into_iter()
}

/// What is the same whatever was asked for.
fn shared(answers: &Value) -> Value {
    let mut source = answers["source"].clone();
    // What was left out can have no note.
    source["notes"] = Value::Null;
    let tables = ["exits", "exit_totals", "msr", "ioport", "mmio", "events"];
    let tables = tables.map(|table| answers[table].clone());
    Value::from([vec![source], tables.to_vec()].concat())
}

#[test]
fn exits_are_the_same_when_nothing_else_is_asked_for() {
    let mut perf = 0;
    for recording in kinds() {
        let shown = recording.file.display();
        let all = recording.analyze(&[]);
        let keys = "exits,exit-totals,msr,ioport,mmio,events";
        let narrow = recording.analyze(&["--key", keys]);
        assert_eq!(shared(&narrow), shared(&all), "{shown}");
        for table in ["exits", "exit_totals"] {
            let narrow = recording.analyze(&["--key", &table.replace('_', "-")]);
            assert_eq!(narrow[table], all[table], "{shown}: {table}");
            assert_eq!(
                narrow["source"]["events"], all["source"]["events"],
                "{shown}"
            );
        }
        perf += usize::from(all["source"]["format"] == "perf.data");
    }
    assert!(perf >= 2, "of {perf} recordings events could be left out");
}

#[test]
fn vms_are_the_same_without_latencies() {
    for recording in kinds() {
        let shown = recording.file.display();
        let all = recording.analyze(&[]);
        // Neither findings nor latencies are computed, but the evidence is gathered.
        let vms = recording.analyze(&["--key", "vms,time"]);
        assert_eq!(vms["vms"], all["vms"], "{shown}");
        assert_eq!(vms["vcpus"], all["vcpus"], "{shown}");
    }
}
