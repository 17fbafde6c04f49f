//! Tables of an answer, row by row, with the keys of the JSON as columns.
//!
//! For CSV and Parquet. A number that the recording cannot tell is a missing value.

use serde::Serialize;
use serde_json::Value;
use stealtime_analysis::Answers;
use stealtime_analysis::answers::{
    self, CpuUse, EventCount, Finding, HaltPolls, Interrupts, KeyRow, Latency, Ready, ReasonTime,
    SchedulerCount, Stall, VcpuTime, Vm, VmState, VmmThreads, Waits, Yields,
};
use stealtime_results::{Cell, CellKind, Column};

use crate::Key;

/// A table: its columns and rows.
pub(crate) struct Table {
    /// The fields of a row that are no lists, each with a value of its type.
    fields: Vec<(String, Value)>,
    /// A JSON object for each row.
    rows: Vec<Value>,
}

/// The columns of a table, with their types.
#[must_use]
pub fn columns(key: Key) -> Vec<Column> {
    of_key(&Answers::default(), key).columns()
}

/// The rows of a table, a cell for each of [`columns`].
#[must_use]
pub fn cells(answers: &Answers, key: Key) -> Vec<Vec<Cell>> {
    of_key(answers, key).cells()
}

/// The columns of [`Answers::histograms`].
#[must_use]
pub fn histogram_columns() -> Vec<Column> {
    histograms(&Answers::default()).columns()
}

/// The rows of [`Answers::histograms`]. A recording has thousands: as JSON they took longer than to analyze it.
#[must_use]
pub fn histogram_cells(answers: &Answers) -> Vec<Vec<Cell>> {
    let text = |text: &String| Cell::Text(text.clone());
    let integer = |number: u64| Cell::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    let row = |bucket: &answers::Bucket| {
        let answers::Bucket {
            vm,
            vm_guessed,
            table,
            key,
            detail,
            up_to_ns,
            count,
        } = bucket;
        vec![
            text(vm),
            Cell::Switch(*vm_guessed),
            text(table),
            text(key),
            text(detail),
            integer(*up_to_ns),
            integer(*count),
        ]
    };
    answers.histograms.iter().map(row).collect()
}

/// The columns of [`Answers::source`].
#[must_use]
pub fn source_columns() -> Vec<Column> {
    source(&Answers::default()).columns()
}

/// The row of [`Answers::source`].
#[must_use]
pub fn source_cells(answers: &Answers) -> Vec<Cell> {
    source(answers).cells().pop().unwrap_or_default()
}

fn histograms(answers: &Answers) -> Table {
    table(&answers::Bucket::default(), &answers.histograms)
}

fn source(answers: &Answers) -> Table {
    let like = answers::Source {
        compression: text(),
        uname: text(),
        ..answers::Source::default()
    };
    table(&like, std::slice::from_ref(&answers.source))
}

impl Table {
    /// The names of the columns.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// The values of each row.
    pub(crate) fn values(&self) -> impl Iterator<Item = impl Iterator<Item = Option<&Value>>> {
        let rows = self.rows.iter();
        rows.map(|row| self.names().map(|name| row.get(name)))
    }

    fn columns(&self) -> Vec<Column> {
        let columns = self.fields.iter().map(|(name, value)| Column {
            name: name.clone(),
            kind: kind(value),
        });
        columns.collect()
    }

    fn cells(&self) -> Vec<Vec<Cell>> {
        let rows = self.rows.iter();
        let row = |row: &Value| {
            let fields = self.fields.iter();
            let cells = fields.map(|(name, like)| cell(row.get(name), kind(like)));
            cells.collect()
        };
        rows.map(row).collect()
    }
}

fn kind(like: &Value) -> CellKind {
    match like {
        Value::Bool(_) => CellKind::Switch,
        Value::Number(number) if number.is_f64() => CellKind::Number,
        Value::Number(_) => CellKind::Integer,
        _ => CellKind::Text,
    }
}

/// A value as one of a column of this type. A whole number beyond 63 bits is the largest that fits.
fn cell(value: Option<&Value>, kind: CellKind) -> Cell {
    match (value, kind) {
        (Some(Value::Bool(on)), _) => Cell::Switch(*on),
        (Some(Value::String(text)), _) => Cell::Text(text.clone()),
        (Some(Value::Number(number)), CellKind::Number) => {
            number.as_f64().map_or(Cell::Null, Cell::Number)
        }
        (Some(Value::Number(number)), _) => Cell::Integer(number.as_i64().unwrap_or(i64::MAX)),
        _ => Cell::Null,
    }
}

/// A table of rows like this one, which gives the type of each column.
fn table<T: Serialize>(like: &T, rows: &[T]) -> Table {
    let fields = match serde_json::to_value(like) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let fields = fields.into_iter().filter(|(_, value)| !value.is_array());
    // Plain data with text as keys has a JSON form.
    let rows = rows.iter().filter_map(|row| serde_json::to_value(row).ok());
    Table {
        fields: fields.collect(),
        rows: rows.collect(),
    }
}

/// The type of what may be missing.
const fn text() -> Option<String> {
    Some(String::new())
}

#[rustfmt::skip]
pub(crate) fn of_key(answers: &Answers, key: Key) -> Table {
    let number = Some(0);
    match key {
        Key::Findings => table(&Finding::default(), &answers.findings),
        Key::Vms => table(&no_vm(), &answers.vms),
        Key::Stalls => table(
            &Stall { task: text(), task_tid: Some(0), export: text(), ..Stall::default() },
            &answers.stalls,
        ),
        Key::States => table(&VmState::default(), &answers.vm_states),
        Key::Host => table(
            &CpuUse { vcpu_ns: number, other_ns: number, idle_ns: number, waiting_ns: number, ..CpuUse::default() },
            &answers.host.cpus,
        ),
        Key::OverTime => table(
            &Bucket { vm: Some(""), cpu: Some(0), steal_ns: number, busy_ns: number, vcpu_ns: number,
                waiting_ns: number, ..Bucket::default() },
            &buckets(answers),
        ),
        Key::Vmm => table(&VmmThreads::default(), &answers.vmm_threads),
        Key::Waits => table(
            &Waits { longer: number, longer_ns: number, ..Waits::default() },
            &answers.waits,
        ),
        Key::Time => table(
            &VcpuTime { guest_ns: number, exit_ns: number, poll_ns: number, spin_ns: number, ..VcpuTime::default() },
            &answers.vcpus,
        ),
        Key::Handling => table(&Handling::default(), &handling(answers)),
        Key::Ready => table(&Ready::default(), &answers.ready),
        Key::Exits => table(&KeyRow::default(), &answers.exits),
        Key::ExitTotals => table(&KeyRow::default(), &answers.exit_totals),
        Key::Msr => table(&KeyRow::default(), &answers.msr),
        Key::Ioport => table(&KeyRow::default(), &answers.ioport),
        Key::Mmio => table(&KeyRow::default(), &answers.mmio),
        Key::Latency => table(&Latency::default(), &answers.latencies),
        Key::Yield => table(&Yields::default(), &answers.yields),
        Key::Scheduler => table(
            &SchedulerCount { ns: number, half_within_ns: number, ..SchedulerCount::default() },
            &answers.scheduler,
        ),
        Key::Poll => table(&HaltPolls::default(), &answers.halt_polls),
        Key::Interrupts => table(
            &Interrupts { vector: Some(0), ..Interrupts::default() },
            &answers.interrupts,
        ),
        Key::Events => table(&no_event(), &answers.events),
    }
}

/// `over_time`, a row for each bucket of a VM or a CPU.
#[derive(Default, Serialize)]
struct Bucket<'a> {
    start_ns: u64,
    vm: Option<&'a str>,
    cpu: Option<u16>,
    steal_ns: Option<u64>,
    busy_ns: Option<u64>,
    vcpu_ns: Option<u64>,
    waiting_ns: Option<u64>,
}

fn buckets(answers: &Answers) -> Vec<Bucket<'_>> {
    let over_time = &answers.over_time;
    let start = |bucket: usize| {
        let after = over_time.width_ns.saturating_mul(bucket as u64);
        over_time.start_ns.saturating_add(after)
    };
    let mut rows = Vec::new();
    for vm in &over_time.vms {
        let steal = vm.steal_ns.iter().enumerate();
        rows.extend(steal.map(|(bucket, ns)| Bucket {
            start_ns: start(bucket),
            vm: Some(&vm.vm),
            steal_ns: Some(*ns),
            ..Bucket::default()
        }));
    }
    for cpu in &over_time.cpus {
        let busy = cpu.busy_ns.iter().enumerate();
        rows.extend(busy.map(|(bucket, ns)| Bucket {
            start_ns: start(bucket),
            cpu: Some(cpu.cpu),
            busy_ns: Some(*ns),
            vcpu_ns: cpu.vcpu_ns.get(bucket).copied(),
            waiting_ns: cpu.waiting_ns.get(bucket).copied(),
            ..Bucket::default()
        }));
    }
    rows
}

/// `vcpus[].exit_ns_by_reason`, as rows.
#[derive(Default, Serialize)]
struct Handling<'a> {
    vm: &'a str,
    vm_guessed: bool,
    vcpu: u32,
    reason: &'a str,
    count: u64,
    ns: u64,
}

fn handling(answers: &Answers) -> Vec<Handling<'_>> {
    answers.vcpus.iter().flat_map(handling_of).collect()
}

fn handling_of(vcpu: &VcpuTime) -> impl Iterator<Item = Handling<'_>> {
    let reasons = vcpu.exit_ns_by_reason.iter();
    reasons.map(|ReasonTime { reason, count, ns }| Handling {
        vm: &vcpu.vm,
        vm_guessed: vcpu.vm_guessed,
        vcpu: vcpu.vcpu,
        reason,
        count: *count,
        ns: *ns,
    })
}

const fn no_vm() -> Vm {
    Vm {
        vm: String::new(),
        pid: Some(0),
        vcpus: 0,
        grouped_by: String::new(),
        guessed: false,
    }
}

const fn no_event() -> EventCount {
    EventCount {
        name: String::new(),
        count: 0,
        today: text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_has_a_type_of_its_own_values() {
        for key in Key::ALL {
            let table = of_key(&Answers::default(), key);
            for (name, like) in &table.fields {
                assert!(!like.is_null(), "{}: {name} has no type", key.name());
                if name.ends_with("_ns") {
                    assert!(like.is_number(), "{}: {name}", key.name());
                }
            }
        }
        assert!(!source_columns().is_empty() && !histogram_columns().is_empty());
    }

    #[test]
    fn cells_of_histograms_are_those_of_their_json() {
        let bucket = answers::Bucket {
            vm: "db".to_owned(),
            vm_guessed: true,
            table: "latency".to_owned(),
            key: "wakeup".to_owned(),
            detail: "timer".to_owned(),
            up_to_ns: u64::MAX,
            count: 7,
        };
        let answers = Answers {
            histograms: vec![bucket, answers::Bucket::default()],
            ..Answers::default()
        };
        assert_eq!(histogram_cells(&answers), histograms(&answers).cells());
    }

    #[test]
    fn a_missing_number_is_a_missing_value() {
        let answers = Answers {
            vcpus: vec![VcpuTime {
                vm: "db".to_owned(),
                vcpu: u32::MAX,
                halt_ns: u64::MAX,
                ..VcpuTime::default()
            }],
            ..Answers::default()
        };
        let columns = columns(Key::Time);
        let rows = cells(&answers, Key::Time);
        let value = |name: &str| {
            let column = columns.iter().position(|column| column.name == name);
            rows[0][column.expect("a column")].clone()
        };
        assert_eq!(value("vm"), Cell::Text("db".to_owned()));
        assert_eq!(value("vcpu"), Cell::Integer(i64::from(u32::MAX)));
        assert_eq!(value("guest_ns"), Cell::Null);
        assert_eq!(value("halt_ns"), Cell::Integer(i64::MAX));
    }
}
