//! The ring of a CPU's events, shared with the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::attributes;
use super::conversion::PAGE_START;

/// Positions in `struct perf_event_mmap_page`: the kernel writes up to the head, readers have read up to the
/// tail.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// PERF_RECORD_LOST and PERF_RECORD_SAMPLE.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;

/// Records of a chunk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) samples: u64,
    pub(crate) lost: u64,
}

impl Count {
    /// Counts whole records.
    pub(crate) fn of(mut records: &[u8]) -> Self {
        let mut count = Self::default();
        // `struct perf_event_header`: kind, flags, size.
        while let Some(head) = records.first_chunk::<8>() {
            let kind = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
            let size = usize::from(u16::from_ne_bytes([head[6], head[7]])).max(8);
            match kind {
                SAMPLE => count.samples += 1,
                LOST => {
                    let number = records.get(16..24).and_then(|bytes| bytes.try_into().ok());
                    count.lost += number.map_or(0, u64::from_ne_bytes);
                }
                _ => {}
            }
            records = records.get(size..).unwrap_or_default();
        }
        count
    }

    /// Sums over CPUs.
    pub(crate) const fn add(&mut self, count: Self) {
        self.samples += count.samples;
        self.lost += count.lost;
    }
}

/// A CPU's events and their ring: the first event owns it, the others are redirected.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) cpu: u16,
    events: Vec<OwnedFd>,
    map: NonNull<u8>,
    page: usize,
    /// Bytes of records, a power of two.
    len: usize,
}

// SAFETY: the map is memory of the process, not of a thread; only its owner moves the tail.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps a ring of `len` bytes, a power of two of pages or none, for the event.
    pub(crate) fn new(cpu: u16, event: OwnedFd, len: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so the map takes the place of no other. It is released in `drop`
        // and not reached otherwise.
        let map = unsafe {
            let place = std::ptr::null_mut();
            rustix::mm::mmap(place, page + len, protection, MapFlags::SHARED, &event, 0)?
        };
        let map = NonNull::new(map.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            cpu,
            events: vec![event],
            map,
            page,
            len,
        })
    }

    /// Adds an event that writes into this ring.
    pub(crate) fn add(&mut self, event: OwnedFd) -> io::Result<()> {
        if let Some(owner) = self.events.first() {
            attributes::redirect(event.as_fd(), owner.as_fd())?;
        }
        self.events.push(event);
        Ok(())
    }

    /// The number of the event that was added last.
    pub(crate) fn last_id(&self) -> io::Result<u64> {
        let event = self.events.last().ok_or(io::ErrorKind::NotFound)?;
        attributes::id(event.as_fd())
    }

    /// Switches all events on.
    pub(crate) fn enable(&self) -> io::Result<()> {
        let mut events = self.events.iter();
        events.try_for_each(|event| attributes::enable(event.as_fd()))
    }

    /// For poll: readable once there is a watermark of records.
    pub(crate) fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.events.first().map(AsFd::as_fd)
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both positions are aligned words of the first page, mapped as long as `self` lives.
        // The kernel and this process reach them by atomic accesses alone.
        unsafe { AtomicU64::from_ptr(self.map.as_ptr().add(offset).cast()) }
    }

    /// The beginning of the first page, as far as the kernel writes it before the event is enabled.
    pub(crate) fn page_start(&self) -> [u8; PAGE_START] {
        // SAFETY: the page is mapped as long as `self` lives, and is longer. The kernel may write the counts
        // meanwhile; volatile reads assume nothing about that.
        unsafe { self.map.as_ptr().cast::<[u8; PAGE_START]>().read_volatile() }
    }

    /// Takes all records out of the ring, to the end of `target`.
    pub(crate) fn drain(&self, target: &mut Vec<u8>) {
        // Pairs with the kernel's barrier between records and head (perf_output_put_handle).
        let head = self.position(HEAD).load(Ordering::Acquire);
        let tail = self.position(TAIL).load(Ordering::Relaxed);
        let count = (head.wrapping_sub(tail) as usize).min(self.len);
        let start = tail as usize & (self.len - 1);
        let first = count.min(self.len - start);
        for (offset, part) in [(start, first), (0, count - first)] {
            // SAFETY: the part lies within the records of the map. The kernel does not write between tail and
            // head.
            let records = unsafe {
                std::slice::from_raw_parts(self.map.as_ptr().add(self.page + offset), part)
            };
            target.extend_from_slice(records);
        }
        // Only after the copy may the kernel write there.
        self.position(TAIL).store(head, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the map has this place and length, and no reference into it outlives `self`. An error would
        // only leave it mapped.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.page + self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_losses_are_counted() {
        let record = |kind: u32, words: &[u64]| {
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(&(8 + 8 * words.len() as u16).to_ne_bytes());
            words
                .iter()
                .for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
            bytes
        };
        let parts = [
            record(SAMPLE, &[1, 2]),
            record(LOST, &[7, 30]),
            record(3, &[]),
            record(SAMPLE, &[]),
        ];
        let records = parts.concat();
        let expected = Count {
            samples: 2,
            lost: 30,
        };
        assert_eq!(Count::of(&records), expected);
        assert_eq!(Count::of(&records[..10]).samples, 1);
        assert_eq!(Count::of(&[]), Count::default());
    }
}
