//! How late a guest takes its timer interrupts, by variant of a scenario: `timer_latencies FILE...`.
//!
//! From the deadline in `IA32_TSC_DEADLINE` to the handler, in ns: the mean time until the interrupt
//! is accepted, and the mean from there until the guest takes it. For scenarios with a single vCPU.
//! `scripts/compare-bare` shows them next to those of the hypervisor of `bare/`.

use std::error::Error;
use std::path::Path;

use stealtime_events::{Event, Kind, vector};
use stealtime_lab::scenario::Scenario;
use stealtime_simulator::Sink;

/// `IA32_TSC_DEADLINE`.
const TSC_DEADLINE: u32 = 0x6e0;

/// Sums up the time from each deadline to the acceptance of its interrupt.
#[derive(Default)]
struct Deadlines {
    next_ns: Option<u64>,
    late_ns: u64,
    accepted: u64,
}

impl Sink for Deadlines {
    fn event(&mut self, event: &Event) {
        match event.kind {
            Kind::KvmMsr {
                write: true,
                ecx: TSC_DEADLINE,
                data,
                ..
            } => self.next_ns = Some(data).filter(|&ns| ns > 0),
            Kind::KvmApicvAcceptIrq { vec, .. } if vec == vector::linux::LOCAL_TIMER => {
                if let Some(deadline_ns) = self.next_ns.take() {
                    self.late_ns += event.time_ns.saturating_sub(deadline_ns);
                    self.accepted += 1;
                }
            }
            _ => {}
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    for file in std::env::args().skip(1) {
        let scenario = Scenario::load(Path::new(&file))?;
        for variant in &scenario.variants {
            let config = scenario.config(variant, 1)?;
            let mut deadlines = Deadlines::default();
            let outcome = stealtime_simulator::run(&config, &mut deadlines)?;
            let accepted_ns = deadlines.late_ns.checked_div(deadlines.accepted);
            let taken_ns = outcome
                .vms
                .first()
                .and_then(|vm| vm.answers.interrupts.mean());
            let accepted_ns = accepted_ns.ok_or("no timer interrupt")?;
            println!("{} {}", variant.name, accepted_ns + taken_ns.unwrap_or(0));
        }
    }
    Ok(())
}
