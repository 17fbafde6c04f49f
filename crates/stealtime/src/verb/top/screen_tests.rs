//! The screen as a terminal shows it, of a recording.

use std::path::Path;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::app::{App, Mode};
use super::draw;
use super::view::{self, Column, Shape};
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
fn a_narrow_terminal_shows_fewer_columns_and_no_part_of_a_number() {
    let mut app = app();
    for sort in Column::ALL {
        app.shape.sort = sort;
        for width in [30, 47, 60, 80, 90, 101, 102] {
            let columns = Column::fitting(width, sort);
            assert!(
                columns.contains(&Column::Name) && columns.contains(&sort),
                "{width}"
            );
            let text = screen(&app, width, 8);
            let rows = view::rows(app.sample.as_ref().expect("a sample"), &app.shape);
            for (line, row) in text.lines().skip(3).zip(&rows) {
                let words: Vec<&str> = line.trim_matches('"').split_whitespace().collect();
                let cells = columns
                    .iter()
                    .map(|&column| row.cells[column as usize].as_str());
                let cells: Vec<&str> = cells.flat_map(str::split_whitespace).collect();
                assert_eq!(words, cells, "{width} cells, sorted by {sort:?}");
            }
        }
        assert_eq!(Column::fitting(102, sort), Column::ALL);
        assert_eq!(Column::fitting(0, sort), [Column::Name]);
    }
    app.shape.sort = Column::Ready;
    insta::assert_snapshot!("narrow", screen(&app, 80, 8));
    app.shape.sort = Column::Name;
    assert!(screen(&app, 80, 8).contains("sort: VM, ascending"));
    text(&mut app, "?");
    let help = |width| -> Vec<String> {
        let shown = screen(&app, width, 24);
        // Between the lines on the host and the one on keys.
        let lines = shown.lines().skip(2).take(21);
        lines
            .map(|line| line.trim_matches('"').trim_end().to_owned())
            .collect()
    };
    assert_eq!(help(80), help(200));
}

#[test]
fn all_vcpus_of_one_vm_can_be_seen() {
    let mut app = app();
    let sample = app.sample.as_mut().expect("a sample");
    let vm = sample.vms.iter_mut().find(|vm| vm.vm == "db").expect("db");
    vm.vcpus = (0..32)
        .map(|vcpu| stealtime_collector::Vcpu {
            vcpu,
            ..vm.vcpus[0].clone()
        })
        .collect();
    press(&mut app, &[KeyCode::Home, KeyCode::Enter]);
    let shown = |app: &App, vcpu: u32| screen(app, 80, 24).contains(&format!("  vCPU {vcpu} "));
    assert!(!shown(&app, 10) && !shown(&app, 31));
    press(&mut app, &[KeyCode::PageDown]);
    assert!(shown(&app, 10) && !shown(&app, 31));
    press(&mut app, &[KeyCode::End]);
    assert!(shown(&app, 31) && !shown(&app, 10));
    press(&mut app, &[KeyCode::PageUp]);
    assert!(shown(&app, 21) && !shown(&app, 31));
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(app.selected_name().as_deref(), Some("db"));
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
