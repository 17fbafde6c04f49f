//! Where results go: standard output, or a file that is there whole or not at all.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use stealtime_report::escape;
use tempfile::NamedTempFile;

use crate::call::Call;
use crate::error::CliError;

/// A file that Ctrl-C must not leave behind.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Ctrl-C was pressed, and a verb looks at this ([`stop_by_interrupt`]).
static STOP: AtomicBool = AtomicBool::new(false);
/// Whether a verb does.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
/// When the first signal came that only sets [`STOP`].
static STOPPED_AT: OnceLock<Instant> = OnceLock::new();
/// A signal that soon after the first one is part of it. `timeout` sends its signal to the command, and then
/// to its process group.
const SAME_SIGNAL: Duration = Duration::from_millis(300);

/// From now on the first Ctrl-C only sets this: the caller ends its work. A later one ends the
/// process as ever. A [`Call`] has a stop of its own.
pub(crate) fn stop_by_interrupt() -> &'static AtomicBool {
    if let Some(call) = Call::current() {
        return call.stopped();
    }
    IS_WATCHED.store(true, Ordering::Relaxed);
    &STOP
}

/// Ctrl-C ends the process with status 130 and takes an unfinished file with it.
pub(crate) fn handle_interrupts() {
    let end = || {
        if IS_WATCHED.load(Ordering::Relaxed) {
            STOP.store(true, Ordering::Relaxed);
            let first = STOPPED_AT.get_or_init(Instant::now);
            if first.elapsed() < SAME_SIGNAL {
                return;
            }
        }
        let unfinished = UNFINISHED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(path) = unfinished {
            // Nothing can be done about a file that stays.
            let _ = std::fs::remove_file(path);
        }
        std::process::exit(130);
    };
    // Without a handler the system's own ends the process: only an unfinished file would stay.
    let _ = ctrlc::set_handler(end);
}

/// Whether standard output may be coloured: a terminal, and the user has nothing against it
/// (<https://no-color.org>).
pub(crate) fn color() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    has_screen() && !refused
}

/// Whether standard output is a terminal that obeys escapes: Emacs's shell, for one, does not.
pub(crate) fn has_screen() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !dumb
}

/// A line on standard error, safe for a terminal. Without a reader it is dropped.
pub(crate) fn note(text: &str) {
    note_safe(&escape::terminal(text));
}

/// Lines on standard error that are safe for a terminal already.
pub(crate) fn note_safe(text: &str) {
    if let Some(call) = Call::current() {
        return call.note(text);
    }
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Refuses, before anything takes its time, a file that could not be written at its end.
pub(crate) fn check(path: &Path) -> Result<(), CliError> {
    let failed = |source: io::Error| {
        Err(CliError::Write {
            path: path.to_owned(),
            source,
        })
    };
    if path.is_dir() {
        return failed(io::ErrorKind::IsADirectory.into());
    }
    let Some(target) = replaced(path) else {
        return Ok(());
    };
    let folder = folder(&target);
    match folder.metadata() {
        Ok(meta) if !meta.is_dir() => failed(io::ErrorKind::NotADirectory.into()),
        Ok(_) => check_folder(folder).or_else(failed),
        Err(error) => failed(error),
    }
}

/// The file that a whole one takes the place of: behind a link, so that the link stays (`/dev/stdout` is
/// one). `None` for what is written itself: a device, a pipe, a file without a name.
pub(crate) fn replaced(path: &Path) -> Option<PathBuf> {
    match path.metadata() {
        Ok(meta) if !meta.is_file() => None,
        Ok(_) if path.is_symlink() => path.canonicalize().ok(),
        _ => Some(path.to_owned()),
    }
}

/// The same of a file that may be nothing else.
pub(crate) fn replaced_file(path: &Path) -> Result<PathBuf, CliError> {
    replaced(path).ok_or_else(|| CliError::NotAFile {
        path: path.to_owned(),
    })
}

/// Whether a file can be made in this folder: rights do not tell it all.
pub(crate) fn check_folder(folder: &Path) -> io::Result<()> {
    let tried = tempfile::Builder::new()
        .prefix(".stealtime-")
        .tempfile_in(folder);
    tried.map(drop).map_err(own)
}

/// Refuses an output that would take the place of an input.
pub(crate) fn check_apart(output: &Path, input: &Path) -> Result<(), CliError> {
    use std::os::unix::fs::MetadataExt;
    let file = |path: &Path| {
        // What standard input comes from may be a file.
        let path = match path.as_os_str() == "-" {
            true => Path::new("/dev/stdin"),
            false => path,
        };
        let meta = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((meta.dev(), meta.ino()))
    };
    match (file(output), file(input)) {
        (Some(output_is), Some(input_is)) if output_is == input_is => Err(CliError::OverInput {
            path: output.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Refuses a report that would replace the file of another option.
pub(crate) fn check_report(
    option: &'static str,
    path: &Path,
    report: Option<&Path>,
) -> Result<(), CliError> {
    let place = |path: &Path| {
        let path = replaced(path)?;
        let folder = folder(&path).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    match (place(path), report.and_then(place)) {
        (Some(path), Some(report)) if path == report => Err(CliError::SameOutput {
            path,
            first: option,
            second: "--report",
        }),
        _ => Ok(()),
    }
}

/// Refuses `-` for a file of an option that does not write to standard output.
pub(crate) fn check_named(
    option: &'static str,
    path: &Path,
    give: &'static str,
) -> Result<(), CliError> {
    match path.as_os_str() == "-" {
        true => Err(CliError::NotToStdout { option, give }),
        false => Ok(()),
    }
}

/// The folder that a file is in.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes to standard output by `write`.
pub(crate) fn to_stdout(
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), CliError> {
    if let Some(call) = Call::current() {
        let mut printed = Vec::new();
        write(&mut printed).map_err(CliError::Stdout)?;
        call.print(&printed);
        return Ok(());
    }
    let mut writer = io::BufWriter::new(io::stdout().lock());
    write(&mut writer)
        .and_then(|()| writer.flush())
        .map_err(CliError::Stdout)
}

/// Decides whether to continue after printing: a closed pipe (`| head`) does not stop a file that is
/// wanted too.
pub(crate) fn go_on(printed: Result<(), CliError>, to_a_file: bool) -> Result<(), CliError> {
    match printed {
        Err(error) if to_a_file && error.is_broken_pipe() => Ok(()),
        printed => printed,
    }
}

/// Writes a file by `write`: under another name first, so that a file of this name is whole.
pub(crate) fn to_file<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let failed = |source| CliError::Write {
        path: path.to_owned(),
        source,
    };
    check(path)?;
    let Some(target) = replaced(path) else {
        let file = std::fs::File::create(path).map_err(failed)?;
        let mut writer = io::BufWriter::new(file);
        let result = write(&mut writer)?;
        return writer.flush().map_err(failed).map(|()| result);
    };
    let file = tempfile::Builder::new()
        .prefix(".stealtime-")
        .permissions(permissions())
        .tempfile_in(folder(&target))
        .map_err(|error| failed(own(error)))?;
    unfinished(Some(file.path().to_owned()));
    let result = write_all(file, write, failed).and_then(|(file, result)| {
        file.persist(&target).map_err(|error| failed(error.error))?;
        Ok(result)
    });
    unfinished(None);
    result
}

/// What the operating system said, without the name of the temporary file.
pub(crate) fn own(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((said, _)) if error.raw_os_error().is_none() => {
            io::Error::new(error.kind(), said.to_owned())
        }
        _ => error,
    }
}

fn write_all<T>(
    file: NamedTempFile,
    write: impl FnOnce(&mut dyn Write) -> Result<T, CliError>,
    failed: impl FnOnce(io::Error) -> CliError,
) -> Result<(NamedTempFile, T), CliError> {
    let mut writer = io::BufWriter::new(file);
    let result = write(&mut writer)?;
    let file = writer
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    Ok((file, result))
}

/// Names a file that Ctrl-C must not leave behind; `None`: there is none.
pub(crate) fn unfinished(path: Option<PathBuf>) {
    *UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner) = path;
}

/// What a new file may be (before the umask): temporary files are for the owner alone otherwise.
fn permissions() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o666)
}
