//! A table by tid.

/// Tids of one leaf.
const LEAF: usize = 256;
/// `PID_MAX_LIMIT` of 64-bit kernels: every tid is smaller.
const MAX_TIDS: usize = 1 << 22;

/// Values by tid: a radix table of two levels, so that a look-up costs two loads. The largest possible
/// tid bounds its memory.
#[derive(Debug)]
pub(crate) struct TidTable<T> {
    leaves: Vec<Option<Box<[T; LEAF]>>>,
}

impl<T> Default for TidTable<T> {
    fn default() -> Self {
        Self { leaves: Vec::new() }
    }
}

impl<T: Copy + Default> TidTable<T> {
    /// The value of a tid; `None` where its leaf has no entry yet.
    #[inline]
    pub(crate) fn get(&self, tid: i32) -> Option<&T> {
        let tid = usize::try_from(tid).ok()?;
        self.leaves.get(tid / LEAF)?.as_ref()?.get(tid % LEAF)
    }

    /// The same, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, tid: i32) -> Option<&mut T> {
        let tid = usize::try_from(tid).ok()?;
        self.leaves
            .get_mut(tid / LEAF)?
            .as_mut()?
            .get_mut(tid % LEAF)
    }

    /// The value of a tid, made if need be; `None` for a tid that no task but an idle one has.
    pub(crate) fn entry(&mut self, tid: i32) -> Option<&mut T> {
        let index = usize::try_from(tid)
            .ok()
            .filter(|index| (1..MAX_TIDS).contains(index))?;
        if self.leaves.len() <= index / LEAF {
            self.leaves.resize_with(index / LEAF + 1, || None);
        }
        let leaf = self
            .leaves
            .get_mut(index / LEAF)?
            .get_or_insert_with(|| Box::new([T::default(); LEAF]));
        leaf.get_mut(index % LEAF)
    }
}
