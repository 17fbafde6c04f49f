//! Snapshots, saved clocks and scenarios as trees of values: sound documents with a few hostile values.
#![no_main]

#[macro_use]
mod target;
mod tree;

use std::sync::LazyLock;

use guest_clock::Saved;
use serde_json::Value;
use stealtime_fuzz::choices::Choices;
use stealtime_host::Snapshot;
use stealtime_lab::scenario::Scenario;

/// A sound document, and what reads it.
struct Document {
    value: Value,
    read: fn(&Value),
}

static DOCUMENTS: LazyLock<Vec<Document>> = LazyLock::new(|| {
    let json = |text| serde_json::from_str::<Value>(text).expect("JSON");
    let toml = |text| toml::from_str::<Value>(text).expect("TOML");
    let mut host = json(include_str!("../corpus/fuzz_settings/snapshot.json"));
    tree::shorten(&mut host, 2);
    let clocks = [
        include_str!("../corpus/fuzz_clock_state/x86-json"),
        include_str!("../corpus/fuzz_clock_state/arm64-json"),
    ];
    let scenarios = [
        include_str!("../corpus/fuzz_settings/lock-holder.toml"),
        include_str!("../corpus/fuzz_settings/batch-price.toml"),
        include_str!("../corpus/fuzz_settings/throttled.toml"),
        include_str!("../corpus/fuzz_settings/xen-broadcast.toml"),
    ];
    let mut all = vec![Document {
        value: host,
        read: snapshot,
    }];
    all.extend(clocks.map(|text| Document {
        value: json(text),
        read: clock,
    }));
    all.extend(scenarios.map(|text| Document {
        value: toml(text),
        read: scenario,
    }));
    all
});

target!(read);

fn read(data: &[u8]) {
    let mut choices = Choices::new(data);
    let document = &DOCUMENTS[choices.below(DOCUMENTS.len())];
    let mut value = document.value.clone();
    // Few changes: with many, the first one that is refused hides the others.
    for _ in 0..4 {
        if choices.is_over() {
            break;
        }
        tree::change(&mut choices, &mut value);
    }
    (document.read)(&value);
}

fn snapshot(document: &Value) {
    if let Ok(snapshot) = Snapshot::from_json(&document.to_string()) {
        let json = snapshot.to_json();
        let again = Snapshot::from_json(&json).map(|snapshot| snapshot.to_json());
        assert_eq!(again.ok(), Some(json));
    }
}

fn clock(document: &Value) {
    if let Ok(saved) = Saved::load(document.to_string().as_bytes()) {
        assert_eq!(Saved::from_bytes(&saved.to_bytes()).as_ref(), Ok(&saved));
        assert_eq!(
            Saved::from_json(saved.to_json().as_bytes()).as_ref(),
            Ok(&saved)
        );
    }
}

fn scenario(document: &Value) {
    let text = tree::toml(document);
    let checked = Scenario::from_text("fuzz.toml", &text).and_then(|scenario| scenario.check());
    if let Err(error) = checked {
        assert!(!error.to_string().is_empty());
    }
}
