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
mod drawing;
mod ipi;
mod kvm;
mod packet;
mod proto;
mod roster;
mod sched;
mod track;
mod vcpu;
mod words;

use std::io::{self, Write};

use stealtime_analysis::Answers;
use stealtime_events::{Event, Kind, Names};
use stealtime_track::Tracker;

use drawing::Drawing;
use packet::{Category, Mark, TrackKind};
use roster::Roster;
use track::{Sink, Track};

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
pub struct Exporter<'w> {
    tracker: Tracker<Drawing<'w>>,
    options: Options,
    is_partial: bool,
    /// Time of the latest event written, in ns.
    now_ns: u64,
    /// Whether there were events after the window.
    is_over: bool,
}

impl<'w> Exporter<'w> {
    /// Starts a trace. `answers` are those of the same recording, whole: they say which thread is
    /// which vCPU.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn new(writer: &'w mut dyn Write, answers: &Answers, options: Options) -> io::Result<Self> {
        let mut events = answers.events.iter();
        let has_switches = events.any(|event| event.is("sched_switch") && event.count > 0);
        let run = options.run.as_ref().map_or(0, |run| run.number);
        let sink = Sink::new(writer, options.from_ns.unwrap_or(0), run);
        let drawing = Drawing::new(sink, Roster::new(answers), &options, has_switches);
        let mut exporter = Self {
            tracker: Tracker::new(drawing),
            is_partial: answers.source.partial,
            options,
            now_ns: 0,
            is_over: false,
        };
        exporter.describe(answers)?;
        Ok(exporter)
    }

    /// Descriptors of everything that is known beforehand.
    fn describe(&mut self, answers: &Answers) -> io::Result<()> {
        let Drawing {
            sink,
            roster,
            vcpus,
            ..
        } = self.tracker.observer_mut();
        let release = answers.source.uname.as_deref().and_then(roster::release);
        let run = self.options.run.as_ref().map_or(0, |run| run.number);
        let group = match &self.options.run {
            Some(run) => {
                let kind = TrackKind::Plain { name: &run.name };
                sink.track(Track::Run, None, run.number.into(), kind)?;
                Some(Track::Run)
            }
            None => None,
        };
        if run == 0 {
            sink.packets.system(release, answers.source.cpus)?;
        }
        let name = match (answers.source.clock_unit.as_str(), self.is_partial) {
            ("ticks", false) => "Host CPUs (all times are clock ticks, not ns)",
            ("ticks", true) => "Host CPUs (partial recording; all times are clock ticks, not ns)",
            (_, true) => "Host CPUs (partial recording)",
            (_, false) => "Host CPUs",
        };
        sink.track(Track::Cpus, group, 0, TrackKind::Plain { name })?;
        let is_shown = |vm: u32| {
            let mut threads = roster.threads.iter().zip(&*vcpus);
            threads.any(|(thread, vcpu)| thread.vm == vm && vcpu.is_shown())
        };
        for (i, vm) in (0..).zip(&roster.vms) {
            if !is_shown(i) {
                continue;
            }
            let name = vm.shown.as_str();
            let kind = match vm.pid {
                Some(pid) if group.is_none() => TrackKind::Process { pid, name },
                _ => TrackKind::Plain { name },
            };
            sink.track(Track::Vm(i), group, i.saturating_add(1), kind)?;
        }
        self.describe_vcpus(group.is_none())
    }

    /// The tracks of vCPUs, and their threads where those are Perfetto's own: it has each once.
    fn describe_vcpus(&mut self, has_threads: bool) -> io::Result<()> {
        let Drawing {
            sink,
            roster,
            vcpus,
            ..
        } = self.tracker.observer_mut();
        let vcpus = roster.threads.iter().zip(&*vcpus);
        for (i, (thread, vcpu)) in (0..).zip(vcpus) {
            if !vcpu.is_shown() {
                continue;
            }
            let vm = Some(Track::Vm(thread.vm));
            let (tid, name) = (thread.tid.0, thread.task.as_str());
            let pid = roster.machine(thread.vm).and_then(|vm| vm.pid);
            if let Some(pid) = pid.filter(|_| has_threads) {
                let kind = TrackKind::Thread { pid, tid, name };
                sink.track(Track::Thread(i), vm, i, kind)?;
            }
            let kind = TrackKind::Plain {
                name: &thread.label,
            };
            sink.track(Track::Vcpu(i), vm, thread.rank(), kind)?;
        }
        Ok(())
    }

    /// The next event, in the order of the trace.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn event(&mut self, event: &Event, names: &dyn Names) -> io::Result<()> {
        if let Kind::Task { tid, name, .. } = event.kind {
            let drawing = self.tracker.observer_mut();
            drawing.name_task(tid, names.name(name));
            self.tracker.event(event, names);
            return Ok(());
        }
        let time = event.time_ns;
        let is_over = self.options.to_ns.is_some_and(|end| time >= end);
        self.is_over |= is_over && event.kind.is_host_event();
        if is_over {
            return Ok(());
        }
        let is_vcpu = matches!(event.kind, Kind::VcpuThread { .. });
        if !is_vcpu {
            self.before_event(event)?;
        }
        self.tracker.event(event, names);
        let drawing = self.tracker.observer_mut();
        drawing.end_loss();
        drawing.take_error()
    }

    /// The same for several events.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn events(&mut self, events: &[Event], names: &dyn Names) -> io::Result<()> {
        let mut events = events.iter();
        events.try_for_each(|event| self.event(event, names))
    }

    /// Opens the window and the CPU's track.
    fn before_event(&mut self, event: &Event) -> io::Result<()> {
        let time = event.time_ns;
        let begin = self.options.from_ns;
        let drawing = self.tracker.observer_mut();
        if !drawing.sink.is_open() && begin.is_none_or(|begin| time >= begin) {
            drawing.open()?;
        }
        // An event may come after later ones: not before the window all the same.
        let time_ns = match drawing.sink.is_open() {
            true => time.max(begin.unwrap_or(0)),
            false => time,
        };
        self.now_ns = self.now_ns.max(time_ns);
        drawing.know_cpu(event.cpu.0)?;
        drawing.copy_to_sched(&Event { time_ns, ..*event })
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
        let drawing = self.tracker.observer_mut();
        if self.is_over && !drawing.sink.is_open() {
            drawing.open()?;
        }
        self.tracker.close_at(end);
        let drawing = self.tracker.observer_mut();
        drawing.take_error()?;
        drawing.finish(end)?;
        let sink = &mut drawing.sink;
        if self.is_partial && sink.is_open() {
            let name = sink.packets.name("recording is partial");
            let mark = Mark::plain(name, Category::Lost);
            sink.packets.instant(end, Track::Cpus.uuid(), &mark)?;
        }
        Ok(Summary {
            packets: sink.packets.finish()?,
            flows: drawing.flows.count(),
        })
    }
}
