//! Tasks that poll in a halt, and what ends that: another task that wants the CPU.

use super::task::NO_POLL;
use super::{Body, Host, Message};
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr};
use crate::script::Late;

/// Whether one task alone is on this CPU's queue (`single_task_running`). The kernel counts those too
/// that sleep but have not left it (`DELAY_DEQUEUE`): `rq->nr_running` is what is queued, not what is
/// runnable.
pub(crate) fn single_task_running(host: &Host<'_>, cpu: CpuNr) -> Sim<bool> {
    let c = &host.cpus[cpu];
    match host.class.fair() {
        Some(fair) => Ok(fair.queue(c.rq, None)?.h_nr_queued <= 1),
        None => Ok(c.runnable <= 1),
    }
}

/// A task polls in a halt from now on.
pub(crate) fn begin_poll(host: &mut Host<'_>, task: TaskNr) {
    let phase_ns = host.clock.now() % poll_turn_ns(host);
    let t = &mut host.tasks[task];
    t.polls = t.polls.wrapping_add(1);
    t.poll_phase_ns = phase_ns as u32;
}

/// It polls no longer.
pub(crate) fn end_poll(host: &mut Host<'_>, task: TaskNr) {
    host.tasks[task].poll_phase_ns = NO_POLL;
}

/// Whether a task is in the poll of this turn: a message about an earlier one comes too late.
pub(crate) fn polls_in(host: &Host<'_>, task: TaskNr, turn: u32) -> bool {
    let t = &host.tasks[task];
    t.poll_phase_ns != NO_POLL && t.polls == turn
}

/// What a turn of the loop takes, in ns; not 0.
fn poll_turn_ns(host: &Host<'_>) -> u64 {
    u64::from(host.costs.halt_poll_turn_ns.max(1))
}

/// Lets a task that polls see that its poll is over, as `waker` does it.
pub(crate) fn notify(host: &mut Host<'_>, task: TaskNr, waker: CpuNr) {
    let now = host.clock.now() + host.cpus[waker].debt_ns;
    poll_seen(host, task, waker, now);
}

/// Another task is on the CPU's queue, whether it preempts or not: a task that polls there stops
/// (`kvm_vcpu_can_poll`).
pub(crate) fn disturb(host: &mut Host<'_>, cpu: CpuNr, waker: CpuNr) {
    if let Some(task) = host.cpus[cpu].current {
        let mut now = host.clock.now();
        // The recorded delay of a script's poll contains what `waker` does before.
        if !matches!(host.tasks[task].body, Body::Script(_)) {
            now += host.cpus[waker].debt_ns;
        }
        poll_seen(host, task, waker, now);
    }
}

/// A poll, if there is one, ends when the line that `waker` writes at `now` has come.
fn poll_seen(host: &mut Host<'_>, task: TaskNr, waker: CpuNr, now: u64) {
    let t = &host.tasks[task];
    let turn = t.polls;
    if t.poll_phase_ns == NO_POLL {
        return;
    }
    match t.body {
        Body::Vcpu(vcpu) => {
            // The loop checks once a turn (`kvm_vcpu_halt`).
            let (turn_ns, phase_ns) = (poll_turn_ns(host), u64::from(t.poll_phase_ns));
            // The line must reach the polling CPU before its next check.
            let visible = now + u64::from(host.costs.cache_line_ns);
            let in_turn = (visible + turn_ns - phase_ns) % turn_ns;
            let time = visible + (turn_ns - in_turn) % turn_ns;
            host.clock.post(time, Message::PollOver { vcpu, turn });
        }
        Body::Script(_) => {
            let time = now + poll_delay_ns(host, task, waker);
            host.clock
                .post(time, Message::ScriptPollOver { task, turn });
        }
        Body::Host(_) | Body::Worker(_) | Body::Vmm(_) => {}
    }
}

/// How long a poll goes on when `waker` has ended it, in ns: the line has to be fetched, and its CPU to run.
fn poll_delay_ns(host: &Host<'_>, task: TaskNr, waker: CpuNr) -> u64 {
    let cpu = host.tasks[task].cpu;
    let late_ns = match cpu == waker {
        true => None,
        false => Late::on(&host.cfg.scripts.poll_called, cpu, host.clock.now()),
    };
    u64::from(host.costs.cache_line_ns) + late_ns.unwrap_or(0)
}
