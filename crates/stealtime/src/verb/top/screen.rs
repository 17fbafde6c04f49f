//! The screen: keys, samples and time.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::app::App;
use super::draw;
use super::view::Shape;
use crate::error::CliError;
use crate::output;
use crate::scheduler::lines;
use crate::watched::{ROUND, Watched};

/// Shows samples until the user quits or `duration` is over.
pub(super) fn run(
    watched: &mut Watched,
    shape: Shape,
    duration: Option<Duration>,
) -> Result<(), CliError> {
    let mut app = App::new(shape, output::color());
    // Also brings the terminal back when this process panics.
    let terminal = ratatui::try_init().map_err(CliError::Screen)?;
    // Its `drop` prints errors, which is a panic where standard error has gone with the terminal.
    let mut terminal = ManuallyDrop::new(terminal);
    let shown = show(&mut terminal, watched, &mut app, duration);
    // These fail where the terminal is gone: then nothing is left to restore, and no place for a message.
    let _ = terminal.show_cursor();
    let _ = ratatui::try_restore();
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    watched: &mut Watched,
    app: &mut App,
    duration: Option<Duration>,
) -> Result<(), CliError> {
    let stop = output::stop_by_interrupt();
    let (stdin, opened);
    // The keys are of standard input or, where that has a recording, of the terminal itself.
    let keys = if io::stdin().is_terminal() {
        stdin = io::stdin();
        stdin.as_fd()
    } else {
        opened = File::open("/dev/tty").map_err(CliError::Screen)?;
        opened.as_fd()
    };
    let began = Instant::now();
    let mut is_new = true;
    let mut former = watched.scheduler();
    loop {
        if is_new {
            terminal
                .draw(|frame| draw::draw(frame, app))
                .map_err(CliError::Screen)?;
        }
        let Some(has_key) = wait(keys).map_err(CliError::Screen)? else {
            return Ok(());
        };
        is_new = has_key;
        if is_new {
            match event::read().map_err(CliError::Screen)? {
                Event::Key(key) if key.kind != KeyEventKind::Release => app.on_key(key),
                // The next drawing has the new size.
                _ => {}
            }
        }
        let goes_on = watched.poll()?;
        is_new |= goes_on == app.is_over;
        app.is_over = !goes_on;
        while let Some((sample, cost)) = watched.sample() {
            app.take(sample, cost);
            let scheduler = watched.scheduler();
            if !app.is_paused {
                let lines = scheduler.as_ref().map(|now| lines(now, former.as_ref()));
                app.scheduler = lines.unwrap_or_default();
            }
            former = scheduler;
            is_new = true;
        }
        let is_late = duration.is_some_and(|duration| began.elapsed() >= duration);
        if app.quits() || is_late || stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

/// Whether there is a key or another event, after [`ROUND`] at most. `None`: the terminal is gone.
fn wait(keys: BorrowedFd<'_>) -> io::Result<Option<bool>> {
    for timeout in [Duration::ZERO, ROUND] {
        // `event::poll` would read from a terminal that is gone for ever.
        if is_gone(keys, timeout)? {
            return Ok(None);
        }
        if event::poll(Duration::ZERO)? {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

/// Waits for input at most `timeout`. Whether the terminal has hung up.
fn is_gone(keys: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(keys, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match rustix::event::poll(&mut polled, Some(&timeout)) {
        // A change of the terminal's size is a signal.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let hung_up = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(polled[0].revents().intersects(hung_up))
}
