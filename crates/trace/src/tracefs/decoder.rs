//! Raw tracepoint records to events.

use std::io;

use stealtime_events::{Context, CpuId, Event, Kind, NameId, Names, Tid};

use super::format::Formats;
use super::functions::Functions;
use super::load::{Endian, Record, Slot};
use super::plan::{Body, Plan};
use super::queue::EventSink;
use super::symbols::Symbols;
use super::tasks::{Tasks, comm_of};
use crate::tracepoint::{self, Fields, MAX_FIELDS, Point};
use crate::{NameTable, SourceInfo};

/// Time and CPU of a record, which its container has.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    /// In units of the source's clock.
    pub time_ns: u64,
    /// The host CPU.
    pub cpu: CpuId,
}

impl Stamp {
    /// An event without a known task.
    pub(crate) fn event(self, kind: Kind) -> Event {
        Event {
            time_ns: self.time_ns,
            tid: Tid::IDLE,
            cpu: self.cpu,
            context: Context::UNKNOWN,
            kind,
        }
    }
}

/// Turns raw tracepoint records of one file into events.
pub struct Decoder {
    endian: Endian,
    id: Slot,
    /// Index into `plans` for each `common_type`; [`NO_PLAN`] for one without description.
    by_id: Vec<u16>,
    plans: Vec<Plan>,
    tasks: Tasks,
    functions: Functions,
}

const NO_PLAN: u16 = u16::MAX;

/// The plan for the records of one event, in the [`Decoder`] that returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanId(u16);

impl Decoder {
    /// Compiles the descriptions. Only names of tracepoints are added to `names`.
    #[must_use]
    pub fn new(formats: &Formats, endian: Endian, symbols: Symbols, names: &mut NameTable) -> Self {
        let events = formats.events();
        let last = events
            .iter()
            .map(|event| usize::from(event.id) + 1)
            .max()
            .unwrap_or(0);
        let mut by_id = vec![NO_PLAN; last];
        let mut plans = Vec::with_capacity(events.len());
        let mut id = Slot::default();
        for format in events {
            if let Some(entry) = by_id.get_mut(usize::from(format.id)) {
                *entry = u16::try_from(plans.len()).unwrap_or(NO_PLAN);
            }
            plans.push(Plan::compile(format, names.intern(&format.name)));
            if !id.exists() {
                id = format
                    .field("common_type")
                    .and_then(Slot::of)
                    .unwrap_or_default();
            }
        }
        Self {
            endian,
            id,
            by_id,
            plans,
            tasks: Tasks::default(),
            functions: Functions::new(symbols),
        }
    }

    /// Where the list of symbols starts and why it could not be read, once. The event has the function's
    /// address.
    #[inline]
    pub fn take_failure(&mut self) -> Option<(u64, io::Error)> {
        self.functions.take_failure()
    }

    /// Decodes one record: pushes exactly one counted event ([`Kind::is_host_event`]), and before it the
    /// changed names of its tasks.
    ///
    /// Three faults make it [`Kind::Other`] and a note: an unknown event, a short record, a description
    /// without a needed field.
    pub fn decode(
        &mut self,
        record: &[u8],
        stamp: Stamp,
        names: &mut NameTable,
        info: &mut SourceInfo,
        sink: &mut impl EventSink,
    ) {
        let id = self.id.load(record, self.endian) as usize;
        let plan = self.by_id.get(id).copied().unwrap_or(NO_PLAN);
        if self.id.end() <= record.len() && usize::from(plan) < self.plans.len() {
            self.decode_as(PlanId(plan), record, stamp, names, info, sink);
        } else {
            sink.push(self.unknown(id, record, stamp, names, info));
        }
    }

    /// The same for a record of a known event.
    #[inline(always)]
    pub fn decode_as(
        &mut self,
        plan: PlanId,
        record: &[u8],
        stamp: Stamp,
        names: &mut NameTable,
        info: &mut SourceInfo,
        sink: &mut impl EventSink,
    ) {
        let min_len = self.plans.get(usize::from(plan.0)).map(|plan| plan.min_len);
        let min_len = min_len.unwrap_or(usize::MAX);
        match Record::short(record, self.endian, min_len) {
            Some(record) => self.decode_record(plan, record, stamp, names, info, sink),
            None => self.decode_any(plan, record, stamp, names, info, sink),
        }
    }

    /// Big-endian records, and those that are too short.
    #[cold]
    fn decode_any(
        &mut self,
        plan: PlanId,
        record: &[u8],
        stamp: Stamp,
        names: &mut NameTable,
        info: &mut SourceInfo,
        sink: &mut impl EventSink,
    ) {
        let record = Record::any(record, self.endian);
        self.decode_record(plan, record, stamp, names, info, sink);
    }

    #[inline(always)]
    fn decode_record<const SHORT: bool>(
        &mut self,
        plan: PlanId,
        record: Record<'_, SHORT>,
        stamp: Stamp,
        names: &mut NameTable,
        info: &mut SourceInfo,
        sink: &mut impl EventSink,
    ) {
        let Some(plan) = self.plans.get_mut(usize::from(plan.0)) else {
            debug_assert!(false, "a plan of another decoder");
            return;
        };
        let event = Event {
            time_ns: stamp.time_ns,
            tid: Tid(record.load(&plan.pid) as i32),
            cpu: stamp.cpu,
            context: match plan.flags.exists() {
                true => Context::from_bits(record.load(&plan.flags) as u8),
                false => Context::UNKNOWN,
            },
            kind: Kind::Other { name: plan.name },
        };
        if let Body::Point(point) = plan.body
            && plan.min_len <= record.bytes.len()
        {
            for comm in plan.comms.iter().map_while(Option::as_ref) {
                // No events for the names of idle tasks: a cheap test before the costlier ones.
                let tid = plan.slots.get(comm.tid).map_or(0, |slot| record.load(slot));
                let tid = match (tid as i32, point) {
                    // `task_rename` has no pid from 6.15 on: a task renames itself.
                    (0, Point::TaskRename) => event.tid.0,
                    (tid, _) => tid,
                };
                if tid != 0
                    && let Some(comm) = comm.load(record.bytes, record.endian)
                    && let Some(kind) = self.tasks.named(tid, None, comm, names)
                {
                    sink.push(Event { kind, ..event });
                }
            }
            let mut fields = RecordFields {
                record,
                slots: &plan.slots,
                functions: &mut self.functions,
                names,
            };
            // Made in its place: the stores of its fields would stall the wider loads of a copy.
            let event = sink.push(event);
            if tracepoint::read(point, &mut fields, &mut event.kind)
                && let Kind::SchedProcessExit { tid } = event.kind
            {
                self.tasks.ended(tid.0);
            }
        } else {
            note_named(plan, names, info);
            sink.push(event);
        }
    }

    /// Pushes a task's name that the container has outside of events (saved command lines, records of
    /// `exec` and `fork`), if it is new. `process` is the thread group's id where it is known. Later
    /// events with a name alone keep it.
    pub fn task_named(
        &mut self,
        tid: Tid,
        process: Option<Tid>,
        comm: &[u8],
        stamp: Stamp,
        names: &mut NameTable,
        sink: &mut impl EventSink,
    ) {
        let process = process.map(|process| process.0);
        if let Some(kind) = self.tasks.named(tid.0, process, comm_of(comm), names) {
            sink.push(stamp.event(kind));
        }
    }

    /// Pushes the process of a thread that the container has outside of events, if it is new.
    #[inline]
    pub fn task_of(
        &mut self,
        tid: Tid,
        process: Tid,
        stamp: Stamp,
        names: &mut NameTable,
        sink: &mut impl EventSink,
    ) {
        if let Some(kind) = self.tasks.of_process(tid.0, process.0, names) {
            sink.push(stamp.event(kind));
        }
    }

    /// The plan for records that begin with this id. `None` where no description has the id, or where
    /// records have it at another offset than 0.
    #[must_use]
    pub fn plan(&self, id: u16) -> Option<PlanId> {
        let plan = *self.by_id.get(usize::from(id))?;
        let is_there = usize::from(plan) < self.plans.len() && self.id.is_first_half_word();
        is_there.then_some(PlanId(plan))
    }

    /// The tracepoint's name for an id, or `None` where no description has it.
    #[must_use]
    pub fn event_name(&self, id: u16) -> Option<NameId> {
        let plan = *self.by_id.get(usize::from(id))?;
        self.plans.get(usize::from(plan)).map(|plan| plan.name)
    }

    #[cold]
    fn unknown(
        &self,
        id: usize,
        record: &[u8],
        stamp: Stamp,
        names: &mut NameTable,
        info: &mut SourceInfo,
    ) -> Event {
        let name = if self.id.exists() && self.id.end() <= record.len() {
            info.note(
                true,
                format!("events with ID {id}: the file has no description of them"),
            );
            names.intern(&format!("unknown-{id}"))
        } else {
            info.note(true, "records too short to say which event they are");
            names.intern("unknown")
        };
        let event = stamp.event(Kind::Other { name });
        // The common header is where the described events have it. Without its task the event would
        // count for the idle task.
        let is_whole = |plan: &&Plan| {
            plan.pid.exists() && plan.flags.exists() && plan.header_end() <= record.len()
        };
        self.plans
            .iter()
            .find(is_whole)
            .map_or(event, |plan| Event {
                tid: Tid(plan.pid.load(record, self.endian) as i32),
                context: Context::from_bits(plan.flags.load(record, self.endian) as u8),
                ..event
            })
    }
}

/// Notes why a record became an event with a name alone.
fn note_named(plan: &mut Plan, names: &NameTable, info: &mut SourceInfo) {
    match plan.body {
        Body::Named => {}
        Body::Lacks(field) => {
            let event = names.name(plan.name);
            info.note(
                false,
                format!("{event}: its format has no field {field}; what needs it is left out"),
            );
            plan.body = Body::Named;
        }
        Body::Point(_) => short(plan, names, info),
    }
}

#[cold]
fn short(plan: &Plan, names: &NameTable, info: &mut SourceInfo) {
    let (event, needed) = (names.name(plan.name), plan.min_len);
    info.note(
        true,
        format!("{event}: records shorter than the {needed} bytes that its format needs"),
    );
}

/// The fields of one record, and the tables that turn addresses into names.
struct RecordFields<'a, const SHORT: bool> {
    record: Record<'a, SHORT>,
    slots: &'a [Slot; MAX_FIELDS],
    functions: &'a mut Functions,
    names: &'a mut NameTable,
}

impl<const SHORT: bool> Fields for RecordFields<'_, SHORT> {
    #[inline(always)]
    fn number(&self, place: usize) -> u64 {
        self.slots
            .get(place)
            .map_or(0, |slot| self.record.load(slot))
    }

    #[inline(always)]
    fn exists(&self, place: usize) -> bool {
        self.slots.get(place).is_some_and(|slot| slot.exists())
    }

    #[inline(always)]
    fn function(&mut self, place: usize) -> NameId {
        self.functions.name(self.number(place), self.names)
    }
}
