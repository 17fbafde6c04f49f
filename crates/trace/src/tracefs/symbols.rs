//! The kernel's list of symbols, as a recording carries it.

use std::fmt;
use std::io;
use std::ops::Range;

use crate::ReadAt;
use crate::input::fill_at;

/// Bytes that hold a line: a name has up to 512 (`KSYM_NAME_LEN`).
const LINE: usize = 4 << 10;
/// Bytes of a search that are read at once. They stay in the second-level cache.
const STEP: usize = 256 << 10;
/// Bytes that a read counts at least: the time of a system call.
const CALL: usize = 16 << 10;
/// Bytes that are read in all. The functions of modules need a search through up to all of the text, and a
/// hostile file has a new address in every record. Enough for some 800 functions.
const MAX_READ: u64 = 8 << 30;

/// The text of `/proc/kallsyms` as a file carries it.
///
/// It may have 10 MiB and 200,000 lines of which a trace needs some ten. So it stays in the file, and each
/// look-up reads what it needs. The kernel's own symbols ascend by address (`scripts/kallsyms.c`), those of
/// modules follow in no order.
pub struct Symbols {
    text: Box<dyn ReadAt>,
    /// The positions of the text in `text`.
    whole: Range<u64>,
    /// Where the first module's line starts, once it is known.
    modules: Option<u64>,
    block: Vec<u8>,
    /// Bytes read so far, by [`CALL`] at least.
    read: u64,
}

impl Default for Symbols {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl fmt::Debug for Symbols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Symbols")
            .field("whole", &self.whole)
            .finish_non_exhaustive()
    }
}

impl Symbols {
    /// `text` has lines `ADDRESS TYPE NAME` and perhaps a tab and `[MODULE]`.
    #[must_use]
    pub fn new(text: Vec<u8>) -> Self {
        let whole = 0..text.len() as u64;
        Self::at(Box::new(text), whole)
    }

    /// The text lies at these positions of an input.
    #[must_use]
    pub fn at(text: Box<dyn ReadAt>, whole: Range<u64>) -> Self {
        Self {
            text,
            whole,
            modules: None,
            block: Vec::new(),
            read: 0,
        }
    }

    /// The position of the text in its input, in bytes.
    pub(super) const fn start(&self) -> u64 {
        self.whole.start
    }

    /// The name of the function that starts at an address; of several the first listed.
    ///
    /// # Errors
    /// The text cannot be read, or has become shorter.
    ///
    /// ```
    /// let mut symbols = stealtime_trace::tracefs::Symbols::new(
    ///     b"ffffffff81000010 T start\nffffffffc0000100 t apic_timer_fn\t[kvm]\n".to_vec(),
    /// );
    /// assert_eq!(symbols.name(0xffff_ffff_c000_0100)?, Some(&b"apic_timer_fn"[..]));
    /// assert_eq!(symbols.name(0x100)?, None);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn name(&mut self, address: u64) -> io::Result<Option<&[u8]>> {
        // Without the right to see addresses, kallsyms has 0 for all.
        if address == 0 || self.read > MAX_READ {
            return Ok(None);
        }
        // Kernels pad to the width of a pointer: 16 digits, or 8.
        let wide = format!("{address:016x} ");
        let narrow = u32::try_from(address).map(|address| format!("{address:08x} "));
        for start in std::iter::once(wide).chain(narrow) {
            if let Some(position) = self.find(address, start.as_bytes())? {
                return self.name_at(position + start.len() as u64);
            }
        }
        Ok(None)
    }

    /// The position of the first line that starts so. `address` is what the line starts with.
    fn find(&mut self, address: u64, start: &[u8]) -> io::Result<Option<u64>> {
        let whole = self.whole.clone();
        let modules = match self.modules {
            Some(modules) => modules,
            None => self.first_line(whole.clone(), |line| line.contains(&b'['))?,
        };
        self.modules = Some(modules);
        let kernel = whole.start..modules;
        let nearest = self.first_line(kernel.clone(), |line| address_of(line) >= address)?;
        if self.line(nearest)?.starts_with(start) {
            return Ok(Some(nearest));
        }
        // A list in another order than the kernel's is searched too.
        match self.search(modules..whole.end, start)? {
            Some(position) => Ok(Some(position)),
            None => self.search(kernel, start),
        }
    }

    /// The name behind an address: one letter, a space, the name.
    fn name_at(&mut self, position: u64) -> io::Result<Option<&[u8]>> {
        let name = self.line(position)?.get(2..).unwrap_or_default();
        let end = memchr::memchr2(b'\t', b' ', name).unwrap_or(name.len());
        Ok(name.get(..end).filter(|name| !name.is_empty()))
    }

    /// The bytes at a position, up to `limit` and the end of the text.
    fn read(&mut self, position: u64, limit: usize) -> io::Result<&[u8]> {
        let rest = self.whole.end.saturating_sub(position);
        let wanted = usize::try_from(rest).map_or(limit, |rest| rest.min(limit));
        if self.block.len() < wanted {
            self.block.resize(wanted, 0);
        }
        let block = self.block.get_mut(..wanted).unwrap_or_default();
        if fill_at(&mut *self.text, block, position)? < wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read += wanted.max(CALL) as u64;
        Ok(block)
    }

    /// The rest of a line.
    fn line(&mut self, position: u64) -> io::Result<&[u8]> {
        let block = self.read(position, LINE)?;
        Ok(first_of(block).0)
    }

    /// The first of the lines in `range` for which `is_behind` holds, or else the end. It has to hold for all
    /// lines behind such a one.
    fn first_line(
        &mut self,
        range: Range<u64>,
        is_behind: impl Fn(&[u8]) -> bool,
    ) -> io::Result<u64> {
        let Range { mut start, mut end } = range;
        // The first such line of those that start at `end` or behind it.
        let mut found = end;
        while end.saturating_sub(start) > LINE as u64 {
            let middle = start + (end - start) / 2;
            let block = self.read(middle, LINE)?;
            let (cut, rest) = first_of(block);
            let (line, next) = first_of(rest);
            let position = middle + cut.len() as u64 + 1;
            if rest.is_empty() || position >= end || is_behind(line) {
                if position < end && !rest.is_empty() {
                    found = position;
                }
                // A line that starts at the middle is not looked at yet.
                end = middle + 1;
            } else {
                start = if next.is_empty() {
                    position
                } else {
                    position + line.len() as u64 + 1
                };
            }
        }
        let block = self.read(start, end.saturating_sub(start) as usize + LINE)?;
        let mut rest = block;
        let mut position = start;
        while position < end && !rest.is_empty() {
            let (line, next) = first_of(rest);
            if is_behind(line) {
                return Ok(position);
            }
            position += line.len() as u64 + 1;
            rest = next;
        }
        Ok(found)
    }

    /// The position of the first line in `range` that starts so.
    fn search(&mut self, range: Range<u64>, start: &[u8]) -> io::Result<Option<u64>> {
        let finder = memchr::memmem::Finder::new(start);
        let mut position = range.start;
        while position < range.end {
            // A line that begins where a step ends is found whole, with the newline before it.
            let block = self.read(position, STEP + start.len() + 1)?;
            let starts_line = |found: &usize| match found.checked_sub(1) {
                Some(previous) => block.get(previous) == Some(&b'\n'),
                None => position == range.start,
            };
            if let Some(found) = finder.find_iter(block).find(starts_line) {
                let found = position + found as u64;
                return Ok((found < range.end).then_some(found));
            }
            position += STEP as u64;
        }
        Ok(None)
    }
}

/// The first line, without its newline, and all behind it.
fn first_of(text: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr::memchr(b'\n', text).unwrap_or(text.len());
    let (line, rest) = text.split_at_checked(end).unwrap_or((text, &[]));
    (line, rest.get(1..).unwrap_or_default())
}

/// The address that a line starts with; 0 without one.
fn address_of(line: &[u8]) -> u64 {
    let end = memchr::memchr(b' ', line).unwrap_or(line.len());
    let digits = line
        .get(..end)
        .and_then(|digits| std::str::from_utf8(digits).ok());
    digits
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_found_in_both_widths_at_starts_of_lines() {
        let text =
            b"0000000000000010 A percpu\n00000000ff000010 D not_at_start_ffffffff81000020 T no\n\
            ffffffff81000020 T tick_nohz_handler\nffffffff81000020 T alias\nc0de0000 t arm32\n";
        let mut symbols = Symbols::new(text.to_vec());
        let mut name = |address| {
            let name = symbols.name(address).expect("memory");
            name.map(|name| String::from_utf8_lossy(name).into_owned())
        };
        assert_eq!(
            name(0xffff_ffff_8100_0020).as_deref(),
            Some("tick_nohz_handler")
        );
        assert_eq!(name(0xc0de_0000).as_deref(), Some("arm32"));
        assert_eq!(name(0xffff_ffff_8100_0021), None);
        assert_eq!(name(0), None);
    }

    /// Counts what is read of a text.
    struct Counting(Vec<u8>, std::sync::Arc<std::sync::atomic::AtomicUsize>);

    impl ReadAt for Counting {
        fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            let count = self.0.read_at(buffer, offset)?;
            self.1
                .fetch_add(count, std::sync::atomic::Ordering::Relaxed);
            Ok(count)
        }
    }

    #[test]
    fn a_look_up_of_the_kernel_reads_a_small_part() {
        let line = |at: u64| format!("{:016x} T function_{at}\n", 0xffff_ffff_8000_0000 + at * 16);
        let text: String = (0..200_000).map(line).collect();
        let read = std::sync::Arc::default();
        let len = text.len() as u64;
        let counting = Counting(text.into_bytes(), std::sync::Arc::clone(&read));
        let mut symbols = Symbols::at(Box::new(counting), 0..len);
        for at in [0, 1, 99_999, 123_456, 199_998, 199_999] {
            let name = symbols
                .name(0xffff_ffff_8000_0000 + at * 16)
                .expect("memory");
            assert_eq!(name, Some(format!("function_{at}").as_bytes()));
        }
        let read = read.load(std::sync::atomic::Ordering::Relaxed);
        assert!(read < 1 << 20, "{read} bytes of {len}");
    }

    #[test]
    fn a_text_that_cannot_be_read_is_an_error() {
        let mut symbols = Symbols::at(Box::new(b"ffffffff81000010 T start\n".to_vec()), 0..100);
        let error = symbols.name(0x10).expect_err("75 bytes are missing");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Next to a plain search of all lines, with long lines and with lists in any order.
        #[test]
        fn names_are_those_of_a_plain_search(
            mut kernel in proptest::collection::vec((1u64..400, 1usize..700), 0..200),
            modules in proptest::collection::vec((1u64..400, 1usize..700), 0..200),
            is_sorted: bool,
            start in 0u64..100,
        ) {
            if is_sorted {
                kernel.sort_unstable();
                kernel.dedup_by_key(|symbol| symbol.0);
            }
            let base = 0xffff_ffff_8000_0000;
            let mut text = "x".repeat(start as usize);
            let mut expected = std::collections::BTreeMap::new();
            for (number, (address, len)) in kernel.iter().enumerate() {
                let name = format!("k{number}_{}", "n".repeat(*len));
                text += &format!("{:016x} T {name}\n", base + address);
                expected.entry(*address).or_insert_with(Vec::new).push(name);
            }
            for (number, (address, len)) in modules.iter().enumerate() {
                let name = format!("m{number}_{}", "n".repeat(*len));
                text += &format!("{:016x} t {name}\t[kvm]\n", base + address);
                expected.entry(*address).or_insert_with(Vec::new).push(name);
            }
            let end = text.len() as u64;
            let mut symbols = Symbols::at(Box::new(text.into_bytes()), start..end);
            for address in 1..400 {
                let name = symbols.name(base + address).expect("memory");
                let name = name.map(|name| String::from_utf8_lossy(name).into_owned());
                let listed = expected.get(&address);
                match &name {
                    Some(name) if is_sorted => prop_assert_eq!(Some(name), listed.and_then(|names| names.first())),
                    Some(name) => prop_assert!(listed.is_some_and(|names| names.contains(name)), "{name}"),
                    None => prop_assert_eq!(listed, None),
                }
            }
        }
    }
}
