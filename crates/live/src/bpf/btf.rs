//! Offsets of fields from the kernel's type information (Documentation/bpf/btf.rst).

use std::path::Path;

use super::BpfError;

/// The kernel's own types.
pub(super) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;

/// Kinds of types.
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const TYPEDEF: u32 = 8;
/// Bytes behind a type's three words: of it, and of each of its parts. Indexed by kind.
const TAILS: [(usize, usize); 20] = [
    (0, 0),
    (4, 0),
    (0, 0),
    (12, 0),
    (0, 12),
    (0, 12),
    (0, 8),
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 8),
    (4, 0),
    (0, 12),
    (0, 0),
    (4, 0),
    (0, 0),
    (0, 12),
];

/// Begins of the names of types that programs need. A kernel has 150,000 types: one pass finds these.
const NEEDED: [&str; 3] = ["task_struct", "hrtimer", TRACEPOINT];
/// The begin of a tracepoint's type.
const TRACEPOINT: &str = "btf_trace_";

/// The types of a kernel.
pub(super) struct Btf {
    data: Vec<u8>,
    strings: usize,
    /// Positions by type id; id 0 is `void`.
    types: Vec<usize>,
    /// Types with a name of [`NEEDED`].
    needed: Vec<u32>,
}

/// A type's words, and the position of its parts.
struct Type {
    name: u32,
    kind: u32,
    parts: usize,
    has_bits: bool,
    refers: u32,
    tail: usize,
}

impl Btf {
    /// Reads the running kernel's.
    pub(super) fn read() -> Result<Self, BpfError> {
        let path = Path::new(VMLINUX);
        match std::fs::read(path) {
            Ok(data) => Self::parse(data).ok_or(BpfError::Types("it cannot be read".to_owned())),
            Err(source) => Err(BpfError::NoTypes { source }),
        }
    }

    fn parse(data: Vec<u8>) -> Option<Self> {
        let magic = u16::from_ne_bytes(*data.first_chunk()?);
        if magic != MAGIC {
            return None;
        }
        let word = |position: usize| word(&data, position).map(|word| word as usize);
        let head = word(4)?;
        let begin = head.checked_add(word(8)?)?;
        let end = begin.checked_add(word(12)?)?;
        let strings = head.checked_add(word(16)?)?;
        let mut btf = Self {
            strings,
            types: vec![0],
            needed: Vec::new(),
            data,
        };
        let mut position = begin;
        while position < end {
            let found = btf.at(position)?;
            if matches!(found.kind, STRUCT | TYPEDEF) && btf.is_needed(found.name) {
                btf.needed.push(u32::try_from(btf.types.len()).ok()?);
            }
            btf.types.push(position);
            let (fixed, part) = *TAILS.get(found.kind as usize)?;
            position = found.tail + fixed + part * found.parts;
        }
        Some(btf)
    }

    fn at(&self, position: usize) -> Option<Type> {
        let info = word(&self.data, position + 4)?;
        Some(Type {
            name: word(&self.data, position)?,
            kind: info >> 24 & 0x1f,
            parts: (info & 0xffff) as usize,
            has_bits: info >> 31 == 1,
            refers: word(&self.data, position + 8)?,
            tail: position + 12,
        })
    }

    fn of_id(&self, id: u32) -> Option<Type> {
        let position = *self.types.get(id as usize).filter(|_| id > 0)?;
        self.at(position)
    }

    /// The strings from this offset on.
    fn text(&self, offset: u32) -> &[u8] {
        let begin = self.strings.saturating_add(offset as usize);
        self.data.get(begin..).unwrap_or_default()
    }

    fn is_needed(&self, name: u32) -> bool {
        let text = self.text(name);
        NEEDED
            .iter()
            .any(|begin| text.starts_with(begin.as_bytes()))
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let rest = self.text(offset).strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }

    fn ids(&self, kind: u32, name: &str) -> impl Iterator<Item = u32> {
        self.needed.iter().copied().filter(move |&id| {
            let found = self.of_id(id);
            found.is_some_and(|found| found.kind == kind && self.is_named(found.name, name))
        })
    }

    /// The type by which a program attaches to a tracepoint, and the number of the tracepoint's arguments.
    pub(super) fn tracepoint(&self, name: &str) -> Result<(u32, usize), BpfError> {
        let typedef = format!("{TRACEPOINT}{name}");
        let id = self.ids(TYPEDEF, &typedef).next();
        // A pointer to a function, of which the first argument is the tracepoint's own data.
        let arguments = |id| {
            let pointer = self.of_id(self.of_id(id)?.refers)?;
            Some(self.of_id(pointer.refers)?.parts.saturating_sub(1))
        };
        let found = id.and_then(|id| Some((id, arguments(id)?)));
        found.ok_or(BpfError::Types(format!("it lacks {typedef}")))
    }

    /// Bytes from the begin of a struct to a field in it, by the names on its path. The first of several
    /// paths that this kernel has: kernels rename fields and move them.
    pub(super) fn offset(&self, paths: &[&[&str]]) -> Result<i16, BpfError> {
        let found = paths.iter().find_map(|path| {
            let (name, fields) = path.split_first()?;
            let bits = self
                .ids(STRUCT, name)
                .find_map(|id| self.walk(id, fields))?;
            i16::try_from(bits / 8).ok()
        });
        let path = paths.first().map(|path| path.join("."));
        found.ok_or_else(|| BpfError::Types(format!("it lacks {}", path.unwrap_or_default())))
    }

    /// Bits to a field.
    fn walk(&self, id: u32, fields: &[&str]) -> Option<u32> {
        let Some((name, rest)) = fields.split_first() else {
            return Some(0);
        };
        let found = self.of_id(id)?;
        if found.kind != STRUCT && found.kind != UNION {
            return None;
        }
        (0..found.parts).find_map(|part| {
            let position = found.tail + 12 * part;
            let field = word(&self.data, position)?;
            let mut bits = word(&self.data, position + 8)?;
            if found.has_bits {
                // The upper byte has the size of a bit field.
                bits &= 0xff_ffff;
            }
            let id = word(&self.data, position + 4)?;
            let inner = match self.is_named(field, name) {
                true => self.walk(id, rest),
                // Fields of a struct without a name belong to the one around it.
                false if self.is_named(field, "") => self.walk(id, fields),
                false => None,
            };
            Some(bits + inner?)
        })
    }
}

fn word(data: &[u8], position: usize) -> Option<u32> {
    let bytes = data.get(position..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct task_struct { int pad; struct { int pid; }; struct info info; }`, `struct info` with `cpu`,
    /// and a tracepoint.
    fn example() -> Vec<u8> {
        let strings = b"\0task_struct\0pid\0info\0cpu\0btf_trace_sched_waking\0";
        let name = |text: &str| {
            let position = strings
                .windows(text.len() + 2)
                .position(|window| &window[1..=text.len()] == text.as_bytes());
            position.map_or(0, |position| position as u32 + 1)
        };
        let info = |kind: u32, parts: u32| kind << 24 | parts;
        let types = [
            // 1: int
            &[0, info(1, 0), 4, 32][..],
            // 2: struct without a name
            &[0, info(STRUCT, 1), 4, name("pid"), 1, 0],
            // 3: struct info
            &[
                name("info"),
                info(STRUCT, 2),
                8,
                0,
                1,
                0,
                name("cpu"),
                1,
                32,
            ],
            // 4: struct task_struct, with sizes of bit fields
            &[
                name("task_struct"),
                info(STRUCT, 2) | 1 << 31,
                16,
                0,
                2,
                32,
                name("info"),
                3,
                64,
            ],
            // 5: pointer to 6; 6: function of three arguments; 7: its typedef
            &[0, info(2, 0), 6],
            &[0, info(13, 3), 0, 0, 0, 0, 0, 0, 0],
            &[name("btf_trace_sched_waking"), info(TYPEDEF, 0), 5],
        ];
        let types: Vec<u8> = types
            .concat()
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let mut data = MAGIC.to_ne_bytes().to_vec();
        data.extend([1, 0]);
        for word in [24, 0, types.len(), types.len(), strings.len()] {
            data.extend((word as u32).to_ne_bytes());
        }
        data.extend(types);
        data.extend(strings);
        data
    }

    #[test]
    fn fields_are_found_by_name() {
        let btf = Btf::parse(example()).expect("it is whole");
        assert_eq!(btf.offset(&[&["task_struct", "pid"]]).ok(), Some(4));
        let paths: &[&[&str]] = &[&["task_struct", "cpu"], &["task_struct", "info", "cpu"]];
        assert_eq!(btf.offset(paths).ok(), Some(12));
        assert_eq!(btf.tracepoint("sched_waking").ok(), Some((7, 2)));
        let missing = btf
            .offset(&[&["task_struct", "comm"]])
            .expect_err("it is not there");
        assert!(
            missing.to_string().contains("task_struct.comm"),
            "{missing}"
        );
    }

    #[test]
    fn damaged_types_are_refused() {
        let whole = example();
        for end in 0..whole.len() - 60 {
            assert!(Btf::parse(whole[..end].to_vec()).is_none(), "{end}");
        }
        let mut kinds = whole;
        kinds[24 + 7] = 31;
        assert!(Btf::parse(kinds).is_none());
    }
}
