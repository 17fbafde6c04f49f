//! Counters, directed yield, IPI tracking, batched wakeups, halt polling: cost per operation.
//!
//! `cargo bench --bench mechanisms` prints ns per operation; with `-- --instructions` also
//! instructions, counted by callgrind (needs valgrind; slow). Ends with status 1 if a candidate
//! selection with a known receiver grows with the number of vCPUs. `-- --list` names the
//! operations, `-- --only NAME --iterations N` runs one and nothing else.

mod counters;
mod wakeups;
mod yields;

use std::process::{Command, ExitCode};
use std::time::Instant;

/// How often a measurement is repeated; the fastest counts.
const REPEATS: u32 = 15;

type Body = Box<dyn FnMut(u64)>;

/// Something measured.
struct Operation {
    name: String,
    body: Body,
    iterations: u64,
    /// The name of the operation that is included, and has its cost subtracted.
    without: Option<String>,
}

impl Operation {
    fn new(name: impl Into<String>, body: impl FnMut(u64) + 'static) -> Self {
        Self {
            name: name.into(),
            body: Box::new(body),
            iterations: 100_000,
            without: None,
        }
    }

    fn iterations(mut self, iterations: u64) -> Self {
        self.iterations = iterations;
        self
    }

    fn without(mut self, name: impl Into<String>) -> Self {
        self.without = Some(name.into());
        self
    }
}

fn operations() -> Vec<Operation> {
    let all = [
        counters::operations(),
        yields::operations(),
        wakeups::operations(),
    ];
    all.into_iter().flatten().collect()
}

fn time_ns(op: &mut Operation) -> f64 {
    let once = |op: &mut Operation| {
        let start = Instant::now();
        for n in 0..op.iterations {
            (op.body)(n);
        }
        start.elapsed().as_secs_f64() * 1e9 / op.iterations as f64
    };
    (0..REPEATS).map(|_| once(op)).fold(f64::INFINITY, f64::min)
}

/// Instructions that callgrind counts for a run of so many iterations.
fn collected(name: &str, iterations: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().ok()?)
        .args(["--only", name, "--iterations", &iterations.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.split("Collected :")
        .nth(1)?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Two runs, so that start-up falls out.
fn instructions(op: &Operation) -> Option<f64> {
    let few = op.iterations.div_ceil(100);
    let many = few * 5;
    let extra = collected(&op.name, many)?.checked_sub(collected(&op.name, few)?)?;
    Some(extra as f64 / (many - few) as f64)
}

struct Row {
    name: String,
    ns: f64,
    instructions: Option<f64>,
}

impl Row {
    /// The operation's cost without the one that it includes.
    fn of(op: &mut Operation, rows: &[Self], count: bool) -> Self {
        let counted = if count { instructions(op) } else { None };
        let base = op.without.as_ref();
        let base = base.and_then(|name| rows.iter().find(|row| row.name == *name));
        let less = |of: fn(&Self) -> Option<f64>| base.and_then(of).unwrap_or(0.0);
        Self {
            name: op.name.clone(),
            ns: time_ns(op) - less(|row| Some(row.ns)),
            instructions: counted.map(|n| n - less(|row| row.instructions)),
        }
    }

    fn print(&self) {
        let counted = self.instructions.map_or("-".into(), |n| format!("{n:.0}"));
        println!("{:36} {:>10.1} {counted:>13}", self.name, self.ns);
    }
}

fn run_only(name: &str, iterations: u64) -> ExitCode {
    let Some(mut op) = operations().into_iter().find(|op| op.name == name) else {
        eprintln!("no operation {name:?}");
        return ExitCode::from(2);
    };
    (0..iterations).for_each(|n| (op.body)(n));
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let value = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1)
    };
    if has("--list") {
        operations().iter().for_each(|op| println!("{}", op.name));
        return ExitCode::SUCCESS;
    }
    if let Some(name) = value("--only") {
        let iterations = value("--iterations").and_then(|n| n.parse().ok());
        return run_only(name, iterations.unwrap_or(1000));
    }
    println!("{:36} {:>10} {:>13}", "operation", "ns", "instructions");
    let mut rows: Vec<Row> = Vec::new();
    for mut op in operations() {
        let row = Row::of(&mut op, &rows, has("--instructions"));
        row.print();
        rows.push(row);
    }
    let known = |n: u32| {
        let name = format!("{}-{n}", yields::KNOWN_RECEIVER);
        rows.iter().find(|row| row.name == name).map(|row| row.ns)
    };
    match (known(8), known(1024)) {
        (Some(few), Some(many)) if many < 3.0 * few => ExitCode::SUCCESS,
        (few, many) => {
            eprintln!("selection with a known receiver grows: {few:?} ns to {many:?} ns");
            ExitCode::FAILURE
        }
    }
}
