//! Reports about counters and clocks that any KVM with TSC offsets can show.

use super::Orders;
use super::log::{Log, Logged};
use super::sight::Sight;
use super::stage::{Machine, OneGuest, Source, Stage, msr, set_clock, set_msr};
use crate::arithmetic::{KVM_CLOCK_REALTIME, KvmClockData};
use crate::device::{MSR_IA32_TSC, Vcpu, Vm};
use crate::drill::DrillError;
use crate::policy::Policy;
use crate::save::of;
use crate::saved::{Saved, State};

/// Beyond a second KVM no longer takes a value for that of the vCPU before.
const BETWEEN_NS: u64 = 1_200_000_000;

/// Values written vCPU by vCPU with a delay, then the clock.
fn by_value<S: Stage>(
    stage: &S,
    source: &Source,
    title: &'static str,
) -> Result<super::Order, DrillError> {
    let log = Log::default();
    let mut guest = stage.guest(source.before.len())?;
    let vm = Logged::new(guest.vm(), &log);
    let vcpus = Logged::each(guest.vcpus(), &log);
    for vcpu in 0..vcpus.len() {
        if vcpu > 0 {
            stage.pass(BETWEEN_NS);
            log.note(format!("{} ms pass", BETWEEN_NS / 1_000_000));
        }
        set_msr(&vcpus, vcpu, MSR_IA32_TSC, source.tsc(vcpu))?;
    }
    set_clock(&vm, source.x86.instant.clock_ns)?;
    notify(&vcpus)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    Ok(source.order(title, &log, after, 0))
}

/// `KVM_KVMCLOCK_CTRL` of each vCPU.
fn notify<C: Vcpu>(vcpus: &[C]) -> Result<(), DrillError> {
    for (index, vcpu) in vcpus.iter().enumerate() {
        vcpu.kvmclock_ctrl()
            .map_err(of("KVM_KVMCLOCK_CTRL", Some(index)))?;
    }
    Ok(())
}

/// firecracker 6200.
pub(super) fn unequal_offsets<S: Stage>(stage: &S) -> Orders {
    let source = Source::boot(stage, 2)?;
    let failing = by_value(stage, &source, "IA32_TSC by value, vCPU by vCPU")?;
    let right = source.restore(stage, "one offset for all vCPUs", Policy::ELAPSED)?;
    Ok([failing, right])
}

/// cloud-hypervisor 8383: the same order, and a remedy for the VM that it left.
pub(super) fn master_clock_off<S: Stage>(stage: &S) -> Orders {
    let source = Source::boot(stage, 2)?;
    let failing = by_value(
        stage,
        &source,
        "the clock's snapshot finds TSCs that differ",
    )?;
    let title = "counters of all vCPUs, then the clock: its snapshot finds them matched";
    let right = source.restore(stage, title, Policy::ELAPSED)?;
    Ok([failing, right])
}

/// firecracker 5809. The wall clock's time is handed on, so that KVM adds the pause.
pub(super) fn jump_by_policy<S: Stage>(stage: &S) -> Orders {
    let source = Source::boot(stage, 1)?;
    // A day, where no one has to wait for it.
    let pause_ns = stage.longest_ns().min(86_400_000_000_000);
    stage.pass(pause_ns);
    let log = Log::default();
    let mut guest = stage.guest(1)?;
    let vm = Logged::new(guest.vm(), &log);
    let vcpus = Logged::each(guest.vcpus(), &log);
    let instant = source.x86.instant;
    // The TSC follows, as by any restore that adds the pause.
    let passed_ns = vm.bracket().realtime_ns.saturating_sub(instant.realtime_ns);
    let cycles = u128::from(passed_ns) * u128::from(source.x86.tsc_khz) / 1_000_000;
    let tsc = source.tsc(0).wrapping_add(cycles as u64);
    set_msr(&vcpus, 0, MSR_IA32_TSC, tsc)?;
    vm.set_clock(&KvmClockData {
        clock_ns: instant.clock_ns,
        flags: KVM_CLOCK_REALTIME,
        realtime_ns: instant.realtime_ns,
        host_tsc: 0,
    })
    .map_err(of("KVM_SET_CLOCK", None))?;
    notify(&vcpus)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let failing = source.order(
        "the pause is added, whatever the user wants",
        &log,
        after,
        0,
    );
    let right = source.restore(
        stage,
        "Policy::Stopped: guest time stands still",
        Policy::Stopped,
    )?;
    Ok([failing, right])
}

/// cloud-hypervisor 7930, 7931, 7932.
pub(super) fn clock_set_late<S: Stage>(stage: &S) -> Orders {
    let source = Source::boot(stage, 1)?;
    let log = Log::default();
    let mut guest = stage.guest(1)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let vm = Logged::new(guest.vm(), &log);
    set_clock(&vm, source.x86.instant.clock_ns)?;
    let failing = source.order("the vCPU runs before KVM_SET_CLOCK", &log, after, 0);
    let right = source.restore(
        stage,
        "clock and notice before the first KVM_RUN",
        Policy::ELAPSED,
    )?;
    Ok([failing, right])
}

/// openvmm 4253. KVM takes 0 for "as the vCPU before", not for a value.
pub(super) fn zero_is_not_written<S: Stage>(stage: &S) -> Orders {
    let mut source = Source::boot(stage, 2)?;
    let log = Log::default();
    let mut guest = stage.guest(2)?;
    stage.pass(BETWEEN_NS);
    let vcpus = Logged::each(guest.vcpus(), &log);
    for vcpu in 0..vcpus.len() {
        set_msr(&vcpus, vcpu, MSR_IA32_TSC, 0)?;
    }
    let read = msr(&vcpus, 1, MSR_IA32_TSC)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let sights = vec![Sight::NotTheValue {
        vcpu: 1,
        wanted: 0,
        read,
    }];
    let failing = source.with("zero by value", &log, after, sights);
    // By offset a guest can begin at zero.
    let zero = source.x86.instant.host_tsc.wrapping_neg();
    for vcpu in &mut source.x86.vcpus {
        vcpu.tsc_offset = zero;
    }
    let saved = Saved::new(State::X86(source.x86.clone()));
    source.saved = saved.map_err(|_| DrillError::Platform)?;
    let mut right = source.restore(stage, "zero at the save, by offset", Policy::Stopped)?;
    // The guest of the readings before has another TSC: only the value counts.
    right
        .seen
        .retain(|sight| !matches!(sight, Sight::TscBack { .. } | Sight::TimelinesApart { .. }));
    Ok([failing, right])
}

/// The one-second rule.
pub(super) fn values_within_a_second<S: Stage>(stage: &S) -> Orders {
    let source = Source::boot(stage, 2)?;
    let half_second = u64::from(source.x86.tsc_khz) * 500;
    let wanted = |first: u64| first.wrapping_add(half_second);
    let log = Log::default();
    let mut guest = stage.guest(2)?;
    let vcpus = Logged::each(guest.vcpus(), &log);
    // A minute ahead: no value that KVM could take for the one that is there.
    let first = source.tsc(0).wrapping_add(half_second * 120);
    set_msr(&vcpus, 0, MSR_IA32_TSC, first)?;
    set_msr(&vcpus, 1, MSR_IA32_TSC, wanted(first))?;
    let read = msr(&vcpus, 1, MSR_IA32_TSC)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let sights = [Sight::NotTheValue {
        vcpu: 1,
        wanted: wanted(first),
        read,
    }];
    let failing = source.with(
        "two values half a second apart",
        &log,
        after,
        sights.to_vec(),
    );
    let log = Log::default();
    let mut guest = stage.guest(2)?;
    let vcpus = Logged::each(guest.vcpus(), &log);
    let read_offset = of("KVM_GET_DEVICE_ATTR", Some(0));
    let [first, second] = vcpus.as_slice() else {
        return Err(DrillError::Platform);
    };
    let ahead = first
        .tsc_offset()
        .map_err(read_offset)?
        .wrapping_add(half_second * 120);
    for (index, (vcpu, value)) in [(first, ahead), (second, wanted(ahead))]
        .into_iter()
        .enumerate()
    {
        vcpu.set_tsc_offset(value)
            .map_err(of("KVM_SET_DEVICE_ATTR", Some(index)))?;
    }
    let offset = second
        .tsc_offset()
        .map_err(of("KVM_GET_DEVICE_ATTR", Some(1)))?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let sight = (offset != wanted(ahead)).then_some(Sight::NotTheValue {
        vcpu: 1,
        wanted: wanted(ahead),
        read: offset,
    });
    let right = source.with(
        "two offsets half a second apart",
        &log,
        after,
        Vec::from_iter(sight),
    );
    Ok([failing, right])
}

/// openvmm 4290: the clock is given the pause, the counter is not.
pub(super) fn two_timelines<S: Stage>(stage: &S) -> Orders {
    let source = Source::boot(stage, 1)?;
    let pause_ns = stage.longest_ns().min(38_000_000_000);
    stage.pass(pause_ns);
    let log = Log::default();
    let mut guest = stage.guest(1)?;
    let vm = Logged::new(guest.vm(), &log);
    let vcpus = Logged::each(guest.vcpus(), &log);
    set_msr(&vcpus, 0, MSR_IA32_TSC, source.tsc(0))?;
    let instant = source.x86.instant;
    let passed_ns = vm.bracket().realtime_ns.saturating_sub(instant.realtime_ns);
    set_clock(&vm, instant.clock_ns.saturating_add(passed_ns))?;
    notify(&vcpus)?;
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let title = "the pause is added to the clock, not to the TSC";
    let failing = source.order(title, &log, after, passed_ns);
    let right = source.restore(stage, "the pause is added to both", Policy::ELAPSED)?;
    Ok([failing, right])
}
