//! What each event does to the tracks.

use std::io::{self, Write};

use stealtime_events::hypercall::KVM_HC_SEND_IPI;
use stealtime_events::{Event, Kind, NameId, Names, Tid};
use stealtime_track::SwitchOut;

use super::cpu::Cpu;
use super::ipi::Request;
use super::packet::{Category, Mark, TrackKind};
use super::track::Track;
use super::{Exporter, vcpu::Vcpu};

impl<W: Write> Exporter<W> {
    /// Events of a CPU were lost before this one.
    pub(super) fn lost(&mut self, event: &Event, count: u64) -> io::Result<()> {
        let Some(Some(cpu)) = self.cpus.get_mut(usize::from(event.cpu.0)) else {
            return Ok(());
        };
        let since = cpu.last_ns().unwrap_or(event.time_ns).min(event.time_ns);
        cpu.lost(&mut self.sink, event.time_ns, count)?;
        if cpu.shown() {
            self.sched.lost(&mut self.sink, event.cpu)?;
        }
        for vcpu in &mut self.vcpus {
            vcpu.lost(&mut self.sink, event.cpu, (since, event.time_ns), count)?;
        }
        self.flows.forget();
        Ok(())
    }

    /// What the event says of who runs on its CPU: a switch may have been missed.
    pub(super) fn current(&mut self, event: &Event, names: &dyn Names) -> io::Result<()> {
        let slot = self.cpus.get(usize::from(event.cpu.0));
        let Some(cpu) = slot.and_then(Option::as_ref) else {
            return Ok(());
        };
        let certain = matches!(event.kind, Kind::KvmEntry { .. } | Kind::KvmExit { .. });
        let running = cpu.running();
        if running != Some(event.tid) {
            if !cpu.believes(event.tid) && !certain {
                return Ok(());
            }
            if let Some(vcpu) = running.and_then(|tid| self.roster.find(tid)) {
                self.with(vcpu, |vcpu, sink| vcpu.forget(sink, event.time_ns))?;
            }
            if self.has_switches {
                self.run(event, event.tid, names)?;
            }
        }
        if let Some(vcpu) = self.roster.find(event.tid) {
            self.with(vcpu, |vcpu, sink| {
                vcpu.on_cpu(sink, event.time_ns, event.cpu)
            })?;
        }
        Ok(())
    }

    /// A task runs on the event's CPU from now on.
    fn run(&mut self, event: &Event, tid: Tid, names: &dyn Names) -> io::Result<()> {
        let place = self.roster.find(tid);
        let name = match place.and_then(|place| self.roster.thread(place)) {
            Some(thread) => self.sink.packets.name(&thread.running),
            None => match task_name(&self.tasks, tid, names) {
                "" => self.sink.packets.name(&format!("tid {}", tid.0)),
                name => self.sink.packets.name(name),
            },
        };
        match self.cpus.get_mut(usize::from(event.cpu.0)) {
            Some(Some(cpu)) => cpu.run(&mut self.sink, event.time_ns, tid, name),
            _ => Ok(()),
        }
    }

    /// Interrupts and what they do, on the CPU's track.
    pub(super) fn host(&mut self, event: &Event, names: &dyn Names) -> io::Result<()> {
        match self.cpus.get_mut(usize::from(event.cpu.0)) {
            Some(Some(cpu)) => {
                cpu.seen(event.time_ns, event.tid);
                cpu.work(&mut self.sink, event.time_ns, &event.kind, names)
            }
            _ => Ok(()),
        }
    }

    /// Switches and wakeups.
    pub(super) fn scheduling(&mut self, event: &Event, names: &dyn Names) -> io::Result<()> {
        let time = event.time_ns;
        match event.kind {
            Kind::SchedSwitch {
                prev,
                next,
                prev_state,
                ..
            } => {
                self.ftrace(event, names)?;
                if let Some(vcpu) = self.roster.find(prev) {
                    let runnable = SwitchOut::from_prev_state(prev_state).is_runnable();
                    self.with(vcpu, |vcpu, sink| vcpu.off_cpu(sink, time, runnable))?;
                }
                self.run(event, next, names)?;
                if let Some(Some(cpu)) = self.cpus.get_mut(usize::from(event.cpu.0)) {
                    cpu.leaves(prev);
                }
                if let Some(vcpu) = self.roster.find(next) {
                    self.with(vcpu, |vcpu, sink| vcpu.on_cpu(sink, time, event.cpu))?;
                }
                Ok(())
            }
            Kind::SchedWaking { tid, .. } => {
                self.ftrace(event, names)?;
                // It is runnable only from sched_wakeup on, where that was recorded.
                if self.has_wakeups {
                    Ok(())
                } else {
                    self.woken(tid, time, Some(self.first_ns))
                }
            }
            Kind::SchedWakeup { tid, .. } => self.woken(tid, time, Some(self.first_ns)),
            // It was not there before.
            Kind::SchedWakeupNew { tid, .. } => self.woken(tid, time, None),
            _ => Ok(()),
        }
    }

    fn woken(&mut self, tid: Tid, time: u64, asleep_since: Option<u64>) -> io::Result<()> {
        match self.roster.find(tid) {
            Some(vcpu) => self.with(vcpu, |vcpu, sink| vcpu.woken(sink, time, asleep_since)),
            None => Ok(()),
        }
    }

    fn ftrace(&mut self, event: &Event, names: &dyn Names) -> io::Result<()> {
        let slot = self.cpus.get(usize::from(event.cpu.0));
        let shown = slot.and_then(Option::as_ref).is_some_and(Cpu::shown);
        if !shown || !self.is_first {
            return Ok(());
        }
        let tasks = &self.tasks;
        self.sched
            .event(&mut self.sink, event, |tid| task_name(tasks, tid, names))
    }

    /// What happens in a vCPU's thread.
    pub(super) fn kvm(&mut self, event: &Event, place: u32) -> io::Result<()> {
        let time = event.time_ns;
        match event.kind {
            Kind::KvmEntry { .. } => self.with(place, |vcpu, sink| vcpu.entry(sink, time)),
            Kind::KvmExit { reason, info1, .. } => {
                self.with(place, |vcpu, sink| vcpu.exit(sink, time, reason, info1))
            }
            Kind::KvmUserspaceExit { reason, errno } => self.with(place, |vcpu, sink| {
                vcpu.userspace(sink, time, reason, errno)
            }),
            Kind::KvmVcpuWakeup { ns, waited, .. } => {
                self.with(place, |vcpu, sink| vcpu.wakeup(sink, time, ns, waited))
            }
            Kind::KvmInjVirq {
                vector,
                soft: false,
                ..
            } => self.inject(time, place, vector),
            Kind::KvmInjException { exception, .. } => {
                let name = self.sink.packets.name(&format!("exception {exception}"));
                let mark = Mark::plain(name, Category::Exit);
                self.with(place, |vcpu, sink| vcpu.instant(sink, time, &mark))
            }
            Kind::KvmApicIpi { icr_low, dest_id } => {
                let request = Request {
                    time_ns: time,
                    vector: Some(icr_low as u8),
                    icr: Some((icr_low, dest_id)),
                    flows: Vec::new(),
                };
                self.with(place, |vcpu, sink| vcpu.request(sink, request))
            }
            Kind::KvmHypercall {
                nr: KVM_HC_SEND_IPI,
                ..
            } => {
                let request = Request {
                    time_ns: time,
                    ..Request::default()
                };
                self.with(place, |vcpu, sink| vcpu.request(sink, request))
            }
            Kind::KvmApicAcceptIrq { apicid, vec, .. } => {
                self.accept(place, apicid, vec);
                Ok(())
            }
            Kind::KvmHaltPollNs { new, old, .. } => {
                self.with(place, |vcpu, _| {
                    vcpu.poll_changes(old, new);
                    Ok(())
                })?;
                self.counter(time, place, 0, new)
            }
            Kind::KvmPleWindowUpdate { new, .. } => self.counter(time, place, 1, new),
            _ => Ok(()),
        }
    }

    /// A vector was set in an IRR by the vCPU `sender`: one of the targets of its IPI?
    fn accept(&mut self, sender: u32, apicid: u32, vector: u8) {
        let Some(target) = self.roster.by_apic(sender, apicid) else {
            return;
        };
        let sender = self.vcpus.get_mut(sender as usize);
        let Some(request) = sender.and_then(|vcpu| vcpu.request.as_mut()) else {
            return;
        };
        if request.vector.is_none_or(|asked| asked == vector) {
            request.flows.extend(self.flows.accept(target, vector));
        }
    }

    fn inject(&mut self, time: u64, place: u32, vector: u32) -> io::Result<()> {
        let flow = u8::try_from(vector)
            .ok()
            .and_then(|vec| self.flows.inject(place, vec));
        let ends: Vec<_> = flow.into_iter().collect();
        let name = self.sink.packets.name(&format!("inject {vector:#04x}"));
        let mark = Mark {
            ends: &ends,
            ..Mark::plain(name, Category::Ipi)
        };
        self.with(place, |vcpu, sink| vcpu.instant(sink, time, &mark))
    }

    /// `halt_poll_ns` (0) or the PLE window (1) of a vCPU changes.
    fn counter(&mut self, time: u64, place: u32, which: usize, value: u32) -> io::Result<()> {
        let Some(vcpu) = self.vcpus.get_mut(place as usize) else {
            return Ok(());
        };
        if !vcpu.shown() || !self.sink.is_open() {
            return Ok(());
        }
        let time = vcpu.clamp(time);
        let (track, name) = match which {
            0 => (Track::HaltPoll(place), "halt_poll_ns"),
            _ => (Track::PleWindow(place), "ple_window"),
        };
        let told = self
            .counters
            .get_mut(place as usize)
            .and_then(|told| told.get_mut(which));
        if let Some(told @ false) = told {
            *told = true;
            let is_ns = which == 0;
            let kind = TrackKind::Counter { name, is_ns };
            let rank = u32::try_from(which).unwrap_or(0);
            self.sink
                .track(track, Some(Track::Vcpu(place)), rank, kind)?;
        }
        self.sink.packets.counter(time, track.uuid(), value)
    }

    /// Does something with a vCPU.
    fn with(
        &mut self,
        place: u32,
        act: impl FnOnce(&mut Vcpu, &mut super::track::Sink<W>) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.vcpus.get_mut(place as usize) {
            Some(vcpu) => act(vcpu, &mut self.sink),
            None => Ok(()),
        }
    }
}

fn task_name<'a>(
    tasks: &std::collections::HashMap<Tid, NameId>,
    tid: Tid,
    names: &'a dyn Names,
) -> &'a str {
    if tid.is_idle() {
        return "swapper";
    }
    names.name(tasks.get(&tid).copied().unwrap_or(NameId::NONE))
}
