//! What the screen looks like.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};
use stealtime_collector::{Sample, Vm};
use stealtime_report::{count, escape};

use super::app::{App, Mode};
use super::view::{self, Column};

/// Rows of a VM's own screen for its exits and for its longest waits, at most.
const EXITS: usize = 8;
const STALLS: usize = 12;
/// Shares of ready time from which rows stand out, in per mille.
const WARN: u64 = 50;
const BAD: u64 = 200;

/// The keys, for the help.
const KEYS: [(&str, &str); 12] = [
    (
        "Up Down PgUp PgDn Home End",
        "select a VM, or one of its vCPUs",
    ),
    (
        "Enter",
        "one VM: its vCPUs, exits, causes and longest waits",
    ),
    ("Esc", "back to all VMs; in the list, drop the filter"),
    ("< > F6", "sort by the column left or right, shown or not"),
    ("I", "sort the other way round"),
    ("/ F3 F4", "filter by a part of the name; Enter keeps it"),
    ("v F5", "vCPUs below their VMs"),
    ("Space p", "pause and go on; events are still collected"),
    ("? h F1", "this page"),
    ("q F10", "back, and quit"),
    ("Ctrl-C", "quit"),
    ("", ""),
];

/// Definitions, for the help.
const MEANINGS: [&str; 8] = [
    "guest      in the guest                 exits  handling exits in KVM or VMM",
    "poll       polling for a wakeup         halted asleep: the guest is idle",
    "ready      runnable, not on a CPU: steal",
    "throttled  of ready: the bandwidth (cpu.max) is used up",
    "wakeup p99 99 of 100 wakeups run within this time",
    "Shares are of the time of the VM's vCPUs. `VM?`: its vCPUs are a guess.",
    "PARTIAL: events were lost, numbers are lower bounds: a larger --buffer helps.",
    "The numbers of a second are those of `stealtime analyze` of a recording of it.",
];

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(line_count(1 + app.scheduler.len())),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(app)), head);
    match (&app.mode, &app.sample) {
        (Mode::Help, _) => frame.render_widget(Paragraph::new(help(app)), body),
        (_, None) => frame.render_widget(Paragraph::new("the first interval is under way"), body),
        (Mode::List, Some(sample)) => draw_list(frame, app, sample, body),
        (Mode::Vm(name), Some(sample)) => match app.vm() {
            Some(vm) => draw_vm(frame, app, vm, sample, body),
            None => {
                let name = escape::terminal(name);
                let text = format!("{name} had no events in this interval");
                frame.render_widget(Paragraph::new(text), body);
            }
        },
    }
    frame.render_widget(Paragraph::new(foot_line(app)), foot);
}

fn head_lines(app: &App) -> Vec<Line<'static>> {
    let Some(sample) = &app.sample else {
        return vec![Line::from("stealtime top")];
    };
    let mut first = vec![Span::raw(view::summary(sample, &app.cost))];
    if sample.partial && app.has_color {
        first = first
            .into_iter()
            .map(|span| span.style(Style::new().fg(Color::Red)))
            .collect();
    }
    if app.is_paused {
        first.push(Span::styled(
            "  paused",
            Style::new().add_modifier(Modifier::REVERSED),
        ));
    }
    if app.is_over {
        first.push(Span::raw("  the recording is over"));
    }
    let mut lines = vec![Line::from(first), Line::from(view::cpus(sample))];
    lines.extend(app.scheduler.iter().cloned().map(Line::from));
    lines
}

fn foot_line(app: &App) -> Line<'static> {
    let filter = escape::terminal(&app.shape.filter).into_owned();
    if app.is_typing {
        return Line::from(format!("filter: {filter}_   Enter keeps it, Esc drops it"));
    }
    let leave = match app.mode {
        Mode::List => "q quit",
        _ => "Esc back",
    };
    let filter = match filter.is_empty() {
        true => "/ filter".to_owned(),
        false => format!("/ filter: {filter}"),
    };
    // Names begin with the first letter, numbers with the largest.
    let is_ascending = app.shape.reverse != (app.shape.sort == Column::Name);
    let order = if is_ascending {
        "ascending"
    } else {
        "descending"
    };
    let sort = app.shape.sort.title();
    Line::from(format!(
        "? help  {leave}  {filter}  < > sort: {sort}, {order}  Enter one VM  v vCPUs  Space pause"
    ))
}

fn help(app: &App) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let keys = KEYS.iter().map(|(key, does)| {
        Line::from(vec![
            Span::styled(format!("  {key:<28}"), bold),
            Span::raw(*does),
        ])
    });
    let mut lines: Vec<Line<'static>> = keys.collect();
    lines.extend(MEANINGS.map(|text| Line::from(format!("  {text}"))));
    if let Some(sample) = &app.sample {
        lines.push(Line::from(format!(
            "  The interval is {:.2} s long.",
            sample.length_ns() as f64 / 1e9
        )));
    }
    lines
}

fn draw_list(frame: &mut Frame<'_>, app: &App, sample: &Sample, area: Rect) {
    let rows = view::rows(sample, &app.shape);
    if rows.is_empty() {
        let text = match app.shape.filter.is_empty() {
            true => "no VM has run in this interval",
            false => "no VM has this text in its name: Esc drops the filter",
        };
        return frame.render_widget(Paragraph::new(text), area);
    }
    let selected = app.selected_name();
    let is_selected = |row: &view::Row| !row.is_vcpu && Some(&row.vm) == selected.as_ref();
    let position = rows.iter().position(is_selected);
    let mut state = TableState::default().with_selected(position);
    frame.render_stateful_widget(table(app, &rows, area.width), area, &mut state);
}

/// A table for so many cells of width.
fn table(app: &App, rows: &[view::Row], width: u16) -> Table<'static> {
    let columns = Column::fitting(width, app.shape.sort);
    let title = |column: Column| {
        let mut style = Style::new().add_modifier(Modifier::REVERSED);
        if column == app.shape.sort {
            style = style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        }
        Cell::from(aligned(column, column.title())).style(style)
    };
    let head = Row::new(columns.iter().copied().map(title));
    let body = rows.iter().map(|row| {
        let cells = columns
            .iter()
            .map(|&column| aligned(column, &row.cells[column as usize]));
        let style = match row.ready {
            ready if !app.has_color || ready < WARN => Style::new(),
            ready if ready < BAD => Style::new().fg(Color::Yellow),
            _ => Style::new().fg(Color::Red),
        };
        Row::new(cells).style(style)
    });
    let widths = columns.iter().map(|&column| match column {
        Column::Name => Constraint::Fill(1),
        column => Constraint::Length(column.width()),
    });
    Table::new(body, widths)
        .header(head)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

/// Numbers stand right.
fn aligned(column: Column, text: &str) -> Line<'static> {
    let line = Line::from(text.to_owned());
    match column {
        Column::Name => line,
        _ => line.right_aligned(),
    }
}

fn draw_vm(frame: &mut Frame<'_>, app: &App, vm: &Vm, sample: &Sample, area: Rect) {
    let stalls = app.worst(&vm.vm, STALLS);
    let [title, causes, vcpus, exits, waits] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(exit_lines(vm)),
        Constraint::Length(line_count(stalls.len())),
    ])
    .areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let pid = vm
        .pid
        .map_or_else(String::new, |pid| format!(", process {pid}"));
    let name = escape::terminal(&vm.vm).into_owned();
    let plural = if vm.vcpus.len() == 1 { "" } else { "s" };
    let text = format!("{} vCPU{plural}{pid}", vm.vcpus.len());
    let line = Line::from(vec![
        Span::styled(name, bold),
        Span::raw(format!("  {text}")),
    ]);
    frame.render_widget(Paragraph::new(line), title);
    let causes_text = Paragraph::new(ready_line(vm)).wrap(Wrap { trim: true });
    frame.render_widget(causes_text, causes);

    let rows = vm.vcpus.iter();
    let rows = rows.map(|vcpu| view::vcpu_row(vm, vcpu, sample.length_ns()));
    let rows: Vec<view::Row> = rows.collect();
    let selected = app.vcpu.min(rows.len().saturating_sub(1));
    let mut state = TableState::default().with_selected(selected);
    frame.render_stateful_widget(table(app, &rows, vcpus.width), vcpus, &mut state);

    let mut lines = vec![Line::styled("exits a second, and their time", bold)];
    lines.extend(exit_rows(vm, sample).into_iter().map(Line::from));
    frame.render_widget(Paragraph::new(lines), exits);

    let mut lines = vec![Line::styled(
        "longest waits for a CPU in the last minute",
        bold,
    )];
    let shown = stalls.iter();
    lines.extend(shown.map(|stall| Line::from(view::stall(stall, sample.end_ns))));
    frame.render_widget(Paragraph::new(lines), waits);
}

fn line_count(rows: usize) -> u16 {
    u16::try_from(rows + 1).unwrap_or(u16::MAX)
}

fn exit_lines(vm: &Vm) -> u16 {
    line_count(vm.exits_by_reason.len().min(EXITS))
}

fn exit_rows(vm: &Vm, sample: &Sample) -> Vec<String> {
    let length = sample.length_ns().max(1);
    let whole = vm.times.total_ns().max(1);
    let rows = vm.exits_by_reason.iter().take(EXITS);
    rows.map(|row| {
        let rate = u128::from(row.count) * 1_000_000_000 / u128::from(length);
        format!(
            "  {:<28} {:>10}/s {:>6.2}%",
            escape::short(&escape::terminal(&row.reason), 28),
            count(u64::try_from(rate).unwrap_or(u64::MAX)),
            100.0 * row.ns as f64 / whole as f64
        )
    })
    .collect()
}

/// Ready time by cause.
fn ready_line(vm: &Vm) -> String {
    let whole = vm.times.total_ns().max(1);
    let mut rows = vm.times.ready.rows();
    rows.sort_by_key(|row| std::cmp::Reverse(row.1));
    let parts = rows.iter().filter(|row| row.1 > 0).map(|(cause, ns)| {
        let cause = stealtime_analysis::answers::cause_in_words(cause);
        format!("{cause} {:.1}%", 100.0 * *ns as f64 / whole as f64)
    });
    let parts: Vec<String> = parts.collect();
    match parts.is_empty() {
        true => "ready: never".to_owned(),
        false => format!("ready: {}", parts.join(", ")),
    }
}
