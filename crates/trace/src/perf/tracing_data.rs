//! The tracing data: descriptions of the events from tracefs, in the layout of the start of trace.dat
//! version 6 (tools/perf/util/trace-event-info.c).

use crate::tracefs::{Endian, Formats, Symbols};

const MAGIC: &[u8] = b"\x17\x08\x44tracing";

/// Formats, names of functions, and saved names of tasks.
pub(crate) struct TracingData {
    pub(super) endian: Endian,
    pub(super) formats: Formats,
    pub(super) symbols: Symbols,
    /// `/sys/kernel/tracing/saved_cmdlines`: lines of tid and name.
    pub(super) cmdlines: Vec<u8>,
}

impl TracingData {
    /// Formats alone.
    pub(crate) fn from_formats(formats: Formats, endian: Endian) -> Self {
        Self {
            endian,
            formats,
            symbols: Symbols::default(),
            cmdlines: Vec::new(),
        }
    }
}

/// Parses as far as the data go; the text says what is damaged.
pub(super) fn parse(bytes: &[u8]) -> (Option<TracingData>, Option<String>) {
    let mut reader = Reader {
        bytes,
        offset: 0,
        endian: Endian::Little,
    };
    let Some((mut data, version)) = reader.start() else {
        return (
            None,
            Some("the event formats do not begin as they should".to_owned()),
        );
    };
    let mut broken = 0_u64;
    let parsed = reader
        .events(&mut data, &mut broken)
        .and_then(|()| reader.rest(&mut data, &version));
    let damage = if parsed.is_none() {
        let offset = reader.offset;
        Some(format!(
            "the event formats are damaged {offset} bytes into their section"
        ))
    } else if broken > 0 {
        Some(format!("{broken} event formats cannot be read"))
    } else {
        None
    };
    (Some(data), damage)
}

struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    endian: Endian,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let part = self.bytes.get(self.offset..)?.get(..len)?;
        self.offset += len;
        Some(part)
    }

    /// A text that ends in zero.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = memchr::memchr(0, self.bytes.get(self.offset..)?)?;
        let text = self.take(len)?;
        self.take(1)?;
        Some(text)
    }

    fn u32(&mut self) -> Option<u32> {
        let value = self.endian.u32(self.bytes, self.offset)?;
        self.offset += 4;
        Some(value)
    }

    /// A size of 8 bytes, and so many bytes.
    fn sized(&mut self) -> Option<&'a [u8]> {
        let len = self.endian.u64(self.bytes, self.offset)?;
        self.offset += 8;
        self.take(usize::try_from(len).ok()?)
    }

    fn start(&mut self) -> Option<(TracingData, Vec<u8>)> {
        self.take(MAGIC.len()).filter(|magic| *magic == MAGIC)?;
        let version = self.text()?.to_vec();
        self.endian = match self.take(1)?.first()? {
            0 => Endian::Little,
            1 => Endian::Big,
            _ => return None,
        };
        self.take(5)?; // size of long, page size
        let data = TracingData {
            endian: self.endian,
            formats: Formats::default(),
            symbols: Symbols::default(),
            cmdlines: Vec::new(),
        };
        Some((data, version))
    }

    fn events(&mut self, data: &mut TracingData, broken: &mut u64) -> Option<()> {
        for _ in 0..2 {
            self.text()?; // header_page, header_event
            self.sized()?;
        }
        let count = self.u32()?;
        for _ in 0..count {
            *broken += u64::from(data.formats.add("ftrace", self.sized()?).is_err());
        }
        let systems = self.u32()?;
        for _ in 0..systems {
            let system = String::from_utf8_lossy(self.text()?);
            let count = self.u32()?;
            for _ in 0..count {
                *broken += u64::from(data.formats.add(&system, self.sized()?).is_err());
            }
        }
        Some(())
    }

    fn rest(&mut self, data: &mut TracingData, version: &[u8]) -> Option<()> {
        let len = self.u32()? as usize;
        data.symbols = Symbols::new(self.take(len)?.to_vec());
        let len = self.u32()? as usize;
        self.take(len)?; // printk formats
        if version != b"0.5" {
            data.cmdlines = self.sized()?.to_vec();
        }
        Some(())
    }
}
