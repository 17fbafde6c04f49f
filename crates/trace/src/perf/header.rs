//! The header of a perf.data file, its attributes and its feature sections
//! (tools/perf/Documentation/perf.data-file-format.txt).

use super::attr::Attr;
use super::attrs::Attrs;
use super::features::{self, Features};
use crate::ReadError;
use crate::input::Stored;
use crate::tracefs::Endian;

/// The largest section that is read as a whole, in bytes. Symbols and all formats of a host have some
/// 25 MiB.
const MAX_SECTION: u64 = 96 << 20;

/// Attributes that are read, at most: perf opens one for each event of its command line.
const MAX_ATTRS: u64 = 1 << 16;

/// Bytes at the end of each attribute of a file: the section with its ids.
const IDS: usize = 16;

/// A part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Section {
    /// In bytes from the start of the file.
    pub(super) offset: u64,
    /// In bytes.
    pub(super) size: u64,
}

impl Section {
    /// `struct perf_file_section` at an offset of `bytes`; 0 where these are too short.
    fn parse(bytes: &[u8], offset: usize, endian: Endian) -> Self {
        let word = |offset| endian.u64(bytes, offset).unwrap_or(0);
        Self {
            offset: word(offset),
            size: word(offset + 8),
        }
    }
}

/// The content before and behind the records.
pub(super) struct Header {
    pub(super) endian: Endian,
    pub(super) data: Section,
    pub(super) attrs: Attrs,
    pub(super) features: Features,
    /// What is missing or damaged, each a sentence.
    pub(super) damage: Vec<String>,
}

/// The byte order, by the magic number.
pub(super) fn endian(magic: &[u8]) -> Endian {
    if magic.starts_with(b"PERFILE2") {
        Endian::Little
    } else {
        Endian::Big
    }
}

/// Reads header, attributes and features.
pub(super) fn read(file: &mut Stored) -> Result<Header, ReadError> {
    let mut head = [0; 104];
    let count = file.fill_at(0, &mut head)?;
    let corrupt = |offset, problem: String| ReadError::Corrupt {
        input: file.name.clone(),
        offset,
        problem,
    };
    if count < head.len() {
        return Err(corrupt(0, format!("the header has {count} bytes of 104")));
    }
    let endian = endian(&head);
    let word = |offset: usize| endian.u64(&head, offset).unwrap_or(0);
    let section = |offset| Section::parse(&head, offset, endian);
    if word(8) != 104 {
        return Err(corrupt(
            8,
            format!("the header says it has {} bytes, not 104", word(8)),
        ));
    }
    let (attr_size, attr_section, data) = (word(16), section(24), section(40));
    if !(80..=4096).contains(&attr_size) {
        let problem = format!("attributes of {attr_size} bytes; known kernels have 80 to 160");
        return Err(corrupt(16, problem));
    }
    if data.offset < 104 || data.offset > file.len {
        let problem = format!(
            "records begin at {}, the file has {} bytes",
            data.offset, file.len
        );
        return Err(corrupt(40, problem));
    }
    let bits = [word(72), word(80), word(88), word(96)];
    let mut header = Header {
        endian,
        data,
        attrs: Attrs::default(),
        features: Features::default(),
        damage: Vec::new(),
    };
    header.read_attrs(file, attr_section, attr_size)?;
    header.read_features(file, bits)?;
    header.check_data(file.len);
    Ok(header)
}

impl Header {
    fn read_attrs(
        &mut self,
        file: &mut Stored,
        table: Section,
        size: u64,
    ) -> Result<(), ReadError> {
        let count = table.size / size;
        if count > MAX_ATTRS {
            let problem = format!("{count} attributes; at most {MAX_ATTRS} are read");
            return Err(ReadError::Corrupt {
                input: file.name.clone(),
                offset: 24,
                problem,
            });
        }
        for index in 0..count {
            let offset = table.offset.saturating_add(index * size);
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
            let read = file.fill_at(offset, &mut bytes)?;
            let fields = bytes.len().saturating_sub(IDS);
            let attr = bytes
                .get(..fields)
                .and_then(|bytes| Attr::parse(bytes, self.endian));
            let (Some(attr), true) = (attr, read == bytes.len()) else {
                self.damage.push(format!(
                    "attribute {index} of {count} at offset {offset} is cut"
                ));
                break;
            };
            let ids = Section::parse(&bytes, fields, self.endian);
            let ids = self.section(file, ids, &format!("the ids of attribute {index}"))?;
            let ids = ids.as_deref().unwrap_or_default();
            let ids = (0..ids.len() / 8).filter_map(|id| self.endian.u64(ids, 8 * id));
            self.attrs.add(attr, ids);
        }
        Ok(())
    }

    /// The sections behind the records, as far as they are there.
    fn read_features(&mut self, file: &mut Stored, bits: [u64; 4]) -> Result<(), ReadError> {
        if self.data.size == 0 {
            self.damage.push(
                "the header says that there are no records: perf record was killed before it \
                 could finish the file; what is in it is read up to its end"
                    .to_owned(),
            );
            return Ok(());
        }
        let table = self.data.offset.saturating_add(self.data.size);
        if table > file.len {
            return Ok(()); // check_data says so
        }
        let set = (0..256_usize).filter(|bit| {
            bits.get(bit / 64)
                .is_some_and(|word| word >> (bit % 64) & 1 == 1)
        });
        for (index, bit) in set.enumerate() {
            if !features::WANTED.contains(&bit) {
                continue;
            }
            let mut entry = [0; 16];
            if file.fill_at(table.saturating_add(16 * index as u64), &mut entry)? < 16 {
                self.damage
                    .push(format!("the file ends in its table of sections at {table}"));
                break;
            }
            let section = Section::parse(&entry, 0, self.endian);
            if let Some(bytes) = self.section(file, section, &format!("feature section {bit}"))? {
                let damage = self
                    .features
                    .read(bit, &bytes, self.endian, &mut self.attrs);
                self.damage.extend(damage);
            }
        }
        Ok(())
    }

    /// A whole section, or a note that it is not there.
    fn section(
        &mut self,
        file: &mut Stored,
        section: Section,
        label: &str,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let Section { offset, size } = section;
        let end = offset.checked_add(size);
        if size > MAX_SECTION || end.is_none_or(|end| end > file.len) {
            let len = file.len;
            self.damage.push(format!(
                "{label}: {size} bytes at offset {offset} are not in the file of {len} bytes"
            ));
            return Ok(None);
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        let count = file.fill_at(offset, &mut bytes)?;
        bytes.truncate(count);
        Ok(Some(bytes))
    }

    /// Bounds the records to what the file has.
    fn check_data(&mut self, len: u64) {
        let held = len.saturating_sub(self.data.offset);
        if self.data.size == 0 {
            self.data.size = held;
        } else if self.data.size > held {
            let Section { offset, size } = self.data;
            let percent = held.saturating_mul(100) / size.max(1);
            self.data.size = held;
            self.damage.push(format!(
                "the file is cut short: of {size} bytes of records at offset {offset} it has \
                 {held} ({percent} %), and nothing of the sections behind them (event formats, \
                 host name, command line)"
            ));
        }
    }
}
