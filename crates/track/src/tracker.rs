//! Dispatch of events to the part of the state that they change, and the rules for KVM's events.

use stealtime_events::hypercall::KVM_HC_SEND_IPI;
use stealtime_events::{CpuId, Event, Kind, NameId, Names, Tid, VcpuId};

use crate::cpu::{Cpu, Current, Sent};
use crate::host::Host;
use crate::links::Links;
use crate::names::vcpu_in_name;
use crate::observer::{Accept, Exit, FunctionSeen, Halt, Loss, Observer, Place};
use crate::timers::{Armed, Owned, Timers};
use crate::{
    Cause, Function, IntMap, Mode, Reasons, Run, SwitchOut, Thread, ThreadIndex, ThreadRef,
    Threads, Vcpu, VcpuIndex,
};

/// Most vCPU threads; entries and exits of further ones are counted only. 64 full VMs of the largest
/// size (`KVM_MAX_VCPUS`, 4096).
const MAX_VCPUS: usize = 1 << 18;
/// No host that is traced is silent for so long, in ns: its ticks and kernel threads trace every few
/// seconds. So a clock jumps, or the file is damaged.
pub const LONGEST_SILENCE_NS: u64 = 60_000_000_000;

/// The state of a host, followed from event to event. Its observer receives the changes.
#[derive(Debug)]
pub struct Tracker<O> {
    host: Host<O>,
    /// Whether an event was seen.
    has_begun: bool,
    /// Time of the first event, in ns of the trace's clock.
    first: u64,
    out_of_order: u64,
    /// Events of vCPU threads past the limits of the tables.
    untracked: u64,
    /// vCPUs by their number in their VM: each VM has its own vCPU 0.
    by_id: IntMap<u32, Vec<VcpuIndex>>,
    timers: Timers,
}

impl<O: Observer> Tracker<O> {
    /// A tracker that has seen nothing yet.
    #[must_use]
    pub fn new(observer: O) -> Self {
        Self {
            host: Host::new(observer),
            has_begun: false,
            first: 0,
            out_of_order: 0,
            untracked: 0,
            by_id: IntMap::default(),
            timers: Timers::default(),
        }
    }

    /// The observer.
    pub const fn observer(&self) -> &O {
        &self.host.observer
    }

    /// The observer, to change it.
    pub const fn observer_mut(&mut self) -> &mut O {
        &mut self.host.observer
    }

    /// The observer, after [`Tracker::close`] if it reads spans.
    pub fn into_observer(self) -> O {
        self.host.observer
    }

    /// All tasks.
    #[must_use]
    pub const fn threads(&self) -> &Threads {
        &self.host.threads
    }

    /// All vCPU threads, by number.
    #[must_use]
    pub fn vcpus(&self) -> &[Vcpu] {
        &self.host.vcpus
    }

    /// A vCPU thread.
    #[must_use]
    pub fn vcpu(&self, vcpu: VcpuIndex) -> &Vcpu {
        &self.host.vcpus[vcpu.index()]
    }

    /// The task that runs a vCPU.
    #[must_use]
    pub fn thread_of(&self, vcpu: VcpuIndex) -> &Thread {
        self.host.threads.get(self.vcpu(vcpu).thread)
    }

    /// How many CPUs there are: one more than the highest number seen.
    #[must_use]
    pub fn cpu_count(&self) -> usize {
        self.host.cpus.len()
    }

    /// Whether a `sched_switch` was seen: without any, threads seem to run all the time.
    #[must_use]
    pub const fn has_switches(&self) -> bool {
        self.host.has_switches
    }

    /// The exit reasons seen.
    #[must_use]
    pub const fn reasons(&self) -> &Reasons {
        &self.host.reasons
    }

    /// Evidence on which vCPUs are one VM.
    #[must_use]
    pub const fn links(&self) -> &Links {
        &self.host.links
    }

    /// Time of the first event.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Time of the latest event.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.host.now
    }

    /// Events that were earlier than one before them.
    #[must_use]
    pub const fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// Entries and exits of threads that no number is left for, and which no answer therefore has.
    #[must_use]
    pub const fn untracked(&self) -> u64 {
        self.untracked
    }

    /// So many events, given or skipped, were earlier than one before them.
    pub const fn set_out_of_order(&mut self, events: u64) {
        self.out_of_order = events;
    }

    /// Joins the groups of [`Tracker::links`] by weak evidence as well. To be called at the end;
    /// `is_helper` says which tasks can be a VMM's.
    pub fn settle_links(&mut self, is_helper: impl Fn(&Thread) -> bool) {
        let threads = &self.host.threads;
        self.host
            .links
            .settle(|index| is_helper(threads.get(index)));
    }

    /// Takes events that the reader has counted and left out: first and last time, and the highest CPU.
    /// To be called after the last event.
    pub fn skip(&mut self, first: u64, last: u64, last_cpu: CpuId) {
        if !std::mem::replace(&mut self.has_begun, true) {
            (self.first, self.host.now) = (first, last);
        }
        self.first = self.first.min(first);
        self.host.now = self.host.now.max(last);
        self.host.ensure_cpu(last_cpu.0);
    }

    /// The trace is over: every state lasts until its last event.
    pub fn close(&mut self) {
        self.host.close_at(self.host.now);
    }

    /// The same for a trace that is cut at `time`, in ns, after its last event.
    pub fn close_at(&mut self, time: u64) {
        self.host.close_at(time);
    }

    /// Reports all time up to `time`, in ns, and goes on: a reader's sums are of the time until there. A loss
    /// that shows later cannot take back what was reported.
    pub fn report_until(&mut self, time: u64) {
        if self.has_begun {
            self.host.report_until(time);
        }
    }

    /// The clock has jumped. What each CPU and its waiters do is unknown from its latest event to its next
    /// one, as after a loss. Sleeps go on.
    pub fn forget_states(&mut self) {
        self.host.on_jump();
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
        self.host.ensure_cpu(number);
        self.check_current(event);
        let place = self.place(event);
        let place = self.dispatch(event, place, names);
        self.host.observer.event(event, &place, names);
        self.host.cpus[usize::from(number)].last = self.host.now;
    }

    fn begin(&mut self, event: &Event) {
        self.has_begun = true;
        self.first = event.time_ns;
        self.host.now = event.time_ns;
        self.host.observer.begins(event.time_ns, event.cpu.0);
        for vcpu in &mut self.host.vcpus {
            vcpu.since = event.time_ns;
        }
    }

    #[inline]
    fn advance(&mut self, event: &Event) {
        if event.time_ns < self.host.now {
            self.out_of_order += 1;
            return;
        }
        if event.time_ns - self.host.now > LONGEST_SILENCE_NS {
            self.host
                .observer
                .silence(self.host.now, event.time_ns, event.cpu.0);
        }
        self.host.now = event.time_ns;
    }

    /// Compares the event's task with the current one: a switch can be missing.
    #[inline]
    fn check_current(&mut self, event: &Event) {
        let number = event.cpu.0;
        let cpu = &mut self.host.cpus[usize::from(number)];
        match cpu.current {
            Some(current) if current.tid == event.tid.0 => {
                let handles = cpu.in_interrupt();
                if let Some(vcpu) = current.vcpu
                    && !runs_on(&self.host.vcpus[vcpu.index()], number)
                {
                    // Another CPU has shown since that the thread is not here any more, and here it is.
                    self.host.find_running(vcpu, number);
                } else if handles && event.context.in_task() && !is_handler_edge(event.kind) {
                    cpu.leave_all();
                }
            }
            _ => self.host.make_current(event),
        }
    }

    fn place(&self, event: &Event) -> Place {
        let cpu = event.cpu.0;
        let current = self.host.cpus[usize::from(cpu)].current;
        debug_assert_eq!(current.map(|current| current.tid), Some(event.tid.0));
        let thread = current.map_or(ThreadIndex::OVERFLOW, |current| current.thread);
        let current = current.and_then(|current| current.vcpu);
        Place {
            cpu,
            thread,
            tid: event.tid,
            time: self.host.now,
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
                let departure = SwitchOut::from_prev_state(prev_state);
                self.host
                    .on_switch(place.cpu, prev, departure, next, next_prio);
            }
            Kind::SchedWaking { .. }
            | Kind::SchedWakeup { .. }
            | Kind::SchedWakeupNew { .. }
            | Kind::SchedMigrateTask { .. }
            | Kind::SchedProcessFork { .. }
            | Kind::SchedProcessExit { .. } => self.host.on_sched(event, &place),
            Kind::VectorEntry { .. } | Kind::IrqHandlerEntry { .. } => {
                self.host.on_interrupt(place.cpu, Some(Cause::HARDIRQ));
            }
            Kind::SoftirqEntry { vec } => {
                self.host.on_interrupt(place.cpu, Some(Cause::softirq(vec)))
            }
            Kind::VectorExit { .. } | Kind::IrqHandlerExit { .. } | Kind::SoftirqExit { .. } => {
                self.host.on_interrupt(place.cpu, None);
            }
            Kind::HrtimerStart {
                hrtimer,
                expires_ns,
                function,
            } => {
                let function = self.timers.function(function, names);
                let armed = Armed {
                    hrtimer,
                    expires: expires_ns,
                };
                self.on_timer_start(event, &place, armed, function);
            }
            Kind::HrtimerExpireEntry {
                hrtimer,
                now_ns,
                function,
            } => {
                let function = self.timers.function(function, names);
                self.host
                    .observer
                    .function(function, FunctionSeen::Expired, &place);
                self.on_timer_expire(&place, hrtimer, now_ns);
            }
            Kind::HrtimerExpireExit { .. } => {
                self.host.cpus[usize::from(place.cpu)].expiring = None
            }
            Kind::CsdFunctionEntry { func } => {
                let function = self.timers.function(func, names);
                self.host
                    .observer
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
        match place.current.or_else(|| self.make_vcpu(event.tid, id)) {
            Some(vcpu) => self.enter_or_exit(event, id, place, vcpu),
            None => self.untracked += 1,
        }
    }

    fn enter_or_exit(&mut self, event: &Event, id: VcpuId, place: &Place, vcpu: VcpuIndex) {
        self.renumber(vcpu, id);
        self.host.settle(vcpu, self.host.now);
        let state = &mut self.host.vcpus[vcpu.index()];
        state.is_seen = true;
        state.mode_start = self.host.now;
        self.host.cpus[usize::from(place.cpu)].end_request();
        let Kind::KvmExit {
            reason,
            intr_vector,
            info1,
            ..
        } = event.kind
        else {
            state.mode = Mode::Guest;
            return self.host.observer.entry(vcpu, place, event.time_ns);
        };
        let recorded = reason;
        let reason = self.host.reasons.find(recorded);
        state.mode = Mode::Exit(reason);
        let exit = Exit {
            reason,
            recorded,
            info1,
            class: self.host.reasons.class(reason),
            vector: intr_vector,
            event_time: event.time_ns,
        };
        self.host.observer.exit(vcpu, place, &exit);
    }

    /// Events of KVM other than entry and exit. Returns the current vCPU, which most of them are about.
    fn on_kvm(&mut self, event: &Event, kind: Kind, place: &Place) -> Option<VcpuIndex> {
        match kind {
            Kind::KvmVcpuWakeup { ns, waited, .. } => {
                self.host.observer.halt_ends(place, ns, waited)
            }
            Kind::KvmHaltPollNs { new, old, .. } => self.host.observer.poll_window(place, new, old),
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
        self.host.vcpus[vcpu.index()].is_seen = true;
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
                // `start_sw_timer` traces this after it has started the hrtimer. So the thread's latest
                // hrtimer is the LAPIC's, unless the preemption timer replaces it.
                let started = self.host.vcpus[vcpu.index()].started_timer.take();
                if let Some(armed) = started.filter(|_| !hv_timer_in_use) {
                    self.timers.set_owner(armed, vcpu);
                }
            }
            _ => {}
        }
        Some(vcpu)
    }

    /// `kvm_vcpu_wakeup` in the vCPU's own context.
    fn on_halt_end(&mut self, vcpu: VcpuIndex, place: &Place, ns: u64, waited: bool) {
        self.host.settle(vcpu, self.host.now);
        let halted = &self.host.vcpus[vcpu.index()];
        if halted.run != Run::Running {
            return;
        }
        let halt = Halt {
            start: self.host.now.saturating_sub(ns).max(halted.mode_start),
            ns,
            waited,
            mode: halted.mode,
            running_since: halted.run_start,
            slept_at: halted.slept_at,
            has_switches: self.host.has_switches,
        };
        self.host.observer.halt(vcpu, place, &halt);
    }

    /// A vCPU asks for an interrupt at others: `kvm_apic_ipi`, or a hypercall that sends IPIs.
    fn on_ipi(&mut self, vcpu: VcpuIndex, place: &Place, vector: Option<u8>) {
        self.host.cpus[usize::from(place.cpu)].sent = Some(Sent {
            time: self.host.now,
            vcpu,
            vector,
        });
    }

    /// `kvm_apic_accept_irq`, or `kvm_apicv_accept_irq` of a vector that the hardware delivers.
    fn on_accept(&mut self, place: &Place, apicid: u32, vector: u8, by_hardware: bool) {
        let cpu = &mut self.host.cpus[usize::from(place.cpu)];
        let in_task = cpu.expiring.is_none() && !cpu.in_interrupt();
        let current = cpu.vcpu().filter(|_| in_task);
        let expiring = cpu.expiring;
        let sent = cpu.sent.filter(|sent| {
            in_task
                && Some(sent.vcpu) == cpu.vcpu()
                && sent.vector.is_none_or(|requested| requested == vector)
        });
        cpu.accepted = current.map(|_| apicid);
        if !self.host.observer.wants_accepted() {
            return;
        }
        // Without a target it is a vCPU of one of several VMs, and the event does not say which.
        if let Some(target) = self.target_of(apicid, current.or(expiring)) {
            let accept = Accept {
                vector,
                sent: sent.map(|sent| sent.time),
                by_hardware,
                by_timer: Some(target) == expiring,
            };
            self.host.observer.accepted(target, place, &accept);
        }
    }

    /// The vCPU with this APIC id, seen from another one of its VM: the current one, or the owner of the
    /// expiring timer. `None` if it could be one of several VMs'.
    fn target_of(&self, apicid: u32, seen_from: Option<VcpuIndex>) -> Option<VcpuIndex> {
        if let Some(sender) = seen_from
            && self.vcpu(sender).id.0 == apicid
        {
            return Some(sender);
        }
        let candidates = self.by_id.get(&apicid)?;
        let mut alive = candidates
            .iter()
            .copied()
            .filter(|&vcpu| self.is_alive(vcpu));
        if let Some(sender) = seen_from
            && let Some(linked) = alive.clone().find(|&vcpu| self.are_linked(sender, vcpu))
        {
            return Some(linked);
        }
        let candidate = alive.next()?;
        alive.next().is_none().then_some(candidate)
    }

    fn is_alive(&self, vcpu: VcpuIndex) -> bool {
        self.vcpu(vcpu).run != Run::Dead
    }

    /// Whether two vCPUs are known to be one VM.
    fn are_linked(&self, a: VcpuIndex, b: VcpuIndex) -> bool {
        let process = |vcpu| self.thread_of(vcpu).process.0;
        match (process(a), process(b)) {
            (0, _) | (_, 0) => self.host.links.root(a) == self.host.links.root(b),
            (a, b) => a == b,
        }
    }

    /// `hrtimer_start`.
    fn on_timer_start(&mut self, event: &Event, place: &Place, armed: Armed, function: Function) {
        self.host
            .observer
            .function(function, FunctionSeen::Started, place);
        let owner = self.timers.rearm(armed);
        if let Some(owner) = owner {
            self.host.observer.timer_armed(owner);
        }
        // A timer with an owner can be restarted by its handler, whatever task is current.
        let context = event.context;
        let is_own = context.in_task() || !context.in_interrupt() && owner.is_none();
        match (place.current.filter(|_| is_own), function) {
            (Some(vcpu), Function::ApicTimer) => self.timers.set_owner(armed, vcpu),
            (Some(vcpu), Function::Unnamed) => {
                self.host.vcpus[vcpu.index()].started_timer = Some(armed);
            }
            // Timers of the host, and of tasks that are no vCPU.
            _ => {}
        }
    }

    /// `hrtimer_expire_entry`.
    fn on_timer_expire(&mut self, place: &Place, hrtimer: u64, now: u64) {
        if let Some(Owned { vcpu, expires }) = self.timers.get(hrtimer) {
            self.host.observer.timer_expires(vcpu, place, now, expires);
            self.host.cpus[usize::from(place.cpu)].expiring = Some(vcpu);
        }
    }

    /// The current vCPU kicks the CPU `target`.
    fn on_kick(&mut self, sender: u16, target: u32) {
        let sender = &self.host.cpus[usize::from(sender)];
        // Other kicks follow a request (`kvm_make_request`), not an interrupt.
        if let (Some(apicid), Some(target)) = (sender.accepted, self.host.cpus.get(target as usize))
            && let (Some(a), Some(b)) = (sender.vcpu(), target.vcpu())
            && a != b
            && self.host.vcpus[b.index()].id.0 == apicid
        {
            self.host.links.suspect(a, b);
        }
    }

    /// A thread shows to be a vCPU by an event that KVM traces in the vCPU's own context only, whatever
    /// the thread's name.
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
        let thread = self.host.threads.find(tid);
        if let Some(vcpu) = self.host.threads.get(thread).vcpu {
            return Some(vcpu);
        }
        if !thread.is_single() {
            return None;
        }
        let is_born = self.host.threads.get(thread).born;
        // A thread that was not seen to begin is older than the trace.
        let known_since = if is_born || !self.has_begun {
            self.host.now
        } else {
            self.first
        };
        let vcpu = self.number_vcpu(Vcpu::new(thread, id, known_since))?;
        self.by_id.entry(id.0).or_default().push(vcpu);
        self.host.threads.set_vcpu(thread, vcpu);
        self.host.observer.vcpu_found(vcpu, tid);
        let runs_it = |cpu: &Cpu| cpu.thread() == Some(thread);
        let cpu = self.host.cpus.iter().position(runs_it);
        if let Some(number) = cpu.and_then(|index| u16::try_from(index).ok()) {
            self.host.cpus[usize::from(number)].current = Some(Current {
                thread,
                tid: tid.0,
                vcpu: Some(vcpu),
            });
            self.host.find_running(vcpu, number);
        }
        Some(vcpu)
    }

    fn number_vcpu(&mut self, new: Vcpu) -> Option<VcpuIndex> {
        if let Some(vcpu) = self.take_free() {
            let old = std::mem::replace(&mut self.host.vcpus[vcpu.index()], new);
            self.host
                .links
                .recycle(vcpu, old.id.0, self.host.vcpus[vcpu.index()].id.0);
            self.timers.release(vcpu);
            self.host.threads.release_vcpu(old.thread);
            self.take_from_ids(vcpu, old.id);
            return Some(vcpu);
        }
        if self.host.vcpus.len() >= MAX_VCPUS {
            return None;
        }
        let vcpu = VcpuIndex(u32::try_from(self.host.vcpus.len()).ok()?);
        self.host.links.push(vcpu, new.id.0);
        self.host.vcpus.push(new);
        Some(vcpu)
    }

    /// A number that can be given out again, and that no CPU still has: a thread that has exited is
    /// current until its last switch.
    fn take_free(&mut self) -> Option<VcpuIndex> {
        let is_used = |vcpu| {
            let names = |cpu: &Cpu| cpu.vcpu() == Some(vcpu) || cpu.expiring == Some(vcpu);
            self.host.cpus.iter().any(names)
        };
        let position = self.host.free.iter().position(|&vcpu| !is_used(vcpu))?;
        Some(self.host.free.swap_remove(position))
    }

    fn take_from_ids(&mut self, vcpu: VcpuIndex, id: VcpuId) {
        if let Some(list) = self.by_id.get_mut(&id.0) {
            list.retain(|&listed| listed != vcpu);
        }
    }

    /// The number of a vCPU has shown in an event of its own.
    #[inline]
    fn renumber(&mut self, vcpu: VcpuIndex, id: VcpuId) {
        if id != VcpuId::UNKNOWN && self.host.vcpus[vcpu.index()].id != id {
            self.change_number(vcpu, id);
        }
    }

    #[cold]
    fn change_number(&mut self, vcpu: VcpuIndex, id: VcpuId) {
        let old = std::mem::replace(&mut self.host.vcpus[vcpu.index()].id, id);
        self.host.links.renumber(vcpu, old.0, id.0);
        self.take_from_ids(vcpu, old);
        self.by_id.entry(id.0).or_default().push(vcpu);
    }

    fn on_task(&mut self, tid: Tid, process: Tid, name: NameId, names: &dyn Names) {
        if tid.is_idle() {
            return;
        }
        let mut thread = self.host.threads.find(tid);
        let is_current = |cpu: &Cpu| cpu.thread() == Some(thread);
        if self.host.threads.get(thread).dead && !self.host.cpus.iter().any(is_current) {
            thread = self.host.replace(thread, tid);
        }
        let named = ThreadRef { index: thread, tid };
        self.host
            .observer
            .thread_named(named, process, names.name(name));
        if !thread.is_single() {
            return;
        }
        self.host.threads.introduce(thread, process, name);
        if let Some(vcpu) = vcpu_in_name(names.name(name)) {
            self.make_vcpu(tid, vcpu);
        }
    }

    fn on_vcpu_thread(&mut self, tid: Tid, vm: NameId, id: VcpuId) {
        if let Some(vcpu) = self.make_vcpu(tid, id) {
            self.renumber(vcpu, id);
            let vcpu = &mut self.host.vcpus[vcpu.index()];
            vcpu.recorded_vm = Some(vm);
            vcpu.is_seen = true;
        } else {
            self.untracked += 1;
        }
    }

    fn on_loss_event(&mut self, event: &Event, count: u64) {
        let cpu = event.cpu.0;
        let latest = self.host.cpus.get(usize::from(cpu)).map(|cpu| cpu.last);
        self.host.observer.lost(&Loss {
            cpu,
            time: event.time_ns.max(self.host.now),
            since: latest.unwrap_or(0),
            count,
            is_first: !self.has_begun,
        });
        if self.has_begun {
            self.host.ensure_cpu(cpu);
            self.host.on_lost(cpu);
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
