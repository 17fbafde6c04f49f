//! Operations and states in words.

use super::callback::op as callback;
use super::thread::op as thread;
use super::{Local, Pc, PiTimer, agent};
use crate::pi_notify::pending;

/// What an agent does.
pub(crate) fn operation(actor: u8, op: u8) -> &'static str {
    match (actor, op) {
        (agent::VCPU, op) => in_thread(op),
        (agent::CLOCK, _) => "advances",
        (agent::CALLBACK, callback::TAKE) => "hrtimer fires",
        (agent::CALLBACK, callback::LOOK) => "vCPU's mode?",
        (agent::CALLBACK, callback::FIRE) => "timer expires",
        (agent::CALLBACK, callback::ACT) => "post or kick",
        (agent::CALLBACK, callback::TRANSMIT) => "send IPI",
        (agent::CALLBACK, callback::WAKE) => "wake up",
        (agent::CALLBACK, callback::SPUN) => "has waited",
        (agent::CALLBACK, _) => "callback ends",
        (_, pending::NOTIFICATION) => "notification in host",
        _ => "reschedule IRQ",
    }
}

fn in_thread(op: u8) -> &'static str {
    match op {
        thread::LOAD0 => "load on CPU 0",
        thread::LOAD1 => "load on CPU 1",
        thread::MOVED => "timer follows",
        thread::REQUESTS => "take requests",
        thread::LOOK => "inject pending?",
        thread::INJECT => "inject",
        thread::ENTER => "enter guest",
        thread::RUN => "guest runs",
        thread::EXIT => "exit guest",
        thread::WRMSR => "WRMSR exit",
        thread::PROGRAM => "arm timer",
        thread::HV_EXIT => "preemption timer exit",
        thread::REENTER => "re-enter",
        thread::LEAVE => "leave guest",
        thread::HLT => "HLT exit",
        thread::SWITCH => "timer to hrtimer",
        thread::BEGIN => "begin blocking",
        thread::WAIT => "wait",
        thread::CHECK => "still waiting?",
        thread::PUT => "put, to sleep",
        thread::PREEMPT => "put, preempted",
        thread::END => "end blocking",
        thread::SWITCH_BACK => "timer back",
        thread::ACKNOWLEDGE => "take notification",
        _ => "process notification",
    }
}

/// The model's own state.
pub(crate) fn local(model: &PiTimer, local: &Local) -> Vec<(&'static str, String)> {
    let pc = match local.pc {
        Pc::Out => "runnable",
        Pc::Requests | Pc::Pending | Pc::Enter => "in host",
        Pc::EntryWait => "entering",
        Pc::Guest => "in guest",
        Pc::Notifying => "notified",
        Pc::Programming | Pc::FastExit => "fast exit",
        Pc::Leaving => "leaving",
        Pc::Halted | Pc::Switched => "halted",
        Pc::Blocking => "blocking",
        Pc::Sleepy => "nothing pending",
        Pc::SwitchingOut => "switching out",
        Pc::Asleep => "asleep",
        Pc::Awake | Pc::Unblocked => "awake",
    };
    let time_text = |time: Option<i64>| time.map_or("none".to_owned(), |ns| format!("{ns} ns"));
    let hv = local.timer.hv().map(|hv| hv.host_deadline as i64);
    let mut shown = vec![
        ("time", format!("{} ns", model.ns(local))),
        ("vCPU 0", pc.to_owned()),
        ("hrtimer", time_text(local.queue)),
        ("preemption timer", time_text(hv)),
        ("pending expiries", local.timer.pending().to_string()),
        ("delivered", local.delivered.to_string()),
    ];
    for (name, waiting) in ["CPU 0 pending", "CPU 1 pending"]
        .into_iter()
        .zip(local.pending)
    {
        let kinds = [
            (pending::NOTIFICATION, "0xf2"),
            (pending::RESCHEDULE, "reschedule"),
        ];
        let set = kinds.into_iter().filter(|(kind, _)| waiting & kind != 0);
        let names: Vec<&str> = set.map(|(_, name)| name).collect();
        shown.push((name, format!("{{{}}}", names.join(" "))));
    }
    shown
}
