//! Repeats operations on posted interrupts that `scripts/kernel/steps.c` has done with the kernel's
//! own functions.
//!
//! Standard input has a line for each: the operation, and the state after it. The first line with a state
//! that differs here ends the run with status 1. `scripts/kernel-harness` runs it.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;

use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::posted_interrupt::{
    Capabilities, Delivery, Entry, LocalLists, POSTED_INTR_WAKEUP_VECTOR, PostedVcpu, PutReason,
    SharedVcpu, Suppression, deliver, vtd, wake_up, wakeup_handler,
};

/// CPUs, and the APIC id of the first.
const CPUS: u32 = 2;
const FIRST_APIC: u32 = 0x10;
/// The word of PIR and IRR with the vectors.
const WORD: usize = 1;

struct Host {
    shared: SharedVcpu<AtomicU64>,
    own: PostedVcpu,
    lapic: Lapic,
    lists: LocalLists,
    ipi: Option<(u32, u8)>,
}

impl Host {
    fn new(bypass: bool) -> Self {
        let capabilities = Capabilities {
            apicv: true,
            irqchip: true,
            ipiv: bypass,
            vtd_posting: bypass,
            host_x2apic: true,
        };
        Self {
            shared: SharedVcpu::new(true),
            own: PostedVcpu::new(0, capabilities, Suppression::Put),
            lapic: Lapic::new(true),
            lists: LocalLists::new(CPUS, 1),
            ipi: None,
        }
    }

    fn load(&mut self, cpu: u32) {
        let apic_id = FIRST_APIC + cpu;
        self.own
            .load(&self.shared, cpu, apic_id, &self.lists, &())
            .expect("a list");
    }

    fn put(&mut self, preempted: bool) {
        let reason = PutReason {
            preempted,
            irq_blocked: false,
            device_assigned: true,
        };
        let put = self.own.put(&self.shared, reason, &self.lists, &());
        if put.expect("a list").self_ipi {
            self.ipi = self.own.cpu().map(|cpu| (cpu, POSTED_INTR_WAKEUP_VECTOR));
        }
    }

    fn check(&mut self) {
        if !self.own.wait(&self.shared, &mut self.lapic, true, &()) {
            self.own.end_blocking(&self.shared, &());
        }
    }

    fn post(&mut self, vector: u8) {
        match deliver(&self.shared, vector, false, Suppression::Put, &()) {
            Delivery::Ipi { cpu, vector } => self.ipi = cpu.map(|cpu| (cpu, vector)),
            Delivery::Wake => {
                wake_up(&self.shared);
            }
            _ => {}
        }
    }

    /// Does an operation; false for an unknown one.
    fn step(&mut self, name: &str, operand: u32) -> bool {
        self.ipi = None;
        match name {
            "begin" => {
                *self = Self::new(operand != 0);
                self.load(0);
            }
            "load" => self.load(operand),
            "put" => self.put(operand != 0),
            "block" => {
                self.own.begin_blocking(&self.shared, &());
                self.check();
            }
            "check" => self.check(),
            "enter" => {
                let entry = self.own.enter(&self.shared, &mut self.lapic, &());
                assert_eq!(entry, Entry::Run, "no request is made");
            }
            "leave" => {
                self.own.vm_exit(&self.shared, &());
                self.own.leave(&self.shared, &());
            }
            "take" => {
                self.shared.irr.take();
            }
            "post" => self.post(operand as u8),
            "device" => {
                let ipi = vtd::post(&self.shared.desc, operand as u8, false, &());
                self.ipi = ipi.map(|ipi| (ipi.ndst - FIRST_APIC, ipi.vector));
            }
            "wakeup" => {
                wakeup_handler(
                    operand,
                    &self.lists,
                    |_| Some(&self.shared),
                    &(),
                    |_| {
                        wake_up(&self.shared);
                    },
                );
            }
            _ => return false,
        }
        true
    }

    fn state(&self) -> String {
        let control = self.shared.desc.control();
        let on_list = |cpu: &u32| {
            self.lists
                .of(*cpu)
                .is_some_and(|list| !list.vcpus().is_empty())
        };
        let listed = (0..CPUS).find(on_list).map_or(-1, i64::from);
        let (cpu, vector) = self
            .ipi
            .map_or((-1, 0), |(cpu, vector)| (i64::from(cpu), vector));
        format!(
            "pir {:x} on {} sn {} nv {:x} ndst {:x} irr {:x} waits {} list {listed} ipi {cpu} {vector:x}",
            self.shared.desc.pir().0[WORD],
            u8::from(control.on()),
            u8::from(control.sn()),
            control.nv(),
            control.ndst(),
            self.shared.irr.snapshot().0[WORD],
            u8::from(self.shared.still_waiting()),
        )
    }
}

fn main() -> ExitCode {
    let mut host = Host::new(false);
    let mut steps = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("lines of text");
        let Some((operation, expected)) = line.split_once(": ") else {
            eprintln!("line without a state: {line}");
            return ExitCode::from(2);
        };
        let (name, operand) = operation.split_once(' ').unwrap_or((operation, "0"));
        if !host.step(name, operand.parse().unwrap_or(0)) {
            eprintln!("unknown operation: {operation}");
            return ExitCode::from(2);
        }
        steps += 1;
        let state = host.state();
        if state != expected {
            println!("step {steps}, {operation}:\n  kernel {expected}\n  ours   {state}");
            return ExitCode::FAILURE;
        }
    }
    println!("{steps} steps, the same state after each");
    ExitCode::SUCCESS
}
