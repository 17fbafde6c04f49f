//! A folder that one process writes to.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

/// Why a folder or a file of it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file or folder.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Another process has the lock.
    #[error("{path}: another process writes to it", path = .path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
}

impl FolderError {
    fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }
}

/// A folder, locked for this process. The lock ends with the value or the process.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Locks a folder that is there.
    ///
    /// # Errors
    /// It cannot be opened, is no folder, or another process has it.
    pub fn lock(path: &Path) -> Result<Self, FolderError> {
        let failed = |source| FolderError::file(path, source);
        let lock = File::open(path).map_err(failed)?;
        if !lock.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        let locked = retry_on_intr(|| flock(&lock, FlockOperation::NonBlockingLockExclusive));
        locked.map_err(|error| match error {
            Errno::WOULDBLOCK => FolderError::Busy {
                path: path.to_owned(),
            },
            error => failed(error.into()),
        })?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has a file of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.path.join(name).is_file()
    }

    /// Whether it has nothing but what is left of a kill while one of these files was written first.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn is_empty_but(&self, names: &[&str]) -> Result<bool, FolderError> {
        let failed = |source| FolderError::file(&self.path, source);
        let unfinished: Vec<String> = names.iter().map(|name| unfinished(name)).collect();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if !unfinished.iter().any(|known| name == known.as_str()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The bytes of a file; `None`: it is not there.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FolderError> {
        let path = self.path.join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FolderError::file(&path, error)),
        }
    }

    /// Removes a file and what is left of a kill while it was written.
    ///
    /// # Errors
    /// It cannot be removed. A file that is not there is no error.
    pub fn remove(&self, name: &str) -> Result<(), FolderError> {
        for name in [name.to_owned(), unfinished(name)] {
            let path = self.path.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(FolderError::file(&path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes a file that is there whole or not at all, and after a power failure too.
    ///
    /// # Errors
    /// It cannot be written. A file that was there stays as it was.
    pub fn whole(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<PathBuf, FolderError> {
        let path = self.path.join(name);
        let new = self.path.join(unfinished(name));
        let written = File::create(&new).and_then(|file| {
            let mut writer = BufWriter::new(file);
            write(&mut writer)?;
            writer
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?
                .sync_all()
        });
        let renamed = written.and_then(|()| fs::rename(&new, &path));
        match renamed {
            Ok(()) => Ok(path),
            Err(source) => {
                // What is left of it would only take up room.
                let _ = fs::remove_file(&new);
                Err(FolderError::file(&path, source))
            }
        }
    }
}

/// What a file is called until it is whole.
fn unfinished(name: &str) -> String {
    format!(".{name}.new")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_folder_has_one_writer_at_a_time() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::lock(place.path()).expect("a free lock");
        let busy = Folder::lock(place.path());
        assert!(matches!(busy, Err(FolderError::Busy { .. })));
        drop(folder);
        Folder::lock(place.path()).expect("it is free again");
        let file = place.path().join("file");
        fs::write(&file, "").expect("a file");
        let no_folder = Folder::lock(&file);
        assert!(matches!(no_folder, Err(FolderError::File { .. })));
    }

    #[test]
    fn a_file_that_fails_leaves_the_former_one() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::lock(place.path()).expect("a folder");
        assert!(folder.is_empty_but(&[]).expect("a folder"));
        folder
            .whole("rows", |writer| writer.write_all(b"one"))
            .expect("a file");
        let failed = folder.whole("rows", |writer| {
            writer.write_all(b"two")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        let failed = failed.expect_err("full").to_string();
        assert!(failed.contains("rows: no storage space"), "{failed}");
        let rows = folder.read("rows").expect("a file");
        assert_eq!(rows.as_deref(), Some(&b"one"[..]));
        folder.remove("rows").expect("a file");
        folder.remove("rows").expect("none is no error");
        assert!(folder.read("rows").expect("none is no error").is_none());
        fs::write(place.path().join(".rows.new"), "").expect("a file");
        assert!(folder.is_empty_but(&["rows"]).expect("a folder"));
        assert!(!folder.is_empty_but(&["else"]).expect("a folder"));
    }
}
