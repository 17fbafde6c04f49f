//! Equal TSCs for a guest that was restored by value.
//!
//! A VMM that writes `IA32_TSC` vCPU by vCPU leaves each one with the delay of its write. Then time goes
//! back when a task moves, and the master clock stays off. The smallest remedy is one call between
//! `KVM_SET_MSRS` of all vCPUs and `KVM_SET_CLOCK`. The latter takes the master clock's snapshot, and must
//! find the TSCs matched.

use crate::device::{MSR_IA32_TSC_ADJUST, Stopping, TscMeans, Vcpu, Vm};
use crate::error::{EqualizeError, SaveError};
use crate::save::{GuestClocks, check_count, of, one_frequency, signed_ns};
use crate::vcpus;
use crate::written::Written;

/// How TSCs may be made equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Equalize {
    /// TSCs that are further apart, in ns, are refused: delays of writes do not explain that.
    pub at_most_ns: u64,
    /// Whether the vCPUs may still be on their way out of `KVM_RUN`.
    pub stopping: Stopping,
}

impl Equalize {
    /// TSCs that are this far apart, in ns, are made equal.
    #[must_use]
    pub fn within(at_most_ns: u64) -> Self {
        Self {
            at_most_ns,
            stopping: Stopping::default(),
        }
    }

    /// The same, with this said of the vCPUs.
    #[must_use]
    pub const fn stopping(self, stopping: Stopping) -> Self {
        Self { stopping, ..self }
    }
}

/// TSCs that are equal now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Equalized {
    /// The offset of all vCPUs, in cycles; wraps.
    pub tsc_offset: u64,
    /// By how much each vCPU was set forward, in cycles. None is set back.
    pub moved_cycles: Vec<u64>,
    /// The largest of these in ns: the error that remains against the guest's time when it was saved.
    pub bound_ns: u64,
}

impl GuestClocks {
    /// Gives all vCPUs of a stopped x86 guest the most advanced TSC among them. Time goes back on none.
    ///
    /// Nothing is written where it is refused. May be repeated. The guest's own `TSC_ADJUST` is kept: where
    /// its difference explains that of the TSCs, the guest has set them apart, and that is refused.
    ///
    /// ```
    /// use guest_clock::device::{MSR_IA32_TSC, Vcpu};
    /// use guest_clock::{Equalize, GuestClocks, fake::FakeHost};
    ///
    /// let host = FakeHost::new(2_500_000);
    /// let (vm, vcpus) = host.vm(2);
    /// // By value, with a second and more between the two writes.
    /// for vcpu in &vcpus {
    ///     vcpu.set_msr(MSR_IA32_TSC, 9_000_000_000_000)?;
    ///     host.pass(1_200_000_000);
    /// }
    /// let equal = GuestClocks::equalize(&vm, &vcpus, Equalize::within(2_000_000_000))?;
    /// assert_eq!(vcpus[0].tsc_offset()?, vcpus[1].tsc_offset()?);
    /// assert!(equal.bound_ns > 1_200_000_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`EqualizeError`].
    pub fn equalize<V: Vm, C: Vcpu>(
        vm: &V,
        vcpus: &[C],
        options: Equalize,
    ) -> Result<Equalized, EqualizeError> {
        let host = vm.host()?;
        check_count(vcpus.len())?;
        let tsc_khz = C::frequencies(vcpus, options.stopping).map_err(SaveError::from)?;
        let tsc_khz = one_frequency(&tsc_khz)?;
        vcpus::check(vm, vcpus).map_err(SaveError::from)?;
        let offsets = (0..).zip(vcpus).map(|(index, vcpu)| {
            let failed = of("KVM_GET_DEVICE_ATTR", Some(index));
            vcpu.tsc_offset().map_err(|errno| match host.means {
                // Before Linux 5.16 there is no offset to ask for.
                TscMeans::Offsets => EqualizeError::Ioctl(failed(errno)),
                _ => EqualizeError::NoOffsets,
            })
        });
        let offsets: Vec<u64> = offsets.collect::<Result<_, _>>()?;
        let first = offsets.first().copied().unwrap_or(0);
        let ahead = |offset: u64| offset.wrapping_sub(first) as i64;
        let highest = offsets.iter().map(|offset| ahead(*offset)).max();
        let common = first.wrapping_add(highest.unwrap_or(0) as u64);
        let moved_cycles: Vec<u64> = offsets
            .iter()
            .map(|offset| common.wrapping_sub(*offset))
            .collect();
        let worst = moved_cycles.iter().copied().max().unwrap_or(0);
        let bound_ns = signed_ns(i64::try_from(worst).unwrap_or(i64::MAX), tsc_khz).unsigned_abs();
        let equalized = Equalized {
            tsc_offset: common,
            moved_cycles,
            bound_ns,
        };
        if host.means != TscMeans::Offsets {
            return match worst {
                0 => Ok(equalized),
                _ => Err(EqualizeError::NoOffsets),
            };
        }
        let farthest = equalized
            .moved_cycles
            .iter()
            .position(|cycles| *cycles == worst);
        let vcpu = farthest.unwrap_or(0);
        check_adjust(vcpus, &offsets)?;
        if bound_ns > options.at_most_ns {
            return Err(EqualizeError::TooFar {
                vcpu,
                cycles: worst,
                ns: bound_ns,
                at_most_ns: options.at_most_ns,
            });
        }
        write(vcpus, common)?;
        Ok(equalized)
    }
}

/// Refuses TSCs that the guest itself has set apart. Its write to `TSC_ADJUST` moves the TSC by the same
/// (Intel SDM vol. 3, "TSC_ADJUST").
fn check_adjust<C: Vcpu>(vcpus: &[C], offsets: &[u64]) -> Result<(), EqualizeError> {
    let mut first = None;
    for (index, (vcpu, offset)) in vcpus.iter().zip(offsets).enumerate() {
        let adjust = vcpu.msr(MSR_IA32_TSC_ADJUST);
        let Some(adjust) = adjust.map_err(of("KVM_GET_MSRS(IA32_TSC_ADJUST)", Some(index)))? else {
            continue;
        };
        let (first_offset, first_adjust) = *first.get_or_insert((*offset, adjust));
        let apart = offset.wrapping_sub(first_offset);
        if apart != 0 && adjust.wrapping_sub(first_adjust) == apart {
            return Err(EqualizeError::SetApartByGuest {
                vcpu: index,
                cycles: apart as i64,
                adjust,
                first_adjust,
            });
        }
    }
    Ok(())
}

/// Writes all, also those that have it: the master clock counts vCPUs that were matched with the one written
/// last (`__kvm_synchronize_tsc`).
fn write<C: Vcpu>(vcpus: &[C], common: u64) -> Result<(), EqualizeError> {
    let mut written = Vec::new();
    let partial = |written: &[Written], call, vcpu, errno| EqualizeError::Partial {
        failed: of(call, Some(vcpu))(errno),
        written: written.to_vec(),
    };
    for (index, vcpu) in vcpus.iter().enumerate() {
        vcpu.set_tsc_offset(common)
            .map_err(|errno| partial(&written, "KVM_SET_DEVICE_ATTR", index, errno))?;
        written.push(Written::Counter(index));
    }
    // A KVM that ignores offsets says so only here.
    for (index, vcpu) in vcpus.iter().enumerate() {
        let read = vcpu
            .tsc_offset()
            .map_err(|errno| partial(&written, "KVM_GET_DEVICE_ATTR", index, errno))?;
        if read != common {
            return Err(EqualizeError::NotTaken {
                vcpu: index,
                wanted: common,
                read,
                written,
            });
        }
    }
    Ok(())
}
