//! An arm64 VM without a device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stealtime_hypervisor::counter::arm64::{Counter, CounterOffset, MergedVm, guest_count};

use super::FakeHost;
use crate::arm64::Arm64Vm;
use crate::device::{Bracket, TscMeans};
use crate::error::Errno;

/// An arm64 VM on a [`FakeHost`]. The host's TSC stands for the host's counter.
#[derive(Clone, Debug)]
pub struct FakeArm64Vm {
    host: FakeHost,
    vcpus: u32,
    busy: Option<u32>,
    means: TscMeans,
    state: Arc<Mutex<MergedVm>>,
}

impl FakeArm64Vm {
    /// A VM with this many vCPUs, created one after the other.
    #[must_use]
    pub fn new(host: &FakeHost, vcpus: u32) -> Self {
        let mut vm = MergedVm::default();
        for _ in 0..vcpus {
            vm.vcpu_created(host.now().tsc);
        }
        Self {
            host: host.clone(),
            vcpus,
            busy: None,
            means: TscMeans::Offsets,
            state: Arc::new(Mutex::new(vm)),
        }
    }

    /// This vCPU has an ioctl in flight.
    pub const fn set_busy(&mut self, vcpu: Option<u32>) {
        self.busy = vcpu;
    }

    /// A KVM with the offset, without it, or one that accepts and ignores it.
    pub const fn set_means(&mut self, means: TscMeans) {
        self.means = means;
    }

    fn state(&self) -> MutexGuard<'_, MergedVm> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the guest's virtual counter reads.
    #[must_use]
    pub fn virtual_count(&self) -> u64 {
        guest_count(self.host.now().tsc, self.state().offset(Counter::Virtual))
    }

    /// `KVM_SET_ONE_REG` of the virtual counter.
    pub fn write_virtual_counter(&self, value: u64) {
        let now = self.host.now().tsc;
        self.state().set_counter(Counter::Virtual, value, now);
    }
}

impl Arm64Vm for FakeArm64Vm {
    fn counter_hz(&self) -> u32 {
        self.host.state().tsc.khz.saturating_mul(1000)
    }

    fn bracket(&self) -> Bracket {
        self.host.bracket()
    }

    fn guest_counter(&self) -> Result<u64, Errno> {
        let now = self.host.state().call("KVM_GET_ONE_REG")?;
        Ok(guest_count(now.tsc, self.state().offset(Counter::Virtual)))
    }

    fn has_counter_offset(&self) -> bool {
        self.means != TscMeans::Values
    }

    fn set_counter_offset(&self, offset: u64) -> Result<(), Errno> {
        self.host.state().call("KVM_ARM_SET_COUNTER_OFFSET")?;
        match self.means {
            TscMeans::Offsets => {}
            TscMeans::Values => return Err(Errno(libc::ENOTTY)),
            TscMeans::Fixed => return Ok(()),
        }
        let attribute = CounterOffset {
            counter_offset: offset,
            reserved: 0,
        };
        let set = self.state().set_counter_offset(attribute, self.busy);
        set.map_err(|error| match error {
            stealtime_hypervisor::counter::arm64::CounterOffsetError::Busy { .. } => {
                Errno(libc::EBUSY)
            }
            _ => Errno(libc::EINVAL),
        })
    }

    fn vcpus(&self) -> u32 {
        self.vcpus
    }
}
