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
    pub(super) fn copied(tasks: Vec<RecordedTask>, phase_ns: u64) -> Vec<RecordedTask> {
        let recording = Recording {
            edges: 10,
            edge_ns: (0..10).map(|turn| turn * 3 * MS + MS / 4).collect(),
            ..recording(tasks)
        };
        Copier::new(&recording, 0, phase_ns, 100).tasks(1, 100)
    }

    /// The recorded task that computes throughout, with these steps in between.
    pub(super) fn computes(pieces: &[(u64, Step)]) -> RecordedTask {
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

    pub(super) fn halts(task: &RecordedTask) -> Vec<Until> {
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
}

#[cfg(test)]
#[path = "tests/copied.rs"]
mod cut_scripts;
