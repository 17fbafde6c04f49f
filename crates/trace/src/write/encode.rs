//! Typed events to the fields of their records.

use stealtime_events::{ExitReason, Isa, Kind, NameId};

use super::layout::MAX_FIELDS;
use crate::point::Point;

/// A record's fields as numbers, in the order of the tracepoint's declaration: a task's name is the
/// task's id here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Values {
    /// Index into [`super::points::all`].
    pub(super) point: u16,
    pub(super) fields: [u64; MAX_FIELDS],
}

fn values<const N: usize>(point: Point, fields: [u64; N]) -> Values {
    const { assert!(N <= MAX_FIELDS) };
    let mut all = [0; MAX_FIELDS];
    for (to, from) in all.iter_mut().zip(fields) {
        *to = from;
    }
    Values {
        point: point.number(),
        fields: all,
    }
}

/// A signed field, its sign extended.
fn s(value: i32) -> u64 {
    i64::from(value).cast_unsigned()
}

/// What is written for a kind; `None` for those that are no tracepoint. `function` gives the address
/// that stands for a function's name.
#[inline]
pub(super) fn encode(kind: Kind, function: &mut dyn FnMut(NameId) -> u64) -> Option<Values> {
    Some(match kind {
        Kind::KvmEntry { vcpu } => values(Point::KvmEntry, [vcpu.0.into(), 0]),
        Kind::KvmExit {
            reason,
            vcpu,
            intr_vector,
            info1,
        } => exit(reason, vcpu.0, intr_vector, info1),
        Kind::SchedSwitch {
            prev,
            next,
            prev_prio,
            next_prio,
            prev_state,
        } => {
            let (prev, next) = (s(prev.0), s(next.0));
            let (prev_prio, next_prio) = (s(prev_prio.into()), s(next_prio.into()));
            let state = prev_state.into();
            let fields = [prev, prev, prev_prio, state, next, next, next_prio];
            values(Point::SchedSwitch, fields)
        }
        Kind::VectorEntry { class, vector: v } => values(Point::VectorEntry(class), [v.into()]),
        Kind::VectorExit { class, vector: v } => values(Point::VectorExit(class), [v.into()]),
        kind => {
            return host(kind)
                .or_else(|| timer(kind, function))
                .or_else(|| access(kind))
                .or_else(|| interrupt(kind))
                .or_else(|| time(kind));
        }
    })
}

/// `ARM_EXCEPTION_TRAP`.
const TRAP: u32 = 2;
/// `ARM_EXCEPTION_HYP_GONE`, and the code that stands for it in [`ExitReason`].
const HYP_GONE: (u32, u32) = (0x0bad_ca11, 0x104);
/// Bit 31 of the VM-exit interruption information: valid.
const VALID: u64 = 1 << 31;

/// `kvm_exit`: each architecture has its own.
fn exit(reason: ExitReason, vcpu: u32, intr_vector: Option<u8>, info1: u64) -> Values {
    let code = reason.code;
    let x86 = |isa| {
        let intr_info = intr_vector.map_or(0, |vector| VALID | u64::from(vector));
        let fields = [code.into(), 0, isa, info1, 0, intr_info, vcpu.into()];
        values(Point::KvmExit, fields)
    };
    match reason.isa {
        Isa::Vmx => x86(1),
        Isa::Svm => x86(2),
        Isa::Other => x86(3),
        Isa::Arm64 => {
            let (ret, class) = match code {
                code if code == HYP_GONE.1 => (HYP_GONE.0, 0),
                0x100..0x200 if code != 0x100 + TRAP => (code - 0x100, 0),
                _ => (TRAP, code),
            };
            values(Point::KvmExitArm64, [ret.into(), class.into()])
        }
        Isa::Riscv => {
            let interrupt = u64::from(code >> 31) << 63;
            let scause = u64::from(code & 0x7fff_ffff) | interrupt;
            values(Point::KvmExitRiscv, [scause])
        }
    }
}

/// Scheduler and interrupt handlers of the host.
#[rustfmt::skip]
fn host(kind: Kind) -> Option<Values> {
    let wakeup = |point, tid: i32, prio, target_cpu: u32| values(point, [s(tid), s(tid), s(prio), target_cpu.into()]);
    Some(match kind {
        Kind::SchedWaking { tid, prio, target_cpu } => wakeup(Point::SchedWaking, tid.0, prio, target_cpu),
        Kind::SchedWakeup { tid, prio, target_cpu } => wakeup(Point::SchedWakeup, tid.0, prio, target_cpu),
        Kind::SchedWakeupNew { tid, prio, target_cpu } => wakeup(Point::SchedWakeupNew, tid.0, prio, target_cpu),
        Kind::SchedMigrateTask { tid, prio, orig_cpu, dest_cpu } =>
            values(Point::SchedMigrateTask, [s(tid.0), s(tid.0), s(prio), orig_cpu.into(), dest_cpu.into()]),
        Kind::SchedStatRuntime { tid, runtime_ns } => values(Point::SchedStatRuntime, [s(tid.0), s(tid.0), runtime_ns]),
        Kind::SchedStatWait { tid, delay_ns } => values(Point::SchedStatWait, [s(tid.0), s(tid.0), delay_ns]),
        Kind::SchedProcessFork { parent, child } =>
            values(Point::SchedProcessFork, [s(parent.0), s(parent.0), s(child.0), s(child.0)]),
        Kind::SchedProcessExit { tid } => values(Point::SchedProcessExit, [s(tid.0), s(tid.0)]),
        Kind::IrqHandlerEntry { irq } => values(Point::IrqHandlerEntry, [irq.into()]),
        Kind::IrqHandlerExit { irq } => values(Point::IrqHandlerExit, [irq.into()]),
        Kind::SoftirqEntry { vec } => values(Point::SoftirqEntry, [vec.into()]),
        Kind::SoftirqExit { vec } => values(Point::SoftirqExit, [vec.into()]),
        Kind::SoftirqRaise { vec } => values(Point::SoftirqRaise, [vec.into()]),
        _ => return None,
    })
}

/// hrtimers and function calls: what carries the address of a function.
#[rustfmt::skip]
fn timer(kind: Kind, function: &mut dyn FnMut(NameId) -> u64) -> Option<Values> {
    Some(match kind {
        Kind::HrtimerSetup { hrtimer } => values(Point::HrtimerSetup, [hrtimer]),
        Kind::HrtimerStart { hrtimer, expires_ns, function: name } =>
            values(Point::HrtimerStart, [hrtimer, function(name), expires_ns, 0]),
        Kind::HrtimerCancel { hrtimer } => values(Point::HrtimerCancel, [hrtimer]),
        Kind::HrtimerExpireEntry { hrtimer, now_ns, function: name } =>
            values(Point::HrtimerExpireEntry, [hrtimer, now_ns, function(name)]),
        Kind::HrtimerExpireExit { hrtimer } => values(Point::HrtimerExpireExit, [hrtimer]),
        Kind::IpiSendCpu { cpu, callback } => values(Point::IpiSendCpu, [cpu.into(), function(callback)]),
        Kind::IpiSendCpumask { callback } => values(Point::IpiSendCpumask, [function(callback)]),
        Kind::CsdQueueCpu { cpu, func } => values(Point::CsdQueueCpu, [cpu.into(), function(func)]),
        Kind::CsdFunctionEntry { func } => values(Point::CsdFunctionEntry, [function(func)]),
        Kind::CsdFunctionExit { func } => values(Point::CsdFunctionExit, [function(func)]),
        _ => return None,
    })
}

/// What the guest reached for.
#[rustfmt::skip]
fn access(kind: Kind) -> Option<Values> {
    Some(match kind {
        Kind::KvmUserspaceExit { reason, errno } => values(Point::KvmUserspaceExit, [reason.into(), s(errno)]),
        Kind::KvmHypercall { nr, a0, a1 } => values(Point::KvmHypercall, [nr, a0, a1.into()]),
        Kind::KvmPio { write, port, size, count, val } =>
            values(Point::KvmPio, [write.into(), port.into(), size.into(), count.into(), val.into()]),
        Kind::KvmMmio { mmio_type, len, gpa, val } => values(Point::KvmMmio, [mmio_type.into(), len.into(), gpa, val]),
        Kind::KvmMsr { write, exception, ecx, data } =>
            values(Point::KvmMsr, [write.into(), ecx.into(), data, exception.into()]),
        Kind::KvmCpuid { function, index } => values(Point::KvmCpuid, [function.into(), index.into()]),
        Kind::KvmPageFault { vcpu, address, error_code } =>
            values(Point::KvmPageFault, [vcpu.0.into(), address, error_code]),
        Kind::KvmApic { write, reg, val } => values(Point::KvmApic, [write.into(), reg.into(), val]),
        _ => return None,
    })
}

/// Interrupts on their way to the guest.
#[rustfmt::skip]
fn interrupt(kind: Kind) -> Option<Values> {
    Some(match kind {
        Kind::KvmApicIpi { icr_low, dest_id } => values(Point::KvmApicIpi, [icr_low.into(), dest_id.into()]),
        Kind::KvmApicAcceptIrq { apicid, dm, tm, vec } =>
            values(Point::KvmApicAcceptIrq, [apicid.into(), dm.into(), tm.into(), vec.into()]),
        Kind::KvmApicvAcceptIrq { apicid, dm, tm, vec } =>
            values(Point::KvmApicvAcceptIrq, [apicid.into(), dm.into(), tm.into(), vec.into()]),
        Kind::KvmInjVirq { vector, soft, reinjected } =>
            values(Point::KvmInjVirq, [vector.into(), soft.into(), reinjected.into()]),
        Kind::KvmInjException { exception, error_code } =>
            values(Point::KvmInjException, [exception.into(), error_code.into()]),
        Kind::KvmEoi { apicid, vector } => values(Point::KvmEoi, [apicid.into(), s(vector)]),
        Kind::KvmPvEoi { apicid, vector } => values(Point::KvmPvEoi, [apicid.into(), s(vector)]),
        Kind::KvmSetIrq { gsi, level } => values(Point::KvmSetIrq, [gsi.into(), s(level)]),
        Kind::KvmMsiSetIrq { address, data } => values(Point::KvmMsiSetIrq, [address, data]),
        Kind::KvmPiIrteUpdate { host_irq, vcpu, gsi, gvec, set } =>
            values(Point::KvmPiIrteUpdate, [host_irq.into(), vcpu.0.into(), gsi.into(), gvec.into(), set.into()]),
        Kind::KvmAvicIncompleteIpi { vcpu, icrh, icrl, id } =>
            values(Point::KvmAvicIncompleteIpi, [vcpu.0.into(), icrh.into(), icrl.into(), id.into()]),
        Kind::KvmApicvInhibitChanged { reason, set, inhibits } =>
            values(Point::KvmApicvInhibitChanged, [s(reason), set.into(), inhibits]),
        _ => return None,
    })
}

/// Halting, spinning, timers and clocks.
#[rustfmt::skip]
fn time(kind: Kind) -> Option<Values> {
    Some(match kind {
        Kind::KvmVcpuWakeup { ns, waited, valid } => values(Point::KvmVcpuWakeup, [ns, waited.into(), valid.into()]),
        Kind::KvmHaltPollNs { vcpu, grow, new, old } =>
            values(Point::KvmHaltPollNs, [grow.into(), vcpu.0.into(), new.into(), old.into()]),
        Kind::KvmPleWindowUpdate { vcpu, new, old } =>
            values(Point::KvmPleWindowUpdate, [vcpu.0.into(), new.into(), old.into()]),
        Kind::KvmHvTimerState { vcpu, hv_timer_in_use } =>
            values(Point::KvmHvTimerState, [vcpu.0.into(), hv_timer_in_use.into()]),
        Kind::KvmWaitLapicExpire { vcpu, delta } =>
            values(Point::KvmWaitLapicExpire, [vcpu.0.into(), delta.cast_unsigned()]),
        Kind::KvmWriteTscOffset { vcpu, prev, next } => values(Point::KvmWriteTscOffset, [vcpu.0.into(), prev, next]),
        Kind::KvmTrackTsc { vcpu, matched, online, use_master_clock, host_clock } => values(Point::KvmTrackTsc,
            [vcpu.0.into(), matched.into(), online.into(), use_master_clock.into(), host_clock.into()]),
        Kind::KvmUpdateMasterClock { use_master_clock, host_clock, offset_matched } =>
            values(Point::KvmUpdateMasterClock, [use_master_clock.into(), host_clock.into(), offset_matched.into()]),
        Kind::KvmPvclockUpdate { vcpu, tsc_timestamp, system_time } =>
            values(Point::KvmPvclockUpdate, [vcpu.0.into(), tsc_timestamp, system_time]),
        Kind::KvmPvTlbFlush { vcpu, need_flush_tlb } =>
            values(Point::KvmPvTlbFlush, [vcpu.0.into(), need_flush_tlb.into()]),
        _ => return None,
    })
}
