//! QEMU's migration stream, by the description at its end.
//!
//! Follows QEMU's source: `migration/savevm.c`, `migration/vmstate.c`, `hw/i386/kvm/clock.c` and
//! `target/i386/machine.c`. Big endian.
//!
//! | bytes | field |
//! |---|---|
//! | 4, 4 | `QEVM`, version 3 |
//! | … | configuration, memory and other iterable parts |
//! | … | devices: 4, section, name, instance, version, fields and subsections, footer |
//! | 1 | end of the devices: 0 |
//! | 1, 4, n | 6, length and text of the description: JSON with each device's fields and their sizes |
//!
//! The memory comes first and can hold anything. So devices are found from the end: their sizes are in the
//! description, and each header must be where these put it.

use std::io::{Read, Seek, SeekFrom};

use serde::Deserialize;

use super::{Counters, MAX_SNAPSHOT_BYTES, MadeBy, Snapshot, SnapshotError};
use crate::arithmetic::KvmClockData;
use crate::saved::MAX_VCPUS;

const MADE_BY: MadeBy = MadeBy::Qemu;
pub(super) const MAGIC: [u8; 4] = *b"QEVM";
/// Bytes of the mark and the version.
pub(super) const HEAD: usize = 8;
const VERSION: u32 = 3;
/// Marks of sections (`savevm.c`).
const SECTION_FULL: u8 = 4;
const SUBSECTION: u8 = 5;
const DESCRIPTION: u8 = 6;
const FOOTER: u8 = 0x7e;

#[derive(Deserialize)]
struct Description {
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    instance_id: u32,
    /// Devices with a saving function of their own have none.
    version: Option<u32>,
    #[serde(default)]
    fields: Vec<Field>,
    #[serde(default)]
    subsections: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    vmsd_name: String,
    version: u32,
    #[serde(default)]
    fields: Vec<Field>,
    #[serde(default)]
    subsections: Vec<Part>,
}

#[derive(Deserialize)]
struct Field {
    name: String,
    #[serde(default)]
    size: u64,
    /// Elements of an array that is described by its first.
    array_len: Option<u64>,
}

impl Field {
    const fn bytes(&self) -> u64 {
        let elements = match self.array_len {
            Some(elements) => elements,
            None => 1,
        };
        self.size.saturating_mul(elements)
    }
}

fn size(fields: &[Field], parts: &[Part]) -> u64 {
    let fields = fields.iter().map(Field::bytes);
    let parts = parts.iter().map(|part| {
        let inner = size(&part.fields, &part.subsections);
        // Mark, length, name, version.
        inner.saturating_add(1 + 1 + part.vmsd_name.len() as u64 + 4)
    });
    fields.chain(parts).fold(0, u64::saturating_add)
}

impl Device {
    /// Mark, section, length, name, instance and version.
    fn header(&self) -> u64 {
        1 + 4 + 1 + self.name.len() as u64 + 4 + 4
    }

    /// All of its section, with a footer of 5 bytes.
    fn section(&self) -> u64 {
        size(&self.fields, &self.subsections).saturating_add(self.header() + 5)
    }
}

pub(super) fn read<R: Read + Seek>(file: &mut R, bytes: u64) -> Result<Snapshot, SnapshotError> {
    let start = bytes.saturating_sub(MAX_SNAPSHOT_BYTES);
    let mut head = [0; HEAD];
    file.seek(SeekFrom::Start(0)).map_err(SnapshotError::Read)?;
    let [_, _, _, _, version @ ..] = {
        file.read_exact(&mut head)
            .map_err(|_| truncated(bytes, "header"))?;
        head
    };
    let version = u32::from_be_bytes(version);
    if version != VERSION {
        return Err(SnapshotError::Version {
            made_by: MADE_BY,
            found: format!("migration stream of version {version}"),
            known: "version 3",
            remedy: "write the stream with QEMU 2.4 or later",
        });
    }
    file.seek(SeekFrom::Start(start))
        .map_err(SnapshotError::Read)?;
    let mut tail = Vec::new();
    let mut rest = file.take(MAX_SNAPSHOT_BYTES);
    rest.read_to_end(&mut tail).map_err(SnapshotError::Read)?;
    let (end, text) = description(&tail)?;
    let description: Description =
        serde_json::from_slice(text).map_err(|error| SnapshotError::Json {
            made_by: MADE_BY,
            part: "description of the stream",
            message: error.to_string(),
        })?;
    let tail = tail.get(..end).unwrap_or_default();
    let (vcpus, clock, khz) = devices(tail, &description.devices)?;
    let version = format!("migration stream version {VERSION}");
    Ok(Snapshot::by_value(MADE_BY, version, clock, khz, vcpus))
}

const fn truncated(bytes: u64, field: &'static str) -> SnapshotError {
    SnapshotError::Truncated {
        made_by: MADE_BY,
        at: bytes as usize,
        field,
    }
}

/// Where the devices end, and the text of the description. JSON has no byte of 0. So the last one is in the
/// text's length, or is the end of the devices.
fn description(tail: &[u8]) -> Result<(usize, &[u8]), SnapshotError> {
    let missing = SnapshotError::NotThere {
        made_by: MADE_BY,
        part: "description at its end",
        remedy: "copy the whole stream; old machine types leave it out (suppress-vmdesc=off)",
    };
    let Some(last) = tail.iter().rposition(|byte| *byte == 0) else {
        return Err(missing);
    };
    // From the end of the devices to the brace are 6 bytes; those of the length can look like a brace.
    let found = (last..last + 7).find_map(|brace| {
        let mark = tail.get(brace.checked_sub(6)?..brace)?;
        let [0, DESCRIPTION, length @ ..] = mark else {
            return None;
        };
        let length = <[u8; 4]>::try_from(length).map(u32::from_be_bytes).ok()?;
        let text = tail.get(brace..)?.get(..length as usize)?;
        text.starts_with(b"{").then_some((brace - 6, text))
    });
    found.ok_or(missing)
}

type Found = (Vec<Counters>, Option<KvmClockData>, Option<u32>);

/// Goes through the devices from the last one backwards. The first that is not where it should be ends that:
/// QEMU writes some devices before the memory.
fn devices(tail: &[u8], devices: &[Device]) -> Result<Found, SnapshotError> {
    let mut end = tail.len();
    let mut vcpus: Vec<(u32, Counters)> = Vec::new();
    let (mut clock, mut khz) = (None, None);
    for device in devices.iter().rev() {
        let length = usize::try_from(device.section()).unwrap_or(usize::MAX);
        let start = end.checked_sub(length);
        let section = start.and_then(|start| tail.get(start..end));
        let Some((start, section)) = start.zip(section).filter(|(_, s)| begins(s, device)) else {
            break;
        };
        end = start;
        let fields = Fields { section, device };
        match device.name.as_str() {
            "cpu" if vcpus.len() < MAX_VCPUS => {
                let counters = Counters {
                    tsc: fields.number("env.tsc"),
                    // QEMU leaves out what is 0.
                    tsc_adjust: Some(fields.number("env.tsc_adjust").unwrap_or(0)),
                    tsc_deadline: Some(fields.number("env.tsc_deadline").unwrap_or(0)),
                    tsc_offset: None,
                    system_time: fields.number("env.system_time_msr"),
                };
                khz = fields.number("env.tsc_khz").or(khz);
                vcpus.push((device.instance_id, counters));
            }
            "kvmclock" => {
                clock = fields.number("clock").map(|clock_ns| KvmClockData {
                    clock_ns,
                    ..KvmClockData::default()
                });
            }
            _ => {}
        }
    }
    if vcpus.is_empty() {
        return Err(SnapshotError::NotThere {
            made_by: MADE_BY,
            part: "x86 vCPU where its description has one",
            remedy: "damaged, or a stream of another architecture",
        });
    }
    vcpus.sort_by_key(|(instance, _)| *instance);
    let vcpus = vcpus.into_iter().map(|(_, counters)| counters).collect();
    let khz = khz.and_then(|khz| u32::try_from(khz).ok());
    Ok((vcpus, clock, khz))
}

/// Whether a section has the header and the footer of this device.
fn begins(section: &[u8], device: &Device) -> bool {
    let name = device.name.as_bytes();
    let mut expected = [name, &device.instance_id.to_be_bytes()].concat();
    expected.extend(
        device
            .version
            .iter()
            .flat_map(|version| version.to_be_bytes()),
    );
    let header = section
        .get(6..)
        .is_some_and(|rest| rest.starts_with(&expected));
    let id = section.get(1..5);
    let [.., footer, a, b, c, d] = section else {
        return false;
    };
    header
        && section.first() == Some(&SECTION_FULL)
        && section.get(5).copied().map(usize::from) == Some(name.len())
        && *footer == FOOTER
        && id == Some(&[*a, *b, *c, *d])
}

struct Fields<'a> {
    section: &'a [u8],
    device: &'a Device,
}

impl Fields<'_> {
    /// A number of up to 8 bytes, of the device or of a subsection.
    fn number(&self, name: &str) -> Option<u64> {
        let start = usize::try_from(self.device.header()).ok()?;
        find(
            self.section,
            start,
            &self.device.fields,
            &self.device.subsections,
            name,
        )
        .ok()
    }
}

/// The value of a field, or where the fields and subsections end.
fn find(
    section: &[u8],
    start: usize,
    fields: &[Field],
    parts: &[Part],
    name: &str,
) -> Result<u64, usize> {
    let mut position = start;
    for field in fields {
        let end = position.saturating_add(usize::try_from(field.bytes()).unwrap_or(usize::MAX));
        if field.name == name
            && let Some(bytes) = section.get(position..end).filter(|bytes| bytes.len() <= 8)
        {
            return Ok(bytes
                .iter()
                .fold(0, |value, byte| value << 8 | u64::from(*byte)));
        }
        position = end;
    }
    for part in parts {
        let begin = position.saturating_add(1 + 1 + part.vmsd_name.len() + 4);
        let header = section.get(position..begin).unwrap_or_default();
        let expected = [
            &[SUBSECTION, part.vmsd_name.len() as u8],
            part.vmsd_name.as_bytes(),
            &part.version.to_be_bytes(),
        ]
        .concat();
        if header != expected {
            // Not where the description has it: no value is better than a wrong one.
            return Err(section.len());
        }
        position = match find(section, begin, &part.fields, &part.subsections, name) {
            Err(end) => end,
            found => return found,
        };
    }
    Err(position)
}
