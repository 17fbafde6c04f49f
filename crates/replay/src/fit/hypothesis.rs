//! What a recording leaves open about its host: dimensions, and one value of each.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_hypervisor::fair::{Feature, Preempt};
use stealtime_simulator::config::Knobs;
use stealtime_simulator::script::{Step, Until};

use crate::host::{Assumed, Placement};
use crate::recording::Recording;

/// A host that may have made the recording: one value of each [`Dimension`].
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// What moves tasks between CPUs.
    pub placement: Placement,
    /// Recorded moves happen at their recorded times; otherwise at the recorded progress of the task.
    pub timed_moves: bool,
    /// Guests balance load between their vCPUs.
    pub balanced: bool,
    /// The cgroups of VMs.
    pub cgroups: CgroupLayout,
    /// `cpu.weight` of VMs' cgroups, by index, where it is not the kernel's 100.
    pub weights: BTreeMap<usize, u32>,
    /// When a request to reschedule takes effect.
    pub preempt: Preempt,
    /// Wakeups preempt the current task (`WAKEUP_PREEMPTION`).
    pub wakeups_preempt: bool,
    /// Where CPUs took no interrupts, their tasks stalled.
    pub stalls: bool,
}

/// Cgroups of VMs under machine.slice. VMs with a limit have one in every layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupLayout {
    /// Each VM has one.
    pub every_vm: bool,
    /// A VM's cgroup holds one for each vCPU and one for its other threads, as libvirt creates them.
    pub per_vcpu: bool,
    /// VMs, by index, that have one next to tasks without.
    pub single_vms: BTreeSet<usize>,
}

impl Hypothesis {
    /// The other moves, on the same host in all else.
    pub(crate) fn with_moves(&self, moves: Moves) -> Self {
        Self {
            placement: moves.placement,
            timed_moves: moves.timed_moves,
            ..self.clone()
        }
    }

    /// Its two dimensions of moves.
    pub(crate) const fn moves(&self) -> Moves {
        Moves {
            placement: self.placement,
            timed_moves: self.timed_moves,
        }
    }

    /// What a replay assumes: this hypothesis, and the pins that are known.
    pub(crate) fn assumed(&self, known: &Assumed) -> Assumed {
        Assumed {
            groups: Some(self.cgroups.every_vm),
            vcpu_groups: Some(self.cgroups.per_vcpu),
            own_group: self.cgroups.single_vms.clone(),
            weights: self.weights.clone(),
            placement: Some(self.placement),
            timed_moves: self.timed_moves,
            balanced: Some(self.balanced),
            stalls: self.stalls,
            ..known.clone()
        }
    }

    /// The recorded knobs with its two.
    pub(crate) fn knobs(&self, recording: &Recording) -> Knobs {
        let mut knobs = crate::host::knobs(recording);
        knobs.sched.preempt = self.preempt;
        if !self.wakeups_preempt {
            let features = knobs.sched.features;
            knobs.sched.features = features.without(Feature::WakeupPreemption);
        }
        knobs
    }

    /// The dimensions in which `compared` has another value. Left out are those without effect on its
    /// replay.
    #[must_use]
    pub fn differences(&self, compared: &Self) -> Vec<Dimension> {
        let differs = |dimension: &Dimension| {
            let value = dimension.value(compared, &[]);
            value.is_some() && value != dimension.value(self, &[])
        };
        Dimension::ALL.into_iter().filter(differs).collect()
    }
}

/// Values of the two dimensions of moves, which are tried together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moves {
    pub(crate) placement: Placement,
    pub(crate) timed_moves: bool,
}

/// A property of the host that a fit may vary. [`Dimension::row`] describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// [`Hypothesis::placement`].
    Placement,
    /// [`Hypothesis::timed_moves`].
    MoveTimes,
    /// [`Hypothesis::balanced`].
    Guests,
    /// [`Hypothesis::cgroups`].
    Cgroups,
    /// [`Hypothesis::preempt`].
    Preemption,
    /// [`Hypothesis::wakeups_preempt`].
    WakeupPreemption,
    /// [`Hypothesis::weights`].
    Weights,
    /// [`Hypothesis::stalls`].
    Stalls,
}

/// The description of a dimension: a row of the table in `docs/replay-accuracy.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name, in JSON and tables.
    pub name: &'static str,
    /// Its values, the first one tried first.
    pub values: &'static str,
    /// What makes its value known, so that it is not fitted.
    pub known_by: &'static str,
    /// The terms of the misfit in which its values differ.
    pub terms: &'static str,
}

/// What makes a value known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The caller has it, of a file about the host or of the question.
    Stated,
    /// The recording shows it.
    Recorded,
    /// Neither: the fit chooses it.
    Fitted,
}

impl Source {
    /// As JSON has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stated => "stated",
            Self::Recorded => "recorded",
            Self::Fitted => "fitted",
        }
    }
}

impl Dimension {
    /// All, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::Placement,
        Self::MoveTimes,
        Self::Guests,
        Self::Cgroups,
        Self::Preemption,
        Self::WakeupPreemption,
        Self::Weights,
        Self::Stalls,
    ];

    /// Its description.
    #[must_use]
    pub const fn row(self) -> Row {
        let (name, values, known_by, terms) = match self {
            Self::Placement => (
                "placement",
                "recorded moves, simulated scheduler",
                "`placement` of the host file",
                "times",
            ),
            Self::MoveTimes => (
                "move_times",
                "at recorded progress, at recorded times",
                "no task moves",
                "times",
            ),
            Self::Guests => (
                "guests",
                "work stays on its vCPU, work goes to idle vCPUs",
                "`balanced` of the host file; no vCPU waits for another",
                "times",
            ),
            Self::Cgroups => (
                "cgroups",
                "none, one for each VM, also one for each vCPU, single VMs",
                "the host's snapshot; `groups` and `vcpu_cgroups` of the host file; a weight that is asked for",
                "decisions, times, slice timers",
            ),
            Self::Preemption => (
                "preemption",
                "lazy, full",
                "the host's snapshot; flags of events; the kernel's release; the host file; the mode that is \
                 asked for",
                "decisions, times",
            ),
            Self::WakeupPreemption => (
                "wakeup_preemption",
                "on, off",
                "the host's snapshot; off is tried only where recorded wakeups preempt seldom",
                "decisions, times",
            ),
            Self::Weights => (
                "weights",
                "equal, unequal",
                "the host's snapshot; a weight in the host file",
                "times, with a threshold of their own",
            ),
            Self::Stalls => (
                "stalls",
                "timers are late, tasks stall",
                "no CPU is without events while a timer is due; tried only where the misfit is large",
                "times",
            ),
        };
        Row {
            name,
            values,
            known_by,
            terms,
        }
    }

    /// Its value in words, with names of VMs by index; `None` if it has no effect on a replay of this
    /// hypothesis.
    #[must_use]
    pub fn value(self, hypothesis: &Hypothesis, vms: &[String]) -> Option<String> {
        let simulated = hypothesis.placement == Placement::Simulated;
        let words = match self {
            Self::Placement => match simulated {
                true => "the simulated scheduler places tasks",
                false => "tasks move as recorded",
            },
            Self::MoveTimes => match (simulated, hypothesis.timed_moves) {
                (true, _) => return None,
                (false, true) => "moves at recorded times",
                (false, false) => "moves at recorded progress",
            },
            Self::Guests => match hypothesis.balanced {
                true => "guests give work to idle vCPUs",
                false => "the work of guests stays on its vCPU",
            },
            Self::Cgroups => return Some(hypothesis.cgroups.words(vms)),
            Self::Preemption => match hypothesis.preempt {
                Preempt::Lazy => "lazy preemption",
                Preempt::Full => "full preemption",
            },
            Self::WakeupPreemption => match hypothesis.wakeups_preempt {
                true => "wakeups preempt",
                false => "wakeups do not preempt",
            },
            Self::Weights => return Some(weight_words(&hypothesis.weights, vms)),
            Self::Stalls => match hypothesis.stalls {
                true => "tasks stall with their CPU",
                false => "late timers alone",
            },
        };
        Some(words.to_owned())
    }

    /// What makes its value known. Weights in a host file are among its settings, which [`super::fit`] has
    /// as a function: they count as stated there.
    #[must_use]
    pub fn source(self, recording: &Recording, known: &Assumed) -> Source {
        let stated_or = |stated: bool, recorded: bool| match (stated, recorded) {
            (true, _) => Source::Stated,
            (false, true) => Source::Recorded,
            (false, false) => Source::Fitted,
        };
        match self {
            Self::Placement => stated_or(known.placement.is_some(), false),
            Self::MoveTimes => stated_or(
                known.placement == Some(Placement::Simulated),
                recording.migrations == 0,
            ),
            Self::Guests => stated_or(known.balanced.is_some(), !is_coupled(recording)),
            Self::Cgroups => {
                let is_nesting_known = known.vcpu_groups.is_some();
                let stated = known
                    .groups
                    .is_some_and(|groups| !groups || is_nesting_known);
                stated_or(stated, false)
            }
            Self::Preemption => {
                let recorded = recording.preempt();
                let stated = known.preempt.is_some() && known.preempt != recorded;
                stated_or(stated, recorded.is_some())
            }
            Self::WakeupPreemption => stated_or(known.wakeups_preempt.is_some(), false),
            Self::Weights => stated_or(known.groups == Some(false) || known.weights_known, false),
            Self::Stalls => stated_or(false, !has_stalls(recording)),
        }
    }
}

impl CgroupLayout {
    fn words(&self, vms: &[String]) -> String {
        let single = self.single_vms.iter().map(|&vm| vm_name(vms, vm));
        let single: Vec<String> = single.collect();
        let nested = match self.per_vcpu {
            true => ", and in it each vCPU",
            false => "",
        };
        match (self.every_vm, single.is_empty()) {
            (true, _) => format!("each VM in a cgroup{nested}"),
            (false, true) => "no cgroups".to_owned(),
            (false, false) => format!("{} in a cgroup{nested}", single.join(" and ")),
        }
    }
}

fn vm_name(vms: &[String], vm: usize) -> String {
    let name = vms.get(vm).cloned();
    name.unwrap_or_else(|| format!("VM {vm}"))
}

fn weight_words(weights: &BTreeMap<usize, u32>, vms: &[String]) -> String {
    if weights.is_empty() {
        return "equal weights".to_owned();
    }
    let named = weights
        .iter()
        .map(|(&vm, weight)| format!("{} {weight}", vm_name(vms, vm)));
    format!("weights: {}", named.collect::<Vec<_>>().join(", "))
}

/// The moves that a fit tries, the first ones first.
pub(crate) fn moves(recording: &Recording, known: &Assumed) -> Vec<Moves> {
    let moves_of = |placement, timed_moves| Moves {
        placement,
        timed_moves,
    };
    let mut moves = vec![
        moves_of(Placement::Recorded, false),
        moves_of(Placement::Simulated, false),
    ];
    if recording.migrations > 0 {
        moves.push(moves_of(Placement::Recorded, true));
    }
    moves.retain(|moves| known.placement.is_none_or(|known| known == moves.placement));
    moves
}

/// The hosts that a fit tries with these moves: guests, then cgroups, then preemption, the last one varied
/// first.
pub(crate) fn hosts(recording: &Recording, known: &Assumed, moves: Moves) -> Vec<Hypothesis> {
    let guests = match known.balanced {
        Some(balanced) => vec![balanced],
        None if is_coupled(recording) => vec![false, true],
        None => vec![false],
    };
    let preempt = known.preempt.or_else(|| recording.preempt());
    let modes = [Preempt::Lazy, Preempt::Full].into_iter();
    let modes = modes.filter(|&mode| preempt.is_none_or(|known| known == mode));
    let mut hosts = Vec::new();
    for &balanced in &guests {
        for cgroups in layouts(known) {
            hosts.extend(modes.clone().map(|preempt| Hypothesis {
                placement: moves.placement,
                timed_moves: moves.timed_moves,
                balanced,
                cgroups: cgroups.clone(),
                weights: known.weights.clone(),
                preempt,
                wakeups_preempt: known.wakeups_preempt.unwrap_or(true),
                stalls: known.stalls,
            }));
        }
    }
    hosts
}

/// The layouts of cgroups that a fit tries, apart from single VMs.
fn layouts(known: &Assumed) -> Vec<CgroupLayout> {
    // A single VM may have a cgroup for a limit or a weight where not all have one.
    let layout = |every_vm, per_vcpu| CgroupLayout {
        every_vm,
        per_vcpu,
        single_vms: known.own_group.clone(),
    };
    let mut layouts = vec![
        layout(false, known.vcpu_groups == Some(true)),
        layout(true, false),
        layout(true, true),
    ];
    layouts.retain(|layout| {
        let has_nesting = known
            .vcpu_groups
            .is_none_or(|nesting| nesting == layout.per_vcpu);
        known.groups.is_none_or(|groups| groups == layout.every_vm)
            && (has_nesting || !layout.every_vm)
    });
    layouts
}

/// Whether CPUs had no events while timers were due.
pub(crate) fn has_stalls(recording: &Recording) -> bool {
    recording.tasks.iter().any(|task| !task.stalls.is_empty())
}

/// Whether vCPUs wait for others of their VM.
fn is_coupled(recording: &Recording) -> bool {
    let mut steps = recording.tasks.iter().flat_map(|task| task.steps.iter());
    steps.any(|step| matches!(step, Step::Halt(Until::Work { .. })))
}
