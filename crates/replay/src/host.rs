//! The host as it was recorded, for the simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stealtime_hypervisor::directed_yield::YieldKnobs;
use stealtime_hypervisor::fair::{Cfs, Features, PickMode, weights};
pub use stealtime_hypervisor::fair::{Feature, Policy, Preempt};
use stealtime_simulator::config::{
    CState, CfsKnobs, Config, Costs, HostConfig, Hypervisor, IdleMethod, Knobs, Profile, RunConfig,
    SchedKnobs, Topology,
};
use stealtime_simulator::script::{
    Late, Looks, Moves, Preempted, ScriptConfig, ScriptGroup, Scripts, SharedGroup, Spent, Step,
};

use crate::clocked::is_added;
use crate::jitter::jittered;
use crate::newidle::NewIdle;
use crate::predict::demand_ns;
use crate::quota::median;
use crate::recording::{RecordedTask, Recording, WithoutStalls};

/// Switches on one CPU and no other from which on a task counts as bound to it.
const BOUND_FROM: u64 = 20;

/// The knobs that the recording shows, and defaults for the others.
#[must_use]
pub fn knobs(recording: &Recording) -> Knobs {
    let mut knobs = Knobs::default();
    knobs.kvm.directed_yield = YieldKnobs::upstream();
    if let Some(ns) = recording.halt_poll_ns {
        knobs.kvm.halt_poll.halt_poll_ns = ns;
    }
    if let Some(hz) = recording.hz {
        knobs.sched.hz = hz;
    }
    knobs.sched.base_slice_ns =
        recorded_slice_ns(recording).or_else(|| slice_of_release(recording));
    if let Some(release) = recording.release {
        knobs.sched.features = release.features(knobs.sched.features);
        if !release.has_eevdf() {
            to_cfs(&mut knobs.sched);
        }
    }
    if let Some(preempt) = recording.preempt() {
        knobs.sched.preempt = preempt;
    }
    if knobs.sched.cfs.is_some() {
        return knobs;
    }
    if let Some(has_hrtick) = recording.hrtick {
        let features = knobs.sched.features;
        knobs.sched.features = match has_hrtick {
            true => features.with(Feature::Hrtick),
            false => features.without(Feature::Hrtick),
        };
    }
    knobs
}

/// Makes a host schedule by CFS, without the features and the slice of EEVDF.
pub fn to_cfs(sched: &mut SchedKnobs) {
    let usual = Features::LINUX_7_2;
    sched.features = Cfs::FEATURES.into_iter().fold(usual, |features, feature| {
        match sched.features.has(feature) {
            true => features.with(feature),
            false => features.without(feature),
        }
    });
    sched.pick = PickMode::Hierarchical;
    sched.base_slice_ns = None;
    sched.cfs = Some(CfsKnobs::default());
}

/// Whether wakeups preempt the current task (`WAKEUP_PREEMPTION`).
#[must_use]
pub fn wakeups_preempt(sched: &SchedKnobs) -> bool {
    sched.features.has(Feature::WakeupPreemption)
}

/// Slices by timers are exact to one in so many: timers are set for the rest of a slice.
const ONE_IN_EXACT: u64 = 50;

/// The `sched.base_slice_ns` of the recorded kernel, in ns, if it is known and differs from 7.2.
fn slice_of_release(recording: &Recording) -> Option<u64> {
    recording.release?.base_slice_ns(recording.cpus.max(1))
}

/// `sched.base_slice_ns`, in ns, if slice timers show another one than the kernel sets for so many CPUs.
#[must_use]
pub fn recorded_slice_ns(recording: &Recording) -> Option<u64> {
    let recorded = recording.slices.whole_ns()?;
    let current = || weights::base_slice_ns(recording.cpus.max(1));
    let usual = slice_of_release(recording).unwrap_or_else(current);
    (recorded.abs_diff(usual) > usual / ONE_IN_EXACT).then_some(recorded)
}

/// The slice of tasks that have none of their own, in ns: `sched.base_slice_ns`, or the kernel's choice
/// for so many CPUs.
#[must_use]
pub fn base_slice_ns(config: &Config) -> u64 {
    let cpus = config.host.topology.cpus();
    let set = config.knobs.sched.base_slice_ns;
    set.unwrap_or_else(|| weights::base_slice_ns(cpus))
}

/// Whether a task ran on one CPU only, often enough to count as bound to it.
#[must_use]
pub fn is_bound(task: &RecordedTask) -> bool {
    task.ran_on.len() == 1 && task.moves.is_empty() && task.switches_in >= BOUND_FROM
}

/// The host of a replay, beyond knobs. As input of a fit, `None` leaves a field open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assumed {
    /// Whether each VM is in a cgroup of its own under machine.slice; `None` is no.
    pub groups: Option<bool>,
    /// Whether the VMs' cgroups are under one parent; `None`: if every VM has one.
    pub slice: Option<bool>,
    /// Whether those hold one for each vCPU and one for the VM's other threads, as libvirt creates them;
    /// `None` is no.
    pub vcpu_groups: Option<bool>,
    /// VMs, by index, that have a cgroup of their own next to tasks without. Those with a limit have one
    /// in any case.
    pub own_group: BTreeSet<usize>,
    /// `cpu.weight` of VMs' cgroups, by index, where it is not the kernel's 100.
    pub weights: BTreeMap<usize, u32>,
    /// These weights are those of the host, and not fitted.
    pub weights_known: bool,
    /// What places tasks; `None`: the simulated scheduler if they moved often.
    pub placement: Option<Placement>,
    /// Migrate at recorded wall times: keeps tasks that shared a CPU together. Otherwise each task migrates
    /// at its recorded progress.
    pub timed_moves: bool,
    /// It has another load than recorded. Guests that are late do not halt, and to be preempted more often
    /// takes CPU time.
    pub other_load: bool,
    /// How the simulated scheduler finds idle CPUs; `None`: as in scenarios.
    pub finds_idle: Option<FindsIdle>,
    /// Whether guests balance load between their vCPUs: [`Scripts::balanced`]; `None` is no.
    pub balanced: Option<bool>,
    /// Where CPUs took no interrupts, their tasks stalled. Otherwise timers alone were late.
    pub stalls: bool,
    /// How the host preempts; `None`: as fits best. [`as_recorded`] reads the knobs instead.
    pub preempt: Option<Preempt>,
    /// Whether wakeups preempt the current task; `None`: as fits best.
    pub wakeups_preempt: Option<bool>,
    /// Cgroups of several VMs: [`Scripts::shared_groups`].
    pub shared_groups: Vec<SharedGroup>,
    /// The one of those that a VM is in, by the VM's index.
    pub shared_by_vm: BTreeMap<usize, usize>,
    /// Policies of tasks where they are not SCHED_OTHER, by thread id.
    pub policies: BTreeMap<i32, Policy>,
    /// CPUs that tasks may use by the host's account, by thread id.
    pub affinity: BTreeMap<i32, Vec<u32>>,
    /// CPUs of vCPUs, by index of the VM and number.
    pub pins: Vec<((usize, u32), Vec<u32>)>,
    /// CPUs of other tasks, by thread id.
    pub task_pins: Vec<(i32, Vec<u32>)>,
}

/// How a kernel finds idle CPUs and work for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindsIdle {
    /// A wakeup searches as far as utilization lets it. A CPU that runs out of tasks looks for others.
    ByUtilization,
    /// The same, but such a CPU looks for others at chance, as often as it finds them. It begins with what
    /// the recording shows.
    AtChance(NewIdle),
    /// As [`Self::AtChance`] of a host that is a virtual machine itself. Searches that stalled have taken
    /// long there. A CPU that expects to idle for less than the longest one does not look
    /// (`max_newidle_lb_cost`).
    Stalled,
}

impl FindsIdle {
    /// Of the recorded kernel. One of no known release finds them as one of today.
    #[must_use]
    pub fn of_recording(recording: &Recording) -> Option<Self> {
        match recording.release {
            Some(release) if !release.searches_by_utilization() => None,
            Some(release) if !release.skips_newidle() => Some(Self::ByUtilization),
            _ if !recording.newidle.is_known() && stalls_often(recording) => Some(Self::Stalled),
            _ => Some(Self::AtChance(recording.newidle)),
        }
    }

    fn looks(self) -> Looks {
        match self {
            Self::ByUtilization => Looks::Each,
            Self::Stalled => Looks::Never,
            Self::AtChance(newidle) => Looks::Learned(newidle.looks_permille()),
        }
    }
}

/// Stalls per second from which on a CPU that searches is likely to stall. The kernel forgets the longest
/// search by a hundredth per second.
const STALLS_PER_S: u64 = 1;

/// Whether CPUs stall: the host is a virtual machine itself.
fn stalls_often(recording: &Recording) -> bool {
    let stalls: usize = recording.tasks.iter().map(|task| task.stalls.len()).sum();
    stalls as u64 * 1_000_000_000 >= STALLS_PER_S * recording.span_ns.max(1)
}

/// A share for each seed from 1 on, in thousandths. The first few are spread over all shares already (the
/// sequence of van der Corput).
pub(crate) fn spread_permille(seed: u64, base: u64) -> u16 {
    let (mut rest, mut unit, mut permille) = (seed, 1_000_000, 0);
    while rest > 0 {
        unit /= base;
        permille += rest % base * unit;
        rest /= base;
    }
    (permille / 1000) as u16
}

/// What places tasks on CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Their recorded migrations alone.
    Recorded,
    /// The simulated scheduler.
    Simulated,
}

/// The longest plausible path of a wakeup through the kernel, in ns. Longer ones are a stalled CPU's.
const LONGEST_WAKE_NS: u64 = 1_000_000;

/// From the end of a sleep to competing for a CPU, in ns. Wakeups on idle CPUs take at least that. They are
/// the bound where all wakeups on busy CPUs wait for the current task.
#[must_use]
pub fn wake_ns(recording: &Recording) -> u32 {
    let idle = recording.idle_wake_ns.unwrap_or(LONGEST_WAKE_NS);
    let busy = recording.wake_ns.unwrap_or(0);
    busy.min(idle).min(LONGEST_WAKE_NS) as u32
}

/// VMs of the recording: one more than the highest index.
#[must_use]
pub fn vms(recording: &Recording) -> usize {
    let numbers = recording.tasks.iter().filter_map(|task| task.vcpu);
    numbers.map(|vcpu| vcpu.0 + 1).max().unwrap_or(0)
}

fn groups(recording: &Recording, assumed: &Assumed) -> Vec<Option<ScriptGroup>> {
    let every_vm = assumed.groups == Some(true);
    let group = |vm| {
        let limit = recording.limits.get(&vm).copied();
        let has_own = every_vm || limit.is_some() || assumed.own_group.contains(&vm);
        let usual = ScriptGroup::default().cpu_weight;
        has_own.then_some(ScriptGroup {
            cpu_weight: assumed.weights.get(&vm).copied().unwrap_or(usual),
            cpu_max_ns: limit,
        })
    };
    (0..vms(recording)).map(group).collect()
}

/// With more moves than one in so many switches, tasks are placed by the simulated scheduler.
const SELDOM: u64 = 50;

/// What places tasks unless it is stated or fitted.
#[must_use]
pub fn placement(recording: &Recording) -> Placement {
    if recording.migrations.saturating_mul(SELDOM) <= recording.switches {
        Placement::Recorded
    } else {
        Placement::Simulated
    }
}

/// A host with the recording's CPUs, on which scripts replay its tasks.
///
/// Switches, wakeups and interrupts cost nothing: their costs are part of the recorded times. An idle CPU
/// wakes in its recorded time. `seed` 0 keeps all times as recorded; others move those that the recording
/// does not explain.
#[must_use]
pub fn as_recorded(recording: &Recording, knobs: Knobs, assumed: &Assumed, seed: u64) -> Config {
    let mut profile = Profile::generic();
    profile.name = "as recorded".to_owned();
    profile.costs = Costs::FREE;
    let wake = wake_ns(recording);
    let idle = recording.idle_wake_ns.unwrap_or(2_000);
    let exit = u32::try_from(idle).unwrap_or(u32::MAX).saturating_sub(wake);
    profile.cstates = vec![CState {
        name: "idle".to_owned(),
        exit_latency_ns: exit.min(1_000_000),
        target_residency_ns: 0,
    }];
    let placement = assumed.placement.unwrap_or_else(|| placement(recording));
    let migrates = placement == Placement::Recorded;
    let affinity = Affinity {
        assumed,
        cpus: recording.cpus,
        migrates,
    };
    let script = |task| script(task, affinity, seed);
    let WithoutStalls {
        late,
        tick_late,
        idle_called,
    } = latencies(recording, assumed.stalls);
    // With lost events not all ticks are known.
    let (tick_late, tick_phase_ns) = match recording.is_lossy {
        true => (Vec::new(), 0),
        false => (tick_late, tick_phase_ns(recording)),
    };
    Config {
        host: HostConfig {
            profile,
            topology: Topology::flat(recording.cpus.max(1)),
            hypervisor: Hypervisor::Kvm,
            idle: IdleMethod::Mwait,
            tasks: Vec::new(),
        },
        vms: Vec::new(),
        scripts: Scripts {
            tasks: recording.tasks.iter().map(script).collect(),
            edges: recording.edges,
            groups: groups(recording, assumed),
            shared_groups: assumed.shared_groups.clone(),
            shared_by_vm: assumed.shared_by_vm.clone(),
            slice: assumed.slice.unwrap_or(assumed.groups == Some(true)),
            vcpu_groups: assumed.vcpu_groups == Some(true),
            wake_ns: wake,
            block_ns: recording.block_ns,
            late,
            tick_late,
            tick_phase_ns,
            idle_late: recording.idle_late.clone(),
            idle_called,
            poll_called: recording.poll_called.clone(),
            // With lost events not all moves are known.
            idle_takes: recording.is_lossy,
            searches_by_utilization: assumed.finds_idle.is_some(),
            looks: assumed.finds_idle.map_or(Looks::Each, FindsIdle::looks),
            skips_halts: assumed.other_load,
            gaps: recording.gaps.clone(),
            balanced: assumed.balanced == Some(true),
            tell: false,
        },
        knobs,
        run: RunConfig {
            duration_ns: recording.span_ns.max(1_000),
            warmup_ns: 0,
            seed,
        },
    }
}

/// Latencies of CPUs, without those that their tasks' stalls explain if these stall.
fn latencies(recording: &Recording, stalls: bool) -> WithoutStalls {
    match stalls {
        true => recording.without_stalls.clone(),
        false => WithoutStalls {
            late: recording.late.clone(),
            tick_late: recording.tick_late.clone(),
            idle_called: recording.idle_called.clone(),
        },
    }
}

/// The due time of the first tick, in ns of the replay, by the tick that was least late.
fn tick_phase_ns(recording: &Recording) -> u64 {
    let ticks = recording.tick_late.iter().flat_map(|cpu| cpu.0.iter());
    let punctual = ticks.filter(|tick| tick.0 > 0).min_by_key(|tick| tick.1);
    let due_ns = punctual.map_or(0, |tick| tick.0);
    due_ns % (1_000_000_000 / u64::from(recording.hz.unwrap_or(250)))
}

/// The CPUs that tasks may use.
#[derive(Clone, Copy)]
struct Affinity<'a> {
    assumed: &'a Assumed,
    /// CPUs of the host.
    cpus: u32,
    /// Tasks migrate as recorded.
    migrates: bool,
}

/// Fewer interrupts show no usual cost.
const FEW_INTERRUPTS: usize = 20;

/// What it costs a vCPU to be preempted more often than recorded: the median of its interrupts.
fn preempted(task: &RecordedTask) -> Preempted {
    let interrupts = task.steps.iter().filter_map(|step| match *step {
        Step::Run {
            ns,
            spent: Spent::Interrupt(_),
        } => Some(ns),
        _ => None,
    });
    let interrupts: Vec<u64> = interrupts.collect();
    if task.vcpu.is_none() || interrupts.len() < FEW_INTERRUPTS {
        return Preempted::default();
    }
    let is_wait = |step: &&Step| matches!(step, Step::Sleep(_) | Step::Halt(_)) && !is_added(step);
    let waits = task.steps.iter().filter(is_wait).count() as u64;
    let preemptions = task.switches_in.saturating_sub(waits);
    Preempted {
        every_ns: demand_ns(task).checked_div(preemptions).unwrap_or(0),
        cost_ns: u32::try_from(median(interrupts).unwrap_or(0)).unwrap_or(u32::MAX),
    }
}

fn script(task: &RecordedTask, affinity: Affinity<'_>, seed: u64) -> ScriptConfig {
    let Affinity {
        assumed,
        cpus,
        migrates,
    } = affinity;
    // Of several pins the last one holds.
    let vcpu = assumed.pins.iter().rev();
    let vcpu = vcpu
        .filter(|pin| Some(pin.0) == task.vcpu)
        .map(|pin| &pin.1);
    let host_task = assumed.task_pins.iter().rev();
    let host_task = host_task.filter(|pin| task.vcpu.is_none() && pin.0 == task.tid);
    let has_all = |pin: &[u32]| (0..cpus).all(|cpu| pin.contains(&cpu));
    let allowed = match assumed.affinity.get(&task.tid) {
        Some(affinity) if has_all(affinity) => Vec::new(),
        Some(affinity) => affinity.clone(),
        None if is_bound(task) => task.ran_on.iter().map(|&cpu| u32::from(cpu)).collect(),
        None => Vec::new(),
    };
    // A pin to all CPUs changes nothing for a task that is not bound: it keeps its recorded moves.
    let is_free = |pin: &Vec<u32>| allowed.is_empty() && has_all(pin);
    let pin = vcpu.chain(host_task.map(|pin| &pin.1)).next();
    let pin = pin.filter(|pin| !is_free(pin));
    let cpus = match pin {
        Some(pin) => pin.clone(),
        None => allowed,
    };
    let first = u32::from(task.first_cpu);
    ScriptConfig {
        name: task.name.clone(),
        nice: task.nice,
        policy: assumed.policies.get(&task.tid).copied().unwrap_or_default(),
        first_cpu: match cpus.first() {
            Some(&cpu) if !cpus.contains(&first) => cpu,
            _ => first,
        },
        starts_ns: task.begins.map_or(0, |begins| begins.at_ns),
        cpus,
        vm: task.vm.map(|vm| vm as u32),
        vcpu: task.vcpu.map(|vcpu| vcpu.1),
        then: task.then,
        alarm_ns: task.alarm_ns,
        preempted: match assumed.other_load {
            true => preempted(task),
            false => Preempted::default(),
        },
        ticks: task.ticks,
        // Otherwise idle CPUs take as long as each of them did.
        called: match assumed.finds_idle {
            Some(_) => task.called.clone(),
            None => Late::default(),
        },
        stalls: match assumed.stalls {
            true => task.stalls.clone(),
            false => Arc::default(),
        },
        // A pinned task may be balanced within its CPUs.
        moves: match migrates && pin.is_none_or(|pin| pin.len() == 1) {
            true if assumed.timed_moves => Moves::Times(task.moves.clone()),
            true => Moves::Steps,
            false => Moves::Scheduler,
        },
        steps: match seed {
            0 => task.steps.clone(),
            _ => Arc::from(jittered(&task.steps, seed, task.tid)),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clocked::tests::{ARMED, recording, task};

    #[test]
    fn more_preemptions_than_recorded_cost_an_interrupt_each() {
        let recorded = task(ARMED);
        let interrupt = |ns| Step::Run {
            ns,
            spent: Spent::Interrupt(1),
        };
        let with_interrupts = |count: u64| {
            let interrupts = (0..count).map(|number| interrupt(1_000 + number));
            let steps: Vec<Step> = recorded.steps.iter().copied().chain(interrupts).collect();
            RecordedTask {
                switches_in: recorded.switches_in + 4,
                steps: Arc::from(steps),
                ..recorded.clone()
            }
        };
        assert_eq!(preempted(&with_interrupts(19)), Preempted::default());
        let often = with_interrupts(21);
        let expected = Preempted {
            every_ns: demand_ns(&often) / 4,
            cost_ns: 1_010,
        };
        assert_eq!(preempted(&often), expected);
        let thread = RecordedTask {
            vcpu: None,
            ..often
        };
        assert_eq!(preempted(&thread), Preempted::default());
    }

    #[test]
    fn a_task_is_bound_if_it_ran_often_on_one_cpu_alone() {
        let often = RecordedTask {
            switches_in: BOUND_FROM,
            ..task(ARMED)
        };
        let seldom = RecordedTask {
            switches_in: BOUND_FROM - 1,
            ..often.clone()
        };
        let elsewhere = RecordedTask {
            ran_on: vec![0, 1],
            ..often.clone()
        };
        let moved = RecordedTask {
            moves: Arc::from([(1_000, 1)]),
            ..often.clone()
        };
        let bound = [often, seldom, elsewhere, moved].map(|task| is_bound(&task));
        assert_eq!(bound, [true, false, false, false]);
    }

    #[test]
    fn a_pinned_task_begins_on_one_of_its_cpus() {
        let recorded = RecordedTask {
            first_cpu: 2,
            ..task(ARMED)
        };
        for (pin, first_cpu) in [(vec![0, 1], 0), (vec![1, 2], 2), (vec![3], 3)] {
            let assumed = Assumed {
                pins: vec![((0, 0), pin.clone())],
                ..Assumed::default()
            };
            let affinity = Affinity {
                assumed: &assumed,
                cpus: 4,
                migrates: true,
            };
            let script = script(&recorded, affinity, 0);
            assert_eq!((script.cpus, script.first_cpu), (pin, first_cpu));
        }
    }

    #[test]
    fn a_task_that_is_not_bound_may_run_on_all_cpus() {
        let assumed = Assumed::default();
        for (switches_in, cpus) in [(BOUND_FROM, vec![2]), (BOUND_FROM - 1, Vec::new())] {
            let recorded = RecordedTask {
                switches_in,
                ran_on: vec![2],
                first_cpu: 2,
                ..task(ARMED)
            };
            let affinity = Affinity {
                assumed: &assumed,
                cpus: 4,
                migrates: true,
            };
            assert_eq!(script(&recorded, affinity, 0).cpus, cpus, "{switches_in}");
        }
    }

    #[test]
    fn wakeups_preempt_by_the_feature() {
        let mut sched = Knobs::default().sched;
        assert!(wakeups_preempt(&sched));
        sched.features = sched.features.without(Feature::WakeupPreemption);
        assert!(!wakeups_preempt(&sched));
    }

    #[test]
    fn tasks_that_seldom_move_are_placed_as_recorded() {
        let mut recording = recording(vec![task(ARMED)]);
        for (migrations, placed) in [
            (0, Placement::Recorded),
            (20, Placement::Recorded),
            (21, Placement::Simulated),
        ] {
            (recording.migrations, recording.switches) = (migrations, 1_000);
            assert_eq!(placement(&recording), placed, "{migrations}");
        }
    }

    #[test]
    fn a_host_ticks_in_the_phase_that_was_recorded() {
        let mut recording = recording(vec![task(ARMED)]);
        assert_eq!(tick_phase_ns(&recording), 0);
        // The tick that was least late, on any CPU; one without a time does not count.
        let late = |entries: &[(u64, u32)]| Late(Arc::from(entries));
        recording.tick_late = vec![
            late(&[(9_000_500, 700), (0, 0)]),
            late(&[(13_000_300, 200), (17_000_900, 400)]),
        ];
        assert_eq!(tick_phase_ns(&recording), 1_000_300);
        recording.hz = Some(1_000);
        assert_eq!(tick_phase_ns(&recording), 300);
    }

    #[test]
    fn shares_of_seeds_are_their_digits_mirrored() {
        let shares = |base| [1, 2, 3, 4, 9].map(|seed| spread_permille(seed, base));
        assert_eq!(shares(2), [500, 250, 750, 125, 562]);
        assert_eq!(shares(3), [333, 666, 111, 444, 37]);
        assert_eq!(spread_permille(0, 2), 0);
    }

    #[test]
    fn slice_timers_show_a_slice_that_differs_by_more_than_a_fiftieth() {
        let usual = weights::base_slice_ns(1);
        let least = usual / 50;
        let recorded = |slice_ns| {
            let mut recording = recording(Vec::new());
            (0..100).for_each(|_| recording.slices.set(slice_ns));
            recorded_slice_ns(&recording)
        };
        for slice_ns in [usual, usual - least, usual + least] {
            assert_eq!(recorded(slice_ns), None, "{slice_ns}");
        }
        for slice_ns in [usual - least - 1_000, usual + least + 1_000, 3 * usual] {
            assert_eq!(recorded(slice_ns), Some(slice_ns));
        }
    }

    #[test]
    fn twenty_interrupts_show_a_usual_cost() {
        let interrupt = Step::Run {
            ns: 1_000,
            spent: Spent::Interrupt(1),
        };
        let cost_ns = |count| {
            let interrupts = RecordedTask {
                steps: vec![interrupt; count].into(),
                ..task(ARMED)
            };
            preempted(&interrupts).cost_ns
        };
        assert_eq!([19, 20].map(cost_ns), [0, 1_000]);
    }

    #[test]
    fn the_slice_of_a_host_is_set_or_that_of_so_many_cpus() {
        let recording = Recording {
            cpus: 4,
            ..recording(vec![task(ARMED)])
        };
        let slice_ns = |set| {
            let mut knobs = Knobs::default();
            knobs.sched.base_slice_ns = set;
            base_slice_ns(&as_recorded(&recording, knobs, &Assumed::default(), 0))
        };
        assert_eq!(slice_ns(Some(77)), 77);
        assert_eq!(slice_ns(None), weights::base_slice_ns(4));
    }
}
