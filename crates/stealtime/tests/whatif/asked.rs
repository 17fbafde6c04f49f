//! What is asked wrongly, and what of it is said first.

use stealtime_events::{ExitReason, Kind};

use super::{HACKBENCH, answer, complaint, edited};

/// The recording without directed yields, which some knobs are about.
fn without_yields(path: &std::path::Path) {
    let is_yield = |kind: Kind| match kind {
        Kind::KvmExit { reason, .. } => reason == ExitReason::svm(0x77),
        Kind::KvmHypercall { .. } => true,
        _ => false,
    };
    edited(path, None, |event, _| {
        (!is_yield(event.kind)).then_some(*event)
    });
}

/// A slip of the pen is not what a recording cannot tell of.
#[test]
fn a_misspelt_knob_comes_before_what_a_recording_lacks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("without.dat");
    without_yields(&path);
    let path = path.to_str().expect("UTF-8");
    for (asked, part) in [
        (
            "sched.lag_credit.method=debooster",
            "no vCPU of this recording yields",
        ),
        (
            "sched.lag_credit.MISSPELT=1",
            "there is no knob sched.lag_credit.MISSPELT",
        ),
        ("sched.lag_credit.method=often", "sched.lag_credit.method: "),
        (
            "sched.features=YIELD_TO_LAG_CREDIT",
            "no vCPU of this recording yields",
        ),
        (
            "sched.features=YYIELD_TO_LAG_CREDIT",
            "no feature YYIELD_TO_LAG_CREDIT",
        ),
        ("kvm.ple_gap=often", "kvm.ple_gap: "),
        ("vm.vm0.nyce=1", "did you mean `vm.vm0.nice`?"),
        ("vm.vm9.nice=1", "vm.vm9.nice: there is no such VM"),
        ("vm.nice=1", "a VM's knobs are vm.NAME.KNOB"),
        ("vm.vm0.hz=100", "does nothing in a replay yet"),
    ] {
        let error = complaint(&[path, "--set", asked]);
        assert!(error.contains(part), "{asked}: {error}");
    }
}

#[test]
fn nothing_is_asked_twice() {
    for (asked, part) in [
        (
            &["--pin", "vm0=0", "--pin", "vm0=1"][..],
            "--pin vm0=0 and --pin vm0=1 both say",
        ),
        (
            &["--pin", "vm0=0", "--pin", "vm0/1=1"],
            "where vCPU 1 of vm0 may run",
        ),
        (
            &[
                "--pin",
                "task:qemu-system-x86=0",
                "--pin",
                "task:qemu-system-x86=1",
            ],
            "both say where task ",
        ),
        (
            &["--vary", "kvm.halt_poll_ns=1,2,1"],
            "the value 1 is there twice",
        ),
        (
            &[
                "--set",
                "sched.features=NO_HRTICK",
                "--set",
                "sched.features=HRTICK",
            ],
            "HRTICK is set twice",
        ),
        (
            &[
                "--set",
                "sched.features=HRTICK",
                "--vary",
                "sched.features=NO_HRTICK,HRTICK",
            ],
            "HRTICK is set twice",
        ),
    ] {
        let error = complaint(&[&[HACKBENCH], asked].concat());
        assert!(error.contains(part), "{asked:?}: {error}");
    }
    // Different ones are switched together, and pinned together.
    let features = "sched.features=NO_HRTICK,NO_NEXT_BUDDY";
    let asked = [
        "--set", features, "--pin", "vm0/0=0", "--pin", "vm0/1=1", "--seeds", "2",
    ];
    answer(&[&[HACKBENCH], &asked[..]].concat());
}
