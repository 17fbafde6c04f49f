//! Destinations of interrupts, and IRR, ISR, PPR and EOI of one LAPIC.

use std::cell::Cell;

use serde_json::{Value, json};
use stealtime_hypervisor::lapic::{
    Apic, ApicBus, ApicMode, BusOptions, DeliveryMode, Interrupt, InterruptSource, Irr, Lapic,
    PvIpi, PvIpiError, Shorthand, VectorSet,
};
use stealtime_hypervisor::posted_interrupt::{Capabilities, PostedVcpu, SharedVcpu, Suppression};

use crate::files;
use crate::same::{Step, byte, flag, index, int, optional, small, uint};

#[test]
fn apic_dest() {
    for file in files::of("apic-dest") {
        for line in file.sequences() {
            destinations(&line);
        }
    }
}

fn apic(row: &Value) -> Apic {
    Apic {
        vcpu_id: small(&row[0]),
        mode: match uint(&row[1]) {
            0 => ApicMode::Disabled,
            1 => ApicMode::Xapic,
            _ => ApicMode::X2apic,
        },
        sw_enabled: flag(&row[2]),
        id: small(&row[3]),
        ldr: small(&row[4]),
        dfr: small(&row[5]),
        arb_prio: small(&row[6]),
    }
}

fn destinations(line: &Value) {
    let options = BusOptions {
        x2apic_format: flag(&line["x2apic_format"]),
        quirk_disabled: flag(&line["quirk_disabled"]),
        vector_hashing: flag(&line["vector_hashing"]),
    };
    let rows = line["vcpus"].as_array().unwrap();
    let mut bus = ApicBus::new(rows.iter().map(apic).collect(), options);
    let at = |step, what| Step {
        family: "apic-dest",
        seed: uint(&line["seed"]),
        step,
        what,
    };
    map(&bus, line, &at(0, &line["vcpus"]));
    for (n, query) in line["q"].as_array().unwrap().iter().enumerate() {
        let step = at(n, query);
        match query["q"].as_str().unwrap() {
            "irq" => irq(&mut bus, query, &step),
            "icr" => {
                let mut accept = Vec::new();
                bus.write_icr(
                    index(&query["src"]),
                    small(&query["low"]),
                    small(&query["high"]),
                    &(),
                    |vcpu, _| accept.push(vcpu),
                )
                .unwrap();
                step.same("accept", &query["accept"], &json!(accept));
            }
            "pv_ipi" => pv_ipi(&mut bus, query, &step),
            other => panic!("query {other:?} is not known"),
        }
    }
    if let Some(expected) = line.get("arb_prio") {
        let got: Vec<u32> = bus.apics().iter().map(|a| a.arb_prio).collect();
        at(0, expected).same("arb_prio", expected, &json!(got));
    }
}

fn map(bus: &ApicBus, line: &Value, step: &Step) {
    let inhibit = bus.inhibit();
    let bits = u64::from(inhibit.physical_id_aliased)
        | u64::from(inhibit.logical_id_aliased) << 1
        | u64::from(inhibit.apic_id_modified) << 2;
    step.same("inhibit", &uint(&line["inhibit"]), &bits);
    let got = bus.map().map_or(Value::Null, |map| {
        let logical: Vec<_> = map.logical_entries().collect();
        json!({
            "max_apic_id": map.max_apic_id(),
            "logical_mode": map.logical_mode() as u8,
            "phys": map.physical_entries(),
            "logical": logical,
        })
    });
    step.same("map", &line["map"], &got);
}

fn irq(bus: &mut ApicBus, query: &Value, step: &Step) {
    let source = optional(&query["src"]);
    let interrupt = Interrupt {
        vector: byte(&query["vector"]),
        delivery: DeliveryMode::from_bits(small(&query["mode"])),
        logical: flag(&query["logical"]),
        assert: flag(&query["level"]),
        level_triggered: flag(&query["trig"]),
        shorthand: Shorthand::from_bits(small(&query["shorthand"])),
        dest: small(&query["dest"]),
        redirection_hint: flag(&query["redir"]),
    };
    let matching: Vec<_> = (0..bus.apics().len())
        .filter(|&v| bus.matches(v, source, &interrupt))
        .collect();
    step.same("match", &query["match"], &json!(matching));
    let fast = bus.fast_path(source, &interrupt);
    step.same("fast", &flag(&query["fast"]), &fast.is_some());
    let (bitmap, slots) = fast.map_or((0, Vec::new()), |fast| {
        let meant = (0..16).filter(|n| fast.bitmap() & 1 << n != 0);
        let slots = meant
            .map(|n| fast.slot(n).map_or(-1, |s| s as i64))
            .collect();
        (fast.bitmap(), slots)
    });
    step.same("bitmap", &query["bitmap"], &json!(bitmap));
    step.same("slots", &query["slots"], &json!(slots));
    if let Some(single) = query.get("single") {
        step.same("single", &optional(single), &bus.single_target(&interrupt));
    }
    let mut accept = Vec::new();
    let done = bus
        .deliver(source, &interrupt, &(), |vcpu, _| accept.push(vcpu))
        .unwrap();
    step.same("accept", &query["accept"], &json!(accept));
    step.same("ret", &int(&query["ret"]), &done.kvm_ret());
}

fn pv_ipi(bus: &mut ApicBus, query: &Value, step: &Step) {
    let ipi = PvIpi {
        low: uint(&query["low"]),
        high: uint(&query["high"]),
        min: small(&query["min"]),
        icr: uint(&query["icr"]),
        op_64bit: flag(&query["op64"]),
    };
    let mut accept = Vec::new();
    let ret = match bus.pv_ipi(&ipi, &(), |vcpu, _| accept.push(vcpu)) {
        Ok(taken) => i64::from(taken),
        Err(PvIpiError::InvalidIcr { .. }) => -22,
        Err(PvIpiError::NoMap { .. }) => -95,
    };
    step.same("ret", &int(&query["ret"]), &ret);
    step.same("accept", &query["accept"], &json!(accept));
}

type Word = Cell<u64>;

struct Chip {
    vmx: bool,
    own: PostedVcpu,
    shared: SharedVcpu<Word>,
    lapic: Lapic,
}

/// The descriptor is synchronized first on VMX.
struct Source<'a>(&'a Chip);

impl InterruptSource<Word> for Source<'_> {
    fn irr(&self) -> &Irr<Word> {
        &self.0.shared.irr
    }
    fn refresh(&self, lapic: &mut Lapic) -> Option<u8> {
        let Chip { own, shared, .. } = self.0;
        if self.0.vmx {
            own.source(shared, &()).refresh(lapic)
        } else {
            shared.irr.refresh(lapic)
        }
    }
}

impl Chip {
    fn new(line: &Value) -> Self {
        let capabilities = Capabilities {
            apicv: true,
            irqchip: true,
            ipiv: false,
            vtd_posting: false,
            host_x2apic: true,
        };
        let apicv = flag(&line["apicv"]);
        Self {
            vmx: flag(&line["vmx"]),
            own: PostedVcpu::new(0, capabilities, Suppression::Put),
            shared: SharedVcpu::new(apicv),
            lapic: Lapic::new(apicv),
        }
    }

    /// Runs `body` on the LAPIC with its source of requests.
    fn with<R>(&mut self, body: impl FnOnce(&mut Lapic, &Source<'_>) -> R) -> R {
        let mut lapic = self.lapic.clone();
        let result = body(&mut lapic, &Source(self));
        self.lapic = lapic;
        result
    }

    fn run(&mut self, op: &Value, step: &Step) {
        let vec = || byte(&op["vec"]);
        let ret = |got: Option<u8>| {
            step.same("ret", &int(&op["ret"]), &got.map_or(-1, i64::from));
        };
        match op["op"].as_str().unwrap() {
            "set_irr" => {
                self.shared.irr.set(vec());
            }
            "clear_irr" => {
                self.shared.irr.clear(vec(), self.lapic.apicv());
            }
            "post" => {
                let desc = &self.shared.desc;
                let was = desc.test_and_set_pir(vec());
                let on = !was && desc.test_and_set_on();
                step.same(
                    "ret",
                    &uint(&op["ret"]),
                    &(u64::from(was) | u64::from(on) << 1),
                );
            }
            "sync" => ret(self.with(|lapic, source| source.refresh(lapic))),
            "update_irr" => {
                let vectors = op["pir"].as_array().unwrap().iter().map(byte);
                let bits = VectorSet::from_iter(vectors);
                let merged = self.lapic.merge_pir(&self.shared.irr, &bits);
                step.same("ret", &flag(&op["ret"]), &merged.highest_is_new);
                let highest = merged.highest.map_or(-1, i64::from);
                step.same("max_irr", &int(&op["max_irr"]), &highest);
                step.same("left", &uint(&op["left"]), &0);
            }
            "has_interrupt" => ret(self.with(|lapic, source| lapic.has_interrupt(source))),
            "inject" => ret(self.with(|lapic, source| lapic.inject(source))),
            "eoi" => ret(self.with(|lapic, source| lapic.eoi(source))),
            "tpr" => self.with(|lapic, source| lapic.set_tpr(byte(&op["val"]), source)),
            "update_ppr" => self.with(|lapic, source| lapic.update_ppr(source)),
            "highest_irr" => ret(self.shared.irr.highest()),
            "set_isr" | "clear_isr" if op.get("skipped").is_some() => {}
            "set_isr" => self.lapic.set_isr(vec()),
            "clear_isr" => self.lapic.clear_isr(vec()),
            "apicv" => {
                let on = flag(&op["val"]);
                self.shared.set_apicv(on);
                self.with(|lapic, source| lapic.set_apicv(on, source));
            }
            other => panic!("operation {other:?} is not known"),
        }
    }

    fn compare(&mut self, out: &Value, step: &Step) {
        let list = |set: VectorSet| Value::from(set.iter().collect::<Vec<u8>>());
        step.same("irr", &out["irr"], &list(self.shared.irr.snapshot()));
        step.same("isr", &out["isr"], &list(self.lapic.isr()));
        if self.vmx {
            step.same("pir", &out["pir"], &list(self.shared.desc.pir()));
            step.same("on", &flag(&out["on"]), &self.shared.desc.test_on());
            step.same("rvi", &byte(&out["rvi"]), &self.lapic.rvi());
            step.same("svi", &byte(&out["svi"]), &self.lapic.svi());
        }
        let (count, cache) = self.lapic.isr_cache();
        let s = json!([
            self.lapic.tpr(),
            self.lapic.ppr(),
            u8::from(self.shared.irr.is_pending()),
            count,
            cache.map_or(-1, i64::from),
            u8::from(self.lapic.take_event()),
        ]);
        step.same("s", &out["s"], &s);
    }
}

#[test]
fn apic_irr() {
    for file in files::of("apic-irr") {
        for line in file.sequences() {
            let mut chip = Chip::new(&line);
            for (n, op) in line["ops"].as_array().unwrap().iter().enumerate() {
                let step = Step {
                    family: "apic-irr",
                    seed: uint(&line["seed"]),
                    step: n,
                    what: op,
                };
                chip.run(op, &step);
                chip.compare(&op["out"], &step);
            }
        }
    }
}
