//! An input that is read from front to back, unpacked on the way.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::compression;
use super::xz::Xz;
use crate::ReadError;
use crate::unchanged::Opened;

/// Bytes that recognise a compression; the longest magic number, that of xz, has 6.
const MAGIC: usize = 16;
/// Bytes that are read from the operating system at once: large enough that system calls do not count.
const BUFFER: usize = 1 << 17;

/// How far reading has come in the file as it lies on disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    consumed: Arc<AtomicU64>,
    /// The file's length, where it is a regular file.
    pub(crate) total: Option<u64>,
}

impl Progress {
    /// Bytes read so far and in all.
    pub(crate) fn get(&self) -> (u64, Option<u64>) {
        (self.consumed.load(Ordering::Relaxed), self.total)
    }
}

/// Where unpacking had to stop, if it had to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Damage(Arc<Mutex<Option<String>>>);

impl Damage {
    /// What is damaged, as a sentence without its full stop.
    pub(crate) fn get(&self) -> Option<String> {
        self.0.lock().map_or(None, |text| text.clone())
    }

    fn set(&self, text: String) {
        if let Ok(mut place) = self.0.lock() {
            place.get_or_insert(text);
        }
    }
}

/// An input being read, from the first byte of its container.
pub(crate) struct Stream {
    /// The input's name for messages.
    pub(crate) name: String,
    /// The compression around the container.
    pub(crate) compression: Option<&'static str>,
    /// Where unpacking stopped early.
    pub(crate) damage: Damage,
    /// How far reading has come.
    pub(crate) progress: Progress,
    /// The file itself, where it is regular, not compressed, and nothing but `head` was read of it.
    plain: Option<PathBuf>,
    /// The regular file, compressed or not, with its state before the first byte was read.
    pub(crate) opened: Option<Opened>,
    /// Bytes that [`Stream::peek`] has read.
    head: Vec<u8>,
    /// Position in `head` of the byte that is read next.
    position: usize,
    rest: Box<dyn Read + Send>,
}

impl Stream {
    /// Opens a path (`-`: the standard input) and sees through its compression.
    pub(crate) fn open(path: &Path) -> Result<Self, ReadError> {
        let refused = |source| ReadError::Open {
            path: path.to_path_buf(),
            source,
        };
        if path.as_os_str() == "-" {
            let name = "standard input".to_owned();
            return Self::new(name, Box::new(io::stdin()), None, None);
        }
        let file = File::open(path).map_err(refused)?;
        let metadata = file.metadata().map_err(refused)?;
        if metadata.is_dir() {
            return Err(refused(io::ErrorKind::IsADirectory.into()));
        }
        if !metadata.is_file() {
            return Self::new(path.display().to_string(), Box::new(file), None, None);
        }
        let opened = file.try_clone().map_err(refused)?;
        let total = Some(metadata.len());
        let plain = Some(path.to_path_buf());
        let mut stream = Self::new(path.display().to_string(), Box::new(file), total, plain)?;
        stream.opened = Some(Opened::new(path, opened).map_err(refused)?);
        Ok(stream)
    }

    /// Reads an open input. `plain` is the file that can be opened again for seeking.
    pub(crate) fn new(
        name: String,
        input: Box<dyn Read + Send>,
        total: Option<u64>,
        plain: Option<PathBuf>,
    ) -> Result<Self, ReadError> {
        let progress = Progress {
            consumed: Arc::default(),
            total,
        };
        let failed = Arc::new(AtomicBool::new(false));
        let counted = Counted {
            inner: input,
            consumed: Arc::clone(&progress.consumed),
            failed: Arc::clone(&failed),
        };
        let mut stream = Self {
            name,
            compression: None,
            damage: Damage::default(),
            progress,
            plain,
            opened: None,
            head: Vec::new(),
            position: 0,
            rest: Box::new(BufReader::with_capacity(BUFFER, counted)),
        };
        let Some(compression) = compression::recognise(stream.peek(MAGIC)?) else {
            return Ok(stream);
        };
        stream.unpacked(compression, failed)
    }

    /// The same input behind a decoder.
    fn unpacked(
        self,
        compression: &'static str,
        failed: Arc<AtomicBool>,
    ) -> Result<Self, ReadError> {
        let Self {
            name,
            damage,
            progress,
            head,
            rest,
            ..
        } = self;
        let packed = BufReader::new(io::Cursor::new(head).chain(rest));
        let decoder: io::Result<Box<dyn Read + Send>> = match compression {
            "zstd" => zstd::stream::read::Decoder::with_buffer(packed)
                .map(|decoder| Box::new(decoder) as _),
            "xz" => Xz::new(packed).map(|decoder| Box::new(decoder) as _),
            _ => Ok(Box::new(flate2::bufread::MultiGzDecoder::new(packed))),
        };
        let decoder = decoder.map_err(|source| ReadError::Io {
            input: name.clone(),
            offset: 0,
            source,
        })?;
        let rest = Unpacked {
            decoder,
            compression,
            failed,
            damage: damage.clone(),
            produced: 0,
            ended: false,
        };
        Ok(Self {
            name,
            compression: Some(compression),
            damage,
            progress,
            plain: None,
            opened: None,
            head: Vec::new(),
            position: 0,
            rest: Box::new(rest),
        })
    }

    /// The first `len` bytes (fewer where there are no more), without consuming them. Only before
    /// anything was read.
    pub(crate) fn peek(&mut self, len: usize) -> Result<&[u8], ReadError> {
        if let Some(missing) = len.checked_sub(self.head.len()) {
            let offset = self.head.len() as u64;
            let result = self
                .rest
                .by_ref()
                .take(missing as u64)
                .read_to_end(&mut self.head);
            result.map_err(|source| ReadError::Io {
                input: self.name.clone(),
                offset,
                source,
            })?;
        }
        Ok(self.head.get(..len).unwrap_or(&self.head))
    }

    /// The path of the file itself, where it can be read at any place as it is.
    pub(crate) fn plain_path(&self) -> Option<&Path> {
        self.plain.as_deref()
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let peeked = self.head.get(self.position..).unwrap_or_default();
        if peeked.is_empty() {
            return self.rest.read(buffer);
        }
        let len = peeked.len().min(buffer.len());
        if let (Some(target), Some(bytes)) = (buffer.get_mut(..len), peeked.get(..len)) {
            target.copy_from_slice(bytes);
        }
        self.position += len;
        if self.position == self.head.len() {
            (self.head, self.position) = (Vec::new(), 0);
        }
        Ok(len)
    }
}

/// Counts what is read, and remembers whether reading itself failed.
struct Counted {
    inner: Box<dyn Read + Send>,
    consumed: Arc<AtomicU64>,
    failed: Arc<AtomicBool>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.inner.read(buffer);
        match &result {
            Ok(len) => {
                self.consumed.fetch_add(*len as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.failed.store(true, Ordering::Relaxed),
        }
        result
    }
}

/// A decoder. Its errors end the data, so that what was unpacked before them stays usable.
struct Unpacked {
    decoder: Box<dyn Read + Send>,
    compression: &'static str,
    failed: Arc<AtomicBool>,
    damage: Damage,
    /// Bytes that the decoder has produced.
    produced: u64,
    ended: bool,
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        match self.decoder.read(buffer) {
            Ok(len) => {
                self.produced += len as u64;
                self.ended = len == 0;
                Ok(len)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            // The input failed, not the packed data: the error is the operating system's.
            Err(error) if self.failed.load(Ordering::Relaxed) => Err(error),
            Err(error) => {
                self.ended = true;
                let (compression, produced) = (self.compression, self.produced);
                self.damage.set(format!(
                    "the {compression} data are cut short or damaged after {produced} unpacked bytes \
                     ({error})"
                ));
                Ok(0)
            }
        }
    }
}
