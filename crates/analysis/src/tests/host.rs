//! What the host's CPUs run, and clocks of which each read exits.

use stealtime_events::{CpuId, Kind};

use super::build::{EPT, PREEMPTED, RUNNABLE, SLEEPS, Trace};
use crate::{Analysis, Counted, Longest, Options, Selection};

const MS: u64 = 1_000_000;

#[test]
fn a_cpu_runs_vcpus_others_or_its_idle_task() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (32, "make")]);
    trace.entry(0, 0, 7, 0).exit(50, 0, 7, 0, EPT);
    trace.switch(100, 0, 7, 32, PREEMPTED);
    trace.switch(300, 0, 32, 0, SLEEPS);
    trace.switch(1_000, 0, 0, 7, RUNNABLE);
    trace.switch(1_050, 0, 7, 0, SLEEPS);
    let answers = trace.answers();
    let (host, over_time) = (&answers.host, &answers.over_time);
    let [cpu] = &host.cpus[..] else {
        panic!("{:?}", host.cpus);
    };
    assert_eq!(
        (cpu.vcpu_ns, cpu.other_ns, cpu.idle_ns),
        (Some(150), Some(200), Some(700))
    );
    assert_eq!((cpu.switches, host.switches), (4, 4));
    assert_eq!(host.span_ns, 1_050);
    assert_eq!((over_time.width_ns, over_time.buckets), (1 << 20, 1));
    assert_eq!(over_time.cpus[0].busy_ns, [350]);
}

#[test]
fn threads_of_a_vmm_that_ran_have_their_time() {
    let mut trace = Trace::new(&[]);
    let threads = [
        (5, "qemu-system-x86"),
        (6, "IO iothread1"),
        (7, "CPU 0/KVM"),
        (8, "worker"),
    ];
    trace.process(5, &threads);
    trace.process(15, &[(15, "qemu-system-x86"), (17, "CPU 0/KVM")]);
    trace
        .entry(10, 0, 7, 0)
        .exit(50, 0, 7, 0, EPT)
        .switch(100, 0, 7, 5, PREEMPTED)
        .switch(300, 0, 5, 6, SLEEPS)
        .switch(350, 0, 6, 7, SLEEPS);
    trace
        .entry(400, 1, 17, 0)
        .exit(450, 1, 17, 0, EPT)
        .switch(500, 1, 17, 15, PREEMPTED)
        .switch(600, 1, 15, 17, SLEEPS);
    let selection = Selection {
        vms: vec!["pid5".to_owned()],
        ..Selection::default()
    };
    let answers = trace.selected(selection);
    let rows = answers.vmm_threads.iter();
    let rows: Vec<_> = rows
        .map(|row| {
            (
                &*row.vm,
                &*row.role,
                row.threads,
                row.cpu_ns,
                &*row.task,
                row.tid,
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("pid5", "emulator", 1, 200, "qemu-system-x86", 5),
            ("pid5", "iothread", 1, 50, "IO iothread1", 6)
        ]
    );
}

#[test]
fn the_longest_waits_come_first() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (32, "make")]);
    trace.entry(0, 0, 7, 0).exit(50, 0, 7, 0, EPT);
    for (start, ns) in [(100, 200), (400, 100), (600, 300)] {
        trace
            .switch(start, 0, 7, 32, PREEMPTED)
            .switch(start + ns, 0, 32, 7, RUNNABLE);
    }
    let longest = Longest {
        kept: 2,
        longer_than_ns: None,
    };
    let answers = trace.answers_with(Options {
        longest,
        ..Options::default()
    });
    let stalls = answers.stalls.iter();
    let stalls: Vec<_> = stalls
        .map(|stall| (stall.tid, stall.start_ns, stall.ns, stall.task_tid))
        .collect();
    assert_eq!(stalls, [(7, 600, 300, Some(32)), (7, 100, 200, Some(32))]);
}

#[test]
fn waits_above_the_limit_are_counted_apart() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (32, "make")]);
    trace.entry(0, 0, 7, 0).exit(50, 0, 7, 0, EPT);
    for (start, ns) in [(1000, 199), (2000, 200), (3000, 201), (4000, 300)] {
        trace
            .switch(start, 0, 7, 32, PREEMPTED)
            .switch(start + ns, 0, 32, 7, RUNNABLE);
    }
    let longest = Longest {
        kept: 10,
        longer_than_ns: Some(200),
    };
    let answers = trace.answers_with(Options {
        longest,
        ..Options::default()
    });
    let row = &answers.waits[0];
    assert_eq!((row.count, row.ns), (4, 900));
    assert_eq!((row.longer, row.longer_ns), (Some(2), Some(201 + 300)));
    let stalls: Vec<_> = answers.stalls.iter().map(|stall| stall.ns).collect();
    assert_eq!(stalls, [300, 201]);
}

/// Which waits are kept does not depend on when they come.
#[test]
fn the_longest_waits_are_kept_in_any_order() {
    let longest = Longest {
        kept: 2,
        longer_than_ns: None,
    };
    let lengths = [
        [100, 200, 150, 120],
        [200, 100, 150, 50],
        [50, 100, 150, 200],
        [100, 100, 100, 50],
    ];
    for lengths in lengths {
        let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (32, "make")]);
        trace.entry(0, 0, 7, 0).exit(50, 0, 7, 0, EPT);
        for (n, ns) in (1..).zip(lengths) {
            trace
                .switch(1000 * n, 0, 7, 32, PREEMPTED)
                .switch(1000 * n + ns, 0, 32, 7, RUNNABLE);
        }
        let answers = trace.answers_with(Options {
            longest,
            ..Options::default()
        });
        // Of equal ones the first.
        let mut expected: Vec<(u64, u64)> = (1..).map(|n| 1000 * n).zip(lengths).collect();
        expected.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let stalls = answers.stalls.iter();
        let stalls: Vec<_> = stalls.map(|stall| (stall.start_ns, stall.ns)).collect();
        assert_eq!(stalls, expected[..2], "{lengths:?}");
    }
}

/// Events that the reader leaves out count as events of the recording.
#[test]
fn counted_events_add_up() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM")]);
    trace.entry(10, 0, 7, 0).exit(20, 0, 7, 0, EPT);
    let name = trace.name("kmalloc");
    let mut analysis = Analysis::new(Options::default());
    analysis.events(&trace.events, &trace.names);
    for events in [5, 0, 3] {
        let (first_ns, last_ns, last_cpu) = (5, 90, CpuId(3));
        analysis.counted(&Counted {
            name,
            events,
            first_ns,
            last_ns,
            last_cpu,
        });
    }
    let source = analysis.finish(&trace.names).source;
    assert_eq!((source.events, source.cpus), (2 + 5 + 3, 4));
}

/// The evidence of the finding on a guest with `count` such accesses, one each `period_ns`.
fn clock_reads(access: Kind, count: u64, period_ns: u64) -> Option<String> {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM")]);
    trace.entry(0, 0, 7, 0);
    for n in 1..=count {
        let time = n * period_ns;
        trace.exit(time, 0, 7, 0, EPT).add(time + 1, 0, 7, access);
        trace.entry(time + 10, 0, 7, 0);
    }
    let mut found = trace.answers().findings.into_iter();
    let reads = found.find(|finding| finding.id == "clock_reads_exit");
    reads.map(|finding| finding.evidence)
}

#[test]
fn clocks_that_exit_from_a_hundred_reads_a_second_on() {
    let msr = |write, ecx| Kind::KvmMsr {
        write,
        ecx,
        data: 1,
        exception: false,
    };
    let port = |write, port| Kind::KvmPio {
        write,
        port,
        size: 4,
        count: 1,
        val: 1,
    };
    let memory = |mmio_type, gpa| Kind::KvmMmio {
        mmio_type,
        len: 4,
        gpa,
        val: 1,
    };
    for (read, place) in [
        (msr(false, 0x4000_0020), "MSR 0x40000020"),
        (port(false, 0x608), "port 0x608"),
        (memory(1, 0xfed0_00f0), "MMIO 0xfed000f0"),
    ] {
        let evidence = clock_reads(read, 100, 9 * MS).expect(place);
        let begin = format!("100 reads of {place}, 111 in each second of its time on CPUs");
        assert!(evidence.starts_with(&begin), "{evidence}");
        // A boot has so few; the watchdog of a guest reads so rarely.
        assert_eq!(clock_reads(read, 99, 9 * MS), None, "{place}");
        assert_eq!(clock_reads(read, 200, 11 * MS), None, "{place}");
    }
    for other in [
        msr(true, 0x4000_0020),
        msr(false, 0x4000_0021),
        port(true, 0x608),
        port(false, 0x609),
        memory(2, 0xfed0_00f0),
        memory(1, 0xfed0_00f8),
    ] {
        assert_eq!(clock_reads(other, 200, 9 * MS), None, "{other:?}");
    }
}
