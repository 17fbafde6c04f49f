//! A fuzzer's bytes, read as choices.

/// Values at the edges of a field.
const EDGES: [u64; 12] = [
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    i64::MAX.cast_unsigned(),
    u32::MAX as u64,
    i32::MAX as u64,
    1 << 31,
    1 << 30,
    1 << 27,
    (1 << 27) - 1,
    1 << 59,
    (1 << 59) - 1,
];

/// The rest of an input. Bytes that are missing are zeros, so that each input means something.
pub struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    /// The choices of a whole input.
    #[must_use]
    pub const fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// Whether all bytes are used up.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `len` bytes, or those that are left.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn word<const N: usize>(&mut self) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(N);
        if let Some(target) = word.get_mut(..bytes.len()) {
            target.copy_from_slice(bytes);
        }
        u64::from_le_bytes(word)
    }

    /// A number below `end`, which is at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    /// Whether an event of one in `count` happens. A missing byte says no.
    pub fn one_in(&mut self, count: u8) -> bool {
        self.byte() % count == count - 1
    }

    /// Any number, mostly a small one: its size costs one byte.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ ..192 => small.into(),
            192..208 => self.word::<1>() << 8,
            208..224 => self.word::<2>(),
            224..236 => self.word::<4>(),
            236..244 => self.word::<8>(),
            edge => EDGES.get(usize::from(edge - 244)).copied().unwrap_or(0),
        }
    }

    /// One of several values.
    ///
    /// # Panics
    /// The list is empty.
    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}
