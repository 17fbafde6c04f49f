//! The folder of tracefs, and folders in it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::RecordError;

/// Where the kernel mounts tracefs; older ones have it in debugfs.
const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Bytes of one read: more than any control file has.
const READ: usize = 64 << 10;

/// A folder of control files: tracefs itself, or one of its instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The host's tracefs.
    ///
    /// # Errors
    /// It is not mounted, may not be read, or the kernel has none.
    pub fn tracefs() -> Result<Self, RecordError> {
        let mounted = mounted(&std::fs::read_to_string("/proc/mounts").unwrap_or_default());
        let usual = MOUNT_POINTS.map(PathBuf::from);
        for path in usual.iter().cloned().chain(mounted) {
            match std::fs::metadata(path.join("events")) {
                Ok(_) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(RecordError::control(&path, "open it", error));
                }
                Err(_) => {}
            }
        }
        let [path, _] = usual;
        // The mount point is there if and only if the kernel has tracefs.
        Err(match path.exists() {
            true => RecordError::NotMounted { path },
            false => RecordError::NoTracing { path },
        })
    }

    /// A folder by its path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file's path.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether it has this file or folder.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.join(name).exists()
    }

    /// The content of a file.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>, RecordError> {
        let path = self.join(name);
        let failed = |error| RecordError::control(&path, "read it", error);
        let mut file = File::open(&path).map_err(failed)?;
        let mut content = Vec::new();
        loop {
            // `header_page` gives nothing from its second byte on (`show_header_page_file`): one read must
            // take all of it.
            let len = content.len();
            content.resize(len + READ, 0);
            let Some(target) = content.get_mut(len..) else {
                return Ok(content);
            };
            match file.read(target) {
                Ok(count) => {
                    content.truncate(len + count);
                    if count == 0 {
                        return Ok(content);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => content.truncate(len),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// The content of a file as text without the blanks around it.
    pub(crate) fn text(&self, name: &str) -> Result<String, RecordError> {
        let content = self.read(name)?;
        Ok(String::from_utf8_lossy(&content).trim().to_owned())
    }

    /// Writes a value; the file is there already.
    pub(crate) fn write(
        &self,
        name: &str,
        value: &str,
        doing: &'static str,
    ) -> Result<(), RecordError> {
        let path = self.join(name);
        let failed = |error| RecordError::control(&path, doing, error);
        let mut file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
        file.write_all(value.as_bytes()).map_err(failed)
    }

    /// Names of the files and folders in a folder, sorted.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.join(name));
        let entries = entries.into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }
}

/// Mount points of tracefs in the lines of /proc/mounts.
fn mounted(mounts: &str) -> Vec<PathBuf> {
    let point = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let path = words.next()?;
        (words.next()? == "tracefs").then(|| PathBuf::from(unescaped(path)))
    };
    mounts.lines().filter_map(point).collect()
}

/// A path of /proc/mounts, in which blanks are `\040`.
fn unescaped(path: &str) -> String {
    let mut parts = path.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(byte) => {
                text.push(char::from(byte));
                text.push_str(part.get(3..).unwrap_or_default());
            }
            None => {
                text.push('\\');
                text.push_str(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_name_tracefs() {
        let mounts = "proc /proc proc rw 0 0\nnone /sys/kernel/tracing tracefs rw 0 0\n\
                      none /my\\040trace tracefs rw 0 0\n";
        let found = mounted(mounts);
        assert_eq!(
            found,
            ["/sys/kernel/tracing", "/my trace"].map(PathBuf::from)
        );
    }

    #[test]
    fn files_are_written_and_never_made() {
        let temporary = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(temporary.path());
        std::fs::write(folder.join("tracing_on"), "1\n").expect("a file");
        folder
            .write("tracing_on", "0", "stop")
            .expect("it is there");
        assert_eq!(folder.text("tracing_on").expect("it is there"), "0");
        let error = folder.write("tracing_off", "1", "stop tracing");
        let error = error.expect_err("no such file").to_string();
        assert!(
            error.contains("tracing_off: cannot stop tracing"),
            "{error}"
        );
    }
}
