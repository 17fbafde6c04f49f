//! Makes small files of both versions.

use std::io::Write;

use crate::tracefs::Endian;

/// Page size of the files made here.
pub(crate) const PAGE: usize = 128;

/// Bytes in a file's order.
pub(crate) struct Bytes {
    pub(crate) endian: Endian,
    pub(crate) bytes: Vec<u8>,
}

impl Bytes {
    pub(crate) fn new(endian: Endian) -> Self {
        Self {
            endian,
            bytes: Vec::new(),
        }
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        let bytes = match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        self.raw(&bytes)
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        let bytes = match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        self.raw(&bytes)
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        let bytes = match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        self.raw(&bytes)
    }

    fn sized(self, bytes: &[u8]) -> Self {
        self.u64(bytes.len() as u64).raw(bytes)
    }

    fn option(self, id: u16, data: &[u8]) -> Self {
        self.u16(id).u32(data.len() as u32).raw(data)
    }

    fn pad(mut self) -> Self {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(PAGE), 0);
        self
    }
}

/// What a file is made of.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) endian: Endian,
    /// Bytes of the kernel's long.
    pub(crate) long: u8,
    pub(crate) options: Vec<(u16, Vec<u8>)>,
    /// Name and clock of each buffer, the top one first, and pages of each CPU.
    pub(crate) buffers: Vec<(&'static str, &'static str, Vec<Vec<u8>>)>,
}

impl Recipe {
    pub(crate) fn new(endian: Endian, long: u8) -> Self {
        Self {
            endian,
            long,
            options: Vec::new(),
            buffers: Vec::new(),
        }
    }

    pub(crate) fn buffer(mut self, name: &'static str, cpus: &[Vec<Vec<u8>>]) -> Self {
        let cpus = cpus.iter().map(|pages| pages.concat()).collect();
        self.buffers.push((name, "local", cpus));
        self
    }

    pub(crate) fn option(mut self, id: u16, data: &[u8]) -> Self {
        self.options.push((id, data.to_vec()));
        self
    }

    fn bytes(&self) -> Bytes {
        Bytes::new(self.endian)
    }

    /// A page with events `(delta, apicid)`; `flags` go into its commit.
    pub(crate) fn page(&self, time: u64, events: &[(u32, u32)], flags: u32) -> Vec<u8> {
        let mut data = self.bytes();
        for (delta, apicid) in events {
            let head = match self.endian {
                Endian::Little => 4 | delta << 5,
                Endian::Big => 4 << 27 | delta,
            };
            // kvm_eoi of task 70, vector 236.
            data = data
                .u32(head)
                .u16(7)
                .raw(&[0, 0])
                .u32(70)
                .u32(*apicid)
                .u32(236);
        }
        let commit = data.bytes.len() as u32 | flags;
        let page = self.bytes().u64(time);
        let page = match self.long {
            4 => page.u32(commit),
            _ => page.u64(u64::from(commit)),
        };
        page.raw(&data.bytes).pad().bytes
    }

    fn start(&self, version: &str) -> Bytes {
        let big = u8::from(self.endian == Endian::Big);
        let start = self
            .bytes()
            .raw(b"\x17\x08\x44tracing")
            .raw(version.as_bytes())
            .raw(&[0]);
        start.raw(&[big, 8]).u32(PAGE as u32)
    }

    fn header_page(&self) -> Vec<u8> {
        let (long, data) = (self.long, 8 + self.long);
        let text = format!(
            "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
             \tfield: local_t commit;\toffset:8;\tsize:{long};\tsigned:1;\n\
             \tfield: char data;\toffset:{data};\tsize:{};\tsigned:1;\n",
            PAGE - usize::from(data)
        );
        let page = self.bytes().raw(b"header_page\0").sized(text.as_bytes());
        page.raw(b"header_event\0").sized(b"type_len\n").bytes
    }

    fn events(&self) -> Vec<u8> {
        let text = b"name: kvm_eoi\nID: 7\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:__u32 apicid;\toffset:8;\tsize:4;\tsigned:0;\n\
            \tfield:int vector;\toffset:12;\tsize:4;\tsigned:1;\n\nprint fmt: \"\"\n";
        self.bytes().u32(1).raw(b"kvm\0").u32(1).sized(text).bytes
    }

    /// A file of version 6.
    pub(crate) fn v6(&self) -> Vec<u8> {
        let file = self
            .start("6")
            .raw(&self.header_page())
            .u32(0)
            .raw(&self.events());
        // kallsyms, printk, command lines.
        let mut file = file.u32(0).u32(0).sized(b"70 CPU 0/KVM\n");
        file = file.u32(self.buffers[0].2.len() as u32);
        file = file.raw(b"options  \0");
        for (id, data) in &self.options {
            file = file.option(*id, data);
        }
        let mut places = Vec::new();
        for (name, _, _) in self.buffers.iter().skip(1) {
            places.push(file.bytes.len() + 6);
            file = file.option(3, &self.bytes().u64(0).raw(name.as_bytes()).raw(&[0]).bytes);
        }
        file = file.u16(0);
        let mut table = Vec::new();
        for (index, (_, _, cpus)) in self.buffers.iter().enumerate() {
            if let Some(place) = index.checked_sub(1).map(|at| places[at]) {
                let at = self.bytes().u64(file.bytes.len() as u64).bytes;
                file.bytes[place..place + 8].copy_from_slice(&at);
            }
            file = file.raw(b"flyrecord\0");
            for pages in cpus {
                table.push((file.bytes.len(), pages));
                file = file.u64(0).u64(0);
            }
        }
        for (place, pages) in table {
            file = file.pad();
            let at = self
                .bytes()
                .u64(file.bytes.len() as u64)
                .u64(pages.len() as u64)
                .bytes;
            file.bytes[place..place + 16].copy_from_slice(&at);
            file = file.raw(pages);
        }
        file.bytes
    }

    /// A file of version 7, with sections and chunks in this compression.
    pub(crate) fn v7(&self, compression: &str) -> Vec<u8> {
        let mut file = self
            .start("7")
            .raw(compression.as_bytes())
            .raw(b"\x001.0\0");
        let place = file.bytes.len();
        file = file.u64(0);
        let mut options = self.options.clone();
        let cmdlines = self.bytes().sized(b"70 CPU 0/KVM\n").bytes;
        for (id, part) in [
            (16, self.header_page()),
            (18, self.events()),
            (21, cmdlines),
        ] {
            options.push((id, self.bytes().u64(file.bytes.len() as u64).bytes));
            file = self.section(file, id, &part, compression);
        }
        for (name, clock, cpus) in &self.buffers {
            let packed = compression != "none";
            let section = file.bytes.len() as u64;
            file = file.u16(3).u16(u16::from(packed)).u32(0).u64(0);
            let buffer = self.bytes().u64(section).raw(name.as_bytes()).raw(&[0]);
            let buffer = buffer.raw(clock.as_bytes()).raw(&[0]);
            let mut buffer = buffer.u32(PAGE as u32).u32(cpus.len() as u32);
            for (cpu, pages) in cpus.iter().enumerate() {
                file = file.pad();
                let start = file.bytes.len() as u64;
                file = if packed {
                    self.chunks(file, pages, compression)
                } else {
                    file.raw(pages)
                };
                let size = file.bytes.len() as u64 - start;
                let size = if pages.is_empty() { 0 } else { size };
                buffer = buffer.u32(cpu as u32).u64(start).u64(size);
            }
            options.push((3, buffer.bytes));
        }
        let at = self.bytes().u64(file.bytes.len() as u64).bytes;
        file.bytes[place..place + 8].copy_from_slice(&at);
        let mut section = self.bytes();
        for (id, data) in options {
            section = section.option(id, &data);
        }
        section = section.option(0, &[0; 8]);
        self.section(file, 0, &section.bytes, compression).bytes
    }

    fn section(&self, file: Bytes, id: u16, content: &[u8], compression: &str) -> Bytes {
        if compression == "none" {
            return file.u16(id).u16(0).u32(0).sized(content);
        }
        let packed = pack(content, compression);
        let file = file.u16(id).u16(1).u32(0).u64(packed.len() as u64 + 8);
        file.u32(packed.len() as u32)
            .u32(content.len() as u32)
            .raw(&packed)
    }

    /// Chunks of one page each.
    fn chunks(&self, file: Bytes, pages: &[u8], compression: &str) -> Bytes {
        let mut file = file.u32(pages.len().div_ceil(PAGE) as u32);
        for page in pages.chunks(PAGE) {
            let packed = pack(page, compression);
            file = file
                .u32(packed.len() as u32)
                .u32(page.len() as u32)
                .raw(&packed);
        }
        file
    }
}

fn pack(bytes: &[u8], compression: &str) -> Vec<u8> {
    if compression == "zstd" {
        return zstd::bulk::compress(bytes, 1).expect("memory");
    }
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}
