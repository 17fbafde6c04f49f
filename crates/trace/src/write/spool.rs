//! Temporary storage of pages until the last event: a file has each CPU's pages in one piece.

use std::io::{self, Read, Seek, SeekFrom, Write};

use tempfile::SpooledTempFile;

use super::error::WriteError;
use super::options::Compression;

/// Pages of one CPU that are spooled together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Position in the temporary file, and length, in bytes.
    position: u64,
    len: u64,
}

/// Bytes that stay in memory: enough for a small recording, which then needs no temporary file.
const IN_MEMORY: usize = 1 << 20;

/// Memory for the first pages, then an anonymous temporary file.
#[derive(Default)]
pub(super) struct Spool {
    file: Option<SpooledTempFile>,
    /// Bytes so far.
    len: u64,
    packer: Option<zstd::bulk::Compressor<'static>>,
    packed: Vec<u8>,
}

/// Level of zstd: with more the file hardly shrinks (measured: 3 makes it 5 % smaller and takes
/// twice the time).
const LEVEL: i32 = 1;

impl Spool {
    pub(super) fn new(compression: Compression) -> Result<Self, WriteError> {
        let packer = match compression {
            Compression::None => None,
            Compression::Zstd => {
                Some(zstd::bulk::Compressor::new(LEVEL).map_err(WriteError::Compress)?)
            }
        };
        Ok(Self {
            packer,
            ..Self::default()
        })
    }

    /// Keeps whole pages, as they are or as one compressed chunk with its head.
    pub(super) fn keep(&mut self, pages: &[u8]) -> Result<Extent, WriteError> {
        let bytes = match &mut self.packer {
            None => pages,
            Some(packer) => {
                self.packed.clear();
                self.packed.resize(8, 0);
                self.packed
                    .reserve(zstd::zstd_safe::compress_bound(pages.len()));
                let chunk = packer.compress(pages).map_err(WriteError::Compress)?;
                let sizes = [chunk.len() as u32, pages.len() as u32];
                for (target, size) in self.packed.chunks_exact_mut(4).zip(sizes) {
                    target.copy_from_slice(&size.to_le_bytes());
                }
                self.packed.extend_from_slice(&chunk);
                &self.packed
            }
        };
        let file = match &mut self.file {
            Some(file) => file,
            absent => absent.insert(SpooledTempFile::new(IN_MEMORY)),
        };
        file.write_all(bytes)
            .map_err(|source| failed(source, self.len))?;
        let extent = Extent {
            position: self.len,
            len: bytes.len() as u64,
        };
        self.len += extent.len;
        Ok(extent)
    }

    /// Copies kept pages to the output.
    pub(super) fn copy(
        &mut self,
        extents: &[Extent],
        output: &mut impl Write,
    ) -> Result<(), WriteError> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        for extent in extents {
            self.packed.resize(extent.len as usize, 0);
            file.seek(SeekFrom::Start(extent.position))
                .and_then(|_| file.read_exact(&mut self.packed))
                .map_err(|source| failed(source, self.len))?;
            output.write_all(&self.packed).map_err(WriteError::Io)?;
        }
        Ok(())
    }
}

impl Extent {
    /// Bytes in the file.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }
}

fn failed(source: io::Error, spooled: u64) -> WriteError {
    WriteError::Spool {
        dir: std::env::temp_dir(),
        spooled,
        source,
    }
}
