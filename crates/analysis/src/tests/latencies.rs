//! Latencies of interrupts, and interrupts that hit guests.

use stealtime_events::{ExitReason, HostVector, Kind, VcpuId};

use super::build::{EPT, HLT, INTERRUPT, MSR_WRITE, PREEMPTION_TIMER, RUNNABLE, SLEEPS, Trace};
use crate::answers::Answers;
use crate::options::{Options, Skip};
use crate::stats::Histogram;

fn row(answers: &Answers, kind: &str, detail: &str) -> (u64, u64) {
    let found = answers
        .latencies
        .iter()
        .find(|row| row.kind == kind && row.detail == detail);
    found.map_or((0, 0), |row| (row.count, row.max_ns))
}

const ACCEPT: fn(u32, u8) -> Kind = |apicid, vec| Kind::KvmApicAcceptIrq {
    apicid,
    dm: 0,
    tm: 0,
    vec,
};
const INJECT: fn(u32) -> Kind = |vector| Kind::KvmInjVirq {
    vector,
    soft: false,
    reinjected: false,
};

/// vCPU 0 (thread 7) interrupts vCPU 1 (thread 8) with vector 253.
fn ipi() -> Trace {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (8, "CPU 1/KVM")]);
    trace.entry(10, 0, 7, 0).entry(11, 1, 8, 1);
    trace.exit(100, 1, 8, 1, HLT).switch(120, 1, 8, 0, SLEEPS);
    trace.exit(200, 0, 7, 0, MSR_WRITE);
    trace.add(
        210,
        0,
        7,
        Kind::KvmApicIpi {
            icr_low: 0xfd,
            dest_id: 1,
        },
    );
    trace.add(215, 0, 7, ACCEPT(1, 0xfd));
    trace
        .waking(218, 0, 7, 8, 1)
        .wakeup(220, 0, 7, 8, 1)
        .entry(230, 0, 7, 0);
    trace
        .switch(300, 1, 0, 8, RUNNABLE)
        .add(320, 1, 8, INJECT(0xfd))
        .entry(330, 1, 8, 1);
    trace.exit(400, 1, 8, 1, MSR_WRITE);
    trace.add(
        410,
        1,
        8,
        Kind::KvmEoi {
            apicid: 1,
            vector: 0xfd,
        },
    );
    trace
}

#[test]
fn an_ipi_is_followed_to_its_eoi() {
    let answers = ipi().answers();
    assert_eq!(row(&answers, "ipi_accept", ""), (1, 5));
    assert_eq!(row(&answers, "injection", ""), (1, 105));
    assert_eq!(row(&answers, "ipi_inject", ""), (1, 110));
    assert_eq!(row(&answers, "ipi_eoi", ""), (1, 200));
    assert_eq!(row(&answers, "wakeup", "ipi"), (1, 82));
    assert_eq!(answers.vms[0].grouped_by, "interaction");
}

/// In the middle of a recording with injections, a vector that is not pending is accepted anew.
#[test]
fn each_ipi_is_followed_from_its_own_acceptance() {
    let mut trace = ipi();
    // The first two are names of threads.
    let again = trace.events[2..].to_vec();
    trace.events.extend(again.into_iter().map(|mut event| {
        event.time_ns += 1_000;
        event
    }));
    let answers = trace.answers();
    for (kind, max_ns) in [
        ("ipi_accept", 5),
        ("injection", 105),
        ("ipi_inject", 110),
        ("ipi_eoi", 200),
    ] {
        assert_eq!(row(&answers, kind, ""), (2, max_ns), "{kind}");
    }
}

/// Without them the time to run after a wakeup is still reported.
#[test]
fn latencies_of_interrupts_can_be_left_out() {
    let latencies = true;
    let answers = ipi().answers_with(Options {
        skip: Skip {
            latencies,
            ..Skip::default()
        },
        ..Options::default()
    });
    assert_eq!(row(&answers, "wakeup", "ipi"), (1, 82));
    assert_eq!(answers.latencies.len(), 1);
}

/// Where the hardware delivers interrupts, the handler's end is all that shows.
#[test]
fn an_ipi_without_injections_is_followed_to_its_eoi() {
    let mut trace = ipi();
    let is_injection = |kind| matches!(kind, Kind::KvmInjVirq { .. });
    trace.events.retain(|event| !is_injection(event.kind));
    let answers = trace.answers();
    assert_eq!(row(&answers, "ipi_accept", ""), (1, 5));
    assert_eq!(row(&answers, "ipi_eoi", ""), (1, 200));
    assert_eq!(row(&answers, "injection", ""), (0, 0));
    assert_eq!(row(&answers, "ipi_inject", ""), (0, 0));
    // Another one ahead of it: it was delivered meanwhile, and only the end of the latest shows.
    let mut again: Vec<_> = trace.events.clone();
    again.retain(|event| matches!(event.time_ns, 200..=230) && event.tid.0 == 7);
    let earlier = again.into_iter().map(|mut event| {
        event.time_ns -= 60;
        event
    });
    trace.events.extend(earlier);
    trace.events.sort_by_key(|event| event.time_ns);
    let answers = trace.answers();
    assert_eq!(row(&answers, "ipi_accept", ""), (2, 5));
    assert_eq!(row(&answers, "ipi_eoi", ""), (1, 200));
}

#[test]
fn an_ipi_waits_while_the_one_before_it_is_handled() {
    let mut trace = ipi();
    let eoi = trace.events.pop().unwrap();
    let icr_low = 0xfd;
    let ipi = Kind::KvmApicIpi {
        icr_low,
        dest_id: 1,
    };
    trace
        .exit(402, 0, 7, 0, MSR_WRITE)
        .add(403, 0, 7, ipi)
        .add(405, 0, 7, ACCEPT(1, 0xfd))
        .add(410, 1, 8, eoi.kind)
        // One more is delivered with it.
        .add(500, 0, 7, ipi)
        .add(504, 0, 7, ACCEPT(1, 0xfd))
        .add(620, 1, 8, INJECT(0xfd))
        .entry(630, 1, 8, 1)
        .exit(700, 1, 8, 1, MSR_WRITE)
        .add(710, 1, 8, eoi.kind);
    let answers = trace.answers();
    for (kind, count, max_ns) in [
        ("ipi_accept", 3, 5),
        ("injection", 2, 620 - 405),
        ("ipi_inject", 2, 620 - 403),
        ("ipi_eoi", 2, 710 - 403),
    ] {
        assert_eq!(row(&answers, kind, ""), (count, max_ns), "{kind}");
    }
}

/// Distributions are in the answers if they are wanted, with as many durations as the tables have.
#[test]
fn histograms_have_the_durations_of_the_tables() {
    let trace = ipi();
    assert!(trace.answers().histograms.is_empty());
    let answers = trace.answers_with(Options {
        histograms: true,
        ..Options::default()
    });
    let counted = |table: &str, key: &str, detail: &str| {
        let rows = answers.histograms.iter();
        let named =
            rows.filter(|row| (&*row.table, &*row.key, &*row.detail) == (table, key, detail));
        named
            .map(|row| (row.count, row.up_to_ns))
            .collect::<Vec<_>>()
    };
    // Up to 127 ns each duration has a bucket of its own.
    assert_eq!(counted("latency", "ipi_accept", ""), [(1, 5)]);
    assert_eq!(counted("latency", "wakeup", "ipi"), [(1, 82)]);
    assert_eq!(
        counted("exits", "MSR_WRITE", "")
            .iter()
            .map(|row| row.0)
            .sum::<u64>(),
        1
    );
    let waits: u64 = counted("waits", "", "").iter().map(|row| row.0).sum();
    assert_eq!(waits, 1);
}

#[test]
fn an_ipi_that_could_be_for_two_vms_is_not_counted() {
    let mut trace = ipi();
    // Two VMs with a vCPU 1, and no wakeup that tells which one is meant.
    trace
        .events
        .retain(|event| !matches!(event.kind, Kind::SchedWaking { .. }));
    let mut other = Trace::new(&[]);
    other.entry(5, 2, 28, 1);
    trace.events.splice(2..2, other.events);
    let answers = trace.answers();
    assert_eq!(row(&answers, "ipi_accept", ""), (0, 0));
    assert_eq!(row(&answers, "ipi_inject", ""), (0, 0));
}

#[test]
fn a_timer_is_known_by_what_fires_it() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM")]);
    let function = trace.name("apic_timer_fn");
    let start = Kind::HrtimerStart {
        hrtimer: 0xabc,
        expires_ns: 5_000,
        function,
    };
    let expire = |now_ns| Kind::HrtimerExpireEntry {
        hrtimer: 0xabc,
        now_ns,
        function,
    };
    trace
        .entry(10, 0, 7, 0)
        .exit(20, 0, 7, 0, MSR_WRITE)
        .add(25, 0, 7, start)
        .entry(30, 0, 7, 0);
    trace
        .exit(100, 0, 7, 0, INTERRUPT)
        .irq(110, 0, 7, expire(5_040));
    trace.irq(112, 0, 7, Kind::HrtimerExpireExit { hrtimer: 0xabc });
    trace
        .add(120, 0, 7, ACCEPT(0, 236))
        .add(125, 0, 7, INJECT(236))
        .entry(130, 0, 7, 0);
    // By the preemption timer.
    trace
        .exit(200, 0, 7, 0, PREEMPTION_TIMER)
        .add(205, 0, 7, ACCEPT(0, 236));
    trace.add(207, 0, 7, INJECT(236)).entry(210, 0, 7, 0);
    // Posted by the handler, on another CPU and while the vCPU is in the guest.
    trace
        .irq(300, 1, 0, expire(5_000))
        .irq(304, 1, 0, ACCEPT(0, 236));
    trace.irq(305, 1, 0, Kind::HrtimerExpireExit { hrtimer: 0xabc });
    trace
        .exit(350, 0, 7, 0, EPT)
        .add(352, 0, 7, INJECT(236))
        .entry(360, 0, 7, 0);
    let answers = trace.answers();
    assert_eq!(row(&answers, "timer", "hrtimer"), (1, 15));
    assert_eq!(row(&answers, "timer", "preemption_timer"), (1, 7));
    assert_eq!(row(&answers, "timer", "posted"), (1, 52));
    assert_eq!(row(&answers, "timer_expire", ""), (2, 40));
}

/// What an earlier expiry led to is over once the timer is armed again.
#[test]
fn a_timer_that_is_armed_again_did_not_cause_a_later_interrupt() {
    for (is_armed, expected) in [(false, (1, 25)), (true, (0, 0))] {
        let mut trace = Trace::new(&[(7, "CPU 0/KVM")]);
        let function = trace.name("apic_timer_fn");
        let start = Kind::HrtimerStart {
            hrtimer: 1,
            expires_ns: 50,
            function,
        };
        let expire = Kind::HrtimerExpireEntry {
            hrtimer: 1,
            now_ns: 50,
            function,
        };
        trace
            .entry(10, 0, 7, 0)
            .exit(20, 0, 7, 0, MSR_WRITE)
            .add(25, 0, 7, start)
            .entry(30, 0, 7, 0)
            .exit(100, 0, 7, 0, INTERRUPT)
            .irq(110, 0, 7, expire)
            .irq(112, 0, 7, Kind::HrtimerExpireExit { hrtimer: 1 });
        if is_armed {
            trace.add(120, 0, 7, start);
        }
        trace
            .add(130, 0, 7, ACCEPT(0, 236))
            .add(135, 0, 7, INJECT(236));
        let answers = trace.answers();
        assert_eq!(row(&answers, "timer", "hrtimer"), expected);
        assert_eq!(row(&answers, "injection", ""), (1, 5));
    }
}

#[test]
fn a_timer_without_a_name_is_known_by_what_follows() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM")]);
    let function = trace.name("0xffffffffc0534c50");
    let vcpu_id = VcpuId(0);
    trace.entry(10, 0, 7, 0).exit(20, 0, 7, 0, MSR_WRITE);
    trace.add(
        25,
        0,
        7,
        Kind::HrtimerStart {
            hrtimer: 1,
            expires_ns: 50,
            function,
        },
    );
    trace.add(
        26,
        0,
        7,
        Kind::KvmHvTimerState {
            vcpu: vcpu_id,
            hv_timer_in_use: false,
        },
    );
    trace.entry(30, 0, 7, 0).exit(100, 0, 7, 0, INTERRUPT);
    trace.irq(
        110,
        0,
        7,
        Kind::HrtimerExpireEntry {
            hrtimer: 1,
            now_ns: 57,
            function,
        },
    );
    assert_eq!(row(&trace.answers(), "timer_expire", ""), (1, 7));
}

#[test]
fn host_interrupts_are_separated_by_vector() {
    let mut trace = Trace::new(&[]);
    let (vcpu, reason) = (VcpuId(0), ExitReason::vmx(INTERRUPT));
    trace.entry(10, 0, 7, 0);
    let exit = Kind::KvmExit {
        reason,
        vcpu,
        intr_vector: Some(0xf2),
        info1: 0,
    };
    trace.add(20, 0, 7, exit).entry(30, 0, 7, 0);
    trace.exit(40, 0, 7, 0, INTERRUPT);
    let class = HostVector::Reschedule;
    trace.irq(
        41,
        0,
        7,
        Kind::VectorEntry {
            class,
            vector: 0xfd,
        },
    );
    trace.irq(
        42,
        0,
        7,
        Kind::VectorExit {
            class,
            vector: 0xfd,
        },
    );
    trace.entry(50, 0, 7, 0).exit(60, 0, 7, 0, INTERRUPT);
    trace
        .irq(61, 0, 7, Kind::IrqHandlerEntry { irq: 24 })
        .entry(70, 0, 7, 0);
    let answers = trace.answers();
    let mut rows: Vec<_> = answers
        .interrupts
        .iter()
        .map(|row| (row.vector, row.name.as_str(), row.count))
        .collect();
    rows.sort_unstable();
    assert_eq!(
        rows,
        [
            (None, "device", 1),
            (Some(0xf2), "posted_intr", 1),
            (Some(0xfd), "reschedule", 1)
        ]
    );
}

#[test]
fn notifications_that_end_in_exits_are_spurious() {
    let finds = |notifications: u64| {
        let mut trace = Trace::new(&[]);
        let exit = Kind::KvmExit {
            reason: ExitReason::vmx(INTERRUPT),
            vcpu: VcpuId(0),
            intr_vector: Some(0xf2),
            info1: 0,
        };
        for n in 0..notifications {
            trace.entry(10 * n, 0, 7, 0).add(10 * n + 5, 0, 7, exit);
        }
        let answers = trace.answers();
        answers
            .findings
            .into_iter()
            .find(|it| it.id == "spurious_notifications")
    };
    assert_eq!(finds(99), None);
    assert!(finds(100).is_some_and(|it| it.evidence.starts_with("100 exits")));
}

/// A counter has 16 bits, and what it carries belongs to its bucket.
#[test]
fn percentiles_count_values_beyond_those_of_a_counter() {
    let mut histogram = Histogram::default();
    (0..200_000).for_each(|_| histogram.record(1_000));
    (0..1_000).for_each(|_| histogram.record(1_000_000));
    assert_eq!(histogram.quantile(500), 1_000);
    assert_eq!(histogram.quantile(990), 1_000);
    assert_eq!(histogram.quantile(999), 1_000_000);
}
