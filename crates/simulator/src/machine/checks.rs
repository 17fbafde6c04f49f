//! What must always hold, watched while a run goes on.
//!
//! Each check has a name, which a failure tells ([`Fault::Broken`](crate::Fault::Broken)). Some are
//! made where something happens ([`Checks::fail`]). The rest look at everything once in so many
//! events: their cost for an event does not grow with the machine.

use stealtime_hypervisor::fair::{self, Fair, RqId, TaskView};

use crate::fault::Sim;
use crate::guest::{Guests, stretch};
use crate::host::{Body, Class, Host, Irq, Phase, TaskState, bandwidth, injected, tick};
use crate::ids::{CpuNr, Number, TaskNr, VcpuNr};
use crate::kvm::{Kvm, VcpuRun};

/// Longest that a task may wait on a CPU that is idle, in ns: beyond the slowest exit latency.
const MOST_IDLE_WAIT_NS: u64 = 2_000_000;
/// Longest that a running guest which takes interrupts may have one pending, in ns.
const MOST_PENDING_NS: u64 = 1_000_000;

/// Checks of what an interrupt brings about: where interrupts are lost, it may not happen.
const OF_INTERRUPTS: [&str; 5] = [
    "wakeup-lost",
    "interrupt-taken",
    "interrupt-wakes",
    "kill-ends",
    "timer-lost",
];

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
        "timer-lost",
        "an armed LAPIC timer has its hrtimer, and interrupts a vCPU that runs or sleeps",
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
        "kill-ends",
        "no thread of a killed VM sleeps on or stays in the guest",
    ),
    (
        "limit-kept",
        "a task that waits for runtime of a limit is listed, and a timer will bring more",
    ),
    (
        "stretch-alone",
        "nothing waits for an intermediate step of a vCPU's stretch",
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
    /// The run queue that is checked next.
    next: usize,
    failed: Option<String>,
    /// By how much longer than without injected faults something may take, in ns.
    slack_ns: u64,
    /// Injected faults lose interrupts.
    is_lossy: bool,
    /// Rounds made.
    pub(crate) rounds: u64,
}

impl Checks {
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            on: enabled,
            ..Self::default()
        }
    }

    pub(crate) fn switch(&mut self, enabled: bool) {
        self.on = enabled;
    }

    /// Faults are injected: waits may be longer by `slack_ns`, and in a lossy run without an end.
    pub(super) fn expect_faults(&mut self, slack_ns: u64, is_lossy: bool) {
        self.slack_ns = slack_ns;
        self.is_lossy = is_lossy;
    }

    /// A round is made when the checks are next asked.
    pub(crate) fn look_now(&mut self) {
        self.countdown = 0;
    }

    pub(super) const fn is_on(&self) -> bool {
        self.on
    }

    /// Whether a round is due after this event, while checks are on.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        if self.countdown > 0 {
            self.countdown -= 1;
            return false;
        }
        true
    }

    /// What was found, if anything.
    pub(crate) fn take_failed(&mut self) -> Option<String> {
        self.failed.take()
    }

    /// A check found something. The run ends after the event at hand.
    pub(crate) fn fail(&mut self, check: &'static str, message: impl FnOnce() -> String) {
        let excused = self.is_lossy && OF_INTERRUPTS.contains(&check);
        if self.on && self.failed.is_none() && !excused {
            self.failed = Some(format!("check {check}: {}", message()));
        }
    }
}

impl Checks {
    /// A round over everything.
    pub(super) fn round(&mut self, host: &Host<'_>, kvm: &Kvm, guests: &Guests) -> Sim {
        let things = host.cpus().len() + host.tasks().len() + host.timers().len();
        self.countdown = 32 + things as u32 / 4;
        self.rounds += 1;
        self.check_tasks(host)?;
        self.check_cpus(host)?;
        self.check_timers(host);
        if let Some(message) = bandwidth::violation(host) {
            self.fail("limit-kept", || message);
        }
        self.check_vcpus(host, kvm, guests);
        self.check_one_queue(host);
        Ok(())
    }

    fn check_tasks(&mut self, host: &Host<'_>) -> Sim {
        for task in host.tasks().numbers() {
            let t = &host.tasks()[task];
            if matches!(t.state, TaskState::Dead | TaskState::New) {
                continue;
            }
            let (state, cpu) = (t.state, t.cpu);
            let c = &host.cpus()[cpu];
            let runs = c.current == Some(task);
            if runs != (state == TaskState::Running) {
                let message = format!("{} is {state:?}, CPU {}", task_name(host, task), cpu.0);
                self.fail("one-place", || message);
            }
            let queued = matches!(state, TaskState::Running | TaskState::Runnable);
            self.check_view(host, task, queued.then_some(c.rq))?;
            let waits = host.now() - t.books.changed_ns().max(t.moved_ns);
            let is_long = waits > MOST_IDLE_WAIT_NS + self.slack_ns;
            if state == TaskState::Runnable && c.phase == Phase::Idle && is_long {
                let message = format!("{} waits on idle CPU {}", task_name(host, task), cpu.0);
                self.fail("wakeup-lost", || message);
            }
        }
        Ok(())
    }

    /// The class has the task where the host has it.
    fn check_view(&mut self, host: &Host<'_>, task: TaskNr, rq: Option<RqId>) -> Sim {
        let t = &host.tasks()[task];
        let agrees = match host.class() {
            Class::Fair(fair) => {
                let view = fair.view(t.fair)?;
                self.check_lag(host, fair, task, &view);
                rq.is_some() == (view.state == fair::TaskState::Runnable)
                    && (rq.is_none() || view.rq == rq)
            }
            Class::Scx(scx) => scx.runnable_on(t.fair)? == rq,
        };
        if !agrees {
            let message = format!(
                "{} is {:?} on {}: {:?}",
                task_name(host, task),
                t.state,
                t.cpu.0,
                host.class().fair().map(|fair| fair.view(t.fair))
            );
            self.fail("scheduler-agrees", || message);
        }
        Ok(())
    }

    /// `entity_lag` is clamped when it is stored. Later changes of weight scale it.
    fn check_lag(&mut self, host: &Host<'_>, fair: &Fair, task: TaskNr, view: &TaskView) {
        let slice = fair.config().base_slice_ns.max(view.entity.slice_ns);
        let bound = fair::weights::calc_delta_fair(slice + tick::tick_ns(host), view.entity.weight);
        let lag = view.entity.vlag.unsigned_abs();
        if lag > bound {
            let message = format!("{}: {lag} beyond {bound}", task_name(host, task));
            self.fail("lag-bound", || message);
        }
    }

    fn check_cpus(&mut self, host: &Host<'_>) -> Sim {
        let mut runnable = vec![0u32; host.cpus().len()];
        for task in host.tasks().iter() {
            if matches!(task.state, TaskState::Running | TaskState::Runnable) {
                runnable[task.cpu.index()] += 1;
            }
        }
        for cpu in host.cpus().numbers() {
            let c = &host.cpus()[cpu];
            let queued = match host.class().fair() {
                Some(fair) => fair.queue(c.rq, None)?.h_nr_runnable,
                None => c.runnable,
            };
            let counts = (c.runnable, runnable[cpu.index()], queued);
            if counts.0 != counts.1 || counts.0 != counts.2 {
                let message = format!("CPU {}: kept, tasks, queue: {counts:?}", cpu.0);
                self.fail("runnable-count", || message);
            }
            let c = &host.cpus()[cpu];
            let runs = host.class().running(c.rq)?;
            let current = c.current.map(|task| host.tasks()[task].fair);
            if runs != current {
                let message = format!("CPU {}: the scheduler runs {runs:?}", cpu.0);
                self.fail("one-place", || message);
            }
        }
        Ok(())
    }

    /// All sums of one run queue, the next each time.
    fn check_one_queue(&mut self, host: &Host<'_>) {
        let n = host.cpus().len().max(1);
        let cpu = CpuNr::from_index(self.next % n);
        self.next = (self.next + 1) % n;
        let consistent = match host.class() {
            Class::Fair(fair) => fair.consistent(host.cpus()[cpu].rq),
            Class::Scx(scx) => scx.consistent(),
        };
        if !consistent {
            self.fail("vruntime-sums", || format!("run queue of CPU {}", cpu.0));
        }
    }

    fn check_timers(&mut self, host: &Host<'_>) {
        let mut listed = 0;
        for cpu in host.cpus().numbers() {
            let c = &host.cpus()[cpu];
            listed += c.hrtimers.len();
            let mut fine = c.hrtimers.iter().is_sorted_by_key(|t| t.0);
            for &(time, timer) in &c.hrtimers {
                fine &= host.timers()[timer].queued() == Some((cpu, time));
            }
            // The device is set, or its interrupt is on its way through.
            let first = c.hrtimers.front().map(|t| t.0);
            let set = host.clock().when(c.clock_event);
            let came = c.pending.has(Irq::LocalTimer) || c.phase == Phase::Irq(Irq::LocalTimer);
            fine &= match (first, set) {
                (Some(first), Some(set)) => set <= first.max(host.now()).max(c.stalled_until),
                (Some(_), None) => came,
                _ => true,
            };
            if !fine {
                self.fail("timer-once", || format!("hrtimers of CPU {}", cpu.0));
            }
        }
        let armed = host
            .timers()
            .iter()
            .filter(|t| t.queued().is_some())
            .count();
        if armed != listed {
            self.fail("timer-once", || format!("{armed} armed, {listed} listed"));
        }
    }

    fn check_vcpus(&mut self, host: &Host<'_>, kvm: &Kvm, guests: &Guests) {
        for vcpu in kvm.vcpu_numbers() {
            if !guests.cpu(vcpu).started {
                continue;
            }
            self.check_vcpu_state(host, kvm, vcpu);
            if let Some(message) = stretch::violation(guests, vcpu) {
                let message = format!("vCPU {} {message}", vcpu.0);
                self.fail("stretch-alone", || message);
            }
            self.check_interrupts(host, kvm, guests, vcpu);
            self.check_killed(host, kvm, vcpu);
            self.check_lapic_timer(host, kvm, vcpu);
        }
    }

    /// The timer's own account of its hrtimer is right, and its deadline does not pass unnoticed.
    fn check_lapic_timer(&mut self, host: &Host<'_>, kvm: &Kvm, vcpu: VcpuNr) {
        let v = kvm.vcpu(vcpu);
        let (task, now) = (&host.tasks()[v.task], host.now());
        if task.state == TaskState::Dead {
            return;
        }
        let queued = host.timers()[v.hrtimer].queued().is_some();
        if v.timer.hrtimer_at().is_some() != queued {
            let message = format!("vCPU {}: its hrtimer is queued: {queued}", vcpu.0);
            return self.fail("timer-lost", || message);
        }
        let deadline = v.timer.read_tscdeadline();
        let late_ns = now.saturating_sub(host.costs().ns_of_tsc(deadline));
        if deadline == 0 || late_ns <= MOST_PENDING_NS + self.slack_ns {
            return;
        }
        let slept = now - task.books.changed_ns();
        let sleeps = v.run == VcpuRun::Blocked && task.state == TaskState::Blocked;
        let entered = v.books.entered_at().map_or(0, |time| now - time);
        let runs_on = v.run == VcpuRun::Guest && entered > MOST_PENDING_NS + self.slack_ns;
        if runs_on || (sleeps && slept > MOST_IDLE_WAIT_NS + self.slack_ns) {
            let message = format!("vCPU {}: its timer is {late_ns} ns late", vcpu.0);
            self.fail("timer-lost", || message);
        }
    }

    /// A vCPU's thread notices that its process was killed.
    fn check_killed(&mut self, host: &Host<'_>, kvm: &Kvm, vcpu: VcpuNr) {
        let v = kvm.vcpu(vcpu);
        let killed = injected::state(host).and_then(|state| state.killed_at(v.vm));
        // Of a VM that lives nothing is asked.
        let since_ns = host.now() - killed.unwrap_or(host.now());
        let entered = v.books.entered_at().map_or(0, |time| host.now() - time);
        let sleeps = host.tasks()[v.task].state == TaskState::Blocked
            && since_ns > MOST_IDLE_WAIT_NS + self.slack_ns;
        let stays =
            v.run == VcpuRun::Guest && since_ns.min(entered) > MOST_PENDING_NS + self.slack_ns;
        if sleeps || stays {
            let message = format!("vCPU {} is {:?}, {since_ns} ns later", vcpu.0, v.run);
            self.fail("kill-ends", || message);
        }
    }

    fn check_vcpu_state(&mut self, host: &Host<'_>, kvm: &Kvm, vcpu: VcpuNr) {
        let v = kvm.vcpu(vcpu);
        let state = host.tasks()[v.task].state;
        let fine = match v.run {
            VcpuRun::Guest | VcpuRun::Entering | VcpuRun::Exiting => state == TaskState::Running,
            VcpuRun::Blocked => true,
            _ if v.parked => true,
            _ => state != TaskState::Blocked,
        };
        if !fine {
            let message = format!("vCPU {} is {:?}, its thread {state:?}", vcpu.0, v.run);
            self.fail("vcpu-state", || message);
        }
    }

    /// Pending at the vCPU are exactly those that were accepted and not taken.
    fn check_interrupts(&mut self, host: &Host<'_>, kvm: &Kvm, guests: &Guests, vcpu: VcpuNr) {
        let v = kvm.vcpu(vcpu);
        let mut pending = v.shared.desc.pir();
        for vector in v.shared.irr.snapshot().iter() {
            pending.insert(vector);
        }
        if let Some(vector) = v.inject {
            pending.insert(vector.get());
        }
        let outstanding: Vec<(u8, u64)> = v.books.outstanding().collect();
        let mut oldest = u64::MAX;
        for &(vector, time) in &outstanding {
            oldest = oldest.min(time);
            if !pending.contains(vector) {
                let message = format!("vCPU {}: vector {vector}, accepted at {time} ns", vcpu.0);
                return self.fail("interrupt-lost", || message);
            }
        }
        if pending.len() as usize != outstanding.len() {
            let message = format!("vCPU {}: {pending:?} pending, {outstanding:?}", vcpu.0);
            return self.fail("interrupt-once", || message);
        }
        if oldest == u64::MAX {
            return;
        }
        let waited = host.now().saturating_sub(oldest);
        let entered = v.books.entered_at().map_or(0, |time| host.now() - time);
        let runs = v.run == VcpuRun::Guest && guests.cpu(vcpu).takes_interrupts();
        if runs && waited.min(entered) > MOST_PENDING_NS + self.slack_ns {
            let message = format!("vCPU {}: {outstanding:?} at {} ns", vcpu.0, host.now());
            return self.fail("interrupt-taken", || message);
        }
        let asleep = host.tasks()[v.task].state == TaskState::Blocked;
        let slept = host.now() - host.tasks()[v.task].books.changed_ns();
        let blocks = v.run == VcpuRun::Blocked && asleep;
        if blocks && waited.min(slept) > MOST_IDLE_WAIT_NS + self.slack_ns {
            let message = format!("vCPU {}: {outstanding:?} at {} ns", vcpu.0, host.now());
            self.fail("interrupt-wakes", || message);
        }
    }

    /// At the end: all books add up.
    pub(super) fn books(&mut self, host: &Host<'_>, kvm: &Kvm) {
        if !self.on {
            return;
        }
        let span = host.now() - host.out().books().since_ns;
        let mut busy = 0;
        for (n, cpu) in host.out().books().cpus.iter().enumerate() {
            busy += cpu.busy_ns;
            if cpu.busy_ns + cpu.idle_ns != span || cpu.irq_ns > span {
                let message = format!("CPU {n}: {cpu:?} of {span} ns");
                self.fail("time-once", || message);
            }
        }
        let mut ran = 0;
        for task in host.tasks().numbers() {
            let t = &host.tasks()[task];
            ran += t.books.run_ns;
            if t.books.total_ns() != span {
                let message = format!("{}: {:?} of {span} ns", task_name(host, task), t.books);
                self.fail("time-once", || message);
            }
            if let Body::Vcpu(vcpu) = t.body {
                let v = kvm.vcpu(vcpu).books.so_far(0);
                let open = kvm.vcpu(vcpu).books.outstanding().count() as u64;
                let counted = v.irqs_taken + v.irqs_coalesced + open;
                if v.guest_ns > t.books.run_ns || v.irqs_accepted != counted {
                    let message = format!("{}: {v:?}, {open} open", task_name(host, task));
                    self.fail("time-once", || message);
                }
            }
        }
        if ran != busy {
            self.fail("time-once", || {
                format!("tasks ran {ran} ns, CPUs were busy {busy}")
            });
        }
    }
}

fn task_name(host: &Host<'_>, task: TaskNr) -> String {
    format!("task {} ({})", task.0, host.tasks()[task].tid.0)
}
