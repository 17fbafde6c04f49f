//! Parser of tracefs `format` descriptions (`events/SYSTEM/EVENT/format`, `events/header_page`).
//!
//! ```
//! use stealtime_trace::tracefs::format::parse;
//!
//! let text = b"name: sched_waking
//! ID: 318
//! format:
//! \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
//! \tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;
//! ";
//! let waking = parse("sched", text)?;
//! assert_eq!((&*waking.name, waking.id), ("sched_waking", 318));
//! assert_eq!(waking.field("pid").map(|field| (field.offset, field.size)), Some((24, 4)));
//! # Ok::<(), stealtime_trace::tracefs::format::FormatError>(())
//! ```

/// The place of a field's bytes (Documentation/trace/events.rst, "Dynamic arrays").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// At the field's offset.
    Here,
    /// `__data_loc`: the field is a word, low half the data's offset from the start of the record,
    /// high half its length.
    DataLoc,
    /// `__rel_loc`: the same, but the offset counts from the end of the word.
    RelLoc,
}

/// One field of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The field's name without type and array brackets.
    pub name: Box<str>,
    /// Offset from the start of the record in bytes.
    pub offset: u32,
    /// Size in bytes; of a dynamic array the size of its word.
    pub size: u32,
    /// Whether a number is signed.
    pub signed: bool,
    /// Whether the declaration has brackets.
    pub array: bool,
    /// Where the bytes are.
    pub location: Location,
}

/// One event's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFormat {
    /// The system (`sched`, `kvm`); the description itself does not say, the container does. Empty
    /// where it is not known.
    pub system: Box<str>,
    /// The tracepoint's name.
    pub name: Box<str>,
    /// `common_type` of its records.
    pub id: u16,
    /// All fields, those common to all events included, in the order of the description.
    pub fields: Vec<Field>,
}

/// An error in a description.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// There is no such line.
    #[error("format of event {event:?}: line {line:?} is missing")]
    Missing {
        /// The event as far as it is known.
        event: String,
        /// The start of the line.
        line: &'static str,
    },
    /// A line cannot be read.
    #[error("format of event {event:?}: cannot read line {number}: {text:?}")]
    Line {
        /// The event as far as it is known.
        event: String,
        /// The line's number, from 1.
        number: usize,
        /// The line, cut to 80 characters.
        text: String,
    },
}

/// Parses one event's description. `system` is the container's name for its system.
///
/// # Errors
/// A description lacks its name or ID, or the offset of a field cannot be read.
pub fn parse(system: &str, text: &[u8]) -> Result<EventFormat, FormatError> {
    let text = String::from_utf8_lossy(text);
    let mut name: Option<&str> = None;
    let mut id = None;
    let mut fields = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim();
        let broken = || FormatError::Line {
            event: name.unwrap_or_default().to_owned(),
            number,
            text: trimmed.chars().take(80).collect(),
        };
        if let Some(rest) = trimmed.strip_prefix("name:") {
            name = Some(rest.trim());
        } else if let Some(rest) = trimmed.strip_prefix("ID:") {
            id = Some(rest.trim().parse().map_err(|_| broken())?);
        } else if trimmed.starts_with("field:") {
            fields.push(field(trimmed).ok_or_else(broken)?);
        } else if trimmed.starts_with("print fmt:") {
            // What follows may hold anything.
            break;
        }
    }
    let event = name.unwrap_or_default();
    let missing = |line| FormatError::Missing {
        event: event.to_owned(),
        line,
    };
    if event.is_empty() {
        return Err(missing("name:"));
    }
    Ok(EventFormat {
        system: system.into(),
        name: event.into(),
        id: id.ok_or_else(|| missing("ID:"))?,
        fields,
    })
}

/// Parses one line `field:TYPE NAME; offset:N; size:N; signed:N;`, or gives `None`.
///
/// `header_page` consists of such lines.
#[must_use]
pub fn field(line: &str) -> Option<Field> {
    let mut parts = line.trim().split(';');
    let declaration = parts.next()?.strip_prefix("field:")?.trim();
    let (mut offset, mut size, mut signed) = (None, None, false);
    for part in parts {
        let Some((key, value)) = part.split_once(':') else {
            continue;
        };
        match key.trim() {
            "offset" => offset = Some(value.trim().parse().ok()?),
            "size" => size = Some(value.trim().parse().ok()?),
            "signed" => signed = value.trim() != "0",
            _ => {}
        }
    }
    let (location, declaration) = if let Some(rest) = declaration.strip_prefix("__data_loc ") {
        (Location::DataLoc, rest)
    } else if let Some(rest) = declaration.strip_prefix("__rel_loc ") {
        (Location::RelLoc, rest)
    } else {
        (Location::Here, declaration)
    };
    let array = declaration.contains('[');
    Some(Field {
        name: name_of(declaration)?.into(),
        offset: offset?,
        size: size?,
        signed,
        array,
        location,
    })
}

/// The identifier that a declaration declares: `char comm[16]`, `char[] comm` and `void * p`.
fn name_of(declaration: &str) -> Option<&str> {
    let mut rest = declaration.trim_end();
    while let Some(open) = rest.strip_suffix(']').and_then(|rest| rest.rfind('[')) {
        rest = rest.get(..open)?.trim_end();
    }
    let start = rest
        .rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .map_or(0, |separator| separator + 1);
    rest.get(start..).filter(|name| !name.is_empty())
}

impl EventFormat {
    /// The field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| *field.name == *name)
    }
}

/// The descriptions of one file.
#[derive(Debug, Clone, Default)]
pub struct Formats {
    events: Vec<EventFormat>,
    /// For each ID up to the largest: one more than the index of its description, or 0.
    by_id: Vec<u32>,
}

impl Formats {
    /// Adds a description; a later one with the same ID is left out.
    pub fn insert(&mut self, format: EventFormat) {
        let id = usize::from(format.id);
        if self.by_id.len() <= id {
            self.by_id.resize(id + 1, 0);
        }
        if let Some(entry @ 0) = self.by_id.get_mut(id) {
            self.events.push(format);
            // IDs have 16 bits, so there are at most 65,536 events.
            *entry = self.events.len() as u32;
        }
    }

    /// Parses and adds a description.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn add(&mut self, system: &str, text: &[u8]) -> Result<(), FormatError> {
        self.insert(parse(system, text)?);
        Ok(())
    }

    /// All descriptions, in the order in which they were added.
    #[must_use]
    pub fn events(&self) -> &[EventFormat] {
        &self.events
    }

    /// The description with this ID (`common_type`, `config` of a tracepoint's perf attribute).
    #[must_use]
    pub fn by_id(&self, id: u16) -> Option<&EventFormat> {
        let index = self.by_id.get(usize::from(id))?.checked_sub(1)?;
        self.events.get(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: &str = "name: sched_switch\nID: 316\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:__data_loc char[] next_comm;\toffset:24;\tsize:4;\tsigned:0;\n\
        \tfield:__rel_loc cpumask_t mask;\toffset:28;\tsize:4;\tsigned:0;\n\
        \tfield:const struct x * p;\toffset:32;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"field:int no; offset:1; size:1; signed:1;\"\nfield:int no;";

    #[test]
    fn a_description_is_read() {
        let format = parse("sched", SWITCH.as_bytes()).expect("a good description");
        assert_eq!(
            (&*format.system, &*format.name, format.id),
            ("sched", "sched_switch", 316)
        );
        assert_eq!(format.fields.len(), 6);
        let pid = format.field("common_pid").expect("there");
        assert_eq!(
            (pid.offset, pid.size, pid.signed, pid.array),
            (4, 4, true, false)
        );
        let comm = format.field("prev_comm").expect("there");
        assert!(comm.array && comm.location == Location::Here);
        let location = |name| format.field(name).map(|field| field.location);
        assert_eq!(location("next_comm"), Some(Location::DataLoc));
        assert_eq!(location("mask"), Some(Location::RelLoc));
        assert_eq!(location("p"), Some(Location::Here));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let no_id = parse("", b"name: x\nformat:\n").expect_err("no ID");
        assert_eq!(
            no_id.to_string(),
            "format of event \"x\": line \"ID:\" is missing"
        );
        assert!(matches!(
            parse("", b"ID: 3\n"),
            Err(FormatError::Missing { line: "name:", .. })
        ));
        let bad = parse("", b"name: x\nID: 1\n\tfield:int a;\toffset:-1;\tsize:4;\n");
        assert!(matches!(bad, Err(FormatError::Line { number: 3, .. })));
        assert!(parse("", b"name: x\nID: 65536\n").is_err());
    }

    #[test]
    fn the_first_of_two_with_one_id_stays() {
        let mut formats = Formats::default();
        for name in ["b", "a"] {
            formats
                .add("s", format!("name: {name}\nID: 9\n").as_bytes())
                .expect("good");
        }
        assert_eq!(formats.events().len(), 1);
        assert_eq!(formats.by_id(9).map(|event| &*event.name), Some("b"));
        assert_eq!(formats.by_id(8), None);
    }
}
