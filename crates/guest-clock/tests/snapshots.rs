//! Snapshots of other VMMs, built from the layouts that their sources have, and a stream of QEMU's own.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::io::{Cursor, Read};

use guest_clock::snapshot::{
    Assumed, MAX_SNAPSHOT_BYTES, MadeBy, Missing, Snapshot, SnapshotError, inspect, inspect_stream,
};
use guest_clock::{GuestClocks, ImportError, LoadError, Options, Policy, fake::FakeHost};

const TSC: u64 = 7_500_000_000_000;
const CLOCK: u64 = 3_000_000_000_000;
const REALTIME: u64 = 1_700_000_000_000_000_000;
const KHZ: u32 = 2_500_000;

fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    inspect(&mut Cursor::new(bytes))
}

fn blob(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// `kvm_clock_data` with everything.
fn clock_data() -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[..8].copy_from_slice(&CLOCK.to_le_bytes());
    bytes[8] = 14;
    bytes[16..24].copy_from_slice(&REALTIME.to_le_bytes());
    bytes[24..32].copy_from_slice(&99_u64.to_le_bytes());
    bytes
}

fn msrs(vcpu: u64) -> [(u32, u64); 4] {
    [
        (0x10, TSC + vcpu * 25_000),
        (0x3b, 0u64.wrapping_sub(5)),
        (0x6e0, vcpu * (TSC + 1_000_000)),
        (0x4b56_4d01, 0x3001),
    ]
}

fn firecracker_vcpu(format: u32, vcpu: u64) -> Vec<u8> {
    let count = |n: u64| n.to_le_bytes().to_vec();
    let mut bytes = [
        blob(&[2, 0, 0, 0, 0, 0, 0, 0]),
        count(1),
        blob(&[0; 40]),
        count(2),
    ]
    .concat();
    for chunk in msrs(vcpu).chunks(2) {
        bytes.extend([blob(&[0; 8]), count(2)].concat());
        for (index, value) in chunk {
            let index = u64::from(*index).to_le_bytes();
            bytes.extend(blob(&[index, value.to_le_bytes()].concat()));
        }
    }
    for length in [128, 1024, 4, 144, 312, 64, 392] {
        bytes.extend(blob(&vec![0; length]));
    }
    if format < 6 {
        bytes.extend(blob(&[0; 4096]));
    } else {
        bytes.extend([blob(&[0; 4104]), count(3), vec![0; 12]].concat());
    }
    bytes.push(1);
    bytes.extend(KHZ.to_le_bytes());
    bytes
}

/// CRC-64 (Jones), bit by bit: not the table of the reader.
fn crc64(bytes: &[u8]) -> u64 {
    let mut crc = 0_u64;
    for byte in bytes {
        for bit in 0..8 {
            let top = crc >> 63 ^ u64::from(byte >> bit & 1);
            crc = crc << 1 ^ (0xad93_d235_94c9_35a9 * top);
        }
    }
    crc.reverse_bits()
}

fn firecracker(format: u32, vcpus: u64) -> Vec<u8> {
    let mut bytes = 0x0710_1984_8664_0000_u64.to_le_bytes().to_vec();
    bytes.extend(blob(format!("{format}.0.0").as_bytes()));
    // Settings and memory, with a length that looks like the PIT's.
    bytes.extend([vec![7; 33], 112_u64.to_le_bytes().to_vec(), vec![1; 40]].concat());
    bytes.extend([blob(&[0; 112]), blob(&clock_data())].concat());
    for id in 0..3 {
        let mut chip = vec![0; 520];
        chip[0] = id;
        bytes.extend(blob(&chip));
    }
    if format < 6 {
        bytes.extend([1_u64.to_le_bytes().to_vec(), blob(b"+221")].concat());
    }
    bytes.extend(vcpus.to_le_bytes());
    for vcpu in 0..vcpus {
        bytes.extend(firecracker_vcpu(format, vcpu));
    }
    bytes.extend([9; 100]);
    let checksum = crc64(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// A structure of KVM's.
#[derive(Clone)]
struct Structure(Vec<u8>);

impl serde::Serialize for Structure {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

/// A snapshot by bitcode. Its structures have bytes of `values` different values: bitcode packs few values.
fn firecracker_in_columns(format: u32, vcpus: u64, values: usize) -> Vec<u8> {
    let structure =
        |length: usize| Structure((0..length).map(|at| (at * 7 % values) as u8).collect());
    let chip = |id: u8| {
        let mut chip = structure(520);
        chip.0[..4].copy_from_slice(&[id, 0, 0, 0]);
        chip
    };
    let vcpu = |vcpu: u64| {
        let entry = |(index, value): &(u32, u64)| {
            Structure([u64::from(*index).to_le_bytes(), value.to_le_bytes()].concat())
        };
        let chunk =
            |chunk: &[(u32, u64)]| (structure(8), chunk.iter().map(entry).collect::<Vec<_>>());
        let cpuid = vec![structure(40); vcpu as usize % 3 + 1];
        let words: Vec<u32> = (0..3).map(|word| word * values as u32 * 1000).collect();
        (
            (structure(8), cpuid),
            msrs(vcpu).chunks(2).map(chunk).collect::<Vec<_>>(),
            [128, 1024, 4].map(structure),
            [144, 312, 64, 392].map(structure),
            (structure(4104), words),
            Some(KHZ),
        )
    };
    let settings = (1024_u64, false, "vmlinux", Some("quiet"), None::<&str>);
    let state = (
        (0x0710_1984_8664_0000_u64, format!("{format}.0.0")),
        (settings, vec![(0_u64, 112_usize, vec![true; 5])]),
        (structure(112), Structure(clock_data()), [0, 1, 2].map(chip)),
        (0..vcpus).map(vcpu).collect::<Vec<_>>(),
        vec![9_u8; 100],
    );
    let mut bytes = bitcode::serialize(&state).unwrap();
    let checksum = crc64(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

fn cloud_hypervisor(vcpus: u64) -> String {
    let text = |value: serde_json::Value| serde_json::json!({ "state": value.to_string() });
    let mut cpus = serde_json::Map::new();
    for vcpu in 0..vcpus {
        let entries =
            msrs(vcpu).map(|(index, data)| serde_json::json!({ "index": index, "data": data }));
        let state =
            serde_json::json!({ "Kvm": { "msrs": entries, "tsc_khz": KHZ, "regs": [0, 1] } });
        let leaf = serde_json::json!({ "snapshots": {}, "snapshot_data": text(state) });
        cpus.insert(vcpu.to_string(), leaf);
    }
    let vm = serde_json::json!({ "clock": { "Kvm": clock_data() }, "common_cpuid": [] });
    serde_json::json!({
        "snapshots": {
            "cpu-manager": { "snapshots": cpus, "snapshot_data": null },
            "memory-manager": { "snapshots": {}, "snapshot_data": null },
        },
        "snapshot_data": text(vm),
    })
    .to_string()
}

fn qemu_section(id: u32, name: &str, instance: u32, version: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![4];
    bytes.extend(id.to_be_bytes());
    bytes.push(name.len() as u8);
    bytes.extend(name.as_bytes());
    bytes.extend([instance.to_be_bytes(), version.to_be_bytes()].concat());
    bytes.extend(body);
    bytes.push(0x7e);
    bytes.extend(id.to_be_bytes());
    bytes
}

/// A stream with its memory as noise that begins like a vCPU's section.
fn qemu(vcpus: u32) -> Vec<u8> {
    let mut bytes = [b"QEVM".as_slice(), &3_u32.to_be_bytes(), &[0xab; 64]].concat();
    bytes.extend(&qemu_section(9, "cpu", 0, 12, &[0xff; 24])[..30]);
    let mut devices = Vec::new();
    for vcpu in 0..vcpus {
        let [(_, tsc), _, (_, deadline), (_, page)] = msrs(u64::from(vcpu));
        let mut body = [
            vec![1; 3 * 16],
            tsc.to_be_bytes().to_vec(),
            page.to_be_bytes().to_vec(),
        ]
        .concat();
        let mut parts = Vec::new();
        let mut part = |name: &str, field: &str, value: u64| {
            body.extend([5, name.len() as u8]);
            body.extend(name.as_bytes());
            body.extend(1_u32.to_be_bytes());
            body.extend(value.to_be_bytes());
            let field = serde_json::json!({ "name": field, "type": "uint64", "size": 8 });
            parts.push(serde_json::json!({ "vmsd_name": name, "version": 1, "fields": [field] }));
        };
        part("cpu/msr_tsc_adjust", "env.tsc_adjust", 0u64.wrapping_sub(5));
        if deadline != 0 {
            part("cpu/msr_tscdeadline", "env.tsc_deadline", deadline);
        }
        part("cpu/tsc_khz", "env.tsc_khz", u64::from(KHZ));
        bytes.extend(qemu_section(20 + vcpu, "cpu", vcpu, 12, &body));
        devices.push(serde_json::json!({
            "name": "cpu", "instance_id": vcpu, "vmsd_name": "cpu", "version": 12,
            "fields": [
                { "name": "env.regs", "array_len": 3, "type": "struct", "size": 16 },
                { "name": "env.tsc", "type": "uint64", "size": 8 },
                { "name": "env.system_time_msr", "type": "uint64", "size": 8 },
            ],
            "subsections": parts,
        }));
    }
    bytes.extend(qemu_section(40, "kvmclock", 0, 1, &CLOCK.to_be_bytes()));
    let field = serde_json::json!({ "name": "clock", "type": "uint64", "size": 8 });
    devices.push(serde_json::json!({
        "name": "kvmclock", "instance_id": 0, "vmsd_name": "kvmclock", "version": 1, "fields": [field],
    }));
    bytes.extend(qemu_section(41, "old", 0, 3, &[8; 5]));
    let field = serde_json::json!({ "name": "data", "type": "buffer", "size": 5 });
    devices
        .push(serde_json::json!({ "name": "old", "instance_id": 0, "size": 5, "fields": [field] }));
    let text = serde_json::json!({ "page_size": 4096, "devices": devices }).to_string();
    bytes.extend([0, 6]);
    bytes.extend((text.len() as u32).to_be_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

fn has_all(snapshot: &Snapshot, made_by: MadeBy, vcpus: usize) {
    assert_eq!((snapshot.made_by, snapshot.vcpus.len()), (made_by, vcpus));
    assert_eq!(snapshot.clock.unwrap().clock_ns, CLOCK);
    assert_eq!(snapshot.tsc_khz, Some(KHZ));
    for (vcpu, counters) in (0..).zip(&snapshot.vcpus) {
        let [tsc, adjust, deadline, page] = msrs(vcpu).map(|(_, value)| Some(value));
        let found = [
            counters.tsc,
            counters.tsc_adjust,
            counters.tsc_deadline,
            counters.system_time,
        ];
        assert_eq!(found, [tsc, adjust, deadline, page]);
    }
    assert_eq!(snapshot.apart_ns(), Some(10_000 * (vcpus as u64 - 1)));
}

#[test]
fn firecracker_s_formats_are_read() {
    for format in 3..=8 {
        let snapshot = read(&firecracker(format, 3)).unwrap();
        has_all(&snapshot, MadeBy::Firecracker, 3);
        assert_eq!(snapshot.version, format!("snapshot format {format}.0.0"));
        assert_eq!(snapshot.missing, [Missing::HostFrequency, Missing::Offsets]);
    }
    for format in 9..=11 {
        for (vcpus, values) in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 16), (7, 256)] {
            let snapshot = read(&firecracker_in_columns(format, vcpus, values)).unwrap();
            has_all(&snapshot, MadeBy::Firecracker, vcpus as usize);
            assert_eq!(snapshot.version, format!("snapshot format {format}.0.0"));
        }
    }
}

#[test]
fn cloud_hypervisor_s_state_is_read_in_the_order_of_its_vcpus() {
    let snapshot = read(cloud_hypervisor(12).as_bytes()).unwrap();
    has_all(&snapshot, MadeBy::CloudHypervisor, 12);
    assert_eq!(snapshot.clock.unwrap().realtime_ns, Some(REALTIME));
}

#[test]
fn qemu_s_stream_is_read_from_its_end() {
    let snapshot = read(&qemu(2)).unwrap();
    has_all(&snapshot, MadeBy::Qemu, 2);
    assert!(snapshot.missing.contains(&Missing::WallClock));
}

/// Head and devices of a stream of QEMU 11.1.3 (`-M q35 -accel kvm -smp 2 -S`), its memory cut out.
#[test]
fn a_stream_of_qemu_11_is_read() {
    let path = "tests/data/qemu-11.1.3-kvm-devices.bin.zst";
    let stream = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let bytes = zstd::decode_all(std::fs::File::open(stream).unwrap()).unwrap();
    let snapshot = read(&bytes).unwrap();
    assert_eq!(snapshot.made_by, MadeBy::Qemu);
    assert_eq!(snapshot.tsc_khz, Some(2_596_130));
    assert_eq!(snapshot.clock.unwrap().clock_ns, 73_283_695);
    let tscs: Vec<_> = snapshot.vcpus.iter().map(|vcpu| vcpu.tsc).collect();
    assert_eq!(tscs, [Some(1), Some(1)]);
}

/// A pipe gives its bytes once. Of a long stream the end is kept, at whatever length.
#[test]
fn a_pipe_is_read_as_a_file_is() {
    let bytes = qemu(2);
    let (head, rest) = bytes.split_at(8);
    for memory in [
        0,
        1,
        MAX_SNAPSHOT_BYTES - bytes.len() as u64,
        MAX_SNAPSHOT_BYTES - bytes.len() as u64 + 1,
        MAX_SNAPSHOT_BYTES,
        2 * MAX_SNAPSHOT_BYTES + 5,
    ] {
        let mut pipe = head.chain(std::io::repeat(0).take(memory)).chain(rest);
        let read = inspect_stream(&mut pipe);
        has_all(&read.unwrap(), MadeBy::Qemu, 2);
    }
    let state = cloud_hypervisor(2);
    let read = inspect_stream(&mut state.as_bytes());
    has_all(&read.unwrap(), MadeBy::CloudHypervisor, 2);
    let mut endless = std::io::repeat(b'{');
    let refused = inspect_stream(&mut endless);
    assert!(
        matches!(refused, Err(SnapshotError::TooLarge { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_foreign_snapshot_is_restored_within_its_bound() {
    let snapshot = read(&firecracker(8, 2)).unwrap();
    let mut assumed = Assumed::default();
    assert_eq!(snapshot.to_saved(&assumed), Err(ImportError::NoBound));
    assumed.read_within_ns = 20_000;
    let saved = snapshot.to_saved(&assumed).unwrap();
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = host.vm(2);
    let options = Options::new(Policy::ELAPSED).accept_inexact();
    let done = saved.restore(&vm, &vcpus, options).unwrap();
    assert_eq!(done.vcpus[0].offset_to, done.vcpus[1].offset_to);
    assert!(done.tsc_against_kvmclock_ns >= 20_000, "{done}");
    // What a snapshot lacks is named.
    let lacking = read(&qemu(1)).unwrap().to_saved(&assumed);
    assert_eq!(lacking, Err(ImportError::NoWallClock));
    assumed.taken_realtime_ns = Some(REALTIME);
    assert!(read(&qemu(1)).unwrap().to_saved(&assumed).is_ok());
}

#[test]
fn own_states_are_read_in_either_form() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = host.vm(2);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    for bytes in [saved.to_bytes(), saved.to_json().into_bytes()] {
        let snapshot = read(&bytes).unwrap();
        assert_eq!(snapshot.to_saved(&Assumed::default()).unwrap(), saved);
        assert!(snapshot.missing.is_empty());
    }
    let newer = saved
        .to_json()
        .replacen("\"version\": 1", "\"version\": 3", 1);
    let error = read(newer.as_bytes()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(
        error,
        SnapshotError::Own(LoadError::Version { found: 3, .. })
    ));
    assert!(
        text.contains("made by version 3, this library reads up to version 1"),
        "{text}"
    );
}

#[test]
fn what_is_no_snapshot_is_refused_with_the_reason() {
    let message = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(message(b"").contains("no snapshot"));
    assert!(message(b"#!/bin/sh\n").contains("no snapshot"));
    assert!(message(b"{}").contains("version"));
    assert!(message(b"{\"snapshots\":{}}").contains("cpu-manager"));
    for next in [firecracker(12, 1), firecracker_in_columns(12, 1, 9)] {
        let next = message(&next);
        let expected = "made by Firecracker's snapshot format 12, this one reads formats 3 to 11";
        assert!(next.contains(expected), "{next}");
    }
    let mut arm = firecracker(8, 1);
    arm[2] = 0xaa;
    arm[3] = 0xaa;
    assert!(message(&arm).contains("arm64"));
    let mut damaged = firecracker(8, 1);
    damaged[400] ^= 1;
    assert!(message(&damaged).contains("checksum"));
    assert!(message(&qemu(1)[..200]).contains("description"));
    let mut old = qemu(1);
    old[7] = 2;
    assert!(message(&old).contains("version 2, this one reads version 3"));
    let other = cloud_hypervisor(1).replace("Kvm", "Mshv");
    assert!(message(other.as_bytes()).contains("another hypervisor"));
}

/// No cut and no changed byte panics, and none but those of values that count go unnoticed.
#[test]
fn damaged_snapshots_are_errors_or_partial_and_never_panic() {
    let columns = firecracker_in_columns(11, 3, 17);
    for bytes in [
        firecracker(8, 2),
        columns,
        cloud_hypervisor(2).into_bytes(),
        qemu(2),
    ] {
        for length in (0..bytes.len()).step_by(59) {
            assert!(read(&bytes[..length]).is_err(), "{length}");
        }
        for at in (0..bytes.len()).step_by(67) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x81;
            let _ = read(&changed).map(|snapshot| snapshot.to_saved(&Assumed::default()));
        }
    }
}

/// Lengths up to the ends of their ranges, with a right checksum.
#[test]
fn huge_lengths_are_refused() {
    let columns = firecracker_in_columns(9, 3, 256);
    // Not a multiple of the lengths' distances, so that the places differ from field to field.
    for (bytes, step) in [(firecracker(8, 1), 109), (columns, 509)] {
        let length = bytes.len() - 8;
        for at in (0..length - 8).step_by(step) {
            for value in [u64::MAX, 1 << 63, 65_537, 0] {
                let mut forged = bytes.clone();
                forged[at..at + 8].copy_from_slice(&value.to_le_bytes());
                let checksum = crc64(&forged[..length]);
                forged[length..].copy_from_slice(&checksum.to_le_bytes());
                let _ = read(&forged);
            }
        }
    }
    let mut bytes = firecracker(8, 1);
    bytes.resize(11_000_000, 0);
    assert!(matches!(read(&bytes), Err(SnapshotError::TooLarge { .. })));
}
