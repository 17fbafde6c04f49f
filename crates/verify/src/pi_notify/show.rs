//! Operations and states in words.

use stealtime_hypervisor::posted_interrupt::Control;

use super::posters::op as poster;
use super::thread::{Pc, op as thread};
use super::{Local, agent, pending, slot};
use crate::word::listed;

/// What an agent does.
pub(crate) fn operation(actor: u8, op: u8) -> &'static str {
    if actor <= agent::V1 {
        return match op {
            thread::LOAD0 => "load on CPU 0",
            thread::LOAD1 => "load on CPU 1",
            thread::ENTER => "enter guest",
            thread::EXIT => "exit guest",
            thread::HLT => "HLT exit",
            thread::FAST => "fast exit, re-enter",
            thread::NOTIFY => "process notification",
            thread::ACKNOWLEDGE => "take notification",
            thread::BEGIN => "begin blocking",
            thread::WAIT => "wait",
            thread::CHECK => "still waiting?",
            thread::PUT => "put, to sleep",
            thread::END => "end blocking",
            thread::PREEMPT => "put, preempted",
            thread::REQUESTS => "take requests",
            thread::SEND_IPI => "virtualized IPI",
            thread::TRANSMIT => "send notification",
            _ => "leave guest",
        };
    }
    match (actor, op) {
        (agent::KICKER, poster::POST) => "kick",
        (_, poster::KICK) => "IRQ handler kicks",
        (_, poster::POST) => "post",
        (_, poster::TRANSMIT) => "send IPI",
        (_, poster::WAKE) => "wake up",
        (_, poster::ASSIGN) => "assign device",
        (_, poster::TELL) => "tell vCPUs",
        (_, poster::TAKE_NOTIFICATION) => "notification in host",
        (_, poster::TAKE_WAKEUP) => "wakeup IRQ",
        (_, poster::TAKE_RESCHEDULE) => "reschedule IRQ",
        _ => "wakeup handler",
    }
}

/// A word's content.
pub(crate) fn value(index: usize, value: u64) -> String {
    if index >= slot::LISTS {
        return list(value);
    }
    match index % slot::PER_VCPU {
        slot::CONTROL => {
            let c = Control(value);
            format!(
                "ON={} SN={} NV={:#x} NDST={:#x}",
                u8::from(c.on()),
                u8::from(c.sn()),
                c.nv(),
                c.ndst()
            )
        }
        slot::PIR | slot::IRR => vectors(value),
        slot::MODE => match value {
            0 => "outside".to_owned(),
            1 => "in guest".to_owned(),
            2 => "exiting".to_owned(),
            _ => "shadow".to_owned(),
        },
        slot::WAIT => if value == 0 { "no" } else { "waiting" }.to_owned(),
        _ => format!("{value:#x}"),
    }
}

fn list(word: u64) -> String {
    let vcpus: Vec<String> = listed(word).map(|v| v.to_string()).collect();
    format!("[{}]", vcpus.join(" "))
}

fn vectors(word: u64) -> String {
    let vectors: Vec<String> = (0..64u32)
        .filter(|bit| word >> bit & 1 != 0)
        .map(|bit| format!("{:#x}", 64 + bit))
        .collect();
    format!("{{{}}}", vectors.join(" "))
}

/// The model's own state.
pub(crate) fn local(local: &Local) -> Vec<(&'static str, String)> {
    let mut shown = Vec::new();
    for (name, vcpu) in ["vCPU 0", "vCPU 1"].into_iter().zip(&local.vcpus) {
        if vcpu.pc == Pc::Absent {
            continue;
        }
        let pc = match vcpu.pc {
            Pc::Absent | Pc::Out => "runnable",
            Pc::Host => "in host",
            Pc::Guest => "in guest",
            Pc::Notifying => "notified",
            Pc::Leaving => "leaving",
            Pc::Halted => "halted",
            Pc::Blocking => "blocking",
            Pc::Sleepy => "nothing pending",
            Pc::SwitchingOut => "switching out",
            Pc::Asleep => "asleep",
            Pc::Awake => "awake",
        };
        shown.push((name, pc.to_owned()));
    }
    for (name, cpu) in ["CPU 0 pending", "CPU 1 pending"]
        .into_iter()
        .zip(&local.cpus)
    {
        let kinds = [
            (pending::NOTIFICATION, "0xf2"),
            (pending::WAKEUP, "0xf1"),
            (pending::RESCHEDULE, "reschedule"),
        ];
        let set = kinds
            .into_iter()
            .filter(|(kind, _)| cpu.pending & kind != 0);
        let names: Vec<&str> = set.map(|(_, name)| name).collect();
        shown.push((name, format!("{{{}}}", names.join(" "))));
    }
    let delivered = format!("{}+{}", local.delivered[0], local.delivered[1]);
    shown.push(("delivered", delivered));
    shown
}
