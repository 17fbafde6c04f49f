//! Restores rehearsed on hosts that are facts in a file, wall clocks that differ, and what the guest needs.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::device::{HostFacts, MSR_KVM_SYSTEM_TIME_NEW, TscMeans, Vcpu, Vm};
use guest_clock::fake::{FakeHost, FakeVcpu, FakeVm};
use guest_clock::{
    Facts, FactsError, GuestClocks, Options, Outcome, PlanError, Policy, Reason, RestoreError,
    Restored, Saved, WallClocksDiffer, rehearse_on,
};

const KHZ: u32 = 2_500_000;
const SECOND: u64 = 1_000_000_000;
const REALTIME: u64 = 1_700_000_000_000_000_000;

fn saved(host: &FakeHost) -> Saved {
    let (vm, vcpus) = host.vm(2);
    vm.set_clock(&Default::default()).unwrap();
    host.pass(SECOND);
    GuestClocks::save(&vm, &vcpus).unwrap()
}

fn facts(change: impl FnOnce(&mut HostFacts), khz: u32) -> Facts {
    let mut host = HostFacts::complete(khz);
    change(&mut host);
    Facts::new(&host, REALTIME, 77)
}

fn rehearsed(saved: &Saved, facts: &Facts, policy: Policy) -> Outcome {
    let options = [Options::new(policy)];
    rehearse_on(saved, facts, 60 * SECOND, &options).unwrap()[0]
        .outcome
        .clone()
}

fn restored(outcome: Outcome) -> Restored {
    match outcome {
        Outcome::Restored(restored) => restored,
        refused => panic!("{refused:?}"),
    }
}

#[test]
fn jumps_are_those_of_the_policy() {
    let saved = saved(&FakeHost::new(KHZ));
    let other = facts(|_| {}, 3_000_000);
    for (policy, advanced_ns) in [
        (Policy::ELAPSED, 60 * SECOND),
        (Policy::AtMost { max_ns: SECOND }, SECOND),
        (Policy::Stopped, 0),
    ] {
        let done = restored(rehearsed(&saved, &other, policy));
        assert_eq!(done.advanced_ns, advanced_ns);
        assert_eq!(done.added_cycles, advanced_ns / 1_000_000 * u64::from(KHZ));
        assert!(done.exact);
    }
}

/// The rehearsed writes are those of a restore on such a host.
#[test]
fn writes_are_those_of_the_restore() {
    let saved = saved(&FakeHost::new(KHZ));
    let done = restored(rehearsed(
        &saved,
        &facts(|_| {}, 3_000_000),
        Policy::ELAPSED,
    ));
    let call = |write: &String| write.split([' ', '(']).nth(2).unwrap().to_owned();
    let calls: Vec<String> = done.writes.iter().map(call).collect();
    assert_eq!(calls[..2], ["KVM_SET_TSC_KHZ"; 2]);
    assert_eq!(calls[2..4], ["KVM_SET_DEVICE_ATTR"; 2]);
    assert!(
        done.writes[4].starts_with("VM: KVM_SET_CLOCK"),
        "{:?}",
        done.writes
    );
    assert_eq!(calls[5..], ["KVM_SET_MSRS", "KVM_KVMCLOCK_CTRL"].repeat(2));
}

#[test]
fn refusals_have_their_reason() {
    let saved = saved(&FakeHost::new(KHZ));
    let refusal = |facts: &Facts, policy| match rehearsed(&saved, facts, policy) {
        Outcome::Refused(reason) => reason,
        restored => panic!("{restored:?}"),
    };
    let slow = facts(|host| host.has_scaling = false, 3_000_000);
    assert!(refusal(&slow, Policy::ELAPSED).contains("ppm apart"));
    let fixed = facts(|host| host.means = TscMeans::Fixed, KHZ);
    assert!(refusal(&fixed, Policy::Stopped).contains("keeps it at"));
    let values = facts(|host| host.means = TscMeans::Values, KHZ);
    assert!(refusal(&values, Policy::ELAPSED).contains("no TSC offset attribute"));
}

#[test]
fn facts_pass_through_their_file() {
    let written = facts(|host| host.means = TscMeans::Fixed, KHZ);
    let text = written.to_json();
    assert_eq!(Facts::from_json(text.as_bytes()).unwrap(), written);
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        Facts::from_json(text.replacen(from, to, 1).as_bytes()).unwrap_err()
    };
    let newer = refused("\"version\": 1", "\"version\": 3");
    assert_eq!(newer, FactsError::Version { found: 3, known: 1 });
    let khz = refused("\"tsc_khz\": 2500000", "\"tsc_khz\": 0");
    assert!(matches!(
        khz,
        FactsError::Value {
            field: "tsc_khz",
            ..
        }
    ));
    let bits = refused("\"frac_bits\": 48", "\"frac_bits\": 47");
    assert!(matches!(
        bits,
        FactsError::Value {
            field: "frac_bits",
            ..
        }
    ));
    let forged = refused("\"means\": \"fixed\"", "\"means\": \"magic\"");
    assert!(matches!(forged, FactsError::Json { .. }));
    assert!(Facts::from_json(b"[1]").is_err() && Facts::from_json(b"").is_err());
}

/// The source's clocks are saved, then the destination's wall clock is this much ahead of the source's.
fn across(ahead_ns: i64) -> (Saved, FakeVm, Vec<FakeVcpu>) {
    let host = FakeHost::new(KHZ);
    let saved = saved(&host);
    host.pass(10 * SECOND);
    host.step_wall_clock(ahead_ns);
    let (vm, vcpus) = host.vm(2);
    (saved, vm, vcpus)
}

#[test]
fn a_known_difference_of_the_wall_clocks_is_taken_off_the_pause() {
    for ahead_ns in [-3_000_000_000, 0, 5_000_000_000] {
        let (saved, vm, vcpus) = across(ahead_ns);
        let options = Options::new(Policy::ELAPSED).wall_clocks(ahead_ns, 10 * SECOND);
        let done = saved.restore(&vm, &vcpus, options).unwrap();
        // The calls take microseconds.
        assert!(done.advanced_ns.abs_diff(10 * SECOND) < 100_000, "{done}");
        assert!(done.is_exact(), "{done}");
        let differed = Reason::WallClocksDiffered { ahead_ns };
        assert_eq!(done.reasons.contains(&differed), ahead_ns != 0);
        assert_eq!(done.for_guest.wall_clock_late_ns, ahead_ns);
        let seen = vcpus[0].read_clocks().unwrap();
        let off = seen.kvmclock_ns.abs_diff(done.clock_to_ns);
        assert!(off < 100_000, "{off}");
    }
}

#[test]
fn a_larger_difference_than_is_trusted_is_refused() {
    let (saved, vm, vcpus) = across(5_000_000_000);
    let trusted = |policy| Options::new(policy).wall_clocks(5_000_000_000, SECOND);
    let refused = saved
        .restore(&vm, &vcpus, trusted(Policy::ELAPSED))
        .unwrap_err();
    let expected = WallClocksDiffer {
        ahead_ns: 5_000_000_000,
        at_most_ns: SECOND,
    };
    assert_eq!(refused, RestoreError::Refused(expected.into()));
    // Stopped guest time needs no wall clock.
    assert!(saved.restore(&vm, &vcpus, trusted(Policy::Stopped)).is_ok());
    // Without a statement the whole step counts as the pause.
    let done = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap();
    assert!(done.advanced_ns >= 15 * SECOND);
    // A difference of more than the pause: the wall clock is behind after all.
    let behind = Options::new(Policy::ELAPSED).wall_clocks(i64::MAX, u64::MAX);
    let refused = saved.restore(&vm, &vcpus, behind).unwrap_err();
    assert!(matches!(
        refused,
        RestoreError::Refused(PlanError::WallClockBehind(_))
    ));
}

#[test]
fn what_the_guest_needs_is_explained() {
    let (saved, vm, vcpus) = across(0);
    vcpus[1].set_msr(MSR_KVM_SYSTEM_TIME_NEW, 0).unwrap();
    let done = saved.restore(&vm, &vcpus, Policy::Stopped).unwrap();
    let guest = done.for_guest;
    assert_eq!(guest.notified_vcpus, 1);
    assert_eq!(guest.vmclock_counter, done.vcpus[0].tsc_at_anchor);
    // Rounding of KVM's page.
    assert!(guest.vmclock_max_error_ns <= 2, "{done}");
    // Stopped: the wall clock in the guest is late by the pause.
    assert!(guest.wall_clock_late_ns >= 10_000_000_000, "{done}");
    let elapsed = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap();
    assert_eq!(elapsed.for_guest.wall_clock_late_ns, 0);
    assert!(
        elapsed
            .to_string()
            .contains("VMClock: new disruption_marker; TSC ")
    );
}
