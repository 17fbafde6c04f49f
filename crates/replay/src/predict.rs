//! A replay, and the recording, as numbers that can be compared.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_analysis::Answers;
use stealtime_events::ExitReason;
use stealtime_simulator::config::Config;
use stealtime_simulator::script::{ScriptOutcome, Step, Then};
use stealtime_simulator::{Fault, run};

use crate::decisions::Decisions;
use crate::recording::{RecordedTask, Recording};
use crate::slices::{SliceTimers, Watch};

pub use crate::nearest::nearest;

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
    /// Of the span, in ns: what it did is not known, as events were lost. A replay waits there.
    pub unknown_ns: u64,
    /// Polling in halts, in ns.
    pub poll_ns: u64,
    /// On a CPU in halts, in ns: polling, going to sleep and coming back. Of a recording polling alone.
    pub in_halts_ns: u64,
    /// Exits by reason.
    pub exits: BTreeMap<ExitReason, u64>,
    /// Latencies of its wakeups in ns, the shortest first.
    pub wakeups: Vec<u64>,
    /// What it did of what it did in the recording, in permille; more than 1000 if it got further.
    pub done_permille: u64,
}

impl VcpuTimes {
    /// Time of which the recording says what it did, in ns.
    pub(crate) const fn known_ns(&self) -> u64 {
        self.run_ns + self.ready_ns + self.halted_ns
    }
}

/// All vCPUs, in the order of VM and number, and everything else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// The vCPUs.
    pub vcpus: Vec<VcpuTimes>,
    /// Tasks that are no vCPUs: VMMs' other threads, tasks of the host and of its kernel.
    pub others: OtherTimes,
    /// For how long slice timers were set.
    pub slices: SliceTimers,
    /// What was decided at wakeups.
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

/// What the recording says.
#[must_use]
pub fn recorded(recording: &Recording, answers: &Answers) -> Times {
    let time_of = |tid: i32, (vm, vcpu): (usize, u32)| {
        let vm = answers.vms.get(vm).map(|vm| vm.vm.as_str());
        let mut all = answers.vcpus.iter();
        all.find(|t| t.tid == tid && t.vcpu == vcpu && Some(t.vm.as_str()) == vm)
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
            // What was before its first sign is no part of its life in a replay either.
            unknown_ns: match task.begins {
                Some(begins) if !begins.is_seen => time.unknown_ns.saturating_sub(begins.at_ns),
                _ => time.unknown_ns,
            },
            poll_ns: time.poll_ns.unwrap_or(0),
            in_halts_ns: time.poll_ns.unwrap_or(0),
            exits: all_exits(task),
            wakeups: sorted(recording.wakeups.samples.get(&task.tid)),
            done_permille: 1000,
        })
    };
    let mut others = OtherTimes::default();
    for task in recording.tasks.iter().filter(|task| task.vcpu.is_none()) {
        let computed = task.steps.iter().map(|step| match *step {
            Step::Run { ns, .. } => ns,
            _ => 0,
        });
        // Sums of tasks of a recording that says that it lasted for centuries may not fit.
        others.run_ns = computed.fold(others.run_ns, u64::saturating_add);
        let ready = recording.wakeups.ready_ns.get(&task.tid);
        others.ready_ns = others.ready_ns.saturating_add(ready.copied().unwrap_or(0));
    }
    Times {
        vcpus: in_order(recording.tasks.iter().filter_map(vcpu).collect()),
        others,
        slices: recording.slices.clone(),
        decisions: recording.decisions.clone(),
    }
}

/// Replays on this host, which [`crate::host::as_recorded`] has made of the recording.
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
            exits: exits_until(task, script),
            wakeups: sorted(watch.wakes.samples.get(&script.tid.0))
                .iter()
                .map(|ns| ns + u64::from(config.scripts.wake_ns))
                .collect(),
            done_permille: done(task, script),
        })
    };
    let vcpus = scripts.clone().filter(|pair| pair.0.vcpu.is_some());
    let vcpus: BTreeSet<i32> = vcpus.map(|pair| pair.1.tid.0).collect();
    let mut others = OtherTimes::default();
    for (_, script) in scripts.clone().filter(|pair| pair.0.vcpu.is_none()) {
        others.run_ns += script.books.run_ns;
        others.ready_ns += script.books.wait_ns;
    }
    Ok(Times {
        vcpus: in_order(scripts.filter_map(vcpu).collect()),
        others,
        slices: watch.slices,
        decisions: watch.wakeups.decisions(|tid| vcpus.contains(&tid)),
    })
}

/// How far a replay is from the recording in all: the time of each vCPU that it has otherwise, and the
/// work that it has more or less of, in ns. A guest may run as long and get less done, where it wakes
/// for timers meanwhile.
pub(crate) fn misfit_ns(recorded: &Times, replayed: &Times) -> u64 {
    let pairs = recorded.vcpus.iter().zip(&replayed.vcpus);
    let of_vcpu = |(was, is): (&VcpuTimes, &VcpuTimes)| {
        let work = u128::from(was.run_ns.saturating_sub(was.poll_ns));
        let permille = is.done_permille.abs_diff(was.done_permille);
        let undone = work * u128::from(permille) / 1000;
        times_off(was, is).iter().sum::<u64>() + u64::try_from(undone).unwrap_or(u64::MAX)
    };
    pairs.map(of_vcpu).sum()
}

/// |replayed - recorded| of running, ready and halted time, in ns. Where the recording knows nothing, the
/// replay waits.
fn times_off(was: &VcpuTimes, is: &VcpuTimes) -> [u64; 3] {
    [
        was.run_ns.abs_diff(is.run_ns),
        was.ready_ns.abs_diff(is.ready_ns),
        was.halted_ns
            .abs_diff(is.halted_ns.saturating_sub(was.unknown_ns)),
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

/// What a script did of what its task did in the recording, in permille of the CPU time.
fn done(task: &RecordedTask, script: &ScriptOutcome) -> u64 {
    let all = compute_ns(&task.steps);
    let done = match task.then {
        // It has nothing but steps of computing, and goes on with that when they are done.
        Then::Compute => u128::from(script.books.run_ns) * 1000,
        Then::End | Then::Repeat => {
            let part = compute_ns(task.steps.get(..script.steps).unwrap_or(&task.steps));
            u128::from(script.passes) * all * 1000 + part * 1000
        }
    };
    u64::try_from(done.checked_div(all).unwrap_or(1000)).unwrap_or(u64::MAX)
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
/// What comes after all of its steps was not recorded: that it is what the recording began with is as good as
/// anything for the time it takes, but a reason may be most of a burst there. It has as many exits as the
/// recording for as much work.
fn exits_until(task: &RecordedTask, script: &ScriptOutcome) -> BTreeMap<ExitReason, u64> {
    if script.passes > 0 || script.steps >= task.steps.len() {
        let mut exits = all_exits(task);
        let more = done(task, script).saturating_sub(1000);
        exits
            .values_mut()
            .for_each(|n| *n += (*n * more + 500) / 1000);
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
        for (was, is) in recorded.vcpus.iter().zip(&replayed.vcpus) {
            of_span_ppm.extend(times_off(was, is).map(|off| ppm(off, span_ns)));
            for (&reason, n) in &was.exits {
                exits.entry(reason).or_default().0 += n;
            }
            for (&reason, n) in &is.exits {
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
        let at = self.of_span_ppm.len() * percent / 100;
        let last = self.of_span_ppm.len().saturating_sub(1);
        self.of_span_ppm.get(at.min(last)).copied().unwrap_or(0)
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
