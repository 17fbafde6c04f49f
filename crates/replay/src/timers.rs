//! The kind of timer that ended a wait: on a grid in time, or relative to what its task did.

use std::collections::BTreeMap;

use stealtime_simulator::script::{Step, Ticks, Until};

use crate::task::Timed;

/// Periods that guests' ticks have, in ns.
const PERIODS: [u64; 3] = [1_000_000, 4_000_000, 10_000_000];
/// How far a tick's expiry may be from its grid, in ns.
const NEAR_NS: u64 = 30_000;
/// So many waits on a grid make one; fewer are chance.
const LEAST: usize = 8;

/// A grid in time on which timers of a task expire.
#[derive(Clone, Copy, Debug)]
struct Grid {
    phase: u64,
    period: u64,
}

/// Periods of programs that wake at fixed times are round, in ns, and no shorter than this.
const ROUND_NS: u64 = 50_000;
const SHORTEST_NS: u64 = 500_000;
const LONGEST_NS: u64 = 1_000_000_000;

/// The phase in which most timers expire at this period, and how many do.
fn most_in_phase(expiries: impl Iterator<Item = u64>, period: u64) -> (usize, Grid) {
    let mut phases: Vec<u64> = expiries.map(|expires| expires % period).collect();
    phases.sort_unstable();
    let mut best = (0, 0);
    let mut end = 0;
    for (start, &earliest) in phases.iter().enumerate() {
        while phases.get(end).is_some_and(|&p| p <= earliest + NEAR_NS) {
            end += 1;
        }
        if end - start > best.0 {
            best = (end - start, earliest + NEAR_NS / 2);
        }
    }
    let phase = best.1 % period;
    (best.0, Grid { phase, period })
}

fn expiries(timed: &[Timed]) -> impl Iterator<Item = u64> {
    timed.iter().map(|wait| wait.expires)
}

/// Ticks of a guest that come at these times, or were late as it had no CPU. Their period is the longest one
/// in which nearly as many are in phase as in a shorter one. A third of all must be.
pub(crate) fn ticks_of(times: &[u64], first: u64) -> Option<Ticks> {
    let [shortest, longer @ ..] =
        PERIODS.map(|period| most_in_phase(times.iter().copied(), period));
    let mut longest = longer.into_iter().rev();
    let (n, grid) = longest
        .find(|(n, _)| n * 10 >= shortest.0 * 9)
        .unwrap_or(shortest);
    let phase = (grid.phase + grid.period - first % grid.period) % grid.period;
    (n >= LEAST && n * 3 >= times.len()).then_some(Ticks {
        phase_ns: phase as u32,
        period_ns: grid.period as u32,
    })
}

/// The period of a program that wakes at fixed times. Most distances of expiries are the same, and nearly all
/// expiries are in phase.
fn find_cycle(timed: &[Timed]) -> Option<Grid> {
    let next = timed.iter().skip(1);
    let pairs = timed.iter().zip(next);
    let mut distances: Vec<u64> = pairs
        .map(|(wait, next)| next.expires.saturating_sub(wait.expires))
        .collect();
    distances.sort_unstable();
    let median = distances.get(distances.len() / 2)?;
    let period = (median + ROUND_NS / 2) / ROUND_NS * ROUND_NS;
    // What could be a kernel's tick is one: its timers are so many ticks from when they were set.
    if !(SHORTEST_NS..=LONGEST_NS).contains(&period) || PERIODS.contains(&period) {
        return None;
    }
    let near = distances.iter().filter(|d| d.abs_diff(period) <= NEAR_NS);
    let mostly = near.count() * 2 >= distances.len();
    let (n, grid) = most_in_phase(expiries(timed), period);
    (mostly && n >= LEAST && n * 10 >= timed.len() * 9).then_some(grid)
}

/// The cycle of a program. Otherwise the longest period of ticks at which as many timers expire in phase as
/// at a shorter one, and half of all. A timer of 4 ms is on a grid of 1 ms too. But a task that is late for
/// it does not wait for the next millisecond.
fn find_grid(timed: &[Timed]) -> Option<Grid> {
    let ticks = || {
        let mut found = PERIODS
            .map(|period| most_in_phase(expiries(timed), period))
            .into_iter();
        let shortest = found.find(|(n, _)| *n >= LEAST && n * 2 >= timed.len())?;
        let mut longest = found.rev();
        let as_many = longest.find(|(n, _)| n * 20 >= shortest.0 * 19);
        Some(as_many.unwrap_or(shortest))
    };
    find_cycle(timed).or_else(|| ticks().map(|found| found.1))
}

/// Sets the end of each wait that a timer ended, or would have ended. The timer lies on a grid, or is
/// relative to what the task had done.
pub(crate) fn settle_timed(steps: &mut [Step], timed: &[Timed], alarms: &[Timed], first: u64) {
    let grid = find_grid(timed);
    for wait in timed.iter().chain(alarms) {
        let end = match grid {
            Some(grid) if on(grid, wait.expires) => of_grid(grid, wait, first),
            _ => match wait.armed {
                Some(armed) => Until::Armed {
                    ns: wait.woken.saturating_sub(armed),
                    exit_us: 0,
                },
                None => Until::Time(wait.woken - first),
            },
        };
        if let Some(Step::Halt(wait_end) | Step::Sleep(wait_end) | Step::Alarm(wait_end)) =
            steps.get_mut(wait.step)
        {
            *wait_end = end;
        }
    }
}

fn on(grid: Grid, expires: u64) -> bool {
    let phase = (expires + grid.period - grid.phase) % grid.period;
    phase.min(grid.period - phase) <= NEAR_NS
}

/// The grid as this timer has it: its own phase, so that what it is off the grid's stays.
fn of_grid(grid: Grid, wait: &Timed, first: u64) -> Until {
    // One that was due before is late.
    let nth = wait
        .expires
        .saturating_sub(wait.began)
        .div_ceil(grid.period);
    let phase = (wait.expires + grid.period - first % grid.period) % grid.period;
    Until::Grid {
        phase_ns: phase as u32,
        period_ns: grid.period as u32,
        nth: u16::try_from(nth).unwrap_or(u16::MAX),
        late_us: late_us(wait),
    }
}

/// How long after the timer was due the wait ended, in us.
fn late_us(wait: &Timed) -> u16 {
    let late_us = wait.woken.saturating_sub(wait.expires) / 1_000;
    u16::try_from(late_us).unwrap_or(u16::MAX)
}

/// The same of each wait that a timer ended, by its step.
pub(crate) fn late_by_step(timed: &[Timed]) -> BTreeMap<usize, u16> {
    timed
        .iter()
        .map(|wait| (wait.step, late_us(wait)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until these times.
    fn timed(expires: impl Iterator<Item = u64>) -> Vec<Timed> {
        let wait = |(step, expires)| Timed {
            step,
            began: expires - 400_000,
            woken: expires,
            expires,
            armed: None,
        };
        expires.enumerate().map(wait).collect()
    }

    #[test]
    fn a_program_that_wakes_at_fixed_times_differs_from_ticks() {
        let period = |expires: Vec<u64>| find_grid(&timed(expires.into_iter())).map(|g| g.period);
        let start = 7_203_111;
        // Half of these lie on a grid of 1 ms too.
        let cycle = (0..40).map(|n| start + n * 1_500_000 + n % 7 * 1_000);
        assert_eq!(period(cycle.clone().collect()), Some(1_500_000));
        // Some were missed.
        let kept = cycle.enumerate().filter(|(n, _)| n % 5 != 0);
        assert_eq!(period(kept.map(|wait| wait.1).collect()), Some(1_500_000));
        // A kernel's timers expire at ticks, the one sooner and the other later.
        let ticks = [1, 3, 4, 8, 9, 12, 17, 18, 20, 25, 26, 31];
        for hz in [4_000_000, 1_000_000] {
            let ticks = ticks.map(|n| start + n * hz);
            assert_eq!(period(ticks.to_vec()), Some(hz));
        }
        // Relative to what was done before: nothing is in phase.
        let relative = (1..40u64).map(|n| start + n * 1_500_000 + n * n * 17_011 % 900_000);
        assert_eq!(period(relative.collect()), None);
    }

    #[test]
    fn ticks_are_found_where_some_came_late() {
        let late = |n: u64| {
            if n.is_multiple_of(3) {
                n * 137_011 % 3_000_000
            } else {
                0
            }
        };
        let ticks = |period: u64| -> Vec<u64> {
            (1..60)
                .map(|n| 700_000 + n * period + late(n) % period)
                .collect()
        };
        for period in [1_000_000, 4_000_000, 10_000_000] {
            let found = ticks_of(&ticks(period), 500_000).unwrap();
            assert_eq!(u64::from(found.period_ns), period);
            // By the run's clock, which begins half a millisecond later.
            assert!(found.phase_ns.abs_diff(200_000) <= 15_000, "{found:?}");
        }
        let chance: Vec<u64> = (1..60).map(|n| n * n * 1_370_113).collect();
        assert_eq!(ticks_of(&chance, 0), None);
        assert_eq!(ticks_of(&[], 0), None);
    }

    #[test]
    fn a_timer_from_before_the_recording_has_its_phase() {
        let grid = Grid {
            phase: 0,
            period: 1_000_000,
        };
        let [wait] = &timed([1_700_000].into_iter())[..] else {
            panic!("one wait");
        };
        for (first, phase) in [(0, 700_000), (1_600_000, 100_000), (5_800_000, 900_000)] {
            let Until::Grid { phase_ns, nth, .. } = of_grid(grid, wait, first) else {
                panic!("a grid");
            };
            assert_eq!((phase_ns, nth), (phase, 1), "{first}");
        }
    }

    #[test]
    fn waits_are_as_late_as_their_ends() {
        let mut waits = timed([1_000_000, 2_000_000, 3_000_000].into_iter());
        waits[1].woken += 7_999;
        waits[2].woken += 70_000_000;
        let late = BTreeMap::from([(0, 0), (1, 7), (2, u16::MAX)]);
        assert_eq!(late_by_step(&waits), late);
    }

    #[test]
    fn of_phases_that_are_as_frequent_the_first_counts() {
        let expiries = (0..20).map(|n| n * 1_000_000 + if n % 2 == 0 { 100_000 } else { 600_000 });
        let (count, grid) = most_in_phase(expiries, 1_000_000);
        assert_eq!((count, grid.phase), (10, 115_000));
    }

    #[test]
    fn waits_off_the_grid_end_when_they_did() {
        let mut steps = vec![Step::Halt(Until::Time(0)); 2];
        let mut waits = timed([7_000_000, 9_100_000].into_iter());
        waits[1].armed = Some(8_500_000);
        settle_timed(&mut steps, &waits, &[], 2_000_000);
        let armed = Until::Armed {
            ns: 600_000,
            exit_us: 0,
        };
        let ends = [Until::Time(5_000_000), armed];
        assert_eq!(steps, ends.map(Step::Halt));
    }
}
