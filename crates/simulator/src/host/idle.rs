//! Idle CPUs: which state they enter, and what wakes them.

use super::governor::Governor;
use super::hrtimer::Callback;
use super::{Host, Irq, Message, Phase, hrtimer, irq, tick};
use crate::config::IdleMethod;
use crate::fault::Sim;
use crate::ids::CpuNr;
use crate::script::Late;
use crate::xen;

/// What an idle CPU, or its governor, knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdleCpu {
    /// The state it is in, by index into the profile's; `None` while it polls its flag.
    pub(crate) state: Option<u8>,
    /// Since when, in ns.
    pub(crate) since_ns: u64,
    governor: Governor,
    /// What it takes to run the task that another CPU has woken, in ns, if that is known.
    pub(crate) called_exit_ns: Option<u64>,
    /// When a write to the line that it watches reaches it.
    pub(crate) notified_at: Option<u64>,
}

/// Nothing to run: the governor picks a state, and the tick stops if it would come in between.
pub(crate) fn enter(host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    let now = host.clock.now();
    let state = if host.cfg.host.idle == IdleMethod::Poll {
        tick::stop_tick(host, cpu);
        None
    } else {
        choose_state(host, cpu)
    };
    let c = &mut host.cpus[cpu];
    c.phase = Phase::Idle;
    c.debt_ns = 0;
    c.idle.state = state;
    c.idle.since_ns = now;
    c.idle.notified_at = None;
    c.idle.called_exit_ns = None;
    c.balance.idles(now);
    hrtimer::note_idle(host, cpu, true);
    if !host.cpus[cpu].pending.is_empty() || !xen::idle_enter(host, cpu) {
        return leave(host, cpu);
    }
    Ok(())
}

/// `menu_select`.
fn choose_state(host: &mut Host<'_>, cpu: CpuNr) -> Option<u8> {
    let (now, tick_ns) = (host.clock.now(), tick::tick_ns(host));
    let c = &host.cpus[cpu];
    let tick = c.tick;
    // The tick does not count: the governor may stop it (`tick_nohz_get_sleep_length`).
    let first = c.hrtimers.iter().find(|t| t.1 != tick);
    let timer_ns = first.map_or(u64::MAX, |t| t.0.saturating_sub(now));
    let tick_at = host.timers[tick].queued().map(|(_, time)| time);
    let predicted = host.cpus[cpu].idle.governor.predict(timer_ns);
    let mut limit = predicted;
    match tick_at {
        // A short stay does not pay for stopping the tick, which then ends it at the latest.
        Some(time) if predicted < tick_ns => limit = limit.min(time.saturating_sub(now)),
        _ => tick::stop_tick(host, cpu),
    }
    let states = &host.cfg.host.profile.cstates;
    let pays = |s: &crate::config::CState| u64::from(s.target_residency_ns) <= limit;
    let deepest = states.iter().rposition(pays).map(|n| n as u8);
    // Polling is for a timer that is about to fire; else the shallowest state will do.
    let shallowest = states
        .first()
        .map_or(0, |s| u64::from(s.target_residency_ns));
    deepest.or((timer_ns >= shallowest).then_some(0))
}

/// Time from the wake event to the first instruction, for a CPU that is idle.
pub(crate) fn exit_ns(host: &Host<'_>, cpu: CpuNr) -> u64 {
    let Some(mut state) = host.cpus[cpu].idle.state else {
        return u64::from(host.costs.cache_line_ns);
    };
    // The core sleeps no deeper than its shallower thread.
    if let Some(sibling) = host.cfg.host.topology.sibling_of(cpu.0) {
        let s = &host.cpus[CpuNr(sibling)];
        let theirs = if s.phase == Phase::Idle {
            s.idle.state.unwrap_or(0)
        } else {
            0
        };
        state = state.min(theirs);
    }
    let states = &host.cfg.host.profile.cstates;
    let state = states.get(usize::from(state));
    state.map_or(0, |s| u64::from(s.exit_latency_ns))
}

/// The time from a wakeup on an idle CPU until it switches, as recorded.
fn recorded_exit_ns(host: &Host<'_>, cpu: CpuNr) -> Option<u64> {
    let scripts = &host.cfg.scripts;
    let late = |recorded| Late::on(recorded, cpu, host.clock.now());
    let notified = host.cpus[cpu].idle.notified_at;
    let called = notified.and_then(|_| late(&scripts.idle_called));
    called.or_else(|| late(&scripts.idle_late))
}

/// The time that the CPU takes before it takes the interrupt that ends a script's wait, as recorded.
fn wait_exit_ns(host: &Host<'_>, cpu: CpuNr) -> u64 {
    let first = host.cpus[cpu].hrtimers.front();
    let due = first.filter(|timer| timer.0 <= host.clock.now());
    match due.map(|timer| host.timers[timer.1].callback) {
        Some(Callback::Script(task)) => host.tasks[task].body.wait_exit_ns(),
        _ => 0,
    }
}

/// An idle CPU is to run a task that another one has woken, and takes so many ns, if that is known.
pub(crate) fn called(host: &mut Host<'_>, cpu: CpuNr, exit_ns: Option<u64>) {
    let idle = &mut host.cpus[cpu].idle;
    idle.called_exit_ns = idle.called_exit_ns.or(exit_ns);
}

/// The CPU wakes up.
pub(crate) fn leave(host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    if host.cpus[cpu].phase != Phase::Idle {
        return Ok(());
    }
    let exit = match host.cpus[cpu].pending.is_empty() {
        true => host.cpus[cpu]
            .idle
            .called_exit_ns
            .or_else(|| recorded_exit_ns(host, cpu)),
        // A recorded wait has it, or it is apart.
        false => (!host.cfg.scripts.tasks.is_empty()).then(|| wait_exit_ns(host, cpu)),
    };
    let exit = exit.unwrap_or_else(|| exit_ns(host, cpu));
    let (now, tick_ns) = (host.clock.now(), tick::tick_ns(host));
    let c = &mut host.cpus[cpu];
    let first = c.hrtimers.front().map(|t| t.1);
    // A stay that the tick ended says nothing of how long it would have been (`menu_update`).
    let by_tick = c.pending.has(Irq::LocalTimer) && first == Some(c.tick);
    let stayed = now - c.idle.since_ns;
    c.idle.governor.learn(stayed, by_tick, tick_ns);
    c.phase = Phase::IdleExit;
    hrtimer::note_idle(host, cpu, false);
    host.stay(cpu, exit);
    xen::idle_leave(host, cpu);
    if tick::keeps_tick(host, cpu) {
        tick::start_tick(host, cpu);
    }
    Ok(())
}

/// `sender` wants an idle CPU to look at its run queue: by a store to the line that it monitors,
/// or by an interrupt.
pub(crate) fn kick(host: &mut Host<'_>, cpu: CpuNr, sender: CpuNr) -> Sim {
    if cpu == sender {
        // It rescheduled itself: it is awake already.
        return leave(host, cpu);
    }
    // One store is enough: the flag stays set until the CPU looks.
    if host.cpus[cpu].idle.notified_at.is_some() {
        return Ok(());
    }
    // HLT does not watch a line, so `TIF_POLLING_NRFLAG` is clear and an interrupt must be sent.
    if host.cfg.host.idle == IdleMethod::Hlt && host.cpus[cpu].idle.state.is_some() {
        irq::send_ipi(host, sender, cpu, Irq::Reschedule);
        return Ok(());
    }
    write_flag(host, cpu, sender);
    Ok(())
}

/// `sender` writes to the line that the idle `cpu` watches.
pub(crate) fn write_flag(host: &mut Host<'_>, cpu: CpuNr, sender: CpuNr) {
    let time = host.clock.now() + host.cpus[sender].debt_ns + u64::from(host.costs.cache_line_ns);
    let notified = &mut host.cpus[cpu].idle.notified_at;
    // Of two stores the earlier one wakes it.
    *notified = Some(notified.map_or(time, |previous| previous.min(time)));
    host.clock.post(time, Message::FlagWritten { cpu });
}
