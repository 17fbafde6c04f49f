//! Saved clocks from any bytes, in either form: an error, or a state that can be written again and
//! planned with on any host.
#![no_main]

#[macro_use]
mod target;

use std::io::Cursor;

use guest_clock::device::HostFacts;
use guest_clock::snapshot::{Assumed, inspect};
use guest_clock::{Anchor, Options, Policy, Saved, Unequal, rehearse};

target!(read);

fn read(data: &[u8]) {
    // The bytes themselves, and with a valid checksum: random bytes never have one.
    check(data);
    if let Some((contents, _)) = data.split_last_chunk::<8>() {
        check(&[contents, &checksum(contents).to_le_bytes()].concat());
    }
}

fn check(data: &[u8]) {
    // Snapshots of other VMMs begin otherwise: an error, or values.
    if let Ok(snapshot) = inspect(&mut Cursor::new(data)) {
        let _ = (snapshot.to_saved(&Assumed::default()), snapshot.apart_ns());
    }
    let Ok(saved) = Saved::load(data) else {
        return;
    };
    let (bytes, json) = (saved.to_bytes(), saved.to_json());
    assert_eq!(Saved::from_bytes(&bytes).as_ref(), Ok(&saved));
    assert_eq!(Saved::from_json(json.as_bytes()).as_ref(), Ok(&saved));
    let anchor = Anchor {
        realtime_ns: 1_700_000_000_000_000_000,
        host_tsc: u64::MAX / 3,
        bound_ns: 0,
    };
    for khz in [1, 2_596_120, u32::MAX] {
        for policy in [
            Policy::Stopped,
            Policy::ELAPSED,
            Policy::AtMost { max_ns: 1 << 40 },
        ] {
            for unequal in [
                Unequal::Refuse,
                Unequal::Highest,
                Unequal::First,
                Unequal::Keep,
            ] {
                let options = Options::new(policy).unequal(unequal).accept_inexact();
                if let Ok(plan) = rehearse(&saved, &HostFacts::complete(khz), anchor, &options) {
                    assert_eq!(plan.vcpus().len(), saved.vcpus());
                }
            }
        }
    }
}

/// FNV-1a, 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
