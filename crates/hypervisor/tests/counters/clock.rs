//! kvmclock ioctls and the master clock: items 1–5, and the selftest of the series.

use stealtime_hypervisor::counter::arith::TimeScale;
use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KVM_CLOCK_TSC_STABLE, KvmClockData,
};
use stealtime_hypervisor::counter::pvclock::PVCLOCK_TSC_STABLE;
use stealtime_hypervisor::counter::scaling::ClockMode;

use crate::host::{Machine, SECOND};

const KHZ: u32 = 2_500_000;

fn two_vcpus() -> Machine {
    let mut m = Machine::new(KHZ, 1 << 40);
    m.add_vcpu(KHZ);
    m.add_vcpu(KHZ);
    m.settle();
    assert!(m.vm.use_master_clock);
    m
}

fn set(m: &mut Machine, clock_ns: u64, flags: u32, realtime_ns: u64) -> Option<u64> {
    let data = KvmClockData {
        clock_ns,
        flags,
        realtime_ns,
        host_tsc: 0xdead_beef,
    };
    let now = m.now();
    let set = m.vm.set_clock(&m.host, &now, &data);
    set.ok().map(|set| set.added_ns)
}

fn get(m: &Machine) -> KvmClockData {
    m.vm.get_clock(&m.host, &m.now(), true).unwrap()
}

#[test]
fn counters_sloppy_01_future_realtime_never_steps_the_clock_back() {
    let mut m = two_vcpus();
    let future = m.now().real_ns + 180 * SECOND;
    assert_eq!(
        set(&mut m, 42 * SECOND, KVM_CLOCK_REALTIME, future),
        Some(0)
    );
    assert_eq!(get(&m).clock_ns, 42 * SECOND);
    let past = m.now().real_ns - 180 * SECOND;
    let added = set(&mut m, 42 * SECOND, KVM_CLOCK_REALTIME, past);
    assert_eq!(added, Some(180 * SECOND));
    assert_eq!(get(&m).clock_ns, 222 * SECOND);
}

/// `KVM_SET_CLOCK` and a new master clock make every page old; nothing else does, and each vCPU brings its
/// own up to date.
#[test]
fn a_clock_that_is_set_is_brought_to_every_vcpu() {
    let mut m = two_vcpus();
    let now = m.now();
    let fresh = |m: &mut Machine| {
        for vcpu in &mut m.vcpus {
            m.vm.guest_time_update(vcpu, &m.host, &now, false).unwrap();
        }
    };
    let old = |m: &Machine| {
        let old = m.vcpus.iter().map(|vcpu| m.vm.needs_clock_update(vcpu));
        old.collect::<Vec<_>>()
    };
    fresh(&mut m);
    assert_eq!(old(&m), [false, false]);
    let data = KvmClockData {
        clock_ns: 9 * SECOND,
        ..KvmClockData::default()
    };
    let set = m.vm.set_clock(&m.host, &now, &data).unwrap();
    assert_eq!(set.vcpus_to_update, 2);
    assert_eq!(old(&m), [true, true]);
    m.vm.guest_time_update(&mut m.vcpus[1], &m.host, &now, false)
        .unwrap();
    assert_eq!(old(&m), [true, false]);
    fresh(&mut m);
    m.vm.refresh_master_clock(&m.host, &now);
    assert_eq!(old(&m), [true, true]);
    fresh(&mut m);
    // Refused: nothing was done.
    let refused =
        m.vm.set_clock(&m.host, &now, &KvmClockData { flags: 1, ..data });
    assert!(refused.is_err());
    assert_eq!(old(&m), [false, false]);
}

#[test]
fn counters_sloppy_02_unknown_flags_are_refused_known_ones_ignored() {
    let mut m = two_vcpus();
    let before = m.vm;
    for unknown in [1, 16, 1 << 31, KVM_CLOCK_REALTIME | 1] {
        assert_eq!(set(&mut m, 7, unknown, 0), None, "{unknown:#x}");
        assert_eq!(m.vm, before);
    }
    let both = KVM_CLOCK_TSC_STABLE | KVM_CLOCK_HOST_TSC;
    // Neither adds the time since `realtime_ns`, and the given host TSC has no effect.
    assert_eq!(set(&mut m, 7 * SECOND, both, 1), Some(0));
    let with_flags = core::mem::replace(&mut m.vm, before);
    assert_eq!(set(&mut m, 7 * SECOND, 0, 1), Some(0));
    assert_eq!(m.vm, with_flags);
    assert_eq!(get(&m).clock_ns, 7 * SECOND);
}

#[test]
fn counters_sloppy_03_no_instant_without_master_clock() {
    let mut m = two_vcpus();
    let pair = KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
    let on = get(&m);
    assert_eq!(on.flags, KVM_CLOCK_TSC_STABLE | pair);
    assert_eq!(
        (on.realtime_ns, on.host_tsc),
        (m.now().real_ns, m.now().tsc)
    );
    // The wall clock could not be read together with the TSC: the TSC without its flag.
    let failed = m.vm.get_clock(&m.host, &m.now(), false).unwrap();
    assert_eq!(failed.flags, KVM_CLOCK_TSC_STABLE);
    assert_eq!((failed.realtime_ns, failed.host_tsc), (0, m.now().tsc));
    m.host.clock_mode = ClockMode::None;
    let now = m.now();
    m.vm.refresh_master_clock(&m.host, &now);
    let off = get(&m);
    assert_eq!((off.flags, off.realtime_ns, off.host_tsc), (0, 0, 0));
    assert_eq!(off.clock_ns, m.now().ns - 5 * SECOND);
}

#[test]
fn counters_sloppy_04_one_stray_vcpu_takes_the_master_clock_from_all() {
    let mut m = two_vcpus();
    m.pass(10 * SECOND);
    let now = m.now();
    assert!(!m.write(1, 1 << 50), "far off: a generation of its own");
    m.settle();
    assert!(!m.vm.use_master_clock);
    for vcpu in &mut m.vcpus {
        let page = m.vm.guest_time_update(vcpu, &m.host, &now, false).unwrap();
        assert_eq!(page.flags & PVCLOCK_TSC_STABLE, 0);
    }
    // The other joins the new generation: all agree again.
    let offset = m.vm.cur_tsc_offset;
    assert!(m.set_offset(0, offset));
    m.settle();
    assert!(m.vm.use_master_clock);
    for vcpu in &mut m.vcpus {
        let page = m.vm.guest_time_update(vcpu, &m.host, &now, false).unwrap();
        assert_eq!(page.flags & PVCLOCK_TSC_STABLE, PVCLOCK_TSC_STABLE);
    }
}

#[test]
fn counters_sloppy_05_a_hot_plugged_vcpu_joins_and_the_master_clock_returns() {
    let mut m = two_vcpus();
    m.pass(3 * SECOND);
    let new = m.add_vcpu(KHZ);
    assert_eq!(m.vcpus[new].l1_tsc_offset, m.vm.cur_tsc_offset);
    assert_eq!(m.read(new), m.read(0));
    assert_eq!(m.vm.nr_vcpus_matched_tsc, 2);
    m.settle();
    assert!(m.vm.use_master_clock);
    // Counting the opener among the matched would have kept it off for ever.
    assert_eq!(m.vm.nr_vcpus_matched_tsc + 1, m.vm.online_vcpus);
}

/// The series' `kvm_clock_test`: the clock, set with four realtime offsets, lies between two
/// readings of the host, and the guest's page agrees.
#[test]
fn the_guest_reads_between_the_hosts_readings() {
    for realtime_offset in [None, Some(-180i64), Some(180), Some(0)] {
        let mut m = two_vcpus();
        let base = realtime_offset.map_or(180 * SECOND, |_| 0);
        let flags = realtime_offset.map_or(0, |_| KVM_CLOCK_REALTIME);
        let real = m.now().real_ns;
        let offset_ns = realtime_offset.unwrap_or(0) * SECOND as i64;
        set(&mut m, base, flags, real.wrapping_add_signed(offset_ns)).unwrap();
        let start = get(&m);
        assert!(start.clock_ns >= base, "a step backwards");
        m.pass(1234);
        let now = m.now();
        let page =
            m.vm.guest_time_update(&mut m.vcpus[0], &m.host, &now, false)
                .unwrap();
        let guest = page.at(m.read(0));
        m.pass(1234);
        let end = get(&m);
        assert!(
            (start.clock_ns..=end.clock_ns).contains(&guest),
            "{start:?} {guest} {end:?}"
        );
    }
}

/// The conditions of the master clock that no vCPU's writes can see.
#[test]
fn old_clocks_and_backward_tscs_keep_the_master_clock_off() {
    let mut m = two_vcpus();
    let now = m.now();
    m.vm.backwards_tsc_observed = true;
    m.vm.refresh_master_clock(&m.host, &now);
    assert!(!m.vm.use_master_clock);
    m.vm.backwards_tsc_observed = false;
    m.vm.boot_vcpu_runs_old_kvmclock = true;
    m.vm.refresh_master_clock(&m.host, &now);
    assert!(!m.vm.use_master_clock);
    m.vm.boot_vcpu_runs_old_kvmclock = false;
    m.vm.refresh_master_clock(&m.host, &now);
    assert!(m.vm.use_master_clock);
}

/// The series' `system_counter_offset_test`: with each offset the guest reads between the host's
/// readings before and after, moved by it.
#[test]
fn a_guests_counter_is_the_hosts_and_its_offset() {
    for offset in [0, 180_000_000_000u64, 180_000_000_000u64.wrapping_neg()] {
        let mut m = two_vcpus();
        m.set_offset(0, offset);
        let before = m.now().tsc.wrapping_add(offset);
        m.pass(100);
        let guest = m.read(0);
        m.pass(100);
        let after = m.now().tsc.wrapping_add(offset);
        assert!(before <= guest && guest <= after);
    }
}

/// `KVM_SET_TSC_KHZ` after the first update: the page gets the factors of the new frequency.
#[test]
fn a_page_follows_the_frequency_of_its_guest() {
    let mut m = two_vcpus();
    let now = m.now();
    let vcpu = &mut m.vcpus[0];
    let first = m.vm.guest_time_update(vcpu, &m.host, &now, false).unwrap();
    let half = vcpu.rate.virtual_khz / 2;
    vcpu.set_tsc_khz(&m.host, half).unwrap();
    let page = m.vm.guest_time_update(vcpu, &m.host, &now, false).unwrap();
    assert_ne!(page.scale, first.scale);
    // The ratio is rounded down, and may lose a kHz.
    let scales = [half, half - 1].map(|khz| TimeScale::cycles_to_ns(khz.into()).unwrap());
    assert!(scales.contains(&page.scale), "{page:?}");
}
