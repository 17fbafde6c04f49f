//! The saved state through serialization formats of others: read back as it was, or refused.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::{Arm64State, Instant, Saved, State, VcpuState, X86State};
use serde::{Deserialize, Serialize};

/// What a VMM keeps next to the clocks.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Snapshot {
    name: String,
    clocks: Saved,
    memory: Vec<u8>,
}

fn states() -> Vec<State> {
    let mut first = VcpuState::new(u64::MAX - 5);
    first.tsc_adjust = Some(7);
    first.offset_bound_cycles = 3;
    let mut second = VcpuState::new(1);
    second.tsc_deadline = Some(99);
    let instant = Instant::new(1_000_000_007, 1_700_000_000_000_000_001, 42);
    let x86 = X86State::new(2_500_000, instant, vec![first, second]);
    let arm64 = Arm64State::new(25_000_000, 5, 6, 7, 8);
    let mut apart = arm64;
    apart.instant_bound_ticks = 9;
    vec![State::X86(x86), State::Arm64(arm64), State::Arm64(apart)]
}

fn snapshots() -> Vec<Snapshot> {
    let snapshot = |state| Snapshot {
        name: "db".to_owned(),
        clocks: Saved::new(state).unwrap(),
        memory: vec![1, 2, 3],
    };
    states().into_iter().map(snapshot).collect()
}

#[test]
fn postcard_reads_back_what_it_wrote() {
    for snapshot in snapshots() {
        let bytes = postcard::to_stdvec(&snapshot).unwrap();
        assert_eq!(postcard::from_bytes::<Snapshot>(&bytes).unwrap(), snapshot);
    }
    for state in states() {
        let bytes = postcard::to_stdvec(&state).unwrap();
        assert_eq!(postcard::from_bytes::<State>(&bytes).unwrap(), state);
    }
}

#[test]
fn bincode_reads_back_what_it_wrote() {
    let config = bincode::config::standard();
    for snapshot in snapshots() {
        let bytes = bincode::serde::encode_to_vec(&snapshot, config).unwrap();
        let (read, used): (Snapshot, usize) =
            bincode::serde::decode_from_slice(&bytes, config).unwrap();
        assert_eq!((read, used), (snapshot, bytes.len()));
    }
    let legacy = bincode::config::legacy();
    for state in states() {
        let bytes = bincode::serde::encode_to_vec(&state, legacy).unwrap();
        let (read, used): (State, usize) =
            bincode::serde::decode_from_slice(&bytes, legacy).unwrap();
        assert_eq!((read, used), (state, bytes.len()));
    }
}

#[test]
fn json_keeps_the_architecture_by_name_and_may_leave_the_arm64_bound_out() {
    for snapshot in snapshots() {
        let text = serde_json::to_string(&snapshot).unwrap();
        assert!(text.contains(r#""arch":""#), "{text}");
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
        let without = text.replace(r#","instant_bound_ticks":0"#, "");
        assert_eq!(
            serde_json::from_str::<Snapshot>(&without).unwrap(),
            snapshot
        );
    }
}

/// What was checked on the way in from JSON is checked here as well, and no cut or changed byte panics.
#[test]
fn damage_is_refused_or_read_as_a_state_that_can_be() {
    for snapshot in snapshots() {
        let bytes = postcard::to_stdvec(&snapshot.clocks).unwrap();
        for length in 0..bytes.len() {
            postcard::from_bytes::<Saved>(&bytes[..length]).unwrap_err();
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                if let Ok(read) = postcard::from_bytes::<Saved>(&damaged) {
                    assert_eq!(Saved::new(read.state().clone()), Ok(read));
                }
            }
        }
    }
    let mut none = X86State::new(2_500_000, Instant::new(1, 2, 3), Vec::new());
    none.vcpus.clear();
    // A forged state: the version, the variant's number, then no vCPUs.
    let forged = postcard::to_stdvec(&(1u32, State::X86(none))).unwrap();
    let error = postcard::from_bytes::<Saved>(&forged).unwrap_err();
    assert_eq!(error, postcard::Error::SerdeDeCustom);
    let other = postcard::to_stdvec(&(9u32, &states()[0])).unwrap();
    let config = bincode::config::standard();
    postcard::from_bytes::<Saved>(&other).unwrap_err();
    let other = bincode::serde::encode_to_vec((9u32, &states()[0]), config).unwrap();
    let error = bincode::serde::decode_from_slice::<Saved, _>(&other, config).unwrap_err();
    assert!(error.to_string().contains("version 9"), "{error}");
}
