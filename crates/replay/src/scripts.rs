//! The scripts of all tasks, as far as the recording has been read.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_analysis::Answers;
use stealtime_events::Event;
use stealtime_simulator::script::Edge;
use stealtime_track::{Hrtimers, SwitchOut, ThreadIndex, ThreadRef};

use crate::cpu::{Cpu, Wakes};
use crate::decisions::{FAIR_FROM, Watcher};
use crate::newidle;
use crate::polling::Polling;
use crate::quota::{AtEnd, Quotas};
use crate::recording::Resolved;
use crate::release::Release;
use crate::slices::SliceTimers;
use crate::task::{Birth, State, Task, Woken};
use crate::tasks::Tasks;
use crate::vmm_threads::VmmThreads;
use crate::wake::Origin;
use crate::watch::WakeLatencies;

/// A task that is seen within this time after the begin of a recording, in ns, has waited since then.
const LONG_NS: u64 = 10_000_000;

/// Fewer switches between tasks that compete do not show that the kernel sets no slice timers.
const FEW_COMPETING: u64 = 10;

/// The idle task, as a CPU has it that was not seen to switch.
pub(crate) const IDLE: ThreadRef = ThreadRef {
    index: ThreadIndex::IDLE,
    tid: stealtime_events::Tid::IDLE,
};

/// Index of its VM and number of a thread that is a vCPU.
pub(crate) type Vcpu = Option<(usize, u32)>;

/// Follows the tracker, and builds the scripts of all tasks.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) tasks: Tasks,
    /// Tasks that ended before their id went to another one.
    pub(crate) past: Vec<Task>,
    pub(crate) vcpus: BTreeMap<i32, (usize, u32)>,
    /// Later vCPUs by a thread id that was given out again, the first one last.
    later: BTreeMap<i32, Vec<(usize, u32)>>,
    pub(crate) vmm_threads: VmmThreads,
    /// Thread ids of vCPUs.
    pub(crate) by_number: BTreeMap<(usize, u32), i32>,
    /// Numbers of vCPUs' threads that have been seen.
    by_tid: BTreeMap<i32, ThreadIndex>,
    /// When each edge was reached, in ns since the first event.
    pub(crate) edges: Vec<u64>,
    /// Time of the first event.
    pub(crate) first: u64,
    /// Time of the latest event; of a hidden switch, when its CPU was seen before it.
    pub(crate) now: u64,
    has_begun: bool,
    pub(crate) resolved: Resolved,
    pub(crate) timers: Hrtimers,
    pub(crate) polling: Polling,
    pub(crate) quotas: Quotas,
    pub(crate) wakeups: WakeLatencies,
    pub(crate) slices: SliceTimers,
    /// Switches from a task that waits then to one of the fair class. With `HRTICK` each sets a slice timer.
    competing: u64,
    pub(crate) decisions: Watcher,
    pub(crate) newidle: newidle::Watcher,
    /// Exits that halt.
    pub(crate) halts: u64,
    /// `kvm_vcpu_wakeup`.
    pub(crate) halt_ends: u64,
    pub(crate) idle_wakes: Wakes,
    pub(crate) busy_wakes: Wakes,
    /// Processes and names of tasks that have not done anything yet.
    pub(crate) unseen: BTreeMap<i32, (i32, String)>,
    /// It has `sched_wakeup`.
    pub(crate) has_wakeups: bool,
    pub(crate) is_lossy: bool,
    /// Tasks that were moved before anything else was seen of them.
    pub(crate) moved_first: BTreeSet<ThreadIndex>,
    pub(crate) release: Option<Release>,
}

impl Scripts {
    /// No scripts yet; `answers` map vCPU threads to VMs.
    pub(crate) fn new(answers: &Answers) -> Self {
        let vm_of = |name: &str| answers.vms.iter().position(|vm| vm.vm == name);
        let mut vcpus = BTreeMap::new();
        let mut later: BTreeMap<i32, Vec<(usize, u32)>> = BTreeMap::new();
        let mut by_number = BTreeMap::new();
        for time in answers.vcpus.iter().rev() {
            if let Some(vm) = vm_of(&time.vm) {
                if let Some(later_one) = vcpus.insert(time.tid, (vm, time.vcpu)) {
                    later.entry(time.tid).or_default().push(later_one);
                }
                by_number.insert((vm, time.vcpu), time.tid);
            }
        }
        Self {
            cpus: Vec::new(),
            tasks: Tasks::default(),
            past: Vec::new(),
            vcpus,
            later,
            vmm_threads: VmmThreads::default(),
            by_number,
            by_tid: BTreeMap::new(),
            edges: Vec::new(),
            first: 0,
            now: 0,
            has_begun: false,
            resolved: Resolved::default(),
            timers: Hrtimers::default(),
            polling: Polling::default(),
            quotas: Quotas::default(),
            wakeups: WakeLatencies::default(),
            slices: SliceTimers::default(),
            competing: 0,
            decisions: Watcher::default(),
            newidle: newidle::Watcher::default(),
            halts: 0,
            halt_ends: 0,
            idle_wakes: Wakes::default(),
            busy_wakes: Wakes::default(),
            unseen: BTreeMap::new(),
            has_wakeups: false,
            is_lossy: false,
            moved_first: BTreeSet::new(),
            release: answers.source.uname.as_deref().and_then(Release::of_uname),
        }
    }

    /// Before the tracker takes an event: the time, and what is known by the raw event alone.
    pub(crate) fn advance(&mut self, event: &Event) {
        if event.kind.is_host_event() {
            // Names of tasks come at any time, or without one.
            if !core::mem::replace(&mut self.has_begun, true) {
                self.first = event.time_ns;
            }
            self.now = self.now.max(event.time_ns);
        }
        let cpu = usize::from(event.cpu.0);
        if self.cpus.len() <= cpu {
            self.cpus.resize(cpu + 1, Cpu::default());
        }
        self.timers.advance(event);
        self.wakeups.take(event);
        self.decisions.take(event);
        self.newidle.take(event);
    }

    pub(crate) fn new_edge(&mut self) -> Edge {
        let edge = Edge(self.edges.len() as u32);
        self.edges.push(self.now.saturating_sub(self.first));
        edge
    }

    /// A task; one that was not seen before has run since the recording began.
    pub(crate) fn task(&mut self, thread: ThreadRef) -> &mut Task {
        let first = self.first;
        self.task_in(thread, State::Running { since: first })
    }

    /// The same for the current task of a CPU. One without a recorded switch has had this CPU all the time.
    pub(crate) fn task_on(&mut self, cpu: u16, thread: ThreadRef) -> &mut Task {
        let task = self.task(thread);
        if task.ran_on.is_none() {
            task.runs_on(cpu);
        }
        task
    }

    /// A task; one that was not seen before was in this state when the recording began.
    pub(crate) fn task_in(&mut self, thread: ThreadRef, state: State) -> &mut Task {
        self.task_or(thread, || Task::new(state))
    }

    fn task_or(&mut self, thread: ThreadRef, new: impl FnOnce() -> Task) -> &mut Task {
        let is_held = self.tasks.get(thread.index).is_none() && self.is_held(thread);
        let (vcpus, by_tid, tid) = (&self.vcpus, &mut self.by_tid, thread.tid.0);
        self.tasks.get_or_insert_with(thread.index, || {
            let vcpu = vcpus.get(&tid).copied().filter(|_| !is_held);
            if vcpu.is_some() {
                by_tid.insert(tid, thread.index);
            }
            let mut task = new();
            (task.tid, task.vcpu) = (tid, vcpu);
            task
        })
    }

    /// Whether the vCPU of this id is another thread: one that has ended can have its last events after its
    /// id went to another.
    fn is_held(&self, thread: ThreadRef) -> bool {
        let holder = self.by_tid.get(&thread.tid.0);
        let holder = holder.filter(|&&index| index != thread.index);
        holder.is_some_and(|&index| self.tasks.get(index).is_some())
    }

    /// Whether slices end by timers, if timers and tasks that compete show it.
    pub(crate) fn hrtick(&self) -> Option<bool> {
        let has_slices = self.timers.hrtick();
        has_slices.filter(|has_slices| *has_slices || self.competing >= FEW_COMPETING)
    }

    /// A CPU switches from one task to another.
    pub(crate) fn switch_tasks(
        &mut self,
        cpu: usize,
        prev: ThreadRef,
        reason: SwitchOut,
        next: ThreadRef,
        next_prio: i16,
    ) {
        let now = self.now;
        match !prev.tid.is_idle() && reason.is_runnable() {
            true => {
                self.competing +=
                    u64::from(!next.tid.is_idle() && i32::from(next_prio) >= FAIR_FROM);
                self.cpus[cpu].preempts(now);
            }
            false => self.cpus[cpu].goes_on(),
        }
        self.cpus[cpu].has_idled |= prev.tid.is_idle() || next.tid.is_idle();
        if !prev.tid.is_idle() {
            self.switch_out(cpu, prev, reason);
        }
        if !next.tid.is_idle() {
            self.switch_in(cpu, prev, next, next_prio);
            self.cpus[cpu].called = None;
        }
        self.cpus[cpu].current = Some(next);
    }

    fn switch_out(&mut self, cpu: usize, thread: ThreadRef, reason: SwitchOut) {
        let now = self.now;
        let task = self.task(thread);
        task.runs_on(cpu as u16);
        match reason {
            SwitchOut::Runnable => {
                task.settle(now);
                task.yields();
                task.state = State::Runnable;
            }
            SwitchOut::Exited => task.ends(now),
            SwitchOut::Other if task.exits_now => task.ends(now),
            SwitchOut::Asleep | SwitchOut::Other => {
                task.sleep(now);
                self.woken_early(thread);
            }
        }
        let task = self.task(thread);
        task.early = None;
        task.computes(now);
    }

    fn switch_in(&mut self, cpu: usize, prev: ThreadRef, thread: ThreadRef, prio: i16) {
        let now = self.now;
        self.first_seen_on(cpu, thread);
        self.left_unseen(cpu, thread.index);
        let time = now.saturating_sub(self.first);
        let task = self.task(thread);
        task.settle(now);
        if let State::Asleep { .. } = task.state {
            task.wake_unseen(now, time);
            self.resolved.unknown += 1;
        }
        let task = self.task(thread);
        task.gets(now, cpu as u16);
        task.runs(now);
        task.switches_in += 1;
        task.prio = prio;
        task.computes(now);
        let (vcpu, woken) = (task.vcpu, task.woken.take());
        if let Some((vm, _)) = vcpu {
            self.quotas.runs(vm, now);
        }
        match woken {
            Some(Woken {
                time,
                idle: true,
                waker_cpu,
            }) => {
                self.idle_wakes.add(now.saturating_sub(time));
                if prev.tid.is_idle() {
                    if usize::from(waker_cpu) != cpu {
                        self.task(thread).called(time, now);
                    }
                    self.cpus[cpu].idle_woken(time, usize::from(waker_cpu) == cpu, now);
                }
            }
            Some(Woken { time, .. }) => self.busy_wakes.add(now.saturating_sub(time)),
            None => {}
        }
    }

    /// A task begins, on this CPU where that is recorded.
    pub(crate) fn birth(&mut self, thread: ThreadRef, cpu: Option<u16>) {
        let birth = Birth {
            time: self.now,
            is_seen: true,
        };
        self.bury(thread.index);
        let task = self.task_or(thread, || Task::born(birth));
        if task.switches_in == 0 && task.born.is_some() {
            task.first_cpu = cpu.or(task.first_cpu);
        }
    }

    /// A task that ended makes room for another one with its id.
    pub(crate) fn bury(&mut self, index: ThreadIndex) {
        let has_ended = |task: &Task| task.state == State::Gone;
        if !self.tasks.get(index).is_some_and(has_ended) {
            return;
        }
        let Some(mut task) = self.tasks.remove(index) else {
            debug_assert!(false, "a task that has ended is in the table");
            return;
        };
        if task.exits.is_empty() {
            // The answers mean a later task with this id.
            task.vcpu = None;
        } else {
            self.vcpus.remove(&task.tid);
            let next = self.later.get_mut(&task.tid).and_then(Vec::pop);
            self.vcpus.extend(next.map(|next| (task.tid, next)));
        }
        self.past.push(task);
    }

    /// A task gets a CPU. If it was not seen before, it has waited since the recording began. It is a new
    /// task if that CPU was idle meanwhile and nothing was lost.
    fn first_seen_on(&mut self, cpu: usize, thread: ThreadRef) {
        self.bury(thread.index);
        if self.tasks.get(thread.index).is_some() {
            return;
        }
        let time = self.now;
        let is_late = time.saturating_sub(self.first) >= LONG_NS;
        let is_certain = !self.is_lossy && !self.moved_first.contains(&thread.index);
        let is_new = is_late && is_certain && self.cpus[cpu].has_idled;
        let birth = Birth {
            time,
            is_seen: false,
        };
        self.task_or(thread, || match is_new {
            true => Task::born(birth),
            false => Task::new(State::Runnable),
        });
    }

    /// Whether an event is its task's doing.
    pub(crate) fn may_be_task(&self, origin: &Origin) -> bool {
        self.timers.may_be_task(origin.cpu, origin.context)
    }

    /// An interrupt is pending at a vCPU: if that polls, this is what ends it.
    pub(crate) fn accepted(&mut self, origin: &Origin, apicid: u32) {
        let sender = self.vcpus.get(&origin.thread.tid.0).copied();
        // Polls that an interrupt or a thread of the VMM ends are kept as times.
        let sender = sender.filter(|_| self.may_be_task(origin));
        let target = sender.and_then(|(vm, _)| self.by_number.get(&(vm, apicid)));
        let target = target.and_then(|tid| self.by_tid.get(tid)).copied();
        if let Some(target) = target.filter(|&target| target != origin.thread.index) {
            self.poll_ended(origin, target);
        }
    }

    /// What ends a poll, if this task polls.
    pub(crate) fn poll_ended(&mut self, origin: &Origin, target: ThreadIndex) {
        if !self.tasks.get(target).is_some_and(Task::polls) {
            return;
        }
        let expiring = self.timers.expiring(origin.cpu);
        let (cause, now) = (self.cause(origin, expiring, target), self.now);
        if let Some(task) = self.tasks.get_mut(target) {
            task.interrupted(cause, now, origin.cpu);
        }
    }

    /// The runtime of a limit is handed out anew.
    pub(crate) fn period_over(&mut self, hrtimer: u64) {
        let now = self.now;
        let mut vms: BTreeMap<usize, AtEnd> = BTreeMap::new();
        for task in self.tasks.iter_mut() {
            let Some((vm, _)) = task.vcpu else {
                // Limits are found by vCPUs alone.
                continue;
            };
            task.settle(now);
            let end = vms.entry(vm).or_default();
            end.ran_ns = end.ran_ns.saturating_add(task.ran_ns);
            end.vcpus += 1;
            let waits = task.state == State::Runnable;
            end.waits |= waits;
            end.taken |= waits && task.woken.is_none();
            let cpu = task.cpu().and_then(|cpu| self.cpus.get(cpu as usize));
            end.idle |= waits && cpu.is_some_and(Cpu::is_idle);
            end.last_ran = end.last_ran.max(task.last_ran);
        }
        self.quotas.period_over(hrtimer, now, &vms);
    }
}
