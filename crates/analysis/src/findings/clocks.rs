//! Guest clocks that are slow or expensive.

use std::collections::BTreeMap;

use super::{DOUBT, Weighted};
use crate::clocks::Told;
use crate::tables::Tables;

/// KVM rewrites the offset of a vCPU at each switch to it if it holds the host's TSC unstable. From
/// this share of switches on that is what happens.
pub(super) const REWRITES_PER_MILLE: u64 = 500;
/// Fewer switches than this say nothing.
pub(super) const MIN_SWITCHES: u64 = 100;

/// Adds what is found of clocks.
pub(crate) fn find(tables: &Tables<'_>, found: &mut Vec<Weighted>) {
    let all = &tables.analysis.sums().accounts;
    let writes: u64 = all.iter().map(|account| account.tally.tsc_writes).sum();
    let switches: u64 = all.iter().map(|account| account.tally.switches_in).sum();
    let is_unstable =
        switches >= MIN_SWITCHES && super::per_mille(writes, switches) >= REWRITES_PER_MILLE;
    if is_unstable {
        found.push(Weighted::new("tsc_unstable", "", DOUBT - 1, [
            "KVM rewrites TSC offsets whenever a vCPU is switched in: the host's TSC counts as \
             unstable, and guests cannot use a master clock."
                .to_owned(),
            format!("{writes} kvm_write_tsc_offset in {switches} switches to vCPUs"),
            "Look in the host's kernel log why the TSC was marked unstable, and at \
             current_clocksource."
                .to_owned(),
        ]));
    }
    for (vm, told) in by_vm(tables) {
        of_vm(vm, &told, is_unstable, found);
    }
    if is_unstable {
        return;
    }
    for group in tables
        .selected()
        .filter(|group| group.grouped_by != "order")
    {
        // Offsets wrap: one of a guest that is behind its host is less than 0.
        let offsets: Vec<i64> = tables
            .accounts(group)
            .filter_map(|account| account.tsc_offset)
            .map(u64::cast_signed)
            .collect();
        let (low, high) = (offsets.iter().min(), offsets.iter().max());
        if let (Some(low), Some(high)) = (low, high)
            && low != high
        {
            found.push(Weighted::new(
                "tsc_offsets_differ",
                &group.name,
                DOUBT - 2,
                [
                    format!("The vCPUs of {} have different TSC offsets.", group.name),
                    format!(
                        "{} vCPUs' offsets seen, up to {} ticks apart",
                        offsets.len(),
                        high.abs_diff(*low)
                    ),
                    "Set one TSC offset for all vCPUs of a VM, as a VMM must after restoring it."
                        .to_owned(),
                ],
            ));
        }
    }
}

/// What is told of the clocks of each selected VM, and of threads (with an empty name) whose VM is not
/// known: those that made a VM's vCPUs before its process is.
fn by_vm<'a>(tables: &Tables<'a>) -> BTreeMap<&'a str, Told> {
    let threads = tables.analysis.tracker.threads();
    let mut by_vm: BTreeMap<&str, Told> = BTreeMap::new();
    let mut of_vms = Told::default();
    for (&id, &told) in &tables.analysis.sums().clocks {
        let thread = threads.get(id);
        let of_vcpu = thread
            .vcpu
            .and_then(|vcpu| tables.vm_of.get(&vcpu).copied());
        let of_helper = || tables.vmm.get(&id).copied().flatten();
        let group = of_vcpu.or_else(of_helper);
        let group = group.and_then(|vm| tables.groups.get(vm));
        let name = group.map_or("", |group| group.name.as_str());
        if group.is_some() {
            of_vms = of_vms.with(told);
        }
        if group.is_none() || tables.has_vm(name) {
            let all = by_vm.entry(name).or_default();
            *all = all.with(told);
        }
    }
    if let Some(unknown) = by_vm.get_mut("") {
        *unknown = unknown.not_before(of_vms);
    }
    by_vm
}

fn of_vm(vm: &str, told: &Told, is_unstable: bool, found: &mut Vec<Weighted>) {
    if is_unstable {
        // That is the reason of both.
        return;
    }
    let off = told.master.filter(|master| !master.is_used);
    if let Some(off) = off {
        let next = match off.host_clock_is_tsc {
            true => "Set the same TSC offset for all vCPUs of a VM (KVM_VCPU_TSC_OFFSET).",
            false => "Make the host keep time by its TSC (current_clocksource).",
        };
        let matching = match off.offsets_matched {
            true => "matching",
            false => "not matching",
        };
        found.push(Weighted::new(
            "master_clock_off",
            vm,
            DOUBT - 1,
            [
                "A VM runs without a master clock: its guests read time by a slower way."
                    .to_owned(),
                format!(
                    "{} kvm_update_master_clock, the last without master clock, offsets {matching}",
                    told.updates
                ),
                next.to_owned(),
            ],
        ));
    } else if let Some(tracked) = told.unmatched() {
        found.push(Weighted::new(
            "tsc_not_matched",
            vm,
            DOUBT - 2,
            [
                "vCPUs of one VM have TSCs that do not match.".to_owned(),
                format!(
                    "in the last kvm_track_tsc {} beside the first of {}",
                    tracked.matched, tracked.online
                ),
                "Look at how the VMM sets the TSC of vCPUs on start and restore.".to_owned(),
            ],
        ));
    }
}
