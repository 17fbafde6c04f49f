//! Wakeup preemption on busy CPUs: it shows settings of the scheduler that times do not.
//!
//! `sched_wakeup` is traced after `wakeup_preempt`. So its flags say whether the current task is to
//! reschedule, and whether lazily. This depends on cgroups: between two of them the lags of groups are
//! compared, which favors the woken task far more often.

use std::collections::BTreeMap;

use stealtime_events::{Context, Event, Kind};
use stealtime_hypervisor::fair::Preempt;

/// Fewer wakeups than this of a sort say nothing.
const LEAST: u64 = 50;
/// So many requests to reschedule show how a host preempts.
const REQUESTS: u64 = 20;
/// The least priority of the fair class (`MAX_RT_PRIO`).
pub(crate) const FAIR_FROM: i32 = 100;

/// Wakeups of one sort on a busy CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Woken {
    total: u64,
    /// Those after which the current task is to reschedule.
    preempt: u64,
}

impl Woken {
    fn permille(self) -> u64 {
        self.preempt * 1_000 / self.total.max(1)
    }
}

/// Wakeups on busy CPUs by tasks or interrupts of the same CPU, and whether they preempted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// By whether the current task is a vCPU, and whether the woken one is.
    sorts: [[Woken; 2]; 2],
    /// Events by which the current task is to reschedule on its way to user mode or the guest.
    lazy: u64,
    /// Wakeups by which it is to at once.
    at_once: u64,
    displaced: u64,
}

impl Decisions {
    /// Switches to another task than the last one on that CPU: its caches and TLBs hold the data of that
    /// one. A task that comes back after the idle task finds its own.
    #[must_use]
    pub const fn displaced(&self) -> u64 {
        self.displaced
    }

    /// How the host preempts, where flags show it. Requests that are not lazy do not: a host
    /// without lazy requests makes them too, and reschedules on the way to user mode.
    #[must_use]
    pub const fn preempt(&self) -> Option<Preempt> {
        match self.lazy >= REQUESTS && self.lazy > self.at_once {
            true => Some(Preempt::Lazy),
            false => None,
        }
    }

    /// Whether events have flags of rescheduling; those of some recordings have none.
    fn has_flags(&self) -> bool {
        self.lazy.max(self.at_once) >= REQUESTS
    }

    /// The least share of wakeups that `replay` decides otherwise, in permille, among sorts of which each
    /// has enough; `None` with too few, or without flags.
    #[must_use]
    pub fn apart_permille(&self, replay: &Self) -> Option<u64> {
        if !self.has_flags() {
            return None;
        }
        let sorts = self
            .sorts
            .iter()
            .flatten()
            .zip(replay.sorts.iter().flatten());
        let frequent =
            sorts.filter(|(recorded, replayed)| recorded.total >= LEAST && replayed.total >= LEAST);
        let (mut apart, mut total) = (0, 0);
        for (recorded, replayed) in frequent {
            apart += recorded.permille().abs_diff(replayed.permille()) * recorded.total;
            total += recorded.total;
        }
        (total > 0).then(|| apart / total)
    }

    /// The share of wakeups that preempt, in permille; `None` with too few, or without flags.
    #[must_use]
    pub fn preempt_permille(&self) -> Option<u64> {
        if !self.has_flags() {
            return None;
        }
        let mut sum = Woken::default();
        for sort in self.sorts.iter().flatten() {
            sum.total += sort.total;
            sum.preempt += sort.preempt;
        }
        (sum.total >= LEAST).then(|| sum.permille())
    }
}

/// Watches wakeups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watcher {
    /// By the current and the woken task.
    wakeups: BTreeMap<(i32, i32), Woken>,
    lazy: u64,
    at_once: u64,
    displaced: u64,
    cpus: BTreeMap<u16, Cpu>,
}

/// A CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    /// A task of the fair class has it.
    is_fair: bool,
    /// The task that is being woken there, and whether the current one was to reschedule before.
    waking: Option<(i32, bool)>,
    /// The last task there but the idle one; 0 before the first.
    last: i32,
}

impl Watcher {
    /// What was seen, by whether a thread is a vCPU.
    pub(crate) fn decisions(&self, is_vcpu: impl Fn(i32) -> bool) -> Decisions {
        let mut decisions = Decisions {
            lazy: self.lazy,
            at_once: self.at_once,
            displaced: self.displaced,
            ..Decisions::default()
        };
        for (&(current, waking), woken) in &self.wakeups {
            let [current, waking] = [current, waking].map(|tid| usize::from(is_vcpu(tid)));
            let sort = &mut decisions.sorts[current][waking];
            sort.total += woken.total;
            sort.preempt += woken.preempt;
        }
        decisions
    }

    /// Takes in the next event.
    pub(crate) fn take(&mut self, event: &Event) {
        let flags = event.context.bits();
        let lazy = flags & Context::NEED_RESCHED_LAZY != 0;
        let must_reschedule = lazy || flags & Context::NEED_RESCHED != 0;
        if event.tid.0 != 0 {
            self.lazy += u64::from(lazy);
        }
        let number = event.cpu.0;
        let cpu = self.cpus.entry(number).or_default();
        match event.kind {
            Kind::SchedSwitch {
                next, next_prio, ..
            } => {
                cpu.is_fair = next.0 != 0 && i32::from(next_prio) >= FAIR_FROM;
                cpu.waking = None;
                if next.0 != 0 {
                    self.displaced += u64::from(![0, next.0].contains(&cpu.last));
                    cpu.last = next.0;
                }
            }
            // Without the flags, requests to reschedule are not known.
            Kind::SchedWaking { .. } if !event.context.tells_resched() => cpu.waking = None,
            Kind::SchedWaking { tid, .. } => cpu.waking = Some((tid.0, must_reschedule)),
            Kind::SchedWakeup {
                tid,
                prio,
                target_cpu,
            } => {
                let waking = cpu.waking.take_if(|waking| waking.0 == tid.0);
                let is_local = target_cpu == u32::from(number) && cpu.is_fair && event.tid.0 != 0;
                // On another CPU, an idle one, or one that is about to reschedule anyway there is nothing to
                // decide.
                if let Some((_, false)) = waking.filter(|_| is_local && prio >= FAIR_FROM) {
                    let woken = self.wakeups.entry((event.tid.0, tid.0)).or_default();
                    woken.total += 1;
                    woken.preempt += u64::from(must_reschedule);
                    self.at_once += u64::from(must_reschedule && !lazy);
                }
            }
            Kind::Lost { .. } => *cpu = Cpu::default(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use stealtime_events::{CpuId, Tid};

    use super::*;
    use crate::kinds;

    /// The current task of CPU 0.
    const HAS: i32 = 7;

    fn event(tid: i32, flags: u8, kind: Kind) -> Event {
        Event {
            time_ns: 0,
            cpu: CpuId(0),
            tid: Tid(tid),
            context: Context::from_bits(flags),
            kind,
        }
    }

    fn switch(next: i32, next_prio: i16) -> Event {
        event(0, 0, kinds::switch_at(0, next, 0, next_prio))
    }

    /// Task 8 is woken for a CPU; `flags` are those of `sched_waking`.
    fn wakeup(current: i32, target_cpu: u32, flags: u8, flags_after: u8) -> [Event; 2] {
        let (waking, wakeup) = (kinds::waking(8, target_cpu), kinds::wakeup(8, target_cpu));
        [
            event(current, flags, waking),
            event(current, flags_after, wakeup),
        ]
    }

    fn decided(events: impl IntoIterator<Item = Event>) -> Decisions {
        let mut watcher = Watcher::default();
        watcher.take(&switch(HAS, 120));
        events.into_iter().for_each(|event| watcher.take(&event));
        watcher.decisions(|tid| tid == HAS)
    }

    fn some(lazily: usize, at_once: usize, ignored: usize) -> Decisions {
        let times = |n, flags| core::iter::repeat_n(wakeup(HAS, 0, 0, flags), n);
        let lazily = times(lazily, Context::NEED_RESCHED_LAZY);
        let preempting = lazily.chain(times(at_once, Context::NEED_RESCHED));
        decided(preempting.chain(times(ignored, 0)).flatten())
    }

    #[test]
    fn flags_tell_how_a_host_preempts() {
        assert_eq!(some(20, 0, 0).preempt(), Some(Preempt::Lazy));
        assert_eq!(some(30, 5, 0).preempt(), Some(Preempt::Lazy));
        assert_eq!(some(30, 50, 0).preempt(), None);
        assert_eq!(some(0, 50, 0).preempt(), None);
        assert_eq!(some(0, 0, 500).preempt(), None);
    }

    #[test]
    fn a_task_that_comes_back_after_the_idle_task_displaces_none() {
        let switches = [0, HAS, 8, 0, 8, HAS].map(|next| switch(next, 120));
        assert_eq!(decided(switches).displaced(), 2);
    }

    #[test]
    fn only_wakeups_count_that_could_have_preempted() {
        let lazy = Context::NEED_RESCHED_LAZY;
        assert_eq!(some(30, 0, 30).preempt_permille(), Some(500));
        // The current task was to reschedule before; the wakeup is for another CPU; the CPU is idle.
        let late = wakeup(HAS, 0, lazy, lazy);
        let elsewhere = wakeup(HAS, 1, 0, lazy);
        let idle = wakeup(0, 0, 0, lazy);
        let after = |first: &[Event], pair| {
            let pairs = core::iter::repeat_n(pair, 100).flatten();
            decided(first.iter().copied().chain(pairs)).preempt_permille()
        };
        // These preempt, and show that the events have flags.
        let half: Vec<Event> = [lazy, 0]
            .into_iter()
            .flat_map(|flags| core::iter::repeat_n(wakeup(HAS, 0, 0, flags), 30))
            .flatten()
            .collect();
        for pair in [late, elsewhere, idle] {
            assert_eq!(after(&[], pair), None);
            assert_eq!(after(&half, pair), Some(500));
        }
        // The current task is of another class.
        let real_time = [&half[..], &[switch(HAS, 10)]].concat();
        assert_eq!(after(&real_time, wakeup(HAS, 0, 0, lazy)), Some(500));
    }

    #[test]
    fn sorts_are_compared_each_with_its_like() {
        let half = some(50, 0, 50);
        assert_eq!(half.apart_permille(&half), Some(0));
        assert_eq!(half.apart_permille(&some(80, 0, 20)), Some(300));
        assert_eq!(half.apart_permille(&some(10, 0, 10)), None);
    }
}
