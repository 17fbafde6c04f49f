//! Reports about registers that a small guest on `/dev/kvm` does not have.

use super::Orders;
use super::log::{Log, Logged};
use super::sight::Sight;
use super::stage::{
    FakeStage, Machine, OneGuest, Source, Stage, msr, restore_into, set_clock, set_msr,
};
use crate::device::{MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE};
use crate::drill::DrillError;
use crate::policy::Policy;

/// The reason for which a deadline is not shown on `/dev/kvm`.
pub(super) const NO_LAPIC: &str = "its small guests have no LAPIC in TSC-deadline mode";
/// The reason for which `TSC_ADJUST` is not shown on `/dev/kvm`.
pub(super) const NO_GUEST_WRITES: &str = "its small guests have no CPUID and write no TSC";

const SECOND_NS: u64 = 1_000_000_000;

/// firecracker 4099. The new VM's TSC is ahead of the saved one while the VMM restores.
pub(super) fn deadline_before_tsc(stage: &FakeStage) -> Orders {
    let mut guest = stage.guest(1)?;
    set_clock(guest.vm(), 0)?;
    stage.pass(SECOND_NS);
    let deadline = msr(guest.vcpus(), 0, MSR_IA32_TSC)? + u64::from(super::stage::KHZ) * 1000;
    set_msr(guest.vcpus(), 0, MSR_IA32_TSC_DEADLINE, deadline)?;
    let source = Source::save(&mut guest)?;
    let fresh = |log: &Log| {
        let guest = stage.guest(1)?;
        stage.pass(100 * SECOND_NS);
        log.note("100 s pass: the VMM loads the guest's memory");
        Ok::<_, DrillError>(guest)
    };
    let lost = |guest: &super::stage::FakeMachine, tsc| {
        let read = msr(guest.vcpus(), 0, MSR_IA32_TSC_DEADLINE)?;
        Ok::<_, DrillError>((read != deadline).then_some(Sight::DeadlineLost {
            vcpu: 0,
            deadline,
            tsc,
        }))
    };
    let log = Log::default();
    let mut guest = fresh(&log)?;
    let vm = Logged::new(guest.vm(), &log);
    let vcpus = Logged::each(guest.vcpus(), &log);
    let tsc = msr(&vcpus, 0, MSR_IA32_TSC)?;
    set_msr(&vcpus, 0, MSR_IA32_TSC_DEADLINE, deadline)?;
    set_msr(&vcpus, 0, MSR_IA32_TSC, source.tsc(0))?;
    set_clock(&vm, source.x86.instant.clock_ns)?;
    let sight = lost(&guest, tsc)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let sights = Vec::from_iter(sight);
    let failing = source.with("deadline, then TSC", &log, after, sights);
    let log = Log::default();
    let mut guest = fresh(&log)?;
    let explanation = restore_into(&source.saved, &guest, &log, Policy::Stopped)?;
    let sight = lost(&guest, tsc)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let mut right = source.order("TSC, then deadline", &log, after, explanation.advanced_ns);
    right.seen.extend(sight);
    Ok([failing, right])
}

/// openvmm 2913. A guest that wrote its TSC has a `TSC_ADJUST`; a vCPU without CPUID drops it silently.
pub(super) fn adjust_before_cpuid(stage: &FakeStage) -> Orders {
    let mut guest = stage.guest(1)?;
    set_clock(guest.vm(), 0)?;
    stage.pass(SECOND_NS);
    let vcpu = guest.vcpus().first().ok_or(DrillError::Platform)?;
    vcpu.guest_writes_tsc(12_345).map_err(DrillError::Fake)?;
    let wanted = msr(guest.vcpus(), 0, MSR_IA32_TSC_ADJUST)?;
    let source = Source::save(&mut guest)?;
    let lost = |guest: &super::stage::FakeMachine| {
        let read = msr(guest.vcpus(), 0, MSR_IA32_TSC_ADJUST)?;
        Ok::<_, DrillError>((read != wanted).then_some(Sight::AdjustLost {
            vcpu: 0,
            wanted: wanted.cast_signed(),
            read: read.cast_signed(),
        }))
    };
    let log = Log::default();
    let mut guest = stage.guest(1)?;
    guest
        .vcpus()
        .first()
        .ok_or(DrillError::Platform)?
        .hide_tsc_adjust();
    let explanation = restore_into(&source.saved, &guest, &log, Policy::Stopped)?;
    log.note("vCPU 0: KVM_SET_CPUID2 with TSC_ADJUST");
    let sight = lost(&guest)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let mut failing = source.order("clocks before CPUID", &log, after, explanation.advanced_ns);
    failing.seen.extend(sight);
    let log = Log::default();
    let mut guest = stage.guest(1)?;
    log.note("vCPU 0: KVM_SET_CPUID2 with TSC_ADJUST");
    let explanation = restore_into(&source.saved, &guest, &log, Policy::Stopped)?;
    let sight = lost(&guest)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let mut right = source.order("CPUID before clocks", &log, after, explanation.advanced_ns);
    right.seen.extend(sight);
    Ok([failing, right])
}
