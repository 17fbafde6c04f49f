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

/// A half-open interval of the recording's clock, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Stretch {
    /// Its length, in ns; 0 if it is empty.
    pub(crate) const fn ns(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// The part of it from `time` on.
    pub(crate) const fn after(self, time: u64) -> Self {
        let start = if self.start > time { self.start } else { time };
        Self {
            start,
            end: self.end,
        }
    }
}

/// When a vCPU was asleep, or did not exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asleep {
    /// In ascending order; the end of a sleep that continues is `u64::MAX`.
    spans: Vec<Stretch>,
}

impl Asleep {
    /// It sleeps from now on.
    pub(crate) fn begins(&mut self, now: u64) {
        if self.spans.last().is_none_or(|last| last.end < u64::MAX) {
            self.spans.push(Stretch {
                start: now,
                end: u64::MAX,
            });
        }
    }

    /// It is woken.
    pub(crate) fn ends(&mut self, now: u64) {
        if let Some(last) = self.spans.last_mut().filter(|last| last.end == u64::MAX) {
            last.end = now;
        }
    }

    /// The parts of `stretches` in which it was.
    fn within(&self, stretches: &[Stretch]) -> Vec<Stretch> {
        let mut common = Vec::new();
        for &stretch in stretches {
            let first = self.spans.partition_point(|span| span.end <= stretch.start);
            let spans = self.spans.iter().skip(first);
            let overlapping = spans.take_while(|span| span.start < stretch.end);
            common.extend(overlapping.map(|span| Stretch {
                start: span.start.max(stretch.start),
                end: span.end.min(stretch.end),
            }));
        }
        common
    }
}

/// A vCPU begins to compute, or stops.
#[derive(Clone, Copy, Debug)]
struct Change {
    time: u64,
    /// What it had computed until `time`, in ns.
    computed_ns: u64,
    begins: bool,
}

/// What a vCPU has computed outside of halts at any time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Computed {
    /// When it began to compute or stopped, in the order of time.
    changes: Vec<Change>,
}

impl Computed {
    /// It begins to compute, or stops, after `computed_ns` in all.
    pub(crate) fn change(&mut self, time: u64, computed_ns: u64, begins: bool) {
        if self.changes.last().is_none_or(|last| last.begins != begins) {
            self.changes.push(Change {
                time,
                computed_ns,
                begins,
            });
        }
    }

    /// What it had computed until `time`, in ns.
    fn until(&self, time: u64) -> u64 {
        let next = self.changes.partition_point(|change| change.time <= time);
        let last = next.checked_sub(1).and_then(|n| self.changes.get(n));
        last.map_or(0, |last| match last.begins {
            true => last.computed_ns + (time - last.time),
            false => last.computed_ns,
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
                        .until(wait.woken)
                        .saturating_sub(computed.until(wait.began))
                };
                let ns = vcpus.iter().map(meanwhile).fold(0, u64::saturating_add);
                let siblings = vcpus.iter().filter(|&&vcpu| vcpu != waiter);
                let whole = Stretch {
                    start: wait.began,
                    end: wait.woken,
                };
                // The VM is idle while all siblings sleep.
                let idle = siblings.fold(vec![whole], |idle, &sibling| {
                    tasks[sibling].asleep.within(&idle)
                });
                let idle_ns: u64 = idle.iter().map(|stretch| stretch.ns()).sum();
                if let Some(Step::Halt(end)) = tasks[waiter].steps.get_mut(wait.step) {
                    *end = Until::Work {
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

    /// Whether some vCPU of a VM was always at work, where `third` is its third one. The first one halts from
    /// 200 to 300, until the second one wakes it.
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
    fn a_vcpu_that_sleeps_again_or_seems_to_is_awake_in_between() {
        let slept = |times: &[(u64, bool)]| {
            let mut task = Task::new(State::Running { since: 0 });
            for &(time, begins) in times {
                match begins {
                    true => task.asleep.begins(time),
                    false => task.asleep.ends(time),
                }
            }
            task
        };
        // The wait is from 200 to 300.
        assert!(!was_busy(slept(&[(10, true), (20, false), (210, true)])));
        assert!(was_busy(slept(&[(10, true), (20, false)])));
        assert!(was_busy(slept(&[
            (10, true),
            (12, true),
            (15, true),
            (20, false)
        ])));
    }

    #[test]
    fn what_was_computed_is_known_between_changes() {
        let mut computed = Computed::default();
        computed.change(100, 0, true);
        computed.change(150, 50, false);
        computed.change(150, 50, false);
        computed.change(400, 50, true);
        let times = [0, 100, 120, 150, 300, 400, 410];
        let computed = times.map(|time| computed.until(time));
        assert_eq!(computed, [0, 0, 20, 50, 50, 50, 60]);
    }
}
