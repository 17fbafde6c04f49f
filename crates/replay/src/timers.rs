//! The owner of an hrtimer, and what kind of timer ended a wait.

use std::collections::BTreeMap;

use stealtime_simulator::script::{Step, Ticks, Until};
use stealtime_track::ThreadIndex;

use crate::slices::LONGEST_SLICE_NS;
use crate::task::Timed;

/// hrtimers of the host's own housekeeping, which a task only happens to set.
const OF_THE_HOST: [&str; 3] = [
    "dl_task_timer",
    "sched_cfs_period_timer",
    "watchdog_timer_fn",
];

pub(crate) fn bare(function: &str) -> &str {
    function.split(['/', '+']).next().unwrap_or(function)
}

/// The context in which a timer is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setter {
    /// The task, or the one that happens to be interrupted.
    pub(crate) thread: ThreadIndex,
    pub(crate) in_task: bool,
    /// When, by the recording's clock in ns.
    pub(crate) time: u64,
    /// The timer's own callback does.
    pub(crate) in_callback: bool,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// It ends slices.
    Slice,
    /// A tick of the host.
    Tick,
    /// Some other housekeeping.
    Host,
    /// A task set it for itself.
    Own,
}

/// Timers of a function without a name.
#[derive(Clone, Debug, Default)]
struct Unnamed {
    /// Which task set it last, by the timer's address.
    set_by: BTreeMap<u64, ThreadIndex>,
    /// How often a task set one, and how often another one than before.
    sets: u32,
    shared: u32,
    /// How often a callback set its own timer again.
    again: u32,
    /// How often it was set for longer than any slice, less how often it was not.
    far: i64,
}

impl Unnamed {
    /// After so many sets its owner is known: a timer that another task sets one time in four is no task's
    /// own.
    const SETS_FROM: u32 = 20;

    /// One is set, for so many ns from now on if that is known.
    fn set(&mut self, hrtimer: u64, setter: Setter, ahead_ns: Option<i64>) -> Sort {
        self.far += match ahead_ns {
            Some(ns) if ns >= LONGEST_SLICE_NS as i64 => 1,
            Some(_) => -1,
            None => 0,
        };
        if setter.in_callback {
            self.again += 1;
        } else if setter.in_task && setter.thread != ThreadIndex::IDLE {
            self.sets += 1;
            let former = self.set_by.insert(hrtimer, setter.thread);
            self.shared += u32::from(former.is_some_and(|thread| thread != setter.thread));
        }
        let shared = self.sets >= Self::SETS_FROM && self.shared * 4 >= self.sets;
        match (shared, self.again > 0) {
            (true, false) if self.far <= 0 => Sort::Slice,
            (true, _) => Sort::Host,
            (false, true) if self.set_by.is_empty() => Sort::Tick,
            (false, _) if setter.in_task && setter.thread == ThreadIndex::IDLE => Sort::Host,
            (false, _) => Sort::Own,
        }
    }
}

/// A timer of a task's own.
#[derive(Clone, Copy, Debug)]
struct Armed {
    thread: ThreadIndex,
    /// When it is to expire, by its own clock, and when it was set by the recording's, in ns.
    expires: u64,
    set_at: u64,
}

/// Clocks of timers are apart by more than this, in ns; by how much an expiry is late is less.
const CLOCKS_APART_NS: u64 = 1_000_000_000;

/// hrtimers by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    armed: BTreeMap<u64, Armed>,
    /// The recording's clock less those of the timers, in ns, as expiries show them: some timers go by the
    /// time of day.
    clocks: Vec<i64>,
    ticks: BTreeMap<u64, u64>,
    hrticks: u64,
    /// By function, where it has no name.
    unnamed: BTreeMap<String, Unnamed>,
    /// When slice timers are to expire.
    slices: BTreeMap<u64, u64>,
    /// Distances of ticks in microseconds, and how often each was seen.
    distances: BTreeMap<u64, u64>,
}

impl Timers {
    /// A timer is set. Whether it is one of a task's own.
    pub(crate) fn start(
        &mut self,
        hrtimer: u64,
        expires: u64,
        function: &str,
        setter: Setter,
    ) -> bool {
        match self.sort(hrtimer, expires, function, setter) {
            Sort::Slice => {
                self.hrticks += 1;
                self.slices.insert(hrtimer, expires);
                return false;
            }
            Sort::Tick => {
                if let Some(last) = self.ticks.insert(hrtimer, expires)
                    && expires > last
                {
                    let micros = (expires - last).saturating_add(500) / 1_000;
                    *self.distances.entry(micros).or_default() += 1;
                }
                return false;
            }
            Sort::Host => return false,
            Sort::Own => {}
        }
        match self.armed.get_mut(&hrtimer) {
            // A periodic one that its own callback sets again keeps its owner.
            Some(known) if !setter.in_task => {
                (known.expires, known.set_at) = (expires, setter.time)
            }
            _ => {
                let armed = Armed {
                    thread: setter.thread,
                    expires,
                    set_at: setter.time,
                };
                self.armed.insert(hrtimer, armed);
            }
        }
        true
    }

    /// What a timer is for. Where functions have no names, the contexts that set it show it.
    fn sort(&mut self, hrtimer: u64, expires: u64, function: &str, setter: Setter) -> Sort {
        let name = bare(function);
        if name.starts_with("0x") {
            let ahead_ns = self.ahead(expires, setter.time);
            let unnamed = self.unnamed.entry(name.to_owned()).or_default();
            return unnamed.set(hrtimer, setter, ahead_ns);
        }
        match name {
            "hrtick" => Sort::Slice,
            "tick_nohz_handler" | "tick_sched_timer" => Sort::Tick,
            _ if (setter.thread == ThreadIndex::IDLE && setter.in_task)
                || OF_THE_HOST.contains(&name) =>
            {
                Sort::Host
            }
            _ => Sort::Own,
        }
    }

    /// A timer expires at `time` of the recording, `now` of its own clock.
    pub(crate) fn expire(&mut self, time: u64, now: u64) {
        let offset = (time as i64).wrapping_sub(now as i64);
        let mut clocks = self.clocks.iter_mut();
        match clocks.find(|clock| clock.abs_diff(offset) < CLOCKS_APART_NS) {
            // The least is that of the shortest way from the clock's reading to the event.
            Some(least) => *least = offset.min(*least),
            None => self.clocks.push(offset),
        }
    }

    /// Whether it is a slice timer that is set.
    pub(crate) fn ends_slices(&self, hrtimer: u64) -> bool {
        self.slices.contains_key(&hrtimer)
    }

    /// After how long from `now` a slice timer is to expire, in ns.
    pub(crate) fn slice_ahead(&self, hrtimer: u64, now: u64) -> Option<u64> {
        let ahead = self.ahead(*self.slices.get(&hrtimer)?, now)?;
        Some(ahead.max(0).unsigned_abs())
    }

    /// From a time of the recording to one of a timer's clock, in ns. Timers have several clocks: the one by
    /// which that is nearest is taken.
    fn ahead(&self, expires: u64, now: u64) -> Option<i64> {
        let ahead = |&clock: &i64| {
            (expires as i64)
                .checked_add(clock)?
                .checked_sub_unsigned(now)
        };
        let of_clocks = self.clocks.iter().filter_map(ahead);
        of_clocks.min_by_key(|ns| ns.unsigned_abs())
    }

    /// By how much a slice timer that expires at `now` of its own clock is late.
    pub(crate) fn slice_late(&mut self, hrtimer: u64, now: u64) -> Option<u64> {
        let expires = self.slices.remove(&hrtimer)?;
        Some(now.saturating_sub(expires))
    }

    /// By how much a tick that comes at `now` of its timer's clock is late.
    pub(crate) fn tick_late(&self, hrtimer: u64, now: u64) -> Option<u64> {
        let expires = self.ticks.get(&hrtimer)?;
        Some(now.saturating_sub(*expires))
    }

    /// The task that owns it.
    pub(crate) fn owner(&self, hrtimer: u64) -> Option<ThreadIndex> {
        self.armed.get(&hrtimer).map(|armed| armed.thread)
    }

    /// When it was to expire, by the recording's clock, if it is this task's.
    pub(crate) fn expires_for(&self, hrtimer: u64, thread: ThreadIndex) -> Option<u64> {
        let armed = self.armed.get(&hrtimer)?;
        if armed.thread != thread {
            return None;
        }
        let ahead = self.ahead(armed.expires, armed.set_at)?;
        armed.set_at.checked_add_signed(ahead)
    }

    /// Whether slices end by timers, if timers were recorded.
    pub(crate) fn hrtick(&self) -> Option<bool> {
        (!self.ticks.is_empty()).then_some(self.hrticks > 0)
    }

    /// Ticks a second, if ticks were seen.
    pub(crate) fn hz(&self) -> Option<u32> {
        let near = |micros: u64, hz: u64| micros.abs_diff(1_000_000 / hz) <= 2;
        let rates = [1000u32, 300, 250, 100];
        let counts = rates.map(|hz| {
            let distances = self.distances.iter();
            distances
                .filter(|distance| near(*distance.0, u64::from(hz)))
                .map(|distance| distance.1)
                .sum::<u64>()
        });
        let largest = counts.iter().copied().max().filter(|&count| count > 0)?;
        let index = counts.iter().position(|&count| count == largest)?;
        rates.get(index).copied()
    }
}

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
                Some(armed) => Until::Armed(wait.woken.saturating_sub(armed)),
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
    let late_us = wait.woken.saturating_sub(wait.expires) / 1_000;
    let phase = (wait.expires + grid.period - first % grid.period) % grid.period;
    Until::Grid {
        phase_ns: phase as u32,
        period_ns: grid.period as u32,
        nth: u16::try_from(nth).unwrap_or(u16::MAX),
        late_us: u16::try_from(late_us).unwrap_or(u16::MAX),
    }
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
    fn a_program_that_wakes_at_fixed_times_is_told_from_ticks() {
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
    fn timers_without_names_that_are_set_far_ahead_end_no_slices() {
        let mut timers = Timers::default();
        timers.expire(1_000, 1_000);
        let mut set = |function: &str, n: u64, ahead_ns| {
            let time = 1_000 + n * 100_000;
            let setter = Setter {
                thread: ThreadIndex(n as u32 % 3 + 2),
                in_task: true,
                time,
                in_callback: false,
            };
            timers.start(ahead_ns, time + ahead_ns, function, setter);
        };
        for n in 0..60 {
            set("0xffffffff81000010", n, 1_400_000);
            set("0xffffffff81000020", n, 950_000_000);
        }
        assert!(timers.ends_slices(1_400_000) && !timers.ends_slices(950_000_000));
    }

    #[test]
    fn timers_that_go_by_the_time_of_day_do_not_move_the_others() {
        let (boot, day) = (5_000_000_000, 1_700_000_000_000_000_000);
        let mut timers = Timers::default();
        let mut set = |hrtimer, thread, time, expires, now| {
            let thread = ThreadIndex(thread);
            let setter = Setter {
                thread,
                in_task: true,
                time,
                in_callback: false,
            };
            timers.start(hrtimer, expires, "hrtimer_wakeup", setter);
            timers.expire(time + 50_000, now);
            timers.expires_for(hrtimer, thread)
        };
        // The recording's clock began 5 s after the timers' own.
        let mono = |time: u64| time + boot;
        assert_eq!(set(1, 7, 1_000, mono(51_000), mono(51_000)), Some(51_000));
        let of_day = set(2, 8, 100_000, 149_000 + day, 150_000 + day);
        assert_eq!(of_day, Some(149_000));
        assert_eq!(
            set(1, 7, 200_000, mono(249_000), mono(250_000)),
            Some(249_000)
        );
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
}
