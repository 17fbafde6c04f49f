//! Migration: item 9.

use proptest::prelude::*;
use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KvmClockData,
};
use stealtime_hypervisor::counter::migration::{
    Account, MigrationError, Side, Uncertainty, by_offsets, by_value, documented,
};
use stealtime_hypervisor::counter::scaling::{HostTsc, RatioFormat};
use stealtime_hypervisor::counter::tsc_sync::{HostInstant, VmTsc};

use crate::host::{Machine, SECOND};

const VCPUS: usize = 3;

/// A guest on its source, after some life.
fn source(khz: u32, guest_khz: u32, tsc_at_zero: u64) -> Machine {
    let mut m = Machine::new(khz, tsc_at_zero);
    for _ in 0..VCPUS {
        m.add_vcpu(guest_khz);
        m.pass(1_000_007);
    }
    m.settle();
    m.pass(3 * SECOND);
    m
}

fn side(m: &Machine) -> Side {
    Side {
        clock: m.vm.get_clock(&m.host, &m.now(), true).unwrap(),
        format: m.host.format,
        ratio: m.vcpus[0].rate.ratio,
    }
}

/// The destination with its clock set, `blackout_ns` after the source was read.
fn destination(from: &Machine, khz: u32, guest_khz: u32, tsc: u64, blackout_ns: u64) -> Machine {
    let real_at_zero = from.now().real_ns + blackout_ns - 5 * SECOND;
    let mut m = Machine::new(khz, tsc).with_realtime(real_at_zero);
    for _ in 0..VCPUS {
        m.add_vcpu(guest_khz);
    }
    m.settle();
    let clock = from.vm.get_clock(&from.host, &from.now(), true).unwrap();
    let data = KvmClockData {
        flags: KVM_CLOCK_REALTIME,
        ..clock
    };
    let now = m.now();
    m.vm.set_clock(&m.host, &now, &data).unwrap();
    m
}

/// Moves the guest by offsets; returns the account and the guest's TSC on both sides.
fn moved(
    from: &Machine,
    to: &mut Machine,
    guest_khz: u32,
    delays_ns: [u64; VCPUS],
) -> (Account, Vec<(u64, u64)>) {
    let known = Uncertainty {
        master_clock_age_ns: from.now().ns - from.vm.master_kernel_ns,
        ..Uncertainty::default()
    };
    let migration = by_offsets(&side(from), &side(to), guest_khz, &known).unwrap();
    let at = to.ns;
    for (vcpu, delay_ns) in delays_ns.into_iter().enumerate() {
        // The VMM's thread is preempted before each write.
        to.pass(delay_ns);
        let offset = migration.offset(from.vcpus[vcpu].l1_tsc_offset);
        assert_eq!(to.set_offset(vcpu, offset), vcpu > 0);
        to.settle();
    }
    to.ns = at;
    let seen = (0..VCPUS).map(|v| (from.read(v), to.read(v))).collect();
    (migration.account, seen)
}

/// What the guest's page says when its TSC is what it reads now.
fn kvmclock(m: &Machine) -> u64 {
    let mut vcpu = m.vcpus[0];
    let page = m.vm.guest_time_update(&mut vcpu, &m.host, &m.now(), false);
    page.unwrap().at(m.read(0))
}

#[test]
fn counters_sloppy_09_the_guests_tsc_goes_on_whatever_the_destination() {
    let ghz = 1_000_000;
    for (source_khz, destination_khz, guest_khz) in [
        (2 * ghz, 2 * ghz, 2 * ghz),
        (2 * ghz, 3 * ghz, 2 * ghz),
        (3 * ghz, 2 * ghz, 3 * ghz),
        (2 * ghz, 2_712_345, 2_345_678),
    ] {
        for (source_tsc, destination_tsc) in
            [(1 << 50, 0), (0, 1 << 50), (u64::MAX - 9, 3), (77, 77)]
        {
            let from = source(source_khz, guest_khz, source_tsc);
            let mut to = destination(&from, destination_khz, guest_khz, destination_tsc, SECOND);
            let delays = [0, 3 * SECOND, 40_000];
            let (account, seen) = moved(&from, &mut to, guest_khz, delays);
            assert_eq!(account.kvmclock_elapsed_ns, SECOND);
            assert_eq!(account.realtime_elapsed_ns, i128::from(SECOND));
            assert_eq!(account.added_cycles, u128::from(guest_khz) * 1000);
            for &(before, after) in &seen {
                assert_eq!(u128::from(after.wrapping_sub(before)), account.added_cycles);
                assert_eq!(after, seen[0].1, "vCPUs disagree");
            }
            assert!(to.vm.use_master_clock);
            // The master clock was last refreshed after the last write.
            let later = delays.iter().sum::<u64>();
            to.pass(later);
            let (before, after) = (kvmclock(&from), kvmclock(&to) - later);
            let bound = account.tsc_against_kvmclock_ns + account.kvmclock_against_real_ns;
            assert!(
                (after - before).abs_diff(SECOND) <= bound,
                "{before} {after} {bound}"
            );
        }
    }
}

#[test]
fn the_documented_form_is_exact_only_without_scaling() {
    let known = Uncertainty::default();
    let from = source(2_000_000, 2_000_000, 1 << 50);
    let to = destination(&from, 2_000_000, 2_000_000, 12_345, SECOND);
    let (s, d) = (side(&from), side(&to));
    assert_eq!(
        documented(&s, &d, 2_000_000, &known),
        by_offsets(&s, &d, 2_000_000, &known)
    );
    // A guest of 2 GHz on 3 GHz: the raw difference is half as much again.
    let to = destination(&from, 3_000_000, 2_000_000, 12_345, SECOND);
    let d = side(&to);
    let wrong = documented(&s, &d, 2_000_000, &known).unwrap();
    let right = by_offsets(&s, &d, 2_000_000, &known).unwrap();
    let jump = wrong.offset(0).wrapping_sub(right.offset(0)) as i64;
    assert_eq!(wrong.account.misplaced_cycles, i128::from(jump));
    assert_ne!(jump, 0);
    let jump_ns = jump.unsigned_abs() / 2;
    assert!(wrong.account.tsc_against_kvmclock_ns >= jump_ns);
    assert_eq!(right.account.misplaced_cycles, 0);
    assert_eq!(right.account.tsc_against_kvmclock_ns, 2);
    assert!(right.account.tsc_against_its_rate_ns < 510);
}

#[test]
fn a_value_loses_what_its_writer_was_preempted_for() {
    let known = Uncertainty::default();
    let from = source(2_000_000, 2_000_000, 9);
    let mut to = destination(&from, 2_000_000, 2_000_000, 1 << 40, SECOND);
    let (s, d) = (side(&from), side(&to));
    let offset = from.vcpus[0].l1_tsc_offset;
    let due = to.now();
    let (value, account) = by_value(&s, &d, 2_000_000, &known, offset, 10_000_000).unwrap();
    to.pass(10_000_000);
    to.write(0, value);
    let right = by_offsets(&s, &d, 2_000_000, &known).unwrap();
    let lost = to.vcpus[0].l1_tsc_offset.wrapping_sub(right.offset(offset)) as i64;
    assert_eq!(lost, -20_000_000);
    assert_eq!(account.misplaced_cycles, -20_000_000);
    assert!(account.tsc_against_kvmclock_ns >= 10_000_000);
    let at_due = to.vcpus[0].l1_tsc_offset.wrapping_add(due.tsc);
    assert!(at_due < value, "the guest's counter stood still meanwhile");
}

#[test]
fn unusable_readings_are_refused_with_what_they_were() {
    let known = Uncertainty::default();
    let from = source(2_000_000, 2_000_000, 9);
    let to = destination(&from, 2_000_000, 2_000_000, 0, SECOND);
    let (s, d) = (side(&from), side(&to));
    assert_eq!(
        by_offsets(&s, &d, 0, &known),
        Err(MigrationError::FrequencyZero { guest_khz: 0 })
    );
    let mut off = s;
    off.clock.flags = 2;
    let refused = MigrationError::NotOneInstant {
        source_flags: 2,
        destination_flags: 14,
        needed: 12,
    };
    assert_eq!(by_offsets(&off, &d, 1, &known), Err(refused));
    let swapped = MigrationError::ClockBehind {
        source_ns: d.clock.clock_ns,
        destination_ns: s.clock.clock_ns,
    };
    assert_eq!(documented(&d, &s, 1, &known), Err(swapped));
    let shown = swapped.to_string();
    assert!(shown.contains(&d.clock.clock_ns.to_string()), "{shown}");
}

proptest! {
    /// A scaled guest's page drifts from `KVM_GET_CLOCK` by no more than is stated: over any time
    /// since the master clock was taken, at any two frequencies.
    #[test]
    fn the_drift_of_a_scaled_guests_page_is_bounded(
        host_khz in 800_000u32..5_000_000,
        guest_khz in 800_000u32..5_000_000,
        boot_tsc in 0u64..1 << 50,
        age_ns in 0u64..1 << 50,
    ) {
        let mut host = HostTsc::new(host_khz, RatioFormat::VMX);
        let at = |ns: u64| HostInstant {
            ns,
            tsc: boot_tsc + (u128::from(ns) * u128::from(host_khz) / 1_000_000) as u64,
            real_ns: ns,
        };
        let mut vm = VmTsc::new(&host, &at(0));
        let (mut vcpu, rate) = vm.create_vcpu(&mut host, &at(0), 0, guest_khz, false);
        prop_assert_eq!(rate, Ok(()));
        vm.handle_masterclock_request(&mut vcpu, &host, &at(0));
        let page = vm.guest_time_update(&mut vcpu, &host, &at(0), false).unwrap();
        let now = at(age_ns);
        let clock = vm.get_clock(&host, &now, true).unwrap();
        let off_ns = page.at(vcpu.read(&host, &now)).abs_diff(clock.clock_ns);
        let format = host.format;
        let s = Side { clock, format, ratio: vcpu.rate.ratio };
        let known = Uncertainty { master_clock_age_ns: age_ns, ..Uncertainty::default() };
        let account = by_offsets(&s, &s, guest_khz, &known).unwrap().account;
        prop_assert!(off_ns <= account.kvmclock_against_real_ns, "{} ns: {:?}", off_ns, account);
    }
}

/// A frequency cut to kHz may be off by 10^9/khz ppb, and by what is known in addition.
#[test]
fn the_bound_adds_the_error_of_the_frequency_to_its_cut() {
    let at = |clock_ns| Side {
        clock: KvmClockData {
            clock_ns,
            flags: KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC,
            ..KvmClockData::default()
        },
        format: RatioFormat::VMX,
        ratio: RatioFormat::VMX.neutral(),
    };
    let known = Uncertainty {
        frequency_error_ppb: 500,
        ..Uncertainty::default()
    };
    let moved = by_offsets(&at(0), &at(SECOND), 1_000_000, &known).unwrap();
    // Three cycles of 1 ns, 1000 and 500 ppb of a second, and two readings of 2 ns.
    assert_eq!(moved.account.tsc_against_its_rate_ns, 3 + 1_500 + 4);
}

/// A ratio is rounded down, so that it makes the host's frequency look higher and its cut to kHz smaller.
/// The bound is the one of the real frequency.
#[test]
fn the_bound_takes_no_host_for_faster_than_it_is() {
    let (host_khz, guest_khz) = (3_999_999, 2_250);
    let format = RatioFormat::SVM;
    let ratio = format.ratio(guest_khz, host_khz).unwrap();
    // 4,000,000 kHz going by the ratio, with a cut of 250 ppb and not 251.
    assert_eq!((u64::from(guest_khz) << 32) / ratio, 4_000_000);
    let at = |clock_ns| Side {
        clock: KvmClockData {
            clock_ns,
            flags: KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC,
            ..KvmClockData::default()
        },
        format,
        ratio,
    };
    let moved = by_offsets(&at(0), &at(SECOND), guest_khz, &Uncertainty::default()).unwrap();
    // Three cycles, 251 ppb of a second, two readings of 2 ns and the page's multiplier.
    assert_eq!(moved.account.tsc_against_its_rate_ns, 1_334 + 251 + 4 + 1);
}

/// TSC cycles at `ns` of a host that claims `khz`, while its TSC runs at `hz`.
fn real_cycles(hz: u64, ns: u64) -> u64 {
    (u128::from(hz) * u128::from(ns) / 1_000_000_000) as u64
}

proptest! {
    /// The bound holds against exact arithmetic, for hosts with any real frequency that rounds down
    /// to `khz`: after the blackout the guest's TSC is where its own rate would have taken it.
    #[test]
    fn the_bound_holds(
        source_khz in 800_000u32..5_000_000,
        destination_khz in 800_000u32..5_000_000,
        guest_khz in 800_000u32..5_000_000,
        source_hz_below in 0u64..1000,
        destination_hz_below in 0u64..1000,
        up_ns in 0u64..1 << 50,
        blackout_ns in 0u64..600 * SECOND,
        source_tsc in any::<u64>(),
        destination_tsc in any::<u64>(),
        offset in any::<u64>(),
    ) {
        let format = RatioFormat::VMX;
        let ratio = |khz| format.ratio(guest_khz, khz).unwrap();
        let reading = |clock_ns, real_ns, host_tsc| KvmClockData {
            clock_ns,
            flags: 14,
            realtime_ns: real_ns,
            host_tsc,
        };
        let source_hz = u64::from(source_khz) * 1000 + source_hz_below;
        let destination_hz = u64::from(destination_khz) * 1000 + destination_hz_below;
        let s = Side {
            clock: reading(up_ns, up_ns, source_tsc.wrapping_add(real_cycles(source_hz, up_ns))),
            format,
            ratio: ratio(source_khz),
        };
        let d = Side {
            clock: reading(up_ns + blackout_ns, up_ns + blackout_ns,
                destination_tsc.wrapping_add(real_cycles(destination_hz, 999))),
            format,
            ratio: ratio(destination_khz),
        };
        let m = by_offsets(&s, &d, guest_khz, &Uncertainty::default()).unwrap();
        let before = format.read_l1(s.ratio, offset, s.clock.host_tsc);
        let after = format.read_l1(d.ratio, m.offset(offset), d.clock.host_tsc);
        let gained = u128::from(after.wrapping_sub(before));
        prop_assert_eq!(gained, m.account.added_cycles);
        // The guest's real frequency on the source, against what was added: |cycles| as ns.
        let real_guest_hz = u128::from(source_hz) * u128::from(guest_khz) / u128::from(source_khz);
        let due = real_guest_hz * u128::from(blackout_ns) / 1_000_000_000;
        let off_ns = due.abs_diff(gained) * 1_000_000 / u128::from(guest_khz);
        let bound = u128::from(m.account.tsc_against_its_rate_ns);
        prop_assert!(off_ns <= bound, "{} > {}", off_ns, bound);
    }
}

/// The page of a scaled guest is off by the cut of its frequency, 1000 ppb, and by a multiplier of 32 bits.
/// Two readings of 2 ns come on top.
#[test]
fn the_drift_of_a_page_is_as_long_as_its_master_clock_is_old() {
    for (age_ns, drift_ns) in [
        (0, 1),
        (SECOND, 1_000 + 1),
        ((1 << 31) - 1, 2_148 + 1),
        (1 << 31, 2_148 + 2),
        (10 * SECOND, 10_000 + 5),
    ] {
        let side = Side {
            clock: KvmClockData {
                flags: KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC,
                ..KvmClockData::default()
            },
            format: RatioFormat::VMX,
            ratio: RatioFormat::VMX.ratio(1_000_001, 2_000_000).unwrap(),
        };
        let known = Uncertainty {
            master_clock_age_ns: age_ns,
            ..Uncertainty::default()
        };
        let moved = by_offsets(&side, &side, 1_000_001, &known).unwrap();
        assert_eq!(moved.account.kvmclock_against_real_ns, drift_ns + 4);
    }
}
