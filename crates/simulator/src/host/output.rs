//! What a run gives out: its events with their names, its counts and its accounts.

use stealtime_events::{Context, CpuId, Event, Kind, NameId, Tid};
use stealtime_hypervisor::posted_interrupt::LocalLists;

use super::Cpu;
use crate::books::Books;
use crate::ids::CpuNr;
use crate::sink::{NameList, Sink};
use crate::stats::{Mechanisms, Meter, Stats};

/// Names of functions that events refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub(crate) tick: NameId,
    pub(crate) apic_timer: NameId,
    pub(crate) wakeup: NameId,
    pub(crate) hrtick: NameId,
    pub(crate) period: NameId,
    end: NameId,
}

/// The output of a run.
///
/// Each part adds to the counts of its own subject; the accounts keep their own invariants. Events
/// go to the sink in the order of time.
pub(crate) struct Output<'a> {
    pub(super) stats: Stats,
    pub(super) books: Books,
    pub(super) functions: Functions,
    names: NameList,
    /// The processes of tasks, by task, until the sink has them.
    processes: Vec<Tid>,
    tracing: bool,
    sink: &'a mut dyn Sink,
}

impl<'a> Output<'a> {
    pub(crate) fn new(cpus: u32, sink: &'a mut dyn Sink) -> Self {
        let mut names = NameList::default();
        // The names are numbered in the order in which traces show them.
        let functions = Functions {
            tick: names.add("tick_nohz_handler"),
            apic_timer: names.add("apic_timer_fn"),
            wakeup: names.add("hrtimer_wakeup"),
            hrtick: names.add("hrtick"),
            period: names.add("sched_cfs_period_timer"),
            end: names.add("stealtime_end"),
        };
        Self {
            stats: Stats::new(cpus),
            books: Books::new(cpus),
            functions,
            names,
            processes: Vec::new(),
            tracing: sink.wanted(),
            sink,
        }
    }

    /// Whether events go anywhere.
    #[inline(always)]
    pub(crate) const fn tracing(&self) -> bool {
        self.tracing
    }

    #[inline(always)]
    pub(crate) const fn stats(&self) -> &Stats {
        &self.stats
    }

    #[inline(always)]
    pub(super) const fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// What the mechanisms count by themselves.
    #[inline(always)]
    pub(crate) const fn mechanisms(&self) -> &Mechanisms {
        &self.stats.mechanisms
    }

    /// The vCPUs that block on each CPU, for the handler of the posted-interrupt wakeup vector.
    #[inline(always)]
    pub(crate) const fn wakeup_lists(&self) -> &LocalLists {
        &self.stats.lists
    }

    /// A place for what the workload of a VM or task reports: its index.
    pub(crate) fn add_meter(&mut self, name: &str) -> usize {
        self.stats.meters.push(Meter::named(name));
        self.stats.meters.len() - 1
    }

    pub(crate) const fn books(&self) -> &Books {
        &self.books
    }

    /// Whether the warm-up is over.
    #[inline]
    pub(crate) fn measuring(&self) -> bool {
        self.books.measuring()
    }

    /// The handler of an interrupt on `cpu` is through.
    #[inline]
    pub(crate) fn irq_over(&mut self, cpu: CpuNr, now_ns: u64) {
        self.books.irq(cpu, now_ns, false);
    }

    /// The next task has this name and belongs to this process.
    pub(crate) fn name_task(&mut self, name: &str, process: Tid) -> NameId {
        self.processes.push(process);
        self.names.of_task(name)
    }

    /// Hands names and the number of CPUs to the sink, and gives back the process of each task, by
    /// task.
    pub(crate) fn begin(&mut self, cpus: u32) -> Vec<Tid> {
        self.sink.begin(&self.names, cpus);
        core::mem::take(&mut self.processes)
    }

    /// Gives out an event that happens on `cpu`, in the context of its task.
    #[inline(always)]
    pub(crate) fn emit(&mut self, now_ns: u64, number: CpuNr, cpu: &Cpu, kind: Kind) {
        self.stats.trace_events += 1;
        if self.tracing {
            self.trace(now_ns, number, cpu, kind);
        }
    }

    /// Out of the path of runs without a trace: the code of a simulated event is already larger
    /// than the first-level instruction cache.
    #[cold]
    #[inline(never)]
    fn trace(&mut self, now_ns: u64, number: CpuNr, cpu: &Cpu, kind: Kind) {
        let (tid, context) = cpu.context();
        self.sink.event(&Event {
            time_ns: now_ns,
            tid,
            cpu: CpuId(number.0 as u16),
            context: Context::from_bits(context),
            kind,
        });
    }

    /// The marker at the end of a run, as a user writes it: a trace lasts to here, not to the last
    /// thing that happened.
    pub(crate) fn emit_end(&mut self, now_ns: u64, number: CpuNr, cpu: &Cpu) {
        let name = self.functions.end;
        self.emit(now_ns, number, cpu, Kind::Other { name });
    }
}
