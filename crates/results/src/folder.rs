//! A folder that one process writes to.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Why a folder is not for this process.
#[derive(Debug)]
pub enum LockError {
    /// It cannot be opened, or is no folder.
    File(io::Error),
    /// Another process has it.
    Busy,
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
    /// [`LockError`].
    pub fn lock(path: &Path) -> Result<Self, LockError> {
        let lock = File::open(path).map_err(LockError::File)?;
        if !lock.metadata().map_err(LockError::File)?.is_dir() {
            return Err(LockError::File(io::ErrorKind::NotADirectory.into()));
        }
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| LockError::Busy)?;
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
    pub fn is_empty_but(&self, names: &[&str]) -> io::Result<bool> {
        let unfinished: Vec<String> = names.iter().map(|name| unfinished(name)).collect();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            if !unfinished.iter().any(|known| name == known.as_str()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes a file and what is left of a kill while it was written.
    ///
    /// # Errors
    /// The file, and the operating system's error. A file that is not there is none.
    pub fn remove(&self, name: &str) -> Result<(), (PathBuf, io::Error)> {
        for name in [name.to_owned(), unfinished(name)] {
            let path = self.path.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err((path, error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes a file that is there whole or not at all, and after a power failure too.
    ///
    /// # Errors
    /// The file, and the operating system's error. A file that was there stays as it was.
    pub fn whole(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<PathBuf, (PathBuf, io::Error)> {
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
                Err((path, source))
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
        let folder = Folder::lock(place.path()).expect("nobody has it");
        assert!(matches!(Folder::lock(place.path()), Err(LockError::Busy)));
        drop(folder);
        Folder::lock(place.path()).expect("it is free again");
        let file = place.path().join("file");
        fs::write(&file, "").expect("a file");
        assert!(matches!(Folder::lock(&file), Err(LockError::File(_))));
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
        assert_eq!(
            failed.expect_err("full").1.kind(),
            io::ErrorKind::StorageFull
        );
        assert_eq!(fs::read(place.path().join("rows")).expect("a file"), b"one");
        folder.remove("rows").expect("a file");
        folder.remove("rows").expect("none is no error");
        fs::write(place.path().join(".rows.new"), "").expect("a file");
        assert!(folder.is_empty_but(&["rows"]).expect("a folder"));
        assert!(!folder.is_empty_but(&["else"]).expect("a folder"));
    }
}
