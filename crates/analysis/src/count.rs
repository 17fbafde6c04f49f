//! How often each tracepoint fired.

use stealtime_events::{Kind, NameId, Names};

use crate::answers::{Answers, EventCount};
use stealtime_track::IntMap;

/// Most different names of events that no variant of [`Kind`] stands for.
const MAX_OTHER: usize = 4096;

/// Counts of tracepoints.
#[derive(Debug)]
pub(crate) struct Counts {
    /// By [`Kind::number`].
    listed: [u64; Kind::TRACEPOINTS],
    other: IntMap<u32, u64>,
    other_rest: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            listed: [0; Kind::TRACEPOINTS],
            other: IntMap::default(),
            other_rest: 0,
        }
    }
}

fn sort(table: &mut [EventCount]) {
    table.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
}

impl Answers {
    /// Calls a tracepoint by the name that it has in the recording: its events came by the one that
    /// it has today.
    pub fn rename_event(&mut self, today: &str, recorded: &str) {
        if let Some(event) = self.events.iter_mut().find(|event| event.name == today) {
            recorded.clone_into(&mut event.name);
            event.today = Some(today.to_owned());
            sort(&mut self.events);
        }
    }
}

impl Counts {
    /// Counts an event of the host; others have no tracepoint.
    pub(crate) fn add(&mut self, kind: Kind) {
        if let Kind::Other { name } = kind {
            self.add_other(name, 1);
        } else if let Some(number) = kind.number() {
            self.listed[number] += 1;
        }
    }

    /// Counts so many events of a name.
    pub(crate) fn add_other(&mut self, name: NameId, events: u64) {
        if let Some(count) = self.other.get_mut(&name.0) {
            *count += events;
        } else if self.other.len() < MAX_OTHER {
            self.other.insert(name.0, events);
        } else {
            self.other_rest += events;
        }
    }

    /// The table, most frequent first.
    pub(crate) fn table(&self, names: &dyn Names) -> Vec<EventCount> {
        let mut rows = std::collections::BTreeMap::<String, u64>::new();
        for (number, &count) in self.listed.iter().enumerate().filter(|slot| *slot.1 > 0) {
            rows.insert(Kind::name_of(number).to_owned(), count);
        }
        for (&id, &count) in &self.other {
            *rows.entry(names.name(NameId(id)).to_owned()).or_default() += count;
        }
        if self.other_rest > 0 {
            *rows.entry("(others)".to_owned()).or_default() += self.other_rest;
        }
        let mut table: Vec<EventCount> = rows
            .into_iter()
            .map(|(name, count)| EventCount {
                name,
                count,
                today: None,
            })
            .collect();
        sort(&mut table);
        table
    }

    /// How often the tracepoint of `kind` fired.
    pub(crate) fn of(&self, kind: Kind) -> u64 {
        kind.number().map_or(0, |number| self.listed[number])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name for each number.
    #[derive(Debug)]
    struct Numbered(Vec<String>);

    impl Names for Numbered {
        fn name(&self, id: NameId) -> &str {
            &self.0[id.0 as usize]
        }
    }

    #[test]
    fn names_beyond_the_most_are_counted_together() {
        let names = Numbered((0..MAX_OTHER + 2).map(|n| format!("event {n}")).collect());
        let mut counts = Counts::default();
        for id in 0..names.0.len() as u32 {
            counts.add_other(NameId(id), 2);
        }
        counts.add_other(NameId(0), 3);
        let table = counts.table(&names);
        assert_eq!(table.len(), MAX_OTHER + 1);
        let first = |row: usize| (table[row].name.as_str(), table[row].count);
        assert_eq!([first(0), first(1)], [("event 0", 5), ("(others)", 4)]);
        assert!(table[2..].iter().all(|row| row.count == 2));
    }
}
