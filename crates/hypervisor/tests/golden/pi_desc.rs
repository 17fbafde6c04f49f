//! Posted-interrupt descriptors: bits, load, put, delivery, wakeup handler.

use std::cell::{Cell, RefCell};

use serde_json::{Value, json};
use stealtime_hypervisor::events::Events;
use stealtime_hypervisor::posted_interrupt::{
    Capabilities, Delivery, LocalLists, PostedVcpu, PutReason, SharedVcpu, Suppression, VcpuMode,
    deliver, wakeup_handler,
};

use crate::files;
use crate::same::{Step, byte, flag, index, small, uint};

type Shared = SharedVcpu<Cell<u64>>;

struct Vcpu {
    own: PostedVcpu,
    shared: Shared,
}

struct Vm {
    vcpus: Vec<Vcpu>,
    lists: LocalLists,
    apic_ids: Vec<u32>,
    bypass_irqs: bool,
    events: RefCell<Vec<Value>>,
    warned: Cell<u64>,
}

impl Events for Vm {
    fn sn_set_while_blocking(&self) {
        self.warned.set(self.warned.get() + 1);
    }
}

impl Vm {
    fn new(line: &Value) -> Self {
        let capabilities = Capabilities {
            apicv: flag(&line["enable_apicv"]),
            irqchip: flag(&line["irqchip"]),
            ipiv: flag(&line["ipiv"]),
            vtd_posting: flag(&line["bypass"]),
            host_x2apic: flag(&line["x2apic"]),
        };
        let apic_ids: Vec<u32> = line["apic_id"]
            .as_array()
            .unwrap()
            .iter()
            .map(small)
            .collect();
        let vcpu = |id| Vcpu {
            own: PostedVcpu::new(id, capabilities, Suppression::Put),
            shared: Shared::new(true),
        };
        Self {
            vcpus: (0..small(&line["vcpus"])).map(vcpu).collect(),
            lists: LocalLists::new(apic_ids.len() as u32, apic_ids.len()),
            apic_ids,
            bypass_irqs: flag(&line["bypass_irqs"]),
            events: RefCell::default(),
            warned: Cell::new(0),
        }
    }

    fn deliver(&self, op: &Value) {
        let vcpu = &self.vcpus[index(&op["v"])].shared;
        vcpu.set_mode(match uint(&op["mode"]) {
            0 => VcpuMode::OutsideGuest,
            1 => VcpuMode::InGuest,
            _ => VcpuMode::ExitingGuest,
        });
        let done = deliver(
            vcpu,
            byte(&op["vec"]),
            flag(&op["self"]),
            Suppression::Put,
            self,
        );
        let event = match done {
            Delivery::Ipi { cpu, vector } => {
                json!(["ipi", cpu.map_or(-1, i64::from), vector])
            }
            Delivery::Wake => json!(["wake", op["v"]]),
            _ => return,
        };
        self.events.borrow_mut().push(event);
    }

    fn put(&mut self, op: &Value) {
        let v = index(&op["v"]);
        let reason = PutReason {
            preempted: flag(&op["preempted"]),
            irq_blocked: flag(&op["irq_blocked"]),
            device_assigned: self.bypass_irqs,
        };
        // The policy of 7.2 does nothing but note it.
        let Vcpu { own, shared } = &mut self.vcpus[v];
        if flag(&op["blocking"]) {
            own.begin_blocking(shared, &());
        } else {
            own.end_blocking(shared, &());
        }
        let vcpu = &self.vcpus[v];
        let done = vcpu
            .own
            .put(&vcpu.shared, reason, &self.lists, &*self)
            .unwrap();
        if done.self_ipi {
            let cpu = vcpu.own.cpu().unwrap();
            let event = json!(["self_ipi", cpu, 0xf1]);
            self.events.borrow_mut().push(event);
        }
    }

    fn wakeup(&self, cpu: u32) {
        let of = |id: u32| Some(&self.vcpus[id as usize].shared);
        let wake = |id| self.events.borrow_mut().push(json!(["wake", id]));
        wakeup_handler(cpu, &self.lists, of, &(), wake).unwrap();
    }

    /// Runs one operation; what it returned, if anything.
    fn run(&mut self, op: &Value, step: &Step) -> Option<bool> {
        match op["op"].as_str().unwrap() {
            "wakeup_handler" => self.wakeup(small(&op["cpu"])),
            "deliver" => self.deliver(op),
            "put" => self.put(op),
            "load" => {
                let cpu = small(&op["cpu"]);
                let apic_id = self.apic_ids[cpu as usize];
                let Vcpu { own, shared } = &mut self.vcpus[index(&op["v"])];
                own.load(shared, cpu, apic_id, &self.lists, &()).unwrap();
            }
            name => return self.bits(name, op, step),
        }
        None
    }

    fn bits(&self, name: &str, op: &Value, step: &Step) -> Option<bool> {
        let desc = &self.vcpus[index(&op["v"])].shared.desc;
        let vector = || byte(&op["vec"]);
        match name {
            "harvest" => {
                let got = desc.harvest();
                let expected: Vec<u64> = op["vals"].as_array().unwrap().iter().map(uint).collect();
                step.same("vals", &expected, &got.0.to_vec());
                return Some(!got.is_empty());
            }
            "has_pending" => return Some(desc.has_pending()),
            "test_and_set_pir" => return Some(desc.test_and_set_pir(vector())),
            "test_pir" => return Some(desc.test_pir(vector())),
            "test_and_set_on" => return Some(desc.test_and_set_on()),
            "test_and_clear_on" => return Some(desc.test_and_clear_on()),
            "test_and_clear_sn" => return Some(desc.test_and_clear_sn()),
            "test_on" => return Some(desc.test_on()),
            "test_sn" => return Some(desc.test_sn()),
            "is_pir_empty" => return Some(desc.is_pir_empty()),
            "set_on" => desc.set_on(),
            "clear_on" => desc.clear_on(),
            "set_sn" => desc.set_sn(),
            "clear_sn" => desc.clear_sn(),
            other => panic!("operation {other:?} is not known"),
        }
        None
    }

    fn descriptors(&self) -> Vec<String> {
        let hex = |v: &Vcpu| {
            let bytes = v.shared.desc.to_bytes();
            bytes.iter().map(|b| format!("{b:02x}")).collect()
        };
        self.vcpus.iter().map(hex).collect()
    }
}

#[test]
fn pi_desc() {
    for file in files::of("pi-desc") {
        for line in file.sequences() {
            replay(&line);
        }
    }
}

fn replay(line: &Value) {
    let mut vm = Vm::new(line);
    let mut shown = vec![String::new(); vm.vcpus.len()];
    for (n, op) in line["ops"].as_array().unwrap().iter().enumerate() {
        let step = Step {
            family: "pi-desc",
            seed: uint(&line["seed"]),
            step: n,
            what: op,
        };
        let ret = vm.run(op, &step);
        let out = &op["out"];
        let expected = out.get("ret").map(flag);
        step.same("ret", &expected, &ret);
        let events = Value::Array(vm.events.take());
        step.same("events", &out["events"], &events);
        step.same("warn", &uint(&out["warn"]), &vm.warned.take());
        let lists: Vec<_> = (0..vm.apic_ids.len() as u32)
            .map(|cpu| json!(vm.lists.of(cpu).unwrap().vcpus()))
            .collect();
        step.same("lists", &out["lists"], &Value::Array(lists));
        let now = vm.descriptors();
        let mut changed = serde_json::Map::new();
        for (v, hex) in now.iter().enumerate() {
            if *hex != shown[v] {
                changed.insert(v.to_string(), json!(hex));
            }
        }
        step.same("desc", &out["desc"], &Value::Object(changed));
        shown = now;
    }
}
