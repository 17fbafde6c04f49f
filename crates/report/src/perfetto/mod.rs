//! Events to a Perfetto trace: <https://perfetto.dev>.
//!
//! | track | shows |
//! |---|---|
//! | Host CPUs / CPU n | the task that runs (a vCPU by its VM and number); in it interrupts, softirqs, timers |
//! | VM / vCPU n | `guest` and exits by reason; in an exit `VMM: …`, `polling`, `halted`, `blocked`, `preempted`, `ready` |
//! | VM / vCPU n / … | counters: `halt_poll_ns`, `ple_window` |
//!
//! Arrows (flows) lead from a guest's IPI to its injection. Where events were lost the tracks have a
//! slice `events lost` and state nothing. `sched_switch` and `sched_waking` are written as ftrace
//! events too, so that Perfetto's own CPU tracks and its queries about scheduling work.
//!
//! Memory is bounded by the number of CPUs, tasks and vCPUs.

mod cpu;
mod feed;
mod ipi;
mod packet;
mod proto;
mod roster;
mod sched;
mod track;
mod vcpu;
mod words;

use std::collections::HashMap;
use std::io::{self, Write};

use stealtime_analysis::Answers;
use stealtime_events::{Event, Kind, NameId, Names, Tid};

use cpu::Cpu;
use ipi::Flows;
use packet::{Category, Mark, TrackKind};
use roster::{Roster, Thread};
use sched::Sched;
use track::{Sink, Track};
use vcpu::Vcpu;

/// What to export.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Nothing before this time of the trace, in ns.
    pub from_ns: Option<u64>,
    /// Nothing from this time of the trace on, in ns.
    pub to_ns: Option<u64>,
    /// Tracks of these host CPUs only; empty: of all.
    pub cpus: Vec<u16>,
    /// Tracks of these VMs only; empty: of all.
    pub vms: Vec<String>,
    /// This is one of several runs in one file.
    pub run: Option<Run>,
}

/// One of several runs that stand under each other: files written one after the other into one make
/// a trace of all. Only the first run has Perfetto's own tracks of CPUs and threads, which a trace
/// has once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Which one, from 0; no two are alike.
    pub number: u16,
    /// The name of the group of its tracks.
    pub name: String,
}

/// What was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Packets written.
    pub packets: u64,
    /// IPIs with a flow.
    pub flows: u64,
}

/// Writes a Perfetto trace while events come in.
#[derive(Debug)]
pub struct Exporter<W> {
    sink: Sink<W>,
    sched: Sched,
    /// Whether Perfetto's own tracks are this run's.
    is_first: bool,
    options: Options,
    /// Whether the recording has `sched_switch`: without it nobody knows what runs.
    has_switches: bool,
    /// Whether it has `sched_wakeup`.
    has_wakeups: bool,
    partial: bool,
    /// Time of the recording's first event.
    first_ns: u64,
    cpus: Vec<Option<Cpu>>,
    roster: Roster,
    vcpus: Vec<Vcpu>,
    counters: Vec<[bool; 2]>,
    tasks: HashMap<Tid, NameId>,
    flows: Flows,
    now_ns: u64,
    /// Whether there were events after the window.
    is_over: bool,
}

impl<W: Write> Exporter<W> {
    /// Starts a trace. `answers` are those of the same recording, whole: they say which thread is
    /// which vCPU.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn new(out: W, answers: &Answers, options: Options) -> io::Result<Self> {
        let roster = Roster::new(answers);
        let shown = |thread: &Thread| {
            let vm = roster.machine(thread.vm).map_or("", |vm| &vm.name);
            options.vms.is_empty() || options.vms.iter().any(|name| name == vm)
        };
        let vcpus = (0..).zip(&roster.threads);
        let vcpus: Vec<_> = vcpus
            .map(|(i, thread)| Vcpu::new(i, shown(thread), thread.polls))
            .collect();
        let has = |name: &str| {
            let mut events = answers.events.iter();
            events.any(|event| event.is(name) && event.count > 0)
        };
        let run = options.run.as_ref().map_or(0, |run| run.number);
        let mut exporter = Self {
            sink: Sink::new(out, options.from_ns.unwrap_or(0), run),
            is_first: run == 0,
            sched: Sched::default(),
            has_switches: has("sched_switch"),
            has_wakeups: has("sched_wakeup"),
            first_ns: answers.source.first_ns,
            partial: answers.source.partial,
            cpus: Vec::new(),
            counters: vec![[false; 2]; vcpus.len()],
            vcpus,
            roster,
            options,
            tasks: HashMap::new(),
            flows: Flows::default(),
            now_ns: 0,
            is_over: false,
        };
        exporter.describe(answers)?;
        Ok(exporter)
    }

    /// Descriptors of everything that is known beforehand.
    fn describe(&mut self, answers: &Answers) -> io::Result<()> {
        let release = answers.source.uname.as_deref().and_then(roster::release);
        let group = match &self.options.run {
            Some(run) => {
                let kind = TrackKind::Plain { name: &run.name };
                self.sink.track(Track::Run, None, run.number.into(), kind)?;
                Some(Track::Run)
            }
            None => None,
        };
        if self.is_first {
            self.sink.packets.system(release, answers.source.cpus)?;
        }
        let name = match (answers.source.clock_unit.as_str(), self.partial) {
            ("ticks", false) => "Host CPUs (all times are clock ticks, not ns)",
            ("ticks", true) => "Host CPUs (partial recording; all times are clock ticks, not ns)",
            (_, true) => "Host CPUs (partial recording)",
            (_, false) => "Host CPUs",
        };
        self.sink
            .track(Track::Cpus, group, 0, TrackKind::Plain { name })?;
        let shown = |vm: u32| {
            let mut threads = self.roster.threads.iter().zip(&self.vcpus);
            threads.any(|(thread, vcpu)| thread.vm == vm && vcpu.shown())
        };
        for (i, vm) in (0..).zip(&self.roster.vms) {
            if !shown(i) {
                continue;
            }
            let name = vm.shown.as_str();
            let kind = match vm.pid {
                Some(pid) if group.is_none() => TrackKind::Process { pid, name },
                _ => TrackKind::Plain { name },
            };
            self.sink
                .track(Track::Vm(i), group, i.saturating_add(1), kind)?;
        }
        let vcpus = self.roster.threads.iter().zip(&self.vcpus);
        for (i, (thread, vcpu)) in (0..).zip(vcpus) {
            if !vcpu.shown() {
                continue;
            }
            let vm = Some(Track::Vm(thread.vm));
            let (tid, name) = (thread.tid.0, thread.task.as_str());
            let pid = self.roster.machine(thread.vm).and_then(|vm| vm.pid);
            if let Some(pid) = pid.filter(|_| group.is_none()) {
                let kind = TrackKind::Thread { pid, tid, name };
                self.sink.track(Track::Thread(i), vm, i, kind)?;
            }
            let kind = TrackKind::Plain {
                name: &thread.label,
            };
            self.sink.track(Track::Vcpu(i), vm, thread.rank(), kind)?;
        }
        Ok(())
    }

    /// The next event, in the order of the trace.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn event(&mut self, event: &Event, names: &dyn Names) -> io::Result<()> {
        if let Kind::Task { tid, name, .. } = event.kind {
            self.tasks.insert(tid, name);
            return Ok(());
        }
        let time = event.time_ns;
        let over = self.options.to_ns.is_some_and(|to| time >= to);
        self.is_over |= over && event.kind.is_host_event();
        if over || matches!(event.kind, Kind::VcpuThread { .. }) {
            return Ok(());
        }
        if !self.sink.is_open() && self.options.from_ns.is_none_or(|from| time >= from) {
            self.open()?;
        }
        // An event may come after later ones: not before the window all the same.
        let from = self.options.from_ns.unwrap_or(0);
        let time_ns = if self.sink.is_open() {
            time.max(from)
        } else {
            time
        };
        let event = &Event { time_ns, ..*event };
        self.now_ns = self.now_ns.max(time_ns);
        self.know_cpu(event.cpu.0)?;
        if let Kind::Lost { count } = event.kind {
            return self.lost(event, count);
        }
        self.current(event, names)?;
        self.host(event, names)?;
        self.scheduling(event, names)?;
        if let Some(index) = self.roster.find(event.tid) {
            self.kvm(event, index)?;
        }
        Ok(())
    }

    /// Ends every slice that is open and the trace.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<Summary> {
        let end = match self.options.to_ns {
            Some(to) if self.is_over => to,
            _ => self.now_ns,
        };
        if self.is_over && !self.sink.is_open() {
            self.open()?;
        }
        for vcpu in &mut self.vcpus {
            vcpu.finish(&mut self.sink, end)?;
        }
        for cpu in self.cpus.iter_mut().flatten() {
            cpu.finish(&mut self.sink, end)?;
        }
        self.sched.finish(&mut self.sink)?;
        if self.partial && self.sink.is_open() {
            let name = self.sink.packets.name("recording is partial");
            let mark = Mark::plain(name, Category::Lost);
            self.sink.packets.instant(end, Track::Cpus.uuid(), &mark)?;
        }
        Ok(Summary {
            packets: self.sink.packets.finish()?,
            flows: self.flows.given(),
        })
    }

    /// The beginning of the window: begins what is open.
    fn open(&mut self) -> io::Result<()> {
        self.sink.open();
        self.flows.forget();
        for cpu in self.cpus.iter_mut().flatten() {
            cpu.reopen(&mut self.sink)?;
        }
        for vcpu in &mut self.vcpus {
            vcpu.reopen(&mut self.sink)?;
        }
        Ok(())
    }

    fn know_cpu(&mut self, cpu: u16) -> io::Result<()> {
        let index = usize::from(cpu);
        if self.cpus.len() <= index {
            self.cpus.resize_with(index + 1, || None);
        }
        if let Some(slot @ None) = self.cpus.get_mut(index) {
            let shown = self.options.cpus.is_empty() || self.options.cpus.contains(&cpu);
            *slot = Some(Cpu::new(cpu, shown));
            if shown {
                let name = format!("CPU {cpu}");
                let kind = TrackKind::Plain { name: &name };
                let parent = Some(Track::Cpus);
                self.sink.track(Track::Cpu(cpu), parent, cpu.into(), kind)?;
            }
        }
        Ok(())
    }
}
