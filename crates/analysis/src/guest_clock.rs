//! What a vCPU's guest tells of its clocks: its deadlines, and whether it uses its kvmclock.

use stealtime_events::Kind;

/// `IA32_TSC_DEADLINE` (Intel SDM vol. 4), in cycles of the guest's TSC.
const TSC_DEADLINE: u32 = 0x6e0;
/// `MSR_KVM_SYSTEM_TIME` and `MSR_KVM_SYSTEM_TIME_NEW`: bit 0 enables the kvmclock page.
const SYSTEM_TIME: [u32; 2] = [0x12, 0x4b56_4d01];

/// The clocks of one vCPU's guest, by its register writes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GuestClock {
    /// The latest deadline so far, in cycles.
    latest: u64,
    /// The largest distance of a deadline from one that is written later. At the first write the TSC is
    /// below the second deadline, so the first one is at least this far ahead.
    pub(crate) ahead_cycles: u64,
    /// Whether its last write of the register enables the kvmclock.
    pub(crate) kvmclock: Option<bool>,
}

impl GuestClock {
    /// Adds a register access of the guest.
    #[inline]
    pub(crate) fn access(&mut self, kind: Kind, counts: bool) {
        match kind {
            // 0 disarms the timer.
            Kind::KvmMsr {
                write: true,
                ecx: TSC_DEADLINE,
                data: deadline @ 1..,
                exception: false,
            } => {
                if counts {
                    let ahead_cycles = self.latest.saturating_sub(deadline);
                    self.ahead_cycles = self.ahead_cycles.max(ahead_cycles);
                }
                self.latest = self.latest.max(deadline);
            }
            Kind::KvmMsr {
                write: true,
                ecx,
                data,
                exception: false,
            } if SYSTEM_TIME.contains(&ecx) => self.kvmclock = Some(data & 1 != 0),
            _ => {}
        }
    }

    /// The TSC begins anew: earlier deadlines are of another timeline.
    pub(crate) const fn tsc_moved(&mut self) {
        self.latest = 0;
    }
}
