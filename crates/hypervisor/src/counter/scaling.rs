//! TSC scaling: `guest = ((host * ratio) >> frac) + offset`, exact and wrapping like hardware.
//!
//! Intel SDM vol. 3, "Time-Stamp Counter Offset and Multiplier"; AMD APM vol. 2, "TSC Ratio".
//! A ratio of 0 is legal for the hardware (the guest's counter stands still); making one from
//! frequencies is refused here.

use super::arith::{TimeScale, TimeScaleError, adjust_khz, mul_shr, mul_shr_signed};
use crate::wide;

/// The neutral tolerance of the module parameter `kvm.tsc_tolerance_ppm`.
pub const TSC_TOLERANCE_PPM: u32 = 250;

/// How a host's hardware represents a TSC ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RatioFormat {
    frac_bits: u32,
    max_ratio: u64,
}

impl RatioFormat {
    /// VMX: 16.48 fixed point.
    pub const VMX: Self = Self {
        frac_bits: 48,
        max_ratio: u64::MAX,
    };
    /// SVM: 8.32 fixed point.
    pub const SVM: Self = Self {
        frac_bits: 32,
        max_ratio: (1 << 40) - 1,
    };

    /// Bits after the point.
    #[must_use]
    pub const fn frac_bits(self) -> u32 {
        self.frac_bits
    }

    /// The largest ratio that the hardware holds; ratios from this on are refused, as upstream
    /// refuses them.
    #[must_use]
    pub const fn max_ratio(self) -> u64 {
        self.max_ratio
    }

    /// The ratio 1.
    #[must_use]
    pub const fn neutral(self) -> u64 {
        1 << self.frac_bits
    }

    /// Ticks of the guest's scaled counter at `host_tsc` (`kvm_scale_tsc`).
    #[must_use]
    pub const fn scale(self, host_tsc: u64, ratio: u64) -> u64 {
        if ratio == self.neutral() {
            host_tsc
        } else {
            mul_shr(host_tsc, ratio, self.frac_bits)
        }
    }

    /// The offset with which the guest reads `target` at `host_tsc`.
    #[must_use]
    pub const fn l1_offset(self, ratio: u64, host_tsc: u64, target: u64) -> u64 {
        target.wrapping_sub(self.scale(host_tsc, ratio))
    }

    /// What the guest reads at `host_tsc` (`kvm_read_l1_tsc`).
    #[must_use]
    pub const fn read_l1(self, ratio: u64, l1_offset: u64, host_tsc: u64) -> u64 {
        l1_offset.wrapping_add(self.scale(host_tsc, ratio))
    }

    /// The offset in use while a nested guest runs: L1's offset seen through L2's ratio, plus
    /// L2's own (`kvm_calc_nested_tsc_offset`).
    #[must_use]
    pub const fn nested_offset(self, l1_offset: u64, l2_offset: u64, l2_ratio: u64) -> u64 {
        let scaled_l1 = if l2_ratio == self.neutral() {
            l1_offset
        } else {
            mul_shr_signed(l1_offset as i64, l2_ratio, self.frac_bits)
        };
        scaled_l1.wrapping_add(l2_offset)
    }

    /// The ratio in use while a nested guest runs (`kvm_calc_nested_tsc_multiplier`).
    #[must_use]
    pub const fn nested_ratio(self, l1_ratio: u64, l2_ratio: u64) -> u64 {
        if l2_ratio == self.neutral() {
            l1_ratio
        } else {
            mul_shr(l1_ratio, l2_ratio, self.frac_bits)
        }
    }

    /// The ratio that makes a host of `host_khz` tick like `guest_khz`, rounded down.
    ///
    /// # Errors
    /// [`RatioError`] for a frequency of 0 and for a ratio of 0 or one that does not fit.
    pub const fn ratio(self, guest_khz: u32, host_khz: u32) -> Result<u64, RatioError> {
        let operands = RatioOperands {
            guest_khz,
            host_khz,
            frac_bits: self.frac_bits,
            max_ratio: self.max_ratio,
        };
        if host_khz == 0 {
            return Err(RatioError::HostFrequencyZero(operands));
        }
        let ratio = wide::div((guest_khz as u128) << self.frac_bits, host_khz as u64);
        if ratio == 0 {
            Err(RatioError::Zero(operands))
        } else if ratio >= self.max_ratio as u128 {
            Err(RatioError::TooLarge(operands))
        } else {
            Ok(ratio as u64)
        }
    }
}

/// What a ratio was asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RatioOperands {
    /// The guest's frequency in kHz.
    pub guest_khz: u32,
    /// The host's frequency in kHz.
    pub host_khz: u32,
    /// Bits after the point of the format.
    pub frac_bits: u32,
    /// The format's largest ratio.
    pub max_ratio: u64,
}

/// Why two frequencies give no ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RatioError {
    /// The host's frequency is 0: calibrate the TSC first.
    HostFrequencyZero(RatioOperands),
    /// The guest's frequency is too far below the host's: the ratio rounds to 0.
    Zero(RatioOperands),
    /// The guest's frequency is too far above the host's: the ratio reaches the largest one.
    TooLarge(RatioOperands),
}

impl core::fmt::Display for RatioError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (reason, o) = match self {
            Self::HostFrequencyZero(o) => ("the host's frequency is unknown", o),
            Self::Zero(o) => ("the ratio rounds to 0", o),
            Self::TooLarge(o) => ("the ratio reaches the format's largest", o),
        };
        write!(
            f,
            "no TSC ratio for a guest of {} kHz on a host of {} kHz: {reason} ({} fraction bits, \
             largest {:#x}); choose a guest frequency that the host can scale to",
            o.guest_khz, o.host_khz, o.frac_bits, o.max_ratio
        )
    }
}

impl core::error::Error for RatioError {}

/// A host's TSC, as far as guests' counters depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostTsc {
    /// Its frequency in kHz.
    pub khz: u32,
    /// How ratios are represented.
    pub format: RatioFormat,
    /// Whether the hardware scales (`kvm_caps.has_tsc_control`).
    pub has_scaling: bool,
    /// Guest frequencies this far from the host's count as equal (`kvm.tsc_tolerance_ppm`).
    pub tolerance_ppm: u32,
    /// What the host's clock is read from.
    pub clock_mode: ClockMode,
    /// The host has found its TSC unstable.
    pub unstable: bool,
}

/// What the host's clock is read from (`vclock_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClockMode {
    /// A clock that is not a TSC.
    None,
    /// The TSC itself.
    Tsc,
    /// A pvclock: the host is a guest.
    Pvclock,
    /// Hyper-V's TSC page.
    HvClock,
}

impl HostTsc {
    /// A host with scaling hardware, a stable TSC and a clock read from it.
    #[must_use]
    pub const fn new(khz: u32, format: RatioFormat) -> Self {
        Self {
            khz,
            format,
            has_scaling: true,
            tolerance_ppm: TSC_TOLERANCE_PPM,
            clock_mode: ClockMode::Tsc,
            unstable: false,
        }
    }

    /// Whether the host's clock and its TSC advance together (`gtod_is_based_on_tsc`).
    #[must_use]
    pub const fn clock_is_tsc_based(&self) -> bool {
        matches!(self.clock_mode, ClockMode::Tsc | ClockMode::HvClock)
    }

    /// Whether guests must be protected from the TSC (`kvm_check_tsc_unstable`): never on
    /// Hyper-V, where a page corrects it.
    #[must_use]
    pub const fn tsc_unstable(&self) -> bool {
        self.unstable && !matches!(self.clock_mode, ClockMode::HvClock)
    }

    /// The first frequency that guests are refused, in kHz (`kvm_caps.max_guest_tsc_khz`).
    #[must_use]
    pub const fn max_guest_khz(&self) -> u32 {
        let limit = mul_shr(
            self.khz as u64,
            self.format.max_ratio,
            self.format.frac_bits,
        );
        if limit < i32::MAX as u64 {
            limit as u32
        } else {
            i32::MAX as u32
        }
    }
}

/// A vCPU's TSC rate: what `KVM_SET_TSC_KHZ` decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TscRate {
    /// The guest's frequency in kHz; 0 before it was set.
    pub virtual_khz: u32,
    /// Turns ns into cycles of that frequency.
    pub ns_to_cycles: TimeScale,
    /// The L1 ratio in the host's format.
    pub ratio: u64,
    /// The guest is faster than a host that cannot scale: its counter must be pushed forward.
    pub catchup: bool,
    /// … at every entry.
    pub always_catchup: bool,
}

/// Why a vCPU's frequency was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetTscKhzError {
    /// 0 kHz was asked for. The rate is neutral now, its frequency is what it was.
    Zero {
        /// The host's frequency in kHz.
        host_khz: u32,
    },
    /// Slower than a host without scaling hardware: nothing can hold the counter back.
    SlowerWithoutScaling {
        /// The frequency asked for, in kHz.
        user_khz: u32,
        /// The host's frequency in kHz.
        host_khz: u32,
        /// The tolerance that was not enough, in parts per million.
        tolerance_ppm: u32,
    },
    /// The hardware has no such ratio.
    Ratio(RatioError),
    /// The conversion from ns has no factors.
    Scale(TimeScaleError),
    /// The frequency is at or above what the host can offer a guest.
    AboveMaximum {
        /// The frequency asked for, in kHz.
        user_khz: u32,
        /// The first refused frequency, in kHz.
        max_guest_khz: u32,
    },
    /// The vCPU's TSC is under the control of the hardware that protects the guest.
    Protected {
        /// The frequency asked for, in kHz.
        user_khz: u32,
    },
}

impl core::fmt::Display for SetTscKhzError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Zero { host_khz } => write!(
                f,
                "guest TSC frequency of 0 kHz on a host of {host_khz} kHz: give a frequency"
            ),
            Self::SlowerWithoutScaling {
                user_khz,
                host_khz,
                tolerance_ppm,
            } => write!(
                f,
                "guest TSC of {user_khz} kHz is slower than the host's {host_khz} kHz by more \
                 than {tolerance_ppm} ppm and the hardware cannot scale: use a host with TSC \
                 scaling or the host's frequency"
            ),
            Self::Ratio(error) => error.fmt(f),
            Self::Scale(error) => error.fmt(f),
            Self::AboveMaximum {
                user_khz,
                max_guest_khz,
            } => write!(
                f,
                "guest TSC of {user_khz} kHz: this host offers less than {max_guest_khz} kHz"
            ),
            Self::Protected { user_khz } => write!(
                f,
                "guest TSC of {user_khz} kHz: the vCPU's TSC is protected from the host"
            ),
        }
    }
}

impl core::error::Error for SetTscKhzError {}

impl TscRate {
    /// Sets the guest's frequency to `user_khz` (`kvm_set_tsc_khz`).
    ///
    /// As upstream, the frequency and its scale are kept even where the ratio is refused. A guest
    /// faster than a host without scaling is accepted in catch-up mode, with its old ratio.
    ///
    /// # Errors
    /// [`SetTscKhzError`], except its `AboveMaximum` and `Protected`, which belong to the ioctl.
    pub fn set_khz(&mut self, host: &HostTsc, user_khz: u32) -> Result<(), SetTscKhzError> {
        if user_khz == 0 {
            self.ratio = host.format.neutral();
            return Err(SetTscKhzError::Zero { host_khz: host.khz });
        }
        self.ns_to_cycles = TimeScale::ns_to_cycles(user_khz).map_err(SetTscKhzError::Scale)?;
        self.virtual_khz = user_khz;
        // The parameter is unsigned and passed on as signed, as upstream does.
        let ppm = host.tolerance_ppm as i32;
        let lowest = adjust_khz(host.khz, ppm.wrapping_neg());
        let highest = adjust_khz(host.khz, ppm);
        if (lowest..=highest).contains(&user_khz) {
            self.ratio = host.format.neutral();
            return Ok(());
        }
        if !host.has_scaling {
            return self.without_scaling(host, user_khz);
        }
        self.ratio = host
            .format
            .ratio(user_khz, host.khz)
            .map_err(SetTscKhzError::Ratio)?;
        Ok(())
    }

    fn without_scaling(&mut self, host: &HostTsc, user_khz: u32) -> Result<(), SetTscKhzError> {
        if user_khz > host.khz {
            self.catchup = true;
            self.always_catchup = true;
            Ok(())
        } else {
            Err(SetTscKhzError::SlowerWithoutScaling {
                user_khz,
                host_khz: host.khz,
                tolerance_ppm: host.tolerance_ppm,
            })
        }
    }
}
