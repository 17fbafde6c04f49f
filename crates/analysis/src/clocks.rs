//! Guest clocks: TSC offsets and the master clock.

use stealtime_events::Kind;

use crate::Analysis;

/// What the trace says of guest clocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clocks {
    /// `kvm_update_master_clock` events, and of the last one whether the master clock is used and
    /// whether all offsets matched.
    pub(crate) updates: u64,
    pub(crate) uses_master_clock: bool,
    pub(crate) offsets_matched: bool,
    pub(crate) host_clock_is_tsc: bool,
    /// `kvm_track_tsc` events in which the vCPUs did not all match.
    pub(crate) mismatches: u64,
    /// The last of these: matched vCPUs beside the first, and vCPUs online.
    pub(crate) last_mismatch: (u32, u32),
}

/// `VDSO_CLOCKMODE_TSC`, as `host_clock` is traced.
const HOST_CLOCK_TSC: u32 = 1;

impl Analysis {
    /// Events about clocks; `vcpu` is the vCPU whose thread is current.
    pub(crate) fn on_clock(&mut self, kind: Kind, vcpu: Option<u32>) {
        match kind {
            Kind::KvmUpdateMasterClock {
                use_master_clock,
                host_clock,
                offset_matched,
            } => {
                self.clocks.updates += 1;
                self.clocks.uses_master_clock = use_master_clock;
                self.clocks.offsets_matched = offset_matched;
                self.clocks.host_clock_is_tsc = host_clock == HOST_CLOCK_TSC;
            }
            // The first vCPU is not counted among those that match it.
            Kind::KvmTrackTsc {
                matched, online, ..
            } if matched.saturating_add(1) < online => {
                self.clocks.mismatches += 1;
                self.clocks.last_mismatch = (matched, online);
            }
            Kind::KvmWriteTscOffset { next, .. } => {
                if let Some(vcpu) = vcpu.and_then(|index| self.vcpus.get_mut(index as usize)) {
                    vcpu.tally.tsc_writes += 1;
                    vcpu.tsc_offset = Some(next);
                }
            }
            _ => {}
        }
    }
}
