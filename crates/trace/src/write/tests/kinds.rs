//! One event of every kind with values at the edges of its fields.

use stealtime_events::{ExitReason, HostVector, Isa, Kind, NameId, Tid, VcpuId};

const NO: u32 = 0;
const ALL: u32 = u32::MAX;

fn exit(isa: Isa, code: u32, vcpu: u32, intr_vector: Option<u8>, info1: u64) -> Kind {
    Kind::KvmExit {
        reason: ExitReason { isa, code },
        vcpu: VcpuId(vcpu),
        intr_vector,
        info1,
    }
}

/// `names`: of functions and of events known by name only.
#[rustfmt::skip]
pub(super) fn every(names: &[NameId]) -> Vec<Kind> {
    let mut all = exits();
    all.extend(kvm());
    all.extend(host());
    for &name in names {
        all.extend([
            Kind::Other { name },
            Kind::IpiSendCpu { cpu: ALL, callback: name }, Kind::IpiSendCpumask { callback: name },
            Kind::CsdQueueCpu { cpu: NO, func: name }, Kind::CsdFunctionEntry { func: name }, Kind::CsdFunctionExit { func: name },
            Kind::HrtimerStart { hrtimer: u64::MAX, expires_ns: u64::MAX, function: name },
            Kind::HrtimerExpireEntry { hrtimer: 1, now_ns: 1 << 63, function: name },
        ]);
    }
    all
}

#[rustfmt::skip]
fn exits() -> Vec<Kind> {
    vec![
        exit(Isa::Vmx, 1, 0, Some(0xec), 0), exit(Isa::Vmx, 0x8000_0021, ALL, Some(0), u64::MAX), exit(Isa::Vmx, 48, 7, None, 1),
        exit(Isa::Svm, 0x400, 1, None, u64::MAX), exit(Isa::Svm, ALL, ALL, None, 0),
        exit(Isa::Arm64, 0x24, ALL, None, 0), exit(Isa::Arm64, 0x100, ALL, None, 0), exit(Isa::Arm64, 0x102, ALL, None, 0),
        exit(Isa::Arm64, 0x103, ALL, None, 0), exit(Isa::Arm64, 0x104, ALL, None, 0), exit(Isa::Arm64, ALL, ALL, None, 0),
        exit(Isa::Riscv, 8, ALL, None, 0), exit(Isa::Riscv, 0x8000_0005, ALL, None, 0), exit(Isa::Riscv, ALL, ALL, None, 0),
    ]
}

#[rustfmt::skip]
fn kvm() -> Vec<Kind> {
    let mut all = Vec::new();
    for (yes, w, l, vcpu) in [(true, ALL, u64::MAX, VcpuId::UNKNOWN), (false, NO, 0, VcpuId(0)), (true, 1, 1 << 63, VcpuId(16383))] {
        let (h, b, i) = (w as u16, w as u8, w as i32);
        all.extend([
            Kind::KvmEntry { vcpu },
            Kind::KvmUserspaceExit { reason: w, errno: i }, Kind::KvmHypercall { nr: l, a0: l ^ 1, a1: !w },
            Kind::KvmPio { write: yes, port: h, size: b, count: w, val: w }, Kind::KvmMmio { mmio_type: b, len: w, gpa: l, val: !l },
            Kind::KvmMsr { write: yes, exception: !yes, ecx: w, data: l }, Kind::KvmCpuid { function: w, index: !w },
            Kind::KvmPageFault { vcpu, address: l, error_code: !l }, Kind::KvmApic { write: yes, reg: w, val: l },
            Kind::KvmApicIpi { icr_low: w, dest_id: !w },
            Kind::KvmApicAcceptIrq { apicid: w, dm: h, tm: !h, vec: b }, Kind::KvmApicvAcceptIrq { apicid: w, dm: h, tm: !h, vec: b },
            Kind::KvmInjVirq { vector: w, soft: yes, reinjected: !yes }, Kind::KvmInjException { exception: b, error_code: w },
            Kind::KvmEoi { apicid: w, vector: -1 }, Kind::KvmPvEoi { apicid: w, vector: i }, Kind::KvmSetIrq { gsi: w, level: i },
            Kind::KvmMsiSetIrq { address: l, data: !l },
            Kind::KvmPiIrteUpdate { host_irq: w, vcpu, gsi: !w, gvec: w, set: yes },
            Kind::KvmAvicIncompleteIpi { vcpu, icrh: w, icrl: !w, id: w },
            Kind::KvmApicvInhibitChanged { reason: i, set: yes, inhibits: l },
            Kind::KvmVcpuWakeup { ns: l, waited: yes, valid: !yes }, Kind::KvmHaltPollNs { vcpu, grow: yes, new: w, old: !w },
            Kind::KvmPleWindowUpdate { vcpu, new: w, old: !w }, Kind::KvmHvTimerState { vcpu, hv_timer_in_use: yes },
            Kind::KvmWaitLapicExpire { vcpu, delta: i64::MIN }, Kind::KvmWriteTscOffset { vcpu, prev: l, next: !l },
            Kind::KvmTrackTsc { vcpu, matched: w, online: !w, use_master_clock: yes, host_clock: w },
            Kind::KvmUpdateMasterClock { use_master_clock: yes, host_clock: w, offset_matched: !yes },
            Kind::KvmPvclockUpdate { vcpu, tsc_timestamp: l, system_time: !l }, Kind::KvmPvTlbFlush { vcpu, need_flush_tlb: yes },
        ]);
    }
    all
}

#[rustfmt::skip]
fn host() -> Vec<Kind> {
    let mut all = Vec::new();
    for (tid, w, l) in [(Tid(i32::MAX), ALL, u64::MAX), (Tid(0), NO, 0), (Tid(77), 120, 1), (Tid(-1), 1, 1 << 62)] {
        let i = w as i32;
        all.extend([
            Kind::SchedSwitch { prev: tid, next: Tid(0), prev_prio: i16::MIN, next_prio: i16::MAX, prev_state: w },
            Kind::SchedWaking { tid, prio: i, target_cpu: w }, Kind::SchedWakeup { tid, prio: i, target_cpu: w },
            Kind::SchedWakeupNew { tid, prio: i, target_cpu: w }, Kind::SchedMigrateTask { tid, prio: i, orig_cpu: w, dest_cpu: !w },
            Kind::SchedStatRuntime { tid, runtime_ns: l }, Kind::SchedStatWait { tid, delay_ns: l },
            Kind::SchedProcessFork { parent: tid, child: Tid(5) }, Kind::SchedProcessExit { tid },
            Kind::IrqHandlerEntry { irq: w }, Kind::IrqHandlerExit { irq: w },
            Kind::SoftirqEntry { vec: w }, Kind::SoftirqExit { vec: w }, Kind::SoftirqRaise { vec: w },
            Kind::HrtimerSetup { hrtimer: l }, Kind::HrtimerCancel { hrtimer: l }, Kind::HrtimerExpireExit { hrtimer: l },
        ]);
    }
    for class in HostVector::ALL {
        all.extend([Kind::VectorEntry { class, vector: 0xff }, Kind::VectorExit { class, vector: 0 }]);
    }
    all
}
