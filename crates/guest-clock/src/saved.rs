//! The saved state: versioned, in JSON or in a compact binary form, checked on load.

use serde::{Deserialize, Serialize, Serializer};
use stealtime_hypervisor::counter::scaling::RatioFormat;

use crate::error::{LoadError, Unloadable};

/// The version that this library writes and reads.
pub const VERSION: u32 = 1;
/// The most vCPUs that a state may have (`KVM_MAX_VCPUS` is at most this).
pub const MAX_VCPUS: usize = 4096;
/// The most bytes that either form may have.
pub const MAX_BYTES: usize = 4 << 20;

/// An instant of a guest's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Instant {
    /// The guest's kvmclock, in ns.
    pub clock_ns: u64,
    /// The host's wall clock, in ns since the epoch.
    pub realtime_ns: u64,
    /// The host's TSC.
    pub host_tsc: u64,
    /// The three were read within this many ns; 0 if KVM read them as one.
    pub bound_ns: u64,
    /// KVM's master clock was on.
    pub master_clock: bool,
}

impl Instant {
    /// Read as one, with the master clock on.
    #[must_use]
    pub const fn new(clock_ns: u64, realtime_ns: u64, host_tsc: u64) -> Self {
        Self {
            clock_ns,
            realtime_ns,
            host_tsc,
            bound_ns: 0,
            master_clock: true,
        }
    }
}

/// A vCPU's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct VcpuState {
    /// Guest's TSC minus the scaled host's, in cycles; wraps.
    pub tsc_offset: u64,
    /// Bound of an offset that is computed from a value, in cycles; 0 if KVM reports the offset.
    pub offset_bound_cycles: u64,
    /// `IA32_TSC_ADJUST`, if KVM has it.
    pub tsc_adjust: Option<u64>,
    /// `IA32_TSC_DEADLINE` in guest cycles, 0 if not armed; `None` if KVM does not have it.
    pub tsc_deadline: Option<u64>,
}

impl VcpuState {
    /// An offset that is known, without `TSC_ADJUST` and deadline.
    #[must_use]
    pub const fn new(tsc_offset: u64) -> Self {
        Self {
            tsc_offset,
            offset_bound_cycles: 0,
            tsc_adjust: None,
            tsc_deadline: None,
        }
    }
}

/// The clocks of an x86 guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct X86State {
    /// Frequency of the source host's TSC in kHz.
    pub host_tsc_khz: u32,
    /// Bits after the point of its TSC ratios: 48 (VMX) or 32 (SVM).
    pub frac_bits: u32,
    /// Frequency of the guest's TSC in kHz.
    pub tsc_khz: u32,
    /// The source's ratio in that format.
    pub ratio: u64,
    /// When everything was read.
    pub instant: Instant,
    /// Each vCPU, in the order in which they were given.
    pub vcpus: Vec<VcpuState>,
}

impl X86State {
    /// A guest with a TSC at its host's frequency.
    #[must_use]
    pub const fn new(tsc_khz: u32, instant: Instant, vcpus: Vec<VcpuState>) -> Self {
        Self {
            host_tsc_khz: tsc_khz,
            frac_bits: RatioFormat::VMX.frac_bits(),
            tsc_khz,
            ratio: RatioFormat::VMX.neutral(),
            instant,
            vcpus,
        }
    }
}

/// The counter of an arm64 guest: one for all vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Arm64State {
    /// `CNTFRQ_EL0` of the source, in Hz.
    pub counter_hz: u32,
    /// Host's counter minus guest's, in ticks; wraps.
    pub counter_offset: u64,
    /// The offset was worked out from a value, to this many ticks; 0 if it was known.
    pub offset_bound_ticks: u64,
    /// The host's counter when the wall clock was read.
    pub host_count: u64,
    /// The host's wall clock, in ns since the epoch.
    pub realtime_ns: u64,
    /// How many vCPUs there were.
    pub vcpus: u32,
    /// The host's counter and wall clock were read within this many ticks of each other: nothing
    /// on arm64 reads them as one. 0: as one. JSON may leave it out.
    #[serde(default)]
    pub instant_bound_ticks: u64,
}

impl Arm64State {
    /// A guest with a known offset, and clocks that are read in one instant.
    #[must_use]
    pub const fn new(
        counter_hz: u32,
        counter_offset: u64,
        host_count: u64,
        realtime_ns: u64,
        vcpus: u32,
    ) -> Self {
        Self {
            counter_hz,
            counter_offset,
            offset_bound_ticks: 0,
            host_count,
            realtime_ns,
            vcpus,
            instant_bound_ticks: 0,
        }
    }
}

/// What was saved, by architecture.
///
/// In JSON and its like the architecture is the field `arch` among the others. Formats that do not
/// name their fields (postcard, bincode) cannot look for it there: they have a variant's number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// An x86 guest.
    X86(X86State),
    /// An arm64 guest.
    Arm64(Arm64State),
}

/// A [`State`] in JSON and its like, to write.
#[derive(Serialize)]
#[serde(tag = "arch", rename_all = "lowercase")]
enum Tagged<'a> {
    X86(&'a X86State),
    Arm64(&'a Arm64State),
}

/// A [`State`] in formats that do not name their fields, to write.
#[derive(Serialize)]
enum Numbered<'a> {
    X86(&'a X86State),
    Arm64(&'a Arm64State),
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self, serializer.is_human_readable()) {
            (Self::X86(state), true) => Tagged::X86(state).serialize(serializer),
            (Self::X86(state), false) => Numbered::X86(state).serialize(serializer),
            (Self::Arm64(state), true) => Tagged::Arm64(state).serialize(serializer),
            (Self::Arm64(state), false) => Numbered::Arm64(state).serialize(serializer),
        }
    }
}

/// A guest's clocks at rest.
///
/// Loading checks every field, whichever way it comes: a value of this type can be planned with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct Saved {
    state: State,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    version: u32,
    state: State,
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

impl From<Saved> for Raw {
    fn from(saved: Saved) -> Self {
        Self {
            version: VERSION,
            state: saved.state,
        }
    }
}

impl TryFrom<Raw> for Saved {
    type Error = LoadError;

    fn try_from(raw: Raw) -> Result<Self, LoadError> {
        if raw.version != VERSION {
            return Err(LoadError::Version {
                found: raw.version,
                known: VERSION,
            });
        }
        Self::new(raw.state)
    }
}

impl Saved {
    /// Checks a state.
    ///
    /// # Errors
    /// [`LoadError::Value`] names the first field that cannot be.
    pub fn new(state: State) -> Result<Self, LoadError> {
        let checked = Self::of_guest(state);
        checked.map_err(|error| LoadError::Value {
            field: error.field,
            value: error.value,
            why: error.why,
        })
    }

    /// A state as it was read from a kernel: what could not be loaded is not saved.
    pub(crate) fn of_guest(state: State) -> Result<Self, Unloadable> {
        match &state {
            State::X86(x86) => check_x86(x86)?,
            State::Arm64(arm64) => check_arm64(arm64)?,
        }
        Ok(Self { state })
    }

    /// What was saved.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// How many vCPUs were saved.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        match &self.state {
            State::X86(x86) => x86.vcpus.len(),
            State::Arm64(arm64) => arm64.vcpus as usize,
        }
    }

    /// The JSON form.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Integers, options and vectors of them have no value that JSON cannot hold.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Loads the JSON form.
    ///
    /// # Errors
    /// [`LoadError`] for anything but a state of this version with values that can be.
    pub fn from_json(bytes: &[u8]) -> Result<Self, LoadError> {
        check_size(bytes)?;
        let json = |error: serde_json::Error| LoadError::Json {
            message: error.to_string(),
        };
        let VersionOnly { version } = serde_json::from_slice(bytes).map_err(json)?;
        if version != VERSION {
            return Err(LoadError::Version {
                found: version,
                known: VERSION,
            });
        }
        let raw: Raw = serde_json::from_slice(bytes).map_err(json)?;
        Self::try_from(raw)
    }

    /// Loads either form, by its first bytes. A program that calls [`Saved::from_bytes`] alone links no
    /// reader of JSON, which is some 110 kB of text.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(bytes: &[u8]) -> Result<Self, LoadError> {
        if bytes.starts_with(&crate::binary::MAGIC) {
            Self::from_bytes(bytes)
        } else if bytes.trim_ascii_start().first() == Some(&b'{') {
            Self::from_json(bytes)
        } else {
            Err(LoadError::Unknown)
        }
    }
}

pub(crate) fn check_size(bytes: &[u8]) -> Result<(), LoadError> {
    if bytes.len() > MAX_BYTES {
        return Err(LoadError::TooLarge {
            bytes: bytes.len(),
            most: MAX_BYTES,
        });
    }
    Ok(())
}

fn value(field: &'static str, value: u64, reason: &'static str) -> Unloadable {
    Unloadable {
        field,
        value,
        why: reason,
    }
}

fn require(
    ok: bool,
    field: &'static str,
    found: u64,
    reason: &'static str,
) -> Result<(), Unloadable> {
    if ok {
        Ok(())
    } else {
        Err(value(field, found, reason))
    }
}

impl X86State {
    /// A reading of the source's TSC as its guest counted it, without the offset, in cycles.
    pub(crate) fn scaled(&self, host_tsc: u64) -> u64 {
        let format = format(self.frac_bits);
        format.map_or(host_tsc, |format| format.scale(host_tsc, self.ratio))
    }
}

/// The format of ratios with these bits after the point.
pub(crate) fn format(frac_bits: u32) -> Option<RatioFormat> {
    [RatioFormat::VMX, RatioFormat::SVM]
        .into_iter()
        .find(|f| f.frac_bits() == frac_bits)
}

const SIGNED: u64 = i64::MAX as u64;

fn check_khz(field: &'static str, khz: u32) -> Result<(), Unloadable> {
    let ok = khz != 0 && khz < i32::MAX as u32;
    require(ok, field, u64::from(khz), "from 1 to 2^31-2 kHz")
}

fn check_time(field: &'static str, ns: u64) -> Result<(), Unloadable> {
    require(ns <= SIGNED, field, ns, "at most 2^63-1 ns")
}

fn check_x86(x86: &X86State) -> Result<(), Unloadable> {
    check_khz("host_tsc_khz", x86.host_tsc_khz)?;
    check_khz("tsc_khz", x86.tsc_khz)?;
    let frac = u64::from(x86.frac_bits);
    let format = format(x86.frac_bits).ok_or(value("frac_bits", frac, "48 or 32"))?;
    let scaled = format.ratio(x86.tsc_khz, x86.host_tsc_khz);
    let ok = x86.ratio == format.neutral() || scaled == Ok(x86.ratio);
    require(ok, "ratio", x86.ratio, "1, or tsc_khz over host_tsc_khz")?;
    check_time("clock_ns", x86.instant.clock_ns)?;
    check_time("realtime_ns", x86.instant.realtime_ns)?;
    check_time("bound_ns", x86.instant.bound_ns)?;
    check_vcpus(x86.vcpus.len() as u64)?;
    for vcpu in &x86.vcpus {
        let bound = vcpu.offset_bound_cycles;
        require(bound <= SIGNED, "offset_bound_cycles", bound, "below 2^63")?;
    }
    Ok(())
}

fn check_vcpus(count: u64) -> Result<(), Unloadable> {
    let ok = (1..=MAX_VCPUS as u64).contains(&count);
    require(ok, "vcpus", count, "from 1 to 4096 vCPUs")
}

fn check_arm64(arm64: &Arm64State) -> Result<(), Unloadable> {
    let hz = arm64.counter_hz;
    require(hz != 0, "counter_hz", 0, "above 0")?;
    check_time("realtime_ns", arm64.realtime_ns)?;
    let bound = arm64.offset_bound_ticks;
    require(bound <= SIGNED, "offset_bound_ticks", bound, "below 2^63")?;
    let bound = arm64.instant_bound_ticks;
    require(bound <= SIGNED, "instant_bound_ticks", bound, "below 2^63")?;
    check_vcpus(u64::from(arm64.vcpus))
}
