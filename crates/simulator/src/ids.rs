//! Numbers of things, one type for each kind, and tables indexed by them.
//!
//! ```
//! use stealtime_simulator::ids::{CpuNr, Table};
//!
//! let mut table: Table<CpuNr, &str> = Table::default();
//! let cpu = table.add("idle");
//! table[cpu] = "busy";
//! assert_eq!((cpu, table[cpu]), (CpuNr(0), "busy"));
//! ```

use core::marker::PhantomData;
use core::ops::{Index, IndexMut};

/// A number that indexes a [`Table`].
pub trait Number: Copy {
    /// As an index.
    fn index(self) -> usize;
    /// From an index.
    fn from_index(index: usize) -> Self;
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl Number for $name {
            fn index(self) -> usize {
                self.0 as usize
            }
            fn from_index(index: usize) -> Self {
                Self(index as u32)
            }
        }
    )*};
}

numbers! {
    /// A logical CPU of the host.
    CpuNr;
    /// A task of the host.
    TaskNr;
    /// A VM.
    VmNr;
    /// A vCPU, counted through all VMs.
    VcpuNr;
    /// An hrtimer of the host.
    TimerNr;
    /// A thread of a guest, counted within it.
    ThreadNr;
}

/// Adds an item. What is full grows by a sixteenth: doubled tables of a large host would hold as much
/// again in reserve.
pub(crate) fn push<T>(items: &mut Vec<T>, item: T) {
    if items.len() == items.capacity() {
        items.reserve_exact((items.len() / 16).max(4));
    }
    items.push(item);
}

/// A vector indexed by one kind of number, all of which it gave out itself.
#[derive(Clone, Debug)]
pub struct Table<N, T> {
    items: Vec<T>,
    number: PhantomData<N>,
}

impl<N, T> Default for Table<N, T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            number: PhantomData,
        }
    }
}

impl<N: Number, T> Table<N, T> {
    /// Adds an item and gives it a number.
    pub fn add(&mut self, item: T) -> N {
        push(&mut self.items, item);
        N::from_index(self.items.len() - 1)
    }

    /// Makes room for `more` items, and no more.
    pub fn reserve(&mut self, additional: usize) {
        self.items.reserve_exact(additional);
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All numbers, in order.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = N> + use<N, T> {
        (0..self.items.len()).map(N::from_index)
    }

    /// All items, in order.
    pub fn iter(&self) -> core::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// All items, in order.
    pub fn iter_mut(&mut self) -> core::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// The items as they lie.
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }
}

impl<N: Number, T> Index<N> for Table<N, T> {
    type Output = T;

    fn index(&self, number: N) -> &T {
        &self.items[number.index()]
    }
}

impl<N: Number, T> IndexMut<N> for Table<N, T> {
    fn index_mut(&mut self, number: N) -> &mut T {
        &mut self.items[number.index()]
    }
}
