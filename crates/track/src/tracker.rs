//! Each event to the part of the state that it is about.

use stealtime_events::hypercall::KVM_HC_SEND_IPI;
use stealtime_events::{CpuId, Event, Kind, NameId, Names, Tid, VcpuId};

use crate::cpu::{Cpu, Current, Sent};
use crate::links::Links;
use crate::names::vcpu_in_name;
use crate::observer::{Accept, Exit, FunctionSeen, Halt, Loss, Observer, Place};
use crate::timers::{Owned, Timers};
use crate::{
    Cause, Function, IntMap, Mode, Reasons, Run, SwitchOut, Thread, ThreadIndex, ThreadRef,
    Threads, Vcpu, VcpuIndex,
};

/// Most vCPU threads; events of further ones are not followed. 64 full VMs of the largest size.
const MAX_VCPUS: usize = 1 << 18;
/// No host that is traced is silent for so long, in ns: a clock jumps, or the file is damaged.
pub const LONGEST_SILENCE_NS: u64 = 60_000_000_000;

/// The state of a host, followed from event to event; what changes goes to the observer.
#[derive(Debug)]
pub struct Tracker<O> {
    pub(crate) observer: O,
    /// Whether an event was seen.
    has_begun: bool,
    /// Time of the first event.
    first: u64,
    /// Time of the trace: of the latest event, never going back.
    pub(crate) now: u64,
    out_of_order: u64,
    /// Losses so far, to tell whether there was one since.
    pub(crate) losses: u64,
    /// Whether a `sched_switch` was seen.
    pub(crate) has_switches: bool,
    /// A thread ran after `sched_waking` without a `sched_wakeup`: the trace has only the former.
    pub(crate) lacks_wakeups: bool,
    pub(crate) threads: Threads,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) vcpus: Vec<Vcpu>,
    /// vCPUs that are gone and whose numbers can be given out again.
    pub(crate) free: Vec<VcpuIndex>,
    /// vCPUs by their number in their VM.
    by_id: IntMap<u32, Vec<VcpuIndex>>,
    reasons: Reasons,
    timers: Timers,
    pub(crate) links: Links,
}

impl<O: Observer> Tracker<O> {
    /// A tracker that has seen nothing yet.
    #[must_use]
    pub fn new(observer: O) -> Self {
        Self {
            observer,
            has_begun: false,
            first: 0,
            now: 0,
            out_of_order: 0,
            losses: 0,
            has_switches: false,
            lacks_wakeups: false,
            threads: Threads::new(O::RECYCLES),
            cpus: Vec::new(),
            vcpus: Vec::new(),
            free: Vec::new(),
            by_id: IntMap::default(),
            reasons: Reasons::default(),
            timers: Timers::default(),
            links: Links::default(),
        }
    }

    /// The observer.
    pub const fn observer(&self) -> &O {
        &self.observer
    }

    /// The observer, to change it.
    pub const fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// The observer, after [`Tracker::close`] if it reads spans.
    pub fn into_observer(self) -> O {
        self.observer
    }

    /// All tasks.
    #[must_use]
    pub const fn threads(&self) -> &Threads {
        &self.threads
    }

    /// All vCPU threads, by number.
    #[must_use]
    pub fn vcpus(&self) -> &[Vcpu] {
        &self.vcpus
    }

    /// A vCPU thread.
    #[must_use]
    pub fn vcpu(&self, vcpu: VcpuIndex) -> &Vcpu {
        &self.vcpus[vcpu.index()]
    }

    /// The task that runs a vCPU.
    #[must_use]
    pub fn thread_of(&self, vcpu: VcpuIndex) -> &Thread {
        self.threads.get(self.vcpu(vcpu).thread)
    }

    /// How many CPUs there are: one more than the highest number seen.
    #[must_use]
    pub fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    /// Whether a `sched_switch` was seen: without any, threads seem to run all the time.
    #[must_use]
    pub const fn has_switches(&self) -> bool {
        self.has_switches
    }

    /// The exit reasons seen.
    #[must_use]
    pub const fn reasons(&self) -> &Reasons {
        &self.reasons
    }

    /// Evidence on which vCPUs are one VM.
    #[must_use]
    pub const fn links(&self) -> &Links {
        &self.links
    }

    /// Time of the first event.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Time of the latest event.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// Events that were earlier than one before them.
    #[must_use]
    pub const fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// So many events, given or skipped, were earlier than one before them.
    pub const fn set_out_of_order(&mut self, events: u64) {
        self.out_of_order = events;
    }

    /// Joins the groups of [`Tracker::links`] by weak evidence as well. To be called at the end;
    /// `is_helper` says which tasks can be a VMM's.
    pub fn settle_links(&mut self, is_helper: impl Fn(&Thread) -> bool) {
        let threads = &self.threads;
        self.links.settle(|index| is_helper(threads.get(index)));
    }

    /// Takes events that the reader has counted and left out: first and last time, and the highest CPU.
    /// To be called after the last event.
    pub fn skip(&mut self, first: u64, last: u64, last_cpu: CpuId) {
        if !std::mem::replace(&mut self.has_begun, true) {
            (self.first, self.now) = (first, last);
        }
        self.first = self.first.min(first);
        self.now = self.now.max(last);
        self.ensure_cpu(last_cpu.0);
    }

    /// Takes the next event in the order of time.
    pub fn event(&mut self, event: &Event, names: &dyn Names) {
        if !self.has_begun && event.kind.is_host_event() {
            self.begin(event);
        }
        match event.kind {
            Kind::Task { tid, process, name } => return self.on_task(tid, process, name, names),
            Kind::VcpuThread { tid, vm, vcpu } => return self.on_vcpu_thread(tid, vm, vcpu),
            Kind::Lost { count } => return self.on_loss_event(event, count),
            _ => {}
        }
        self.advance(event);
        let number = event.cpu.0;
        self.ensure_cpu(number);
        self.check_current(event);
        let place = self.place(event);
        let place = self.dispatch(event, place, names);
        self.observer.event(event, &place, names);
        self.cpus[usize::from(number)].last = self.now;
    }

    fn begin(&mut self, event: &Event) {
        self.has_begun = true;
        self.first = event.time_ns;
        self.now = event.time_ns;
        self.observer.begins(event.time_ns, event.cpu.0);
        for vcpu in &mut self.vcpus {
            vcpu.since = event.time_ns;
        }
    }

    #[inline]
    fn advance(&mut self, event: &Event) {
        if event.time_ns < self.now {
            self.out_of_order += 1;
            return;
        }
        if event.time_ns - self.now > LONGEST_SILENCE_NS {
            self.observer.silence(self.now, event.time_ns, event.cpu.0);
        }
        self.now = event.time_ns;
    }

    /// Makes the table of CPUs reach this one. CPU numbers are 16 bits, so it stays small.
    #[inline]
    pub(crate) fn ensure_cpu(&mut self, number: u16) {
        let index = usize::from(number);
        if index >= self.cpus.len() {
            self.cpus.resize_with(index + 1, Cpu::default);
        }
    }

    /// Compares the event's task with the current one: a switch can be missing.
    #[inline]
    fn check_current(&mut self, event: &Event) {
        let number = event.cpu.0;
        let cpu = &mut self.cpus[usize::from(number)];
        match cpu.current {
            Some(current) if current.tid == event.tid.0 => {
                let handles = cpu.in_interrupt();
                if let Some(vcpu) = current.vcpu
                    && !runs_on(&self.vcpus[vcpu.index()], number)
                {
                    // Another CPU has shown since that the thread is not here any more, and here it is.
                    self.find_running(vcpu, number);
                } else if handles && event.context.in_task() && !is_handler_edge(event.kind) {
                    cpu.leave_all();
                }
            }
            _ => self.make_current(event),
        }
    }

    fn place(&self, event: &Event) -> Place {
        let cpu = event.cpu.0;
        let current = self.cpus[usize::from(cpu)].current;
        debug_assert_eq!(current.map(|current| current.tid), Some(event.tid.0));
        let thread = current.map_or(ThreadIndex::OVERFLOW, |current| current.thread);
        let current = current.and_then(|current| current.vcpu);
        Place {
            cpu,
            thread,
            tid: event.tid,
            time: self.now,
            current,
            own: current.filter(|_| !event.context.in_interrupt()),
        }
    }

    /// Changes the state; returns the place with the vCPU that the event has shown.
    fn dispatch(&mut self, event: &Event, mut place: Place, names: &dyn Names) -> Place {
        match event.kind {
            Kind::KvmEntry { vcpu } | Kind::KvmExit { vcpu, .. } => {
                self.on_entry_or_exit(event, vcpu, &place);
            }
            Kind::SchedSwitch {
                prev,
                next,
                prev_state,
                next_prio,
                ..
            } => {
                let out = SwitchOut::from_prev_state(prev_state);
                self.on_switch(place.cpu, prev, out, next, next_prio);
            }
            Kind::SchedWaking { .. }
            | Kind::SchedWakeup { .. }
            | Kind::SchedWakeupNew { .. }
            | Kind::SchedMigrateTask { .. }
            | Kind::SchedProcessFork { .. }
            | Kind::SchedProcessExit { .. } => self.on_sched(event, &place),
            Kind::VectorEntry { .. } | Kind::IrqHandlerEntry { .. } => {
                self.on_interrupt(place.cpu, Some(Cause::HARDIRQ));
            }
            Kind::SoftirqEntry { vec } => self.on_interrupt(place.cpu, Some(Cause::softirq(vec))),
            Kind::VectorExit { .. } | Kind::IrqHandlerExit { .. } | Kind::SoftirqExit { .. } => {
                self.on_interrupt(place.cpu, None);
            }
            Kind::HrtimerStart {
                hrtimer,
                expires_ns,
                function,
            } => {
                let function = self.timers.function(function, names);
                self.on_timer_start(event, &place, (hrtimer, expires_ns), function);
            }
            Kind::HrtimerExpireEntry {
                hrtimer,
                now_ns,
                function,
            } => {
                let function = self.timers.function(function, names);
                self.observer
                    .function(function, FunctionSeen::Expired, &place);
                self.on_timer_expire(&place, hrtimer, now_ns);
            }
            Kind::HrtimerExpireExit { .. } => self.cpus[usize::from(place.cpu)].expiring = None,
            Kind::CsdFunctionEntry { func } => {
                let function = self.timers.function(func, names);
                self.observer
                    .function(function, FunctionSeen::Called, &place);
            }
            Kind::IpiSendCpu { cpu, callback } => {
                // A kick is a reschedule IPI without a callback.
                if place.own.is_some()
                    && matches!(names.name(callback), "" | "0x0" | "0" | "(null)")
                {
                    self.on_kick(place.cpu, cpu);
                }
            }
            kind => place.own = self.on_kvm(event, kind, &place),
        }
        place
    }

    fn on_entry_or_exit(&mut self, event: &Event, id: VcpuId, place: &Place) {
        let Some(vcpu) = place.current.or_else(|| self.make_vcpu(event.tid, id)) else {
            return;
        };
        self.renumber(vcpu, id);
        self.settle(vcpu, self.now);
        let seen = &mut self.vcpus[vcpu.index()];
        seen.is_seen = true;
        seen.mode_start = self.now;
        self.cpus[usize::from(place.cpu)].end_request();
        let Kind::KvmExit {
            reason,
            intr_vector,
            info1,
            ..
        } = event.kind
        else {
            seen.mode = Mode::Guest;
            return self.observer.entry(vcpu, place, event.time_ns);
        };
        let recorded = reason;
        let reason = self.reasons.find(recorded);
        seen.mode = Mode::Exit(reason);
        let exit = Exit {
            reason,
            recorded,
            info1,
            class: self.reasons.class(reason),
            vector: intr_vector,
            event_time: event.time_ns,
        };
        self.observer.exit(vcpu, place, &exit);
    }

    /// Events of KVM other than entry and exit. Most are about the vCPU whose thread is current, which
    /// is returned.
    fn on_kvm(&mut self, event: &Event, kind: Kind, place: &Place) -> Option<VcpuIndex> {
        match kind {
            Kind::KvmVcpuWakeup { ns, waited, .. } => self.observer.halt_ends(place, ns, waited),
            Kind::KvmHaltPollNs { new, old, .. } => self.observer.poll_window(place, new, old),
            _ => {}
        }
        match kind {
            Kind::KvmApicAcceptIrq { apicid, vec, .. } => {
                self.on_accept(place, apicid, vec, false);
                return place.own;
            }
            Kind::KvmApicvAcceptIrq { apicid, vec, .. } => {
                self.on_accept(place, apicid, vec, true);
                return place.own;
            }
            Kind::KvmUpdateMasterClock { .. } | Kind::KvmTrackTsc { .. } => return place.own,
            kind if is_of_host(kind) => return place.own,
            _ => {}
        }
        let vcpu = place.own.or_else(|| self.adopt(event, kind))?;
        self.vcpus[vcpu.index()].is_seen = true;
        match kind {
            Kind::KvmVcpuWakeup { ns, waited, .. } => self.on_halt_end(vcpu, place, ns, waited),
            Kind::KvmApicIpi { icr_low, .. } => {
                self.on_ipi(vcpu, place, Some(icr_low.to_le_bytes()[0]));
            }
            Kind::KvmHypercall {
                nr: KVM_HC_SEND_IPI,
                ..
            } => self.on_ipi(vcpu, place, None),
            Kind::KvmHvTimerState {
                hv_timer_in_use, ..
            } => {
                // While the timer is not in hardware, the hrtimer that the thread has just started is it.
                let started = self.vcpus[vcpu.index()].started_timer.take();
                if let Some((hrtimer, expires)) = started.filter(|_| !hv_timer_in_use) {
                    self.timers.set_owner(hrtimer, Owned { vcpu, expires });
                }
            }
            _ => {}
        }
        Some(vcpu)
    }

    /// `kvm_vcpu_wakeup` in the vCPU's own context.
    fn on_halt_end(&mut self, vcpu: VcpuIndex, place: &Place, ns: u64, waited: bool) {
        self.settle(vcpu, self.now);
        let halted = &self.vcpus[vcpu.index()];
        if halted.run != Run::Running {
            return;
        }
        let halt = Halt {
            start: self.now.saturating_sub(ns).max(halted.mode_start),
            ns,
            waited,
            mode: halted.mode,
            running_since: halted.run_start,
            slept_at: halted.slept_at,
            has_switches: self.has_switches,
        };
        self.observer.halt(vcpu, place, &halt);
    }

    /// A vCPU asks for an interrupt at others: `kvm_apic_ipi`, or a hypercall that sends IPIs.
    fn on_ipi(&mut self, vcpu: VcpuIndex, place: &Place, vector: Option<u8>) {
        self.cpus[usize::from(place.cpu)].sent = Some(Sent {
            time: self.now,
            vcpu,
            vector,
        });
    }

    /// `kvm_apic_accept_irq`, or `kvm_apicv_accept_irq` of a vector that the hardware delivers.
    fn on_accept(&mut self, place: &Place, apicid: u32, vector: u8, by_hardware: bool) {
        let cpu = &mut self.cpus[usize::from(place.cpu)];
        let in_task = cpu.expiring.is_none() && !cpu.in_interrupt();
        let current = cpu.vcpu().filter(|_| in_task);
        let expiring = cpu.expiring;
        let sent = cpu.sent.filter(|sent| {
            in_task
                && Some(sent.vcpu) == cpu.vcpu()
                && sent.vector.is_none_or(|asked| asked == vector)
        });
        cpu.accepted = current.map(|_| apicid);
        if !self.observer.wants_accepted() {
            return;
        }
        let Some(target) = self.target_of(apicid, current.or(expiring)) else {
            return;
        };
        let accept = Accept {
            vector,
            sent: sent.map(|sent| sent.time),
            by_hardware,
            by_timer: Some(target) == expiring,
        };
        self.observer.accepted(target, place, &accept);
    }

    /// The vCPU with this APIC id, seen from the vCPU whose thread is current or whose timer is
    /// expiring; `None` if it could be one of several VMs'.
    fn target_of(&self, apicid: u32, seen_from: Option<VcpuIndex>) -> Option<VcpuIndex> {
        if let Some(sender) = seen_from
            && self.vcpu(sender).id.0 == apicid
        {
            return Some(sender);
        }
        let all = self.by_id.get(&apicid)?;
        let mut alive = all.iter().copied().filter(|&vcpu| self.is_alive(vcpu));
        if let Some(sender) = seen_from
            && let Some(linked) = alive.clone().find(|&vcpu| self.are_linked(sender, vcpu))
        {
            return Some(linked);
        }
        let only = alive.next()?;
        alive.next().is_none().then_some(only)
    }

    fn is_alive(&self, vcpu: VcpuIndex) -> bool {
        self.vcpu(vcpu).run != Run::Dead
    }

    /// Whether two vCPUs are known to be one VM.
    fn are_linked(&self, a: VcpuIndex, b: VcpuIndex) -> bool {
        let process = |vcpu| self.thread_of(vcpu).process.0;
        match (process(a), process(b)) {
            (0, _) | (_, 0) => self.links.root(a) == self.links.root(b),
            (a, b) => a == b,
        }
    }

    /// `hrtimer_start`.
    fn on_timer_start(
        &mut self,
        event: &Event,
        place: &Place,
        (hrtimer, expires): (u64, u64),
        function: Function,
    ) {
        self.observer
            .function(function, FunctionSeen::Started, place);
        let is_known = self.timers.rearm(hrtimer, expires);
        if let Some(owner) = is_known {
            self.observer.timer_armed(owner);
        }
        // One that is known already can be started anew by its handler, whatever task is current.
        let context = event.context;
        let is_own = context.in_task() || !context.in_interrupt() && is_known.is_none();
        let Some(vcpu) = place.current.filter(|_| is_own) else {
            return;
        };
        match function {
            Function::ApicTimer => self.timers.set_owner(hrtimer, Owned { vcpu, expires }),
            Function::Unnamed => {
                self.vcpus[vcpu.index()].started_timer = Some((hrtimer, expires));
            }
            _ => {}
        }
    }

    /// `hrtimer_expire_entry`.
    fn on_timer_expire(&mut self, place: &Place, hrtimer: u64, now: u64) {
        if let Some(Owned { vcpu, expires }) = self.timers.get(hrtimer) {
            self.observer.timer_expires(vcpu, place, now, expires);
            self.cpus[usize::from(place.cpu)].expiring = Some(vcpu);
        }
    }

    /// The current vCPU kicks the CPU `target`.
    fn on_kick(&mut self, sender: u16, target: u32) {
        let sender = &self.cpus[usize::from(sender)];
        let (Some(apicid), Some(target)) = (sender.accepted, self.cpus.get(target as usize)) else {
            return;
        };
        if let (Some(a), Some(b)) = (sender.vcpu(), target.vcpu())
            && a != b
            && self.vcpus[b.index()].id.0 == apicid
        {
            self.links.suspect(a, b);
        }
    }

    /// A task wakes a vCPU thread: which of them belong together.
    pub(crate) fn on_wakeup_evidence(&mut self, cpu: u16, woken: VcpuIndex) {
        let cpu = &self.cpus[usize::from(cpu)];
        match (cpu.vcpu(), cpu.thread()) {
            (Some(waker), _) if waker != woken => {
                let id = self.vcpus[woken.index()].id.0;
                if cpu.accepted == Some(id) {
                    // The current vCPU has just made an interrupt pending at the vCPU of this number,
                    // and nothing else came between: certain.
                    self.links.join(waker, woken);
                }
            }
            (None, Some(helper)) if helper.is_single() => self.links.helped(helper, woken),
            _ => {}
        }
    }

    /// A thread whose name says nothing shows to be a vCPU by an event that KVM traces in the vCPU's own
    /// context only.
    fn adopt(&mut self, event: &Event, kind: Kind) -> Option<VcpuIndex> {
        let (Kind::KvmHaltPollNs { vcpu, .. }
        | Kind::KvmPvTlbFlush { vcpu, .. }
        | Kind::KvmPvclockUpdate { vcpu, .. }) = kind
        else {
            return None;
        };
        let is_own = !event.context.in_interrupt() && !event.tid.is_idle();
        if is_own && vcpu != VcpuId::UNKNOWN {
            self.make_vcpu(event.tid, vcpu)
        } else {
            None
        }
    }

    /// Makes the task a vCPU thread with this number.
    fn make_vcpu(&mut self, tid: Tid, id: VcpuId) -> Option<VcpuIndex> {
        let thread = self.threads.find(tid);
        if let Some(vcpu) = self.threads.get(thread).vcpu {
            return Some(vcpu);
        }
        if !thread.is_single() {
            return None;
        }
        let is_born = self.threads.get(thread).born;
        let since = if is_born || !self.has_begun {
            self.now
        } else {
            self.first
        };
        let vcpu = self.number_vcpu(Vcpu::new(thread, id, since))?;
        self.by_id.entry(id.0).or_default().push(vcpu);
        self.threads.set_vcpu(thread, vcpu);
        self.observer.vcpu_found(vcpu, tid);
        let runs_it = |cpu: &Cpu| cpu.thread() == Some(thread);
        let cpu = self.cpus.iter().position(runs_it);
        if let Some(number) = cpu.and_then(|index| u16::try_from(index).ok()) {
            self.cpus[usize::from(number)].current = Some(Current {
                thread,
                tid: tid.0,
                vcpu: Some(vcpu),
            });
            self.find_running(vcpu, number);
        }
        Some(vcpu)
    }

    fn number_vcpu(&mut self, new: Vcpu) -> Option<VcpuIndex> {
        if let Some(vcpu) = self.take_free() {
            let old = std::mem::replace(&mut self.vcpus[vcpu.index()], new);
            self.links
                .recycle(vcpu, old.id.0, self.vcpus[vcpu.index()].id.0);
            self.timers.release(vcpu);
            self.threads.release_vcpu(old.thread);
            self.take_from_ids(vcpu, old.id);
            return Some(vcpu);
        }
        if self.vcpus.len() >= MAX_VCPUS {
            return None;
        }
        let vcpu = VcpuIndex(u32::try_from(self.vcpus.len()).ok()?);
        self.links.push(vcpu, new.id.0);
        self.vcpus.push(new);
        Some(vcpu)
    }

    /// A number that can be given out again: none that a CPU still has.
    fn take_free(&mut self) -> Option<VcpuIndex> {
        let is_used = |vcpu| {
            let on = |cpu: &Cpu| cpu.vcpu() == Some(vcpu) || cpu.expiring == Some(vcpu);
            self.cpus.iter().any(on)
        };
        let position = self.free.iter().position(|&vcpu| !is_used(vcpu))?;
        Some(self.free.swap_remove(position))
    }

    fn take_from_ids(&mut self, vcpu: VcpuIndex, id: VcpuId) {
        if let Some(list) = self.by_id.get_mut(&id.0) {
            list.retain(|&other| other != vcpu);
        }
    }

    /// The number of a vCPU has shown in an event of its own.
    #[inline]
    fn renumber(&mut self, vcpu: VcpuIndex, id: VcpuId) {
        if id != VcpuId::UNKNOWN && self.vcpus[vcpu.index()].id != id {
            self.change_number(vcpu, id);
        }
    }

    #[cold]
    fn change_number(&mut self, vcpu: VcpuIndex, id: VcpuId) {
        let old = std::mem::replace(&mut self.vcpus[vcpu.index()].id, id);
        self.links.renumber(vcpu, old.0, id.0);
        self.take_from_ids(vcpu, old);
        self.by_id.entry(id.0).or_default().push(vcpu);
    }

    fn on_task(&mut self, tid: Tid, process: Tid, name: NameId, names: &dyn Names) {
        if tid.is_idle() {
            return;
        }
        let mut thread = self.threads.find(tid);
        let is_current = |cpu: &Cpu| cpu.thread() == Some(thread);
        if self.threads.get(thread).dead && !self.cpus.iter().any(is_current) {
            thread = self.replace(thread, tid);
        }
        let named = ThreadRef { index: thread, tid };
        self.observer.thread_named(named, process, names.name(name));
        if !thread.is_single() {
            return;
        }
        self.threads.introduce(thread, process, name);
        if let Some(vcpu) = vcpu_in_name(names.name(name)) {
            self.make_vcpu(tid, vcpu);
        }
    }

    fn on_vcpu_thread(&mut self, tid: Tid, vm: NameId, id: VcpuId) {
        let Some(vcpu) = self.make_vcpu(tid, id) else {
            return;
        };
        self.renumber(vcpu, id);
        let vcpu = &mut self.vcpus[vcpu.index()];
        vcpu.recorded_vm = Some(vm);
        vcpu.is_seen = true;
    }

    fn on_loss_event(&mut self, event: &Event, count: u64) {
        let cpu = event.cpu.0;
        let latest = self.cpus.get(usize::from(cpu)).map(|cpu| cpu.last);
        self.observer.lost(&Loss {
            cpu,
            time: event.time_ns.max(self.now),
            since: latest.unwrap_or(0),
            count,
            is_first: !self.has_begun,
        });
        if self.has_begun {
            self.ensure_cpu(cpu);
            self.on_lost(cpu);
        }
    }
}

/// Whether a vCPU's thread runs on this CPU, as far as is known. A thread that has exited stays current
/// until it is switched out.
fn runs_on(vcpu: &Vcpu, cpu: u16) -> bool {
    match vcpu.run {
        Run::Running => vcpu.cpu == cpu,
        Run::Dead => true,
        _ => false,
    }
}

/// Events that say nothing of KVM.
const fn is_of_host(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Other { .. }
            | Kind::SchedStatRuntime { .. }
            | Kind::SchedStatWait { .. }
            | Kind::SoftirqRaise { .. }
            | Kind::IpiSendCpumask { .. }
            | Kind::CsdQueueCpu { .. }
            | Kind::CsdFunctionExit { .. }
            | Kind::HrtimerSetup { .. }
            | Kind::HrtimerCancel { .. }
    )
}

/// Events at the edge of an interrupt handler, which say nothing of the handlers around it.
const fn is_handler_edge(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::VectorEntry { .. }
            | Kind::VectorExit { .. }
            | Kind::IrqHandlerEntry { .. }
            | Kind::IrqHandlerExit { .. }
            | Kind::SoftirqEntry { .. }
            | Kind::SoftirqExit { .. }
            | Kind::SchedSwitch { .. }
    )
}
