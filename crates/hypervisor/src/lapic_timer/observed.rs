//! What the adaptive policy has seen of one vCPU's timer.

/// Expiries that the policy remembers.
const WINDOW: u32 = 16;
/// Expiries that must be seen before posting is tried.
const WARM_UP: u32 = 8;
/// Posting starts when at least so many of [`WINDOW`] found the vCPU in guest mode…
const START: u32 = 14;
/// …and stops when fewer than this did: between the two it stays as it is.
const STOP: u32 = 9;
/// So many refusals among the last eight placements stop posting.
const REFUSALS: u32 = 4;
/// After so many placements in a row that were taken, the next pause is the shortest again.
const CALM: u8 = 8;
/// Expiries until placement is tried again after refusals; doubles each time.
const FIRST_RETRY: u16 = 64;
/// The longest such pause.
const LAST_RETRY: u16 = 4096;

/// Whether posting would save an exit.
///
/// It does if the vCPU is in guest mode when its timer expires, and the housekeeping CPU takes the
/// timer. Either backend shows the first: an exit of the preemption timer is itself an expiry in
/// guest mode, and an hrtimer sees the vCPU's mode. The second shows only while posting. So after
/// refusals posting is tried again, ever more rarely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Observed {
    /// The newest expiry is bit 0; 1: in guest mode.
    in_guest: u16,
    /// More than [`WINDOW`] are as good as that many.
    expiries: u8,
    /// The newest placement since the last pause is bit 0; 1: refused.
    refused: u8,
    /// Placements that were taken since the last refusal, at most [`CALM`].
    taken: u8,
    /// Expiries until posting may be tried again.
    pause: u16,
    next_pause: u16,
    posting: bool,
}

impl Observed {
    /// Whether posting is likely to save an exit.
    #[must_use]
    pub fn favours_posting(&self) -> bool {
        self.posting
    }

    /// An expiry found the vCPU in guest mode, or not.
    pub fn expiry(&mut self, in_guest: bool) {
        self.in_guest = self.in_guest << 1 | u16::from(in_guest);
        self.expiries = self.expiries.saturating_add(1);
        self.pause = self.pause.saturating_sub(1);
        let observed = u32::from(self.expiries).min(WINDOW);
        let hits = self.in_guest.count_ones();
        // Of a window that is not full yet, the same shares.
        if hits * WINDOW < STOP * observed {
            self.posting = false;
        } else if observed >= WARM_UP && self.pause == 0 && hits * WINDOW >= START * observed {
            self.posting = true;
        }
    }

    /// An hrtimer that was to be posted was refused by the housekeeping CPU, or taken.
    pub fn placement(&mut self, refused: bool) {
        self.refused = self.refused << 1 | u8::from(refused);
        self.taken = if refused { 0 } else { CALM.min(self.taken + 1) };
        // Each refusal costs an attempt on the housekeeping CPU, and the timer fires locally all
        // the same.
        if self.refused.count_ones() >= REFUSALS {
            self.refused = 0;
            self.posting = false;
            self.pause = self.next_pause.clamp(FIRST_RETRY, LAST_RETRY);
            self.next_pause = self.pause * 2;
        } else if self.taken == CALM {
            self.next_pause = FIRST_RETRY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posting_starts_after_a_warm_up_in_guest_mode() {
        let mut seen = Observed::default();
        for n in 1..=WARM_UP {
            assert!(!seen.favours_posting(), "after {n} expiries");
            seen.expiry(true);
        }
        assert!(seen.favours_posting());
    }

    #[test]
    fn a_vcpu_that_leaves_to_idle_never_posts() {
        let mut seen = Observed::default();
        for _ in 0..1000 {
            seen.expiry(false);
            assert!(!seen.favours_posting());
        }
    }

    #[test]
    fn between_start_and_stop_nothing_changes() {
        let mut seen = Observed::default();
        (0..WINDOW).for_each(|_| seen.expiry(true));
        (0..7).for_each(|_| seen.expiry(false));
        assert!(seen.favours_posting(), "9 of 16");
        seen.expiry(false);
        assert!(!seen.favours_posting(), "8 of 16");
        (0..13).for_each(|_| seen.expiry(true));
        assert!(!seen.favours_posting(), "13 of 16");
        seen.expiry(true);
        assert!(seen.favours_posting(), "14 of 16");
    }

    #[test]
    fn refusals_pause_posting_for_longer_each_time() {
        let mut seen = Observed::default();
        (0..WINDOW).for_each(|_| seen.expiry(true));
        for pause in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            (0..REFUSALS).for_each(|_| seen.placement(true));
            assert!(!seen.favours_posting());
            (1..pause).for_each(|_| seen.expiry(true));
            assert!(!seen.favours_posting(), "pause of {pause}");
            seen.expiry(true);
            assert!(seen.favours_posting(), "after {pause}");
        }
        (0..8).for_each(|_| seen.placement(false));
        (0..REFUSALS).for_each(|_| seen.placement(true));
        (0..64).for_each(|_| seen.expiry(true));
        assert!(seen.favours_posting(), "the first pause again");
    }
}
