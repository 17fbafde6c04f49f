//! The further keys of `perf kvm stat report`: msr, ioport, mmio.

use crate::stats::Durations;
use stealtime_track::IntMap;

/// Most different (thread, register) pairs of one table; the rest is one row, `(others)`. Guests access
/// some dozen registers, damaged files any number.
const MAX_KEYS: usize = 1 << 14;
/// The key of that row, with a direction that no event has.
const OTHERS: Key = Key {
    vcpu: u32::MAX,
    info: u8::MAX,
    number: 0,
};

/// A register or address, as accessed by one vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) vcpu: u32,
    /// Direction: of msr and ioport 1 is a write, of mmio 2.
    pub(crate) info: u8,
    pub(crate) number: u64,
}

/// Direction and number of an access, as its event gives them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    info: u8,
    number: u64,
}

impl Access {
    /// See [`Key`] for the directions.
    pub(crate) const fn new(info: u8, number: u64) -> Self {
        Self { info, number }
    }
}

/// State of a thread, as perf keeps it: the begin of an access in ns, and its key where the begin has it.
#[derive(Debug, Clone, Copy, Default)]
struct Begun {
    time: Option<u64>,
    access: Option<Access>,
}

/// One of the tables.
#[derive(Debug, Default)]
pub(crate) struct KeyTable {
    rows: IntMap<Key, Durations>,
    begun: Vec<Begun>,
}

impl KeyTable {
    fn begun(&mut self, vcpu: u32) -> &mut Begun {
        let index = vcpu as usize;
        if index >= self.begun.len() {
            self.begun.resize(index + 1, Begun::default());
        }
        &mut self.begun[index]
    }

    /// An access begins at `time`, in ns; `access` is `None` where only its end has it.
    pub(crate) fn begin(&mut self, vcpu: u32, time: u64, access: Option<Access>) {
        *self.begun(vcpu) = Begun {
            time: Some(time),
            access,
        };
    }

    /// An access ends at `time`, in ns. As in perf (`handle_end_event`) it counts if its begin was seen
    /// and either end has the key; that of the begin takes precedence. Else the begin stays.
    /// `counts`: whether the end lies in the selection.
    pub(crate) fn end(&mut self, vcpu: u32, time: u64, access: Option<Access>, counts: bool) {
        let begun = *self.begun(vcpu);
        if let (Some(start), Some(access)) = (begun.time, begun.access.or(access)) {
            *self.begun(vcpu) = Begun::default();
            if let Some(ns) = time.checked_sub(start).filter(|_| counts) {
                self.record(vcpu, access, ns);
            }
        }
    }

    fn record(&mut self, vcpu: u32, Access { info, number }: Access, ns: u64) {
        let key = Key { vcpu, info, number };
        let is_known = self.rows.contains_key(&key);
        let key = if is_known || self.rows.len() < MAX_KEYS {
            key
        } else {
            OTHERS
        };
        self.rows.entry(key).or_default().record(ns);
    }

    /// The rows, sorted.
    pub(crate) fn rows(&self) -> Vec<(Key, &Durations)> {
        let mut rows: Vec<_> = self.rows.iter().map(|(key, row)| (*key, row)).collect();
        rows.sort_by_key(|row| row.0);
        rows
    }
}

/// Direction of a write to memory-mapped I/O (`KVM_TRACE_MMIO_WRITE`).
pub(crate) const MMIO_WRITE: u8 = 2;
/// Direction of a read from it (`KVM_TRACE_MMIO_READ`).
pub(crate) const MMIO_READ: u8 = 1;

/// The three tables.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) msr: KeyTable,
    pub(crate) ioport: KeyTable,
    pub(crate) mmio: KeyTable,
}

/// The directions of a table: the number of a write, and perf's marks of a read and a write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks {
    pub(crate) write_info: u8,
    pub(crate) read: &'static str,
    pub(crate) write: &'static str,
}

/// Marks of MSRs.
pub(crate) const MSR_MARKS: Marks = Marks {
    write_info: 1,
    read: "R",
    write: "W",
};
/// Marks of I/O ports.
pub(crate) const IOPORT_MARKS: Marks = Marks {
    write_info: 1,
    read: "PIN",
    write: "POUT",
};
/// Marks of memory-mapped I/O.
pub(crate) const MMIO_MARKS: Marks = Marks {
    write_info: MMIO_WRITE,
    read: "R",
    write: "W",
};

/// A key as perf prints it: number and direction.
pub(crate) fn shown(key: Key, marks: Marks) -> String {
    if key == OTHERS {
        return "(others)".to_owned();
    }
    let mark = match key.info == marks.write_info {
        true => marks.write,
        false => marks.read,
    };
    // perf's `%#x` has no prefix before 0.
    match key.number {
        0 => format!("0:{mark}"),
        number => format!("{number:#x}:{mark}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_known_at_the_end_only_counts() {
        let mut table = KeyTable::default();
        table.begin(0, 100, None);
        table.end(0, 150, Some(Access::new(MMIO_READ, 0xfee0_0000)), true);
        let rows = table.rows();
        assert_eq!(rows[0].1.stats.sum, 50);
        assert_eq!(shown(rows[0].0, MMIO_MARKS), "0xfee00000:R");
    }

    #[test]
    fn an_end_without_begin_or_key_leaves_no_row() {
        let mut table = KeyTable::default();
        table.end(0, 150, Some(Access::new(1, 2)), true);
        table.begin(3, 100, None);
        table.end(3, 150, None, true);
        assert!(table.rows().is_empty());
        // perf keeps the begin when neither end has a key.
        table.end(3, 160, Some(Access::new(1, 2)), true);
        assert_eq!(table.rows()[0].1.stats.sum, 60);
    }

    #[test]
    fn too_many_keys_become_one_row() {
        let mut table = KeyTable::default();
        for number in 0..(MAX_KEYS as u64 + 100) {
            table.begin(1, 10, Some(Access::new(0, number)));
            table.end(1, 11, None, true);
        }
        assert_eq!(table.rows().len(), MAX_KEYS + 1);
        assert_eq!(
            table.rows().iter().map(|row| row.1.stats.n).sum::<u64>(),
            MAX_KEYS as u64 + 100
        );
    }
}
