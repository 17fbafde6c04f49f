//! The vCPU's thread, and the processor while it runs the guest.

use std::cell::Cell;

use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::lapic_timer::advance::Spin;
use stealtime_hypervisor::lapic_timer::{Action, Actions};
use stealtime_hypervisor::posted_interrupt::{
    Delivery, Entry, POSTED_INTR_VECTOR, PutReason, Requests, deliver, hardware, wake_up,
};

use super::{Callback, DEADLINES, Fault, Local, POLICY, Pc, PiTimer, VECTOR, agent};
use crate::model::{IDLE, Op, State};
use crate::pi_notify::{APIC_IDS, pending, slot};
use crate::word;

/// Operations of the thread.
pub(crate) mod op {
    pub(crate) const LOAD0: u8 = 1;
    pub(crate) const LOAD1: u8 = 2;
    pub(crate) const MOVED: u8 = 3;
    pub(crate) const REQUESTS: u8 = 4;
    pub(crate) const LOOK: u8 = 5;
    pub(crate) const INJECT: u8 = 6;
    pub(crate) const ENTER: u8 = 7;
    pub(crate) const RUN: u8 = 8;
    pub(crate) const EXIT: u8 = 9;
    pub(crate) const WRMSR: u8 = 10;
    pub(crate) const PROGRAM: u8 = 11;
    pub(crate) const HV_EXIT: u8 = 12;
    pub(crate) const REENTER: u8 = 13;
    pub(crate) const LEAVE: u8 = 14;
    pub(crate) const HLT: u8 = 15;
    pub(crate) const SWITCH: u8 = 16;
    pub(crate) const BEGIN: u8 = 17;
    pub(crate) const WAIT: u8 = 18;
    pub(crate) const CHECK: u8 = 19;
    pub(crate) const PUT: u8 = 20;
    pub(crate) const PREEMPT: u8 = 21;
    pub(crate) const END: u8 = 22;
    pub(crate) const SWITCH_BACK: u8 = 23;
    pub(crate) const ACKNOWLEDGE: u8 = 24;
    pub(crate) const NOTIFY: u8 = 25;
}

/// By how much the wait at entry is cut at most: an eighth of the advance.
const CUT_NS: u64 = 125;

impl PiTimer {
    pub(crate) fn thread_choices(&self, state: &State<Local>, ops: &mut Vec<Op>) {
        let local = &state.local;
        // What a call of the timer wants injected comes before anything else.
        if local.inject > 0 && local.pc != Pc::Out && local.pc != Pc::Asleep && !local.in_guest() {
            ops.push(op::INJECT);
            return;
        }
        if local.moved && local.on_cpu.is_some() {
            if self.may_cancel(state) {
                ops.push(op::MOVED);
            }
            return;
        }
        match local.pc {
            Pc::Out => self.load_choices(state, ops),
            Pc::Asleep => {
                if state.mem[slot::WAIT] == 0 {
                    self.load_choices(state, ops);
                }
            }
            Pc::Requests => ops.extend([op::REQUESTS]),
            Pc::Pending => ops.push(op::LOOK),
            Pc::Enter => ops.push(op::ENTER),
            Pc::EntryWait => {
                if local.spins[1].is_none_or(|end| end <= self.ns(local)) {
                    ops.push(op::RUN);
                }
            }
            Pc::Guest => self.guest_choices(local, ops),
            Pc::Notifying => ops.push(op::NOTIFY),
            Pc::Programming => {
                if self.may_cancel(state) {
                    ops.push(op::PROGRAM);
                }
            }
            Pc::FastExit => ops.push(op::REENTER),
            Pc::Leaving => ops.push(op::LEAVE),
            Pc::Halted => ops.push(op::SWITCH),
            Pc::Switched => ops.push(op::BEGIN),
            Pc::Blocking => ops.push(op::WAIT),
            Pc::Sleepy => ops.push(op::CHECK),
            Pc::SwitchingOut => ops.push(op::PUT),
            Pc::Awake => ops.push(op::END),
            Pc::Unblocked => {
                if self.may_cancel(state) {
                    ops.push(op::SWITCH_BACK);
                }
            }
        }
        let preemptible = matches!(
            local.pc,
            Pc::Requests | Pc::Pending | Pc::Enter | Pc::Blocking | Pc::Sleepy
        );
        if self.config.preempt && preemptible {
            ops.push(op::PREEMPT);
        }
    }

    /// A call that cancels the hrtimer waits until its callback has ended.
    fn may_cancel(&self, state: &State<Local>) -> bool {
        self.config.fault == Fault::CancelNotAwaited
            || state.local.callback == Callback::Idle
                && state.agents[usize::from(agent::CALLBACK)].op == IDLE
    }

    fn load_choices(&self, state: &State<Local>, ops: &mut Vec<Op>) {
        let local = &state.local;
        for (cpu, op) in [(0, op::LOAD0), (1, op::LOAD1)] {
            if cpu == local.last_cpu || local.migrations_left > 0 {
                ops.push(op);
            }
        }
    }

    fn guest_choices(&self, local: &Local, ops: &mut Vec<Op>) {
        let waiting = local
            .on_cpu
            .map_or(0, |cpu| local.pending[usize::from(cpu)]);
        if waiting & pending::NOTIFICATION != 0 {
            ops.push(op::ACKNOWLEDGE);
        }
        let now = self.now(local);
        if local
            .timer
            .hv()
            .is_some_and(|hv| hv.host_deadline <= now.host_tsc)
        {
            ops.push(op::HV_EXIT);
        }
        ops.push(op::EXIT);
        if waiting & pending::RESCHEDULE != 0 {
            return;
        }
        if local.programmed < self.config.deadlines.min(DEADLINES.len() as u8) {
            ops.push(op::WRMSR);
        }
        if self.config.blocks {
            ops.push(op::HLT);
        }
    }

    pub(crate) fn thread_execute(&self, local: &mut Local, op: Op) {
        match op {
            op::LOAD0 => self.load(local, 0),
            op::LOAD1 => self.load(local, 1),
            op::PUT => self.put(local, false),
            op::PREEMPT => self.put(local, true),
            op::INJECT => {
                // The vCPU's own thread: no notification is needed.
                if deliver(&self.vcpu, VECTOR, true, POLICY, &()) == Delivery::Wake {
                    wake_up(&self.vcpu);
                }
                local.inject -= 1;
            }
            op::MOVED | op::PROGRAM | op::SWITCH | op::SWITCH_BACK | op::HV_EXIT | op::LOOK => {
                self.call_timer(local, op);
            }
            op::ENTER
            | op::RUN
            | op::EXIT
            | op::WRMSR
            | op::REENTER
            | op::LEAVE
            | op::HLT
            | op::NOTIFY => self.guest(local, op),
            op::ACKNOWLEDGE => {
                local.pc = Pc::Notifying;
                if let Some(cpu) = local.on_cpu {
                    local.pending[usize::from(cpu)] &= !pending::NOTIFICATION;
                }
            }
            op::REQUESTS => {
                let requests = Requests(Requests::EVENT.0 | Requests::UNBLOCK.0);
                let _ = self.vcpu.take(requests);
                let mut lapic = Self::lapic(local);
                lapic.take_event();
                local.event = lapic.event_requested();
                local.pc = self.after_requests();
            }
            _ => self.block(local, op),
        }
    }

    fn after_requests(&self) -> Pc {
        if self.config.fault == Fault::LooksTooEarly {
            Pc::Enter
        } else {
            Pc::Pending
        }
    }

    /// The run loop's first step.
    fn run_loop(&self) -> Pc {
        if self.config.fault == Fault::LooksTooEarly {
            Pc::Pending
        } else {
            Pc::Requests
        }
    }

    /// One call of the timer: its owner serializes them, so that each is one step.
    fn call_timer(&self, local: &mut Local, op: Op) {
        let (now, env) = (self.now(local), self.environment(local));
        let timer = &mut local.timer;
        let actions = match op {
            op::MOVED => {
                local.moved = false;
                timer.cpu_changed(now, &env, &())
            }
            op::PROGRAM => {
                let deadline = DEADLINES[usize::from(local.programmed) % DEADLINES.len()];
                let actions = timer.write_tscdeadline(deadline, now, &env, &());
                self.programmed(local);
                local.pc = Pc::FastExit;
                actions
            }
            op::SWITCH => {
                local.pc = Pc::Switched;
                if self.config.fault == Fault::HvWhileBlocking {
                    Actions::NONE
                } else {
                    timer.begin_blocking(now, &env, &())
                }
            }
            op::SWITCH_BACK => {
                local.pc = self.run_loop();
                timer.end_blocking(now, &env, &())
            }
            op::HV_EXIT => {
                local.pc = Pc::FastExit;
                timer.hv_expired(now, &env, &())
            }
            _ => {
                local.pc = if self.config.fault == Fault::LooksTooEarly {
                    Pc::Requests
                } else {
                    Pc::Enter
                };
                timer.inject_pending()
            }
        };
        for action in actions.iter() {
            match action {
                Action::StartHrtimer { at_ns } => local.queue = Some(at_ns),
                Action::CancelHrtimer => local.queue = None,
                Action::Inject { .. } => local.inject += 1,
                // The preemption timer's state is the timer's own; the rest is the callback's.
                _ => {}
            }
        }
    }

    /// The guest wrote a deadline: an older one that has not expired is void.
    fn programmed(&self, local: &mut Local) {
        let on_its_way = |index: usize| (word::peek(index) >> (VECTOR % 64) & 1) as u8;
        let arrived = on_its_way(slot::PIR) + on_its_way(slot::IRR) + local.inject;
        local.allowed = local.allowed.min(arrived);
        local.due = false;
        local.programmed += 1;
        let past = Self::deadline(local).is_some_and(|d| d <= self.now(local).host_tsc);
        if past {
            local.due = true;
            local.allowed += 1;
        }
    }

    fn load(&self, local: &mut Local, cpu: u8) {
        let mut pi_vcpu = self.pi_vcpu(local).clone();
        let apic = APIC_IDS[usize::from(cpu)];
        // No lists are used without posting hardware.
        let _ = pi_vcpu.load(&self.vcpu, u32::from(cpu), apic, &self.lists(), &());
        if cpu != local.last_cpu {
            local.migrations_left = local.migrations_left.saturating_sub(1);
            local.moved = true;
        }
        local.last_cpu = cpu;
        local.on_cpu = Some(cpu);
        local.pc = match local.pc {
            Pc::Asleep => Pc::Blocking,
            _ => local.back,
        };
        local.back = Pc::Requests;
    }

    fn put(&self, local: &mut Local, preempted: bool) {
        let reason = PutReason {
            preempted,
            irq_blocked: false,
            device_assigned: false,
        };
        let put = self
            .pi_vcpu(local)
            .put(&self.vcpu, reason, &self.lists(), &());
        debug_assert!(
            put.is_ok_and(|put| !put.armed),
            "nothing posts but software"
        );
        local.on_cpu = None;
        if preempted {
            local.back = local.pc;
            local.pc = Pc::Out;
        } else {
            local.pc = Pc::Asleep;
        }
    }

    fn guest(&self, local: &mut Local, op: Op) {
        let pi_vcpu = self.pi_vcpu(local);
        let mut lapic = Self::lapic(local);
        let enter = |entry| match entry {
            Entry::Run => Pc::EntryWait,
            Entry::Cancelled => self.run_loop(),
        };
        local.pc = match op {
            op::ENTER => enter(pi_vcpu.enter(&self.vcpu, &mut lapic, &())),
            op::REENTER => match pi_vcpu.reenter(&self.vcpu, &mut lapic, &()) {
                Entry::Run => Pc::EntryWait,
                Entry::Cancelled => Pc::Leaving,
            },
            op::RUN => {
                local.spins[1] = None;
                Pc::Guest
            }
            op::NOTIFY => {
                let nv = POSTED_INTR_VECTOR;
                let _ = hardware::interrupt_in_guest(&self.vcpu, &mut lapic, nv, nv, &());
                Pc::Guest
            }
            op::LEAVE => {
                pi_vcpu.leave(&self.vcpu, &());
                self.run_loop()
            }
            op::WRMSR => {
                pi_vcpu.vm_exit(&self.vcpu, &());
                Pc::Programming
            }
            _ => {
                pi_vcpu.vm_exit(&self.vcpu, &());
                pi_vcpu.leave(&self.vcpu, &());
                if op == op::HLT {
                    Pc::Halted
                } else {
                    self.run_loop()
                }
            }
        };
        if local.pc == Pc::EntryWait {
            self.entry_wait(local);
        }
        if local.pc == Pc::Guest {
            self.take_interrupts(local, &mut lapic, op == op::RUN);
        }
        local.rvi = lapic.rvi();
        local.event = lapic.event_requested();
    }

    /// Just before the guest runs: the rest of the time until the deadline.
    fn entry_wait(&self, local: &mut Local) {
        let requested = word::peek(slot::IRR) >> (VECTOR % 64) & 1 != 0;
        let tsc = self.now(local).host_tsc;
        let spin = local.timer.wait_at_entry(tsc, requested, &());
        let end = self.ns(local).saturating_add(self.length(spin));
        local.spins[1] = (spin != Spin::None).then_some(end);
    }

    /// Delivers in guest mode what the processor knows of: only it touches the IRR, so that this
    /// is one step.
    fn take_interrupts(&self, local: &mut Local, lapic: &mut Lapic, at_entry: bool) {
        let handled = Cell::new(0u8);
        lapic.virtual_entry();
        while let Some(vector) = lapic.virtual_deliver(&self.vcpu.irr) {
            handled.set(handled.get() + u8::from(vector == VECTOR));
            lapic.virtual_eoi(&());
            if word::stopped() {
                return;
            }
        }
        for _ in 0..handled.get() {
            local.delivered += 1;
            let now = self.ns(local).unsigned_abs();
            let early = Self::deadline(local).filter(|d| *d > now);
            let cut = self.config.entry_may_cut && at_entry;
            if local.allowed == 0 && cut && early.is_some_and(|d| d - now <= CUT_NS) {
                // Its deadline is yet to be reached, and then allows no other.
                local.early = true;
            } else if let Some(remaining) = local.allowed.checked_sub(1) {
                local.allowed = remaining;
                local.due = false;
            } else {
                local.wrong = Some((self.ns(local), early));
            }
        }
    }

    fn block(&self, local: &mut Local, op: Op) {
        let mut pi_vcpu = self.pi_vcpu(local).clone();
        let mut lapic = Self::lapic(local);
        match op {
            op::BEGIN => {
                pi_vcpu.begin_blocking(&self.vcpu, &());
                local.blocking = true;
                local.pc = Pc::Blocking;
            }
            op::WAIT => {
                let sleepy = pi_vcpu.wait(&self.vcpu, &mut lapic, true, &());
                local.pc = if sleepy { Pc::Sleepy } else { Pc::Awake };
            }
            op::CHECK => {
                local.pc = if self.vcpu.still_waiting() {
                    Pc::SwitchingOut
                } else {
                    Pc::Blocking
                };
            }
            _ => {
                pi_vcpu.end_blocking(&self.vcpu, &());
                local.blocking = false;
                local.pc = Pc::Unblocked;
            }
        }
        local.rvi = lapic.rvi();
        local.event = lapic.event_requested();
    }
}

impl Local {
    /// The guest runs, or hardware on its behalf.
    pub(crate) fn in_guest(&self) -> bool {
        matches!(self.pc, Pc::Guest | Pc::Notifying | Pc::EntryWait)
    }
}
