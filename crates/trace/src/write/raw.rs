//! The description around pages of the ring buffer that the kernel wrote: `trace.dat` version 7.
//!
//! The pages stay as tracefs gives them (`per_cpu/cpuN/trace_pipe_raw`), and so do descriptions of
//! events, symbols and statistics. [`Recording::head`] makes the bytes in front of the pages; the
//! caller puts each CPU's pages at the position that it names.
//!
//! ```
//! use stealtime_trace::trace_dat::TraceDat;
//! use stealtime_trace::write::raw::Recording;
//!
//! // Two CPUs with a page each.
//! let recording = Recording {
//!     clock: "mono".to_owned(),
//!     cpus: 2,
//!     page_size: 4096,
//!     buffer_page_size: 4096,
//!     data: vec![(0, 4096), (1, 4096)],
//!     ..Recording::default()
//! };
//! let head = recording.head()?;
//! assert!(TraceDat::recognise(&head.bytes));
//! assert_eq!((head.starts.len(), head.len), (2, head.starts[1] + 4096));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::container::Bytes;
use super::error::WriteError;
use crate::trace_dat::layout::{MAGIC, option};

/// Section flag of trace-cmd: the content is compressed.
const COMPRESSED: u16 = 1;
/// A level at which symbols shrink to a fifth at 300 MB/s.
const LEVEL: i32 = 3;

/// `format` files of one system of events, whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct System {
    /// The system's name, `sched`.
    pub name: String,
    /// The content of `events/NAME/*/format`.
    pub formats: Vec<Vec<u8>>,
}

/// Conversion of TSC ticks: `ns = ticks * mult >> shift` (`struct perf_event_mmap_page`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TscToNs {
    /// The factor.
    pub mult: u32,
    /// Bits to shift the product right.
    pub shift: u32,
    /// `time_offset` of the page. trace-cmd 3.1.6 writes it, and no reader adds it.
    pub offset_ns: u64,
}

/// What tracefs and /proc say of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// `events/header_page`.
    pub header_page: Vec<u8>,
    /// `events/header_event`.
    pub header_event: Vec<u8>,
    /// Formats of ftrace's own events, `events/ftrace`.
    pub ftrace: Vec<Vec<u8>>,
    /// Formats of the recorded events. Readers take these for the events that were switched on.
    pub systems: Vec<System>,
    /// `/proc/kallsyms`.
    pub kallsyms: Vec<u8>,
    /// `printk_formats`.
    pub printk_formats: Vec<u8>,
    /// Lines of a thread's id and name.
    pub cmdlines: Vec<u8>,
    /// Lines of a thread's id and the id of its process.
    pub tgids: Vec<u8>,
    /// The trace clock's name.
    pub clock: String,
    /// For the clock `x86-tsc`: how ticks become ns.
    pub tsc: Option<TscToNs>,
    /// `uname` of the host.
    pub uname: String,
    /// Number of CPUs, offline ones with data included.
    pub cpus: u32,
    /// Bytes of a page of the host's memory. Data begin on such a page.
    pub page_size: u32,
    /// Bytes of a page of the ring buffer (`buffer_subbuf_size_kb`).
    pub buffer_page_size: u32,
    /// `per_cpu/cpuN/stats` at the end, by CPU.
    pub stats: Vec<(u16, String)>,
    /// The host's snapshot, JSON.
    pub snapshot: Option<String>,
    /// CPUs with data, ascending, and the bytes of their pages.
    pub data: Vec<(u16, u64)>,
}

/// The bytes in front of the data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// To be written from the file's first byte on.
    pub bytes: Vec<u8>,
    /// Position of each CPU's data, in the order of [`Recording::data`].
    pub starts: Vec<u64>,
    /// Bytes of the whole file.
    pub len: u64,
}

impl Recording {
    /// The file up to its data.
    ///
    /// # Errors
    /// zstd cannot be set up.
    pub fn head(&self) -> Result<Head, WriteError> {
        let mut file = Bytes::default().raw(MAGIC).text("7");
        // Little endian, with a long of 8 bytes.
        file = file.raw(&[0, 8]).u32(self.page_size);
        file = file.text("zstd").text(zstd::zstd_safe::version_string());
        let place = file.0.len();
        file = file.u64(0);
        let mut options = Bytes::default();
        for (id, part) in (option::HEADER_INFO..).zip(self.parts()) {
            let position = Bytes::default().u64(file.0.len() as u64);
            options = options.option(id, &position.0);
            file = compressed(file, id, &part.0)?;
        }
        options = self.options(options);
        let position = file.0.len();
        if let Some(target) = file.0.get_mut(place..place + 8) {
            target.copy_from_slice(&(position as u64).to_le_bytes());
        }
        Ok(self.placed(file, &options))
    }

    /// The content of sections 16 (header page) to 21 (command lines).
    fn parts(&self) -> [Bytes; 6] {
        let header = Bytes::default()
            .text("header_page")
            .sized_bytes(&self.header_page)
            .text("header_event")
            .sized_bytes(&self.header_event);
        let mut events = Bytes::default().u32(self.systems.len() as u32);
        for system in &self.systems {
            events = formats(events.text(&system.name), &system.formats);
        }
        let sized = |bytes: &[u8]| Bytes::default().u32(bytes.len() as u32).raw(bytes);
        [
            header,
            formats(Bytes::default(), &self.ftrace),
            events,
            sized(&self.kallsyms),
            sized(&self.printk_formats),
            Bytes::default().sized_bytes(&self.cmdlines),
        ]
    }

    /// Adds the options that are no positions.
    fn options(&self, options: Bytes) -> Bytes {
        let text = |text: &str| Bytes::default().text(text).0;
        let version = text(concat!("stealtime ", env!("CARGO_PKG_VERSION")));
        let cpus = Bytes::default().u32(self.cpus);
        let mut options = options
            .option(option::VERSION, &version)
            .option(option::TRACECLOCK, &text(&format!("[{}]\n", self.clock)))
            .option(option::UNAME, &text(&self.uname))
            .option(option::CPUCOUNT, &cpus.0);
        for (cpu, stats) in &self.stats {
            let stats = text(&format!("CPU: {cpu}\n{stats}"));
            options = options.option(option::CPUSTAT, &stats);
        }
        if let Some(tsc) = self.tsc {
            let bytes = Bytes::default().u32(tsc.mult).u32(tsc.shift);
            options = options.option(option::TSC2NSEC, &bytes.u64(tsc.offset_ns).0);
        }
        if !self.tgids.is_empty() {
            options = options.option(option::SAVED_TGIDS, &self.tgids);
        }
        if let Some(snapshot) = &self.snapshot {
            options = options.option(option::HOST_SNAPSHOT, snapshot.as_bytes());
        }
        options
    }

    /// Adds the options and the head of the buffer's section.
    fn placed(&self, file: Bytes, options: &Bytes) -> Head {
        let section = |buffer: &[u8]| {
            let bytes = Bytes::default().raw(&options.0);
            bytes
                .option(option::BUFFER, buffer)
                .option(option::DONE, &[0; 8])
                .0
        };
        // The positions that the last option holds depend on its own length.
        let unplaced = vec![0; self.data.len()];
        let len = section(&self.buffer(0, &unplaced)).len();
        let head = (file.0.len() + 16 + len) as u64;
        let (starts, end) = self.starts(head + 16);
        let content = section(&self.buffer(head, &starts));
        let mut file = file
            .u16(option::DONE)
            .u16(0)
            .u32(0)
            .u64(content.len() as u64)
            .raw(&content);
        file = file
            .u16(option::BUFFER)
            .u16(0)
            .u32(0)
            .u64(end - (head + 16));
        Head {
            bytes: file.0,
            starts,
            len: end,
        }
    }

    /// The position of each CPU's data behind `end`, each on a page of its own, and the end of all.
    fn starts(&self, mut end: u64) -> (Vec<u64>, u64) {
        let page = u64::from(self.page_size.max(self.buffer_page_size).max(1));
        let mut starts = Vec::new();
        for (_, len) in &self.data {
            let start = end.next_multiple_of(page);
            starts.push(start);
            end = start + len;
        }
        (starts, end)
    }

    /// Option BUFFER: the position of each CPU's data. Without a name it is the top buffer for readers,
    /// whichever instance recorded it.
    fn buffer(&self, section: u64, starts: &[u64]) -> Vec<u8> {
        let buffer = Bytes::default().u64(section).text("").text(&self.clock);
        let mut buffer = buffer
            .u32(self.buffer_page_size)
            .u32(self.data.len() as u32);
        for ((cpu, len), start) in self.data.iter().zip(starts) {
            buffer = buffer.u32(u32::from(*cpu)).u64(*start).u64(*len);
        }
        buffer.0
    }
}

/// A number of descriptions, and these.
fn formats(bytes: Bytes, formats: &[Vec<u8>]) -> Bytes {
    let bytes = bytes.u32(formats.len() as u32);
    formats
        .iter()
        .fold(bytes, |bytes, text| bytes.sized_bytes(text))
}

/// A compressed section: its head, both sizes, and the content.
fn compressed(file: Bytes, id: u16, content: &[u8]) -> Result<Bytes, WriteError> {
    let packed = zstd::bulk::compress(content, LEVEL).map_err(WriteError::Compress)?;
    let file = file
        .u16(id)
        .u16(COMPRESSED)
        .u32(0)
        .u64(packed.len() as u64 + 8);
    let file = file.u32(packed.len() as u32).u32(content.len() as u32);
    Ok(file.raw(&packed))
}
