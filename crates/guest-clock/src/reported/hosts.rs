//! Reports about a second host of another frequency.

use super::Orders;
use super::log::{Log, Logged};
use super::sight::Sight;
use super::stage::{FakeStage, KHZ, Machine, OneGuest, Source, Stage, set_clock, set_msr};
use crate::device::{HostFacts, MSR_IA32_TSC, Vcpu};
use crate::fake::FakeHost;
use crate::plan::{Anchor, rehearse};
use crate::policy::{Options, Policy};
use crate::save::of;

/// The reason for which another host is not shown on `/dev/kvm`.
pub(super) const ONE_HOST: &str = "it takes a second host of another frequency";

const SECOND_NS: u64 = 1_000_000_000;
/// The frequency of the destination, in kHz.
const OTHER_KHZ: u32 = 2_100_000;

/// firecracker 5581, cloud-hypervisor 5786 and 5787.
pub(super) fn other_frequency(stage: &FakeStage) -> Orders {
    let source = Source::boot(stage, 1)?;
    let destination = FakeStage {
        host: FakeHost::new(OTHER_KHZ),
    };
    // Both hosts have the same wall clock.
    destination.host.pass(
        stage
            .host
            .now()
            .real_ns
            .saturating_sub(destination.host.now().real_ns),
    );
    let log = Log::default();
    let mut guest = destination.guest(1)?;
    let vm = Logged::new(guest.vm(), &log);
    let vcpus = Logged::each(guest.vcpus(), &log);
    set_msr(&vcpus, 0, MSR_IA32_TSC, source.tsc(0))?;
    set_clock(&vm, source.x86.instant.clock_ns)?;
    for (index, vcpu) in vcpus.iter().enumerate() {
        vcpu.kvmclock_ctrl()
            .map_err(of("KVM_KVMCLOCK_CTRL", Some(index)))?;
    }
    destination.pass(10 * SECOND_NS);
    log.note(format!("10 s pass on a host of {OTHER_KHZ} kHz"));
    log.note("KVM_RUN of each vCPU");
    let after = guest.read()?;
    let title = "the frequency is not carried: the TSC ticks at the new host's";
    let mut failing = source.order(title, &log, after, 0);
    // The guest has run for these 10 s.
    let is_jump = |sight: &Sight| matches!(sight, Sight::Jump { .. });
    failing.seen.retain(|sight| !is_jump(sight));
    let log = Log::default();
    rehearse_on(&source, &log, destination.host.now().real_ns);
    let mut right = source.restore(
        &destination,
        "rehearsed, then restored at the guest's frequency",
        Policy::ELAPSED,
    )?;
    right.steps.splice(0..0, log.steps());
    Ok([failing, right])
}

/// What hosts near this frequency, and the destination, would do.
fn rehearse_on(source: &Source, log: &Log, realtime_ns: u64) {
    let anchor = Anchor {
        realtime_ns: realtime_ns.saturating_add(SECOND_NS),
        host_tsc: 99,
        bound_ns: 0,
    };
    for (khz, has_scaling) in [(KHZ + 300, false), (KHZ + 2000, false), (OTHER_KHZ, true)] {
        let mut facts = HostFacts::complete(khz);
        facts.has_scaling = has_scaling;
        let options = Options::new(Policy::ELAPSED);
        let outcome = match rehearse(&source.saved, &facts, anchor, &options) {
            Ok(plan) if plan.reasons().is_empty() => "restored as it is".to_owned(),
            Ok(plan) => {
                let reasons = plan.reasons().iter().map(ToString::to_string);
                format!("restored: {}", reasons.collect::<Vec<_>>().join("; "))
            }
            Err(error) => format!("refused: {error}"),
        };
        let scaling = if has_scaling { "with" } else { "without" };
        log.note(format!(
            "rehearsed on {khz} kHz {scaling} scaling: {outcome}"
        ));
    }
}
