//! A vCPU and its run loop, in the order of KVM's `vcpu_enter_guest`.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use stealtime_hypervisor::halt_poll::{Halt, HaltEnd, HaltPoll, HaltPollKnobs, PollTurn};
use stealtime_hypervisor::lapic::{Lapic, VectorSet};
use stealtime_hypervisor::lapic_timer::{
    Action, Actions, GuestTsc, LapicTimer, Now, TimerEnvironment, TimerParameters,
};
use stealtime_hypervisor::posted_interrupt::{
    Capabilities, Delivery, Entry, Fault, Kick, POSTED_INTR_VECTOR, POSTED_INTR_WAKEUP_VECTOR,
    PostedVcpu, PutReason, Requests, SharedVcpu, Suppression, deliver, deliver_through_irr, kick,
    wake_up,
};
use stealtime_hypervisor::vmx::{
    Controls, PAUSE_LOOPS, PREEMPTION_TIMER, TSC, apic_page, exit_reason, field,
};

use crate::clock::GuestClock;
use crate::console::say;
use crate::counters::COUNTERS;
use crate::cpu::{self, SpinLock};
use crate::guest;
use crate::host;
use crate::memory;
use crate::parts::{Mark, mark};
use crate::record::{self, Kind};
use crate::vmx::{self, GuestState, Registers};
use crate::word::Word;
use crate::yields;

/// TSC frequency that `bochsrc` sets: 50 million instructions a second.
pub const TSC_KHZ: u32 = 50_000;
/// Nanoseconds of a TSC cycle.
pub const NS_PER_CYCLE: u64 = 20;

pub const READY: u32 = 0;
pub const RUNNING: u32 = 1;
pub const BLOCKED: u32 = 2;
pub const DONE: u32 = 3;

/// Why a vCPU left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Preempted,
    Blocked,
    Done,
}

/// How a vCPU is set up.
#[derive(Clone, Copy)]
pub struct Setup {
    pub policy: Suppression,
    pub fault: Fault,
    pub capabilities: Capabilities,
    /// Whether the processor processes notifications.
    pub posting: bool,
    pub timer: TimerParameters,
    pub environment: TimerEnvironment,
    /// Cycles of work in the host at each exit that leaves the fast path.
    pub host_work: u64,
    pub ple: Option<(u32, u32)>,
    pub halt_poll: HaltPollKnobs,
    /// Frequency of the guest's TSC, kHz; `None`: it reads the host's.
    pub guest_khz: Option<u32>,
    /// Load wakes a blocking vCPU for which it has set ON, as the patch in docs/upstream has it.
    pub wakes_after_load: bool,
}

/// What the thread of the vCPU alone uses.
struct Thread {
    posted: PostedVcpu,
    lapic: Lapic,
    registers: Registers,
    launched: bool,
    /// The wait that a preemption interrupted goes on.
    waits: bool,
    halted_tsc: u64,
    poll: HaltPoll,
    halt: Halt,
    /// When the halt stopped polling, TSC.
    polled_tsc: u64,
    /// The halt has slept.
    slept: bool,
    clock: Option<GuestClock>,
}

/// A vCPU.
pub struct Vcpu {
    pub id: u32,
    pub tid: u32,
    pub shared: SharedVcpu<Word>,
    pub state: AtomicU32,
    /// The CPU that it runs on next.
    pub home: AtomicU32,
    pub exits: [AtomicU64; 70],
    pub setup: Setup,
    timer: SpinLock<LapicTimer>,
    thread: UnsafeCell<Thread>,
    vmcs: u64,
    vapic: u64,
}

// SAFETY: `thread` and the VMCS are used by the CPU for which `state` is RUNNING, one at a time.
unsafe impl Sync for Vcpu {}

/// An exit as the VMCS tells it.
struct Exit {
    reason: u32,
    qualification: u64,
    interruption: u32,
}

impl Exit {
    fn read() -> Self {
        Self {
            reason: vmx::read(vmx::EXIT_REASON) as u32,
            qualification: vmx::read(vmx::EXIT_QUALIFICATION),
            interruption: vmx::read(vmx::EXIT_INTERRUPTION) as u32,
        }
    }
    fn basic(&self) -> u16 {
        self.reason as u16
    }
}

impl core::fmt::Debug for Vcpu {
    /// What other CPUs see of it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let control = self.shared.desc.control();
        f.debug_struct("Vcpu")
            .field("id", &self.id)
            .field("state", &self.state)
            .field("home", &self.home)
            .field("mode", &self.shared.mode())
            .field("requests", &self.shared.requests())
            .field("waits", &self.shared.still_waiting())
            .field("on", &control.on())
            .field("sn", &control.sn())
            .field("nv", &control.nv())
            .field("pir", &self.shared.desc.pir())
            .field("irr", &self.shared.irr.snapshot())
            .field("page", &self.read_page(apic_page::IRR))
            .field("in_service", &self.read_page(apic_page::ISR))
            .finish_non_exhaustive()
    }
}

pub fn now() -> Now {
    let host_tsc = cpu::tsc();
    Now {
        ns: (host_tsc * NS_PER_CYCLE) as i64,
        host_tsc,
    }
}

/// What all guests of a run share.
pub struct Shared {
    pub ept: u64,
    pub msr_bitmap: u64,
}

impl Vcpu {
    pub fn new(id: u32, tid: u32, cpu: u32, setup: Setup, machine: &Shared) -> &'static Self {
        let clock = setup.guest_khz.map(GuestClock::new);
        let hosts = || GuestTsc::new(TSC_KHZ, GuestTsc::NEUTRAL, 0).expect("a frequency");
        let tsc = clock.as_ref().map_or_else(hosts, GuestClock::tsc);
        let tsc_fields = clock.as_ref().map(GuestClock::fields);
        let vapic = memory::page();
        let mut poll = HaltPoll::default();
        let halt = poll.begin(&setup.halt_poll, true);
        let posted = PostedVcpu::new(id, setup.capabilities, setup.policy).with_fault(setup.fault);
        let vcpu = alloc::boxed::Box::leak(alloc::boxed::Box::new(Self {
            id,
            tid,
            shared: SharedVcpu::new(setup.posting),
            state: AtomicU32::new(READY),
            home: AtomicU32::new(cpu),
            exits: [const { AtomicU64::new(0) }; 70],
            setup,
            timer: SpinLock::new(LapicTimer::new(setup.timer, tsc)),
            thread: UnsafeCell::new(Thread {
                posted,
                lapic: Lapic::new(true),
                registers: [0; 15],
                launched: false,
                waits: false,
                halted_tsc: 0,
                poll,
                halt,
                polled_tsc: 0,
                slept: false,
                clock,
            }),
            vmcs: 0,
            vapic,
        }));
        let optional = |used, controls| {
            if used { controls } else { Controls::default() }
        };
        let controls = optional(setup.environment.hv_shift.is_some(), PREEMPTION_TIMER)
            .and(optional(setup.ple.is_some(), PAUSE_LOOPS))
            .and(optional(setup.guest_khz.is_some(), TSC));
        vcpu.vmcs = vmx::create(&GuestState {
            vapic,
            descriptor: &raw const vcpu.shared.desc as u64,
            msr_bitmap: machine.msr_bitmap,
            ept: machine.ept,
            notification: POSTED_INTR_VECTOR,
            rip: guest::start as *const () as u64,
            rsp: guest::stack_top(id),
            argument_page: &raw const *guest::page(id) as u64,
            hlt_exiting: !setup.environment.hlt_in_guest,
            posting: setup.posting,
            more: controls,
            ple: setup.ple,
            tsc: tsc_fields,
        });
        // RDI: the argument of `guest::start`.
        vcpu.thread.get_mut().registers[5] = &raw const *guest::page(id) as u64;
        vcpu
    }

    /// Runs it on this CPU until it stops: load, run, put.
    pub fn run(&self, cpu: u32) -> Stop {
        // SAFETY: only the CPU that runs the vCPU takes this reference, here alone.
        let thread = unsafe { &mut *self.thread.get() };
        let moved = thread.posted.cpu().is_some_and(|last| last != cpu);
        vmx::load(self.vmcs);
        vmx::write_host(cpu);
        let loaded = thread
            .posted
            .load(&self.shared, cpu, cpu, &host::Lists, &COUNTERS)
            .expect("a wakeup list");
        if self.setup.wakes_after_load && loaded.on_recomputed && thread.posted.is_blocking() {
            // The task is the current one: it checks again instead of sleeping.
            wake_up(&self.shared);
        }
        self.restore_clock(thread, moved, cpu);
        if moved {
            let actions = self
                .timer
                .lock()
                .cpu_changed(now(), &self.setup.environment, &COUNTERS);
            self.act(thread, actions, cpu);
        }
        yields::sched_in(self.id);
        let stop = match self.resume_wait(thread, cpu) {
            Some(stop) => stop,
            None => self.execute(thread, cpu),
        };
        let reason = PutReason {
            preempted: stop == Stop::Preempted,
            irq_blocked: false,
            device_assigned: true,
        };
        let put = thread
            .posted
            .put(&self.shared, reason, &host::Lists, &COUNTERS)
            .expect("a wakeup list");
        if put.self_ipi {
            cpu::send_ipi(cpu, POSTED_INTR_WAKEUP_VECTOR);
        }
        yields::sched_out(self.id, stop == Stop::Preempted);
        if let Some(clock) = &mut thread.clock {
            clock.save();
        }
        vmx::clear(self.vmcs);
        thread.launched = false;
        stop
    }

    /// A new offset of the guest's TSC, in the VMCS and for the timer.
    fn restore_clock(&self, thread: &mut Thread, moved: bool, cpu: u32) {
        let tsc = match &mut thread.clock {
            Some(clock) => {
                clock.restore(moved);
                vmx::write(field::TSC_OFFSET, clock.fields().1);
                clock.tsc()
            }
            // The guest reads the host's TSC.
            None => return,
        };
        let mut timer = self.timer.lock();
        let mut prepared = timer.prepare_tsc(tsc);
        let actions = timer.tsc_changed(&mut prepared, now(), &self.setup.environment, &COUNTERS);
        drop(timer);
        self.act(thread, actions, cpu);
    }

    /// The run loop, from entry to entry.
    fn execute(&self, thread: &mut Thread, cpu: u32) -> Stop {
        loop {
            self.shared.take(Requests(u64::MAX));
            thread.lapic.take_event();
            let pending = self.timer.lock().inject_pending();
            self.act(thread, pending, cpu);
            cpu::interrupt_window();
            mark(Mark::Window);
            if host::must_reschedule(cpu) {
                return Stop::Preempted;
            }
            match thread
                .posted
                .enter(&self.shared, &mut thread.lapic, &COUNTERS)
            {
                Entry::Cancelled => {
                    cpu::interrupt_window();
                    continue;
                }
                Entry::Run => {}
            }
            let exit = self.run_guest(thread, cpu);
            thread.posted.leave(&self.shared, &COUNTERS);
            mark(Mark::Left);
            if exit.basic() == exit_reason::EXTERNAL_INTERRUPT {
                host::interrupt(cpu, exit.interruption as u8);
            }
            self.work_in_host();
            if let Some(stop) = self.handle(thread, &exit, cpu) {
                return stop;
            }
        }
    }

    /// From a VM entry to an exit that needs more than the fast path.
    fn run_guest(&self, thread: &mut Thread, cpu: u32) -> Exit {
        loop {
            self.world_switch(thread, cpu);
            thread.posted.vm_exit(&self.shared, &COUNTERS);
            let exit = Exit::read();
            self.count(&exit, cpu);
            if !self.fast_path(thread, &exit, cpu) || host::reschedule_is_pending(cpu) {
                return exit;
            }
            if thread
                .posted
                .reenter(&self.shared, &mut thread.lapic, &COUNTERS)
                == Entry::Cancelled
            {
                return exit;
            }
        }
    }

    fn count(&self, exit: &Exit, cpu: u32) {
        self.exits[usize::from(exit.basic()).min(69)].fetch_add(1, Relaxed);
        let small = exit.reason | self.id << 20;
        let interruption = u64::from(exit.interruption) << 32;
        record::event(
            cpu,
            Kind::Exit,
            small,
            exit.qualification & 0xffff_ffff | interruption,
            vmx::read(vmx::GUEST_RIP),
        );
    }

    /// The VM entry with what is written directly before it, and what is read directly after the exit.
    fn world_switch(&self, thread: &mut Thread, cpu: u32) {
        let environment = &self.setup.environment;
        if let Some(shift) = environment.hv_shift {
            let value = self
                .timer
                .lock()
                .hv_value_at_entry(cpu::tsc(), shift, false);
            if let Some(value) = value {
                vmx::write(field::PREEMPTION_TIMER_VALUE, u64::from(value));
            }
        }
        self.write_page(&self.shared.irr.take());
        vmx::write(
            field::GUEST_INTERRUPT_STATUS,
            u64::from(thread.lapic.interrupt_status()),
        );
        record::event(cpu, Kind::Entry, self.id, vmx::read(vmx::GUEST_RIP), 0);
        mark(Mark::Entry);
        vmx::enter(&mut thread.registers, thread.launched);
        mark(Mark::Exit);
        thread.launched = true;
        let requested = self.read_page(apic_page::IRR);
        self.shared.irr.merge(&requested);
        let status = vmx::read(field::GUEST_INTERRUPT_STATUS) as u16;
        let priority = self.read_page_byte(apic_page::TPR);
        thread
            .lapic
            .read_back(status, self.read_page(apic_page::ISR), priority);
    }

    fn register(&self, set: usize, index: usize) -> *mut u32 {
        (self.vapic as usize + set + index * apic_page::STRIDE) as *mut u32
    }

    fn write_page(&self, requested: &VectorSet) {
        for (index, bits) in requested.to_registers().into_iter().enumerate() {
            // SAFETY: within the virtual-APIC page, which no CPU uses outside guest mode.
            unsafe { self.register(apic_page::IRR, index).write_volatile(bits) };
        }
    }

    fn read_page(&self, set: usize) -> VectorSet {
        // SAFETY: as in `write_page`.
        let read = |index| unsafe { self.register(set, index).read_volatile() };
        VectorSet::from_registers([0, 1, 2, 3, 4, 5, 6, 7].map(read))
    }

    fn read_page_byte(&self, offset: usize) -> u8 {
        // SAFETY: as in `write_page`.
        unsafe { ((self.vapic as usize + offset) as *const u8).read_volatile() }
    }

    /// Exits handled with interrupts off: timer and ICR writes, the preemption timer.
    fn fast_path(&self, thread: &mut Thread, exit: &Exit, cpu: u32) -> bool {
        match exit.basic() {
            exit_reason::PREEMPTION_TIMER => {
                let actions =
                    self.timer
                        .lock()
                        .hv_expired(now(), &self.setup.environment, &COUNTERS);
                self.act(thread, actions, cpu);
                true
            }
            exit_reason::WRMSR => {
                let [rax, _, rcx, rdx, ..] = thread.registers;
                let value = rax & 0xffff_ffff | rdx << 32;
                record::event(cpu, Kind::Msr, rcx as u32, value, 1);
                self.skip_instruction();
                self.write_register(thread, rcx as u32, value, cpu)
            }
            _ => false,
        }
    }

    /// Whether the guest may go on at once.
    fn write_register(&self, thread: &mut Thread, register: u32, value: u64, cpu: u32) -> bool {
        let environment = &self.setup.environment;
        match register {
            cpu::IA32_TSC_DEADLINE => {
                let actions =
                    self.timer
                        .lock()
                        .write_tscdeadline(value, now(), environment, &COUNTERS);
                self.act(thread, actions, cpu);
                true
            }
            cpu::X2APIC_LVT_TIMER => {
                let actions = self.timer.lock().write_lvt(value as u32);
                self.act(thread, actions, cpu);
                true
            }
            cpu::X2APIC_ICR => {
                match host::vcpu((value >> 32) as u32) {
                    Some(target) => {
                        yields::ipi_sent(self.id, target.id, value as u8);
                        target.post(value as u8, cpu);
                    }
                    None => say!(
                        "vCPU {}: an IPI to vCPU {}, which does not exist",
                        self.id,
                        value >> 32
                    ),
                }
                true
            }
            _ => {
                say!(
                    "vCPU {}: WRMSR {register:#x} = {value:#x} is ignored",
                    self.id
                );
                false
            }
        }
    }

    fn skip_instruction(&self) {
        let next = vmx::read(vmx::GUEST_RIP) + vmx::read(vmx::EXIT_INSTRUCTION_LEN);
        vmx::write(vmx::GUEST_RIP, next);
    }

    fn work_in_host(&self) {
        let begin = cpu::tsc();
        loop {
            cpu::interrupt_window();
            if cpu::tsc() - begin >= self.setup.host_work {
                break;
            }
        }
    }

    /// Handles an exit with interrupts on. `None`: enter again.
    fn handle(&self, thread: &mut Thread, exit: &Exit, cpu: u32) -> Option<Stop> {
        match exit.basic() {
            exit_reason::EXTERNAL_INTERRUPT
            | exit_reason::PREEMPTION_TIMER
            | exit_reason::WRMSR => None,
            exit_reason::CPUID => {
                let [rax, _, rcx, ..] = thread.registers;
                let leaf = core::arch::x86_64::__cpuid_count(rax as u32, rcx as u32);
                for (register, value) in thread
                    .registers
                    .iter_mut()
                    .zip([leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
                {
                    *register = u64::from(value);
                }
                self.skip_instruction();
                None
            }
            exit_reason::HLT => {
                self.skip_instruction();
                vmx::write(vmx::GUEST_INTERRUPTIBILITY, 0);
                self.block(thread, cpu)
            }
            exit_reason::VMCALL if thread.registers[0] == 0 => Some(Stop::Done),
            exit_reason::VMCALL if thread.registers[0] <= guest::REPORT_AND_MOVE => {
                if let Some(clock) = &thread.clock {
                    clock.report(thread.registers[2]);
                }
                self.skip_instruction();
                (thread.registers[0] == guest::REPORT_AND_MOVE).then_some(Stop::Preempted)
            }
            exit_reason::PAUSE => {
                yields::on_spin(self.id, cpu);
                None
            }
            _ => {
                self.report(thread, exit);
                Some(Stop::Done)
            }
        }
    }

    /// An exit that no guest of ours makes: the guest ends, the others go on.
    fn report(&self, thread: &Thread, exit: &Exit) {
        let name = match exit.basic() {
            2 => "triple fault",
            18 => "an exception of the guest (its vector is in RBX)",
            30 => "I/O",
            48 => "EPT violation",
            _ => "unknown exit",
        };
        say!(
            "vCPU {} ends: {name}, exit reason {:#x}",
            self.id,
            exit.reason
        );
        for (name, field) in [
            ("qualification", vmx::EXIT_QUALIFICATION),
            ("interruption", vmx::EXIT_INTERRUPTION),
            ("guest-physical address", vmx::GUEST_PHYSICAL),
            ("RIP", vmx::GUEST_RIP),
            ("RSP", vmx::GUEST_RSP),
            ("RFLAGS", vmx::GUEST_RFLAGS),
            ("CR3", vmx::GUEST_CR3),
            ("interruptibility", vmx::GUEST_INTERRUPTIBILITY),
            ("activity", vmx::GUEST_ACTIVITY),
            ("interrupt status", field::GUEST_INTERRUPT_STATUS),
        ] {
            say!("  {name} {:#x}", vmx::read(field));
        }
        say!(
            "  RAX {:#x} RBX {:#x} RCX {:#x}",
            thread.registers[0],
            thread.registers[1],
            thread.registers[2]
        );
        host::FAULTS.fetch_add(1, Relaxed);
    }

    // ---- blocking

    /// HLT: `kvm_vcpu_halt`.
    fn block(&self, thread: &mut Thread, cpu: u32) -> Option<Stop> {
        let actions = self
            .timer
            .lock()
            .begin_blocking(now(), &self.setup.environment, &COUNTERS);
        self.act(thread, actions, cpu);
        thread.halted_tsc = cpu::tsc();
        thread.slept = false;
        thread.halt = thread.poll.begin(&self.setup.halt_poll, true);
        if self.poll(thread, cpu) {
            return self.end_halt(thread, cpu);
        }
        thread.posted.begin_blocking(&self.shared, &COUNTERS);
        self.wait(thread, cpu)
    }

    /// Polls for an interrupt before the wait. Whether there is one.
    fn poll(&self, thread: &mut Thread, cpu: u32) -> bool {
        thread.polled_tsc = thread.halted_tsc;
        if !thread.halt.polls() {
            return false;
        }
        loop {
            let posted = {
                let Thread { posted, lapic, .. } = &mut *thread;
                lapic.has_interrupt(&posted.source(&self.shared, &COUNTERS))
            };
            let found = posted.is_some() || self.timer.lock().pending() > 0;
            cpu::interrupt_window();
            thread.polled_tsc = cpu::tsc();
            let turn = PollTurn {
                elapsed_ns: (thread.polled_tsc - thread.halted_tsc) * NS_PER_CYCLE,
                alone: host::is_alone(cpu),
                need_resched: host::reschedule_is_pending(cpu),
            };
            if found || !thread.halt.keeps_polling(&turn) {
                return found;
            }
        }
    }

    /// The wait loop up to the call of the scheduler.
    fn wait(&self, thread: &mut Thread, cpu: u32) -> Option<Stop> {
        let pending_timer = self.timer.lock().pending() > 0;
        if pending_timer
            || !thread
                .posted
                .wait(&self.shared, &mut thread.lapic, true, &COUNTERS)
        {
            return self.end_wait(thread, cpu);
        }
        // The task may be preempted here, after its last check and before it sleeps.
        host::before_sleep(cpu);
        if host::must_reschedule(cpu) {
            thread.waits = true;
            return Some(Stop::Preempted);
        }
        self.sleep(thread, cpu)
    }

    /// `schedule()`: sleeps if it still waits, else checks again.
    fn sleep(&self, thread: &mut Thread, cpu: u32) -> Option<Stop> {
        if self.shared.still_waiting() {
            thread.slept = true;
            return Some(Stop::Blocked);
        }
        self.wait(thread, cpu)
    }

    fn end_wait(&self, thread: &mut Thread, cpu: u32) -> Option<Stop> {
        thread.posted.end_blocking(&self.shared, &COUNTERS);
        self.end_halt(thread, cpu)
    }

    fn end_halt(&self, thread: &mut Thread, cpu: u32) -> Option<Stop> {
        let end = HaltEnd {
            waited: thread.slept,
            halt_ns: (cpu::tsc() - thread.halted_tsc) * NS_PER_CYCLE,
            poll_ns: (thread.polled_tsc - thread.halted_tsc) * NS_PER_CYCLE,
            valid_wakeup: true,
        };
        let knobs = &self.setup.halt_poll;
        thread.poll.end(knobs, &thread.halt, &end, &COUNTERS);
        let waited = u32::from(end.waited);
        record::event(cpu, Kind::Wakeup, waited, end.halt_ns, 1);
        let actions = self
            .timer
            .lock()
            .end_blocking(now(), &self.setup.environment, &COUNTERS);
        self.act(thread, actions, cpu);
        None
    }

    /// After a load: a preempted wait calls the scheduler, an ended sleep checks again.
    fn resume_wait(&self, thread: &mut Thread, cpu: u32) -> Option<Stop> {
        if !thread.posted.is_blocking() {
            return None;
        }
        if core::mem::take(&mut thread.waits) {
            return self.sleep(thread, cpu);
        }
        self.wait(thread, cpu)
    }

    // ---- posts and timers, from any CPU

    /// Posts a vector from `cpu`, by software.
    pub fn post(&self, vector: u8, cpu: u32) {
        let loaded_here = host::current(cpu) == Some(self.id);
        record::event(
            cpu,
            Kind::Accept,
            u32::from(vector),
            u64::from(self.id),
            u64::from(self.setup.posting),
        );
        match deliver(
            &self.shared,
            vector,
            loaded_here,
            self.setup.policy,
            &COUNTERS,
        ) {
            Delivery::Ipi {
                cpu: Some(target),
                vector,
            } => self.notify(cpu, target, vector),
            Delivery::Wake if wake_up(&self.shared) => host::make_runnable(self, cpu),
            Delivery::ApicvInactive => self.obey(deliver_through_irr(&self.shared, vector), cpu),
            _ => {}
        }
    }

    fn notify(&self, cpu: u32, target: u32, vector: u8) {
        record::event(cpu, Kind::Ipi, u32::from(vector), u64::from(target), 0);
        cpu::send_ipi(target, vector);
    }

    /// Requests something of the vCPU, from `cpu`.
    pub fn request(&self, requests: Requests, cpu: u32) {
        let loaded_here = host::current(cpu) == Some(self.id);
        self.obey(kick(&self.shared, requests, loaded_here), cpu);
    }

    fn obey(&self, kick: Kick, cpu: u32) {
        match kick {
            Kick::Wake => host::make_runnable(self, cpu),
            Kick::Ipi(Some(target)) => self.notify(cpu, target, record::RESCHEDULE_VECTOR),
            Kick::Ipi(None) | Kick::Nothing => {}
        }
    }

    /// The hrtimer's callback, on `cpu`.
    pub fn timer_fired(&self, cpu: u32) {
        record::event(cpu, Kind::TimerExpire, self.id, now().ns as u64, 0);
        let mode = self.shared.mode();
        let actions =
            self.timer
                .lock()
                .hrtimer_fired(now(), mode, &self.setup.environment, &COUNTERS);
        actions.iter().for_each(|action| self.act_on(action, cpu));
    }

    /// Does what a timer asks, in the vCPU's thread.
    fn act(&self, thread: &mut Thread, actions: Actions, cpu: u32) {
        for action in actions.iter() {
            match action {
                Action::ArmHv { host_deadline } => {
                    record::event(cpu, Kind::HvTimer, self.id, 1, host_deadline);
                }
                Action::CancelHv => record::event(cpu, Kind::HvTimer, self.id, 0, 0),
                Action::Inject { vector } => {
                    thread.lapic.note_trigger(vector, false);
                    self.post(vector, cpu);
                }
                action => self.act_on(action, cpu),
            }
        }
    }

    fn act_on(&self, action: Action, cpu: u32) {
        match action {
            Action::StartHrtimer { at_ns } => {
                let deadline = at_ns.max(0) as u64 / NS_PER_CYCLE;
                record::event(cpu, Kind::TimerStart, self.id, at_ns as u64, 0);
                let refused = host::start_timer(self.id, deadline, cpu);
                self.timer
                    .lock()
                    .note_placement(refused, &self.setup.environment);
            }
            Action::CancelHrtimer => {
                record::event(cpu, Kind::TimerCancel, self.id, 0, 0);
                host::cancel_timer(self.id);
            }
            Action::Spin(spin) => spin_for(spin),
            Action::Post { vector } => self.post(vector, cpu),
            Action::Unblock => self.shared.request(Requests::UNBLOCK),
            Action::Kick => self.request(Requests::UNBLOCK, cpu),
            // Only the vCPU's thread arms these, see `act`.
            Action::ArmHv { .. } | Action::CancelHv | Action::Inject { .. } => {}
        }
    }

    /// Helps a vCPU after its protocol has lost an interrupt: the next entry reads PIR.
    pub fn rescue(&self, cpu: u32) {
        self.shared.desc.set_on();
        self.request(Requests(Requests::EVENT.0 | Requests::UNBLOCK.0), cpu);
    }

    /// Makes the guest see its stop flag, whatever its notifications have come to.
    pub fn force_stop(&self, cpu: u32) {
        guest::page(self.id).stop.store(1, SeqCst);
        self.shared.desc.set_on();
        self.shared.irr.set(guest::STOP_VECTOR);
        self.request(Requests(Requests::EVENT.0 | Requests::UNBLOCK.0), cpu);
    }
}

fn spin_for(spin: stealtime_hypervisor::lapic_timer::advance::Spin) {
    use stealtime_hypervisor::lapic_timer::advance::Spin;
    match spin {
        Spin::None => {}
        Spin::Cycles(cycles) => cpu::delay(cycles),
        Spin::Ns(ns) => cpu::delay(u64::from(ns) / NS_PER_CYCLE),
    }
}
