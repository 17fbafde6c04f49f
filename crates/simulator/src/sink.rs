//! Where events of a run go.

use std::collections::BTreeMap;

use stealtime_events::{Event, NameId, Names};

/// Takes a run's events in order of time.
pub trait Sink {
    /// Whether events are wanted at all; asked once, before the run.
    fn wanted(&self) -> bool {
        true
    }

    /// Names of tasks and functions, and how many CPUs there are; called once, before events.
    fn begin(&mut self, names: &NameList, cpus: u32) {
        let _ = (names, cpus);
    }

    /// The next event.
    fn event(&mut self, event: &Event);
}

/// Wants no events.
impl Sink for () {
    fn wanted(&self) -> bool {
        false
    }

    fn event(&mut self, _event: &Event) {}
}

/// Keeps all events.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Events in order of time.
    pub events: Vec<Event>,
    /// Names.
    pub names: NameList,
    /// CPUs of the host.
    pub cpus: u32,
}

impl Sink for Collected {
    fn begin(&mut self, names: &NameList, cpus: u32) {
        self.names = names.clone();
        self.cpus = cpus;
    }

    fn event(&mut self, event: &Event) {
        self.events.push(*event);
    }
}

/// The names that events refer to.
#[derive(Clone, Debug)]
pub struct NameList {
    names: Vec<String>,
    /// Of tasks.
    tasks: BTreeMap<String, NameId>,
}

impl Default for NameList {
    fn default() -> Self {
        Self {
            names: vec![String::new()],
            tasks: BTreeMap::new(),
        }
    }
}

impl NameList {
    /// Adds a name, or finds it.
    pub fn add(&mut self, name: &str) -> NameId {
        let place = self.names.iter().position(|known| known == name);
        let place = place.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        NameId(place as u32)
    }

    /// Adds a name of a task, or finds it: a host has many vCPUs, of few numbers.
    pub(crate) fn of_task(&mut self, name: &str) -> NameId {
        if let Some(&known) = self.tasks.get(name) {
            return known;
        }
        let id = NameId(self.names.len() as u32);
        self.names.push(name.to_owned());
        self.tasks.insert(name.to_owned(), id);
        id
    }
}

impl Names for NameList {
    fn name(&self, id: NameId) -> &str {
        self.names.get(id.0 as usize).map_or("", String::as_str)
    }
}
