//! Whatever comes, sums are right and nothing panics.

use proptest::prelude::*;
use stealtime_events::{Context, CpuId, Event, ExitReason, HostVector, Kind, NameId, Tid, VcpuId};

use super::build::{List, Trace, check};
use crate::options::{Options, Selection};

fn tid() -> impl Strategy<Value = Tid> {
    prop_oneof![8 => (0..6i32).prop_map(Tid), 1 => any::<i32>().prop_map(Tid)]
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..3u32, 1 => any::<u32>()]
}

fn sched() -> impl Strategy<Value = Kind> {
    prop_oneof![
        6 => (tid(), tid(), prop_oneof![Just(0), Just(1), Just(0x100), any::<u32>()]).prop_map(
            |(prev, next, prev_state)| Kind::SchedSwitch {
                prev, next, prev_prio: 0, next_prio: 0, prev_state
            }
        ),
        2 => (tid(), number()).prop_map(|(tid, target_cpu)| Kind::SchedWaking {
            tid, prio: 0, target_cpu
        }),
        2 => (tid(), number()).prop_map(|(tid, target_cpu)| Kind::SchedWakeup {
            tid, prio: 0, target_cpu
        }),
        1 => (tid(), number()).prop_map(|(tid, dest_cpu)| Kind::SchedMigrateTask {
            tid, prio: 0, orig_cpu: 0, dest_cpu
        }),
        1 => tid().prop_map(|tid| Kind::SchedProcessExit { tid }),
        1 => (tid(), tid()).prop_map(|(parent, child)| Kind::SchedProcessFork { parent, child }),
    ]
}

fn kvm() -> impl Strategy<Value = Kind> {
    let vcpu = || number().prop_map(VcpuId);
    let code = prop_oneof![
        Just(1),
        Just(12),
        Just(40),
        Just(48),
        Just(52),
        any::<u32>()
    ];
    prop_oneof![
        4 => vcpu().prop_map(|vcpu| Kind::KvmEntry { vcpu }),
        4 => (vcpu(), code, any::<Option<u8>>()).prop_map(|(vcpu, code, intr_vector)| {
            Kind::KvmExit { reason: ExitReason::vmx(code), vcpu, intr_vector, info1: 0 }
        }),
        2 => (prop_oneof![0..500u64, any::<u64>()], any::<bool>()).prop_map(|(ns, waited)| {
            Kind::KvmVcpuWakeup { ns, waited, valid: true }
        }),
        1 => (vcpu(), any::<bool>(), any::<u32>(), number()).prop_map(|(vcpu, grow, new, old)| {
            Kind::KvmHaltPollNs { vcpu, grow, new, old }
        }),
        1 => (number(), 250..=255u8).prop_map(|(apicid, vec)| Kind::KvmApicAcceptIrq {
            apicid, dm: 0, tm: 0, vec
        }),
        1 => (number(), number()).prop_map(|(icr_low, dest_id)| Kind::KvmApicIpi {
            icr_low: icr_low | 0xf8, dest_id
        }),
        1 => (250..=256u32).prop_map(|vector| Kind::KvmInjVirq {
            vector, soft: false, reinjected: false
        }),
        1 => any::<i32>().prop_map(|vector| Kind::KvmEoi { apicid: 0, vector }),
        1 => (any::<bool>(), number()).prop_map(|(write, ecx)| Kind::KvmMsr {
            write, exception: false, ecx, data: 0
        }),
        1 => (0..4u8, any::<u64>()).prop_map(|(mmio_type, gpa)| Kind::KvmMmio {
            mmio_type, len: 0, gpa, val: 0
        }),
    ]
}

fn host() -> impl Strategy<Value = Kind> {
    let class = HostVector::LocalTimer;
    let name = || (0..8u32).prop_map(NameId);
    prop_oneof![
        Just(Kind::VectorEntry { class, vector: 236 }),
        Just(Kind::VectorExit { class, vector: 236 }),
        number().prop_map(|vec| Kind::SoftirqEntry { vec }),
        number().prop_map(|vec| Kind::SoftirqExit { vec }),
        (0..3u64, any::<u64>(), name()).prop_map(|(hrtimer, expires_ns, function)| {
            Kind::HrtimerStart {
                hrtimer,
                expires_ns,
                function,
            }
        }),
        (0..3u64, any::<u64>(), name()).prop_map(|(hrtimer, now_ns, function)| {
            Kind::HrtimerExpireEntry {
                hrtimer,
                now_ns,
                function,
            }
        }),
        (number(), name()).prop_map(|(cpu, callback)| Kind::IpiSendCpu { cpu, callback }),
        name().prop_map(|name| Kind::Other { name }),
        (tid(), tid(), name()).prop_map(|(tid, process, name)| Kind::Task { tid, process, name }),
        prop_oneof![Just(0), any::<u64>()].prop_map(|count| Kind::Lost { count }),
    ]
}

fn event() -> impl Strategy<Value = (u64, Event)> {
    let kind = prop_oneof![4 => sched(), 6 => kvm(), 2 => host()];
    let cpu = prop_oneof![8 => 0..3u16, 1 => Just(300u16)];
    let step = prop_oneof![20 => 0..100u64, 1 => any::<u64>()];
    (step, tid(), cpu, any::<u8>(), kind).prop_map(|(step, tid, cpu, bits, kind)| {
        let context = Context::from_bits(bits & Context::HARDIRQ);
        (
            step,
            Event {
                time_ns: 0,
                tid,
                cpu: CpuId(cpu),
                context,
                kind,
            },
        )
    })
}

/// Times ascend by the steps; a step over the end of the clock makes time go back.
fn traces(sane: bool) -> impl Strategy<Value = Trace> {
    proptest::collection::vec(event(), 1..250).prop_map(move |list| {
        let names = List(vec![
            "CPU 0/KVM",
            "CPU 1/KVM",
            "qemu-system-x86",
            "apic_timer_fn",
            "0x0",
            "sched_cfs_period_timer",
        ]);
        let mut now = 1000u64;
        let first = Kind::Other { name: NameId::NONE };
        let first = Event {
            time_ns: now,
            tid: Tid(0),
            cpu: CpuId(0),
            context: Context::default(),
            kind: first,
        };
        let events = list.into_iter().map(|(step, mut event)| {
            now = now.wrapping_add(if sane { step % 100 } else { step });
            event.time_ns = now;
            event
        });
        // A trace without any event of the host has no time for a window.
        let events = std::iter::once(first).chain(events).collect();
        Trace { events, names }
    })
}

/// Sums that add up over windows, of each thread.
fn sums(answers: &crate::Answers) -> Vec<(i32, [u64; 12])> {
    let mut rows: Vec<_> = answers
        .vcpus
        .iter()
        .map(|vcpu| {
            let exits = vcpu
                .exit_ns_by_reason
                .iter()
                .map(|reason| reason.count)
                .sum();
            (
                vcpu.tid,
                [
                    vcpu.span_ns,
                    vcpu.on_cpu_ns,
                    vcpu.guest_ns.unwrap_or(0),
                    vcpu.exit_ns.unwrap_or(0),
                    vcpu.halt_ns,
                    vcpu.preempted_ns,
                    vcpu.wake_wait_ns,
                    vcpu.blocked_ns,
                    vcpu.poll_useful_ns,
                    vcpu.poll_wasted_ns,
                    vcpu.unknown_ns,
                    exits,
                ],
            )
        })
        .collect();
    rows.push((
        -1,
        [
            answers.source.events,
            answers.exit_totals.iter().map(|row| row.samples).sum(),
            answers.exit_totals.iter().map(|row| row.time_ns).sum(),
            answers
                .halt_polls
                .iter()
                .map(|row| row.halts + row.poll_fail)
                .sum(),
            answers.interrupts.iter().map(|row| row.count).sum(),
            answers.latencies.iter().map(|row| row.count).sum(),
            answers.ready.iter().map(|row| row.ns).sum(),
            answers.msr.iter().map(|row| row.samples).sum(),
            answers.mmio.iter().map(|row| row.time_ns).sum(),
            answers.yields.iter().map(|row| row.pause_exits).sum(),
            answers.source.lost_gaps,
            0,
        ],
    ));
    rows
}

#[test]
fn the_largest_cpu_number_has_a_place() {
    let mut trace = Trace::new(&[]);
    trace
        .entry(10, u16::MAX, 7, u32::MAX - 1)
        .exit(20, u16::MAX, 7, u32::MAX - 1, 12);
    let answers = trace.answers();
    check(&answers);
    assert_eq!(
        (answers.source.cpus, answers.vcpus[0].vcpu),
        (65_536, u32::MAX - 1)
    );
}

proptest! {
    #[test]
    fn sums_are_right_whatever_comes(trace in traces(false)) {
        check(&trace.answers());
    }

    #[test]
    fn equal_inputs_give_equal_answers(trace in traces(false)) {
        prop_assert_eq!(trace.answers(), trace.answers());
    }

    #[test]
    fn disjoint_windows_add_up(trace in traces(true), cut in 0..8000u64, second in 0..8000u64) {
        let windows = [
            (None, Some(cut.min(second))),
            (Some(cut.min(second)), Some(cut.max(second))),
            (Some(cut.max(second)), None),
        ];
        let mut total: Vec<(i32, [u64; 12])> = Vec::new();
        for (from_ns, to_ns) in windows {
            let selection = Selection { from_ns, to_ns, ..Selection::default() };
            let answers = trace.answers_with(Options { selection, ..Options::default() });
            check(&answers);
            let part = sums(&answers);
            if total.is_empty() {
                total = part;
            } else {
                for (sum, row) in total.iter_mut().zip(part) {
                    prop_assert_eq!(sum.0, row.0);
                    sum.1.iter_mut().zip(row.1).for_each(|(sum, value)| *sum += value);
                }
            }
        }
        prop_assert_eq!(total, sums(&trace.answers()));
    }
}
