//! How often a CPU that runs out of tasks looks for one that waits elsewhere (`sched_balance_newidle`).
//!
//! From Linux 7.0 on chance decides (`NI_RANDOM`): the less a CPU has found, the more seldom it looks. A
//! recording shows the share. A CPU that looks moves a task to itself before it switches, and one that does
//! not goes idle although a task waits elsewhere.

use std::collections::BTreeMap;

use stealtime_events::{Event, Kind};
use stealtime_track::SwitchOut;

/// `sysctl_sched_migration_cost`, in ns: a task that ran so recently is not moved.
const HOT_NS: u64 = 500_000;
/// From the move of a task to the switch to it, in ns, where the CPU moved it because it ran out of tasks.
const MOVE_NS: u64 = 50_000;

/// How often CPUs ran out of tasks while one waited elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewIdle {
    /// Times that the CPU took the task.
    pub pulled: u64,
    /// Times that it went idle.
    pub skipped: u64,
}

/// Fewer times do not show how often CPUs look.
const FEW_TIMES: u64 = 10;

impl NewIdle {
    /// Whether the recording shows how often CPUs look.
    pub(crate) const fn is_known(self) -> bool {
        self.pulled.saturating_add(self.skipped) >= FEW_TIMES
    }

    /// The share of times that it took the task, in thousandths, if it is known.
    pub(crate) fn looks_permille(self) -> Option<u16> {
        let times = u128::from(self.pulled) + u128::from(self.skipped);
        let permille = u128::from(self.pulled) * 1_000 / times.max(1);
        u16::try_from(permille).ok().filter(|_| self.is_known())
    }
}

/// A task, as far as it was seen.
#[derive(Clone, Debug, Default)]
struct Movable {
    /// The CPU that it waits for.
    waits: Option<u16>,
    /// When it left a CPU last, in ns.
    ran_ns: Option<u64>,
    /// CPUs that it has run on: it may be moved there.
    ran_on: Vec<u16>,
}

impl Movable {
    fn may_move(&self, cpu: u16, now_ns: u64) -> bool {
        let ran = self.ran_ns;
        self.ran_on.contains(&cpu) && ran.is_some_and(|ran| now_ns.saturating_sub(ran) >= HOT_NS)
    }
}

/// A CPU.
#[derive(Clone, Debug, Default)]
struct Cpu {
    /// The current task; 0 is the idle one.
    current: i32,
    waiting: Vec<i32>,
    /// The task that it has moved to itself, when, and whether it could have been seen to skip that.
    moved: Option<(i32, u64, bool)>,
}

impl Cpu {
    fn tasks(&self) -> usize {
        usize::from(self.current != 0) + self.waiting.len()
    }
}

/// Watches CPUs that run out of tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watcher {
    tasks: BTreeMap<i32, Movable>,
    cpus: Vec<Cpu>,
    found: NewIdle,
}

impl Watcher {
    pub(crate) const fn found(&self) -> NewIdle {
        self.found
    }

    fn cpu(&mut self, number: u16) -> &mut Cpu {
        let index = usize::from(number);
        if self.cpus.len() <= index {
            self.cpus.resize(index + 1, Cpu::default());
        }
        &mut self.cpus[index]
    }

    fn waits_no_longer(&mut self, tid: i32) {
        let waited = self.tasks.get_mut(&tid).and_then(|task| task.waits.take());
        if let Some(cpu) = waited {
            self.cpu(cpu).waiting.retain(|&waiting| waiting != tid);
        }
    }

    /// A task waits for a CPU, unless that has it. No task is taken from a CPU that was not seen to switch.
    fn waits(&mut self, tid: i32, cpu: u16) {
        self.waits_no_longer(tid);
        let state = self.cpus.get(usize::from(cpu));
        if state.is_some_and(|cpu| cpu.current != tid) {
            self.tasks.entry(tid).or_default().waits = Some(cpu);
            self.cpu(cpu).waiting.push(tid);
        }
    }

    /// Whether a CPU that looks for a task is sure to find one. Each of the CPUs with the most tasks has one
    /// that may run on it and is not hot.
    fn finds(&self, cpu: u16, now_ns: u64) -> bool {
        let siblings = self.cpus.iter().enumerate();
        let siblings = siblings.filter(|(index, _)| *index != usize::from(cpu));
        let siblings = siblings.map(|(_, sibling)| sibling);
        let maximum = siblings.clone().map(Cpu::tasks).max().unwrap_or(0);
        let has_movable = |sibling: &Cpu| {
            let mut tasks = sibling.waiting.iter().filter_map(|tid| self.tasks.get(tid));
            tasks.any(|task| task.may_move(cpu, now_ns))
        };
        let mut busiest = siblings.filter(|sibling| sibling.tasks() == maximum);
        maximum >= 2 && busiest.all(has_movable)
    }

    fn switch(&mut self, event: &Event, prev: i32, next: i32, prev_state: u32) {
        let (cpu, now_ns) = (event.cpu.0, event.time_ns);
        self.waits_no_longer(next);
        let is_runnable = SwitchOut::from_prev_state(prev_state).is_runnable();
        let moved = self.cpu(cpu).moved.take();
        if prev != 0 && !is_runnable && self.cpu(cpu).waiting.is_empty() {
            match moved {
                Some((tid, moved_ns, true)) if tid == next => {
                    self.found.pulled += u64::from(now_ns.saturating_sub(moved_ns) <= MOVE_NS);
                }
                None if next == 0 => self.found.skipped += u64::from(self.finds(cpu, now_ns)),
                _ => {}
            }
        }
        self.cpu(cpu).current = next;
        if prev != 0 {
            let task = self.tasks.entry(prev).or_default();
            task.ran_ns = Some(now_ns);
            if !task.ran_on.contains(&cpu) {
                task.ran_on.push(cpu);
            }
            if is_runnable {
                self.waits(prev, cpu);
            }
        }
    }

    fn migrates(&mut self, event: &Event, tid: i32, target: u16) {
        if self.tasks.get(&tid).is_none_or(|task| task.waits.is_none()) {
            return;
        }
        let Some(cpu) = self.cpus.get(usize::from(target)) else {
            return self.waits_no_longer(tid);
        };
        let runs_out = cpu.current != 0 && cpu.waiting.is_empty() && event.cpu.0 == target;
        let is_sure = runs_out && self.finds(target, event.time_ns);
        self.waits(tid, target);
        self.cpu(target).moved = runs_out.then_some((tid, event.time_ns, is_sure));
    }

    /// Takes in the next event.
    pub(crate) fn take(&mut self, event: &Event) {
        match event.kind {
            Kind::SchedSwitch {
                prev,
                next,
                prev_state,
                ..
            } => self.switch(event, prev.0, next.0, prev_state),
            Kind::SchedWakeup {
                tid, target_cpu, ..
            } => {
                if let Ok(cpu) = u16::try_from(target_cpu) {
                    self.waits(tid.0, cpu);
                }
            }
            Kind::SchedMigrateTask { tid, dest_cpu, .. } => {
                if let Ok(cpu) = u16::try_from(dest_cpu) {
                    self.migrates(event, tid.0, cpu);
                }
            }
            Kind::Lost { .. } => {
                self.tasks.clear();
                self.cpus.clear();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use stealtime_events::{Context, CpuId, Tid};

    use super::*;
    use crate::kinds;

    const MS: u64 = 1_000_000;

    fn event(time_ns: u64, cpu: u16, kind: Kind) -> Event {
        Event {
            time_ns,
            cpu: CpuId(cpu),
            tid: Tid(0),
            context: Context::default(),
            kind,
        }
    }

    fn switch(time_ns: u64, cpu: u16, prev: i32, next: i32, prev_state: u32) -> Event {
        event(time_ns, cpu, kinds::switch(prev, next, prev_state))
    }

    /// Task 5 runs on CPU 0 and then waits behind task 6 on CPU 1, while task 7 runs on CPU 0. That sleeps at
    /// `time_ns`.
    fn before() -> [Event; 5] {
        [
            switch(0, 0, 0, 5, 0),
            switch(MS, 0, 5, 7, 1),
            switch(MS, 1, 0, 6, 0),
            event(MS + 1, 1, kinds::wakeup(5, 1)),
            event(MS + 2, 1, kinds::wakeup(6, 1)),
        ]
    }

    fn found(events: &[Event]) -> NewIdle {
        let mut watcher = Watcher::default();
        let events = before().into_iter().chain(events.iter().copied());
        events.for_each(|event| watcher.take(&event));
        watcher.found()
    }

    fn moves(time_ns: u64, cpu: u16) -> Event {
        let kind = Kind::SchedMigrateTask {
            tid: Tid(5),
            prio: 120,
            orig_cpu: 1,
            dest_cpu: 0,
        };
        event(time_ns, cpu, kind)
    }

    #[test]
    fn a_cpu_that_looks_takes_what_waits_elsewhere() {
        let pulled = NewIdle {
            pulled: 1,
            skipped: 0,
        };
        let skipped = NewIdle {
            pulled: 0,
            skipped: 1,
        };
        let none = NewIdle::default();
        let at = 3 * MS;
        assert_eq!(found(&[moves(at, 0), switch(at, 0, 7, 5, 1)]), pulled);
        assert_eq!(found(&[switch(at, 0, 7, 0, 1)]), skipped);
        // It is hot; another CPU moved it; long before the switch.
        let soon = MS + HOT_NS / 2;
        assert_eq!(found(&[switch(soon, 0, 7, 0, 1)]), none);
        assert_eq!(found(&[moves(at, 1), switch(at, 0, 7, 5, 1)]), none);
        assert_eq!(found(&[moves(2 * MS, 0), switch(at, 0, 7, 5, 1)]), none);
        // It was preempted, and is to run on.
        assert_eq!(found(&[switch(at, 0, 7, 0, 0)]), none);
    }

    #[test]
    fn few_times_show_no_share() {
        let share = |pulled, skipped| NewIdle { pulled, skipped }.looks_permille();
        assert_eq!(share(0, 0), None);
        assert_eq!(share(9, 0), None);
        assert_eq!(share(9, 3), Some(750));
        assert_eq!(share(0, 10), Some(0));
        assert_eq!(share(u64::MAX, u64::MAX), Some(500));
    }
}
