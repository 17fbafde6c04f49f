//! The tables of perf.

use std::iter::repeat_n;

use stealtime_events::{Kind, VcpuId};

use super::build::{EPT, HLT, INTERRUPT, MSR_WRITE, Trace, check};
use crate::options::{Options, Selection, Skip};

fn two_exits() -> Trace {
    let mut trace = Trace::new(&[]);
    // The first exit comes before the first entry: perf does not know the thread yet.
    trace.exit(100, 0, 7, 0, EPT).entry(150, 0, 7, 0);
    trace.exit(200, 0, 7, 0, EPT).entry(230, 0, 7, 0);
    trace.exit(300, 0, 7, 0, EPT).entry(350, 0, 7, 0);
    trace.exit(400, 0, 7, 0, HLT).entry(900, 0, 7, 0);
    trace
}

#[test]
fn a_thread_counts_from_its_first_entry_on() {
    let answers = two_exits().answers();
    check(&answers);
    let rows: Vec<_> = answers
        .exit_totals
        .iter()
        .map(|row| {
            (
                row.reason.as_str(),
                row.samples,
                row.time_ns,
                row.min_ns,
                row.max_ns,
            )
        })
        .collect();
    assert_eq!(
        rows,
        [("EPT_VIOLATION", 2, 80, 30, 50), ("HLT", 1, 500, 500, 500)]
    );
    assert_eq!(
        format!("{:.2}", answers.exit_totals[0].samples_percent),
        "66.67"
    );
    assert_eq!(
        format!("{:.2}", answers.exit_totals[0].time_percent),
        "13.79"
    );
    // The time split counts the first one too: there is no doubt what it was.
    let vcpu = &answers.vcpus[0];
    assert_eq!(
        (vcpu.guest_ns, vcpu.exit_ns),
        (Some(50 + 70 + 50), Some(50 + 80 + 500))
    );
}

/// Exits of the vCPU on its CPU, of these lengths in ns.
fn exits_of(trace: &mut Trace, vcpu: u16, lengths: impl Iterator<Item = u64>) {
    let tid = 7 + i32::from(vcpu);
    let mut time = 0;
    trace.entry(time, vcpu, tid, vcpu.into());
    for ns in lengths {
        trace.exit(time + 1, vcpu, tid, vcpu.into(), EPT);
        time += 1 + ns;
        trace.entry(time, vcpu, tid, vcpu.into());
    }
}

/// A counter of the distribution has 16 bits, and carries.
#[test]
fn percentiles_are_those_of_any_number_of_exits() {
    let percentiles = |trace: &Trace| {
        let answers = trace.answers();
        let row = &answers.exit_totals[0];
        assert_eq!(row.max_ns, 900);
        let percentiles = [row.p50_ns, row.p90_ns, row.p99_ns, row.p999_ns];
        (row.samples, percentiles)
    };
    let mut one = Trace::new(&[]);
    let lengths = repeat_n(7, 1 << 16).chain([900; 1000]);
    exits_of(&mut one, 0, lengths);
    assert_eq!(percentiles(&one), (66_536, [7, 7, 900, 900]));
    // Of two vCPUs, each with fewer.
    let mut two = Trace::new(&[]);
    for vcpu in [0, 1] {
        exits_of(&mut two, vcpu, repeat_n(700, 40_000).chain([900]));
    }
    two.events.sort_by_key(|event| event.time_ns);
    assert_eq!(percentiles(&two), (80_002, [700; 4]));
}

#[test]
fn an_exit_without_entry_gives_way_to_the_next() {
    let mut trace = Trace::new(&[]);
    trace
        .entry(100, 0, 7, 0)
        .exit(200, 0, 7, 0, EPT)
        .exit(300, 0, 7, 0, HLT);
    trace.entry(310, 0, 7, 0).entry(400, 0, 7, 0);
    let answers = trace.answers();
    assert_eq!(answers.exit_totals.len(), 1);
    assert_eq!(
        (
            answers.exit_totals[0].reason.as_str(),
            answers.exit_totals[0].time_ns
        ),
        ("HLT", 10)
    );
}

#[test]
fn vcpus_of_different_threads_are_apart() {
    let mut trace = Trace::new(&[]);
    trace.entry(10, 0, 7, 0).entry(11, 1, 8, 1);
    trace.exit(20, 0, 7, 0, EPT).exit(21, 1, 8, 1, EPT);
    trace.entry(25, 1, 8, 1).entry(40, 0, 7, 0);
    let row = &trace.answers().exit_totals[0];
    assert_eq!((row.samples, row.min_ns, row.max_ns), (2, 4, 20));
}

#[test]
fn registers_and_ports_are_timed_to_the_entry() {
    let mut trace = Trace::new(&[]);
    let msr = |write| Kind::KvmMsr {
        write,
        exception: false,
        ecx: 0x6e0,
        data: 1,
    };
    let pio = Kind::KvmPio {
        write: false,
        port: 0x3fd,
        size: 1,
        count: 1,
        val: 0,
    };
    let mmio = |mmio_type| Kind::KvmMmio {
        mmio_type,
        len: 4,
        gpa: 0xfee0_0300,
        val: 0,
    };
    // Before its first entry perf does not know the thread.
    trace
        .exit(50, 0, 7, 0, MSR_WRITE)
        .add(60, 0, 7, msr(true))
        .entry(100, 0, 7, 0);
    trace
        .exit(200, 0, 7, 0, MSR_WRITE)
        .add(210, 0, 7, msr(true))
        .entry(250, 0, 7, 0);
    trace
        .exit(300, 0, 7, 0, 31)
        .add(310, 0, 7, msr(false))
        .entry(340, 0, 7, 0);
    trace
        .exit(400, 0, 7, 0, 30)
        .add(405, 0, 7, pio)
        .entry(425, 0, 7, 0);
    // A write: kvm_mmio to entry. A read: exit to kvm_mmio.
    trace
        .exit(500, 0, 7, 0, EPT)
        .add(503, 0, 7, mmio(2))
        .entry(523, 0, 7, 0);
    trace
        .exit(600, 0, 7, 0, EPT)
        .add(607, 0, 7, mmio(0))
        .add(609, 0, 7, mmio(1))
        .entry(690, 0, 7, 0);
    let answers = trace.answers();
    let table = |rows: &[crate::answers::KeyRow]| -> Vec<(String, u64, u64)> {
        rows.iter()
            .map(|row| (row.reason.clone(), row.samples, row.time_ns))
            .collect()
    };
    let row = |name: &str, ns| (name.to_owned(), 1, ns);
    assert_eq!(
        table(&answers.msr),
        [row("0x6e0:R", 30), row("0x6e0:W", 40)]
    );
    assert_eq!(table(&answers.ioport), [row("0x3fd:PIN", 20)]);
    assert_eq!(
        table(&answers.mmio),
        [row("0xfee00300:R", 9), row("0xfee00300:W", 20)]
    );
    // Exits count without them.
    let keys = true;
    let skip = Skip {
        keys,
        ..Skip::default()
    };
    let answers = trace.answers_with(Options {
        skip,
        ..Options::default()
    });
    let rows = [&answers.msr, &answers.ioport, &answers.mmio].map(Vec::len);
    assert_eq!((rows, answers.exit_totals.len()), ([0, 0, 0], 4));
}

#[test]
fn registers_are_those_of_the_selected_vms_and_vcpus() {
    let mut trace = Trace::new(&[]);
    for (cpu, tid, vcpu) in [(0, 7, 0), (1, 8, 1), (2, 9, 0)] {
        let access = Kind::KvmMsr {
            write: true,
            exception: false,
            ecx: 0x10 + u32::from(cpu),
            data: 1,
        };
        trace
            .entry(100, cpu, tid, vcpu)
            .exit(200, cpu, tid, vcpu, MSR_WRITE)
            .add(210, cpu, tid, access)
            .entry(250, cpu, tid, vcpu);
    }
    let registers = |vms: &[&str], vcpus: &[u32]| {
        let selection = Selection {
            vms: vms.iter().map(|vm| (*vm).to_owned()).collect(),
            vcpus: vcpus.to_vec(),
            ..Selection::default()
        };
        let answers = trace.selected(selection);
        let rows = answers.msr.iter().map(|row| row.reason.clone());
        rows.collect::<Vec<_>>()
    };
    assert_eq!(registers(&["vm0"], &[]), ["0x10:W", "0x11:W"]);
    assert_eq!(registers(&["vm1"], &[]), ["0x12:W"]);
    assert_eq!(registers(&[], &[0]), ["0x10:W", "0x12:W"]);
    assert_eq!(registers(&["vm0"], &[1]), ["0x11:W"]);
}

#[test]
fn an_exit_belongs_to_the_window_in_which_it_ends() {
    let trace = two_exits();
    let select = |from_ns, to_ns| {
        let answers = trace.within(from_ns, to_ns);
        check(&answers);
        answers
            .exit_totals
            .iter()
            .map(|row| row.samples)
            .sum::<u64>()
    };
    // Entries at 130, 250 and 800 after the first event.
    assert_eq!(select(None, Some(130)), 0);
    assert_eq!(select(Some(130), Some(250)), 1);
    assert_eq!(select(Some(250), None), 2);
}

#[test]
fn a_vcpu_can_be_selected() {
    let mut trace = Trace::new(&[]);
    trace
        .entry(10, 0, 7, 0)
        .exit(20, 0, 7, 0, EPT)
        .entry(25, 0, 7, 0);
    trace
        .entry(30, 1, 8, 1)
        .exit(40, 1, 8, 1, HLT)
        .entry(47, 1, 8, 1);
    let selection = Selection {
        vcpus: vec![1],
        ..Selection::default()
    };
    let answers = trace.selected(selection);
    check(&answers);
    assert_eq!(answers.exit_totals.len(), 1);
    assert_eq!(answers.exit_totals[0].reason, "HLT");
    assert_eq!(answers.vcpus.len(), 1);
    let selection = Selection {
        cpus: vec![0],
        ..Selection::default()
    };
    let answers = trace.selected(selection);
    check(&answers);
    assert_eq!(answers.exit_totals[0].reason, "EPT_VIOLATION");
    let selection = Selection {
        vms: vec!["none".to_owned()],
        ..Selection::default()
    };
    let answers = trace.selected(selection);
    assert!(answers.vms.is_empty() && answers.exit_totals.is_empty() && answers.vcpus.is_empty());
}

#[test]
fn reasons_unknown_to_perf_keep_their_numbers() {
    let mut trace = Trace::new(&[]);
    trace
        .entry(10, 0, 7, 0)
        .exit(20, 0, 7, 0, 999)
        .entry(25, 0, 7, 0);
    trace.exit(30, 0, 7, 0, 0x8000_0021).entry(36, 0, 7, 0);
    let answers = trace.answers();
    let names: Vec<_> = answers
        .exit_totals
        .iter()
        .map(|row| row.reason.as_str())
        .collect();
    assert_eq!(names, ["INVALID_STATE FAILED_VMENTRY", "UNKNOWN(0x3e7)"]);
}

#[test]
fn before_linux_5_10_exits_name_no_vcpu() {
    let mut trace = Trace::new(&[]);
    let unknown = VcpuId::UNKNOWN.0;
    trace
        .exit(5, 0, 7, unknown, EPT)
        .entry(10, 0, 7, 3)
        .exit(20, 0, 7, unknown, EPT);
    trace.entry(25, 0, 7, 3);
    let answers = trace.answers();
    assert_eq!(answers.vcpus[0].vcpu, 3);
    assert_eq!(answers.vms[0].vcpus, 1);
}

#[test]
fn interrupts_of_exits_without_an_entry_between_count_in_each_window() {
    let mut trace = Trace::new(&[]);
    trace.exit(1000, 0, 7, 0, INTERRUPT);
    trace.exit(1700, 0, 7, 0, INTERRUPT);
    trace.entry(1800, 0, 7, 0);
    // Whatever handler runs after an exit for something else is not that of the interrupt before.
    trace.exit(1900, 0, 7, 0, INTERRUPT);
    trace.exit(2000, 0, 7, 0, HLT);
    let class = stealtime_events::HostVector::LocalTimer;
    let handler = Kind::VectorEntry { class, vector: 236 };
    trace.irq(2010, 0, 7, handler).entry(2100, 0, 7, 0);
    let counted = |from_ns, to_ns| {
        let answers = trace.within(from_ns, to_ns);
        let rows = answers.interrupts.iter();
        rows.map(|row| (row.name.clone(), row.count))
            .collect::<Vec<_>>()
    };
    let unknown = |count| vec![("unknown".to_owned(), count)];
    assert_eq!(counted(None, None), unknown(3));
    assert_eq!(counted(None, Some(700)), unknown(1));
    assert_eq!(counted(Some(700), None), unknown(2));
}
