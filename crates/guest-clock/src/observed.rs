//! A VM and its vCPUs with an observer of each call: a record of writes, or a stopwatch.

use std::os::fd::RawFd;

use stealtime_hypervisor::counter::kvm_clock::KvmClockData;

use crate::device::{Bracket, HostFacts, MsrValue, Vcpu, VcpuIdentity, Vm};
use crate::error::{Errno, HostError};

/// What a call does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action<'a> {
    Read,
    /// `KVM_SET_CLOCK`.
    Clock(&'a KvmClockData),
    /// `KVM_SET_DEVICE_ATTR(KVM_VCPU_TSC_OFFSET)`.
    Offset(u64),
    /// `KVM_SET_TSC_KHZ`.
    Khz(u32),
    /// `KVM_SET_MSRS`.
    Msrs(&'a [MsrValue]),
    /// `KVM_KVMCLOCK_CTRL`.
    Paused,
}

/// Sees each call that becomes an ioctl.
pub(crate) trait Observer {
    /// Makes the call. `position` is the vCPU's, and 0 for the VM.
    fn call<R>(&self, position: usize, action: Action<'_>, perform: impl FnOnce() -> R) -> R;
}

/// A VM or a vCPU.
#[derive(Debug)]
pub(crate) struct Observed<'a, T, O> {
    inner: &'a T,
    observer: &'a O,
    position: usize,
}

impl<'a, T, O: Observer> Observed<'a, T, O> {
    pub(crate) const fn new(inner: &'a T, observer: &'a O) -> Self {
        let position = 0;
        Self {
            inner,
            observer,
            position,
        }
    }

    pub(crate) fn each(inner: &'a [T], observer: &'a O) -> Vec<Self> {
        let observed = |(position, inner)| Self {
            inner,
            observer,
            position,
        };
        inner.iter().enumerate().map(observed).collect()
    }

    fn call<R>(&self, action: Action<'_>, perform: impl FnOnce(&T) -> R) -> R {
        self.observer
            .call(self.position, action, || perform(self.inner))
    }
}

impl<T: Vm, O: Observer> Vm for Observed<'_, T, O> {
    fn host(&self) -> Result<HostFacts, HostError> {
        self.inner.host()
    }
    fn get_clock(&self) -> Result<KvmClockData, Errno> {
        self.call(Action::Read, T::get_clock)
    }
    fn set_clock(&self, data: &KvmClockData) -> Result<(), Errno> {
        self.call(Action::Clock(data), |vm| vm.set_clock(data))
    }
    fn host_instant(&self) -> Option<(u64, u64)> {
        self.call(Action::Read, T::host_instant)
    }
    fn bracket(&self) -> Bracket {
        self.inner.bracket()
    }
    fn identity(&self) -> Option<u64> {
        self.inner.identity()
    }
    fn another_vcpu(&self, identity: u64, ids: &[u32]) -> Option<u32> {
        self.inner.another_vcpu(identity, ids)
    }
}

impl<T: Vcpu, O: Observer> Vcpu for Observed<'_, T, O> {
    fn tsc_offset(&self) -> Result<u64, Errno> {
        self.call(Action::Read, T::tsc_offset)
    }
    fn set_tsc_offset(&self, offset: u64) -> Result<(), Errno> {
        self.call(Action::Offset(offset), |vcpu| vcpu.set_tsc_offset(offset))
    }
    fn tsc_khz(&self) -> Result<u32, Errno> {
        self.call(Action::Read, T::tsc_khz)
    }
    fn set_tsc_khz(&self, khz: u32) -> Result<(), Errno> {
        self.call(Action::Khz(khz), |vcpu| vcpu.set_tsc_khz(khz))
    }
    fn msr(&self, index: u32) -> Result<Option<u64>, Errno> {
        self.call(Action::Read, |vcpu| vcpu.msr(index))
    }
    fn two_msrs(&self, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
        self.call(Action::Read, |vcpu| vcpu.two_msrs(indices))
    }
    fn set_msr(&self, index: u32, value: u64) -> Result<bool, Errno> {
        let registers = [MsrValue { index, value }];
        self.call(Action::Msrs(&registers), |vcpu| vcpu.set_msr(index, value))
    }
    fn set_two_msrs(&self, registers: [MsrValue; 2]) -> Result<usize, Errno> {
        self.call(Action::Msrs(&registers), |vcpu| {
            vcpu.set_two_msrs(registers)
        })
    }
    fn kvmclock_ctrl(&self) -> Result<(), Errno> {
        self.call(Action::Paused, T::kvmclock_ctrl)
    }
    fn descriptor(&self) -> Option<RawFd> {
        self.inner.descriptor()
    }
    fn identity(&self) -> Option<VcpuIdentity> {
        self.inner.identity()
    }
}
