//! The file around the pages: versions 6 (one sequence) and 7 (sections), trace-cmd.dat.v6(5) and
//! trace-cmd.dat.v7(5).

use super::options::{Compression, Options, Version};
use super::page::PAGE;
use crate::ClockUnit;
use crate::trace_dat::layout::{MAGIC, option};

/// The description of a file, without its events.
pub(super) struct Meta {
    /// Event descriptions by system.
    pub(super) systems: Vec<(&'static str, Vec<String>)>,
    pub(super) kallsyms: String,
    pub(super) cmdlines: String,
    /// Options without those that are positions: id and content.
    pub(super) options: Vec<(u16, Vec<u8>)>,
    /// How many CPUs the host has.
    pub(super) cpus: u32,
    /// CPUs with data, and the length of the data in bytes.
    pub(super) data: Vec<(u16, u64)>,
}

/// The bytes before the data of the first CPU, and the position of each CPU's data.
pub(super) struct Head {
    pub(super) bytes: Vec<u8>,
    pub(super) starts: Vec<u64>,
}

const HEADER_PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";

const HEADER_EVENT: &str = "# compressed entry header\n\ttype_len    :    5 bits\n\
    \ttime_delta  :   27 bits\n\tarray       :   32 bits\n\n\tpadding     : type == 29\n\
    \ttime_extend : type == 30\n\ttime_stamp  : type == 31\n\tdata max type_len  == 28\n";

/// Bytes, little endian.
#[derive(Default)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Bytes {
    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u16(self, value: u16) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    /// A string with its zero.
    pub(super) fn text(self, text: &str) -> Self {
        self.raw(text.as_bytes()).raw(&[0])
    }

    fn sized(self, text: &str) -> Self {
        self.sized_bytes(text.as_bytes())
    }

    /// Bytes with their number in front.
    pub(super) fn sized_bytes(self, bytes: &[u8]) -> Self {
        self.u64(bytes.len() as u64).raw(bytes)
    }

    pub(super) fn option(self, id: u16, data: &[u8]) -> Self {
        self.u16(id).u32(data.len() as u32).raw(data)
    }

    /// Up to the next page.
    fn pad(mut self) -> Self {
        self.0.resize(self.0.len().next_multiple_of(PAGE), 0);
        self
    }
}

/// Options from those of the caller: id and content.
pub(super) fn options(options: &Options) -> Vec<(u16, Vec<u8>)> {
    let text = |text: &str| Bytes::default().text(text).0;
    let mut list = vec![(
        option::VERSION,
        text(concat!("stealtime ", env!("CARGO_PKG_VERSION"))),
    )];
    let clock = &options.clock;
    if !clock.name.is_empty() {
        list.push((option::TRACECLOCK, text(&format!("[{}]\n", clock.name))));
    }
    if let Some(uname) = &options.uname {
        list.push((option::UNAME, text(uname)));
    }
    if let Some(snapshot) = &options.snapshot {
        list.push((option::HOST_SNAPSHOT, snapshot.as_bytes().to_vec()));
    }
    if clock.name == "x86-tsc" && clock.unit == ClockUnit::Ns {
        // The times are converted already: multiplier 1, shift 0, offset 0.
        let identity = Bytes::default().u32(1).u32(0).u64(0);
        list.push((option::TSC2NSEC, identity.0));
    }
    list
}

/// A vCPU of a guest, with its thread on the host.
pub(super) struct GuestVcpu {
    pub(super) vcpu: u32,
    pub(super) tid: i32,
}

/// The option for a guest: its vCPUs, each with its thread on the host.
pub(super) fn guest(name: &str, vcpus: impl ExactSizeIterator<Item = GuestVcpu>) -> (u16, Vec<u8>) {
    // Behind the name stands the identifier of the guest's own recording; 0: there is none.
    let mut bytes = Bytes::default().text(name).u64(0).u32(vcpus.len() as u32);
    for GuestVcpu { vcpu, tid } in vcpus {
        bytes = bytes.u32(vcpu).u32(tid.cast_unsigned());
    }
    (option::GUEST, bytes.0)
}

impl Meta {
    fn start(version: &str) -> Bytes {
        let magic = Bytes::default().raw(MAGIC).text(version);
        // Little endian, with a long of 8 bytes.
        magic.raw(&[0, 8]).u32(PAGE as u32)
    }

    fn header_page() -> Bytes {
        let page = Bytes::default().text("header_page").sized(HEADER_PAGE);
        page.text("header_event").sized(HEADER_EVENT)
    }

    fn events(&self) -> Bytes {
        let mut bytes = Bytes::default().u32(self.systems.len() as u32);
        for (system, events) in &self.systems {
            bytes = bytes.text(system).u32(events.len() as u32);
            for event in events {
                bytes = bytes.sized(event);
            }
        }
        bytes
    }

    fn sized32(text: &str) -> Bytes {
        Bytes::default().u32(text.len() as u32).raw(text.as_bytes())
    }

    /// The position of each CPU's data behind `end`, each on a page of its own.
    fn starts(&self, end: u64) -> Vec<u64> {
        let mut position = end;
        let mut starts = Vec::new();
        for (_, len) in &self.data {
            position = position.next_multiple_of(PAGE as u64);
            starts.push(position);
            position += len;
        }
        starts
    }

    /// The file up to its data.
    pub(super) fn head(&self, options: &Options) -> Head {
        match options.version {
            Version::V6 => self.v6(),
            Version::V7 => self.v7(options),
        }
    }

    fn v6(&self) -> Head {
        let mut file = Self::start("6").raw(&Self::header_page().0);
        // No events of ftrace itself.
        file = file.u32(0).raw(&self.events().0);
        file = file.raw(&Self::sized32(&self.kallsyms).0);
        // No formats of trace_printk.
        file = file.u32(0).sized(&self.cmdlines).u32(self.cpus);
        file = file.text("options  ");
        for (id, data) in &self.options {
            file = file.option(*id, data);
        }
        file = file.u16(option::DONE).text("flyrecord");
        let starts = self.starts(file.0.len() as u64 + u64::from(self.cpus) * 16);
        let mut data = self.data.iter().zip(&starts).peekable();
        for cpu in 0..self.cpus {
            let entry = data.next_if(|((number, _), _)| u32::from(*number) == cpu);
            let (start, len) = entry.map_or((0, 0), |((_, len), start)| (*start, *len));
            file = file.u64(start).u64(len);
        }
        let bytes = file.pad().0;
        Head { bytes, starts }
    }

    fn v7(&self, options: &Options) -> Head {
        let (name, version, flags) = match options.compression {
            Compression::None => ("none", "", 0),
            Compression::Zstd => ("zstd", zstd::zstd_safe::version_string(), 1),
        };
        let mut file = Self::start("7").text(name).text(version);
        let place = file.0.len();
        file = file.u64(0);
        let mut list = Vec::new();
        let empty = Bytes::default().u32(0);
        let printk = Bytes::default().u32(0);
        let cmdlines = Bytes::default().sized(&self.cmdlines);
        let kallsyms = Self::sized32(&self.kallsyms);
        let parts = [
            Self::header_page(),
            empty,
            self.events(),
            kallsyms,
            printk,
            cmdlines,
        ];
        for (id, part) in (option::HEADER_INFO..).zip(parts) {
            list.push((id, Bytes::default().u64(file.0.len() as u64).0));
            file = section(file, id, &part.0);
        }
        list.extend(self.options.iter().cloned());
        list.push((option::CPUCOUNT, Bytes::default().u32(self.cpus).0));
        let position = file.0.len();
        if let Some(place) = file.0.get_mut(place..place + 8) {
            place.copy_from_slice(&(position as u64).to_le_bytes());
        }
        // The positions that the last option holds depend on its own length.
        let last = |buffer: &[u8]| {
            let mut bytes = Bytes::default();
            for (id, data) in &list {
                bytes = bytes.option(*id, data);
            }
            bytes
                .option(option::BUFFER, buffer)
                .option(option::DONE, &[0; 8])
        };
        let clock = &options.clock.name;
        let unplaced = vec![0; self.data.len()];
        let len = last(&self.buffer(0, clock, &unplaced)).0.len();
        let buffer = (position + 16 + len) as u64;
        let starts = self.starts(buffer + 16);
        let content = last(&self.buffer(buffer, clock, &starts));
        file = section(file, option::DONE, &content.0);
        let data = self.data.iter().zip(&starts).next_back();
        let end = data.map_or(buffer + 16, |((_, len), start)| start + len);
        file = file
            .u16(option::BUFFER)
            .u16(flags)
            .u32(0)
            .u64(end - (buffer + 16))
            .pad();
        Head {
            bytes: file.0,
            starts,
        }
    }

    /// Option BUFFER: where the data of which CPU is.
    fn buffer(&self, section: u64, clock: &str, starts: &[u64]) -> Vec<u8> {
        let buffer = Bytes::default().u64(section).text("").text(clock);
        let mut buffer = buffer.u32(PAGE as u32).u32(self.data.len() as u32);
        for ((cpu, len), start) in self.data.iter().zip(starts) {
            buffer = buffer.u32(u32::from(*cpu)).u64(*start).u64(*len);
        }
        buffer.0
    }
}

/// A section that is not compressed.
fn section(file: Bytes, id: u16, content: &[u8]) -> Bytes {
    let head = file.u16(id).u16(0).u32(0).u64(content.len() as u64);
    head.raw(content)
}
