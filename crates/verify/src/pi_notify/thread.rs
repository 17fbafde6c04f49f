//! The vCPU threads, and the processor while it runs a guest.

use std::cell::Cell;
use std::hash::{Hash, Hasher};

use stealtime_hypervisor::posted_interrupt::{
    Control, Entry, Notification, POSTED_INTR_VECTOR, PutReason, Requests, hardware,
    ipi_virtualization,
};

use super::{APIC_IDS, Barrier, Local, PiNotify, VECTORS, agent, packed, pending, slot};
use crate::model::{IDLE, Op, State};
use crate::word::{self, ListWords};

/// Operations of a vCPU thread.
pub(crate) mod op {
    pub(crate) const LOAD0: u8 = 1;
    pub(crate) const LOAD1: u8 = 2;
    pub(crate) const ENTER: u8 = 3;
    pub(crate) const EXIT: u8 = 4;
    pub(crate) const HLT: u8 = 5;
    pub(crate) const FAST: u8 = 6;
    pub(crate) const NOTIFY: u8 = 7;
    pub(crate) const BEGIN: u8 = 8;
    pub(crate) const WAIT: u8 = 9;
    pub(crate) const CHECK: u8 = 10;
    pub(crate) const PUT: u8 = 11;
    pub(crate) const END: u8 = 12;
    pub(crate) const PREEMPT: u8 = 13;
    pub(crate) const REQUESTS: u8 = 14;
    pub(crate) const SEND_IPI: u8 = 15;
    pub(crate) const TRANSMIT: u8 = 16;
    pub(crate) const LEAVE: u8 = 17;
    pub(crate) const ACKNOWLEDGE: u8 = 18;
}

/// Where a vCPU's thread is between two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pc {
    /// Not part of this configuration.
    Absent,
    /// Runnable, without a CPU.
    Out,
    /// In the host, interrupts on.
    Host,
    /// In guest mode.
    Guest,
    /// The processor has taken a notification and processes it.
    Notifying,
    /// A fast exit found something to do: about to leave, interrupts off.
    Leaving,
    /// The guest halted: about to block.
    Halted,
    /// Blocking: about to look and wait.
    Blocking,
    /// Nothing was there: about to be switched out if it still waits.
    Sleepy,
    /// It still waits: being switched out.
    SwitchingOut,
    /// Switched out until a wakeup.
    Asleep,
    /// Woken: about to end blocking.
    Awake,
}

/// One vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vcpu {
    pub(crate) pc: Pc,
    /// The state in which it continues after the next load.
    pub(crate) back: Pc,
    pub(crate) on_cpu: Option<u8>,
    pub(crate) last_cpu: u8,
    pub(crate) blocking: bool,
    pub(crate) rvi: u8,
    pub(crate) event: bool,
    /// Something was posted when the wakeup vector was armed, and no self-IPI was sent.
    pub(crate) missed_at_arming: bool,
    pub(crate) armed: bool,
}

impl Hash for Vcpu {
    /// All in one number.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            pc,
            back: continues_at,
            on_cpu,
            last_cpu,
            blocking,
            rvi,
            event,
            missed_at_arming,
            armed,
        } = *self;
        let on_cpu = on_cpu.map_or(0, |cpu| cpu + 1);
        let flags = packed([blocking, event, missed_at_arming, armed]);
        let (pc, continues_at) = (pc as u8, continues_at as u8);
        let bytes = [pc, continues_at, on_cpu, last_cpu, rvi, flags, 0, 0];
        state.write_u64(u64::from_le_bytes(bytes));
    }
}

impl Vcpu {
    pub(crate) fn in_guest(cpu: u8) -> Self {
        Self {
            pc: Pc::Guest,
            back: Pc::Host,
            on_cpu: Some(cpu),
            last_cpu: cpu,
            blocking: false,
            rvi: 0,
            event: false,
            missed_at_arming: false,
            armed: false,
        }
    }

    /// Interrupts reach the CPU that runs this thread in the host.
    pub(crate) fn irqs_on(&self, op: Op, r7_missing: bool) -> bool {
        match op {
            IDLE => matches!(
                self.pc,
                Pc::Host | Pc::Halted | Pc::Blocking | Pc::Sleepy | Pc::Awake
            ),
            op::BEGIN | op::WAIT | op::END | op::REQUESTS | op::CHECK => true,
            op::ENTER => r7_missing,
            _ => false,
        }
    }
}

impl PiNotify {
    /// Brings a vCPU into the guest, for the first state.
    pub(crate) fn start(&self, local: &mut Local, vcpu: usize) {
        let cpu = local.vcpus[vcpu].last_cpu;
        let config = &self.config;
        let mut pi_vcpu = stealtime_hypervisor::posted_interrupt::PostedVcpu::new(
            vcpu as u32,
            config.capabilities,
            config.policy,
        );
        let apic = APIC_IDS[usize::from(cpu)];
        let shared = &self.vcpus[vcpu];
        let lists = self.lists_for(None);
        // On no list yet: this cannot fail.
        let _ = pi_vcpu.load(shared, u32::from(cpu), apic, &lists, &());
        let mut lapic = Self::lapic(&local.vcpus[vcpu]);
        let _ = pi_vcpu.enter(shared, &mut lapic, &());
    }

    fn lists_for(&self, wrong: Option<u32>) -> ListWords<'_> {
        ListWords {
            lists: &self.lists,
            wrong,
        }
    }

    pub(crate) fn thread_choices(&self, state: &State<Local>, vcpu: usize, ops: &mut Vec<Op>) {
        let vcpu_state = &state.local.vcpus[vcpu];
        match vcpu_state.pc {
            Pc::Absent => {}
            Pc::Out => self.load_choices(state, vcpu, ops),
            Pc::Asleep => {
                if state.mem[vcpu * slot::PER_VCPU + slot::WAIT] == 0 {
                    self.load_choices(state, vcpu, ops);
                }
            }
            Pc::Host => {
                if state.mem[vcpu * slot::PER_VCPU + slot::REQUESTS] != 0 || vcpu_state.event {
                    ops.push(op::REQUESTS);
                } else {
                    ops.push(op::ENTER);
                }
                self.preempt_choice(state, ops);
            }
            Pc::Guest => self.guest_choices(state, vcpu, ops),
            Pc::Notifying => ops.push(op::NOTIFY),
            Pc::Leaving => ops.push(op::LEAVE),
            Pc::Halted => {
                ops.push(op::BEGIN);
            }
            Pc::Blocking => {
                ops.push(op::WAIT);
                self.preempt_choice(state, ops);
            }
            Pc::Sleepy => {
                ops.push(op::CHECK);
                self.preempt_choice(state, ops);
            }
            Pc::SwitchingOut => ops.push(op::PUT),
            Pc::Awake => ops.push(op::END),
        }
    }

    /// A thread is preempted by another that wants its CPU, or by something outside the model.
    fn preempt_choice(&self, _state: &State<Local>, ops: &mut Vec<Op>) {
        if self.config.preempt {
            ops.push(op::PREEMPT);
        }
    }

    fn load_choices(&self, state: &State<Local>, vcpu: usize, ops: &mut Vec<Op>) {
        let last = state.local.vcpus[vcpu].last_cpu;
        for cpu in 0..2u8 {
            let allowed = cpu == last || (vcpu == 0 && state.local.migrations_left > 0);
            let handling = state.local.cpus[usize::from(cpu)].in_handler
                || state.agents[usize::from(agent::IRQ0 + cpu)].op != IDLE;
            if allowed && !handling && Self::occupant(state, cpu).is_none() {
                ops.push(if cpu == 0 { op::LOAD0 } else { op::LOAD1 });
            }
        }
    }

    fn guest_choices(&self, state: &State<Local>, vcpu: usize, ops: &mut Vec<Op>) {
        let vcpu_state = &state.local.vcpus[vcpu];
        let waiting = vcpu_state
            .on_cpu
            .map_or(0, |cpu| state.local.cpus[usize::from(cpu)].pending);
        if waiting & pending::NOTIFICATION != 0 {
            ops.push(op::ACKNOWLEDGE);
        }
        ops.push(op::EXIT);
        // vCPU 1 is there for its CPU and its interrupts: it never halts.
        if vcpu == 0 && waiting & !pending::NOTIFICATION == 0 {
            ops.push(op::HLT);
            ops.push(op::FAST);
        }
        if vcpu == 1 && state.local.sending[3].is_some() {
            ops.clear();
            ops.push(op::TRANSMIT);
        } else if vcpu == 1 && state.local.ipi_left > 0 {
            ops.push(op::SEND_IPI);
        }
    }

    pub(crate) fn thread_execute(&self, local: &mut Local, vcpu: usize, op: Op) {
        match op {
            op::LOAD0 => self.do_load(local, vcpu, 0),
            op::LOAD1 => self.do_load(local, vcpu, 1),
            op::PUT => self.do_put(local, vcpu, false),
            op::PREEMPT => self.do_put(local, vcpu, true),
            op::ENTER | op::EXIT | op::HLT | op::FAST | op::LEAVE | op::NOTIFY => {
                self.do_guest(local, vcpu, op);
            }
            op::SEND_IPI => {
                // Hardware of vCPU 1 posts to vCPU 0.
                let sent = ipi_virtualization::post(&self.vcpus[0].desc, VECTORS[0], &());
                local.sending[3] = sent.and_then(|ipi| destination(ipi.ndst, ipi.vector));
                local.posted[0] += 1;
                local.ipi_left -= 1;
            }
            op::TRANSMIT => local.transmit(3),
            op::ACKNOWLEDGE => {
                // From now on another notification waits for its turn.
                let state = &mut local.vcpus[vcpu];
                state.pc = Pc::Notifying;
                if let Some(cpu) = state.on_cpu {
                    local.cpus[usize::from(cpu)].pending &= !pending::NOTIFICATION;
                }
            }
            _ => self.do_block(local, vcpu, op),
        }
    }

    fn do_load(&self, local: &mut Local, vcpu: usize, cpu: u8) {
        let config = &self.config;
        let state = &mut local.vcpus[vcpu];
        let mut pi_vcpu = self.pi_vcpu(vcpu, state).clone();
        if config.without == Some(Barrier::R3) {
            word::weak_rmw(0);
        }
        let wrong = (config.without == Some(Barrier::R10)).then_some(u32::from(cpu));
        let lists = self.lists_for(wrong);
        let apic = APIC_IDS[usize::from(cpu)];
        // Both CPUs have lists.
        let _ = pi_vcpu.load(&self.vcpus[vcpu], u32::from(cpu), apic, &lists, &());
        if cpu != state.last_cpu {
            local.migrations_left = local.migrations_left.saturating_sub(1);
        }
        state.last_cpu = cpu;
        state.on_cpu = Some(cpu);
        state.armed = false;
        state.pc = match state.pc {
            Pc::Asleep => Pc::Blocking,
            _ => state.back,
        };
        state.back = Pc::Host;
    }

    fn do_put(&self, local: &mut Local, vcpu: usize, preempted: bool) {
        let state = &mut local.vcpus[vcpu];
        let pi_vcpu = self.pi_vcpu(vcpu, state);
        let reason = PutReason {
            preempted,
            irq_blocked: false,
            device_assigned: local.assigned,
        };
        let lists = self.lists_for(None);
        let put = pi_vcpu.put(&self.vcpus[vcpu], reason, &lists, &());
        let Ok(mut put) = put else {
            debug_assert!(word::stopped(), "both CPUs have lists");
            return;
        };
        if word::stopped() {
            return;
        }
        let image = word::peek(vcpu * slot::PER_VCPU + slot::CONTROL);
        let posted = word::peek(vcpu * slot::PER_VCPU + slot::PIR) != 0;
        put.self_ipi |= put.armed && self.config.half_repair && posted;
        state.missed_at_arming = put.armed && posted && !(put.self_ipi && Control(image).on());
        state.armed = put.armed;
        if put.self_ipi {
            let cpu = usize::from(state.last_cpu);
            local.cpus[cpu].pending |= pending::WAKEUP;
        }
        state.on_cpu = None;
        if preempted {
            state.back = state.pc;
            state.pc = Pc::Out;
        } else {
            state.pc = Pc::Asleep;
        }
    }

    fn do_guest(&self, local: &mut Local, vcpu: usize, op: Op) {
        let shared = &self.vcpus[vcpu];
        let removed = self.config.without;
        let state = &mut local.vcpus[vcpu];
        let pi_vcpu = self.pi_vcpu(vcpu, state);
        let mut lapic = Self::lapic(state);
        state.pc = match op {
            op::ENTER => {
                if matches!(removed, Some(Barrier::R1 | Barrier::R6)) {
                    word::without_fence(0);
                }
                if removed == Some(Barrier::R2) {
                    word::weak_rmw(0);
                }
                match pi_vcpu.enter(shared, &mut lapic, &()) {
                    Entry::Run => Pc::Guest,
                    Entry::Cancelled => Pc::Host,
                }
            }
            op::FAST => {
                pi_vcpu.vm_exit(shared, &());
                match pi_vcpu.reenter(shared, &mut lapic, &()) {
                    Entry::Run => Pc::Guest,
                    Entry::Cancelled => Pc::Leaving,
                }
            }
            op::NOTIFY => {
                let nv = POSTED_INTR_VECTOR;
                let notification = hardware::interrupt_in_guest(shared, &mut lapic, nv, nv, &());
                debug_assert!(notification != Notification::ExternalInterruptExit);
                Pc::Guest
            }
            op::LEAVE => {
                pi_vcpu.leave(shared, &());
                Pc::Host
            }
            _ => {
                pi_vcpu.vm_exit(shared, &());
                pi_vcpu.leave(shared, &());
                if op == op::HLT { Pc::Halted } else { Pc::Host }
            }
        };
        let handled = Cell::new([0u8; 2]);
        if state.pc == Pc::Guest {
            lapic.virtual_entry();
            // Only this vCPU touches its IRR: all in the same step.
            while let Some(vector) = lapic.virtual_deliver(&shared.irr) {
                let mut counts = handled.get();
                for (count, known) in counts.iter_mut().zip(VECTORS) {
                    *count += u8::from(known == vector);
                }
                handled.set(counts);
                lapic.virtual_eoi(&());
                if word::stopped() {
                    break;
                }
            }
        }
        state.rvi = lapic.rvi();
        state.event = lapic.event_requested();
        if vcpu == 0 {
            for (sum, handled) in local.delivered.iter_mut().zip(handled.get()) {
                *sum += handled;
            }
        }
    }

    fn do_block(&self, local: &mut Local, vcpu: usize, op: Op) {
        let shared = &self.vcpus[vcpu];
        let state = &mut local.vcpus[vcpu];
        let mut pi_vcpu = self.pi_vcpu(vcpu, state).clone();
        let mut lapic = Self::lapic(state);
        match op {
            op::REQUESTS => {
                let requests = Requests::EVENT.0 | Requests::UNBLOCK.0 | Requests::NESTED_POSTED.0;
                let _ = shared.take(Requests(requests));
                lapic.take_event();
            }
            op::BEGIN => {
                pi_vcpu.begin_blocking(shared, &());
                state.blocking = true;
                state.pc = Pc::Blocking;
            }
            op::WAIT => {
                if self.config.without == Some(Barrier::R4) {
                    word::without_fence(0);
                }
                if self.config.without == Some(Barrier::R2) {
                    word::weak_rmw(0);
                }
                let sleepy = pi_vcpu.wait(shared, &mut lapic, true, &());
                state.pc = if sleepy { Pc::Sleepy } else { Pc::Awake };
            }
            op::CHECK => {
                state.pc = if shared.still_waiting() {
                    Pc::SwitchingOut
                } else {
                    Pc::Blocking
                };
            }
            _ => {
                pi_vcpu.end_blocking(shared, &());
                state.blocking = false;
                state.pc = Pc::Host;
            }
        }
        state.rvi = lapic.rvi();
        state.event = lapic.event_requested();
    }
}

/// CPU and kind of a notification.
pub(crate) fn destination(ndst: u32, vector: u8) -> Option<(u8, u8)> {
    let cpu = APIC_IDS.iter().position(|id| *id == ndst)?;
    let kind = if vector == POSTED_INTR_VECTOR {
        pending::NOTIFICATION
    } else {
        pending::WAKEUP
    };
    Some((cpu as u8, kind))
}
