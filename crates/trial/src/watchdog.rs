//! The process that restores when a session's process ends without doing so.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::ledger::{RunFolder, StoreError};
use crate::restore::{Outcome, recover};
use crate::target::Host;

/// A watchdog starts within milliseconds; a loaded or emulated host takes longer.
const START: Duration = Duration::from_secs(30);
/// ACK. What a program's start may print before it is no sign.
const READY: u8 = 6;
const BEAT: u8 = b'b';

/// The session's side.
#[derive(Debug)]
pub(crate) struct Watchdog {
    child: Child,
    /// Its end tells the watchdog that the session is over.
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts a command that calls [`watch`], and waits until it watches. It inherits the lock.
    pub(crate) fn start(mut command: Command, lock: Option<&File>) -> io::Result<Self> {
        // Descriptors of the standard library close at exec; this one is to stay open.
        let inherited = lock.map(rustix::io::dup).transpose()?;
        if let Some(lock) = &inherited {
            rustix::io::fcntl_setfd(lock, rustix::io::FdFlags::empty())?;
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        drop(inherited);
        let pipe = child.stdin.take();
        let mut watchdog = Self { child, pipe };
        let Some(mut output) = watchdog.child.stdout.take() else {
            return Err(io::Error::other("no pipe from the watchdog"));
        };
        match is_ready(&mut output)? {
            true => Ok(watchdog),
            false => {
                watchdog.end();
                Err(io::Error::other("the watchdog process did not start"))
            }
        }
    }

    /// Tells the watchdog that the session is alive.
    ///
    /// # Errors
    ///
    /// The watchdog has ended: it was killed, or has restored.
    pub(crate) fn beat(&mut self) -> io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match &mut self.pipe {
            Some(pipe) => pipe.write_all(&[BEAT]),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Ends the watchdog: it restores what the ledger still has.
    pub(crate) fn end(&mut self) {
        self.pipe = None;
        // It has ended in any case: there is nothing to do about its status.
        let _ = self.child.wait();
    }
}

/// Reads up to the sign that the watchdog watches.
fn is_ready(output: &mut ChildStdout) -> io::Result<bool> {
    let mut byte = [0];
    while wait(output, START)? && output.read(&mut byte)? == 1 {
        if byte[0] == READY {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether something can be read, or the other end is closed, within this time.
fn wait(file: &impl AsFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    loop {
        match poll(&mut polled, Some(&limit)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// The watchdog's process: says that it is ready, waits for the end of its standard input, and restores
/// what the ledger in `folder` has. A session that gives no sign for `patience` counts as dead: it may be
/// stopped while a knob is turned. `None`: there was nothing to restore.
///
/// # Errors
///
/// The folder or its ledger cannot be used, or this process is no session leader.
pub fn watch(
    host: &Host,
    folder: &Path,
    patience: Duration,
) -> Result<Option<Vec<Outcome>>, StoreError> {
    let io_error = |source| StoreError::Io {
        path: folder.to_owned(),
        source,
    };
    let run = RunFolder::inherited(folder)?;
    outlive_the_session();
    let mut output = io::stdout();
    let input = io::stdin();
    output.write_all(&[READY]).map_err(io_error)?;
    output.flush().map_err(io_error)?;
    let mut beats = [0; 64];
    // A read that fails is as the end of the session: restoring twice does no harm.
    while wait(&input, patience).map_err(io_error)?
        && rustix::io::read(&input, &mut beats).is_ok_and(|bytes| bytes > 0)
    {}
    recover(host, &run)
}

/// A session of its own, which the terminal's signals do not reach; other signals are for the trial's
/// process: its end is what counts.
fn outlive_the_session() {
    // Fails for a leader of a process group, which gets no signals of another one anyway.
    let _ = rustix::process::setsid();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: ignoring a signal runs no code. The standard library has no call for it.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // The trial's memory is the larger one. Without the right this changes nothing.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
}
