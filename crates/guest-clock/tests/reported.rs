//! Failures that users of VMMs have reported, shown as they come about by value or out of order,
//! and gone by this library. Projects' trackers and numbers are those of `docs/guest-clocks.md`.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::device::{
    HostFacts, MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE, Vcpu, Vm,
};
use stealtime_hypervisor::counter::kvm_clock::KvmClockData;

use guest_clock::fake::{FakeHost, FakeVcpu, FakeVm};
use guest_clock::{
    Anchor, GuestClocks, Options, PlanError, Policy, Reason, Saved, State, rehearse,
};

const KHZ: u32 = 2_500_000;
const SECOND: u64 = 1_000_000_000;

fn running(host: &FakeHost, vcpus: usize) -> (FakeVm, Vec<FakeVcpu>) {
    let (vm, vcpus) = host.vm(vcpus);
    vm.set_clock(&Default::default()).unwrap();
    host.pass(100 * SECOND);
    (vm, vcpus)
}

fn tsc(vcpu: &FakeVcpu) -> u64 {
    vcpu.msr(MSR_IA32_TSC).unwrap().unwrap()
}

/// What VMMs do: each vCPU's value is written when its turn comes.
fn write_values(host: &FakeHost, vcpus: &[FakeVcpu], values: &[u64], delay_ns: u64) {
    for (vcpu, value) in vcpus.iter().zip(values) {
        vcpu.set_msr(MSR_IA32_TSC, *value).unwrap();
        host.pass(delay_ns);
    }
}

fn values(vcpus: &[FakeVcpu]) -> Vec<u64> {
    vcpus.iter().map(tsc).collect()
}

/// firecracker 6200: restored vCPUs have different offsets, a task that moves sees time go back.
#[test]
fn unequal_offsets() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = running(&host, 2);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let by_value = values(&vcpus);
    let (_vm, new) = host.vm(2);
    write_values(&host, &new, &by_value, 1_200_000_000);
    let moved = (tsc(&new[0]), tsc(&new[1]));
    assert!(
        moved.0 > moved.1 + u64::from(KHZ) * 1000,
        "time goes back: {moved:?}"
    );
    let (vm, new) = host.vm(2);
    saved.restore(&vm, &new, Policy::ELAPSED).unwrap();
    assert_eq!(new[0].tsc_offset().unwrap(), new[1].tsc_offset().unwrap());
}

/// cloud-hypervisor 8383: the master clock is off after a restore, clock reads are many times
/// slower.
#[test]
fn master_clock_off_after_restore() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = running(&host, 2);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let by_value = values(&vcpus);
    let (vm, new) = host.vm(2);
    write_values(&host, &new, &by_value, 1_200_000_000);
    vm.set_clock(&Default::default()).unwrap();
    assert_eq!(vm.get_clock().unwrap().flags, 0);
    assert!(!new[1].read_clocks().unwrap().stable);
    // The same VM is mended by restoring over it.
    let done = saved.restore(&vm, &new, Policy::ELAPSED).unwrap();
    assert!(done.master_clock);
    assert!(new.iter().all(|v| v.read_clocks().unwrap().stable));
}

/// openvmm 4253: a TSC written as zero is taken for "as the others", not for zero.
#[test]
fn zero_is_not_written() {
    let host = FakeHost::new(KHZ);
    let (_vm, vcpus) = running(&host, 2);
    let before = vcpus[1].tsc_offset().unwrap();
    vcpus[1].set_msr(MSR_IA32_TSC, 0).unwrap();
    assert_eq!(vcpus[1].tsc_offset().unwrap(), before);
    assert!(tsc(&vcpus[1]) > 0);
    // By offset a guest can begin at zero.
    let state = |vm: &FakeVm, vcpus: &[FakeVcpu]| {
        let saved = GuestClocks::save(vm, vcpus).unwrap();
        let State::X86(mut x86) = saved.state().clone() else {
            panic!()
        };
        for vcpu in &mut x86.vcpus {
            vcpu.tsc_offset = x86.instant.host_tsc.wrapping_neg();
        }
        Saved::new(State::X86(x86)).unwrap()
    };
    let (vm, vcpus) = running(&host, 2);
    let zero = state(&vm, &vcpus);
    let (vm, vcpus) = host.vm(2);
    let done = zero.restore(&vm, &vcpus, Policy::Stopped).unwrap();
    assert_eq!(
        (done.vcpus[1].tsc_at_save, done.vcpus[1].tsc_at_anchor),
        (0, 0)
    );
    assert!(tsc(&vcpus[1]) < u64::from(KHZ), "less than a millisecond");
}

/// A second value within a second of the first is replaced by the first one's offset.
#[test]
fn writes_within_a_second_snap_to_the_first() {
    let host = FakeHost::new(KHZ);
    let (_vm, vcpus) = running(&host, 2);
    let now = tsc(&vcpus[0]);
    vcpus[0].set_msr(MSR_IA32_TSC, now + 10 * SECOND).unwrap();
    let first = vcpus[0].tsc_offset().unwrap();
    // Half a second of guest time ahead: wanted, and not had.
    vcpus[0]
        .set_msr(MSR_IA32_TSC, now + 10 * SECOND + u64::from(KHZ) * 500)
        .unwrap();
    assert_eq!(vcpus[0].tsc_offset().unwrap(), first);
    vcpus[0]
        .set_tsc_offset(first + u64::from(KHZ) * 500)
        .unwrap();
    assert_eq!(vcpus[0].tsc_offset().unwrap(), first + u64::from(KHZ) * 500);
}

/// cloud-hypervisor 7930, 7931, 7932: the clock is set after vCPUs ran, and they are not told of
/// the pause.
#[test]
fn clock_set_late() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = running(&host, 1);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let State::X86(x86) = saved.state() else {
        panic!()
    };
    let (_vm, new) = host.vm(1);
    let early = new[0].read_clocks().unwrap();
    assert!(
        early.kvmclock_ns < x86.instant.clock_ns && !early.stopped,
        "time goes back"
    );
    let (vm, new) = host.vm(1);
    saved.restore(&vm, &new, Policy::ELAPSED).unwrap();
    let first = new[0].read_clocks().unwrap();
    assert!(first.kvmclock_ns >= x86.instant.clock_ns && first.stopped);
}

/// firecracker 4099: a deadline restored before the TSC is compared with the wrong TSC.
#[test]
fn deadline_before_tsc() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = host.vm(1);
    vm.set_clock(&Default::default()).unwrap();
    host.pass(SECOND);
    let deadline = tsc(&vcpus[0]) + u64::from(KHZ) * 1000;
    vcpus[0].set_msr(MSR_IA32_TSC_DEADLINE, deadline).unwrap();
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let by_value = values(&vcpus);
    // The new VM has been there for a while: its TSC is ahead of the saved one.
    let (_vm, new) = running(&host, 1);
    new[0].set_msr(MSR_IA32_TSC_DEADLINE, deadline).unwrap();
    write_values(&host, &new, &by_value, 0);
    assert_eq!(new[0].msr(MSR_IA32_TSC_DEADLINE).unwrap(), Some(0), "lost");
    let (vm, new) = running(&host, 1);
    saved.restore(&vm, &new, Policy::Stopped).unwrap();
    assert_eq!(new[0].msr(MSR_IA32_TSC_DEADLINE).unwrap(), Some(deadline));
}

/// openvmm 4290: the timer is ahead of the clock by the pause: two timelines.
#[test]
fn two_timelines() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = running(&host, 1);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let State::X86(x86) = saved.state() else {
        panic!()
    };
    host.pass(38 * SECOND);
    let (vm, new) = host.vm(1);
    let done = saved.restore(&vm, &new, Policy::ELAPSED).unwrap();
    let read = new[0].read_clocks().unwrap();
    let cycles = u128::from(read.tsc - done.vcpus[0].tsc_at_save);
    let ns = cycles * 1_000_000 / u128::from(KHZ);
    let apart = ns.abs_diff(u128::from(read.kvmclock_ns - x86.instant.clock_ns));
    assert!(
        apart <= u128::from(done.tsc_against_kvmclock_ns) + 2,
        "{apart} ns"
    );
    // As reported: the clock is given the pause, the counter is not.
    let (vm, new) = host.vm(1);
    let value = x86.vcpus[0].tsc_offset.wrapping_add(x86.instant.host_tsc);
    write_values(&host, &new, &[value], 0);
    let passed = host.now().real_ns - x86.instant.realtime_ns;
    let clock_ns = x86.instant.clock_ns + passed;
    vm.set_clock(&KvmClockData {
        clock_ns,
        ..KvmClockData::default()
    })
    .unwrap();
    let read = new[0].read_clocks().unwrap();
    let by_tsc_ns = (read.tsc - value) * 1_000 / u64::from(KHZ / 1_000);
    let by_clock_ns = read.kvmclock_ns - x86.instant.clock_ns;
    assert!(
        by_clock_ns - by_tsc_ns > 37 * SECOND,
        "{by_clock_ns} {by_tsc_ns}"
    );
}

/// openvmm 2913: a guest that wrote its TSC has a `TSC_ADJUST`, which must not move it again.
#[test]
fn tsc_adjust_is_carried_and_does_not_move_the_tsc() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = running(&host, 1);
    vcpus[0].guest_writes_tsc(12_345).unwrap();
    let adjust = vcpus[0].msr(MSR_IA32_TSC_ADJUST).unwrap();
    assert_ne!(adjust, Some(0));
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let (vm, new) = host.vm(1);
    let done = saved.restore(&vm, &new, Policy::Stopped).unwrap();
    assert_eq!(new[0].msr(MSR_IA32_TSC_ADJUST).unwrap(), adjust);
    assert_eq!(new[0].tsc_offset().unwrap(), done.vcpus[0].offset_to);
    // Before its CPUID is set a vCPU ignores it: that is said.
    let (vm, new) = host.vm(1);
    new[0].hide_tsc_adjust();
    let done = saved.restore(&vm, &new, Policy::Stopped).unwrap();
    let expected = Reason::AdjustsNotTaken { vcpus: 1 };
    assert!(done.reasons.contains(&expected), "{done}");
}

/// firecracker 5809: after a restore the monotonic clock jumped by the pause, unasked.
#[test]
fn the_jump_is_a_policy() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = running(&host, 1);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    host.pass(86_400 * SECOND);
    let advanced = |policy| {
        let (vm, new) = host.vm(1);
        saved.restore(&vm, &new, policy).unwrap().advanced_ns
    };
    assert_eq!(advanced(Policy::Stopped), 0);
    assert!(advanced(Policy::ELAPSED) >= 86_400 * SECOND);
}

/// firecracker 5581, cloud-hypervisor 5786 and 5787: kHz are carried, and what another host would
/// do with them can be tried out without that host.
#[test]
fn other_hosts_can_be_rehearsed() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = running(&host, 2);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let anchor = Anchor {
        realtime_ns: host.now().real_ns + SECOND,
        host_tsc: 99,
        bound_ns: 0,
    };
    let on = |khz, has_scaling| {
        let mut facts = HostFacts::complete(khz);
        facts.has_scaling = has_scaling;
        rehearse(&saved, &facts, anchor, &Options::new(Policy::ELAPSED))
    };
    for khz in [KHZ, KHZ + 300, KHZ - 600] {
        assert!(on(khz, false).is_ok(), "{khz}");
    }
    let refused = on(KHZ + 2000, false).unwrap_err();
    assert!(matches!(
        refused,
        PlanError::Frequency { guest_khz: KHZ, .. }
    ));
    let scaled = on(2_100_000, true).unwrap();
    let added = scaled.vcpus()[0].tsc_at_anchor - scaled.vcpus()[0].tsc_at_save;
    let elapsed = u128::from(scaled.account().kvmclock_elapsed_ns);
    assert_eq!(u128::from(added), elapsed * u128::from(KHZ) / 1_000_000);
}

/// Each test that the page of reported failures and promises names is there.
#[test]
fn the_page_names_tests_that_are_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let page = read("../../docs/guest-clocks.md");
    let begin = page.find("## Reported failures").unwrap();
    let section = page[begin..].split("\n## ").next().unwrap();
    let table = section.lines().filter(|line| line.starts_with("| "));
    let tests = read("tests/reported.rs");
    let mut rows = 0;
    for row in table.skip(1) {
        let name = row.rsplit('`').nth(1).unwrap();
        assert!(tests.contains(&format!("#[test]\nfn {name}()")), "{name}");
        rows += 1;
    }
    assert!(rows >= 11, "{rows} rows");
    for (prefix, file) in [
        ("restore::", "tests/restore.rs"),
        ("reported::", "tests/reported.rs"),
        ("by_value::", "tests/by_value.rs"),
        ("capi::", "tests/capi.rs"),
        ("vcpus::", "tests/vcpus.rs"),
        ("example::", "tests/example.rs"),
        ("interface::", "tests/interface.rs"),
        ("fake::golden::", "src/fake/golden.rs"),
    ] {
        let tests = read(file);
        for name in page.split(&format!("`{prefix}")).skip(1) {
            let name = name.split('`').next().unwrap();
            assert!(tests.contains(&format!("fn {name}(")), "{prefix}{name}");
        }
    }
}
