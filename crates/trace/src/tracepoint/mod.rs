//! The table of tracepoints (`stealtime_events::for_each_tracepoint`), for the readers and the writer.
//!
//! [`all`] lists the tracepoints with their fields, for plans, layouts and parsers. [`read`] makes an
//! event's kind of its fields, wherever these come from, and [`write`] the fields of a kind.

mod exit;
mod value;

use stealtime_events::{HostVector, Kind, NameId, Tid, VcpuId};

pub(crate) use exit::interrupt_vector;
pub(crate) use value::{Fields, Value};

/// Fields of the longest row.
pub(crate) const MAX_FIELDS: usize = 8;

/// A tracepoint, with one layout of its records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tracepoint {
    pub(crate) point: Point,
    pub(crate) system: &'static str,
    pub(crate) name: &'static str,
    /// Its name in older kernels.
    pub(crate) former: Option<&'static str>,
    /// In the order of the record.
    pub(crate) fields: &'static [Field],
    /// `print fmt`: a C string and its arguments.
    pub(crate) print: &'static str,
}

/// One field of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    /// Its declaration in C.
    pub(crate) declaration: &'static str,
    /// Its name in older kernels.
    pub(crate) former: Option<&'static str>,
    pub(crate) role: Role,
}

/// The role of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Not read, and written as 0.
    Unread,
    /// A number that [`read`] asks for.
    Value {
        name: &'static str,
        /// Without it the event is known by name only.
        required: bool,
    },
    /// The name of a task; its tid is the value of this name.
    Comm { task: &'static str },
}

impl Field {
    /// The name in C: the declaration's last word, without the brackets of an array.
    pub(crate) fn name(&self) -> &'static str {
        let name = self.declaration.rsplit([' ', '*']).next();
        let name = name.unwrap_or(self.declaration);
        name.split_once('[').map_or(name, |(name, _)| name)
    }

    /// The field's C type on a 64-bit kernel, or `None` for an array.
    pub(crate) fn integer(&self) -> Option<Integer> {
        let (name, _) = self.declaration.rsplit_once(' ')?;
        let (size, signed) = match name {
            "bool" | "u8" | "__u8" => (1, false),
            "__u16" => (2, false),
            "unsigned int" | "u32" | "__u32" => (4, false),
            "int" | "pid_t" => (4, true),
            "unsigned long" | "u64" | "__u64" | "void *" => (8, false),
            "long" | "s64" => (8, true),
            _ => return None,
        };
        Some(Integer { size, signed })
    }
}

/// An integer type of C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Integer {
    /// In bytes: 1, 2, 4 or 8. The alignment is the same.
    pub(crate) size: u8,
    pub(crate) signed: bool,
}

impl Integer {
    /// A printed value as a register holds it, sign extended; `None` where the type cannot hold it.
    /// Kernels print signed fields with unsigned conversions too (`s64 expires` with `%llu`).
    pub(crate) fn value(self, printed: i128) -> Option<u64> {
        let bits = u32::from(self.size) * 8;
        let min = if self.signed {
            -(1_i128 << (bits - 1))
        } else {
            0
        };
        let max = (1_i128 << bits) - 1;
        (min..=max).contains(&printed).then_some(printed as u64)
    }
}

impl Tracepoint {
    /// The place of the field with the value of this name.
    pub(crate) fn place_of(&self, value: &str) -> Option<usize> {
        let has_value =
            |field: &Field| matches!(field.role, Role::Value { name, .. } if name == value);
        self.fields.iter().position(has_value)
    }

    /// Whether its events are read for the names of tasks alone, and never written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.point == Point::TaskRename
    }
}

/// A record's fields as numbers, in the order of the row: a task's name is the task's id here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) point: Point,
    pub(crate) fields: [u64; MAX_FIELDS],
}

macro_rules! role {
    ([] [] []) => {
        Role::Unread
    };
    ([$field:ident] [] []) => {
        Role::Value {
            name: stringify!($field),
            required: true,
        }
    };
    ([$field:ident] [$absent:ident] []) => {
        Role::Value {
            name: stringify!($field),
            required: false,
        }
    };
    ([] [] [$task:ident]) => {
        Role::Comm {
            task: stringify!($task),
        }
    };
}

macro_rules! option {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// The fields of a layout as data.
macro_rules! fields {
    ({ $( $( $field:ident : $type:ty = )? $c:literal $(formerly $was:literal)? $(or $absent:ident)?
          $(of $task:ident)? ),* $(,)? }) => {
        &[ $( Field {
            declaration: $c,
            former: option!($($was)?),
            role: role!([$($field)?] [$($absent)?] [$($task)?]),
        } ),* ]
    };
}

/// Reads the values of a layout, in the order of the row. Makes a variant with these fields, or a call
/// with these arguments.
macro_rules! read_layout {
    ($source:ident, [$($make:ident)+], { $( $( $field:ident : $type:ty = )? $c:literal
          $(formerly $was:literal)? $(or $absent:ident)? $(of $task:ident)? ),* $(,)? }) => {{
        let mut _places = 0;
        $(
            let _place = _places;
            _places += 1;
            $( let $field: $type = Value::read($source, _place); )?
        )*
        make!([$($make)+] $($($field)?)*)
    }};
}

macro_rules! make {
    ([$kind:ident] $($field:ident)*) => {
        Kind::$kind { $($field),* }
    };
    ([$module:ident $function:ident] $($field:ident)*) => {
        $module::$function($($field),*)
    };
}

/// The fields of a layout from the values of a variant.
macro_rules! write_layout {
    ($function:ident, $point:ident, { $( $( $field:ident : $type:ty = )? $c:literal
          $(formerly $was:literal)? $(or $absent:ident)? $(of $task:ident)? ),* $(,)? }) => {
        values(Point::$point, [ $( number!($function $($field)? $($task)?) ),* ])
    };
}

/// The pattern of a variant with all its fields.
macro_rules! variant {
    ($kind:ident, { $( $( $field:ident : $type:ty = )? $c:literal
          $(formerly $was:literal)? $(or $absent:ident)? $(of $task:ident)? ),* $(,)? }) => {
        Kind::$kind { $($($field,)?)* }
    };
}

macro_rules! number {
    ($function:ident) => {
        0
    };
    ($function:ident $value:ident) => {
        $value.number($function)
    };
}

/// Makes [`Point`], [`TABLE`], [`read`] and [`write`] of the rows.
macro_rules! points {
    ($(
        $(#[$doc:meta])*
        $( $kind:ident = $system:ident $name:ident $(formerly $former:ident)? { $($record:tt)* }
           $print:literal )?
        $( [$module:ident] $made:ident { $($made_field:ident : $made_type:ty),* $(,)? }
           $( $layout:ident $point:ident = $made_system:ident $made_name:ident { $($made_record:tt)* }
              $made_print:literal )+
        )?
        ;
    )*) => {
        /// The layout of a tracepoint's records: of most there is one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Point {
            $( $($kind,)? $($($point,)+)? )*
            /// `irq_vectors:NAME_entry`.
            VectorEntry(HostVector),
            /// `irq_vectors:NAME_exit`.
            VectorExit(HostVector),
            /// `task_rename`.
            TaskRename,
        }

        /// Those of the table by number.
        #[repr(u16)]
        enum Row {
            $( $($kind,)? $($($point,)+)? )*
            /// Here those of host vectors begin: entry and exit of each.
            Vectors,
        }

        impl Point {
            /// Its place in [`all`].
            pub(crate) const fn number(self) -> u16 {
                match self {
                    $( $(Self::$kind => Row::$kind as u16,)? $($(Self::$point => Row::$point as u16,)+)? )*
                    Self::VectorEntry(class) => Row::Vectors as u16 + class as u16 * 2,
                    Self::VectorExit(class) => Row::Vectors as u16 + class as u16 * 2 + 1,
                    Self::TaskRename => Row::Vectors as u16 + HostVector::ALL.len() as u16 * 2,
                }
            }
        }

        /// The rows.
        const TABLE: &[Tracepoint] = &[ $(
            $( Tracepoint {
                point: Point::$kind,
                system: stringify!($system),
                name: stringify!($name),
                former: option!($(stringify!($former))?),
                fields: fields!({ $($record)* }),
                print: $print,
            }, )?
            $( $( Tracepoint {
                point: Point::$point,
                system: stringify!($made_system),
                name: stringify!($made_name),
                former: None,
                fields: fields!({ $($made_record)* }),
                print: $made_print,
            }, )+ )?
        )* ];

        /// Makes the kind of the fields of a layout, in its place. `false` for one that is read for its task
        /// alone.
        #[inline]
        pub(crate) fn read(point: Point, source: &mut impl Fields, kind: &mut Kind) -> bool {
            *kind = match point {
                $(
                    $( Point::$kind => read_layout!(source, [$kind], { $($record)* }), )?
                    $( $( Point::$point =>
                        read_layout!(source, [$module $layout], { $($made_record)* }), )+ )?
                )*
                Point::VectorEntry(class) => Kind::VectorEntry { class, vector: Value::read(source, 0) },
                Point::VectorExit(class) => Kind::VectorExit { class, vector: Value::read(source, 0) },
                Point::TaskRename => return false,
            };
            true
        }

        /// The fields that are written for a kind; `None` for those that are no tracepoint. `function`
        /// gives the address that stands for a function's name.
        #[inline]
        pub(crate) fn write(kind: Kind, function: &mut dyn FnMut(NameId) -> u64) -> Option<Values> {
            Some(match kind {
                $(
                    $( variant!($kind, { $($record)* }) => write_layout!(function, $kind, { $($record)* }), )?
                    $( Kind::$made { $($made_field),* } => $module::write($($made_field),*).into(), )?
                )*
                Kind::VectorEntry { class, vector } => values(Point::VectorEntry(class), [vector.into()]),
                Kind::VectorExit { class, vector } => values(Point::VectorExit(class), [vector.into()]),
                _ => return None,
            })
        }
    };
}

stealtime_events::for_each_tracepoint!(points);

/// All tracepoints, by number.
pub(crate) fn all() -> impl Iterator<Item = Tracepoint> {
    let vectors = HostVector::ALL.into_iter().flat_map(|class| {
        let (_, entry, exit) = class.names();
        [
            (Point::VectorEntry(class), entry),
            (Point::VectorExit(class), exit),
        ]
    });
    let vectors = vectors.map(|(point, name)| Tracepoint {
        point,
        system: "irq_vectors",
        name,
        former: None,
        fields: fields!({ vector: u8 = "int vector" }),
        print: r#""vector=%d", REC->vector"#,
    });
    let task_rename = Tracepoint {
        point: Point::TaskRename,
        system: "task",
        name: "task_rename",
        former: None,
        // Without `pid` from 6.15 on: a task renames itself.
        fields: fields!({
            pid: u64 = "pid_t pid" or absent,
            "char newcomm[16]" of pid,
        }),
        print: "",
    };
    TABLE.iter().copied().chain(vectors).chain([task_rename])
}

/// The tracepoints with another name in older kernels: the present name, and the older one.
pub(crate) fn renamed() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.iter().filter_map(|row| Some((row.name, row.former?)))
}

/// The name of a tracepoint of the table. Code that knows an event by name takes it from here, so that a
/// misspelled name does not compile.
pub(crate) fn name(point: Point) -> &'static str {
    let row = TABLE.get(usize::from(point.number()));
    row.map_or("", |row| row.name)
}

impl From<exit::Record> for Values {
    #[inline]
    fn from(record: exit::Record) -> Self {
        match record {
            exit::Record::X86(fields) => values(Point::KvmExit, fields),
            exit::Record::Arm64(fields) => values(Point::KvmExitArm64, fields),
            exit::Record::Riscv(fields) => values(Point::KvmExitRiscv, fields),
        }
    }
}

fn values<const N: usize>(point: Point, fields: [u64; N]) -> Values {
    const {
        assert!(
            N <= MAX_FIELDS,
            "a row with more fields than a plan has room for"
        )
    };
    let mut numbers = [0; MAX_FIELDS];
    for (number, field) in numbers.iter_mut().zip(fields) {
        *number = field;
    }
    Values {
        point,
        fields: numbers,
    }
}

#[cfg(test)]
mod tests;
