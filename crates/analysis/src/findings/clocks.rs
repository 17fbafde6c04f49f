//! Guest clocks that are slow or expensive.

use std::collections::BTreeMap;

use super::{DOUBT, Weighted};
use crate::clocks::ClockEvents;
use crate::guest_clock::GuestClock;
use crate::tables::Tables;
use crate::vms::Group;

/// Share of switches with a rewrite of the TSC offset from which on the host's TSC is unstable. KVM then
/// rewrites it at each switch to another CPU (`kvm_arch_vcpu_load`), else at start and restore only.
pub(super) const REWRITES_PER_MILLE: u64 = 500;
/// With fewer switches the writes of a VM's start are a large share.
pub(super) const MIN_SWITCHES: u64 = 100;

/// No x86 TSC ticks faster, in Hz. The guest's frequency is not in a recording, so times are lower limits.
const MOST_CYCLES_PER_SECOND: u64 = 6_000_000_000;
/// From this distance on no timer of an idle guest explains a deadline, in s.
pub(super) const DEADLINE_AHEAD_S: u64 = 600;

/// Adds what is found of clocks.
pub(crate) fn find(tables: &Tables<'_>, found: &mut Vec<Weighted>) {
    let accounts = &tables.analysis.sums().accounts;
    let writes: u64 = accounts
        .iter()
        .map(|account| account.tally.tsc_writes)
        .sum();
    let switches: u64 = accounts
        .iter()
        .map(|account| account.tally.switches_in)
        .sum();
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
    if is_unstable {
        // An unstable TSC is the reason of the other findings too.
        return;
    }
    for (vm, events) in by_vm(tables) {
        clocks_of(vm, &events, found);
    }
    for group in tables.selected() {
        by_guest(tables, group, found);
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

/// A VM as a sentence begins with it: by its name, if that is known.
fn subject(vm: &str) -> &str {
    if vm.is_empty() { "A VM" } else { vm }
}

/// The same within a sentence.
fn subject_within(vm: &str) -> &str {
    if vm.is_empty() { "one VM" } else { vm }
}

/// Clock events of each selected VM, and under an empty name those of threads without a known VM: such a
/// thread makes a VM's vCPUs.
fn by_vm<'a>(tables: &Tables<'a>) -> BTreeMap<&'a str, ClockEvents> {
    let threads = tables.analysis.tracker.threads();
    let mut by_vm: BTreeMap<&str, ClockEvents> = BTreeMap::new();
    let mut of_vms = ClockEvents::default();
    for (&id, &events) in &tables.analysis.sums().clocks {
        let thread = threads.get(id);
        let of_vcpu = thread
            .vcpu
            .and_then(|vcpu| tables.vm_of.get(&vcpu).copied());
        let of_helper = || tables.vmm.get(&id).copied().flatten();
        let group = of_vcpu.or_else(of_helper);
        let group = group.and_then(|vm| tables.groups.get(vm));
        let name = group.map_or("", |group| group.name.as_str());
        if group.is_some() {
            of_vms = of_vms.with(events);
        }
        if group.is_none() || tables.has_vm(name) {
            let sum = by_vm.entry(name).or_default();
            *sum = sum.with(events);
        }
    }
    if let Some(unknown) = by_vm.get_mut("") {
        *unknown = unknown.not_before(of_vms);
    }
    by_vm
}

/// What the guest's own writes show.
fn by_guest(tables: &Tables<'_>, group: &Group, found: &mut Vec<Weighted>) {
    let clocks: Vec<GuestClock> = tables
        .accounts(group)
        .map(|account| account.guest_clock)
        .collect();
    let name = &group.name;
    let ahead = clocks.iter().map(|clock| clock.ahead_cycles).max();
    let ahead_s = ahead.unwrap_or(0) / MOST_CYCLES_PER_SECOND;
    if ahead_s >= DEADLINE_AHEAD_S {
        found.push(Weighted::new("deadline_far_ahead", name, DOUBT - 2, [
            format!("{name} arms a timer far ahead of its TSC: a sleep does not end in time."),
            format!(
                "a TSC deadline is {} cycles behind one that the same vCPU armed earlier, {ahead_s} s at \
                 least",
                ahead.unwrap_or(0)
            ),
            "Give the pause of a restore to TSC and kvmclock alike, and write the TSC before the \
             deadline (stealtime clock show 4290, 4099)."
                .to_owned(),
        ]));
    }
    let is_off = |clock: &&GuestClock| clock.kvmclock == Some(false);
    let disabled = clocks.iter().filter(is_off).count();
    if disabled > 0 && clocks.iter().all(|clock| clock.kvmclock != Some(true)) {
        found.push(Weighted::new("kvmclock_disabled", name, 0, [
            format!("The guest of {name} has switched its kvmclock off: it keeps time by another clock."),
            format!("the last write of MSR 0x4b564d01 clears bit 0 on {disabled} of {} vCPUs", clocks.len()),
            "Look at current_clocksource in the guest, and for no-kvmclock on its command line. A guest \
             that shuts down or reboots switches it off as well."
                .to_owned(),
        ]));
    }
}

fn clocks_of(vm: &str, events: &ClockEvents, found: &mut Vec<Weighted>) {
    let unused = events.master.filter(|master| !master.is_used);
    if let Some(master) = unused {
        let next = match master.host_clock_is_tsc {
            true => "Set the same TSC offset for all vCPUs of a VM (KVM_VCPU_TSC_OFFSET).",
            false => "Make the host keep time by its TSC (current_clocksource).",
        };
        let matching = match master.offsets_matched {
            true => "matching",
            false => "not matching",
        };
        found.push(Weighted::new(
            "master_clock_off",
            vm,
            DOUBT - 1,
            [
                format!(
                    "{} runs without a master clock: each kvm-clock read of its guest is a system call.",
                    subject(vm)
                ),
                format!(
                    "{} kvm_update_master_clock, the last without master clock, offsets {matching}",
                    events.updates
                ),
                next.to_owned(),
            ],
        ));
    } else if let Some(tracked) = events.unmatched() {
        found.push(Weighted::new(
            "tsc_not_matched",
            vm,
            DOUBT - 2,
            [
                format!(
                    "The vCPUs of {} have TSCs that do not match.",
                    subject_within(vm)
                ),
                format!(
                    "in the last kvm_track_tsc {} match the first of {}",
                    tracked.matched, tracked.online
                ),
                "Look at how the VMM sets the TSC of vCPUs on start and restore.".to_owned(),
            ],
        ));
    }
}
