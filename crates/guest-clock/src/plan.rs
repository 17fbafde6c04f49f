//! What a restore will write, computed and checked before anything is written.
//!
//! A plan is anchored at one instant of the destination (wall clock, host TSC). From there on
//! the guest's clocks are straight lines: kvmclock is written as "this much at that wall clock",
//! the TSC as an offset. So it does not matter when a plan is carried out, or how often.

use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KvmClockData,
};
use stealtime_hypervisor::counter::migration::{Account, Side, Uncertainty, by_offsets};
use stealtime_hypervisor::counter::scaling::TscRate;

use crate::device::{Bracket, HostFacts, NoAnswer, TscMeans, Vcpu, Vm};
use crate::error::{NoThread, PlanError};
use crate::explanation::{Explanation, OffsetsOutcome, Reason, VcpuExplanation};
use crate::policy::{Inexact, Options, Policy, Unequal};
use crate::save::{cycles_to_ns, of, read_tsc, signed_ns};
use crate::saved::{Instant, Saved, State, X86State, format};
use crate::vcpus;

/// How far the kernel lets the wall clock be slewed against the TSC, in parts per billion
/// (`MAXFREQ`: 500 ppm).
pub(crate) const SLEW_PPB: u64 = 500_000;

/// One vCPU's part of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedVcpu {
    /// The frequency that the vCPU was created with, in kHz; it gets the guest's.
    pub tsc_khz_from: u32,
    /// Saved offset, in cycles; wraps.
    pub offset_from: u64,
    /// New offset.
    pub offset_to: u64,
    /// What the guest's TSC read when it was saved.
    pub tsc_at_save: u64,
    /// What it will read at the anchor.
    pub tsc_at_anchor: u64,
    /// `IA32_TSC_ADJUST` to write, if it was saved.
    pub tsc_adjust: Option<u64>,
    /// `IA32_TSC_DEADLINE` to arm, in guest cycles; `None` if none was armed.
    pub tsc_deadline: Option<u64>,
}

/// A checked restore, not yet carried out. Repeatable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(crate) options: Options,
    pub(crate) host: HostFacts,
    pub(crate) tsc_khz: u32,
    pub(crate) ratio: u64,
    pub(crate) saved: Instant,
    pub(crate) anchor: Anchor,
    pub(crate) clock_ns: u64,
    pub(crate) elapsed_ns: i128,
    pub(crate) vcpus: Vec<PlannedVcpu>,
    pub(crate) account: Account,
    pub(crate) reasons: Vec<Reason>,
    /// What else the TSC, and the kvmclock, can be off by.
    pub(crate) extra_ns: u64,
    pub(crate) clock_extra_ns: u64,
}

/// The destination's instant that a plan hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Its wall clock, ns since the epoch.
    pub realtime_ns: u64,
    /// Its TSC.
    pub host_tsc: u64,
    /// The two were read within this many ns; 0 if as one.
    pub bound_ns: u64,
}

impl Saved {
    /// Plans a restore into a VM that has not run yet. Only reads.
    ///
    /// # Errors
    /// [`PlanError`], with every operand.
    pub fn plan<V: Vm, C: Vcpu>(
        &self,
        vm: &V,
        vcpus: &[C],
        options: &Options,
    ) -> Result<Plan, PlanError> {
        let State::X86(x86) = self.state() else {
            return Err(PlanError::Architecture {
                saved: "arm64",
                here: "x86",
            });
        };
        if vcpus.len() != x86.vcpus.len() {
            return Err(PlanError::VcpuCount {
                saved: x86.vcpus.len(),
                given: vcpus.len(),
            });
        }
        let frequencies = C::frequencies(vcpus, options.stopping)?;
        vcpus::check(vm, vcpus)?;
        let host = vm.host()?;
        let anchor = anchor(vm, &host);
        let mut plan = plan_from(x86, &host, anchor, options)?;
        for (planned, khz) in plan.vcpus.iter_mut().zip(frequencies) {
            planned.tsc_khz_from = khz;
        }
        match host.means {
            TscMeans::Offsets => {}
            TscMeans::Fixed => plan.settle_for_fixed(vm, vcpus)?,
            // KVM gives all vCPUs the first one's offset.
            TscMeans::Values => plan.offsets_came_out(OffsetsOutcome::MadeEqual),
        }
        plan.check_backwards()?;
        Ok(plan)
    }
}

/// The same without a device: what a restore would do on a host like this, at this instant.
///
/// # Errors
/// [`PlanError`].
pub fn rehearse(
    saved: &Saved,
    host: &HostFacts,
    anchor: Anchor,
    options: &Options,
) -> Result<Plan, PlanError> {
    let State::X86(x86) = saved.state() else {
        return Err(PlanError::Architecture {
            saved: "arm64",
            here: "x86",
        });
    };
    let plan = plan_from(x86, host, anchor, options)?;
    plan.check_backwards()?;
    Ok(plan)
}

impl From<NoAnswer> for PlanError {
    fn from(answer: NoAnswer) -> Self {
        match answer {
            NoAnswer::Busy { vcpu } => Self::Busy { vcpu },
            NoAnswer::NoThread { errno } => Self::NoThread(NoThread { errno }),
            NoAnswer::Failed { vcpu, errno } => of("KVM_GET_TSC_KHZ", Some(vcpu))(errno).into(),
        }
    }
}

fn anchor<V: Vm>(vm: &V, host: &HostFacts) -> Anchor {
    if let Some((realtime_ns, host_tsc)) = vm.host_instant() {
        return Anchor {
            realtime_ns,
            host_tsc,
            bound_ns: 0,
        };
    }
    let bracket = Bracket::narrowest(|| vm.bracket());
    Anchor {
        realtime_ns: bracket.realtime_ns,
        host_tsc: bracket.tsc(),
        bound_ns: cycles_to_ns(bracket.width(), host.tsc_khz).max(1),
    }
}

fn plan_from(
    x86: &X86State,
    host: &HostFacts,
    anchor: Anchor,
    options: &Options,
) -> Result<Plan, PlanError> {
    let mut reasons = Vec::new();
    let ratio = destination_ratio(x86, host, &mut reasons)?;
    let extra_ns = instants(x86, &anchor, host, options, &mut reasons)?;
    let (advance_ns, elapsed_ns) = advance(&x86.instant, &anchor, options, &mut reasons)?;
    let clock_ns = x86.instant.clock_ns.checked_add(advance_ns);
    let clock_ns = clock_ns.ok_or(PlanError::ClockOverflow {
        clock_ns: x86.instant.clock_ns,
        advance_ns,
    })?;
    let source_format = format(x86.frac_bits).unwrap_or(host.format);
    let source = Side {
        clock: one_instant(
            x86.instant.clock_ns,
            x86.instant.realtime_ns,
            x86.instant.host_tsc,
        ),
        format: source_format,
        ratio: x86.ratio,
    };
    // By the source's wall clock, as far as the difference is known.
    let realtime_ns = match options.policy {
        Policy::Stopped => anchor.realtime_ns,
        _ => anchor
            .realtime_ns
            .saturating_add_signed(options.wall_clocks.ahead_ns.saturating_neg()),
    };
    let destination = Side {
        clock: one_instant(clock_ns, realtime_ns, anchor.host_tsc),
        format: host.format,
        ratio,
    };
    let known = known(&source, options, &mut reasons);
    let mut moved = by_offsets(&source, &destination, x86.tsc_khz, &known)?;
    let rate_ns = own_rate(x86, &source, advance_ns, &mut reasons);
    let account = &mut moved.account;
    account.tsc_against_its_rate_ns = account.tsc_against_its_rate_ns.saturating_add(rate_ns);
    if reasons
        .iter()
        .any(|r| matches!(r, Reason::WallClockBehind { by_ns } if *by_ns > known.realtime_skew_ns))
    {
        // How much time has passed is not known, so no number bounds what the guest lacks of it.
        account.kvmclock_against_real_ns = u64::MAX;
        account.tsc_against_its_rate_ns = u64::MAX;
    }
    if moved.account.added_cycles > i64::MAX as u128 {
        return Err(PlanError::TscOverflow {
            advance_ns,
            tsc_khz: x86.tsc_khz,
        });
    }
    let scaled_source = source_format.scale(x86.instant.host_tsc, x86.ratio);
    let scaled_anchor = host.format.scale(anchor.host_tsc, ratio);
    let offsets = aligned_offsets(x86, options, &mut reasons)?;
    let vcpus = x86.vcpus.iter().zip(offsets).map(|(vcpu, offset)| {
        let offset_to = moved.offset(offset);
        PlannedVcpu {
            tsc_khz_from: x86.tsc_khz,
            offset_from: vcpu.tsc_offset,
            offset_to,
            tsc_at_save: vcpu.tsc_offset.wrapping_add(scaled_source),
            tsc_at_anchor: offset_to.wrapping_add(scaled_anchor),
            tsc_adjust: vcpu.tsc_adjust,
            tsc_deadline: vcpu.tsc_deadline.filter(|deadline| *deadline != 0),
        }
    });
    Ok(Plan {
        options: *options,
        host: *host,
        tsc_khz: x86.tsc_khz,
        ratio,
        saved: x86.instant,
        anchor,
        clock_ns,
        elapsed_ns,
        vcpus: vcpus.collect(),
        account: moved.account,
        reasons,
        extra_ns,
        clock_extra_ns: extra_ns,
    })
}

/// A scaled guest has read a kvmclock that drifts from the one that KVM saves, since KVM took its master
/// clock. Without that age the bound counts from the beginning of the guest's clock.
fn known(source: &Side, options: &Options, reasons: &mut Vec<Reason>) -> Uncertainty {
    let mut known = options.uncertainty;
    if source.ratio != source.format.neutral() {
        if known.master_clock_age_ns == 0 {
            known.master_clock_age_ns = source.clock.clock_ns;
        }
        let age_ns = known.master_clock_age_ns;
        reasons.push(Reason::PageDrift { age_ns });
    }
    known
}

/// The error in ns of a guest that ran without scaling at another frequency than its own. The pause is
/// counted with the frequency that KVM reports to it.
fn own_rate(x86: &X86State, source: &Side, advance_ns: u64, reasons: &mut Vec<Reason>) -> u64 {
    let apart = u128::from(x86.tsc_khz.abs_diff(x86.host_tsc_khz));
    if apart == 0 || source.ratio != source.format.neutral() {
        return 0;
    }
    let off_ns = (u128::from(advance_ns) * apart).div_ceil(u128::from(x86.tsc_khz.max(1)));
    let off_ns = u64::try_from(off_ns).unwrap_or(u64::MAX);
    reasons.push(Reason::RanWithinTolerance {
        guest_khz: x86.tsc_khz,
        host_khz: x86.host_tsc_khz,
        off_ns,
    });
    off_ns
}

/// Readings that were not of one instant have bounds of their own, which the plan carries.
const fn one_instant(clock_ns: u64, realtime_ns: u64, host_tsc: u64) -> KvmClockData {
    KvmClockData {
        clock_ns,
        flags: KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC,
        realtime_ns,
        host_tsc,
    }
}

fn destination_ratio(
    x86: &X86State,
    host: &HostFacts,
    reasons: &mut Vec<Reason>,
) -> Result<u64, PlanError> {
    let refused = PlanError::Frequency {
        guest_khz: x86.tsc_khz,
        host_khz: host.tsc_khz,
        tolerance_ppm: host.tolerance_ppm,
        has_scaling: host.has_scaling,
    };
    let limit = host.host_tsc().max_guest_khz();
    let mut rate = TscRate::default();
    let set = rate.set_khz(&host.host_tsc(), x86.tsc_khz);
    if set.is_err() || rate.catchup || (host.has_scaling && x86.tsc_khz >= limit) {
        return Err(refused);
    }
    if rate.ratio != host.format.neutral() {
        reasons.push(Reason::Scaled {
            guest_khz: x86.tsc_khz,
            host_khz: host.tsc_khz,
            ratio: rate.ratio,
        });
    } else if x86.tsc_khz != host.tsc_khz {
        let apart = u64::from(x86.tsc_khz.abs_diff(host.tsc_khz));
        reasons.push(Reason::WithinTolerance {
            guest_khz: x86.tsc_khz,
            host_khz: host.tsc_khz,
            drift_ppb: (apart * 1_000_000_000).div_ceil(u64::from(x86.tsc_khz)),
        });
    }
    Ok(rate.ratio)
}

/// What is lost because clocks were not read in one instant, in ns.
fn instants(
    x86: &X86State,
    anchor: &Anchor,
    host: &HostFacts,
    options: &Options,
    reasons: &mut Vec<Reason>,
) -> Result<u64, PlanError> {
    let widest = x86.vcpus.iter().map(|v| v.offset_bound_cycles).max();
    let by_value_ns = cycles_to_ns(widest.unwrap_or(0), x86.tsc_khz);
    let saved_ns = x86.instant.bound_ns.saturating_add(by_value_ns);
    for (at_save, bound_ns) in [(true, saved_ns), (false, anchor.bound_ns)] {
        if bound_ns == 0 {
            continue;
        }
        if options.inexact == Inexact::Refuse {
            return Err(PlanError::NoInstant { at_save, bound_ns });
        }
        reasons.push(Reason::NoInstant { at_save, bound_ns });
    }
    if host.means == TscMeans::Values {
        if options.inexact == Inexact::Refuse {
            return Err(PlanError::NoOffsets);
        }
        reasons.push(Reason::NoOffsets);
    }
    Ok(saved_ns.saturating_add(anchor.bound_ns))
}

/// By how much guest time advances, and what has passed by the wall clocks.
fn advance(
    saved: &Instant,
    anchor: &Anchor,
    options: &Options,
    reasons: &mut Vec<Reason>,
) -> Result<(u64, i128), PlanError> {
    let apart_ns = i128::from(anchor.realtime_ns) - i128::from(saved.realtime_ns);
    let elapsed_ns = options.pause_ns(apart_ns)?;
    if options.policy == Policy::Stopped {
        return Ok((0, elapsed_ns));
    }
    let ahead_ns = options.wall_clocks.ahead_ns;
    if ahead_ns != 0 {
        reasons.push(Reason::WallClocksDiffered { ahead_ns });
    }
    let forward = u64::try_from(elapsed_ns.max(0)).unwrap_or(u64::MAX);
    let by_ns = options.behind_ns(elapsed_ns)?;
    if by_ns > 0 {
        reasons.push(Reason::WallClockBehind { by_ns });
    }
    if let Policy::AtMost { max_ns } = options.policy
        && forward > max_ns
    {
        reasons.push(Reason::Capped {
            elapsed_ns: forward,
            max_ns,
        });
    }
    Ok((options.policy.advance(forward)?, elapsed_ns))
}

/// The saved offsets, made equal as the options say.
fn aligned_offsets(
    x86: &X86State,
    options: &Options,
    reasons: &mut Vec<Reason>,
) -> Result<Vec<u64>, PlanError> {
    let Some(first) = x86.vcpus.first() else {
        return Ok(Vec::new());
    };
    let ahead = |offset: u64| offset.wrapping_sub(first.tsc_offset) as i64;
    let differs = x86.vcpus.iter().enumerate().find(|(_, vcpu)| {
        // Offsets computed from values are known within bounds.
        let slack = vcpu
            .offset_bound_cycles
            .saturating_add(first.offset_bound_cycles);
        ahead(vcpu.tsc_offset).unsigned_abs() > slack
    });
    let farthest = x86.vcpus.iter().map(|v| ahead(v.tsc_offset)).max();
    let farthest = farthest.unwrap_or(0);
    let Some((index, vcpu)) = differs else {
        // Equal within their bounds: the highest, so that none is set back.
        let highest = first.tsc_offset.wrapping_add(farthest as u64);
        return Ok(vec![highest; x86.vcpus.len()]);
    };
    let cycles = ahead(vcpu.tsc_offset);
    let common = match options.unequal {
        Unequal::Refuse => {
            return Err(PlanError::OffsetsDiffer {
                vcpu: index,
                offset: vcpu.tsc_offset,
                first: first.tsc_offset,
                cycles,
                ns: signed_ns(cycles, x86.tsc_khz),
                adjust: vcpu.tsc_adjust.unwrap_or(0),
                first_adjust: first.tsc_adjust.unwrap_or(0),
            });
        }
        Unequal::Keep => None,
        Unequal::First => Some(first.tsc_offset),
        Unequal::Highest => Some(first.tsc_offset.wrapping_add(farthest as u64)),
    };
    let outcome = match common {
        Some(_) => OffsetsOutcome::MadeEqual,
        None => OffsetsOutcome::Kept,
    };
    reasons.push(Reason::OffsetsDiffered {
        vcpu: index,
        cycles,
        outcome,
    });
    let offsets = x86.vcpus.iter().map(|v| common.unwrap_or(v.tsc_offset));
    Ok(offsets.collect())
}

impl Plan {
    /// Each vCPU's part.
    #[must_use]
    pub fn vcpus(&self) -> &[PlannedVcpu] {
        &self.vcpus
    }

    /// The instant that the plan hangs on.
    #[must_use]
    pub const fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// The guest's kvmclock at the anchor, in ns.
    #[must_use]
    pub const fn clock_ns(&self) -> u64 {
        self.clock_ns
    }

    /// What is added to guest time, and how wrong that can be by arithmetic alone.
    #[must_use]
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// The TSC ratio in this host's format; its neutral value without scaling.
    #[must_use]
    pub const fn ratio(&self) -> u64 {
        self.ratio
    }

    /// What keeps the restore from being exact, or was decided on the way.
    #[must_use]
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// What a restore by this plan will explain, as far as that is known before it writes. The bounds lack
    /// what the writes add. No residual is measured. The master clock counts as on, and all vCPUs as
    /// notified.
    #[must_use]
    pub fn expected(&self) -> Explanation {
        self.explain(self.extra_ns, self.clock_extra_ns)
    }

    /// The account of a restore in which TSC and kvmclock are off by so many ns more.
    pub(crate) fn explain(&self, extra_ns: u64, clock_extra_ns: u64) -> Explanation {
        let vcpus = self.vcpus.iter().map(|vcpu| VcpuExplanation {
            offset_from: vcpu.offset_from,
            offset_to: vcpu.offset_to,
            tsc_at_save: vcpu.tsc_at_save,
            tsc_at_anchor: vcpu.tsc_at_anchor,
            tsc_deadline: vcpu.tsc_deadline,
        });
        let account = &self.account;
        Explanation {
            policy: self.options.policy,
            elapsed_ns: self.elapsed_ns,
            advanced_ns: account.kvmclock_elapsed_ns,
            clock_from_ns: self.saved.clock_ns,
            clock_to_ns: self.clock_ns,
            tsc_khz: self.tsc_khz,
            vcpus: vcpus.collect(),
            tsc_against_kvmclock_ns: account.tsc_against_kvmclock_ns.saturating_add(extra_ns),
            kvmclock_against_real_ns: account
                .kvmclock_against_real_ns
                .saturating_add(clock_extra_ns),
            tsc_against_its_rate_ns: account.tsc_against_its_rate_ns.saturating_add(extra_ns),
            clock_residual_ns: None,
            master_clock: true,
            for_guest: self.for_guest(self.vcpus.len(), extra_ns),
            reasons: self.reasons.clone(),
        }
    }

    /// On a KVM that ignores offsets: is the TSC where it should be, near enough?
    fn settle_for_fixed<V: Vm, C: Vcpu>(&mut self, vm: &V, vcpus: &[C]) -> Result<(), PlanError> {
        let elapsed = u128::from(self.account.kvmclock_elapsed_ns);
        // The guest's time advanced by the wall clock, its TSC by the host's.
        let slewed = (elapsed * u128::from(SLEW_PPB)).div_ceil(1_000_000_000);
        let slewed = u64::try_from(slewed).unwrap_or(u64::MAX);
        let near_ns = self.account.tsc_against_its_rate_ns.saturating_add(slewed);
        let mut worst = 0u64;
        // A fixed offset of the whole host is read from its first vCPU alone.
        let mut for_all = None;
        for (index, (planned, vcpu)) in self.vcpus.iter_mut().zip(vcpus).enumerate() {
            let fixed = match for_all.map_or_else(|| vcpu.tsc_offset(), Ok) {
                Ok(offset) => offset,
                Err(_) => read_tsc(vm, &self.host, self.ratio, index, vcpu)?.offset(),
            };
            for_all = self
                .host
                .fixed_offset
                .filter(|fixed_on_host| *fixed_on_host == fixed);
            let cycles = fixed.wrapping_sub(planned.offset_to) as i64;
            let ns = signed_ns(cycles, self.tsc_khz);
            if ns.unsigned_abs() > near_ns && self.options.inexact == Inexact::Refuse {
                return Err(PlanError::TscFixed {
                    vcpu: index,
                    wanted: planned.offset_to,
                    fixed,
                    cycles,
                    ns,
                });
            }
            worst = worst.max(ns.unsigned_abs());
            planned.offset_to = fixed;
            planned.tsc_at_anchor = planned.tsc_at_anchor.wrapping_add(cycles as u64);
        }
        self.reasons.push(Reason::TscFixed { off_ns: worst });
        self.extra_ns = self.extra_ns.saturating_add(worst);
        self.offsets_came_out(OffsetsOutcome::AsKvmHasThem);
        Ok(())
    }

    /// Replaces the planned outcome of unequal offsets by the one that KVM forces.
    fn offsets_came_out(&mut self, as_it_is: OffsetsOutcome) {
        for reason in &mut self.reasons {
            if let Reason::OffsetsDiffered { outcome, .. } = reason {
                *outcome = as_it_is;
            }
        }
    }

    fn check_backwards(&self) -> Result<(), PlanError> {
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            let ahead = vcpu.tsc_at_anchor.wrapping_sub(vcpu.tsc_at_save) as i64;
            if ahead < 0 {
                return Err(PlanError::Backwards {
                    vcpu: index,
                    saved_tsc: vcpu.tsc_at_save,
                    planned_tsc: vcpu.tsc_at_anchor,
                    cycles: ahead.unsigned_abs(),
                });
            }
        }
        Ok(())
    }

    /// Writes all in the one valid order, and checks the outcome.
    ///
    /// # Errors
    /// [`RestoreError`](crate::RestoreError) names what had been written.
    pub fn carry_out<V: Vm, C: Vcpu>(
        &self,
        vm: &V,
        vcpus: &[C],
    ) -> Result<Explanation, crate::RestoreError> {
        let armed = self
            .write_counters(vm, vcpus)?
            .write_clock(vm)?
            .arm_timers(vcpus)?;
        Ok(armed.finish())
    }

    pub(crate) fn check_count(&self, count: usize) -> Result<(), PlanError> {
        if count == self.vcpus.len() {
            return Ok(());
        }
        Err(PlanError::VcpuCount {
            saved: self.vcpus.len(),
            given: count,
        })
    }

    /// What `KVM_SET_CLOCK` gets, so many ns lower than the plan.
    pub(crate) const fn clock_data(&self, lower_ns: u64) -> KvmClockData {
        KvmClockData {
            clock_ns: self.clock_ns.saturating_sub(lower_ns),
            flags: KVM_CLOCK_REALTIME,
            realtime_ns: self.anchor.realtime_ns,
            host_tsc: 0,
        }
    }
}
