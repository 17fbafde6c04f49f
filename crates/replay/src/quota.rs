//! Limits (`cpu.max`) of VMs, by vCPUs that stop until the timer of a period.
//!
//! A VM that stops in most periods has a limit. One that seldom stops has one if nothing else explains it:
//!
//! - it waits although its own CPU is idle;
//! - it continues with the period's timer;
//! - it runs for equally long in each period in which it stops, and for longer in none.

use std::collections::BTreeMap;

/// A stopped VM has not run for so long at the end of its period, in ns: shorter waits are preemption.
const STOPPED_NS: u64 = 3_000_000;
/// It runs again within this time of the timer, in ns.
const RESUMED_NS: u64 = 3_000_000;
/// So many stopped periods make a limit; fewer are chance.
const LEAST: usize = 5;
/// So many do where nothing else explains them.
const LEAST_SURE: usize = 3;
/// Of so many stopped periods at least one stops the VM while it runs.
const TAKEN: usize = 4;
/// The runtime that a CPU carries over to the next period, or overdraws, is less than this, in ns: a slice
/// (`sysctl_sched_cfs_bandwidth_slice`).
const SLICE_NS: u64 = 5_000_000;

/// A VM at the end of a period.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtEnd {
    /// CPU time of its vCPUs so far, in ns.
    pub(crate) ran_ns: u64,
    /// One of them is runnable, none runs.
    pub(crate) waits: bool,
    /// One of them is runnable without a wakeup: it was preempted.
    pub(crate) taken: bool,
    /// One of them is runnable, and its CPU is idle.
    pub(crate) idle: bool,
    /// The last time at which one ran, in ns.
    pub(crate) last_ran: u64,
    /// Their number.
    pub(crate) vcpus: u64,
}

/// A period of a timer, and a VM.
#[derive(Clone, Copy, Debug)]
struct Period {
    /// From the timer's last expiry to this one, in ns.
    ns: u64,
    /// CPU time of the VM in it, in ns.
    ran_ns: u64,
    /// The VM is stopped at its end.
    stopped: bool,
    /// It stopped while it ran.
    taken: bool,
    /// Nothing but a limit explains the stop.
    for_sure: bool,
}

/// Periods of one timer and one VM.
#[derive(Clone, Debug, Default)]
struct Periods {
    before: Option<(u64, u64)>,
    seen: Vec<Period>,
    vcpus: u64,
    /// The end of the last period, while the VM has not run since.
    open: Option<u64>,
}

impl Periods {
    /// The VM runs. A stop by a limit ends at once with the timer.
    fn runs(&mut self, now: u64) {
        if let (Some(end), Some(last)) = (self.open.take(), self.seen.last_mut()) {
            last.for_sure &= now.saturating_sub(end) <= RESUMED_NS;
        }
    }

    /// The CPU time in stopped periods, in ns, if it is a limit.
    fn limited(&self, period_ns: u64) -> Option<u64> {
        let used = |selects: fn(&Period) -> bool| {
            let periods = self.seen.iter().filter(|&period| selects(period));
            periods.map(|period| period.ran_ns).collect::<Vec<u64>>()
        };
        let stopped = used(|period| period.stopped);
        // A limit stops running threads, and some at their wakeup (`check_enqueue_throttle`). A VM with waits
        // that mostly begin with wakeups waits for something else.
        if used(|period| period.taken).len() * TAKEN < stopped.len() {
            return None;
        }
        if stopped.len() >= LEAST && stopped.len() * 2 >= self.seen.len() {
            return median(stopped);
        }
        let sure = used(|period| period.for_sure);
        let quota = median(sure.clone()).filter(|_| sure.len() >= LEAST_SURE)?;
        // Each vCPU's CPU carries up to two slices, and no more than a quarter of the quota.
        let carried = (2 * SLICE_NS).min(quota / 4).saturating_mul(self.vcpus);
        let equal = sure
            .iter()
            .filter(|ran| ran.abs_diff(quota) <= carried)
            .count();
        let whole = |period: &&Period| period.ns < period_ns.saturating_add(period_ns / 2);
        let mut whole = self.seen.iter().filter(whole);
        let never_longer = whole.all(|period| period.ran_ns <= quota.saturating_add(carried));
        (equal * 10 >= sure.len() * 9 && never_longer).then_some(quota)
    }
}

/// Period timers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    /// By the timer's address: its last expiry, and distances of expiries.
    timers: BTreeMap<u64, (u64, Vec<u64>)>,
    by_vm: BTreeMap<(u64, usize), Periods>,
}

impl Quotas {
    /// A period ends.
    pub(crate) fn period_over(&mut self, hrtimer: u64, now: u64, vms: &BTreeMap<usize, AtEnd>) {
        let timer = self.timers.entry(hrtimer).or_insert((now, Vec::new()));
        if now > timer.0 {
            timer.1.push(now - timer.0);
        }
        timer.0 = now;
        for (&vm, state) in vms {
            let periods = self.by_vm.entry((hrtimer, vm)).or_default();
            periods.vcpus = state.vcpus;
            // If the last stop is still open, the VM has not run in this whole period.
            periods.runs(now);
            if let Some((ran_ns, began)) = periods.before.replace((state.ran_ns, now)) {
                let stopped = state.waits && now.saturating_sub(state.last_ran) >= STOPPED_NS;
                periods.seen.push(Period {
                    ns: now - began,
                    ran_ns: state.ran_ns.saturating_sub(ran_ns),
                    stopped,
                    taken: stopped && state.taken,
                    for_sure: stopped && state.idle,
                });
                periods.open = Some(now);
            }
        }
    }

    /// A vCPU of this VM gets a CPU.
    pub(crate) fn runs(&mut self, vm: usize, now: u64) {
        for (_, periods) in self.by_vm.iter_mut().filter(|entry| entry.0.1 == vm) {
            periods.runs(now);
        }
    }

    /// Events were lost: the CPU time of this period is unknown.
    pub(crate) fn lost(&mut self) {
        for periods in self.by_vm.values_mut() {
            periods.before = None;
            periods.open = None;
        }
    }

    /// The VMs' limits: quota and period in ns.
    pub(crate) fn limits(&self) -> BTreeMap<usize, (u64, u64)> {
        let mut limits = BTreeMap::new();
        for (&(hrtimer, vm), periods) in &self.by_vm {
            let distances = self.timers.get(&hrtimer).map(|timer| timer.1.clone());
            let Some(period) = distances.and_then(period_of) else {
                continue;
            };
            let Some(quota) = periods.limited(period) else {
                continue;
            };
            // The kernel takes us, administrators mostly set ms; timers are late by less.
            let rounded = |ns: u64| ns.saturating_add(500_000) / 1_000_000 * 1_000_000;
            limits.insert(vm, (rounded(quota).max(1_000_000), rounded(period)));
        }
        limits.retain(|_, limit| (1_000_000..=1_000_000_000).contains(&limit.1));
        limits
    }
}

/// The period of a timer. It does not expire while no group needs runtime, so some distances are several
/// periods.
fn period_of(mut distances: Vec<u64>) -> Option<u64> {
    distances.sort_unstable();
    let quarter = distances.get(distances.len() / 4)?;
    let longest_ns = quarter.saturating_add(quarter / 2);
    distances.retain(|&ns| ns < longest_ns);
    median(distances)
}

/// The upper one of the two in the middle of an even number; `None` without values.
pub(crate) fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A VM in a period of 100 ms.
    struct Ran {
        ran_ns: u64,
        end: AtEnd,
        /// From the end of the period to its next run, in ns.
        resumed_ns: u64,
    }

    const fn ran(ran_ns: u64, end: AtEnd, resumed_ns: u64) -> Ran {
        Ran {
            ran_ns,
            end,
            resumed_ns,
        }
    }

    /// The limits that these periods show.
    fn limits(periods: impl Iterator<Item = Ran>) -> BTreeMap<usize, (u64, u64)> {
        let mut quotas = Quotas::default();
        let mut ran_ns = 0;
        for (n, period) in (1..).zip(periods) {
            let now = n * 100_000_000 + n * 1_700;
            ran_ns += period.ran_ns;
            let state = AtEnd {
                ran_ns,
                last_ran: now - 50_000_000,
                vcpus: 1,
                ..period.end
            };
            quotas.period_over(7, now, &BTreeMap::from([(3, state)]));
            quotas.runs(3, now + period.resumed_ns);
        }
        quotas.limits()
    }

    const WAITS: AtEnd = AtEnd {
        ran_ns: 0,
        waits: true,
        taken: true,
        idle: false,
        last_ran: 0,
        vcpus: 1,
    };
    const STOPPED: AtEnd = AtEnd {
        idle: true,
        ..WAITS
    };
    const HALTED: AtEnd = AtEnd {
        waits: false,
        taken: false,
        ..WAITS
    };
    const WOKEN: AtEnd = AtEnd {
        taken: false,
        ..STOPPED
    };

    #[test]
    fn a_vm_that_is_stopped_has_a_limit() {
        let always = |end| limits((0..19).map(move |_| ran(39_900_000, end, 900_000_000)));
        let found = BTreeMap::from([(3, (40_000_000, 100_000_000))]);
        assert_eq!(always(WAITS), found);
        assert!(always(HALTED).is_empty());
        assert!(always(WOKEN).is_empty());
        // Some of its threads are woken meanwhile.
        let ends = |n| if n % 3 == 0 { STOPPED } else { WOKEN };
        let mixed = limits((0..19).map(|n| ran(39_900_000, ends(n), 900_000_000)));
        assert_eq!(mixed, found);
    }

    /// Of 40 periods every sixth ends so, after running for so long, and goes on so late; in the others it
    /// runs for less.
    fn now_and_then(
        end: AtEnd,
        ran_ns: fn(u64) -> u64,
        resumed_ns: u64,
    ) -> BTreeMap<usize, (u64, u64)> {
        limits((0..40).map(|n| match n % 6 {
            5 => ran(ran_ns(n), end, resumed_ns),
            _ => ran(n * 900_000, HALTED, 20_000_000),
        }))
    }

    #[test]
    fn one_that_is_stopped_now_and_then_has_a_limit_if_nothing_else_explains_it() {
        let equal = |_| 39_900_000;
        let found = BTreeMap::from([(3, (40_000_000, 100_000_000))]);
        assert_eq!(now_and_then(STOPPED, equal, 100_000), found);
        // Another task may have had its CPU.
        assert!(now_and_then(WAITS, equal, 100_000).is_empty());
        // The timer did not let it go on.
        assert!(now_and_then(STOPPED, equal, 9_000_000).is_empty());
        // It did not wait at the same point.
        assert!(now_and_then(STOPPED, |n| 30_000_000 + n * 1_000_000, 100_000).is_empty());
        // It has run for longer in other periods.
        assert!(now_and_then(STOPPED, |_| 20_000_000, 100_000).is_empty());
    }

    #[test]
    fn a_timer_that_rests_has_the_period_of_its_shortest_distances() {
        let distances = [100, 200, 101, 500, 99, 300, 100, 400, 200];
        let distances = distances.map(|ms| ms * 1_000_000);
        assert_eq!(period_of(distances.to_vec()), Some(100_000_000));
    }

    #[test]
    fn a_period_is_the_middle_of_distances_without_gaps() {
        // Timers that rested for one period or more, or a half of one.
        let distances = [100, 100, 102, 150, 200, 300];
        assert_eq!(period_of(distances.to_vec()), Some(100));
        assert_eq!(period_of(Vec::new()), None);
    }

    #[test]
    fn a_vm_that_ran_longer_in_a_whole_period_has_no_limit() {
        let period = |ns: u64, ran_ns: u64, for_sure: bool| Period {
            ns,
            ran_ns,
            stopped: false,
            taken: false,
            for_sure,
        };
        let limited = |last: Period| {
            let sure = period(100_000_000, 40_000_000, true);
            let mut seen = vec![sure; 50];
            seen.push(last);
            let periods = Periods {
                seen,
                vcpus: 1,
                ..Periods::default()
            };
            periods.limited(100_000_000)
        };
        // The timer rested: these are several periods.
        assert_eq!(
            limited(period(250_000_000, 90_000_000, false)),
            Some(40_000_000)
        );
        assert_eq!(limited(period(140_000_000, 90_000_000, false)), None);
    }

    /// The limit that periods show, each so long and with so much CPU time of the VM, in ms. `None`: events
    /// are lost.
    fn limit(periods: &[Option<(u64, u64, AtEnd)>]) -> Option<(u64, u64)> {
        const MS: u64 = 1_000_000;
        let mut quotas = Quotas::default();
        let (mut now, mut ran_ns) = (1, 0);
        quotas.period_over(7, now, &BTreeMap::from([(3, AtEnd::default())]));
        for period in periods {
            let Some((ms, ran_ms, end)) = *period else {
                quotas.lost();
                continue;
            };
            now += ms * MS;
            ran_ns += ran_ms * MS;
            let state = AtEnd {
                ran_ns,
                last_ran: now - 50 * MS,
                ..end
            };
            quotas.period_over(7, now, &BTreeMap::from([(3, state)]));
            quotas.runs(3, now + MS);
        }
        let limit = quotas.limits().get(&3).copied();
        limit.map(|(quota, period)| (quota / MS, period / MS))
    }

    /// Periods of 100 ms that end so after each of these CPU times, in ms.
    fn whole(end: AtEnd, ran_ms: &[u64]) -> Vec<Option<(u64, u64, AtEnd)>> {
        ran_ms.iter().map(|&ms| Some((100, ms, end))).collect()
    }

    #[test]
    fn only_whole_periods_that_are_known_show_that_a_vm_runs_for_longer() {
        let stopped = [whole(STOPPED, &[40; 3]), whole(HALTED, &[10; 4])].concat();
        let and = |more: &[Option<(u64, u64, AtEnd)>]| limit(&[&stopped, more].concat());
        let found = Some((40, 100));
        assert_eq!(and(&[]), found);
        assert_eq!(and(&[Some((100, 90, HALTED))]), None);
        assert_eq!(and(&[Some((149, 90, HALTED))]), None);
        // The timer rested, or events were lost.
        assert_eq!(and(&[Some((150, 90, HALTED))]), found);
        assert_eq!(and(&[Some((300, 90, HALTED))]), found);
        assert_eq!(and(&[None, Some((100, 90, HALTED))]), found);
    }

    #[test]
    fn a_vm_that_waits_at_the_end_of_half_of_the_periods_has_a_limit() {
        let of_ten = |stopped| {
            let seldom = whole(HALTED, &vec![10; 10 - stopped]);
            limit(&[whole(WAITS, &vec![40; stopped]), seldom].concat())
        };
        let found = Some((40, 100));
        assert_eq!([4, 5, 6].map(of_ten), [None, found, found]);
    }

    #[test]
    fn nine_in_ten_stops_are_after_equal_time_to_within_a_quarter() {
        let stops =
            |ran_ms: &[u64]| limit(&[whole(STOPPED, ran_ms), whole(HALTED, &[1; 7])].concat());
        assert_eq!(stops(&[4, 4, 5, 3, 4]), Some((4, 100)));
        assert_eq!(stops(&[4, 4, 4, 1, 1]), None);
        // And to within two slices.
        assert_eq!(stops(&[60, 60, 69, 51, 60]), Some((60, 100)));
        assert_eq!(stops(&[60, 60, 60, 49, 49]), None);
    }

    #[test]
    fn a_period_is_between_expiries_alone() {
        let ends = [
            (98, 40, STOPPED),
            (98, 40, STOPPED),
            (104, 40, STOPPED),
            (104, 10, HALTED),
        ];
        assert_eq!(limit(&ends.map(Some)), Some((40, 104)));
    }
}
