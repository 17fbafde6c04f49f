//! Sound beginnings of a trace.dat, made by the writer of the product, with a few tracepoints each.

use std::sync::LazyLock;

use stealtime_events::{Context, CpuId, Event, ExitReason, Isa, Kind, Tid, VcpuId};
use stealtime_trace::NameTable;
use stealtime_trace::write::{Compression, Options, TraceDatWriter, Version};

#[path = "../../crates/trace/src/write/tests/kinds.rs"]
mod kinds;

/// CPUs with data in each file.
pub const CPUS: usize = 2;
/// Bytes of a page in the files made here: few, so that a short input has several.
pub const PAGE: usize = 512;
/// Bytes of a page as the writer makes them.
const WRITTEN_PAGE: usize = 4096;
/// Kinds of events of a file, next to those that every analysis needs.
const KINDS: usize = 8;
/// Threads of two vCPUs; and the process of both.
pub const VCPUS: [i32; 2] = [70, 71];
const PROCESS: i32 = 69;

/// A tracepoint of a file: the number of its records, and their length in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    pub id: u16,
    pub len: usize,
}

/// The beginning of a file, and what its records may be.
pub struct Head {
    /// Up to the data of the first CPU.
    pub bytes: Vec<u8>,
    /// Where each CPU's position and length stand in `bytes`, in words of 8 bytes.
    pub places: [usize; CPUS],
    pub points: Vec<Point>,
    /// Whether the data are chunks of zstd.
    pub packed: bool,
}

impl Head {
    /// Whether the file is of version 6.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.bytes.get(10) == Some(&b'6')
    }

    /// In version 6: byte order to saved command lines, as perf has them too.
    #[must_use]
    pub fn description(&self) -> &[u8] {
        let options = find(&self.bytes, b"options  \0");
        // Before the options stands the number of CPUs.
        &self.bytes[12..options - 4]
    }
}

/// A beginning for each group of kinds and each form.
pub static HEADS: LazyLock<Vec<Head>> = LazyLock::new(|| {
    let mut names = NameTable::default();
    let ids = ["kvm_fpu", "apic_timer_fn"].map(|name| names.intern(name));
    let mut all = kinds::every(&ids);
    let mut seen = Vec::new();
    all.retain(|kind| {
        let name = (kind.tracepoint(), variant(kind));
        let is_new = !seen.contains(&name);
        seen.push(name);
        is_new
    });
    let forms = [
        (Version::V6, Compression::None),
        (Version::V7, Compression::None),
        (Version::V7, Compression::Zstd),
    ];
    let mut heads = Vec::new();
    for kinds in all.chunks(KINDS) {
        for (version, compression) in forms {
            let options = Options {
                version,
                compression,
                ..Options::default()
            };
            heads.push(head(kinds, options, &mut names));
        }
    }
    heads
});

/// Kinds of one name have one description for each instruction set.
fn variant(kind: &Kind) -> Option<Isa> {
    match kind {
        Kind::KvmExit { reason, .. } => Some(reason.isa),
        _ => None,
    }
}

/// What each analysis needs: a vCPU enters, exits, is switched and is woken.
fn basic() -> [Kind; 4] {
    let (prev, next) = (Tid(0), Tid(VCPUS[0]));
    [
        Kind::KvmEntry { vcpu: VcpuId(0) },
        Kind::KvmExit {
            reason: ExitReason {
                isa: Isa::Vmx,
                code: 12,
            },
            vcpu: VcpuId(0),
            intr_vector: None,
            info1: 0,
        },
        Kind::SchedSwitch {
            prev,
            next,
            prev_prio: 120,
            next_prio: 120,
            prev_state: 0,
        },
        Kind::SchedWaking {
            tid: next,
            prio: 120,
            target_cpu: 0,
        },
    ]
}

fn head(kinds: &[Kind], options: Options, names: &mut NameTable) -> Head {
    let (version, compression) = (options.version, options.compression);
    let vm = names.intern("guest one");
    let task = names.intern("CPU 0/KVM");
    let mut writer = TraceDatWriter::new(options).expect("good options");
    let mut push = |cpu: usize, kind: Kind, names: &NameTable| {
        let cpu = CpuId(u16::try_from(cpu).expect("few CPUs"));
        let event = Event {
            time_ns: 1,
            tid: Tid(0),
            cpu,
            context: Context::default(),
            kind,
        };
        writer.push(&event, names).expect("room");
    };
    for (vcpu, tid) in (0..).zip(VCPUS.map(Tid)) {
        push(
            0,
            Kind::Task {
                tid,
                process: Tid(PROCESS),
                name: task,
            },
            names,
        );
        push(
            0,
            Kind::VcpuThread {
                tid,
                vm,
                vcpu: VcpuId(vcpu),
            },
            names,
        );
    }
    for cpu in 0..CPUS {
        for kind in basic().iter().chain(kinds) {
            push(cpu, *kind, names);
        }
    }
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).expect("memory");
    let places = table(&bytes, version);
    let start = usize::try_from(word(&bytes, places[0])).expect("a short file");
    bytes.truncate(start);
    shrink_pages(&mut bytes, version, places[0]);
    let points = points(&bytes);
    Head {
        bytes,
        places,
        points,
        packed: compression == Compression::Zstd,
    }
}

/// Where the position of each CPU's data stands.
fn table(bytes: &[u8], version: Version) -> [usize; CPUS] {
    match version {
        // Position and length of each CPU.
        Version::V6 => {
            let start = find(bytes, b"flyrecord\0") + 10;
            std::array::from_fn(|cpu| start + 16 * cpu)
        }
        // Page size and number of CPUs; then number, position and length of each.
        Version::V7 => {
            let [page, cpus] = [WRITTEN_PAGE, CPUS].map(|value| (value as u32).to_le_bytes());
            let start = find(bytes, &[page, cpus, [0; 4]].concat()) + 8;
            std::array::from_fn(|cpu| start + 20 * cpu + 4)
        }
    }
}

/// Describes pages of [`PAGE`] bytes.
fn shrink_pages(bytes: &mut [u8], version: Version, first_place: usize) {
    let text = format!("size:{};", WRITTEN_PAGE - 16);
    let place = find(bytes, text.as_bytes());
    let shorter = format!("size:{:04};", PAGE - 16);
    bytes[place..place + shorter.len()].copy_from_slice(shorter.as_bytes());
    // The page size of the file: behind magic, version, byte order and size of a long.
    bytes[14..18].copy_from_slice(&(PAGE as u32).to_le_bytes());
    if version == Version::V7 {
        let place = first_place - 12;
        bytes[place..place + 4].copy_from_slice(&(PAGE as u32).to_le_bytes());
    }
}

/// The tracepoints that a file describes.
fn points(bytes: &[u8]) -> Vec<Point> {
    let text = String::from_utf8_lossy(bytes);
    let number = |text: &str| -> usize {
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        text[..end].parse().expect("a number")
    };
    let point = |text: &str| {
        let id = u16::try_from(number(text)).expect("16 bits");
        let text = &text[..text.find("print fmt").unwrap_or(text.len())];
        let offset = text
            .rsplit_once("offset:")
            .map_or(0, |(_, text)| number(text));
        let size = text
            .rsplit_once("size:")
            .map_or(0, |(_, text)| number(text));
        Point {
            id,
            len: (offset + size).next_multiple_of(4),
        }
    };
    text.split("\nID: ").skip(1).map(point).collect()
}

fn find(bytes: &[u8], part: &[u8]) -> usize {
    let mut windows = bytes.windows(part.len());
    windows
        .position(|window| window == part)
        .expect("a file of the writer")
}

fn word(bytes: &[u8], place: usize) -> u64 {
    let bytes = bytes[place..place + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(bytes)
}
