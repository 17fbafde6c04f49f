//! Records of one tracepoint each to their event: the straightforward ones.

use stealtime_events::Kind;

use super::{Fields, Functions, NameTable, Point};

impl<const SHORT: bool> Fields<'_, SHORT> {
    /// hrtimers and function calls: what carries the address of a function.
    #[inline]
    pub(super) fn timer(
        &self,
        point: Point,
        functions: &mut Functions,
        names: &mut NameTable,
    ) -> Option<Kind> {
        let hrtimer = || self.get::<0>();
        Some(match point {
            Point::HrtimerSetup => Kind::HrtimerSetup { hrtimer: hrtimer() },
            Point::HrtimerStart => Kind::HrtimerStart {
                hrtimer: hrtimer(),
                expires_ns: self.get::<1>(),
                function: self.function::<2>(functions, names),
            },
            Point::HrtimerCancel => Kind::HrtimerCancel { hrtimer: hrtimer() },
            Point::HrtimerExpireEntry => Kind::HrtimerExpireEntry {
                hrtimer: hrtimer(),
                now_ns: self.get::<1>(),
                function: self.function::<2>(functions, names),
            },
            Point::HrtimerExpireExit => Kind::HrtimerExpireExit { hrtimer: hrtimer() },
            Point::IpiSendCpu => Kind::IpiSendCpu {
                cpu: self.u32::<0>(),
                callback: self.function::<1>(functions, names),
            },
            Point::IpiSendCpumask => Kind::IpiSendCpumask {
                callback: self.function::<0>(functions, names),
            },
            Point::CsdQueueCpu => Kind::CsdQueueCpu {
                cpu: self.u32::<0>(),
                func: self.function::<1>(functions, names),
            },
            Point::CsdFunctionEntry => Kind::CsdFunctionEntry {
                func: self.function::<0>(functions, names),
            },
            Point::CsdFunctionExit => Kind::CsdFunctionExit {
                func: self.function::<0>(functions, names),
            },
            _ => return None,
        })
    }

    /// Scheduler and interrupt handlers of the host.
    #[inline]
    pub(super) fn sched(&self, point: Point) -> Option<Kind> {
        Some(match point {
            Point::SchedWaking | Point::SchedWakeup | Point::SchedWakeupNew => {
                let (tid, prio, target_cpu) = (self.tid::<0>(), self.i32::<1>(), self.u32::<2>());
                match point {
                    Point::SchedWaking => Kind::SchedWaking {
                        tid,
                        prio,
                        target_cpu,
                    },
                    Point::SchedWakeup => Kind::SchedWakeup {
                        tid,
                        prio,
                        target_cpu,
                    },
                    _ => Kind::SchedWakeupNew {
                        tid,
                        prio,
                        target_cpu,
                    },
                }
            }
            Point::SchedMigrateTask => Kind::SchedMigrateTask {
                tid: self.tid::<0>(),
                prio: self.i32::<1>(),
                orig_cpu: self.u32::<2>(),
                dest_cpu: self.u32::<3>(),
            },
            Point::SchedStatRuntime => Kind::SchedStatRuntime {
                tid: self.tid::<0>(),
                runtime_ns: self.get::<1>(),
            },
            Point::SchedStatWait => Kind::SchedStatWait {
                tid: self.tid::<0>(),
                delay_ns: self.get::<1>(),
            },
            Point::SchedProcessFork => Kind::SchedProcessFork {
                parent: self.tid::<0>(),
                child: self.tid::<1>(),
            },
            Point::SchedProcessExit => Kind::SchedProcessExit {
                tid: self.tid::<0>(),
            },
            Point::IrqHandlerEntry => Kind::IrqHandlerEntry {
                irq: self.u32::<0>(),
            },
            Point::IrqHandlerExit => Kind::IrqHandlerExit {
                irq: self.u32::<0>(),
            },
            Point::SoftirqEntry => Kind::SoftirqEntry {
                vec: self.u32::<0>(),
            },
            Point::SoftirqExit => Kind::SoftirqExit {
                vec: self.u32::<0>(),
            },
            Point::SoftirqRaise => Kind::SoftirqRaise {
                vec: self.u32::<0>(),
            },
            _ => return None,
        })
    }

    /// What the guest reached for.
    #[inline]
    pub(super) fn kvm_access(&self, point: Point) -> Option<Kind> {
        Some(match point {
            Point::KvmUserspaceExit => Kind::KvmUserspaceExit {
                reason: self.u32::<0>(),
                errno: self.i32::<1>(),
            },
            Point::KvmHypercall => Kind::KvmHypercall {
                nr: self.get::<0>(),
                a0: self.get::<1>(),
                a1: self.get::<2>() as u32,
            },
            Point::KvmPio => Kind::KvmPio {
                write: self.bool::<0>(),
                port: self.u32::<1>() as u16,
                size: self.u32::<2>() as u8,
                count: self.u32::<3>(),
                val: self.u32::<4>(),
            },
            Point::KvmMmio => Kind::KvmMmio {
                mmio_type: self.u32::<0>() as u8,
                len: self.u32::<1>(),
                gpa: self.get::<2>(),
                val: self.get::<3>(),
            },
            Point::KvmMsr => Kind::KvmMsr {
                write: self.bool::<0>(),
                exception: self.bool::<1>(),
                ecx: self.u32::<2>(),
                data: self.get::<3>(),
            },
            Point::KvmCpuid => Kind::KvmCpuid {
                function: self.u32::<0>(),
                index: self.u32::<1>(),
            },
            Point::KvmPageFault => Kind::KvmPageFault {
                vcpu: self.vcpu::<0>(),
                address: self.get::<1>(),
                error_code: self.get::<2>(),
            },
            Point::KvmApic => Kind::KvmApic {
                write: self.bool::<0>(),
                reg: self.u32::<1>(),
                val: self.get::<2>(),
            },
            _ => return None,
        })
    }

    /// Interrupts on their way to the guest.
    #[inline]
    pub(super) fn kvm_interrupt(&self, point: Point) -> Option<Kind> {
        Some(match point {
            Point::KvmApicIpi => Kind::KvmApicIpi {
                icr_low: self.u32::<0>(),
                dest_id: self.u32::<1>(),
            },
            Point::KvmApicAcceptIrq | Point::KvmApicvAcceptIrq => {
                let apicid = self.u32::<0>();
                let (dm, tm) = (self.u32::<1>() as u16, self.u32::<2>() as u16);
                let vec = self.u32::<3>() as u8;
                match point {
                    Point::KvmApicAcceptIrq => Kind::KvmApicAcceptIrq {
                        apicid,
                        dm,
                        tm,
                        vec,
                    },
                    _ => Kind::KvmApicvAcceptIrq {
                        apicid,
                        dm,
                        tm,
                        vec,
                    },
                }
            }
            Point::KvmInjVirq => Kind::KvmInjVirq {
                vector: self.u32::<0>(),
                soft: self.bool::<1>(),
                reinjected: self.bool::<2>(),
            },
            Point::KvmInjException => Kind::KvmInjException {
                exception: self.u32::<0>() as u8,
                error_code: self.u32::<1>(),
            },
            Point::KvmEoi => Kind::KvmEoi {
                apicid: self.u32::<0>(),
                vector: self.i32::<1>(),
            },
            Point::KvmPvEoi => Kind::KvmPvEoi {
                apicid: self.u32::<0>(),
                vector: self.i32::<1>(),
            },
            Point::KvmSetIrq => Kind::KvmSetIrq {
                gsi: self.u32::<0>(),
                level: self.i32::<1>(),
            },
            Point::KvmMsiSetIrq => Kind::KvmMsiSetIrq {
                address: self.get::<0>(),
                data: self.get::<1>(),
            },
            Point::KvmPiIrteUpdate => Kind::KvmPiIrteUpdate {
                host_irq: self.u32::<0>(),
                vcpu: self.vcpu::<1>(),
                gsi: self.u32::<2>(),
                gvec: self.u32::<3>(),
                set: self.bool::<4>(),
            },
            Point::KvmAvicIncompleteIpi => Kind::KvmAvicIncompleteIpi {
                vcpu: self.vcpu::<0>(),
                icrh: self.u32::<1>(),
                icrl: self.u32::<2>(),
                id: self.u32::<3>(),
            },
            Point::KvmApicvInhibitChanged => Kind::KvmApicvInhibitChanged {
                reason: self.i32::<0>(),
                set: self.bool::<1>(),
                inhibits: self.get::<2>(),
            },
            _ => return None,
        })
    }

    /// Halting, spinning, timers and clocks.
    #[inline]
    pub(super) fn kvm_time(&self, point: Point) -> Option<Kind> {
        Some(match point {
            Point::KvmVcpuWakeup => Kind::KvmVcpuWakeup {
                ns: self.get::<0>(),
                waited: self.bool::<1>(),
                valid: self.bool::<2>(),
            },
            Point::KvmHaltPollNs => Kind::KvmHaltPollNs {
                grow: self.bool::<0>(),
                vcpu: self.vcpu::<1>(),
                new: self.u32::<2>(),
                old: self.u32::<3>(),
            },
            Point::KvmPleWindowUpdate => Kind::KvmPleWindowUpdate {
                vcpu: self.vcpu::<0>(),
                new: self.u32::<1>(),
                old: self.u32::<2>(),
            },
            Point::KvmHvTimerState => Kind::KvmHvTimerState {
                vcpu: self.vcpu::<0>(),
                hv_timer_in_use: self.bool::<1>(),
            },
            Point::KvmWaitLapicExpire => Kind::KvmWaitLapicExpire {
                vcpu: self.vcpu::<0>(),
                delta: self.get::<1>() as i64,
            },
            Point::KvmWriteTscOffset => Kind::KvmWriteTscOffset {
                vcpu: self.vcpu::<0>(),
                prev: self.get::<1>(),
                next: self.get::<2>(),
            },
            Point::KvmTrackTsc => Kind::KvmTrackTsc {
                vcpu: self.vcpu::<0>(),
                matched: self.u32::<1>(),
                online: self.u32::<2>(),
                use_master_clock: self.bool::<3>(),
                host_clock: self.u32::<4>(),
            },
            Point::KvmUpdateMasterClock => Kind::KvmUpdateMasterClock {
                use_master_clock: self.bool::<0>(),
                host_clock: self.u32::<1>(),
                offset_matched: self.bool::<2>(),
            },
            Point::KvmPvclockUpdate => Kind::KvmPvclockUpdate {
                vcpu: self.vcpu::<0>(),
                tsc_timestamp: self.get::<1>(),
                system_time: self.get::<2>(),
            },
            Point::KvmPvTlbFlush => Kind::KvmPvTlbFlush {
                vcpu: self.vcpu::<0>(),
                need_flush_tlb: self.bool::<1>(),
            },
            _ => return None,
        })
    }
}
