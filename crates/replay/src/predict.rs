//! A replay, and the recording, as numbers that can be compared.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_analysis::Answers;
use stealtime_events::ExitReason;
use stealtime_simulator::config::Config;
use stealtime_simulator::script::{ScriptOutcome, Spent, Step, Then};
use stealtime_simulator::{Fault, run};

use crate::decisions::Decisions;
use crate::recording::{RecordedTask, Recording};
use crate::slices::{SliceTimers, Watch};

/// A vCPU's time and events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VcpuTimes {
    /// Index of its VM among the answers'.
    pub vm: usize,
    /// Its number.
    pub vcpu: u32,
    /// On a CPU, in ns; polling in halts is part of it.
    pub run_ns: u64,
    /// Runnable without a CPU, in ns.
    pub ready_ns: u64,
    /// Asleep, in ns: halted, or blocked in the host.
    pub halted_ns: u64,
    /// Of the span, in ns: unknown, because events were lost. A replay waits there.
    pub unknown_ns: u64,
    /// Polling in halts, in ns.
    pub poll_ns: u64,
    /// On a CPU in halts, in ns: polling, going to sleep and coming back. Of a recording: polling alone.
    pub in_halts_ns: u64,
    /// On a CPU for what is neither guest code nor halts, in ns: exits and what the host did for it.
    pub host_ns: u64,
    /// Exits by reason.
    pub exits: BTreeMap<ExitReason, u64>,
    /// Latencies of its wakeups in ns, the shortest first.
    pub wakeups: Vec<u64>,
    /// Its work as a share of the recorded work, in permille; above 1000 if it got further.
    pub done_permille: u64,
}

impl VcpuTimes {
    /// Time in a known state, in ns.
    #[must_use]
    pub const fn known_ns(&self) -> u64 {
        self.run_ns + self.ready_ns + self.halted_ns
    }
}

/// All vCPUs, in the order of VM and number, and everything else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// The vCPUs.
    pub vcpus: Vec<VcpuTimes>,
    /// Tasks that are no vCPUs: VMMs' other threads, tasks of the host, kernel threads.
    pub others: OtherTimes,
    /// The part of those that work for VMs, by the VM's index.
    pub vm_threads: BTreeMap<usize, OtherTimes>,
    /// The times that slice timers are set for.
    pub slices: SliceTimers,
    /// Decisions at wakeups on busy CPUs.
    pub decisions: Decisions,
}

/// Time of tasks that are no vCPUs, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherTimes {
    /// On a CPU, in ns.
    pub run_ns: u64,
    /// Runnable without a CPU, in ns.
    pub ready_ns: u64,
}

/// Times of tasks that are no vCPUs while they are added up.
#[derive(Default)]
struct Threads {
    all: OtherTimes,
    by_vm: BTreeMap<usize, OtherTimes>,
}

impl Threads {
    /// Adds those of a task. A damaged recording may claim centuries: sums saturate.
    fn add(&mut self, task: &RecordedTask, times: OtherTimes) {
        let of_vm = task.vm.map(|vm| self.by_vm.entry(vm).or_default());
        for sum in std::iter::once(&mut self.all).chain(of_vm) {
            sum.run_ns = sum.run_ns.saturating_add(times.run_ns);
            sum.ready_ns = sum.ready_ns.saturating_add(times.ready_ns);
        }
    }
}

/// The recording itself, in the quantities of a replay.
#[must_use]
pub fn recorded(recording: &Recording, answers: &Answers) -> Times {
    let time_of = |tid: i32, (vm, vcpu): (usize, u32)| {
        let vm = answers.vms.get(vm).map(|vm| vm.vm.as_str());
        let mut times = answers.vcpus.iter();
        times.find(|t| t.tid == tid && t.vcpu == vcpu && Some(t.vm.as_str()) == vm)
    };
    let vcpu = |task: &RecordedTask| {
        let (vm, vcpu) = task.vcpu?;
        let time = time_of(task.tid, (vm, vcpu))?;
        Some(VcpuTimes {
            vm,
            vcpu,
            run_ns: time.on_cpu_ns,
            ready_ns: time.preempted_ns + time.wake_wait_ns,
            halted_ns: time.halt_ns,
            // In a replay too it begins with its first sign.
            unknown_ns: match task.begins {
                Some(begins) if !begins.is_seen => time.unknown_ns.saturating_sub(begins.at_ns),
                _ => time.unknown_ns,
            },
            poll_ns: time.poll_ns.unwrap_or(0),
            in_halts_ns: time.poll_ns.unwrap_or(0),
            host_ns: short(host_ns(&task.steps)),
            exits: all_exits(task),
            wakeups: sorted(recording.wakeups.samples.get(&task.tid)),
            done_permille: 1000,
        })
    };
    let mut threads = Threads::default();
    for task in recording.tasks.iter().filter(|task| task.vcpu.is_none()) {
        let computed = task.steps.iter().map(|step| match *step {
            Step::Run { ns, .. } => ns,
            _ => 0,
        });
        let ready = recording.wakeups.ready_ns.get(&task.tid);
        let times = OtherTimes {
            run_ns: computed.fold(0, u64::saturating_add),
            ready_ns: ready.copied().unwrap_or(0),
        };
        threads.add(task, times);
    }
    Times {
        vcpus: in_order(recording.tasks.iter().filter_map(vcpu).collect()),
        others: threads.all,
        vm_threads: threads.by_vm,
        slices: recording.slices.clone(),
        decisions: recording.decisions.clone(),
    }
}

/// Replays a recording on a host of [`crate::host::as_recorded`].
///
/// # Errors
///
/// The simulator's.
pub fn replay(recording: &Recording, config: &Config) -> Result<Times, Fault> {
    let mut watch = Watch::default();
    let outcome = run(config, &mut watch)?;
    let scripts = recording.tasks.iter().zip(&outcome.scripts);
    let vcpu = |(task, script): (&RecordedTask, &ScriptOutcome)| {
        let (vm, vcpu) = task.vcpu?;
        Some(VcpuTimes {
            vm,
            vcpu,
            run_ns: script.books.run_ns,
            ready_ns: script.books.wait_ns,
            halted_ns: script.books.sleep_ns,
            unknown_ns: 0,
            poll_ns: script.poll_ns,
            in_halts_ns: script.poll_ns + script.sleeping_ns,
            host_ns: host_ns_until(task, script),
            exits: exits_until(task, script),
            wakeups: sorted(watch.wakes.samples.get(&script.tid.0))
                .iter()
                .map(|ns| ns + u64::from(config.scripts.wake_ns))
                .collect(),
            done_permille: done_permille(task, script),
        })
    };
    let vcpus = scripts.clone().filter(|pair| pair.0.vcpu.is_some());
    let vcpus: BTreeSet<i32> = vcpus.map(|pair| pair.1.tid.0).collect();
    let mut threads = Threads::default();
    for (task, script) in scripts.clone().filter(|pair| pair.0.vcpu.is_none()) {
        let times = OtherTimes {
            run_ns: script.books.run_ns,
            ready_ns: script.books.wait_ns,
        };
        threads.add(task, times);
    }
    Ok(Times {
        vcpus: in_order(scripts.filter_map(vcpu).collect()),
        others: threads.all,
        vm_threads: threads.by_vm,
        slices: watch.slices,
        decisions: watch.wakeups.decisions(|tid| vcpus.contains(&tid)),
    })
}

/// |replayed - recorded| of running, ready and halted time, in ns. The replay waits in gaps of the recording,
/// so its halted time counts without them.
pub(crate) fn time_errors(recorded: &VcpuTimes, replayed: &VcpuTimes) -> [u64; 3] {
    let halted_ns = replayed.halted_ns.saturating_sub(recorded.unknown_ns);
    [
        recorded.run_ns.abs_diff(replayed.run_ns),
        recorded.ready_ns.abs_diff(replayed.ready_ns),
        recorded.halted_ns.abs_diff(halted_ns),
    ]
}

fn in_order(mut vcpus: Vec<VcpuTimes>) -> Vec<VcpuTimes> {
    vcpus.sort_by_key(|time| (time.vm, time.vcpu));
    vcpus
}

/// CPU time of steps, in ns.
fn compute_ns(steps: &[Step]) -> u128 {
    let runs = steps.iter().map(|step| match *step {
        Step::Run { ns, .. } => u128::from(ns),
        _ => 0,
    });
    runs.sum()
}

/// CPU time of a task's script, in ns.
#[must_use]
pub fn demand_ns(task: &RecordedTask) -> u64 {
    short(compute_ns(&task.steps))
}

/// CPU time of steps outside of guest code, in ns.
fn host_ns(steps: &[Step]) -> u128 {
    let runs = steps.iter().map(|step| match *step {
        Step::Run {
            spent: Spent::Guest,
            ..
        } => 0,
        Step::Run { ns, .. } => u128::from(ns),
        _ => 0,
    });
    runs.sum()
}

fn short(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// CPU time of a script outside of guest code, in ns. Work beyond the recorded has it at its average rate.
fn host_ns_until(task: &RecordedTask, script: &ScriptOutcome) -> u64 {
    match task.then {
        Then::Compute => {
            short(host_ns(&task.steps) * u128::from(done_permille(task, script)) / 1000)
        }
        Then::End | Then::Repeat => {
            let part = task.steps.get(..script.steps).unwrap_or(&task.steps);
            short(u128::from(script.passes) * host_ns(&task.steps) + host_ns(part))
        }
    }
}

/// The CPU time of the steps that a script began, in permille of the task's recorded one. The last of them
/// counts as a whole.
fn done_permille(task: &RecordedTask, script: &ScriptOutcome) -> u64 {
    let whole = compute_ns(&task.steps);
    let counted = match task.then {
        // It has steps of computing alone, and computes on after them.
        Then::Compute => u128::from(script.books.run_ns) * 1000,
        Then::End | Then::Repeat => {
            let part = compute_ns(task.steps.get(..script.steps).unwrap_or(&task.steps));
            u128::from(script.passes) * whole * 1000 + part * 1000
        }
    };
    u64::try_from(counted.checked_div(whole).unwrap_or(1000)).unwrap_or(u64::MAX)
}

fn all_exits(task: &RecordedTask) -> BTreeMap<ExitReason, u64> {
    let mut exits = BTreeMap::new();
    for &(_, reason) in &task.exits {
        *exits.entry(reason).or_default() += 1;
    }
    exits
}

/// Exits of a script.
///
/// After its last step a script repeats the recording. That is good enough for times, but its first exits
/// may be a burst of one reason. So repeated work has exits at the average rate of the recording.
fn exits_until(task: &RecordedTask, script: &ScriptOutcome) -> BTreeMap<ExitReason, u64> {
    if script.passes > 0 || script.steps >= task.steps.len() {
        let mut exits = all_exits(task);
        let permille = done_permille(task, script).saturating_sub(1000);
        exits
            .values_mut()
            .for_each(|n| *n += (*n * permille + 500) / 1000);
        return exits;
    }
    let mut exits = BTreeMap::new();
    for &(_, reason) in task.exits.iter().filter(|exit| exit.0 < script.steps) {
        *exits.entry(reason).or_default() += 1;
    }
    exits
}

fn sorted(samples: Option<&Vec<u64>>) -> Vec<u64> {
    let mut samples = samples.cloned().unwrap_or_default();
    samples.sort_unstable();
    samples
}

/// How far a replay is from the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    /// |replayed - recorded| of running, ready and halted time of each vCPU in ppm of the span,
    /// the least first.
    pub of_span_ppm: Vec<u64>,
    /// |replayed - recorded| of the exits of each reason that had 100 or more, in ppm of the
    /// recorded, the least first.
    pub of_exits_ppm: Vec<u64>,
}

impl Errors {
    /// Compares.
    #[must_use]
    pub fn between(recorded: &Times, replayed: &Times, span_ns: u64) -> Self {
        let mut of_span_ppm = Vec::new();
        let mut exits: BTreeMap<ExitReason, (u64, u64)> = BTreeMap::new();
        for (past, replay) in recorded.vcpus.iter().zip(&replayed.vcpus) {
            of_span_ppm.extend(time_errors(past, replay).map(|ns| ppm(ns, span_ns)));
            for (&reason, n) in &past.exits {
                exits.entry(reason).or_default().0 += n;
            }
            for (&reason, n) in &replay.exits {
                exits.entry(reason).or_default().1 += n;
            }
        }
        let often = exits.values().filter(|n| n.0 >= 100);
        let mut of_exits_ppm: Vec<u64> = often.map(|n| ppm(n.0.abs_diff(n.1), n.0)).collect();
        of_span_ppm.sort_unstable();
        of_exits_ppm.sort_unstable();
        Self {
            of_span_ppm,
            of_exits_ppm,
        }
    }

    /// The value below which so many percent of the vCPUs' times are, in ppm of the span.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> u64 {
        let rank = self.of_span_ppm.len() * percent / 100;
        let last = self.of_span_ppm.len().saturating_sub(1);
        self.of_span_ppm.get(rank.min(last)).copied().unwrap_or(0)
    }

    /// The largest error of an exit reason's count, in ppm.
    #[must_use]
    pub fn worst_exits(&self) -> u64 {
        self.of_exits_ppm.last().copied().unwrap_or(0)
    }
}

fn ppm(part: u64, whole: u64) -> u64 {
    let ppm = u128::from(part) * 1_000_000;
    let ppm = ppm.checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{ppm, sorted};

    #[test]
    fn samples_are_in_ascending_order() {
        assert_eq!(sorted(Some(&vec![3, 1, 2])), [1, 2, 3]);
        assert!(sorted(None).is_empty());
    }

    #[test]
    fn parts_are_in_ppm() {
        assert_eq!((ppm(1, 4), ppm(0, 4), ppm(7, 0)), (250_000, 0, 0));
        assert_eq!(ppm(u64::MAX, 1), u64::MAX);
    }
}
