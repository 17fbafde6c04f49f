//! Replay files: what is written is read, what is damaged or of another version is refused.

#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use stealtime_verify::{Choice, MODEL_VERSION, PROTOCOLS, Replay, ReplayError, cases};

fn replay() -> Replay {
    Replay {
        protocol: "pi-notify".to_owned(),
        variant: "put".to_owned(),
        scene: "two-vcpus".to_owned(),
        path: vec![Choice { agent: 0, op: 5 }, Choice { agent: 2, op: 1 }],
    }
}

#[test]
fn a_file_says_what_was_written() {
    assert_eq!(replay().to_string().parse::<Replay>(), Ok(replay()));
}

#[test]
fn another_version_is_refused() {
    let ours = format!("replay {MODEL_VERSION}");
    let text = replay().to_string().replace(&ours, "replay 999");
    let error = text.parse::<Replay>().unwrap_err();
    assert!(
        matches!(&error, ReplayError::Version { file, .. } if file == "999"),
        "{error}"
    );
    assert!(error.to_string().contains("run the check again"));
}

#[test]
fn damage_is_refused() {
    let good = replay().to_string();
    for (text, wanted) in [
        (String::new(), "not a replay file"),
        ("hello".to_owned(), "not a replay file"),
        (good.replace("step 2 1", "step 2"), "line 6"),
        (good.replace("step 2 1", "step 2 256"), "line 6"),
        (good.replace("variant put\n", ""), "variant"),
        (good.replace("step", "stop"), "line 5"),
    ] {
        let error = text.parse::<Replay>().unwrap_err().to_string();
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
}

#[test]
fn what_is_unknown_is_named_with_what_there_is() {
    for (protocol, variant, scene, wanted) in [
        (Some("pi"), None, None, "pi-notify"),
        (Some("clock"), Some("put"), None, "odd-version"),
        (Some("pi-notify"), Some("put"), Some("x"), "two-vcpus"),
        (Some("pi-notif"), None, None, "did you mean \"pi-notify\"?"),
        (
            Some("pi-notify"),
            Some("puts"),
            None,
            "did you mean \"put\"?",
        ),
        (
            Some("pi-notify"),
            None,
            Some("devices=1"),
            "did you mean \"device\"?",
        ),
        (Some("pi-notify"), None, Some("device=5"), "from 0 to 4"),
        (Some("pi-notify"), None, Some("preempt=2"), "from 0 to 1"),
        (Some("clock"), None, Some("device=1"), "no count"),
    ] {
        let error = cases(protocol, variant, scene).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn every_variant_has_a_case() {
    for protocol in PROTOCOLS {
        for variant in protocol.variants {
            let all = cases(Some(protocol.name), Some(variant.name), None).unwrap();
            assert!(all.iter().all(|case| case.sound == variant.sound));
        }
    }
}

#[test]
fn counts_are_part_of_the_agents_name() {
    let list = "two-vcpus, plain-apicv,device=1,poster=2";
    let all = cases(Some("pi-notify"), Some("put"), Some(list)).unwrap();
    let names: Vec<&str> = all.iter().map(|case| case.scene.as_str()).collect();
    assert_eq!(
        names,
        ["plain-apicv,device=1,poster=2", "two-vcpus,poster=2"]
    );
    for case in all {
        assert!(case.counts().contains(&("poster", 2)), "{case:?}");
        let again = cases(Some("pi-notify"), Some("put"), Some(&case.scene)).unwrap();
        assert_eq!(again.len(), 1, "a replay file names it so");
        assert_eq!(again[0].counts(), case.counts());
    }
}
