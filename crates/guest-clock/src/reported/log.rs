//! The record of an order: each write to a VM or a vCPU, as it was made.

use std::cell::RefCell;

use stealtime_hypervisor::counter::kvm_clock::{KVM_CLOCK_REALTIME, KvmClockData};

use crate::device::{
    Bracket, HostFacts, MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE, MsrValue, Vcpu,
    VcpuIdentity, Vm,
};
use crate::error::{Errno, HostError};

/// Steps so far.
#[derive(Debug, Default)]
pub(super) struct Log(RefCell<Vec<Step>>);

/// A call, with its operands apart: repeated attempts of one call are one step.
#[derive(Debug)]
struct Step {
    call: String,
    operands: String,
    times: u32,
}

impl Log {
    pub(super) fn note(&self, text: impl Into<String>) {
        self.call(text.into(), String::new());
    }

    fn call(&self, call: String, operands: String) {
        let mut steps = self.0.borrow_mut();
        match steps.last_mut() {
            Some(last) if last.call == call && !operands.is_empty() => {
                last.operands = operands;
                last.times += 1;
            }
            _ => steps.push(Step {
                call,
                operands,
                times: 1,
            }),
        }
    }

    pub(super) fn steps(&self) -> Vec<String> {
        let text = |step: &Step| match step.times {
            1 => format!("{}{}", step.call, step.operands),
            times => format!("{}{}, attempt {times}", step.call, step.operands),
        };
        self.0.borrow().iter().map(text).collect()
    }
}

/// A VM or a vCPU, with its writes recorded.
#[derive(Debug)]
pub(super) struct Logged<'a, T> {
    inner: &'a T,
    log: &'a Log,
    index: usize,
}

impl<'a, T> Logged<'a, T> {
    pub(super) const fn new(inner: &'a T, log: &'a Log) -> Self {
        let index = 0;
        Self { inner, log, index }
    }

    pub(super) fn each(inner: &'a [T], log: &'a Log) -> Vec<Self> {
        let logged = |(index, inner)| Self { inner, log, index };
        inner.iter().enumerate().map(logged).collect()
    }
}

impl<T: Vcpu> Logged<'_, T> {
    fn write(&self, call: &str, value: i128) {
        self.log
            .note(format!("vCPU {}: {call} = {value}", self.index));
    }

    fn write_msr(&self, msr: MsrValue) {
        let name = match msr.index {
            MSR_IA32_TSC => "IA32_TSC",
            MSR_IA32_TSC_ADJUST => "IA32_TSC_ADJUST",
            MSR_IA32_TSC_DEADLINE => "IA32_TSC_DEADLINE",
            _ => "MSR",
        };
        // TSC_ADJUST is a signed distance, the others are counts.
        let value = match msr.index {
            MSR_IA32_TSC_ADJUST => i128::from(msr.value.cast_signed()),
            _ => i128::from(msr.value),
        };
        self.write(&format!("KVM_SET_MSRS({name})"), value);
    }
}

impl<T: Vm> Vm for Logged<'_, T> {
    fn host(&self) -> Result<HostFacts, HostError> {
        self.inner.host()
    }

    fn get_clock(&self) -> Result<KvmClockData, Errno> {
        self.inner.get_clock()
    }

    fn set_clock(&self, data: &KvmClockData) -> Result<(), Errno> {
        let operands = match data.flags & KVM_CLOCK_REALTIME {
            0 => format!("clock {}", data.clock_ns),
            _ => format!(
                "clock {}, KVM_CLOCK_REALTIME, realtime {}",
                data.clock_ns, data.realtime_ns
            ),
        };
        self.log
            .call("VM: KVM_SET_CLOCK".to_owned(), format!("({operands})"));
        self.inner.set_clock(data)
    }

    fn host_instant(&self) -> Option<(u64, u64)> {
        self.inner.host_instant()
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

impl<T: Vcpu> Vcpu for Logged<'_, T> {
    fn tsc_offset(&self) -> Result<u64, Errno> {
        self.inner.tsc_offset()
    }

    fn set_tsc_offset(&self, offset: u64) -> Result<(), Errno> {
        let signed = i128::from(offset.cast_signed());
        self.write("KVM_SET_DEVICE_ATTR(KVM_VCPU_TSC_OFFSET)", signed);
        self.inner.set_tsc_offset(offset)
    }

    fn tsc_khz(&self) -> Result<u32, Errno> {
        self.inner.tsc_khz()
    }

    fn set_tsc_khz(&self, khz: u32) -> Result<(), Errno> {
        self.write("KVM_SET_TSC_KHZ", i128::from(khz));
        self.inner.set_tsc_khz(khz)
    }

    fn msr(&self, index: u32) -> Result<Option<u64>, Errno> {
        self.inner.msr(index)
    }

    fn two_msrs(&self, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
        self.inner.two_msrs(indices)
    }

    fn set_msr(&self, index: u32, value: u64) -> Result<bool, Errno> {
        self.write_msr(MsrValue { index, value });
        self.inner.set_msr(index, value)
    }

    fn set_two_msrs(&self, registers: [MsrValue; 2]) -> Result<usize, Errno> {
        for msr in registers {
            self.write_msr(msr);
        }
        self.inner.set_two_msrs(registers)
    }

    fn kvmclock_ctrl(&self) -> Result<(), Errno> {
        self.log
            .note(format!("vCPU {}: KVM_KVMCLOCK_CTRL", self.index));
        self.inner.kvmclock_ctrl()
    }

    fn identity(&self) -> Option<VcpuIdentity> {
        self.inner.identity()
    }
}
