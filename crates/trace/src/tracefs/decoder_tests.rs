//! Records made by hand, decoded.

use stealtime_events::{Context, CpuId, Event, ExitReason, Isa, Kind, Names, Tid, VcpuId};

use super::*;
use crate::{Format, NameTable, SourceInfo};

const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

/// A description from fields in the manner of C, each at the next free place of its alignment.
fn format(name: &str, id: u16, fields: &[&str]) -> String {
    let mut text = format!("name: {name}\nID: {id}\nformat:\n{COMMON}");
    let mut offset = 8;
    for field in fields {
        let (kind, _) = field.rsplit_once(' ').expect("type and name");
        let (size, signed, align) = match kind {
            "u8" | "bool" => (1, 0, 1),
            "u32" | "__data_loc char[]" | "__rel_loc char[]" => (4, 0, 4),
            "int" => (4, 1, 4),
            "char16" => (16, 0, 1),
            "s64" => (8, 1, 8),
            _ => (8, 0, 8),
        };
        offset = (offset + align - 1) / align * align;
        let declared = field.replace("char16 comm", "char comm[16]");
        text += &format!("\tfield:{declared};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n");
        offset += size;
    }
    text + "\nprint fmt: \"\"\n"
}

struct Bench {
    decoder: Decoder,
    names: NameTable,
    info: SourceInfo,
}

impl Bench {
    fn new(endian: Endian, formats: &[(&str, String)]) -> Self {
        let mut all = Formats::default();
        for (system, text) in formats {
            all.add(system, text.as_bytes())
                .expect("a good description");
        }
        let mut names = NameTable::default();
        let symbols = Symbols::new(b"ffffffff81000000 T hrtimer_wakeup\n".to_vec());
        Self {
            decoder: Decoder::new(&all, endian, symbols, &mut names),
            names,
            info: SourceInfo::new(Format::TraceDat(7)),
        }
    }

    fn decode(&mut self, record: &[u8]) -> Vec<Event> {
        let mut out = EventQueue::default();
        let at = Stamp {
            time_ns: 5,
            cpu: CpuId(3),
        };
        self.decoder
            .decode(record, at, &mut self.names, &mut self.info, &mut out);
        std::iter::from_fn(|| out.pop()).collect()
    }
}

/// A record: common part with `common_pid` 70, then the body.
fn record(id: u16, body: &[&[u8]]) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend([Context::HARDIRQ, 1, 70, 0, 0, 0]);
    for part in body {
        bytes.extend(*part);
    }
    bytes
}

fn x86_exit() -> (&'static str, String) {
    let fields = [
        "u32 exit_reason",
        "u64 guest_rip",
        "u32 isa",
        "u64 info1",
        "u64 info2",
        "u32 intr_info",
        "u32 error_code",
        "u32 vcpu_id",
    ];
    ("kvm", format("kvm_exit", 9, &fields))
}

fn exit_record(code: u32, isa: u32, intr_info: u32) -> Vec<u8> {
    let pad = [0; 4];
    record(
        9,
        &[
            &code.to_le_bytes(),
            &pad,
            &[0; 8],
            &isa.to_le_bytes(),
            &pad,
            &7_u64.to_le_bytes(),
            &[0; 8],
            &intr_info.to_le_bytes(),
            &pad,
            &2_u32.to_le_bytes(),
        ],
    )
}

#[test]
fn an_exit_of_vmx_and_of_svm() {
    let mut bench = Bench::new(Endian::Little, &[x86_exit()]);
    let exit = |reason, intr_vector| Event {
        time_ns: 5,
        tid: Tid(70),
        cpu: CpuId(3),
        context: Context::from_bits(Context::HARDIRQ),
        kind: Kind::KvmExit {
            reason,
            vcpu: VcpuId(2),
            intr_vector,
            info1: 7,
        },
    };
    let vmx = bench.decode(&exit_record(1, 1, 0x8000_00ec));
    assert_eq!(vmx, [exit(ExitReason::vmx(1), Some(0xec))]);
    let invalid = bench.decode(&exit_record(1, 1, 0xec));
    assert_eq!(invalid, [exit(ExitReason::vmx(1), None)]);
    let svm = bench.decode(&exit_record(0x60, 2, 0x8000_00ec));
    assert_eq!(svm, [exit(ExitReason::svm(0x60), None)]);
    assert!(bench.info.notes.is_empty());
}

#[test]
fn an_exit_before_5_10_has_no_vcpu() {
    let fields = [
        "u32 exit_reason",
        "u64 guest_rip",
        "u32 isa",
        "u64 info1",
        "u64 info2",
    ];
    let mut bench = Bench::new(Endian::Little, &[("kvm", format("kvm_exit", 9, &fields))]);
    let events = bench.decode(&exit_record(48, 1, 0));
    let Kind::KvmExit {
        vcpu, intr_vector, ..
    } = events[0].kind
    else {
        panic!("{events:?}")
    };
    assert_eq!((vcpu, intr_vector), (VcpuId::UNKNOWN, None));
}

#[test]
fn exits_of_other_architectures() {
    let arm = format("kvm_exit", 9, &["u32 ret", "u32 esr_ec", "u64 vcpu_pc"]);
    let mut bench = Bench::new(Endian::Little, &[("kvm", arm)]);
    let mut code = |ret: u32, esr_ec: u32| {
        let body = record(9, &[&ret.to_le_bytes(), &esr_ec.to_le_bytes(), &[0; 8]]);
        match bench.decode(&body)[0].kind {
            Kind::KvmExit { reason, .. } => {
                assert_eq!(reason.isa, Isa::Arm64);
                reason.name()
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(code(2, 0x24), Some("DABT_LOW"));
    assert_eq!(code(0, 0), Some("IRQ"));
    assert_eq!(code(0xbadca11, 0), Some("HYP_GONE"));
    assert_eq!(code(u32::MAX, 0), None);

    let riscv = format("kvm_exit", 9, &["u64 sepc", "u64 scause", "u64 stval"]);
    let mut bench = Bench::new(Endian::Little, &[("kvm", riscv)]);
    let scause = (1_u64 << 63 | 5).to_le_bytes();
    let events = bench.decode(&record(9, &[&[0; 8], &scause, &[0; 8]]));
    let Kind::KvmExit { reason, .. } = events[0].kind else {
        panic!("{events:?}")
    };
    assert_eq!(reason.name(), Some("SUPERVISOR_TIMER"));
}

#[test]
fn names_of_tasks_come_before_the_event_that_has_them() {
    let wakeup = format(
        "sched_wakeup",
        4,
        &["char16 comm", "int pid", "int prio", "int target_cpu"],
    );
    let migrate = format(
        "sched_migrate_task",
        5,
        &[
            "__data_loc char[] comm",
            "int pid",
            "int prio",
            "int orig_cpu",
            "int dest_cpu",
        ],
    );
    let mut bench = Bench::new(Endian::Little, &[("sched", wakeup), ("sched", migrate)]);
    let pid = 123_u32.to_le_bytes();
    let wake = record(
        4,
        &[
            b"CPU 0/KVM\0\0\0\0\0\0\x07",
            &pid,
            &120_u32.to_le_bytes(),
            &[1, 0, 0, 0],
        ],
    );
    let events = bench.decode(&wake);
    let Kind::Task { tid, process, name } = events[0].kind else {
        panic!("{events:?}")
    };
    assert_eq!(
        (tid, process, bench.names.name(name)),
        (Tid(123), Tid(0), "CPU 0/KVM")
    );
    let woken = Kind::SchedWakeup {
        tid: Tid(123),
        prio: 120,
        target_cpu: 1,
    };
    assert_eq!(events[1].kind, woken);
    assert_eq!(bench.decode(&wake).len(), 1, "known by now");

    // Name behind the fixed part: 28 bytes from the start, 10 long.
    let word = (10_u32 << 16 | 28).to_le_bytes();
    let tail = [
        &word,
        &pid,
        &[1, 0, 0, 0],
        &[0, 0, 0, 0],
        &[2, 0, 0, 0],
        &b"CPU 0/KVM\0"[..],
    ];
    let moved = record(5, &tail);
    assert_eq!(bench.decode(&moved).len(), 1, "the same name");
    let mut renamed = moved.clone();
    renamed[28] = b'X';
    assert_eq!(bench.decode(&renamed).len(), 2);
    let beyond = &moved[..30];
    assert_eq!(
        bench.decode(beyond).len(),
        1,
        "a name beyond the record is left out"
    );
    assert!(bench.info.notes.is_empty());
}

#[test]
fn functions_have_their_names() {
    let fields = ["u64 hrtimer", "u64 function", "s64 expires"];
    let mut bench = Bench::new(
        Endian::Little,
        &[("timer", format("hrtimer_start", 7, &fields))],
    );
    let address = 0xffff_ffff_8100_0000_u64.to_le_bytes();
    let events = bench.decode(&record(7, &[&[1; 8], &address, &77_u64.to_le_bytes()]));
    let Kind::HrtimerStart {
        expires_ns,
        function,
        ..
    } = events[0].kind
    else {
        panic!("{events:?}")
    };
    assert_eq!(
        (expires_ns, bench.names.name(function)),
        (77, "hrtimer_wakeup")
    );
}

#[test]
fn renamed_tracepoints_are_the_same_events() {
    let ple = format(
        "kvm_ple_window",
        1,
        &["bool grow", "u32 vcpu_id", "int new", "int old"],
    );
    let virq = format("kvm_inj_virq", 2, &["u32 irq"]);
    let mut bench = Bench::new(Endian::Little, &[("kvm", ple), ("kvm", virq)]);
    let events = bench.decode(&record(
        1,
        &[&[1, 0, 0, 0], &[3, 0, 0, 0], &[9, 0, 0, 0], &[4, 0, 0, 0]],
    ));
    let expected = Kind::KvmPleWindowUpdate {
        vcpu: VcpuId(3),
        new: 9,
        old: 4,
    };
    assert_eq!(events[0].kind, expected);
    let events = bench.decode(&record(2, &[&[0xec, 0, 0, 0]]));
    let expected = Kind::KvmInjVirq {
        vector: 0xec,
        soft: false,
        reinjected: false,
    };
    assert_eq!(events[0].kind, expected);
}

#[test]
fn what_cannot_be_decoded_is_counted_under_its_name_and_noted() {
    let lacking = ("kvm", format("kvm_eoi", 1, &["u32 apicid"]));
    let foreign = ("synthetic", format("sched_switch", 2, &["u64 prev_pid"]));
    let mut bench = Bench::new(Endian::Little, &[lacking, foreign, x86_exit()]);
    let other = |bench: &mut Bench, record: &[u8]| match bench.decode(record)[..] {
        [
            Event {
                kind: Kind::Other { name },
                ..
            },
        ] => bench.names.name(name).to_owned(),
        ref other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        assert_eq!(other(&mut bench, &record(1, &[&[0; 8]])), "kvm_eoi");
    }
    assert_eq!(other(&mut bench, &record(2, &[&[0; 8]])), "sched_switch");
    assert_eq!(bench.info.notes.len(), 1);
    assert!(bench.info.notes[0].text.contains("no field vector"));
    assert!(!bench.info.is_partial());

    let whole = exit_record(48, 1, 0);
    for end in 2..whole.len() {
        assert_eq!(other(&mut bench, &whole[..end]), "kvm_exit", "{end}");
    }
    assert!(bench.info.is_partial());
    // Numbers of another module (`kvm_pvm`) are those of no table that is known.
    let exits = bench.decode(&exit_record(48, 3, 0));
    let reason = |kind| match kind {
        Kind::KvmExit { reason, .. } => (reason.code, reason.name()),
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(exits[0].kind), (48, None));
    assert_eq!(other(&mut bench, &record(77, &[])), "unknown-77");
    assert_eq!(other(&mut bench, &[9]), "unknown");
    assert_eq!(other(&mut bench, &[]), "unknown");
}

#[test]
fn a_big_endian_file() {
    let mut bench = Bench::new(
        Endian::Big,
        &[(
            "kvm",
            format("kvm_eoi", 0x102, &["u32 apicid", "int vector"]),
        )],
    );
    let events = bench.decode(&[1, 2, 0, 0, 0, 0, 0, 70, 0, 0, 0, 9, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(events[0].tid, Tid(70));
    let expected = Kind::KvmEoi {
        apicid: 9,
        vector: -1,
    };
    assert_eq!(events[0].kind, expected);
}

#[test]
fn a_process_is_kept_when_only_the_name_changes() {
    let mut bench = Bench::new(Endian::Little, &[x86_exit()]);
    let at = Stamp {
        time_ns: 0,
        cpu: CpuId(0),
    };
    let mut out = EventQueue::default();
    for (process, comm) in [
        (Some(Tid(70)), &b"qemu"[..]),
        (None, b"qemu"),
        (None, b"CPU 1/KVM"),
    ] {
        bench
            .decoder
            .task_named(Tid(77), process, comm, at, &mut bench.names, &mut out);
    }
    let named: Vec<_> = std::iter::from_fn(|| out.pop())
        .map(|event| event.kind)
        .collect();
    assert_eq!(named.len(), 2);
    assert!(named.iter().all(|kind| matches!(
        kind,
        Kind::Task {
            process: Tid(70),
            ..
        }
    )));
}

/// A description of every tracepoint that is read, its fields in a mix of sizes, IDs from 1.
fn every_event() -> Vec<(&'static str, String)> {
    use crate::tracepoint::{Role, all};
    let events = (1..).zip(all()).map(|(id, tracepoint)| {
        let mut sizes = ["u32", "u64", "int", "u8", "s64"].into_iter().cycle();
        let fields: Vec<String> = tracepoint
            .fields
            .iter()
            .filter_map(|field| match (field.role, field.name()) {
                (Role::Unread, _) => None,
                (Role::Value { .. }, name) => Some(format!("{} {name}", sizes.next()?)),
                (Role::Comm { .. }, name) => Some(format!("__data_loc char[] {name}")),
            })
            .collect();
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        (tracepoint.system, format(tracepoint.name, id, &fields))
    });
    events.collect()
}

/// Lines like those of a description.
const LINES: &str = "(name: [a-z]{0,3}\n|ID: [0-9-]{0,6}\n|\
    \tfield:[ a-z\\[\\]0-9_]{0,12};\t(offset|size):[0-9-]{0,11};|\n|.){0,12}";

proptest::proptest! {
    #[test]
    fn any_record_is_one_event(
        id in 0_u16..90,
        body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..90),
        cut in 0_usize..100,
        big in proptest::prelude::any::<bool>(),
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let mut bench = Bench::new(endian, &every_event());
        let mut bytes = record(id, &[&body]);
        if big {
            bytes[..2].reverse();
        }
        bytes.truncate(cut);
        let events = bench.decode(&bytes);
        let counted = events.iter().filter(|event| event.kind.is_host_event()).count();
        proptest::prop_assert_eq!(counted, 1);
        // The counted event comes last: names come before the events that need them.
        proptest::prop_assert!(events.last().is_some_and(|event| event.kind.is_host_event()));
        let typed = events.last().and_then(|event| event.kind.tracepoint()).is_some();
        proptest::prop_assert!(typed || bench.info.notes.len() == 1 || only_named(&bench, &events));
    }

    #[test]
    fn any_text_is_a_description_or_an_error(text in LINES) {
        let _ = format::parse("s", text.as_bytes());
    }
}

/// Whether the record became a name without a note because nothing more is read of its event.
fn only_named(bench: &Bench, events: &[Event]) -> bool {
    events.iter().any(|event| match event.kind {
        Kind::Other { name } => bench.names.name(name) == "task_rename",
        _ => false,
    })
}

/// What is not in a description is unknown, and never 0.
#[test]
fn what_a_description_lacks_is_unknown() {
    let (system, text) = x86_exit();
    let lines = text.lines().filter(|line| !line.contains("common_flags"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let mut bench = Bench::new(Endian::Little, &[(system, text)]);
    let events = bench.decode(&exit_record(1, 1, 0));
    assert_eq!(
        (events[0].context, events[0].tid),
        (Context::UNKNOWN, Tid(70))
    );

    let switch = |fields: &[&str]| {
        let mut bench = Bench::new(
            Endian::Little,
            &[("sched", format("sched_switch", 9, fields))],
        );
        let events = bench.decode(&record(9, &[&[0; 64]]));
        let notes = bench.info.notes.iter().map(|note| note.text.clone());
        (events[0].kind, notes.collect::<Vec<_>>())
    };
    let fields = [
        "int prev_pid",
        "int prev_prio",
        "int next_pid",
        "int next_prio",
        "s64 prev_state",
    ];
    let (whole, notes) = switch(&fields);
    assert!(matches!(whole, Kind::SchedSwitch { .. }) && notes.is_empty());
    // A task that was switched out in an unknown state would else count as preempted.
    let (kind, notes) = switch(&fields[..4]);
    assert!(matches!(kind, Kind::Other { .. }), "{kind:?}");
    assert_eq!(
        notes,
        ["sched_switch: its format has no field prev_state; what needs it is left out"]
    );
}

/// An event without a description happens in the context of the task that its entry begins with: as the idle
/// task's it would end the current one.
#[test]
fn an_event_without_a_description_is_of_its_task() {
    let mut bench = Bench::new(Endian::Little, &[x86_exit()]);
    let of = |event: Event| (event.tid, event.context);
    let hardirq = Context::from_bits(Context::HARDIRQ);
    let events = bench.decode(&record(77, &[]));
    assert_eq!(of(events[0]), (Tid(70), hardirq));
    // Too short to say.
    let events = bench.decode(&record(77, &[])[..6]);
    assert_eq!(of(events[0]), (Tid::IDLE, Context::UNKNOWN));
}
