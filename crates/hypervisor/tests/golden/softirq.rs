//! Families `softirq` (raising and batching) and `x2apic-icr` (ICR writes of a multicast).

use std::cell::Cell;

use serde_json::{Value, json};
use stealtime_hypervisor::wakeup_batch::icr::{ApicMode, CpuApic, IcrWrite, Topology};
use stealtime_hypervisor::wakeup_batch::mask::CpuMask;
use stealtime_hypervisor::wakeup_batch::softirq::SoftirqWord;
use stealtime_hypervisor::wakeup_batch::{Batch, Context, Cpus};

use crate::files;

type Mask = CpuMask<Vec<u64>>;

fn number(op: &Value, key: &str) -> u64 {
    op[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} of {op} is no u64"))
}

fn cpu_list(list: &Value) -> impl Iterator<Item = u32> + '_ {
    let list = list.as_array().unwrap().iter();
    list.map(|cpu| u32::try_from(cpu.as_u64().unwrap()).unwrap())
}

fn mask(cpus: usize, list: &Value) -> Mask {
    let mut mask = CpuMask::empty(vec![0; cpus.div_ceil(64)]);
    for cpu in cpu_list(list) {
        assert!(mask.insert(cpu));
    }
    mask
}

/// How the vectors write an ICR write.
fn shown(write: IcrWrite) -> Value {
    match write {
        IcrWrite::X2apic(value) => json!(value),
        IcrWrite::AllButSelf { low } => {
            assert_eq!(low, 0xc00fc, "shorthand all-but-self, event check");
            json!("allbut")
        }
        IcrWrite::Xapic { .. } => panic!("the machines of this family are x2APIC"),
    }
}

struct Machine {
    words: Vec<SoftirqWord<Cell<u64>>>,
    topology: Topology<Vec<CpuApic>>,
    batches: Vec<Batch<Vec<u64>>>,
}

impl Machine {
    fn new(line: &Value) -> Self {
        let cpus = number(line, "cpus") as usize;
        let mode = match number(line, "cluster") {
            0 => ApicMode::X2apicPhysical,
            _ => ApicMode::X2apicCluster,
        };
        let apics = cpu_list(&line["apic_id"]).map(|id| CpuApic::new(id, true));
        let storage = vec![0; cpus.div_ceil(64)];
        Self {
            words: (0..cpus).map(|_| SoftirqWord::new()).collect(),
            topology: Topology::new(mode, apics.collect::<Vec<_>>()).unwrap(),
            batches: (0..cpus as u32)
                .map(|cpu| Batch::new(cpu, storage.clone()))
                .collect(),
        }
    }

    /// Carries out `op`; returns the ICR writes.
    fn run(&mut self, op: &Value) -> Vec<Value> {
        let this = number(op, "this") as u32;
        let context = Context {
            cpu: this,
            in_irq: number(op, "in_irq") != 0,
            in_nmi: number(op, "in_nmi") != 0,
            irqs_on: number(op, "irqs_on") != 0,
            hotplug: false,
        };
        let Self {
            words,
            topology,
            batches,
        } = self;
        let cpus = Cpus { words, topology };
        let batch = &mut batches[this as usize];
        let mut writes = Vec::new();
        let mut icr = |write| writes.push(shown(write));
        match op["op"].as_str().unwrap() {
            "raise" => {
                let (cpu, nr) = (number(op, "cpu") as u32, number(op, "nr") as u32);
                batch.raise(cpus, context, cpu, nr, &mut icr, &()).unwrap();
            }
            "raise_mask" => {
                let (nr, mut mask) = (number(op, "nr") as u32, mask(words.len(), &op["mask"]));
                batch
                    .raise_mask(cpus, context, &mut mask, nr, &mut icr, &())
                    .unwrap();
            }
            "begin" => batch.begin().unwrap(),
            "finish" => {
                let done = batch.finish(cpus, context, &mut icr, &()).unwrap();
                assert_eq!(done.icr_writes as usize, writes.len());
            }
            "self" => words[this as usize].set_own(number(op, "nr") as u32),
            "handle" => {
                for cpu in cpu_list(&op["mask"]) {
                    words[cpu as usize].take(number(op, "bits") as u32);
                }
            }
            "mwait" => {
                for cpu in cpu_list(&op["mask"]) {
                    words[cpu as usize].restore_mwait(number(op, "val") != 0);
                }
            }
            "nop" => {}
            name => panic!("no operation {name}"),
        }
        writes
    }
}

#[test]
fn softirq() {
    for file in files::of("softirq") {
        for line in file.sequences() {
            let mut machine = Machine::new(&line);
            let mut before: Vec<u32> = machine.words.iter().map(SoftirqWord::pending).collect();
            for (step, op) in line["ops"].as_array().unwrap().iter().enumerate() {
                let icr = machine.run(op);
                let batch = &machine.batches[number(op, "this") as usize];
                let mut changed = serde_json::Map::new();
                for (cpu, word) in machine.words.iter().enumerate() {
                    if before[cpu] != word.pending() {
                        before[cpu] = word.pending();
                        changed.insert(cpu.to_string(), json!(word.pending()));
                    }
                }
                let got = json!({
                    "icr": icr,
                    "batching": batch.batching(),
                    "batch_mask": batch.batch_mask().iter().collect::<Vec<_>>(),
                    "pending": changed,
                });
                assert_eq!(
                    got,
                    op["out"],
                    "{}: family softirq, seed {}, step {step}: {op}",
                    file.path.display(),
                    line["seed"]
                );
            }
        }
    }
}

#[test]
fn x2apic_icr() {
    for file in files::of("x2apic-icr") {
        for line in file.sequences() {
            let online: Vec<u32> = cpu_list(&line["online"]).collect();
            let apics: Vec<_> = cpu_list(&line["apic_id"])
                .zip(0..)
                .map(|(id, cpu)| CpuApic::new(id, online.contains(&cpu)))
                .collect();
            for (step, query) in line["v"].as_array().unwrap().iter().enumerate() {
                for (mode, column) in [
                    (ApicMode::X2apicPhysical, "phys"),
                    (ApicMode::X2apicCluster, "cluster"),
                ] {
                    let topology = Topology::new(mode, apics.clone()).unwrap();
                    let mut targets = mask(apics.len(), &query["mask"]);
                    let mut writes = Vec::new();
                    let this = number(query, "this") as u32;
                    let vector = number(query, "vector") as u8;
                    let count = topology
                        .send(this, vector, &mut targets, &mut |w| writes.push(shown(w)))
                        .unwrap();
                    assert_eq!(count as usize, writes.len());
                    assert_eq!(
                        json!(writes),
                        query[column],
                        "{}: family x2apic-icr, seed {}, step {step}, {column}: {query}",
                        file.path.display(),
                        line["seed"]
                    );
                }
            }
        }
    }
}
