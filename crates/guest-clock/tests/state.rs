//! The saved state's two forms, as hostile input.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::{
    Arm64State, Errno, GuestClocks, Instant, LoadError, SaveError, Saved, State, VcpuState,
    X86State,
    arithmetic::KvmClockData,
    arm64::{Arm64Error, Arm64Vm},
    device::{Bracket, Vm},
    fake::{FakeArm64Vm, FakeHost},
};
use proptest::prelude::*;

fn example() -> Saved {
    let host = FakeHost::new(2_500_000);
    let (vm, vcpus) = host.vm(3);
    GuestClocks::save(&vm, &vcpus).unwrap()
}

fn x86() -> impl Strategy<Value = X86State> {
    let vcpu = (
        any::<u64>(),
        0..=i64::MAX as u64,
        any::<Option<u64>>(),
        any::<Option<u64>>(),
    );
    let vcpu = vcpu.prop_map(|(tsc_offset, bound, tsc_adjust, tsc_deadline)| {
        let mut vcpu = VcpuState::new(tsc_offset);
        vcpu.offset_bound_cycles = bound;
        (vcpu.tsc_adjust, vcpu.tsc_deadline) = (tsc_adjust, tsc_deadline);
        vcpu
    });
    let times = (
        0..=i64::MAX as u64,
        0..=i64::MAX as u64,
        any::<u64>(),
        0..=i64::MAX as u64,
    );
    let vcpus = proptest::collection::vec(vcpu, 1..20);
    (
        1..i32::MAX as u32,
        1..i32::MAX as u32,
        any::<bool>(),
        times,
        any::<bool>(),
        vcpus,
    )
        .prop_map(
            |(
                host_tsc_khz,
                tsc_khz,
                svm,
                (clock_ns, realtime_ns, host_tsc, bound_ns),
                master,
                vcpus,
            )| {
                let mut instant = Instant::new(clock_ns, realtime_ns, host_tsc);
                (instant.bound_ns, instant.master_clock) = (bound_ns, master);
                let mut state = X86State::new(tsc_khz, instant, vcpus);
                state.host_tsc_khz = host_tsc_khz;
                state.frac_bits = if svm { 32 } else { 48 };
                state.ratio = 1 << state.frac_bits;
                state
            },
        )
}

/// How serde itself reads a state.
#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(tag = "arch", rename_all = "lowercase")]
enum Tagged {
    X86(X86State),
    Arm64(Arm64State),
}

fn reads_as_serde_does(json: &str) -> bool {
    let read = serde_json::from_str::<State>(json).ok();
    let expected = serde_json::from_str(json).ok().map(|tagged| match tagged {
        Tagged::X86(state) => State::X86(state),
        Tagged::Arm64(state) => State::Arm64(state),
    });
    read == expected
}

/// The fields of a state, as JSON.
fn fields(arm64: bool) -> Vec<(String, String)> {
    let state = match arm64 {
        true => State::Arm64(Arm64State::new(25_000_000, 1, 2, 3, 4)),
        false => example().state().clone(),
    };
    let value = serde_json::to_value(state).unwrap();
    let fields = value.as_object().unwrap().iter();
    let fields = fields.map(|(key, value)| (format!("\"{key}\""), value.to_string()));
    fields.collect()
}

proptest! {
    /// Fields in any order, missing, doubled, of the other architecture, and with other values.
    #[test]
    fn json_is_read_as_serde_reads_tagged_enumerations(
        arm64 in any::<bool>(),
        order in any::<[prop::sample::Index; 3]>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..12usize), 0..3),
    ) {
        const VALUES: [&str; 10] = [
            "null", "5", "-5", "2.5", "4294967296", "18446744073709551616", "\"x86\"", "[]", "{}", "true",
        ];
        let mut fields = fields(arm64);
        for index in order {
            let field = fields.remove(index.index(fields.len()));
            fields.push(field);
        }
        for (index, change) in changes {
            let at = index.index(fields.len());
            match (change, VALUES.get(change)) {
                (_, Some(value)) => fields[at].1 = (*value).to_owned(),
                (10, _) => drop(fields.remove(at)),
                _ => {
                    let foreign = self::fields(!arm64);
                    fields.push(foreign[index.index(foreign.len())].clone());
                }
            }
        }
        let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        let json = format!("{{ {} }}", fields.join(", "));
        prop_assert!(reads_as_serde_does(&json), "{json}");
    }

    #[test]
    fn both_forms_come_back_as_they_were(state in x86()) {
        let saved = Saved::new(State::X86(state)).unwrap();
        let (json, bytes) = (saved.to_json(), saved.to_bytes());
        prop_assert_eq!(&Saved::load(json.as_bytes()).unwrap(), &saved);
        prop_assert_eq!(&Saved::load(&bytes).unwrap(), &saved);
        prop_assert_eq!(Saved::load(&bytes).unwrap().to_bytes(), bytes);
    }

    #[test]
    fn any_bytes_are_a_state_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Saved::load(&bytes);
        let mut marked = b"STGC\x01\x00\x01\x01".to_vec();
        marked.extend(bytes);
        prop_assert!(Saved::load(&marked).is_err());
    }

    /// Forged with care: the checksum fits. What is taken is a state like any other.
    #[test]
    fn forged_bytes_are_a_valid_state_or_an_error(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = example().to_bytes();
        bytes.truncate(bytes.len() - 8);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        bytes.extend(sum.to_le_bytes());
        if let Ok(saved) = Saved::load(&bytes) {
            prop_assert_eq!(saved.to_bytes(), bytes);
            prop_assert!(Saved::new(saved.state().clone()).is_ok());
            prop_assert_eq!(Saved::load(saved.to_json().as_bytes()), Ok(saved));
        }
    }

    #[test]
    fn forged_json_is_a_valid_state_or_an_error(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0x20u8..0x7f), 0..4),
    ) {
        let mut json = example().to_json().into_bytes();
        for (at, byte) in changes {
            let at = at.index(json.len());
            json[at] = byte;
        }
        if let Ok(saved) = Saved::load(&json) {
            prop_assert!(Saved::new(saved.state().clone()).is_ok());
            prop_assert_eq!(Saved::load(&saved.to_bytes()), Ok(saved));
        }
    }
}

#[test]
fn every_truncation_and_every_flipped_bit_is_found() {
    let bytes = example().to_bytes();
    for end in 0..bytes.len() {
        assert!(Saved::load(&bytes[..end]).is_err(), "cut at {end}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut forged = bytes.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(Saved::load(&forged).is_err(), "bit {bit}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert_eq!(Saved::load(&longer), Err(LoadError::Trailing { extra: 1 }));
}

#[test]
fn json_is_checked_field_by_field() {
    let json = example().to_json();
    let with = |from: &str, to: &str| {
        let forged = json.replacen(from, to, 1);
        assert_ne!(forged, json, "{from}");
        Saved::load(forged.as_bytes()).unwrap_err()
    };
    assert_eq!(
        with("\"version\": 1", "\"version\": 2"),
        LoadError::Version { found: 2, known: 1 }
    );
    let value = |field, value, why| LoadError::Value { field, value, why };
    let khz = "from 1 to 2^31-2 kHz";
    assert_eq!(
        with("\"tsc_khz\": 2500000", "\"tsc_khz\": 0"),
        value("tsc_khz", 0, khz)
    );
    assert_eq!(
        with("\"frac_bits\": 48", "\"frac_bits\": 47"),
        value("frac_bits", 47, "48 or 32")
    );
    let why = "1, or tsc_khz over host_tsc_khz";
    assert_eq!(
        with("281474976710656", "281474976710657"),
        value("ratio", (1 << 48) + 1, why)
    );
    for (from, to) in [
        ("\"x86\"", "\"riscv\""),
        ("\"clock_ns\": ", "\"clock_ns\": -"),
        ("\"clock_ns\"", "\"clock\""),
        ("\"version\"", "\"extra\": 1, \"version\""),
    ] {
        assert!(
            matches!(with(from, to), LoadError::Json { .. }),
            "{from} {to}"
        );
    }
    let none = json.split("\"vcpus\"").next().unwrap().to_owned() + "\"vcpus\": [] } }";
    let why = "from 1 to 4096 vCPUs";
    assert_eq!(Saved::load(none.as_bytes()), Err(value("vcpus", 0, why)));
    assert_eq!(Saved::load(b"  "), Err(LoadError::Unknown));
    assert_eq!(
        Saved::load(&vec![b'{'; 5 << 20]),
        Err(LoadError::TooLarge {
            bytes: 5 << 20,
            most: 4 << 20
        })
    );
    assert!(matches!(
        Saved::load(&vec![b'{'; 1 << 20]),
        Err(LoadError::Json { .. })
    ));
}

#[test]
fn arm64_states_have_both_forms_too() {
    let real = 1_700_000_000_000_000_000;
    let mut state = Arm64State::new(25_000_000, u64::MAX, 12, real, 80);
    state.offset_bound_ticks = 3;
    for apart in [0, 7] {
        state.instant_bound_ticks = apart;
        let saved = Saved::new(State::Arm64(state)).unwrap();
        assert_eq!(Saved::load(&saved.to_bytes()).unwrap(), saved);
        assert_eq!(Saved::load(saved.to_json().as_bytes()).unwrap(), saved);
        // States without the field were read as one instant.
        let field = format!(",\n    \"instant_bound_ticks\": {apart}");
        let without = saved.to_json().replace(&field, "");
        assert!(!without.contains("instant_bound"), "{without}");
        let read = Saved::load(without.as_bytes()).unwrap();
        assert_eq!(read == saved, apart == 0);
        assert_eq!(saved.to_bytes()[7], u8::from(apart != 0));
    }
    state.counter_hz = 0;
    let zero = State::Arm64(state);
    assert!(Saved::new(zero).is_err());
}

/// Found when it is saved, while the guest is still there, and not when it is loaded.
#[test]
fn what_cannot_be_loaded_is_not_saved() {
    let host = FakeHost::new(2_500_000);
    let (vm, vcpus) = host.vm(2);
    // A kvmclock before the guest's beginning: a number with its highest bit set.
    let before = KvmClockData {
        clock_ns: u64::MAX - 5_000_000_000,
        ..KvmClockData::default()
    };
    vm.set_clock(&before).unwrap();
    let refused = GuestClocks::save(&vm, &vcpus).unwrap_err();
    let SaveError::Unloadable(field) = refused else {
        panic!("{refused}");
    };
    assert_eq!((field.field, field.value >> 63), ("clock_ns", 1));
    for count in [0, 4097, u32::MAX] {
        let vm = FakeArm64Vm::new(&host, 0);
        let refused = GuestClocks::save_arm64(&Many(vm, count), Some(0)).unwrap_err();
        let Arm64Error::Unloadable(field) = refused else {
            panic!("{refused}");
        };
        assert_eq!((field.field, field.value), ("vcpus", u64::from(count)));
    }
}

/// A VM that says that it has so many vCPUs.
struct Many(FakeArm64Vm, u32);

impl Arm64Vm for Many {
    fn counter_hz(&self) -> u32 {
        self.0.counter_hz()
    }
    fn bracket(&self) -> Bracket {
        self.0.bracket()
    }
    fn guest_counter(&self) -> Result<u64, Errno> {
        self.0.guest_counter()
    }
    fn set_counter_offset(&self, offset: u64) -> Result<(), Errno> {
        self.0.set_counter_offset(offset)
    }
    fn vcpus(&self) -> u32 {
        self.1
    }
}
