//! Each event to the analyses that read it.

use stealtime_events::hypercall::KVM_HC_SEND_IPI;
use stealtime_events::{CpuId, Event, Kind, NameId, Names, Tid, VcpuId};

use crate::Analysis;
use crate::cpu::{Cpu, NO_VCPU};
use crate::keys::{MMIO_READ, MMIO_WRITE};
use crate::options::Window;
use crate::ready::Cause;
use crate::threads::{OVERFLOW, ThreadId, vcpu_in_name};
use crate::vcpu::{Run, Vcpu};

/// Most vCPU threads; events of further ones are not accounted. 64 full VMs of the largest size.
const MAX_VCPUS: usize = 1 << 18;
/// No host that is traced is silent for so long, in ns: a clock jumps, or the file is damaged.
const MOST_SILENCE: u64 = 60_000_000_000;
/// `MSR_IA32_TSC_DEADLINE`, and the x2APIC's initial count: writes that arm the LAPIC timer.
const TIMER_MSRS: [u32; 2] = [0x6e0, 0x838];

/// Where and when an event is.
#[derive(Clone, Copy)]
struct Place {
    cpu: u16,
    now: u64,
    counts: bool,
    /// The vCPU whose thread is current.
    vcpu: Option<u32>,
    /// The same, if the event is this thread's doing.
    own: Option<u32>,
}

impl Analysis {
    /// Takes the next event in the order of time. An event earlier than the one before it is taken
    /// as if it came at the same time, and counted.
    pub fn event(&mut self, event: &Event, names: &dyn Names) {
        if !self.has_begun && event.kind.is_host_event() {
            self.has_begun = true;
            self.first = event.time_ns;
            self.now = event.time_ns;
            self.window = Window::new(&self.options.selection, event.time_ns);
            if !self.window.has(event.time_ns, event.cpu.0) {
                // What was lost before the first event belongs to its moment.
                (self.lost, self.lost_gaps) = (0, 0);
            }
            for vcpu in &mut self.vcpus {
                vcpu.since = event.time_ns;
            }
        }
        match event.kind {
            Kind::Task { tid, process, name } => return self.on_task(tid, process, name, names),
            Kind::VcpuThread { tid, vm, vcpu } => return self.on_vcpu_thread(tid, vm, vcpu),
            Kind::Lost { count } => return self.on_loss_event(event, count),
            _ => {}
        }
        if event.time_ns < self.now {
            self.out_of_order += 1;
        } else {
            if event.time_ns - self.now > MOST_SILENCE {
                self.on_silence(event.time_ns, event.cpu.0);
            }
            self.now = event.time_ns;
        }
        let now = self.now;
        let number = event.cpu.0;
        self.ensure_cpu(number);
        let counts = self.window.has(now, number);
        if counts {
            self.events += 1;
            self.counts.add(event.kind);
        }
        let Some(cpu) = self.cpus.get_mut(usize::from(number)) else {
            return;
        };
        if cpu.tid != event.tid.0 || cpu.current.is_none() {
            self.make_current(event, now);
        } else if cpu.vcpu != NO_VCPU && !runs_on(self.vcpus.get(cpu.vcpu as usize), number) {
            // Another CPU has shown since that the thread is not here any more, and here it is.
            let vcpu = cpu.vcpu;
            self.found_running(vcpu, number, now);
        } else if cpu.in_interrupt() && event.context.in_task() && !is_interrupt(event.kind) {
            cpu.leave_all();
        }
        self.dispatch(event, counts, names);
        if let Some(cpu) = self.cpus.get_mut(usize::from(number)) {
            cpu.last = now;
        }
    }

    /// There was no event since the last one until `now`.
    #[cold]
    fn on_silence(&mut self, now: u64, cpu: u16) {
        let ns = now - self.now;
        let counts = self.window.clip(self.now, now, cpu) > MOST_SILENCE;
        if counts && self.silence.is_none_or(|(longest, _)| longest < ns) {
            self.silence = Some((ns, self.now));
        }
    }

    /// Takes events that the reader has counted and not given: how many there were of this name, their
    /// first and last time, and the highest CPU. To be called after the last event, and without a
    /// selection of time or CPUs.
    pub fn counted(
        &mut self,
        (name, events): (NameId, u64),
        (first_ns, last_ns): (u64, u64),
        last_cpu: CpuId,
    ) {
        if events == 0 {
            return;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            (self.first, self.now) = (first_ns, last_ns);
        }
        self.first = self.first.min(first_ns);
        self.now = self.now.max(last_ns);
        self.events += events;
        self.counts.add_other(name, events);
        self.ensure_cpu(last_cpu.0);
    }

    /// So many events, given or counted, were earlier than one before them.
    pub const fn set_out_of_order(&mut self, events: u64) {
        self.out_of_order = events;
    }

    fn dispatch(&mut self, event: &Event, counts: bool, names: &dyn Names) {
        let cpu = event.cpu.0;
        let current = self
            .cpus
            .get(usize::from(cpu))
            .map_or(NO_VCPU, |cpu| cpu.vcpu);
        let vcpu = Some(current).filter(|&vcpu| vcpu != NO_VCPU);
        let own = vcpu.filter(|_| !event.context.in_interrupt());
        let place = Place {
            cpu,
            now: self.now,
            counts,
            vcpu,
            own,
        };
        match event.kind {
            Kind::KvmEntry { .. } | Kind::KvmExit { .. } => self.on_entry_or_exit(event, place),
            Kind::SchedSwitch {
                prev,
                next,
                prev_state,
                ..
            } => {
                self.on_switch(cpu, place.now, prev, next, prev_state);
            }
            Kind::SchedWaking { .. }
            | Kind::SchedWakeup { .. }
            | Kind::SchedWakeupNew { .. }
            | Kind::SchedMigrateTask { .. }
            | Kind::SchedProcessFork { .. }
            | Kind::SchedProcessExit { .. } => self.on_sched(event, place),
            Kind::VectorEntry { .. }
            | Kind::VectorExit { .. }
            | Kind::IrqHandlerEntry { .. }
            | Kind::IrqHandlerExit { .. }
            | Kind::SoftirqEntry { .. }
            | Kind::SoftirqExit { .. } => self.on_handler(event.kind, place),
            Kind::HrtimerStart {
                hrtimer,
                expires_ns,
                function,
            } => {
                let timer = (hrtimer, expires_ns);
                self.on_hrtimer_start((vcpu, counts), event.context, timer, function, names);
            }
            Kind::HrtimerExpireEntry {
                hrtimer,
                now_ns,
                function,
            } => {
                self.on_hrtimer_expire(cpu, place.now, (hrtimer, now_ns), function, names);
            }
            Kind::CsdFunctionEntry { func } => self.on_csd_function(counts, func, names),
            Kind::HrtimerExpireExit { .. } => {
                if let Some(cpu) = self.cpus.get_mut(usize::from(cpu)) {
                    cpu.expiring = NO_VCPU;
                }
            }
            Kind::IpiSendCpu { cpu: to, callback } => {
                // A kick is a reschedule IPI without a callback.
                if own.is_some() && matches!(names.name(callback), "" | "0x0" | "0" | "(null)") {
                    self.on_kick_evidence(cpu, to);
                }
            }
            kind => self.on_kvm(event, kind, place),
        }
    }

    fn on_entry_or_exit(&mut self, event: &Event, place: Place) {
        let (Kind::KvmEntry { vcpu: id } | Kind::KvmExit { vcpu: id, .. }) = event.kind else {
            return;
        };
        let Some(index) = place.vcpu.or_else(|| self.make_vcpu(event.tid, id)) else {
            return;
        };
        self.renumber(index, id);
        self.see(index);
        match event.kind {
            Kind::KvmExit {
                reason,
                intr_vector,
                ..
            } => {
                let place = (place.cpu, place.now, event.time_ns);
                self.on_exit(index, place, reason, intr_vector);
            }
            _ => self.on_entry(index, place.cpu, place.now, event.time_ns),
        }
    }

    fn on_sched(&mut self, event: &Event, place: Place) {
        let now = place.now;
        match event.kind {
            Kind::SchedWaking {
                tid, target_cpu, ..
            } => {
                let thread = self.threads.find(tid);
                match (self.threads.get(thread).vcpu, place.own) {
                    (Some(woken), _) => {
                        self.on_waking(event, now, woken, target_cpu);
                        if event.context.in_task() {
                            self.on_wakeup_evidence(place.cpu, woken);
                        }
                    }
                    (None, Some(vcpu)) if event.context.in_task() => {
                        self.on_helper_evidence(vcpu, thread);
                    }
                    (None, _) => {}
                }
            }
            Kind::SchedWakeup {
                tid, target_cpu, ..
            }
            | Kind::SchedWakeupNew {
                tid, target_cpu, ..
            } => {
                self.lacks_wakeups = false;
                if let Kind::SchedWakeupNew { .. } = event.kind {
                    self.on_birth(tid, Tid(0), now);
                }
                let thread = self.threads.find(tid);
                if let Some(woken) = self.threads.get(thread).vcpu {
                    self.on_wakeup(event, now, woken, target_cpu);
                }
            }
            Kind::SchedMigrateTask { tid, dest_cpu, .. } => {
                let thread = self.threads.find(tid);
                if let Some(vcpu) = self.threads.get(thread).vcpu {
                    self.on_migrate(vcpu, now, dest_cpu);
                }
            }
            Kind::SchedProcessFork { parent, child } => self.on_birth(child, parent, now),
            Kind::SchedProcessExit { tid } => {
                let thread = self.threads.find(tid);
                self.on_death(thread, now);
            }
            _ => {}
        }
    }

    fn on_handler(&mut self, kind: Kind, place: Place) {
        let begins = match kind {
            Kind::VectorEntry { .. } | Kind::IrqHandlerEntry { .. } => Some(Cause::HARDIRQ),
            Kind::SoftirqEntry { vec } => Some(Cause::softirq(vec)),
            _ => None,
        };
        self.on_interrupt(place.cpu, place.now, begins);
        let Some(vcpu) = place
            .vcpu
            .and_then(|index| self.vcpus.get_mut(index as usize))
        else {
            return;
        };
        match kind {
            Kind::VectorEntry { vector, .. } => vcpu.hits.handler(vector),
            Kind::IrqHandlerEntry { .. } => vcpu.hits.device(),
            _ => {}
        }
    }

    /// Events of KVM other than entry and exit. Most tell of the vCPU whose thread is current.
    fn on_kvm(&mut self, event: &Event, kind: Kind, place: Place) {
        let Place { cpu, now, .. } = place;
        match kind {
            Kind::KvmApicAcceptIrq { apicid, vec, .. }
            | Kind::KvmApicvAcceptIrq { apicid, vec, .. } => {
                // Also tells which vCPUs are one VM, whatever is skipped.
                let by_hardware = matches!(kind, Kind::KvmApicvAcceptIrq { .. });
                self.on_accept(cpu, now, (apicid, vec), by_hardware);
                return;
            }
            Kind::KvmUpdateMasterClock { .. } | Kind::KvmTrackTsc { .. } => {
                return self.on_clock(event, kind);
            }
            kind if is_of_host(kind) => return,
            _ => {}
        }
        let Some(index) = place.own.or_else(|| self.adopt(event, kind)) else {
            return;
        };
        self.see(index);
        self.on_own_kvm(
            event,
            kind,
            Place {
                own: Some(index),
                ..place
            },
            index,
        );
    }

    /// Events in the context of the vCPU's own thread.
    fn on_own_kvm(&mut self, event: &Event, kind: Kind, place: Place, index: u32) {
        let Place {
            cpu, now, counts, ..
        } = place;
        let wants_latencies = !self.options.skip.latencies;
        match kind {
            Kind::KvmVcpuWakeup { ns, waited, .. } => {
                self.on_vcpu_wakeup(index, now, cpu, ns, waited);
            }
            Kind::KvmHaltPollNs { new, old, .. } => {
                self.on_halt_poll_ns(index, now, cpu, (new, old));
            }
            Kind::KvmPleWindowUpdate { new, old, .. } if counts => {
                self.on_ple_window(index, new, old);
            }
            Kind::KvmMsr { .. } | Kind::KvmPio { .. } | Kind::KvmMmio { .. } => {
                self.on_key(event, kind, index, counts);
            }
            Kind::KvmApicIpi { icr_low, .. } => {
                self.on_ipi(cpu, now, index, Some(icr_low.to_le_bytes()[0]));
            }
            Kind::KvmHypercall {
                nr: KVM_HC_SEND_IPI,
                ..
            } => self.on_ipi(cpu, now, index, None),
            Kind::KvmInjVirq {
                vector,
                soft: false,
                ..
            } if wants_latencies => {
                self.on_inject(index, cpu, now, vector);
            }
            Kind::KvmEoi { vector, .. } | Kind::KvmPvEoi { vector, .. } if wants_latencies => {
                self.on_eoi(index, cpu, now, vector);
            }
            Kind::KvmHvTimerState {
                hv_timer_in_use, ..
            } => {
                self.on_hv_timer(index, hv_timer_in_use);
            }
            Kind::KvmWriteTscOffset { next, .. } => self.on_tsc_offset(index, next),
            _ => {}
        }
    }

    fn on_key(&mut self, event: &Event, kind: Kind, index: u32, counts: bool) {
        let Some(vcpu) = self.vcpus.get_mut(index as usize) else {
            return;
        };
        if let Kind::KvmMsr {
            write: true, ecx, ..
        } = kind
            && counts
            && TIMER_MSRS.contains(&ecx)
        {
            vcpu.tally.timer_msr_writes += 1;
        }
        if self.options.skip.keys || !vcpu.perf_counts {
            return;
        }
        let time = event.time_ns;
        match kind {
            Kind::KvmMsr { write, ecx, .. } => {
                self.keys
                    .msr
                    .begin(index, time, Some((u8::from(write), u64::from(ecx))));
            }
            Kind::KvmPio { write, port, .. } => {
                self.keys
                    .ioport
                    .begin(index, time, Some((u8::from(write), u64::from(port))));
            }
            Kind::KvmMmio {
                mmio_type: MMIO_WRITE,
                gpa,
                ..
            } => {
                self.keys.mmio.begin(index, time, Some((MMIO_WRITE, gpa)));
            }
            Kind::KvmMmio {
                mmio_type: MMIO_READ,
                gpa,
                ..
            } => {
                self.keys
                    .mmio
                    .end(index, time, Some((MMIO_READ, gpa)), counts);
            }
            _ => {}
        }
    }

    /// A thread whose name tells nothing shows to be a vCPU by an event that KVM traces in the
    /// vCPU's own context only.
    fn adopt(&mut self, event: &Event, kind: Kind) -> Option<u32> {
        let (Kind::KvmHaltPollNs { vcpu, .. }
        | Kind::KvmPvTlbFlush { vcpu, .. }
        | Kind::KvmPvclockUpdate { vcpu, .. }) = kind
        else {
            return None;
        };
        let is_new =
            !event.context.in_interrupt() && vcpu != VcpuId::UNKNOWN && !event.tid.is_idle();
        if is_new {
            self.make_vcpu(event.tid, vcpu)
        } else {
            None
        }
    }

    fn see(&mut self, index: u32) {
        if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
            vcpu.is_seen = true;
        }
    }

    /// Makes the task a vCPU thread with this number.
    fn make_vcpu(&mut self, tid: Tid, id: VcpuId) -> Option<u32> {
        let thread: ThreadId = self.threads.find(tid);
        if let Some(index) = self.threads.get(thread).vcpu {
            return Some(index);
        }
        if self.vcpus.len() >= MAX_VCPUS || thread <= OVERFLOW {
            return None;
        }
        let index = u32::try_from(self.vcpus.len()).ok()?;
        let is_born = self.threads.get(thread).born;
        let since = if is_born || !self.has_begun {
            self.now
        } else {
            self.first
        };
        self.vcpus.push(Vcpu::new(thread, id, since));
        self.links.push(id.0);
        self.by_id.entry(id.0).or_default().push(index);
        self.threads.get_mut(thread)?.vcpu = Some(index);
        let on = |cpu: &Cpu| cpu.current == Some(thread);
        if let Some(number) = self
            .cpus
            .iter()
            .position(on)
            .and_then(|at| u16::try_from(at).ok())
        {
            if let Some(cpu) = self.cpus.get_mut(usize::from(number)) {
                cpu.vcpu = index;
            }
            self.found_running(index, number, self.now);
        }
        Some(index)
    }

    fn on_task(&mut self, tid: Tid, process: Tid, name: NameId, names: &dyn Names) {
        if tid.is_idle() {
            return;
        }
        let mut id = self.threads.find(tid);
        if self.threads.get(id).dead {
            id = self.threads.born(tid, Tid(0));
        }
        if id <= OVERFLOW {
            return;
        }
        if let Some(thread) = self.threads.get_mut(id) {
            thread.name = name;
            if process.0 > 0 {
                thread.process = process;
            }
        }
        if let Some(vcpu) = vcpu_in_name(names.name(name)) {
            self.make_vcpu(tid, vcpu);
        }
    }

    fn on_vcpu_thread(&mut self, tid: Tid, vm: NameId, id: VcpuId) {
        let Some(index) = self.make_vcpu(tid, id) else {
            return;
        };
        self.renumber(index, id);
        if let Some(vcpu) = self.vcpus.get_mut(index as usize) {
            vcpu.recorded_vm = Some(vm);
            vcpu.is_seen = true;
        }
    }

    fn on_loss_event(&mut self, event: &Event, count: u64) {
        if !self.has_begun {
            // Nothing was known yet, so nothing is forgotten; but the loss is told.
            self.count_loss(count);
            return;
        }
        let time = event.time_ns.max(self.now);
        if self.window.has(time, event.cpu.0) {
            self.count_loss(count);
        }
        self.ensure_cpu(event.cpu.0);
        self.on_lost(event.cpu.0);
    }

    const fn count_loss(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
        self.lost_gaps += (count == 0) as u64;
    }

    /// Makes the table of CPUs reach this one. CPU numbers are 16 bits, so it stays small.
    #[inline]
    pub(crate) fn ensure_cpu(&mut self, number: u16) {
        let index = usize::from(number);
        if index >= self.cpus.len() {
            self.cpus.resize_with(index + 1, Cpu::default);
        }
    }

    /// Whether a vCPU is alive.
    pub(crate) fn is_alive(&self, index: u32) -> bool {
        self.vcpus
            .get(index as usize)
            .is_some_and(|vcpu| vcpu.run != Run::Dead)
    }
}

/// Whether a vCPU's thread runs on this CPU, as far as is known. A thread that has exited goes on
/// in its own context until it is switched away.
fn runs_on(vcpu: Option<&Vcpu>, cpu: u16) -> bool {
    vcpu.is_none_or(|vcpu| match vcpu.run {
        Run::Running => vcpu.cpu == cpu,
        Run::Dead => true,
        _ => false,
    })
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

/// Events that stand at the edge of an interrupt handler.
const fn is_interrupt(kind: Kind) -> bool {
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
