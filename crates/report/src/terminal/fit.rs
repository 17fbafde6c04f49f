//! How many VMs fit, as tables.

use std::fmt::Write as _;

use stealtime_whatif::CLOSE;
use stealtime_whatif::capacity::{
    Band, Capacity, Curve, Figure, FitDocument, Limit, Outcome, Point, PointVm, Removals,
    SeenFigure, SeenSeries, SeenStep, with_band,
};

use super::grid::{Grid, number, text};
use super::{Screen, Style};
use crate::count;
use crate::escape;
use crate::units::wrap;
use crate::whatif_text::{PARTIAL_RECORDING, errors, estimate};

/// All of it.
#[must_use]
pub fn render(document: &FitDocument, style: Style) -> String {
    let mut screen = Screen::new(style);
    let capacity = &document.capacity;
    let facts = format!(
        "{}: {:.3} s, {} CPUs, {} events",
        document.path,
        document.span_ns as f64 / 1e9,
        document.cpus,
        count(document.events)
    );
    paragraph(&mut screen, 0, &facts);
    if document.recording_partial {
        paragraph(&mut screen, 0, PARTIAL_RECORDING);
    }
    if let Some(changes) = &document.changes {
        paragraph(&mut screen, 0, &format!("Changed: {changes}."));
    }
    let leaves_out = "Answers are of CPU time alone: memory, caches, disks and networks are left out (see \
                      the end).";
    paragraph(&mut screen, 0, leaves_out);
    if let Some(memory) = document.memory_sentence() {
        paragraph(&mut screen, 0, &memory);
    }
    if !document.error.is_close() {
        let far = format!(
            "Note: the replay as recorded is too far from the recording to trust counts: {}. {CLOSE}",
            errors(&document.error)
        );
        paragraph(&mut screen, 0, &far);
    }
    screen.text.push('\n');
    match &capacity.removals {
        Some(removals) => paragraph(&mut screen, 0, &removals.sentence),
        None => {
            for curve in curves(capacity) {
                paragraph(&mut screen, 0, &document.answer(curve));
            }
        }
    }
    screen.text.push('\n');
    paragraph(&mut screen, 0, &limits(document));
    match &capacity.removals {
        Some(removals) => tables_of_removals(removals, &mut screen),
        None => {
            for curve in curves(capacity) {
                table(curve, &mut screen);
            }
            paragraph(&mut screen, 2, LEGEND);
            vms(document, &mut screen);
        }
    }
    screen.heading("Left out");
    for line in &capacity.unknown {
        paragraph(&mut screen, 2, line);
    }
    for lack in &document.lacks {
        paragraph(&mut screen, 2, &format!("Lacking: {}", lack.shown()));
    }
    screen.heading("Assumed");
    for line in &document.assumed {
        paragraph(&mut screen, 2, line);
    }
    if !document.guessed.is_empty() {
        let guessed = format!(
            "Guessed: which threads are vCPUs of {}; --vm-of names them.",
            document.guessed.join(", ")
        );
        paragraph(&mut screen, 2, &guessed);
    }
    let replays = format!(
        "Replays: {}, {} seeds near a limit; the one as recorded is off by {}.",
        document.replays,
        document.seeds,
        errors(&document.error)
    );
    paragraph(&mut screen, 2, &replays);
    screen.text
}

/// The curves; one of them where limits fail as recorded, because all have that host alone.
pub(crate) fn curves(capacity: &Capacity) -> &[Curve] {
    let fails = capacity.curves.iter().all(|curve| curve.largest.is_none());
    let first = capacity.curves.get(..1).filter(|_| fails);
    first.unwrap_or(&capacity.curves)
}

/// What the columns of a curve are.
const LEGEND: &str = "Each row has the VM that is nearest to its limit, or furthest beyond. ±: 95 % of \
    single replays, and the error of the replay as recorded. holds, fails: the whole band does.";

/// The limits, or the definition of the knee.
pub(crate) fn limits(document: &FitDocument) -> String {
    match document.capacity.knee {
        Some(knee) => format!("No --limit: the search ends at the knee. {knee}"),
        None => limits_line(&document.capacity.limits),
    }
}

pub(crate) fn limits_line(limits: &[Limit]) -> String {
    let limits = limits.iter().map(Limit::to_string);
    format!("Limits: {}.", limits.collect::<Vec<_>>().join(", "))
}

/// The VM of a point that is nearest to its limit, or furthest beyond.
fn nearest(point: &Point) -> Option<&PointVm> {
    let checks = point.checks.iter().filter(|check| check.vm.is_some());
    let check = checks.max_by(|a, b| a.excess().total_cmp(&b.excess()));
    match check.and_then(|check| check.vm.as_deref()) {
        Some(vm) => point.vm(vm),
        None => point.vms.first(),
    }
}

/// The least that holds of all limits.
pub(crate) fn outcome(point: &Point) -> &'static str {
    let holds = |outcome: Outcome| point.holds(|known| known == outcome);
    if holds(Outcome::Holds) {
        return "hold";
    }
    if point.holds(Outcome::is_held) {
        return "probably hold";
    }
    match point
        .checks
        .iter()
        .any(|check| check.outcome == Outcome::Fails)
    {
        true => "fail",
        false => "probably fail",
    }
}

pub(crate) fn figure(vm: &PointVm, figure: Figure) -> String {
    let band: Option<Band> = vm.figure(figure);
    band.map_or_else(|| "-".to_owned(), |band| with_band(figure, band))
}

/// The count with what it stands for.
pub(crate) fn count_name(curve: &Curve, count: u32) -> String {
    match (count == curve.first, curve.largest == Some(count)) {
        // Both names together are wider than the column.
        (_, true) => format!("{count} (largest)"),
        (true, false) => format!("{count} (recorded)"),
        (false, false) => count.to_string(),
    }
}

fn table(curve: &Curve, screen: &mut Screen) {
    let title = match curve.largest {
        Some(_) => format!("Count of {}", escape::terminal(&curve.of.to_string())),
        None => "As recorded".to_owned(),
    };
    screen.heading(&title);
    let mut grid = Grid::new(&[
        text("count"),
        number("busy"),
        text("VM"),
        number("ready"),
        number("wakeup p50"),
        number("p99"),
        number("work"),
        text("limits"),
    ]);
    for point in &curve.points {
        let Some(vm) = nearest(point) else {
            continue;
        };
        grid.row([
            count_name(curve, point.count),
            format!("{:.0} %", point.busy_percent),
            vm.vm.clone(),
            figure(vm, Figure::Ready),
            vm.wakeup_p50_us
                .map_or_else(|| "-".to_owned(), |p50| Figure::WakeupP50.shown(p50.mean)),
            figure(vm, Figure::WakeupP99),
            figure(vm, Figure::Work),
            outcome(point).to_owned(),
        ]);
    }
    grid.render(screen);
}

/// Each VM as recorded, and at the largest count of each curve.
fn vms(document: &FitDocument, screen: &mut Screen) {
    let capacity = &document.capacity;
    screen.heading("Each VM");
    let mut grid = Grid::new(&[
        text("host"),
        text("VM"),
        number("ready"),
        number("wakeup p50"),
        number("p99"),
        number("work"),
        text(""),
    ]);
    let mut rows = |name: &str, point: &Point| {
        for vm in &point.vms {
            grid.row([
                name.to_owned(),
                vm.vm.clone(),
                figure(vm, Figure::Ready),
                figure(vm, Figure::WakeupP50),
                figure(vm, Figure::WakeupP99),
                figure(vm, Figure::Work),
                if vm.is_elastic { "elastic" } else { "" }.to_owned(),
            ]);
        }
    };
    rows("as recorded", &capacity.recorded);
    for curve in &capacity.curves {
        if let Some(point) = curve.end().filter(|point| point.count > curve.first) {
            rows(&format!("{} of {}", point.count, curve.of), point);
        }
    }
    grid.render(screen);
}

fn tables_of_removals(removals: &Removals, screen: &mut Screen) {
    screen.heading("Each VM taken away alone");
    let mut grid = Grid::new(&[
        text("without"),
        number("its CPU, ms/s"),
        number("waiting spared, ms/s"),
        text("most to"),
        number("ready"),
        number("then"),
        number("work, ms/s"),
    ]);
    for row in &removals.ranked {
        let gainer = row.vms.first();
        let of_gainer = |value: &dyn Fn(&stealtime_whatif::capacity::Spared) -> String| {
            gainer.map_or_else(|| "-".to_owned(), value)
        };
        grid.row([
            row.vm.clone(),
            format!("{:.0}", row.cpu_ms),
            estimate(&row.spared_ms),
            of_gainer(&|vm| vm.vm.clone()),
            of_gainer(&|vm| format!("{:.1} %", vm.ready_percent)),
            of_gainer(&|vm| format!("{:.1} %", vm.ready_without_percent)),
            of_gainer(&|vm| estimate(&vm.work_ms)),
        ]);
    }
    grid.render(screen);
    let names = removals.steps.iter().map(|step| step.vm.as_str());
    let names: Vec<&str> = names.collect();
    screen.heading(&format!(
        "Each VM without {}",
        escape::terminal(&names.join(", "))
    ));
    let mut grid = Grid::new(&[
        text("VM"),
        number("ready"),
        number("wakeup p50"),
        number("p99"),
        number("work"),
    ]);
    for vm in &removals.end.vms {
        grid.row([
            vm.vm.clone(),
            figure(vm, Figure::Ready),
            figure(vm, Figure::WakeupP50),
            figure(vm, Figure::WakeupP99),
            figure(vm, Figure::Work),
        ]);
    }
    grid.render(screen);
    paragraph(
        screen,
        2,
        &format!("The limits {} there.", outcome(&removals.end)),
    );
}

pub(super) fn paragraph(screen: &mut Screen, indent: usize, line: &str) {
    let line = escape::terminal(line).into_owned();
    let mut hang = 0;
    for part in wrap(&line, screen.style.width - indent - 2) {
        let _ = writeln!(screen.text, "{:blank$}{part}", "", blank = indent + hang);
        hang = 2;
    }
}

/// Predicted next to recorded figures.
#[must_use]
pub fn self_test(series: &[SeenSeries]) -> String {
    let mut screen = Screen::new(Style::new(false));
    for shown in series {
        screen.heading(&format!(
            "{}, predicted from {}",
            escape::terminal(&shown.path),
            escape::terminal(&shown.base)
        ));
        for step in &shown.steps {
            step_table(step, &mut screen);
        }
    }
    screen.text.push('\n');
    let steps = || series.iter().flat_map(|series| &series.steps);
    let figures = || steps().flat_map(SeenStep::figures);
    let near = figures().filter(|figure| figure.is_within).count();
    let signs = || figures().filter_map(|figure| figure.is_sign_right);
    let right = signs().filter(|is_right| *is_right).count();
    let total = figures().count();
    let bounds = format!(
        "{near} of {total} figures within bounds ({:.0} %): ready within 5 % of the vCPUs' time or 30 % of \
         what is recorded, work within 10 %. {right} of {} changes have the right sign (of ready from 2 % of \
         the vCPUs' time on, of work from 5 % on). off: beyond the bounds. sign: the wrong sign.",
        near as f64 / total.max(1) as f64 * 100.0,
        signs().count()
    );
    paragraph(&mut screen, 0, &bounds);
    screen.text
}

fn step_table(step: &SeenStep, screen: &mut Screen) {
    if let Some(problem) = &step.problem {
        paragraph(screen, 2, &format!("{}: {problem}", step.path));
        return;
    }
    paragraph(screen, 2, &format!("{}: {}", step.path, step.change));
    let mut grid = Grid::new(&[
        text("VM"),
        text("from"),
        number("ready %"),
        number("predicted"),
        number("recorded"),
        text("is"),
        number("work ms/s"),
        number("predicted"),
        number("recorded"),
        text("is"),
    ]);
    for row in &step.rows {
        let of_figure = |figure: &SeenFigure| {
            [
                format!("{:.1}", figure.base),
                format!("{:.1}", figure.predicted),
                format!("{:.1}", figure.seen),
                word(figure).to_owned(),
            ]
        };
        let names = [row.vm.clone(), row.from.clone()].into_iter();
        let figures = of_figure(&row.ready_percent).into_iter();
        grid.row(names.chain(figures).chain(of_figure(&row.work_ms)));
    }
    grid.render(screen);
}

const fn word(figure: &SeenFigure) -> &'static str {
    match (figure.is_within, figure.is_sign_right) {
        (_, Some(false)) => "sign",
        (true, _) => "right",
        (false, _) => "off",
    }
}
