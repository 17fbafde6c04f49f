//! Reports of the tracker: closed spans, and the events between them.
//!
//! All times are in ns of the trace's clock and never go back. An event that is earlier than its
//! predecessor gets the predecessor's time. Fields named `event_time` have the event's own time.

use stealtime_events::exit_reason::Class;
use stealtime_events::{Context, Event, ExitReason, Names, Tid};

use crate::{Cause, Function, Mode, ReasonIndex, Run, SwitchOut, ThreadIndex, VcpuIndex};

/// Where and when an event is.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Time of the event, in ns of the trace's clock; not before that of any earlier event.
    pub time: u64,
    /// The CPU.
    pub cpu: u16,
    /// The task that is current there.
    pub thread: ThreadIndex,
    /// Its id.
    pub tid: Tid,
    /// The vCPU that this task runs, if it runs one.
    pub current: Option<VcpuIndex>,
    /// The same, if the event is not an interrupt handler's: KVM's events are then about this vCPU.
    pub own: Option<VcpuIndex>,
}

impl Place {
    /// The task that is current there.
    #[must_use]
    #[inline]
    pub const fn thread_ref(&self) -> ThreadRef {
        ThreadRef {
            index: self.thread,
            tid: self.tid,
        }
    }
}

/// A part of the life of a vCPU's thread. Spans of one thread follow each other without a gap from
/// its first sign to its end, and none is empty. A wait has one for each occupant of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// What the scheduler does with the thread.
    pub run: Run,
    /// What the thread does when it runs.
    pub mode: Mode,
    /// Begin, in ns of the trace's clock.
    pub start: u64,
    /// End, in ns; after `start`.
    pub end: u64,
    /// The CPU that it runs on, waits for, or last ran on.
    pub cpu: u16,
    /// Of a wait: the occupant of the CPU.
    pub cause: Cause,
}

/// How long a task was current on a CPU. It can be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuSpan {
    /// The CPU.
    pub cpu: u16,
    /// The task.
    pub thread: ThreadIndex,
    /// The vCPU that the task runs, if it runs one.
    pub vcpu: Option<VcpuIndex>,
    /// Begin, in ns of the trace's clock.
    pub start: u64,
    /// End, in ns; not before `start`.
    pub end: u64,
}

/// A part of a wait that was reported as a [`Span`] and is wrong. Events of the CPU were lost
/// meanwhile, so its occupant is unknown.
#[derive(Debug, Clone, Copy)]
pub struct Retracted {
    /// [`Run::Preempted`] or [`Run::Waking`].
    pub run: Run,
    /// Begin, in ns of the trace's clock.
    pub start: u64,
    /// End, in ns.
    pub end: u64,
    /// The CPU.
    pub cpu: u16,
    /// The occupant of the CPU that was reported.
    pub cause: Cause,
}

/// What woke a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waker {
    /// Its LAPIC timer.
    Timer,
    /// An IPI of another vCPU: its sender wakes the target's thread in `kvm_vcpu_kick`.
    Ipi,
    /// A hard interrupt or softirq.
    Irq,
    /// A task.
    Task,
    /// A task or an interrupt: the recording does not have which.
    Unknown,
}

/// A thread that was woken becomes the current task of a CPU.
#[derive(Debug, Clone, Copy)]
pub struct Wakeup {
    /// What woke it.
    pub waker: Waker,
    /// Time of `sched_waking`, else of `sched_wakeup`, in ns of the trace's clock.
    pub woken: u64,
    /// Time of the switch to it, in ns.
    pub running: u64,
    /// The CPU.
    pub cpu: u16,
    /// It waited for another CPU first, and the silence of that CPU can still turn out to be a loss.
    pub is_doubted: bool,
}

/// A thread leaves its CPU.
#[derive(Debug, Clone, Copy)]
pub struct SwitchedOut {
    /// When it became the current task, in ns of the trace's clock.
    pub start: u64,
    /// When it leaves the CPU, in ns.
    pub end: u64,
    /// The CPU.
    pub cpu: u16,
    /// The next task of the CPU.
    pub next: ThreadIndex,
    /// [`Run::Preempted`] or [`Run::Sleeping`].
    pub run: Run,
    /// Whether it handles an exit of class [`Class::Halt`].
    pub in_halt: bool,
}

/// `kvm_exit`.
#[derive(Debug, Clone, Copy)]
pub struct Exit {
    /// Number of the reason in [`Reasons`](crate::Reasons).
    pub reason: ReasonIndex,
    /// The same as recorded, also where [`crate::Reasons`] is full.
    pub recorded: ExitReason,
    /// What the exit is for.
    pub class: Class,
    /// `EXIT_QUALIFICATION` (VMX) or `EXITINFO1` (SVM).
    pub info1: u64,
    /// The vector of a host interrupt, where the hardware gives it.
    pub vector: Option<u8>,
    /// The event's own time, in ns; it may lie before the latest time of the trace.
    pub event_time: u64,
}

/// `kvm_vcpu_wakeup`: a halt is over.
#[derive(Debug, Clone, Copy)]
pub struct Halt {
    /// When it began, in ns of the trace's clock; not before the exit.
    pub start: u64,
    /// Its length by KVM's own clock, in ns.
    pub ns: u64,
    /// It slept; otherwise all of it was polling.
    pub waited: bool,
    /// What the thread does.
    pub mode: Mode,
    /// Since when it is the current task of its CPU, in ns.
    pub running_since: u64,
    /// When its latest sleep began, in ns; of use only if `waited`.
    pub slept_at: u64,
    /// Whether the trace has `sched_switch`, so that sleeps are known.
    pub has_switches: bool,
}

impl Halt {
    /// When its polling ended, in ns: at its sleep, or after a polling window of `window` ns.
    #[must_use]
    pub fn poll_end(&self, window: Option<u32>) -> u64 {
        let at_most = window.map_or(u64::MAX, |window| self.start.saturating_add(window.into()));
        self.slept_at.min(at_most)
    }
}

/// A vector was set in a vCPU's IRR.
#[derive(Debug, Clone, Copy)]
pub struct Accept {
    /// The vector.
    pub vector: u8,
    /// When the ICR was written for it, in ns; `None` if it is no IPI or its sender is not known.
    pub sent: Option<u64>,
    /// The hardware delivers it, without an injection.
    pub by_hardware: bool,
    /// The handler of the vCPU's LAPIC timer did it.
    pub by_timer: bool,
}

/// Where a [`Function`] was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionSeen {
    /// `hrtimer_start`.
    Started,
    /// `hrtimer_expire_entry`.
    Expired,
    /// `csd_function_entry`.
    Called,
}

/// Events of a CPU were lost.
#[derive(Debug, Clone, Copy)]
pub struct Loss {
    /// The CPU.
    pub cpu: u16,
    /// Time at which the loss shows, in ns.
    pub time: u64,
    /// Time of the CPU's latest event, in ns; 0 before the first. From here on its state is unknown.
    pub since: u64,
    /// Number of events lost; 0 if not known.
    pub count: u64,
    /// It was before the first event of the trace, so nothing is forgotten.
    pub is_first: bool,
}

/// A thread, whether it is a vCPU or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadRef {
    /// Its number.
    pub index: ThreadIndex,
    /// Its id.
    pub tid: Tid,
}

/// `sched_switch`.
#[derive(Debug, Clone, Copy)]
pub struct Switch {
    /// The CPU.
    pub cpu: u16,
    /// Its time, in ns of the trace's clock.
    pub time: u64,
    /// The thread that leaves the CPU.
    pub prev: ThreadRef,
    /// How it leaves it.
    pub out: SwitchOut,
    /// The thread that becomes the current task.
    pub next: ThreadRef,
    /// Its priority as the kernel counts: 100 to 139 are the fair class, less is more urgent.
    pub next_prio: i16,
}

/// An event shows another current task than the CPU's latest event and switch. It is the CPU's first
/// event, the first after a loss, or one after a switch that the recording leaves out.
#[derive(Debug, Clone, Copy)]
pub struct FoundCurrent {
    /// The CPU.
    pub cpu: u16,
    /// Its current task.
    pub thread: ThreadRef,
    /// Time of the CPU's latest event, in ns; 0 if it had none. The switch was later.
    pub since: u64,
}

/// `sched_waking`: a thread is to be put into a run queue.
#[derive(Debug, Clone, Copy)]
pub struct Waking {
    /// The thread.
    pub woken: ThreadRef,
    /// The CPU of that run queue.
    pub target: u32,
    /// Its time, in ns of the trace's clock.
    pub time: u64,
    /// The CPU that wakes it.
    pub cpu: u16,
    /// The current task there: the waker, unless an interrupt is.
    pub current: ThreadRef,
    /// Whether an interrupt is.
    pub context: Context,
}

/// A reader of the tracker. Each method does nothing by default, and the compiler drops what a reader
/// leaves out.
///
/// Calls come in the order of time. `begins` is the first one; a vCPU's calls come after its `vcpu_found`.
pub trait Observer {
    /// Whether numbers of threads and vCPUs that are gone go to new ones, so that memory is bounded on
    /// an endless stream. A reader that needs all of them at the end of a recording leaves it.
    const RECYCLES: bool = false;
    /// Most tasks that are kept apart, up to a limit of the tracker. Further ones share a number.
    const MAX_THREADS: usize = usize::MAX;

    /// The first event of the trace, at `time` in ns.
    fn begins(&mut self, time: u64, cpu: u16) {
        let _ = (time, cpu);
    }
    /// No event from `start` to `end`, in ns: longer than [`LONGEST_SILENCE_NS`](crate::LONGEST_SILENCE_NS).
    fn silence(&mut self, start: u64, end: u64, cpu: u16) {
        let _ = (start, end, cpu);
    }
    /// A thread shows to be a vCPU. Numbers ascend from 0 without a gap; one that is recycled comes again.
    fn vcpu_found(&mut self, vcpu: VcpuIndex, tid: Tid) {
        let _ = (vcpu, tid);
    }
    /// The trace has `sched_switch`: this is the first.
    fn first_switch(&mut self) {}
    /// A part of a vCPU thread's life is over.
    fn span(&mut self, vcpu: VcpuIndex, span: &Span) {
        let _ = (vcpu, span);
    }
    /// A part of a wait, reported as a span, is wrong.
    fn retract(&mut self, vcpu: VcpuIndex, wait: &Retracted) {
        let _ = (vcpu, wait);
    }
    /// A CPU's current task changes.
    fn cpu_span(&mut self, span: &CpuSpan) {
        let _ = span;
    }
    /// A CPU's current task is this one from `time` on, in ns; its [`CpuSpan`] follows at its end.
    fn task_current(&mut self, cpu: u16, tid: Tid, time: u64) {
        let _ = (cpu, tid, time);
    }
    /// A vCPU's thread begins to wait for a CPU.
    fn wait_begins(&mut self, vcpu: VcpuIndex) {
        let _ = vcpu;
    }
    /// Its wait, of this kind, is over; all spans of it were reported.
    fn wait_ends(&mut self, vcpu: VcpuIndex, run: Run) {
        let _ = (vcpu, run);
    }
    /// It leaves the run queue that it waits in, for that of another CPU or to run there.
    fn queue_left(&mut self, vcpu: VcpuIndex) {
        let _ = vcpu;
    }
    /// It was woken and becomes the current task of a CPU.
    fn woken(&mut self, vcpu: VcpuIndex, wakeup: &Wakeup) {
        let _ = (vcpu, wakeup);
    }
    /// It leaves its CPU.
    fn switched_out(&mut self, vcpu: VcpuIndex, switch: &SwitchedOut) {
        let _ = (vcpu, switch);
    }
    /// It becomes the current task of a CPU by a switch, at `time` in ns.
    fn switched_in(&mut self, vcpu: VcpuIndex, time: u64, cpu: u16) {
        let _ = (vcpu, time, cpu);
    }
    /// Its state is unknown from here on: events of its CPU were lost, or a switch is missing.
    fn sight_lost(&mut self, vcpu: VcpuIndex) {
        let _ = vcpu;
    }
    /// It shows up on a CPU while known to be asleep or on another one. Its state until here is unknown.
    fn found_running(&mut self, vcpu: VcpuIndex) {
        let _ = vcpu;
    }
    /// It becomes a current task after a sleep of which the end was lost.
    fn wakeup_lost(&mut self, vcpu: VcpuIndex) {
        let _ = vcpu;
    }
    /// Its thread has ended.
    fn ended(&mut self, vcpu: VcpuIndex) {
        let _ = vcpu;
    }
    /// The reader of the recording names a thread; `process` is 0 where that is not known.
    fn thread_named(&mut self, thread: ThreadRef, process: Tid, name: &str) {
        let _ = (thread, process, name);
    }
    /// A thread begins, in the run queue of this CPU where that is known. It may have been seen before:
    /// `sched_process_fork` and `sched_wakeup_new` both say so.
    fn thread_begins(&mut self, thread: ThreadRef, cpu: Option<u16>) {
        let _ = (thread, cpu);
    }
    /// `sched_process_exit`: the thread ends with its next switch.
    fn thread_exits(&mut self, thread: ThreadRef) {
        let _ = thread;
    }
    /// The id of `old`, which has ended, goes to another thread. Its number can be the same.
    fn thread_replaced(&mut self, old: ThreadIndex, new: ThreadRef) {
        let _ = (old, new);
    }
    /// A CPU's current task changes, as recorded. To be preferred to [`Observer::switched_in`] by readers
    /// that follow all threads.
    fn switch(&mut self, switch: &Switch) {
        let _ = switch;
    }
    /// A CPU's current task is not the one that was known.
    fn current_found(&mut self, found: &FoundCurrent) {
        let _ = found;
    }
    /// `sched_waking` of any thread, runnable ones included.
    fn waking(&mut self, waking: &Waking) {
        let _ = waking;
    }
    /// `sched_wakeup`: the thread stands in the run queue of `target`, or was still on its CPU.
    fn wakeup(&mut self, thread: ThreadRef, target: u32) {
        let _ = (thread, target);
    }
    /// `sched_migrate_task`: the thread moves to the run queue of `target`.
    fn migrates(&mut self, thread: ThreadRef, target: u32) {
        let _ = (thread, target);
    }
    /// `kvm_exit`.
    fn exit(&mut self, vcpu: VcpuIndex, place: &Place, exit: &Exit) {
        let _ = (vcpu, place, exit);
    }
    /// `kvm_entry`; `event_time` is the event's own time, in ns.
    fn entry(&mut self, vcpu: VcpuIndex, place: &Place, event_time: u64) {
        let _ = (vcpu, place, event_time);
    }
    /// A halt is over.
    fn halt(&mut self, vcpu: VcpuIndex, place: &Place, halt: &Halt) {
        let _ = (vcpu, place, halt);
    }
    /// `kvm_vcpu_wakeup` of the current task: its halt of `ns` is over, in which it slept if it `waited`.
    /// Other than [`Observer::halt`] this has a thread's first halt too, ahead of any sign of a vCPU.
    fn halt_ends(&mut self, place: &Place, ns: u64, waited: bool) {
        let _ = (place, ns, waited);
    }
    /// `kvm_halt_poll_ns`: the poll window of the current task is `new` instead of `old`, in ns.
    fn poll_window(&mut self, place: &Place, new: u32, old: u32) {
        let _ = (place, new, old);
    }
    /// A vCPU's LAPIC timer is armed.
    fn timer_armed(&mut self, vcpu: VcpuIndex) {
        let _ = vcpu;
    }
    /// A vCPU's LAPIC timer is due at `expires` and expires at `now`, both in ns of the hrtimer's clock.
    fn timer_expires(&mut self, vcpu: VcpuIndex, place: &Place, now: u64, expires: u64) {
        let _ = (vcpu, place, now, expires);
    }
    /// A function of an hrtimer or a call from another CPU.
    fn function(&mut self, function: Function, action: FunctionSeen, place: &Place) {
        let _ = (function, action, place);
    }
    /// Whether [`Observer::accepted`] is of use: finding the vCPU costs a look-up.
    fn wants_accepted(&self) -> bool {
        false
    }
    /// A vector was set in this vCPU's IRR.
    fn accepted(&mut self, vcpu: VcpuIndex, place: &Place, accept: &Accept) {
        let _ = (vcpu, place, accept);
    }
    /// Events were lost.
    fn lost(&mut self, loss: &Loss) {
        let _ = loss;
    }
    /// Each event of the host, after the tracker has taken it in.
    fn event(&mut self, event: &Event, place: &Place, names: &dyn Names) {
        let _ = (event, place, names);
    }
}

/// Observes nothing.
impl Observer for () {}
