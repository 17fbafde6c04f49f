//! A small VT-x hypervisor without an operating system. It decides by `stealtime-hypervisor`,
//! which it links as it is; what it adds is the VMCS, the CPUs and the guests.
//!
//! It runs in Bochs, which emulates posted interrupts: `scripts/bare`, `docs/bare.md`.
#![no_std]
#![no_main]

extern crate alloc;

mod batches;
mod boot;
mod clock;
mod console;
mod counters;
mod cpu;
mod faults;
mod guest;
mod host;
mod interrupts;
mod memory;
mod parts;
mod phase;
mod record;
mod scenario;
mod sched;
mod shares;
mod vcpu;
mod vmx;
mod word;
mod yields;

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use console::say;
use scenario::Settings;
use stealtime_hypervisor::posted_interrupt::{Suppression, UnknownSuppression};

static SEED: AtomicU64 = AtomicU64::new(0);

/// First code of each CPU in 64-bit mode, on a stack of its own.
#[unsafe(no_mangle)]
extern "C" fn kmain(cpu: u64) -> ! {
    let cpu = cpu as u32;
    if cpu == 0 {
        first();
    }
    cpu::enable_apic();
    start_cpu(cpu, memory::page());
    host::ONLINE.fetch_add(1, SeqCst);
    phase::follow(cpu)
}

/// What each CPU needs before its first guest.
fn start_cpu(cpu: u32, tables: u64) {
    interrupts::load(cpu, tables);
    host::prepare(cpu, SEED.load(SeqCst));
    record::prepare(cpu);
    vmx::on();
}

/// Ends before the first guest: the settings or the machine cannot be used.
fn refuse(reason: core::fmt::Arguments<'_>) -> ! {
    say!("bare: {reason}");
    cpu::power_off()
}

fn settings() -> Settings<'static> {
    // SAFETY: the settings are part of the image and nothing writes them.
    let bytes =
        unsafe { core::slice::from_raw_parts(boot::SETTINGS as *const u8, boot::SETTINGS_LEN) };
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = core::str::from_utf8(text).expect("settings in ASCII");
    let mut settings = Settings {
        scenario: "smoke",
        count: 100,
        cpus: 2,
        seed: 1,
        policy: Suppression::Corrected,
        skip: 0,
    };
    for pair in text.split_ascii_whitespace() {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let number = || {
            value
                .parse()
                .unwrap_or_else(|_| refuse(format_args!("{key}={value}: no number")))
        };
        match key {
            "scenario" => settings.scenario = value,
            "count" => settings.count = number(),
            "cpus" => settings.cpus = u32::try_from(number()).unwrap_or(u32::MAX),
            "seed" => settings.seed = number(),
            "skip" => settings.skip = number() as usize,
            "policy" => {
                let named = |policy: &Suppression| policy.name() == value;
                let policy = Suppression::ALL.into_iter().find(named);
                let refused = || refuse(format_args!("policy={value}: {UnknownSuppression}"));
                settings.policy = policy.unwrap_or_else(refused);
            }
            _ => refuse(format_args!(
                "no such setting: {key}; there are count, cpus, seed, policy and skip"
            )),
        }
    }
    settings
}

fn first() -> ! {
    memory::check_statics();
    interrupts::mask_controllers();
    let settings = settings();
    if !vmx::check_features() {
        refuse(format_args!("this processor lacks what is named above"));
    }
    if !(2..=boot::MAX_CPUS as u32).contains(&settings.cpus) {
        refuse(format_args!(
            "cpus={}: 2 to {} CPUs can be used",
            settings.cpus,
            boot::MAX_CPUS
        ));
    }
    if !scenario::NAMES.contains(&settings.scenario) {
        refuse(format_args!(
            "no such scenario: {}; there are {:?}",
            settings.scenario,
            scenario::NAMES
        ));
    }
    cpu::enable_apic();
    SEED.store(settings.seed, SeqCst);
    let (tables, gates) = guest::tables();
    interrupts::make_gates(gates);
    start_cpu(0, tables);
    start_others(settings.cpus);
    record::header(settings.cpus as u16, vcpu::TSC_KHZ, settings.seed);
    say!(
        "bare: scenario {}, count {}, {} CPUs, seed {}",
        settings.scenario,
        settings.count,
        settings.cpus,
        settings.seed
    );
    let machine = vcpu::Shared {
        ept: vmx::ept(),
        msr_bitmap: vmx::msr_bitmap(),
    };
    scenario::run(&settings, &machine);
    let events = record::write_out();
    let lost = record::end(events);
    let faults = host::FAULTS.load(SeqCst);
    let failed = scenario::FAILED.load(SeqCst);
    if faults > 0 {
        say!("bare: {faults} guests ended by a fault");
    } else if failed > 0 {
        say!("bare: {failed} checks failed");
    } else {
        say!("bare: done, {events} events, {lost} lost");
    }
    cpu::power_off()
}

/// INIT and two SIPIs to all others, as the multiprocessor specification has it.
fn start_others(cpus: u32) {
    cpu::wrmsr(cpu::X2APIC_ICR, 0xc4500);
    cpu::delay(50_000);
    for _ in 0..2 {
        cpu::wrmsr(cpu::X2APIC_ICR, 0xc4600 | u64::from(boot::STARTUP_PAGE));
        cpu::delay(10_000);
    }
    let begin = cpu::tsc();
    while host::ONLINE.load(SeqCst) < cpus {
        if cpu::tsc() - begin > 50_000_000 {
            say!(
                "bare: {} of {cpus} CPUs have started",
                host::ONLINE.load(SeqCst)
            );
            cpu::power_off();
        }
    }
}
