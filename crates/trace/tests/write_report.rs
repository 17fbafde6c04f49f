//! What `trace-cmd report` prints of every kind of event that is written.

#[path = "../src/write/tests/kinds.rs"]
mod kinds;

use std::process::Command;

use stealtime_events::{Context, CpuId, Event, Isa, Kind, Names, Tid};
use stealtime_trace::write::{Options, TraceDatWriter};
use stealtime_trace::{Clock, NameTable, Options as ReadOptions, open_read};

/// What trace-cmd says of itself; `None` where it is not installed.
fn version() -> Option<String> {
    let output = Command::new("trace-cmd").arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The events in a file, as `trace-cmd report` prints them; `None` where it is not installed.
fn report(events: &[Event], names: &NameTable) -> Option<Vec<u8>> {
    if version().is_none() {
        eprintln!("skipped: trace-cmd is not installed");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("every.dat");
    let mut file = std::fs::File::create(&path).expect("a file");
    let options = Options {
        clock: Clock {
            name: "mono".into(),
            ..Clock::default()
        },
        ..Options::default()
    };
    let mut writer = TraceDatWriter::new(options).expect("good options");
    for event in events {
        writer.push(event, names).expect("room");
    }
    writer.finish(&mut file).expect("room");
    let mut command = Command::new("trace-cmd");
    let command = command.args(["report", "-t", "-l", "-i"]).arg(&path);
    let output = command.output().expect("trace-cmd runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.success(), &*errors), (true, ""));
    Some(output.stdout)
}

/// Whether a line of text can say it: numbers that are printed signed, no pointer but null, names.
#[rustfmt::skip]
fn is_said(kind: Kind, names: &dyn Names) -> bool {
    let small = |number: u32| i32::try_from(number).is_ok();
    match kind {
        // trace-cmd's own form of kvm_exit does not say that the entry failed; SCAUSE is not read.
        Kind::KvmExit { reason, .. } => reason.name().is_some() && !reason.is_failed_vmentry() && reason.isa != Isa::Riscv,
        // With an error, the reason is not printed.
        Kind::KvmUserspaceExit { errno, .. } => errno >= 0,
        Kind::Other { name } => names.name(name) == "kvm_fpu",
        Kind::SchedSwitch { prev, .. } => prev.0 >= 0,
        Kind::SchedWaking { tid, target_cpu, .. } | Kind::SchedWakeup { tid, target_cpu, .. }
        | Kind::SchedWakeupNew { tid, target_cpu, .. } => tid.0 >= 0 && small(target_cpu),
        Kind::SchedMigrateTask { orig_cpu, dest_cpu, .. } => small(orig_cpu) && small(dest_cpu),
        Kind::IrqHandlerEntry { irq } | Kind::IrqHandlerExit { irq } => small(irq),
        Kind::HrtimerSetup { hrtimer } | Kind::HrtimerCancel { hrtimer } | Kind::HrtimerExpireExit { hrtimer } => hrtimer != 0,
        _ => true,
    }
}

#[test]
fn every_kind_is_printed_and_understood() {
    let mut names = NameTable::default();
    let ids = ["kvm_fpu", "apic_timer_fn", "0xffffffff81000010"].map(|name| names.intern(name));
    let kinds = kinds::every(&ids).into_iter();
    let events: Vec<Event> = (1..)
        .zip(kinds.filter(|kind| is_said(*kind, &names)))
        .map(|(at, kind)| Event {
            time_ns: 5_000_000_000 + at,
            tid: Tid(77),
            cpu: CpuId(1),
            context: Context::from_bits(Context::HARDIRQ),
            kind,
        })
        .collect();
    let Some(text) = report(&events, &names) else {
        return;
    };
    let shown = String::from_utf8_lossy(&text).into_owned();
    for failure in ["FAILED TO PARSE", "FIND FIELD", "UNKNOWN EVENT", "BAD SIZE"] {
        assert!(!shown.contains(failure), "{failure}: {shown}");
    }
    // Other versions print some events in another way.
    if version().is_some_and(|version| version.contains("3.1.6")) {
        insta::assert_snapshot!(shown);
    }
    let input = Box::new(std::io::Cursor::new(text));
    let mut source = open_read("report", input, &ReadOptions::default()).expect("a text");
    let mut back = Vec::new();
    while let Some(event) = source.next_event().expect("a good text") {
        if event.kind.is_host_event() {
            back.push(event);
        }
    }
    assert_eq!(back.len(), events.len());
    let mut differ = Vec::new();
    for (event, back) in events.iter().zip(&back) {
        assert_eq!(
            (event.time_ns, event.cpu, event.tid, event.context),
            (back.time_ns, back.cpu, back.tid, back.context)
        );
        if event.kind.tracepoint() != back.kind.tracepoint() {
            differ.push(format!("{:?} {:?}", event.kind, back.kind));
        }
    }
    assert_eq!(differ, Vec::<String>::new(), "{shown}");
    assert_eq!(source.info().notes, []);
}
