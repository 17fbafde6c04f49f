//! Another host, as a file of facts, and the rehearsal of a restore there: without KVM, on any machine.

use serde::{Deserialize, Serialize};

use crate::arithmetic::HostInstant;
use crate::device::{HostFacts, TscMeans};
use crate::error::{FactsError, LoadError, RestoreError};
use crate::explanation::{Bounds, Reason};
use crate::fake::FakeHost;
use crate::policy::{Options, Policy};
use crate::reported::record;
use crate::saved::{Saved, State, check_size, format};

/// The version of [`Facts`] that this library writes and reads.
pub const FACTS_VERSION: u32 = 1;

/// A host, in a file: what its KVM offers, and an instant of its clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Facts {
    /// [`FACTS_VERSION`].
    pub version: u32,
    /// Frequency of the host's TSC in kHz.
    pub tsc_khz: u32,
    /// Bits after the point of its TSC ratios: 48 (VMX) or 32 (SVM).
    pub frac_bits: u32,
    /// Whether the hardware scales.
    pub has_scaling: bool,
    /// `kvm.tsc_tolerance_ppm`.
    pub tolerance_ppm: u32,
    /// What moves a guest's TSC.
    pub means: TscMeans,
    /// [`HostFacts::fixed_offset`].
    #[serde(default)]
    pub fixed_offset: Option<u64>,
    /// `KVM_CLOCK_*` flags that KVM knows.
    pub clock_flags: u32,
    /// The host's wall clock when the facts were gathered, in ns since the epoch.
    pub realtime_ns: u64,
    /// Its TSC at that time.
    pub host_tsc: u64,
}

impl Facts {
    /// A host with these facts, at this instant.
    #[must_use]
    pub const fn new(host: &HostFacts, realtime_ns: u64, host_tsc: u64) -> Self {
        Self {
            version: FACTS_VERSION,
            tsc_khz: host.tsc_khz,
            frac_bits: host.format.frac_bits(),
            has_scaling: host.has_scaling,
            tolerance_ppm: host.tolerance_ppm,
            means: host.means,
            fixed_offset: host.fixed_offset,
            clock_flags: host.clock_flags,
            realtime_ns,
            host_tsc,
        }
    }

    /// This host. Opens `/dev/kvm`.
    ///
    /// # Errors
    /// [`HostError`](crate::HostError).
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub fn gather() -> Result<Self, crate::HostError> {
        let host = crate::kvm::host()?.facts();
        let bracket = crate::device::Bracket::narrowest(crate::kvm::bracket);
        Ok(Self::new(&host, bracket.realtime_ns, bracket.tsc()))
    }

    /// The JSON form.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Integers, a flag and a name have no value that JSON cannot hold.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Loads the JSON form.
    ///
    /// # Errors
    /// [`FactsError`] for anything but facts of this version with values that can be.
    pub fn from_json(bytes: &[u8]) -> Result<Self, FactsError> {
        #[derive(Deserialize)]
        struct VersionOnly {
            version: u32,
        }
        let too_large = |_: LoadError| FactsError::TooLarge { bytes: bytes.len() };
        check_size(bytes).map_err(too_large)?;
        let json = |error: serde_json::Error| FactsError::Json {
            message: error.to_string(),
        };
        let VersionOnly { version } = serde_json::from_slice(bytes).map_err(json)?;
        if version != FACTS_VERSION {
            return Err(FactsError::Version {
                found: version,
                known: FACTS_VERSION,
            });
        }
        let facts: Self = serde_json::from_slice(bytes).map_err(json)?;
        facts.host()?;
        Ok(facts)
    }

    /// The same for the arithmetic.
    ///
    /// # Errors
    /// [`FactsError::Value`] names the field that cannot be.
    pub fn host(&self) -> Result<HostFacts, FactsError> {
        let value = |field, value: u32, expected| FactsError::Value {
            field,
            value: u64::from(value),
            expected,
        };
        if self.tsc_khz == 0 || self.tsc_khz >= i32::MAX as u32 {
            return Err(value("tsc_khz", self.tsc_khz, "from 1 to 2^31-2 kHz"));
        }
        if self.tolerance_ppm >= 1_000_000 {
            return Err(value(
                "tolerance_ppm",
                self.tolerance_ppm,
                "below 1000000 ppm",
            ));
        }
        let format = format(self.frac_bits);
        let format = format.ok_or(value("frac_bits", self.frac_bits, "48 or 32"))?;
        let mut host = HostFacts::complete(self.tsc_khz);
        host.format = format;
        host.has_scaling = self.has_scaling;
        host.tolerance_ppm = self.tolerance_ppm;
        host.means = self.means;
        host.fixed_offset = self.fixed_offset;
        host.clock_flags = self.clock_flags;
        Ok(host)
    }

    /// The host's wall clock and TSC at another wall clock time.
    fn at(&self, realtime_ns: u64) -> (u64, u64) {
        let since_ns = i128::from(realtime_ns) - i128::from(self.realtime_ns);
        let cycles = since_ns * i128::from(self.tsc_khz) / 1_000_000;
        (realtime_ns, self.host_tsc.wrapping_add(cycles as u64))
    }
}

/// What a restore with one policy would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Rehearsed {
    /// Guest time over the pause.
    pub policy: Policy,
    /// What it would do, or the reason for which it would be refused.
    pub outcome: Outcome,
}

/// The end of a rehearsal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The restore would be refused; nothing would be written.
    Refused(String),
    /// The restore would be done.
    Restored(Restored),
}

/// What a restore would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Restored {
    /// By how much guest time would advance, in ns.
    pub advanced_ns: u64,
    /// The kvmclock at the restore, in ns.
    pub clock_ns: u64,
    /// By how much the guest's TSCs would advance, in cycles.
    pub added_cycles: u64,
    /// The TSC ratio in the host's format; its neutral value without scaling.
    pub ratio: u64,
    /// Whether only rounding would be between the guest's clocks and the ideal.
    pub exact: bool,
    /// The stated bounds.
    pub bounds: Bounds,
    /// Decisions and limits, as sentences.
    pub reasons: Vec<String>,
    /// All writes, in order.
    pub writes: Vec<String>,
}

/// A restore of a saved guest on a host, this long after the save, with each of the policies.
///
/// ```
/// use guest_clock::device::{HostFacts, Vm};
/// use guest_clock::{Facts, GuestClocks, Options, Outcome, Policy, fake::FakeHost, rehearse_on};
///
/// let (vm, vcpus) = FakeHost::new(2_500_000).vm(2);
/// vm.set_clock(&Default::default())?; // the master clock is on
/// let saved = GuestClocks::save(&vm, &vcpus)?;
/// let other = Facts::new(&HostFacts::complete(3_000_000), 1_700_000_000_000_000_000, 1 << 40);
/// let options = [Options::new(Policy::ELAPSED)];
/// let rehearsed = rehearse_on(&saved, &other, 60_000_000_000, &options)?;
/// let Outcome::Restored(restored) = &rehearsed[0].outcome else { panic!() };
/// assert_eq!(restored.advanced_ns, 60_000_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`FactsError::Value`]; a refused restore is an [`Outcome`].
pub fn rehearse_on(
    saved: &Saved,
    facts: &Facts,
    pause_ns: u64,
    options: &[Options],
) -> Result<Vec<Rehearsed>, FactsError> {
    let host = facts.host()?;
    let saved_ns = match saved.state() {
        State::X86(x86) => x86.instant.realtime_ns,
        State::Arm64(arm64) => arm64.realtime_ns,
    };
    let (realtime_ns, host_tsc) = facts.at(saved_ns.saturating_add(pause_ns));
    let stage = FakeHost::with(host);
    // No time passes: the writes are those of the anchor.
    stage.tell(HostInstant {
        ns: 1_000_000_000,
        tsc: host_tsc,
        real_ns: realtime_ns,
    });
    let rehearsed = options.iter().map(|options| Rehearsed {
        policy: options.policy,
        outcome: match restored(saved, &stage, options) {
            Ok(restored) => Outcome::Restored(restored),
            Err(error) => Outcome::Refused(error.to_string()),
        },
    });
    Ok(rehearsed.collect())
}

fn restored(saved: &Saved, stage: &FakeHost, options: &Options) -> Result<Restored, RestoreError> {
    let (vm, vcpus) = stage.vm(saved.vcpus());
    let plan = saved.plan(&vm, &vcpus, options)?;
    let (explanation, writes) = record(&plan, &vm, &vcpus);
    let explanation = explanation?;
    let first = plan.vcpus().first();
    Ok(Restored {
        advanced_ns: explanation.advanced_ns,
        clock_ns: explanation.clock_to_ns,
        added_cycles: first.map_or(0, |v| v.tsc_at_anchor.wrapping_sub(v.tsc_at_save)),
        ratio: plan.ratio(),
        exact: explanation.is_exact(),
        bounds: explanation.bounds(),
        reasons: explanation.reasons.iter().map(Reason::to_string).collect(),
        writes,
    })
}
