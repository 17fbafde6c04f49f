//! What can happen: one variant a tracepoint, made from the [table](crate::for_each_tracepoint).

use crate::field::{Field, FieldType, FieldValue};
use crate::{ExitReason, HostVector, NameId, Tid, VcpuId};

/// Makes [`Kind`] and the numbers and names of its tracepoints.
macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        // A row with the fields of its record.
        $( $kind:ident = $system:ident $name:ident $(formerly $former:ident)? {
            $( $( $field:ident : $type:ty = )? $c:literal $(formerly $was:literal)? $(or $absent:ident)?
               $(of $task:ident)? ),* $(,)?
        } $print:literal )?
        // A row that is made by hand from one or several layouts.
        $( [$module:ident] $made:ident { $($made_field:ident : $made_type:ty),* $(,)? }
           $( $layout:ident $point:ident = $made_system:ident $made_name:ident $record:tt
              $made_print:literal )+
        )?
        ;
    )*) => {
        /// The kind of an event. Variants and fields have the names of the tracepoints and their
        /// fields. Fields that no analysis reads are left out.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "fields bear the names of the tracepoints' own fields")]
        pub enum Kind {
            // What the source itself says (not counted as events of the host).
            /// A task has this name, and belongs to this process (0: not known), from here on.
            Task { tid: Tid, process: Tid, name: NameId },
            /// The recording says that this thread runs this vCPU of the guest with this name.
            VcpuThread { tid: Tid, vm: NameId, vcpu: VcpuId },
            /// Events of this CPU were lost before this point; 0: it is not known how many.
            Lost { count: u64 },
            /// An event known by its name alone, or with fields that cannot be read.
            Other { name: NameId },
            /// `irq_vectors:NAME_entry`.
            VectorEntry { class: HostVector, vector: u8 },
            /// `irq_vectors:NAME_exit`.
            VectorExit { class: HostVector, vector: u8 },
            $(
                $(#[$doc])*
                $( $kind { $($( $field: $type, )?)* }, )?
                $( $made { $($made_field: $made_type,)* }, )?
            )*
        }

        /// The rows of the table by number.
        #[repr(usize)]
        enum Row {
            $( $($kind,)? $($made,)? )*
            /// Here the tracepoints of host vectors begin: entry and exit of each class.
            Vectors,
        }

        impl Kind {
            /// How many tracepoints there are, those of each host vector included.
            pub const TRACEPOINTS: usize = Row::Vectors as usize + 2 * HostVector::ALL.len();

            /// The tracepoint's number, below [`Self::TRACEPOINTS`]: an index for tables of all of
            /// them. `None` where the source keeps the name ([`Kind::Other`]) or nothing happened on
            /// the host (names and losses).
            #[must_use]
            #[inline]
            pub const fn number(self) -> Option<usize> {
                Some(match self {
                    Self::Task { .. } | Self::VcpuThread { .. } | Self::Lost { .. } | Self::Other { .. } => return None,
                    Self::VectorEntry { class, .. } => Row::Vectors as usize + 2 * class as usize,
                    Self::VectorExit { class, .. } => Row::Vectors as usize + 2 * class as usize + 1,
                    $(
                        $( Self::$kind { .. } => Row::$kind as usize, )?
                        $( Self::$made { .. } => Row::$made as usize, )?
                    )*
                })
            }

            /// The name of the tracepoint with this number, empty for a number that none has.
            #[must_use]
            pub const fn name_of(number: usize) -> &'static str {
                const NAMES: &[&str] = &[
                    $( $( stringify!($name), )? $( first!($($made_name)+), )? )*
                ];
                if number < NAMES.len() {
                    return NAMES[number];
                }
                let vector = number - NAMES.len();
                if vector / 2 >= HostVector::ALL.len() {
                    return "";
                }
                let (_, entry, exit) = HostVector::ALL[vector / 2].names();
                if vector.is_multiple_of(2) { entry } else { exit }
            }

            /// Names and types of the fields of the tracepoint with this number, in their order; none for a
            /// number that no tracepoint has.
            #[must_use]
            pub const fn fields_of(number: usize) -> &'static [(&'static str, FieldType)] {
                const FIELDS: &[&[(&str, FieldType)]] = &[
                    $(
                        $( row!($kind: $($( (stringify!($field), <$type as Field>::TYPE), )?)*), )?
                        $( &[$( (stringify!($made_field), <$made_type as Field>::TYPE), )*], )?
                    )*
                ];
                const VECTOR: &[(&str, FieldType)] = &[("vector", FieldType::Integer)];
                if number < FIELDS.len() {
                    FIELDS[number]
                } else if number < Self::TRACEPOINTS {
                    VECTOR
                } else {
                    &[]
                }
            }

            /// Gives the value of each field of [`Self::fields_of`] to `take`, in their order.
            #[inline]
            pub fn fields(self, mut take: impl FnMut(FieldValue)) {
                match self {
                    Self::Task { .. } | Self::VcpuThread { .. } | Self::Lost { .. } | Self::Other { .. } => {}
                    Self::VectorEntry { vector, .. } | Self::VectorExit { vector, .. } => take(vector.value()),
                    $(
                        $( Self::$kind { $($( $field, )?)* } => { $($( take($field.value()); )?)* } )?
                        $( Self::$made { $($made_field,)* } => { $( take($made_field.value()); )* } )?
                    )*
                }
            }
        }
    };
}

/// The name of a row with several layouts: they all have the same.
macro_rules! first {
    ($first:ident $($rest:ident)*) => {
        stringify!($first)
    };
}

/// The fields of a row. It takes the name of the row, because a repetition of the table needs a part of the
/// row in it.
macro_rules! row {
    ($kind:ident: $($field:tt)*) => {
        &[$($field)*]
    };
}

crate::for_each_tracepoint!(kinds);

impl Kind {
    /// The tracepoint's name, or `None` where the source keeps it ([`Kind::Other`]) or nothing
    /// happened on the host (names and losses).
    #[must_use]
    pub const fn tracepoint(self) -> Option<&'static str> {
        match self.number() {
            Some(number) => Some(Self::name_of(number)),
            None => None,
        }
    }

    /// Whether this is something that happened on the host, and so counts as an event of the trace
    /// (names of tasks and losses do not).
    #[must_use]
    pub const fn is_host_event(self) -> bool {
        !matches!(
            self,
            Self::Task { .. } | Self::VcpuThread { .. } | Self::Lost { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_name() {
        let names: [&str; Kind::TRACEPOINTS] = core::array::from_fn(Kind::name_of);
        for (number, name) in names.iter().enumerate() {
            assert!(
                !name.is_empty() && !names[..number].contains(name),
                "{number} {name}"
            );
        }
        assert_eq!(Kind::name_of(Kind::TRACEPOINTS), "");
    }

    #[test]
    fn a_kind_gives_the_fields_of_its_number() {
        let exit = Kind::KvmExit {
            reason: ExitReason::vmx(1),
            vcpu: VcpuId(3),
            intr_vector: None,
            info1: u64::MAX,
        };
        let number = exit.number().expect("a tracepoint");
        let mut names = Kind::fields_of(number).iter().map(|field| field.0);
        let mut expected = [
            ("reason", FieldValue::Exit(ExitReason::vmx(1))),
            ("vcpu", FieldValue::Integer(3)),
            ("intr_vector", FieldValue::Missing),
            ("info1", FieldValue::Wide(u64::MAX)),
        ]
        .into_iter();
        exit.fields(|value| {
            let name = names.next().expect("a name for each value");
            assert_eq!(Some((name, value)), expected.next());
        });
        assert_eq!((names.next(), expected.next()), (None, None));
        let timer = Kind::HrtimerCancel { hrtimer: 7 };
        let number = timer.number().expect("a tracepoint");
        assert_eq!(Kind::fields_of(number), [("hrtimer", FieldType::Wide)]);
        assert!(Kind::fields_of(Kind::TRACEPOINTS).is_empty());
        let vector = Kind::fields_of(Kind::TRACEPOINTS - 1);
        assert_eq!(vector, [("vector", FieldType::Integer)]);
    }

    #[test]
    fn a_kind_leads_to_its_name() {
        let exit = Kind::KvmExit {
            reason: ExitReason::vmx(1),
            vcpu: VcpuId(0),
            intr_vector: None,
            info1: 0,
        };
        assert_eq!(exit.tracepoint(), Some("kvm_exit"));
        let last = Kind::VectorExit {
            class: HostVector::DeferredErrorApic,
            vector: 0,
        };
        assert_eq!(last.number(), Some(Kind::TRACEPOINTS - 1));
        assert_eq!(last.tracepoint(), Some("deferred_error_apic_exit"));
        assert_eq!(Kind::Lost { count: 1 }.tracepoint(), None);
    }
}
