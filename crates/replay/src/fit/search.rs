//! The search for the hypothesis that fits best.

use stealtime_simulator::Fault;
use stealtime_simulator::config::Config;
use stealtime_simulator::script::ScriptGroup;

use crate::fit::hypothesis::{Hypothesis, Moves, has_stalls, hosts, moves};
use crate::fit::misfit::{Misfit, Scale, Term, Trial};
use crate::fit::weights::WeightFit;
use crate::host::Assumed;
use crate::predict::{Times, replay};
use crate::recording::Recording;

/// Wakeup preemption may be off where fewer wakeups preempt than in the best replay, by this at least, in
/// permille of all. Replays of the recorded host are apart by less than 90.
const SELDOM_PERMILLE: u64 = 100;
/// Replays in which weights are fitted to each layout of cgroups. Mostly it takes two or three.
const MOST_STEPS: usize = 4;
/// VMs of which a cgroup for this one alone is tried: each takes a replay.
const MOST_SINGLE: usize = 8;

/// A replay that is kept.
#[derive(Clone, Debug)]
struct Replayed {
    trial: Trial,
    assumed: Assumed,
    config: Config,
    times: Times,
}

/// The hypothesis that fits a recording best, with its replay.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The host.
    pub hypothesis: Hypothesis,
    /// How far its replay is from the recording.
    pub misfit: Misfit,
    /// The same host for [`crate::host::as_recorded`].
    pub assumed: Assumed,
    /// The same host for the simulator.
    pub config: Config,
    /// Its replay.
    pub times: Times,
    /// The hypothesis that the search would have found without this one; `None` if there was no other.
    pub runner_up: Option<RunnerUp>,
    /// Hypotheses that were tried, this one included.
    pub tried: usize,
    /// Weights are stated by the host's settings.
    pub weights_stated: bool,
}

/// The second best hypothesis.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerUp {
    /// The host, and how far its replay is from the recording.
    pub trial: Trial,
    /// What decides between the two.
    pub lost_by: Term,
}

/// Hypotheses in the order of their trials.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    list: Vec<Trial>,
    /// Index of the one that fits best.
    best: usize,
}

impl Trials {
    /// Adds a trial. Whether it fits better than the best one so far, and replaces it.
    pub(crate) fn challenge(&mut self, trial: Trial, scale: &Scale) -> bool {
        let is_nearer = self
            .best()
            .is_none_or(|best| scale.compare(&trial, best).is_nearer);
        self.list.push(trial);
        if is_nearer {
            self.best = self.list.len() - 1;
        }
        is_nearer
    }

    /// Adds those of another search. Whether its best one fits better, and replaces the best one.
    pub(crate) fn join(&mut self, later: Self, scale: &Scale) -> bool {
        let is_nearer = match (later.best(), self.best()) {
            (Some(later), Some(best)) => scale.compare(later, best).is_nearer,
            (later, _) => later.is_some(),
        };
        if is_nearer {
            self.best = self.list.len() + later.best;
        }
        self.list.extend(later.list);
        is_nearer
    }

    pub(crate) fn best(&self) -> Option<&Trial> {
        self.list.get(self.best)
    }

    /// The best of the others by the same comparisons in the same order.
    pub(crate) fn runner_up(&self, scale: &Scale) -> Option<RunnerUp> {
        let best = self.best()?;
        let trials = self.list.iter().enumerate();
        let rivals = trials.filter(|(_, trial)| trial.hypothesis != best.hypothesis);
        let nearer = |held: (usize, &'_ Trial), next: (usize, &'_ Trial)| {
            scale.compare(next.1, held.1).is_nearer
        };
        let (index, second) = rivals.reduce(|held, next| match nearer(held, next) {
            true => next,
            false => held,
        })?;
        let (later, earlier) = match index > self.best {
            true => (second, best),
            false => (best, second),
        };
        Some(RunnerUp {
            trial: second.clone(),
            lost_by: scale.compare(later, earlier).term,
        })
    }
}

/// What settings of the user state of every hypothesis.
struct Stated {
    /// The host has CFS.
    is_cfs: bool,
    /// A VM has a weight. A file that states one weight states them all.
    weights: bool,
}

impl Stated {
    fn find<E>(
        recording: &Recording,
        known: &Assumed,
        configure: impl Fn(&mut Config) -> Result<(), E>,
    ) -> Result<Self, E> {
        let assumed = Assumed {
            groups: Some(true),
            ..known.clone()
        };
        let knobs = crate::host::knobs(recording);
        let mut config = crate::host::as_recorded(recording, knobs, &assumed, 0);
        // No setting has this weight: the kernel's range ends at 10000.
        let unset = |group: &mut ScriptGroup| group.cpu_weight = u32::MAX;
        config.scripts.groups.iter_mut().flatten().for_each(unset);
        configure(&mut config)?;
        let mut groups = config.scripts.groups.iter().flatten();
        Ok(Self {
            is_cfs: config.knobs.sched.cfs.is_some(),
            weights: groups.any(|group| group.cpu_weight != u32::MAX),
        })
    }
}

/// A search in a recording.
struct Search<'s, A, C> {
    recording: &'s Recording,
    recorded: &'s Times,
    /// What is known of the host.
    known: &'s Assumed,
    /// Hypotheses that may be tried.
    among: A,
    /// Sets what the user knows of the host.
    configure: C,
    scale: Scale,
    weights_stated: bool,
    trials: Trials,
    best: Option<Replayed>,
}

impl<E, A, C> Search<'_, A, C>
where
    E: From<Fault>,
    A: Fn(&Hypothesis) -> bool,
    C: Fn(&mut Config) -> Result<(), E>,
{
    /// Replays one more hypothesis, and keeps it if it fits better than the best one so far.
    fn try_one(&mut self, hypothesis: Hypothesis) -> Result<(), E> {
        if (self.among)(&hypothesis) {
            let replayed = self.replay(hypothesis)?;
            self.keep_nearer(replayed);
        }
        Ok(())
    }

    fn keep_nearer(&mut self, replayed: Replayed) {
        if self.trials.challenge(replayed.trial.clone(), &self.scale) {
            self.best = Some(replayed);
        }
    }

    fn replay(&self, hypothesis: Hypothesis) -> Result<Replayed, E> {
        let assumed = hypothesis.assumed(self.known);
        let knobs = hypothesis.knobs(self.recording);
        let mut config = crate::host::as_recorded(self.recording, knobs, &assumed, 0);
        (self.configure)(&mut config)?;
        let times = replay(self.recording, &config)?;
        let misfit = Misfit::between(self.recorded, &times, self.recording.span_ns);
        Ok(Replayed {
            trial: Trial { hypothesis, misfit },
            assumed,
            config,
            times,
        })
    }

    /// Tries hosts, except the best one: its replay is there.
    fn try_hosts(&mut self, hosts: Vec<Hypothesis>) -> Result<(), E> {
        let best = self.trials.best().map(|best| best.hypothesis.clone());
        let mut untried = hosts.into_iter().filter(|host| Some(host) != best.as_ref());
        untried.try_for_each(|host| self.try_one(host))
    }

    /// Tries other moves on the host that fits best.
    fn try_moves(&mut self, moves: &[Moves]) -> Result<(), E> {
        let Some(host) = self.trials.best().map(|best| best.hypothesis.clone()) else {
            return Ok(());
        };
        moves
            .iter()
            .try_for_each(|&moves| self.try_one(host.with_moves(moves)))
    }

    /// Tries single VMs in a cgroup next to others without: the tasks that compete with it show it.
    fn try_single_vms(&mut self) -> Result<(), E> {
        for vm in 0..crate::host::vms(self.recording).min(MOST_SINGLE) {
            let best = self.trials.best().map(|best| best.hypothesis.clone());
            let Some(mut hypothesis) = best else {
                continue;
            };
            let cgroups = &mut hypothesis.cgroups;
            cgroups.every_vm = false;
            cgroups.per_vcpu = self.known.vcpu_groups == Some(true);
            if !cgroups.single_vms.remove(&vm) {
                cgroups.single_vms.insert(vm);
            }
            self.try_one(hypothesis)?;
        }
        Ok(())
    }

    /// Tries a host without wakeup preemption, if fewer wakeups preempt in the recording.
    fn try_no_preemption(&mut self) -> Result<(), E> {
        let Some(best) = &self.best else {
            return Ok(());
        };
        let recorded = self.recorded.decisions.preempt_permille();
        let replayed = best.times.decisions.preempt_permille();
        let is_seldom = match (recorded, replayed) {
            (Some(recorded), Some(replayed)) => recorded + SELDOM_PERMILLE < replayed,
            _ => false,
        };
        if !is_seldom || self.known.wakeups_preempt.is_some() {
            return Ok(());
        }
        self.try_one(Hypothesis {
            wakeups_preempt: false,
            ..best.trial.hypothesis.clone()
        })
    }

    /// Tries unequal weights, if the best hypothesis is far off. Its guests and its preemption are kept, and
    /// each layout in which every VM has a cgroup gets weights of its own.
    fn try_weights(&mut self) -> Result<(), E> {
        let Some(equal) = self.trials.best().cloned() else {
            return Ok(());
        };
        if !self.scale.needs_weights(&equal) || self.known.groups == Some(false) {
            return Ok(());
        }
        let mut known = Assumed {
            groups: Some(true),
            ..self.known.clone()
        };
        for mut host in hosts(self.recording, &known, equal.hypothesis.moves()) {
            host.wakeups_preempt = equal.hypothesis.wakeups_preempt;
            if (host.balanced, host.preempt)
                != (equal.hypothesis.balanced, equal.hypothesis.preempt)
            {
                continue;
            }
            let weighted = self.weighted(host)?;
            let weighted = weighted.filter(|fit| (self.among)(&fit.trial.hypothesis));
            // Each layout's weights must explain the misfit with equal ones, before layouts compete.
            let explains = |fit: &Replayed| self.scale.compare(&fit.trial, &equal).is_nearer;
            if let Some(weighted) = weighted.filter(explains) {
                self.keep_nearer(weighted);
            }
        }
        let best = self.trials.best().map(|best| best.hypothesis.clone());
        let Some(weighted) = best.filter(|best| !best.weights.is_empty()) else {
            return Ok(());
        };
        // With equal weights other moves, or another kind of guests, may have made up for them.
        known.weights = weighted.weights.clone();
        let mut again = hosts(self.recording, &known, weighted.moves());
        for host in &mut again {
            host.wakeups_preempt = weighted.wakeups_preempt;
        }
        self.try_hosts(again)?;
        let mut untried = moves(self.recording, &known);
        untried.retain(|&moves| moves != weighted.moves());
        self.try_moves(&untried)
    }

    /// The replay with the weights that fit this host; `None` if those are equal.
    fn weighted(&self, mut host: Hypothesis) -> Result<Option<Replayed>, E> {
        let mut replayed = self.replay(host.clone())?;
        let mut fit = WeightFit::default();
        for _ in 0..MOST_STEPS {
            if !fit.step(self.recorded, &replayed.times) {
                break;
            }
            host.weights = fit.weights(false);
            replayed = self.replay(host.clone())?;
        }
        // A weight near the default is the default: an administrator sets 100 rather than 98.
        let weights = fit.weights(true);
        if weights.is_empty() {
            return Ok(None);
        }
        if weights != host.weights {
            host.weights = weights;
            replayed = self.replay(host)?;
        }
        Ok(Some(replayed))
    }

    /// Tries tasks that stall with their CPU, if the best hypothesis is far off. All hosts and moves are
    /// tried anew, because those may have made up for stalls.
    fn try_stalls(&mut self) -> Result<(), E> {
        let Some(best) = self.trials.best().cloned() else {
            return Ok(());
        };
        if !self.scale.is_far_off(&best) || !has_stalls(self.recording) {
            return Ok(());
        }
        let known = Assumed {
            weights: best.hypothesis.weights,
            wakeups_preempt: Some(best.hypothesis.wakeups_preempt),
            stalls: true,
            ..self.known.clone()
        };
        let trials = core::mem::take(&mut self.trials);
        let best = self.best.take();
        self.try_hosts_and_moves(&known)?;
        let stalled = core::mem::replace(&mut self.trials, trials);
        if !self.trials.join(stalled, &self.scale) {
            self.best = best;
        }
        Ok(())
    }

    /// Tries all hosts with the first moves, and the other moves on the best of them.
    fn try_hosts_and_moves(&mut self, known: &Assumed) -> Result<(), E> {
        let moves = moves(self.recording, known);
        if let Some((&first, later)) = moves.split_first() {
            self.try_hosts(hosts(self.recording, known, first))?;
            self.try_moves(later)?;
            let best = self.trials.best().map(|best| best.hypothesis.moves());
            if let Some(better) = best.filter(|&moves| moves != first) {
                self.try_hosts(hosts(self.recording, known, better))?;
            }
        }
        Ok(())
    }

    fn run(mut self) -> Result<Fitted, E> {
        self.try_hosts_and_moves(self.known)?;
        if self.known.groups.is_none() {
            self.try_single_vms()?;
        }
        self.try_no_preemption()?;
        if !self.weights_stated && !self.known.weights_known {
            self.try_weights()?;
        }
        self.try_stalls()?;
        let runner_up = self.trials.runner_up(&self.scale);
        let Some(best) = self.best else {
            return Err(E::from(Fault::Broken {
                at_ns: 0,
                what: "no hypothesis was tried".to_owned(),
            }));
        };
        Ok(Fitted {
            hypothesis: best.trial.hypothesis,
            misfit: best.trial.misfit,
            assumed: best.assumed,
            config: best.config,
            times: best.times,
            runner_up,
            tried: self.trials.list.len(),
            weights_stated: self.weights_stated,
        })
    }
}

/// Finds the hypothesis that fits a recording best, among those that `known` leaves open. `configure` sets
/// what the user knows of the host. The order of trials is that of the [module](super).
///
/// # Errors
///
/// Those of `configure` and of the simulator.
pub fn fit<E: From<Fault>>(
    recording: &Recording,
    recorded: &Times,
    known: &Assumed,
    configure: impl Fn(&mut Config) -> Result<(), E>,
) -> Result<Fitted, E> {
    fit_among(recording, recorded, known, |_| true, configure)
}

/// The same without the hypotheses that `among` refuses, to measure whether they are needed.
///
/// # Errors
///
/// Those of `configure` and of the simulator; [`Fault::Broken`] if it refuses all.
pub fn fit_among<E: From<Fault>>(
    recording: &Recording,
    recorded: &Times,
    known: &Assumed,
    among: impl Fn(&Hypothesis) -> bool,
    configure: impl Fn(&mut Config) -> Result<(), E>,
) -> Result<Fitted, E> {
    let stated = Stated::find(recording, known, &configure)?;
    let search = Search {
        recording,
        recorded,
        known,
        among,
        configure,
        scale: Scale::new(recorded, stated.is_cfs),
        weights_stated: stated.weights,
        trials: Trials::default(),
        best: None,
    };
    search.run()
}
