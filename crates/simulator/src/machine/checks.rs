//! What must always hold, watched while a run goes on.
//!
//! Each check has a name, which a failure tells ([`Fault::Broken`](crate::Fault::Broken)). Some are
//! made where something happens ([`Checks::fail`]), the rest every so many events over everything,
//! so that their cost for an event does not grow with the machine.

use stealtime_hypervisor::eevdf::{self, TaskView};

use super::{Body, Machine, Phase, TaskState};
use crate::fault::Sim;
use crate::ids::{CpuNr, Number, TaskNr, VcpuNr};
use crate::kvm::VcpuRun;

/// Longest that a task may wait on a CPU that is idle, in ns: beyond the slowest exit latency.
const MOST_IDLE_WAIT_NS: u64 = 2_000_000;
/// Longest that a running guest which takes interrupts may have one pending, in ns.
const MOST_PENDING_NS: u64 = 1_000_000;

/// Names of all checks and what each says, for the manual.
pub const CHECKS: &[(&str, &str)] = &[
    (
        "time-once",
        "the books of each CPU, task and vCPU add up to the measured time",
    ),
    (
        "one-place",
        "a task runs on one CPU at most, and there the scheduler runs it too",
    ),
    (
        "runnable-count",
        "a CPU's count of runnable tasks is that of the tasks and of its queue",
    ),
    (
        "scheduler-agrees",
        "the scheduler has each task in the state and on the queue that it is in",
    ),
    (
        "vruntime-sums",
        "sums, counters and links of a run queue are what its entities say",
    ),
    (
        "lag-bound",
        "no stored lag exceeds the longest slice and a tick",
    ),
    (
        "wakeup-lost",
        "no task waits on an idle CPU for longer than that takes to wake",
    ),
    (
        "timer-once",
        "an armed hrtimer is on one CPU's list once, in order, and the clock event is set",
    ),
    (
        "timer-early",
        "no hrtimer expires before its time or without having been armed",
    ),
    (
        "interrupt-once",
        "the guest takes no interrupt that was not accepted",
    ),
    (
        "interrupt-lost",
        "an accepted interrupt is pending at the vCPU until the guest takes it",
    ),
    (
        "interrupt-taken",
        "a guest that takes interrupts does not run on with one pending",
    ),
    (
        "interrupt-wakes",
        "a halted vCPU with a pending interrupt does not sleep on",
    ),
    (
        "limit-kept",
        "who waits for runtime of a limit is listed, and a timer will bring more",
    ),
    (
        "stretch-alone",
        "nobody waits for what a vCPU does in one stretch",
    ),
    (
        "vcpu-state",
        "a vCPU is where the state of its thread and CPU says",
    ),
];

/// The checks of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks {
    on: bool,
    /// Events until the next round.
    countdown: u32,
    /// The run queue whose sums are checked next.
    next: usize,
    failed: Option<String>,
    /// Rounds made.
    pub(crate) rounds: u64,
}

impl Checks {
    pub(crate) fn new(on: bool) -> Self {
        Self {
            on,
            ..Self::default()
        }
    }

    pub(crate) fn switch(&mut self, on: bool) {
        self.on = on;
    }

    /// A round is made after the next event.
    #[cfg(test)]
    pub(crate) fn now(&mut self) {
        self.countdown = 0;
    }

    /// A check found something. The run ends after the event at hand.
    pub(crate) fn fail(&mut self, check: &'static str, what: impl FnOnce() -> String) {
        if self.on && self.failed.is_none() {
            self.failed = Some(format!("check {check}: {}", what()));
        }
    }
}

impl Machine<'_> {
    /// After each event.
    #[inline]
    pub(crate) fn watch(&mut self) -> Sim {
        if !self.checks.on {
            return Ok(());
        }
        if self.checks.countdown > 0 {
            self.checks.countdown -= 1;
            return self.report_failed();
        }
        let things = self.cpus.len() + self.tasks.len() + self.timers.len();
        self.checks.countdown = 32 + things as u32 / 4;
        self.checks.rounds += 1;
        self.check_tasks()?;
        self.check_cpus()?;
        self.check_timers();
        if let Some(what) = self.limits_broken() {
            self.checks.fail("limit-kept", || what);
        }
        self.check_vcpus();
        self.check_one_queue()?;
        self.report_failed()
    }

    fn report_failed(&mut self) -> Sim {
        match self.checks.failed.take() {
            Some(what) => self.broken(what),
            None => Ok(()),
        }
    }

    fn task_name(&self, task: TaskNr) -> String {
        format!("task {} ({})", task.0, self.tasks[task].tid.0)
    }

    fn check_tasks(&mut self) -> Sim {
        for task in self.tasks.numbers() {
            let t = &self.tasks[task];
            if matches!(t.state, TaskState::Dead | TaskState::New) {
                continue;
            }
            let (state, cpu) = (t.state, t.cpu);
            let view = self.fair.view(t.fair)?;
            let c = &self.cpus[cpu];
            let runs = c.current == Some(task);
            if runs != (state == TaskState::Running) {
                let what = format!("{} is {state:?}, CPU {}", self.task_name(task), cpu.0);
                self.checks.fail("one-place", || what);
            }
            let queued = matches!(state, TaskState::Running | TaskState::Runnable);
            if queued != (view.state == eevdf::TaskState::Runnable)
                || (queued && view.rq != Some(c.rq))
            {
                let what = format!(
                    "{} is {state:?} on {}: {view:?}",
                    self.task_name(task),
                    cpu.0
                );
                self.checks.fail("scheduler-agrees", || what);
            }
            let waits = self.now - t.books.changed_ns().max(t.moved_ns);
            if state == TaskState::Runnable && c.phase == Phase::Idle && waits > MOST_IDLE_WAIT_NS {
                let what = format!("{} waits on idle CPU {}", self.task_name(task), cpu.0);
                self.checks.fail("wakeup-lost", || what);
            }
            self.check_lag(task, &view);
        }
        Ok(())
    }

    /// `entity_lag` is clamped when it is stored. Later changes of weight scale it.
    fn check_lag(&mut self, task: TaskNr, view: &TaskView) {
        let slice = self.fair.config().base_slice_ns.max(view.entity.slice_ns);
        let bound = eevdf::weights::calc_delta_fair(slice + self.tick_ns(), view.entity.weight);
        let lag = view.entity.vlag.unsigned_abs();
        if lag > bound {
            let what = format!("{}: {lag} beyond {bound}", self.task_name(task));
            self.checks.fail("lag-bound", || what);
        }
    }

    fn check_cpus(&mut self) -> Sim {
        let mut runnable = vec![0u32; self.cpus.len()];
        for task in self.tasks.iter() {
            if matches!(task.state, TaskState::Running | TaskState::Runnable) {
                runnable[task.cpu.index()] += 1;
            }
        }
        for cpu in self.cpus.numbers() {
            let c = &self.cpus[cpu];
            let queue = self.fair.queue(c.rq, None)?;
            let counts = (c.runnable, runnable[cpu.index()], queue.h_nr_runnable);
            if counts.0 != counts.1 || counts.0 != counts.2 {
                let what = format!("CPU {}: kept, tasks, queue: {counts:?}", cpu.0);
                self.checks.fail("runnable-count", || what);
            }
            let c = &self.cpus[cpu];
            let runs = self.fair.running(c.rq)?;
            let current = c.current.map(|task| self.tasks[task].fair);
            if runs != current {
                let what = format!("CPU {}: the scheduler runs {runs:?}", cpu.0);
                self.checks.fail("one-place", || what);
            }
        }
        Ok(())
    }

    /// All sums of one run queue, the next each time.
    fn check_one_queue(&mut self) -> Sim {
        let n = self.cpus.len().max(1);
        let cpu = CpuNr::from_index(self.checks.next % n);
        self.checks.next = (self.checks.next + 1) % n;
        if !self.fair.consistent(self.cpus[cpu].rq) {
            self.checks
                .fail("vruntime-sums", || format!("run queue of CPU {}", cpu.0));
        }
        Ok(())
    }

    fn check_timers(&mut self) {
        let mut listed = 0;
        for cpu in self.cpus.numbers() {
            let c = &self.cpus[cpu];
            listed += c.hrtimers.len();
            let mut fine = c.hrtimers.iter().is_sorted_by_key(|t| t.0);
            for &(at, timer) in &c.hrtimers {
                fine &= self.timers[timer].queued() == Some((cpu, at));
            }
            // The device is set, or its interrupt is on its way through.
            let first = c.hrtimers.front().map(|t| t.0);
            let set = self.queue.when(c.clock_event);
            let came = c.pending.has(super::Irq::LocalTimer)
                || c.phase == Phase::Irq(super::Irq::LocalTimer);
            fine &= match (first, set) {
                (Some(first), Some(set)) => set <= first.max(self.now),
                (Some(_), None) => came,
                _ => true,
            };
            if !fine {
                self.checks
                    .fail("timer-once", || format!("hrtimers of CPU {}", cpu.0));
            }
        }
        let armed = self.timers.iter().filter(|t| t.queued().is_some()).count();
        if armed != listed {
            self.checks
                .fail("timer-once", || format!("{armed} armed, {listed} listed"));
        }
    }

    fn check_vcpus(&mut self) {
        for vcpu in self.vcpus.numbers() {
            if !self.vcpus[vcpu].guest.started {
                continue;
            }
            self.check_vcpu_state(vcpu);
            if let Some(what) = self.stretch_broken(vcpu) {
                let what = format!("vCPU {} {what}", vcpu.0);
                self.checks.fail("stretch-alone", || what);
            }
            self.check_interrupts(vcpu);
        }
    }

    fn check_vcpu_state(&mut self, vcpu: VcpuNr) {
        let v = &self.vcpus[vcpu];
        let state = self.tasks[v.task].state;
        let fine = match v.run {
            VcpuRun::Guest | VcpuRun::Entering | VcpuRun::Exiting => state == TaskState::Running,
            VcpuRun::Blocked => true,
            _ if v.parked => true,
            _ => state != TaskState::Blocked,
        };
        if !fine {
            let what = format!("vCPU {} is {:?}, its thread {state:?}", vcpu.0, v.run);
            self.checks.fail("vcpu-state", || what);
        }
    }

    /// Pending at the vCPU are exactly those that were accepted and not taken.
    fn check_interrupts(&mut self, vcpu: VcpuNr) {
        let v = &self.vcpus[vcpu];
        let mut pending = v.shared.desc.pir();
        for vector in v.shared.irr.snapshot().iter() {
            pending.insert(vector);
        }
        if let Some(vector) = v.inject {
            pending.insert(vector);
        }
        let outstanding: Vec<(u8, u64)> = v.books.outstanding().collect();
        let mut oldest = u64::MAX;
        for &(vector, at) in &outstanding {
            oldest = oldest.min(at);
            if !pending.contains(vector) {
                let what = format!("vCPU {}: vector {vector}, accepted at {at} ns", vcpu.0);
                return self.checks.fail("interrupt-lost", || what);
            }
        }
        if pending.len() as usize != outstanding.len() {
            let what = format!("vCPU {}: {pending:?} pending, {outstanding:?}", vcpu.0);
            return self.checks.fail("interrupt-once", || what);
        }
        if oldest == u64::MAX {
            return;
        }
        let waited = self.now.saturating_sub(oldest);
        let entered = v.books.entered_at().map_or(0, |at| self.now - at);
        let runs = v.run == VcpuRun::Guest && v.guest.takes_interrupts();
        if runs && waited.min(entered) > MOST_PENDING_NS {
            let what = format!("vCPU {}: {outstanding:?} at {} ns", vcpu.0, self.now);
            return self.checks.fail("interrupt-taken", || what);
        }
        let asleep = self.tasks[v.task].state == TaskState::Blocked;
        let since = self.now - self.tasks[v.task].books.changed_ns();
        let blocks = v.run == VcpuRun::Blocked && asleep;
        if blocks && waited.min(since) > MOST_IDLE_WAIT_NS {
            let what = format!("vCPU {}: {outstanding:?} at {} ns", vcpu.0, self.now);
            self.checks.fail("interrupt-wakes", || what);
        }
    }

    /// At the end: all books add up.
    pub(crate) fn check_books(&mut self) -> Sim {
        if !self.checks.on {
            return Ok(());
        }
        let span = self.now - self.books.since_ns;
        let mut busy = 0;
        for (n, cpu) in self.books.cpus.iter().enumerate() {
            busy += cpu.busy_ns;
            if cpu.busy_ns + cpu.idle_ns != span || cpu.irq_ns > span {
                let what = format!("CPU {n}: {cpu:?} of {span} ns");
                self.checks.fail("time-once", || what);
            }
        }
        let mut ran = 0;
        for task in self.tasks.numbers() {
            let t = &self.tasks[task];
            ran += t.books.run_ns;
            let mut fine = t.books.total_ns() == span;
            if let Body::Vcpu(vcpu) = t.body {
                let v = self.vcpus[vcpu].books.so_far();
                let open = self.vcpus[vcpu].books.outstanding().count() as u64;
                fine &= v.guest_ns <= t.books.run_ns
                    && v.irqs_accepted == v.irqs_taken + v.irqs_coalesced + open;
            }
            if !fine {
                let what = format!("{}: {:?} of {span} ns", self.task_name(task), t.books);
                self.checks.fail("time-once", || what);
            }
        }
        if ran != busy {
            self.checks.fail("time-once", || {
                format!("tasks ran {ran} ns, CPUs were busy {busy}")
            });
        }
        self.report_failed()
    }
}
