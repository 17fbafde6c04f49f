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
}

impl CpuRing {
    /// Maps a ring of `len` bytes.
    pub(super) fn new(cpu: u16, map: &OwnedFd, len: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        Ok(Self {
            cpu,
            consumer: Shared::new(map, 0, page, ProtFlags::READ | ProtFlags::WRITE)?,
            producer: Shared::new(map, page, page + 2 * len, ProtFlags::READ)?,
            page,
            len,
        })
    }

    /// Gives all finished records in their order. Returns whether one behind them is not finished.
    pub(super) fn drain(&self, mut take: impl FnMut(&[u8])) -> bool {
        let consumer = self.consumer.word(0);
        let mut position = consumer.load(Ordering::Relaxed);
        // Pairs with the release of the position in `__bpf_ringbuf_reserve`.
        let end = self.producer.word(0).load(Ordering::Acquire);
        let mut is_busy = false;
        while position < end {
            let offset = self.page + (position as usize & (self.len - 1));
            // SAFETY: heads are aligned to 8 bytes and lie within the first copy of the records. The kernel
            // changes their lengths by atomic accesses alone.
            let length =
                unsafe { AtomicU32::from_ptr(self.producer.map.as_ptr().add(offset).cast()) };
            // Pairs with the exchange in `bpf_ringbuf_commit`: the record is written before.
            let length = length.load(Ordering::Acquire);
            is_busy = length & BUSY != 0;
            if is_busy {
                break;
            }
            let bytes = (length & !DISCARDED) as usize;
            if offset + HEAD + bytes > self.page + 2 * self.len {
                debug_assert!(false, "a record of {bytes} bytes");
                break;
            }
            if length & DISCARDED == 0 {
                // SAFETY: the record lies within the two copies. The kernel does not write behind the
                // reader's position.
                take(unsafe {
                    std::slice::from_raw_parts(self.producer.map.as_ptr().add(offset + HEAD), bytes)
                });
            }
            position += (HEAD + bytes).next_multiple_of(8) as u64;
        }
        // Only after the records are read may the kernel write there.
        consumer.store(position, Ordering::Release);
        is_busy
    }
}
