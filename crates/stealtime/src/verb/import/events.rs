//! Frames as events of a host.

use std::collections::HashMap;

use stealtime_events::{Context, CpuId, Event, ExitReason, HostVector, Kind, Tid, VcpuId};
use stealtime_trace::NameTable;

use super::format::{self, RESCHEDULE_VECTOR, TIMER_VECTOR, WAKEUP_VECTOR};
use super::stream::{Body, Frame};

/// Priority of every thread.
const PRIORITY: i16 = 120;
/// `prev_state` of a thread that sleeps.
const SLEEPS: u64 = 1;
/// "Valid" of the VM-exit interruption information.
const VALID: u64 = 1 << 31;

/// Makes events, and keeps what they depend on.
pub(super) struct Importer {
    tsc_khz: u32,
    /// The current thread of each CPU.
    current: HashMap<u8, Tid>,
    /// CPUs in an interrupt's handler.
    in_interrupt: HashMap<u8, bool>,
}

impl Importer {
    pub(super) fn new(tsc_khz: u32) -> Self {
        Self {
            tsc_khz,
            current: HashMap::new(),
            in_interrupt: HashMap::new(),
        }
    }

    /// The events of a frame: none, one, or two.
    pub(super) fn events(&mut self, frame: &Frame, names: &mut NameTable) -> Vec<Event> {
        let ns = u128::from(frame.tsc) * 1_000_000 / u128::from(self.tsc_khz);
        let time_ns = u64::try_from(ns).unwrap_or(u64::MAX);
        let tid = self.current.get(&frame.cpu).copied().unwrap_or(Tid(0));
        let kinds = match &frame.body {
            Body::Phase => Vec::new(),
            Body::Lost { count } => vec![Kind::Lost { count: *count }],
            Body::Vcpu { tid, vcpu, vm } => thread(*tid, *vcpu, vm, names),
            Body::Event {
                kind,
                small,
                first,
                second,
            } => self.kinds(frame.cpu, *kind, *small, *first, *second, names),
        };
        let interrupt = self
            .in_interrupt
            .get(&frame.cpu)
            .is_some_and(|inside| *inside);
        let bits = if interrupt { Context::HARDIRQ } else { 0 };
        let event = |kind| Event {
            time_ns,
            tid,
            cpu: CpuId(u16::from(frame.cpu)),
            context: Context::from_bits(bits),
            kind,
        };
        kinds.into_iter().map(event).collect()
    }

    fn kinds(
        &mut self,
        cpu: u8,
        kind: format::Kind,
        small: u32,
        first: u64,
        second: u64,
        names: &mut NameTable,
    ) -> Vec<Kind> {
        let vcpu = VcpuId(small);
        let timer = u64::from(small) + 1;
        let event = match kind {
            format::Kind::Exit => exit(small, first),
            format::Kind::Entry => Kind::KvmEntry { vcpu },
            format::Kind::Accept => accepted(small, first, second != 0),
            format::Kind::Switch => {
                let next = thread_id(first);
                self.current.insert(cpu, next);
                Kind::SchedSwitch {
                    prev: thread_id(u64::from(small)),
                    prev_prio: PRIORITY,
                    prev_state: u32::from(second == SLEEPS),
                    next,
                    next_prio: PRIORITY,
                }
            }
            format::Kind::Waking => return woken(thread_id(u64::from(small)), first as u32),
            format::Kind::HvTimer => Kind::KvmHvTimerState {
                vcpu,
                hv_timer_in_use: first != 0,
            },
            format::Kind::VectorEntry | format::Kind::VectorExit => {
                let enters = kind == format::Kind::VectorEntry;
                self.in_interrupt.insert(cpu, enters);
                host_vector(small as u8, enters, names)
            }
            format::Kind::TimerStart => Kind::HrtimerStart {
                hrtimer: timer,
                function: names.intern("apic_timer_fn"),
                expires_ns: first,
            },
            format::Kind::TimerCancel => Kind::HrtimerCancel { hrtimer: timer },
            format::Kind::TimerExpire => Kind::HrtimerExpireEntry {
                hrtimer: timer,
                now_ns: first,
                function: names.intern("apic_timer_fn"),
            },
            format::Kind::Msr => Kind::KvmMsr {
                write: second != 0,
                ecx: small,
                data: first,
                exception: false,
            },
            format::Kind::Wakeup => Kind::KvmVcpuWakeup {
                ns: first,
                waited: small != 0,
                valid: second != 0,
            },
            format::Kind::Ipi => Kind::IpiSendCpu {
                cpu: first as u32,
                callback: names.intern(vector_name(small as u8)),
            },
            // These have text, and are no events.
            format::Kind::Phase | format::Kind::Vcpu | format::Kind::End => return Vec::new(),
        };
        vec![event]
    }
}

fn thread_id(number: u64) -> Tid {
    Tid(i32::try_from(number).unwrap_or(0))
}

fn thread(tid: u64, vcpu: u64, vm: &str, names: &mut NameTable) -> Vec<Kind> {
    let tid = thread_id(tid);
    let vcpu = VcpuId(u32::try_from(vcpu).unwrap_or(u32::MAX));
    // The thread's name is that of QEMU's.
    let name = names.intern(&format!("CPU {}/KVM", vcpu.0));
    // Threads of a phase have numbers from a multiple of 1000 on, which is the VM's process.
    let process = Tid(tid.0 / 1000 * 1000);
    let vm = names.intern(vm);
    vec![
        Kind::Task { tid, process, name },
        Kind::VcpuThread { tid, vm, vcpu },
    ]
}

/// Bits 15:0 are the basic reason, 30:20 the vCPU; bit 31 is a failed entry. The qualification is
/// below the interruption information.
fn exit(small: u32, first: u64) -> Kind {
    let interruption = first >> 32;
    Kind::KvmExit {
        reason: ExitReason::vmx(small & 0x8000_ffff),
        vcpu: VcpuId(small >> 20 & 0x7ff),
        intr_vector: (interruption & VALID != 0).then_some(interruption as u8),
        info1: first & 0xffff_ffff,
    }
}

fn accepted(vector: u32, apicid: u64, posted: bool) -> Kind {
    let (apicid, vec) = (apicid as u32, vector as u8);
    if posted {
        Kind::KvmApicvAcceptIrq {
            apicid,
            dm: 0,
            tm: 0,
            vec,
        }
    } else {
        Kind::KvmApicAcceptIrq {
            apicid,
            dm: 0,
            tm: 0,
            vec,
        }
    }
}

fn woken(tid: Tid, target_cpu: u32) -> Vec<Kind> {
    let prio = i32::from(PRIORITY);
    vec![
        Kind::SchedWaking {
            tid,
            prio,
            target_cpu,
        },
        Kind::SchedWakeup {
            tid,
            prio,
            target_cpu,
        },
    ]
}

/// Entry or exit of an interrupt's handler. Linux has no tracepoints for notifications.
fn host_vector(vector: u8, enters: bool, names: &mut NameTable) -> Kind {
    let class = match vector {
        TIMER_VECTOR => HostVector::LocalTimer,
        RESCHEDULE_VECTOR => HostVector::Reschedule,
        _ => {
            let suffix = if enters { "entry" } else { "exit" };
            let name = names.intern(&format!("{}_{suffix}", vector_name(vector)));
            return Kind::Other { name };
        }
    };
    if enters {
        Kind::VectorEntry { class, vector }
    } else {
        Kind::VectorExit { class, vector }
    }
}

fn vector_name(vector: u8) -> &'static str {
    match vector {
        TIMER_VECTOR => "local_timer",
        RESCHEDULE_VECTOR => "reschedule",
        WAKEUP_VECTOR => "posted_intr_wakeup",
        _ => "posted_intr",
    }
}
