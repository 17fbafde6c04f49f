//! Abilities of this host's KVM, tried once with a throwaway VM. Its capabilities alone do not do: a KVM
//! may accept offsets and ignore them.

use std::fs;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use kvm_bindings::{KVM_CAP_ADJUST_CLOCK, KVM_CAP_TSC_CONTROL};
use kvm_ioctls::{VcpuFd, VmFd};
use stealtime_hypervisor::counter::kvm_clock::KvmClockData;
use stealtime_hypervisor::counter::scaling::{RatioFormat, TSC_TOLERANCE_PPM};

use super::{check_extension, open};
use crate::device::{HostFacts, MSR_IA32_TSC, TscMeans, Vcpu, Vm};
use crate::error::{Errno, HostError};
use crate::save::of;

/// Which KVM this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Backend {
    /// `kvm_intel`: VMX.
    Intel,
    /// `kvm_amd`: SVM.
    Amd,
    /// `kvm_pvm`: no hardware virtualization.
    Pvm,
    /// Built in, or unknown.
    Unknown,
}

/// The loaded vendor module.
#[must_use]
pub fn backend() -> Backend {
    let known = [
        ("kvm_intel", Backend::Intel),
        ("kvm_amd", Backend::Amd),
        ("kvm_pvm", Backend::Pvm),
    ];
    let loaded = |name: &str| fs::exists(format!("/sys/module/{name}")).unwrap_or(false);
    let found = known.into_iter().find(|(name, _)| loaded(name));
    found.map_or(Backend::Unknown, |(_, backend)| backend)
}

/// The host's current clocksource, if sysfs tells.
#[must_use]
pub fn clocksource() -> Option<String> {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn tolerance_ppm() -> u32 {
    let read = fs::read_to_string("/sys/module/kvm/parameters/tsc_tolerance_ppm");
    let read = read.ok().and_then(|text| text.trim().parse().ok());
    read.unwrap_or(TSC_TOLERANCE_PPM)
}

/// This host's KVM.
#[derive(Debug)]
pub struct Host {
    facts: HostFacts,
    /// Kept for its master clock: it reads wall clock and TSC as one.
    witness: VmFd,
    vcpu: VcpuFd,
}

impl Host {
    /// What it offers.
    #[must_use]
    pub const fn facts(&self) -> HostFacts {
        self.facts
    }

    /// Whether this is the descriptor of the vCPU that is kept here.
    pub(super) fn is_own_vcpu(&self, fd: RawFd) -> bool {
        fd == self.vcpu.as_raw_fd()
    }

    /// Wall clock and TSC of one instant, if KVM can read them so.
    #[must_use]
    pub fn instant(&self) -> Option<(u64, u64)> {
        super::instant(super::borrow(&self.witness))
    }
}

/// This host's KVM, found out at the first call that succeeds and kept.
///
/// Opens `/dev/kvm`: a VMM that gives up its rights calls this before.
///
/// # Errors
/// [`HostError`]. The next call tries again: a device or descriptor that was missing may be had then.
pub fn host() -> Result<&'static Host, HostError> {
    static HOST: Kept<Host> = Kept::new();
    HOST.get_or_try(probe)
}

/// A value that is made once, after any number of failures.
struct Kept<T> {
    value: OnceLock<T>,
    making: Mutex<()>,
}

impl<T> Kept<T> {
    const fn new() -> Self {
        Self {
            value: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    fn get_or_try<E>(&self, create: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        // One at a time; it guards nothing that a panic could leave half done.
        let making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        let created = create()?;
        let value = self.value.get_or_init(|| created);
        drop(making);
        Ok(value)
    }
}

fn errno(error: kvm_ioctls::Error) -> Errno {
    Errno(error.errno())
}

fn probe() -> Result<Host, HostError> {
    let kvm = open()?;
    let vm = kvm.create_vm();
    let vm = vm.map_err(|e| of("KVM_CREATE_VM", None)(errno(e)))?;
    let vcpu = vm.create_vcpu(0);
    let vcpu = vcpu.map_err(|e| of("KVM_CREATE_VCPU", Some(0))(errno(e)))?;
    let khz = vcpu.tsc_khz().map_err(of("KVM_GET_TSC_KHZ", Some(0)))?;
    if khz == 0 {
        return Err(HostError::NoFrequency { khz });
    }
    let means = means(&vcpu, khz)?;
    let fixed_offset = match means {
        TscMeans::Fixed => fixed_offset(&vcpu)?,
        TscMeans::Offsets | TscMeans::Values => None,
    };
    // Refreshes the master clock, which a VM that never ran has not got yet.
    let data = KvmClockData::default();
    Vm::set_clock(&vm, &data).map_err(of("KVM_SET_CLOCK", None))?;
    let format = match backend() {
        Backend::Amd => RatioFormat::SVM,
        _ => RatioFormat::VMX,
    };
    Ok(Host {
        facts: HostFacts {
            tsc_khz: khz,
            format,
            has_scaling: check_extension(&vm, KVM_CAP_TSC_CONTROL) > 0,
            tolerance_ppm: tolerance_ppm(),
            means,
            fixed_offset,
            clock_flags: check_extension(&vm, KVM_CAP_ADJUST_CLOCK).cast_unsigned(),
        },
        witness: vm,
        vcpu,
    })
}

/// The means that move a TSC, by trying them.
fn means(vcpu: &VcpuFd, khz: u32) -> Result<TscMeans, HostError> {
    // Ten seconds: nothing that a delay could be taken for, and beyond the one-second rule.
    let far = u64::from(khz) * 10_000;
    if let Ok(offset) = vcpu.tsc_offset() {
        let wanted = offset.wrapping_sub(far);
        let set = vcpu.set_tsc_offset(wanted);
        if set.is_ok() && vcpu.tsc_offset() == Ok(wanted) {
            return Ok(TscMeans::Offsets);
        }
    }
    let read = || vcpu.msr(MSR_IA32_TSC).map_err(of("KVM_GET_MSRS", Some(0)));
    let now = read()?.unwrap_or(0);
    let wanted = now.wrapping_add(far);
    let set = vcpu.set_msr(MSR_IA32_TSC, wanted);
    set.map_err(of("KVM_SET_MSRS", Some(0)))?;
    let error = read()?.unwrap_or(0).wrapping_sub(wanted);
    Ok(if error < far / 2 {
        TscMeans::Values
    } else {
        TscMeans::Fixed
    })
}

/// The offset of all vCPUs on a host where writes do not change it. A second VM, made later, must have it
/// too: then it does not depend on the time at which a VM is made.
fn fixed_offset(vcpu: &VcpuFd) -> Result<Option<u64>, HostError> {
    let Ok(fixed) = vcpu.tsc_offset() else {
        return Ok(None);
    };
    let vm = open()?.create_vm();
    let vm = vm.map_err(|e| of("KVM_CREATE_VM", None)(errno(e)))?;
    for id in 0..2 {
        let vcpu = vm.create_vcpu(id);
        let vcpu = vcpu.map_err(|e| of("KVM_CREATE_VCPU", Some(id as usize))(errno(e)))?;
        let written = vcpu.set_tsc_offset(fixed.wrapping_sub(1 << 40));
        if written.is_err() || vcpu.tsc_offset() != Ok(fixed) {
            return Ok(None);
        }
    }
    Ok(Some(fixed))
}

#[cfg(test)]
mod tests {
    use super::Kept;

    #[test]
    fn a_failure_is_not_kept_and_a_success_is() {
        let kept = Kept::new();
        assert_eq!(
            kept.get_or_try(|| Err::<u8, _>("no descriptors left")),
            Err("no descriptors left")
        );
        assert_eq!(
            kept.get_or_try(|| Err::<u8, _>("no permission")),
            Err("no permission")
        );
        assert_eq!(kept.get_or_try(|| Ok::<_, &str>(7)), Ok(&7));
        assert_eq!(kept.get_or_try(|| Err::<u8, _>("not asked")), Ok(&7));
    }
}
