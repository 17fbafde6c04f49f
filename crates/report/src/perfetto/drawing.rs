//! The observer that draws: what the tracker reports goes to the tracks that it belongs to.

use std::collections::HashMap;
use std::io;

use stealtime_events::{Event, Kind, Names, Tid};
use stealtime_track::{
    Exit, Halt, Loss, Observer, Place, Retracted, Run, Span, SwitchedOut, VcpuIndex,
};

use super::cpu::Cpu;
use super::ipi::Flows;
use super::packet::TrackKind;
use super::roster::{Roster, Thread};
use super::sched::Sched;
use super::track::{Sink, Track};
use super::vcpu::Vcpu;
use super::{Options, kvm};

/// All tracks of a run, and the state that their open slices need.
pub(super) struct Drawing<'w> {
    pub(super) sink: Sink<'w>,
    /// Perfetto's own tracks; `None` for later runs of a file, which has them once.
    sched: Option<Sched>,
    /// CPUs with tracks that are written; empty: all.
    selected_cpus: Vec<u16>,
    /// Whether the recording has `sched_switch`. Without it the current task is not known.
    has_switches: bool,
    cpus: Vec<Option<Cpu>>,
    pub(super) roster: Roster,
    /// By row of the roster.
    pub(super) vcpus: Vec<Vcpu>,
    /// Which counters of each vCPU are described: `halt_poll_ns`, PLE window.
    pub(super) counters: Vec<[bool; 2]>,
    /// Rows of the roster by the tracker's number of a vCPU.
    rows: Vec<Option<u32>>,
    tasks: HashMap<Tid, Box<str>>,
    pub(super) flows: Flows,
    /// The loss that the tracker is working out.
    loss: Option<Loss>,
    /// The first error of the writer. Observers return nothing, so it waits for the caller here.
    result: io::Result<()>,
}

impl<'w> Drawing<'w> {
    /// No event was drawn yet.
    pub(super) fn new(
        sink: Sink<'w>,
        roster: Roster,
        options: &Options,
        has_switches: bool,
    ) -> Self {
        let is_shown = |thread: &Thread| {
            let vm = roster.machine(thread.vm).map_or("", |vm| &vm.name);
            options.vms.is_empty() || options.vms.iter().any(|name| name == vm)
        };
        let threads = (0..).zip(&roster.threads);
        let vcpus: Vec<_> = threads
            .map(|(row, thread)| {
                Vcpu::new(row, is_shown(thread), thread.polls_at_first, has_switches)
            })
            .collect();
        let is_first = options.run.as_ref().is_none_or(|run| run.number == 0);
        Self {
            sink,
            sched: is_first.then(Sched::default),
            selected_cpus: options.cpus.clone(),
            has_switches,
            cpus: Vec::new(),
            counters: vec![[false; 2]; vcpus.len()],
            vcpus,
            roster,
            rows: Vec::new(),
            tasks: HashMap::new(),
            flows: Flows::default(),
            loss: None,
            result: Ok(()),
        }
    }

    /// The first error since the last call.
    pub(super) fn take_error(&mut self) -> io::Result<()> {
        std::mem::replace(&mut self.result, Ok(()))
    }

    /// The window begins: what is open begins at its edge.
    pub(super) fn open(&mut self) -> io::Result<()> {
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

    /// Ends every slice that is open.
    pub(super) fn finish(&mut self, end: u64) -> io::Result<()> {
        for vcpu in &mut self.vcpus {
            vcpu.finish(&mut self.sink, end)?;
        }
        for cpu in self.cpus.iter_mut().flatten() {
            cpu.finish(&mut self.sink, end)?;
        }
        match &mut self.sched {
            Some(sched) => sched.finish(&mut self.sink),
            None => Ok(()),
        }
    }

    /// A task's name.
    pub(super) fn name_task(&mut self, tid: Tid, name: &str) {
        if self.tasks.get(&tid).is_none_or(|known| **known != *name) {
            self.tasks.insert(tid, name.into());
        }
    }

    /// Describes the CPU's track at its first event.
    pub(super) fn know_cpu(&mut self, cpu: u16) -> io::Result<()> {
        let index = usize::from(cpu);
        if self.cpus.len() <= index {
            self.cpus.resize_with(index + 1, || None);
        }
        if let Some(slot @ None) = self.cpus.get_mut(index) {
            let is_shown = self.selected_cpus.is_empty() || self.selected_cpus.contains(&cpu);
            let known = slot.insert(Cpu::new(cpu, is_shown));
            if self.sink.is_open() {
                // Its first event may be before the window, for events may come after later ones.
                known.reopen(&mut self.sink)?;
            }
            if is_shown {
                let name = format!("CPU {cpu}");
                let kind = TrackKind::Plain { name: &name };
                let parent = Some(Track::Cpus);
                self.sink.track(Track::Cpu(cpu), parent, cpu.into(), kind)?;
            }
        }
        Ok(())
    }

    /// Copies `sched_switch` and `sched_waking` to Perfetto's own tracks.
    pub(super) fn copy_to_sched(&mut self, event: &Event) -> io::Result<()> {
        let is_copied = matches!(
            event.kind,
            Kind::SchedSwitch { .. } | Kind::SchedWaking { .. }
        );
        let cpu = self.cpus.get(usize::from(event.cpu.0));
        let is_shown = cpu.and_then(Option::as_ref).is_some_and(Cpu::is_shown);
        match &mut self.sched {
            Some(sched) if is_copied && is_shown => {
                let tasks = &self.tasks;
                sched.event(&mut self.sink, event, |tid| task_name(tasks, tid))
            }
            _ => Ok(()),
        }
    }

    /// The tracker has worked out the loss.
    pub(super) fn end_loss(&mut self) {
        self.loss = None;
    }

    fn draw_loss(&mut self, loss: &Loss) -> io::Result<()> {
        let Some(Some(cpu)) = self.cpus.get_mut(usize::from(loss.cpu)) else {
            debug_assert!(false, "CPU {} is described at its first event", loss.cpu);
            return Ok(());
        };
        cpu.lost(&mut self.sink, loss)?;
        match &mut self.sched {
            Some(sched) if cpu.is_shown() => sched.lost(&mut self.sink, loss.cpu),
            _ => Ok(()),
        }
    }

    fn draw_task(&mut self, cpu: u16, tid: Tid, time: u64) -> io::Result<()> {
        let row = self.roster.find(tid);
        let name = match row.and_then(|row| self.roster.thread(row)) {
            Some(thread) => self.sink.packets.name(&thread.running),
            None => match task_name(&self.tasks, tid) {
                "" => self.sink.packets.name(&format!("tid {}", tid.0)),
                name => self.sink.packets.name(name),
            },
        };
        match self.cpus.get_mut(usize::from(cpu)) {
            Some(Some(cpu)) => cpu.run(&mut self.sink, time, tid, name),
            _ => Ok(()),
        }
    }

    fn draw_interrupt(&mut self, event: &Event, time: u64, names: &dyn Names) -> io::Result<()> {
        match self.cpus.get_mut(usize::from(event.cpu.0)) {
            Some(Some(cpu)) => cpu.work(&mut self.sink, time, &event.kind, names),
            _ => Ok(()),
        }
    }

    /// Row of the roster of a vCPU; `None` for one that the answers leave out.
    fn row(&self, vcpu: VcpuIndex) -> Option<u32> {
        self.rows.get(vcpu.index()).copied().flatten()
    }

    /// Draws on the track of a vCPU.
    fn draw(
        &mut self,
        vcpu: VcpuIndex,
        draw: impl FnOnce(&mut Vcpu, &mut Sink<'_>) -> io::Result<()>,
    ) {
        if let Some(row) = self.row(vcpu) {
            let drawn = self.draw_row(row, draw);
            self.keep(drawn);
        }
    }

    /// Draws on the track of a vCPU by its row of the roster.
    pub(super) fn draw_row(
        &mut self,
        row: u32,
        draw: impl FnOnce(&mut Vcpu, &mut Sink<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.vcpus.get_mut(row as usize) {
            Some(vcpu) => draw(vcpu, &mut self.sink),
            None => Ok(()),
        }
    }

    fn keep(&mut self, drawn: io::Result<()>) {
        if self.result.is_ok() {
            self.result = drawn;
        }
    }
}

impl Observer for Drawing<'_> {
    /// Numbers of vCPUs that are gone come again, so the tables do not grow with the recording.
    const RECYCLES: bool = true;

    fn vcpu_found(&mut self, vcpu: VcpuIndex, tid: Tid) {
        if self.rows.len() <= vcpu.index() {
            self.rows.resize(vcpu.index() + 1, None);
        }
        let row = self.roster.claim(tid);
        if let Some(slot) = self.rows.get_mut(vcpu.index()) {
            *slot = row;
        }
    }

    fn span(&mut self, vcpu: VcpuIndex, span: &Span) {
        self.draw(vcpu, |vcpu, sink| vcpu.span(sink, span));
    }

    fn retract(&mut self, vcpu: VcpuIndex, wait: &Retracted) {
        self.draw(vcpu, |vcpu, sink| vcpu.retract(sink, wait));
    }

    fn task_current(&mut self, cpu: u16, tid: Tid, time: u64) {
        if self.has_switches {
            let drawn = self.draw_task(cpu, tid, time);
            self.keep(drawn);
        }
    }

    fn wait_begins(&mut self, vcpu: VcpuIndex) {
        self.draw(vcpu, Vcpu::end_absence);
    }

    fn wait_ends(&mut self, vcpu: VcpuIndex, _: Run) {
        self.draw(vcpu, Vcpu::end_absence);
    }

    fn switched_out(&mut self, vcpu: VcpuIndex, switch: &SwitchedOut) {
        self.draw(vcpu, |vcpu, sink| vcpu.switched_out(sink, switch));
    }

    fn switched_in(&mut self, vcpu: VcpuIndex, _: u64, _: u16) {
        self.draw(vcpu, Vcpu::end_absence);
    }

    fn sight_lost(&mut self, vcpu: VcpuIndex) {
        let loss = self.loss;
        self.draw(vcpu, |vcpu, sink| {
            vcpu.forget(sink)?;
            loss.map_or(Ok(()), |loss| vcpu.lost(sink, &loss))
        });
    }

    fn found_running(&mut self, vcpu: VcpuIndex) {
        self.draw(vcpu, Vcpu::forget);
    }

    fn ended(&mut self, vcpu: VcpuIndex) {
        self.draw(vcpu, Vcpu::forget);
    }

    fn exit(&mut self, vcpu: VcpuIndex, place: &Place, exit: &Exit) {
        self.draw(vcpu, |vcpu, sink| vcpu.exit(sink, place.time, exit));
    }

    fn entry(&mut self, vcpu: VcpuIndex, place: &Place, _: u64) {
        self.draw(vcpu, |vcpu, sink| vcpu.entry(sink, place.time));
    }

    fn halt(&mut self, vcpu: VcpuIndex, place: &Place, halt: &Halt) {
        self.draw(vcpu, |vcpu, sink| vcpu.halt(sink, place.time, halt));
    }

    fn lost(&mut self, loss: &Loss) {
        let drawn = self.draw_loss(loss);
        self.keep(drawn);
        self.flows.forget();
        self.loss = Some(*loss);
    }

    fn event(&mut self, event: &Event, place: &Place, names: &dyn Names) {
        let drawn = self.draw_interrupt(event, place.time, names);
        self.keep(drawn);
        if let Some(row) = place.own.and_then(|vcpu| self.row(vcpu)) {
            let drawn = kvm::draw(self, place.time, event, row);
            self.keep(drawn);
        }
    }
}

fn task_name(tasks: &HashMap<Tid, Box<str>>, tid: Tid) -> &str {
    if tid.is_idle() {
        return "swapper";
    }
    tasks.get(&tid).map_or("", |name| name)
}
