//! The VMs and the evidence for them.

use stealtime_analysis::Answers;

use super::grid::{Grid, number, text};
use super::{Section, nothing};

pub(super) fn section(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        number("pid"),
        number("vCPUs"),
        text("grouped by"),
    ]);
    for vm in &answers.vms {
        grid.row([
            vm.vm.clone(),
            vm.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string()),
            vm.vcpus.to_string(),
            say(&vm.grouped_by).to_owned(),
        ]);
    }
    Section::new("VMs", grid, nothing(answers, "VM", &["kvm:kvm_entry"]))
}

fn say(grouping: &str) -> &str {
    match grouping {
        "recorded" => "the recording's guest names",
        "user" => "--vm-of",
        "snapshot" => "the host's snapshot",
        "process" => "their process",
        "interaction" => "which vCPUs interrupt each other",
        "order" => "a guess by thread ids; say better with --vm-of",
        other => other,
    }
}
