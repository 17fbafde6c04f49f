//! An input that can be read at any position.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use tempfile::SpooledTempFile;

use super::read_at::ReadAt;
use super::stream::Stream;
use crate::ReadError;

/// Bytes of an unpacked recording that stay in memory. A longer one goes to a temporary file.
pub const SPOOL_IN_MEMORY: usize = 16 << 20;

/// Bytes that are unpacked at once: first few, so that a small input costs little, then enough that system
/// calls do not count.
const FIRST_PART: usize = 1 << 12;
const PART: usize = 1 << 18;

/// A whole container: the plain file itself, or what was unpacked of it.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The input's name for messages.
    pub(crate) name: String,
    /// The compression that was around the container.
    pub(crate) compression: Option<&'static str>,
    /// Where unpacking stopped early.
    pub(crate) damage: Option<String>,
    /// Bytes in all.
    pub(crate) len: u64,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    File(File),
    Spooled(Box<SpooledTempFile>),
}

impl Stored {
    /// Makes a stream seekable: opens the plain file, or unpacks the stream into a temporary file.
    pub(crate) fn new(stream: Stream) -> Result<Self, ReadError> {
        if let Some(path) = stream.plain_path() {
            let refused = |source| ReadError::Open {
                path: path.to_path_buf(),
                source,
            };
            let file = File::open(path).map_err(refused)?;
            let len = file.metadata().map_err(refused)?.len();
            let inner = Inner::File(file);
            return Ok(Self {
                name: stream.name,
                compression: None,
                damage: None,
                len,
                inner,
            });
        }
        Self::spool(stream)
    }

    fn spool(mut stream: Stream) -> Result<Self, ReadError> {
        let mut spool = SpooledTempFile::new(SPOOL_IN_MEMORY);
        let mut buffer = vec![0; FIRST_PART];
        let mut len = 0;
        loop {
            let read = match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    let input = stream.name;
                    return Err(ReadError::Io {
                        input,
                        offset: len,
                        source,
                    });
                }
            };
            let part = buffer.get(..read).unwrap_or_default();
            io::Write::write_all(&mut spool, part).map_err(|source| ReadError::Spool {
                input: stream.name.clone(),
                dir: std::env::temp_dir(),
                unpacked: len,
                source,
            })?;
            len += read as u64;
            if read == buffer.len() && read < PART {
                buffer.resize(4 * read, 0);
            }
        }
        Ok(Self {
            damage: stream.damage.get(),
            name: stream.name,
            compression: stream.compression,
            len,
            inner: Inner::Spooled(Box::new(spool)),
        })
    }

    /// What is in memory, for tests and small things.
    #[cfg(test)]
    pub(crate) fn from_bytes(name: &str, bytes: &[u8]) -> Self {
        let mut spool = SpooledTempFile::new(SPOOL_IN_MEMORY);
        io::Write::write_all(&mut spool, bytes).expect("memory takes it");
        Self {
            name: name.to_owned(),
            compression: None,
            damage: None,
            len: bytes.len() as u64,
            inner: Inner::Spooled(Box::new(spool)),
        }
    }

    /// Fills `buffer` from `offset`; returns the number of bytes, fewer only at the end.
    pub(crate) fn fill_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize, ReadError> {
        if let Err(source) = self.seek(SeekFrom::Start(offset)) {
            let input = self.name.clone();
            return Err(ReadError::Io {
                input,
                offset,
                source,
            });
        }
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read(rest) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let (input, offset) = (self.name.clone(), offset + filled as u64);
                    return Err(ReadError::Io {
                        input,
                        offset,
                        source,
                    });
                }
            }
        }
        Ok(filled)
    }
}

impl Read for Stored {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.inner {
            Inner::File(file) => file.read(buffer),
            Inner::Spooled(spool) => spool.read(buffer),
        }
    }
}

impl Seek for Stored {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        match &mut self.inner {
            Inner::File(file) => file.seek(position),
            Inner::Spooled(spool) => spool.seek(position),
        }
    }
}

impl ReadAt for Stored {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.seek(SeekFrom::Start(offset))?;
        self.read(buffer)
    }

    fn handle(&self) -> Option<Box<dyn ReadAt>> {
        match &self.inner {
            Inner::File(file) => file.handle(),
            Inner::Spooled(_) => None,
        }
    }
}
