//! What EEVDF does to an entity's virtual times.

use super::SchedEntity;
use crate::fair::features::{Feature, Features};
use crate::fair::weights::{before, calc_delta_fair, earlier, mul_div};

impl SchedEntity {
    /// `calc_delta_fair` for this entity.
    #[inline]
    pub(crate) fn vtime(&self, delta_ns: u64) -> u64 {
        calc_delta_fair(delta_ns, self.weight)
    }

    /// `update_curr`: the entity has run until `now`.
    #[inline(always)]
    pub(crate) fn charge(&mut self, now: u64) {
        let delta = now - self.exec_start;
        self.exec_start = now;
        self.vruntime = self.vruntime.wrapping_add(self.vtime(delta));
    }

    /// `update_deadline`: starts a new request if the deadline is reached, and returns whether. The
    /// caller moves the queue's base then.
    #[inline(always)]
    pub(crate) fn update_deadline(&mut self, base_slice_ns: u64) -> bool {
        if before(self.vruntime, self.deadline) {
            return false;
        }
        self.update_base_slice(base_slice_ns);
        self.restart_request();
        true
    }

    /// The base slice has changed; a requested slice stays.
    #[inline(always)]
    fn update_base_slice(&mut self, base_slice_ns: u64) {
        if !self.custom_slice() {
            self.slice = base_slice_ns as u32;
        }
    }

    /// The deadline is one slice from now.
    #[inline(always)]
    fn restart_request(&mut self) {
        self.deadline = self
            .vruntime
            .wrapping_add(self.vtime(u64::from(self.slice)));
    }

    /// The deadline moves by one slice: a yield up to Linux 6.18.
    pub(crate) fn postpone_deadline(&mut self) {
        let slice = self.vtime(u64::from(self.slice));
        self.deadline = self.deadline.wrapping_add(slice);
    }

    /// The entity gives up the rest of its request.
    pub(crate) fn forfeit_request(&mut self) {
        self.vruntime = self.deadline;
    }

    /// The slice that placement uses is the base slice, unless one was requested.
    #[inline(always)]
    pub(crate) fn begin_placement(&mut self, base_slice_ns: u64) {
        self.update_base_slice(base_slice_ns);
    }

    /// `place_entity`, at virtual time `vruntime`: the deadline is as far as it was, or one slice.
    #[inline(always)]
    pub(crate) fn place(&mut self, vruntime: u64, features: Features, initial: bool) {
        self.vruntime = vruntime;
        if features.has(Feature::PlaceRelDeadline) && self.rel_deadline {
            self.deadline = self.deadline.wrapping_add(vruntime);
            self.rel_deadline = false;
            return;
        }
        let mut vslice = self.vtime(u64::from(self.slice));
        if features.has(Feature::PlaceDeadlineInitial) && initial {
            vslice /= 2;
        }
        self.deadline = vruntime.wrapping_add(vslice);
    }

    /// `entity_lag` against an average of `v`. `bound_ns` is the longest slice plus a tick.
    #[inline]
    pub(crate) fn lag_against(&self, v: u64, bound_ns: u64) -> i64 {
        let bound = self.vtime(bound_ns).min(i64::MAX as u64) as i64;
        (v.wrapping_sub(self.vruntime) as i64).clamp(-bound, bound)
    }

    /// Stores the lag against an average of `v`. True if it was clamped, so that `V - vlag` differs
    /// from the virtual runtime.
    ///
    /// A delayed entity keeps the part of its debt that it has paid, and with `DELAY_ZERO` never
    /// exceeds zero.
    #[inline(always)]
    pub(crate) fn update_lag(&mut self, v: u64, bound_ns: u64, features: Features) -> bool {
        let mut vlag = self.lag_against(v, bound_ns);
        if self.delayed {
            vlag = vlag.max(self.vlag);
            if features.has(Feature::DelayZero) {
                vlag = vlag.min(0);
            }
        }
        self.vlag = vlag;
        v.wrapping_sub(vlag as u64) != self.vruntime
    }

    /// Replaces the deadline by its distance, which an entity keeps while it is off the queue.
    #[inline]
    pub(crate) fn make_deadline_relative(&mut self) {
        debug_assert!(!self.rel_deadline, "a distance already");
        self.deadline = self.deadline.wrapping_sub(self.vruntime);
        self.rel_deadline = true;
    }

    /// `protect_slice`.
    #[inline]
    pub(crate) fn protected(&self) -> bool {
        before(self.vruntime, self.vprot)
    }

    /// `cancel_protect_slice`.
    #[inline]
    pub(crate) fn cancel_protect_slice(&mut self) {
        if self.protected() {
            self.vprot = self.vruntime;
        }
    }

    /// `set_protect_slice`: protection ends at the deadline, or after `slice_ns`.
    #[inline(always)]
    pub(crate) fn set_protect_slice(&mut self, slice_ns: u64) {
        let mut vprot = self.deadline;
        if slice_ns < u64::from(self.slice) {
            vprot = earlier(vprot, self.vruntime.wrapping_add(self.vtime(slice_ns)));
        }
        self.vprot = vprot;
    }

    /// `update_protect_slice`: protection ends after `slice_ns` at the latest.
    #[inline(always)]
    pub(crate) fn limit_protection(&mut self, slice_ns: u64) {
        let end = self.vruntime.wrapping_add(self.vtime(slice_ns));
        self.vprot = earlier(self.vprot, end);
    }

    /// `rescale_entity`: lag, and a relative deadline, stay the same in real time at `weight`.
    /// `protected`: so does the end of the protected slice, relative as well.
    pub(crate) fn rescale(&mut self, weight: u64, protected: bool) {
        let old = self.weight;
        self.vlag = mul_div(self.vlag, old, weight);
        if self.on_rq || self.rel_deadline {
            self.deadline = mul_div(self.deadline as i64, old, weight) as u64;
        }
        if protected {
            self.vprot = mul_div(self.vprot as i64, old, weight) as u64;
        }
        self.weight = weight;
    }

    /// Makes lag, deadline, and the end of the protected slice relative to an average of `v`.
    pub(crate) fn make_relative(&mut self, v: u64, vlag: i64, protected: bool) {
        self.vlag = vlag;
        self.deadline = self.deadline.wrapping_sub(v);
        if protected {
            self.vprot = self.vprot.wrapping_sub(v);
        }
    }

    /// The inverse of [`Self::make_relative`]; the virtual runtime follows from the lag.
    pub(crate) fn make_absolute(&mut self, v: u64, protected: bool) {
        if protected {
            self.vprot = self.vprot.wrapping_add(v);
        }
        self.deadline = self.deadline.wrapping_add(v);
        self.vruntime = v.wrapping_sub(self.vlag as u64);
    }

    /// The lag with which it is placed next. With `keep_request` it keeps the distance to its
    /// deadline.
    pub(crate) fn credit_lag(&mut self, vlag: i64, keep_request: bool) {
        self.vlag = vlag;
        if keep_request {
            self.make_deadline_relative();
        }
    }

    /// Its deadline is absolute.
    pub(crate) fn set_deadline_absolute(&mut self) {
        self.rel_deadline = false;
    }

    /// Moves all its virtual times back.
    pub(crate) fn shift_back(&mut self, vtime: u64) {
        let protected = self.protected();
        self.vruntime = self.vruntime.wrapping_sub(vtime);
        self.deadline = self.deadline.wrapping_sub(vtime);
        if protected {
            self.vprot = self.vprot.wrapping_sub(vtime);
        }
    }

    /// Charges virtual time that it has not run, and starts a new request.
    pub(crate) fn penalize(&mut self, vtime: u64) {
        self.vruntime = self.vruntime.wrapping_add(vtime);
        self.restart_request();
    }

    /// Sets lag and virtual runtime regardless of the queue: an injected fault.
    pub(crate) fn corrupt(&mut self, v: u64, vlag: i64) {
        self.vlag = vlag;
        self.vruntime = v.wrapping_sub(vlag as u64);
    }
}
