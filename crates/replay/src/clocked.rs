//! VMs with demand that comes with time, on hosts with less contention than recorded.
//!
//! A server that is late serves several requests in a row. With more CPU time it halts between them, and has
//! done all of its work before the recording ends.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_simulator::script::{Spent, Step, Then, Until};

use crate::copied::run_ns;
use crate::host::spread_permille;
use crate::quota::median;
use crate::recording::{RecordedTask, Wait};

/// One wait in so many, at most, ends by something else than a timer in a VM that its clock drives.
const ONE_IN_OTHERS: usize = 10;
/// Fewer waits show no usual length of what is between them.
const FEW_WAITS: usize = 8;

/// VMs with demand that comes with time: timers end their waits. In others vCPUs wake each other, so that
/// they have more to do the faster they run.
pub(crate) fn clocked_vms(tasks: &[RecordedTask]) -> BTreeSet<usize> {
    let mut waits: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for task in tasks.iter().filter(|task| task.vcpu.is_some()) {
        let Some(vm) = task.vm else {
            continue;
        };
        let (timers, total) = waits.entry(vm).or_default();
        for wait in task.waits.iter() {
            if let Some(Step::Halt(end) | Step::Sleep(end)) = task.steps.get(wait.step as usize) {
                *timers += usize::from(matches!(end, Until::Armed { .. } | Until::Grid { .. }));
                *total += 1;
            }
        }
    }
    let is_clocked = |(timers, total): &(usize, usize)| {
        *timers > 0 && (total - timers) * ONE_IN_OTHERS <= *total
    };
    let clocked = waits.iter().filter(|entry| is_clocked(entry.1));
    clocked.map(|entry| *entry.0).collect()
}

/// Whether more requests waited for these tasks than they served is not recorded: a VM that was late all the
/// time may have dropped some. So each seed has them rest for another share of the time that is left after
/// their scripts, and repeat these in the other part.
pub(crate) fn rest(tasks: &mut [RecordedTask], clocked: &BTreeSet<usize>, seed: u64) {
    let permille = 1000 - spread_permille(seed, 3).min(1000);
    let is_clocked = |task: &&mut RecordedTask| {
        task.then == Then::Repeat && task.vm.is_some_and(|vm| clocked.contains(&vm))
    };
    for task in tasks.iter_mut().filter(is_clocked) {
        let end = Step::Sleep(Until::Rest { permille });
        task.steps = task.steps.iter().copied().chain([end]).collect();
    }
}

/// vCPUs of these VMs halt between pieces of work that were one in the recording, each of the usual length.
/// Such a halt is as long as usual, and over when the vCPU was there in the recording: it does not put off
/// any work.
pub(crate) fn halt_between(tasks: &mut [RecordedTask], clocked: &BTreeSet<usize>) {
    let is_clocked =
        |task: &&mut RecordedTask| task.vcpu.is_some_and(|vcpu| clocked.contains(&vcpu.0));
    for task in tasks.iter_mut().filter(is_clocked) {
        if let Some(usual) = Usual::of(task) {
            *task = usual.divided(task);
        }
    }
}

/// Whether [`halt_between`] or [`rest`] has added this step.
pub(crate) const fn is_added(step: &Step) -> bool {
    matches!(
        step,
        Step::Halt(Until::Sooner { .. }) | Step::Sleep(Until::Rest { .. })
    )
}

/// Takes back what [`halt_between`] and [`rest`] have added.
pub(crate) fn halt_as_recorded(tasks: &mut [RecordedTask]) {
    for task in tasks {
        if !task.steps.iter().any(is_added) {
            continue;
        }
        let mut steps = Vec::with_capacity(task.steps.len());
        let mut places = Vec::with_capacity(task.steps.len() + 1);
        let mut after_halt = false;
        for &step in task.steps.iter() {
            places.push(steps.len() as u32);
            // The end of its sleep follows a halt.
            let is_new = is_added(&step) || after_halt;
            after_halt = matches!(step, Step::Halt(Until::Sooner { .. }));
            if !is_new {
                steps.push(step);
            }
        }
        places.push(steps.len() as u32);
        *task = task.with_steps(steps, &places);
    }
}

/// What a vCPU usually does between two waits, and how long it waits.
#[derive(Clone, Copy, Debug)]
struct Usual {
    /// CPU time between two waits, in ns.
    piece_ns: u64,
    wait_ns: u64,
    /// The exit that halts and the way back from sleep, in ns of computing.
    slept_ns: u32,
}

impl Usual {
    fn of(task: &RecordedTask) -> Option<Self> {
        if task.waits.len() < FEW_WAITS {
            return None;
        }
        let (mut pieces, mut slept, mut exits) = (Vec::new(), Vec::new(), Vec::new());
        let (mut piece_ns, mut exit_ns) = (0, 0);
        for step in task.steps.iter() {
            match *step {
                Step::Run {
                    ns,
                    spent: Spent::Halt(_),
                } => exit_ns += ns,
                Step::Run { ns, .. } => {
                    piece_ns += ns;
                    if exit_ns > 0 {
                        exits.push(core::mem::take(&mut exit_ns));
                    }
                }
                Step::Halt(_) | Step::Sleep(_) => pieces.push(core::mem::take(&mut piece_ns)),
                Step::Slept(ns) if ns > 0 => slept.push(u64::from(ns)),
                _ => {}
            }
        }
        let middle = |values| median(values).unwrap_or(0);
        let waits = task.waits.iter();
        let waits = waits.map(|wait| wait.ended_ns.saturating_sub(wait.began_ns));
        let usual = Self {
            piece_ns: middle(pieces),
            wait_ns: middle(waits.collect()),
            slept_ns: u32::try_from(middle(slept) + middle(exits)).unwrap_or(u32::MAX),
        };
        (usual.piece_ns > 0 && usual.wait_ns > 0).then_some(usual)
    }

    fn divided(self, task: &RecordedTask) -> RecordedTask {
        let mut steps = Vec::with_capacity(task.steps.len() * 2);
        let mut places: Vec<u32> = Vec::with_capacity(task.steps.len() + 1);
        let mut waits = task.waits.iter().peekable();
        // The stretch that goes on: when it began, and what was computed of it.
        let mut stretch = Stretch::default();
        stretch.begin(0, task, waits.peek().copied(), 0);
        for (index, &step) in task.steps.iter().enumerate() {
            places.push(steps.len() as u32);
            steps.push(step);
            if waits.peek().is_some_and(|wait| wait.step as usize <= index) {
                let ended = waits.next().map_or(0, |wait| wait.ended_ns);
                stretch.begin(index + 1, task, waits.peek().copied(), ended);
                continue;
            }
            stretch.passed_ns += run_ns(step);
            stretch.piece_ns += run_ns(step);
            let rest_ns = stretch.run_ns.saturating_sub(stretch.passed_ns);
            if stretch.piece_ns >= self.piece_ns && rest_ns >= self.piece_ns {
                stretch.piece_ns = 0;
                steps.push(Step::Halt(Until::Sooner {
                    time_ns: stretch.time_ns(),
                    after_us: u16::try_from(self.wait_ns / 1_000).unwrap_or(u16::MAX),
                }));
                steps.push(Step::Slept(self.slept_ns));
            }
        }
        places.push(steps.len() as u32);
        task.with_steps(steps, &places)
    }
}

/// What a task does between two waits.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    /// From when to when, in ns of the recording.
    began_ns: u64,
    ended_ns: u64,
    /// CPU time of all of it, of what is done, and since the last halt, in ns.
    run_ns: u64,
    passed_ns: u64,
    piece_ns: u64,
}

impl Stretch {
    /// It begins with this step, and ends with the next wait.
    fn begin(&mut self, step: usize, task: &RecordedTask, next: Option<&Wait>, began_ns: u64) {
        let end = next.map_or(task.steps.len(), |wait| wait.step as usize);
        let steps = task.steps.get(step..end).unwrap_or_default();
        *self = Self {
            began_ns,
            ended_ns: next.map_or(u64::MAX, |wait| wait.began_ns),
            run_ns: steps.iter().map(|step| run_ns(*step)).sum(),
            ..Self::default()
        };
    }

    /// When the recording was at this place of it.
    fn time_ns(&self) -> u64 {
        // The end of the last stretch is not recorded: it is as long as its computing at least.
        let whole_ns = match self.ended_ns {
            u64::MAX => self.run_ns,
            ended_ns => ended_ns.saturating_sub(self.began_ns),
        };
        let part =
            u128::from(whole_ns) * u128::from(self.passed_ns) / u128::from(self.run_ns.max(1));
        self.began_ns + u64::try_from(part).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use stealtime_analysis::{Analysis, Options};
    use stealtime_simulator::NameList;
    use stealtime_simulator::script::{Late, Spent};

    use super::*;
    use crate::{Extractor, Recording};

    pub(crate) const MS: u64 = 1_000_000;
    /// A timer of 1 ms.
    pub(crate) const ARMED: Until = Until::Armed { ns: MS, exit_us: 0 };

    fn work(ns: u64) -> Step {
        Step::Run {
            ns,
            spent: Spent::Guest,
        }
    }

    /// A vCPU that halts every 3 ms, and computes for 6 ms without a halt at the end, in 12 ms.
    pub(crate) fn task(end: Until) -> RecordedTask {
        let (mut steps, mut waits) = (Vec::new(), Vec::new());
        for turn in 0..10u64 {
            waits.push(Wait {
                step: steps.len() as u32,
                began_ns: turn * 3 * MS,
                ended_ns: (turn * 3 + 1) * MS,
                late_us: 0,
                caller: None,
            });
            steps.extend([Step::Halt(end), Step::Slept(10_000), work(2 * MS)]);
        }
        steps.extend([work(2 * MS), work(2 * MS)]);
        waits.push(Wait {
            step: steps.len() as u32,
            began_ns: 40 * MS,
            ended_ns: 41 * MS,
            late_us: 0,
            caller: None,
        });
        steps.push(Step::Halt(end));
        RecordedTask {
            tid: 7,
            name: "CPU 0/KVM".to_owned(),
            vcpu: Some((0, 0)),
            vm: Some(0),
            nice: 0,
            ran_on: vec![0],
            first_cpu: 0,
            begins: None,
            ends_ns: None,
            switches_in: 11,
            moves: Arc::default(),
            then: Then::Repeat,
            exits: Vec::new(),
            alarm_ns: 0,
            ticks: None,
            stalls: Arc::default(),
            called: Late::default(),
            waits: Arc::from(waits),
            steps: Arc::from(steps),
        }
    }

    /// A recording of 41 ms with these tasks.
    pub(crate) fn recording(tasks: Vec<RecordedTask>) -> Recording {
        let answers = Analysis::new(Options::default()).finish(&NameList::default());
        Recording {
            span_ns: 41 * MS,
            tasks,
            ..Extractor::new(&answers).finish()
        }
    }

    #[test]
    fn a_vm_is_clocked_if_timers_end_its_waits() {
        let timers = task(ARMED);
        assert_eq!(
            clocked_vms(std::slice::from_ref(&timers)),
            BTreeSet::from([0])
        );
        let edge = Until::Edge(stealtime_simulator::script::Edge(0));
        assert!(clocked_vms(&[timers, task(edge)]).is_empty());
    }

    #[test]
    fn what_was_done_in_a_row_is_divided_without_more_of_it() {
        let recorded = task(ARMED);
        let mut tasks = [recorded.clone()];
        halt_between(&mut tasks, &BTreeSet::from([0]));
        let [divided] = &tasks;
        let run = |task: &RecordedTask| task.steps.iter().map(|step| run_ns(*step)).sum::<u64>();
        assert_eq!(run(divided), run(&recorded));
        let added = divided.steps.iter().filter_map(|step| match *step {
            Step::Halt(Until::Sooner { time_ns, after_us }) => Some((time_ns, after_us)),
            _ => None,
        });
        // The stretch of 6 ms from 28 to 40 ms has two halts, where the recording was then.
        assert_eq!(
            added.collect::<Vec<_>>(),
            [(32 * MS, 1000), (36 * MS, 1000)]
        );
        for (wait, old) in divided.waits.iter().zip(recorded.waits.iter()) {
            assert_eq!(
                divided.steps.get(wait.step as usize),
                recorded.steps.get(old.step as usize)
            );
        }
    }

    #[test]
    fn a_halt_costs_its_exit_too() {
        let recorded = task(ARMED);
        let exit = |ns| Step::Run {
            ns,
            spent: Spent::Halt(12),
        };
        let steps = recorded.steps.iter().flat_map(|&step| match step {
            Step::Halt(_) => vec![exit(30_000), step],
            Step::Slept(_) => vec![step, exit(20_000)],
            step => vec![step],
        });
        let exits = RecordedTask {
            steps: steps.collect(),
            ..recorded.clone()
        };
        let slept_ns = |task| Usual::of(task).map(|usual| usual.slept_ns);
        assert_eq!(
            [&recorded, &exits].map(slept_ns),
            [Some(10_000), Some(60_000)]
        );
    }

    #[test]
    fn seeds_spread_over_all_shares() {
        let mut shares: Vec<u16> = (1..=8).map(|seed| spread_permille(seed, 2)).collect();
        assert_eq!(shares.first(), Some(&500));
        shares.sort_unstable();
        assert!(
            shares.windows(2).all(|pair| pair[1] - pair[0] <= 250),
            "{shares:?}"
        );
    }

    #[test]
    fn only_runs_with_exits_count_for_the_cost_of_a_halt() {
        let mut recorded = task(ARMED);
        // The exit of each third halt is seen.
        let exit = Step::Run {
            ns: 3_000,
            spent: Spent::Halt(12),
        };
        let mut steps = recorded.steps.to_vec();
        for wait in recorded.waits.iter().rev().step_by(3) {
            steps.insert(wait.step as usize, exit);
        }
        recorded.steps = Arc::from(steps);
        let usual = Usual::of(&recorded).expect("waits enough");
        assert_eq!(usual.slept_ns, 13_000);
    }

    #[test]
    fn a_task_that_only_waits_has_no_usual_piece() {
        let recorded = task(ARMED);
        let waits = recorded.steps.iter().copied();
        let waits = waits.filter(|step| !matches!(step, Step::Run { .. }));
        let idle = RecordedTask {
            steps: waits.collect(),
            ..recorded.clone()
        };
        assert!(Usual::of(&recorded).is_some() && Usual::of(&idle).is_none());
    }
}
