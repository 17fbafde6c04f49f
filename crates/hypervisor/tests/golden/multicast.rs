//! Family `vlapic`, column `multicast`: which guest IPIs open a batch.

use serde_json::Value;
use stealtime_hypervisor::wakeup_batch::multicast::GuestIpi;

use crate::files;

fn word(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

#[test]
fn multicast() {
    for file in files::of("vlapic") {
        for line in file.sequences() {
            let vcpus = line["vcpus"].as_array().unwrap();
            for (step, query) in line["q"].as_array().unwrap().iter().enumerate() {
                // Columns of a vCPU: x2apic, id_register, ldr, dfr, enabled, ppr.
                let source = &vcpus[word(&query["src"]) as usize];
                let (low, high) = (word(&query["low"]), word(&query["high"]));
                let ipi = GuestIpi::from_icr(low, high, word(&source[0]) != 0, word(&source[3]));
                let max_vcpus = vcpus.len() as u32;
                let got = ipi.is_multicast(max_vcpus);
                assert_eq!(
                    u32::from(got),
                    word(&query["multicast"]),
                    "{}: family vlapic, seed {}, step {step}: multicast of {query}",
                    file.path.display(),
                    line["seed"]
                );
            }
        }
    }
}
