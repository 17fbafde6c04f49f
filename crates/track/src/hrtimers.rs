//! hrtimers of the host: what each is for, the task that owns it, and the callback that runs.

use std::collections::BTreeMap;

use stealtime_events::{Context, Event, Kind, Names};

use crate::{IntMap, Place, ThreadIndex, ThreadRef};

/// Most timers that are followed. Each sleeping task has one on its stack, and pids end at 2^22.
const MAX_TIMERS: usize = 1 << 22;
/// Most functions without names. Kernels have some hundred functions of timers.
const MAX_UNNAMED: usize = 1 << 12;
/// The function that refills the runtime of a bandwidth limit.
const PERIOD_TIMER: &str = "sched_cfs_period_timer";
/// No slice is as long as this, in ns. Deadline servers' timers (`dl_task_timer`), which any task happens to
/// set, are set for 950 ms.
pub const LONGEST_SLICE_NS: u64 = 500_000_000;

/// hrtimers of the host's own housekeeping, which a task only happens to set.
const OF_THE_HOST: [&str; 3] = ["dl_task_timer", PERIOD_TIMER, "watchdog_timer_fn"];

fn bare(function: &str) -> &str {
    function.split(['/', '+']).next().unwrap_or(function)
}

/// The context in which a timer is set.
#[derive(Clone, Copy, Debug)]
struct Setter {
    /// The task, or the one that happens to be interrupted.
    thread: ThreadIndex,
    in_task: bool,
    /// When, by the trace's clock in ns.
    time: u64,
    /// The timer's own callback does.
    in_callback: bool,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerUse {
    /// It ends slices.
    Slice,
    /// A tick of the host.
    Tick,
    /// Some other housekeeping.
    Host,
    /// A task set it for itself.
    Task,
}

/// `hrtimer_start`.
#[derive(Clone, Copy, Debug)]
pub struct TimerStart {
    /// Its address.
    pub hrtimer: u64,
    /// The current task of the CPU that starts it.
    pub thread: ThreadRef,
    /// That CPU.
    pub cpu: u16,
    /// Whether that task starts it, and not an interrupt.
    pub in_task: bool,
    /// What it is for.
    pub purpose: TimerUse,
    /// Whether a slice ends with it.
    pub ends_slice: bool,
    /// For how long it is set, in ns, if a slice ends with it and its clock is known.
    pub slice_ns: Option<u64>,
    /// Its task, where [`Self::purpose`] is [`TimerUse::Task`].
    pub owner: Option<ThreadIndex>,
    /// When it is to expire for its owner, in ns of the trace's clock, if its own clock is known.
    pub expires: Option<u64>,
}

/// `hrtimer_expire_entry`.
#[derive(Clone, Copy, Debug)]
pub struct TimerExpiry {
    /// Its address.
    pub hrtimer: u64,
    /// The task that owns it, if it is a task's.
    pub owner: Option<ThreadIndex>,
    /// By how much the end of a slice is late, in ns.
    pub slice_late_ns: Option<u64>,
    /// By how much a tick of the host is late, in ns.
    pub tick_late_ns: Option<u64>,
    /// It refills the runtime of a bandwidth limit.
    pub ends_period: bool,
}

/// What happens to an hrtimer.
#[derive(Clone, Copy, Debug)]
pub enum TimerReport {
    /// It is started.
    Started(TimerStart),
    /// It expires: its callback runs.
    Expired(TimerExpiry),
    /// It is cancelled.
    Cancelled {
        /// Its address.
        hrtimer: u64,
        /// The task that owns it, if it is a task's.
        owner: Option<ThreadIndex>,
    },
}

/// Timers of a function without a name.
#[derive(Clone, Debug, Default)]
struct Unnamed {
    /// Which task set it last, by the timer's address.
    set_by: IntMap<u64, ThreadIndex>,
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
    fn set(&mut self, hrtimer: u64, setter: Setter, ahead_ns: Option<i64>) -> TimerUse {
        self.far += match ahead_ns {
            Some(ns) if ns >= LONGEST_SLICE_NS as i64 => 1,
            Some(_) => -1,
            None => 0,
        };
        if setter.in_callback {
            self.again += 1;
        } else if setter.in_task && setter.thread != ThreadIndex::IDLE {
            self.sets += 1;
            let former = self.set_by.get(&hrtimer).copied();
            self.shared += u32::from(former.is_some_and(|thread| thread != setter.thread));
            insert(&mut self.set_by, hrtimer, setter.thread);
        }
        let shared = self.sets >= Self::SETS_FROM && self.shared * 4 >= self.sets;
        match (shared, self.again > 0) {
            (true, false) if self.far <= 0 => TimerUse::Slice,
            (true, _) => TimerUse::Host,
            (false, true) if self.set_by.is_empty() => TimerUse::Tick,
            (false, _) if setter.in_task && setter.thread == ThreadIndex::IDLE => TimerUse::Host,
            (false, _) => TimerUse::Task,
        }
    }
}

/// A timer of a task's own.
#[derive(Clone, Copy, Debug)]
struct Armed {
    thread: ThreadIndex,
    /// When it is to expire, by its own clock, and when it was set by the trace's, in ns.
    expires: u64,
    set_at: u64,
}

/// Clocks of timers are apart by more than this, in ns; by how much an expiry is late is less.
const CLOCKS_APART_NS: u64 = 1_000_000_000;

/// hrtimers by address. A reader of the tracker gives it each event, and gets reports.
#[derive(Clone, Debug, Default)]
pub struct Hrtimers {
    armed: IntMap<u64, Armed>,
    /// The trace's clock less those of the timers, in ns, as expiries show them: some timers go by the time
    /// of day.
    clocks: Vec<i64>,
    /// When ticks are to come.
    ticks: IntMap<u64, u64>,
    /// Starts of slice timers.
    slice_starts: u64,
    /// By function, where it has no name.
    unnamed: BTreeMap<String, Unnamed>,
    /// When slice timers are to expire.
    slices: IntMap<u64, u64>,
    /// Distances of ticks in microseconds, and how often each was seen.
    distances: BTreeMap<u64, u64>,
    /// The timer with a running callback, by CPU.
    expiring: Vec<Option<u64>>,
    /// The trace has ends of timers' callbacks.
    has_callback_ends: bool,
}

/// Keeps a value of a timer, as long as the table has room.
fn insert<T>(table: &mut IntMap<u64, T>, hrtimer: u64, value: T) {
    if table.len() < MAX_TIMERS || table.contains_key(&hrtimer) {
        table.insert(hrtimer, value);
    }
}

impl Hrtimers {
    /// Takes the next event ahead of the tracker: events in the context of a task show that no callback runs.
    pub fn advance(&mut self, event: &Event) {
        let is_of_task = matches!(
            event.kind,
            Kind::SchedSwitch { .. } | Kind::KvmEntry { .. } | Kind::KvmExit { .. }
        );
        self.has_callback_ends |= matches!(event.kind, Kind::HrtimerExpireExit { .. });
        if event.kind.is_host_event() && (event.context.in_task() || is_of_task) {
            // Recordings may have the begin of a timer's callback only.
            self.set_expiring(event.cpu.0, None);
        }
    }

    /// Takes the event after the tracker: `None` if it is not about a timer.
    pub fn event(
        &mut self,
        event: &Event,
        place: &Place,
        names: &dyn Names,
    ) -> Option<TimerReport> {
        match event.kind {
            Kind::HrtimerStart {
                hrtimer,
                expires_ns,
                function,
            } => {
                let setter = Setter {
                    thread: place.thread,
                    in_task: self.may_be_task(place.cpu, event.context),
                    time: place.time,
                    in_callback: self.expiring(place.cpu) == Some(hrtimer),
                };
                let purpose = self.start(hrtimer, expires_ns, names.name(function), setter);
                Some(TimerReport::Started(
                    self.started(hrtimer, place, setter, purpose),
                ))
            }
            Kind::HrtimerExpireEntry {
                hrtimer,
                now_ns,
                function,
            } => {
                self.expire(place.time, now_ns);
                self.set_expiring(place.cpu, Some(hrtimer));
                Some(TimerReport::Expired(TimerExpiry {
                    hrtimer,
                    owner: self.owner(hrtimer),
                    slice_late_ns: self.slice_late(hrtimer, now_ns),
                    tick_late_ns: self.tick_late(hrtimer, now_ns),
                    ends_period: bare(names.name(function)) == PERIOD_TIMER,
                }))
            }
            Kind::HrtimerCancel { hrtimer } => Some(TimerReport::Cancelled {
                hrtimer,
                owner: self.owner(hrtimer),
            }),
            Kind::HrtimerExpireExit { .. } => {
                self.set_expiring(place.cpu, None);
                None
            }
            _ => None,
        }
    }

    fn started(
        &self,
        hrtimer: u64,
        place: &Place,
        setter: Setter,
        purpose: TimerUse,
    ) -> TimerStart {
        let ends_slice = self.slices.contains_key(&hrtimer);
        let owner = match purpose {
            TimerUse::Task => self.owner(hrtimer),
            _ => None,
        };
        TimerStart {
            hrtimer,
            thread: place.thread_ref(),
            cpu: place.cpu,
            in_task: setter.in_task,
            purpose,
            ends_slice,
            slice_ns: self.slice_ahead(hrtimer, setter.time),
            owner,
            expires: owner.and_then(|owner| self.expires_for(hrtimer, owner)),
        }
    }

    /// Events of this CPU were lost.
    pub fn lost(&mut self, cpu: u16) {
        self.set_expiring(cpu, None);
    }

    /// The timer with a running callback on a CPU.
    #[must_use]
    pub fn expiring(&self, cpu: u16) -> Option<u64> {
        self.expiring.get(usize::from(cpu)).copied().flatten()
    }

    fn set_expiring(&mut self, cpu: u16, hrtimer: Option<u64>) {
        let index = usize::from(cpu);
        if self.expiring.len() <= index {
            self.expiring.resize(index + 1, None);
        }
        self.expiring[index] = hrtimer;
    }

    /// Whether what happens on a CPU is its current task's doing. Where the trace has no flags that say so,
    /// callbacks of timers are what else wakes and arms. If their ends are recorded, an event outside of them
    /// is its task's.
    #[must_use]
    pub fn may_be_task(&self, cpu: u16, context: Context) -> bool {
        context.in_task()
            || !context.in_interrupt() && self.has_callback_ends && self.expiring(cpu).is_none()
    }

    /// A timer is set.
    fn start(&mut self, hrtimer: u64, expires: u64, function: &str, setter: Setter) -> TimerUse {
        let purpose = self.sort(hrtimer, expires, function, setter);
        match purpose {
            TimerUse::Slice => {
                self.slice_starts += 1;
                insert(&mut self.slices, hrtimer, expires);
            }
            TimerUse::Tick => self.tick_set(hrtimer, expires),
            TimerUse::Host => {}
            TimerUse::Task => self.arm(hrtimer, expires, setter),
        }
        purpose
    }

    fn tick_set(&mut self, hrtimer: u64, expires: u64) {
        let last = self.ticks.get(&hrtimer).copied();
        if let Some(last) = last.filter(|&last| expires > last) {
            let micros = (expires - last).saturating_add(500) / 1_000;
            *self.distances.entry(micros).or_default() += 1;
        }
        insert(&mut self.ticks, hrtimer, expires);
    }

    fn arm(&mut self, hrtimer: u64, expires: u64, setter: Setter) {
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
                insert(&mut self.armed, hrtimer, armed);
            }
        }
    }

    /// What a timer is for. Where functions have no names, the contexts that set it show it.
    fn sort(&mut self, hrtimer: u64, expires: u64, function: &str, setter: Setter) -> TimerUse {
        let name = bare(function);
        if name.starts_with("0x") {
            let ahead_ns = self.ahead(expires, setter.time);
            if self.unnamed.len() >= MAX_UNNAMED && !self.unnamed.contains_key(name) {
                return TimerUse::Host;
            }
            let unnamed = self.unnamed.entry(name.to_owned()).or_default();
            return unnamed.set(hrtimer, setter, ahead_ns);
        }
        match name {
            "hrtick" => TimerUse::Slice,
            "tick_nohz_handler" | "tick_sched_timer" => TimerUse::Tick,
            _ if (setter.thread == ThreadIndex::IDLE && setter.in_task)
                || OF_THE_HOST.contains(&name) =>
            {
                TimerUse::Host
            }
            _ => TimerUse::Task,
        }
    }

    /// A timer expires at `time` of the trace, `now` of its own clock.
    fn expire(&mut self, time: u64, now: u64) {
        let offset = (time as i64).wrapping_sub(now as i64);
        let mut clocks = self.clocks.iter_mut();
        match clocks.find(|clock| clock.abs_diff(offset) < CLOCKS_APART_NS) {
            // The least is that of the shortest way from the clock's reading to the event.
            Some(least) => *least = offset.min(*least),
            None => self.clocks.push(offset),
        }
    }

    /// After how long from `now` a slice timer is to expire, in ns.
    fn slice_ahead(&self, hrtimer: u64, now: u64) -> Option<u64> {
        let ahead = self.ahead(*self.slices.get(&hrtimer)?, now)?;
        Some(ahead.max(0).unsigned_abs())
    }

    /// From a time of the trace to one of a timer's clock, in ns. Timers have several clocks: the one by
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
    fn slice_late(&mut self, hrtimer: u64, now: u64) -> Option<u64> {
        let expires = self.slices.remove(&hrtimer)?;
        Some(now.saturating_sub(expires))
    }

    /// By how much a tick that comes at `now` of its timer's clock is late.
    fn tick_late(&self, hrtimer: u64, now: u64) -> Option<u64> {
        let expires = self.ticks.get(&hrtimer)?;
        Some(now.saturating_sub(*expires))
    }

    /// The task that owns it.
    fn owner(&self, hrtimer: u64) -> Option<ThreadIndex> {
        self.armed.get(&hrtimer).map(|armed| armed.thread)
    }

    /// When it was to expire, by the trace's clock, if it is this task's.
    #[must_use]
    pub fn expires_for(&self, hrtimer: u64, thread: ThreadIndex) -> Option<u64> {
        let armed = self.armed.get(&hrtimer)?;
        if armed.thread != thread {
            return None;
        }
        let ahead = self.ahead(armed.expires, armed.set_at)?;
        armed.set_at.checked_add_signed(ahead)
    }

    /// Whether slices end by timers, if timers were recorded.
    #[must_use]
    pub fn hrtick(&self) -> Option<bool> {
        (!self.ticks.is_empty()).then_some(self.slice_starts > 0)
    }

    /// Ticks a second, if ticks were seen.
    #[must_use]
    pub fn hz(&self) -> Option<u32> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_without_names_that_are_set_far_ahead_end_no_slices() {
        let mut timers = Hrtimers::default();
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
        assert!(
            timers.slices.contains_key(&1_400_000) && !timers.slices.contains_key(&950_000_000)
        );
    }

    #[test]
    fn timers_that_go_by_the_time_of_day_do_not_move_the_others() {
        let (boot, day) = (5_000_000_000, 1_700_000_000_000_000_000);
        let mut timers = Hrtimers::default();
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
}
