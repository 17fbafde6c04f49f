//! Every finding: a trace in which it must appear, with its numbers, and one in which it must not.
//!
//! The tests of three findings stand with their subjects: losses, throttling while a CPU is idle, and
//! spurious notifications.

use stealtime_events::{ExitReason, Kind, Tid, VcpuId};

use super::build::{
    EPT, HLT, INTERRUPT, MSR_WRITE, PAUSE, PREEMPTED, PREEMPTION_TIMER, RUNNABLE, SLEEPS, Trace,
    halted,
};
use crate::answers::{Finding, SchedulerCount};
use crate::{Options, Selection};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The finding of this name.
pub(super) fn found(trace: &Trace, id: &str) -> Option<Finding> {
    let answers = trace.answers();
    let all: Vec<_> = answers
        .findings
        .into_iter()
        .filter(|it| it.id == id)
        .collect();
    assert!(all.len() <= 1, "{all:?}");
    all.into_iter().next()
}

/// What it rests on.
fn evidence(trace: &Trace, id: &str) -> Option<String> {
    found(trace, id).map(|finding| finding.evidence)
}

/// One vCPU, and tasks that are none.
pub(super) fn one() -> Trace {
    Trace::new(&[(7, "CPU 0/KVM"), (32, "make")])
}

/// Two vCPUs of one process.
pub(super) fn pair() -> Trace {
    let mut trace = Trace::new(&[]);
    trace.process(5, &[(7, "CPU 0/KVM"), (8, "CPU 1/KVM")]);
    trace
}

#[test]
fn steal_from_a_twentieth_of_the_time_on() {
    let waits = |ns: u64| {
        let mut trace = one();
        trace.entry(0, 0, 7, 0).exit(9 * MS, 0, 7, 0, EPT);
        trace.switch(10 * MS - ns, 0, 7, 32, PREEMPTED);
        trace.switch(10 * MS, 0, 32, 7, RUNNABLE);
        found(&trace, "steal")
    };
    let steal = waits(500 * US).expect("5.0 %");
    assert_eq!(steal.vm, "vm0");
    assert!(
        steal.what.contains("not running for 5.0 % of"),
        "{}",
        steal.what
    );
    assert_eq!(steal.evidence, "host task (make) 0.500 ms");
    assert_eq!(waits(500 * US - 1), None);
}

#[test]
fn vcpus_stacked_while_another_cpu_is_idle() {
    let shares = |other: i32| {
        let mut trace = pair();
        trace.entry(0, 0, 7, 0).switch(0, 1, 32, other, SLEEPS);
        trace
            .exit(4 * MS, 0, 7, 0, EPT)
            .switch(5 * MS, 0, 7, 8, PREEMPTED);
        trace.entry(5 * MS, 0, 8, 1).exit(9 * MS, 0, 8, 1, EPT);
        trace
            .switch(9 * MS, 0, 8, 7, SLEEPS)
            .entry(10 * MS, 0, 7, 0);
        // Long after all that, both are busy: a part has shares of its own.
        trace.switch(11 * MS, 1, other, 32, SLEEPS);
        trace.exit(500 * MS, 0, 7, 0, EPT);
        let selection = Selection {
            to_ns: Some(10 * MS),
            ..Selection::default()
        };
        let options = Options {
            selection,
            ..Options::default()
        };
        let mut findings = trace.answers_with(options).findings.into_iter();
        findings.find(|found| found.id == "vcpus_stacked")
    };
    let stacked = shares(0).expect("CPU 1 is idle");
    assert_eq!(
        stacked.evidence,
        "4.000 ms of waiting for vCPUs of the same VM, 50.0 % of the host's CPU time idle"
    );
    assert_eq!(shares(31), None, "CPU 1 is busy");
    let mut others = one();
    others.entry(0, 0, 7, 0).switch(0, 1, 32, 0, SLEEPS);
    others
        .exit(4 * MS, 0, 7, 0, EPT)
        .switch(5 * MS, 0, 7, 32, PREEMPTED)
        .switch(9 * MS, 0, 32, 7, SLEEPS);
    assert!(found(&others, "steal").is_some());
    assert_eq!(found(&others, "vcpus_stacked"), None, "another task runs");
}

#[test]
fn a_bandwidth_limit_without_the_threads_that_it_stops() {
    let mut trace = one();
    trace.entry(0, 0, 7, 0);
    let [period, slack, unthrottle] = [
        "sched_cfs_period_timer",
        "sched_cfs_slack_timer",
        "__cfsb_csd_unthrottle",
    ]
    .map(|name| trace.name(name));
    let starts = |function| Kind::HrtimerStart {
        hrtimer: 1,
        expires_ns: 9,
        function,
    };
    trace
        .irq(10, 0, 7, starts(period))
        .irq(20, 0, 7, Kind::CsdFunctionEntry { func: period });
    assert_eq!(
        found(&trace, "bandwidth_limit"),
        None,
        "its period alone says nothing"
    );
    trace.irq(30, 0, 7, starts(slack));
    for time in [40, 50] {
        trace.irq(time, 0, 7, Kind::CsdFunctionEntry { func: unthrottle });
    }
    assert_eq!(
        evidence(&trace, "bandwidth_limit").as_deref(),
        Some("2 __cfsb_csd_unthrottle on other CPUs, 1 starts of sched_cfs_slack_timer")
    );
}

/// Halts of 410 us, 50 us of which are polled in vain, after some that polling ended.
fn halts(ended_by_polling: u64, slept: u64) -> Trace {
    let mut trace = one();
    let (vcpu, window) = (VcpuId(0), 200_000);
    let change = Kind::KvmHaltPollNs {
        grow: false,
        vcpu,
        new: window,
        old: window,
    };
    trace.add(0, 0, 7, change);
    for at in (0..ended_by_polling + slept).map(|halt| halt * MS) {
        let waited = at >= ended_by_polling * MS;
        trace.entry(at, 0, 7, 0).exit(at + 500 * US, 0, 7, 0, HLT);
        if waited {
            trace
                .switch(at + 550 * US, 0, 7, 0, SLEEPS)
                .wakeup(at + 900 * US, 0, 0, 7, 0);
            trace.switch(at + 900 * US, 0, 0, 7, RUNNABLE);
        }
        let ns = if waited { 410 * US } else { 30 * US };
        let end = halted(ns, waited);
        trace.add(at + 500 * US + ns, 0, 7, end);
    }
    trace
}

#[test]
fn polls_wasted_if_most_are() {
    assert_eq!(
        evidence(&halts(30, 70), "polls_wasted").as_deref(),
        Some("70 of 100 polls failed, 3.500 ms of CPU time spent on them")
    );
    assert_eq!(found(&halts(31, 69), "polls_wasted"), None, "69 %");
    assert_eq!(found(&halts(0, 99), "polls_wasted"), None, "too few to say");
}

/// So many PAUSE exits, each of this many switched away to the other vCPU; 0: none.
fn pauses(count: u64, each: u64) -> Trace {
    let mut trace = pair();
    trace
        .entry(0, 1, 8, 1)
        .exit(1, 1, 8, 1, EPT)
        .switch(2, 1, 8, 0, SLEEPS);
    for at in (0..count).map(|exit| 10 + 100 * exit) {
        trace.entry(at, 0, 7, 0).exit(at + 50, 0, 7, 0, PAUSE);
        if each > 0 && at % (100 * each) == 10 {
            trace
                .switch(at + 60, 0, 7, 8, RUNNABLE)
                .switch(at + 70, 0, 8, 7, SLEEPS);
        }
    }
    trace
}

#[test]
fn spinning_with_what_became_of_it() {
    let few = found(&pauses(100, 0), "spinning").expect("a hundred");
    // After the first PAUSE exit 99 times 50 ns outside and 50 ns in the guest: 9900 of 9960 ns of
    // one vCPU and 2 ns of the other.
    assert!(few.what.contains("spin for 99.4 % of"), "{}", few.what);
    assert_eq!(
        few.evidence,
        "100 PAUSE exits, 0 switched to a vCPU of the same VM, 0 elsewhere"
    );
    assert!(
        few.next.starts_with("Few PAUSE exits reach"),
        "{}",
        few.next
    );
    let reached = found(&pauses(100, 2), "spinning").expect("a hundred");
    assert_eq!(
        reached.evidence,
        "100 PAUSE exits, 50 switched to a vCPU of the same VM, 0 elsewhere"
    );
    assert!(reached.next.starts_with("Yields reach"), "{}", reached.next);
    for (each, next) in [(4, "Yields reach"), (5, "Few PAUSE exits reach")] {
        let spins = found(&pauses(100, each), "spinning").expect("a hundred");
        assert!(spins.next.starts_with(next), "{each}: {}", spins.next);
    }
    assert_eq!(found(&pauses(99, 0), "spinning"), None);
}

/// Exits of VMX, each 1 us after 9 us in the guest.
fn exits(codes: &[(u32, Option<u8>)]) -> Trace {
    let mut trace = one();
    for (at, (code, intr_vector)) in (0..).map(|exit| 10 * US * exit).zip(codes) {
        trace.entry(at, 0, 7, 0);
        let exit = Kind::KvmExit {
            reason: ExitReason::vmx(*code),
            vcpu: VcpuId(0),
            intr_vector: *intr_vector,
            info1: 0,
        };
        trace.add(at + 9 * US, 0, 7, exit);
        if *code == MSR_WRITE {
            let deadline = Kind::KvmMsr {
                write: true,
                exception: false,
                ecx: 0x6e0,
                data: 1,
            };
            trace.add(at + 9 * US + 1, 0, 7, deadline);
        }
    }
    trace.entry(10 * US * codes.len() as u64, 0, 7, 0);
    trace
}

#[test]
fn timers_that_exit_where_interrupts_are_posted() {
    let timer = [(PREEMPTION_TIMER, None), (MSR_WRITE, None)];
    let other = [(EPT, None); 7];
    let posts = [(INTERRUPT, Some(0xf2))];
    let all = [&timer[..], &other, &posts].concat();
    assert_eq!(
        evidence(&exits(&all), "timer_exits").as_deref(),
        Some("2 of 10 exits arm or deliver the timer, none was posted")
    );
    assert_eq!(
        found(&exits(&all[..9]), "timer_exits"),
        None,
        "nothing is posted here"
    );
    let mut posted = exits(&all);
    let function = posted.name("apic_timer_fn");
    let (hrtimer, end) = (1, 200 * US);
    let start = Kind::HrtimerStart {
        hrtimer,
        expires_ns: 5,
        function,
    };
    posted.add(end, 0, 7, start);
    let expire = Kind::HrtimerExpireEntry {
        hrtimer,
        now_ns: 5,
        function,
    };
    let accept = Kind::KvmApicvAcceptIrq {
        apicid: 0,
        dm: 0,
        tm: 0,
        vec: 0xec,
    };
    posted
        .irq(end + 10, 1, 0, expire)
        .irq(end + 11, 1, 0, accept);
    assert_eq!(found(&posted, "timer_exits"), None, "one was posted");
    let fewer = [&all[..], &[(EPT, None)]].concat();
    assert_eq!(found(&exits(&fewer), "timer_exits"), None, "2 of 11");
}

#[test]
fn host_interrupts_from_a_thousand_a_second_on() {
    let hits_of = |count: u64, exits: u64| {
        let mut trace = one();
        for at in (0..exits).map(|exit| exit * (MS + 1)) {
            let reason = if at < count * (MS + 1) {
                INTERRUPT
            } else {
                EPT
            };
            let exit = Kind::KvmExit {
                reason: ExitReason::vmx(reason),
                vcpu: VcpuId(0),
                intr_vector: (reason == INTERRUPT).then_some(0xec),
                info1: 0,
            };
            trace.entry(at, 0, 7, 0).add(at + MS, 0, 7, exit);
        }
        found(&trace, "host_interrupts")
    };
    let hits = |count: u64| hits_of(count, 1000);
    let hit = hits(1000).expect("1000 in 1 s of guest time");
    assert!(
        hit.what.ends_with("1000 times a second of guest time."),
        "{}",
        hit.what
    );
    assert_eq!(hit.evidence, "1000 in all: local_timer 1000");
    assert_eq!(hits(999), None);
    // A rate, whatever seconds there are of guest time.
    assert_eq!(hits_of(1899, 1900), None);
    assert!(hits_of(1900, 1900).is_some_and(|hit| hit.what.contains(" 1000 times a second")));
    assert_eq!(hits_of(999, 999), None, "less than a second");
}

#[test]
fn a_tsc_that_counts_as_unstable() {
    let rewrites = |writes: u64| {
        let mut trace = one();
        trace.entry(0, 0, 7, 0).exit(1, 0, 7, 0, EPT);
        for (switch, at) in (0..100).map(|switch| (switch, 10 + 10 * switch)) {
            trace
                .switch(at, 0, 7, 32, PREEMPTED)
                .switch(at + 5, 0, 32, 7, RUNNABLE);
            if switch < writes {
                let (vcpu, prev, next) = (VcpuId(0), switch, switch + 1);
                trace.add(at + 6, 0, 7, Kind::KvmWriteTscOffset { vcpu, prev, next });
            }
        }
        evidence(&trace, "tsc_unstable")
    };
    let expected = "50 kvm_write_tsc_offset in 100 switches to vCPUs";
    assert_eq!(rewrites(50).as_deref(), Some(expected));
    assert_eq!(rewrites(49), None);
}

#[test]
fn a_master_clock_that_is_off_in_the_end() {
    let update = |use_master_clock, offset_matched, host_clock| Kind::KvmUpdateMasterClock {
        use_master_clock,
        host_clock,
        offset_matched,
    };
    let mut trace = one();
    trace.entry(0, 0, 7, 0).add(10, 0, 7, update(true, true, 1));
    assert_eq!(found(&trace, "master_clock_off"), None);
    trace.add(20, 0, 7, update(false, false, 1));
    let off = found(&trace, "master_clock_off").expect("off");
    assert_eq!(
        off.evidence,
        "2 kvm_update_master_clock, the last without master clock, offsets not matching"
    );
    assert!(off.next.contains("KVM_VCPU_TSC_OFFSET"), "{}", off.next);
    trace.add(30, 0, 7, update(false, true, 0));
    let off = found(&trace, "master_clock_off").expect("off");
    assert!(off.evidence.starts_with("3 ") && off.evidence.ends_with("offsets matching"));
    assert!(off.next.contains("current_clocksource"), "{}", off.next);
}

#[test]
fn tscs_that_do_not_match_in_the_end() {
    let tracked = |states: &[u32]| {
        let mut trace = one();
        trace.entry(0, 0, 7, 0);
        for (at, &matched) in (10..).zip(states) {
            let track = Kind::KvmTrackTsc {
                vcpu: VcpuId(0),
                matched,
                online: 3,
                use_master_clock: true,
                host_clock: 1,
            };
            trace.add(at, 0, 7, track);
        }
        evidence(&trace, "tsc_not_matched")
    };
    let last = Some("in the last kvm_track_tsc 1 match the first of 3");
    assert_eq!(tracked(&[0, 1]).as_deref(), last);
    // The first is not counted among those that match it.
    assert_eq!(tracked(&[2]), None);
    // A guest that boots, and resets: each begins a generation that its vCPUs join one by one.
    assert_eq!(tracked(&[0, 1, 2, 0, 1, 2]), None);
    // The last generation does not become complete.
    assert_eq!(tracked(&[0, 1, 2, 0, 1]).as_deref(), last);
}

#[test]
fn the_clocks_of_one_vm_say_nothing_of_another() {
    let mut trace = one();
    let update = |use_master_clock| Kind::KvmUpdateMasterClock {
        use_master_clock,
        host_clock: 1,
        offset_matched: use_master_clock,
    };
    trace
        .entry(0, 0, 7, 0)
        .entry(5, 1, 9, 0)
        .add(10, 0, 7, update(false))
        .add(20, 1, 9, update(true));
    let off = found(&trace, "master_clock_off").expect("VM 0's is off");
    assert_eq!(off.vm, "vm0");
    assert!(
        off.what.starts_with("vm0 runs without a master clock"),
        "{}",
        off.what
    );
    assert!(off.evidence.starts_with("1 kvm_update_master_clock"));
}

/// The process that makes a VM tells that it has no master clock yet; its vCPUs tell that they have one.
#[test]
fn vms_that_start_end_with_a_master_clock() {
    let update = |use_master_clock| Kind::KvmUpdateMasterClock {
        use_master_clock,
        host_clock: 1,
        offset_matched: use_master_clock,
    };
    let track = |matched, online| Kind::KvmTrackTsc {
        vcpu: VcpuId(0),
        matched,
        online,
        use_master_clock: false,
        host_clock: 1,
    };
    // Nothing tells that thread 50 is of the VM.
    let mut trace = one();
    trace
        .add(10, 2, 50, update(false))
        .add(20, 2, 50, track(0, 2));
    let ids = |trace: &Trace| {
        let answers = trace.answers();
        let of_clocks = |id: &str| id == "master_clock_off" || id == "tsc_not_matched";
        let ids = answers.findings.iter().map(|found| found.id.clone());
        ids.filter(|id| of_clocks(id)).collect::<Vec<_>>()
    };
    assert_eq!(ids(&trace), ["master_clock_off"], "nothing else is known");
    trace.entry(30, 0, 7, 0).add(40, 0, 7, update(true));
    assert_eq!(ids(&trace), [""; 0]);
    // Also where the same thread tells both.
    trace.add(50, 0, 7, track(0, 2));
    assert_eq!(ids(&trace), ["tsc_not_matched"]);
    trace.add(60, 0, 7, update(true));
    assert_eq!(ids(&trace), [""; 0]);
    trace.add(70, 2, 50, update(false));
    assert_eq!(ids(&trace), ["master_clock_off"]);
}

/// A write of this register.
const fn msr(ecx: u32, data: u64) -> Kind {
    Kind::KvmMsr {
        write: true,
        ecx,
        data,
        exception: false,
    }
}

#[test]
fn a_deadline_far_ahead_of_the_tsc() {
    let armed = |deadlines: &[u64], moved: Option<usize>| {
        let mut trace = one();
        trace.entry(0, 0, 7, 0);
        for (index, &deadline) in deadlines.iter().enumerate() {
            let time = 100 * (index as u64 + 1);
            if moved == Some(index) {
                let (vcpu, prev, next) = (VcpuId(0), 1, 2);
                trace.add(time, 0, 7, Kind::KvmWriteTscOffset { vcpu, prev, next });
            }
            trace.add(time + 1, 0, 7, msr(0x6e0, deadline));
        }
        found(&trace, "deadline_far_ahead")
    };
    // At 6 GHz and at any lower frequency.
    let far = 600 * 6_000_000_000;
    let ahead = armed(&[5_000, far + 6_000, 0, 6_000, 7_000], None).expect("far ahead");
    assert_eq!(ahead.vm, "vm0");
    assert_eq!(
        ahead.evidence,
        "a TSC deadline is 3600000000000 cycles behind one that the same vCPU armed earlier, 600 s at least"
    );
    assert_eq!(armed(&[5_000, far + 5_999, 6_000], None), None);
    // The last one: nothing shows how far ahead it is.
    assert_eq!(armed(&[5_000, 6_000, far + 9_000], None), None);
    // A reset guest's TSC begins anew.
    assert_eq!(armed(&[far + 9_000, 6_000], Some(1)), None);
    assert_eq!(armed(&[0, far + 9_000, 0], None), None);
}

#[test]
fn a_guest_that_switches_its_kvmclock_off() {
    let wrote = |writes: &[(u32, u64)]| {
        let mut trace = pair();
        for (cpu, tid) in [(0, 7), (1, 8)] {
            trace.entry(10, cpu, tid, u32::from(cpu));
        }
        for (time, &(vcpu, data)) in (100..).zip(writes) {
            let cpu = u16::try_from(vcpu).expect("small");
            trace.add(time, cpu, 7 + i32::from(cpu), msr(0x4b56_4d01, data));
        }
        evidence(&trace, "kvmclock_disabled")
    };
    assert_eq!(
        wrote(&[(0, 0x3001), (1, 0x3041), (0, 0), (1, 0)]).as_deref(),
        Some("the last write of MSR 0x4b564d01 clears bit 0 on 2 of 2 vCPUs")
    );
    // A vCPU that goes offline.
    assert_eq!(wrote(&[(0, 0x3001), (1, 0)]), None);
    assert_eq!(wrote(&[]), None);
    assert_eq!(wrote(&[(0, 0), (0, 0x3001)]), None);
    // `MSR_KVM_ASYNC_PF_EN` is another register.
    let mut other = one();
    other
        .entry(10, 0, 7, 0)
        .add(100, 0, 7, msr(0x4b56_4d01, 0x3001))
        .add(101, 0, 7, msr(0x4b56_4d02, 0));
    assert_eq!(found(&other, "kvmclock_disabled"), None);
}

#[test]
fn tsc_offsets_that_differ_within_a_vm() {
    let offsets = |first: u64, second: u64| {
        let mut trace = pair();
        for (cpu, (tid, next)) in (0..).zip([(7, first), (8, second)]) {
            let vcpu = VcpuId(u32::from(cpu));
            trace
                .entry(10, cpu, tid, vcpu.0)
                .exit(20, cpu, tid, vcpu.0, EPT);
            trace.add(
                30,
                cpu,
                tid,
                Kind::KvmWriteTscOffset {
                    vcpu,
                    prev: 0,
                    next,
                },
            );
        }
        evidence(&trace, "tsc_offsets_differ")
    };
    let expected = "2 vCPUs' offsets seen, up to 77 ticks apart";
    assert_eq!(offsets(1000, 1077).as_deref(), Some(expected));
    assert_eq!(
        offsets(1000, 1077).as_deref(),
        offsets(7, 70_u64.wrapping_neg()).as_deref()
    );
    assert_eq!(offsets(1000, 1000), None);
}

#[test]
fn time_that_goes_back() {
    let mut trace = one();
    trace.entry(100, 0, 7, 0).exit(200, 0, 7, 0, EPT);
    assert_eq!(found(&trace, "time_goes_back"), None);
    assert_eq!(found(&trace, "lost_events"), None);
    trace.entry(199, 0, 7, 0);
    assert_eq!(
        evidence(&trace, "time_goes_back").as_deref(),
        Some("1 of 3 events")
    );
}

#[test]
fn events_that_were_not_recorded() {
    let ids = ["no_exit_events", "no_sched_events", "no_wakeup_events"];
    let all = |trace: &Trace| ids.map(|id| evidence(trace, id));
    let mut exits = one();
    exits.entry(0, 0, 7, 0).exit(10, 0, 7, 0, EPT);
    let expected = [None, Some("2 events, no sched_switch".to_owned()), None];
    assert_eq!(all(&exits), expected);
    let mut switches = one();
    let (vcpu, grow, new, old) = (VcpuId(0), true, 1, 0);
    switches.add(
        0,
        0,
        7,
        Kind::KvmHaltPollNs {
            grow,
            vcpu,
            new,
            old,
        },
    );
    switches.switch(10, 0, 7, 0, SLEEPS);
    let [none, _, wakeups] = all(&switches);
    assert_eq!(none.as_deref(), Some("1 vCPU threads, no kvm_exit"));
    let expected = "1 sched_switch, no sched_waking or sched_wakeup";
    assert_eq!(wakeups.as_deref(), Some(expected));
    exits.switch(20, 0, 7, 0, SLEEPS).waking(30, 0, 0, 7, 0);
    assert_eq!(all(&exits), [None, None, None]);
    // An entry shows that the events are recorded, also if no exit follows.
    let mut entries = one();
    entries.entry(0, 0, 7, 0);
    assert_eq!(evidence(&entries, "no_exit_events"), None);
}

#[test]
fn vms_that_are_guessed() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (8, "CPU 1/KVM")]);
    trace.entry(0, 0, 7, 0).entry(0, 1, 8, 1);
    assert_eq!(
        found(&trace, "vms_guessed"),
        None,
        "one VM cannot be taken for another"
    );
    trace.entry(1, 2, 9, 0);
    assert_eq!(evidence(&trace, "vms_guessed").as_deref(), Some("vm0, vm1"));
    let mut known = pair();
    known.entry(0, 0, 7, 0).entry(0, 1, 8, 1);
    let (tid, process, name) = (Tid(9), Tid(6), known.name("CPU 0/KVM"));
    known
        .add(0, 0, 0, Kind::Task { tid, process, name })
        .entry(1, 2, 9, 0);
    assert_eq!(found(&known, "vms_guessed"), None);
}

#[test]
fn more_tasks_than_are_distinguished() {
    const MOST: i32 = 1 << 20;
    let tasks = |last: i32| {
        let mut trace = Trace::new(&[]);
        let name = trace.name("task");
        for tid in 10..=last {
            trace.add(
                0,
                0,
                0,
                Kind::Task {
                    tid: Tid(tid),
                    process: Tid(0),
                    name,
                },
            );
        }
        trace.entry(1, 0, 7, 0);
        evidence(&trace, "too_many_tasks")
    };
    assert_eq!(tasks(MOST - 100), None);
    assert_eq!(
        tasks(MOST + 100).as_deref(),
        Some("more than 1048576 tasks")
    );
}

#[test]
fn an_impossible_time_without_events_is_reported() {
    let second = 1_000_000_000;
    let mut trace = Trace::new(&[]);
    trace
        .entry(second, 0, 7, 0)
        .exit(2 * second, 0, 7, 0, EPT)
        .entry(50 * second, 0, 7, 0)
        // Time that goes back is no jump, nor is what follows it.
        .entry(second, 0, 7, 0)
        .exit(100 * second, 0, 7, 0, EPT);
    assert_eq!(found(&trace, "time_jumps"), None);
    trace.entry(4000 * second, 0, 7, 0);
    assert_eq!(
        evidence(&trace, "time_jumps").as_deref(),
        Some("none for 3900.000 s, from 99.000 s after the first one on")
    );
    let until = |to_ns| {
        let selection = Selection {
            to_ns: Some(to_ns),
            ..Selection::default()
        };
        let answers = trace.selected(selection);
        let mut findings = answers.findings.iter();
        findings.any(|finding| finding.id == "time_jumps")
    };
    assert!(!until(99 * second + 1) && until(3999 * second));
}

/// The finding on yields that `scx_stealtime` counted: each row is the outcome, its reason and how many.
pub(super) fn yields_refused(counts: &[(&str, &str, u64)]) -> Option<Finding> {
    let rows = counts.iter().map(|&(what, kind, count)| SchedulerCount {
        what: what.to_owned(),
        kind: kind.to_owned(),
        count,
        ..SchedulerCount::default()
    });
    let answers = one().answers_with(Options {
        scheduler: rows.collect(),
        ..Options::default()
    });
    assert_eq!(answers.scheduler.len(), counts.len());
    let mut findings = answers.findings.into_iter();
    findings.find(|finding| finding.id == "yields_refused")
}

#[test]
fn refused_yields_are_found_where_something_can_be_done() {
    let refused = |reason: &str, count: u64| {
        yields_refused(&[("served", "receiver", 400), ("refused", reason, count)])
    };
    let finding = refused("guard", 600).expect("a finding");
    assert_eq!(
        finding.evidence,
        "600 of 1000 yields refused, 100.0 % of them by guard"
    );
    assert!(finding.next.contains("more weight"), "{}", finding.next);
    // The answers are near, or the yields are few.
    assert_eq!(refused("receiver_runs", 600), None);
    assert_eq!(refused("guard", 599), None);
}
