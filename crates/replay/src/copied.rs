//! The tasks of a VM's copy: the recorded demand, begun at another time of the recording.
//!
//! Each script is cut at the phase. The copy begins with what follows the cut, and continues with what
//! precedes it after one span. Points that the VM's own tasks reach stay points, unless the cut puts them
//! after the wait. All other waits for tasks become waits for times.

use std::sync::Arc;

use stealtime_simulator::script::{Edge, Stall, Step, Ticks, Until};

use crate::recording::{Begins, RecordedTask, Recording, Wait};

/// A cut script has two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// From the cut on: the begin of the copy.
    Tail,
    /// Before the cut: the end of the copy.
    Head,
}

/// Where a task's script is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Index of the first step of the tail.
    step: usize,
    /// That step is a wait that had begun.
    is_in_wait: bool,
    /// The task had not begun or had ended: its script is one part.
    whole: Option<Side>,
}

impl Cut {
    fn side(self, step: usize) -> Side {
        match step >= self.step {
            true => Side::Tail,
            false => Side::Head,
        }
    }

    /// Where the recording was in this script after `phase_ns`.
    fn find(task: &RecordedTask, phase_ns: u64, span_ns: u64) -> Self {
        let begin_ns = task.begins.map_or(0, |begins| begins.at_ns);
        let end_ns = task.ends_ns.unwrap_or(span_ns);
        let whole = |step, side| Self {
            step,
            is_in_wait: false,
            whole: Some(side),
        };
        if phase_ns <= begin_ns {
            return whole(0, Side::Tail);
        }
        if phase_ns >= end_ns {
            return whole(task.steps.len(), Side::Head);
        }
        let waits = &task.waits;
        let next = waits.partition_point(|wait| wait.ended_ns <= phase_ns);
        let last = next.checked_sub(1).and_then(|last| waits.get(last));
        let (first_step, first_ns) = last.map_or((0, begin_ns), |wait| {
            (wait.step as usize + 1, wait.ended_ns)
        });
        let (end_step, end_ns) = match waits.get(next) {
            Some(wait) if wait.began_ns <= phase_ns => {
                return Self {
                    step: wait.step as usize,
                    is_in_wait: true,
                    whole: None,
                };
            }
            Some(wait) => (wait.step as usize, wait.began_ns),
            None => (task.steps.len(), end_ns),
        };
        let stretch = task.steps.get(first_step..end_step).unwrap_or_default();
        let passed_ns = phase_ns.saturating_sub(first_ns);
        let steps = steps_after(stretch, passed_ns, end_ns.saturating_sub(first_ns));
        Self {
            step: first_step + steps,
            is_in_wait: false,
            whole: None,
        }
    }
}

/// The steps that are done after `passed_ns` of the `whole_ns` that all take, waits for a CPU included.
fn steps_after(steps: &[Step], passed_ns: u64, whole_ns: u64) -> usize {
    let total_ns: u128 = steps.iter().map(|step| u128::from(run_ns(*step))).sum();
    let due_ns = total_ns * u128::from(passed_ns.min(whole_ns)) / u128::from(whole_ns.max(1));
    let mut done_ns = 0u128;
    let reached = steps.iter().position(|&step| {
        let is_due = done_ns >= due_ns;
        done_ns += u128::from(run_ns(step));
        is_due
    });
    reached.unwrap_or(steps.len())
}

pub(crate) const fn run_ns(step: Step) -> u64 {
    match step {
        Step::Run { ns, .. } => ns,
        _ => 0,
    }
}

/// A time at which this CPU ends a wait, or the waiting task's own.
pub(crate) const fn called(time_ns: u64, waker: Option<u16>) -> Until {
    match waker {
        Some(waker) => Until::Called { time_ns, waker },
        None => Until::Time(time_ns),
    }
}

/// The point that a wait is for.
pub(crate) const fn awaited(step: Step) -> Option<Edge> {
    match step {
        Step::Sleep(until) | Step::Halt(until) | Step::Alarm(until) => match until {
            Until::Edge(edge) | Until::Work { edge, .. } | Until::AfterEdge { edge, .. } => {
                Some(edge)
            }
            _ => None,
        },
        _ => None,
    }
}

/// A copy of the tasks of a VM.
pub(crate) struct Copier<'r> {
    recording: &'r Recording,
    tasks: Vec<(&'r RecordedTask, Cut)>,
    phase_ns: u64,
    /// The points of the copy, by those of the recording.
    points: Vec<Option<Edge>>,
    /// The next point that is free.
    next: u32,
}

impl<'r> Copier<'r> {
    /// A copy of the VM with this index that begins at `phase_ns` of the recording. Its points follow
    /// `edges` others.
    pub(crate) fn new(recording: &'r Recording, vm: usize, phase_ns: u64, edges: u32) -> Self {
        let tasks = recording.tasks.iter().filter(|task| task.vm == Some(vm));
        let cut = |task| (task, Cut::find(task, phase_ns, recording.span_ns));
        let mut copier = Self {
            recording,
            tasks: tasks.map(cut).collect(),
            phase_ns,
            points: vec![None; recording.edges as usize],
            next: edges,
        };
        copier.find_points();
        copier
    }

    /// Numbers the points that tasks of the VM reach and wait for, but those that the copy reaches after the
    /// wait.
    fn find_points(&mut self) {
        let mut reached: Vec<Option<Side>> = vec![None; self.points.len()];
        for (task, cut) in &self.tasks {
            for (index, step) in task.steps.iter().enumerate() {
                if let Step::Reach(edge) = *step
                    && let Some(side) = reached.get_mut(edge.0 as usize)
                {
                    *side = Some(cut.side(index));
                }
            }
        }
        for (task, cut) in &self.tasks {
            for (index, step) in task.steps.iter().enumerate() {
                let edge = awaited(*step).map(|edge| edge.0 as usize);
                let side = edge.and_then(|edge| reached.get(edge).copied().flatten());
                if let Some(edge) = edge
                    && side.is_some_and(|side| side == Side::Tail || side == cut.side(index))
                    && let Some(point @ None) = self.points.get_mut(edge)
                {
                    *point = Some(Edge(self.next));
                    self.next += 1;
                }
            }
        }
    }

    /// How many points there are with those of the copy.
    pub(crate) const fn edges(&self) -> u32 {
        self.next
    }

    /// The copied tasks, with the thread ids from `tid` on, as the VM with the index `vm`.
    pub(crate) fn tasks(&self, vm: usize, tid: i32) -> Vec<RecordedTask> {
        let copies = (tid..).zip(&self.tasks).map(|(tid, &(task, cut))| {
            let script = Script {
                copier: self,
                task,
                cut,
                steps: Vec::with_capacity(task.steps.len() + 2),
                places: vec![0; task.steps.len() + 1],
            };
            RecordedTask {
                tid,
                vcpu: task.vcpu.map(|(_, number)| (vm, number)),
                vm: Some(vm),
                ..script.copy()
            }
        });
        copies.collect()
    }

    fn span_ns(&self) -> u64 {
        self.recording.span_ns
    }

    /// From the begin of the copy to the begin of the recorded part that precedes the cut.
    fn wrap_ns(&self) -> u64 {
        self.span_ns().saturating_sub(self.phase_ns)
    }

    /// A time of the recording, as the copy has it.
    fn time(&self, time_ns: u64, side: Side) -> u64 {
        match side {
            Side::Tail => time_ns.saturating_sub(self.phase_ns),
            Side::Head => time_ns.saturating_add(self.wrap_ns()),
        }
    }

    /// A point of a grid in time, as the copy has it: one grid in both parts.
    fn on_grid(&self, point_ns: u32, period_ns: u32) -> u32 {
        let period = u64::from(period_ns);
        let Some(phase) = self.phase_ns.checked_rem(period) else {
            // A period of 0 is no wait.
            return point_ns;
        };
        ((u64::from(point_ns) % period + period - phase) % period) as u32
    }
}

/// The script of a copied task while it is made.
struct Script<'c> {
    copier: &'c Copier<'c>,
    task: &'c RecordedTask,
    cut: Cut,
    steps: Vec<Step>,
    /// Where each recorded step went; the last one is the end of the script.
    places: Vec<u32>,
}

impl Script<'_> {
    fn copy(mut self) -> RecordedTask {
        let task = self.task;
        let (copier, side) = (self.copier, self.cut.whole);
        let begin_ns = task.begins.map_or(0, |begins| begins.at_ns);
        self.part(self.cut.step..task.steps.len(), Side::Tail);
        self.places[task.steps.len()] = self.steps.len() as u32;
        let is_partial = task.begins.is_some() || task.ends_ns.is_some();
        if side.is_none() && is_partial {
            let begins_ns = copier.time(begin_ns, Side::Head);
            self.steps.push(Step::Sleep(Until::Time(begins_ns)));
        }
        let moves = self.moves();
        if side.is_none() && !moves.is_empty() {
            self.steps.push(Step::Move(task.first_cpu.into()));
        }
        self.part(0..self.cut.step, Side::Head);
        let is_seen = task.begins.is_none_or(|begins| begins.is_seen);
        let begins = side.map(|side| Begins {
            at_ns: copier.time(begin_ns, side),
            is_seen,
        });
        RecordedTask {
            begins: begins.filter(|begins| begins.at_ns > 0),
            ends_ns: task
                .ends_ns
                .zip(side)
                .map(|(end, side)| copier.time(end, side)),
            first_cpu: self.first_cpu(),
            exits: self.exits(),
            stalls: self.stalls(),
            moves,
            ticks: task.ticks.map(|ticks| Ticks {
                phase_ns: copier.on_grid(ticks.phase_ns, ticks.period_ns),
                ..ticks
            }),
            waits: Arc::default(),
            steps: Arc::from(self.steps),
            ..task.clone()
        }
    }

    /// Appends these recorded steps.
    fn part(&mut self, range: std::ops::Range<usize>, side: Side) {
        let (task, copier) = (self.task, self.copier);
        let mut waits = task
            .waits
            .partition_point(|wait| (wait.step as usize) < range.start);
        // A timer of the first part was set before the cut.
        let mut is_armed = side == Side::Head;
        for index in range {
            let Some(&step) = task.steps.get(index) else {
                debug_assert!(false, "a part is within its script");
                return;
            };
            self.places[index] = self.steps.len() as u32;
            let waited = |wait: &Wait| wait.step as usize;
            while task
                .waits
                .get(waits)
                .is_some_and(|wait| waited(wait) < index)
            {
                waits += 1;
            }
            let wait = task.waits.get(waits).filter(|wait| waited(wait) == index);
            let is_cut = self.cut.is_in_wait && index == self.cut.step;
            let copied_end = |end| {
                let is_past = is_cut || (!is_armed && matches!(end, Until::Armed { .. }));
                copier.end(end, side, wait.filter(|_| is_past))
            };
            let copied = match step {
                Step::Reach(edge) => match copier.points.get(edge.0 as usize) {
                    Some(&Some(edge)) => Step::Reach(edge),
                    // No task of the copy waits for it.
                    _ => continue,
                },
                Step::Sleep(end) => Step::Sleep(copied_end(end)),
                Step::Halt(end) => Step::Halt(copied_end(end)),
                Step::Alarm(Until::Time(u64::MAX)) => step,
                Step::Alarm(end) => Step::Alarm(copied_end(end)),
                _ => step,
            };
            is_armed |= step == Step::Arm;
            self.steps.push(copied);
        }
    }

    /// Exits, by the copy's steps.
    fn exits(&self) -> Vec<(usize, stealtime_events::ExitReason)> {
        let exits = &self.task.exits;
        let cut = exits.partition_point(|exit| exit.0 < self.cut.step);
        let (head, tail) = exits.split_at(cut);
        let place = |&(step, reason): &(usize, _)| Some((*self.places.get(step)? as usize, reason));
        tail.iter().chain(head).filter_map(place).collect()
    }

    /// Stalls, by the copy's steps.
    fn stalls(&self) -> Arc<[Stall]> {
        let stalls = &self.task.stalls;
        let cut = stalls.partition_point(|stall| (stall.step as usize) < self.cut.step);
        let (head, tail) = stalls.split_at(cut);
        let place = |stall: &Stall| {
            let step = *self.places.get(stall.step as usize)?;
            Some(Stall { step, ..*stall })
        };
        tail.iter().chain(head).filter_map(place).collect()
    }

    /// The CPU where it was at the cut.
    fn first_cpu(&self) -> u16 {
        let moves = &self.task.moves;
        let next = moves.partition_point(|entry| entry.0 <= self.copier.phase_ns);
        let last = next.checked_sub(1).and_then(|last| moves.get(last));
        last.map_or(self.task.first_cpu, |entry| entry.1 as u16)
    }

    /// Its moves, with the one back to its first CPU.
    fn moves(&self) -> Arc<[(u64, u32)]> {
        let moves = &self.task.moves;
        if moves.is_empty() {
            return Arc::default();
        }
        let copier = self.copier;
        let cut = moves.partition_point(|entry| entry.0 <= copier.phase_ns);
        let (head, tail) = moves.split_at(cut);
        let moved = |side| move |&(time_ns, cpu): &(u64, u32)| (copier.time(time_ns, side), cpu);
        let return_move = (copier.wrap_ns(), u32::from(self.task.first_cpu));
        let head = head.iter().map(moved(Side::Head));
        tail.iter()
            .map(moved(Side::Tail))
            .chain([return_move])
            .chain(head)
            .collect()
    }
}

impl Copier<'_> {
    /// What ends a wait of the copy. `past`: the wait, if what it counts from precedes the copy.
    fn end(&self, end: Until, side: Side, past: Option<&Wait>) -> Until {
        let point = |edge: Edge| self.points.get(edge.0 as usize).copied().flatten();
        let reached = |edge: Edge| {
            let time_ns = self.recording.edge_ns.get(edge.0 as usize);
            Until::Time(self.time(time_ns.copied().unwrap_or(u64::MAX), side))
        };
        match (end, past) {
            (Until::Edge(edge), _) => point(edge).map_or_else(|| reached(edge), Until::Edge),
            (Until::Work { edge, ns, busy }, _) => match point(edge) {
                Some(edge) => Until::Work { edge, ns, busy },
                None => reached(edge),
            },
            (
                Until::AfterEdge {
                    edge,
                    ns,
                    exit_us,
                    waker,
                },
                past,
            ) => match (point(edge), past) {
                (Some(edge), _) => Until::AfterEdge {
                    edge,
                    ns,
                    exit_us,
                    waker,
                },
                (None, Some(wait)) => called(self.time(wait.ended_ns, side), waker),
                (None, None) => {
                    let time_ns = self.recording.edge_ns.get(edge.0 as usize);
                    let answered = time_ns.map(|time_ns| time_ns.saturating_add(ns.into()));
                    called(self.time(answered.unwrap_or(u64::MAX), side), waker)
                }
            },
            (Until::Called { time_ns, waker }, _) => called(self.time(time_ns, side), Some(waker)),
            // It slept until the recording's end, and sleeps until the wrap.
            (Until::Time(u64::MAX), _) => Until::Time(self.wrap_ns()),
            (Until::Time(time_ns), _) => Until::Time(self.time(time_ns, side)),
            (_, Some(wait)) => Until::Time(self.time(wait.ended_ns, side)),
            (
                Until::Grid {
                    phase_ns,
                    period_ns,
                    nth,
                    late_us,
                },
                None,
            ) => Until::Grid {
                phase_ns: self.on_grid(phase_ns, period_ns),
                period_ns,
                nth,
                late_us,
            },
            (
                Until::Armed { .. } | Until::After(_) | Until::Rest { .. } | Until::Sooner { .. },
                None,
            ) => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clocked::tests::{ARMED, MS, recording, task};

    /// A copy of VM 0 with these tasks that begins so late in the recording. The task's wait `n` begins after
    /// 3 `n` ms, and point `n` is reached 0.25 ms later.
    fn copied(tasks: Vec<RecordedTask>, phase_ns: u64) -> Vec<RecordedTask> {
        let recording = Recording {
            edges: 10,
            edge_ns: (0..10).map(|turn| turn * 3 * MS + MS / 4).collect(),
            ..recording(tasks)
        };
        Copier::new(&recording, 0, phase_ns, 100).tasks(1, 100)
    }

    /// The recorded task that computes throughout, with these steps in between.
    fn computes(pieces: &[(u64, Step)]) -> RecordedTask {
        let run = |ns| Step::Run {
            ns,
            spent: stealtime_simulator::script::Spent::Guest,
        };
        let (mut steps, mut now) = (Vec::new(), 0);
        for &(time_ns, step) in pieces {
            steps.extend([run(time_ns - now), step]);
            now = time_ns;
        }
        steps.push(run(41 * MS - now));
        RecordedTask {
            waits: Arc::default(),
            steps: Arc::from(steps),
            ..task(ARMED)
        }
    }

    fn halts(task: &RecordedTask) -> Vec<Until> {
        let ends = task.steps.iter().filter_map(|step| match *step {
            Step::Halt(end) => Some(end),
            _ => None,
        });
        ends.collect()
    }

    /// From 28 to 40 ms the task computes for 6 ms.
    #[test]
    fn a_copy_computes_what_the_recording_had_not_done() {
        let until_halt_ns = |phase_ms: u64| {
            let copies = copied(vec![task(ARMED)], phase_ms * MS);
            let steps = copies[0].steps.iter().copied();
            let computes = steps.take_while(|step| !matches!(step, Step::Halt(_)));
            computes.map(run_ns).sum::<u64>()
        };
        for (phase_ms, left_ms) in [(28, 6), (29, 4), (32, 4), (33, 2), (36, 2), (37, 0)] {
            assert_eq!(
                until_halt_ns(phase_ms),
                left_ms * MS,
                "from {phase_ms} ms on"
            );
        }
    }

    #[test]
    fn a_copy_that_begins_in_a_wait_waits_for_its_rest() {
        for turn in 0..10 {
            let copies = copied(vec![task(ARMED)], turn * 3 * MS + MS / 4);
            let rest = Step::Halt(Until::Time(MS * 3 / 4));
            assert_eq!(copies[0].steps.first(), Some(&rest), "wait {turn}");
            // Timers that are set after the begin of the copy stay so.
            let armed = halts(&copies[0]).into_iter().filter(|end| *end == ARMED);
            assert_eq!(armed.count() as u64, turn);
        }
    }

    #[test]
    fn waits_for_points_stay_so_unless_these_come_later_in_the_copy() {
        let mut waits = task(ARMED);
        let mut steps = waits.steps.to_vec();
        for (turn, wait) in (0..10).zip(waits.waits.iter()) {
            steps[wait.step as usize] = Step::Halt(Until::Edge(Edge(turn)));
        }
        waits.steps = Arc::from(steps);
        let reach = |turn: u32| (u64::from(turn) * 3 * MS + MS / 4, Step::Reach(Edge(turn)));
        let wakes = computes(&(0..10).map(reach).collect::<Vec<_>>());
        // In wait 4 after its point, and between waits.
        for (phase_ns, late) in [(12 * MS + MS / 2, 1), (14 * MS, 0)] {
            let copies = copied(vec![waits.clone(), wakes.clone()], phase_ns);
            let awaited = halts(&copies[0]).into_iter().filter_map(|end| match end {
                Until::Edge(edge) => Some(edge),
                _ => None,
            });
            let reached = copies[1].steps.iter().filter_map(|step| match *step {
                Step::Reach(edge) => Some(edge),
                _ => None,
            });
            let awaited: Vec<Edge> = awaited.collect();
            assert_eq!(awaited.len(), 10 - late);
            assert_eq!(awaited, reached.collect::<Vec<_>>());
        }
    }

    /// The copy returns to its first CPU where the recording begins again.
    #[test]
    fn a_copy_moves_to_the_same_cpus_by_time_and_by_step() {
        let moves = [(10 * MS, 1), (20 * MS, 2), (30 * MS, 1)];
        let moving = RecordedTask {
            moves: Arc::from(moves),
            ..computes(&moves.map(|(time_ns, cpu)| (time_ns, Step::Move(cpu))))
        };
        let moved = |tasks| {
            let copies = copied(tasks, 15 * MS);
            let by_step = copies[0].steps.iter().filter_map(|step| match *step {
                Step::Move(cpu) => Some(cpu),
                _ => None,
            });
            (copies[0].moves.to_vec(), by_step.collect::<Vec<u32>>())
        };
        let times = [(5 * MS, 2), (15 * MS, 1), (26 * MS, 0), (36 * MS, 1)];
        assert_eq!(moved(vec![moving]), (times.to_vec(), vec![2, 1, 0, 1]));
        assert_eq!(moved(vec![task(ARMED)]), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_copy_of_a_task_that_begins_later_begins_as_much_before() {
        let later = RecordedTask {
            begins: Some(Begins {
                at_ns: 20 * MS,
                is_seen: true,
            }),
            ends_ns: Some(30 * MS),
            ..task(ARMED)
        };
        let copies = copied(vec![later], 12 * MS);
        let begins_ns = copies[0].begins.map(|begins| begins.at_ns);
        assert_eq!(
            (begins_ns, copies[0].ends_ns),
            (Some(8 * MS), Some(18 * MS))
        );
    }

    /// In order of time: a copy from 20 ms on begins with step 10.
    fn waits_of_all_kinds() -> Vec<(Option<(u64, u64)>, Step)> {
        let run = |ms| {
            let spent = stealtime_simulator::script::Spent::Guest;
            let ns = ms * MS;
            (None, Step::Run { ns, spent })
        };
        let waits = |began, ended, step| (Some((began, ended)), step);
        let armed = |ms| {
            Step::Halt(Until::Armed {
                ns: ms * MS,
                exit_us: 0,
            })
        };
        let called = |ms, waker| Step::Halt(called(ms * MS, Some(waker)));
        let answered = |waker| {
            Step::Halt(Until::AfterEdge {
                edge: Edge(9),
                ns: MS as u32 / 2,
                exit_us: 3,
                waker,
            })
        };
        vec![
            run(5),
            (None, Step::Arm),
            (None, Step::Alarm(Until::Time(7 * MS))),
            waits(5, 7, armed(2)),
            run(3),
            waits(10, 13, Step::Sleep(grid(MS))),
            run(2),
            waits(15, 18, called(18, 2)),
            (None, Step::Slept(9)),
            run(4),
            waits(22, 25, armed(3)),
            run(1),
            (None, Step::Arm),
            waits(26, 29, armed(3)),
            run(1),
            waits(30, 33, Step::Sleep(grid(MS))),
            run(1),
            waits(34, 35, called(35, 1)),
            (None, Step::Reach(Edge(2))),
            waits(35, 36, Step::Halt(Until::Edge(Edge(9)))),
            waits(36, 37, answered(Some(2))),
            waits(37, 38, answered(None)),
            (None, Step::Alarm(Until::Time(u64::MAX))),
            waits(
                38,
                39,
                Step::Halt(Until::Work {
                    edge: Edge(8),
                    ns: 5,
                    busy: true,
                }),
            ),
            waits(39, 41, Step::Sleep(Until::Time(u64::MAX))),
        ]
    }

    /// A point of a grid of 3 ms.
    fn grid(phase_ns: u64) -> Until {
        Until::Grid {
            phase_ns: phase_ns as u32,
            period_ns: 3 * MS as u32,
            nth: 1,
            late_us: 0,
        }
    }

    fn with_all_kinds() -> RecordedTask {
        let (mut steps, mut waits) = (Vec::new(), Vec::new());
        for (wait, step) in waits_of_all_kinds() {
            waits.extend(wait.map(|(began, ended)| Wait {
                step: steps.len() as u32,
                began_ns: began * MS,
                ended_ns: ended * MS,
                late_us: 0,
                caller: None,
            }));
            steps.push(step);
        }
        let reason = stealtime_events::ExitReason::vmx;
        let stall = |step| Stall {
            step,
            after_ns: 7,
            ns: 8,
        };
        RecordedTask {
            waits: waits.into(),
            steps: steps.into(),
            exits: vec![
                (1, reason(1)),
                (10, reason(10)),
                (12, reason(12)),
                (25, reason(25)),
            ],
            stalls: [stall(9), stall(10), stall(11)].into(),
            ticks: Some(Ticks {
                phase_ns: 5 * MS as u32,
                period_ns: 3 * MS as u32,
            }),
            ..task(ARMED)
        }
    }

    /// Times are so much earlier in what follows the cut at 20 ms, and 21 ms later in what precedes it.
    #[test]
    fn a_copy_waits_at_its_own_times() {
        let [copy] = &copied(vec![with_all_kinds()], 20 * MS)[..] else {
            panic!("one task");
        };
        let recorded: Vec<Step> = waits_of_all_kinds()
            .into_iter()
            .map(|step| step.1)
            .collect();
        let mut expected = [&recorded[10..], &recorded[..10]].concat();
        let time = |ns| Step::Halt(Until::Time(ns));
        let answered_ns = 7 * MS + MS * 3 / 4;
        for (index, step) in [
            // Its timer was set before the cut.
            (0, time(5 * MS)),
            (5, Step::Sleep(grid(2 * MS))),
            (7, Step::Halt(called(15 * MS, Some(1)))),
            // Other tasks than those of the VM reach these points: at 27.25 ms and at 24.25 ms.
            (9, time(7 * MS + MS / 4)),
            (10, Step::Halt(called(answered_ns, Some(2)))),
            (11, time(answered_ns)),
            (13, time(4 * MS + MS / 4)),
            (14, Step::Sleep(Until::Time(21 * MS))),
            (17, Step::Alarm(Until::Time(28 * MS))),
            (20, Step::Sleep(grid(2 * MS))),
            (22, Step::Halt(called(39 * MS, Some(2)))),
        ] {
            expected[index] = step;
        }
        // No task waits for it.
        assert_eq!(expected.remove(8), Step::Reach(Edge(2)));
        assert_eq!(copy.steps[..], expected);
        let exits: Vec<(usize, u32)> = copy
            .exits
            .iter()
            .map(|exit| (exit.0, exit.1.code))
            .collect();
        assert_eq!(exits, [(0, 10), (2, 12), (14, 25), (15, 1)]);
        let stalls: Vec<u32> = copy.stalls.iter().map(|stall| stall.step).collect();
        assert_eq!(stalls, [0, 1, 23]);
        let ticks = copy.ticks.map(|ticks| (ticks.phase_ns, ticks.period_ns));
        assert_eq!(ticks, Some((0, 3 * MS as u32)));
        assert_eq!((copy.tid, copy.vm, copy.vcpu), (100, Some(1), Some((1, 0))));
        assert!(copy.waits.is_empty() && copy.begins.is_none() && copy.ends_ns.is_none());
    }

    #[test]
    fn a_copy_that_begins_in_a_wait_for_an_answer_is_called_at_its_end() {
        let all = with_all_kinds();
        let first = |phase_ns| copied(vec![all.clone()], phase_ns)[0].steps[0];
        let rest = |waker| Step::Halt(called(MS / 2, waker));
        assert_eq!(first(36 * MS + MS / 2), rest(Some(2)));
        assert_eq!(first(37 * MS + MS / 2), rest(None));
        assert_eq!(first(17 * MS), Step::Halt(called(MS, Some(2))));
        assert_eq!(first(11 * MS), Step::Sleep(Until::Time(2 * MS)));
    }

    /// A task that ends is there again from where it began, after one span.
    #[test]
    fn a_copy_sleeps_until_a_task_begins_that_has_ended() {
        let begins = Begins {
            at_ns: 3 * MS,
            is_seen: false,
        };
        let partial = |begins, ends_ns| RecordedTask {
            begins,
            ends_ns,
            ..with_all_kinds()
        };
        for (begins, ends_ns, sleeps_ms) in [
            (Some(begins), None, Some(24)),
            (None, Some(41 * MS), Some(21)),
            (None, None, None),
        ] {
            let copies = copied(vec![partial(begins, ends_ns)], 20 * MS);
            let expected = sleeps_ms.map(|ms| Step::Sleep(Until::Time(ms * MS)));
            let added = Some(copies[0].steps[14]).filter(|step| *step != with_all_kinds().steps[0]);
            assert_eq!(added, expected);
            assert_eq!((copies[0].begins, copies[0].ends_ns), (None, None));
        }
        // It has ended before, or begins at once.
        let ended = copied(vec![partial(Some(begins), Some(19 * MS))], 20 * MS);
        let later = ended[0].begins.map(|begins| (begins.at_ns, begins.is_seen));
        assert_eq!(
            (later, ended[0].ends_ns),
            (Some((24 * MS, false)), Some(40 * MS))
        );
        let begun = copied(vec![partial(Some(begins), Some(19 * MS))], 3 * MS);
        assert_eq!((begun[0].begins, begun[0].ends_ns), (None, Some(16 * MS)));
    }

    #[test]
    fn a_script_is_cut_where_the_recording_was() {
        let all = with_all_kinds();
        let cut = |phase_ns| {
            let cut = Cut::find(&all, phase_ns, 41 * MS);
            (cut.step, cut.is_in_wait, cut.whole)
        };
        assert_eq!(cut(0), (0, false, Some(Side::Tail)));
        assert_eq!(cut(41 * MS), (25, false, Some(Side::Head)));
        // Waits last from their begin to before their end.
        assert_eq!(cut(5 * MS), (3, true, None));
        assert_eq!(cut(7 * MS - 1), (3, true, None));
        assert_eq!(cut(7 * MS), (4, false, None));
        assert_eq!(cut(7 * MS + 1), (5, false, None));
        assert_eq!(cut(40 * MS), (24, true, None));
        // Its first work has 5 ms, and takes the time to its first wait.
        assert_eq!(cut(1), (1, false, None));
        // A stretch that takes longer than it computes is cut by the share that has passed.
        let slow = [waits_of_all_kinds()[0].1; 3];
        assert_eq!(steps_after(&slow, 0, 30), 0);
        assert_eq!(steps_after(&slow, 10, 30), 1);
        assert_eq!(steps_after(&slow, 11, 30), 2);
        assert_eq!(steps_after(&slow, 40, 30), 3);
        assert_eq!(steps_after(&[], 1, 0), 0);
    }

    #[test]
    fn a_grid_without_a_period_is_no_wait() {
        let none = Until::Grid {
            phase_ns: 77,
            period_ns: 0,
            nth: 1,
            late_us: 0,
        };
        let mut recorded = with_all_kinds();
        let mut steps = recorded.steps.to_vec();
        steps[15] = Step::Sleep(none);
        recorded.steps = steps.into();
        let copies = copied(vec![recorded], 20 * MS);
        assert_eq!(copies[0].steps[5], Step::Sleep(none));
    }

    #[test]
    fn points_of_a_copy_follow_those_that_are_there() {
        let reaches = [1, 2, 3, 5].map(|edge| (MS, Step::Reach(Edge(edge))));
        let waits = [3, 1, 2, 1, 7].map(|edge| (MS, Step::Halt(Until::Edge(Edge(edge)))));
        let tasks = vec![computes(&reaches), computes(&waits)];
        let recording = Recording {
            edges: 10,
            edge_ns: [MS; 10].into(),
            ..recording(tasks)
        };
        let copier = Copier::new(&recording, 0, 0, 100);
        assert_eq!(copier.edges(), 103);
        let copies = copier.tasks(1, 100);
        let edge = |number| Until::Edge(Edge(number));
        let expected = [edge(100), edge(101), edge(102), edge(101), Until::Time(MS)];
        assert_eq!(halts(&copies[1]), expected);
        let reached = copies[0].steps.iter().filter_map(|step| match *step {
            Step::Reach(edge) => Some(edge.0),
            _ => None,
        });
        assert_eq!(reached.collect::<Vec<u32>>(), [101, 102, 100]);
    }

    #[test]
    fn a_copy_begins_on_the_cpu_where_its_task_was() {
        let moving = RecordedTask {
            first_cpu: 3,
            moves: Arc::from([(10 * MS, 5), (20 * MS, 2)]),
            ..task(ARMED)
        };
        let first_cpu = |phase_ns| copied(vec![moving.clone()], phase_ns)[0].first_cpu;
        let times = [1, 10 * MS - 1, 10 * MS, 19 * MS, 20 * MS, 30 * MS];
        assert_eq!(times.map(first_cpu), [3, 3, 5, 5, 2, 2]);
    }
}
