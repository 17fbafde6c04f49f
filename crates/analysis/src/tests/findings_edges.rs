//! Findings next to each other: their order, their subjects, and numbers left out elsewhere.

use stealtime_events::{Kind, VcpuId};

use super::build::{EPT, INTERRUPT, PAUSE, PREEMPTED, RUNNABLE, SLEEPS, Trace};
use super::findings::{found, one, pair, yields_refused};

const MS: u64 = 1_000_000;
/// Read of an MSR.
const MSR_READ: u32 = 31;

/// Findings of these ids, in their order.
fn order(trace: &Trace, wanted: &[&str]) -> Vec<String> {
    let ids = trace.answers().findings.into_iter().map(|found| found.id);
    ids.filter(|id| wanted.contains(&id.as_str())).collect()
}

/// vCPUs 0 and 1 of process 5 on CPUs of their own.
fn running() -> Trace {
    let mut trace = pair();
    trace.entry(0, 0, 7, 0).entry(0, 1, 8, 1);
    trace
}

const fn master_clock(use_master_clock: bool) -> Kind {
    Kind::KvmUpdateMasterClock {
        use_master_clock,
        host_clock: 1,
        offset_matched: use_master_clock,
    }
}

/// One vCPU of three does not match.
const UNMATCHED: Kind = Kind::KvmTrackTsc {
    vcpu: VcpuId(0),
    matched: 1,
    online: 3,
    use_master_clock: true,
    host_clock: 1,
};

const fn tsc_offset(vcpu: u32, next: u64) -> Kind {
    Kind::KvmWriteTscOffset {
        vcpu: VcpuId(vcpu),
        prev: 0,
        next,
    }
}

const fn deadline(data: u64) -> Kind {
    Kind::KvmMsr {
        write: true,
        ecx: 0x6e0,
        data,
        exception: false,
    }
}

#[test]
fn limits_of_the_recording_come_before_clocks() {
    let mut unused = one();
    unused.entry(0, 0, 7, 0).add(10, 0, 7, master_clock(false));
    let ids = ["no_sched_events", "master_clock_off"];
    assert_eq!(order(&unused, &ids), ids);
    let mut unstable = one();
    unstable.entry(0, 0, 7, 0).entry(1, 2, 9, 0);
    for time in (0..100).map(|switch| 10 + 10 * switch) {
        unstable
            .switch(time, 0, 7, 32, PREEMPTED)
            .switch(time + 5, 0, 32, 7, RUNNABLE)
            .add(time + 6, 0, 7, tsc_offset(0, time));
    }
    let ids = ["vms_guessed", "tsc_unstable"];
    assert_eq!(order(&unstable, &ids), ids);
}

#[test]
fn clocks_that_differ_come_in_the_order_of_their_names() {
    let mut trace = running();
    trace
        .add(10, 0, 7, tsc_offset(0, 1_000))
        .add(11, 1, 8, tsc_offset(1, 2_000))
        .add(20, 0, 7, UNMATCHED)
        .add(30, 0, 7, deadline(10_000_000_000_000))
        .add(40, 0, 7, deadline(5_000));
    let ids = [
        "deadline_far_ahead",
        "tsc_not_matched",
        "tsc_offsets_differ",
    ];
    assert_eq!(order(&trace, &ids), ids);
}

#[test]
fn clocks_of_a_thread_without_a_vm_are_those_of_some_vm() {
    let shown = |tid: i32, kind: Kind, id: &str| {
        let mut trace = one();
        if tid == 7 {
            trace.entry(0, 0, 7, 0);
        }
        trace.add(10, 2, tid, kind);
        let finding = found(&trace, id).expect(id);
        (finding.vm, finding.what)
    };
    let known = |vm: &str, text: &str| (vm.to_owned(), text.to_owned());
    let id = "tsc_not_matched";
    let what = "The vCPUs of vm0 have TSCs that do not match.";
    assert_eq!(shown(7, UNMATCHED, id), known("vm0", what));
    let what = "The vCPUs of one VM have TSCs that do not match.";
    assert_eq!(shown(50, UNMATCHED, id), known("", what));
    let id = "master_clock_off";
    let (vm, what) = shown(50, master_clock(false), id);
    assert_eq!(vm, "");
    assert!(what.starts_with("A VM runs without"), "{what}");
}

/// Each of 200 reads of the Hyper-V reference counter takes 12.345 us. Other exits take 1 us.
#[test]
fn a_clock_that_exits_has_the_rate_and_the_mean_of_its_exits() {
    let read = Kind::KvmMsr {
        write: false,
        ecx: 0x4000_0020,
        data: 1,
        exception: false,
    };
    let mut trace = one();
    trace.entry(0, 0, 7, 0);
    // The last one ends within 2 s: a hundred each second.
    for time in (1..=200).map(|n| n * 10 * MS - 20_000) {
        trace
            .exit(time - 2_000, 0, 7, 0, EPT)
            .entry(time - 1_000, 0, 7, 0)
            .exit(time, 0, 7, 0, MSR_READ)
            .add(time + 1, 0, 7, read)
            .entry(time + 12_345, 0, 7, 0);
    }
    let finding = found(&trace, "clock_reads_exit").expect("a hundred each second");
    assert_eq!(
        finding.evidence,
        "200 reads of MSR 0x40000020, 100 in each second of its time on CPUs; handling such an \
         exit takes 12.345 us on average"
    );
}

#[test]
fn a_gap_of_unknown_size_is_a_loss() {
    let mut trace = one();
    trace
        .entry(1_000, 0, 7, 0)
        .add(2_000, 0, 0, Kind::Lost { count: 0 })
        .exit(2_003_000, 0, 7, 0, EPT);
    assert_eq!(
        found(&trace, "lost_events").expect("a gap").evidence,
        "0 events lost and 1 gaps of unknown size; 2.002 ms of vCPU time could not be given a state"
    );
}

#[test]
fn a_jump_tells_where_to_cut() {
    let second = 1_000_000_000;
    let mut trace = one();
    trace.events.clear();
    trace
        .entry(second, 0, 7, 0)
        .exit(3 * second + 456 * MS, 0, 7, 0, EPT)
        .entry(4_003 * second + 579 * MS, 0, 7, 0);
    let jump = found(&trace, "time_jumps").expect("4,000 s");
    assert_eq!(
        jump.evidence,
        "none for 4000.123 s, from 2.456 s after the first one on"
    );
    assert_eq!(
        jump.next,
        "Look at what is before (--until 2456000001ns) and behind (--from 4002579000000ns)."
    );
}

/// A guest exits 1,100 times for interrupts, which take 110 ms of the host, and waits for 70 ms.
#[test]
fn interrupts_cost_what_their_exits_take() {
    let mut trace = one();
    trace.entry(0, 0, 7, 0);
    let mut time = 0;
    for _ in 0..1_100 {
        trace.exit(time + 950_000, 0, 7, 0, INTERRUPT);
        time += 950_000 + 100_000;
        trace.entry(time, 0, 7, 0);
    }
    trace
        .exit(time + 1_000, 0, 7, 0, EPT)
        .switch(time + 2_000, 0, 7, 32, PREEMPTED)
        .switch(time + 2_000 + 70 * MS, 0, 32, 7, SLEEPS);
    let ids = ["host_interrupts", "steal"];
    assert_eq!(order(&trace, &ids), ids);
}

#[test]
fn spinning_from_a_fiftieth_of_the_time_on_a_cpu_on() {
    // After the first of 100 PAUSE exits 99 times 10 ns in the guest; each takes 10 ns.
    let spins = |end: u64| {
        let mut trace = one();
        trace.entry(0, 0, 7, 0);
        for time in (0..100).map(|exit| 10 + 20 * exit) {
            trace.exit(time, 0, 7, 0, PAUSE).entry(time + 10, 0, 7, 0);
        }
        trace.exit(end, 0, 7, 0, EPT);
        found(&trace, "spinning")
    };
    let spinning = spins(50 * 1_990).expect("2.0 %");
    assert!(
        spinning.what.contains("spin for 2.0 % of"),
        "{}",
        spinning.what
    );
    assert_eq!(spins(50 * 1_990 + 1), None);
}

#[test]
fn either_sign_of_a_bandwidth_limit_is_enough() {
    let evidence = |slack: bool, has_vcpus: bool| {
        let mut trace = Trace::new(&[]);
        if has_vcpus {
            trace.entry(0, 0, 7, 0);
        }
        let kind = if slack {
            Kind::HrtimerStart {
                hrtimer: 1,
                expires_ns: 9,
                function: trace.name("sched_cfs_slack_timer"),
            }
        } else {
            Kind::CsdFunctionEntry {
                func: trace.name("__cfsb_csd_unthrottle"),
            }
        };
        trace.irq(10, 0, 7, kind);
        found(&trace, "bandwidth_limit").map(|finding| finding.evidence)
    };
    let counts = |unthrottled: u32, starts: u32| {
        Some(format!(
            "{unthrottled} __cfsb_csd_unthrottle on other CPUs, {starts} starts of \
             sched_cfs_slack_timer"
        ))
    };
    assert_eq!(evidence(true, true), counts(0, 1));
    assert_eq!(evidence(false, true), counts(1, 0));
    assert_eq!(evidence(true, false), None, "no vCPU is held back");
}

#[test]
fn steal_lists_its_largest_causes() {
    let mut trace = one();
    trace
        .entry(0, 0, 7, 0)
        .exit(5 * MS, 0, 7, 0, EPT)
        .switch(6 * MS, 0, 7, 32, PREEMPTED)
        .switch(6 * MS + 600_000, 0, 32, 0, SLEEPS)
        .switch(7 * MS, 0, 0, 7, RUNNABLE);
    assert_eq!(
        found(&trace, "steal").expect("14 %").evidence,
        "host task (make) 0.600 ms; idle (wakeup) 0.400 ms"
    );
    // 0.1 % and less is left out.
    for (idle_us, says) in [(1, ""), (2, "; idle (wakeup) 0.002 ms")] {
        let mut trace = one();
        trace
            .entry(0, 0, 7, 0)
            .exit(5 * MS, 0, 7, 0, EPT)
            .switch(6 * MS, 0, 7, 32, PREEMPTED)
            .switch(7 * MS - idle_us * 1_000, 0, 32, 0, SLEEPS)
            .switch(7 * MS, 0, 0, 7, RUNNABLE);
        let evidence = found(&trace, "steal").expect("14 %").evidence;
        assert_eq!(
            evidence,
            format!("host task (make) 0.99{} ms{says}", 10 - idle_us)
        );
    }
}

#[test]
fn half_of_the_yields_refused_is_most_of_them() {
    let refused = |pinned: u64, runs: u64| {
        let finding = yields_refused(&[
            ("served", "receiver", 500),
            ("refused", "pinned", pinned),
            ("refused", "guard", 100),
            ("refused", "receiver_runs", runs),
        ]);
        finding.map(|finding| finding.evidence)
    };
    let evidence = "500 of 1000 yields refused, 80.0 % of them by pinned";
    assert_eq!(refused(400, 0).as_deref(), Some(evidence));
    assert_eq!(refused(399, 1), None, "49.9 % can be avoided");
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "no_such is not in the reference")]
fn a_finding_that_the_reference_lacks_is_refused() {
    let text = std::array::from_fn(|_| String::new());
    let _ = crate::findings::Weighted::new("no_such", "", 0, text);
}
