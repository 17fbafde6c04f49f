//! The tables as a whole: each row with all that it says, and sums over vCPUs.

use stealtime_events::{Kind, VcpuId};

use super::build::{
    EPT, HLT, INTERRUPT, MSR_WRITE, PREEMPTED, RUNNABLE, SLEEPS, Trace, check, halted, of_tid,
};
use crate::answers::{
    Answers, HaltPolls, KeyRow, ReasonTime, Source, Stall, VmState, VmmThreads, WaitClass,
};
use crate::{Longest, Options, Selection};

const MS: u64 = 1_000_000;
const MAKE: i32 = 32;

/// vCPUs 0 and 1 of process 5, threads 7 and 8, and a task that is none.
fn pair() -> Trace {
    let mut trace = Trace::new(&[(MAKE, "make")]);
    trace.process(5, &[(7, "CPU 0/KVM"), (8, "CPU 1/KVM")]);
    trace
}

fn longest(kept: usize, longer_than_ns: Option<u64>) -> Options {
    Options {
        longest: Longest {
            kept,
            longer_than_ns,
        },
        ..Options::default()
    }
}

#[test]
fn waits_of_all_vcpus_add_up_by_their_length() {
    let mut trace = pair();
    let waits = [
        (7, [9_999, 10_000, 10 * MS]),
        (8, [5_000, 20_000, 200 * MS]),
    ];
    for (cpu, (tid, lengths)) in (0..).zip(waits) {
        let vcpu = u32::from(cpu);
        trace.entry(0, cpu, tid, vcpu).exit(1, cpu, tid, vcpu, EPT);
        for (start, ns) in (1..).map(|n| n * 300 * MS).zip(lengths) {
            trace.switch(start, cpu, tid, MAKE, PREEMPTED).switch(
                start + ns,
                cpu,
                MAKE,
                tid,
                RUNNABLE,
            );
        }
    }
    trace.events.sort_by_key(|event| event.time_ns);
    let answers = trace.answers_with(longest(10, Some(10_000)));
    check(&answers);
    let [row] = &answers.waits[..] else {
        panic!("{:?}", answers.waits);
    };
    assert_eq!((row.vm.as_str(), row.count), ("pid5", 6));
    assert_eq!((row.ns, row.max_ns), (210_044_999, 200 * MS));
    assert_eq!((row.longer, row.longer_ns), (Some(3), Some(210_020_000)));
    let edges = [0, 10_000, 100_000, MS, 10 * MS, 100 * MS];
    let ends = edges[1..].iter().copied().map(Some).chain([None]);
    let counts = [2, 2, 0, 0, 1, 1];
    let classes = edges.into_iter().zip(ends).zip(counts);
    let classes = classes.map(|((from_ns, below_ns), count)| WaitClass {
        from_ns,
        below_ns,
        count,
    });
    assert_eq!(row.classes, classes.collect::<Vec<_>>());
    // Without a limit nothing is longer than it.
    let row = &trace.answers().waits[0];
    assert_eq!((row.longer, row.longer_ns), (None, None));
}

#[test]
fn a_stall_is_above_the_limit_and_tells_how_it_began() {
    let mut trace = pair();
    trace.entry(0, 0, 7, 0).exit(50, 0, 7, 0, EPT);
    for (start, ns) in [(100, 1_000), (2_000, 1_001)] {
        trace
            .switch(start, 0, 7, MAKE, PREEMPTED)
            .switch(start + ns, 0, MAKE, 7, RUNNABLE);
    }
    trace
        .switch(5_000, 0, 7, MAKE, SLEEPS)
        .wakeup(6_000, 0, MAKE, 7, 0)
        .switch(7_500, 0, MAKE, 7, RUNNABLE);
    let answers = trace.answers_with(longest(10, Some(1_000)));
    let stall = |start_ns, ns, kind: &str| Stall {
        vm: "pid5".to_owned(),
        tid: 7,
        start_ns,
        ns,
        kind: kind.to_owned(),
        cause: "host_task".to_owned(),
        who: "make".to_owned(),
        task: Some("make".to_owned()),
        task_tid: Some(MAKE),
        cause_ns: ns,
        ..Stall::default()
    };
    let expected = [
        stall(6_000, 1_500, "waking"),
        stall(2_000, 1_001, "preempted"),
    ];
    assert_eq!(answers.stalls, expected);
}

/// Two vCPUs on CPUs of their own for 4 ms: one waits from 1 ms to 3 ms, one from 2 ms to 3 ms.
fn over_time() -> Answers {
    // A trace does not begin at 0.
    const START: u64 = 5_000;
    let mut trace = pair();
    trace
        .events
        .iter_mut()
        .for_each(|event| event.time_ns = START);
    trace
        .entry(START, 0, 7, 0)
        .entry(START, 1, 8, 1)
        .switch(START + MS, 0, 7, MAKE, PREEMPTED)
        .switch(START + 2 * MS, 1, 8, MAKE + 1, PREEMPTED)
        .switch(START + 3 * MS, 0, MAKE, 7, SLEEPS)
        .switch(START + 3 * MS, 1, MAKE + 1, 8, SLEEPS)
        .entry(START + 3 * MS, 0, 7, 0)
        .entry(START + 3 * MS, 1, 8, 1)
        .exit(START + 4 * MS, 0, 7, 0, EPT);
    trace.answers()
}

#[test]
fn steal_and_use_over_time_are_sums_in_each_bucket() {
    let over_time = over_time().over_time;
    let shape = (over_time.start_ns, over_time.width_ns, over_time.buckets);
    assert_eq!(shape, (5_000, 1_048_576, 4));
    let [vm] = &over_time.vms[..] else {
        panic!("{:?}", over_time.vms);
    };
    assert_eq!((vm.vm.as_str(), vm.vcpus), ("pid5", 2));
    let (first, second) = ([48_576, 1_048_576, 902_848, 0], [0, 97_152, 902_848, 0]);
    let both: Vec<u64> = first.iter().zip(second).map(|(a, b)| a + b).collect();
    assert_eq!(vm.steal_ns, both);
    let [one, other] = &over_time.cpus[..] else {
        panic!("{:?}", over_time.cpus);
    };
    assert_eq!((one.cpu, other.cpu), (0, 1));
    assert_eq!(one.waiting_ns, first);
    assert_eq!(other.waiting_ns, second);
    assert_eq!(one.vcpu_ns, [1_000_000, 0, 145_728, 854_272]);
    assert_eq!(other.vcpu_ns, [1_048_576, 951_424, 145_728, 854_272]);
    for cpu in [one, other] {
        assert_eq!(cpu.busy_ns, [1_048_576, 1_048_576, 1_048_576, 854_272]);
    }
}

#[test]
fn a_vm_as_a_whole_has_a_state_at_each_instant() {
    // 262,144 ns lie between two instants: 3 in the first ms, and 4 in each of the others.
    let expected = VmState {
        vm: "pid5".to_owned(),
        vcpus: 2,
        instants: 15,
        full_run: 3 + 4,
        concurrency_hazard: 4,
        full_contention: 4,
        ..VmState::default()
    };
    assert_eq!(over_time().vm_states, [expected]);
}

#[test]
fn the_host_has_the_selected_vcpus_and_cpus() {
    let mut trace = pair();
    trace.process(6, &[(9, "CPU 0/KVM")]);
    for (cpu, tid, vcpu) in [(0, 7, 0), (1, 8, 1), (2, 9, 0)] {
        trace.entry(10, cpu, tid, vcpu);
    }
    trace
        .switch(20, 0, 7, 0, SLEEPS)
        .switch(30, 1, 8, 0, SLEEPS)
        .switch(40, 1, 0, 8, RUNNABLE);
    let host = |selection: Selection| {
        let host = trace.selected(selection).host;
        let cpus: Vec<u16> = host.cpus.iter().map(|cpu| cpu.cpu).collect();
        (host.vcpus, host.switches, cpus)
    };
    assert_eq!(host(Selection::default()), (3, 3, vec![0, 1, 2]));
    let one_vm = Selection {
        vms: vec!["pid5".to_owned()],
        ..Selection::default()
    };
    assert_eq!(host(one_vm), (2, 3, vec![0, 1, 2]));
    let one_cpu = Selection {
        cpus: vec![1],
        ..Selection::default()
    };
    assert_eq!(host(one_cpu), (3, 2, vec![1]));
}

#[test]
fn vmm_threads_of_a_role_are_one_row_with_the_one_that_ran_longest() {
    let mut trace = pair();
    trace.process(
        5,
        &[
            (5, "qemu-a"),
            (11, "worker-b"),
            (12, "worker-c"),
            (13, "worker-d"),
        ],
    );
    // Of no known VM.
    trace.process(40, &[(40, "qemu-system-x86")]);
    trace.entry(0, 0, 7, 0).exit(10, 0, 7, 0, EPT);
    let (mut time, mut previous) = (100, 7);
    for (tid, ns) in [(5, 50), (11, 80), (12, 80), (40, 30)] {
        trace.switch(time, 0, previous, tid, SLEEPS);
        (time, previous) = (time + ns, tid);
    }
    trace.switch(time, 0, previous, 0, SLEEPS);
    let row = |vm: &str, threads, cpu_ns, (task, tid, task_ns): (&str, i32, u64)| VmmThreads {
        vm: vm.to_owned(),
        role: "emulator".to_owned(),
        threads,
        cpu_ns,
        task: task.to_owned(),
        tid,
        task_ns,
        ..VmmThreads::default()
    };
    let expected = [
        row("pid5", 3, 50 + 80 + 80, ("worker-b", 11, 80)),
        row("", 1, 30, ("qemu-system-x86", 40, 30)),
    ];
    assert_eq!(trace.answers().vmm_threads, expected);
}

/// Halts of this vCPU with a window of 50 ns: one that polling ends, one that sleeps behind it.
fn halts(trace: &mut Trace, start: u64, cpu: u16, tid: i32) {
    let vcpu = u32::from(cpu);
    let change = |new, old| Kind::KvmHaltPollNs {
        grow: new > old,
        vcpu: VcpuId(vcpu),
        new,
        old,
    };
    trace
        .entry(start, cpu, tid, vcpu)
        .exit(start + 100, cpu, tid, vcpu, HLT)
        .add(start + 180, cpu, tid, change(50, 0))
        .add(start + 190, cpu, tid, halted(80, false))
        .entry(start + 200, cpu, tid, vcpu)
        .exit(start + 300, cpu, tid, vcpu, HLT)
        .switch(start + 370, cpu, tid, 0, SLEEPS)
        .wakeup(start + 600, cpu, 0, tid, vcpu)
        .switch(start + 605, cpu, 0, tid, RUNNABLE)
        .add(start + 608, cpu, tid, change(0, 50))
        .add(start + 610, cpu, tid, halted(300, true))
        .entry(start + 620, cpu, tid, vcpu);
}

#[test]
fn halt_polls_are_those_of_all_vcpus() {
    let mut trace = pair();
    halts(&mut trace, 1_000, 0, 7);
    halts(&mut trace, 2_000, 1, 8);
    let answers = trace.answers();
    check(&answers);
    let expected = HaltPolls {
        vm: "pid5".to_owned(),
        halts: 4,
        poll_success: 2,
        poll_fail: 2,
        poll_success_ns: 2 * 80,
        poll_fail_ns: 2 * 50,
        grow: 2,
        shrink: 2,
        ..HaltPolls::default()
    };
    assert_eq!(answers.halt_polls, [expected]);
    for tid in [7, 8] {
        let vcpu = of_tid(&answers, tid);
        assert_eq!((vcpu.poll_useful_ns, vcpu.poll_wasted_ns), (80, 50));
        assert_eq!(vcpu.poll_ns, Some(80 + 50));
    }
}

#[test]
fn exit_time_by_reason_has_reasons_without_time_and_time_without_a_reason() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM")]);
    trace
        .switch(1_000, 0, 0, 7, RUNNABLE)
        .entry(1_010, 0, 7, 0)
        .exit(1_100, 0, 7, 0, EPT)
        .entry(1_130, 0, 7, 0)
        .exit(1_200, 0, 7, 0, EPT)
        .entry(1_220, 0, 7, 0)
        .exit(1_300, 0, 7, 0, HLT);
    let row = |reason: &str, count, ns| ReasonTime {
        reason: reason.to_owned(),
        count,
        ns,
    };
    let expected = [
        row("EPT_VIOLATION", 2, 30 + 20),
        row("(no exit seen)", 0, 10),
        row("HLT", 1, 0),
    ];
    // One that begins in the guest has no time before its first exit, and no row of it.
    trace
        .entry(1_300, 1, 8, 1)
        .exit(1_350, 1, 8, 1, HLT)
        .exit(1_355, 0, 7, 0, HLT);
    let answers = trace.answers();
    assert_eq!(of_tid(&answers, 8).exit_ns_by_reason, [row("HLT", 1, 5)]);
    trace.events.truncate(8);
    assert_eq!(trace.answers().vcpus[0].exit_ns_by_reason, expected);
}

#[test]
fn an_interrupt_with_its_handler_in_a_loss_is_not_counted() {
    let interrupts = |lost: bool| {
        let mut trace = Trace::new(&[]);
        trace.entry(10, 0, 7, 0).exit(20, 0, 7, 0, INTERRUPT);
        if lost {
            trace.add(30, 0, 0, Kind::Lost { count: 5 });
        }
        trace.entry(40, 0, 7, 0);
        let rows = trace.answers().interrupts.into_iter();
        rows.map(|row| (row.name, row.count)).collect::<Vec<_>>()
    };
    assert_eq!(interrupts(false), [("unknown".to_owned(), 1)]);
    assert_eq!(interrupts(true), []);
}

#[test]
fn causes_of_one_name_are_one_row_and_those_past_the_limit_another() {
    // 512 tasks have a sum of their own.
    const MOST: i32 = 512;
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (100, "make"), (101, "make")]);
    trace
        .entry(0, 0, 7, 0)
        .exit(50, 0, 7, 0, EPT)
        .switch(100, 0, 7, 100, PREEMPTED);
    let last = 100 + MOST + 2;
    for tid in 101..=last {
        let time = 10 * u64::from(tid.unsigned_abs());
        trace.switch(time, 0, tid - 1, tid, SLEEPS);
    }
    let end = 10 * u64::from((last + 1).unsigned_abs());
    trace.switch(end, 0, last, 7, RUNNABLE);
    let answers = trace.answers();
    check(&answers);
    let ns_of = |name: &str| {
        let mut rows = answers.ready.iter().filter(|row| row.who == name);
        let row = rows.next().map(|row| (row.cause.clone(), row.ns));
        assert!(rows.next().is_none(), "one row of {name}");
        row
    };
    let host_task = |ns| Some(("host_task".to_owned(), ns));
    // The first ran from 100 to 1,010, each other for 10 ns.
    assert_eq!(ns_of("make"), host_task(910 + 10));
    assert_eq!(ns_of("tid 102"), host_task(10));
    assert_eq!(ns_of("(others)"), host_task(3 * 10));
    assert_eq!(answers.ready[0].who, "make", "the most first");
}

#[test]
fn registers_past_the_limit_are_one_row() {
    // So many pairs of thread and register have a row of their own.
    const MOST: u32 = 1 << 14;
    let mut trace = Trace::new(&[]);
    for (time, ecx) in (0..MOST + 3).map(|n| (100 * u64::from(n), 0x1000 + n)) {
        let access = Kind::KvmMsr {
            write: true,
            exception: false,
            ecx,
            data: 1,
        };
        trace
            .entry(time, 0, 7, 0)
            .exit(time + 10, 0, 7, 0, MSR_WRITE)
            .add(time + 20, 0, 7, access);
    }
    trace.entry(100 * u64::from(MOST + 3), 0, 7, 0);
    let rows = trace.answers().msr;
    let others: Vec<&KeyRow> = rows.iter().filter(|row| row.reason == "(others)").collect();
    assert_eq!(rows.len(), MOST as usize + 1);
    let [others] = &others[..] else {
        panic!("{others:?}");
    };
    assert_eq!((others.samples, others.time_ns), (3, 3 * 80));
}

#[test]
fn events_are_counted_by_name_most_frequent_first() {
    let mut trace = Trace::new(&[]);
    let name = trace.name("kmalloc");
    trace
        .entry(10, 0, 7, 0)
        .exit(20, 0, 7, 0, EPT)
        .entry(30, 0, 7, 0)
        .exit(40, 0, 7, 0, EPT);
    for time in 50..53 {
        trace.add(time, 0, 7, Kind::Other { name });
    }
    let mut answers = trace.answers();
    let counts = |answers: &Answers| -> Vec<(String, u64, Option<String>)> {
        let events = answers.events.iter();
        let row = events.map(|event| (event.name.clone(), event.count, event.today.clone()));
        row.collect()
    };
    let row =
        |name: &str, count, today: Option<&str>| (name.to_owned(), count, today.map(str::to_owned));
    let (kmalloc, entry) = (row("kmalloc", 3, None), row("kvm_entry", 2, None));
    let expected = [kmalloc.clone(), entry.clone(), row("kvm_exit", 2, None)];
    assert_eq!(counts(&answers), expected);
    // The recording may have another name of it.
    answers.rename_event("kvm_exit", "exit_of_old");
    answers.rename_event("no_such", "old_one");
    let expected = [kmalloc, row("exit_of_old", 2, Some("kvm_exit")), entry];
    assert_eq!(counts(&answers), expected);
    let named = |name: &str| -> Vec<bool> {
        let events = answers.events.iter();
        events.map(|event| event.is(name)).collect()
    };
    assert_eq!(named("kvm_exit"), [false, true, false]);
    assert_eq!(named("kvm_entry"), [false, false, true]);
    assert_eq!(named("exit_of_old"), [false; 3]);
}

#[test]
fn the_source_has_what_events_tell() {
    let mut trace = Trace::new(&[]);
    trace
        .entry(1_000, 0, 7, 0)
        .exit(1_100, 2, 7, 0, EPT)
        .entry(1_090, 2, 7, 0)
        .add(1_200, 2, 0, Kind::Lost { count: 9 })
        .add(1_300, 2, 0, Kind::Lost { count: 0 })
        .exit(1_400, 2, 7, 0, EPT);
    let expected = Source {
        clock_unit: "ns".to_owned(),
        cpus: 3,
        events: 4,
        lost: 9,
        lost_gaps: 1,
        out_of_order: 1,
        first_ns: 1_000,
        last_ns: 1_400,
        span_ns: 400,
        ..Source::default()
    };
    assert_eq!(trace.answers().source, expected);
}

#[test]
fn what_the_user_says_against_the_recording_is_noted() {
    let mut trace = pair();
    trace.process(15, &[(20, "CPU 0/KVM")]);
    for (cpu, tid, vcpu) in [(0, 7, 0), (1, 8, 1), (2, 20, 0), (3, 30, 0)] {
        trace.entry(10, cpu, tid, vcpu);
    }
    let owned = |list: &[(i32, &str)]| {
        let list = list.iter().map(|(id, name)| (*id, (*name).to_owned()));
        list.collect()
    };
    let options = Options {
        groups: owned(&[(7, "web"), (20, "web"), (99, "web")]),
        // Nothing tells a process of thread 30: it may be one of its own.
        processes: owned(&[(5, "db"), (30, "solo"), (77, "db")]),
        ..Options::default()
    };
    let mut expected = vec![
        "thread 99, given as one of web, is no vCPU of this recording",
        "process 77, given as db, has no vCPU in this recording, or the recording does not know \
         the processes of threads",
        "threads 7 and 20, given as ones of web, are both vCPU 0: one VM cannot have both",
    ];
    assert_eq!(trace.answers_with(options.clone()).source.notes, expected);
    // The idle task is no vCPU thread, whatever a damaged recording says.
    trace.entry(20, 4, 0, 0);
    expected.push("1 entries and exits are of threads past the limit of vCPUs: no answer has them");
    assert_eq!(trace.answers_with(options).source.notes, expected);
}
