//! arm64: one counter offset for the whole VM (`KVM_ARM_SET_COUNTER_OFFSET`, Linux 6.4).
//!
//! The sign is the other way round than on x86: the guest's counter is the host's *minus* the
//! offset. There is no frequency to set and nothing that scales.
//!
//! ```
//! use guest_clock::arm64::Arm64Vm;
//! use guest_clock::fake::{FakeArm64Vm, FakeHost};
//! use guest_clock::{GuestClocks, Policy, Saved};
//!
//! // With a device these are `kvm::KvmArm64Vm`s.
//! let host = FakeHost::new(1_000_000);
//! let source = FakeArm64Vm::new(&host, 2);
//! source.set_counter_offset(1 << 40)?;
//! // KVM does not report the offset: the VMM keeps what it has set.
//! let file = GuestClocks::save_arm64(&source, Some(1 << 40))?.to_bytes();
//!
//! let target = FakeArm64Vm::new(&host, 2);
//! let done = Saved::load(&file)?.restore_arm64(&target, Policy::ELAPSED)?;
//! assert!(done.count_at_anchor > done.count_at_save);
//! let kept_for_the_next_save = done.offset_to;
//! # let _ = kept_for_the_next_save;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use serde::Serialize;
use stealtime_hypervisor::counter::arm64::{
    CounterMigrationError, CounterSide, MigratedCounter, guest_count, migrate,
};

use crate::device::{ATTEMPTS, Bracket};
use crate::error::{Errno, IoctlError, Jump, Unloadable};
use crate::explanation::ForGuest;
#[cfg(any(test, all(feature = "capi", target_arch = "aarch64")))]
use crate::policy::Policy;
use crate::policy::{Inexact, Options, WallClockBehind, WallClocksDiffer};
use crate::save::{GuestClocks, narrow, of};
use crate::saved::{Arm64State, Saved, State};

/// An arm64 VM as far as its counter is concerned.
pub trait Arm64Vm {
    /// `CNTFRQ_EL0` in Hz.
    fn counter_hz(&self) -> u32;

    /// Host's counter, wall clock, host's counter. The fields that are named after the TSC hold
    /// `CNTVCT_EL0` of the host.
    fn bracket(&self) -> Bracket;

    /// The guest's `CNTVCT_EL0` (`KVM_GET_ONE_REG`, of any one vCPU).
    ///
    /// # Errors
    /// The ioctl's.
    fn guest_counter(&self) -> Result<u64, Errno>;

    /// `KVM_CAP_COUNTER_OFFSET`: Linux 6.4 has it.
    fn has_counter_offset(&self) -> bool {
        true
    }

    /// `KVM_ARM_SET_COUNTER_OFFSET`.
    ///
    /// # Errors
    /// `EBUSY` while a vCPU ioctl is in flight, `EINVAL` for a protected VM.
    fn set_counter_offset(&self, offset: u64) -> Result<(), Errno>;

    /// How many vCPUs the VM has.
    fn vcpus(&self) -> u32;
}

/// A counter was not saved or restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Arm64Error {
    /// The state is of another architecture.
    #[error("the saved state is of x86, this VM is of arm64: restore on the same architecture")]
    Architecture,
    /// The state is of another number of vCPUs.
    #[error("the saved state has {saved} vCPUs, the VM has {given}: create as many as were saved")]
    VcpuCount {
        /// In the state.
        saved: u32,
        /// In the VM.
        given: u32,
    },
    /// More had passed than the policy allows.
    #[error(transparent)]
    Jump(#[from] Jump),
    /// The counter would advance by 2^63 or more, which looks like a step back.
    #[error(
        "guest time is to advance by {advance_ns} ns, at {counter_hz} Hz 2^63 ticks or more: check \
         the wall clocks of both hosts, or choose Policy::AtMost or Policy::Stopped"
    )]
    Overflow {
        /// By how much guest time is to advance.
        advance_ns: u64,
        /// `CNTFRQ_EL0`.
        counter_hz: u32,
    },
    /// This host's wall clock is behind the source's at the save.
    #[error(transparent)]
    WallClockBehind(#[from] WallClockBehind),
    /// The wall clocks of the hosts differ by more than [`Options::wall_clocks`] trusts.
    #[error(transparent)]
    WallClocksDiffer(#[from] WallClocksDiffer),
    /// The readings have a width, and exactness was demanded.
    #[error(
        "the saved offset was worked out from the guest's counter, to {bound_ns} ns: save with \
         the offset that the VMM had set, or accept the bound with Inexact::Accept"
    )]
    Inexact {
        /// How far off.
        bound_ns: u64,
    },
    /// KVM has no such offset.
    #[error(
        "this KVM has no KVM_CAP_COUNTER_OFFSET (Linux before 6.4): the counter can be set by value \
         only, and what the writing thread is delayed is added to guest time; restore on a newer \
         kernel"
    )]
    NoOffset,
    /// KVM took the offset and the guest's counter is elsewhere.
    #[error(
        "wrote counter offset {wanted:#x}; the guest's counter reads {read}, which must lie from \
         {least} to {most}. Do not run the vCPUs: this KVM ignores offsets"
    )]
    OffsetNotTaken {
        /// What was written.
        wanted: u64,
        /// What the counter read.
        read: u64,
        /// Where it would have been before it was read.
        least: u64,
        /// And after.
        most: u64,
    },
    /// A value that no state can hold: it could be written, but never loaded.
    #[error("{0}")]
    Unloadable(#[from] Unloadable),
    /// The arithmetic refused.
    #[error(transparent)]
    Arithmetic(#[from] CounterMigrationError),
    /// An ioctl.
    #[error(transparent)]
    Ioctl(#[from] IoctlError),
}

/// What a restore of a counter did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Arm64Explanation {
    /// Saved offset, in ticks; wraps.
    pub offset_from: u64,
    /// New offset.
    pub offset_to: u64,
    /// What the guest's counter read when it was saved.
    pub count_at_save: u64,
    /// What it reads at the anchor.
    pub count_at_anchor: u64,
    /// What had passed by the hosts' wall clocks, in ns; less than 0 where this host's is behind. Without the
    /// difference that [`Options::wall_clocks`] states, unless guest time stands still.
    pub elapsed_ns: i128,
    /// By how much guest time advanced, in ns.
    pub advanced_ns: u64,
    /// Most that the counter can be off the policy's time, in ns. `u64::MAX`: not known, since this
    /// host's wall clock is behind the source's.
    pub bound_ns: u64,
    /// What the guest needs in addition to its counter. arm64 has no notice of a pause.
    pub for_guest: ForGuest,
}

impl Arm64Explanation {
    /// Whether only rounding and the width of the readings are between the guest's counter and the ideal.
    #[cfg(any(test, all(feature = "capi", target_arch = "aarch64")))]
    pub(crate) fn is_exact(&self, saved: &Arm64State, policy: Policy) -> bool {
        let is_behind = policy != Policy::Stopped && self.elapsed_ns < 0;
        saved.offset_bound_ticks == 0 && !is_behind
    }
}

fn ticks_to_ns(ticks: u64, hz: u32) -> u64 {
    let ns = (u128::from(ticks) * 1_000_000_000).div_ceil(u128::from(hz.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

impl GuestClocks {
    /// Saves the counter of a stopped arm64 guest. `offset` is the one that the VMM has set with
    /// `KVM_ARM_SET_COUNTER_OFFSET`, if it has: KVM does not report it. Without it the offset is computed
    /// from the guest's counter, with a bound.
    ///
    /// # Errors
    /// [`Arm64Error::Ioctl`], [`Arm64Error::Arithmetic`] for a frequency of 0, and
    /// [`Arm64Error::Unloadable`] for a VM without vCPUs or with more than
    /// [`MAX_VCPUS`](crate::MAX_VCPUS).
    pub fn save_arm64<V: Arm64Vm>(vm: &V, offset: Option<u64>) -> Result<Saved, Arm64Error> {
        let hz = vm.counter_hz();
        if hz == 0 {
            return Err(CounterMigrationError::FrequencyZero { hz }.into());
        }
        let instant = Bracket::narrowest(|| vm.bracket());
        let (counter_offset, offset_bound_ticks) = match offset {
            Some(offset) => (offset, 0),
            None => measured_offset(vm)?,
        };
        Ok(Saved::of_guest(State::Arm64(Arm64State {
            counter_hz: hz,
            counter_offset,
            offset_bound_ticks,
            host_count: instant.tsc(),
            realtime_ns: instant.realtime_ns,
            vcpus: vm.vcpus(),
            // The wall clock was read between the two: at most this far from their middle.
            instant_bound_ticks: instant.width().div_ceil(2),
        }))?)
    }
}

fn measured_offset<V: Arm64Vm>(vm: &V) -> Result<(u64, u64), IoctlError> {
    let mut best = (0, u64::MAX);
    for _ in 0..ATTEMPTS {
        let host_count = vm.bracket().tsc_after;
        let guest = vm.guest_counter();
        let guest = guest.map_err(of("KVM_GET_ONE_REG(CNTVCT_EL0)", None))?;
        let width = vm.bracket().tsc_before.wrapping_sub(host_count);
        let offset = host_count.wrapping_add(width / 2).wrapping_sub(guest);
        if width < best.1 {
            best = (offset, width / 2 + 1);
        }
    }
    Ok(best)
}

/// A checked restore of a counter, not yet carried out. Repeatable: the offset is a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm64Plan(Arm64Explanation);

impl Arm64Plan {
    /// What it will do.
    #[must_use]
    pub const fn explanation(&self) -> &Arm64Explanation {
        &self.0
    }

    /// Writes the offset, and looks whether the guest's counter went there.
    ///
    /// # Errors
    /// [`Arm64Error::Ioctl`] if nothing was written, or the counter cannot be read afterwards;
    /// [`Arm64Error::OffsetNotTaken`].
    pub fn carry_out<V: Arm64Vm>(&self, vm: &V) -> Result<Arm64Explanation, Arm64Error> {
        let wanted = self.0.offset_to;
        let set = vm.set_counter_offset(wanted);
        set.map_err(of("KVM_ARM_SET_COUNTER_OFFSET", None))?;
        let least = guest_count(vm.bracket().tsc_after, wanted);
        let read = vm.guest_counter();
        let read = read.map_err(of("KVM_GET_ONE_REG(CNTVCT_EL0)", None))?;
        let limit = guest_count(vm.bracket().tsc_before, wanted);
        // Counters wrap: how far into the interval, not which is larger.
        if read.wrapping_sub(least) > limit.wrapping_sub(least) {
            return Err(Arm64Error::OffsetNotTaken {
                wanted,
                read,
                least,
                most: limit,
            });
        }
        Ok(self.0)
    }
}

impl Saved {
    /// Restores the counter into an arm64 VM that has not run yet. It may be repeated at any later time:
    /// the outcome is the same within the width of the readings. A repeated
    /// [plan](Saved::plan_arm64) has exactly the same outcome.
    ///
    /// # Errors
    /// [`Arm64Error`]; nothing is written unless everything was in order.
    pub fn restore_arm64<V: Arm64Vm>(
        &self,
        vm: &V,
        options: impl Into<Options>,
    ) -> Result<Arm64Explanation, Arm64Error> {
        self.plan_arm64(vm, &options.into())?.carry_out(vm)
    }

    /// Plans a restore of the counter. Only reads.
    ///
    /// # Errors
    /// [`Arm64Error`], with every operand.
    pub fn plan_arm64<V: Arm64Vm>(
        &self,
        vm: &V,
        options: &Options,
    ) -> Result<Arm64Plan, Arm64Error> {
        let State::Arm64(saved) = self.state() else {
            return Err(Arm64Error::Architecture);
        };
        if saved.vcpus != vm.vcpus() {
            return Err(Arm64Error::VcpuCount {
                saved: saved.vcpus,
                given: vm.vcpus(),
            });
        }
        if !vm.has_counter_offset() {
            return Err(Arm64Error::NoOffset);
        }
        let bound_ns = ticks_to_ns(saved.offset_bound_ticks, saved.counter_hz);
        if bound_ns != 0 && options.inexact == Inexact::Refuse {
            return Err(Arm64Error::Inexact { bound_ns });
        }
        let bracket = Bracket::narrowest(|| vm.bracket());
        let count = bracket.tsc();
        let apart_ns = i128::from(bracket.realtime_ns) - i128::from(saved.realtime_ns);
        let elapsed_ns = options.pause_ns(apart_ns)?;
        let forward = u64::try_from(elapsed_ns.max(0)).unwrap_or(u64::MAX);
        let advanced_ns = options.policy.advance(forward)?;
        let skew_ns = options.uncertainty.realtime_skew_ns;
        let is_behind = options.behind_ns(elapsed_ns)? > skew_ns;
        let side = |count, hz| CounterSide { count, hz };
        let moved: MigratedCounter = migrate(
            side(saved.host_count, saved.counter_hz),
            side(count, vm.counter_hz()),
            saved.counter_offset,
            advanced_ns,
            options.uncertainty.frequency_error_ppb,
        )?;
        if moved.added_ticks > i64::MAX as u128 {
            return Err(Arm64Error::Overflow {
                advance_ns: advanced_ns,
                counter_hz: saved.counter_hz,
            });
        }
        let reading_ns = ticks_to_ns(bracket.width(), saved.counter_hz);
        let width_ns =
            reading_ns.saturating_add(ticks_to_ns(saved.instant_bound_ticks, saved.counter_hz));
        let count_at_anchor = guest_count(count, moved.offset);
        Ok(Arm64Plan(Arm64Explanation {
            offset_from: saved.counter_offset,
            offset_to: moved.offset,
            count_at_save: guest_count(saved.host_count, saved.counter_offset),
            count_at_anchor,
            elapsed_ns,
            advanced_ns,
            bound_ns: moved
                .bound_ns
                .saturating_add(bound_ns)
                .saturating_add(width_ns)
                .saturating_add(if is_behind { u64::MAX } else { skew_ns }),
            for_guest: ForGuest {
                notified_vcpus: 0,
                vmclock_counter: count_at_anchor,
                vmclock_utc_ns: bracket.realtime_ns,
                vmclock_max_error_ns: reading_ns,
                wall_clock_late_ns: narrow(apart_ns - i128::from(advanced_ns)),
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeArm64Vm, FakeHost};

    /// As on x86: guest time that stands still because this host's wall clock is behind is not exact.
    #[test]
    fn a_restore_with_an_unknown_pause_or_offset_is_not_exact() {
        let host = FakeHost::new(1_000_000);
        let vm = FakeArm64Vm::new(&host, 1);
        let save = |offset| GuestClocks::save_arm64(&vm, offset).expect("a state");
        let (known, measured) = (save(Some(0)), save(None));
        let is_exact = |saved: &Saved, policy| {
            let options = Options::new(policy).accept_inexact();
            let done = saved.restore_arm64(&vm, options).expect("a restore");
            let State::Arm64(state) = saved.state() else {
                panic!("a state of arm64");
            };
            done.is_exact(state, policy)
        };
        assert!(is_exact(&known, Policy::ELAPSED) && !is_exact(&measured, Policy::ELAPSED));
        host.step_wall_clock(-60_000_000_000);
        assert!(!is_exact(&known, Policy::ELAPSED));
        // Stopped guest time needs no wall clock.
        assert!(is_exact(&known, Policy::Stopped));
    }
}
