//! A vCPU's track: in the guest or in an exit, and within an exit what it spent its time on.
//!
//! Outermost `guest` and the exit reasons take turns. Within an exit lie `VMM: …` (in userspace),
//! `polling`, `halted`, `blocked`, `preempted` and `ready` (woken, not yet running). How long was
//! polled is known only after a halt ([`Kind::KvmVcpuWakeup`]), so what lies within a halt is held
//! back until then.
//!
//! [`Kind::KvmVcpuWakeup`]: stealtime_events::Kind::KvmVcpuWakeup

use std::io;

use stealtime_events::exit_reason::Class;
use stealtime_track::{Exit, Halt, Loss, Mode, Retracted, Run, Span, SwitchedOut};

use super::cpu::lost_slice;
use super::ipi::Request;
use super::packet::{Category, Mark, Name, arg};
use super::track::{Period, Sink, Stack, Track};
use super::words;

/// Most slices held back. A halt with more of them is written without its poll, so that memory is
/// bounded.
const HELD: usize = 64;

/// Keys of slices.
const GUEST: u64 = 0;
const EXIT: u64 = 1;
const VMM: u64 = 2;

/// Why a vCPU's thread is not on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OffCpu {
    Asleep,
    Halted,
    Blocked,
    Preempted,
    Ready,
}

impl OffCpu {
    const fn name(self) -> &'static str {
        match self {
            Self::Asleep => "asleep",
            Self::Halted => "halted",
            Self::Blocked => "blocked",
            Self::Preempted => "preempted",
            Self::Ready => "ready",
        }
    }
}

/// Time off the CPU that is over. Times are in ns of the trace's clock.
#[derive(Debug, Clone, Copy)]
struct Absence {
    state: OffCpu,
    begin: u64,
    end: u64,
}

/// A slice within an exit that is over.
#[derive(Debug, Clone, Copy)]
struct Held {
    name: Name,
    is_sleep: bool,
    period: Period,
}

/// A vCPU.
#[derive(Debug)]
pub(super) struct Vcpu {
    stack: Stack,
    /// What a sleep is: it depends on the exit before it.
    sleep: OffCpu,
    /// The latest time off its CPU. A wait is reported in parts by cause, and drawn as one slice.
    absence: Option<Absence>,
    /// Its latest time on a CPU before the first entry or exit.
    unknown_mode: Option<Period>,
    /// End of the latest span: nothing is known from here on if the thread is lost from sight.
    known_until: u64,
    /// Slices since a halt or sleep that wait for the poll, and for what the sleep was.
    held: Option<Vec<Held>>,
    /// `halt_poll_ns` for the halt that is ending, and for the next, where a change was seen.
    poll_used: Option<u32>,
    poll_next: Option<u32>,
    /// Whether the recording has `sched_switch`, so that sleeps are seen.
    has_switches: bool,
    /// An IPI that waits for its targets.
    pub(super) request: Option<Request>,
}

impl Vcpu {
    /// A vCPU of which nothing is known but whether it polls before the first change of its window.
    pub(super) fn new(row: u32, is_shown: bool, polls_at_first: bool, has_switches: bool) -> Self {
        Self {
            stack: Stack::new(Track::Vcpu(row), is_shown),
            sleep: OffCpu::Asleep,
            absence: None,
            unknown_mode: None,
            known_until: 0,
            held: None,
            poll_used: None,
            // The analysis counts the whole time before such a sleep as polling.
            poll_next: polls_at_first.then_some(u32::MAX),
            has_switches,
            request: None,
        }
    }

    /// A part of its thread's life is over. Time on a CPU is drawn by entries and exits.
    pub(super) fn span(&mut self, sink: &mut Sink<'_>, span: &Span) -> io::Result<()> {
        let state = match span.run {
            Run::Sleeping => self.sleep,
            Run::Preempted => OffCpu::Preempted,
            Run::Waking => OffCpu::Ready,
            Run::Running | Run::Dead => {
                self.ran(span);
                return self.end_absence(sink);
            }
            Run::Unknown => {
                self.forget(sink)?;
                self.known_until = span.end;
                return Ok(());
            }
        };
        self.known_until = span.end;
        match &mut self.absence {
            Some(absence) if absence.state == state && absence.end == span.start => {
                absence.end = span.end;
                return Ok(());
            }
            _ => self.end_absence(sink)?,
        }
        self.absence = Some(Absence {
            state,
            begin: span.start,
            end: span.end,
        });
        Ok(())
    }

    /// A part of a wait is not true after all. What is written already stays.
    pub(super) fn retract(&mut self, sink: &mut Sink<'_>, wait: &Retracted) -> io::Result<()> {
        let overlaps = |absence: &mut Absence| absence.begin < wait.end && wait.start < absence.end;
        let Some(absence) = self.absence.take_if(overlaps) else {
            return Ok(());
        };
        let end = wait.start.max(absence.begin);
        self.absence = Some(Absence { end, ..absence });
        self.end_absence(sink)?;
        let begin = wait.end;
        self.absence = (begin < absence.end).then_some(Absence { begin, ..absence });
        Ok(())
    }

    /// A part of its thread's life on a CPU is over. While no entry or exit was seen, only the next
    /// one shows whether the guest ran.
    fn ran(&mut self, span: &Span) {
        self.known_until = span.end;
        self.unknown_mode = match (span.mode, self.unknown_mode) {
            (Mode::Unknown, known) => {
                let adjacent = known.filter(|known| known.end == span.start);
                let begin = adjacent.map_or(span.start, |known| known.begin);
                let end = span.end;
                Some(Period { begin, end })
            }
            _ => None,
        };
    }

    /// Its thread leaves its CPU.
    pub(super) fn switched_out(
        &mut self,
        sink: &mut Sink<'_>,
        switch: &SwitchedOut,
    ) -> io::Result<()> {
        self.end_absence(sink)?;
        self.send_request(sink)?;
        if self.stack.find(GUEST).is_some() {
            // The entry was called off (there was work to do), so the guest does not run.
            self.level(sink, switch.end, 0)?;
        }
        self.sleep = if switch.in_halt {
            OffCpu::Halted
        } else {
            OffCpu::Blocked
        };
        if switch.run == Run::Sleeping && !switch.in_halt {
            // KVM can say at its end that it was a halt: a vCPU that is halted already sleeps without
            // an exit.
            self.held.get_or_insert_default();
        }
        Ok(())
    }

    /// `kvm_entry`.
    pub(super) fn entry(&mut self, sink: &mut Sink<'_>, time: u64) -> io::Result<()> {
        self.level(sink, time, 0)?;
        let name = sink.packets.name("guest");
        self.stack
            .begin(sink, time, GUEST, &Mark::plain(name, Category::Guest))
    }

    /// `kvm_exit`.
    pub(super) fn exit(&mut self, sink: &mut Sink<'_>, time: u64, exit: &Exit) -> io::Result<()> {
        self.level(sink, time, 0)?;
        if let Some(ran) = self.unknown_mode.take().filter(|ran| ran.end == time) {
            // It can only have come out of the guest.
            let name = sink.packets.name("guest");
            let mark = Mark::plain(name, Category::Guest);
            self.stack.slice(sink, ran, &mark)?;
        }
        self.held = (exit.class == Class::Halt).then(Vec::new);
        let reason = exit.recorded;
        let name = match (reason.name(), reason.is_failed_vmentry()) {
            (Some(name), false) => sink.packets.name(name),
            (Some(name), true) => sink.packets.name(&format!("{name} FAILED_VMENTRY")),
            (None, _) => sink.packets.name(&format!("exit {:#x}", reason.code)),
        };
        let args = [arg("info1", exit.info1)];
        let mark = Mark {
            args: &args,
            ..Mark::plain(name, Category::Exit)
        };
        self.stack.begin(sink, time, EXIT, &mark)
    }

    /// `kvm_userspace_exit`: in the VMM until the next entry, where entries are recorded.
    pub(super) fn userspace(
        &mut self,
        sink: &mut Sink<'_>,
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
        self.stack.begin(sink, time, VMM, &mark)
    }

    /// `kvm_halt_poll_ns`, which comes before the `kvm_vcpu_wakeup` of the same halt.
    pub(super) fn poll_changes(&mut self, old: u32, new: u32) {
        self.poll_used = Some(old);
        self.poll_next = Some(new);
    }

    /// A halt is over. Without a sleep all its time on a CPU was polling. Otherwise the vCPU polled
    /// before the sleep, at most for the polling time where that is known.
    pub(super) fn halt(&mut self, sink: &mut Sink<'_>, time: u64, halt: &Halt) -> io::Result<()> {
        let window = self.poll_used.take().or(self.poll_next).unwrap_or(0);
        let Some(mut held) = self.held.take() else {
            return Ok(());
        };
        let sleep = held.iter_mut().rfind(|slice| slice.is_sleep);
        if let Some(sleep) = sleep.filter(|_| halt.waited) {
            sleep.name = sink.packets.name(OffCpu::Halted.name());
        }
        if halt.waited && !self.has_switches {
            // When it slept is not recorded: the halt counts as a whole.
            let name = sink.packets.name(OffCpu::Halted.name());
            return self.write(
                sink,
                Held {
                    name,
                    is_sleep: true,
                    period: Period {
                        begin: halt.start,
                        end: time,
                    },
                },
            );
        }
        let polled_until = match halt.waited {
            true => halt.slept_at.min(halt.start.saturating_add(window.into())),
            false => time,
        };
        let mut begin = halt.start;
        for slice in held {
            self.write_poll(sink, begin, slice.period.begin.min(polled_until))?;
            self.write(sink, slice)?;
            begin = begin.max(slice.period.end);
        }
        self.write_poll(sink, begin, polled_until)
    }

    /// A moment within what happens at its time.
    pub(super) fn instant(
        &mut self,
        sink: &mut Sink<'_>,
        time: u64,
        mark: &Mark<'_>,
    ) -> io::Result<()> {
        self.release(sink)?;
        let time = self.stack.clamp(time);
        self.stack.instant(sink, time, mark)
    }

    /// It is lost from sight because events of a CPU were lost.
    pub(super) fn lost(&mut self, sink: &mut Sink<'_>, loss: &Loss) -> io::Result<()> {
        let begin = self.stack.clamp(self.known_until);
        let end = self.stack.clamp(loss.time);
        lost_slice(sink, Period { begin, end }, &self.stack, loss.count)
    }

    /// The end of the window or of the trace.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>, time: u64) -> io::Result<()> {
        self.level(sink, time, 0)
    }

    /// The beginning of the window.
    pub(super) fn reopen(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
        self.request = None;
        self.stack.reopen(sink)
    }

    /// Ends everything deeper than `depth`.
    fn level(&mut self, sink: &mut Sink<'_>, time: u64, depth: usize) -> io::Result<()> {
        self.send_request(sink)?;
        self.end_absence(sink)?;
        self.release(sink)?;
        self.stack.close_to(sink, time, depth)
    }

    /// Its thread is no longer off its CPU, or in another way.
    pub(super) fn end_absence(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
        let Some(absence) = self
            .absence
            .take()
            .filter(|absence| absence.begin < absence.end)
        else {
            return Ok(());
        };
        let slice = Held {
            name: sink.packets.name(absence.state.name()),
            is_sleep: matches!(absence.state, OffCpu::Halted | OffCpu::Blocked),
            period: Period {
                begin: self.stack.clamp(absence.begin),
                end: self.stack.clamp(absence.end),
            },
        };
        let Some(held) = &mut self.held else {
            return self.write(sink, slice);
        };
        held.push(slice);
        if held.len() >= HELD {
            return self.release(sink);
        }
        Ok(())
    }

    /// Writes what is held back; the poll before it remains unknown.
    fn release(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
        let held = self.held.take().unwrap_or_default();
        held.into_iter()
            .try_for_each(|slice| self.write(sink, slice))
    }

    fn write(&self, sink: &mut Sink<'_>, slice: Held) -> io::Result<()> {
        let mark = Mark::plain(slice.name, Category::Off);
        self.stack.slice(sink, slice.period, &mark)
    }

    fn write_poll(&self, sink: &mut Sink<'_>, begin: u64, end: u64) -> io::Result<()> {
        if begin >= end {
            return Ok(());
        }
        let name = sink.packets.name("polling");
        let mark = Mark::plain(name, Category::Poll);
        self.stack.slice(sink, Period { begin, end }, &mark)
    }

    /// Writes the IPI with the targets seen so far.
    fn send_request(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
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
    pub(super) fn request(&mut self, sink: &mut Sink<'_>, request: Request) -> io::Result<()> {
        self.send_request(sink)?;
        let time_ns = self.stack.clamp(request.time_ns);
        self.request = Some(Request { time_ns, ..request });
        Ok(())
    }

    /// Nothing is known of it from the end of its latest span on.
    pub(super) fn forget(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
        self.level(sink, self.known_until, 0)
    }

    /// Whether its track is written.
    pub(super) fn is_shown(&self) -> bool {
        self.stack.is_shown()
    }

    /// The time, or that of the track's last change where that was later.
    pub(super) fn clamp(&mut self, time: u64) -> u64 {
        self.stack.clamp(time)
    }
}
