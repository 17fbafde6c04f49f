//! Files made by hand: both byte orders, both modes, packed records, and damage.

use std::io::Cursor;

use stealtime_events::{CpuId, Kind, Names};

use super::*;

/// Bits of `sample_type`: IP, TID, TIME, READ, CALLCHAIN, CPU, PERIOD, RAW, IDENTIFIER.
const SAMPLE_TYPE: u64 = 0x1_05b7;
/// `read_format`: both times, id and lost, of one counter.
const READ_FORMAT: u64 = 0b1_0111;

/// Writes numbers in one byte order.
#[derive(Clone, Copy)]
struct Order(Endian);

impl Order {
    fn u16(self, value: u16) -> Vec<u8> {
        let bytes = value.to_le_bytes();
        self.turn(&bytes)
    }

    fn u32(self, value: u32) -> Vec<u8> {
        self.turn(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Vec<u8> {
        self.turn(&value.to_le_bytes())
    }

    fn turn(self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if self.0 == Endian::Big {
            bytes.reverse();
        }
        bytes
    }

    fn words(self, words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| self.u64(*word)).collect()
    }

    fn record(self, kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let len = u16::try_from(8 + body.len()).expect("a short record");
        [self.u32(kind), self.u16(misc), self.u16(len), body.to_vec()].concat()
    }

    /// `sample_id`: TID, TIME, CPU, IDENTIFIER.
    fn sample_id(self, tid: u32, time: u64, cpu: u32) -> Vec<u8> {
        let ids = [
            self.u32(tid),
            self.u32(tid),
            self.u64(time),
            self.u32(cpu),
            self.u32(0),
        ];
        [ids.concat(), self.u64(11)].concat()
    }

    /// A `local_timer_entry` of this vector.
    fn sample(self, time: u64, cpu: u32, misc: u16, vector: u32) -> Vec<u8> {
        let raw = [self.u16(77), vec![1, 0], self.u32(42), self.u32(vector)].concat();
        let body = [
            self.u64(11),
            self.u64(0xffff),
            self.u32(40),
            self.u32(42),
            self.u64(time),
            self.u32(cpu),
            self.u32(0),
            self.u64(1),
            self.words(&[5, 6, 7, 11, 0]),
            self.words(&[2, 0xaaaa, 0xbbbb]),
            self.u32(u32::try_from(raw.len()).expect("short")),
            raw,
        ];
        self.record(kind::SAMPLE, misc, &body.concat())
    }

    fn attr(self) -> Vec<u8> {
        // sample_id_all is bit 18 of a bit field.
        let flags: u64 = 1 << 18;
        let flags = if self.0 == Endian::Big {
            flags.reverse_bits()
        } else {
            flags
        };
        let head = [self.u32(2), self.u32(136)].concat();
        let words = self.words(&[77, 1, SAMPLE_TYPE, READ_FORMAT, flags]);
        let mut attr = [head, words].concat();
        attr.resize(136, 0);
        attr
    }

    fn tracing(self) -> Vec<u8> {
        let sized = |text: &[u8]| [self.u64(text.len() as u64), text.to_vec()].concat();
        let format = b"name: local_timer_entry\nID: 77\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:int vector;\toffset:8;\tsize:4;\tsigned:1;\n\nprint fmt: \"\"\n";
        [
            b"\x17\x08\x44tracing0.6\0".to_vec(),
            vec![u8::from(self.0 == Endian::Big), 8],
            self.u32(4096),
            b"header_page\0".to_vec(),
            sized(b"x"),
            b"header_event\0".to_vec(),
            sized(b""),
            self.u32(0),
            self.u32(1),
            b"irq_vectors\0".to_vec(),
            self.u32(1),
            sized(format),
            self.u32(0),
            self.u32(0),
            sized(b"42 qemu\n"),
        ]
        .concat()
    }

    /// Two rounds of two CPUs, a loss, a name.
    fn records(self) -> Vec<u8> {
        let comm = [
            self.u32(40),
            self.u32(41),
            b"CPU 0/KVM\0\0\0\0\0\0\0".to_vec(),
        ]
        .concat();
        let lost = self.words(&[11, 3]);
        let round = self.record(kind::FINISHED_ROUND, 0, &[]);
        [
            self.record(kind::COMM, 0, &[comm, self.sample_id(41, 0, 0)].concat()),
            self.sample(1000, 0, 1, 236),
            self.sample(3000, 0, 4, 238),
            self.sample(2000, 1, 1, 237),
            round.clone(),
            self.sample(5000, 0, 1, 240),
            self.record(kind::LOST, 0, &[lost, self.sample_id(42, 4000, 1)].concat()),
            self.sample(4500, 1, 5, 239),
            round,
            self.record(
                kind::LOST_SAMPLES,
                0,
                &[self.u64(9), self.sample_id(0, 0, 0)].concat(),
            ),
        ]
        .concat()
    }

    fn file(self, records: &[u8]) -> Vec<u8> {
        let magic: &[u8] = if self.0 == Endian::Big {
            b"2ELIFREP"
        } else {
            b"PERFILE2"
        };
        let tracing = self.tracing();
        let (attrs, ids) = (104, 104 + 152);
        let data = ids + 8;
        let table = data + records.len() as u64;
        [
            magic.to_vec(),
            self.words(&[
                104,
                152,
                attrs,
                152,
                data,
                records.len() as u64,
                0,
                0,
                1 << 1,
                0,
                0,
                0,
            ]),
            self.attr(),
            self.words(&[ids, 8, 11]),
            records.to_vec(),
            self.words(&[table + 16, tracing.len() as u64]),
            tracing,
        ]
        .concat()
    }

    fn pipe(self, records: &[u8]) -> Vec<u8> {
        let magic: &[u8] = if self.0 == Endian::Big {
            b"2ELIFREP"
        } else {
            b"PERFILE2"
        };
        let mut tracing = self.tracing();
        let len = u32::try_from(tracing.len()).expect("short");
        tracing.resize(tracing.len().next_multiple_of(8), 0);
        [
            magic.to_vec(),
            self.u64(16),
            self.record(kind::HEADER_ATTR, 0, &[self.attr(), self.u64(11)].concat()),
            self.record(kind::TRACING_DATA, 0, &self.u32(len)),
            tracing,
            records.to_vec(),
        ]
        .concat()
    }
}

const LITTLE: Order = Order(Endian::Little);

/// For recordings that need no formats of another one.
fn no_formats(path: &Path) -> Result<TracingData, ReadError> {
    panic!("{} is not needed", path.display())
}

fn open_file(bytes: &[u8]) -> Result<PerfSource, ReadError> {
    PerfSource::file(
        Stored::from_bytes("test", bytes),
        &Options::default(),
        no_formats,
    )
}

fn open_pipe(bytes: &[u8]) -> Result<PerfSource, ReadError> {
    let input = Box::new(Cursor::new(bytes.to_vec()));
    PerfSource::pipe(
        Stream::new("test".into(), input, None, None)?,
        &Options::default(),
    )
}

/// Events as text, and what is known of them.
fn read(mut source: PerfSource) -> (Vec<String>, SourceInfo) {
    let mut events = Vec::new();
    while let Some(event) = source.next_event().expect("memory reads") {
        let text = match event.kind {
            Kind::Task { tid, process, name } => {
                format!("{} is {} of {}", tid.0, source.names.name(name), process.0)
            }
            Kind::VectorEntry { vector, .. } => format!("{vector} on {}", event.cpu.0),
            Kind::Lost { count } => format!("{count} lost on {}", event.cpu.0),
            other => format!("{other:?}"),
        };
        events.push(format!("{}: {text}", event.time_ns));
    }
    (events, source.info.clone())
}

const EXPECTED: [&str; 8] = [
    "1000: 41 is CPU 0/KVM of 40",
    "1000: 236 on 0",
    "2000: 237 on 1",
    "3000: 238 on 0",
    "4000: 3 lost on 1",
    "4500: 239 on 1",
    "5000: 240 on 0",
    "",
];

fn check(source: PerfSource) -> SourceInfo {
    let (events, info) = read(source);
    let events: Vec<&str> = events
        .iter()
        .map(String::as_str)
        .filter(|text| !text.contains("qemu"))
        .collect();
    assert_eq!(events, EXPECTED[..7]);
    assert_eq!(info.lost.counted, 9, "LOST_SAMPLES says more than LOST");
    assert_eq!(info.recorded, ["local_timer_entry"]);
    assert_eq!((info.out_of_order, info.clock.name.as_str()), (0, "perf"));
    assert!(
        info.notes
            .iter()
            .any(|note| note.text.starts_with("2 of 5 samples bear"))
    );
    assert!(!info.is_partial(), "{:?}", info.notes);
    info
}

#[test]
fn both_byte_orders_and_modes() {
    for order in [LITTLE, Order(Endian::Big)] {
        let records = order.records();
        let info = check(open_file(&order.file(&records)).expect("a file"));
        assert_eq!(info.format, Format::PerfData);
        let info = check(open_pipe(&order.pipe(&records)).expect("a pipe"));
        assert_eq!(info.format, Format::PerfPipe);
    }
}

#[test]
fn nothing_is_left_out_where_entries_are_not_recorded() {
    let file = LITTLE.file(&LITTLE.records());
    let options = Options {
        only: Some(vec!["kvm_exit"]),
        ..Options::default()
    };
    let stored = Stored::from_bytes("test", &file);
    let info = check(PerfSource::file(stored, &options, no_formats).expect("a file"));
    assert_eq!((info.counted, info.late), (Vec::new(), None));
}

#[test]
fn packed_records_are_one_stream() {
    let records = LITTLE.records();
    let packed = zstd::encode_all(&records[..], 1).expect("memory");
    // Records and the zstd stream are cut anywhere, as perf does.
    for part in [7, 50, packed.len()] {
        let old: Vec<u8> = packed
            .chunks(part)
            .flat_map(|part| LITTLE.record(81, 0, part))
            .collect();
        check(open_file(&LITTLE.file(&old)).expect("a file"));
        let new = |part: &[u8]| {
            let mut body = [LITTLE.u64(part.len() as u64), part.to_vec()].concat();
            body.resize(body.len().next_multiple_of(8), 0);
            LITTLE.record(83, 0, &body)
        };
        let new: Vec<u8> = packed.chunks(part).flat_map(new).collect();
        check(open_pipe(&LITTLE.pipe(&new)).expect("a pipe"));
    }
}

#[test]
fn packed_zeros_cost_no_memory() {
    // 256 MiB of records of one kind that means nothing, packed into little.
    let block: Vec<u8> = LITTLE.record(99, 0, &[0; 1016]).repeat(1024);
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
    for _ in 0..256 {
        std::io::Write::write_all(&mut encoder, &block).expect("memory");
    }
    let packed = encoder.finish().expect("memory");
    let records: Vec<u8> = packed
        .chunks(60_000)
        .flat_map(|part| LITTLE.record(81, 0, part))
        .collect();
    let (events, info) = read(open_file(&LITTLE.file(&records)).expect("a file"));
    assert!(
        events.iter().all(|event| event.contains("qemu")),
        "{events:?}"
    );
    assert!(!info.is_partial());
}

#[test]
fn aux_data_are_passed_over() {
    let aux = [
        LITTLE.record(71, 0, &LITTLE.words(&[24, 0, 0, 0, 0])),
        vec![0xff; 24],
    ]
    .concat();
    check(open_file(&LITTLE.file(&[aux, LITTLE.records()].concat())).expect("a file"));
}

#[test]
fn a_file_that_was_not_finished_is_read_to_its_end() {
    let mut file = LITTLE.file(&LITTLE.records());
    let records = LITTLE.records().len();
    file[48..56].fill(0);
    file.truncate(104 + 152 + 8 + records);
    let (events, info) = read(open_file(&file).expect("a readable part"));
    assert_eq!(events.len(), 7);
    assert!(info.is_partial());
    let has = |part: &str| info.notes.iter().any(|note| note.text.contains(part));
    assert!(has("was killed before") && has("formats of 1 tracepoints are missing"));
}

#[test]
fn a_record_without_length_ends_the_reading() {
    let records = [
        LITTLE.records(),
        vec![9, 0, 0, 0, 1, 0, 0, 0],
        LITTLE.records(),
    ]
    .concat();
    let (events, info) = read(open_file(&LITTLE.file(&records)).expect("a file"));
    assert_eq!(
        events.iter().filter(|event| event.contains(" on ")).count(),
        6
    );
    assert!(
        info.notes
            .iter()
            .any(|note| note.partial && note.text.contains("has 0 bytes"))
    );
}

#[test]
fn any_cut_or_flip_is_survived() {
    let read_all = |source: Result<PerfSource, ReadError>| {
        let Ok(mut source) = source else { return 0 };
        let mut given = 0;
        while let Ok(Some(_)) = source.next_event() {
            given += 1;
            assert!(given < 1000);
        }
        given
    };
    let (file, pipe) = (
        LITTLE.file(&LITTLE.records()),
        LITTLE.pipe(&LITTLE.records()),
    );
    for at in 0..file.len() {
        read_all(open_file(&file[..at]));
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = file.clone();
            bytes[at] ^= flip;
            read_all(open_file(&bytes));
        }
    }
    for at in 0..pipe.len() {
        read_all(open_pipe(&pipe[..at]));
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = pipe.clone();
            bytes[at] ^= flip;
            read_all(open_pipe(&bytes));
        }
    }
}

#[test]
fn a_cut_file_is_never_whole() {
    let file = LITTLE.file(&LITTLE.records());
    for at in 0..file.len() {
        if let Ok(source) = open_file(&file[..at]) {
            let (_, info) = read(source);
            assert!(
                info.is_partial(),
                "cut at {at} of {}: {:?}",
                file.len(),
                info.notes
            );
        }
    }
}

#[test]
fn a_header_with_nonsense_is_an_error_with_its_place() {
    let file = LITTLE.file(&LITTLE.records());
    for (at, value, problem) in [
        (8, 103, "103 bytes, not 104"),
        (16, 8, "attributes of 8 bytes"),
        (32, u64::MAX, "attributes; at most"),
        (40, 1 << 40, "records begin at 1099511627776"),
    ] {
        let mut bytes = file.clone();
        bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        let error = open_file(&bytes).err().expect("an error").to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn cpus_beyond_what_an_event_holds_are_no_other_cpu() {
    assert_eq!(decode::cpu(Some(70_000)), CpuId(u16::MAX));
    assert_eq!(decode::cpu(None), CpuId(0));
}
