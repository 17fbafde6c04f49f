//! Addresses of kernel functions to their names.

use std::collections::HashMap;
use std::io;

use stealtime_events::NameId;

use super::symbols::Symbols;
use crate::NameTable;

/// Entries of the direct-mapped cache in front of the map: more than the timer functions of a host.
const RECENT: usize = 64;

/// Addresses to names, each searched once.
pub(super) struct Functions {
    symbols: Symbols,
    known: HashMap<u64, NameId>,
    /// Where the list of symbols starts, and why it could not be read.
    failed: Option<(u64, io::Error)>,
    recent: [(u64, NameId); RECENT],
}

impl Functions {
    pub(super) fn new(symbols: Symbols) -> Self {
        Self {
            symbols,
            known: HashMap::new(),
            failed: None,
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

    /// Where the list of symbols starts and why it could not be read, once.
    #[inline]
    pub(super) fn take_failure(&mut self) -> Option<(u64, io::Error)> {
        self.failed.take()
    }

    #[cold]
    fn look_up(&mut self, address: u64, names: &mut NameTable) -> NameId {
        let name = if address == 0 {
            NameId::NONE
        } else if let Some(name) = self.known.get(&address) {
            *name
        } else {
            let start = self.symbols.start();
            let symbol = self.symbols.name(address).unwrap_or_else(|error| {
                self.failed = Some((start, error));
                None
            });
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
        let text = b"ffffffff81000020 T tick_nohz_handler\n";
        let mut functions = Functions::new(Symbols::new(text.to_vec()));
        let mut names = NameTable::default();
        let mut name = |address| {
            let first = functions.name(address, &mut names);
            assert_eq!(functions.name(address, &mut names), first);
            names.name(first).to_owned()
        };
        assert_eq!(name(0xffff_ffff_8100_0020), "tick_nohz_handler");
        assert_eq!(name(0xffff_ffff_8100_0021), "0xffffffff81000021");
        assert_eq!(name(0), "");
    }
}
