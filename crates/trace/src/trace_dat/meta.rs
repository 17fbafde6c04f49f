//! The description of a file, without its trace data: version 6 (one sequence) and 7 (sections).

use std::sync::Arc;

use super::compression::Compression;
use super::input::{Sequence, Source};
use super::layout::{MAGIC, option};
use super::options::{Buffer, CpuData, Options};
use super::page::PageLayout;
use crate::tracefs::{Endian, Formats, Symbols};
use crate::{ReadError, SourceInfo};

/// Largest section, symbol list or event description that is read, in bytes.
const MAX_SECTION: u64 = 64 << 20;
/// Sections of options that are read: each BUFFER may have one.
const MAX_OPTION_SECTIONS: usize = 1024;
/// Parts of a file in messages.
const SYMBOLS: &str = "the list of symbols";
const PRINTK: &str = "the formats of trace_printk";
/// Section flag: compressed.
const COMPRESSED: u16 = 1;

/// The description of a file.
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
    pub(super) symbols: Symbols,
    pub(super) cmdlines: Vec<u8>,
    pub(super) options: Options,
    /// Buffers, the top one first, and whether their data is compressed.
    pub(super) buffers: Vec<(Buffer, bool)>,
}

impl Meta {
    /// Reads all of it. Damage to parts that are not needed is noted in `info`.
    pub(super) fn read(source: &mut Source, info: &mut SourceInfo) -> Result<Self, ReadError> {
        if source.len == 0 {
            return Err(ReadError::Empty {
                input: source.name.clone(),
            });
        }
        let name = source.name.clone();
        let mut reader = Sequence::new(source, Endian::Little, 0, 0);
        reader.expect(MAGIC)?;
        let version = match &*reader.string("the version")? {
            "6" => 6,
            "7" => 7,
            unknown => {
                let unknown = unknown.escape_debug();
                return Err(ReadError::Unsupported {
                    input: name,
                    problem: format!(
                        "trace.dat of version \"{unknown}\"; 6 and 7 can be read (trace-cmd convert)"
                    ),
                });
            }
        };
        let endian = match reader.u8("the byte order")? {
            0 => Endian::Little,
            1 => Endian::Big,
            unknown => return Err(reader.corrupt(format!("byte order {unknown}; 0 or 1 expected"))),
        };
        reader.set_endian(endian);
        let long = match reader.u8("the size of a long")? {
            4 => 4,
            8 => 8,
            unknown => {
                return Err(reader.corrupt(format!("a long of {unknown} bytes; 4 or 8 expected")));
            }
        };
        let page_size = reader.u32("the page size")? as usize;
        let mut meta = Self {
            version,
            endian,
            page_size,
            layout: None,
            long,
            compression: Compression::None,
            formats: Formats::default(),
            systems: 0,
            symbols: Symbols::default(),
            cmdlines: Vec::new(),
            options: Options::default(),
            buffers: Vec::new(),
        };
        info.format = crate::Format::TraceDat(version);
        let position = reader.position;
        if version == 6 {
            meta.read_v6(source, position, info)?;
        } else {
            meta.read_v7(source, position, info)?;
        }
        Ok(meta)
    }

    fn read_v6(
        &mut self,
        source: &mut Source,
        position: u64,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        let endian = self.endian;
        let mut reader = Sequence::new(source, endian, position, 0);
        self.header_page(&mut reader)?;
        self.ftrace_formats(&mut reader, info)?;
        self.event_formats(&mut reader, info)?;
        self.symbols = symbols(&mut reader)?;
        let printk = u64::from(reader.u32(PRINTK)?);
        reader.pass(printk, MAX_SECTION, PRINTK)?;
        self.cmdlines = sized64(&mut reader, "the saved command lines")?;
        let cpus = reader.u32("the number of CPUs")?;
        self.options.cpus = Some(cpus);
        let top = cpu_table(&mut reader, &mut self.options, endian, info)?;
        self.buffers.push((
            Buffer {
                cpus: top,
                ..Buffer::default()
            },
            false,
        ));
        for mut buffer in std::mem::take(&mut self.options.buffers) {
            let mut table_options = Options {
                cpus: self.options.cpus,
                ..Options::default()
            };
            let mut reader = Sequence::new(source, endian, buffer.offset, 0);
            match cpu_table(&mut reader, &mut table_options, endian, info) {
                Ok(cpus) => buffer.cpus = cpus,
                Err(error) if is_unread(&error) => return Err(error),
                // `trace-cmd convert` names the top buffer here once more, without an offset.
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
        position: u64,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        let mut reader = Sequence::new(source, self.endian, position, 0);
        let name = reader.string("the compression's name")?;
        reader.string("the compression's version")?;
        let mut next = reader.u64("the position of the options")?;
        self.compression = Compression::named(&name).map_err(|source| ReadError::Io {
            input: "zstd".into(),
            offset: position,
            source,
        })?;
        let mut visited = Vec::new();
        while next != 0 {
            if visited.contains(&next) || visited.len() == MAX_OPTION_SECTIONS {
                info.note(
                    true,
                    format!("offset {next}: the options lead back to themselves"),
                );
                break;
            }
            visited.push(next);
            match self.option_section(source, next, info) {
                Ok(following) => next = following,
                // The first section has the positions of all data.
                Err(error) if visited.len() == 1 || is_unread(&error) => return Err(error),
                Err(error) => {
                    info.note(true, format!("options are left out: {error}"));
                    break;
                }
            }
        }
        let parts = self.options.sections;
        for (id, offset) in (option::HEADER_INFO..)
            .zip(parts)
            .filter(|part| part.1 != 0)
        {
            match self.part(source, id, offset, info) {
                Ok(()) => {}
                Err(error) if is_unread(&error) => return Err(error),
                // No partial answer yet: the decoder notes each event without a description.
                Err(error) => {
                    info.note(false, format!("{} cannot be read: {error}", part_name(id)));
                }
            }
        }
        for buffer in std::mem::take(&mut self.options.buffers) {
            match section_head(source, self.endian, buffer.offset) {
                Ok(head) => self.buffers.push((buffer, head.flags & COMPRESSED != 0)),
                Err(error) if is_unread(&error) => return Err(error),
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
        let mut reader = Sequence::new(&mut section, self.endian, 0, head.data);
        self.options
            .read(&mut reader, self.endian, self.version, info)
    }

    fn part(
        &mut self,
        source: &mut Source,
        id: u16,
        offset: u64,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        if id == option::PRINTK {
            return Ok(());
        }
        let (mut section, head) = self.section(source, offset, id)?;
        let mut reader = Sequence::new(&mut section, self.endian, 0, head.data);
        match id {
            option::HEADER_INFO => self.header_page(&mut reader),
            option::FTRACE_EVENTS => self.ftrace_formats(&mut reader, info),
            option::EVENT_FORMATS => self.event_formats(&mut reader, info),
            option::KALLSYMS => {
                self.symbols = symbols(&mut reader)?;
                Ok(())
            }
            _ => {
                self.cmdlines = sized64(&mut reader, "the saved command lines")?;
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
        let mut reader = Sequence::new(source, self.endian, head.data, 0);
        let content = if head.flags & COMPRESSED == 0 {
            reader.bytes(head.size, MAX_SECTION, "a section")?
        } else {
            let packed = u64::from(reader.u32("a section's compressed size")?);
            let size = u64::from(reader.u32("a section's size")?);
            let packed = reader.bytes(packed, MAX_SECTION, "a compressed section")?;
            if size > MAX_SECTION {
                return Err(reader.corrupt(format!(
                    "a section of {size} bytes; at most {MAX_SECTION} are read"
                )));
            }
            let mut content = Vec::new();
            self.compression
                .unpack(&packed, size as usize, &mut content)
                .map_err(|error| source.corrupt(head.data, error.to_string()))?;
            content
        };
        let len = content.len() as u64;
        Ok((Source::new(Box::new(Arc::new(content)), name, len), head))
    }

    fn header_page(&mut self, reader: &mut Sequence<'_>) -> Result<(), ReadError> {
        reader.expect(b"header_page\0")?;
        let page = sized64(reader, "the description of a page")?;
        self.layout = PageLayout::parse(&page, self.endian);
        reader.expect(b"header_event\0")?;
        sized64(reader, "the description of an event's header")?;
        Ok(())
    }

    fn ftrace_formats(
        &mut self,
        reader: &mut Sequence<'_>,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        self.formats(reader, "ftrace", info)
    }

    fn event_formats(
        &mut self,
        reader: &mut Sequence<'_>,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        for _ in 0..reader.u32("the number of systems")? {
            let system = reader.string("a system's name")?;
            self.formats(reader, &system, info)?;
            self.systems += 1;
        }
        Ok(())
    }

    fn formats(
        &mut self,
        reader: &mut Sequence<'_>,
        system: &str,
        info: &mut SourceInfo,
    ) -> Result<(), ReadError> {
        for _ in 0..reader.u32("the number of event descriptions")? {
            let text = sized64(reader, "the description of an event")?;
            if let Err(error) = self.formats.add(system, &text) {
                info.note(false, format!("{system}: {error}"));
            }
        }
        Ok(())
    }
}

/// Whether the operating system has refused to read. Then nothing is known of the bytes, while a part that is
/// known to be damaged is left out with a note.
fn is_unread(error: &ReadError) -> bool {
    matches!(error, ReadError::Io { .. })
}

fn part_name(id: u16) -> &'static str {
    match id {
        option::HEADER_INFO => "the description of pages",
        option::FTRACE_EVENTS => "descriptions of ftrace's own events",
        option::EVENT_FORMATS => "the descriptions of events",
        option::KALLSYMS => SYMBOLS,
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

fn section_head(
    source: &mut Source,
    endian: Endian,
    position: u64,
) -> Result<SectionHead, ReadError> {
    let mut reader = Sequence::new(source, endian, position, 0);
    let id = reader.u16("a section")?;
    let flags = reader.u16("a section's flags")?;
    reader.u32("a section's description")?;
    let size = reader.u64("a section's size")?;
    Ok(SectionHead {
        id,
        flags,
        size,
        data: reader.position,
    })
}

fn symbols(reader: &mut Sequence<'_>) -> Result<Symbols, ReadError> {
    let size = u64::from(reader.u32(SYMBOLS)?);
    let (input, positions) = reader.later(size, MAX_SECTION, SYMBOLS)?;
    Ok(Symbols::at(input, positions))
}

fn sized64(reader: &mut Sequence<'_>, part: &str) -> Result<Vec<u8>, ReadError> {
    let size = reader.u64(part)?;
    reader.bytes(size, MAX_SECTION, part)
}

/// Options, if any, and the table of each CPU's data (version 6).
fn cpu_table(
    reader: &mut Sequence<'_>,
    options: &mut Options,
    endian: Endian,
    info: &mut SourceInfo,
) -> Result<Vec<CpuData>, ReadError> {
    let mut kind = reader.bytes(10, 10, "the kind of data")?;
    if kind == b"options  \0" {
        options.read(reader, endian, 6, info)?;
        kind = reader.bytes(10, 10, "the kind of data")?;
    }
    match &*kind {
        b"flyrecord\0" => {}
        b"latency  \0" => {
            return Err(
                reader.corrupt("text of a latency tracer; only recorded events can be read")
            );
        }
        _ => return Err(reader.corrupt("\"flyrecord\" expected")),
    }
    let count = options.cpus.unwrap_or(0);
    if u64::from(count) * 16 > reader.left() {
        return Err(reader.corrupt(format!("a table of {count} CPUs expected: cut short?")));
    }
    (0..count)
        .map(|cpu| {
            Ok(CpuData {
                cpu,
                offset: reader.u64("the position of a CPU's data")?,
                size: reader.u64("the size of a CPU's data")?,
            })
        })
        .collect()
}
