//! Reads at a position.

use std::fs::File;
use std::io;

/// An input that can be read at any position.
///
/// Not a memory map: a file that is cut short while it is read must end the reading, not the process.
pub trait ReadAt: Send {
    /// Reads into `buffer` from `offset` (bytes); gives how many bytes were read, 0 at the end.
    ///
    /// # Errors
    /// What the operating system says.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.get(offset..))
            .unwrap_or_default();
        let count = rest.len().min(buffer.len());
        if let (Some(target), Some(bytes)) = (buffer.get_mut(..count), rest.get(..count)) {
            target.copy_from_slice(bytes);
        }
        Ok(count)
    }
}
