//! Writing a plan: counters, then the clock, then the timers. The types allow no other order.
//!
//! ```text
//!  Plan ─write_counters─▶ CountersWritten ─write_clock─▶ ClockWritten ─arm_timers─▶ TimersArmed
//!                                                                        ─finish─▶ Explanation
//! ```
//!
//! Counters come first: `KVM_SET_CLOCK` takes a new snapshot of the master clock, and must find all
//! vCPUs matched. Then the master clock is on before the first vCPU runs. Deadlines are in guest
//! cycles, so they are armed after the TSC is set.

use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KVM_CLOCK_TSC_STABLE, KvmClockData,
};

use crate::device::{
    MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE, MsrValue, TscMeans, Vcpu, Vm,
};
use crate::error::{Errno, IoctlError, RestoreError};
use crate::explanation::{Explanation, ForGuest, Reason};
use crate::plan::{Plan, PlannedVcpu, SLEW_PPB};
use crate::policy::Options;
use crate::save::{cycles_to_ns, narrow, of, read_tsc, signed_ns};
use crate::saved::Saved;
use crate::written::Written;

impl Saved {
    /// Restores into a VM that has not run yet, which must have as many vCPUs. Their LAPICs and
    /// MSRs (without TSC, `TSC_ADJUST` and deadline) are restored before.
    ///
    /// Give a [`Policy`](crate::Policy) or [`Options`]. May be repeated, at any later time, with
    /// the same outcome: guest time goes by the wall clock since the save.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore<V: Vm, C: Vcpu>(
        &self,
        vm: &V,
        vcpus: &[C],
        options: impl Into<Options>,
    ) -> Result<Explanation, RestoreError> {
        self.plan(vm, vcpus, &options.into())?.carry_out(vm, vcpus)
    }
}

/// The steps so far.
#[derive(Debug)]
struct Progress<'a> {
    plan: &'a Plan,
    written: Vec<Written>,
    reasons: Vec<Reason>,
    extra_ns: u64,
    clock_extra_ns: u64,
}

impl Progress<'_> {
    fn partial(&self, failed: IoctlError) -> RestoreError {
        RestoreError::Partial {
            failed,
            written: self.written.clone(),
        }
    }

    fn did<T>(
        &mut self,
        written: Option<Written>,
        call: &'static str,
        vcpu: Option<usize>,
        result: Result<T, Errno>,
    ) -> Result<T, RestoreError> {
        match result {
            Ok(value) => {
                self.written.extend(written);
                Ok(value)
            }
            Err(errno) => Err(self.partial(of(call, vcpu)(errno))),
        }
    }
}

/// Counters are written; next is the clock.
#[must_use = "the guest's clock is not set yet"]
#[derive(Debug)]
pub struct CountersWritten<'a>(Progress<'a>);

/// Counters and clock are written; next are the timers.
#[must_use = "the guest's timers are not armed yet"]
#[derive(Debug)]
pub struct ClockWritten<'a> {
    progress: Progress<'a>,
    residual_ns: Option<i64>,
    flags: u32,
}

/// All is written; the vCPUs may run.
#[must_use = "the outcome is not checked yet"]
#[derive(Debug)]
pub struct TimersArmed<'a>(ClockWritten<'a>);

impl Plan {
    /// First step: frequencies where they differ, then TSC offsets.
    ///
    /// # Errors
    /// [`RestoreError`], with what had been written.
    pub fn write_counters<'a, V: Vm, C: Vcpu>(
        &'a self,
        vm: &V,
        vcpus: &[C],
    ) -> Result<CountersWritten<'a>, RestoreError> {
        self.check_count(vcpus.len())?;
        let mut progress = Progress {
            plan: self,
            written: Vec::new(),
            reasons: self.reasons.clone(),
            extra_ns: self.extra_ns,
            clock_extra_ns: self.clock_extra_ns,
        };
        progress.frequencies(vcpus)?;
        match self.host.means {
            TscMeans::Offsets => progress.offsets(vcpus)?,
            TscMeans::Values => progress.values(vm, vcpus)?,
            TscMeans::Fixed => {}
        }
        Ok(CountersWritten(progress))
    }
}

impl Progress<'_> {
    fn frequencies<C: Vcpu>(&mut self, vcpus: &[C]) -> Result<(), RestoreError> {
        let khz = self.plan.tsc_khz;
        for (index, (vcpu, planned)) in vcpus.iter().zip(&self.plan.vcpus).enumerate() {
            if planned.tsc_khz_from != khz {
                let step = Some(Written::Frequency(index));
                self.did(step, "KVM_SET_TSC_KHZ", Some(index), vcpu.set_tsc_khz(khz))?;
            }
        }
        Ok(())
    }

    fn offsets<C: Vcpu>(&mut self, vcpus: &[C]) -> Result<(), RestoreError> {
        let plan = self.plan;
        for (index, (vcpu, planned)) in vcpus.iter().zip(&plan.vcpus).enumerate() {
            let result = vcpu.set_tsc_offset(planned.offset_to);
            let step = Some(Written::Counter(index));
            self.did(step, "KVM_SET_DEVICE_ATTR", Some(index), result)?;
        }
        // A KVM that ignores offsets says so only here.
        for (index, (vcpu, planned)) in vcpus.iter().zip(&plan.vcpus).enumerate() {
            let read = self.did(None, "KVM_GET_DEVICE_ATTR", Some(index), vcpu.tsc_offset())?;
            if read != planned.offset_to {
                return Err(RestoreError::OffsetNotTaken {
                    vcpu: index,
                    wanted: planned.offset_to,
                    read,
                    written: self.written.clone(),
                });
            }
        }
        Ok(())
    }

    /// Writes by value: the present value to the first vCPU, 0 to the others. KVM takes 0 as "equal to
    /// the first", after any delay (`kvm_synchronize_tsc`). The outcome is measured.
    fn values<V: Vm, C: Vcpu>(&mut self, vm: &V, vcpus: &[C]) -> Result<(), RestoreError> {
        let plan = self.plan;
        let format = plan.host.format;
        for (index, (vcpu, planned)) in vcpus.iter().zip(&plan.vcpus).enumerate() {
            let now = format.scale(vm.bracket().tsc_after, plan.ratio);
            let value = match index {
                0 => planned.offset_to.wrapping_add(now),
                _ => 0,
            };
            let result = vcpu.set_msr(MSR_IA32_TSC, value);
            let call = "KVM_SET_MSRS(IA32_TSC)";
            if !self.did(Some(Written::Counter(index)), call, Some(index), result)? {
                return Err(self.partial(of(call, Some(index))(Errno(libc::EINVAL))));
            }
        }
        let mut worst = 0;
        for (index, (vcpu, planned)) in vcpus.iter().zip(&plan.vcpus).enumerate() {
            let read = read_tsc(vm, &plan.host, plan.ratio, index, vcpu);
            let read = read.map_err(|failed| self.partial(failed))?;
            let error = read.offset().wrapping_sub(planned.offset_to) as i64;
            worst = worst.max(error.unsigned_abs().saturating_add(read.width()));
        }
        let bound_ns = cycles_to_ns(worst, plan.tsc_khz);
        self.extra_ns = self.extra_ns.saturating_add(bound_ns);
        self.reasons.push(Reason::ByValue { bound_ns });
        Ok(())
    }

    fn set_clock<V: Vm>(&mut self, vm: &V, data: &KvmClockData) -> Result<(), RestoreError> {
        let step = Some(Written::Clock).filter(|w| !self.written.contains(w));
        self.did(step, "KVM_SET_CLOCK", None, vm.set_clock(data))
    }

    /// On a KVM without `KVM_CLOCK_REALTIME` the time since the anchor is added here.
    fn set_clock_by_value<V: Vm>(&mut self, vm: &V) -> Result<(), RestoreError> {
        let plan = self.plan;
        let mut bound_ns = u64::MAX;
        for _ in 0..CLOCK_ATTEMPTS {
            let bracket = vm.bracket();
            let elapsed_ns = bracket.realtime_ns.saturating_sub(plan.anchor.realtime_ns);
            let data = KvmClockData {
                clock_ns: plan.clock_ns.saturating_add(elapsed_ns),
                ..KvmClockData::default()
            };
            self.set_clock(vm, &data)?;
            let width = vm.bracket().tsc_after.wrapping_sub(bracket.tsc_before);
            bound_ns = cycles_to_ns(width, plan.host.tsc_khz);
            if bound_ns <= CLOSE_BY_VALUE_NS {
                break;
            }
        }
        self.extra_ns = self.extra_ns.saturating_add(bound_ns);
        self.clock_extra_ns = self.clock_extra_ns.saturating_add(bound_ns);
        self.reasons.push(Reason::NoRealtimeFlag { bound_ns });
        Ok(())
    }
}

/// Attempts of `KVM_SET_CLOCK`. KVM reads the wall clock a moment after the instant that it counts from,
/// and can be interrupted between the two.
const CLOCK_ATTEMPTS: usize = 8;
/// Residual that ends the attempts, in ns. It is well below the moment above, which has one sign: it would
/// add up over a guest's restores.
const CLOSE_NS: u64 = 8;
/// The same by value, in ns: there the two readings around the call bound the error.
const CLOSE_BY_VALUE_NS: u64 = 100;

impl<'a> CountersWritten<'a> {
    /// Second step: the kvmclock, as what it was at the anchor's wall clock.
    ///
    /// # Errors
    /// [`RestoreError`], with what had been written.
    pub fn write_clock<V: Vm>(self, vm: &V) -> Result<ClockWritten<'a>, RestoreError> {
        let Self(mut progress) = self;
        if progress.plan.host.clock_flags & KVM_CLOCK_REALTIME == 0 {
            progress.set_clock_by_value(vm)?;
            let data = progress.did(None, "KVM_GET_CLOCK", None, vm.get_clock())?;
            return Ok(ClockWritten {
                progress,
                residual_ns: None,
                flags: data.flags,
            });
        }
        let mut best = i64::MAX;
        // Time between KVM's two readings in ns, at each attempt.
        let mut delays = Vec::with_capacity(2 * CLOCK_ATTEMPTS);
        let mut lower_ns = 0;
        loop {
            let data = progress.plan.clock_data(lower_ns);
            progress.set_clock(vm, &data)?;
            let read = progress.did(None, "KVM_GET_CLOCK", None, vm.get_clock())?;
            let residual_ns = progress.plan.residual_by_wall_clock(&read);
            let residual = residual_ns.unwrap_or(0);
            let error_ns = residual.saturating_abs();
            delays.push(residual.saturating_add_unsigned(lower_ns));
            // After CLOCK_ATTEMPTS the best of them ends the loop.
            let enough = delays.len() >= CLOCK_ATTEMPTS && error_ns <= best;
            best = best.min(error_ns);
            if error_ns.unsigned_abs() <= CLOSE_NS || enough || delays.len() >= 2 * CLOCK_ATTEMPTS {
                return progress.clock_written(&read, residual_ns);
            }
            lower_ns = usual(&mut delays);
        }
    }
}

/// The lower median: an interruption only adds, and half of the attempts go without one.
fn usual(delays: &mut [i64]) -> u64 {
    delays.sort_unstable();
    let middle = delays.len().saturating_sub(1) / 2;
    delays
        .get(middle)
        .map_or(0, |ns| (*ns).max(0).unsigned_abs())
}

impl Plan {
    /// kvmclock minus what it was planned to be at this wall clock, if read in one instant.
    fn residual_by_wall_clock(&self, read: &KvmClockData) -> Option<i64> {
        if !one_instant(read) {
            return None;
        }
        let elapsed_ns = i128::from(read.realtime_ns) - i128::from(self.anchor.realtime_ns);
        let planned = i128::from(self.clock_ns) + elapsed_ns.max(0);
        Some(narrow(i128::from(read.clock_ns) - planned))
    }

    /// The same by the host's TSC, which cannot be stepped.
    fn residual_by_tsc(&self, read: &KvmClockData) -> Option<i64> {
        if !one_instant(read) {
            return None;
        }
        let cycles = read.host_tsc.wrapping_sub(self.anchor.host_tsc) as i64;
        let planned = i128::from(self.clock_ns) + i128::from(signed_ns(cycles, self.host.tsc_khz));
        Some(narrow(i128::from(read.clock_ns) - planned))
    }
}

impl Plan {
    /// What the guest needs after a restore that notified so many of its vCPUs.
    pub(crate) fn for_guest(&self, notified_vcpus: usize, inexact_ns: u64) -> ForGuest {
        // By this host's wall clock, whatever is known of the source's.
        let apart_ns = i128::from(self.anchor.realtime_ns) - i128::from(self.saved.realtime_ns);
        let late_ns = apart_ns - i128::from(self.account.kvmclock_elapsed_ns);
        ForGuest {
            notified_vcpus,
            vmclock_counter: self.vcpus.first().map_or(0, |vcpu| vcpu.tsc_at_anchor),
            vmclock_utc_ns: self.anchor.realtime_ns,
            vmclock_max_error_ns: self.anchor.bound_ns.saturating_add(inexact_ns),
            wall_clock_late_ns: narrow(late_ns),
        }
    }
}

fn one_instant(read: &KvmClockData) -> bool {
    let needed = KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
    read.flags & needed == needed
}

impl<'a> Progress<'a> {
    fn clock_written(
        mut self,
        read: &KvmClockData,
        residual_ns: Option<i64>,
    ) -> Result<ClockWritten<'a>, RestoreError> {
        let late_ns = residual_ns.unwrap_or(0).unsigned_abs();
        if let Some(off_ns) = self.plan.residual_by_tsc(read) {
            let cycles = read.host_tsc.wrapping_sub(self.plan.anchor.host_tsc);
            let since_ns = u128::from(cycles_to_ns(cycles, self.plan.host.tsc_khz));
            let slewed = (since_ns * u128::from(SLEW_PPB)).div_ceil(1_000_000_000);
            let slewed = u64::try_from(slewed).unwrap_or(u64::MAX);
            let bound_ns = late_ns
                .saturating_add(slewed)
                .saturating_add(self.plan.anchor.bound_ns)
                .saturating_add(10_000);
            if off_ns.unsigned_abs() > bound_ns {
                return Err(RestoreError::ClockStepped {
                    off_ns,
                    bound_ns,
                    written: self.written,
                });
            }
            self.extra_ns = self.extra_ns.saturating_add(off_ns.unsigned_abs());
            self.clock_extra_ns = self.clock_extra_ns.saturating_add(late_ns);
        }
        Ok(ClockWritten {
            progress: self,
            residual_ns,
            flags: read.flags,
        })
    }
}

impl Progress<'_> {
    /// Writes `TSC_ADJUST`, which does not move the counter if the host writes it, then the deadline, in
    /// one call. Returns which of the two read back as another value than the one written, unless 0.
    fn timer<C: Vcpu>(
        &mut self,
        id: usize,
        vcpu: &C,
        planned: &PlannedVcpu,
    ) -> Result<Missing, RestoreError> {
        let msr = |index, value: Option<u64>| value.map(|value| MsrValue { index, value });
        let adjust = msr(MSR_IA32_TSC_ADJUST, planned.tsc_adjust);
        let deadline = msr(MSR_IA32_TSC_DEADLINE, planned.tsc_deadline);
        let write_one = |msr: MsrValue| vcpu.set_msr(msr.index, msr.value).map(usize::from);
        let (wanted, call, accepted) = match (adjust, deadline) {
            (Some(a), Some(d)) => {
                let call = "KVM_SET_MSRS(IA32_TSC_ADJUST, IA32_TSC_DEADLINE)";
                (2, call, vcpu.set_two_msrs([a, d]))
            }
            (Some(a), None) => (1, "KVM_SET_MSRS(IA32_TSC_ADJUST)", write_one(a)),
            (None, Some(d)) => (1, "KVM_SET_MSRS(IA32_TSC_DEADLINE)", write_one(d)),
            (None, None) => return Ok(Missing::default()),
        };
        let accepted = self.did(None, call, Some(id), accepted)?;
        let written = [
            adjust.map(|_| Written::Adjust(id)),
            deadline.map(|_| Written::Deadline(id)),
        ];
        self.written
            .extend(written.into_iter().flatten().take(accepted));
        if accepted < wanted {
            return Err(self.partial(of(call, Some(id))(Errno(libc::EINVAL))));
        }
        let adjust = planned.tsc_adjust.filter(|adjust| *adjust != 0);
        if adjust.is_none() && planned.tsc_deadline.is_none() {
            return Ok(Missing::default());
        }
        let registers = vcpu.two_msrs([MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE]);
        let call = "KVM_GET_MSRS(IA32_TSC_ADJUST, IA32_TSC_DEADLINE)";
        let [adjust_read, deadline_read] = self.did(None, call, Some(id), registers)?;
        Ok(Missing {
            adjust: adjust.is_some() && adjust_read != adjust,
            deadline: planned.tsc_deadline.is_some() && deadline_read != planned.tsc_deadline,
        })
    }
}

/// Registers that do not keep their value.
#[derive(Clone, Copy, Debug, Default)]
struct Missing {
    adjust: bool,
    deadline: bool,
}

impl<'a> ClockWritten<'a> {
    /// Third step: `TSC_ADJUST`, deadlines, and the notice of the pause.
    ///
    /// # Errors
    /// [`RestoreError`], with what had been written.
    pub fn arm_timers<C: Vcpu>(mut self, vcpus: &[C]) -> Result<TimersArmed<'a>, RestoreError> {
        let progress = &mut self.progress;
        let plan = progress.plan;
        plan.check_count(vcpus.len())?;
        let (mut not_armed, mut not_adjusted, mut not_notified) = (0, 0, 0);
        for (index, (vcpu, planned)) in vcpus.iter().zip(&plan.vcpus).enumerate() {
            let missing = progress.timer(index, vcpu, planned)?;
            not_armed += usize::from(missing.deadline);
            not_adjusted += usize::from(missing.adjust);
            match vcpu.kvmclock_ctrl() {
                Ok(()) => progress.written.push(Written::Stopped(index)),
                Err(Errno(libc::EINVAL)) => not_notified += 1,
                Err(errno) => {
                    return Err(progress.partial(of("KVM_KVMCLOCK_CTRL", Some(index))(errno)));
                }
            }
        }
        let reasons = [
            Reason::DeadlinesNotArmed { vcpus: not_armed },
            Reason::AdjustsNotTaken {
                vcpus: not_adjusted,
            },
            Reason::NotToldOfPause {
                vcpus: not_notified,
            },
        ];
        let counts = [not_armed, not_adjusted, not_notified];
        let failures = reasons.into_iter().zip(counts).filter(|(_, n)| *n > 0);
        progress.reasons.extend(failures.map(|(reason, _)| reason));
        Ok(TimersArmed(self))
    }
}

impl TimersArmed<'_> {
    /// Last step: checks the master clock, and makes the account of the restore.
    ///
    #[must_use]
    pub fn finish(self) -> Explanation {
        let Self(ClockWritten {
            progress,
            residual_ns,
            flags,
        }) = self;
        let plan = progress.plan;
        let mut reasons = progress.reasons;
        let master_clock = flags & KVM_CLOCK_TSC_STABLE != 0;
        if !master_clock {
            reasons.push(Reason::MasterClockOff { flags });
        }
        let is_notice = |written: &&Written| matches!(written, Written::Stopped(_));
        let for_guest = plan.for_guest(
            progress.written.iter().filter(is_notice).count(),
            progress.extra_ns,
        );
        Explanation {
            clock_residual_ns: residual_ns,
            master_clock,
            for_guest,
            reasons,
            ..plan.explain(progress.extra_ns, progress.clock_extra_ns)
        }
    }
}
