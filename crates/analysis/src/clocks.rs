//! Guest clocks: TSC offsets and the master clock.

use stealtime_events::Kind;

/// What events about the clocks of one VM say. A guest that boots or resets writes the TSCs of its
/// vCPUs one after the other, so that all states but the last are those of a sequence that goes on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Told {
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
    /// When, by the time of the trace.
    at: u64,
    pub(crate) is_used: bool,
    pub(crate) offsets_matched: bool,
    pub(crate) host_clock_is_tsc: bool,
}

/// A `kvm_track_tsc`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tracked {
    at: u64,
    /// vCPUs whose TSC matches that of the first of this generation, without that one.
    pub(crate) matched: u32,
    pub(crate) online: u32,
}

impl Tracked {
    /// Whether all vCPUs match.
    const fn is_matched(self) -> bool {
        self.matched.saturating_add(1) >= self.online
    }
}

impl Told {
    /// Adds an event at this time.
    pub(crate) fn add(&mut self, kind: Kind, at: u64) {
        match kind {
            Kind::KvmUpdateMasterClock {
                use_master_clock,
                host_clock,
                offset_matched,
            } => {
                self.updates += 1;
                self.master = Some(MasterClock {
                    at,
                    is_used: use_master_clock,
                    offsets_matched: offset_matched,
                    host_clock_is_tsc: host_clock == HOST_CLOCK_TSC,
                });
            }
            Kind::KvmTrackTsc {
                matched, online, ..
            } => {
                self.tracked = Some(Tracked {
                    at,
                    matched,
                    online,
                });
            }
            _ => {}
        }
    }

    /// Both together, the later one of each kind.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            updates: self.updates + other.updates,
            master: self
                .master
                .into_iter()
                .chain(other.master)
                .max_by_key(|one| one.at),
            tracked: self
                .tracked
                .into_iter()
                .chain(other.tracked)
                .max_by_key(|one| one.at),
        }
    }

    /// What of this, told by threads whose VM is not known, nothing later of a VM supersedes: the process
    /// that makes a VM tells of its clocks first, and its vCPUs tell how they end.
    pub(crate) fn not_before(self, vms: Self) -> Self {
        let later = |at: u64| vms.last().is_none_or(|last| last <= at);
        Self {
            master: self.master.filter(|one| later(one.at)),
            tracked: self.tracked.filter(|one| later(one.at)),
            ..self
        }
    }

    fn last(self) -> Option<u64> {
        let master = self.master.map(|one| one.at);
        master.max(self.tracked.map(|one| one.at))
    }

    /// The last `kvm_track_tsc`, if it says that vCPUs do not match and no master clock came into use
    /// since.
    pub(crate) fn unmatched(self) -> Option<Tracked> {
        let since = |at| move |master: MasterClock| master.is_used && master.at >= at;
        self.tracked
            .filter(|one| !one.is_matched() && !self.master.is_some_and(since(one.at)))
    }
}

/// `VDSO_CLOCKMODE_TSC`, as `host_clock` is traced.
const HOST_CLOCK_TSC: u32 = 1;
