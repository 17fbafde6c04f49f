//! One CPU's ring buffer: whole pages go from the kernel to a file without a copy in this process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

/// Bytes that a pipe holds, if the kernel allows: 64 pages of 4 KiB are one call.
const PIPE: usize = 256 << 10;

/// The pipe between a ring buffer and a file. Each thread has one.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
}

impl Pipe {
    /// Makes it.
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // More than fs.pipe-user-pages-soft allows: then the pipe keeps its size.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE);
        let capacity = rustix::pipe::fcntl_getpipe_size(&write)?;
        Ok(Self {
            read,
            write,
            capacity,
        })
    }
}

/// The pages of one CPU.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) cpu: u16,
    /// `None` once it is closed.
    source: Option<File>,
    /// Pages so far.
    pub(crate) spool: File,
    /// Bytes of these.
    pub(crate) len: u64,
    page: usize,
}

impl Ring {
    /// Opens `trace_pipe_raw`. The spool has no name, so that nothing is left of it after a kill.
    pub(crate) fn open(cpu: u16, source: &Path, spool: File, page: usize) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let source = File::options()
            .read(true)
            .custom_flags(flags)
            .open(source)?;
        Ok(Self {
            cpu,
            source: Some(source),
            spool,
            len: 0,
            page,
        })
    }

    /// For poll: readable once `buffer_percent` of the buffer is full.
    pub(crate) fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(AsFd::as_fd)
    }

    /// Closes the ring buffer: an instance with open files cannot be removed.
    pub(crate) fn close(&mut self) {
        self.source = None;
    }

    /// Moves whole pages until there are none; returns their bytes.
    ///
    /// # Errors
    /// The spool cannot be written. The pages until then are whole.
    pub(crate) fn drain(&mut self, pipe: &Pipe) -> io::Result<u64> {
        let Some(source) = &self.source else {
            return Ok(0);
        };
        let source = source.as_fd();
        let limit = (pipe.capacity / self.page).max(1) * self.page;
        let mut moved = 0;
        loop {
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            let count = match rustix::pipe::splice(source, None, &pipe.write, None, limit, flags) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(moved),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                // A CPU that has never been online has no buffer.
                Err(Errno::NODEV | Errno::NXIO | Errno::IO) => return Ok(moved),
                Err(error) => return Err(error.into()),
            };
            store(pipe, count, &self.spool, &mut self.len, self.page)?;
            moved += count as u64;
        }
    }

    /// Moves what is left, with the page that is not full. Tracing has stopped.
    pub(crate) fn finish(&mut self, pipe: &Pipe) -> io::Result<()> {
        self.drain(pipe)?;
        let mut page = vec![0; self.page];
        while let Some(source) = &mut self.source {
            // read gives pages that splice leaves: those that are not full.
            match source.read(&mut page) {
                Ok(0) => return Ok(()),
                Ok(_) => {
                    self.spool.write_all(&page)?;
                    self.len += self.page as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // As in `drain`.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

/// From the pipe to the spool. After an error `len` is that of the whole pages.
fn store(pipe: &Pipe, count: usize, spool: &File, len: &mut u64, page: usize) -> io::Result<()> {
    let mut remaining = count;
    while remaining > 0 {
        match rustix::pipe::splice(&pipe.read, None, spool, None, remaining, SpliceFlags::MOVE) {
            Ok(stored @ 1..) => {
                remaining -= stored;
                *len += stored as u64;
            }
            Err(Errno::INTR) => {}
            failed => {
                *len -= *len % page as u64;
                let error =
                    failed.map_or_else(io::Error::from, |_| io::ErrorKind::WriteZero.into());
                return Err(error);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_moved_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("trace_pipe_raw");
        let pages: Vec<u8> = (0..40 * 4096_u32)
            .map(|index| (index / 4096) as u8)
            .collect();
        std::fs::write(&source, &pages).expect("a file");
        let spool = tempfile::tempfile_in(folder.path()).expect("a file");
        let copy = spool.try_clone().expect("a handle");
        let mut ring = Ring::open(3, &source, spool, 4096).expect("a source");
        let pipe = Pipe::new().expect("a pipe");
        assert_eq!(ring.drain(&pipe).expect("room"), 40 * 4096);
        ring.finish(&pipe).expect("room");
        assert_eq!(ring.len, 40 * 4096);
        let mut stored = vec![0; pages.len()];
        std::os::unix::fs::FileExt::read_exact_at(&copy, &mut stored, 0).expect("all of it");
        assert!(stored == pages);
    }
}
