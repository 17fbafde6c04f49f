//! A guest's memory: shared with the vCPUs while they run, so all access is atomic.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::error::Errno;

/// Zeroed memory for a guest; several VMs may map it, one after the other.
#[derive(Debug)]
pub struct Memory {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is this value's own until it is dropped, may be used from any thread, and is
// only accessed by atomic operations. Needed: raw pointers are neither `Send` nor `Sync`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps this many bytes, a multiple of the page size.
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn new(bytes: usize) -> Result<Self, Errno> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that
        // exists; the result is checked. Needed: KVM wants page-aligned memory that never moves.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let errno = std::io::Error::last_os_error().raw_os_error();
            return Err(Errno(errno.unwrap_or(libc::ENOMEM)));
        }
        Ok(Self {
            base: base.cast(),
            bytes,
        })
    }

    /// The address in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.expose_provenance() as u64
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Never: there is always a page.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn word(&self, address: u64) -> Option<&AtomicU64> {
        let offset = usize::try_from(address).ok()?;
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.bytes {
            return None;
        }
        // SAFETY: in bounds and aligned: just checked, and the mapping begins at a page. It lives as
        // long as `self`. All access from Rust is atomic, and the guest's is the hardware's.
        // Needed: guest memory is not Rust's.
        Some(unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) })
    }

    /// The word at a guest address, 0 outside of the memory or between words.
    #[must_use]
    pub fn read(&self, address: u64) -> u64 {
        self.word(address).map_or(0, |w| w.load(Ordering::SeqCst))
    }

    /// Writes a word; false outside of the memory or between words.
    pub fn write(&self, address: u64, value: u64) -> bool {
        let word = self.word(address);
        if let Some(word) = word {
            word.store(value, Ordering::SeqCst);
        }
        word.is_some()
    }

    /// Copies bytes to a guest address; false where they do not fit.
    pub fn copy_in(&self, address: u64, bytes: &[u8]) -> bool {
        let end = usize::try_from(address)
            .ok()
            .and_then(|start| start.checked_add(bytes.len()));
        if end.is_none_or(|end| end > self.bytes) {
            return false;
        }
        for (offset, byte) in (address as usize..).zip(bytes) {
            // SAFETY: in bounds, as just checked for all; see `word`.
            unsafe { AtomicU8::from_ptr(self.base.add(offset)) }.store(*byte, Ordering::Relaxed);
        }
        true
    }

    /// A copy of all of it.
    #[must_use]
    pub fn copy_out(&self) -> Vec<u8> {
        let words = (0..self.bytes as u64).step_by(8);
        words
            .flat_map(|address| self.read(address).to_le_bytes())
            .collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this and unmaps it here alone; VMs that map it hold an
        // `Arc` of it. A failure would leave it mapped. Needed: to give it back.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
