//! Family `spin`: the vCPUs that a spinning one tries, in order.

use std::cell::{Cell, RefCell};

use serde_json::{Value, json};
use stealtime_hypervisor::directed_yield::{
    DirectedYield, SchedOut, YieldFlags, YieldHost, YieldKnobs, YieldState, YieldTo,
};
use stealtime_hypervisor::ipi_tracking::IpiContext;

use crate::files;

/// The vectors' bits that are a vCPU's shared flags, and ours.
const SHARED: [(u64, YieldFlags); 5] = [
    (1, YieldFlags::READY),
    (2, YieldFlags::PREEMPTED),
    (4, YieldFlags::PREEMPTED_IN_KERNEL),
    (2048, YieldFlags::IN_SPIN_LOOP),
    (4096, YieldFlags::DY_ELIGIBLE),
];
const BLOCKING: u64 = 8;
/// PV unhalt, NMI, SMI, event request, asynchronous page fault done.
const RUNNABLE: u64 = 16 | 32 | 64 | 128 | 1024;
const APICV_PENDING: u64 = 256 | 512;

struct Vcpu {
    state: YieldState<Cell<u64>>,
    other: u64,
}

impl Vcpu {
    fn set(&mut self, word: u64) {
        let mut flags = YieldFlags::default();
        self.other = word;
        for (bit, flag) in SHARED {
            if word & bit != 0 {
                flags = flags.with(flag);
            }
            self.other &= !bit;
        }
        self.state.restore(flags);
    }

    fn word(&self) -> u64 {
        let flags = self.state.flags();
        let set = SHARED.iter().filter(|(_, flag)| flags.has(*flag));
        self.other | set.map(|(bit, _)| bit).sum::<u64>()
    }
}

struct Vm {
    vcpus: Vec<Vcpu>,
    answers: Vec<i64>,
    asked: RefCell<Vec<(u32, i64)>>,
}

impl YieldHost for Vm {
    type Word = Cell<u64>;

    fn online_vcpus(&self) -> u32 {
        self.vcpus.len() as u32
    }
    fn state(&self, vcpu: u32) -> Option<&YieldState<Cell<u64>>> {
        self.vcpus.get(vcpu as usize).map(|v| &v.state)
    }
    fn ipi_contexts(&self) -> &[IpiContext<Cell<u64>>] {
        &[]
    }
    fn blocking(&self, vcpu: u32) -> bool {
        self.vcpus[vcpu as usize].other & BLOCKING != 0
    }
    fn dy_runnable(&self, vcpu: u32) -> bool {
        self.vcpus[vcpu as usize].other & RUNNABLE != 0
    }
    fn pending_interrupt(&self, vcpu: u32) -> bool {
        self.vcpus[vcpu as usize].other & APICV_PENDING == APICV_PENDING
    }
    fn yield_to(&mut self, vcpu: u32) -> YieldTo {
        let mut asked = self.asked.borrow_mut();
        let value = self.answers.get(asked.len()).copied().unwrap_or(0);
        asked.push((vcpu, value));
        match value {
            100.. => YieldTo::Declined,
            1.. => YieldTo::Yielded,
            0 => YieldTo::Declined,
            _ => YieldTo::BothAlone,
        }
    }
}

fn number(op: &Value, key: &str) -> u64 {
    op[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} of {op} is no u64"))
}

fn run(vm: &mut Vm, yields: &DirectedYield<Cell<u64>>, op: &Value) -> Value {
    let index = |key| number(op, key) as usize;
    match op["op"].as_str().unwrap() {
        "set_all" => {
            for (vcpu, word) in vm.vcpus.iter_mut().zip(op["flags"].as_array().unwrap()) {
                vcpu.set(word.as_u64().unwrap());
            }
        }
        "set" => vm.vcpus[index("v")].set(number(op, "flags")),
        "sched_in" => vm.vcpus[index("v")].state.sched_in(),
        "sched_out" => vm.vcpus[index("v")].state.sched_out(SchedOut {
            runnable: number(op, "runnable") != 0,
            wants_to_run: number(op, "wants_to_run") != 0,
            in_kernel: number(op, "cpl") == 0 || number(op, "protected") != 0,
        }),
        "wake_up" => {
            let woken = vm.vcpus[index("v")].state.wake_up(number(op, "woken") != 0);
            return json!({"ret": u8::from(woken)});
        }
        "spin" => {
            let answers = op["yields"].as_array().unwrap().iter();
            vm.answers = answers.map(|v| v.as_i64().unwrap()).collect();
            vm.asked.borrow_mut().clear();
            let (me, kernel_mode) = (index("me") as u32, number(op, "kernel_mode") != 0);
            let knobs = YieldKnobs::upstream();
            yields.on_spin(vm, &knobs, me, kernel_mode, 0, &()).unwrap();
            return json!({
                "asked": *vm.asked.borrow(),
                "last_boosted": yields.last_boosted_vcpu(),
            });
        }
        name => panic!("no operation {name}"),
    }
    json!({})
}

#[test]
fn spin() {
    for file in files::of("spin") {
        for line in file.sequences() {
            let vcpus = (0..number(&line, "vcpus")).map(|_| Vcpu {
                state: YieldState::new(),
                other: 0,
            });
            let mut vm = Vm {
                vcpus: vcpus.collect(),
                answers: Vec::new(),
                asked: RefCell::new(Vec::new()),
            };
            let yields = DirectedYield::new();
            let mut words = vec![json!(0); vm.vcpus.len()];
            for (step, op) in line["ops"].as_array().unwrap().iter().enumerate() {
                let place = format!(
                    "{}: family spin, seed {}, step {step}: {op}",
                    file.path.display(),
                    line["seed"]
                );
                let got = run(&mut vm, &yields, op);
                for (key, value) in got.as_object().unwrap() {
                    assert_eq!(value, &op["out"][key], "{place}: {key}");
                }
                if let Some(listed) = op["out"]["flags"].as_array() {
                    words.clone_from(listed);
                }
                let flags: Vec<_> = vm.vcpus.iter().map(|v| json!(v.word())).collect();
                assert_eq!(flags, words, "{place}: flags");
            }
        }
    }
}
