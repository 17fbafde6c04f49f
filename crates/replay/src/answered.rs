//! Waits for what a VM's own requests ask for, such as blocks of a disk.
//!
//! A thread of the VMM passes a request on and sleeps. The answer comes so long after that, so that a VM
//! that is late asks later, and does less in a second. Packets of clients come at their times, whatever the
//! VM does. A recording shows both as interrupts of devices. Answers come after times that are alike. The
//! times from a sleep of the thread to packets spread as widely as those between packets.
//!
//! An idle CPU takes the answer's interrupt when it has left its idle state. A busy one takes it at once. So
//! the way out of that state is apart from the delay of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stealtime_simulator::script::{Edge, Step, Until};

use crate::recording::{Caller, RecordedTask, Recording};

/// Fewer answers show no usual delay.
const FEW_ANSWERS: usize = 100;

/// Answers hardly ever take longer than so many times the median. Of packets at chance one in a hundred
/// comes later than after 6.6 times the median.
const MOST_DELAY: u64 = 4;

/// A sleep of a VMM's thread.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    began_ns: u64,
    /// Index of the task.
    task: usize,
    step: u32,
}

/// A wait that ends with an answer.
#[derive(Clone, Copy, Debug)]
struct Answer {
    step: u32,
    ended_ns: u64,
    /// The last sleep of a VMM's thread before, and how long before the answer that began, in ns.
    sleep: Sleep,
    delay_ns: u64,
    /// The part of it that an idle CPU took to leave its state, in ns.
    exit_ns: u64,
    /// The CPU that took the interrupt, if it is another one than the vCPU's.
    caller: Option<Caller>,
}

/// A point that a VMM's thread reaches before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    step: u32,
    edge: Edge,
}

/// Waits of vCPUs for answers end so long after the request as in the recording, and not at their recorded
/// times.
pub(crate) fn wait_for_answers(recording: &mut Recording) {
    let vms: BTreeSet<usize> = recording.tasks.iter().filter_map(|task| task.vm).collect();
    // By task.
    let mut requests: BTreeMap<usize, Vec<Request>> = BTreeMap::new();
    let mut edge_ns = recording.edge_ns.to_vec();
    // Those of copies are reached at no time of the recording.
    edge_ns.resize(recording.edges as usize, u64::MAX);
    for vm in vms {
        let sleeps = sleeps(&recording.tasks, vm);
        let idle_wake_ns = recording.idle_wake_ns.unwrap_or(0);
        let is_vcpu = |task: &&mut RecordedTask| task.vcpu.is_some_and(|vcpu| vcpu.0 == vm);
        for task in recording.tasks.iter_mut().filter(is_vcpu) {
            let mut answers = answers(task, &sleeps);
            if answers.is_empty() {
                continue;
            }
            exits(task, &mut answers, idle_wake_ns);
            let mut steps = task.steps.to_vec();
            for answer in answers {
                if let Some(Step::Halt(end) | Step::Sleep(end)) =
                    steps.get_mut(answer.step as usize)
                    && let Ok(ns) = u32::try_from(answer.delay_ns - answer.exit_ns)
                {
                    let exit_us = u16::try_from(answer.exit_ns / 1_000).unwrap_or(u16::MAX);
                    let edge = Edge(edge_ns.len() as u32);
                    edge_ns.push(answer.sleep.began_ns);
                    let reached = requests.entry(answer.sleep.task).or_default();
                    reached.push(Request {
                        step: answer.sleep.step,
                        edge,
                    });
                    *end = Until::AfterEdge {
                        edge,
                        ns,
                        exit_us,
                        waker: answer.caller.map(|caller| caller.cpu),
                    };
                }
            }
            task.steps = Arc::from(steps);
        }
    }
    for (task, mut reached) in requests {
        reached.sort_unstable();
        if let Some(task) = recording.tasks.get_mut(task) {
            *task = reaching(task, &reached);
        }
    }
    recording.edges = edge_ns.len() as u32;
    recording.edge_ns = Arc::from(edge_ns);
}

/// Sleeps of the VMM's threads of a VM, the earliest first.
fn sleeps(tasks: &[RecordedTask], vm: usize) -> Vec<Sleep> {
    let tasks = tasks.iter().enumerate();
    let threads = tasks.filter(|(_, task)| task.vm == Some(vm) && task.vcpu.is_none());
    let sleeps = threads.flat_map(|(index, task)| {
        task.waits.iter().map(move |wait| Sleep {
            began_ns: wait.began_ns,
            task: index,
            step: wait.step,
        })
    });
    let mut sleeps: Vec<Sleep> = sleeps.collect();
    sleeps.sort_by_key(|sleep| sleep.began_ns);
    sleeps
}

/// Waits of a vCPU that nothing else explains, if they are for answers. Each answer has a request of its own.
/// Delays are alike, though a CPU's way out of its idle state may double them. Packets that come at a fixed
/// rate have hardly any spread of the times between them.
fn answers(task: &RecordedTask, sleeps: &[Sleep]) -> Vec<Answer> {
    let answers = task.waits.iter().filter_map(|wait| {
        let at_time = Until::Time(wait.ended_ns);
        let step = *task.steps.get(wait.step as usize)?;
        if ![Step::Halt(at_time), Step::Sleep(at_time)].contains(&step) {
            return None;
        }
        let next = sleeps.partition_point(|sleep| sleep.began_ns <= wait.ended_ns);
        let sleep = next.checked_sub(1).and_then(|last| sleeps.get(last))?;
        Some(Answer {
            step: wait.step,
            ended_ns: wait.ended_ns,
            sleep: *sleep,
            delay_ns: wait.ended_ns - sleep.began_ns,
            exit_ns: 0,
            caller: wait.caller,
        })
    });
    let answers: Vec<Answer> = answers.collect();
    let intervals = answers.windows(2).map(|pair| match pair {
        [first, next] => next.ended_ns.saturating_sub(first.ended_ns),
        _ => 0,
    });
    let intervals = Lengths::new(intervals);
    let delays = Lengths::new(answers.iter().map(|answer| answer.delay_ns));
    let requests: BTreeSet<u64> = answers.iter().map(|answer| answer.sleep.began_ns).collect();
    let are_alike = answers.len() >= FEW_ANSWERS
        && delays.percentile(99) <= delays.percentile(50).saturating_mul(MOST_DELAY)
        && delays.lower_permille() < intervals.lower_permille()
        && requests.len() * 10 >= answers.len() * 9;
    match are_alike {
        true => answers,
        false => Vec::new(),
    }
}

/// What CPUs took to leave their idle states before they took the interrupts of answers. A vCPU that polled
/// kept its CPU busy, and so did the task that another CPU had. From deep states the way is long: such
/// answers are a group. Other ways are as long as those of wakeups on idle CPUs.
fn exits(task: &RecordedTask, answers: &mut [Answer], idle_wake_ns: u64) {
    let has_slept = |answer: &Answer| {
        if let Some(caller) = answer.caller {
            return caller.is_idle;
        }
        let next = task.steps.get(answer.step as usize + 1);
        matches!(next, Some(Step::Slept(ns)) if *ns > 0)
    };
    let slept = answers.iter().filter(|answer| has_slept(answer));
    let delays = Lengths::new(slept.map(|answer| answer.delay_ns));
    let (longer_ns, deep_ns) = delays.second_group().unwrap_or((u64::MAX, 0));
    // A device takes longer than a CPU that wakes up.
    let usual_ns = idle_wake_ns.min(delays.percentile(10) / 4);
    for answer in answers.iter_mut().filter(|answer| has_slept(answer)) {
        let is_deep = answer.delay_ns >= longer_ns;
        let exit_ns = usual_ns + if is_deep { deep_ns } else { 0 };
        answer.exit_ns = exit_ns.min(answer.delay_ns);
    }
}

/// The task with these points, the first step first.
fn reaching(task: &RecordedTask, requests: &[Request]) -> RecordedTask {
    let mut steps = Vec::with_capacity(task.steps.len() + requests.len());
    let mut places = Vec::with_capacity(task.steps.len() + 1);
    let mut requests = requests.iter().peekable();
    for (index, &step) in (0..).zip(task.steps.iter()) {
        while let Some(request) = requests.next_if(|request| request.step <= index) {
            steps.push(Step::Reach(request.edge));
        }
        places.push(steps.len() as u32);
        steps.push(step);
    }
    places.push(steps.len() as u32);
    task.with_steps(steps, &places)
}

/// Lengths of time in ns, the least first.
struct Lengths(Vec<u64>);

impl Lengths {
    fn new(lengths: impl Iterator<Item = u64>) -> Self {
        let mut lengths: Vec<u64> = lengths.collect();
        lengths.sort_unstable();
        Self(lengths)
    }

    fn percentile(&self, percent: usize) -> u64 {
        let index = self.0.len() * percent / 100;
        self.0.get(index).copied().unwrap_or(0)
    }

    /// From the 10th percentile to the median, in thousandths of that. CPUs that leave deep idle states make
    /// delays longer, so that those above the median spread.
    fn lower_permille(&self) -> u64 {
        let width = self.percentile(50) - self.percentile(10);
        width.saturating_mul(1_000) / self.percentile(50).max(1)
    }

    /// Where a second group of a tenth or more begins, and by how much its median is more, in ns. It is
    /// further from the first group than that is wide.
    fn second_group(&self) -> Option<(u64, u64)> {
        let gap = |percent: usize| self.percentile(percent + 1) - self.percentile(percent);
        let split = (10..90).max_by_key(|&percent| gap(percent))?;
        let width = self.percentile(split) - self.percentile(1);
        let middles = [split / 2, split.midpoint(100)];
        let [first, second] = middles.map(|middle| self.percentile(middle));
        let begin = self.percentile(split).midpoint(self.percentile(split + 1));
        (gap(split) > width).then_some((begin, second - first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clocked::tests::{ARMED, MS, task};
    use crate::recording::Wait;

    /// A vCPU and the thread that passes on its requests. A request follows the last wait, after work of 1
    /// and 3 ms in turn, and its answer comes so long after it.
    fn recorded(delays: impl Iterator<Item = u64>) -> [RecordedTask; 2] {
        let mut now = 0;
        let (mut vcpu, mut thread) = (Vec::new(), Vec::new());
        for (number, delay_ns) in (0..).zip(delays) {
            let request_ns = now + if number % 2 == 0 { MS } else { 3 * MS };
            let answer_ns = request_ns + delay_ns;
            let wait = |began_ns, ended_ns| Wait {
                step: number,
                began_ns,
                ended_ns,
                late_us: 0,
                caller: None,
            };
            vcpu.push(wait(request_ns + 1, answer_ns));
            thread.push(wait(request_ns, answer_ns + MS));
            now = answer_ns;
        }
        let steps = |waits: &[Wait]| {
            let ends = waits.iter().map(|wait| wait.ended_ns);
            ends.map(|ended_ns| Step::Halt(Until::Time(ended_ns)))
                .collect()
        };
        let vcpu = RecordedTask {
            steps: steps(&vcpu),
            waits: Arc::from(vcpu),
            ..task(ARMED)
        };
        let thread = RecordedTask {
            vcpu: None,
            steps: steps(&thread),
            waits: Arc::from(thread),
            ..vcpu.clone()
        };
        [vcpu, thread]
    }

    /// Delays of answers, if the waits are for these.
    fn found(tasks: &[RecordedTask; 2]) -> Vec<u64> {
        let [vcpu, _] = tasks;
        let answers = answers(vcpu, &sleeps(tasks, 0));
        answers.iter().map(|answer| answer.delay_ns).collect()
    }

    #[test]
    fn answers_come_so_long_after_their_requests() {
        let delays = (0..200).map(|number| 80_000 + number % 5 * 10_000);
        let delays: Vec<u64> = delays.collect();
        let tasks = recorded(delays.iter().copied());
        assert_eq!(found(&tasks), delays);
        // Too few.
        let few = recorded(delays.iter().copied().take(90));
        assert_eq!(found(&few), Vec::<u64>::new());
        // The VM has no other thread.
        let [vcpu, thread] = tasks;
        let other = RecordedTask {
            vm: Some(1),
            ..thread
        };
        assert_eq!(found(&[vcpu, other]), Vec::<u64>::new());
    }

    #[test]
    fn idle_cpus_leave_their_states_before_they_take_answers() {
        let exits_of = |deep_ns: u64, slept_ns| {
            let delay = |number: u64| 60_000 + number % 7 * 1_000 + number % 3 / 2 * deep_ns;
            let tasks = recorded((0..200).map(delay));
            let [vcpu, _] = &tasks;
            let mut found = answers(vcpu, &sleeps(&tasks, 0));
            let steps = vcpu.steps.iter();
            let steps = steps.flat_map(|step| [*step, Step::Slept(slept_ns)]);
            let vcpu = RecordedTask {
                steps: steps.collect(),
                ..vcpu.clone()
            };
            found.iter_mut().for_each(|answer| answer.step *= 2);
            exits(&vcpu, &mut found, 10_000);
            let exits = found.iter().map(|answer| answer.exit_ns);
            exits.collect::<BTreeSet<u64>>()
        };
        assert_eq!(exits_of(0, 1), BTreeSet::from([10_000]));
        let deep = exits_of(130_000, 1);
        let deep: Vec<u64> = deep.into_iter().collect();
        assert!(
            matches!(deep.as_slice(), [10_000, long] if long.abs_diff(140_000) <= 1_000),
            "{deep:?}"
        );
        // The vCPUs polled.
        assert_eq!(exits_of(0, 0), BTreeSet::from([0]));
    }

    #[test]
    fn packets_come_at_their_times() {
        // Two of a hundred come after more than four times the median.
        let times = (0..200u64).map(|number| match number % 50 {
            0 => MS,
            _ => 20_000 + number % 100 * (number % 100) * 1_000 / 50,
        });
        assert_eq!(found(&recorded(times)), Vec::<u64>::new());
    }

    #[test]
    fn a_thread_reaches_its_points_before_it_sleeps() {
        let [_, thread] = recorded(std::iter::repeat_n(80_000, 3));
        let request = |step, edge| Request {
            step,
            edge: Edge(edge),
        };
        let requests = [request(0, 5), request(2, 6), request(2, 7)];
        let changed = reaching(&thread, &requests);
        let reached = [0, 3, 4].map(|step| changed.steps.get(step).copied());
        assert_eq!(reached, [5, 6, 7].map(|edge| Some(Step::Reach(Edge(edge)))));
        for (old, new) in thread.waits.iter().zip(changed.waits.iter()) {
            let step =
                |task: &RecordedTask, wait: &Wait| task.steps.get(wait.step as usize).copied();
            assert_eq!(step(&thread, old), step(&changed, new));
        }
        assert_eq!(changed.steps.len(), thread.steps.len() + 3);
    }

    #[test]
    fn the_lower_width_is_a_part_of_the_median() {
        let lengths = Lengths::new((0..=100).map(|n| 10 * n));
        assert_eq!(lengths.lower_permille(), 800);
    }
}
