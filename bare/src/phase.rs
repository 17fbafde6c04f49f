//! A phase: guests on CPUs, a poster, and what comes of it.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use stealtime_hypervisor::directed_yield::YieldKnobs;
use stealtime_hypervisor::posted_interrupt::{VcpuMode, vtd};

use crate::batches;
use crate::clock::{self, Reports};
use crate::counters::{COUNTERS, value};
use crate::cpu;
use crate::guest::{self, IPI_VECTOR, Program, TIMER_VECTOR};
use crate::host;
use crate::parts::{self, Parts};
use crate::record::{self, Kind};
use crate::sched::{self, Scheduling};
use crate::vcpu::{DONE, Setup, Shared, Vcpu};
use crate::word;
use crate::yields;

/// The vector that posters post.
pub const POSTED_VECTOR: u8 = 0x50;
/// Vector of interrupts that Bochs delivers for a notification with an empty PIR: it sets RVI to 255.
const EMPTY_VECTOR: usize = 255;

/// A guest of a phase.
#[derive(Clone, Copy)]
pub struct Guest {
    pub cpu: u32,
    pub program: Program,
    pub work: u32,
    pub count: u32,
    pub period: u64,
    pub peer: u32,
    /// For the fair class.
    pub nice: i8,
}

impl Guest {
    pub const fn new(cpu: u32, program: Program) -> Self {
        Self {
            cpu,
            program,
            work: 0,
            count: 0,
            period: 0,
            peer: 0,
            nice: 0,
        }
    }

    /// Two guests of a VM on CPU 0: the first interrupts the second `count` times, and spins for the answers.
    pub const fn pair(count: u32) -> [Self; 2] {
        let ping = Self {
            count,
            peer: 1,
            ..Self::new(0, Program::Ping)
        };
        let pong = Self {
            program: Program::Pong,
            peer: 0,
            ..ping
        };
        [ping, pong]
    }
}

/// By what the poster posts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Poster {
    /// Software: a VMM's thread, or another vCPU's exit.
    Software,
    /// A device by VT-d. This CPU runs its steps: Bochs has no IOMMU that posts.
    Device,
}

/// What is run.
pub struct Phase {
    pub name: &'static str,
    pub setup: Setup,
    pub guests: Vec<Guest>,
    pub poster: Option<Poster>,
    pub posts: u64,
    /// Longest pause between two posts, cycles.
    pub pause: u64,
    /// Whether the parts of exits are measured.
    pub measures: bool,
    /// Mean cycles between ticks of the CPUs with guests; 0: none.
    pub tick: u64,
    /// The same of the housekeeping CPU, the last one.
    pub housekeeping_tick: u64,
    /// Whether preempted vCPUs move to the next CPU that has guests.
    pub migrate: bool,
    /// Cycles after which an interrupt is lost.
    pub patience: u64,
    /// The first so many guests are posted to.
    pub targets: u64,
    /// All guests stop when the first so many have ended.
    pub ends_with: u32,
    /// How a spinning vCPU chooses what runs instead.
    pub yields: YieldKnobs,
    /// Longest time between a blocking vCPU's last check and its sleep, cycles.
    pub linger: u64,
    /// Longest pause of a software poster between PIR and ON, cycles; 0: none.
    pub poster_gap: u64,
    /// How vCPUs share a CPU.
    pub scheduling: Scheduling,
    /// Cycles after which all guests stop; 0: they end by themselves.
    pub duration: u64,
    /// Cycles by which the TSC of the second CPU is ahead. Events are not recorded then.
    pub skew: u64,
}

/// What came of a phase.
#[derive(Clone, Default)]
pub struct Outcome {
    pub name: &'static str,
    pub handled: u64,
    pub ticks: u64,
    pub exits: Vec<(u16, u64)>,
    pub sent: u64,
    pub spared: u64,
    pub on_already_set: u64,
    pub in_guest_empty: u64,
    pub in_host: u64,
    pub lost: u64,
    /// Number of the first post that was lost; 0: none.
    pub first_lost: u64,
    pub twice: u64,
    pub latency_sum: u64,
    pub latency_max: u64,
    pub late_sum: u64,
    pub late_max: u64,
    pub refused: u64,
    pub posted: u64,
    pub stray: u64,
    /// IPIs of guests handled, PAUSE-loop exits that boosted a vCPU, and of these those that boosted
    /// the receiver of the spinner's IPI.
    pub ipis: u64,
    pub boosts: u64,
    pub confirmed: u64,
    /// Halts that polled, and of these those that found an interrupt so.
    pub halt_polls: u64,
    pub halt_polls_successful: u64,
    /// TSC cycles that the phase took.
    pub cycles: u64,
    /// Directed yields in the fair class, those with the target as next task, and those with a credit.
    pub yields: u64,
    pub reached: u64,
    pub credited: u64,
    /// Rounds of each guest.
    pub loops: Vec<u64>,
    /// Reads of a guest's TSC that were not above the one before.
    pub backward: u64,
    pub clock: Reports,
    pub parts: Parts,
}

impl Outcome {
    /// Exits with a reason.
    pub fn exits(&self, reason: u16) -> u64 {
        self.exits
            .iter()
            .filter(|(r, _)| *r == reason)
            .map(|(_, count)| count)
            .sum()
    }
}

static PHASE: AtomicPtr<Phase> = AtomicPtr::new(core::ptr::null_mut());
static GENERATION: AtomicU32 = AtomicU32::new(0);
static FINISHED: AtomicU32 = AtomicU32::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static FIRST_LOST: AtomicU64 = AtomicU64::new(0);
static TWICE: AtomicU64 = AtomicU64::new(0);
static LATENCY_SUM: AtomicU64 = AtomicU64::new(0);
static LATENCY_MAX: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A CPU other than the first: its part in each phase. `u32::MAX` ends it.
pub fn follow(cpu: u32) -> ! {
    let mut finished = 0;
    loop {
        let generation = GENERATION.load(SeqCst);
        if generation == finished {
            // Interrupts that a phase left behind are taken here.
            cpu::interrupt_window();
            core::hint::spin_loop();
            continue;
        }
        finished = generation;
        // SAFETY: set before the generation, and alive until all CPUs have finished.
        match unsafe { PHASE.load(SeqCst).as_ref() } {
            Some(phase) => take_part(phase, cpu),
            None => batches::idle(cpu),
        }
        FINISHED.fetch_add(1, SeqCst);
    }
}

fn take_part(phase: &Phase, cpu: u32) {
    let adjust = |cycles| {
        if cpu == 1 && phase.skew > 0 {
            cpu::wrmsr(cpu::IA32_TSC_ADJUST, cycles);
        }
    };
    adjust(phase.skew);
    match phase.poster {
        Some(poster) if cpu + 1 == host::ONLINE.load(Relaxed) => post_all(phase, poster, cpu),
        _ => host::schedule(cpu),
    }
    adjust(0);
}

/// Runs `body` on this CPU, while all others run [`batches::idle`] until the machine stops.
pub fn while_others_idle<R>(body: impl FnOnce() -> R) -> R {
    let online = host::ONLINE.load(Relaxed);
    FINISHED.store(0, SeqCst);
    PHASE.store(core::ptr::null_mut(), SeqCst);
    GENERATION.fetch_add(1, SeqCst);
    let result = body();
    while FINISHED.load(SeqCst) < online - 1 {
        cpu::interrupt_window();
    }
    result
}

/// Runs a phase on all CPUs.
pub fn run(phase: Phase, machine: &Shared) -> Outcome {
    let online = host::ONLINE.load(Relaxed);
    let number = NUMBER.fetch_add(1, Relaxed) + 1;
    COUNTERS.reset();
    for counter in [&LOST, &FIRST_LOST, &TWICE, &LATENCY_SUM, &LATENCY_MAX] {
        counter.store(0, SeqCst);
    }
    let vcpus: Vec<&'static Vcpu> = (0u32..)
        .zip(&phase.guests)
        .map(|(id, guest)| {
            let page = guest::page(id);
            page.reset();
            page.program.store(guest.program as u32, SeqCst);
            page.work.store(guest.work, SeqCst);
            page.count.store(guest.count, SeqCst);
            page.period.store(guest.period, SeqCst);
            page.peer.store(guest.peer, SeqCst);
            let tid = 1000 * number + id;
            record::text(Kind::Vcpu, u64::from(tid), u64::from(id), phase.name);
            Vcpu::new(id, tid, guest.cpu, phase.setup, machine)
        })
        .collect();
    record::text(Kind::Phase, u64::from(number), 0, phase.name);
    yields::begin(vcpus.len(), phase.yields);
    sched::begin(phase.scheduling, &phase.guests, online);
    clock::reset();
    parts::begin(phase.measures);
    host::set_vcpus(&vcpus);
    for cpu in 0..online {
        let last = cpu + 1 == online;
        let has_guests =
            phase.guests.iter().any(|guest| guest.cpu == cpu) || phase.migrate && !last;
        let tick = if last && phase.housekeeping_tick > 0 {
            phase.housekeeping_tick
        } else if has_guests {
            phase.tick
        } else {
            0
        };
        host::set_cpu(cpu, last && phase.housekeeping_tick > 0, tick);
    }
    // The last CPU posts, or does the housekeeping.
    let runs_guests = phase.poster.is_none() && phase.housekeeping_tick == 0;
    let migrates = match (phase.migrate, runs_guests) {
        (false, _) => 0,
        (true, true) => online,
        (true, false) => online - 1,
    };
    host::MIGRATES.store(migrates, SeqCst);
    host::LINGER.store(phase.linger, SeqCst);
    host::ENDS_WITH.store(phase.ends_with, SeqCst);
    let begin = cpu::tsc();
    let ends_at = if phase.duration > 0 {
        begin + phase.duration
    } else {
        0
    };
    host::ENDS_AT.store(ends_at, SeqCst);
    let recorded = record::ENABLED.load(SeqCst);
    if phase.skew > 0 {
        record::ENABLED.store(false, SeqCst);
    }
    FINISHED.store(0, SeqCst);
    PHASE.store((&raw const phase).cast_mut(), SeqCst);
    GENERATION.fetch_add(1, SeqCst);
    take_part(&phase, 0);
    while FINISHED.load(SeqCst) < online - 1 {
        cpu::interrupt_window();
    }
    cpu::interrupt_window();
    record::ENABLED.store(recorded, SeqCst);
    outcome(phase.name, &vcpus, cpu::tsc() - begin)
}

fn outcome(name: &'static str, vcpus: &[&Vcpu], cycles: u64) -> Outcome {
    let pages = || vcpus.iter().map(|vcpu| guest::page(vcpu.id));
    let handled = |vector: usize| pages().map(|page| page.handled[vector].load(SeqCst)).sum();
    let mut exits = Vec::new();
    for reason in 0..70u16 {
        let count: u64 = vcpus
            .iter()
            .map(|vcpu| value(&vcpu.exits[usize::from(reason)]))
            .sum();
        if count > 0 {
            exits.push((reason, count));
        }
    }
    Outcome {
        name,
        handled: handled(usize::from(POSTED_VECTOR)),
        ticks: handled(usize::from(TIMER_VECTOR)),
        exits,
        sent: value(&COUNTERS.notified) + value(&COUNTERS.hw_notified),
        spared: value(&COUNTERS.hw_suppressed) + value(&COUNTERS.dropped_by_sn),
        on_already_set: value(&COUNTERS.on_already_set) + value(&COUNTERS.hw_on_already_set),
        in_guest_empty: handled(EMPTY_VECTOR),
        in_host: value(&COUNTERS.in_host),
        lost: value(&LOST),
        first_lost: value(&FIRST_LOST),
        twice: value(&TWICE),
        latency_sum: value(&LATENCY_SUM),
        latency_max: value(&LATENCY_MAX),
        late_sum: pages().map(|page| page.late_sum.load(SeqCst)).sum(),
        late_max: pages()
            .map(|page| page.late_max.load(SeqCst))
            .max()
            .unwrap_or(0),
        refused: value(&COUNTERS.refused),
        posted: value(&COUNTERS.posted),
        stray: value(&COUNTERS.stray),
        ipis: handled(usize::from(IPI_VECTOR)),
        boosts: value(&COUNTERS.boosts),
        confirmed: value(&COUNTERS.confirmed),
        halt_polls: value(&COUNTERS.halt_polls),
        halt_polls_successful: value(&COUNTERS.halt_polls_successful),
        cycles,
        yields: value(&sched::YIELDS),
        reached: value(&sched::REACHED),
        credited: value(&sched::CREDITED),
        loops: pages().map(|page| page.loops.load(SeqCst)).collect(),
        backward: pages().map(|page| page.backward.load(SeqCst)).sum(),
        clock: clock::reports(),
        parts: parts::end(),
    }
}

impl Vcpu {
    /// A device posts, on `cpu`.
    fn post_by_device(&self, vector: u8, cpu: u32) {
        record::event(cpu, Kind::Accept, u32::from(vector), u64::from(self.id), 1);
        if let Some(ipi) = vtd::post(&self.shared.desc, vector, false, &COUNTERS) {
            record::event(
                cpu,
                Kind::Ipi,
                u32::from(ipi.vector),
                u64::from(ipi.ndst),
                0,
            );
            cpu::send_ipi(ipi.ndst, ipi.vector);
            parts::notified();
        }
    }
}

/// The pause after a post. Where parts are measured, half of it is spread evenly: multiples of the golden
/// ratio. The other half is random, so that posts fall on all parts of an exit alike.
fn pause(phase: &Phase, post: u64, cpu: u32) -> u64 {
    let random = host::random(cpu);
    if !phase.measures {
        return random % (phase.pause + 1);
    }
    let half = phase.pause / 2;
    let fraction = post.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let even = (fraction * half) >> 32;
    even + random % (half + 1)
}

/// Posts one interrupt after the other to all guests in turn. Each is waited for.
fn post_all(phase: &Phase, poster: Poster, cpu: u32) {
    let number = phase.guests.len() as u32;
    // The first post finds a guest that runs, or that has run and halted.
    let first = host::vcpu(0).expect("a guest");
    let started = |vcpu: &Vcpu| vcpu.exits.iter().any(|count| value(count) > 0);
    while first.shared.mode() != VcpuMode::InGuest && !started(first) {
        cpu::interrupt_window();
    }
    for post in 0..phase.posts {
        let target = host::vcpu((post % phase.targets) as u32).expect("a guest of the phase");
        if target.state.load(SeqCst) == DONE {
            break;
        }
        parts::disturb();
        post_one(phase, poster, target, cpu, post + 1);
        parts::disturb();
        let pause = pause(phase, post, cpu);
        let begin = cpu::tsc();
        while cpu::tsc() - begin < pause {
            cpu::interrupt_window();
        }
    }
    for id in 0..number {
        if let Some(vcpu) = host::vcpu(id) {
            // Again until it has ended: a vCPU that is between its check and its sleep misses one.
            while vcpu.state.load(SeqCst) != DONE {
                vcpu.force_stop(cpu);
                let begin = cpu::tsc();
                while cpu::tsc() - begin < 2_000 && vcpu.state.load(SeqCst) != DONE {
                    cpu::interrupt_window();
                }
            }
        }
    }
}

fn post_one(phase: &Phase, poster: Poster, target: &'static Vcpu, cpu: u32, number: u64) {
    let page = guest::page(target.id);
    let handled = &page.handled[usize::from(POSTED_VECTOR)];
    let count = handled.load(SeqCst);
    let begin = cpu::tsc();
    if phase.poster_gap > 0 {
        word::pause_after_next_bit(cpu, host::random(cpu) % phase.poster_gap);
    }
    match poster {
        Poster::Software => target.post(POSTED_VECTOR, cpu),
        Poster::Device => target.post_by_device(POSTED_VECTOR, cpu),
    }
    let is_handled = |limit: u64| {
        while handled.load(SeqCst) == count {
            if cpu::tsc() - begin > limit {
                return false;
            }
            cpu::interrupt_window();
        }
        true
    };
    if !is_handled(phase.patience) {
        if LOST.fetch_add(1, Relaxed) == 0 {
            FIRST_LOST.store(number, Relaxed);
        }
        // Helps it, so that the next post is not coalesced with this one.
        let mut rescues = 0;
        while handled.load(SeqCst) == count && target.state.load(SeqCst) != DONE {
            rescues += 1;
            assert!(
                rescues < 200,
                "{}: post {number} to {target:?} cannot be rescued; handled {count}",
                phase.name
            );
            target.rescue(cpu);
            // Longer each time: a request that arrives between wakeup and entry cancels the entry, and
            // requests at a steady rate can cancel all of them.
            let begin = cpu::tsc();
            let pause = 1_000 << rescues.min(5);
            while handled.load(SeqCst) == count && cpu::tsc() - begin < pause {
                cpu::interrupt_window();
            }
        }
        return;
    }
    if handled.load(SeqCst) > count + 1 {
        TWICE.fetch_add(1, Relaxed);
    }
    let latency = page.handled_tsc.load(SeqCst).saturating_sub(begin);
    LATENCY_SUM.fetch_add(latency, Relaxed);
    LATENCY_MAX.fetch_max(latency, Relaxed);
}
