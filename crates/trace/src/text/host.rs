//! The scheduler's, the timers' and the interrupts' tracepoints as text.

use stealtime_events::{HostVector, Kind, NameId, Tid};

use super::fields::{after, int, int_last, number, symbol, word};
use crate::NameTable;

/// Task states as the kernel prints them; several may be joined by `|`. Plugins of older trace-cmd
/// have letters of older kernels: `W` for an idle kthread, `x` for a parked one (and what has
/// ended, `X` or `Z`, the other way round).
const STATES: &[(u8, u32)] = &[
    (b'R', 0),
    (b'S', 1),
    (b'D', 2),
    (b'T', 4),
    (b't', 8),
    (b'X', 0x10),
    (b'Z', 0x20),
    (b'P', 0x40),
    (b'x', 0x40),
    (b'I', 0x80),
    (b'W', 0x80),
];

/// What the kernel prints as `+`: runnable, but switched out (`TASK_REPORT_MAX` since 4.14).
const PREEMPTED: u32 = 0x100;

/// A task and the name that an event prints for it.
pub(super) type Named<'a> = Option<(Tid, &'a [u8])>;

/// What an event's text says: what happened, and names of tasks.
pub(super) type Said<'a> = (Kind, [Named<'a>; 2]);

/// The event, or `None` where it is none of these or cannot be read.
pub(super) fn parse<'a>(event: &[u8], body: &'a [u8], names: &mut NameTable) -> Option<Said<'a>> {
    if event.starts_with(b"sched_") {
        return sched(event, body);
    }
    let kind = if event.starts_with(b"hrtimer_") {
        timer(event, body, names)?
    } else {
        interrupt(event, body, names)?
    };
    Some((kind, [None; 2]))
}

fn sched<'a>(event: &[u8], body: &'a [u8]) -> Option<Said<'a>> {
    match event {
        b"sched_switch" => return switch(body),
        b"sched_waking" | b"sched_wakeup" | b"sched_wakeup_new" => return wakeup(event, body),
        b"sched_process_fork" => return fork(body),
        _ => {}
    }
    let tid = Tid(int_last(body, "pid")?);
    let kind = match event {
        b"sched_migrate_task" => Kind::SchedMigrateTask {
            tid,
            prio: int_last(body, "prio")?,
            orig_cpu: int_last(body, "orig_cpu")?,
            dest_cpu: int_last(body, "dest_cpu")?,
        },
        b"sched_stat_runtime" => Kind::SchedStatRuntime {
            tid,
            runtime_ns: int_last(body, "runtime")?,
        },
        b"sched_stat_wait" => Kind::SchedStatWait {
            tid,
            delay_ns: int_last(body, "delay")?,
        },
        b"sched_process_exit" => Kind::SchedProcessExit { tid },
        _ => return None,
    };
    Some((kind, [Some((tid, comm(body, b"comm=", b" pid=")?)), None]))
}

/// The name between `before`, which begins the text, and the last `behind`.
fn comm<'a>(body: &'a [u8], before: &[u8], behind: &[u8]) -> Option<&'a [u8]> {
    let rest = body.strip_prefix(before)?;
    rest.get(..memchr::memmem::rfind(rest, behind)?)
}

fn switch(body: &[u8]) -> Option<Said<'_>> {
    let next_comm = b"next_comm=";
    let Some(at) = memchr::memmem::rfind(body, next_comm) else {
        return switch_of_plugin(body);
    };
    let (prev, next) = (body.get(..at)?, body.get(at..)?);
    let (prev_tid, next_tid) = (
        Tid(int_last(prev, "prev_pid")?),
        Tid(int_last(next, "next_pid")?),
    );
    let kind = Kind::SchedSwitch {
        prev: prev_tid,
        next: next_tid,
        prev_prio: int_last(prev, "prev_prio")?,
        next_prio: int_last(next, "next_prio")?,
        prev_state: state(
            memchr::memmem::rfind(prev, b"prev_state=")
                .and_then(|at| prev.get(at + b"prev_state=".len()..))?,
        )?,
    };
    let prev_comm = comm(prev, b"prev_comm=", b" prev_pid=")?;
    let next_comm = comm(next, next_comm, b" next_pid=")?;
    Some((
        kind,
        [Some((prev_tid, prev_comm)), Some((next_tid, next_comm))],
    ))
}

/// `trace-cmd:513 [105] R ==> migration/0:18 [0]`.
fn switch_of_plugin(body: &[u8]) -> Option<Said<'_>> {
    let arrow = memchr::memmem::rfind(body, b" ==> ")?;
    let prev = task(body.get(..arrow)?)?;
    let next = task(body.get(arrow + 5..)?)?;
    let kind = Kind::SchedSwitch {
        prev: prev.tid,
        next: next.tid,
        prev_prio: prev.prio?.try_into().ok()?,
        next_prio: next.prio?.try_into().ok()?,
        prev_state: state(prev.rest)?,
    };
    Some((
        kind,
        [Some((prev.tid, prev.comm)), Some((next.tid, next.comm))],
    ))
}

/// `migration/0:18 [0] R`, as trace-cmd's plugin prints a task.
struct Task<'a> {
    comm: &'a [u8],
    tid: Tid,
    prio: Option<i32>,
    rest: &'a [u8],
}

fn task(text: &[u8]) -> Option<Task<'_>> {
    let bracket = memchr::memmem::rfind(text, b" [")?;
    let head = text.get(..bracket)?;
    let colon = memchr::memrchr(b':', head)?;
    let inner = text.get(bracket + 2..)?;
    let close = memchr::memchr(b']', inner)?;
    Some(Task {
        comm: head.get(..colon)?,
        tid: Tid(number(head.get(colon + 1..)?)?.try_into().ok()?),
        prio: number(inner.get(..close)?).and_then(|prio| prio.try_into().ok()),
        rest: inner.get(close + 1..)?.trim_ascii(),
    })
}

/// `S`, `R+`, `D|K`, or the number.
fn state(text: &[u8]) -> Option<u32> {
    let end = text
        .iter()
        .position(|byte| *byte == b' ')
        .unwrap_or(text.len());
    let text = text.get(..end)?;
    if text.first()?.is_ascii_digit() {
        return u32::try_from(number(text)?).ok();
    }
    text.iter()
        .filter(|byte| **byte != b'|')
        .try_fold(0, |bits, byte| {
            let known = STATES.iter().find(|(letter, _)| letter == byte);
            match (known, byte) {
                (Some((_, bit)), _) => Some(bits | bit),
                (None, b'+') => Some(bits | PREEMPTED),
                _ => None,
            }
        })
}

fn wakeup<'a>(event: &[u8], body: &'a [u8]) -> Option<Said<'a>> {
    let (tid, comm, prio, target_cpu) = if body.starts_with(b"comm=") {
        let comm = comm(body, b"comm=", b" pid=")?;
        let target = int_last(body, "target_cpu")?;
        (
            Tid(int_last(body, "pid")?),
            comm,
            int_last(body, "prio")?,
            target,
        )
    } else {
        // `migration/0:18 [0] CPU:000`, on older versions with `success=1` before the CPU.
        let task = task(body)?;
        (task.tid, task.comm, task.prio?, int(task.rest, "CPU")?)
    };
    let kind = match event {
        b"sched_waking" => Kind::SchedWaking {
            tid,
            prio,
            target_cpu,
        },
        b"sched_wakeup" => Kind::SchedWakeup {
            tid,
            prio,
            target_cpu,
        },
        _ => Kind::SchedWakeupNew {
            tid,
            prio,
            target_cpu,
        },
    };
    Some((kind, [Some((tid, comm)), None]))
}

fn fork(body: &[u8]) -> Option<Said<'_>> {
    let at = memchr::memmem::rfind(body, b" child_comm=")?;
    let (ours, theirs) = (body.get(..at)?, body.get(at + 1..)?);
    let (key, before): (_, &[u8]) = if ours.starts_with(b"parent_comm=") {
        ("parent_pid", b"parent_comm=")
    } else {
        ("pid", b"comm=")
    };
    let parent = Tid(int_last(ours, key)?);
    let child = Tid(int_last(theirs, "child_pid")?);
    let behind: &[u8] = if key == "pid" {
        b" pid="
    } else {
        b" parent_pid="
    };
    let parent_comm = comm(ours, before, behind)?;
    let child_comm = comm(theirs, b"child_comm=", b" child_pid=")?;
    let said = [Some((parent, parent_comm)), Some((child, child_comm))];
    Some((Kind::SchedProcessFork { parent, child }, said))
}

fn timer(event: &[u8], body: &[u8], names: &mut NameTable) -> Option<Kind> {
    let hrtimer = address(body, "hrtimer")?;
    Some(match event {
        b"hrtimer_setup" | b"hrtimer_init" => Kind::HrtimerSetup { hrtimer },
        b"hrtimer_start" => Kind::HrtimerStart {
            hrtimer,
            expires_ns: time(body, "expires")?,
            function: function(body, "function", names),
        },
        b"hrtimer_cancel" => Kind::HrtimerCancel { hrtimer },
        b"hrtimer_expire_entry" => Kind::HrtimerExpireEntry {
            hrtimer,
            now_ns: time(body, "now")?,
            function: function(body, "function", names),
        },
        b"hrtimer_expire_exit" => Kind::HrtimerExpireExit { hrtimer },
        _ => return None,
    })
}

/// A pointer: the kernel's `%p` has no `0x`, trace-cmd's has.
fn address(body: &[u8], key: &str) -> Option<u64> {
    super::fields::bare_hex(after(body, key)?)
}

/// A time that the kernel holds signed.
fn time(body: &[u8], key: &str) -> Option<u64> {
    match int::<i64>(body, key) {
        Some(time) => Some(time.cast_unsigned()),
        None => int(body, key),
    }
}

fn function(body: &[u8], key: &str, names: &mut NameTable) -> NameId {
    after(body, key).map_or(NameId::NONE, |value| names.intern_bytes(symbol(value)))
}

fn interrupt(event: &[u8], body: &[u8], names: &mut NameTable) -> Option<Kind> {
    Some(match event {
        b"irq_handler_entry" => Kind::IrqHandlerEntry {
            irq: int(body, "irq")?,
        },
        b"irq_handler_exit" => Kind::IrqHandlerExit {
            irq: int(body, "irq")?,
        },
        b"softirq_entry" => Kind::SoftirqEntry {
            vec: int(body, "vec")?,
        },
        b"softirq_exit" => Kind::SoftirqExit {
            vec: int(body, "vec")?,
        },
        b"softirq_raise" => Kind::SoftirqRaise {
            vec: int(body, "vec")?,
        },
        b"ipi_send_cpu" => Kind::IpiSendCpu {
            cpu: int(body, "cpu")?,
            callback: function(body, "callback", names),
        },
        b"ipi_send_cpumask" => {
            word(body, "cpumask")?;
            Kind::IpiSendCpumask {
                callback: function(body, "callback", names),
            }
        }
        b"csd_queue_cpu" => Kind::CsdQueueCpu {
            cpu: int(body, "cpu")?,
            func: function(body, "func", names),
        },
        b"csd_function_entry" => Kind::CsdFunctionEntry {
            func: function(body, "func", names),
        },
        b"csd_function_exit" => Kind::CsdFunctionExit {
            func: function(body, "func", names),
        },
        _ => return vector(event, body),
    })
}

fn vector(event: &[u8], body: &[u8]) -> Option<Kind> {
    let class = |end: &[u8]| {
        let stem = event.strip_suffix(end)?;
        HostVector::ALL
            .into_iter()
            .find(|class| class.stem().as_bytes() == stem)
    };
    if let Some(class) = class(b"_entry") {
        return Some(Kind::VectorEntry {
            class,
            vector: int(body, "vector")?,
        });
    }
    Some(Kind::VectorExit {
        class: class(b"_exit")?,
        vector: int(body, "vector")?,
    })
}

/// The hrtimer's `now=` of an expiry, for calibration.
pub(super) fn expiry_now(event: &[u8], body: &[u8]) -> Option<u64> {
    (event == b"hrtimer_expire_entry")
        .then(|| time(body, "now"))
        .flatten()
}

/// Whether an event is one of those that this module or its sibling reads at all; a body of such an
/// event that cannot be read is worth a note.
pub(super) fn is_known(event: &[u8]) -> bool {
    let vector = |end: &[u8]| {
        event.strip_suffix(end).is_some_and(|stem| {
            HostVector::ALL
                .iter()
                .any(|class| class.stem().as_bytes() == stem)
        })
    };
    KNOWN.iter().any(|name| name.as_bytes() == event) || vector(b"_entry") || vector(b"_exit")
}

#[rustfmt::skip]
const KNOWN: &[&str] = &[
    "kvm_entry", "kvm_exit", "kvm_userspace_exit", "kvm_hypercall", "kvm_pio", "kvm_mmio",
    "kvm_msr", "kvm_cpuid", "kvm_page_fault", "kvm_apic", "kvm_apic_ipi", "kvm_apic_accept_irq",
    "kvm_apicv_accept_irq", "kvm_inj_virq", "kvm_inj_exception", "kvm_eoi", "kvm_pv_eoi",
    "kvm_set_irq", "kvm_msi_set_irq", "kvm_pi_irte_update", "kvm_avic_incomplete_ipi",
    "kvm_apicv_inhibit_changed", "kvm_vcpu_wakeup", "kvm_halt_poll_ns", "kvm_ple_window_update",
    "kvm_ple_window", "kvm_hv_timer_state", "kvm_wait_lapic_expire", "kvm_write_tsc_offset",
    "kvm_track_tsc", "kvm_update_master_clock", "kvm_pvclock_update", "kvm_pv_tlb_flush",
    "sched_switch", "sched_waking", "sched_wakeup", "sched_wakeup_new", "sched_migrate_task",
    "sched_stat_runtime", "sched_stat_wait", "sched_process_fork", "sched_process_exit",
    "irq_handler_entry", "irq_handler_exit", "softirq_entry", "softirq_exit", "softirq_raise",
    "ipi_send_cpu", "ipi_send_cpumask", "csd_queue_cpu", "csd_function_entry",
    "csd_function_exit", "hrtimer_setup", "hrtimer_init", "hrtimer_start", "hrtimer_cancel",
    "hrtimer_expire_entry", "hrtimer_expire_exit",
];
