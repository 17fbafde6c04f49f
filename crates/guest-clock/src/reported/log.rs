//! The record of an order: each write to a VM or a vCPU, as it was made.

use std::cell::RefCell;

use stealtime_hypervisor::counter::kvm_clock::{KVM_CLOCK_REALTIME, KvmClockData};

use crate::device::{MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE, MsrValue};
use crate::observed::{Action, Observed, Observer};

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
        self.add(text.into(), String::new());
    }

    fn add(&self, call: String, operands: String) {
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
pub(super) type Logged<'a, T> = Observed<'a, T, Log>;

impl Observer for Log {
    fn call<R>(&self, position: usize, action: Action<'_>, perform: impl FnOnce() -> R) -> R {
        let vcpu =
            |call: &str, value: i128| self.note(format!("vCPU {position}: {call} = {value}"));
        match action {
            Action::Read => {}
            Action::Clock(data) => self.add("VM: KVM_SET_CLOCK".to_owned(), operands(data)),
            Action::Offset(offset) => vcpu(
                "KVM_SET_DEVICE_ATTR(KVM_VCPU_TSC_OFFSET)",
                offset.cast_signed().into(),
            ),
            Action::Khz(khz) => vcpu("KVM_SET_TSC_KHZ", khz.into()),
            Action::Msrs(registers) => {
                for msr in registers {
                    let (name, value) = register(msr);
                    vcpu(&format!("KVM_SET_MSRS({name})"), value);
                }
            }
            Action::Paused => self.note(format!("vCPU {position}: KVM_KVMCLOCK_CTRL")),
        }
        perform()
    }
}

fn operands(data: &KvmClockData) -> String {
    match data.flags & KVM_CLOCK_REALTIME {
        0 => format!("(clock {})", data.clock_ns),
        _ => format!(
            "(clock {}, KVM_CLOCK_REALTIME, realtime {})",
            data.clock_ns, data.realtime_ns
        ),
    }
}

fn register(msr: &MsrValue) -> (&'static str, i128) {
    let value = i128::from(msr.value);
    match msr.index {
        MSR_IA32_TSC => ("IA32_TSC", value),
        // A signed distance; the others are counts.
        MSR_IA32_TSC_ADJUST => ("IA32_TSC_ADJUST", msr.value.cast_signed().into()),
        MSR_IA32_TSC_DEADLINE => ("IA32_TSC_DEADLINE", value),
        _ => ("MSR", value),
    }
}
