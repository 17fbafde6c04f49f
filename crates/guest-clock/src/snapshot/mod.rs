//! The clocks of other VMMs' snapshots: which VMM made a file, its values, and what it lacks for a restore.
//!
//! | made by | file | versions |
//! |---|---|---|
//! | this library | either form | [`VERSION`](crate::VERSION) |
//! | Firecracker | `vmstate` | snapshot formats 3 to 11 (Firecracker 1.9 to 1.16) |
//! | Cloud Hypervisor | `state.json` | fields by name, as of v53 |
//! | QEMU | a migration stream with its description | version 3; fields by name |
//!
//! Every file is treated as hostile: sizes and counts are limited, and nothing is read beyond them.

mod cloud_hypervisor;
mod error;
mod firecracker;
mod qemu;

use std::fmt;
use std::io::{Cursor, Read, Seek, SeekFrom};

use serde::Serialize;
use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KvmClockData,
};

use crate::by_value::ByValue;
use crate::error::ImportError;
use crate::save::cycles_to_ns;
use crate::saved::{Saved, State, X86State};

pub use error::SnapshotError;

/// The most bytes of a snapshot that are read; of QEMU's streams, which hold the guest's memory, from their
/// end.
pub const MAX_SNAPSHOT_BYTES: u64 = 32 << 20;

/// The program that made a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MadeBy {
    /// This library.
    GuestClock,
    /// Firecracker.
    Firecracker,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// QEMU.
    Qemu,
}

impl fmt::Display for MadeBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GuestClock => "guest-clock",
            Self::Firecracker => "Firecracker",
            Self::CloudHypervisor => "Cloud Hypervisor",
            Self::Qemu => "QEMU",
        })
    }
}

/// The kvmclock of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Clock {
    /// In ns.
    pub clock_ns: u64,
    /// `KVM_CLOCK_*`; 0 where the snapshot does not keep them.
    pub flags: u32,
    /// The wall clock of the same instant, in ns since the epoch.
    pub realtime_ns: Option<u64>,
    /// The host's TSC of the same instant.
    pub host_tsc: Option<u64>,
}

impl From<KvmClockData> for Clock {
    fn from(data: KvmClockData) -> Self {
        let flagged = |flag, value| (data.flags & flag != 0).then_some(value);
        Self {
            clock_ns: data.clock_ns,
            flags: data.flags,
            realtime_ns: flagged(KVM_CLOCK_REALTIME, data.realtime_ns),
            host_tsc: flagged(KVM_CLOCK_HOST_TSC, data.host_tsc),
        }
    }
}

/// The counters of a vCPU of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// `IA32_TSC`.
    pub tsc: Option<u64>,
    /// The TSC offset, in cycles; no other VMM keeps it.
    pub tsc_offset: Option<u64>,
    /// `IA32_TSC_ADJUST`.
    pub tsc_adjust: Option<u64>,
    /// `IA32_TSC_DEADLINE`, 0 if not armed.
    pub tsc_deadline: Option<u64>,
    /// `MSR_KVM_SYSTEM_TIME_NEW`: bit 0 enables the kvmclock page.
    pub system_time: Option<u64>,
}

/// Something that a snapshot lacks for an exact restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Missing {
    /// The kvmclock.
    Clock,
    /// The wall clock at the save.
    WallClock,
    /// The host's TSC at the save.
    HostTsc,
    /// The frequency of the host's TSC.
    HostFrequency,
    /// The frequency of the guest's TSC.
    GuestFrequency,
    /// TSC offsets; there are values.
    Offsets,
    /// `IA32_TSC` of a vCPU.
    Tsc {
        /// Its position.
        vcpu: usize,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clock => write!(f, "kvmclock: the guest was not run by KVM"),
            Self::WallClock => {
                write!(
                    f,
                    "wall clock at the save: state it, or no pause can be counted"
                )
            }
            Self::HostTsc => write!(f, "host TSC of the clock's instant: the clock has a bound"),
            Self::HostFrequency => write!(
                f,
                "frequency of the source host's TSC: taken for the guest's own; state it if the guest was \
                 scaled"
            ),
            Self::GuestFrequency => write!(f, "frequency of the guest's TSC: state it"),
            Self::Offsets => write!(
                f,
                "TSC offsets: the values are read one after the other; state within what time"
            ),
            Self::Tsc { vcpu } => write!(f, "IA32_TSC of vCPU {vcpu}"),
        }
    }
}

/// What a restore needs and a snapshot may lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assumed {
    /// Frequency of the source host's TSC in kHz; the guest's, if it is not known.
    pub host_tsc_khz: Option<u32>,
    /// Frequency of the guest's TSC in kHz, where the snapshot has none.
    pub tsc_khz: Option<u32>,
    /// The wall clock at the save, in ns since the epoch, where the snapshot has none.
    pub taken_realtime_ns: Option<u64>,
    /// All values were read within this time, in ns: at most the pause for the snapshot.
    pub read_within_ns: u64,
}

/// The clocks of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// By which program.
    pub made_by: MadeBy,
    /// Its version, as far as the file has one.
    pub version: String,
    /// The kvmclock.
    pub clock: Option<Clock>,
    /// Frequency of the guest's TSC in kHz.
    pub tsc_khz: Option<u32>,
    /// Frequency of the host's TSC in kHz.
    pub host_tsc_khz: Option<u32>,
    /// Each vCPU.
    pub vcpus: Vec<Counters>,
    /// What is not in the file.
    pub missing: Vec<Missing>,
    /// This library's own state.
    #[serde(skip)]
    own: Option<Saved>,
}

impl Snapshot {
    /// A snapshot by value, with everything that it lacks.
    fn by_value(
        made_by: MadeBy,
        version: String,
        clock: Option<KvmClockData>,
        tsc_khz: Option<u32>,
        vcpus: Vec<Counters>,
    ) -> Self {
        let clock = clock.map(Clock::from);
        let lacks = |is_absent: fn(&Clock) -> bool| clock.as_ref().is_some_and(is_absent);
        let absent = [
            (Missing::Clock, clock.is_none()),
            (
                Missing::WallClock,
                lacks(|clock| clock.realtime_ns.is_none()),
            ),
            (Missing::HostTsc, lacks(|clock| clock.host_tsc.is_none())),
            (Missing::GuestFrequency, tsc_khz.is_none()),
            (Missing::HostFrequency, true),
            (Missing::Offsets, true),
        ];
        let mut missing: Vec<Missing> = absent
            .into_iter()
            .filter_map(|(missing, is_absent)| is_absent.then_some(missing))
            .collect();
        let no_tsc = vcpus.iter().enumerate().filter(|(_, v)| v.tsc.is_none());
        missing.extend(no_tsc.map(|(vcpu, _)| Missing::Tsc { vcpu }));
        Self {
            made_by,
            version,
            clock,
            tsc_khz,
            host_tsc_khz: None,
            vcpus,
            missing,
            own: None,
        }
    }

    fn of_saved(saved: Saved) -> Self {
        let mut snapshot = Self {
            made_by: MadeBy::GuestClock,
            version: format!("state version {}", crate::VERSION),
            clock: None,
            tsc_khz: None,
            host_tsc_khz: None,
            vcpus: Vec::new(),
            missing: Vec::new(),
            own: None,
        };
        if let State::X86(x86) = saved.state() {
            snapshot.clock = Some(own_clock(x86));
            snapshot.tsc_khz = Some(x86.tsc_khz);
            snapshot.host_tsc_khz = Some(x86.host_tsc_khz);
            let scaled = x86.scaled(x86.instant.host_tsc);
            snapshot.vcpus = x86
                .vcpus
                .iter()
                .map(|vcpu| Counters {
                    tsc: Some(vcpu.tsc_offset.wrapping_add(scaled)),
                    tsc_offset: Some(vcpu.tsc_offset),
                    tsc_adjust: vcpu.tsc_adjust,
                    tsc_deadline: vcpu.tsc_deadline,
                    system_time: None,
                })
                .collect();
        }
        snapshot.own = Some(saved);
        snapshot
    }

    /// This library's own state, if the file is one.
    #[must_use]
    pub const fn own(&self) -> Option<&Saved> {
        self.own.as_ref()
    }

    /// How far the vCPUs' TSCs are apart, in cycles: at least by so much a restore by value is off.
    #[must_use]
    pub fn apart_cycles(&self) -> u64 {
        let mut values = self.vcpus.iter().filter_map(|vcpu| vcpu.tsc);
        let Some(first) = values.next() else {
            return 0;
        };
        let ahead = values.map(|tsc| tsc.wrapping_sub(first).cast_signed());
        let (low, high) = ahead.fold((0, 0), |(low, high), ahead| {
            (ahead.min(low), ahead.max(high))
        });
        high.abs_diff(low)
    }

    /// The same in ns, where the guest's frequency is known.
    #[must_use]
    pub fn apart_ns(&self) -> Option<u64> {
        self.tsc_khz
            .map(|khz| cycles_to_ns(self.apart_cycles(), khz))
    }

    /// The clocks by offsets, to rehearse a restore with or to restore.
    ///
    /// # Errors
    /// [`ImportError`] names what neither the snapshot has nor `assumed` states.
    pub fn to_saved(&self, assumed: &Assumed) -> Result<Saved, ImportError> {
        if let Some(saved) = &self.own {
            return Ok(saved.clone());
        }
        let clock = self.clock.ok_or(ImportError::NoClock)?;
        let tsc_khz = self.tsc_khz.or(assumed.tsc_khz);
        let tsc_khz = tsc_khz.ok_or(ImportError::NoFrequency)?;
        let data = KvmClockData {
            clock_ns: clock.clock_ns,
            flags: clock.flags,
            realtime_ns: clock.realtime_ns.unwrap_or(0),
            host_tsc: clock.host_tsc.unwrap_or(0),
        };
        let mut by_value = ByValue::new(tsc_khz, data);
        by_value.host_tsc_khz = assumed.host_tsc_khz.unwrap_or(tsc_khz);
        by_value.taken_realtime_ns = assumed.taken_realtime_ns;
        by_value.read_within_ns = assumed.read_within_ns;
        for (vcpu, counters) in self.vcpus.iter().enumerate() {
            let tsc = counters.tsc.ok_or(ImportError::NoTsc { vcpu })?;
            by_value.add_vcpu_with(tsc, counters.tsc_adjust, counters.tsc_deadline);
        }
        by_value.to_saved()
    }
}

fn own_clock(x86: &X86State) -> Clock {
    let instant = x86.instant;
    Clock {
        clock_ns: instant.clock_ns,
        flags: 0,
        realtime_ns: Some(instant.realtime_ns),
        host_tsc: Some(instant.host_tsc),
    }
}

/// Reads the clocks of a snapshot, whichever of the known VMMs made it.
///
/// ```
/// use std::io::Cursor;
/// use guest_clock::{GuestClocks, fake::FakeHost, snapshot};
///
/// let (vm, vcpus) = FakeHost::new(2_500_000).vm(2);
/// let file = GuestClocks::save(&vm, &vcpus)?.to_bytes();
/// let snapshot = snapshot::inspect(&mut Cursor::new(file))?;
/// assert_eq!(snapshot.made_by, snapshot::MadeBy::GuestClock);
/// assert_eq!(snapshot.vcpus.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`SnapshotError`] names the file's maker, the place and what to do.
pub fn inspect<R: Read + Seek>(file: &mut R) -> Result<Snapshot, SnapshotError> {
    let bytes = file.seek(SeekFrom::End(0)).map_err(SnapshotError::Read)?;
    file.seek(SeekFrom::Start(0)).map_err(SnapshotError::Read)?;
    let mut head = Vec::new();
    let mut first = file.take(8);
    first.read_to_end(&mut head).map_err(SnapshotError::Read)?;
    if head.starts_with(&qemu::MAGIC) {
        return qemu::read(file, bytes);
    }
    if bytes > MAX_SNAPSHOT_BYTES {
        return Err(SnapshotError::TooLarge {
            bytes,
            most: MAX_SNAPSHOT_BYTES,
        });
    }
    file.seek(SeekFrom::Start(0)).map_err(SnapshotError::Read)?;
    let mut contents = Vec::new();
    // The file may grow meanwhile.
    let mut whole = file.take(MAX_SNAPSHOT_BYTES);
    whole
        .read_to_end(&mut contents)
        .map_err(SnapshotError::Read)?;
    inspect_bytes(&contents)
}

/// The same of an input that cannot be gone back in: a pipe. It is read to its end, and of a stream of QEMU
/// no more is kept than is looked at.
///
/// # Errors
/// [`SnapshotError`], as [`inspect`].
pub fn inspect_stream<R: Read>(input: &mut R) -> Result<Snapshot, SnapshotError> {
    let mut contents = Vec::new();
    // One byte more than may be: that is enough to refuse it.
    let mut first = input.by_ref().take(MAX_SNAPSHOT_BYTES + 1);
    first
        .read_to_end(&mut contents)
        .map_err(SnapshotError::Read)?;
    let head: Vec<u8> = contents.iter().take(qemu::HEAD).copied().collect();
    if head.starts_with(&qemu::MAGIC) {
        loop {
            let mut chunk = input.by_ref().take(MAX_SNAPSHOT_BYTES);
            let read = chunk.read_to_end(&mut contents);
            if read.map_err(SnapshotError::Read)? == 0 {
                break;
            }
            let spare = contents.len().saturating_sub(MAX_SNAPSHOT_BYTES as usize);
            contents.splice(..spare, head.iter().copied());
        }
    }
    inspect(&mut Cursor::new(contents))
}

fn inspect_bytes(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    if bytes.starts_with(&crate::binary::MAGIC) {
        return Ok(Snapshot::of_saved(Saved::from_bytes(bytes)?));
    }
    if firecracker::is_snapshot(bytes) {
        return firecracker::read(bytes);
    }
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(SnapshotError::Unknown);
    }
    if cloud_hypervisor::is_state(bytes) {
        return cloud_hypervisor::read(bytes);
    }
    Ok(Snapshot::of_saved(Saved::from_json(bytes)?))
}
