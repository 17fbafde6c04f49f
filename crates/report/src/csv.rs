//! One table of an answer as CSV, with the keys of the JSON as header.
//!
//! A number that the recording cannot tell is an empty cell. Text that a spreadsheet would take for
//! a formula is defused ([`crate::escape::csv_text`]).

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use stealtime_analysis::Answers;
use stealtime_analysis::answers::{
    CpuUse, EventCount, Finding, HaltPolls, Interrupts, KeyRow, Latency, Ready, ReasonTime, Stall,
    VcpuTime, Vm, VmState, VmmThreads, Waits, Yields,
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
        Key::Stalls => table(&mut writer, &Stall::default(), &answers.stalls),
        Key::States => table(&mut writer, &VmState::default(), &answers.vm_states),
        Key::Host => table(&mut writer, &CpuUse::default(), &answers.host.cpus),
        Key::OverTime => table(&mut writer, &Bucket::default(), &buckets(answers)),
        Key::Vmm => table(&mut writer, &VmmThreads::default(), &answers.vmm_threads),
        Key::Waits => table(&mut writer, &Waits::default(), &answers.waits),
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
