//! Addresses of kernel functions to their names.

use std::collections::HashMap;

use stealtime_events::NameId;

use crate::NameTable;

/// The text of `/proc/kallsyms` as a file carries it.
///
/// It may have 10 MiB and 200,000 lines of which a trace needs some ten: it is searched, not indexed.
#[derive(Debug, Default, Clone)]
pub struct Symbols {
    text: Vec<u8>,
}

impl Symbols {
    /// `text` has lines `ADDRESS TYPE NAME` and perhaps a tab and `[MODULE]`.
    #[must_use]
    pub fn new(text: Vec<u8>) -> Self {
        Self { text }
    }

    /// The name of the function that starts at an address; of several the first listed.
    ///
    /// ```
    /// let symbols = stealtime_trace::tracefs::Symbols::new(
    ///     b"ffffffff81000010 T start\nffffffffc0000100 t apic_timer_fn\t[kvm]\n".to_vec(),
    /// );
    /// assert_eq!(symbols.name(0xffff_ffff_c000_0100), Some(&b"apic_timer_fn"[..]));
    /// assert_eq!(symbols.name(0x100), None);
    /// ```
    #[must_use]
    pub fn name(&self, address: u64) -> Option<&[u8]> {
        if address == 0 {
            // Without the right to see addresses, kallsyms has 0 for all.
            return None;
        }
        // Kernels pad to the width of a pointer: 16 digits, or 8.
        let wide = self.starting(format!("{address:016x} ").as_bytes());
        let narrow = || u32::try_from(address).ok();
        wide.or_else(|| self.starting(format!("{:08x} ", narrow()?).as_bytes()))
    }

    fn starting(&self, needle: &[u8]) -> Option<&[u8]> {
        let finder = memchr::memmem::Finder::new(needle);
        let starts_line = |position: &usize| {
            let previous = position.checked_sub(1).and_then(|end| self.text.get(end));
            previous.is_none_or(|byte| *byte == b'\n')
        };
        let found = finder.find_iter(&self.text).find(starts_line)?;
        let line = self.text.get(found + needle.len()..)?;
        let line = line.get(..memchr::memchr(b'\n', line).unwrap_or(line.len()))?;
        // Behind the address: one letter, a space, the name.
        let name = line.get(2..)?;
        let end = memchr::memchr2(b'\t', b' ', name).unwrap_or(name.len());
        name.get(..end).filter(|name| !name.is_empty())
    }
}

/// Bytes of text that are searched in all. Each address costs a search of the whole text, and a hostile
/// file has a new one in every record. Enough for some 800 functions.
const MAX_SEARCHED: u64 = 8 << 30;
/// Entries of the direct-mapped cache in front of the map: more than the timer functions of a host.
const RECENT: usize = 64;

/// Addresses to names, each searched once.
pub(super) struct Functions {
    symbols: Symbols,
    known: HashMap<u64, NameId>,
    searched: u64,
    recent: [(u64, NameId); RECENT],
}

impl Functions {
    pub(super) fn new(symbols: Symbols) -> Self {
        Self {
            symbols,
            known: HashMap::new(),
            searched: 0,
            // Address 0 belongs to no function, and its name is the empty one.
            recent: [(0, NameId::NONE); RECENT],
        }
    }

    /// The function's name, or its address as `0x<hex>` where no symbol is known; [`NameId::NONE`] for 0.
    #[inline]
    pub(super) fn name(&mut self, address: u64, names: &mut NameTable) -> NameId {
        let place = (address >> 4) as usize % RECENT;
        match self.recent.get(place) {
            Some((known, name)) if *known == address => *name,
            _ => self.look_up(address, names),
        }
    }

    #[cold]
    fn look_up(&mut self, address: u64, names: &mut NameTable) -> NameId {
        let name = if address == 0 {
            NameId::NONE
        } else if let Some(name) = self.known.get(&address) {
            *name
        } else {
            let symbol = if self.searched < MAX_SEARCHED {
                self.searched += self.symbols.text.len() as u64;
                self.symbols.name(address)
            } else {
                None
            };
            let name = match symbol {
                Some(symbol) => names.intern_bytes(symbol),
                None => names.intern(&format!("0x{address:x}")),
            };
            if self.known.len() < NameTable::MAX {
                self.known.insert(address, name);
            }
            name
        };
        if let Some(entry) = self.recent.get_mut((address >> 4) as usize % RECENT) {
            *entry = (address, name);
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use stealtime_events::Names;

    use super::*;

    #[test]
    fn addresses_become_names_once() {
        let text =
            b"0000000000000010 A percpu\n00000000ff000010 D not_at_start_ffffffff81000020 T no\n\
            ffffffff81000020 T tick_nohz_handler\nffffffff81000020 T alias\nc0de0000 t arm32\n";
        let mut functions = Functions::new(Symbols::new(text.to_vec()));
        let mut names = NameTable::default();
        let mut name = |address| {
            let first = functions.name(address, &mut names);
            assert_eq!(functions.name(address, &mut names), first);
            names.name(first).to_owned()
        };
        assert_eq!(name(0xffff_ffff_8100_0020), "tick_nohz_handler");
        assert_eq!(name(0xc0de_0000), "arm32");
        assert_eq!(name(0xffff_ffff_8100_0021), "0xffffffff81000021");
        assert_eq!(name(0), "");
    }
}
