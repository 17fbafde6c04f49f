//! TSC synchronisation: items 6–8 and 11, and what the selftests of 7.2 check.

use stealtime_hypervisor::counter::arith::adjust_khz;
use stealtime_hypervisor::counter::scaling::{HostTsc, RatioFormat, TscRate};

use crate::host::{Machine, SECOND};

const KHZ: u32 = 2_500_000;
const HZ: u64 = KHZ as u64 * 1000;

#[test]
fn counters_sloppy_06_values_snap_within_a_second_and_only_after_a_first() {
    // A young guest is restored first: nothing was set before, so nothing may snap.
    let mut m = Machine::new(KHZ, 1 << 40);
    m.add_vcpu(KHZ);
    m.add_vcpu(KHZ);
    assert!(!m.vm.user_set_tsc);
    assert!(!m.write(0, HZ / 2), "half a second old: exact");
    assert_eq!(m.read(0), HZ / 2);
    assert!(m.vm.user_set_tsc);
    // The bound is strict on both sides.
    for (off_by, snaps) in [
        (HZ as i64 - 1, true),
        (HZ as i64, false),
        (1 - HZ as i64, true),
        (-(HZ as i64), false),
    ] {
        let mut m = Machine::new(KHZ, 1 << 40);
        m.add_vcpu(KHZ);
        m.add_vcpu(KHZ);
        m.write(0, 100 * HZ);
        m.pass(300_000_000);
        let expected = 100 * HZ + HZ * 3 / 10;
        let matched = m.write(1, expected.wrapping_add_signed(off_by));
        assert_eq!(matched, snaps, "off by {off_by}");
        assert_eq!(m.read(0) == m.read(1), snaps);
    }
}

#[test]
fn counters_sloppy_06_the_generations_offset_counts_not_the_last() {
    let mut m = Machine::new(KHZ, 1 << 40);
    for _ in 0..3 {
        m.add_vcpu(KHZ);
    }
    m.write(0, 100 * HZ);
    let opened = m.vm.cur_tsc_offset;
    for vcpu in [1, 2] {
        m.pass(20_000_000);
        assert!(m.write(vcpu, 100 * HZ), "late by {vcpu} preemptions");
        assert_eq!(m.vcpus[vcpu].l1_tsc_offset, opened);
    }
    assert_eq!(m.read(0), m.read(2));
}

#[test]
fn counters_sloppy_07_offsets_may_wait_values_may_not() {
    let mut late = Vec::new();
    for delay_ns in [0, 1, 7 * SECOND, 86_400 * SECOND] {
        let mut m = Machine::new(KHZ, 77);
        m.add_vcpu(KHZ);
        m.pass(SECOND);
        let offset = m.vcpus[0].l1_tsc_offset.wrapping_add(1234);
        let value = m.read(0) + 1234;
        m.pass(delay_ns);
        let expected = m.read(0) + 1234;
        assert!(!m.set_offset(0, offset));
        assert_eq!(m.read(0), expected);
        let generation = m.vm.cur_tsc_generation;
        // Again, later: the same offset, the same generation.
        m.pass(delay_ns);
        assert!(m.set_offset(0, offset));
        assert_eq!(m.vm.cur_tsc_generation, generation);
        let mut by_value = Machine::new(KHZ, 77);
        by_value.add_vcpu(KHZ);
        by_value.pass(SECOND + delay_ns);
        by_value.write(0, value);
        late.push(expected - by_value.read(0));
    }
    assert_eq!(late, [0, 2, 7 * HZ, 86_400 * HZ]);
}

#[test]
fn counters_sloppy_07_one_offset_for_all_opens_one_generation() {
    let mut m = Machine::new(KHZ, 1 << 60);
    for _ in 0..4 {
        m.add_vcpu(KHZ);
    }
    m.settle();
    let offset = 0u64.wrapping_sub(1 << 59);
    let opened = m.vm.cur_tsc_generation;
    for vcpu in 0..4 {
        m.pass(13 * SECOND);
        assert_eq!(m.set_offset(vcpu, offset), vcpu > 0);
        m.settle();
        // It comes back with the last one, not before.
        assert_eq!(m.vm.use_master_clock, vcpu == 3);
    }
    assert_eq!(m.vm.cur_tsc_generation, opened + 1);
    assert!((1..4).all(|vcpu| m.read(vcpu) == m.read(0)));
}

#[test]
fn counters_sloppy_08_offsets_wrap() {
    // A guest that started when its host had been up for years reads less than the host.
    let mut m = Machine::new(KHZ, u64::MAX - 5);
    m.add_vcpu(KHZ);
    m.pass(10);
    assert_eq!(m.read(0), 25);
    for offset in [u64::MAX, 1 << 63, 0, 1] {
        m.set_offset(0, offset);
        assert_eq!(m.read(0), m.now().tsc.wrapping_add(offset));
    }
}

#[test]
fn counters_sloppy_11_within_250_ppm_the_ratio_is_neutral() {
    let host = HostTsc::new(3_000_000, RatioFormat::VMX);
    let ratio = |khz| {
        let mut rate = TscRate::default();
        rate.set_khz(&host, khz).map(|()| rate.ratio)
    };
    let neutral = Ok(RatioFormat::VMX.neutral());
    for khz in [2_999_250, 3_000_000, 3_000_750] {
        assert_eq!(ratio(khz), neutral, "{khz}");
    }
    for khz in [2_999_249, 3_000_751] {
        assert_ne!(ratio(khz), neutral, "{khz}");
    }
    assert_eq!(adjust_khz(3_000_000, -250), 2_999_250);
}

/// `tsc_msrs_test` of 7.2: guest writes move the counter and `IA32_TSC_ADJUST` together, host
/// writes of either leave the other.
#[test]
fn guest_writes_move_adjust_and_host_writes_do_not() {
    let mut m = Machine::new(KHZ, 9);
    m.add_vcpu(KHZ);
    let now = m.now();
    let before = m.read(0);
    let generation = m.vm.cur_tsc_generation;
    m.vcpus[0].guest_write(&m.host, &now, before + 1000);
    assert_eq!(
        (m.read(0), m.vcpus[0].ia32_tsc_adjust),
        (before + 1000, 1000)
    );
    m.vcpus[0].write_tsc_adjust(false, 400);
    assert_eq!((m.read(0), m.vcpus[0].ia32_tsc_adjust), (before + 400, 400));
    m.vcpus[0].write_tsc_adjust(true, 5);
    assert_eq!((m.read(0), m.vcpus[0].ia32_tsc_adjust), (before + 400, 5));
    assert_eq!(m.vm.cur_tsc_generation, generation);
    m.write(0, 1 << 50);
    assert_eq!((m.read(0), m.vcpus[0].ia32_tsc_adjust), (1 << 50, 5));
}

/// `tsc_scaling_sync` of 7.2: vCPUs of another frequency, created one after the other, never see
/// the counter step back from one to the next.
#[test]
fn scaled_vcpus_created_apart_share_one_counter() {
    let mut m = Machine::new(KHZ, 1 << 62);
    let mut last = 0;
    for vcpu in 0..16 {
        m.add_vcpu(2_345_678);
        m.pass(1_000_003);
        for earlier in 0..=vcpu {
            let read = m.read(earlier);
            assert!(
                read >= last,
                "vCPU {earlier} of {vcpu}: {read} after {last}"
            );
            last = read;
        }
    }
}

/// On a host with an unstable TSC a vCPU that moves goes on where it was, and catches up.
#[test]
fn an_unstable_tsc_does_not_take_guests_back() {
    let mut m = Machine::new(KHZ, 1 << 40);
    m.add_vcpu(KHZ);
    m.pass(SECOND);
    let now = m.now();
    let page =
        m.vm.guest_time_update(&mut m.vcpus[0], &m.host, &now, false);
    let seen = page.unwrap().tsc_timestamp;
    m.vcpus[0].put(&now);
    let mut back = now;
    back.tsc -= 1_000_000;
    m.vcpus[0].load(&mut m.host, &back, 3, 0);
    assert!(m.host.unstable && m.vcpus[0].tsc_catchup);
    assert_eq!(m.vcpus[0].read(&m.host, &back), seen);
    back.ns += SECOND;
    let page =
        m.vm.guest_time_update(&mut m.vcpus[0], &m.host, &back, false);
    assert!(page.unwrap().tsc_timestamp >= seen + HZ - 1);
}

/// On the CPU of its last load a vCPU compares no counters, unless the host's TSC is known to be unstable.
#[test]
fn a_vcpu_that_stays_on_its_cpu_trusts_its_counter() {
    let mut m = Machine::new(KHZ, 1 << 40);
    m.add_vcpu(KHZ);
    m.pass(SECOND);
    let now = m.now();
    m.vcpus[0].load(&mut m.host, &now, 3, 0);
    m.vcpus[0].put(&now);
    m.vcpus[0].load(&mut m.host, &now, 4, 0);
    assert!(!m.host.unstable, "equal counters on two CPUs");
    let mut back = now;
    back.tsc -= 1_000_000;
    m.vcpus[0].load(&mut m.host, &back, 4, 0);
    assert!(!m.host.unstable && !m.vcpus[0].tsc_catchup);
    m.host.unstable = true;
    m.vcpus[0].load(&mut m.host, &back, 4, 0);
    assert!(m.vcpus[0].tsc_catchup);
}

/// After a write on an unstable TSC, the generation's offset differs from the one last written. Once
/// the TSC is trusted again, a written value snaps to the offset of the generation.
#[test]
fn after_an_unstable_phase_the_generations_offset_still_counts() {
    let mut m = Machine::new(KHZ, 1 << 40);
    for _ in 0..3 {
        m.add_vcpu(KHZ);
    }
    m.write(0, 100 * HZ);
    let opened = m.vm.cur_tsc_offset;
    m.host.unstable = true;
    m.pass(SECOND / 2);
    assert!(m.write(1, 100 * HZ + HZ / 2 - 1000));
    let moved_on = 100 * HZ + HZ / 2 - 1000 + HZ / 2;
    assert_eq!(m.read(1), moved_on, "the elapsed time is added");
    assert_ne!(m.vm.last_tsc_offset, opened);
    m.host.unstable = false;
    assert!(m.write(2, moved_on));
    assert_eq!(m.vcpus[2].l1_tsc_offset, opened);
}

/// Hardware that protects a guest's TSC leaves nothing for the host to write or to catch up.
#[test]
fn a_protected_tsc_is_left_alone() {
    let mut m = Machine::new(KHZ, 1 << 40);
    let now = m.now();
    let (vcpu, _) = m.vm.create_vcpu(&mut m.host, &now, 0, KHZ, true);
    m.vcpus.push(vcpu);
    let before = m.vcpus[0];
    m.write(0, 1 << 50);
    m.set_offset(0, 77);
    m.vcpus[0].guest_write(&m.host, &now, 1 << 51);
    assert_eq!(m.vcpus[0], before);
    assert_eq!((m.vm.cur_tsc_generation, m.vm.user_set_tsc), (0, false));
    m.host.unstable = true;
    m.vcpus[0].load(&mut m.host, &now, 9, 5);
    assert!(!m.vcpus[0].tsc_catchup);
    assert_eq!(m.vcpus[0].l1_tsc_offset, before.l1_tsc_offset);
}
