//! The screen as a terminal shows it, of a recording.

use std::path::Path;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::app::{App, Mode};
use super::draw;
use super::view::{Column, Shape};
use crate::watched::Watched;

const SHAPE: Shape = Shape {
    sort: Column::Ready,
    reverse: false,
    filter: String::new(),
    vcpus: false,
};

/// The screen after the first seconds of a recording with three VMs and quotas.
fn app() -> App {
    let data =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/live/quotas/trace.dat.zst");
    let second = Duration::from_secs(1);
    let mut watched = Watched::recording(&data, second, false).expect("a recording");
    while watched.poll().expect("whole") {}
    let has_color = false;
    let mut app = App::new(SHAPE, has_color);
    for (sample, cost) in std::iter::from_fn(|| watched.sample()).take(3) {
        app.take(sample, cost);
    }
    app
}

fn screen(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
    terminal
        .draw(|frame| draw::draw(frame, app))
        .expect("it is drawn");
    terminal.backend().to_string()
}

fn press(app: &mut App, keys: &[KeyCode]) {
    keys.iter().for_each(|&key| app.on_key(KeyEvent::from(key)));
}

fn text(app: &mut App, text: &str) {
    let keys: Vec<KeyCode> = text.chars().map(KeyCode::Char).collect();
    press(app, &keys);
}

#[test]
fn the_screen_lists_vms_and_shows_one() {
    let mut app = app();
    text(&mut app, "v");
    insta::assert_snapshot!("list", screen(&app, 110, 16));
    press(&mut app, &[KeyCode::End, KeyCode::Enter]);
    assert_eq!(app.mode, Mode::Vm("batch".to_owned()));
    insta::assert_snapshot!("vm", screen(&app, 110, 30));
    press(&mut app, &[KeyCode::Esc]);
    text(&mut app, "?");
    insta::assert_snapshot!("help", screen(&app, 110, 30));
}

#[test]
fn keys_sort_filter_pause_and_quit() {
    let mut app = app();
    let names = |app: &App| -> Vec<String> { app.vms().iter().map(|vm| vm.vm.clone()).collect() };
    text(&mut app, "/DB");
    press(&mut app, &[KeyCode::Enter]);
    assert_eq!(names(&app), ["db"]);
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(names(&app).len(), 3);
    app.shape.sort = Column::Vcpus;
    assert_eq!(names(&app)[2], "batch");
    text(&mut app, "I");
    assert_eq!(names(&app)[0], "batch");
    text(&mut app, "<");
    assert_eq!(app.shape.sort, Column::Name);
    text(&mut app, "<>");
    assert_eq!(app.shape.sort, Column::Name);
    text(&mut app, "p");
    let (sample, cost) = (app.sample.clone().expect("a sample"), app.cost);
    let mut next = sample.clone();
    next.start_ns += 1_000_000_000;
    app.take(next, cost);
    assert_eq!(app.sample.as_ref(), Some(&sample));
    // Escapes of names are shown, not obeyed; any size is drawn.
    let mut hostile = sample;
    hostile.vms[0].vm = "\u{1b}[2Jx\n\"".repeat(40);
    text(&mut app, "p");
    app.take(hostile, cost);
    for (width, height) in [(1, 1), (20, 5), (300, 80)] {
        assert!(!screen(&app, width, height).contains('\u{1b}'));
    }
    text(&mut app, "q");
    assert!(app.quits());
}
