//! What a recording does not say of its host, found by replaying in each way.

use stealtime_hypervisor::fair::{Feature, Preempt};
use stealtime_simulator::Fault;
use stealtime_simulator::config::Config;
use stealtime_simulator::script::{ScriptGroup, Step, Until};

use crate::host::{Assumed, Placement};
use crate::predict::{Errors, Times, VcpuTimes, misfit_ns, replay};
use crate::recording::Recording;
use crate::weights::Fit;

/// A way to replay.
struct Tried {
    /// How far off it is, in ns.
    off_ns: u64,
    /// How far apart its slice timers are from the recording's, in permille.
    slices_apart: Option<u64>,
    /// In how many of the recording's wakeups on busy CPUs it decides otherwise, in permille.
    decisions_apart: Option<u64>,
    /// The largest error of an exit reason's count, in ppm.
    exits_off_ppm: u64,
    moved: Moved,
    kind: Kind,
    way: (Assumed, Config, Times),
}

/// Who moves tasks between CPUs, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moved {
    placement: Placement,
    own_caches: bool,
    timed_moves: bool,
}

/// What else of a host the recording does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    balanced: bool,
    groups: bool,
    vcpu_groups: bool,
    preempt: Preempt,
    /// `WAKEUP_PREEMPTION`.
    wakeups_preempt: bool,
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

/// A way is told by decisions at wakeups if those of another are apart from the recording's by so much more,
/// in permille. Replays of hosts as they were are apart by 10 to 90, as slices that end late in the recording
/// end with wakeups too; those with other cgroups by 100 to 350.
const DECISIONS_PERMILLE: u64 = 80;
/// But not if its misfit is more than so many percent of the other's, or some exits come too often or too
/// seldom by more than this and than in the other, in ppm: another kernel may decide otherwise.
const DECISIONS_PERCENT: u64 = 150;
const EXITS_PPM: u64 = 50_000;
/// In a host without `WAKEUP_PREEMPTION` fewer wakeups preempt than in replays with it, by this at the least,
/// in permille of all.
const SELDOM_PERMILLE: u64 = 100;
/// Where guests keep what they do on its vCPU, each does what it did when it did it, so that a replay as
/// recorded is near however far off it is with anything changed: of that a misfit counts as so many percent.
const OWN_PERCENT: u64 = 125;

/// Whether the first way is nearer to the recording than the second, which is tried before it: by what is
/// decided at wakeups, if that tells; else by times, and where those do not tell, by slice timers. `small_ns`
/// is a misfit that means nothing.
fn is_nearer(one: &Tried, before: &Tried, small_ns: u64) -> bool {
    if let Some(decided) = is_decided(one, before) {
        return decided;
    }
    let less = |a: u64, b: u64| a < b - b / ONE_IN_NEAR;
    let mixed = one.kind.balanced != before.kind.balanced;
    let off_ns = |tried: &Tried| match mixed && !tried.kind.balanced {
        true => tried.off_ns.saturating_mul(OWN_PERCENT) / 100,
        false => tried.off_ns,
    };
    let (a, b) = (off_ns(one), off_ns(before));
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

/// Whether the first way decides at wakeups as the recording does and the second does not, or the other way
/// round; `None` if neither is clear.
fn is_decided(one: &Tried, before: &Tried) -> Option<bool> {
    let (a, b) = (one.decisions_apart?, before.decisions_apart?);
    let (nearer, other) = if a < b { (one, before) } else { (before, one) };
    let clear = a.abs_diff(b) > DECISIONS_PERMILLE;
    let as_near = nearer.off_ns <= other.off_ns.saturating_mul(DECISIONS_PERCENT) / 100;
    let exits = nearer.exits_off_ppm <= other.exits_off_ppm.max(EXITS_PPM);
    (clear && as_near && exits).then_some(a < b)
}

/// Weights are taken if the nearest way without is off by so many permille of vCPUs' time more, and with them
/// it is less than so many percent of that: where VMs have no cgroups, or equal weights, they explain less.
const WEIGHED_PERMILLE: u64 = 60;
const WEIGHED_PERCENT: u64 = 50;
/// Under CFS a VM that is alone in a cgroup decides at wakeups as one with another weight does, so that
/// decisions do not tell these apart: the latter is likelier, and enough if it is off by less than so many
/// percent.
const INSTEAD_PERCENT: u64 = 95;
/// Replays in which weights are fitted to each layout of cgroups. Mostly it takes two or three.
const MOST_STEPS: usize = 4;

/// Whether weights explain most of what the way before is off by, and no decisions at wakeups speak against
/// them. (None speaks for them: where VMs have no cgroups, weights that make up for that may decide as well.)
fn is_weighed(one: &Tried, before: &Tried, small_ns: u64) -> bool {
    let (assumed, config, _) = &before.way;
    let cfs = config.knobs.sched.cfs.is_some();
    let (percent, permille) = match cfs && !assumed.own_group.is_empty() {
        true => (INSTEAD_PERCENT, 0),
        false => (WEIGHED_PERCENT, WEIGHED_PERMILLE),
    };
    let gained = before.off_ns.saturating_sub(one.off_ns);
    let most = before.off_ns.saturating_mul(percent) / 100;
    gained > small_ns.saturating_mul(permille)
        && one.off_ns < most
        && (cfs || is_decided(one, before) != Some(false))
}

/// Of so many VMs it is tried whether each alone has a cgroup.
const MOST_ALONE: usize = 8;

/// The way that is the nearest of those that were tried.
struct Search<'s, T> {
    recording: &'s Recording,
    recorded: &'s Times,
    /// What is told of the host.
    told: &'s Assumed,
    tell: T,
    /// A misfit that means nothing, in ns.
    small_ns: u64,
    best: Option<Tried>,
}

impl<E: From<Fault>, T: Fn(&mut Config) -> Result<(), E>> Search<'_, T> {
    /// Replays in one more way. What is tried first is kept where the difference is one that other seeds
    /// make too.
    fn try_one(&mut self, assumed: Assumed, moved: Moved, kind: Kind) -> Result<(), E> {
        let tried = self.replayed(assumed, moved, kind)?;
        let best = self.best.as_ref();
        if best.is_none_or(|best| is_nearer(&tried, best, self.small_ns)) {
            self.best = Some(tried);
        }
        Ok(())
    }

    /// The replay in one way.
    fn replayed(&self, assumed: Assumed, moved: Moved, kind: Kind) -> Result<Tried, E> {
        let assumed = Assumed {
            placement: Some(moved.placement),
            own_caches: moved.own_caches,
            timed_moves: moved.timed_moves,
            balanced: Some(kind.balanced),
            groups: Some(kind.groups),
            vcpu_groups: Some(kind.vcpu_groups),
            ..assumed
        };
        let mut knobs = crate::host::knobs(self.recording);
        knobs.sched.preempt = kind.preempt;
        if !kind.wakeups_preempt {
            let features = knobs.sched.features;
            knobs.sched.features = features.without(Feature::WakeupPreemption);
        }
        let mut config = crate::host::as_recorded(self.recording, knobs, &assumed, 0);
        (self.tell)(&mut config)?;
        let times = replay(self.recording, &config)?;
        Ok(Tried {
            off_ns: misfit_ns(self.recorded, &times),
            slices_apart: self.recorded.slices.apart_permille(&times.slices),
            exits_off_ppm: Errors::between(self.recorded, &times, self.recording.span_ns)
                .worst_exits(),
            decisions_apart: self.recorded.decisions.apart_permille(&times.decisions),
            moved,
            kind,
            way: (assumed, config, times),
        })
    }

    /// Each kind of host with these moves.
    fn try_kinds(&mut self, kinds: &[Kind], moved: Moved) -> Result<(), E> {
        let of_best = self.best.as_ref().map(|best| (best.moved, best.kind));
        for &kind in kinds {
            if of_best != Some((moved, kind)) {
                self.try_one(self.told.clone(), moved, kind)?;
            }
        }
        Ok(())
    }

    /// Other moves with the kind that is the nearest.
    fn try_moves(&mut self, moves: &[Moved]) -> Result<(), E> {
        let Some(kind) = self.best.as_ref().map(|best| best.kind) else {
            return Ok(());
        };
        for &moved in moves {
            self.try_one(self.told.clone(), moved, kind)?;
        }
        Ok(())
    }

    /// No wakeup preempts, if fewer do in the recording than in what is the nearest so far.
    fn try_no_preemption(&mut self) -> Result<(), E> {
        let Some(best) = &self.best else {
            return Ok(());
        };
        let (was, is) = (&self.recorded.decisions, &best.way.2.decisions);
        let seldom = match (was.preempt_permille(), is.preempt_permille()) {
            (Some(was), Some(is)) => was + SELDOM_PERMILLE < is,
            _ => false,
        };
        if !seldom {
            return Ok(());
        }
        let kind = Kind {
            wakeups_preempt: false,
            ..best.kind
        };
        self.try_one(best.way.0.clone(), best.moved, kind)
    }

    /// One VM in a cgroup beside others that have none: what competes with it shows it.
    fn try_alone(&mut self) -> Result<(), E> {
        for vm in 0..crate::host::vms(self.recording).min(MOST_ALONE) {
            let Some(best) = &self.best else {
                continue;
            };
            let (moved, mut kind, mut assumed) = (best.moved, best.kind, best.way.0.clone());
            (kind.groups, kind.vcpu_groups) = (false, self.told.vcpu_groups == Some(true));
            if !assumed.own_group.remove(&vm) {
                assumed.own_group.insert(vm);
            }
            self.try_one(assumed, moved, kind)?;
        }
        Ok(())
    }

    /// Whether what is told of the host has weights: whoever knows one knows them all.
    fn weights_are_told(&self) -> Result<bool, E> {
        let assumed = Assumed {
            groups: Some(true),
            ..self.told.clone()
        };
        let knobs = crate::host::knobs(self.recording);
        let mut config = crate::host::as_recorded(self.recording, knobs, &assumed, 0);
        let unset = |group: &mut ScriptGroup| group.cpu_weight = u32::MAX;
        config.scripts.groups.iter_mut().flatten().for_each(unset);
        (self.tell)(&mut config)?;
        let mut groups = config.scripts.groups.iter().flatten();
        Ok(groups.any(|group| group.cpu_weight != u32::MAX))
    }

    /// VMs with cgroups of unequal weights, if the nearest way is far off and weights explain most of that.
    fn try_weights(&mut self) -> Result<(), E> {
        let Some(best) = &self.best else {
            return Ok(());
        };
        let is_off = best.off_ns > self.small_ns.saturating_mul(WEIGHED_PERMILLE)
            || !best.way.0.own_group.is_empty() && best.way.1.knobs.sched.cfs.is_some();
        if !is_off || self.told.groups == Some(false) || self.weights_are_told()? {
            return Ok(());
        }
        let mut told = Assumed {
            groups: Some(true),
            ..self.told.clone()
        };
        let mut weighed: Option<Tried> = None;
        for kind in self.grouped(&told, best.kind) {
            if (kind.balanced, kind.preempt) != (best.kind.balanced, best.kind.preempt) {
                continue;
            }
            let tried = self.weighed(&told, best.moved, kind)?;
            let tried = tried.filter(|tried| is_weighed(tried, best, self.small_ns));
            let before = weighed.as_ref();
            let is_nearer =
                |tried: &Tried| before.is_none_or(|before| is_nearer(tried, before, self.small_ns));
            if let Some(tried) = tried.filter(is_nearer) {
                weighed = Some(tried);
            }
        }
        let Some(weighed) = weighed else {
            return Ok(());
        };
        // With equal weights other moves, or another way of guests, may have made up for them.
        told.weights = weighed.way.0.weights.clone();
        let kinds = self.grouped(&told, weighed.kind);
        let (moved, mut moves) = (weighed.moved, moves(self.recording, &told));
        moves.retain(|&other| other != moved);
        let mut again = Search {
            recording: self.recording,
            recorded: self.recorded,
            told: &told,
            tell: &self.tell,
            small_ns: self.small_ns,
            best: Some(weighed),
        };
        again.try_kinds(&kinds, moved)?;
        again.try_moves(&moves)?;
        self.best = again.best;
        Ok(())
    }

    /// Kinds of hosts with cgroups, whose wakeups preempt as they do in this one.
    fn grouped(&self, told: &Assumed, like: Kind) -> Vec<Kind> {
        let mut kinds = kinds(self.recording, told);
        for kind in &mut kinds {
            kind.wakeups_preempt = like.wakeups_preempt;
        }
        kinds
    }

    /// The replay with the weights that fit, if those are unequal.
    fn weighed(&self, grouped: &Assumed, moved: Moved, kind: Kind) -> Result<Option<Tried>, E> {
        let mut assumed = grouped.clone();
        let mut tried = self.replayed(assumed.clone(), moved, kind)?;
        let mut fit = Fit::default();
        for _ in 0..MOST_STEPS {
            if !fit.step(self.recorded, &tried.way.2) {
                break;
            }
            assumed.weights = fit.weights(false);
            tried = self.replayed(assumed.clone(), moved, kind)?;
        }
        // Nobody sets 98.
        let weights = fit.weights(true);
        if weights.is_empty() {
            return Ok(None);
        }
        if weights != assumed.weights {
            assumed.weights = weights;
            tried = self.replayed(assumed, moved, kind)?;
        }
        Ok(Some(tried))
    }
}

/// Replays as recorded under the ways in which the host may have placed tasks, grouped VMs and
/// preempted, as far as `told` leaves it open, and gives the one that comes nearest to the
/// recording: first all kinds of hosts with tasks that move when they had done what they had in the
/// recording, then other moves on the nearest of them, and if one of those is nearer, all kinds with that.
/// `tell` sets what the user knows of the host.
///
/// # Errors
///
/// Those of `tell` and of the simulator.
pub fn nearest<E: From<Fault>>(
    recording: &Recording,
    recorded: &Times,
    told: &Assumed,
    tell: impl Fn(&mut Config) -> Result<(), E>,
) -> Result<(Assumed, Config, Times), E> {
    let known_ns: u64 = recorded.vcpus.iter().map(VcpuTimes::known_ns).sum();
    let mut search = Search {
        recording,
        recorded,
        told,
        tell,
        small_ns: known_ns / ONE_IN_SMALL,
        best: None,
    };
    let (kinds, moves) = (kinds(recording, told), moves(recording, told));
    if let Some((&first, others)) = moves.split_first() {
        search.try_kinds(&kinds, first)?;
        search.try_moves(others)?;
        let moved = search.best.as_ref().map(|best| best.moved);
        if let Some(moved) = moved.filter(|&moved| moved != first) {
            search.try_kinds(&kinds, moved)?;
        }
    }
    if told.groups.is_none() {
        search.try_alone()?;
    }
    search.try_no_preemption()?;
    search.try_weights()?;
    match search.best {
        Some(best) => Ok(best.way),
        None => Err(E::from(Fault::Broken {
            at_ns: 0,
            what: "no way to replay was tried".to_owned(),
        })),
    }
}

/// The moves that are tried.
fn moves(recording: &Recording, told: &Assumed) -> Vec<Moved> {
    let mut moves = Vec::new();
    let mut add = |placement, own_caches, timed_moves| {
        if told.placement.is_none_or(|told| told == placement) {
            moves.push(Moved {
                placement,
                own_caches,
                timed_moves,
            });
        }
    };
    add(Placement::Recorded, told.own_caches, false);
    add(Placement::Simulated, told.own_caches, false);
    if recording.migrations > 0 {
        add(Placement::Recorded, told.own_caches, true);
    }
    // Caches matter to the simulated scheduler alone.
    if recording.cpus > 1 {
        add(Placement::Simulated, true, false);
    }
    moves
}

/// The kinds of hosts that are tried.
fn kinds(recording: &Recording, told: &Assumed) -> Vec<Kind> {
    let balanced = match told.balanced {
        Some(balanced) => vec![balanced],
        None if is_coupled(recording) => vec![false, true],
        None => vec![false],
    };
    // Single VMs may have a cgroup where not all do, for a limit or a weight.
    let in_single = told.vcpu_groups == Some(true);
    let layouts = [(false, in_single), (true, false), (true, true)];
    let layouts = layouts.into_iter().filter(|&(groups, vcpus)| {
        let as_told = told.vcpu_groups.is_none_or(|told| told == vcpus);
        told.groups.is_none_or(|told| told == groups) && (as_told || !groups)
    });
    let layouts: Vec<(bool, bool)> = layouts.collect();
    let mut kinds = Vec::new();
    for &balanced in &balanced {
        for &(groups, vcpu_groups) in &layouts {
            let of = |preempt| Kind {
                balanced,
                groups,
                vcpu_groups,
                preempt,
                wakeups_preempt: true,
            };
            let tried = [Preempt::Lazy, Preempt::Full].into_iter();
            let known = told.preempt.or(recording.preempt());
            let tried = tried.filter(|&preempt| known.is_none_or(|known| known == preempt));
            kinds.extend(tried.map(of));
        }
    }
    kinds
}

/// Whether vCPUs wait for others of their VM.
fn is_coupled(recording: &Recording) -> bool {
    let mut steps = recording.tasks.iter().flat_map(|task| task.steps.iter());
    steps.any(|step| matches!(step, Step::Halt(Until::Work { .. })))
}
