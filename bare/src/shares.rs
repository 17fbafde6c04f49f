//! vCPUs that share CPUs by the fair class: shares by weight, and yields with lag credit.

use alloc::vec::Vec;

use stealtime_hypervisor::directed_yield::YieldKnobs;
use stealtime_hypervisor::fair::Attr;
use stealtime_hypervisor::vmx::exit_reason::PAUSE;

use crate::console::say;
use crate::guest::Program;
use crate::phase::{self, Guest, Phase};
use crate::scenario::{check, posts, setup};
use crate::sched::Scheduling;
use crate::vcpu::{Setup, Shared};

/// Nice values of the guests of the two CPUs.
const NICE: [(u32, i8); 5] = [(0, 0), (0, 3), (0, 7), (1, 0), (1, 5)];
/// Largest distance of a share from that of the weight, thousandths of the CPU.
const TOLERANCE: u64 = 20;
/// Ticks of the fair class in the phase, for each tenth of `count`.
const TICKS_PER_COUNT: u64 = 10;

/// Busy guests of several weights on two CPUs.
fn weighted(count: u64) -> Phase {
    let guests: Vec<Guest> = NICE
        .iter()
        .map(|&(cpu, nice)| Guest {
            nice,
            ..Guest::new(cpu, Program::Busy)
        })
        .collect();
    let tick = Scheduling::Fair.tick_cycles();
    Phase {
        guests,
        poster: None,
        tick,
        scheduling: Scheduling::Fair,
        duration: tick * TICKS_PER_COUNT * (count / 10).max(1),
        ..posts("shares", setup(), Guest::new(0, Program::Busy), 0)
    }
}

/// What each guest executed, next to the share of its weight.
pub fn shares_table(count: u64, machine: &Shared) {
    say!(
        "{:<24} {:>8} {:>8} {:>8} {:>12} {:>9} {:>9}",
        "shares by weight",
        "CPU",
        "nice",
        "weight",
        "rounds",
        "share 0.1%",
        "of weight"
    );
    let outcome = phase::run(weighted(count), machine);
    let weight = |nice| {
        let attr = Attr {
            nice,
            ..Attr::default()
        };
        // The kernel's scaled weight: 2^20 is that of nice 0.
        attr.weight() >> 10
    };
    for (index, (cpu, nice)) in NICE.into_iter().enumerate() {
        let on_cpu = || {
            NICE.into_iter()
                .zip(&outcome.loops)
                .filter(|((home, _), _)| *home == cpu)
        };
        let rounds: u64 = on_cpu().map(|(_, loops)| loops).sum();
        let weights: u64 = on_cpu().map(|((_, nice), _)| weight(nice)).sum();
        let share = outcome.loops[index] * 1_000 / rounds.max(1);
        let fair = weight(nice) * 1_000 / weights;
        say!(
            "{:<24} {:>8} {:>8} {:>8} {:>12} {:>10} {:>9}",
            "busy",
            cpu,
            nice,
            weight(nice),
            outcome.loops[index],
            share,
            fair
        );
        check(
            share.abs_diff(fair) <= TOLERANCE,
            format_args!("a share more than {TOLERANCE} thousandths from its weight's"),
        );
    }
}

/// Two guests of a VM that interrupt each other and spin, and two that compute, on one CPU.
fn spinning(name: &'static str, scheduling: Scheduling, count: u64) -> Phase {
    let [ping, pong] = Guest::pair(count as u32);
    let busy = Guest::new(0, Program::Busy);
    let setup = Setup {
        ple: Some((128, 512)),
        ..setup()
    };
    Phase {
        guests: [ping, pong, busy, busy].into(),
        poster: None,
        tick: scheduling.tick_cycles(),
        scheduling,
        yields: YieldKnobs::default(),
        ends_with: 2,
        ..posts(name, setup, ping, 0)
    }
}

/// Directed yields without and with lag credit: how many reach their target.
pub fn yields_table(count: u64, machine: &Shared) {
    say!(
        "{:<24} {:>8} {:>8} {:>8} {:>8} {:>9} {:>12}",
        "yields, fair class",
        "IPIs",
        "PAUSE",
        "yields",
        "reached",
        "credited",
        "cycles/IPI"
    );
    for (name, scheduling) in [
        ("fair, Linux 7.2", Scheduling::Fair),
        ("fair, lag credit", Scheduling::LagCredit),
    ] {
        let o = phase::run(spinning(name, scheduling, count), machine);
        say!(
            "{:<24} {:>8} {:>8} {:>8} {:>8} {:>9} {:>12}",
            o.name,
            o.ipis,
            o.exits(PAUSE),
            o.yields,
            o.reached,
            o.credited,
            o.cycles / o.ipis.max(1)
        );
        if scheduling == Scheduling::LagCredit {
            check(
                o.yields > 0 && o.reached == o.yields,
                format_args!("after a yield with lag credit its target does not run"),
            );
        }
    }
}
