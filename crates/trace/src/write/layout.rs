//! Offsets of the fields of records, and the `format` descriptions with them.

use std::fmt::Write;

use super::reason::{REASON, reason};
use crate::tracepoint::{Integer, MAX_FIELDS, Tracepoint};

/// Bytes of the longest record.
pub(super) const MAX_RECORD: usize = 64;
/// Bytes of the fields common to all records: `struct trace_entry`.
pub(super) const COMMON: usize = 8;
/// `TASK_COMM_LEN`.
pub(super) const COMM: u8 = 16;

/// A field's place in a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u8,
    /// In bytes: 1, 2, 4, 8, or [`COMM`] for the name of a task.
    pub(super) size: u8,
}

/// A record's fields.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Layout {
    pub(super) fields: [Place; MAX_FIELDS],
    pub(super) count: u8,
    /// Bytes of a record, a multiple of 4.
    pub(super) len: u8,
}

/// One declared field.
struct Declared<'a> {
    declaration: &'a str,
    place: Place,
    signed: bool,
}

/// The fields in the order of declaration, laid out as a C compiler does.
fn declared(point: &Tracepoint) -> Vec<Declared<'static>> {
    let mut end = COMMON as u8;
    let mut fields = Vec::new();
    for field in point.fields {
        let declaration = field.declaration;
        let (size, align, signed) = match field.integer() {
            Some(Integer { size, signed }) => (size, size, signed),
            None => (COMM, 1, false),
        };
        let offset = end.next_multiple_of(align);
        end = offset + size;
        fields.push(Declared {
            declaration,
            place: Place { offset, size },
            signed,
        });
    }
    fields
}

impl Layout {
    /// The layout of a tracepoint's records.
    pub(super) fn new(point: &Tracepoint) -> Self {
        let mut layout = Self {
            len: COMMON as u8,
            ..Self::default()
        };
        for (place, field) in layout.fields.iter_mut().zip(declared(point)) {
            *place = field.place;
            layout.count += 1;
            layout.len = (field.place.offset + field.place.size).next_multiple_of(4);
        }
        layout
    }
}

/// The `format` description of a tracepoint; `id` is that of its records.
pub(super) fn description(point: &Tracepoint, id: u16) -> String {
    let mut text = head(point.name, id);
    for field in declared(point) {
        let Place { offset, size } = field.place;
        line(&mut text, field.declaration, offset, size, field.signed);
    }
    let print = point.print.replace(REASON, reason());
    // Writing to a string does not fail.
    let _ = write!(text, "\nprint fmt: {print}\n");
    text
}

/// The description of events that are known by name only.
pub(super) fn named(name: &str, id: u16) -> String {
    let mut text = head(name, id);
    text.push_str("\nprint fmt: \"\"\n");
    text
}

fn head(name: &str, id: u16) -> String {
    let mut text = format!("name: {name}\nID: {id}\nformat:\n");
    line(&mut text, "unsigned short common_type", 0, 2, false);
    line(&mut text, "unsigned char common_flags", 2, 1, false);
    line(&mut text, "unsigned char common_preempt_count", 3, 1, false);
    line(&mut text, "int common_pid", 4, 4, true);
    text.push('\n');
    text
}

fn line(text: &mut String, declaration: &str, offset: u8, size: u8, signed: bool) {
    let signed = u8::from(signed);
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracefs::format;
    use crate::tracepoint::{Point, all};

    fn written() -> impl Iterator<Item = Tracepoint> {
        all().filter(|point| !point.is_read_only())
    }

    fn described(point: Point, id: u16) -> String {
        let tracepoint = all().find(|it| it.point == point).expect("a row");
        description(&tracepoint, id)
    }

    #[test]
    fn every_type_is_known_and_every_record_fits() {
        for point in written() {
            let fields = declared(&point);
            assert!(fields.len() <= MAX_FIELDS, "{}", point.name);
            for field in point.fields {
                let (name, variable) = field.declaration.rsplit_once(' ').expect("a type");
                let comm = name == "char" && variable.ends_with("[16]");
                assert!(field.integer().is_some() != comm, "{}", field.declaration);
            }
            let layout = Layout::new(&point);
            assert!(usize::from(layout.len) <= MAX_RECORD, "{}", point.name);
            assert_eq!(usize::from(layout.count), fields.len());
        }
    }

    #[test]
    fn descriptions_say_where_the_fields_are() {
        for (index, point) in written().enumerate() {
            let text = description(&point, 300 + index as u16);
            let read = format::parse(point.system, text.as_bytes()).expect("a good description");
            assert_eq!((&*read.name, read.id), (point.name, 300 + index as u16));
            let layout = Layout::new(&point);
            let read = read.fields.iter().skip(4);
            let places = read.map(|field| (field.offset as u8, field.size as u8));
            let count = usize::from(layout.count);
            let ours = layout.fields[..count].iter().map(|p| (p.offset, p.size));
            assert!(places.eq(ours), "{text}");
        }
        let switch = described(Point::SchedSwitch, 316);
        assert!(switch.contains("\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n"));
        let exit = described(Point::KvmExit, 7);
        assert!(!exit.contains(REASON) && exit.contains("\"npf\""));
    }

    #[test]
    fn descriptions_as_a_file_has_them() {
        let shown = [
            Point::KvmEntry,
            Point::KvmExit,
            Point::SchedSwitch,
            Point::HrtimerStart,
        ];
        let shown = shown.map(|point| described(point, 300 + point.number()));
        insta::assert_snapshot!(shown.concat() + &named("kvm_fpu", 400));
    }
}
