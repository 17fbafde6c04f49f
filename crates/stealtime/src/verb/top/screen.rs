//! The screen: keys, samples and time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

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
    let mut terminal = ratatui::try_init().map_err(CliError::Screen)?;
    let shown = show(&mut terminal, watched, &mut app, duration);
    ratatui::restore();
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    watched: &mut Watched,
    app: &mut App,
    duration: Option<Duration>,
) -> Result<(), CliError> {
    let stop = output::stop_by_interrupt();
    let began = Instant::now();
    let mut is_new = true;
    let mut former = watched.scheduler();
    loop {
        if is_new {
            terminal
                .draw(|frame| draw::draw(frame, app))
                .map_err(CliError::Screen)?;
        }
        is_new = event::poll(ROUND).map_err(CliError::Screen)?;
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
