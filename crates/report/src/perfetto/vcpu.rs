//! A vCPU's track: in the guest or in an exit, and within an exit what it spent its time on.
//!
//! Outermost `guest` and the exit reasons take turns. Within an exit lie `VMM: …` (in userspace),
//! `polling`, `halted`, `blocked`, `preempted` and `ready` (woken, not yet running). How long was
//! polled is known only after a halt ([`Kind::KvmVcpuWakeup`]), so what lies within a halt is held
//! back until then.
//!
//! [`Kind::KvmVcpuWakeup`]: stealtime_events::Kind::KvmVcpuWakeup

use std::io::{self, Write};

use stealtime_events::exit_reason::Class;
use stealtime_events::{CpuId, ExitReason};

use super::cpu::lost_slice;
use super::ipi::Request;
use super::packet::{Category, Mark, Name, arg};
use super::track::{Sink, Stack, Track};
use super::words;

/// Slices held back at the most: longer halts than that come without their poll.
const HELD: usize = 64;

/// Keys of slices.
const GUEST: u64 = 0;
const EXIT: u64 = 1;
const VMM: u64 = 2;

/// Why a vCPU's thread is not on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Off {
    Halted,
    Blocked,
    Preempted,
    Ready,
}

impl Off {
    const fn name(self) -> &'static str {
        match self {
            Self::Halted => "halted",
            Self::Blocked => "blocked",
            Self::Preempted => "preempted",
            Self::Ready => "ready",
        }
    }
}

/// What lies within an exit and has ended.
#[derive(Debug, Clone, Copy)]
struct Held {
    name: Name,
    begin: u64,
    end: u64,
}

/// A vCPU.
#[derive(Debug)]
pub(super) struct Vcpu {
    stack: Stack,
    /// Why and since when the thread is off its CPU.
    off: Option<(Off, u64)>,
    /// The CPU on which the thread was last seen.
    cpu: Option<CpuId>,
    /// When the last exit was.
    exited_ns: u64,
    /// In an exit for a halt, not in the VMM.
    halting: bool,
    /// Waiting for the poll to be known.
    held: Option<Vec<Held>>,
    /// When the thread first went off its CPU in this exit.
    first_off: Option<u64>,
    /// Whether its thread was seen in any way.
    is_known: bool,
    /// `halt_poll_ns` for the halt that is ending, and for the next, where a change was seen.
    poll_used: Option<u32>,
    poll_next: Option<u32>,
    /// An IPI whose targets are being gathered.
    pub(super) request: Option<Request>,
}

impl Vcpu {
    /// A vCPU of which nothing is known.
    /// `polls`: whether it polls in halts of which nothing else is known.
    pub(super) fn new(index: u32, shown: bool, polls: bool) -> Self {
        Self {
            stack: Stack::new(Track::Vcpu(index), shown),
            exited_ns: 0,
            off: None,
            cpu: None,
            halting: false,
            held: None,
            first_off: None,
            is_known: false,
            poll_used: None,
            poll_next: polls.then_some(u32::MAX),
            request: None,
        }
    }

    /// Its thread is current on this CPU, whatever was known before.
    pub(super) fn on_cpu<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        time: u64,
        cpu: CpuId,
    ) -> io::Result<()> {
        self.cpu = Some(cpu);
        self.is_known = true;
        self.end_off(sink, time)
    }

    /// Its thread left its CPU.
    pub(super) fn off_cpu<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        time: u64,
        still_runnable: bool,
    ) -> io::Result<()> {
        self.end_off(sink, time)?;
        self.send_request(sink)?;
        let time = self.stack.clamp(time);
        let why = match (still_runnable, self.halting) {
            (true, _) => Off::Preempted,
            (false, true) => Off::Halted,
            (false, false) => Off::Blocked,
        };
        self.off = Some((why, time));
        self.first_off.get_or_insert(time);
        Ok(())
    }

    /// Its thread was woken. If that is the first that is heard of it, it was asleep since `first`.
    pub(super) fn woken<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        time: u64,
        first: Option<u64>,
    ) -> io::Result<()> {
        if let (false, Some(first)) = (self.is_known, first) {
            let name = sink.packets.name("asleep");
            let end = self.stack.clamp(time);
            let mark = Mark::plain(name, Category::Off);
            self.stack.slice(sink, (first.min(end), end), &mark)?;
            self.off = Some((Off::Ready, end));
        }
        self.is_known = true;
        if let Some((Off::Halted | Off::Blocked, _)) = self.off {
            self.end_off(sink, time)?;
            self.off = Some((Off::Ready, self.stack.clamp(time)));
        }
        Ok(())
    }

    /// `kvm_entry`.
    pub(super) fn entry<W: Write>(&mut self, sink: &mut Sink<W>, time: u64) -> io::Result<()> {
        self.level(sink, time, 0)?;
        self.halting = false;
        let name = sink.packets.name("guest");
        self.stack
            .begin(sink, time, GUEST, &Mark::plain(name, Category::Guest))
    }

    /// `kvm_exit`.
    pub(super) fn exit<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        time: u64,
        reason: ExitReason,
        info1: u64,
    ) -> io::Result<()> {
        self.level(sink, time, 0)?;
        self.exited_ns = self.stack.clamp(time);
        self.halting = reason.class() == Class::Halt;
        self.held = self.halting.then(Vec::new);
        let name = match (reason.name(), reason.is_failed_vmentry()) {
            (Some(name), false) => sink.packets.name(name),
            (Some(name), true) => sink.packets.name(&format!("{name} FAILED_VMENTRY")),
            (None, _) => sink.packets.name(&format!("exit {:#x}", reason.code)),
        };
        let args = [arg("info1", info1)];
        let mark = Mark {
            args: &args,
            ..Mark::plain(name, Category::Exit)
        };
        self.stack.begin(sink, time, EXIT, &mark)
    }

    /// `kvm_userspace_exit`: in the VMM until the next entry, where entries are recorded.
    pub(super) fn userspace<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        time: u64,
        reason: u32,
        errno: i32,
    ) -> io::Result<()> {
        let name = sink.packets.name(&words::userspace(reason, errno));
        let mark = Mark::plain(name, Category::Vmm);
        if self.stack.find(EXIT).is_none() {
            return self.instant(sink, time, &mark);
        }
        self.level(sink, time, 1)?;
        self.halting = false;
        self.stack.begin(sink, time, VMM, &mark)
    }

    /// `kvm_halt_poll_ns`, which comes before the `kvm_vcpu_wakeup` of the same halt.
    pub(super) fn poll_changes(&mut self, old: u32, new: u32) {
        self.poll_used = Some(old);
        self.poll_next = Some(new);
    }

    /// `kvm_vcpu_wakeup`: a halt took `ns` until now. If it did not sleep, it polled all that time; if
    /// it did, at most for the polling time before it slept, where that is known.
    pub(super) fn wakeup<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        time: u64,
        ns: u64,
        waited: bool,
    ) -> io::Result<()> {
        let window = self.poll_used.take().or(self.poll_next).unwrap_or(0);
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        let begin = time.saturating_sub(ns).max(self.exited_ns);
        let off = self.first_off.unwrap_or(time).min(time);
        let end = if waited {
            off.min(begin.saturating_add(window.into()))
        } else {
            off
        };
        if begin < end {
            let name = sink.packets.name("polling");
            let mark = Mark::plain(name, Category::Poll);
            self.stack.slice(sink, (begin, end), &mark)?;
        }
        self.write_held(sink, held)
    }

    /// A moment within what happens now.
    pub(super) fn instant<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        time: u64,
        mark: &Mark<'_>,
    ) -> io::Result<()> {
        self.release(sink)?;
        let time = self.stack.clamp(time);
        self.stack.instant(sink, time, mark)
    }

    /// Events of a CPU were lost between these times: nothing is known of a vCPU that was there.
    pub(super) fn lost<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        cpu: CpuId,
        (begin, end): (u64, u64),
        count: u64,
    ) -> io::Result<()> {
        if self.cpu != Some(cpu) {
            return Ok(());
        }
        self.forget(sink, begin)?;
        let begin = self.stack.clamp(begin);
        let end = self.stack.clamp(end);
        lost_slice(sink, (begin, end), &self.stack, count)
    }

    /// The end of the window or of the trace.
    pub(super) fn finish<W: Write>(&mut self, sink: &mut Sink<W>, time: u64) -> io::Result<()> {
        self.level(sink, time, 0)
    }

    /// The beginning of the window.
    pub(super) fn reopen<W: Write>(&mut self, sink: &mut Sink<W>) -> io::Result<()> {
        self.request = None;
        self.stack.reopen(sink)
    }

    /// Ends everything deeper than `depth`.
    fn level<W: Write>(&mut self, sink: &mut Sink<W>, time: u64, depth: usize) -> io::Result<()> {
        self.send_request(sink)?;
        self.end_off(sink, time)?;
        self.release(sink)?;
        self.first_off = None;
        self.stack.close_to(sink, time, depth)
    }

    fn end_off<W: Write>(&mut self, sink: &mut Sink<W>, time: u64) -> io::Result<()> {
        let Some((why, begin)) = self.off.take() else {
            return Ok(());
        };
        let end = self.stack.clamp(time);
        let name = sink.packets.name(why.name());
        let slice = Held { name, begin, end };
        if let Some(held) = &mut self.held {
            held.push(slice);
            if held.len() >= HELD {
                self.release(sink)?;
            }
            return Ok(());
        }
        self.write_held(sink, vec![slice])
    }

    /// Writes what is held back; the poll before it remains unknown.
    fn release<W: Write>(&mut self, sink: &mut Sink<W>) -> io::Result<()> {
        match self.held.take() {
            Some(held) => self.write_held(sink, held),
            None => Ok(()),
        }
    }

    fn write_held<W: Write>(&self, sink: &mut Sink<W>, held: Vec<Held>) -> io::Result<()> {
        for slice in held {
            let mark = Mark::plain(slice.name, Category::Off);
            self.stack.slice(sink, (slice.begin, slice.end), &mark)?;
        }
        Ok(())
    }

    /// Writes the IPI whose targets were gathered.
    fn send_request<W: Write>(&mut self, sink: &mut Sink<W>) -> io::Result<()> {
        let Some(request) = self.request.take() else {
            return Ok(());
        };
        self.release(sink)?;
        let name = match request.vector {
            Some(vector) => sink.packets.name(&format!("IPI {vector:#04x}")),
            None => sink.packets.name("IPI by hypercall"),
        };
        let args = request
            .icr
            .map(|(low, dest)| [arg("icr_low", low.into()), arg("dest_id", dest.into())]);
        let mark = Mark {
            args: args.as_ref().map_or(&[], |args| args.as_slice()),
            flows: &request.flows,
            ..Mark::plain(name, Category::Ipi)
        };
        self.stack.instant(sink, request.time_ns, &mark)
    }

    /// Another request, or the end of gathering for the one before.
    pub(super) fn request<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        request: Request,
    ) -> io::Result<()> {
        self.send_request(sink)?;
        let time_ns = self.stack.clamp(request.time_ns);
        self.request = Some(Request { time_ns, ..request });
        Ok(())
    }

    /// Nothing is known of it any more, from when it was last heard of.
    pub(super) fn forget<W: Write>(&mut self, sink: &mut Sink<W>, time: u64) -> io::Result<()> {
        self.level(sink, time, 0)?;
        self.cpu = None;
        self.halting = false;
        Ok(())
    }

    /// Whether the user wants to see it.
    pub(super) fn shown(&self) -> bool {
        self.stack.shown()
    }

    /// The time, or that of the track's last change where that was later.
    pub(super) fn clamp(&mut self, time: u64) -> u64 {
        self.stack.clamp(time)
    }
}
