//! One pass over events: scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stealtime_analysis::Answers;
use stealtime_events::exit_reason::Class;
use stealtime_events::hypercall::{KVM_HC_KICK_CPU, KVM_HC_SCHED_YIELD};
use stealtime_events::{Event, Kind, Names};
use stealtime_simulator::script::{Edge, Spent, Step, Then, Until};

use crate::coupled::settle_coupled;
use crate::cpu::{Cpu, Wakes, late_since};
use crate::decisions::Watcher;
use crate::owners::Owners;
use crate::polling::Polling;
use crate::quota::{AtEnd, PERIOD_TIMER, Quotas};
use crate::recording::{Begins, RecordedTask, Recording, Resolved, Unseen};
use crate::release::Release;
use crate::slices::SliceTimers;
use crate::task::{Birth, Cause, Left, SleepCosts, State, Task, Woken};
use crate::timers::{Setter, Timers, bare, settle_timed};
use crate::watch::WakeLatencies;

/// MSRs that set the LAPIC's timer: IA32_TSC_DEADLINE, and x2APIC's initial count.
const SETS_TIMER: [u32; 2] = [0x6e0, 0x838];
/// The initial count in xAPIC mode.
const TMICT: u32 = 0x380;

/// A task that is seen within this time after the begin of a recording, in ns, has waited since then.
const LONG_NS: u64 = 10_000_000;

/// Index of its VM and number of a thread that is a vCPU.
pub(crate) type Vcpu = Option<(usize, u32)>;

/// Turns events into scripts.
#[derive(Debug)]
pub struct Extractor {
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) tasks: BTreeMap<i32, Task>,
    /// Tasks that ended before another was given their id, and which vCPU they were.
    past: Vec<(i32, Vcpu, Task)>,
    pub(crate) vcpus: BTreeMap<i32, (usize, u32)>,
    /// vCPUs whose threads have an id that was another's before, the first one last.
    later: BTreeMap<i32, Vec<(usize, u32)>>,
    pub(crate) owners: Owners,
    by_number: BTreeMap<(usize, u32), i32>,
    edges: u32,
    pub(crate) first: u64,
    pub(crate) now: u64,
    begun: bool,
    pub(crate) resolved: Resolved,
    pub(crate) timers: Timers,
    polling: Polling,
    pub(crate) quotas: Quotas,
    /// The recording has ends of timers' callbacks.
    tells_expiries: bool,
    wakeups: WakeLatencies,
    slices: SliceTimers,
    decisions: Watcher,
    halts: u64,
    halts_told: u64,
    idle_wakes: Wakes,
    busy_wakes: Wakes,
    /// Processes and names of tasks that have not done anything yet.
    unseen: BTreeMap<i32, (i32, String)>,
    /// It has `sched_wakeup`.
    pub(crate) tells_wakeups: bool,
    /// Events were lost.
    pub(crate) lossy: bool,
    /// Tasks that were moved before anything else was seen of them.
    moved_first: BTreeSet<i32>,
    release: Option<Release>,
}

impl Extractor {
    /// An extractor for the recording that `answers` are about: they say which threads are vCPUs
    /// of which VM.
    #[must_use]
    pub fn new(answers: &Answers) -> Self {
        let vm_of = |name: &str| answers.vms.iter().position(|vm| vm.vm == name);
        let mut vcpus = BTreeMap::new();
        let mut later: BTreeMap<i32, Vec<(usize, u32)>> = BTreeMap::new();
        let mut by_number = BTreeMap::new();
        for time in answers.vcpus.iter().rev() {
            if let Some(vm) = vm_of(&time.vm) {
                if let Some(other) = vcpus.insert(time.tid, (vm, time.vcpu)) {
                    later.entry(time.tid).or_default().push(other);
                }
                by_number.insert((vm, time.vcpu), time.tid);
            }
        }
        Self {
            cpus: Vec::new(),
            tasks: BTreeMap::new(),
            past: Vec::new(),
            vcpus,
            later,
            owners: Owners::default(),
            by_number,
            edges: 0,
            first: 0,
            now: 0,
            begun: false,
            resolved: Resolved::default(),
            timers: Timers::default(),
            polling: Polling::default(),
            quotas: Quotas::default(),
            tells_expiries: false,
            wakeups: WakeLatencies::default(),
            slices: SliceTimers::default(),
            decisions: Watcher::default(),
            halts: 0,
            halts_told: 0,
            idle_wakes: Wakes::default(),
            busy_wakes: Wakes::default(),
            unseen: BTreeMap::new(),
            tells_wakeups: false,
            lossy: false,
            moved_first: BTreeSet::new(),
            release: answers.source.uname.as_deref().and_then(Release::of_uname),
        }
    }

    pub(crate) fn new_edge(&mut self) -> Edge {
        self.edges += 1;
        Edge(self.edges - 1)
    }

    /// A task; one that was not seen before has run since the recording began.
    pub(crate) fn task(&mut self, tid: i32) -> &mut Task {
        let first = self.first;
        self.tasks
            .entry(tid)
            .or_insert_with(|| Task::new(State::Running { since: first }))
    }

    pub(crate) fn task_that_was(&mut self, tid: i32, state: State) -> &mut Task {
        self.tasks.entry(tid).or_insert_with(|| Task::new(state))
    }

    /// Takes in the next event. Events come in order of time; earlier ones count as now.
    pub fn event(&mut self, event: &Event, names: &dyn Names) {
        if event.kind.is_host_event() {
            // What only names a task may have any time, or none.
            if !self.begun {
                self.begun = true;
                self.first = event.time_ns;
            }
            self.now = self.now.max(event.time_ns);
        }
        let cpu = event.cpu.0 as usize;
        if self.cpus.len() <= cpu {
            self.cpus.resize(cpu + 1, Cpu::default());
        }
        let is_of_tasks = matches!(
            event.kind,
            Kind::SchedSwitch { .. } | Kind::KvmEntry { .. } | Kind::KvmExit { .. }
        );
        self.tells_expiries |= matches!(event.kind, Kind::HrtimerExpireExit { .. });
        if event.kind.is_host_event() && (event.context.in_task() || is_of_tasks) {
            // Recordings may have the begin of a timer's callback only.
            self.cpus[cpu].expiring = None;
        }
        self.wakeups.take(event);
        self.decisions.take(event);
        self.hidden_switch(event, cpu);
        self.seen_again(event, cpu);
        self.dispatch(event, cpu, names);
        if event.kind.is_host_event() {
            self.cpus[cpu].last = self.now;
        }
    }

    /// Another task runs here than the last switch said: a recording leaves out switches of threads
    /// that it was told to leave out. The switch was after the last event of this CPU.
    fn hidden_switch(&mut self, event: &Event, cpu: usize) {
        let tid = event.tid.0;
        let Some(was) = self.cpus[cpu].current.filter(|&was| was != tid) else {
            return;
        };
        if tid < 0 || !event.kind.is_host_event() {
            return;
        }
        self.resolved.hidden_switches += 1;
        let now = core::mem::replace(&mut self.now, self.cpus[cpu].last);
        let prio = self.tasks.get(&tid).map_or(120, |task| task.prio);
        self.switch(cpu, was, tid, Left::Asleep, prio);
        self.now = now;
    }

    fn dispatch(&mut self, event: &Event, cpu: usize, names: &dyn Names) {
        let now = self.now;
        match event.kind {
            Kind::Task { tid, process, name } if tid.0 != 0 => {
                self.owners.is_of(tid.0, process.0);
                let name = names.name(name).to_owned();
                if let Some(task) = self.tasks.get_mut(&tid.0) {
                    task.name = name;
                } else {
                    // The task has not done anything yet.
                    self.unseen.insert(tid.0, (process.0, name));
                }
            }
            Kind::SchedSwitch {
                prev,
                next,
                prev_state,
                next_prio,
                ..
            } => {
                self.switch(cpu, prev.0, next.0, Left::by(prev_state), next_prio);
            }
            Kind::SchedWaking {
                tid, target_cpu, ..
            } => self.waking(event, tid.0, target_cpu),
            Kind::SchedWakeup {
                tid, target_cpu, ..
            } => self.wakeup(tid.0, target_cpu),
            Kind::SchedWakeupNew { .. }
            | Kind::SchedProcessFork { .. }
            | Kind::SchedProcessExit { .. }
            | Kind::SchedMigrateTask { .. } => self.life(event.kind),
            Kind::KvmEntry { .. } if event.tid.0 != 0 => {
                self.cpus[cpu].goes_on();
                let task = self.task(event.tid.0);
                task.settle(now);
                task.halt_untold();
                task.yields();
                task.spent = Spent::Guest;
                self.computes(event.tid.0);
            }
            Kind::KvmExit { reason, .. } if event.tid.0 != 0 => {
                let halts = reason.class() == Class::Halt;
                self.halts += u64::from(halts);
                let task = self.task(event.tid.0);
                task.settle(now);
                if reason.class() == Class::PreemptionTimer {
                    task.ticks(now);
                }
                task.exit(reason);
                task.spins = reason.class() == Class::Pause;
                task.spent = match reason.class() {
                    Class::HostInterrupt => Spent::Interrupt(reason.code),
                    _ => Spent::Exit(reason.code),
                };
                if halts {
                    task.begin_halt();
                    self.computes(event.tid.0);
                }
            }
            Kind::KvmMsr {
                write: true, ecx, ..
            } if event.tid.0 != 0 && SETS_TIMER.contains(&ecx) => {
                self.task(event.tid.0).guest_arms(now);
            }
            Kind::KvmApic {
                write: true,
                reg: TMICT,
                ..
            } if event.tid.0 != 0 => self.task(event.tid.0).guest_arms(now),
            Kind::KvmSetIrq { .. } if event.tid.0 != 0 && event.context.in_task() => {
                self.owners.emulates(event.tid.0);
            }
            Kind::KvmHypercall { nr, a0, a1 } if event.tid.0 != 0 => {
                let target = match nr {
                    KVM_HC_SCHED_YIELD => a0,
                    KVM_HC_KICK_CPU => a1.into(),
                    _ => return,
                };
                self.task(event.tid.0).yields_to = u32::try_from(target).ok();
            }
            Kind::KvmHaltPollNs { new, old, .. } => self.polling.change(event.tid.0, new, old),
            Kind::KvmVcpuWakeup { ns, waited, .. } if event.tid.0 != 0 => {
                self.polling.halt(ns, waited);
                self.halts_told += 1;
                let at = now.saturating_sub(self.first);
                if let Some((came, late)) = self.task(event.tid.0).halt_over(now, ns, at) {
                    self.cpus[cpu].poll_called(came, late);
                }
                self.computes(event.tid.0);
            }
            Kind::KvmApicAcceptIrq { apicid, .. } | Kind::KvmApicvAcceptIrq { apicid, .. } => {
                self.accepted(event, apicid);
            }
            Kind::Lost { .. } => self.lost(cpu),
            _ => self.timer(event, cpu, names),
        }
    }

    /// What an hrtimer does.
    fn timer(&mut self, event: &Event, cpu: usize, names: &dyn Names) {
        let now = self.now;
        match event.kind {
            Kind::HrtimerStart {
                hrtimer,
                expires_ns,
                function,
            } => {
                let (name, tid) = (names.name(function), event.tid.0);
                let in_task = self.may_be_task(event);
                let by = Setter {
                    tid,
                    in_task,
                    at: now,
                    in_callback: self.cpus[cpu].expiring == Some(hrtimer),
                };
                let own = self.timers.start(hrtimer, expires_ns, name, by);
                if self.timers.ends_slices(hrtimer) {
                    self.cpus[cpu].next_slice(now);
                    if let Some(ns) = self.timers.slice_ahead(hrtimer, now) {
                        self.slices.set(ns);
                    }
                }
                if own && in_task {
                    self.task(tid).arm(now);
                }
                self.timer_set(hrtimer, own);
            }
            Kind::HrtimerExpireEntry {
                hrtimer,
                now_ns,
                function,
            } => {
                self.timers.expire(now, now_ns);
                if bare(names.name(function)) == PERIOD_TIMER {
                    self.period_over(hrtimer);
                }
                if let Some(late) = self.timers.slice_late(hrtimer, now_ns) {
                    self.cpus[cpu].slice_ends(now, late);
                }
                if let Some(late) = self.timers.tick_late(hrtimer, now_ns) {
                    self.cpus[cpu].ticks(now, late);
                }
                self.cpus[cpu].expiring = Some(hrtimer);
                self.guest_ticks(hrtimer);
                self.poll_expired(event, hrtimer);
                self.timer_unset(hrtimer);
            }
            Kind::HrtimerCancel { hrtimer } => self.timer_unset(hrtimer),
            Kind::HrtimerExpireExit { .. } => self.cpus[cpu].expiring = None,
            _ => {}
        }
    }

    /// A task begins, is about to end, or moves.
    fn life(&mut self, kind: Kind) {
        let now = self.now;
        match kind {
            Kind::SchedWakeupNew {
                tid, target_cpu, ..
            } => self.birth(tid.0, u16::try_from(target_cpu).ok()),
            Kind::SchedProcessFork { child, .. } => self.birth(child.0, None),
            Kind::SchedProcessExit { tid } => {
                if let Some(task) = self.tasks.get_mut(&tid.0) {
                    task.exits_now = true;
                }
            }
            Kind::SchedMigrateTask { tid, dest_cpu, .. } => match self.tasks.get_mut(&tid.0) {
                Some(task) => task.moves(now, dest_cpu),
                None => {
                    self.moved_first.insert(tid.0);
                }
            },
            _ => {}
        }
    }

    pub(crate) fn switch(&mut self, cpu: usize, prev: i32, next: i32, left: Left, next_prio: i16) {
        let now = self.now;
        match prev != 0 && left == Left::Runnable {
            true => self.cpus[cpu].preempts(now),
            false => self.cpus[cpu].goes_on(),
        }
        self.cpus[cpu].idled |= prev == 0;
        if prev != 0 {
            let first = self.first;
            let task = self.task_that_was(prev, State::Running { since: first });
            task.runs_on(cpu as u16);
            match left {
                Left::Runnable => {
                    task.settle(now);
                    task.yields();
                    task.state = State::Runnable;
                }
                Left::Gone => task.ends(now),
                Left::Otherwise if task.exits_now => task.ends(now),
                Left::Asleep | Left::Otherwise => {
                    task.sleep(now);
                    self.woken_early(prev);
                }
            }
            self.task(prev).early = None;
            self.computes(prev);
        }
        if next != 0 {
            self.come_on(cpu, next);
            self.left_unseen(cpu, next);
            let task = self.task(next);
            task.settle(now);
            if let State::Asleep { .. } = task.state {
                // It runs without a wakeup in the recording: the time is all that is known.
                let at = now.saturating_sub(self.first);
                if let Some(task) = self.tasks.get_mut(&next) {
                    task.wake(now, Cause::Known(Until::Time(at)));
                }
                self.resolved.unknown += 1;
            }
            if let Some(&(vm, _)) = self.vcpus.get(&next) {
                self.quotas.runs(vm, now);
            }
            let task = self.task(next);
            task.gets(now, cpu as u16);
            task.runs(now);
            task.switches_in += 1;
            task.prio = next_prio;
            let woken = task.woken.take();
            self.computes(next);
            match woken {
                Some(Woken { at, idle: true, by }) => {
                    self.idle_wakes.add(now.saturating_sub(at));
                    if prev == 0 {
                        self.cpus[cpu].idle_woken(at, usize::from(by) == cpu, now);
                    }
                }
                Some(Woken { at, .. }) => self.busy_wakes.add(now.saturating_sub(at)),
                None => {}
            }
        }
        self.cpus[cpu].current = Some(next);
        self.cpus[cpu].idled |= next == 0;
    }

    /// A task has got a CPU or lost it, or a halt has begun or ended: if it is a vCPU, others may wait for
    /// what it computes.
    fn computes(&mut self, tid: i32) {
        if !self.vcpus.contains_key(&tid) {
            return;
        }
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.computes(self.now);
        }
    }

    /// A task begins, on this CPU if that is told.
    fn birth(&mut self, tid: i32, cpu: Option<u16>) {
        let at = self.now;
        self.bury(tid);
        let task = self
            .tasks
            .entry(tid)
            .or_insert_with(|| Task::born(Birth { at, seen: true }));
        if task.switches_in == 0 && task.born.is_some() {
            task.first_cpu = cpu.or(task.first_cpu);
        }
    }

    /// The task that had this id and ended makes room for another one.
    fn bury(&mut self, tid: i32) {
        let gone = |task: &Task| task.state == State::Gone;
        if !self.tasks.get(&tid).is_some_and(gone) {
            return;
        }
        let Some(task) = self.tasks.remove(&tid) else {
            return;
        };
        let mut was = None;
        if !task.exits.is_empty() {
            was = self.vcpus.remove(&tid);
            let next = self.later.get_mut(&tid).and_then(Vec::pop);
            self.vcpus.extend(next.map(|next| (tid, next)));
        }
        self.past.push((tid, was, task));
    }

    /// A task gets a CPU: if it was not seen before, it has waited since the recording began, unless
    /// that CPU was idle meanwhile and nothing was lost.
    fn come_on(&mut self, cpu: usize, tid: i32) {
        self.bury(tid);
        if self.tasks.contains_key(&tid) {
            return;
        }
        let at = self.now;
        let long = at.saturating_sub(self.first) >= LONG_NS;
        let told = !self.lossy && !self.moved_first.contains(&tid);
        let task = match long && told && self.cpus[cpu].idled {
            true => Task::born(Birth { at, seen: false }),
            false => Task::new(State::Runnable),
        };
        self.tasks.insert(tid, task);
    }

    /// A timer of a task is set: if that is a vCPU, it is its guest's.
    fn timer_set(&mut self, hrtimer: u64, own: bool) {
        let owner = self.timers.owner(hrtimer).filter(|_| own);
        let Some(tid) = owner.filter(|tid| self.vcpus.contains_key(tid)) else {
            return;
        };
        let expires = self.timers.expires_for(hrtimer, tid);
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.timer = expires.map(|expires| (hrtimer, expires));
        }
    }

    /// It is cancelled, or expires.
    fn timer_unset(&mut self, hrtimer: u64) {
        let owner = self.timers.owner(hrtimer);
        if let Some(task) = owner.and_then(|tid| self.tasks.get_mut(&tid)) {
            task.timer.take_if(|&mut (of, _)| of == hrtimer);
        }
    }

    /// Whether an event is its task's doing. Where the recording has no flags that say so, callbacks of
    /// timers are what else wakes and arms: outside of them, where their ends are recorded.
    pub(crate) fn may_be_task(&self, event: &Event) -> bool {
        event.context.in_task()
            || !event.context.in_interrupt()
                && self.tells_expiries
                && self.expiring(event).is_none()
    }

    /// An interrupt is pending at a vCPU: if that polls, this is what ends it.
    fn accepted(&mut self, event: &Event, apicid: u32) {
        let sender = self.vcpus.get(&event.tid.0).copied();
        let Some((vm, _)) = sender.filter(|_| self.may_be_task(event)) else {
            return;
        };
        let Some(&tid) = self.by_number.get(&(vm, apicid)) else {
            return;
        };
        if tid == event.tid.0 || !self.tasks.get(&tid).is_some_and(Task::polls) {
            return;
        }
        self.poll_ended(event, tid);
    }

    /// A timer expires: if its vCPU polls, this is what ends it.
    fn poll_expired(&mut self, event: &Event, hrtimer: u64) {
        let Some(tid) = self.timers.owner(hrtimer) else {
            return;
        };
        if self.tasks.get(&tid).is_some_and(Task::polls) {
            self.poll_ended(event, tid);
        }
    }

    /// The runtime of a limit is handed out anew.
    fn period_over(&mut self, hrtimer: u64) {
        let now = self.now;
        let mut vms: BTreeMap<usize, AtEnd> = BTreeMap::new();
        for (tid, &(vm, _)) in &self.vcpus {
            let Some(task) = self.tasks.get_mut(tid) else {
                continue;
            };
            task.settle(now);
            let at = vms.entry(vm).or_default();
            at.ran_ns = at.ran_ns.saturating_add(task.ran_ns);
            at.vcpus += 1;
            let waits = task.state == State::Runnable;
            at.waits |= waits;
            at.taken |= waits && task.woken.is_none();
            let cpu = task.cpu().and_then(|cpu| self.cpus.get(cpu as usize));
            at.idle |= waits && cpu.is_some_and(|cpu| cpu.current == Some(0));
            at.last_ran = at.last_ran.max(task.last_ran);
        }
        self.quotas.period_over(hrtimer, now, &vms);
    }

    fn poll_ended(&mut self, event: &Event, tid: i32) {
        let (cause, now) = (self.cause(event, self.expiring(event), tid), self.now);
        let task = self.task(tid);
        let called = task.ran_on != Some(event.cpu.0);
        let halting = task.halting.as_mut();
        if let Some(halting) = halting.filter(|halting| halting.interrupted.is_none()) {
            halting.interrupted = Some((cause, now));
            halting.called = called;
        }
    }

    /// The recording is over.
    #[must_use]
    pub fn finish(mut self) -> Recording {
        let now = self.now;
        let wake_ns = self.busy_wakes.percentile(5);
        let less = wake_ns.map_or(0, |ns| u32::try_from(ns).unwrap_or(u32::MAX));
        let late = |of: fn(&Cpu) -> &[(u64, u32)], less| {
            let cpus = self.cpus.iter();
            cpus.map(|cpu| late_since(of(cpu), self.first, less))
                .collect()
        };
        let late_slices = late(|cpu| &cpu.late, 0);
        let tick_late = late(|cpu| &cpu.tick_late, 0);
        let idle_late = late(|cpu| &cpu.idle_late, less);
        let idle_called = late(|cpu| &cpu.idle_called, less);
        let poll_called = late(|cpu| &cpu.poll_called, 0);
        let gaps = self.cpus.iter().map(|cpu| cpu.gaps(self.first)).collect();
        let mut all = core::mem::take(&mut self.past);
        // Who was given an id again comes behind who had it.
        let last = core::mem::take(&mut self.tasks).into_iter();
        all.extend(last.map(|(tid, task)| (tid, self.vcpus.get(&tid).copied(), task)));
        all.sort_by_key(|task| task.0);
        settle_coupled(&mut all);
        let switches = all.iter().map(|task| task.2.switches_in).sum();
        let migrations = all.iter().map(|task| task.2.moves.len() as u64).sum();
        let mut costs = SleepCosts::default();
        for (_, _, task) in &all {
            costs.add(&task.costs);
        }
        let (block_ns, slept_ns) = costs.told();
        for (tid, _, task) in &mut all {
            if let (true, Some(unseen)) = (task.name.is_empty(), self.unseen.get(tid)) {
                task.name.clone_from(&unseen.1);
            }
        }
        let names = all.iter().map(|task| (task.0, task.2.name.as_str()));
        let owners = self.owners.found(&self.vcpus, &names.collect());
        let recorded = |task| self.recorded(task, slept_ns, &owners);
        let tasks = all.into_iter().map(recorded);
        let tasks: Vec<RecordedTask> = tasks.filter(|task| !task.ran_on.is_empty()).collect();
        let ran: BTreeSet<(usize, u32)> = tasks.iter().filter_map(|task| task.vcpu).collect();
        let mut never_ran: Vec<(usize, u32)> = self.by_number.keys().copied().collect();
        never_ran.retain(|vcpu| !ran.contains(vcpu));
        never_ran.sort_unstable();
        let steps = tasks.iter().flat_map(|task| task.steps.iter());
        let yields = steps.filter(|step| matches!(step, Step::Spin | Step::YieldTo(_)));
        let yields = yields.count() as u64;
        let seen: BTreeSet<i32> = tasks.iter().map(|task| task.tid).collect();
        let unseen = self
            .unseen
            .into_iter()
            .filter(|(tid, _)| !seen.contains(tid));
        let unseen = unseen.map(|(tid, (process, name))| Unseen { tid, process, name });
        Recording {
            span_ns: now.saturating_sub(self.first),
            cpus: self.cpus.len() as u32,
            release: self.release,
            tasks,
            never_ran,
            unseen: unseen.collect(),
            edges: self.edges,
            resolved: self.resolved,
            idle_wake_ns: self.idle_wakes.percentile(50),
            wake_ns,
            halt_poll_ns: self.polling.halt_poll_ns(),
            hz: self.timers.hz(),
            hrtick: self.timers.hrtick(),
            limits: self.quotas.limits(),
            late: late_slices,
            tick_late,
            idle_late,
            idle_called,
            poll_called,
            is_lossy: self.lossy,
            gaps,
            block_ns,
            wakeups: self.wakeups,
            slices: self.slices,
            decisions: self
                .decisions
                .decisions(|tid| self.vcpus.contains_key(&tid)),
            switches,
            migrations,
            yields,
            halts: self.halts,
            halts_told: self.halts_told,
        }
    }

    /// A task as it was seen to the end.
    fn recorded(
        &self,
        (tid, vcpu, mut task): (i32, Vcpu, Task),
        slept_ns: u32,
        owners: &BTreeMap<i32, usize>,
    ) -> RecordedTask {
        let begins = task.born.filter(|birth| birth.at > self.first);
        let goes_on = vcpu.is_some() && task.died.is_none() && begins.is_none();
        task.finish(self.now, goes_on);
        // Who spins without end goes on to spin.
        let then = match vcpu {
            _ if goes_on && task.gives_its_cpu_away() => Then::Repeat,
            Some(_) if task.died.is_none() && task.never_waits(self.first, self.now) => {
                Then::Compute
            }
            _ if goes_on => Then::Repeat,
            _ => Then::End,
        };
        task.tell_sleeps(slept_ns);
        let alarm_ns = task.alarm_ns();
        let ticks = task.settle_ticks(self.first);
        settle_timed(&mut task.steps, &task.timed, &task.alarms, self.first);
        let after = |at: u64| at.saturating_sub(self.first);
        RecordedTask {
            tid,
            name: task.name,
            vcpu,
            vm: vcpu
                .map(|vcpu| vcpu.0)
                .or_else(|| owners.get(&tid).copied()),
            nice: task.prio.saturating_sub(120).clamp(-20, 19) as i8,
            ran_on: task.cpus.iter().copied().collect(),
            first_cpu: task.first_cpu.unwrap_or(0),
            begins: begins.map(|birth| Begins {
                at_ns: after(birth.at),
                is_seen: birth.seen,
            }),
            ends_ns: task.died.map(after),
            switches_in: task.switches_in,
            moves: task.moves.iter().map(|&(at, to)| (after(at), to)).collect(),
            then,
            alarm_ns,
            ticks,
            exits: task.exits,
            steps: Arc::from(task.steps),
        }
    }
}
