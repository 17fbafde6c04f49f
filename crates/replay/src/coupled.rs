//! Waits of vCPUs for others of their VM, and what those did meanwhile.

use std::collections::BTreeMap;

use stealtime_simulator::script::{Edge, Step, Until};

use crate::task::Task;

/// A wait that another vCPU of the same VM ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coupled {
    pub(crate) step: usize,
    pub(crate) edge: Edge,
    /// When it began and ended, by the recording's clock, in ns.
    pub(crate) began: u64,
    pub(crate) woken: u64,
}

/// When a vCPU was asleep, or not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asleep {
    /// From when to when, in ns; the last may go on.
    spans: Vec<(u64, u64)>,
}

impl Asleep {
    /// It sleeps from now on.
    pub(crate) fn begins(&mut self, now: u64) {
        if self.spans.last().is_none_or(|last| last.1 < u64::MAX) {
            self.spans.push((now, u64::MAX));
        }
    }

    /// It is woken.
    pub(crate) fn ends(&mut self, now: u64) {
        if let Some(last) = self.spans.last_mut().filter(|last| last.1 == u64::MAX) {
            last.1 = now;
        }
    }

    /// When it was, within these times.
    fn within(&self, times: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut common = Vec::new();
        for &(from, to) in times {
            let first = self.spans.partition_point(|span| span.1 <= from);
            let spans = self.spans.iter().skip(first);
            let overlapping = spans.take_while(|span| span.0 < to);
            common.extend(overlapping.map(|span| (span.0.max(from), span.1.min(to))));
        }
        common
    }
}

/// What a vCPU has computed outside of halts at any time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Computed {
    /// When it began to compute or left off, and what it had computed by then, in ns.
    changes: Vec<(u64, u64, bool)>,
}

impl Computed {
    /// It begins to compute, or leaves off.
    pub(crate) fn change(&mut self, now: u64, so_far_ns: u64, computes: bool) {
        if self.changes.last().is_none_or(|last| last.2 != computes) {
            self.changes.push((now, so_far_ns, computes));
        }
    }

    /// What it had computed by some time, in ns.
    fn by(&self, at: u64) -> u64 {
        let next = self.changes.partition_point(|change| change.0 <= at);
        let last = next.checked_sub(1).and_then(|n| self.changes.get(n));
        last.map_or(0, |&(since, so_far, computes)| match computes {
            true => so_far + (at - since),
            false => so_far,
        })
    }
}

/// Says for each halt that another vCPU of the VM ended what all of these computed meanwhile.
pub(crate) fn settle_coupled(tasks: &mut [Task]) {
    let mut vms: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, task) in tasks.iter().enumerate() {
        if let Some((vm, _)) = task.vcpu {
            vms.entry(vm).or_default().push(index);
        }
    }
    for vcpus in vms.values() {
        for &waiter in vcpus {
            let waits = core::mem::take(&mut tasks[waiter].coupled);
            for wait in waits {
                let meanwhile = |&vcpu: &usize| {
                    let computed = &tasks[vcpu].computed;
                    computed
                        .by(wait.woken)
                        .saturating_sub(computed.by(wait.began))
                };
                let ns = vcpus.iter().map(meanwhile).fold(0, u64::saturating_add);
                let siblings = vcpus.iter().filter(|&&vcpu| vcpu != waiter);
                let idle = siblings.fold(vec![(wait.began, wait.woken)], |idle, &sibling| {
                    tasks[sibling].asleep.within(&idle)
                });
                let idle_ns: u64 = idle.iter().map(|(from, to)| to.saturating_sub(*from)).sum();
                if let Some(Step::Halt(until)) = tasks[waiter].steps.get_mut(wait.step) {
                    *until = Until::Work {
                        edge: wait.edge,
                        ns: u32::try_from(ns).unwrap_or(u32::MAX),
                        busy: idle_ns == 0,
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stealtime_simulator::script::{Edge, Step, Until};

    use super::{Computed, Coupled, settle_coupled};
    use crate::task::{Birth, State, Task};

    /// A vCPU halts from 200 to 300 until another one wakes it, and this is a third one of its VM: whether
    /// some vCPU was always at work.
    fn was_busy(third: Task) -> bool {
        let mut waits = Task::new(State::Running { since: 0 });
        let edge = Edge(0);
        waits.steps.push(Step::Halt(Until::Edge(edge)));
        waits.coupled.push(Coupled {
            step: 0,
            edge,
            began: 200,
            woken: 300,
        });
        let mut wakes = Task::new(State::Running { since: 0 });
        wakes.sleep(150);
        let mut tasks = [waits, wakes, third];
        for (number, task) in (0..).zip(&mut tasks) {
            task.vcpu = Some((0, number));
        }
        settle_coupled(&mut tasks);
        match tasks[0].steps[0] {
            Step::Halt(Until::Work { busy, .. }) => busy,
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn a_task_that_is_not_there_is_not_at_work() {
        assert!(was_busy(Task::new(State::Running { since: 0 })));
        // Asleep since the recording began.
        assert!(!was_busy(Task::new(State::Asleep { since: 0 })));
        let mut ended = Task::new(State::Running { since: 0 });
        ended.ends(100);
        assert!(!was_busy(ended));
        let born = |time| {
            Task::born(Birth {
                time,
                is_seen: true,
            })
        };
        assert!(!was_busy(born(400)));
        assert!(was_busy(born(100)));
    }

    #[test]
    fn what_was_computed_is_known_between_changes() {
        let mut computed = Computed::default();
        computed.change(100, 0, true);
        computed.change(150, 50, false);
        computed.change(150, 50, false);
        computed.change(400, 50, true);
        let by = [0, 100, 120, 150, 300, 400, 410].map(|at| computed.by(at));
        assert_eq!(by, [0, 0, 20, 50, 50, 50, 60]);
    }
}
