//! Times that may be none, in the room of a time.

/// A time of the run in ns, or none: half of what an `Option` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At(u64);

impl At {
    /// No time.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// A time; the last one of all, after 584 years, is none.
    #[inline]
    pub(crate) const fn ns(ns: u64) -> Self {
        Self(ns)
    }

    #[inline]
    pub(crate) fn get(self) -> Option<u64> {
        (self != Self::NEVER).then_some(self.0)
    }

    /// The time, or the last one of all instead of none.
    #[inline]
    pub(crate) const fn or_last(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self != Self::NEVER
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<u64> {
        core::mem::take(self).get()
    }

    /// The earlier of both, as if none were after all.
    #[inline]
    pub(crate) fn earlier(self, ns: u64) -> Self {
        Self(self.0.min(ns))
    }
}

impl Default for At {
    fn default() -> Self {
        Self::NEVER
    }
}

impl From<Option<u64>> for At {
    fn from(time: Option<u64>) -> Self {
        time.map_or(Self::NEVER, Self)
    }
}
