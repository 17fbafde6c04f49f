//! One table of an answer as CSV, with the keys of the JSON as header.
//!
//! A number that the recording cannot tell is an empty cell. Text that a spreadsheet would take for
//! a formula is defused ([`crate::escape::csv_text`]).

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use stealtime_analysis::Answers;
use stealtime_analysis::answers::{
    EventCount, Finding, HaltPolls, Interrupts, KeyRow, Latency, Ready, ReasonTime, VcpuTime, Vm,
    Yields,
};

use crate::{Key, escape};

/// Writes the table of `key`, a header line first, also where it has no rows.
///
/// # Errors
/// Those of the writer.
pub fn write(answers: &Answers, key: Key, writer: impl Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(writer);
    match key {
        Key::Findings => table(&mut writer, &Finding::default(), &answers.findings),
        Key::Vms => table(&mut writer, &no_vm(), &answers.vms),
        Key::Time => table(&mut writer, &VcpuTime::default(), &answers.vcpus),
        Key::Handling => table(&mut writer, &Handling::default(), &handling(answers)),
        Key::Ready => table(&mut writer, &Ready::default(), &answers.ready),
        Key::Exits => table(&mut writer, &KeyRow::default(), &answers.exits),
        Key::ExitTotals => table(&mut writer, &KeyRow::default(), &answers.exit_totals),
        Key::Msr => table(&mut writer, &KeyRow::default(), &answers.msr),
        Key::Ioport => table(&mut writer, &KeyRow::default(), &answers.ioport),
        Key::Mmio => table(&mut writer, &KeyRow::default(), &answers.mmio),
        Key::Latency => table(&mut writer, &Latency::default(), &answers.latencies),
        Key::Yield => table(&mut writer, &Yields::default(), &answers.yields),
        Key::Poll => table(&mut writer, &HaltPolls::default(), &answers.halt_polls),
        Key::Interrupts => table(&mut writer, &Interrupts::default(), &answers.interrupts),
        Key::Events => table(&mut writer, &no_event(), &answers.events),
    }?;
    writer.flush()
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
        pid: None,
        vcpus: 0,
        grouped_by: String::new(),
        guessed: false,
    }
}

const fn no_event() -> EventCount {
    EventCount {
        name: String::new(),
        count: 0,
        today: None,
    }
}

/// `like` gives the columns: those of its fields that are no lists.
fn table<W: Write, T: Serialize>(
    writer: &mut csv::Writer<W>,
    like: &T,
    rows: &[T],
) -> io::Result<()> {
    let mut header = Vec::new();
    if let Value::Object(fields) = serde_json::to_value(like)? {
        header.extend(
            fields
                .into_iter()
                .filter(|(_, value)| !value.is_array())
                .map(|(name, _)| name),
        );
    }
    writer.write_record(&header)?;
    for row in rows {
        let row = serde_json::to_value(row)?;
        for name in &header {
            writer.write_field(cell(row.get(name)))?;
        }
        writer.write_record(None::<&[u8]>)?;
    }
    Ok(())
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => escape::csv_text(text).into_owned(),
        Some(other) => other.to_string(),
    }
}
