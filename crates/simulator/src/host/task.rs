//! Tasks of the host.

use std::rc::Rc;

use stealtime_events::Tid;
use stealtime_hypervisor::fair::TaskId;

use super::{Callback, Flow, Host, hrtimer};
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr, TimerNr, VcpuNr};
use crate::migration::VmmThread;
use crate::program::{Op, Program};
use crate::script::ScriptTask;

/// What a task does.
#[derive(Debug)]
pub(crate) enum Body {
    /// It is the thread of a vCPU.
    Vcpu(VcpuNr),
    /// It runs a program.
    Host(Box<HostTask>),
    /// A thread of a VM's emulator that is no vCPU.
    Worker(Box<super::Worker>),
    /// It does what was recorded.
    Script(Box<ScriptTask>),
    /// It migrates a guest; taken out while it acts.
    Vmm(Option<Box<VmmThread>>),
}

impl Body {
    /// What an idle CPU takes before it takes the interrupt that ends a script's wait, in ns.
    pub(crate) fn wait_exit_ns(&self) -> u64 {
        match self {
            Self::Script(script) => script.wait_exit_ns(),
            _ => 0,
        }
    }
}

/// A program on the host.
pub(crate) struct HostTask {
    pub(crate) program: Box<dyn Program>,
    pub(crate) sleep: TimerNr,
    pub(crate) reply: u64,
    /// Index of its statistics.
    pub(crate) meter: usize,
}

impl core::fmt::Debug for HostTask {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HostTask").finish_non_exhaustive()
    }
}

/// Whether a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// On a CPU.
    Running,
    /// Waits for a CPU.
    Runnable,
    /// Waits for runtime under a limit (`cpu.max`).
    Throttled,
    /// Sleeps.
    Blocked,
    /// Not started yet.
    New,
    /// Has ended.
    Dead,
}

/// CPUs that a task may run on.
#[derive(Clone, Debug)]
pub(crate) struct CpuSet(Option<Rc<Words>>);

/// Bits of CPUs, from the first word on that has any.
#[derive(Debug)]
struct Words {
    first: usize,
    words: Box<[u64]>,
}

impl Words {
    fn get(&self, word: usize) -> u64 {
        let index = word.wrapping_sub(self.first);
        self.words.get(index).copied().unwrap_or(0)
    }
}

impl CpuSet {
    pub(crate) const ALL: Self = Self(None);

    pub(crate) fn of(cpus: &[u32]) -> Self {
        let first = cpus.iter().min().map_or(0, |&least| least as usize / 64);
        let end = cpus
            .iter()
            .max()
            .map_or(0, |&maximum| maximum as usize / 64 + 1);
        let mut words = vec![0u64; end - first].into_boxed_slice();
        for &cpu in cpus {
            words[cpu as usize / 64 - first] |= 1 << (cpu % 64);
        }
        Self(Some(Rc::new(Words { first, words })))
    }

    /// Whether it names one CPU alone.
    pub(crate) fn is_single(&self) -> bool {
        let count = |words: &Words| {
            words
                .words
                .iter()
                .map(|word| word.count_ones())
                .sum::<u32>()
        };
        self.0.as_ref().is_some_and(|words| count(words) == 1)
    }

    pub(crate) fn has(&self, cpu: CpuNr) -> bool {
        match &self.0 {
            None => true,
            Some(words) => words.get(cpu.0 as usize / 64) >> (cpu.0 % 64) & 1 == 1,
        }
    }

    /// CPUs from 64 times `word` on, a bit each.
    pub(crate) fn word(&self, word: usize) -> u64 {
        match &self.0 {
            None => u64::MAX,
            Some(words) => words.get(word),
        }
    }

    /// The first CPU of the set.
    pub(crate) fn first(&self) -> CpuNr {
        let Some(words) = &self.0 else {
            return CpuNr(0);
        };
        match words.words.first() {
            Some(word) => CpuNr(words.first as u32 * 64 + word.trailing_zeros()),
            None => CpuNr(0),
        }
    }
}

/// A task of the host.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) tid: Tid,
    pub(crate) name: stealtime_events::NameId,
    pub(crate) fair: TaskId,
    /// The limit that it is under, or [`NO_LIMIT`].
    pub(super) limit: u32,
    pub(crate) allowed: CpuSet,
    /// Where it runs, waits or ran last.
    pub(crate) cpu: CpuNr,
    pub(crate) state: TaskState,
    /// When it was moved here while it waited, in ns.
    pub(crate) moved_ns: u64,
    /// What is left of the segment that it was stopped in, in ns.
    pub(crate) left_ns: u64,
    pub(crate) body: Body,
    /// It stays on its CPU but for `goes_to`: its moves are part of what it does.
    pub(crate) kept: bool,
    /// Where it moves when it does not run, or [`NOWHERE`].
    pub(super) goes_to: CpuNr,
    /// `prio` as traces show it.
    pub(crate) prio: i16,
    pub(crate) books: crate::books::TaskBooks,
    /// Where in a turn of the loop its poll began, in ns; [`NO_POLL`] while it does not poll.
    pub(super) poll_phase_ns: u32,
    /// How often it has polled: messages about earlier polls come too late.
    pub(super) polls: u32,
}

/// No limit, where a limit's number stands.
pub(super) const NO_LIMIT: u32 = u32::MAX;
/// No poll, where the phase of one stands.
pub(super) const NO_POLL: u32 = u32::MAX;

/// No CPU, where a CPU's number stands.
pub(super) const NOWHERE: CpuNr = CpuNr(u32::MAX);

impl Task {
    /// It has no CPU from now on. A task that runs still is preempted.
    pub(crate) fn lose_cpu(&mut self, now: u64) {
        let is_preempted = self.state == TaskState::Running;
        if is_preempted {
            self.state = TaskState::Runnable;
        }
        self.books.enter(self.state, now);
        if is_preempted && let Body::Script(script) = &mut self.body {
            self.left_ns += script.preempted(self.books.run_ns);
        }
    }

    /// The limit that it is under.
    pub(crate) fn bandwidth(&self) -> Option<u32> {
        (self.limit != NO_LIMIT).then_some(self.limit)
    }

    pub(crate) fn set_bandwidth(&mut self, limit: Option<u32>) {
        self.limit = limit.unwrap_or(NO_LIMIT);
    }

    /// Whether it moves when it does not run.
    pub(crate) fn goes(&self) -> bool {
        self.goes_to != NOWHERE
    }

    /// It moves there when it does not run.
    pub(crate) fn send_to(&mut self, cpu: Option<CpuNr>) {
        self.goes_to = cpu.unwrap_or(NOWHERE);
    }

    /// Where it moves now that it does not run.
    pub(crate) fn take_goes_to(&mut self) -> Option<CpuNr> {
        let target = core::mem::replace(&mut self.goes_to, NOWHERE);
        (target != NOWHERE).then_some(target)
    }
}

/// The step of a host program is over: the next one.
pub(crate) fn step(host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim<Flow> {
    loop {
        let now = host.clock.now();
        let measuring = host.out.books.measuring();
        let Body::Host(program) = &mut host.tasks[task].body else {
            return host.broken("a vCPU's thread runs a host program");
        };
        let meter = &mut host.out.stats.meters[program.meter];
        let op = program.program.next(program.reply, now, &mut |record| {
            if measuring {
                meter.record(record);
            }
        });
        program.reply = 0;
        let sleep = program.sleep;
        match op {
            Op::Compute(ns) | Op::Kernel(ns) | Op::IrqsOff(ns) if ns > 0 => {
                host.tasks[task].left_ns = ns;
                return Ok(Flow::Run);
            }
            Op::Sleep(ns) => {
                hrtimer::start_pinned(host, sleep, cpu, now + ns);
                return Ok(Flow::Block);
            }
            Op::SleepUntil(time) if time > now => {
                hrtimer::start_pinned(host, sleep, cpu, time);
                return Ok(Flow::Block);
            }
            Op::Yield => {
                let rq = host.cpus[cpu].rq;
                host.class.yield_task(rq, now)?;
                return Ok(Flow::Schedule);
            }
            Op::Exit => {
                host.tasks[task].state = TaskState::Dead;
                return Ok(Flow::Block);
            }
            // Other steps mean something in guests only.
            _ => {
                host.out.stats.steps_without_time += 1;
                if host.out.stats.steps_without_time > super::MOST_AT_ONCE {
                    return Err(host
                        .clock
                        .no_progress("a host task's program takes no time")
                        .into());
                }
            }
        }
    }
}

/// A timer that wakes `task`.
pub(crate) fn sleep_timer(host: &mut Host<'_>, task: TaskNr) -> TimerNr {
    host.timers.add(super::Hrtimer::new(Callback::Wakeup(task)))
}
