//! The host: CPUs with a run queue each, their interrupts, and hrtimers.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst,
};

use stealtime_hypervisor::lapic_timer::{CpuTimers, TimerRequest, place_hrtimer};
use stealtime_hypervisor::posted_interrupt::{
    CpuList, HostInterrupt, SharedVcpu, WakeupLists, hardware, wake_up, wakeup_handler,
};

use stealtime_hypervisor::wakeup_batch::EVENT_CHECK_VECTOR;

use crate::batches;
use crate::boot::MAX_CPUS;
use crate::counters::COUNTERS;
use crate::cpu::{self, SpinLock};
use crate::guest::{self, MAX_VCPUS};
use crate::record::{self, Kind, RESCHEDULE_VECTOR, TIMER_VECTOR};
use crate::sched;
use crate::vcpu::{BLOCKED, DONE, READY, RUNNING, Stop, Vcpu};
use crate::word::Word;
use crate::yields;

/// No vCPU.
const NONE: u32 = u32::MAX;

/// Timers of a CPU.
struct Timers {
    /// When the host's tick fires, TSC; 0: no tick.
    tick: u64,
    /// vCPUs' hrtimers: deadline in TSC.
    started: [Option<u64>; MAX_VCPUS],
    /// What the LAPIC is programmed to.
    programmed: u64,
}

impl Timers {
    fn first(&self) -> u64 {
        let ticks = (self.tick != 0).then_some(self.tick);
        self.started
            .iter()
            .flatten()
            .copied()
            .chain(ticks)
            .min()
            .unwrap_or(u64::MAX)
    }
}

struct Cpu {
    current: AtomicU32,
    nominated: AtomicU32,
    reschedule: AtomicBool,
    idle: AtomicBool,
    housekeeping: AtomicBool,
    /// Mean length between ticks, cycles; 0: no tick.
    tick_cycles: AtomicU64,
    random: AtomicU64,
    timers: SpinLock<Timers>,
    blocked: SpinLock<Option<CpuList>>,
}

static CPUS: [Cpu; MAX_CPUS] = [const {
    Cpu {
        current: AtomicU32::new(NONE),
        nominated: AtomicU32::new(NONE),
        reschedule: AtomicBool::new(false),
        idle: AtomicBool::new(false),
        housekeeping: AtomicBool::new(false),
        tick_cycles: AtomicU64::new(0),
        random: AtomicU64::new(0),
        timers: SpinLock::new(Timers {
            tick: 0,
            started: [None; MAX_VCPUS],
            programmed: 0,
        }),
        blocked: SpinLock::new(None),
    }
}; MAX_CPUS];

static VCPUS: [AtomicPtr<Vcpu>; MAX_VCPUS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_VCPUS];
/// Number of vCPUs of the phase.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// CPUs that are up.
pub static ONLINE: AtomicU32 = AtomicU32::new(1);
/// Guests that ended by a fault.
pub static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Among so many CPUs a vCPU moves to the next when it is preempted; 0: it stays.
pub static MIGRATES: AtomicU32 = AtomicU32::new(0);
/// All guests stop when the first so many have ended.
pub static ENDS_WITH: AtomicU32 = AtomicU32::new(0);
/// All guests stop at this time, TSC; 0: they end by themselves.
pub static ENDS_AT: AtomicU64 = AtomicU64::new(0);
/// Longest time between a blocking vCPU's last check and its sleep, cycles.
pub static LINGER: AtomicU64 = AtomicU64::new(0);

/// The wakeup lists, a lock each.
pub struct Lists;

impl WakeupLists for Lists {
    type List = CpuList;

    fn locked<R>(&self, cpu: u32, body: impl FnOnce(&mut CpuList) -> R) -> Option<R> {
        let mut list = CPUS.get(cpu as usize)?.blocked.lock();
        list.as_mut().map(body)
    }
}

fn this(cpu: u32) -> &'static Cpu {
    &CPUS[cpu as usize]
}

/// Readies a CPU.
pub fn prepare(cpu: u32, seed: u64) {
    *this(cpu).blocked.lock() = Some(CpuList::with_room(MAX_VCPUS));
    this(cpu).random.store(
        seed ^ 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(cpu) + 1),
        Relaxed,
    );
    // TSC-deadline mode; the deadline is 0.
    cpu::wrmsr(cpu::X2APIC_LVT_TIMER, 2 << 17 | u64::from(TIMER_VECTOR));
}

/// A random number of the CPU that runs (xorshift64*).
pub fn random(cpu: u32) -> u64 {
    let state = &this(cpu).random;
    let mut bits = state.load(Relaxed);
    bits ^= bits >> 12;
    bits ^= bits << 25;
    bits ^= bits >> 27;
    state.store(bits, Relaxed);
    bits.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}

/// The vCPUs of the next phase.
pub fn set_vcpus(vcpus: &[&'static Vcpu]) {
    for (slot, vcpu) in VCPUS.iter().zip(vcpus) {
        slot.store((&raw const **vcpu).cast_mut(), SeqCst);
    }
    NUMBER.store(vcpus.len() as u32, SeqCst);
    for cpu in &CPUS {
        *cpu.timers.lock() = Timers {
            tick: 0,
            started: [None; MAX_VCPUS],
            programmed: 0,
        };
        if let Some(list) = cpu.blocked.lock().as_mut() {
            *list = CpuList::with_room(MAX_VCPUS);
        }
        cpu.reschedule.store(false, SeqCst);
        cpu.housekeeping.store(false, SeqCst);
        cpu.tick_cycles.store(0, SeqCst);
    }
}

/// Whether a CPU does the host's housekeeping, and its tick; cycles between ticks, on average.
pub fn set_cpu(cpu: u32, housekeeping: bool, tick_cycles: u64) {
    this(cpu).housekeeping.store(housekeeping, SeqCst);
    this(cpu).tick_cycles.store(tick_cycles, SeqCst);
}

/// A vCPU of the phase.
pub fn vcpu(id: u32) -> Option<&'static Vcpu> {
    if id >= NUMBER.load(SeqCst) {
        return None;
    }
    // SAFETY: below `NUMBER` the pointers are those of `set_vcpus`, which live for good.
    unsafe { VCPUS[id as usize].load(SeqCst).as_ref() }
}

fn vcpus() -> impl Iterator<Item = &'static Vcpu> {
    (0..NUMBER.load(SeqCst)).filter_map(vcpu)
}

pub fn all_done() -> bool {
    vcpus().all(|vcpu| vcpu.state.load(SeqCst) == DONE)
}

/// Whether no other vCPU is to run on a CPU (`single_task_running`).
pub fn is_alone(cpu: u32) -> bool {
    let runnable = |vcpu: &Vcpu| vcpu.home.load(SeqCst) == cpu && vcpu.state.load(SeqCst) == READY;
    !vcpus().any(runnable)
}

/// The vCPU that is loaded on a CPU.
pub fn current(cpu: u32) -> Option<u32> {
    Some(this(cpu).current.load(Relaxed)).filter(|&id| id != NONE)
}

/// Takes the request to reschedule.
pub fn must_reschedule(cpu: u32) -> bool {
    this(cpu).reschedule.swap(false, Relaxed)
}

/// Whether there is one.
pub fn reschedule_is_pending(cpu: u32) -> bool {
    this(cpu).reschedule.load(Relaxed)
}

/// Requests that a CPU reschedules.
pub fn reschedule(cpu: u32) {
    this(cpu).reschedule.store(true, Relaxed);
}

/// A vCPU is to run next on a CPU, in place of the one that yields to it.
pub fn nominate(cpu: u32, vcpu: u32) {
    this(cpu).nominated.store(vcpu, Relaxed);
    this(cpu).reschedule.store(true, Relaxed);
}

/// A window of interrupts between the last check of a blocking vCPU and its sleep. It is as long as
/// the phase asks for, because a preemption there is what some protocols do not survive.
pub fn before_sleep(cpu: u32) {
    let longest = LINGER.load(Relaxed);
    let linger = random(cpu) % (longest + 1);
    let begin = cpu::tsc();
    loop {
        cpu::interrupt_window();
        if cpu::tsc() - begin >= linger || reschedule_is_pending(cpu) {
            break;
        }
    }
}

/// Makes a vCPU runnable, and its CPU look.
pub fn make_runnable(vcpu: &Vcpu, cpu: u32) {
    record::event(
        cpu,
        Kind::Waking,
        vcpu.tid,
        u64::from(vcpu.home.load(SeqCst)),
        0,
    );
    if vcpu
        .state
        .compare_exchange(BLOCKED, READY, SeqCst, SeqCst)
        .is_ok()
    {
        yields::woken(vcpu.id);
        let home = vcpu.home.load(SeqCst);
        if sched::is_active() && sched::wake(vcpu.id, home) {
            reschedule(home);
        }
        if home != cpu {
            cpu::send_ipi(home, RESCHEDULE_VECTOR);
        }
    }
}

/// An interrupt of the host, from its gate or from an exit.
pub fn interrupt(cpu: u32, vector: u8) {
    record::event(cpu, Kind::VectorEntry, u32::from(vector), 0, 0);
    cpu::eoi();
    match hardware::interrupt_in_host(vector, &COUNTERS) {
        HostInterrupt::Wakeup => wake_blocked(cpu),
        HostInterrupt::Spurious => {}
        HostInterrupt::NotOurs if vector == TIMER_VECTOR => timer_interrupt(cpu),
        HostInterrupt::NotOurs if vector == RESCHEDULE_VECTOR => {}
        HostInterrupt::NotOurs if vector == EVENT_CHECK_VECTOR => batches::event_check(),
        HostInterrupt::NotOurs => {
            COUNTERS.stray.fetch_add(1, Relaxed);
        }
    }
    record::event(cpu, Kind::VectorExit, u32::from(vector), 0, 0);
}

fn wake_blocked(cpu: u32) {
    let shared = |id| vcpu(id).map(|vcpu| -> &SharedVcpu<Word> { &vcpu.shared });
    wakeup_handler(cpu, &Lists, shared, &COUNTERS, |id| {
        if let Some(vcpu) = vcpu(id)
            && wake_up(&vcpu.shared)
        {
            make_runnable(vcpu, cpu);
        }
    });
}

// ---- timers

/// Programs the LAPIC of this CPU to the first event.
fn program(timers: &mut Timers) {
    let first = timers.first();
    if first != timers.programmed {
        timers.programmed = first;
        // 0 disarms.
        cpu::wrmsr(
            cpu::IA32_TSC_DEADLINE,
            if first == u64::MAX { 0 } else { first },
        );
    }
}

fn timer_interrupt(cpu: u32) {
    let local = this(cpu);
    loop {
        let mut timers = local.timers.lock();
        timers.programmed = 0;
        let now = cpu::tsc();
        let expired = |slot: &Option<u64>| slot.is_some_and(|deadline| deadline <= now);
        let Some(id) = timers.started.iter().position(expired) else {
            if timers.tick != 0 && timers.tick <= now {
                if !sched::is_active() || sched::tick(cpu) {
                    reschedule(cpu);
                }
                timers.tick = now + next_tick(cpu);
                let ends_at = ENDS_AT.load(Relaxed);
                if ends_at != 0 && ends_at <= now {
                    stop_all();
                }
            }
            program(&mut timers);
            return;
        };
        timers.started[id] = None;
        // The callback takes other locks, and may start the timer again.
        drop(timers);
        if let Some(vcpu) = vcpu(id as u32) {
            vcpu.timer_fired(cpu);
        }
    }
}

fn next_tick(cpu: u32) -> u64 {
    let mean = this(cpu).tick_cycles.load(Relaxed);
    if sched::is_active() {
        return mean;
    }
    mean / 2 + random(cpu) % mean.max(1)
}

fn start_tick(cpu: u32) {
    if this(cpu).tick_cycles.load(Relaxed) > 0 {
        let mut timers = this(cpu).timers.lock();
        timers.tick = cpu::tsc() + next_tick(cpu);
        program(&mut timers);
    }
}

fn stop_tick(cpu: u32) {
    let mut timers = this(cpu).timers.lock();
    timers.tick = 0;
    program(&mut timers);
}

/// Starts a vCPU's hrtimer from `cpu`. Whether the preferred CPU refused it.
pub fn start_timer(id: u32, deadline: u64, cpu: u32) -> bool {
    let online = ONLINE.load(Relaxed) as usize;
    let state = |index: usize| {
        let next = CPUS[index].timers.lock().first();
        CpuTimers {
            housekeeping: CPUS[index].housekeeping.load(Relaxed),
            idle: CPUS[index].idle.load(Relaxed),
            next_event_ns: (next != u64::MAX).then_some(next as i64),
        }
    };
    let mut cpus = [state(0); MAX_CPUS];
    for (index, slot) in cpus.iter_mut().enumerate().take(online) {
        *slot = state(index);
    }
    let mut nearest = [0; MAX_CPUS];
    for (offset, slot) in nearest.iter_mut().enumerate().take(online) {
        *slot = (cpu as usize + offset) % online;
    }
    // Deadlines are compared with one another only, so TSC cycles do for nanoseconds.
    let request = TimerRequest {
        at_ns: deadline as i64,
        from: cpu as usize,
        queued_on: None,
        first_in_queue: false,
        pinned: false,
        callback_running: false,
        migration: true,
    };
    let placed = place_hrtimer(&request, &cpus[..online], &nearest[..online], &COUNTERS);
    let placed = placed.expect("CPUs that are online");
    let mut timers = CPUS[placed.cpu].timers.lock();
    timers.started[id as usize] = Some(deadline);
    if placed.cpu == cpu as usize {
        program(&mut timers);
    }
    placed.refused
}

/// Removes a vCPU's hrtimer from all CPUs. An early interrupt of the LAPIC finds nothing to do.
pub fn cancel_timer(id: u32) {
    for cpu in &CPUS {
        cpu.timers.lock().started[id as usize] = None;
    }
}

// ---- scheduling

/// Runs the vCPUs of this CPU in turn until all vCPUs of the phase are done.
pub fn schedule(cpu: u32) {
    let local = this(cpu);
    start_tick(cpu);
    let mut last = 0;
    let mut previous = 0;
    while !all_done() {
        let number = NUMBER.load(SeqCst);
        let nominated = local.nominated.swap(NONE, Relaxed);
        // The fair class alone decides if it is active.
        let (first, turns) = if sched::is_active() {
            local.reschedule.store(false, Relaxed);
            (sched::pick(cpu), 0)
        } else {
            (Some(nominated), number)
        };
        let in_turn = (1..=turns).map(|step| (last + step) % number);
        let in_order = first.into_iter().chain(in_turn);
        let take = |vcpu: &&Vcpu| {
            vcpu.home.load(SeqCst) == cpu
                && vcpu
                    .state
                    .compare_exchange(READY, RUNNING, SeqCst, SeqCst)
                    .is_ok()
        };
        let Some(vcpu) = in_order.filter_map(vcpu).find(take) else {
            switch(cpu, &mut previous, 0, 1);
            idle(cpu);
            continue;
        };
        switch(cpu, &mut previous, vcpu.tid, 1);
        last = vcpu.id;
        // A tick of the idle CPU, or of the task before, preempts none of those that come now.
        if !sched::is_active() {
            local.reschedule.store(false, Relaxed);
        }
        local.current.store(vcpu.id, Relaxed);
        let stop = vcpu.run(cpu);
        local.current.store(NONE, Relaxed);
        cpu::interrupt_window();
        leave(vcpu, stop, cpu);
        if stop == Stop::Preempted {
            switch(cpu, &mut previous, 0, 0);
        }
    }
    switch(cpu, &mut previous, 0, 1);
    stop_tick(cpu);
}

fn stop_all() {
    vcpus().for_each(|vcpu| guest::page(vcpu.id).stop.store(1, SeqCst));
}

fn leave(vcpu: &Vcpu, stop: Stop, cpu: u32) {
    if sched::is_active() {
        sched::leave(cpu, stop);
    }
    match stop {
        Stop::Preempted => {
            let migrates = MIGRATES.load(Relaxed);
            if migrates > 0 {
                let next = (cpu + 1) % migrates;
                vcpu.home.store(next, SeqCst);
                vcpu.state.store(READY, SeqCst);
                cpu::send_ipi(next, RESCHEDULE_VECTOR);
            } else {
                vcpu.state.store(READY, SeqCst);
            }
        }
        Stop::Blocked => {
            vcpu.state.store(BLOCKED, SeqCst);
            // A waker that came before this store has found no sleeper to make runnable.
            if !vcpu.shared.still_waiting()
                && vcpu
                    .state
                    .compare_exchange(BLOCKED, READY, SeqCst, SeqCst)
                    .is_ok()
                && sched::is_active()
                && sched::wake(vcpu.id, cpu)
            {
                reschedule(cpu);
            }
        }
        Stop::Done => {
            vcpu.state.store(DONE, SeqCst);
            let number = ENDS_WITH.load(Relaxed) as usize;
            if vcpus()
                .take(number)
                .all(|vcpu| vcpu.state.load(SeqCst) == DONE)
            {
                stop_all();
            }
        }
    }
}

/// Records a switch of tasks, 0 being the idle one. `state` is that of the task that leaves.
fn switch(cpu: u32, previous: &mut u32, next: u32, state: u64) {
    if *previous != next {
        record::event(
            cpu,
            Kind::Switch,
            *previous,
            u64::from(next),
            if *previous == 0 { 0 } else { state },
        );
        *previous = next;
    }
}

/// Nothing is to run: waits for interrupts. A housekeeping CPU is busy with its own affairs.
fn idle(cpu: u32) {
    if this(cpu).housekeeping.load(Relaxed) {
        cpu::interrupt_window();
        return;
    }
    this(cpu).idle.store(true, Relaxed);
    // A vCPU made runnable since the search has sent an interrupt, which ends the wait; its own CPU's
    // handlers run in windows only. The timer bounds the rest.
    let bound = cpu::tsc() + 20_000;
    let mut timers = this(cpu).timers.lock();
    let first = timers.first().min(bound);
    timers.programmed = first;
    cpu::wrmsr(cpu::IA32_TSC_DEADLINE, first);
    drop(timers);
    cpu::wait_for_interrupt();
    this(cpu).idle.store(false, Relaxed);
}
