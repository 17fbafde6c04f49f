//! The VMs of a variant with other numbers of VMs or CPUs.

use std::fmt::Write as _;

use stealtime_whatif::PopulationChange;

use super::paragraph;
use crate::escape;
use crate::whatif_text::{POPULATION, removed};

/// A row for each VM, and what is taken for true.
pub(super) fn table(output: &mut String, change: &PopulationChange) {
    output.push_str("  VM            vCPUs  running%  ready%  wakeup p50    p99, us  work ms/s  done%  host ms/s\n");
    let micros = |latency: Option<f64>| {
        latency.map_or_else(|| "-".to_owned(), |latency| format!("{latency:.1}"))
    };
    for vm in &change.vms {
        let _ = writeln!(
            output,
            "  {:<13} {:>5} {:>9.1} {:>7.1} {:>11} {:>10} {:>10.1} {:>6.1} {:>10.1}",
            escape::short(&vm.name, 13),
            vm.vcpus,
            vm.run_percent,
            vm.ready_percent,
            micros(vm.wakeup_p50_us),
            micros(vm.wakeup_p99_us),
            vm.work_ms_per_s,
            vm.done_percent,
            vm.overhead_ms_per_s,
        );
    }
    paragraph(output, "  ", POPULATION);
    if let Some(removed) = removed(change) {
        paragraph(output, "  ", &removed);
    }
    for line in &change.assumed {
        paragraph(output, "  ", &format!("Assumed: {line}"));
    }
}
