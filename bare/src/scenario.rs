//! The scenarios: which phases run, and the tables that they print.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stealtime_hypervisor::directed_yield::{CandidateOrder, YieldKnobs};
use stealtime_hypervisor::halt_poll::HaltPollKnobs;
use stealtime_hypervisor::lapic_timer::{TimerEnvironment, TimerParameters, TimerPolicy};
use stealtime_hypervisor::posted_interrupt::{Capabilities, Fault, Suppression};
use stealtime_hypervisor::vmx::exit_reason::{
    CPUID, EXTERNAL_INTERRUPT, HLT, PAUSE, PREEMPTION_TIMER, WRMSR,
};

use crate::batches;
use crate::clock;
use crate::console::say;
use crate::faults;
use crate::guest::{self, FORBIDDEN, Program};
use crate::host;
use crate::phase::{self, Guest, Outcome, Phase, Poster};
use crate::record;
use crate::sched::Scheduling;
use crate::shares;
use crate::vcpu::{Setup, Shared, TSC_KHZ};
use crate::vmx;

/// What `scripts/bare` wants.
pub struct Settings<'a> {
    pub scenario: &'a str,
    pub count: u64,
    pub cpus: u32,
    pub seed: u64,
    /// The policy of `million`, and how many of its first rows it leaves out.
    pub policy: Suppression,
    pub skip: usize,
}

pub const CAPABILITIES: Capabilities = Capabilities {
    apicv: true,
    irqchip: true,
    ipiv: true,
    vtd_posting: true,
    host_x2apic: true,
};

/// No polling before a halt sleeps.
const NO_POLL: HaltPollKnobs = polls(0);

/// Polling for at most so many ns before a halt sleeps.
const fn polls(limit_ns: u32) -> HaltPollKnobs {
    HaltPollKnobs {
        halt_poll_ns: limit_ns,
        grow: 2,
        grow_start_ns: 10_000,
        shrink: 0,
        vm_max_ns: None,
    }
}

pub fn setup() -> Setup {
    Setup {
        policy: Suppression::Put,
        fault: Fault::None,
        capabilities: CAPABILITIES,
        posting: true,
        timer: TimerParameters {
            policy: TimerPolicy::Off,
            ..TimerParameters::default()
        },
        environment: TimerEnvironment {
            pi_inject_timer: true,
            apicv: true,
            mwait_in_guest: false,
            hlt_in_guest: false,
            hv_shift: None,
            on_housekeeping_cpu: false,
            wants_to_run: true,
        },
        host_work: 0,
        ple: None,
        halt_poll: NO_POLL,
        guest_khz: None,
        wakes_after_load: false,
    }
}

pub fn posts(name: &'static str, setup: Setup, guest: Guest, count: u64) -> Phase {
    Phase {
        name,
        setup,
        guests: vec![guest],
        poster: Some(Poster::Device),
        posts: count,
        pause: 1_000,
        measures: false,
        tick: 0,
        housekeeping_tick: 0,
        migrate: false,
        patience: 200_000,
        targets: 1,
        linger: 0,
        poster_gap: 0,
        scheduling: Scheduling::Turns,
        duration: 0,
        skew: 0,
        yields: YieldKnobs::default(),
        ends_with: 0,
    }
}

fn hv(setup: Setup) -> Setup {
    let hv_shift = Some(vmx::preemption_timer_shift());
    Setup {
        environment: TimerEnvironment {
            hv_shift,
            ..setup.environment
        },
        ..setup
    }
}

/// A guest that exits often, so that many posts find it in the host.
pub fn exiting() -> Guest {
    Guest {
        work: 20,
        ..Guest::new(0, Program::Busy)
    }
}

fn kick(count: u64) -> Phase {
    let setup = Setup {
        posting: false,
        ..setup()
    };
    Phase {
        poster: Some(Poster::Software),
        ..posts("kick", setup, Guest::new(0, Program::Busy), count)
    }
}

fn posted(count: u64) -> Phase {
    let software = Some(Poster::Software);
    Phase {
        poster: software,
        ..posts("posted", setup(), Guest::new(0, Program::Busy), count)
    }
}

fn suppression(policy: Suppression, count: u64) -> Phase {
    let setup = Setup {
        policy,
        host_work: 100,
        ..setup()
    };
    Phase {
        // Many times an exit's length, so that posts fall on all its parts alike.
        pause: 16_000,
        measures: true,
        ..posts(policy.name(), setup, exiting(), count)
    }
}

fn policies(count: u64) -> Vec<Phase> {
    Suppression::ALL
        .map(|policy| suppression(policy, count))
        .into()
}

/// A timer's ticks: the guest's program, its policy, and whether HLT exits.
fn ticks(
    name: &'static str,
    program: Program,
    policy: TimerPolicy,
    setup: Setup,
    count: u64,
) -> Phase {
    let timer = TimerParameters {
        policy,
        ..setup.timer
    };
    let guest = Guest {
        count: count as u32,
        period: 3_000,
        ..Guest::new(0, program)
    };
    Phase {
        poster: None,
        housekeeping_tick: 1_000,
        ..posts(name, Setup { timer, ..setup }, guest, 0)
    }
}

fn hlt_in_guest(setup: Setup) -> Setup {
    Setup {
        environment: TimerEnvironment {
            hlt_in_guest: true,
            ..setup.environment
        },
        ..setup
    }
}

/// With a guest's TSC of four fifths of the host's frequency.
fn scaled(setup: Setup) -> Setup {
    Setup {
        guest_khz: Some(TSC_KHZ / 5 * 4),
        ..setup
    }
}

/// Without posts of timers' expiries.
fn unposted() -> Setup {
    Setup {
        environment: TimerEnvironment {
            pi_inject_timer: false,
            ..setup().environment
        },
        ..setup()
    }
}

fn timers(count: u64) -> Vec<Phase> {
    use Program::{HaltTicks, SpinTicks};
    let mut local = ticks(
        "hrtimer on this CPU",
        SpinTicks,
        TimerPolicy::Off,
        unposted(),
        count,
    );
    // Without a housekeeping CPU the timer stays where it is started.
    local.housekeeping_tick = 0;
    vec![
        local,
        ticks(
            "hrtimer elsewhere, kick",
            SpinTicks,
            TimerPolicy::Off,
            unposted(),
            count,
        ),
        ticks(
            "preemption timer",
            SpinTicks,
            TimerPolicy::Off,
            hv(setup()),
            count,
        ),
        ticks(
            "posted, always",
            SpinTicks,
            TimerPolicy::Always,
            hv(setup()),
            count,
        ),
        ticks(
            "posted, isolated-only",
            SpinTicks,
            TimerPolicy::IsolatedOnly,
            hv(setup()),
            count,
        ),
        ticks(
            "exits-off, HLT in guest",
            SpinTicks,
            TimerPolicy::ExitsOff,
            hv(hlt_in_guest(setup())),
            count,
        ),
        ticks(
            "exits-off, HLT exits",
            SpinTicks,
            TimerPolicy::ExitsOff,
            hv(setup()),
            count,
        ),
        ticks(
            "adaptive",
            SpinTicks,
            TimerPolicy::Adaptive,
            hv(setup()),
            count,
        ),
        ticks(
            "preemption, TSC x 0.8",
            SpinTicks,
            TimerPolicy::Off,
            scaled(hv(setup())),
            count,
        ),
        ticks(
            "halting, preemption",
            HaltTicks,
            TimerPolicy::Off,
            hv(setup()),
            count,
        ),
        ticks(
            "halting, always",
            HaltTicks,
            TimerPolicy::Always,
            hv(setup()),
            count,
        ),
        ticks(
            "halting, adaptive",
            HaltTicks,
            TimerPolicy::Adaptive,
            hv(setup()),
            count,
        ),
        ticks(
            "halting in guest",
            HaltTicks,
            TimerPolicy::ExitsOff,
            hv(hlt_in_guest(setup())),
            count,
        ),
    ]
}

/// Three ways to interrupt a guest that runs.
fn ways(count: u64) -> Vec<Phase> {
    let timer = ticks(
        "preemption timer, alone",
        Program::SpinTicks,
        TimerPolicy::Off,
        hv(setup()),
        count,
    );
    vec![kick(count), posted(count), timer]
}

/// Runs the phases and prints a table of exits.
fn exits_table(phases: Vec<Phase>, machine: &Shared) {
    say!(
        "{:<24} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8}",
        "exits",
        "interr.",
        "ext-int",
        "preempt",
        "WRMSR",
        "HLT",
        "CPUID",
        "posted",
        "refused",
        "latency",
        "max"
    );
    for phase in phases {
        let o = phase::run(phase, machine);
        let events = o.handled + o.ticks;
        let mean = (o.latency_sum + o.late_sum) / events.max(1);
        say!(
            "{:<24} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8}",
            o.name,
            events,
            o.exits(EXTERNAL_INTERRUPT),
            o.exits(PREEMPTION_TIMER),
            o.exits(WRMSR),
            o.exits(HLT),
            o.exits(CPUID),
            o.posted,
            o.refused,
            mean,
            o.latency_max.max(o.late_max)
        );
        verdict(&o);
    }
}

/// A pipe between two guests that halt, on one CPU and on two.
fn pipes_table(count: u64, machine: &Shared) {
    say!(
        "{:<24} {:>8} {:>8} {:>8} {:>12}",
        "pipes",
        "IPIs",
        "HLT",
        "WRMSR",
        "cycles/IPI"
    );
    for (name, cpu) in [("pipe, one CPU", 0), ("pipe, two CPUs", 1)] {
        let [mut writer, mut reader] = Guest::pair(count as u32);
        writer.program = Program::PipeWriter;
        reader.program = Program::PipeReader;
        reader.cpu = cpu;
        let phase = Phase {
            guests: vec![writer, reader],
            poster: None,
            ends_with: 2,
            ..posts(name, setup(), writer, 0)
        };
        let o = phase::run(phase, machine);
        say!(
            "{:<24} {:>8} {:>8} {:>8} {:>12}",
            o.name,
            o.ipis,
            o.exits(HLT),
            o.exits(WRMSR),
            o.cycles / o.ipis.max(1)
        );
        check(
            o.ipis == 2 * count,
            format_args!("{} IPIs must arrive", 2 * count),
        );
    }
}

/// Four guests on one CPU that take a spinlock.
fn spinlocks_table(count: u64, machine: &Shared) {
    say!(
        "{:<24} {:>8} {:>8} {:>8} {:>12}",
        "spinlocks",
        "taken",
        "PAUSE",
        "boosts",
        "cycles/lock"
    );
    for (name, ple) in [
        ("lock, no PLE", None),
        ("lock, PAUSE-loop exits", Some((128, 512))),
    ] {
        let guest = Guest {
            count: count as u32,
            work: 20,
            ..Guest::new(0, Program::Locker)
        };
        let phase = Phase {
            guests: vec![guest; 4],
            poster: None,
            tick: 20_000,
            ends_with: 4,
            ..posts(name, Setup { ple, ..setup() }, guest, 0)
        };
        let o = phase::run(phase, machine);
        let acquisitions = guest::page(0).taken.load(Relaxed);
        say!(
            "{:<24} {:>8} {:>8} {:>8} {:>12}",
            o.name,
            acquisitions,
            o.exits(PAUSE),
            o.boosts,
            o.cycles / acquisitions.max(1)
        );
        check(
            acquisitions == 4 * count,
            format_args!("the lock must be taken {} times", 4 * count),
        );
    }
}

/// Guests that do what none may, and one with a timer. They end, and it goes on.
fn forbidden(count: u64, machine: &Shared) {
    let timer = ticks(
        "forbidden",
        Program::SpinTicks,
        TimerPolicy::Off,
        unposted(),
        count,
    );
    let numbers = 0..FORBIDDEN.len() as u32;
    let guests = numbers.map(|work| Guest {
        work,
        ..Guest::new(0, Program::Forbidden)
    });
    let guests: Vec<Guest> = guests.chain(timer.guests.iter().copied()).collect();
    let phase = Phase {
        ends_with: guests.len() as u32,
        guests,
        tick: 5_000,
        housekeeping_tick: 0,
        ..timer
    };
    let earlier_faults = host::FAULTS.load(Relaxed);
    say!("forbidden: {}", FORBIDDEN.join(", "));
    let outcome = phase::run(phase, machine);
    let ended = host::FAULTS.load(Relaxed) - earlier_faults;
    say!(
        "forbidden: {ended} guests have ended, another had {} timers",
        outcome.ticks
    );
    let expected = FORBIDDEN.len() as u64;
    check(
        ended == expected && outcome.ticks == count,
        format_args!("{expected} guests must end, and {count} timers fire"),
    );
    // Those were meant to end.
    host::FAULTS.store(earlier_faults, Relaxed);
}

/// Two guests of a VM that interrupt each other and spin, and two that compute, on one CPU.
fn spinning(name: &'static str, yields: YieldKnobs, ple: bool, count: u64) -> Phase {
    let [ping, pong] = Guest::pair(count as u32);
    let setup = Setup {
        ple: ple.then_some((128, 512)),
        ..setup()
    };
    Phase {
        guests: vec![
            ping,
            pong,
            Guest::new(0, Program::Busy),
            Guest::new(0, Program::Busy),
        ],
        poster: None,
        tick: 20_000,
        yields,
        ends_with: 2,
        ..posts(name, setup, ping, 0)
    }
}

fn yields_table(count: u64, machine: &Shared) {
    say!(
        "{:<24} {:>8} {:>8} {:>8} {:>9} {:>12}",
        "yields",
        "IPIs",
        "PAUSE",
        "boosts",
        "receiver",
        "cycles/IPI"
    );
    let aware = YieldKnobs::default();
    for phase in [
        spinning("no PAUSE-loop exits", aware, false, count),
        spinning("Linux 7.2", YieldKnobs::upstream(), true, count),
        spinning("IPI-aware", aware, true, count),
        spinning(
            "by priority",
            YieldKnobs {
                order: CandidateOrder::Priority,
                ..aware
            },
            true,
            count,
        ),
    ] {
        let o = phase::run(phase, machine);
        say!(
            "{:<24} {:>8} {:>8} {:>8} {:>9} {:>12}",
            o.name,
            o.ipis,
            o.exits(PAUSE),
            o.boosts,
            o.confirmed,
            o.cycles / o.ipis.max(1)
        );
        verdict(&o);
    }
}

fn suppression_table(phases: Vec<Phase>, machine: &Shared) {
    say!(
        "{:<24} {:>8} {:>7} {:>7} {:>7} {:>9} {:>7} {:>6} {:>6} {:>8} {:>8}",
        "notifications",
        "interr.",
        "sent",
        "spared",
        "in host",
        "to guest*",
        "ON set",
        "lost",
        "twice",
        "latency",
        "max"
    );
    let mut outcomes = Vec::new();
    for phase in phases {
        let o = phase::run(phase, machine);
        say!(
            "{:<24} {:>8} {:>7} {:>7} {:>7} {:>9} {:>7} {:>6} {:>6} {:>8} {:>8}",
            o.name,
            o.handled,
            o.sent,
            o.spared,
            o.in_host,
            o.in_guest_empty,
            o.on_already_set,
            o.lost,
            o.twice,
            o.latency_sum / o.handled.max(1),
            o.latency_max
        );
        verdict(&o);
        outcomes.push(o);
    }
    say!("* notifications that found an empty PIR in guest mode");
    parts_table(&outcomes);
}

fn parts_table(outcomes: &[Outcome]) {
    say!(
        "{:<24} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>7} {:>7} {:>7}",
        "parts of an exit, cycles",
        "exits",
        "guest",
        "exit",
        "host",
        "entry",
        "to SN",
        "under SN",
        "clear",
        "off",
        "flight"
    );
    for outcome in outcomes.iter().filter(|outcome| outcome.parts.exits > 0) {
        let parts = &outcome.parts;
        say!(
            "{:<24} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>7} {:>7} {:>7}",
            outcome.name,
            parts.exits,
            parts.guest,
            parts.exit,
            parts.host,
            parts.entry,
            parts.to_sn,
            parts.under_sn,
            parts.clear,
            parts.off,
            parts.flight
        );
    }
}

/// A guest that halts is posted to after pauses of up to 60 us.
fn halts_table(count: u64, machine: &Shared) {
    say!(
        "{:<24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "halts",
        "interr.",
        "HLT",
        "polled",
        "found",
        "latency",
        "max"
    );
    for (name, limit_ns) in [
        ("no polling", 0),
        ("polls 20 us", 20_000),
        ("polls 200 us", 200_000),
    ] {
        let setup = Setup {
            halt_poll: polls(limit_ns),
            ..setup()
        };
        let guest = Guest::new(0, Program::Halt);
        let mut phase = posts(name, setup, guest, count);
        phase.pause = 3_000;
        let o = phase::run(phase, machine);
        say!(
            "{:<24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            o.name,
            o.handled,
            o.exits(HLT),
            o.halt_polls,
            o.halt_polls_successful,
            o.latency_sum / o.handled.max(1),
            o.latency_max
        );
        verdict(&o);
    }
}

/// Checks of a scenario that do not hold.
pub static FAILED: AtomicU64 = AtomicU64::new(0);

/// Counts what must hold and does not.
pub fn check(holds: bool, problem: core::fmt::Arguments<'_>) {
    if !holds {
        FAILED.fetch_add(1, Relaxed);
        say!("  FAILED: {problem}");
    }
}

fn verdict(outcome: &Outcome) {
    if outcome.stray > 0 {
        say!("  {} interrupts of other vectors", outcome.stray);
    }
}

fn shares_and_clocks(count: u64, machine: &Shared) {
    shares::shares_table(count, machine);
    shares::yields_table(count, machine);
    clock::table(count, machine);
}

/// The scenarios by name.
pub const NAMES: [&str; 12] = [
    "smoke",
    "table",
    "sketch",
    "notifications",
    "shares",
    "pipes",
    "spinlocks",
    "wakeups",
    "faults",
    "million",
    "preempted-poster",
    "forbidden",
];

/// Runs a scenario, one of [`NAMES`].
pub fn run(settings: &Settings<'_>, machine: &Shared) {
    let count = settings.count;
    match settings.scenario {
        "sketch" => {
            exits_table(ways(count), machine);
            let phases = vec![
                suppression(Suppression::Put, count),
                suppression(Suppression::Corrected, count),
                faults::not_recomputed(count),
            ];
            suppression_table(phases, machine);
        }
        "smoke" | "table" => {
            exits_table(ways(count), machine);
            exits_table(timers(count), machine);
            suppression_table(policies(count), machine);
            yields_table(count, machine);
            halts_table(count, machine);
            shares_and_clocks(count, machine);
            pipes_table(count, machine);
            spinlocks_table(count, machine);
            batches::table(count, settings.cpus);
            if settings.scenario == "smoke" {
                forbidden(count, machine);
            }
        }
        "forbidden" => forbidden(count, machine),
        "pipes" => pipes_table(count, machine),
        "spinlocks" => spinlocks_table(count, machine),
        "notifications" => suppression_table(policies(count), machine),
        "shares" => shares_and_clocks(count, machine),
        "preempted-poster" => {
            record::ENABLED.store(false, Relaxed);
            faults::preempted_poster(count, machine);
        }
        "wakeups" => batches::table(count, settings.cpus),
        "faults" | "million" => {
            record::ENABLED.store(false, Relaxed);
            let policy = (settings.scenario == "million").then_some(settings.policy);
            faults::table(policy, count, settings.skip, settings.cpus, machine);
        }
        name => unreachable!("{name} is not one of the scenarios"),
    }
}
