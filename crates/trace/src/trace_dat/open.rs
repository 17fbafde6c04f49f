//! From a file's description to the streams of its CPUs.

use stealtime_events::{CpuId, NameId, Tid, VcpuId};

use super::cpu::{CpuStream, Feed, Plan, Scale, Ticks};
use super::input::Source;
use super::meta::Meta;
use super::options::{Buffer, CpuData, TscToNs};
use super::page::PageLayout;
use crate::tracefs::Decoder;
use crate::{Clock, ClockUnit, NameTable, SourceInfo};

/// Largest page (sub-buffer) in bytes. `buffer_subbuf_size_kb` allows 128 pages of 4 KiB.
const MAX_PAGE: usize = 1 << 20;
/// CPUs of all buffers together that are read. Bounds the memory for a damaged file.
const MAX_STREAMS: usize = 4096;
/// Bytes of the runs of pages of all CPUs together, and of the largest run. Those of 16 CPUs fit into a
/// second-level cache of 1 MiB.
const RUNS: usize = 48 << 20;
const RUN: usize = 64 << 10;
/// The same for unpacked chunks, and the smallest limit of a chunk.
const CHUNKS: usize = 128 << 20;
const CHUNK: usize = 4 << 20;
const MIN_CHUNK: usize = 64 << 10;
/// A host's tracefs has more systems than this. A file with fewer describes the events that the user
/// chose.
const CHOSEN_SYSTEMS: usize = 30;

/// The parts of a reader, at the first byte of each CPU's data.
pub(super) struct Opened {
    pub(super) feed: Feed,
    pub(super) info: SourceInfo,
    pub(super) names: NameTable,
    pub(super) decoder: Decoder,
    pub(super) streams: Vec<CpuStream>,
    pub(super) preface: Preface,
    /// Name and clock of each buffer, in the order of the file.
    pub(super) buffers: Vec<(String, String)>,
}

/// Tasks that the file names outside of events.
#[derive(Debug, Default)]
pub(super) struct Preface {
    /// Lines of `saved_cmdlines`: a thread's id and name.
    pub(super) cmdlines: Vec<u8>,
    /// Lines of `saved_tgids`: the ids of a thread and its process.
    pub(super) tgids: Vec<u8>,
    pub(super) vcpus: Vec<(NameId, VcpuId, Tid)>,
}

/// Makes the parts of a reader from a file's description.
pub(super) fn open(source: Source, mut meta: Meta, mut info: SourceInfo) -> Opened {
    let options = &meta.options;
    let top = meta
        .buffers
        .iter()
        .find(|(buffer, _)| buffer.name.is_empty());
    let top_clock = top
        .map(|(buffer, _)| buffer.clock.clone())
        .unwrap_or_default();
    let name = if top_clock.is_empty() {
        options.clock.clone()
    } else {
        top_clock
    };
    let (clock, tsc) = clock(name, options.tsc);
    info.uname = options.uname.clone();
    info.snapshot = options.snapshot.clone();
    info.cpus = options.cpus;
    let scale = Scale {
        ticks: tsc.map_or(Ticks::None, Ticks::Tsc),
        offset: options.time_offset,
    };
    let plans = plans(&source, &meta, scale, &mut info);
    for (buffer, _) in &mut meta.buffers {
        if buffer.clock.is_empty() {
            buffer.clock.clone_from(&clock.name);
        }
    }
    info.clock = clock;
    let chosen = (1..CHOSEN_SYSTEMS).contains(&meta.systems);
    let events = meta
        .formats
        .events()
        .iter()
        .filter(|event| chosen && &*event.system != "ftrace");
    info.recorded = events.map(|event| event.name.to_string()).collect();
    info.recorded.sort_unstable();

    for format in meta.formats.events() {
        info.note_name(&format.name);
    }
    let mut names = NameTable::default();
    let decoder = Decoder::new(&meta.formats, meta.endian, meta.symbols, &mut names);
    if meta.formats.events().is_empty() {
        info.note(
            true,
            "the file describes no events: their names and fields are not known",
        );
    }
    let mut preface = Preface {
        cmdlines: meta.cmdlines,
        tgids: std::mem::take(&mut meta.options.tgids),
        ..Preface::default()
    };
    for guest in &meta.options.guests {
        let vm = names.intern(&guest.name);
        let vcpus = guest
            .vcpus
            .iter()
            .map(|(vcpu, pid)| (vm, VcpuId(*vcpu), Tid(*pid)));
        preface.vcpus.extend(vcpus);
    }
    let shifts = meta.options.shifts;
    let stream = |(index, plan): (usize, Plan)| {
        let shift = shifts.get(usize::from(plan.cpu.0)).cloned();
        CpuStream::new(index, plan, shift.unwrap_or_default())
    };
    Opened {
        feed: Feed {
            source,
            compression: meta.compression,
            packed: Vec::new(),
            unpacker: None,
        },
        info,
        names,
        decoder,
        streams: plans.into_iter().enumerate().map(stream).collect(),
        preface,
        buffers: meta
            .buffers
            .into_iter()
            .map(|(buffer, _)| (buffer.name, buffer.clock))
            .collect(),
    }
}

/// The clock, and the conversion of its ticks where the file has one.
fn clock(name: String, tsc: Option<TscToNs>) -> (Clock, Option<TscToNs>) {
    // kernel/trace/trace.c, `trace_clocks`: those that are not `in_ns`.
    let ticks = matches!(&*name, "x86-tsc" | "counter" | "uptime" | "ppc-tb");
    let tsc = tsc.filter(|_| name == "x86-tsc" || name.is_empty());
    // ns = ticks * mult / 2^shift, and kHz are ticks in 10^6 ns.
    let khz = tsc.map(|TscToNs { mult, shift }| (1_000_000_u128 << shift) / u128::from(mult));
    let clock = Clock {
        name,
        unit: if ticks && tsc.is_none() {
            ClockUnit::Ticks
        } else {
            ClockUnit::Ns
        },
        tsc_khz: khz.and_then(|khz| u64::try_from(khz).ok()),
    };
    (clock, tsc)
}

/// One plan for each CPU that has data, in the order of the file.
fn plans(source: &Source, meta: &Meta, scale: Scale, info: &mut SourceInfo) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut places = Vec::new();
    let mut budget = source.len;
    for (index, (buffer, compressed)) in meta.buffers.iter().enumerate() {
        let Some(layout) = layout(meta, buffer, info) else {
            continue;
        };
        for data in buffer.cpus.iter().filter(|data| data.size != 0) {
            // `trace-cmd convert` may list the top buffer twice.
            if places.contains(&(data.offset, data.size)) {
                continue;
            }
            let Some(end) = end_of(source, data, &mut budget, info) else {
                continue;
            };
            let Ok(cpu) = u16::try_from(data.cpu) else {
                let cpu = data.cpu;
                info.note(
                    true,
                    format!("CPU {cpu}: larger than {}, left out", u16::MAX),
                );
                continue;
            };
            if plans.len() == MAX_STREAMS {
                info.note(
                    true,
                    format!("more than {MAX_STREAMS} CPUs; the rest is left out"),
                );
                return plans;
            }
            places.push((data.offset, data.size));
            plans.push(Plan {
                cpu: CpuId(cpu),
                buffer: index,
                layout,
                scale,
                start: data.offset,
                end,
                compressed: *compressed,
                run: 0,
                max_chunk: 0,
            });
        }
    }
    let count = plans.len().max(1);
    for plan in &mut plans {
        let page = plan.layout.size;
        plan.run = ((RUNS / count).min(RUN) / page).max(1) * page;
        plan.max_chunk = (CHUNKS / count).clamp(MIN_CHUNK.max(page), CHUNK);
    }
    plans
}

/// The layout of a buffer's pages; `None` if their size is impossible.
fn layout(meta: &Meta, buffer: &Buffer, info: &mut SourceInfo) -> Option<PageLayout> {
    let (mut layout, described) = match meta.layout {
        Some(layout) => layout,
        None => {
            info.note(
                false,
                "the file does not describe its pages; they are read as usual ones",
            );
            let usual = PageLayout::usual(meta.endian, meta.long, meta.page_size);
            (usual, meta.page_size)
        }
    };
    layout.size = match buffer.page_size as usize {
        0 => described,
        size => size,
    };
    if layout.size > MAX_PAGE || !layout.fits() {
        let (name, size) = (buffer.name.escape_debug(), layout.size);
        info.note(
            true,
            format!("buffer \"{name}\" has pages of {size} bytes; it is left out"),
        );
        return None;
    }
    Some(layout)
}

/// The end of a CPU's data, at most the end of the file; `None` where the file has nothing of it.
fn end_of(source: &Source, data: &CpuData, budget: &mut u64, info: &mut SourceInfo) -> Option<u64> {
    let CpuData { cpu, offset, size } = *data;
    let end = offset.saturating_add(size);
    let len = source.len;
    if end > len {
        info.note(
            true,
            format!("CPU {cpu}: its data ends at {end}, the file at {len}: was it cut short?"),
        );
    }
    let end = end.min(len);
    let held = end.checked_sub(offset).filter(|held| *held > 0)?;
    // Data of several CPUs in one place would multiply the work.
    match budget.checked_sub(held) {
        Some(rest) => *budget = rest,
        None => {
            info.note(
                true,
                format!("CPU {cpu}: its data lies over that of others; left out"),
            );
            return None;
        }
    }
    Some(end)
}
