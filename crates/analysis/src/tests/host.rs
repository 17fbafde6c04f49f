//! What the host's CPUs run, and clocks of which each read exits.

use stealtime_events::Kind;

use super::build::{EPT, PREEMPTED, RUNNABLE, SLEEPS, Trace};

const MS: u64 = 1_000_000;

#[test]
fn a_cpu_runs_vcpus_others_or_its_idle_task() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (32, "make")]);
    trace.entry(0, 0, 7, 0).exit(50, 0, 7, 0, EPT);
    trace.switch(100, 0, 7, 32, PREEMPTED);
    trace.switch(300, 0, 32, 0, SLEEPS);
    trace.switch(1_000, 0, 0, 7, RUNNABLE);
    trace.switch(1_050, 0, 7, 0, SLEEPS);
    let host = trace.answers().host;
    let [cpu] = &host.cpus[..] else {
        panic!("{:?}", host.cpus);
    };
    assert_eq!(
        (cpu.vcpu_ns, cpu.other_ns, cpu.idle_ns),
        (Some(150), Some(200), Some(700))
    );
    assert_eq!((cpu.switches, host.switches), (4, 4));
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
