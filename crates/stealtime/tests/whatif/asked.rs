//! What is asked wrongly, and what of it is said first.

use serde_json::Value;
use stealtime_events::{ExitReason, Kind};

use super::{HACKBENCH, answer, common, complaint, edited, whatif};

const CFS: &str = "svm-cfs/trace.dat";

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
        ("vm.vm0.count=-1", "-1 is not within 0 to 10000"),
        ("vm.vm9.count=2", "there is no such VM; did you mean `vm0`?"),
        ("vm.*.count=0", "no VM is left"),
        ("host.cpus=0", "give a number of CPUs"),
        ("host.cpus=0-99", "is not recorded"),
    ] {
        let error = complaint(&[path, "--set", asked]);
        assert!(error.contains(part), "{asked}: {error}");
    }
}

/// A count of 1 and all CPUs are what was recorded; other counts have a table of all VMs.
#[test]
fn vms_and_cpus_are_counted() {
    let ask = |settings: &[&str]| {
        let asked = settings.iter().flat_map(|setting| ["--set", setting]);
        let asked: Vec<&str> = [HACKBENCH, "--json", "--seeds", "2"]
            .into_iter()
            .chain(asked)
            .collect();
        let json: Value = serde_json::from_str(&answer(&asked)).expect("JSON");
        json["variants"][0].clone()
    };
    let unchanged = ask(&["vm.*.count=1", "host.cpus=recorded"]);
    let verdict = unchanged["verdict"].as_str().expect("a verdict");
    assert!(
        verdict.starts_with("nothing changes: the host"),
        "{verdict}"
    );
    assert!(unchanged.get("population").is_none());
    let copied = ask(&["vm.vm0.count=3"]);
    let vms = copied["population"]["vms"].as_array().expect("VMs");
    let names: Vec<&str> = vms.iter().filter_map(|vm| vm["name"].as_str()).collect();
    assert_eq!(names[..3], ["vm0", "vm0#2", "vm0#3"]);
    let given_back = copied["given_back"]["change"]["mean"].as_f64();
    assert!(given_back.is_some_and(|change| change < 0.0), "{copied}");
    let fewer = ask(&["host.cpus=1"]);
    assert_eq!(fewer["population"]["cpus"], 1);
}

/// A VM of another recording is there once, or as often as its knob says.
#[test]
fn a_vm_of_another_recording_is_counted() {
    let foreign = format!("{CFS}:vm0=guest");
    let ask = |more: &[&str]| {
        let asked = [
            &[HACKBENCH, "--json", "--seeds", "2", "--with", &foreign],
            more,
        ]
        .concat();
        let json: Value = serde_json::from_str(&answer(&asked)).expect("JSON");
        json["variants"].clone()
    };
    let guests = |variant: &Value| {
        let vms = variant["population"]["vms"].as_array().expect("VMs");
        let guests = vms.iter().filter(|vm| vm["vm"] == "guest");
        guests
            .map(|vm| vm["name"].as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let [guest, copy] = ["guest", "guest#2"].map(|name| Some(name.to_owned()));
    let single = ask(&[]);
    assert_eq!(single[0]["name"], "vm.guest.count=1");
    assert_eq!(guests(&single[0]), std::slice::from_ref(&guest));
    let varied = ask(&["--vary", "vm.guest.count=0,2"]);
    assert!(varied[0].get("population").is_none(), "{}", varied[0]);
    assert_eq!(guests(&varied[1]), [guest, copy]);
    for (more, part) in [
        (["--with", "none.dat"], "expected FILE:VM"),
        (["--set", "vm.gest.count=1"], "did you mean `guest`?"),
    ] {
        let asked = [&[HACKBENCH, "--with", &foreign], &more[..]].concat();
        let error = complaint(&asked);
        assert!(error.contains(part), "{more:?}: {error}");
    }
    let error = complaint(&[HACKBENCH, "--with", &format!("{CFS}:vm00")]);
    assert!(error.contains("has no VM vm00; did you mean"), "{error}");
    let error = complaint(&[HACKBENCH, "--with", &format!("{CFS}:vm0")]);
    assert!(
        error.contains("give the other one a name by FILE:VM=NAME"),
        "{error}"
    );
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

/// A replay would run through all of the time in which nothing is known.
#[test]
fn a_recording_with_times_that_jump_is_refused_with_how_to_cut_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (jumps, part) = (file("jumps.dat"), file("part.dat"));
    let hour = 3_600_000_000_000;
    edited(jumps.as_ref(), None, |event, since| {
        let mut event = *event;
        event.time_ns += if since > 500_000_000 { hour } else { 0 };
        Some(event)
    });
    let error = complaint(&[&jumps[..], "--set", "host.hz=1000"]);
    assert!(error.contains("none for 3600."), "{error}");
    // What it says to do helps.
    let until = error.split("--until ").nth(1).expect("an option");
    let until = until.split(')').next().expect("a time");
    let mut cut = common::stealtime(&["export", &jumps, "--to", "trace.dat", "-o", &part]);
    let (status, _, said) = common::run(cut.args(["--until", until]));
    assert_eq!((status, said.as_str()), (Some(0), ""));
    answer(&[&part[..]]);
    // Among others it is a row, and why.
    let rows = answer(&[
        "--self-test",
        folder.path().to_str().expect("UTF-8"),
        "--json",
    ]);
    let rows: Value = serde_json::from_str(&rows).expect("JSON");
    let row = rows.as_array().into_iter().flatten();
    let mut row = row.filter(|row| row["path"] == "jumps.dat");
    let problem = row.next().and_then(|row| row["problem"].as_str());
    assert!(
        problem.is_some_and(|why| why.contains("a clock jumps")),
        "{rows}"
    );
}

#[test]
fn what_is_of_no_use_is_said_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (status, out, error) = whatif(&[HACKBENCH, "--tsc-khz", "5", "--formats-from", "nowhere"]);
    assert_eq!(status, Some(0));
    assert!(out.contains("Replay under the recorded knobs"), "{out}");
    assert!(
        error.contains("--tsc-khz is not used: ")
            && error.contains("--formats-from nowhere is not used: "),
        "{error}"
    );
    for option in [&["--seeds", "3"][..], &["--jobs", "2"], &["--yes"]] {
        let error = complaint(&[&["--self-test", "."], option].concat());
        assert!(error.contains("cannot be used with"), "{option:?}: {error}");
    }
    let folder = folder.path().display().to_string();
    let (file, trace) = (format!("{folder}/out"), format!("{folder}/replayed.dat"));
    std::fs::copy(super::traces().join(HACKBENCH), &trace).expect("a copy");
    for (asked, part) in [
        (
            &[HACKBENCH, "--export", "-"][..],
            "--export - does not write to standard output",
        ),
        (
            &[HACKBENCH, "--export", &file, "--report", &file],
            "--export and --report would both",
        ),
        // A replay has that name.
        (&[&trace[..], "--export", &folder], "would be overwritten"),
        (
            &[
                HACKBENCH, "--pin", "vm0=0", "--seen", &trace, "--report", &trace,
            ],
            "would be overwritten",
        ),
        (
            &[HACKBENCH, "--host", &trace, "--report", &trace],
            "would be overwritten",
        ),
        (
            &[HACKBENCH, "--vm-of", "a=200", "--vm-of", "b=200"],
            "thread 200 is assigned to a and to b",
        ),
    ] {
        let error = complaint(asked);
        assert!(error.contains(part), "{asked:?}: {error}");
    }
}

#[test]
fn guessed_vms_are_marked_and_their_names_still_select() {
    const GUESSED: &str = "svm-pause-exits-hackbench-tlb/trace.dat";
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let asked = [GUESSED, "--pin", "vm0=0", "--seeds", "2"];
    let mut asked_page = asked.to_vec();
    let path = page.to_str().expect("UTF-8");
    asked_page.extend(["--report", path]);
    let (status, text, error) = whatif(&asked_page);
    assert_eq!(status, Some(0), "{error}");
    assert!(text.contains("Lacking: which threads are of vm"), "{text}");
    let rows = text.lines().filter(|line| line.starts_with("  vm"));
    assert!(rows.clone().count() > 0);
    for row in rows {
        let name = row.split_whitespace().next().expect("a name");
        assert!(name.ends_with('?'), "{row}");
    }
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("vm0? vCPU 0"), "the page marks it too");
    assert!(!html.contains("vm0 vCPU 0"));
    let json: Value =
        serde_json::from_str(&answer(&[&asked[..], &["--json"][..]].concat())).expect("JSON");
    for row in json["vcpus"].as_array().expect("vCPUs") {
        assert_eq!(row["vm_guessed"], true);
        assert!(!row["vm"].as_str().expect("a name").contains('?'));
    }
    assert_eq!(json["variants"][0]["changes"][0]["vm_guessed"], true);
}

#[test]
fn a_recording_that_was_cut_short_says_so_before_its_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let cut = folder.path().join("cut.dat.zst");
    let whole = super::traces().join(HACKBENCH);
    let bytes = std::fs::read(&whole).expect("a recording");
    std::fs::write(&cut, &bytes[..bytes.len() * 9 / 10]).expect("a file");
    let asked = cut.to_str().expect("UTF-8");
    let page = folder.path().join("page.html");
    let to = page.to_str().expect("UTF-8");
    let change = ["--set", "host.hz=1000", "--seeds", "2", "--report", to];
    let (status, text, _) = whatif(&[&[asked][..], &change].concat());
    assert_eq!(status, Some(0), "{text}");
    let page = std::fs::read_to_string(&page).expect("a page");
    let said = page.find("Partial: less was read").expect("it is said");
    assert!(said < page.find(" events").expect("a fact"));
    let second = text.lines().nth(1).expect("a line behind the path");
    assert!(second.starts_with("Partial: less was read"), "{text}");
    let partial = |path: &str| {
        let (_, out, _) = whatif(&[path, "--json"]);
        let json: Value = serde_json::from_str(&out).expect("JSON");
        json["recording_partial"].clone()
    };
    assert_eq!(partial(asked), true);
    assert_eq!(partial(HACKBENCH), false);
}

/// A text as `trace-cmd report` prints it without `-l`.
#[test]
fn a_text_without_flags_says_what_that_means() {
    const WITHOUT: &str = "svm-hackbench-cyclictest-hog/report.txt.zst";
    let flat = |out: String| out.replace("\n  ", " ");
    let lack = |out: &str| {
        let mut lacks = out.split("\nLacking: ").skip(1);
        lacks.any(|lack| {
            lack.starts_with("context flags of ") && lack.contains("`trace-cmd report -l`")
        })
    };
    let (status, without, error) = whatif(&[WITHOUT]);
    assert_eq!(status, Some(0), "{error}");
    assert!(lack(&flat(without)));
    assert!(!lack(&flat(answer(&[HACKBENCH]))));
}

/// The order of options does not matter, as that of a scenario's lines does not.
#[test]
fn a_knob_of_one_vm_holds_whatever_is_set_of_all() {
    let (one, all) = ("vm.vm0.cpu_weight=50", "vm.*.cpu_weight=70");
    let both = answer(&[CFS, "--set", one, "--set", all, "--json"]);
    assert_eq!(answer(&[CFS, "--set", all, "--set", one, "--json"]), both);
    let document: Value = serde_json::from_str(&both).expect("JSON");
    let variant = &document["variants"][0];
    assert_eq!(
        variant["name"], "vm.*.cpu_weight=70 vm.vm0.cpu_weight=50",
        "{variant}"
    );
    // A weight of its own for vm0: equal ones change nothing.
    let equal = answer(&[CFS, "--set", all, "--json"]);
    let equal: Value = serde_json::from_str(&equal).expect("JSON");
    assert_ne!(variant["vms"], equal["variants"][0]["vms"]);
}
