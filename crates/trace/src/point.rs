//! The tracepoints that become typed events: one list for the reader and the writer.

use stealtime_events::HostVector;

/// Makes [`Point`], and with it the place of each tracepoint in the writer's table.
macro_rules! points {
    ($($name:ident,)*) => {
        /// A tracepoint whose records become a typed event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Point {
            $($name,)*
            VectorEntry(HostVector),
            VectorExit(HostVector),
            /// `task_rename`: read for the task's new name only, and never written.
            TaskRename,
        }

        /// All but those of host vectors, in the order of their declaration.
        #[repr(u16)]
        enum Place {
            $($name,)*
            /// Here those of host vectors begin: entry and exit of each.
            Vectors,
        }

        impl Point {
            /// Its number, dense from 0: first those without, then those with a host vector.
            pub(crate) const fn number(self) -> u16 {
                match self {
                    $(Self::$name => Place::$name as u16,)*
                    Self::VectorEntry(class) => Place::Vectors as u16 + class as u16 * 2,
                    Self::VectorExit(class) => Place::Vectors as u16 + class as u16 * 2 + 1,
                    Self::TaskRename => Place::Vectors as u16 + HostVector::ALL.len() as u16 * 2,
                }
            }
        }
    };
}

points! {
    KvmEntry,
    KvmExit,
    KvmExitArm64,
    KvmExitRiscv,
    KvmUserspaceExit,
    KvmHypercall,
    KvmPio,
    KvmMmio,
    KvmMsr,
    KvmCpuid,
    KvmPageFault,
    KvmApic,
    KvmApicIpi,
    KvmApicAcceptIrq,
    KvmApicvAcceptIrq,
    KvmInjVirq,
    KvmInjException,
    KvmEoi,
    KvmPvEoi,
    KvmSetIrq,
    KvmMsiSetIrq,
    KvmPiIrteUpdate,
    KvmAvicIncompleteIpi,
    KvmApicvInhibitChanged,
    KvmVcpuWakeup,
    KvmHaltPollNs,
    KvmPleWindowUpdate,
    KvmHvTimerState,
    KvmWaitLapicExpire,
    KvmWriteTscOffset,
    KvmTrackTsc,
    KvmUpdateMasterClock,
    KvmPvclockUpdate,
    KvmPvTlbFlush,
    SchedSwitch,
    SchedWaking,
    SchedWakeup,
    SchedWakeupNew,
    SchedMigrateTask,
    SchedStatRuntime,
    SchedStatWait,
    SchedProcessFork,
    SchedProcessExit,
    IrqHandlerEntry,
    IrqHandlerExit,
    SoftirqEntry,
    SoftirqExit,
    SoftirqRaise,
    IpiSendCpu,
    IpiSendCpumask,
    CsdQueueCpu,
    CsdFunctionEntry,
    CsdFunctionExit,
    HrtimerSetup,
    HrtimerStart,
    HrtimerCancel,
    HrtimerExpireEntry,
    HrtimerExpireExit,
}
