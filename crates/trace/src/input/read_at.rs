//! Reads at a position.

use std::fs::File;
use std::io;
use std::sync::Arc;

/// An input that can be read at any position.
///
/// Not a memory map: a file that is cut short while it is read must end the reading, not the process.
pub trait ReadAt: Send {
    /// Reads into `buffer` from `offset` (bytes); gives how many bytes were read, 0 at the end.
    ///
    /// # Errors
    /// What the operating system says.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// A second handle on the same bytes, where the input can have one.
    fn handle(&self) -> Option<Box<dyn ReadAt>> {
        None
    }
}

/// Fills as much of `buffer` as there is from `offset` on; gives how many bytes that was.
pub(crate) fn fill_at(input: &mut dyn ReadAt, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read_at(rest, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl ReadAt for File {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }

    fn handle(&self) -> Option<Box<dyn ReadAt>> {
        let file = self.try_clone().ok()?;
        Some(Box::new(file))
    }
}

/// Copies what `bytes` has from an offset on; gives how many bytes that are.
fn copy_at(bytes: &[u8], buffer: &mut [u8], offset: u64) -> usize {
    let rest = usize::try_from(offset)
        .ok()
        .and_then(|offset| bytes.get(offset..))
        .unwrap_or_default();
    let count = rest.len().min(buffer.len());
    if let (Some(target), Some(bytes)) = (buffer.get_mut(..count), rest.get(..count)) {
        target.copy_from_slice(bytes);
    }
    count
}

impl ReadAt for Vec<u8> {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(copy_at(self, buffer, offset))
    }
}

impl ReadAt for Arc<Vec<u8>> {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(copy_at(self, buffer, offset))
    }

    fn handle(&self) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(Self::clone(self)))
    }
}
