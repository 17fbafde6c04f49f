//! Cloud Hypervisor's `state.json`.
//!
//! Follows Cloud Hypervisor's source at v53: `vm-migration/src/lib.rs` (`Snapshot`), `vmm/src/vm.rs`
//! (`VmSnapshot`), `vmm/src/cpu.rs` and `hypervisor/src/kvm/x86_64/mod.rs` (`VcpuKvmState`). The file has no
//! version; fields are read by name. A node's state is JSON in a text, KVM's structures are arrays of bytes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Counters, MadeBy, Snapshot, SnapshotError};
use crate::arithmetic::KvmClockData;
use crate::saved::MAX_VCPUS;

const MADE_BY: MadeBy = MadeBy::CloudHypervisor;

#[derive(Deserialize)]
struct Root {
    snapshots: Parts,
    snapshot_data: Option<Data>,
}

/// The VM's parts; those without clocks are skipped.
#[derive(Deserialize)]
struct Parts {
    #[serde(rename = "cpu-manager")]
    cpus: Option<CpuManager>,
}

#[derive(Deserialize)]
struct CpuManager {
    snapshots: BTreeMap<String, Leaf>,
}

#[derive(Deserialize)]
struct Leaf {
    snapshot_data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    state: String,
}

/// `VmSnapshot`.
#[derive(Deserialize)]
struct VmState {
    #[serde(default)]
    clock: Option<Clock>,
}

/// `ClockData` on x86, `TimerState` on arm64.
#[derive(Deserialize)]
#[serde(untagged)]
enum Clock {
    Kvm {
        #[serde(rename = "Kvm")]
        bytes: Vec<u8>,
    },
    Arm64 {
        #[serde(rename = "cntvct")]
        _count: u64,
    },
    Other(serde::de::IgnoredAny),
}

/// `CpuState`.
#[derive(Deserialize)]
enum CpuState {
    Kvm(Kvm),
    Mshv(serde::de::IgnoredAny),
}

/// `VcpuKvmState`. On arm64 it has no `msrs`.
#[derive(Deserialize)]
struct Kvm {
    msrs: Option<Vec<Msr>>,
    #[serde(default)]
    tsc_khz: Option<u32>,
}

#[derive(Deserialize)]
struct Msr {
    index: u32,
    data: u64,
}

/// Whether a JSON file is a tree of snapshots.
pub(super) fn is_state(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Tree {
        #[serde(rename = "snapshots")]
        _snapshots: serde::de::IgnoredAny,
    }
    serde_json::from_slice::<Tree>(bytes).is_ok()
}

fn parse<T: DeserializeOwned>(part: &'static str, text: &[u8]) -> Result<T, SnapshotError> {
    serde_json::from_slice(text).map_err(|error| SnapshotError::Json {
        made_by: MADE_BY,
        part,
        message: error.to_string(),
    })
}

pub(super) fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    let root: Root = parse("state.json", bytes)?;
    let clock = match root.snapshot_data {
        Some(data) => clock(parse("state of the VM", data.state.as_bytes())?)?,
        None => None,
    };
    let cpus = root
        .snapshots
        .cpus
        .filter(|cpus| !cpus.snapshots.is_empty());
    let cpus = cpus.ok_or(SnapshotError::NotThere {
        made_by: MADE_BY,
        part: "cpu-manager with vCPUs",
        remedy: "give the file state.json of a snapshot",
    })?;
    if cpus.snapshots.len() > MAX_VCPUS {
        return Err(SnapshotError::TooLarge {
            bytes: cpus.snapshots.len() as u64,
            most: MAX_VCPUS as u64,
        });
    }
    // Names are numbers: 10 comes after 9.
    let mut leaves: Vec<(String, Leaf)> = cpus.snapshots.into_iter().collect();
    leaves.sort_by_key(|(name, _)| name.parse::<u32>().unwrap_or(u32::MAX));
    let mut khz = None;
    let mut vcpus = Vec::new();
    for (_, leaf) in leaves {
        let data = leaf.snapshot_data.ok_or(SnapshotError::NotThere {
            made_by: MADE_BY,
            part: "state of a vCPU",
            remedy: "take the snapshot once more",
        })?;
        let (counters, tsc_khz) = vcpu(parse("state of a vCPU", data.state.as_bytes())?)?;
        vcpus.push(counters);
        khz = khz.or(tsc_khz);
    }
    let version = "state.json, read as of v53".to_owned();
    Ok(Snapshot::by_value(MADE_BY, version, clock, khz, vcpus))
}

const fn other(found: &'static str) -> SnapshotError {
    SnapshotError::Guest {
        made_by: MADE_BY,
        found,
    }
}

fn clock(vm: VmState) -> Result<Option<KvmClockData>, SnapshotError> {
    let bytes = match vm.clock {
        None => return Ok(None),
        Some(Clock::Kvm { bytes }) => bytes,
        Some(Clock::Arm64 { .. }) => return Err(other("arm64")),
        Some(Clock::Other(_)) => return Err(other("another hypervisor")),
    };
    let word = |start: usize| {
        let chunk = bytes.get(start..).and_then(|rest| rest.first_chunk());
        chunk.copied().map(u64::from_le_bytes)
    };
    let truncated = SnapshotError::Truncated {
        made_by: MADE_BY,
        at: bytes.len(),
        field: "kvm_clock_data",
    };
    let [Some(clock_ns), Some(flags)] = [word(0), word(8)] else {
        return Err(truncated);
    };
    Ok(Some(KvmClockData {
        clock_ns,
        // The upper half is padding.
        flags: flags as u32,
        realtime_ns: word(16).unwrap_or(0),
        host_tsc: word(24).unwrap_or(0),
    }))
}

fn vcpu(state: CpuState) -> Result<(Counters, Option<u32>), SnapshotError> {
    let kvm = match state {
        CpuState::Kvm(kvm) => kvm,
        CpuState::Mshv(_) => return Err(other("another hypervisor")),
    };
    let mut counters = Counters::default();
    for msr in kvm.msrs.ok_or(other("arm64"))? {
        counters.set(msr.index, msr.data);
    }
    Ok((counters, kvm.tsc_khz))
}
