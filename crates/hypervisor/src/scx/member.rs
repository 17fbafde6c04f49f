//! The virtual time of a task, as a member of its domain's sums (`sched-ext/bpf/vtime.h`).

use super::domain::Domain;
use crate::fair::weights::{calc_delta_fair, service_ns};
use crate::wide;

/// Virtual time of a task; sums change with it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Member {
    vruntime: u64,
    deadline: u64,
    /// Lag at the last sleep, in virtual ns.
    vlag: i64,
    /// Weight in the sums; 0: no member.
    weight: u64,
}

/// `size` times `factor` by `divisor`, which is not 0, rounded down. It saturates.
fn scaled(size: u64, factor: u64, divisor: u64) -> u64 {
    let product = u128::from(size) * u128::from(factor);
    u64::try_from(wide::div(product, divisor)).unwrap_or(u64::MAX)
}

/// The virtual time that has `lag` against an average: later for a debt.
const fn with_lag(average: u64, is_debt: bool, size: u64) -> u64 {
    if is_debt {
        average.wrapping_add(size)
    } else {
        average.wrapping_sub(size)
    }
}

impl Member {
    pub(super) const fn vruntime(&self) -> u64 {
        self.vruntime
    }

    pub(super) const fn deadline(&self) -> u64 {
        self.deadline
    }

    pub(super) const fn weight(&self) -> u64 {
        self.weight
    }

    /// What it is behind the average, in virtual ns.
    pub(super) fn lag(&self, domain: &Domain) -> i64 {
        domain.average().wrapping_sub(self.vruntime) as i64
    }

    /// Whether it has had no more than its share.
    pub(super) fn is_due(&self, domain: &Domain) -> bool {
        self.weight > 0 && domain.is_eligible(self.vruntime)
    }

    /// Whether it has had no more than its share, had it `ns` of service less.
    pub(super) fn is_due_with(&self, ns: u64, domain: &Domain) -> bool {
        let gain = calc_delta_fair(ns, self.weight);
        self.weight > 0 && domain.is_eligible(self.vruntime.wrapping_sub(gain))
    }

    /// Another task gives it `ns` of service.
    pub(super) fn gain(&mut self, ns: u64, domain: &mut Domain) {
        let gain = calc_delta_fair(ns, self.weight) as i64;
        self.shift(domain, -gain);
        self.deadline = self.deadline.wrapping_sub(gain as u64);
    }

    /// Real time that is left of its request, in ns.
    pub(super) fn request_left_ns(&self) -> u64 {
        let rest = self.deadline.wrapping_sub(self.vruntime) as i64;
        service_ns(rest.max(0) as u64, self.weight)
    }

    /// Largest lag that is kept, in virtual ns (the bound in `entity_lag`).
    fn lag_bound(&self, longest_ns: u64) -> i64 {
        calc_delta_fair(longest_ns, self.weight).min(i64::MAX as u64) as i64
    }

    /// Leaves the sums with its lag, within the bound. `longest_ns` is a slice and a tick.
    pub(super) fn leave(&mut self, domain: &mut Domain, longest_ns: u64) {
        if self.weight > 0 {
            let average = domain.rebase();
            domain.remove_member(self.vruntime, self.weight);
            let bound = self.lag_bound(longest_ns);
            let lag = average.wrapping_sub(self.vruntime) as i64;
            self.vlag = lag.clamp(-bound, bound);
            self.weight = 0;
        }
    }

    /// A debt that the queue has passed during a sleep is no longer one.
    pub(super) fn forgive(&mut self, domain: &Domain) {
        if self.vlag < 0 {
            self.vlag = self.lag(domain).clamp(self.vlag, 0);
        }
    }

    /// `place_entity`: joins with its lag, which it keeps although the average moves with it.
    pub(super) fn join(&mut self, domain: &mut Domain, weight: u64, slice_ns: u64) {
        let average = domain.rebase();
        let mut size = self.vlag.unsigned_abs();
        let total = domain.weight();
        if total > 0 && size > 0 {
            size = scaled(size, total + weight, total);
        }
        self.vruntime = with_lag(average, self.vlag < 0, size);
        self.deadline = self
            .vruntime
            .wrapping_add(calc_delta_fair(slice_ns, weight));
        self.weight = weight;
        domain.add_member(self.vruntime, weight);
    }

    fn shift(&mut self, domain: &mut Domain, delta: i64) {
        self.vruntime = self.vruntime.wrapping_add(delta as u64);
        domain.shift_member(delta, self.weight);
    }

    /// A new weight scales the lag, so that the service it is worth stays.
    pub(super) fn reweight(&mut self, domain: &mut Domain, weight: u64) {
        if self.weight == 0 || self.weight == weight {
            return;
        }
        let average = domain.rebase();
        let lag = average.wrapping_sub(self.vruntime) as i64;
        let size = scaled(lag.unsigned_abs(), self.weight, weight);
        let request = (self.deadline.wrapping_sub(self.vruntime) as i64).max(0) as u64;
        let request = scaled(request, self.weight, weight);
        domain.remove_member(self.vruntime, self.weight);
        self.vruntime = with_lag(average, lag < 0, size);
        self.deadline = self.vruntime.wrapping_add(request);
        self.weight = weight;
        domain.add_member(self.vruntime, weight);
    }

    /// Charges `ns` of run time, and starts the next request at the end of one.
    pub(super) fn charge(&mut self, domain: &mut Domain, ns: u64, slice_ns: u64) {
        if self.weight > 0 {
            self.shift(domain, calc_delta_fair(ns, self.weight) as i64);
            if self.vruntime.wrapping_sub(self.deadline) as i64 >= 0 {
                let request = calc_delta_fair(slice_ns, self.weight);
                self.deadline = self.vruntime.wrapping_add(request);
            }
        }
    }

    /// `yield_task_fair`: an eligible yielder loses the rest of its request.
    pub(super) fn forfeit(&mut self, domain: &mut Domain, slice_ns: u64) {
        if self.is_due(domain) {
            let rest = self.deadline.wrapping_sub(self.vruntime) as i64;
            self.shift(domain, rest.max(0));
            let request = calc_delta_fair(slice_ns, self.weight);
            self.deadline = self.vruntime.wrapping_add(request);
        }
    }

    /// A yielder keeps no more lag than a sleeper would: it could hold the CPU for as long otherwise.
    pub(super) fn forfeit_excess(&mut self, domain: &mut Domain, longest_ns: u64) {
        let excess = self.lag(domain) - self.lag_bound(longest_ns);
        if self.weight > 0 && excess > 0 {
            self.shift(domain, excess);
            self.deadline = self.deadline.wrapping_add(excess as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE_NS: u64 = 1_000_000;

    #[test]
    fn a_task_off_its_queue_is_not_due() {
        let (mut domain, mut time) = (Domain::new(), Member::default());
        time.join(&mut domain, 1024, SLICE_NS);
        assert!(time.is_due(&domain));
        time.leave(&mut domain, SLICE_NS);
        assert!(!time.is_due(&domain));
    }
}
