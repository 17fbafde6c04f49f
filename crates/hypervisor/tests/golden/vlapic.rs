//! Guest LAPIC destinations by Xen's rules.

use serde_json::{Value, json};
use stealtime_hypervisor::lapic::Interrupt;
use stealtime_hypervisor::lapic::xen::{Vlapic, ipi, matches};

use crate::files;
use crate::same::{Step, byte, flag, index, small, uint};

fn vlapic(row: &Value) -> Vlapic {
    Vlapic {
        x2apic: flag(&row[0]),
        id: small(&row[1]),
        ldr: small(&row[2]),
        dfr: small(&row[3]),
        enabled: flag(&row[4]),
        ppr: byte(&row[5]),
    }
}

#[test]
fn vlapic_destinations() {
    for file in files::of("vlapic") {
        for line in file.sequences() {
            replay(&line);
        }
    }
}

fn replay(line: &Value) {
    let vlapics: Vec<_> = line["vcpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(vlapic)
        .collect();
    let mut round_robin = index(&line["round_robin"]);
    for (n, query) in line["q"].as_array().unwrap().iter().enumerate() {
        let step = Step {
            family: "vlapic",
            seed: uint(&line["seed"]),
            step: n,
            what: query,
        };
        let source = index(&query["src"]);
        let x2apic = vlapics[source].x2apic;
        let interrupt = Interrupt::from_icr(small(&query["low"]), small(&query["high"]), x2apic);
        let matching: Vec<_> = (0..vlapics.len())
            .filter(|&v| matches(&vlapics, v, source, &interrupt))
            .collect();
        step.same("match", &query["match"], &json!(matching));
        let mut accept = Vec::new();
        let done = ipi(&vlapics, &mut round_robin, source, &interrupt, &(), |v| {
            accept.push(v)
        });
        let done = done.unwrap();
        step.same("multicast", &flag(&query["multicast"]), &done.multicast);
        step.same("accept", &query["accept"], &json!(accept));
        step.same("error", &flag(&query["error"]), &done.error.is_some());
        step.same("init_sipi", &flag(&query["init_sipi"]), &done.init_sipi);
        step.same("round_robin", &index(&query["round_robin"]), &round_robin);
    }
}
