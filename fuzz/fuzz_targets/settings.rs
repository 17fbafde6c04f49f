//! Scenarios and snapshots of hosts from any text: an error that can be shown, or one that can be used.
#![no_main]

#[macro_use]
mod target;

use stealtime_host::Snapshot;
use stealtime_lab::scenario::Scenario;

target!(read);

fn read(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else {
        return;
    };
    let checked = Scenario::from_text("fuzz.toml", text).and_then(|scenario| scenario.check());
    if let Err(error) = checked {
        assert!(!error.to_string().is_empty());
    }
    if let Ok(snapshot) = Snapshot::from_json(text) {
        let json = snapshot.to_json();
        let again = Snapshot::from_json(&json).map(|snapshot| snapshot.to_json());
        assert_eq!(again.ok(), Some(json));
    }
}
