//! When batching pays.
//!
//! A batch saves ICR writes and overlaps wakeups; its price is that the first target waits for
//! the whole loop. The patch's message leaves open when that is worth it ("may need further
//! tuning"). Upstream batches every multicast form. Two policies are our own: a threshold on the
//! number of targets, and one that measures.

/// `xen.batch_wakeups` (no upstream name).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BatchPolicy {
    /// Never.
    Off,
    /// Every multicast form.
    #[default]
    Form,
    /// Multicast forms of at least so many targets (`xen.batch_min_targets`).
    Threshold {
        /// The least number of targets.
        min_targets: u32,
    },
    /// Whichever of the two was cheaper of late, per target.
    Adaptive,
}

/// What one broadcast cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BroadcastCost {
    /// Whether it was batched.
    pub batched: bool,
    /// vCPUs that it went to.
    pub targets: u32,
    /// The sender's time from the first target to the last ICR write, in ns.
    pub sender_ns: u64,
    /// Sum over the targets of the time from the start of the loop until each is notified, in ns.
    /// The store of the pending bit notifies a CPU that monitors it, and the ICR write any other.
    /// Time counts from the start, because a batch also shortens the loop for later targets.
    pub targets_ns: u64,
}

/// Fraction bits of the averages.
const FRACTION: u32 = 8;
/// An average moves by one part in 2^3 a broadcast.
const WEIGHT: u32 = 3;
/// Every so many decisions the other way is tried.
const PROBE: u32 = 64;
/// No cost above about a minute is believed; keeps the products within 64 bits.
const MOST_NS: u64 = 1 << 36;

/// Decides, and learns from what decisions cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BatchDecider {
    policy: BatchPolicy,
    /// ns per target, with [`FRACTION`] bits; `None` before the first broadcast.
    batched: Option<u64>,
    unbatched: Option<u64>,
    decisions: u32,
    /// The last decision was a probe.
    probing: bool,
}

impl BatchDecider {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(policy: BatchPolicy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Whether to batch a broadcast to `targets` vCPUs, of a multicast form or another.
    pub fn decide(&mut self, multicast: bool, targets: u32) -> bool {
        if !multicast {
            return false;
        }
        match self.policy {
            BatchPolicy::Off => false,
            BatchPolicy::Form => true,
            BatchPolicy::Threshold { min_targets } => targets >= min_targets,
            BatchPolicy::Adaptive => self.adaptive(),
        }
    }

    fn adaptive(&mut self) -> bool {
        self.decisions = self.decisions.wrapping_add(1);
        let cheaper = match (self.batched, self.unbatched) {
            // Upstream's way first, then the other once.
            (None, _) => return true,
            (Some(_), None) => return false,
            (Some(batched), Some(unbatched)) => batched <= unbatched,
        };
        self.probing = self.decisions.is_multiple_of(PROBE);
        cheaper != self.probing
    }

    /// Takes in what a broadcast cost. Both the sender's and the targets' time count: the sender
    /// is a vCPU in its interrupt handler.
    pub fn learn(&mut self, cost: &BroadcastCost) {
        if cost.targets == 0 {
            return;
        }
        let total = cost.sender_ns.min(MOST_NS) + cost.targets_ns.min(MOST_NS);
        let per_target = (total << FRACTION) / u64::from(cost.targets);
        let average = if cost.batched {
            &mut self.batched
        } else {
            &mut self.unbatched
        };
        // The way not taken is seen rarely: what a probe finds weighs half.
        let weight = if self.probing { 1 } else { WEIGHT };
        *average = Some(match *average {
            None => per_target,
            Some(old) => old - (old >> weight) + (per_target >> weight),
        });
    }

    /// The averages in ns per target: batched, unbatched.
    #[must_use]
    pub fn averages_ns(&self) -> (Option<u64>, Option<u64>) {
        let whole = |average: Option<u64>| average.map(|ns| ns >> FRACTION);
        (whole(self.batched), whole(self.unbatched))
    }
}
