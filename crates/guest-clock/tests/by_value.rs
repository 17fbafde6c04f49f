//! Guests of VMMs that save and restore by value.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::arithmetic::{KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KvmClockData};
use guest_clock::device::{MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, TscMeans, Vcpu, Vm};
use guest_clock::fake::{FakeHost, FakeVcpu, FakeVm};
use guest_clock::{
    ByValue, Equalize, EqualizeError, GuestClocks, ImportError, Options, PlanError, Policy,
    RestoreError, SaveError, WrongVcpus,
};
use proptest::prelude::*;

const KHZ: u32 = 2_500_000;
const SECOND: u64 = 1_000_000_000;

/// A guest with vCPUs that are written by value, with this many ns before each write.
fn restored(host: &FakeHost, delays_ns: &[u64]) -> (FakeVm, Vec<FakeVcpu>) {
    let (vm, vcpus) = host.vm(delays_ns.len());
    for (vcpu, delay_ns) in vcpus.iter().zip(delays_ns) {
        host.pass(*delay_ns);
        // Written within a second by the rule of KVM's, values would be matched.
        assert!(vcpu.set_msr(MSR_IA32_TSC, 3600 * SECOND).unwrap());
    }
    (vm, vcpus)
}

fn offsets(vcpus: &[FakeVcpu]) -> Vec<u64> {
    vcpus
        .iter()
        .map(|vcpu| vcpu.tsc_offset().unwrap())
        .collect()
}

fn wrote(host: &FakeHost) -> bool {
    host.calls().iter().any(|call| call.contains("SET"))
}

#[test]
fn all_get_the_most_advanced_counter_and_none_goes_back() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = restored(&host, &[0, 2 * SECOND, 3 * SECOND]);
    let before = offsets(&vcpus);
    let readings: Vec<u64> = vcpus.iter().map(|v| v.read_clocks().unwrap().tsc).collect();
    let equal = GuestClocks::equalize(&vm, &vcpus, Equalize::within(10 * SECOND)).unwrap();
    assert_eq!(offsets(&vcpus), vec![equal.tsc_offset; 3]);
    assert_eq!(equal.moved_cycles[0], 0, "{equal:?}");
    for ((vcpu, before), (reading, moved)) in vcpus
        .iter()
        .zip(before)
        .zip(readings.iter().zip(&equal.moved_cycles))
    {
        assert_eq!(before.wrapping_add(*moved), equal.tsc_offset);
        assert!(vcpu.read_clocks().unwrap().tsc > *reading);
    }
    assert!(
        equal.bound_ns >= 5 * SECOND && equal.bound_ns < 5 * SECOND + 100_000,
        "{equal:?}"
    );
    // Then the master clock comes on.
    vm.set_clock(&KvmClockData::default()).unwrap();
    assert!(vcpus[2].read_clocks().unwrap().stable);
    // Once more changes nothing.
    let again = GuestClocks::equalize(&vm, &vcpus, Equalize::within(0)).unwrap();
    assert_eq!((again.bound_ns, again.tsc_offset), (0, equal.tsc_offset));
    vm.set_clock(&KvmClockData::default()).unwrap();
    assert!(vcpus[0].read_clocks().unwrap().stable);
}

#[test]
fn what_is_refused_writes_nothing() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = restored(&host, &[0, 2 * SECOND]);
    let refused = |expected: fn(&EqualizeError) -> bool, vcpus: &[FakeVcpu], at_most_ns| {
        let _ = host.calls();
        let error = GuestClocks::equalize(&vm, vcpus, Equalize::within(at_most_ns)).unwrap_err();
        assert!(expected(&error) && !wrote(&host), "{error}");
    };
    refused(
        |e| matches!(e, EqualizeError::TooFar { vcpu: 1, .. }),
        &vcpus,
        SECOND,
    );
    refused(
        |e| {
            matches!(
                e,
                EqualizeError::Vcpus(SaveError::Vcpus(WrongVcpus::LeftOut { .. }))
            )
        },
        &vcpus[..1],
        10 * SECOND,
    );
    refused(
        |e| matches!(e, EqualizeError::Vcpus(SaveError::NoVcpus)),
        &[],
        SECOND,
    );
    host.set_means(TscMeans::Values);
    refused(
        |e| matches!(e, EqualizeError::NoOffsets),
        &vcpus,
        10 * SECOND,
    );
}

#[test]
fn counters_that_the_guest_set_apart_are_left() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = restored(&host, &[0, 0]);
    GuestClocks::equalize(&vm, &vcpus, Equalize::within(SECOND)).unwrap();
    // The host's write of TSC_ADJUST moves no counter; the guest's moves both.
    let apart = 777;
    let offset = vcpus[1].tsc_offset().unwrap();
    vcpus[1].set_tsc_offset(offset.wrapping_add(apart)).unwrap();
    assert!(vcpus[1].set_msr(MSR_IA32_TSC_ADJUST, apart).unwrap());
    let error = GuestClocks::equalize(&vm, &vcpus, Equalize::within(SECOND)).unwrap_err();
    assert!(
        matches!(
            error,
            EqualizeError::SetApartByGuest {
                vcpu: 1,
                cycles: 777,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_failure_on_the_way_names_what_was_written_and_can_be_repeated() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = restored(&host, &[0, 2 * SECOND, 2 * SECOND]);
    host.fail("KVM_SET_DEVICE_ATTR", 1, libc::EIO);
    let how = Equalize::within(10 * SECOND);
    let error = GuestClocks::equalize(&vm, &vcpus, how).unwrap_err();
    let EqualizeError::Partial { written, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(written.len(), 1, "{error}");
    host.heal();
    GuestClocks::equalize(&vm, &vcpus, how).unwrap();
    assert!(offsets(&vcpus).windows(2).all(|pair| pair[0] == pair[1]));
}

/// What a VMM by value has of a guest, read one after the other.
fn snapshot(host: &FakeHost, vm: &FakeVm, vcpus: &[FakeVcpu], delay_ns: u64) -> ByValue {
    let begin = host.now().real_ns;
    let mut snapshot = ByValue::new(KHZ, vm.get_clock().unwrap());
    for vcpu in vcpus {
        host.pass(delay_ns);
        snapshot.add_vcpu(vcpu.msr(MSR_IA32_TSC).unwrap().unwrap());
    }
    snapshot.read_within_ns = host.now().real_ns - begin;
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_snapshot_by_value_is_restored_within_its_bound(
        delay_ns in 1u64..200_000,
        pause_ns in 0u64..100 * SECOND,
        count in 1usize..6,
    ) {
        let host = FakeHost::new(KHZ);
        let (vm, vcpus) = host.vm(count);
        vm.set_clock(&KvmClockData::default()).unwrap();
        host.pass(5 * SECOND);
        let snapshot = snapshot(&host, &vm, &vcpus, delay_ns);
        let saved = snapshot.to_saved().unwrap();
        host.pass(pause_ns);
        let (next, next_vcpus) = host.vm(count);
        let options = Options::new(Policy::ELAPSED).accept_inexact();
        let done = saved.restore(&next, &next_vcpus, options).unwrap();
        // All are equal, and within the bound of what the guest would read had it never stopped.
        let expected = vcpus[0].tsc_offset().unwrap();
        let slack = snapshot.read_within_ns * u64::from(KHZ) / 1_000_000 + 2;
        for vcpu in &next_vcpus {
            let ahead = vcpu.tsc_offset().unwrap().wrapping_sub(expected) as i64;
            prop_assert!((0..=slack as i64).contains(&ahead), "{ahead} of {slack}: {done}");
        }
    }
}

#[test]
fn exactness_is_not_promised_for_values() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = host.vm(2);
    vm.set_clock(&KvmClockData::default()).unwrap();
    let saved = snapshot(&host, &vm, &vcpus, 100).to_saved().unwrap();
    let (next, next_vcpus) = host.vm(2);
    let error = saved
        .restore(&next, &next_vcpus, Policy::ELAPSED)
        .unwrap_err();
    let expected = matches!(
        error,
        RestoreError::Refused(PlanError::NoInstant { at_save: true, .. })
    );
    assert!(expected, "{error}");
}

#[test]
fn what_a_snapshot_lacks_is_named() {
    let clock = KvmClockData {
        clock_ns: SECOND,
        ..KvmClockData::default()
    };
    let mut snapshot = ByValue::new(KHZ, clock);
    snapshot.add_vcpu(1);
    assert_eq!(snapshot.to_saved(), Err(ImportError::NoWallClock));
    snapshot.taken_realtime_ns = Some(SECOND);
    assert_eq!(snapshot.to_saved(), Err(ImportError::NoBound));
    snapshot.read_within_ns = 1;
    snapshot.to_saved().unwrap();
    (snapshot.tsc_khz, snapshot.host_tsc_khz) = (0, 0);
    assert_eq!(snapshot.to_saved(), Err(ImportError::NoFrequency));
    (snapshot.tsc_khz, snapshot.host_tsc_khz) = (KHZ, KHZ);
    snapshot.frac_bits = 40;
    assert_eq!(
        snapshot.to_saved(),
        Err(ImportError::FracBits { found: 40 })
    );
    snapshot.frac_bits = 32;
    snapshot.host_tsc_khz = 1;
    assert!(matches!(
        snapshot.to_saved(),
        Err(ImportError::Ratio { .. })
    ));
    let mut none = ByValue::new(
        KHZ,
        KvmClockData {
            flags: KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC,
            ..clock
        },
    );
    none.read_within_ns = 1;
    assert!(matches!(none.to_saved(), Err(ImportError::Unloadable(_))));
}
