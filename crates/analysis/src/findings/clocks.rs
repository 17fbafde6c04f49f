//! Guest clocks that are slow or expensive.

use super::{DOUBT, Weighted};
use crate::tables::Tables;
use crate::vcpu::Vcpu;

/// KVM rewrites the offset of a vCPU at each switch to it if it holds the host's TSC unstable. From
/// this share of switches on that is what happens.
const REWRITES_PER_MILLE: u64 = 500;
/// Fewer switches than this say nothing.
const MIN_SWITCHES: u64 = 100;

/// Adds what is found of clocks.
pub(crate) fn find(tables: &Tables<'_>, found: &mut Vec<Weighted>) {
    let clocks = &tables.analysis.clocks;
    let all = &tables.analysis.vcpus;
    let writes: u64 = all.iter().map(|vcpu| vcpu.tally.tsc_writes).sum();
    let switches: u64 = all.iter().map(|vcpu| vcpu.tally.switches_in).sum();
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
    let is_off = clocks.updates > 0 && !clocks.uses_master_clock;
    if is_off && !is_unstable {
        let next = if clocks.host_clock_is_tsc {
            "Set the same TSC offset for all vCPUs of a VM (KVM_VCPU_TSC_OFFSET)."
        } else {
            "Make the host keep time by its TSC (current_clocksource)."
        };
        found.push(Weighted::new(
            "master_clock_off",
            "",
            DOUBT - 1,
            [
                "A VM runs without a master clock: its guests read time by a slower way."
                    .to_owned(),
                format!(
                    "{} kvm_update_master_clock, the last without master clock, offsets {}",
                    clocks.updates,
                    if clocks.offsets_matched {
                        "matching"
                    } else {
                        "not matching"
                    }
                ),
                next.to_owned(),
            ],
        ));
    }
    if is_unstable {
        return;
    }
    if clocks.mismatches > 0 && !is_off {
        let (matched, online) = clocks.last_mismatch;
        found.push(Weighted::new(
            "tsc_not_matched",
            "",
            DOUBT - 2,
            [
                "vCPUs of one VM were found with TSCs that do not match.".to_owned(),
                format!(
                    "{} times, last {matched} beside the first of {online}",
                    clocks.mismatches
                ),
                "Look at how the VMM sets the TSC of vCPUs on start and restore.".to_owned(),
            ],
        ));
    }
    for group in tables
        .selected()
        .filter(|group| group.grouped_by != "order")
    {
        // Offsets wrap: one of a guest that is behind its host is less than 0.
        let offsets: Vec<i64> = tables
            .of_group(group)
            .filter_map(|vcpu: &Vcpu| vcpu.tsc_offset)
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
