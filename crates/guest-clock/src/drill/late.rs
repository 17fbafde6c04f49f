//! vCPUs with counters that are written late: the VMM's thread loses time before each.

use std::os::fd::RawFd;

use crate::device::{MsrValue, Vcpu, VcpuIdentity};
use crate::error::Errno;

use super::stage::Stage;

/// A vCPU of a stage, and what is lost before its offset is written.
pub(super) struct LateVcpu<'a, S: Stage> {
    vcpu: &'a S::C,
    stage: &'a S,
    late_ns: u64,
}

impl<'a, S: Stage> LateVcpu<'a, S> {
    /// All of a stage's; the first one is not late.
    pub(super) fn all(stage: &'a S, late_ns: u64) -> Vec<Self> {
        let late = |(index, vcpu)| Self {
            vcpu,
            stage,
            late_ns: if index == 0 { 0 } else { late_ns },
        };
        stage.vcpus().iter().enumerate().map(late).collect()
    }
}

impl<S: Stage> Vcpu for LateVcpu<'_, S> {
    fn tsc_offset(&self) -> Result<u64, Errno> {
        self.vcpu.tsc_offset()
    }
    fn set_tsc_offset(&self, offset: u64) -> Result<(), Errno> {
        if self.late_ns > 0 {
            self.stage.lose_time(self.late_ns);
        }
        self.vcpu.set_tsc_offset(offset)
    }
    fn tsc_khz(&self) -> Result<u32, Errno> {
        self.vcpu.tsc_khz()
    }
    fn set_tsc_khz(&self, khz: u32) -> Result<(), Errno> {
        self.vcpu.set_tsc_khz(khz)
    }
    fn msr(&self, index: u32) -> Result<Option<u64>, Errno> {
        self.vcpu.msr(index)
    }
    fn two_msrs(&self, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
        self.vcpu.two_msrs(indices)
    }
    fn set_msr(&self, index: u32, value: u64) -> Result<bool, Errno> {
        self.vcpu.set_msr(index, value)
    }
    fn set_two_msrs(&self, registers: [MsrValue; 2]) -> Result<usize, Errno> {
        self.vcpu.set_two_msrs(registers)
    }
    fn kvmclock_ctrl(&self) -> Result<(), Errno> {
        self.vcpu.kvmclock_ctrl()
    }
    fn descriptor(&self) -> Option<RawFd> {
        self.vcpu.descriptor()
    }
    fn identity(&self) -> Option<VcpuIdentity> {
        self.vcpu.identity()
    }
}
