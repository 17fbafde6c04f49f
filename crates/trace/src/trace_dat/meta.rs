//! Everything of a file but its trace data: versions 6 (one sequence) and 7 (sections).

use super::compression::Compression;
use super::input::{Sequence, Source};
use super::options::{Buffer, CpuData, FIRST_SECTION, Options};
use super::page::PageLayout;
use crate::tracefs::{Endian, Formats};
use crate::{ReadError, SourceInfo};

/// First bytes of every file.
pub(crate) const MAGIC: &[u8] = b"\x17\x08\x44tracing";

/// Largest section, symbol list or event description that is read, in bytes.
const MAX_SECTION: u64 = 64 << 20;
/// How many sections of options are read: each BUFFER may have one.
const MAX_OPTION_SECTIONS: usize = 1024;
/// Section flag: compressed.
const COMPRESSED: u16 = 1;

/// What was read.
pub(super) struct Meta {
    pub(super) version: u8,
    pub(super) endian: Endian,
    /// Page size of the recorded host in bytes.
    pub(super) page_size: usize,
    /// The layout that `header_page` describes, and the page size that follows from it.
    pub(super) layout: Option<(PageLayout, usize)>,
    /// Bytes of a `long` of the program that recorded.
    pub(super) long: usize,
    pub(super) compression: Compression,
    pub(super) formats: Formats,
    /// Systems of the event descriptions.
    pub(super) systems: usize,
    pub(super) kallsyms: Vec<u8>,
    pub(super) cmdlines: Vec<u8>,
    pub(super) options: Options,
    /// Buffers, the top one first, and whether their data is compressed.
    pub(super) buffers: Vec<(Buffer, bool)>,
}

impl Meta {
    /// Reads all of it. What is damaged but not needed is noted in `info`.
    pub(super) fn read(source: &mut Source, info: &mut SourceInfo) -> Result<Self, ReadError> {
        if source.len == 0 {
            return Err(ReadError::Empty {
                input: source.name.clone(),
            });
        }
        let name = source.name.clone();
        let mut from = Sequence::new(source, Endian::Little, 0, 0);
        from.expect(MAGIC)?;
        let version = match &*from.string("the version")? {
            "6" => 6,
            "7" => 7,
            other => {
                let other = other.escape_debug();
                return Err(ReadError::Unsupported {
                    input: name,
                    what: format!(
                        "trace.dat of version \"{other}\"; 6 and 7 can be read (trace-cmd convert)"
                    ),
                });
            }
        };
        let endian = match from.u8("the byte order")? {
            0 => Endian::Little,
            1 => Endian::Big,
            other => return Err(from.corrupt(format!("byte order {other}; 0 or 1 expected"))),
        };
        from.set_endian(endian);
        let long = match from.u8("the size of a long")? {
            4 => 4,
            8 => 8,
            other => return Err(from.corrupt(format!("a long of {other} bytes; 4 or 8 expected"))),
        };
        let page_size = from.u32("the page size")? as usize;
        let mut meta = Self {
            version,
            endian,
            page_size,
            layout: None,
            long,
            compression: Compression::None,
            formats: Formats::default(),
            systems: 0,
            kallsyms: Vec::new(),
            cmdlines: Vec::new(),
            options: Options::default(),
            buffers: Vec::new(),
        };
        info.format = crate::Format::TraceDat(version);
        let at = from.at;
        if version == 6 {
            meta.read_v6(source, at, info)?;
        } else {
            meta.read_v7(source, at, info)?;
        }
        Ok(meta)
    }

    fn read_v6(
        &mut self,
        source: &mut Source,
        at: u64,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        let endian = self.endian;
        let mut from = Sequence::new(source, endian, at, 0);
        self.header_page(&mut from)?;
        self.ftrace_formats(&mut from, info)?;
        self.event_formats(&mut from, info)?;
        self.kallsyms = sized32(&mut from, "the list of symbols")?;
        sized32(&mut from, "the formats of trace_printk")?;
        self.cmdlines = sized64(&mut from, "the saved command lines")?;
        let cpus = from.u32("the number of CPUs")?;
        self.options.cpus = Some(cpus);
        let top = cpu_table(&mut from, &mut self.options, endian, info)?;
        self.buffers.push((
            Buffer {
                cpus: top,
                ..Buffer::default()
            },
            false,
        ));
        for mut buffer in std::mem::take(&mut self.options.buffers) {
            let mut own = Options {
                cpus: self.options.cpus,
                ..Options::default()
            };
            let mut from = Sequence::new(source, endian, buffer.offset, 0);
            match cpu_table(&mut from, &mut own, endian, info) {
                Ok(cpus) => buffer.cpus = cpus,
                // Converted files name the top buffer here once more, with no place.
                Err(_) if buffer.name.is_empty() => continue,
                Err(error) => {
                    let name = buffer.name.escape_debug();
                    info.note(true, format!("buffer \"{name}\" is left out: {error}"));
                    continue;
                }
            }
            self.buffers.push((buffer, false));
        }
        Ok(())
    }

    fn read_v7(
        &mut self,
        source: &mut Source,
        at: u64,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        let mut from = Sequence::new(source, self.endian, at, 0);
        let name = from.string("the compression's name")?;
        from.string("the compression's version")?;
        let mut next = from.u64("the position of the options")?;
        self.compression = Compression::named(&name).map_err(|source| ReadError::Io {
            input: "zstd".into(),
            offset: at,
            source,
        })?;
        let mut seen = Vec::new();
        while next != 0 {
            if seen.contains(&next) || seen.len() == MAX_OPTION_SECTIONS {
                info.note(
                    true,
                    format!("offset {next}: the options lead back to themselves"),
                );
                break;
            }
            seen.push(next);
            match self.option_section(source, next, info) {
                Ok(then) => next = then,
                // Without the first ones nothing can be read.
                Err(error) if seen.len() == 1 => return Err(error),
                Err(error) => {
                    info.note(true, format!("options are left out: {error}"));
                    break;
                }
            }
        }
        let parts = self.options.sections;
        for (id, offset) in (FIRST_SECTION..).zip(parts).filter(|part| part.1 != 0) {
            if let Err(error) = self.part(source, id, offset, info) {
                // Lacking descriptions are told where an event needs them.
                info.note(false, format!("{} cannot be read: {error}", part_name(id)));
            }
        }
        for buffer in std::mem::take(&mut self.options.buffers) {
            match section_head(source, self.endian, buffer.offset) {
                Ok(head) => self.buffers.push((buffer, head.flags & COMPRESSED != 0)),
                Err(error) => {
                    let name = buffer.name.escape_debug();
                    info.note(true, format!("buffer \"{name}\" is left out: {error}"));
                }
            }
        }
        Ok(())
    }

    fn option_section(
        &mut self,
        source: &mut Source,
        offset: u64,
        info: &mut SourceInfo,
    ) -> Result<u64, ReadError> {
        let (mut section, head) = self.section(source, offset, 0)?;
        let mut from = Sequence::new(&mut section, self.endian, 0, head.data);
        self.options
            .read(&mut from, self.endian, self.version, info)
    }

    fn part(
        &mut self,
        source: &mut Source,
        id: u16,
        offset: u64,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        const PRINTK: u16 = 20;
        if id == PRINTK {
            return Ok(());
        }
        let (mut section, head) = self.section(source, offset, id)?;
        let mut from = Sequence::new(&mut section, self.endian, 0, head.data);
        match id {
            16 => self.header_page(&mut from),
            17 => self.ftrace_formats(&mut from, info),
            18 => self.event_formats(&mut from, info),
            19 => {
                self.kallsyms = sized32(&mut from, "the list of symbols")?;
                Ok(())
            }
            _ => {
                self.cmdlines = sized64(&mut from, "the saved command lines")?;
                Ok(())
            }
        }
    }

    /// A section's content, unpacked.
    fn section(
        &mut self,
        source: &mut Source,
        offset: u64,
        id: u16,
    ) -> Result<(Source, SectionHead), ReadError> {
        let head = section_head(source, self.endian, offset)?;
        if head.id != id {
            let found = head.id;
            return Err(source.corrupt(offset, format!("section {id} expected, {found} found")));
        }
        let name = source.name.clone();
        let mut from = Sequence::new(source, self.endian, head.data, 0);
        let content = if head.flags & COMPRESSED == 0 {
            from.bytes(head.size, MAX_SECTION, "a section")?
        } else {
            let packed = u64::from(from.u32("a section's compressed size")?);
            let size = u64::from(from.u32("a section's size")?);
            let packed = from.bytes(packed, MAX_SECTION, "a compressed section")?;
            if size > MAX_SECTION {
                return Err(from.corrupt(format!(
                    "a section of {size} bytes; at most {MAX_SECTION} are read"
                )));
            }
            let mut content = Vec::new();
            self.compression
                .unpack(&packed, size as usize, &mut content)
                .map_err(|what| source.corrupt(head.data, what))?;
            content
        };
        let len = content.len() as u64;
        Ok((Source::new(Box::new(content), name, len), head))
    }

    fn header_page(&mut self, from: &mut Sequence<'_>) -> Result<(), ReadError> {
        from.expect(b"header_page\0")?;
        let page = sized64(from, "the description of a page")?;
        self.layout = PageLayout::parse(&page, self.endian);
        from.expect(b"header_event\0")?;
        sized64(from, "the description of an event's header")?;
        Ok(())
    }

    fn ftrace_formats(
        &mut self,
        from: &mut Sequence<'_>,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        self.formats(from, "ftrace", info)
    }

    fn event_formats(
        &mut self,
        from: &mut Sequence<'_>,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        for _ in 0..from.u32("the number of systems")? {
            let system = from.string("a system's name")?;
            self.formats(from, &system, info)?;
            self.systems += 1;
        }
        Ok(())
    }

    fn formats(
        &mut self,
        from: &mut Sequence<'_>,
        system: &str,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        for _ in 0..from.u32("the number of event descriptions")? {
            let text = sized64(from, "the description of an event")?;
            if let Err(error) = self.formats.add(system, &text) {
                info.note(false, format!("{system}: {error}"));
            }
        }
        Ok(())
    }
}

fn part_name(id: u16) -> &'static str {
    match id {
        16 => "the description of pages",
        17 => "descriptions of ftrace's own events",
        18 => "the descriptions of events",
        19 => "the list of symbols",
        _ => "the saved command lines",
    }
}

#[derive(Debug, Clone, Copy)]
struct SectionHead {
    id: u16,
    flags: u16,
    size: u64,
    /// Position of the content.
    data: u64,
}

fn section_head(source: &mut Source, endian: Endian, at: u64) -> Result<SectionHead, ReadError> {
    let mut from = Sequence::new(source, endian, at, 0);
    let id = from.u16("a section")?;
    let flags = from.u16("a section's flags")?;
    from.u32("a section's description")?;
    let size = from.u64("a section's size")?;
    Ok(SectionHead {
        id,
        flags,
        size,
        data: from.at,
    })
}

fn sized32(from: &mut Sequence<'_>, what: &str) -> Result<Vec<u8>, ReadError> {
    let size = u64::from(from.u32(what)?);
    from.bytes(size, MAX_SECTION, what)
}

fn sized64(from: &mut Sequence<'_>, what: &str) -> Result<Vec<u8>, ReadError> {
    let size = from.u64(what)?;
    from.bytes(size, MAX_SECTION, what)
}

/// Options, if any, and the table of each CPU's data (version 6).
fn cpu_table(
    from: &mut Sequence<'_>,
    options: &mut Options,
    endian: Endian,
    info: &mut SourceInfo,
) -> Result<Vec<CpuData>, ReadError> {
    let mut kind = from.bytes(10, 10, "the kind of data")?;
    if kind == b"options  \0" {
        options.read(from, endian, 6, info)?;
        kind = from.bytes(10, 10, "the kind of data")?;
    }
    match &*kind {
        b"flyrecord\0" => {}
        b"latency  \0" => {
            return Err(from.corrupt("text of a latency tracer; only recorded events can be read"));
        }
        _ => return Err(from.corrupt("\"flyrecord\" expected")),
    }
    let count = options.cpus.unwrap_or(0);
    if u64::from(count) * 16 > from.left() {
        return Err(from.corrupt(format!("a table of {count} CPUs expected: cut short?")));
    }
    (0..count)
        .map(|cpu| {
            Ok(CpuData {
                cpu,
                offset: from.u64("the position of a CPU's data")?,
                size: from.u64("the size of a CPU's data")?,
            })
        })
        .collect()
}
