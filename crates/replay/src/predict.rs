//! A replay, and the recording, as numbers that can be compared.

use std::collections::BTreeMap;

use stealtime_analysis::Answers;
use stealtime_events::ExitReason;
use stealtime_hypervisor::eevdf::Preempt;
use stealtime_simulator::config::Config;
use stealtime_simulator::script::{ScriptOutcome, Step, Until};
use stealtime_simulator::{Fault, run};

use crate::extract::{RecordedTask, Recording};
use crate::host::{Assumed, Placement};
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
    const fn known_ns(&self) -> u64 {
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
            exits: exits_until(task, 0, usize::MAX),
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
        others.run_ns += computed.sum::<u64>();
        let ready = recording.wakeups.ready_ns.get(&task.tid);
        others.ready_ns += ready.copied().unwrap_or(0);
    }
    Times {
        vcpus: in_order(recording.tasks.iter().filter_map(vcpu).collect()),
        others,
        slices: recording.slices.clone(),
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
            exits: exits_until(task, script.passes, script.steps),
            wakeups: sorted(watch.wakes.samples.get(&script.tid.0))
                .iter()
                .map(|ns| ns + u64::from(config.scripts.wake_ns))
                .collect(),
            done_permille: (script.steps as u64 * 1000)
                .checked_div(script.of_steps as u64)
                .map_or(1000, |part| u64::from(script.passes) * 1000 + part),
        })
    };
    let mut others = OtherTimes::default();
    for (_, script) in scripts.clone().filter(|pair| pair.0.vcpu.is_none()) {
        others.run_ns += script.books.run_ns;
        others.ready_ns += script.books.wait_ns;
    }
    Ok(Times {
        vcpus: in_order(scripts.filter_map(vcpu).collect()),
        others,
        slices: watch.slices,
    })
}

/// A way to replay.
struct Tried {
    /// How far off it is, in ns.
    off_ns: u64,
    /// How far apart its slice timers are from the recording's, in permille.
    slices_apart: Option<u64>,
    preempt: Preempt,
    way: (Assumed, Config, Times),
}

/// A way is better than another if its misfit is less by more than one in so many: a replay's own moves by
/// so much with the seed.
const ONE_IN_NEAR: u64 = 10;
/// Misfits that differ by less than one in so many of all vCPUs' time are near each other too.
const ONE_IN_SMALL: u64 = 1_000;
/// Slice timers are nearer to the recording's if fewer are apart by more than one in so many, and by more
/// than this, in permille.
const ONE_IN_APART: u64 = 4;
const SLICES_PERMILLE: u64 = 20;

/// Whether the first way is nearer to the recording than the second, which is tried before it. Where their
/// times do not tell, slice timers do. `small_ns` is a misfit that means nothing.
fn is_nearer(one: &Tried, before: &Tried, small_ns: u64) -> bool {
    let less = |a: u64, b: u64| a < b - b / ONE_IN_NEAR;
    let (a, b) = (one.off_ns, before.off_ns);
    if a.abs_diff(b) > small_ns && (less(a, b) || less(b, a)) {
        return a < b;
    }
    let clear = |a: u64, b: u64| a + SLICES_PERMILLE.max(b / ONE_IN_APART) < b;
    match (one.slices_apart, before.slices_apart) {
        (Some(a), Some(b)) if clear(a, b) => true,
        (Some(a), Some(b)) if clear(b, a) => false,
        _ => less(a, b),
    }
}

/// Of so many VMs it is tried whether each alone has a cgroup.
const MOST_ALONE: usize = 8;

/// Replays as recorded under each way in which the host may have placed tasks, grouped VMs and
/// preempted, as far as `assumed` leaves it open, and gives the one that comes nearest to the
/// recording. `tell` sets what the user knows of the host.
///
/// # Errors
///
/// Those of `tell` and of the simulator.
pub fn nearest<E: From<Fault>>(
    recording: &Recording,
    recorded: &Times,
    assumed: &Assumed,
    tell: impl Fn(&mut Config) -> Result<(), E>,
) -> Result<(Assumed, Config, Times), E> {
    let placements = match assumed.placement {
        Some(placement) => vec![placement],
        None => vec![Placement::Recorded, Placement::Simulated],
    };
    let groups = match assumed.groups {
        Some(groups) => vec![groups],
        None => vec![false, true],
    };
    let balanced = match assumed.balanced {
        Some(balanced) => vec![balanced],
        None if is_coupled(recording) => vec![false, true],
        None => vec![false],
    };
    let try_one = |assumed: Assumed, preempt| -> Result<Tried, E> {
        let mut knobs = crate::host::knobs(recording);
        knobs.sched.preempt = preempt;
        let mut config = crate::host::as_recorded(recording, knobs, &assumed, 0);
        tell(&mut config)?;
        let times = replay(recording, &config)?;
        Ok(Tried {
            off_ns: misfit_ns(recorded, &times),
            slices_apart: recorded.slices.apart_permille(&times.slices),
            preempt,
            way: (assumed, config, times),
        })
    };
    let mut best: Option<Tried> = None;
    let small_ns = recorded.vcpus.iter().map(VcpuTimes::known_ns).sum::<u64>() / ONE_IN_SMALL;
    // What comes first is kept where the difference is one that other seeds make too.
    let better = |best: &Option<Tried>, tried: &Tried| {
        let best = best.as_ref();
        best.is_none_or(|best| is_nearer(tried, best, small_ns))
    };
    let mut ways: Vec<_> = placements
        .iter()
        .map(|one| (*one, assumed.own_caches, false))
        .collect();
    if recording.migrations > 0 && placements.contains(&Placement::Recorded) {
        ways.push((Placement::Recorded, assumed.own_caches, true));
    }
    // Caches matter to the simulated scheduler alone.
    if recording.cpus > 1 && placements.contains(&Placement::Simulated) {
        ways.push((Placement::Simulated, true, false));
    }
    for &balanced in &balanced {
        for &(placement, own_caches, timed_moves) in &ways {
            for &groups in &groups {
                for preempt in [Preempt::Lazy, Preempt::Full] {
                    let mut assumed = assumed.clone();
                    assumed.balanced = Some(balanced);
                    assumed.placement = Some(placement);
                    assumed.groups = Some(groups);
                    assumed.own_caches = own_caches;
                    assumed.timed_moves = timed_moves;
                    let tried = try_one(assumed, preempt)?;
                    if better(&best, &tried) {
                        best = Some(tried);
                    }
                }
            }
        }
    }
    // One VM in a cgroup beside others that have none: what competes with it shows it.
    let vms = match assumed.groups {
        None => crate::host::vms(recording).min(MOST_ALONE),
        Some(_) => 0,
    };
    for vm in 0..vms {
        let Some(Tried { preempt, way, .. }) = &best else {
            continue;
        };
        let (preempt, mut assumed) = (*preempt, way.0.clone());
        assumed.groups = Some(false);
        if !assumed.own_group.remove(&vm) {
            assumed.own_group.insert(vm);
        }
        let tried = try_one(assumed, preempt)?;
        if better(&best, &tried) {
            best = Some(tried);
        }
    }
    match best {
        Some(best) => Ok(best.way),
        None => Err(E::from(Fault::Broken {
            at_ns: 0,
            what: "no way to replay was tried".to_owned(),
        })),
    }
}

/// Whether vCPUs wait for others of their VM.
fn is_coupled(recording: &Recording) -> bool {
    let mut steps = recording.tasks.iter().flat_map(|task| task.steps.iter());
    steps.any(|step| matches!(step, Step::Halt(Until::Work { .. })))
}

/// How far a replay is from the recording in all: the time of each vCPU that it has otherwise, and the
/// work that it has more or less of, in ns. A guest may run as long and get less done, where it wakes
/// for timers meanwhile.
fn misfit_ns(recorded: &Times, replayed: &Times) -> u64 {
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

/// Exits after so many passes through a task's script, and so many steps.
fn exits_until(task: &RecordedTask, passes: u32, steps: usize) -> BTreeMap<ExitReason, u64> {
    let mut exits = BTreeMap::new();
    for &(before, reason) in &task.exits {
        let times = u64::from(passes) + u64::from(before < steps);
        if times > 0 {
            *exits.entry(reason).or_default() += times;
        }
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
