//! Failures that users of VMMs have reported: the failing order of calls shows them, this library's does not.
//! Projects' trackers and numbers are those of `docs/clock-failures.md`.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::drill::Device;
use guest_clock::reported::{self, Order, ReportError, Shown, Sight};

const KHZ: u64 = 2_500_000;
const SECOND: u64 = 1_000_000_000;

/// The report without a device, with a failure in its failing order alone.
fn show(name: &str) -> Shown {
    let shown = reported::find(name).unwrap().show(Device::Fake).unwrap();
    assert!(shown.failing.is_faulty(), "{:?}", shown.failing);
    assert!(!shown.right.is_faulty(), "{:?}", shown.right);
    shown
}

fn sees(order: &Order, matches: fn(&Sight) -> bool) {
    assert!(order.seen.iter().any(matches), "{:?}", order.seen);
}

/// The position of the first step that begins like this.
fn step(order: &Order, begin: &str) -> usize {
    let mut steps = order.steps.iter();
    let found = steps.position(|step| step.contains(begin));
    found.unwrap_or_else(|| panic!("no {begin} in {:?}", order.steps))
}

#[test]
fn unequal_offsets() {
    let shown = show("firecracker-6200");
    sees(
        &shown.failing,
        |sight| matches!(sight, Sight::TscBack { from_vcpu: 0, vcpu: 1, cycles, .. } if *cycles > KHZ * 1000),
    );
    let offset = |vcpu: usize| {
        let at = step(&shown.right, &format!("vCPU {vcpu}: KVM_SET_DEVICE_ATTR"));
        shown.right.steps[at].rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(offset(0), offset(1));
}

#[test]
fn master_clock_off_after_restore() {
    let shown = show("8383");
    sees(&shown.failing, |sight| {
        matches!(sight, Sight::MasterClockOff { vcpus: 2 })
    });
    assert!(shown.right.after.iter().all(|reading| reading.stable));
}

#[test]
fn zero_is_not_written() {
    let shown = show("4253");
    sees(
        &shown.failing,
        |sight| matches!(sight, Sight::NotTheValue { vcpu: 1, wanted: 0, read } if *read > SECOND),
    );
    let below_a_millisecond = |reading: &guest_clock::fake::GuestReading| reading.tsc < KHZ;
    assert!(shown.right.after.iter().all(below_a_millisecond));
}

#[test]
fn writes_within_a_second_snap_to_the_first() {
    let shown = show("one-second-rule");
    sees(&shown.failing, |sight| {
        matches!(sight, Sight::NotTheValue { vcpu: 1, .. })
    });
    let [first, second] = shown.right.after.as_slice() else {
        panic!("{:?}", shown.right)
    };
    assert!(second.tsc - first.tsc >= KHZ * 500);
}

#[test]
fn clock_set_late() {
    for name in ["7930", "7931", "cloud-hypervisor-7932"] {
        let shown = show(name);
        sees(&shown.failing, |sight| {
            matches!(sight, Sight::ClockBack { .. })
        });
        sees(&shown.failing, |sight| {
            matches!(sight, Sight::NotNotified { vcpus: 1 })
        });
        assert!(shown.right.after[0].stopped);
    }
}

#[test]
fn deadline_before_tsc() {
    let shown = show("4099");
    sees(&shown.failing, |sight| {
        matches!(sight, Sight::DeadlineLost { .. })
    });
    let (tsc, deadline) = ("KVM_VCPU_TSC_OFFSET", "IA32_TSC_DEADLINE");
    assert!(step(&shown.right, tsc) < step(&shown.right, deadline));
}

#[test]
fn two_timelines() {
    let shown = show("4290");
    sees(
        &shown.failing,
        |sight| matches!(sight, Sight::TimelinesApart { tsc_ns, clock_ns, .. } if clock_ns - tsc_ns > 37_000_000_000),
    );
}

#[test]
fn tsc_adjust_is_carried_and_does_not_move_the_tsc() {
    let shown = show("2913");
    sees(&shown.failing, |sight| {
        matches!(sight, Sight::AdjustLost { read: 0, .. })
    });
    let (tsc, adjust) = ("KVM_VCPU_TSC_OFFSET", "IA32_TSC_ADJUST");
    assert!(step(&shown.right, tsc) < step(&shown.right, adjust));
}

#[test]
fn the_jump_is_a_policy() {
    let shown = show("5809");
    sees(
        &shown.failing,
        |sight| matches!(sight, Sight::Jump { ns, asked: false } if *ns >= 86_400 * SECOND),
    );
    assert_eq!(shown.right.seen, []);
}

#[test]
fn other_hosts_can_be_rehearsed() {
    let shown = show("5581");
    sees(&shown.failing, |sight| {
        matches!(
            sight,
            Sight::TimelinesApart {
                tsc_ns: ..=8_500_000_000,
                ..
            }
        )
    });
    for outcome in [
        "2500300 kHz without scaling: restored",
        "2502000 kHz without scaling: refused",
        "2100000 kHz with scaling: restored",
    ] {
        step(&shown.right, outcome);
    }
    assert_eq!(show("5787"), show("cloud-hypervisor-5786"));
}

#[test]
fn reports_are_found_by_name_or_refused() {
    let found = reported::find("62").map(|_| ());
    assert!(
        matches!(found, Err(ReportError::Unknown { .. })),
        "{found:?}"
    );
    let lapic = reported::find("4099")
        .unwrap()
        .show(Device::Kvm)
        .map(|_| ());
    assert!(
        matches!(lapic, Err(ReportError::NotOnKvm { .. })),
        "{lapic:?}"
    );
    let numbers = reported::REPORTS.iter().flat_map(|report| report.names);
    for name in numbers {
        assert!(reported::find(name).is_ok(), "{name}");
    }
}

/// Each test that the page of reported failures and promises names is there.
#[test]
fn the_page_names_tests_that_are_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let page = read("../../docs/guest-clocks.md");
    let failures = read("../../docs/clock-failures.md");
    let table = failures.lines().filter(|line| line.starts_with("| "));
    let tests = read("tests/reported.rs");
    let mut rows = 0;
    for row in table.skip(1) {
        let name = row.rsplit('`').nth(1).unwrap();
        assert!(tests.contains(&format!("#[test]\nfn {name}()")), "{name}");
        rows += 1;
    }
    assert!(rows >= 10, "{rows} rows");
    for (prefix, file) in [
        ("restore::", "tests/restore.rs"),
        ("reported::", "tests/reported.rs"),
        ("by_value::", "tests/by_value.rs"),
        ("capi::", "tests/capi.rs"),
        ("vcpus::", "tests/vcpus.rs"),
        ("destinations::", "tests/destinations.rs"),
        ("threads::", "tests/threads.rs"),
        ("example::", "tests/example.rs"),
        ("fake::golden::", "src/fake/golden.rs"),
    ] {
        let tests = read(file);
        for name in page.split(&format!("`{prefix}")).skip(1) {
            let name = name.split('`').next().unwrap();
            assert!(tests.contains(&format!("fn {name}(")), "{prefix}{name}");
        }
    }
}
