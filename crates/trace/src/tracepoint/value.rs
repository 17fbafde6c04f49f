//! Fields of records as values of Rust, and back.

use stealtime_events::{NameId, Tid, VcpuId};

/// The fields of an event: of a record, or of a line of text.
pub(crate) trait Fields {
    /// The number in a field, a signed one with its sign extended; 0 where the field is absent.
    fn number(&self, place: usize) -> u64;

    /// Whether the source has this field.
    fn exists(&self, place: usize) -> bool;

    /// The name of the function at a field's address.
    fn function(&mut self, place: usize) -> NameId;
}

/// A type of a field of [`stealtime_events::Kind`].
pub(crate) trait Value: Sized {
    /// From a field; higher bits of a wider one are cut off.
    fn read(source: &mut impl Fields, place: usize) -> Self;

    /// As a number, a signed one with its sign extended. `function` gives the address of a function.
    fn number(self, function: &mut dyn FnMut(NameId) -> u64) -> u64;
}

macro_rules! integers {
    ($($type:ty)*) => { $(
        impl Value for $type {
            #[inline(always)]
            fn read(source: &mut impl Fields, place: usize) -> Self {
                source.number(place) as Self
            }

            #[inline(always)]
            fn number(self, _: &mut dyn FnMut(NameId) -> u64) -> u64 {
                self as u64
            }
        }
    )* };
}

integers!(u8 u16 u32 u64 i16 i32 i64);

impl Value for bool {
    #[inline(always)]
    fn read(source: &mut impl Fields, place: usize) -> Self {
        source.number(place) != 0
    }

    #[inline(always)]
    fn number(self, _: &mut dyn FnMut(NameId) -> u64) -> u64 {
        self.into()
    }
}

impl Value for Tid {
    #[inline(always)]
    fn read(source: &mut impl Fields, place: usize) -> Self {
        Self(source.number(place) as i32)
    }

    #[inline(always)]
    fn number(self, _: &mut dyn FnMut(NameId) -> u64) -> u64 {
        i64::from(self.0).cast_unsigned()
    }
}

/// [`VcpuId::UNKNOWN`] where the field is absent.
impl Value for VcpuId {
    #[inline(always)]
    fn read(source: &mut impl Fields, place: usize) -> Self {
        match source.exists(place) {
            true => Self(source.number(place) as u32),
            false => Self::UNKNOWN,
        }
    }

    #[inline(always)]
    fn number(self, _: &mut dyn FnMut(NameId) -> u64) -> u64 {
        self.0.into()
    }
}

/// The name of a function. The field holds its address.
impl Value for NameId {
    #[inline(always)]
    fn read(source: &mut impl Fields, place: usize) -> Self {
        source.function(place)
    }

    #[inline(always)]
    fn number(self, function: &mut dyn FnMut(Self) -> u64) -> u64 {
        function(self)
    }
}
