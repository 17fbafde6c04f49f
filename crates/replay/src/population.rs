//! A recording with other numbers of its VMs.
//!
//! A VM that is taken away leaves no task. Waits of other tasks for its tasks end at their recorded times.
//! A copy does what its VM did, from another phase of the recording. It competes as its VM does: same
//! weights, limits, nice values, policies and CPUs. What other tasks of the host did for the VM is not
//! copied. A VM of another recording comes in the same way, from a phase of its own recording.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stealtime_events::ExitReason;
use stealtime_simulator::script::{Step, Until};

use crate::answered::wait_for_answers;
use crate::clocked::{clocked_vms, halt_as_recorded, halt_between, rest};
use crate::copied::{Copier, awaited, called};
use crate::host::{Assumed, FindsIdle, Placement};
use crate::jitter::Draws;
use crate::recording::{RecordedTask, Recording, Wait};

/// How many a host has of each VM, by the VM's index. VMs without an entry are as recorded: one of the host's
/// own, none of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    own: BTreeMap<usize, u32>,
    guests: BTreeMap<usize, u32>,
}

impl Counts {
    /// Has so many of a VM.
    pub fn set(&mut self, vm: usize, count: u32) {
        match count {
            1 => self.own.remove(&vm),
            _ => self.own.insert(vm, count),
        };
    }

    /// Has so many of a VM of another recording. Its index follows those of the host's own VMs.
    pub fn set_guest(&mut self, vm: usize, count: u32) {
        match count {
            0 => self.guests.remove(&vm),
            _ => self.guests.insert(vm, count),
        };
    }

    /// How many there are of a VM of the host.
    #[must_use]
    pub fn of_vm(&self, vm: usize) -> u32 {
        self.own.get(&vm).copied().unwrap_or(1)
    }

    /// How many there are of a VM of another recording.
    #[must_use]
    pub fn of_guest(&self, vm: usize) -> u32 {
        self.guests.get(&vm).copied().unwrap_or(0)
    }

    /// Whether each VM is there as recorded, and no other.
    #[must_use]
    pub fn is_as_recorded(&self) -> bool {
        self.own.is_empty() && self.guests.is_empty()
    }

    /// Whether there are VMs of other recordings.
    #[must_use]
    pub fn has_guests(&self) -> bool {
        !self.guests.is_empty()
    }

    /// VMs that are taken away.
    pub fn removed(&self) -> impl Iterator<Item = usize> {
        let removed = self.own.iter().filter(|entry| *entry.1 == 0);
        removed.map(|entry| *entry.0)
    }

    /// The copies, if the first one has the index `first`: VM by VM, by their numbers.
    #[must_use]
    pub fn copies(&self, first: usize) -> Vec<VmCopy> {
        let copied = self.own.iter();
        let copied = copied.flat_map(|(&original, &count)| (2..=count).map(move |n| (original, n)));
        let guests = self.guests.iter();
        let guests = guests.flat_map(|(&original, &count)| (1..=count).map(move |n| (original, n)));
        let numbers = copied.chain(guests);
        let copies = (first..)
            .zip(numbers)
            .map(|(vm, (original, number))| VmCopy {
                vm,
                original,
                number,
            });
        copies.collect()
    }

    /// Memory that a replay takes for the copies, in bytes.
    #[must_use]
    pub fn bytes(&self, recording: &Recording) -> u64 {
        let copies = self.own.iter().filter(|entry| *entry.1 > 1);
        let bytes = copies
            .map(|(&vm, &count)| u64::from(count - 1).saturating_mul(copy_bytes(recording, vm)));
        bytes.fold(0, u64::saturating_add)
    }
}

/// Memory that a replay takes for a copy of a VM, in bytes: its script, and the script with other values for
/// what is unknown.
#[must_use]
pub fn copy_bytes(recording: &Recording, vm: usize) -> u64 {
    let tasks = recording.tasks.iter().filter(|task| task.vm == Some(vm));
    let bytes = tasks.map(|task| {
        task.steps.len() * size_of::<Step>() * 2
            + task.exits.len() * size_of::<(usize, ExitReason)>()
            + size_of::<RecordedTask>()
    });
    bytes.sum::<usize>() as u64
}

/// A VM of another recording.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Its tasks alone.
    recording: Recording,
    vm: usize,
}

impl Guest {
    /// The VM with this index. Its computing takes `cost_permille` thousandths of the recorded time.
    #[must_use]
    pub fn new(recording: &Recording, vm: usize, cost_permille: u64) -> Self {
        let mut recording = recording.clone();
        recording.tasks.retain(|task| task.vm == Some(vm));
        for task in &mut recording.tasks {
            // Stalls are those of the recorded CPUs.
            task.stalls = Arc::default();
            if cost_permille == 1000 {
                continue;
            }
            let scaled = |ns: u64| {
                let ns = u128::from(ns) * u128::from(cost_permille) / 1000;
                u64::try_from(ns).unwrap_or(u64::MAX)
            };
            let steps = task.steps.iter().map(|step| match *step {
                Step::Run { ns, spent } => Step::Run {
                    ns: scaled(ns),
                    spent,
                },
                Step::Slept(ns) => {
                    Step::Slept(u32::try_from(scaled(ns.into())).unwrap_or(u32::MAX))
                }
                step => step,
            });
            task.steps = steps.collect();
        }
        wait_for_answers(&mut recording);
        wake_at_recorded_times(&mut recording.tasks, |_| true);
        wait_for_calls(&mut recording.tasks);
        Self { recording, vm }
    }

    /// Its tasks, and the times of its recording.
    #[must_use]
    pub const fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Its index in that recording.
    #[must_use]
    pub const fn vm(&self) -> usize {
        self.vm
    }
}

/// A copy of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmCopy {
    /// Its index among the VMs.
    pub vm: usize,
    /// The index of the VM that it is a copy of.
    pub original: usize,
    /// Its number: from 2 on, as the recorded VM is the first; from 1 on of another recording's VM.
    pub number: u32,
}

/// A recording with other numbers of its VMs.
#[derive(Clone, Debug)]
pub struct Counted {
    /// The tasks of all.
    pub recording: Recording,
    /// The copies.
    pub copies: Vec<VmCopy>,
    /// Thread ids of the copies' tasks, each with that of its original.
    tids: Vec<(i32, i32)>,
}

impl Counted {
    /// A recording with other numbers of its `vms` VMs. The seed draws the phases of the copies, which do
    /// not depend on how many there are.
    #[must_use]
    pub fn new(recording: &Recording, vms: usize, counts: &Counts, seed: u64) -> Self {
        Self::with_guests(recording, vms, &[], counts, seed)
    }

    /// As [`Self::new`], with VMs of other recordings. Their indexes are from `vms` on, and those of copies
    /// follow.
    #[must_use]
    pub fn with_guests(
        recording: &Recording,
        vms: usize,
        guests: &[&Guest],
        counts: &Counts,
        seed: u64,
    ) -> Self {
        let copies = counts.copies(vms + guests.len());
        let mut recording = Cow::Borrowed(recording);
        let mut population = recording.population.clone().unwrap_or_else(|| Population {
            clocked: clocked_vms(&recording.tasks),
            ..Population::default()
        });
        if !counts.is_as_recorded() {
            adapt(recording.to_mut(), &population.clocked, !copies.is_empty());
        }
        let recording = recording.as_ref();
        let mut changed = recording.clone();
        let removed: BTreeSet<usize> = counts.removed().collect();
        population.change(counts, &removed, &copies);
        if !removed.is_empty() {
            remove(&mut changed, &removed);
        }
        let mut tids = Vec::new();
        let mut phases: Vec<u64> = Vec::new();
        let last = recording.tasks.iter().map(|task| task.tid).max();
        let mut tid = last.unwrap_or(0);
        for copy in &copies {
            let guest = copy.original.checked_sub(vms);
            let guest = guest.and_then(|guest| guests.get(guest));
            let (source, original) = match guest {
                Some(guest) => (&guest.recording, guest.vm),
                None => (recording, copy.original),
            };
            if copy.number == 1 + u32::from(guest.is_none()) {
                phases.clear();
            }
            let phase_ns = phase_ns(source.span_ns, seed, *copy, &phases);
            phases.push(phase_ns);
            let copier = Copier::new(source, original, phase_ns, changed.edges);
            changed.edges = copier.edges();
            let mut tasks = copier.tasks(copy.vm, tid.saturating_add(1));
            if guest.is_some() {
                arrive(&mut tasks, recording.cpus);
                tid = tasks.last().map_or(tid, |task| task.tid);
                changed.tasks.extend(tasks);
                continue;
            }
            let originals = recording.tasks.iter();
            let originals = originals.filter(|task| task.vm == Some(copy.original));
            tids.extend(
                originals
                    .zip(&tasks)
                    .map(|(task, copied)| (task.tid, copied.tid)),
            );
            tid = tasks.last().map_or(tid, |task| task.tid);
            changed.tasks.extend(tasks);
            if let Some(&limit) = recording.limits.get(&copy.original) {
                changed.limits.insert(copy.vm, limit);
            }
        }
        if population.has_lost {
            halt_between(&mut changed.tasks, &population.clocked);
        }
        if population.has_lost || population.has_guests {
            rest(&mut changed.tasks, &population.clocked, seed);
        }
        if !counts.is_as_recorded() {
            changed.population = Some(population);
        }
        Self {
            recording: changed,
            copies,
            tids,
        }
    }

    /// What is assumed of the host, with the copies as their originals. Tasks that the host does not bind
    /// are placed by the simulated scheduler: recorded moves are those of another load.
    #[must_use]
    pub fn assumed(&self, assumed: &Assumed) -> Assumed {
        let mut changed = free(assumed, &self.recording);
        for copy in &self.copies {
            if assumed.own_group.contains(&copy.original) {
                changed.own_group.insert(copy.vm);
            }
            if let Some(&weight) = assumed.weights.get(&copy.original) {
                changed.weights.insert(copy.vm, weight);
            }
            if let Some(&shared) = assumed.shared_by_vm.get(&copy.original) {
                changed.shared_by_vm.insert(copy.vm, shared);
            }
            let pins = assumed.pins.iter();
            let pins = pins.filter(|pin| pin.0.0 == copy.original);
            let copied = pins.map(|((_, number), cpus)| ((copy.vm, *number), cpus.clone()));
            changed.pins.extend(copied);
        }
        for &(original, copied) in &self.tids {
            if let Some(&policy) = assumed.policies.get(&original) {
                changed.policies.insert(copied, policy);
            }
            if let Some(cpus) = assumed.affinity.get(&original) {
                changed.affinity.insert(copied, cpus.clone());
            }
            let pins = assumed.task_pins.iter().filter(|pin| pin.0 == original);
            let pins = pins.map(|pin| (copied, pin.1.clone()));
            changed.task_pins.extend(pins);
        }
        changed
    }
}

/// What was changed of a recording with other numbers of its VMs, so that it is not changed again where these
/// are counted once more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Population {
    /// VMs with demand that comes with time.
    clocked: BTreeSet<usize>,
    copies: BTreeSet<usize>,
    /// VMs that were recorded are gone.
    has_lost: bool,
    has_guests: bool,
}

impl Population {
    /// It has these copies in addition, and these VMs no more. Copies that go leave what they were added to.
    fn change(&mut self, counts: &Counts, removed: &BTreeSet<usize>, copies: &[VmCopy]) {
        self.has_lost |= !removed.is_subset(&self.copies);
        self.has_guests |= counts.has_guests();
        for copy in copies {
            self.copies.insert(copy.vm);
            if self.clocked.contains(&copy.original) {
                self.clocked.insert(copy.vm);
            }
        }
    }
}

/// Makes tasks wait for the events of a host with other VMs. Timers of `clocked` VMs, with demand that comes
/// with time, expire at their recorded times. On a host with copies those of all do.
fn adapt(recording: &mut Recording, clocked: &BTreeSet<usize>, has_copies: bool) {
    let is_first = recording.population.is_none();
    match is_first {
        true => wait_for_answers(recording),
        false => halt_as_recorded(&mut recording.tasks),
    }
    wake_at_recorded_times(&mut recording.tasks, |vm| {
        has_copies || clocked.contains(&vm)
    });
    if is_first {
        wait_for_calls(&mut recording.tasks);
    }
}

/// Tasks of another recording begin on CPUs of this host in turn. Where they ran says nothing of it.
fn arrive(tasks: &mut [RecordedTask], cpus: u32) {
    for (index, task) in tasks.iter_mut().enumerate() {
        task.first_cpu = (index % cpus.max(1) as usize) as u16;
        task.ran_on = Vec::new();
        task.moves = Arc::default();
    }
}

/// Timers of guests expire at their recorded times, for hosts with more contention than recorded. Requests do
/// not wait for a late guest, nor do periods that it catches up with. A guest that sleeps for the same time
/// after each piece of work is another matter. Its timers count from there, so that its demand falls as
/// waiting grows. A busy CPU takes their interrupts at once, and an idle one when it has left its idle state.
pub(crate) fn wake_at_recorded_times(tasks: &mut [RecordedTask], is_meant: impl Fn(usize) -> bool) {
    let is_meant = |task: &&mut RecordedTask| task.vm.is_some_and(&is_meant);
    for task in tasks.iter_mut().filter(is_meant) {
        let counts_from_work = sleeps_after_work(task);
        let mut steps = task.steps.to_vec();
        for wait in task.waits.iter() {
            if let Some(Step::Halt(end) | Step::Sleep(end)) = steps.get_mut(wait.step as usize) {
                *end = match *end {
                    Until::Armed { ns, exit_us } if counts_from_work => {
                        let (ns, exit_us) = apart(wait, ns, exit_us);
                        Until::Armed { ns, exit_us }
                    }
                    Until::Armed { .. } | Until::Grid { .. } => {
                        called(wait.ended_ns, wait.caller.map(|caller| caller.cpu))
                    }
                    end => end,
                };
            }
        }
        task.steps = Arc::from(steps);
    }
}

/// Tasks that another CPU woke at a time are woken by it at that time: it takes a device's interrupt, for
/// instance. An idle CPU takes a while until it runs such a task. The task's own timer wakes it on its CPU.
fn wait_for_calls(tasks: &mut [RecordedTask]) {
    for task in tasks {
        let mut steps = task.steps.to_vec();
        for wait in task.waits.iter() {
            if let Some(caller) = wait.caller
                && let Some(Step::Halt(end) | Step::Sleep(end)) = steps.get_mut(wait.step as usize)
                && let Until::Time(time_ns) = *end
                && time_ns != u64::MAX
            {
                let waker = caller.cpu;
                *end = Until::Called { time_ns, waker };
            }
        }
        task.steps = Arc::from(steps);
    }
}

/// The longest plausible way out of an idle state, in us. Later timers have waited for a stalled CPU.
const LONGEST_EXIT_US: u16 = 1_000;

/// The time of a timer in ns, and the way out of an idle state in us, unless they are apart already.
fn apart(wait: &Wait, ns: u64, exit_us: u16) -> (u64, u16) {
    match (exit_us, wait.late_us) {
        (0, late_us @ ..=LONGEST_EXIT_US) => {
            (ns.saturating_sub(u64::from(late_us) * 1_000), late_us)
        }
        _ => (ns, exit_us),
    }
}

/// Fewer timers show no usual time.
const FEW_TIMERS: usize = 8;

/// Whether a task sets its timers for one and the same time, whatever its work took. Timers on a grid in time
/// are apart already. Times are the same within a 25th.
fn sleeps_after_work(task: &RecordedTask) -> bool {
    let waits = task.waits.iter();
    let armed = waits.filter_map(|wait| match task.steps.get(wait.step as usize) {
        Some(
            &(Step::Halt(Until::Armed { ns, exit_us }) | Step::Sleep(Until::Armed { ns, exit_us })),
        ) => Some(apart(wait, ns, exit_us).0),
        _ => None,
    });
    let mut armed: Vec<u64> = armed.collect();
    armed.sort_unstable();
    let Some(&usual) = armed
        .get(armed.len() / 2)
        .filter(|_| armed.len() >= FEW_TIMERS)
    else {
        return false;
    };
    let alike = armed.iter().filter(|ns| ns.abs_diff(usual) <= usual / 25);
    alike.count() * 3 >= armed.len() * 2
}

/// A host on which the simulated scheduler places tasks. Those of VMs may use all CPUs, unless the host is
/// known to bind them.
pub(crate) fn free(assumed: &Assumed, recording: &Recording) -> Assumed {
    let mut changed = assumed.clone();
    changed.placement = Some(Placement::Simulated);
    changed.timed_moves = false;
    changed.other_load = true;
    changed.finds_idle = FindsIdle::of_recording(recording);
    let every_cpu: Vec<u32> = (0..recording.cpus).collect();
    for task in recording.tasks.iter().filter(|task| task.vm.is_some()) {
        let cpus = changed.affinity.entry(task.tid);
        cpus.or_insert_with(|| every_cpu.clone());
    }
    changed
}

/// The begin of a copy in the recording, in ns: at chance, and not near that of the original or of an earlier
/// copy.
fn phase_ns(span_ns: u64, seed: u64, copy: VmCopy, earlier: &[u64]) -> u64 {
    /// So many chances find a phase that is apart from all, if half of the span is.
    const CHANCES: usize = 64;
    let span_ns = span_ns.max(1);
    let key = (copy.original as u64) << 32 | u64::from(copy.number);
    let mut draws = Draws(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ key.rotate_left(17));
    let occupied = earlier.len() as u64 + 1;
    let least_ns = span_ns / (4 * occupied);
    let distance_ns = |phase_ns: u64| {
        let apart = |other_ns: u64| {
            let ns = phase_ns.abs_diff(other_ns);
            ns.min(span_ns - ns.min(span_ns))
        };
        let distances = std::iter::once(0).chain(earlier.iter().copied()).map(apart);
        distances.min().unwrap_or(0)
    };
    let mut best = (0, 0);
    for _ in 0..CHANCES {
        let drawn = draws.next();
        let phase_ns = ((u128::from(drawn) * u128::from(span_ns)) >> 64) as u64;
        best = best.max((distance_ns(phase_ns), phase_ns));
        if best.0 >= least_ns {
            break;
        }
    }
    best.1
}

/// Takes VMs away.
fn remove(recording: &mut Recording, removed: &BTreeSet<usize>) {
    let is_removed = |vm: Option<usize>| vm.is_some_and(|vm| removed.contains(&vm));
    let tasks = core::mem::take(&mut recording.tasks);
    let (departed, remaining): (Vec<_>, Vec<_>) =
        tasks.into_iter().partition(|task| is_removed(task.vm));
    recording.tasks = without(remaining, &departed, &recording.edge_ns);
    recording
        .never_ran
        .retain(|&(vm, _)| !removed.contains(&vm));
    recording.limits.retain(|vm, _| !removed.contains(vm));
}

/// Tasks without others that are gone: waits for those end at their recorded times.
pub(crate) fn without(
    mut remaining: Vec<RecordedTask>,
    departed: &[RecordedTask],
    edge_ns: &[u64],
) -> Vec<RecordedTask> {
    let mut is_gone = vec![false; edge_ns.len()];
    for step in departed.iter().flat_map(|task| task.steps.iter()) {
        if let Step::Reach(edge) = *step
            && let Some(is_gone) = is_gone.get_mut(edge.0 as usize)
        {
            *is_gone = true;
        }
    }
    let time = |step: &Step| {
        let edge = awaited(*step)?.0 as usize;
        let is_gone = is_gone.get(edge).copied().unwrap_or(false);
        edge_ns.get(edge).filter(|_| is_gone).copied()
    };
    for task in &mut remaining {
        if !task.steps.iter().any(|step| time(step).is_some()) {
            continue;
        }
        let steps = task.steps.iter().map(|step| match (step, time(step)) {
            (Step::Halt(_), Some(time_ns)) => Step::Halt(Until::Time(time_ns)),
            (_, Some(time_ns)) => Step::Sleep(Until::Time(time_ns)),
            (step, None) => *step,
        });
        task.steps = steps.collect::<Arc<[Step]>>();
    }
    remaining
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clocked::tests::{ARMED, MS, task};
    use crate::recording::Caller;

    #[test]
    fn timers_that_count_from_work_stay_so() {
        let recorded = task(ARMED);
        let mut tasks = [recorded.clone()];
        wake_at_recorded_times(&mut tasks, |_| true);
        assert_eq!(tasks[0].steps, recorded.steps);
    }

    #[test]
    fn ways_out_of_idle_states_are_apart_from_timers() {
        let mut recorded = task(ARMED);
        let late_us = [40, 130, 2_000].into_iter().cycle();
        let waits = recorded.waits.iter().zip(late_us);
        let waits = waits.map(|(wait, late_us)| Wait { late_us, ..*wait });
        recorded.waits = waits.collect();
        let armed = |ns, exit_us| Step::Halt(Until::Armed { ns, exit_us });
        let mut steps = recorded.steps.to_vec();
        for wait in recorded.waits.iter() {
            steps[wait.step as usize] = armed(MS + u64::from(wait.late_us) * 1_000, 0);
        }
        recorded.steps = Arc::from(steps);
        let mut tasks = [recorded];
        wake_at_recorded_times(&mut tasks, |_| true);
        let [changed] = &tasks;
        let ends = changed.waits.iter().take(3);
        let ends: Vec<Step> = ends.map(|wait| changed.steps[wait.step as usize]).collect();
        // Stalls of CPUs are no ways out.
        assert_eq!(ends, [armed(MS, 40), armed(MS, 130), armed(3 * MS, 0)]);
    }

    #[test]
    fn a_task_that_another_cpu_woke_is_woken_by_it() {
        let mut recorded = task(ARMED);
        let caller = Caller {
            cpu: 3,
            is_idle: false,
        };
        let waits = (0..).zip(recorded.waits.iter()).map(|(number, wait)| Wait {
            caller: Some(caller).filter(|_| number % 2 == 0),
            ..*wait
        });
        recorded.waits = waits.collect();
        let mut steps = recorded.steps.to_vec();
        for wait in recorded.waits.iter().take(2) {
            steps[wait.step as usize] = Step::Halt(Until::Time(wait.ended_ns));
        }
        recorded.steps = Arc::from(steps);
        let mut tasks = [recorded.clone()];
        wait_for_calls(&mut tasks);
        let end = |index: usize| {
            let wait = recorded.waits.get(index)?;
            tasks[0].steps.get(wait.step as usize).copied()
        };
        let [first, second] =
            [0, 1].map(|index| recorded.waits.get(index).map(|wait| wait.ended_ns));
        let called = first.map(|time_ns| Until::Called { time_ns, waker: 3 });
        assert_eq!(end(0), called.map(Step::Halt));
        assert_eq!(end(1), second.map(Until::Time).map(Step::Halt));
        // What timers and other tasks end stays so.
        assert_eq!(end(2), Some(Step::Halt(ARMED)));
    }

    #[test]
    fn timers_that_depend_on_work_expire_at_their_recorded_times() {
        let mut recorded = task(ARMED);
        let steps = (0u64..).zip(recorded.steps.iter());
        let steps = steps.map(|(index, step)| match step {
            Step::Halt(_) => Step::Halt(Until::Armed {
                ns: MS + index * MS / 20,
                exit_us: 0,
            }),
            step => *step,
        });
        recorded.steps = steps.collect();
        let mut tasks = [recorded.clone()];
        wake_at_recorded_times(&mut tasks, |_| true);
        for wait in recorded.waits.iter() {
            let step = tasks[0].steps.get(wait.step as usize);
            assert_eq!(step, Some(&Step::Halt(Until::Time(wait.ended_ns))));
        }
    }

    #[test]
    fn counts_as_recorded_leave_no_entry() {
        let mut counts = Counts::default();
        counts.set(3, 2);
        counts.set_guest(7, 1);
        assert!(counts.has_guests() && !counts.is_as_recorded());
        assert_eq!((counts.of_vm(3), counts.of_guest(7)), (2, 1));
        counts.set(3, 1);
        counts.set_guest(7, 0);
        assert!(!counts.has_guests() && counts.is_as_recorded());
        assert_eq!(counts, Counts::default());
        assert_eq!((counts.of_vm(3), counts.of_guest(7)), (1, 0));
    }

    #[test]
    fn copies_begin_at_chance_but_not_near_each_other() {
        const SPAN: u64 = 1_000_000;
        let copy = VmCopy {
            vm: 1,
            original: 0,
            number: 2,
        };
        let phases = |earlier: &[u64]| -> Vec<u64> {
            let seeds = 1..100;
            let mut phases: Vec<u64> = seeds
                .map(|seed| phase_ns(SPAN, seed, copy, earlier))
                .collect();
            phases.sort_unstable();
            phases
        };
        // A quarter of the span around the original is left out, and all the rest is as likely.
        let single = phases(&[]);
        assert!((SPAN / 4..SPAN * 3 / 10).contains(&single[0]), "{single:?}");
        assert!(
            (SPAN * 7 / 10..=SPAN * 3 / 4).contains(&single[98]),
            "{single:?}"
        );
        // An eighth around each of two.
        let among_two = phases(&[SPAN / 2]);
        let is_apart = |phase: &u64| phase.abs_diff(SPAN / 2) >= SPAN / 8;
        assert!(among_two.iter().all(is_apart), "{among_two:?}");
        assert!(among_two[0] < SPAN / 5, "{among_two:?}");
    }

    #[test]
    fn waits_for_tasks_that_are_gone_end_at_their_times() {
        let steps = |steps: &[Step]| RecordedTask {
            steps: Arc::from(steps),
            ..task(ARMED)
        };
        let edge = |number| Until::Edge(stealtime_simulator::script::Edge(number));
        let departed = steps(&[Step::Reach(stealtime_simulator::script::Edge(1))]);
        let remaining = vec![
            steps(&[
                Step::Halt(edge(1)),
                Step::Sleep(edge(1)),
                Step::Halt(edge(0)),
            ]),
            steps(&[Step::Sleep(edge(0))]),
        ];
        let found = without(remaining, &[departed], &[500, 700]);
        let found: Vec<&[Step]> = found.iter().map(|task| &task.steps[..]).collect();
        let (halts, sleeps) = (Step::Halt(Until::Time(700)), Step::Sleep(Until::Time(700)));
        assert_eq!(found[0], [halts, sleeps, Step::Halt(edge(0))]);
        assert_eq!(found[1], [Step::Sleep(edge(0))]);
    }

    #[test]
    fn copies_begin_each_at_a_chance_of_its_own() {
        let phases = |copies: [VmCopy; 64]| -> BTreeSet<u64> {
            let phases = copies.map(|copy| phase_ns(1 << 40, 1, copy, &[]));
            phases.into()
        };
        let of_number = |number| VmCopy {
            vm: 1,
            original: 0,
            number,
        };
        let of_original = |original| VmCopy {
            vm: 1,
            original,
            number: 2,
        };
        assert_eq!(
            phases(core::array::from_fn(|n| of_number(2 + n as u32))).len(),
            64
        );
        assert_eq!(phases(core::array::from_fn(of_original)).len(), 64);
    }

    /// A task that sets its timers for these times.
    fn with_timers(times: &[u64]) -> RecordedTask {
        let waits = (0..times.len() as u32).map(|step| Wait {
            step,
            began_ns: 0,
            ended_ns: 1,
            late_us: 0,
            caller: None,
        });
        let steps = times.iter().enumerate().map(|(place, &ns)| {
            let end = Until::Armed { ns, exit_us: 1 };
            match place % 2 {
                0 => Step::Halt(end),
                _ => Step::Sleep(end),
            }
        });
        RecordedTask {
            waits: waits.collect(),
            steps: steps.collect(),
            ..task(ARMED)
        }
    }

    #[test]
    fn two_thirds_of_eight_timers_or_more_show_a_usual_time() {
        let is_usual = |times: &[u64]| sleeps_after_work(&with_timers(times));
        assert!(is_usual(&[1_000; 8]) && !is_usual(&[1_000; 7]));
        // A 25th more or less is the same time.
        for (time, is_alike) in [(960, true), (959, false), (1_040, true), (1_041, false)] {
            let times = [&[1_000; 5][..], &[time, 2_000, 2_000, 2_000]].concat();
            assert_eq!(is_usual(&times), is_alike, "{time}");
        }
        // The time in the middle is the usual one.
        for shorter in [1, 2] {
            let times = [&[500, 500][..shorter], &[1_000; 7]].concat();
            assert!(is_usual(&times), "{shorter}");
        }
        // What ends at other times does not count.
        let mut others = with_timers(&[1_000; 8]);
        let mut steps = others.steps.to_vec();
        steps[7] = Step::Halt(Until::Time(1_000));
        others.steps = steps.into();
        assert!(!sleeps_after_work(&others));
    }

    #[test]
    fn a_way_out_of_an_idle_state_takes_a_millisecond_at_most() {
        let wait = |late_us| Wait {
            late_us,
            ..task(ARMED).waits[0]
        };
        assert_eq!(apart(&wait(1_000), 3 * MS, 0), (2 * MS, 1_000));
        assert_eq!(apart(&wait(1_001), 3 * MS, 0), (3 * MS, 0));
        // It is apart already.
        assert_eq!(apart(&wait(1_000), 3 * MS, 9), (3 * MS, 9));
        assert_eq!(apart(&wait(1_000), MS / 2, 0), (0, 1_000));
    }

    #[test]
    fn a_phase_is_apart_from_all_others_also_across_the_end() {
        const SPAN: u64 = 1 << 40;
        let copy = VmCopy {
            vm: 1,
            original: 0,
            number: 9,
        };
        for seed in 1..200 {
            let earlier = [SPAN / 2, SPAN / 4, SPAN * 7 / 8];
            let phase = phase_ns(SPAN, seed, copy, &earlier);
            for other in earlier.into_iter().chain([0, SPAN]) {
                assert!(phase.abs_diff(other) >= SPAN / 16, "{seed}: {phase}");
            }
        }
        assert_eq!(phase_ns(0, 1, copy, &[]), 0);
    }
}
