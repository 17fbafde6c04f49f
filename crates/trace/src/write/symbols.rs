//! Functions of the host: an address for each name, and the list of symbols that leads back.

use std::collections::HashMap;

use stealtime_events::{NameId, Names};

/// Address of the first function. It is not canonical (bits 63:47 differ), so that no real function has
/// it.
const FIRST: u64 = 0x8000_0000_0000_0000;
/// Bytes between functions, as compilers align them.
const STEP: u64 = 16;

/// Addresses given out so far.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    known: HashMap<NameId, u64>,
    /// Lines of the list, in the order of the addresses.
    text: String,
    count: u64,
    /// The last look-up.
    last: (NameId, u64),
}

impl Symbols {
    /// The address that stands for a name: that in the name (`0xffffffff81000010`) where the function
    /// itself is not known, 0 for no name.
    #[inline]
    pub(super) fn address(&mut self, id: NameId, names: &dyn Names) -> u64 {
        if self.last.0 != id {
            self.last = (id, self.look_up(id, names));
        }
        self.last.1
    }

    fn look_up(&mut self, id: NameId, names: &dyn Names) -> u64 {
        if let Some(address) = self.known.get(&id) {
            return *address;
        }
        let name = names.name(id);
        let address = if name.is_empty() {
            0
        } else {
            plain(name).unwrap_or_else(|| self.add(name))
        };
        self.known.insert(id, address);
        address
    }

    fn add(&mut self, name: &str) -> u64 {
        let address = FIRST + self.count * STEP;
        self.count += 1;
        // What ends a name in the list, or the list itself, cannot be part of one.
        let name: String = name
            .chars()
            .map(|c| match c {
                c if c.is_whitespace() || c.is_control() => '_',
                c => c,
            })
            .collect();
        self.text.push_str(&format!("{address:016x} T {name}\n"));
        address
    }

    /// The list of symbols, in the form of `/proc/kallsyms`.
    pub(super) fn kallsyms(&self) -> &str {
        &self.text
    }
}

/// The address that a name consists of, if a reader names that address so.
fn plain(name: &str) -> Option<u64> {
    let address = u64::from_str_radix(name.strip_prefix("0x")?, 16).ok()?;
    let canonical = format!("0x{address:x}") == name;
    // Addresses that are given out here, and the one that stands for none, need a name.
    (canonical && address != 0 && address >> 48 != FIRST >> 48).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NameTable;

    #[test]
    fn names_lead_to_addresses_and_back() {
        let mut names = NameTable::default();
        let ids = [
            "apic_timer_fn",
            "0xffffffff81000010",
            "0x8000000000000000",
            "f [kvm]",
            "",
        ];
        let ids = ids.map(|name| names.intern(name));
        let mut symbols = Symbols::default();
        let mut address = |at: usize| symbols.address(ids[at], &names);
        assert_eq!(address(0), FIRST);
        assert_eq!(address(1), 0xffff_ffff_8100_0010);
        assert_eq!(
            address(2),
            FIRST + STEP,
            "an address that another name may get"
        );
        assert_eq!(address(3), FIRST + 2 * STEP);
        assert_eq!(address(4), 0);
        assert_eq!(address(0), FIRST);
        let mut list = crate::tracefs::Symbols::new(symbols.kallsyms().as_bytes().to_vec());
        assert_eq!(
            list.name(FIRST).expect("memory"),
            Some(&b"apic_timer_fn"[..])
        );
        assert_eq!(
            list.name(FIRST + 2 * STEP).expect("memory"),
            Some(&b"f_[kvm]"[..])
        );
    }
}
