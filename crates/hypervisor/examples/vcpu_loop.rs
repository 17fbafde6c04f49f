//! The run loop of a vCPU, with the mechanisms in the order that they need.
//!
//! The hypervisor's part is [`Vcpu`]; the guide (`docs/hypervisor-guide.md`) explains the order. VMCS,
//! physical interrupts and guest are replaced. [`Vcpu::vm_entry`] does what a processor with posted
//! interrupts does, by the functions of `hardware` and `Lapic`. The guest arms a timer, halts, and handles
//! interrupts of a device, which is a thread of its own. `bare/src/vcpu.rs` has the same loop on VT-x.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use stealtime_hypervisor::halt_poll::{HaltEnd, HaltPoll, HaltPollKnobs, PollTurn};
use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::lapic_timer::advance::{START_NS, Spin};
use stealtime_hypervisor::lapic_timer::{
    Action, Actions, GuestTsc, LapicTimer, Now, TimerEnvironment, TimerParameters,
};
use stealtime_hypervisor::posted_interrupt::{
    Capabilities, Delivery, Entry, HostInterrupt, LocalLists, POSTED_INTR_VECTOR,
    POSTED_INTR_WAKEUP_VECTOR, PostedVcpu, PutReason, Requests, SharedVcpu, Suppression, deliver,
    hardware, kick, vtd, wake_up, wakeup_handler,
};

/// Interrupts of the timer, and of the device.
const INTERRUPTS: u64 = 300;
const TIMER_VECTOR: u8 = 0xec;
const DEVICE_VECTOR: u8 = 0x41;
const POLICY: Suppression = Suppression::Corrected;
/// The vCPU's only CPU, and its APIC id.
const CPU: u32 = 0;
const APIC_ID: u32 = 0;
/// The preemption timer counts once in 32 TSC cycles.
const HV_SHIFT: u32 = 5;
/// A timer of whole counts that has waited may be this early.
const EARLY_NS: u64 = START_NS as u64 / 8 + (2 << HV_SHIFT);
/// An interrupt that takes longer is lost, ns.
const LIMIT_NS: i64 = 20_000_000_000;
/// A TSC of 1 GHz: a cycle is a nanosecond.
const TSC_KHZ: u32 = 1_000_000;
const CAPABILITIES: Capabilities = Capabilities {
    apicv: true,
    irqchip: true,
    ipiv: true,
    vtd_posting: true,
    host_x2apic: true,
};
const ENVIRONMENT: TimerEnvironment = TimerEnvironment {
    pi_inject_timer: false,
    apicv: true,
    mwait_in_guest: false,
    hlt_in_guest: false,
    hv_shift: Some(HV_SHIFT),
    on_housekeeping_cpu: false,
    wants_to_run: true,
};

/// What other CPUs access: the vCPU's shared part, and the physical interrupts of its CPU.
struct Machine {
    shared: SharedVcpu<AtomicU64>,
    notification: AtomicBool,
    wakeup: AtomicBool,
    /// Interrupts of the device that the guest has handled.
    handled: AtomicU64,
    /// The thread that is CPU 0. A physical interrupt ends its idle wait.
    cpu: Thread,
    start: Instant,
}

impl Machine {
    fn send_ipi(&self, vector: u8) {
        let pending = match vector {
            POSTED_INTR_WAKEUP_VECTOR => &self.wakeup,
            _ => &self.notification,
        };
        pending.store(true, Release);
        self.cpu.unpark();
    }

    /// A post by software. `on_loaded_cpu`: by the CPU that has loaded the vCPU.
    fn post(&self, vector: u8, on_loaded_cpu: bool) {
        match deliver(&self.shared, vector, on_loaded_cpu, POLICY, &()) {
            Delivery::Ipi { vector, .. } => self.send_ipi(vector),
            // The task is runnable: its CPU looks at it again.
            Delivery::Wake if wake_up(&self.shared) => self.cpu.unpark(),
            _ => {}
        }
    }

    /// A post by the IOMMU, which reads the descriptor alone.
    fn post_by_device(&self, vector: u8) {
        if let Some(notification) = vtd::post(&self.shared.desc, vector, false, &()) {
            self.send_ipi(notification.vector);
        }
    }

    fn now(&self) -> Now {
        let ns = self.start.elapsed().as_nanos();
        Now {
            ns: ns as i64,
            host_tsc: ns as u64,
        }
    }

    fn spin(&self, spin: Spin) {
        let cycles = match spin {
            Spin::None => return,
            Spin::Cycles(cycles) => cycles,
            Spin::Ns(ns) => u64::from(ns),
        };
        let begin = self.now().host_tsc;
        while self.now().host_tsc - begin < cycles {
            std::hint::spin_loop();
        }
    }
}

enum Exit {
    ExternalInterrupt,
    PreemptionTimer,
    /// WRMSR of the TSC deadline.
    WriteDeadline(u64),
    Halt,
    Done,
}

/// A guest that wants so many ticks, and halts in between.
#[derive(Default)]
struct Guest {
    ticks: u64,
    device_interrupts: u64,
    /// TSC of the next tick.
    deadline: Option<u64>,
    /// Ticks that came more than `EARLY_NS` before their deadline.
    early_ticks: u64,
    steps: u64,
}

impl Guest {
    fn handle(&mut self, vector: u8, tsc: u64) {
        match vector {
            TIMER_VECTOR => {
                self.ticks += 1;
                let deadline = self.deadline.take().unwrap_or(0);
                self.early_ticks += u64::from(tsc + EARLY_NS < deadline);
            }
            _ => self.device_interrupts += 1,
        }
    }

    /// The next instructions, and the exit that they cause.
    fn step(&mut self, tsc: u64) -> Option<Exit> {
        self.steps += 1;
        if self.ticks >= INTERRUPTS && self.device_interrupts >= INTERRUPTS {
            return Some(Exit::Done);
        }
        if self.deadline.is_none() && self.ticks < INTERRUPTS {
            let deadline = tsc + 50_000;
            self.deadline = Some(deadline);
            return Some(Exit::WriteDeadline(deadline));
        }
        self.steps.is_multiple_of(64).then_some(Exit::Halt)
    }
}

/// What the vCPU's thread alone accesses.
struct Vcpu<'a> {
    machine: &'a Machine,
    posted: PostedVcpu,
    lapic: Lapic,
    timer: LapicTimer,
    /// When the hrtimer fires, ns.
    hrtimer: Option<i64>,
    poll: HaltPoll,
    lists: LocalLists,
    guest: Guest,
    sleeps: u64,
}

impl<'a> Vcpu<'a> {
    fn new(machine: &'a Machine) -> Self {
        let tsc = GuestTsc::new(TSC_KHZ, GuestTsc::NEUTRAL, 0).expect("a frequency");
        let mut timer = LapicTimer::new(TimerParameters::default(), tsc);
        // The guest has chosen the TSC-deadline mode.
        let _ = timer.write_lvt(0x4_0000 | u32::from(TIMER_VECTOR));
        Self {
            machine,
            posted: PostedVcpu::new(0, CAPABILITIES, POLICY),
            lapic: Lapic::new(true),
            timer,
            hrtimer: None,
            poll: HaltPoll::default(),
            lists: LocalLists::new(1, 1),
            guest: Guest::default(),
            sleeps: 0,
        }
    }

    /// From the first load to the last put.
    fn run(&mut self) {
        self.load();
        loop {
            // 1. Requests, and what became pending in the host.
            self.machine.shared.take(Requests(u64::MAX));
            self.lapic.take_event();
            let pending = self.timer.inject_pending();
            self.act(pending);
            // 2. Interrupts are off from here until the guest runs (R7).
            if self
                .posted
                .enter(&self.machine.shared, &mut self.lapic, &())
                == Entry::Cancelled
            {
                self.interrupt_window();
                continue;
            }
            // 3. The guest, and the exits that need no interrupts.
            let exit = self.run_guest();
            // 4. The mode first: from here on a poster wakes instead of sending a notification.
            self.posted.leave(&self.machine.shared, &());
            self.interrupt_window();
            // 5. The exits that need the rest of the host.
            match exit {
                Exit::Halt => self.halt(),
                Exit::Done => break,
                _ => {}
            }
        }
        self.put(true);
    }

    fn load(&mut self) {
        let shared = &self.machine.shared;
        let loaded = self.posted.load(shared, CPU, APIC_ID, &self.lists, &());
        loaded.expect("a wakeup list for each CPU");
    }

    fn put(&mut self, preempted: bool) {
        let reason = PutReason {
            preempted,
            irq_blocked: false,
            device_assigned: true,
        };
        let put = self
            .posted
            .put(&self.machine.shared, reason, &self.lists, &());
        // The scheduler, which calls put, cannot wake a task: the interrupt does.
        if put.expect("a wakeup list for each CPU").self_ipi {
            self.machine.send_ipi(POSTED_INTR_WAKEUP_VECTOR);
        }
    }

    /// From a VM entry to an exit that the fast path cannot handle.
    fn run_guest(&mut self) -> Exit {
        loop {
            let tsc = self.machine.now().host_tsc;
            let value = self.timer.hv_value_at_entry(tsc, HV_SHIFT, false);
            self.wait_for_deadline();
            let exit = self.vm_entry(value);
            self.posted.vm_exit(&self.machine.shared, &());
            let now = self.machine.now();
            let actions = match exit {
                Exit::PreemptionTimer => self.timer.hv_expired(now, &ENVIRONMENT, &()),
                Exit::WriteDeadline(deadline) => {
                    self.timer
                        .write_tscdeadline(deadline, now, &ENVIRONMENT, &())
                }
                _ => return exit,
            };
            self.act(actions);
            let shared = &self.machine.shared;
            if self.posted.reenter(shared, &mut self.lapic, &()) == Entry::Cancelled {
                return exit;
            }
        }
    }

    /// Timers fire early, by what an entry takes. The rest is spent here, last before the VM entry.
    fn wait_for_deadline(&mut self) {
        let requested = self.machine.shared.irr.snapshot().contains(TIMER_VECTOR);
        let tsc = self.machine.now().host_tsc;
        let spin = self.timer.wait_at_entry(tsc, requested, &());
        self.machine.spin(spin);
    }

    /// The processor. A hypervisor writes RVI and SVI (`Lapic::interrupt_status`) and the timer's value to
    /// the VMCS, and the IRR to the virtual-APIC page. It reads both after the exit (`Lapic::read_back`).
    fn vm_entry(&mut self, timer_value: Option<u32>) -> Exit {
        let Self {
            machine,
            lapic,
            guest,
            ..
        } = self;
        let entered = machine.now().host_tsc;
        let expires = timer_value.map(|value| entered.saturating_add(u64::from(value) << HV_SHIFT));
        lapic.virtual_entry();
        loop {
            if machine.notification.swap(false, Acquire) {
                let nv = POSTED_INTR_VECTOR;
                hardware::interrupt_in_guest(&machine.shared, lapic, nv, nv, &());
            }
            while let Some(vector) = lapic.virtual_deliver(&machine.shared.irr) {
                guest.handle(vector, machine.now().host_tsc);
                lapic.virtual_eoi(&());
                machine.handled.store(guest.device_interrupts, Release);
            }
            if machine.wakeup.load(Acquire) {
                return Exit::ExternalInterrupt;
            }
            let tsc = machine.now().host_tsc;
            if expires.is_some_and(|expires| tsc >= expires) {
                return Exit::PreemptionTimer;
            }
            if let Some(exit) = guest.step(tsc) {
                return exit;
            }
        }
    }

    /// Physical interrupts that wait, and the hrtimer.
    fn interrupt_window(&mut self) {
        let machine = self.machine;
        for (pending, vector) in [
            (&machine.notification, POSTED_INTR_VECTOR),
            (&machine.wakeup, POSTED_INTR_WAKEUP_VECTOR),
        ] {
            if pending.swap(false, Acquire)
                && hardware::interrupt_in_host(vector, &()) == HostInterrupt::Wakeup
            {
                let shared = |_| Some(&machine.shared);
                let wake = |_| _ = wake_up(&machine.shared);
                wakeup_handler(CPU, &self.lists, shared, &(), wake);
            }
        }
        let now = machine.now();
        assert!(now.ns < LIMIT_NS, "an interrupt is lost");
        if self.hrtimer.is_some_and(|at_ns| now.ns >= at_ns) {
            self.hrtimer = None;
            let mode = machine.shared.mode();
            let fired = self.timer.hrtimer_fired(now, mode, &ENVIRONMENT, &());
            self.act(fired);
        }
    }

    /// Does what the timer asks for, outside its lock if it has one.
    fn act(&mut self, actions: Actions) {
        for action in actions.iter() {
            match action {
                Action::StartHrtimer { at_ns } => self.hrtimer = Some(at_ns),
                Action::CancelHrtimer => self.hrtimer = None,
                Action::Inject { vector } | Action::Post { vector } => {
                    self.machine.post(vector, true);
                }
                Action::Unblock => self.machine.shared.request(Requests::UNBLOCK),
                Action::Kick => _ = kick(&self.machine.shared, Requests::UNBLOCK, true),
                // A poster on another CPU awaits the deadline.
                Action::Spin(spin) => self.machine.spin(spin),
                // The value is written at each entry.
                Action::ArmHv { .. } | Action::CancelHv => {}
            }
        }
    }

    /// HLT: the timer moves to the host, then polling, then sleep (`kvm_vcpu_halt`).
    fn halt(&mut self) {
        let knobs = HaltPollKnobs::default();
        let begun = self.machine.now();
        let actions = self.timer.begin_blocking(begun, &ENVIRONMENT, &());
        self.act(actions);
        let elapsed_ns = |vcpu: &Self| vcpu.machine.now().host_tsc - begun.host_tsc;
        let halt = self.poll.begin(&knobs, true);
        let (mut found, mut poll_ns) = (false, 0);
        while halt.polls() && !found {
            let source = self.posted.source(&self.machine.shared, &());
            found = self.lapic.has_interrupt(&source).is_some() || self.timer.pending() > 0;
            self.interrupt_window();
            poll_ns = elapsed_ns(self);
            let turn = PollTurn {
                elapsed_ns: poll_ns,
                alone: true,
                need_resched: false,
            };
            if !halt.keeps_polling(&turn) {
                break;
            }
        }
        let sleeps = self.sleeps;
        if !found {
            self.block();
        }
        let end = HaltEnd {
            waited: self.sleeps > sleeps,
            halt_ns: elapsed_ns(self),
            poll_ns,
            valid_wakeup: true,
        };
        self.poll.end(&knobs, &halt, &end, &());
        let now = self.machine.now();
        let actions = self.timer.end_blocking(now, &ENVIRONMENT, &());
        self.act(actions);
    }

    /// The wait loop (`kvm_vcpu_block`): `wait` publishes the sleeper before its last check.
    fn block(&mut self) {
        self.posted.begin_blocking(&self.machine.shared, &());
        while self.timer.pending() == 0
            && self
                .posted
                .wait(&self.machine.shared, &mut self.lapic, true, &())
        {
            if self.machine.shared.still_waiting() {
                self.sleep();
            }
        }
        self.posted.end_blocking(&self.machine.shared, &());
    }

    /// The scheduler: the task leaves its CPU, which idles until a wakeup has made the task runnable.
    fn sleep(&mut self) {
        self.sleeps += 1;
        self.put(false);
        self.interrupt_window();
        while self.machine.shared.still_waiting() {
            let now_ns = self.machine.now().ns;
            let at_ns = self.hrtimer.unwrap_or(LIMIT_NS);
            thread::park_timeout(Duration::from_nanos((at_ns - now_ns).max(0) as u64));
            self.interrupt_window();
        }
        self.load();
    }
}

/// Runs the guest to its end. Prints its exits and interrupts.
pub fn main() {
    let machine = Machine {
        shared: SharedVcpu::new(true),
        notification: AtomicBool::new(false),
        wakeup: AtomicBool::new(false),
        handled: AtomicU64::new(0),
        cpu: thread::current(),
        start: Instant::now(),
    };
    let mut vcpu = Vcpu::new(&machine);
    thread::scope(|scope| {
        scope.spawn(|| {
            for count in 0..INTERRUPTS {
                match count % 2 {
                    0 => machine.post(DEVICE_VECTOR, false),
                    _ => machine.post_by_device(DEVICE_VECTOR),
                }
                // The next one after the guest has handled this one: each counts.
                while machine.handled.load(Acquire) <= count && machine.now().ns < LIMIT_NS {
                    thread::yield_now();
                }
            }
        });
        vcpu.run();
    });
    let Guest {
        ticks,
        device_interrupts,
        early_ticks,
        ..
    } = vcpu.guest;
    assert_eq!([ticks, device_interrupts], [INTERRUPTS; 2], "one of each");
    // As upstream, a wait is cut to the advance, which has just lost an eighth: few ticks are early.
    assert!(early_ticks <= ticks / 4, "{early_ticks} ticks are early");
    println!(
        "{ticks} ticks, {device_interrupts} interrupts of the device, {} sleeps",
        vcpu.sleeps
    );
}
