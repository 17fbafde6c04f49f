//! Guests with a clock of which each read exits.

use stealtime_events::exit_reason::Class;

use super::Weighted;
use crate::answers::Answers;
use crate::clock_reads::CLOCKS;
use crate::stats::total;
use crate::tables::Tables;
use crate::vms::Group;

/// From this many reads a second of CPU time on the clock costs the guest. The kernel's clocksource
/// watchdog of a guest reads the HPET or PM timer a few times a second in any case.
pub(super) const PER_SECOND: u128 = 100;
/// With fewer reads a boot explains them.
const MIN_READS: u64 = 100;
/// A second, in ns.
const SECOND_NS: u128 = 1_000_000_000;
/// Classes of the exits that the reads of each of [`CLOCKS`] cause.
const CLASSES: [Class; CLOCKS.len()] = [Class::Msr, Class::Pio, Class::Memory];

/// Adds what is found of reads.
pub(crate) fn find(tables: &Tables<'_>, answers: &Answers, found: &mut Vec<Weighted>) {
    for group in tables.selected() {
        let vcpus = answers.vcpus.iter().filter(|vcpu| vcpu.vm == group.name);
        let on_cpu = total(vcpus.map(|vcpu| vcpu.on_cpu_ns));
        for (index, (clock, class)) in CLOCKS.into_iter().zip(CLASSES).enumerate() {
            let accounts = tables.accounts(group);
            let reads: u64 = accounts
                .map(|account| account.clock_reads.counts[index])
                .sum();
            let rate = u128::from(reads) * SECOND_NS / u128::from(on_cpu.max(1));
            if reads < MIN_READS || rate < PER_SECOND {
                continue;
            }
            let mean = mean_ns(tables, group, class);
            let name = &group.name;
            found.push(Weighted::new("clock_reads_exit", name, reads.saturating_mul(mean), [
                format!("{name} reads the time from the {}: each read exits.", clock.name),
                format!(
                    "{reads} reads of {}, {rate} in each second of its time on CPUs; handling such an \
                     exit takes {}.{:03} us on average",
                    clock.place,
                    mean / 1000,
                    mean % 1000
                ),
                clock.next.to_owned(),
            ]));
        }
    }
}

/// What handling an exit of this class takes on a CPU, in ns.
fn mean_ns(tables: &Tables<'_>, group: &Group, class: Class) -> u64 {
    let reasons = tables.analysis.tracker.reasons();
    let (mut count, mut ns) = (0_u64, 0_u64);
    for account in tables.accounts(group) {
        let slots = account.reasons();
        for (_, slot) in slots.filter(|(reason, _)| reasons.class(*reason) == class) {
            count += slot.count;
            ns = ns.saturating_add(slot.ns);
        }
    }
    ns.checked_div(count).unwrap_or(0)
}
