//! A CPU's records, shared with the kernel (Documentation/bpf/ringbuf.rst).

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// Bits of a record's length: the program still writes it; the program has dropped it.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// Bytes of the head that the kernel puts before a record.
const HEAD: usize = 8;

/// Memory that is shared with the kernel, unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct Shared {
    map: NonNull<u8>,
    len: usize,
}

// SAFETY: the map is memory of the process, not of a thread. All accesses are atomic or of bytes that the
// other side does not write meanwhile.
unsafe impl Send for Shared {}

impl Shared {
    /// Maps `len` bytes of a map from `offset` on.
    pub(super) fn new(
        map: &OwnedFd,
        offset: usize,
        len: usize,
        protection: ProtFlags,
    ) -> io::Result<Self> {
        // SAFETY: no address is asked for, so the map takes the place of no other. It is released in `drop`
        // and not reached otherwise.
        let place = unsafe {
            let place = std::ptr::null_mut();
            rustix::mm::mmap(place, len, protection, MapFlags::SHARED, map, offset as u64)?
        };
        let map = NonNull::new(place.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { map, len })
    }

    /// A word that both sides reach; `position` is aligned.
    pub(super) fn word(&self, position: usize) -> &AtomicU64 {
        assert!(position.is_multiple_of(8) && position + 8 <= self.len);
        // SAFETY: the word is aligned and within the map, which lives as long as `self`. Both sides reach it
        // by atomic accesses alone.
        unsafe { AtomicU64::from_ptr(self.map.as_ptr().add(position).cast()) }
    }

    /// Sets a byte that programs read.
    pub(super) fn set_byte(&self, position: usize, value: u8) {
        assert!(position < self.len);
        // SAFETY: the byte is within the map, which is writable. Programs read single bytes of it.
        unsafe { self.map.as_ptr().add(position).write_volatile(value) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the map has this place and length, and no reference into it outlives `self`. An error would
        // only leave it mapped.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.len) };
    }
}

/// The ring of one CPU.
#[derive(Debug)]
pub(super) struct CpuRing {
    pub(super) cpu: u16,
    /// The page with the position of the reader, which the kernel reads.
    consumer: Shared,
    /// The page with the position of the writer, and the records twice one behind the other.
    producer: Shared,
    page: usize,
    /// Bytes of records, a power of two.
    len: usize,
    /// The position of the reader: the kernel may write before it.
    released: u64,
    /// The position behind the records that [`CpuRing::scan`] gave.
    scanned: u64,
}

impl CpuRing {
    /// Maps a ring of `len` bytes, at most 1 GiB.
    pub(super) fn new(cpu: u16, map: &OwnedFd, len: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let consumer = Shared::new(map, 0, page, ProtFlags::READ | ProtFlags::WRITE)?;
        let released = consumer.word(0).load(Ordering::Relaxed);
        Ok(Self {
            cpu,
            consumer,
            producer: Shared::new(map, page, page + 2 * len, ProtFlags::READ)?,
            page,
            len,
            released,
            scanned: released,
        })
    }

    /// Gives the finished records that no scan gave, in their order, each with the low bits of its position.
    /// They stay in the ring. Returns whether a record behind them is not finished.
    #[inline]
    pub(super) fn scan(&mut self, mut take: impl FnMut(u32, &[u8])) -> bool {
        // Pairs with the release of the position in `__bpf_ringbuf_reserve`.
        let end = self.producer.word(0).load(Ordering::Acquire);
        while self.scanned < end {
            let length = self.length(self.scanned as u32);
            if length & BUSY != 0 {
                return true;
            }
            let Some(bytes) = self.bytes(self.scanned as u32, length) else {
                break;
            };
            if length & DISCARDED == 0 {
                take(self.scanned as u32, bytes);
            }
            self.scanned += (HEAD + bytes.len()).next_multiple_of(8) as u64;
        }
        false
    }

    /// The record at a position that a scan gave; `None`: it is released.
    #[inline]
    pub(super) fn record(&self, position: u32) -> Option<&[u8]> {
        let is_held = u64::from(self.distance(position)) < self.scanned - self.released;
        is_held.then(|| self.bytes(position, self.length(position)))?
    }

    /// Bytes from the position of the reader to another one.
    #[inline]
    pub(super) const fn distance(&self, position: u32) -> u32 {
        position.wrapping_sub(self.released as u32)
    }

    /// Lets the kernel write over the records before `position`, or over all that were scanned.
    pub(super) fn release(&mut self, position: Option<u32>) {
        let distance = position.map(|position| u64::from(self.distance(position)));
        let held = self.scanned - self.released;
        self.released += distance.unwrap_or(held).min(held);
        // Only after the records are read may the kernel write there.
        self.consumer
            .word(0)
            .store(self.released, Ordering::Release);
    }

    /// The length of the record at a position, with its flags.
    #[inline]
    fn length(&self, position: u32) -> u32 {
        let offset = self.page + (position as usize & (self.len - 1) & !7);
        // SAFETY: heads are aligned to 8 bytes and lie within the first copy of the records. The kernel
        // changes their lengths by atomic accesses alone.
        let length = unsafe { AtomicU32::from_ptr(self.producer.map.as_ptr().add(offset).cast()) };
        // Pairs with the exchange in `bpf_ringbuf_commit`: the record is written before.
        length.load(Ordering::Acquire)
    }

    /// The bytes of the record at a position between that of the reader and that of the writer.
    #[inline]
    fn bytes(&self, position: u32, length: u32) -> Option<&[u8]> {
        let begin = self.page + (position as usize & (self.len - 1) & !7) + HEAD;
        let bytes = (length & !(BUSY | DISCARDED)) as usize;
        if begin + bytes > self.page + 2 * self.len {
            debug_assert!(false, "a record of {bytes} bytes");
            return None;
        }
        // SAFETY: the record lies within the two copies. The kernel does not write behind the reader's
        // position, which only `release` changes.
        Some(unsafe { std::slice::from_raw_parts(self.producer.map.as_ptr().add(begin), bytes) })
    }
}

/// The kernel's side of a ring, for tests.
#[cfg(test)]
pub(super) mod writer {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Writes records into a ring in memory.
    pub(in super::super) struct Writer {
        file: File,
        len: usize,
        position: u64,
    }

    impl Writer {
        /// A ring of `len` bytes, a power of two of pages, with its reader.
        pub(in super::super) fn new(cpu: u16, len: usize) -> (Self, CpuRing) {
            let page = rustix::param::page_size();
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let map = rustix::fs::memfd_create("ring", flags).expect("memory");
            rustix::fs::ftruncate(&map, (2 * page + 2 * len) as u64).expect("memory");
            let ring = CpuRing::new(cpu, &map, len).expect("a map");
            let file = map.into();
            let position = 0;
            (
                Self {
                    file,
                    len,
                    position,
                },
                ring,
            )
        }

        /// Writes a record; `is_busy`: it is reserved and not finished.
        pub(in super::super) fn write(&mut self, record: &[u8], is_busy: bool) {
            let length = record.len() as u32 | if is_busy { BUSY } else { 0 };
            let mut bytes = u64::from(length).to_ne_bytes().to_vec();
            bytes.extend(record);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            self.write_raw(&bytes);
        }

        /// Writes records with their heads.
        fn write_raw(&mut self, bytes: &[u8]) {
            let page = rustix::param::page_size() as u64;
            let place = 2 * page + (self.position & (self.len as u64 - 1));
            self.file.write_all_at(bytes, place).expect("memory");
            self.position += bytes.len() as u64;
            let position = self.position.to_ne_bytes();
            self.file.write_all_at(&position, page).expect("memory");
        }

        /// The position that the reader has released.
        pub(in super::super) fn released(&self) -> u64 {
            let mut bytes = [0; 8];
            self.file.read_exact_at(&mut bytes, 0).expect("memory");
            u64::from_ne_bytes(bytes)
        }
    }
}
