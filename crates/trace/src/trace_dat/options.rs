//! Options: properties of the recording in addition to its events (trace-cmd.dat.v7(5)).

use super::input::Sequence;
use super::layout::option;
use super::shift::Shift;
use crate::tracefs::Endian;
use crate::{ReadError, SourceInfo};

/// Largest option that is read, in bytes.
const MAX_OPTION: u64 = 1 << 20;
/// The same for the host's snapshot: 500 VMs take about 1 MiB.
const MAX_SNAPSHOT: u64 = 16 << 20;

/// A buffer of trace data, of the top instance or a named one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Buffer {
    /// The instance's name, empty for the top one.
    pub(super) name: String,
    /// The trace clock; empty where the buffer does not say.
    pub(super) clock: String,
    /// Page size in bytes; 0 where the buffer does not say.
    pub(super) page_size: u32,
    /// Position of the section with the data (version 7) or of the table of CPUs (version 6).
    pub(super) offset: u64,
    pub(super) cpus: Vec<CpuData>,
}

/// One CPU's trace data in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuData {
    pub(super) cpu: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// A guest that is recorded together with this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Guest {
    pub(super) name: String,
    /// Each vCPU and its thread on the host.
    pub(super) vcpus: Vec<(u32, i32)>,
}

/// Conversion of TSC ticks: `ns = ticks * mult >> shift`. The option's offset is not added
/// (`timestamp_calc` of trace-cmd 3.1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TscToNs {
    pub(super) mult: u32,
    pub(super) shift: u32,
}

/// All options of a file.
#[derive(Debug, Default)]
pub(super) struct Options {
    /// Added to every time, in ns.
    pub(super) time_offset: i64,
    pub(super) clock: String,
    pub(super) uname: Option<String>,
    pub(super) cpus: Option<u32>,
    pub(super) tsc: Option<TscToNs>,
    /// By CPU, of a guest's file.
    pub(super) shifts: Vec<Shift>,
    pub(super) guests: Vec<Guest>,
    /// `saved_tgids` of tracefs: lines of a thread's and its process's id.
    pub(super) tgids: Vec<u8>,
    /// The host's snapshot, JSON.
    pub(super) snapshot: Option<String>,
    pub(super) buffers: Vec<Buffer>,
    /// Positions of the sections with IDs 16 (header page) to 21 (command lines).
    pub(super) sections: [u64; 6],
}

impl Options {
    /// Reads options up to their end; returns the position of the next section of options, 0 for none.
    pub(super) fn read(
        &mut self,
        reader: &mut Sequence<'_>,
        endian: Endian,
        version: u8,
        info: &mut SourceInfo,
    ) -> Result<u64, ReadError> {
        loop {
            let id = reader.u16("an option")?;
            if id == option::DONE && version < 7 {
                return Ok(0);
            }
            let size = u64::from(reader.u32("an option's size")?);
            if id == option::DONE {
                return if size < 8 {
                    Ok(0)
                } else {
                    reader.u64("the next options' position")
                };
            }
            let limit = match id {
                option::HOST_SNAPSHOT => MAX_SNAPSHOT,
                _ => MAX_OPTION,
            };
            if size > limit {
                if size > reader.left() {
                    return Err(reader.corrupt(format!("option {id} of {size} bytes: cut short?")));
                }
                reader.position += size;
                continue;
            }
            let data = reader.bytes(size, limit, "an option")?;
            self.take(
                id,
                &Data {
                    bytes: &data,
                    endian,
                },
                version,
                info,
            );
        }
    }

    fn take(&mut self, id: u16, data: &Data<'_>, version: u8, info: &mut SourceInfo) {
        match id {
            // Microseconds between the trace clock and the time of day.
            option::DATE => self.add_offset(
                data.number().and_then(|time_us| time_us.checked_mul(1000)),
                "DATE",
                info,
            ),
            option::OFFSET => self.add_offset(data.number(), "OFFSET", info),
            option::CPUSTAT => note_overrun(&data.string(0).0, info),
            option::BUFFER => self.buffer(data, version, info),
            option::TRACECLOCK => self.clock = selected(&data.string(0).0),
            option::UNAME => self.uname = Some(data.string(0).0),
            option::CPUCOUNT => self.cpus = data.u32(0).or(self.cpus),
            option::TIME_SHIFT => self.shift(data, info),
            option::GUEST => self.guests.extend(data.guest()),
            option::TSC2NSEC => self.tsc(data, info),
            option::HEADER_INFO..=option::CMDLINES => {
                if let Some(entry) = self.sections.get_mut(usize::from(id - option::HEADER_INFO)) {
                    *entry = data.u64(0).unwrap_or(0);
                }
            }
            option::SAVED_TGIDS => self.tgids.extend_from_slice(data.bytes),
            option::HOST_SNAPSHOT => match String::from_utf8(data.bytes.to_vec()) {
                Ok(snapshot) => self.snapshot = Some(snapshot),
                Err(_) => info.note(false, "the host's snapshot is no UTF-8; it is left out"),
            },
            option::BUFFER_TEXT => {
                info.note(true, "the text of a latency tracer in the file is left out")
            }
            _ => {}
        }
    }

    fn add_offset(&mut self, offset: Option<i64>, option: &str, info: &mut SourceInfo) {
        match offset.and_then(|offset| self.time_offset.checked_add(offset)) {
            Some(sum) => self.time_offset = sum,
            None => info.note(
                false,
                format!("option {option} is no number; times lack it"),
            ),
        }
    }

    fn shift(&mut self, data: &Data<'_>, info: &mut SourceInfo) {
        let text = match Shift::parse(data.bytes, data.endian) {
            Some(shifts) => {
                self.shifts = shifts;
                "recorded in a guest together with its host: times are shifted to the host's clock"
            }
            None => {
                "option TIME_SHIFT cannot be understood: times are by the guest's clock, not shifted \
                 to the host's"
            }
        };
        info.note(false, text);
    }

    fn tsc(&mut self, data: &Data<'_>, info: &mut SourceInfo) {
        match (data.u32(0), data.u32(4)) {
            (Some(mult @ 1..), Some(shift @ 0..=63)) => self.tsc = Some(TscToNs { mult, shift }),
            (mult, shift) => info.note(
                false,
                format!("option TSC2NSEC with mult {mult:?} and shift {shift:?} is not used"),
            ),
        }
    }

    fn buffer(&mut self, data: &Data<'_>, version: u8, info: &mut SourceInfo) {
        let Some(offset) = data.u64(0) else {
            return info.note(true, "option BUFFER is too short; a buffer is left out");
        };
        let (name, position) = data.string(8);
        let mut buffer = Buffer {
            name,
            offset,
            ..Buffer::default()
        };
        if version >= 7 {
            let (clock, position) = data.string(position);
            buffer.clock = clock;
            buffer.page_size = data.u32(position).unwrap_or(0);
            let count = data.u32(position + 4).unwrap_or(0) as usize;
            buffer.cpus = (0..count)
                .map_while(|cpu| {
                    let position = position + 8 + cpu.checked_mul(20)?;
                    Some(CpuData {
                        cpu: data.u32(position)?,
                        offset: data.u64(position + 4)?,
                        size: data.u64(position + 12)?,
                    })
                })
                .collect();
            if buffer.cpus.len() < count {
                let found = buffer.cpus.len();
                info.note(
                    true,
                    format!("option BUFFER names {count} CPUs but lists {found}"),
                );
            }
        }
        self.buffers.push(buffer);
    }
}

/// An option's content.
struct Data<'a> {
    bytes: &'a [u8],
    endian: Endian,
}

impl Data<'_> {
    fn u32(&self, offset: usize) -> Option<u32> {
        self.endian.u32(self.bytes, offset)
    }

    fn u64(&self, offset: usize) -> Option<u64> {
        self.endian.u64(self.bytes, offset)
    }

    /// The string at an offset, up to its zero or the end, and the offset behind it.
    fn string(&self, position: usize) -> (String, usize) {
        let rest = self.bytes.get(position..).unwrap_or_default();
        let len = memchr::memchr(0, rest).unwrap_or(rest.len());
        let text = String::from_utf8_lossy(rest.get(..len).unwrap_or_default());
        (text.into_owned(), position + len + 1)
    }

    /// A number in text, decimal or hexadecimal with `0x`.
    fn number(&self) -> Option<i64> {
        let text = self.string(0).0;
        let (negative, digits) = match text.trim().strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.trim()),
        };
        let value = match digits.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16),
            None => digits.parse(),
        };
        let value = value.ok()?;
        if negative {
            value.checked_neg()
        } else {
            Some(value)
        }
    }

    fn guest(&self) -> Option<Guest> {
        let (name, position) = self.string(0);
        // Behind the name: the guest's trace identifier.
        let count = self.u32(position + 8)? as usize;
        let vcpus = (0..count).map_while(|vcpu| {
            let position = position + 12 + vcpu.checked_mul(8)?;
            Some((self.u32(position)?, self.u32(position + 4)? as i32))
        });
        Some(Guest {
            name,
            vcpus: vcpus.collect(),
        })
    }
}

/// The clock in brackets of the content of `trace_clock`.
fn selected(clocks: &str) -> String {
    let selected = clocks
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    selected.map_or("", |(clock, _)| clock).to_owned()
}

/// Notes the events that a CPU's ring buffer lost by itself: `per_cpu/cpuN/stats`.
fn note_overrun(stats: &str, info: &mut SourceInfo) {
    let value = |key: &str| {
        let line = stats
            .lines()
            .find_map(|line| line.trim().strip_prefix(key))?;
        line.trim().parse::<u64>().ok()
    };
    let cpu = stats
        .lines()
        .find_map(|line| line.trim().strip_prefix("CPU:"))
        .unwrap_or("?");
    let (overrun, dropped) = (value("overrun:"), value("dropped events:"));
    if overrun.unwrap_or(0) > 0 || dropped.unwrap_or(0) > 0 {
        let (cpu, overrun, dropped) = (cpu.trim(), overrun.unwrap_or(0), dropped.unwrap_or(0));
        info.note(
            false,
            format!(
                "CPU {cpu}: its ring buffer overwrote {overrun} events and dropped {dropped} in all; \
                 record with larger buffers (trace-cmd record -b)"
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::Source;
    use super::*;
    use crate::Format;

    fn read(options: &[(u16, &[u8])], version: u8) -> (Options, SourceInfo) {
        let mut bytes = Vec::new();
        for (id, data) in options {
            bytes.extend(id.to_le_bytes());
            bytes.extend((data.len() as u32).to_le_bytes());
            bytes.extend(*data);
        }
        bytes.extend([0; 14]);
        let len = bytes.len() as u64;
        let mut source = Source::new(Box::new(bytes), "test".into(), len);
        let mut sequence = Sequence::new(&mut source, Endian::Little, 0, 0);
        let mut info = SourceInfo::new(Format::TraceDat(version));
        let mut read = Options::default();
        read.read(&mut sequence, Endian::Little, version, &mut info)
            .expect("good");
        (read, info)
    }

    #[test]
    fn times_clock_and_host() {
        let tsc: Vec<u8> = [3_u32, 2, 0, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let (options, info) = read(
            &[
                (option::DATE, b"0x10\0"),
                (option::OFFSET, b"-5\0"),
                (option::TRACECLOCK, b"local [mono] boot\n\0"),
                (option::UNAME, b"Linux host\0"),
                (option::CPUCOUNT, &7_u32.to_le_bytes()),
                (option::TSC2NSEC, &tsc),
                (99, b"of a newer version"),
                (
                    option::CPUSTAT,
                    b"CPU: 1\nentries: 5\noverrun: 12\ndropped events: 0\n",
                ),
            ],
            6,
        );
        assert_eq!(options.time_offset, 16_000 - 5);
        assert_eq!(
            (&*options.clock, options.uname.as_deref()),
            ("mono", Some("Linux host"))
        );
        assert_eq!(options.cpus, Some(7));
        assert_eq!(options.tsc, Some(TscToNs { mult: 3, shift: 2 }));
        assert_eq!(info.notes.len(), 1);
        assert!(
            info.notes[0]
                .text
                .contains("CPU 1: its ring buffer overwrote 12 events")
        );
    }

    #[test]
    fn a_guest_has_threads() {
        let mut data = b"vm1\0".to_vec();
        data.extend([9; 8]);
        for number in [2_u32, 0, 501, 1, 502] {
            data.extend(number.to_le_bytes());
        }
        let vcpus = vec![(0, 501), (1, 502)];
        let guest = Guest {
            name: "vm1".into(),
            vcpus,
        };
        assert_eq!(read(&[(option::GUEST, &data)], 7).0.guests, [guest]);
        // Cut short: the vCPUs before the cut.
        data.truncate(data.len() - 1);
        assert_eq!(
            read(&[(option::GUEST, &data)], 7).0.guests[0].vcpus,
            [(0, 501)]
        );
    }

    #[test]
    fn hostile_numbers_are_refused() {
        let tsc: Vec<u8> = [3_u32, 64, 0, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let (options, info) = read(
            &[
                (option::TSC2NSEC, &tsc),
                (option::DATE, b"0x7fffffffffffffff\0"),
                (option::OFFSET, b"soon"),
                (option::BUFFER, &[1]),
            ],
            7,
        );
        assert_eq!((options.tsc, options.time_offset), (None, 0));
        assert_eq!(info.notes.len(), 4);
        let mut data = 100_u64.to_le_bytes().to_vec();
        data.extend(b"name\0local\0");
        data.extend(4096_u32.to_le_bytes());
        data.extend(u32::MAX.to_le_bytes());
        data.extend([0; 25]);
        let (options, info) = read(&[(option::BUFFER, &data)], 7);
        assert_eq!(options.buffers[0].cpus.len(), 1);
        assert_eq!(
            (&*options.buffers[0].name, options.buffers[0].page_size),
            ("name", 4096)
        );
        assert!(info.is_partial());
    }
}
