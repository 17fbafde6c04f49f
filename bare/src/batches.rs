//! Wakeups of idle CPUs, one at a time and in batches: how many ICR writes they cost.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use stealtime_hypervisor::wakeup_batch::icr::{ApicMode, CpuApic, IcrWrite, Topology};
use stealtime_hypervisor::wakeup_batch::softirq::SoftirqWord;
use stealtime_hypervisor::wakeup_batch::{Batch, Context, Cpus};

use crate::console::say;
use crate::cpu;
use crate::phase;

/// The softirq that is raised.
const SOFTIRQ: u32 = 1;
/// Cycles after which all CPUs are idle again.
const SETTLE: u64 = 3_000;

/// The words of all CPUs, and how they idle.
struct Machine {
    words: Vec<SoftirqWord<AtomicU64>>,
    mwait: bool,
    stop: AtomicBool,
}

static MACHINE: AtomicPtr<Machine> = AtomicPtr::new(core::ptr::null_mut());
/// HLT and MWAIT instructions.
static WAITS: AtomicU64 = AtomicU64::new(0);
/// Event checks that CPUs received.
static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// The interrupt of an event check has arrived.
pub fn event_check() {
    RECEIVED.fetch_add(1, Relaxed);
}

fn machine() -> &'static Machine {
    // SAFETY: stored before the CPUs begin to idle, and never freed.
    unsafe { MACHINE.load(SeqCst).as_ref() }.expect("a machine")
}

/// A CPU idles and handles its softirqs, until the machine stops.
pub fn idle(cpu: u32) {
    let machine = machine();
    let word = &machine.words[cpu as usize];
    while !machine.stop.load(SeqCst) {
        if machine.mwait {
            if word.announce_mwait(true) {
                wait_for_store(word);
            }
            word.leave_mwait();
            cpu::interrupt_window();
        } else if word.pending() == 0 {
            WAITS.fetch_add(1, Relaxed);
            cpu::wait_for_interrupt();
        }
        word.take(u32::MAX);
    }
    cpu::interrupt_window();
}

/// MONITOR, the second look, and MWAIT.
fn wait_for_store(word: &SoftirqWord<AtomicU64>) {
    let address = core::ptr::from_ref(word);
    // SAFETY: MONITOR reads the word, and no hint or extension is asked for.
    unsafe { asm!("monitor", in("rax") address, in("ecx") 0, in("edx") 0, options(nostack)) };
    if word.still_idle() {
        WAITS.fetch_add(1, Relaxed);
        // SAFETY: as above. Interrupts are off: a store to the word ends the wait.
        unsafe { asm!("mwait", in("eax") 0, in("ecx") 0, options(nostack)) };
    }
}

fn write_icr(write: IcrWrite) {
    core::sync::atomic::fence(SeqCst);
    match write {
        IcrWrite::X2apic(value) => cpu::wrmsr(cpu::X2APIC_ICR, value),
        IcrWrite::AllButSelf { low } => cpu::wrmsr(cpu::X2APIC_ICR, u64::from(low)),
        IcrWrite::Xapic { .. } => panic!("the APICs are in x2APIC mode"),
    }
}

/// How CPU 0 wakes the others.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    mwait: bool,
    batched: bool,
    mode: ApicMode,
    shorthand: bool,
}

const WAYS: [Way; 6] = {
    let unbatched = Way {
        name: "HLT, one by one",
        mwait: false,
        batched: false,
        mode: ApicMode::X2apicPhysical,
        shorthand: false,
    };
    let batched = Way {
        batched: true,
        name: "HLT, physical",
        ..unbatched
    };
    [
        unbatched,
        batched,
        Way {
            name: "HLT, cluster",
            mode: ApicMode::X2apicCluster,
            ..batched
        },
        Way {
            name: "HLT, all but self",
            shorthand: true,
            ..batched
        },
        Way {
            name: "MWAIT, one by one",
            mwait: true,
            ..unbatched
        },
        Way {
            name: "MWAIT, cluster",
            mwait: true,
            mode: ApicMode::X2apicCluster,
            ..batched
        },
    ]
};

/// Wakes all other CPUs `count` times in each way, and prints what it cost.
pub fn table(count: u64, cpus: u32) {
    say!(
        "{:<24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12}",
        "wakeups of idle CPUs",
        "rounds",
        "wakeups",
        "ICR",
        "received",
        "waits",
        "cycles/round"
    );
    for variant in WAYS {
        let shared = Box::leak(Box::new(Machine {
            words: (0..cpus).map(|_| SoftirqWord::new()).collect(),
            mwait: variant.mwait,
            stop: AtomicBool::new(false),
        }));
        MACHINE.store(shared, SeqCst);
        RECEIVED.store(0, SeqCst);
        WAITS.store(0, SeqCst);
        let row = phase::while_others_idle(|| rounds(variant, count, cpus));
        say!(
            "{:<24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12}",
            variant.name,
            count,
            count * u64::from(cpus - 1),
            row.writes,
            row.received,
            row.waits,
            row.cycles / count.max(1)
        );
    }
}

struct Row {
    writes: u64,
    received: u64,
    waits: u64,
    /// From the first raise of a round until the last CPU has noticed.
    cycles: u64,
}

fn rounds(variant: Way, count: u64, cpus: u32) -> Row {
    let shared = machine();
    let apics: Vec<CpuApic> = (0..cpus).map(|id| CpuApic::new(id, true)).collect();
    let topology = Topology::new(variant.mode, apics).expect("few CPUs");
    let machine_cpus = Cpus {
        words: &shared.words,
        topology: &topology,
    };
    let context = Context {
        cpu: 0,
        in_irq: false,
        in_nmi: false,
        irqs_on: variant.shorthand,
        hotplug: false,
    };
    let (mut writes, mut cycles) = (0, 0);
    let mut batch = Batch::new(0, [0u64; 1]);
    for _ in 0..count {
        cpu::delay(SETTLE);
        let begin = cpu::tsc();
        let mut icr = |write| {
            writes += 1;
            write_icr(write);
        };
        if variant.batched {
            batch.begin().expect("no nesting");
        }
        for target in 1..cpus {
            batch
                .raise(machine_cpus, context, target, SOFTIRQ, &mut icr, &())
                .expect("a CPU");
        }
        if variant.batched {
            batch
                .finish(machine_cpus, context, &mut icr, &())
                .expect("a begin");
        }
        while shared.words.iter().any(|word| word.pending() != 0) {
            core::hint::spin_loop();
        }
        cycles += cpu::tsc() - begin;
    }
    let (received, waits) = (RECEIVED.load(SeqCst), WAITS.load(SeqCst));
    cpu::delay(SETTLE);
    shared.stop.store(true, SeqCst);
    for target in 1..cpus {
        batch
            .raise(machine_cpus, context, target, SOFTIRQ, &mut write_icr, &())
            .expect("a CPU");
    }
    Row {
        writes,
        received,
        waits,
        cycles,
    }
}
