//! Snapshots by value: what other VMMs have written, as a [`Saved`] with its bound.

use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KVM_CLOCK_TSC_STABLE, KvmClockData,
};

use crate::error::ImportError;
use crate::saved::{Instant, Saved, State, VcpuState, X86State, format};

/// The clocks of an x86 guest as a snapshot by value has them.
///
/// ```
/// use guest_clock::{ByValue, Options, Policy, fake::FakeHost, arithmetic::KvmClockData};
///
/// let clock = KvmClockData { clock_ns: 7_000_000_000, ..KvmClockData::default() };
/// let mut snapshot = ByValue::new(2_500_000, clock);
/// snapshot.taken_realtime_ns = Some(1_700_000_000_000_000_000);
/// snapshot.add_vcpu(17_500_000_000);
/// snapshot.add_vcpu(17_500_031_000); // read 12 us later
/// snapshot.read_within_ns = 50_000;
/// let saved = snapshot.to_saved()?;
///
/// let host = FakeHost::new(2_500_000);
/// let (vm, vcpus) = host.vm(2);
/// let done = saved.restore(&vm, &vcpus, Options::new(Policy::ELAPSED).accept_inexact())?;
/// assert_eq!(done.vcpus[0].offset_to, done.vcpus[1].offset_to);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ByValue {
    /// Frequency of the source host's TSC in kHz.
    pub host_tsc_khz: u32,
    /// Frequency of the guest's TSC in kHz (`KVM_GET_TSC_KHZ`).
    pub tsc_khz: u32,
    /// Bits after the point of the source's TSC ratios: 48 (VMX) or 32 (SVM).
    pub frac_bits: u32,
    /// What `KVM_GET_CLOCK` returned.
    pub clock: KvmClockData,
    /// The wall clock at the snapshot, in ns since the epoch, where `clock` has none
    /// (`KVM_CLOCK_REALTIME`, Linux 5.16).
    pub taken_realtime_ns: Option<u64>,
    /// The clock and the values were all read within this time, in ns. It becomes the bound of the TSC.
    pub read_within_ns: u64,
    /// Values of each vCPU.
    vcpus: Vec<Values>,
}

/// What a snapshot has of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Values {
    tsc: u64,
    adjust: Option<u64>,
    deadline: Option<u64>,
}

impl ByValue {
    /// A guest at its host's frequency, without vCPUs yet.
    #[must_use]
    pub const fn new(tsc_khz: u32, clock: KvmClockData) -> Self {
        Self {
            host_tsc_khz: tsc_khz,
            tsc_khz,
            frac_bits: 48,
            clock,
            taken_realtime_ns: None,
            read_within_ns: 0,
            vcpus: Vec::new(),
        }
    }

    /// The next vCPU, with what `IA32_TSC` was.
    pub fn add_vcpu(&mut self, tsc: u64) {
        self.add_vcpu_with(tsc, None, None);
    }

    /// The same, with `IA32_TSC_ADJUST` and `IA32_TSC_DEADLINE` (guest cycles, 0 if not armed).
    pub fn add_vcpu_with(&mut self, tsc: u64, tsc_adjust: Option<u64>, tsc_deadline: Option<u64>) {
        self.vcpus.push(Values {
            tsc,
            adjust: tsc_adjust,
            deadline: tsc_deadline,
        });
    }

    /// The same guest by offsets. Its TSCs are known within [`ByValue::read_within_ns`], so that a restore
    /// is exact for no policy: [`Options::accept_inexact`](crate::Options::accept_inexact).
    ///
    /// # Errors
    /// [`ImportError`] names what is missing or cannot be.
    pub fn to_saved(&self) -> Result<Saved, ImportError> {
        let is_set = |flag| self.clock.flags & flag != 0;
        let realtime_ns = match (is_set(KVM_CLOCK_REALTIME), self.taken_realtime_ns) {
            (true, _) => self.clock.realtime_ns,
            (false, Some(ns)) => ns,
            (false, None) => return Err(ImportError::NoWallClock),
        };
        if self.read_within_ns == 0 {
            return Err(ImportError::NoBound);
        }
        if self.tsc_khz == 0 {
            return Err(ImportError::NoFrequency);
        }
        let format = format(self.frac_bits).ok_or(ImportError::FracBits {
            found: self.frac_bits,
        })?;
        let ratio = match self.tsc_khz == self.host_tsc_khz {
            true => Ok(format.neutral()),
            false => format.ratio(self.tsc_khz, self.host_tsc_khz),
        };
        let ratio = ratio.map_err(|_| ImportError::Ratio {
            guest_khz: self.tsc_khz,
            host_khz: self.host_tsc_khz,
        })?;
        // Only differences of the host's TSC go into a restore: where it is not known, 0 is as good.
        let host_tsc = if is_set(KVM_CLOCK_HOST_TSC) {
            self.clock.host_tsc
        } else {
            0
        };
        let scaled = format.scale(host_tsc, ratio);
        let cycles = u128::from(self.read_within_ns) * u128::from(self.tsc_khz);
        let bound_cycles = u64::try_from(cycles.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let vcpus = self.vcpus.iter().map(|values| VcpuState {
            tsc_offset: values.tsc.wrapping_sub(scaled),
            offset_bound_cycles: bound_cycles,
            tsc_adjust: values.adjust,
            tsc_deadline: values.deadline,
        });
        let state = X86State {
            host_tsc_khz: self.host_tsc_khz,
            frac_bits: self.frac_bits,
            tsc_khz: self.tsc_khz,
            ratio,
            instant: Instant {
                clock_ns: self.clock.clock_ns,
                realtime_ns,
                host_tsc,
                // Without KVM's own, the wall clock was read within the same time.
                bound_ns: if is_set(KVM_CLOCK_REALTIME) {
                    0
                } else {
                    self.read_within_ns
                },
                master_clock: is_set(KVM_CLOCK_TSC_STABLE),
            },
            vcpus: vcpus.collect(),
        };
        Saved::of_guest(State::X86(state)).map_err(ImportError::Unloadable)
    }
}
