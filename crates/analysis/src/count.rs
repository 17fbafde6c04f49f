//! How often each tracepoint fired.

use stealtime_events::{HostVector, Kind, NameId, Names};

use crate::answers::{Answers, EventCount};
use crate::hash::IntMap;

/// Most different names of events that no variant of [`Kind`] stands for.
const MAX_OTHER: usize = 4096;

macro_rules! ordinals {
    ($($name:ident),* $(,)?) => {
        #[repr(u8)]
        enum Ordinal { $($name,)* Unlisted }

        /// A small number for each variant: an index into the table of counts.
        const fn ordinal(kind: Kind) -> usize {
            match kind {
                $(Kind::$name { .. } => Ordinal::$name as usize,)*
                _ => Ordinal::Unlisted as usize,
            }
        }
    };
}

#[rustfmt::skip]
ordinals!(
    KvmEntry, KvmExit, KvmUserspaceExit, KvmHypercall, KvmPio, KvmMmio, KvmMsr, KvmCpuid,
    KvmPageFault, KvmApic, KvmApicIpi, KvmApicAcceptIrq, KvmApicvAcceptIrq, KvmInjVirq,
    KvmInjException, KvmEoi, KvmPvEoi, KvmSetIrq, KvmMsiSetIrq, KvmPiIrteUpdate,
    KvmAvicIncompleteIpi, KvmApicvInhibitChanged, KvmVcpuWakeup, KvmHaltPollNs,
    KvmPleWindowUpdate, KvmHvTimerState, KvmWaitLapicExpire, KvmWriteTscOffset, KvmTrackTsc,
    KvmUpdateMasterClock, KvmPvclockUpdate, KvmPvTlbFlush, SchedSwitch, SchedWaking, SchedWakeup,
    SchedWakeupNew, SchedMigrateTask, SchedStatRuntime, SchedStatWait, SchedProcessFork,
    SchedProcessExit, IrqHandlerEntry, IrqHandlerExit, SoftirqEntry, SoftirqExit, SoftirqRaise,
    IpiSendCpu, IpiSendCpumask, CsdQueueCpu, CsdFunctionEntry, CsdFunctionExit, HrtimerSetup,
    HrtimerStart, HrtimerCancel, HrtimerExpireEntry, HrtimerExpireExit,
);

const SLOTS: usize = Ordinal::Unlisted as usize + 1;
const CLASSES: usize = HostVector::ALL.len();

/// Counts of tracepoints.
#[derive(Debug)]
pub(crate) struct Counts {
    // A variant's tracepoint name is asked for at the end, of the last event seen of it.
    listed: [(u64, Option<Kind>); SLOTS],
    entries: [(u64, Option<Kind>); CLASSES],
    exits: [(u64, Option<Kind>); CLASSES],
    other: IntMap<u32, u64>,
    other_rest: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            listed: [(0, None); SLOTS],
            entries: [(0, None); CLASSES],
            exits: [(0, None); CLASSES],
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

fn count_one(slot: &mut (u64, Option<Kind>), kind: Kind) {
    if slot.0 == 0 {
        slot.1 = Some(kind);
    }
    slot.0 += 1;
}

impl Counts {
    /// Counts an event.
    pub(crate) fn add(&mut self, kind: Kind) {
        match kind {
            Kind::VectorEntry { class, .. } => count_one(&mut self.entries[class as usize], kind),
            Kind::VectorExit { class, .. } => count_one(&mut self.exits[class as usize], kind),
            Kind::Other { name } => self.add_other(name, 1),
            _ => count_one(&mut self.listed[ordinal(kind)], kind),
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
        let slots = self.listed.iter().chain(&self.entries).chain(&self.exits);
        for (count, kind) in slots.filter(|slot| slot.0 > 0) {
            let name = kind.and_then(Kind::tracepoint).unwrap_or("?");
            *rows.entry(name.to_owned()).or_default() += count;
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

    /// How often events like `kind` fired (of irq_vectors: of its class).
    pub(crate) fn of(&self, kind: Kind) -> u64 {
        self.listed[ordinal(kind)].0
    }
}
