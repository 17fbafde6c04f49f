//! The fields of an event as values of a few types, for tables and files of events.

use crate::{ExitReason, NameId, Tid, VcpuId};

/// The type of a field's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FieldType {
    /// Below 64 bits, or signed.
    Integer,
    /// 64 bits without a sign.
    Wide,
    /// True or false.
    Switch,
    /// A name.
    Text,
}

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue {
    /// The record does not have it.
    Missing,
    /// Of [`FieldType::Integer`].
    Integer(i64),
    /// Of [`FieldType::Wide`].
    Wide(u64),
    /// Of [`FieldType::Switch`].
    Switch(bool),
    /// A name in the table of the events' source.
    Name(NameId),
    /// A name of [`ExitReason::name`].
    Exit(ExitReason),
}

/// A type of fields in [`Kind`](crate::Kind).
pub(crate) trait Field {
    /// The type of its values.
    const TYPE: FieldType;

    /// The value.
    fn value(self) -> FieldValue;
}

macro_rules! fields {
    ($( $type:ty => $kind:ident, |$value:ident| $made:expr; )*) => {
        $(
            impl Field for $type {
                const TYPE: FieldType = FieldType::$kind;

                #[inline]
                fn value(self) -> FieldValue {
                    let $value = self;
                    $made
                }
            }
        )*
    };
}

fields! {
    u8 => Integer, |value| FieldValue::Integer(i64::from(value));
    u16 => Integer, |value| FieldValue::Integer(i64::from(value));
    u32 => Integer, |value| FieldValue::Integer(i64::from(value));
    i16 => Integer, |value| FieldValue::Integer(i64::from(value));
    i32 => Integer, |value| FieldValue::Integer(i64::from(value));
    i64 => Integer, |value| FieldValue::Integer(value);
    u64 => Wide, |value| FieldValue::Wide(value);
    bool => Switch, |value| FieldValue::Switch(value);
    NameId => Text, |value| FieldValue::Name(value);
    Tid => Integer, |value| FieldValue::Integer(i64::from(value.0));
    VcpuId => Integer, |value| match value {
        VcpuId::UNKNOWN => FieldValue::Missing,
        VcpuId(number) => FieldValue::Integer(i64::from(number)),
    };
    Option<u8> => Integer, |value| match value {
        Some(number) => FieldValue::Integer(i64::from(number)),
        None => FieldValue::Missing,
    };
    ExitReason => Text, |value| FieldValue::Exit(value);
}
