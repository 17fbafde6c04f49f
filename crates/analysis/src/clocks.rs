//! Guest clocks: TSC offsets and the master clock.

use stealtime_events::Kind;

/// The latest events about the clocks of one VM. A guest that boots or resets writes the TSCs of its
/// vCPUs one by one, so all states but the last are transient.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClockEvents {
    /// `kvm_update_master_clock` events.
    pub(crate) updates: u64,
    /// The last of them.
    pub(crate) master: Option<MasterClock>,
    /// The last `kvm_track_tsc`.
    pub(crate) tracked: Option<Tracked>,
}

/// A `kvm_update_master_clock`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MasterClock {
    /// In ns of the trace's clock.
    time: u64,
    pub(crate) is_used: bool,
    pub(crate) offsets_matched: bool,
    pub(crate) host_clock_is_tsc: bool,
}

/// A `kvm_track_tsc`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tracked {
    /// In ns of the trace's clock.
    time: u64,
    /// vCPUs with a TSC that matches the first of this generation, without the first
    /// (`kvm_synchronize_tsc`).
    pub(crate) matched: u32,
    pub(crate) online: u32,
}

impl Tracked {
    /// Whether all vCPUs match.
    const fn is_matched(self) -> bool {
        self.matched.saturating_add(1) >= self.online
    }
}

impl ClockEvents {
    /// Adds an event at this time of the trace, in ns.
    pub(crate) fn add(&mut self, kind: Kind, time: u64) {
        match kind {
            Kind::KvmUpdateMasterClock {
                use_master_clock,
                host_clock,
                offset_matched,
            } => {
                self.updates += 1;
                self.master = Some(MasterClock {
                    time,
                    is_used: use_master_clock,
                    offsets_matched: offset_matched,
                    host_clock_is_tsc: host_clock == HOST_CLOCK_TSC,
                });
            }
            Kind::KvmTrackTsc {
                matched, online, ..
            } => {
                self.tracked = Some(Tracked {
                    time,
                    matched,
                    online,
                });
            }
            _ => {}
        }
    }

    /// The events of two threads together: the later one of each kind.
    pub(crate) fn with(self, added: Self) -> Self {
        Self {
            updates: self.updates + added.updates,
            master: self
                .master
                .into_iter()
                .chain(added.master)
                .max_by_key(|event| event.time),
            tracked: self
                .tracked
                .into_iter()
                .chain(added.tracked)
                .max_by_key(|event| event.time),
        }
    }

    /// Those that no later event of a known VM supersedes. The process that makes a VM traces its clocks
    /// before it has a vCPU, so its VM is not known. The vCPUs trace the final state.
    pub(crate) fn not_before(self, vms: Self) -> Self {
        let later = |time: u64| vms.last().is_none_or(|last| last <= time);
        Self {
            master: self.master.filter(|event| later(event.time)),
            tracked: self.tracked.filter(|event| later(event.time)),
            ..self
        }
    }

    fn last(self) -> Option<u64> {
        let master = self.master.map(|event| event.time);
        master.max(self.tracked.map(|event| event.time))
    }

    /// The last `kvm_track_tsc`, if it says that vCPUs do not match and no master clock came into use
    /// since.
    pub(crate) fn unmatched(self) -> Option<Tracked> {
        let used_from = |time| move |master: MasterClock| master.is_used && master.time >= time;
        self.tracked
            .filter(|event| !event.is_matched() && !self.master.is_some_and(used_from(event.time)))
    }
}

/// `VDSO_CLOCKMODE_TSC`, as `host_clock` is traced.
const HOST_CLOCK_TSC: u32 = 1;
