//! The VMs of a variant with other numbers of VMs or CPUs.

use stealtime_whatif::PopulationChange;

use crate::html::{Cell, Page, Table};
use crate::whatif_text::{POPULATION, removed};

/// A row for each VM, and what is taken for true.
pub(super) fn table(change: &PopulationChange, page: &mut Page) {
    let heads = [
        "VM",
        "vCPUs",
        "running %",
        "ready %",
        "wakeup p50 us",
        "p99 us",
        "work ms/s",
        "done %",
        "host ms/s",
    ];
    let mut table = Table::new("The VMs of this host", &heads, 1).explained(POPULATION);
    let micros = |latency: Option<f64>| {
        latency.map_or_else(|| "-".to_owned(), |latency| format!("{latency:.1}"))
    };
    for vm in &change.vms {
        let cells = [
            vm.name.clone(),
            vm.vcpus.to_string(),
            format!("{:.1}", vm.run_percent),
            format!("{:.1}", vm.ready_percent),
            micros(vm.wakeup_p50_us),
            micros(vm.wakeup_p99_us),
            format!("{:.1}", vm.work_ms_per_s),
            format!("{:.1}", vm.done_percent),
            format!("{:.1}", vm.overhead_ms_per_s),
        ];
        table.row(cells.map(Cell::from));
    }
    page.table(table);
    if let Some(removed) = removed(change) {
        page.text(format!("{removed}."));
    }
    for line in &change.assumed {
        page.text(format!("Taken for true: {line}."));
    }
}
