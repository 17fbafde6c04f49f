//! Limits (`cpu.max`) of VMs: who stands still until a period's timer, and then goes on.

use std::collections::BTreeMap;

/// The function of the timer that hands out runtime.
pub(crate) const PERIOD_TIMER: &str = "sched_cfs_period_timer";
/// A VM that is stopped has not run for so long when its period is over, in ns.
const STOPPED_NS: u64 = 3_000_000;
/// So many periods in which it was stopped make a limit; fewer are chance.
const LEAST: usize = 5;

/// A VM at the end of a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtEnd {
    /// What its vCPUs have run so far, in ns.
    pub(crate) ran_ns: u64,
    /// One of them could run, none does.
    pub(crate) waits: bool,
    /// When one ran last.
    pub(crate) last_ran: u64,
}

/// Periods of one timer and one VM.
#[derive(Clone, Debug, Default)]
struct Periods {
    before: Option<u64>,
    /// What was run in each, and whether the VM was stopped at its end.
    seen: Vec<(u64, bool)>,
}

/// Period timers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    /// By the timer's address: its last expiry, and distances of expiries.
    timers: BTreeMap<u64, (u64, Vec<u64>)>,
    by_vm: BTreeMap<(u64, usize), Periods>,
}

impl Quotas {
    /// A period is over.
    pub(crate) fn period_over(&mut self, hrtimer: u64, now: u64, vms: &BTreeMap<usize, AtEnd>) {
        let timer = self.timers.entry(hrtimer).or_insert((now, Vec::new()));
        if now > timer.0 {
            timer.1.push(now - timer.0);
        }
        timer.0 = now;
        for (&vm, at) in vms {
            let periods = self.by_vm.entry((hrtimer, vm)).or_default();
            if let Some(before) = periods.before.replace(at.ran_ns) {
                let stopped = at.waits && now.saturating_sub(at.last_ran) >= STOPPED_NS;
                periods
                    .seen
                    .push((at.ran_ns.saturating_sub(before), stopped));
            }
        }
    }

    /// Events were lost: what was run in this period is not known.
    pub(crate) fn lost(&mut self) {
        for periods in self.by_vm.values_mut() {
            periods.before = None;
        }
    }

    /// The VMs' limits: quota and period in ns.
    pub(crate) fn limits(&self) -> BTreeMap<usize, (u64, u64)> {
        let mut limits = BTreeMap::new();
        for (&(hrtimer, vm), periods) in &self.by_vm {
            let stopped = periods.seen.iter().filter(|seen| seen.1);
            let used: Vec<u64> = stopped.map(|seen| seen.0).collect();
            if used.len() < LEAST || used.len() * 2 < periods.seen.len() {
                continue;
            }
            let distances = self.timers.get(&hrtimer).map(|timer| timer.1.clone());
            let (Some(quota), Some(period)) = (median(used), distances.and_then(median)) else {
                continue;
            };
            // Both are set in us, and mostly in ms; timers are late by less.
            let rounded = |ns: u64| (ns + 500_000) / 1_000_000 * 1_000_000;
            limits.insert(vm, (rounded(quota).max(1_000_000), rounded(period)));
        }
        limits.retain(|_, limit| (1_000_000..=1_000_000_000).contains(&limit.1));
        limits
    }
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A VM that runs `ran` of each 100 ms and then waits, or not.
    fn limits(ran: u64, waits: bool) -> BTreeMap<usize, (u64, u64)> {
        let mut quotas = Quotas::default();
        for n in 1..20u64 {
            let now = n * 100_000_000 + n * 1_700;
            let at = AtEnd {
                ran_ns: n * ran,
                waits,
                last_ran: now - 50_000_000,
            };
            quotas.period_over(7, now, &BTreeMap::from([(3, at)]));
        }
        quotas.limits()
    }

    #[test]
    fn a_vm_that_is_stopped_has_a_limit() {
        let seen = limits(39_900_000, true);
        assert_eq!(seen, BTreeMap::from([(3, (40_000_000, 100_000_000))]));
        assert!(limits(39_900_000, false).is_empty());
    }
}
