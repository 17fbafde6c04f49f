//! Plans: the loads for an event's records, compiled from its description once, at open.

use stealtime_events::NameId;

use super::format::{EventFormat, Location};
use super::load::{Endian, Slot};
use super::tasks::{Comm, comm_of};
use crate::tracepoint::{self, MAX_FIELDS, Point, Role, Tracepoint};

/// The loads for one event's records.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// The tracepoint's own name.
    pub(super) name: NameId,
    pub(super) pid: Slot,
    pub(super) flags: Slot,
    pub(super) body: Body,
    /// Shortest record that holds all that is loaded, in bytes.
    pub(super) min_len: usize,
    pub(super) slots: [Slot; MAX_FIELDS],
    pub(super) comms: [Option<CommSlot>; 2],
}

/// The kind of event that a record becomes.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// A typed event.
    Point(Point),
    /// The name alone.
    Named,
    /// The name alone, because the description lacks this field; to be noted once.
    Lacks(&'static str),
}

/// Where a task's name is in a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommSlot {
    /// Index of the task's tid in the plan's slots.
    pub(super) tid: usize,
    place: Place,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Fixed { offset: usize, size: usize },
    Data { word: Slot, base: usize },
}

impl CommSlot {
    fn compile(tid: usize, field: &str, format: &EventFormat) -> Option<Self> {
        let field = format.field(field)?;
        let place = match field.location {
            Location::Here if field.array => Place::Fixed {
                offset: field.offset as usize,
                size: field.size as usize,
            },
            Location::Here => return None,
            Location::DataLoc => Place::Data {
                word: Slot::word(field)?,
                base: 0,
            },
            Location::RelLoc => {
                let word = Slot::word(field)?;
                Place::Data {
                    word,
                    base: word.end(),
                }
            }
        };
        Some(Self { tid, place })
    }

    /// The name, or `None` where the record is too short for it.
    #[inline]
    pub(super) fn load(self, record: &[u8], endian: Endian) -> Option<Comm> {
        match self.place {
            Place::Fixed { offset, size: 16 } => {
                let raw: Comm = *record.get(offset..)?.first_chunk()?;
                Some(up_to_zero(raw))
            }
            Place::Fixed { offset, size } => Some(comm_of(record.get(offset..)?.get(..size)?)),
            Place::Data { word, base } => {
                let word = word.load(record, endian) as usize;
                let data = record
                    .get(base + (word & 0xffff)..)?
                    .get(..word >> 16 & 0xffff)?;
                Some(comm_of(data))
            }
        }
    }
}

/// Zeroes what is behind the first zero: the kernel copies whole arrays, whatever they hold there.
#[inline]
fn up_to_zero(comm: Comm) -> Comm {
    const LOW: u128 = u128::from_ne_bytes([0x01; 16]);
    const HIGH: u128 = u128::from_ne_bytes([0x80; 16]);
    let bytes = u128::from_le_bytes(comm);
    // The lowest bit set belongs to the first byte that is zero (those above it may lie).
    let zeros = bytes.wrapping_sub(LOW) & !bytes & HIGH;
    // Without any: all but the last byte, which is the terminator's.
    let bits = zeros.trailing_zeros().min(127) & !7;
    (bytes & ((1 << bits) - 1)).to_le_bytes()
}

impl Plan {
    /// Compiles a description. `name` is the tracepoint's name in the table.
    pub(super) fn compile(format: &EventFormat, name: NameId) -> Self {
        let common = |name| format.field(name).and_then(Slot::of).unwrap_or_default();
        let mut plan = Self {
            name,
            pid: common("common_pid"),
            flags: common("common_flags"),
            body: Body::Named,
            min_len: 0,
            slots: [Slot::default(); MAX_FIELDS],
            comms: [None; 2],
        };
        let mut lacks = None;
        // `kvm_exit` has a layout for each architecture: the first with all fields applies.
        for tracepoint in tracepoint::all().filter(|tracepoint| is_of(tracepoint, format)) {
            match slots(&tracepoint, format) {
                Ok(slots) => {
                    plan.slots = slots;
                    plan.body = Body::Point(tracepoint.point);
                    plan.comms = comms(&tracepoint, format);
                    lacks = None;
                    break;
                }
                // The first layout is the common one: name its field.
                Err(field) => lacks = lacks.or(Some(field)),
            }
        }
        if let Some(field) = lacks {
            plan.body = Body::Lacks(field);
        }
        let loaded = plan.slots.iter().chain([&plan.pid, &plan.flags]);
        plan.min_len = loaded.map(|slot| slot.end()).max().unwrap_or(0);
        plan
    }

    /// The offset behind the task and the flags.
    pub(super) fn header_end(&self) -> usize {
        self.pid.end().max(self.flags.end())
    }
}

/// Whether a description is of this tracepoint.
fn is_of(tracepoint: &Tracepoint, format: &EventFormat) -> bool {
    let name = &*format.name;
    // An empty system: the container does not say.
    (format.system.is_empty() || *format.system == *tracepoint.system)
        && (name == tracepoint.name || Some(name) == tracepoint.former)
}

/// The slots of a tracepoint's values, or the first that the description lacks.
fn slots(
    tracepoint: &Tracepoint,
    format: &EventFormat,
) -> Result<[Slot; MAX_FIELDS], &'static str> {
    let mut slots = [Slot::default(); MAX_FIELDS];
    for (slot, field) in slots.iter_mut().zip(tracepoint.fields) {
        let Role::Value { required, .. } = field.role else {
            continue;
        };
        let mut names = [Some(field.name()), field.former].into_iter().flatten();
        let found = names.find_map(|name| format.field(name)).and_then(Slot::of);
        match found {
            Some(found) => *slot = found,
            None if required => return Err(field.name()),
            None => {}
        }
    }
    Ok(slots)
}

/// Where a tracepoint's names of tasks are.
fn comms(tracepoint: &Tracepoint, format: &EventFormat) -> [Option<CommSlot>; 2] {
    let comms = tracepoint
        .fields
        .iter()
        .filter_map(|field| match field.role {
            Role::Comm { task } => {
                CommSlot::compile(tracepoint.place_of(task)?, field.name(), format)
            }
            _ => None,
        });
    let mut slots = [None; 2];
    for (slot, comm) in slots.iter_mut().zip(comms) {
        *slot = Some(comm);
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_at_the_first_zero() {
        for raw in [
            *b"CPU 0/KVM\0\x01\x01\0abc",
            *b"\x01\0\x01\0aaaaaaaaaaaa",
            *b"\0aaaaaaaaaaaaaaa",
            *b"aaaaaaaaaaaaaaa\0",
            *b"aaaaaaaaaaaaaaaa",
            [0xff; 16],
            [0x80; 16],
        ] {
            assert_eq!(up_to_zero(raw), comm_of(&raw), "{raw:?}");
        }
    }
}
