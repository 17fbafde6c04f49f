//! From the pages of all CPUs to one file.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use stealtime_trace::write::raw::Recording;
use tempfile::NamedTempFile;

use crate::RecordError;
use crate::ring::Ring;

/// Bytes that are copied at once. As many are freed behind each copy, so that a full disk has room.
const STEP: u64 = 4 << 20;
/// Bytes that are kept free for the head of the file and one copy.
const RESERVE: u64 = 12 << 20;

/// Files without names next to the output, on its disk.
#[derive(Debug)]
pub(crate) struct Spools {
    output: PathBuf,
    folder: PathBuf,
    reserve: File,
}

impl Spools {
    /// Reserves room next to the output.
    pub(crate) fn new(output: &Path) -> Result<Self, RecordError> {
        let folder = match output.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let spools = Self {
            output: output.to_owned(),
            folder: folder.to_owned(),
            reserve: tempfile::tempfile_in(folder).map_err(|error| failed(output, error))?,
        };
        let reserved = rustix::fs::fallocate(&spools.reserve, FallocateFlags::empty(), 0, RESERVE);
        match reserved {
            Err(rustix::io::Errno::NOSPC) => {
                let full = io::ErrorKind::StorageFull.into();
                Err(failed(output, full))
            }
            // A file system without fallocate: a full disk may then cost the recording.
            Ok(()) | Err(_) => Ok(spools),
        }
    }

    /// A file for the pages of a CPU.
    pub(crate) fn spool(&self) -> Result<File, RecordError> {
        tempfile::tempfile_in(&self.folder).map_err(|error| failed(&self.output, error))
    }

    /// Writes the file under another name and renames it. `unfinished` gets the name meanwhile.
    pub(crate) fn join(
        self,
        mut recording: Recording,
        rings: Vec<Ring>,
        unfinished: &mut dyn FnMut(Option<&Path>),
    ) -> Result<u64, RecordError> {
        let failed = |error| failed(&self.output, error);
        drop(self.reserve);
        let rings: Vec<Ring> = rings.into_iter().filter(|ring| ring.len > 0).collect();
        recording.data = rings.iter().map(|ring| (ring.cpu, ring.len)).collect();
        let head = recording.head().map_err(RecordError::Head)?;
        let target = temporary(&self.folder).map_err(failed)?;
        unfinished(Some(target.path()));
        let joined = join(target.as_file(), &head.bytes, &head.starts, rings);
        let renamed = joined
            .map_err(failed)
            .and_then(|()| rename(target, &self.output).map_err(failed));
        unfinished(None);
        renamed.map(|()| head.len)
    }
}

/// A file that gets its name once it is whole.
pub(crate) fn temporary(folder: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".stealtime-")
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(folder)
}

fn rename(target: NamedTempFile, output: &Path) -> io::Result<()> {
    target
        .persist(output)
        .map(drop)
        .map_err(|error| error.error)
}

fn failed(output: &Path, source: io::Error) -> RecordError {
    let path = output.to_owned();
    RecordError::Output { path, source }
}

/// Writes the head, and each CPU's pages at their position.
fn join(mut target: &File, head: &[u8], starts: &[u64], rings: Vec<Ring>) -> io::Result<()> {
    target.write_all(head)?;
    for (start, ring) in starts.iter().zip(rings) {
        let mut copied = 0;
        while copied < ring.len {
            let step = STEP.min(ring.len - copied);
            let range = copied..copied + step;
            copy(&ring.spool, range, target, start + copied)?;
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Only frees room early: the spool goes with its last handle.
            let _ = rustix::fs::fallocate(&ring.spool, hole, copied, step);
            copied += step;
        }
    }
    Ok(())
}

/// Copies a range inside the kernel: file systems with shared extents copy nothing.
fn copy(source: &File, range: Range<u64>, target: &File, position: u64) -> io::Result<()> {
    let (mut offset, mut position) = (range.start, position);
    while offset < range.end {
        let len = (range.end - offset) as usize;
        let copied = rustix::fs::copy_file_range(
            source,
            Some(&mut offset),
            target,
            Some(&mut position),
            len,
        );
        match copied {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::NOSPC) => return Err(io::ErrorKind::StorageFull.into()),
            // File systems without it, or of which one is too old for it.
            Err(_) => return copy_bytes(source, offset, target, position, len),
        }
    }
    Ok(())
}

fn copy_bytes(
    source: &File,
    offset: u64,
    target: &File,
    position: u64,
    len: usize,
) -> io::Result<()> {
    let mut bytes = vec![0; len];
    source.read_exact_at(&mut bytes, offset)?;
    target.write_all_at(&bytes, position)
}
