//! The host: CPUs, scheduler, timers, interrupts.
//!
//! Each CPU does one thing at a time ([`Phase`]), and one timer of the engine says when that is
//! over. What happens then happens at that instant; what it costs beyond the phase is owed
//! (`debt_ns`) and paid before the CPU goes on. An interrupt that may be taken stops what a task
//! does; how much was left is kept with the task.

mod ahead;
mod balance;
mod bandwidth;
mod build;
mod checks;
#[cfg(test)]
mod checks_tests;
mod cpu;
mod domain;
mod governor;
mod hrtimer;
mod idle;
mod irq;
mod memory;
mod message;
mod place;
mod sched;
mod smt;
mod task;
mod worker;

use stealtime_events::{Context, CpuId, Event, Kind, Tid};
use stealtime_hypervisor::eevdf::{Fair, Resched};

pub use build::Recipe;
pub use checks::CHECKS;
pub(crate) use checks::Checks;
pub(crate) use cpu::{Cpu, Phase};
pub(crate) use hrtimer::{Callback, Hrtimer};
pub(crate) use irq::Irq;
pub(crate) use message::{DeviceIrq, Message};
pub(crate) use task::{Body, CpuSet, Task, TaskState};
pub(crate) use worker::{Worker, Workers};

use crate::books::Books;
use crate::config::{Config, Costs};
use crate::engine::{Queue, Slot, Streams};
use crate::fault::{Fault, Sim};
use crate::guest::Vm;
use crate::ids::{CpuNr, Table, TaskNr, TimerNr, VcpuNr, VmNr};
use crate::kvm::Vcpu;
use crate::outcome::Outcome;
use crate::script::{Points, Yields};
use crate::sink::{NameList, Sink};
use crate::stats::Stats;
use crate::xen::Xen;

/// What a timer of the engine is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// The phase of a CPU is over.
    Phase(CpuNr),
    /// A CPU's clock event device fires.
    ClockEvent(CpuNr),
    /// A message arrives.
    Message(u32),
    /// The warm-up is over.
    Measure,
}

/// How many events may be handled without time passing before that counts as a circle.
const MOST_AT_ONCE: u64 = 10_000_000;

/// Names of functions that events refer to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Functions {
    pub(crate) tick: stealtime_events::NameId,
    pub(crate) apic_timer: stealtime_events::NameId,
    pub(crate) wakeup: stealtime_events::NameId,
    pub(crate) hrtick: stealtime_events::NameId,
    pub(crate) period: stealtime_events::NameId,
    pub(crate) end: stealtime_events::NameId,
}

/// A host with its guests, at some instant.
pub struct Machine<'a> {
    pub(crate) now: u64,
    pub(crate) queue: Queue,
    pub(crate) what: Vec<What>,
    pub(crate) cfg: Config,
    pub(crate) costs: Costs,
    pub(crate) streams: Streams,
    pub(crate) cpus: Table<CpuNr, Cpu>,
    pub(crate) domains: domain::Domains,
    /// What the placement of timers looks at; empty without isolated CPUs.
    pub(crate) timer_views: Vec<stealtime_hypervisor::lapic_timer::CpuTimers>,
    /// All other CPUs, the nearest first, of CPUs that have asked.
    pub(crate) nearest: Vec<Vec<usize>>,
    /// When an idle CPU may be woken next to balance for all of them, in ns.
    pub(crate) next_idle_balance: u64,
    /// How long that is put off, in ns: longer while nothing can be moved.
    pub(crate) idle_balance_ns: u64,
    pub(crate) fair: Fair,
    pub(crate) tasks: Table<TaskNr, Task>,
    /// Limits of groups (`cpu.max`).
    pub(crate) bandwidths: Vec<bandwidth::Bandwidth>,
    /// By VM.
    pub(crate) workers: Vec<Workers>,
    /// Tasks by the slot of their scheduler id.
    pub(crate) by_slot: Vec<TaskNr>,
    /// The processes that tasks belong to, until the sink is told.
    processes: Vec<Tid>,
    pub(crate) timers: Table<TimerNr, Hrtimer>,
    /// What of the events to come has been asked for.
    ahead: ahead::Ahead,
    /// It has been asked to be in huge pages, if it is large.
    in_huge_pages: bool,
    pub(crate) messages: message::Messages,
    pub(crate) vms: Table<VmNr, Vm>,
    pub(crate) vcpus: Table<VcpuNr, Vcpu>,
    pub(crate) xen: Option<Box<Xen>>,
    pub(crate) checks: Checks,
    /// Points of scripts.
    pub(crate) points: Points,
    pub(crate) yields: Yields,
    /// When scripts were through.
    pub(crate) finished: std::collections::BTreeMap<TaskNr, u64>,
    pub(crate) books: Books,
    pub(crate) stats: Stats,
    pub(crate) names: NameList,
    pub(crate) functions: Functions,
    pub(crate) tracing: bool,
    pub(crate) sink: &'a mut dyn Sink,
}

impl Machine<'_> {
    /// Runs to the end and sums up.
    ///
    /// `stop` is asked now and then whether to give up.
    ///
    /// # Errors
    ///
    /// [`Fault`], with the time at which it happened.
    pub fn run(&mut self, stop: &dyn Fn() -> bool) -> Result<Outcome, Fault> {
        let end = self
            .cfg
            .run
            .warmup_ns
            .saturating_add(self.cfg.run.duration_ns);
        let mut at_once = 0;
        while let Some((at, slot)) = self.queue.pop(end) {
            self.stats.events += 1;
            if at > self.now {
                at_once = 0;
            } else {
                at_once += 1;
                if at_once > MOST_AT_ONCE {
                    return Err(self.no_progress("events that cause each other"));
                }
            }
            if self.stats.events.is_multiple_of(1 << 16) {
                if stop() {
                    return Err(Fault::Stopped);
                }
                self.move_to_huge_pages();
            }
            self.now = at;
            self.handle(slot).map_err(|fault| self.dated(*fault))?;
            self.watch().map_err(|fault| self.dated(*fault))?;
        }
        self.check_deadlock()?;
        self.now = end;
        self.cut_all();
        // As a marker that a user writes: the trace ends here, not at the last thing that happened.
        self.emit(
            CpuNr(0),
            Kind::Other {
                name: self.functions.end,
            },
        );
        self.settle_books();
        self.check_books()?;
        Ok(self.outcome())
    }

    /// Whether what must always hold is watched ([`CHECKS`]). Debug builds do unless told not to.
    pub fn set_checks(&mut self, on: bool) {
        self.checks.switch(on);
    }

    fn handle(&mut self, slot: Slot) -> Sim {
        match self.what[slot.index()] {
            What::Phase(cpu) => self.phase_over(cpu),
            What::ClockEvent(cpu) => {
                self.look_ahead_to_wakeup(cpu);
                self.raise(cpu, Irq::LocalTimer)
            }
            What::Message(number) => self.arrived(number),
            What::Measure => {
                self.begin_measuring();
                Ok(())
            }
        }
    }

    /// A fault without a time gets the present one.
    fn dated(&self, fault: Fault) -> Fault {
        match fault {
            Fault::Broken { at_ns: 0, what } => Fault::Broken {
                at_ns: self.now,
                what,
            },
            other => other,
        }
    }

    #[cold]
    pub(crate) fn no_progress(&self, what: &str) -> Fault {
        Fault::NoProgress {
            at_ns: self.now,
            what: what.to_owned(),
        }
    }

    #[cold]
    pub(crate) fn broken<T>(&self, what: impl Into<String>) -> Sim<T> {
        Err(Box::new(Fault::Broken {
            at_ns: self.now,
            what: what.into(),
        }))
    }

    /// A timer of the engine for this purpose.
    pub(crate) fn slot(&mut self, what: What) -> Slot {
        let slot = self.queue.slot();
        self.what.push(what);
        slot
    }

    /// Gives out an event that happens now on `cpu`, in the context of its task.
    #[inline(always)]
    pub(crate) fn emit(&mut self, cpu: CpuNr, kind: Kind) {
        self.stats.trace_events += 1;
        if self.tracing {
            self.trace(cpu, kind);
        }
    }

    /// Out of the way of runs that nobody traces: what they execute for an event is more than the
    /// first-level instruction cache holds.
    #[cold]
    #[inline(never)]
    fn trace(&mut self, cpu: CpuNr, kind: Kind) {
        let c = &self.cpus[cpu];
        let tid = c.current.map_or(Tid::IDLE, |task| self.tasks[task].tid);
        let mut context = match c.phase {
            Phase::Irq(_) => Context::HARDIRQ | Context::IRQS_OFF,
            _ => 0,
        };
        context |= match c.resched {
            Resched::None => 0,
            Resched::Lazy => Context::NEED_RESCHED_LAZY,
            Resched::Now => Context::NEED_RESCHED | Context::PREEMPT_RESCHED,
        };
        self.sink.event(&Event {
            time_ns: self.now,
            tid,
            cpu: CpuId(cpu.0 as u16),
            context: Context::from_bits(context),
            kind,
        });
    }
}
