//! Variants side by side, as a terminal shows them.

use stealtime_lab::compare::{Cell, Column, Comparison, Failure, Row};
use stealtime_lab::metric::{Better, Subject, Unit};
use stealtime_lab::scenario::Setting;
use stealtime_lab::stats::{difference, estimate};
use stealtime_report::terminal::Style;
use stealtime_report::terminal::compare::render;

fn column(name: &str, settings: &[(&str, &str)]) -> Column {
    let settings = settings.iter().map(|(knob, value)| Setting {
        knob: (*knob).to_owned(),
        value: (*value).to_owned(),
    });
    Column {
        name: name.to_owned(),
        settings: settings.collect(),
        finished: 3,
        partial: false,
        failures: Vec::new(),
    }
}

fn row(name: &str, of: Subject, unit: Unit, better: Better, values: &[&[f64]]) -> Row {
    let first = values[0];
    let cells = values.iter().enumerate().map(|(at, list)| {
        Some(Cell {
            estimate: estimate(list)?,
            difference: if at == 0 {
                None
            } else {
                difference(first, list, better)
            },
        })
    });
    Row {
        name: name.to_owned(),
        of,
        unit,
        better,
        cells: cells.collect(),
    }
}

fn comparison() -> Comparison {
    let web = || Subject::Vm("web".into());
    Comparison {
        scenario: "scenarios/example.toml".into(),
        about: "what a table looks like".into(),
        duration_ns: 2_000_000_000,
        warmup_ns: 100_000_000,
        set: Vec::new(),
        seeds: vec![1, 2, 3],
        identical_seeds: false,
        partial: false,
        variants: vec![
            column("as it is", &[]),
            column("off", &[("kvm.halt_poll_ns", "0")]),
            column(
                "more",
                &[("kvm.halt_poll_ns", "500us"), ("vm.web.cpu_weight", "1000")],
            ),
        ],
        rows: vec![
            row(
                "throughput",
                web(),
                Unit::PerSecond,
                Better::Higher,
                &[
                    &[1000.0, 1010.0, 990.0],
                    &[800.0, 811.0, 790.0],
                    &[1001.0, 1008.0, 992.0],
                ],
            ),
            row(
                "latency p99",
                web(),
                Unit::Ns,
                Better::Lower,
                &[&[50e3, 51e3, 49e3], &[70e3, 75e3, 68e3], &[]],
            ),
            row(
                "steal",
                web(),
                Unit::Percent,
                Better::Lower,
                &[&[5.0, 5.1, 4.9], &[1.0, 1.2, 0.9], &[5.0, 5.1, 4.9]],
            ),
            row(
                "never",
                Subject::Host,
                Unit::Count,
                Better::Neither,
                &[&[0.0; 3], &[0.0; 3], &[0.0; 3]],
            ),
            row(
                "host ticks",
                Subject::Host,
                Unit::PerSecond,
                Better::Neither,
                &[&[0.0, 0.0, 0.0], &[250.0, 250.0, 250.0], &[0.0, 0.0, 0.0]],
            ),
        ],
    }
}

#[test]
fn a_table_of_variants() {
    insta::assert_snapshot!(render(&comparison(), Style::new(false)));
}

/// A change of half a percent may be sure, but is nothing to look at.
#[test]
fn only_differences_that_matter_are_coloured() {
    let shown = |after: f64| {
        let mut one = comparison();
        one.variants.truncate(2);
        let values: [&[f64]; 2] = [&[1000.0; 3], &[after, after + 0.5, after - 0.5]];
        let (of, unit) = (Subject::Vm("web".into()), Unit::PerSecond);
        one.rows = vec![row("throughput", of, unit, Better::Higher, &values)];
        render(&one, Style::new(true))
    };
    let (red, green) = ("\u{1b}[31m", "\u{1b}[32m");
    for (after, word, color) in [
        (995.0, "worse", None),
        (1005.0, "better", None),
        (950.0, "worse", Some(red)),
        (1050.0, "better", Some(green)),
    ] {
        let text = shown(after);
        assert!(text.contains(word), "{text}");
        for code in [red, green] {
            assert_eq!(text.contains(code), Some(code) == color, "{after}: {text}");
        }
    }
}

#[test]
fn many_variants_are_split_and_each_part_has_the_first() {
    let mut many = comparison();
    for n in 0..4 {
        many.variants
            .push(column(&format!("variant number {n}"), &[]));
        for row in &mut many.rows {
            let cell = row.cells[1];
            row.cells.push(cell);
        }
    }
    let text = render(&many, Style::new(false));
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let heads: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("VM web"))
        .collect();
    assert!(
        heads.len() > 1 && heads.iter().all(|head| head.contains("as it is")),
        "{text}"
    );
    for n in 0..4 {
        let name = format!("variant number {n}");
        assert_eq!(
            heads.iter().filter(|head| head.contains(&name)).count(),
            1,
            "{text}"
        );
    }
}

#[test]
fn what_is_missing_is_reported() {
    let mut partial = comparison();
    partial.partial = true;
    partial.variants[1].partial = true;
    partial.variants[1].finished = 1;
    partial.variants[1].failures = vec![
        Failure {
            seed: 2,
            why: "the workload of VM web is deadlocked:\n  a waits for \u{1b}[2Jb".into(),
        },
        Failure {
            seed: 3,
            why: "the workload of VM web is deadlocked:\n  a waits for \u{1b}[2Jb".into(),
        },
    ];
    let text = render(&partial, Style::new(false));
    insta::assert_snapshot!(text);
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn one_seed_and_no_row_and_long_names_have_a_table() {
    let mut one = comparison();
    one.seeds.truncate(1);
    one.variants.truncate(2);
    one.rows = vec![row(
        "throughput",
        Subject::Host,
        Unit::PerSecond,
        Better::Higher,
        &[&[5.0], &[6.0]],
    )];
    let text = render(&one, Style::new(false));
    assert!(
        text.contains("add --seeds 10") && text.contains("+20.0 %, no interval"),
        "{text}"
    );
    one.seeds = vec![1, 2];
    one.identical_seeds = true;
    let text = render(&one, Style::new(false));
    assert!(
        text.contains("all seeds give the same") && !text.contains("paired by seed"),
        "{text}"
    );
    one.rows.clear();
    assert!(render(&one, Style::new(false)).contains("what a table looks like"));
    let mut long = comparison();
    long.rows[0].of = Subject::Vm("v".repeat(200));
    long.rows[0].name = "m".repeat(200);
    long.variants[1].name = "日本語の名前はとても長いので切られます".into();
    long.variants[2].settings[0].value = "x".repeat(500);
    let text = render(&long, Style::new(false));
    let wide = |line: &str| {
        line.chars()
            .map(|c| {
                if c.is_ascii() || c == '…' || c == '±' {
                    1
                } else {
                    2
                }
            })
            .sum::<usize>()
    };
    assert!(text.lines().all(|line| wide(line) <= 100), "{text}");
}

#[test]
fn colours_say_what_words_say() {
    let text = render(&comparison(), Style::new(true));
    assert!(text.contains("\u{1b}[31m") && text.contains("\u{1b}[32m"));
    let plain: String = {
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once('\u{1b}') {
            out.push_str(before);
            rest = after.split_once('m').map_or("", |(_, rest)| rest);
        }
        out + rest
    };
    assert_eq!(plain, render(&comparison(), Style::new(false)));
}
