//! On which CPU an unpinned hrtimer lands (`get_nohz_timer_target` and the rules of
//! `kernel/time/hrtimer.c` around it).

use core::fmt;

use crate::events::Events;

/// What of a CPU matters for the placement of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CpuTimers {
    /// It does the host's housekeeping: not isolated from timers.
    pub housekeeping: bool,
    /// It is idle.
    pub idle: bool,
    /// When its clock event device is programmed to fire, in ns; `None`: not at all.
    pub next_event_ns: Option<i64>,
}

/// A timer to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerRequest {
    /// When it is to fire, in ns.
    pub at_ns: i64,
    /// The CPU that starts it.
    pub from: usize,
    /// The CPU that queues it, or queued it last.
    pub queued_on: Option<usize>,
    /// It was the first of its queue.
    pub first_in_queue: bool,
    /// It may not move.
    pub pinned: bool,
    /// Its callback runs at this moment.
    pub callback_running: bool,
    /// `kernel.timer_migration`.
    pub migration: bool,
}

/// Where a timer lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The CPU.
    pub cpu: usize,
    /// The preferred CPU refused it. The timer would be its first event, and the clock event
    /// device of a remote CPU cannot be reprogrammed.
    pub refused: bool,
}

/// A CPU that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchCpu {
    /// The CPU asked for.
    pub cpu: usize,
    /// How many there are.
    pub cpus: usize,
}

impl fmt::Display for NoSuchCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cpus } = self;
        write!(f, "no CPU {cpu}: the host has {cpus}, counted from 0")
    }
}

impl core::error::Error for NoSuchCpu {}

/// Places a timer. `cpus` are all CPUs of the host; `nearest` names the others in the order of
/// the starting CPU's scheduling domains, inside out.
///
/// A timer that its own CPU would serve next anyway stays there. Otherwise it goes to a busy
/// housekeeping CPU, the nearest, unless it would be that one's first event. A quiet
/// housekeeping CPU therefore refuses most timers, and they fire on the isolated CPU after all.
///
/// # Errors
/// [`NoSuchCpu`] for a CPU beyond `cpus`.
pub fn place_hrtimer(
    request: &TimerRequest,
    cpus: &[CpuTimers],
    nearest: &[usize],
    events: &impl Events,
) -> Result<Placement, NoSuchCpu> {
    let placed = place(request, cpus, nearest)?;
    if placed.refused {
        events.hrtimer_refused();
    } else if placed.cpu != request.from {
        events.hrtimer_moved();
    }
    Ok(placed)
}

fn place(
    request: &TimerRequest,
    cpus: &[CpuTimers],
    nearest: &[usize],
) -> Result<Placement, NoSuchCpu> {
    let get = |cpu: usize| {
        let cpus_len = cpus.len();
        cpus.get(cpu).ok_or(NoSuchCpu {
            cpu,
            cpus: cpus_len,
        })
    };
    let local_cpu = request.from;
    get(local_cpu)?;
    let stay = |cpu| {
        Ok(Placement {
            cpu,
            refused: false,
        })
    };
    // `switch_hrtimer_base`: a timer stays on its base while its callback runs there.
    if let Some(queue) = request.queued_on.filter(|_| request.callback_running) {
        get(queue)?;
        return stay(queue);
    }
    let local = request.queued_on == Some(local_cpu);
    if request.pinned || !request.migration || (local && request.first_in_queue) {
        return stay(local_cpu);
    }
    let target = nohz_target(local_cpu, cpus, nearest, get)?;
    let refuses = |cpu: &CpuTimers| cpu.next_event_ns.is_none_or(|next| request.at_ns < next);
    if target != local_cpu && refuses(get(target)?) {
        return Ok(Placement {
            cpu: local_cpu,
            refused: true,
        });
    }
    stay(target)
}

fn nohz_target<'a>(
    local_cpu: usize,
    cpus: &'a [CpuTimers],
    nearest: &[usize],
    get: impl Fn(usize) -> Result<&'a CpuTimers, NoSuchCpu>,
) -> Result<usize, NoSuchCpu> {
    let local = get(local_cpu)?;
    // `get_nohz_timer_target`: timers go to busy CPUs, so that idle ones stay idle.
    if local.housekeeping && !local.idle {
        return Ok(local_cpu);
    }
    for &cpu in nearest {
        let remote = get(cpu)?;
        if cpu != local_cpu && remote.housekeeping && !remote.idle {
            return Ok(cpu);
        }
    }
    if local.housekeeping {
        return Ok(local_cpu);
    }
    // Any: without one the host has no timers to move.
    Ok(cpus
        .iter()
        .position(|c| c.housekeeping)
        .unwrap_or(local_cpu))
}
