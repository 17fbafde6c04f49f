use super::*;
use proptest::prelude::*;
use stealtime_simulator::config::{Hypervisor, IdleMethod, ParamValue, Pinning};

const WHOLE: &str = r#"about = "everything at once"

[host]
profile = { base = "ivybridge-ep", features.x2apic = false, costs = { irq_ns = "1us" } }
sockets = 2
cores_per_llc = 4
threads_per_core = 2
hypervisor = "xen"
idle = "hlt"
nohz_full = "8-15"

[[vm]]
name = "web"
count = 2
vcpus = 4
pinning = "1:1 0-7"
cpu_max = "50ms 100ms"
workload = { name = "hackbench", groups = 4, send_ns = "20us" }

[[vm]]
name = "db"
vcpus = 2
pv_eoi = false
workload = "redis"

[[task]]
name = "backup"
workload = "busy"
count = 3
nice = -5
cpus = "0-3"

[knobs]
kvm.halt_poll_ns = 50_000
"sched.features" = ["YIELD_TO_LAG_CREDIT", "NO_RUN_TO_PARITY"]
vm.db.cpu_weight = 200

[variants.one]

[variants.two]
xen.batch_min_targets = 4
xen.batch_wakeups = "threshold"
vm.web.count = 1
vm.web.pinning = "none"
vm.web.workload.groups = 8

[run]
duration = "2s"
warmup = "0.5s"
seeds = [3, 5, 8]
"#;

fn right(text: &str) -> Scenario {
    Scenario::from_text("a.toml", text).unwrap_or_else(|error| panic!("{error}"))
}

fn wrong(text: &str) -> String {
    let error = Scenario::from_text("a.toml", text).expect_err("it is wrong");
    error.to_string()
}

#[test]
fn everything_is_read() {
    let scenario = right(WHOLE);
    assert_eq!(scenario.about, "everything at once");
    assert_eq!(scenario.seeds, [3, 5, 8]);
    let [one, two] = &scenario.variants[..] else {
        panic!("two variants");
    };
    assert_eq!((one.name.as_str(), two.name.as_str()), ("one", "two"));
    let config = scenario.config(one, 5).expect("it can be run");
    assert_eq!(config.run.seed, 5);
    assert_eq!(
        (config.run.duration_ns, config.run.warmup_ns),
        (2_000_000_000, 500_000_000)
    );
    assert_eq!(config.host.topology.cpus(), 16);
    assert_eq!(
        (config.host.hypervisor, config.host.idle),
        (Hypervisor::Xen, IdleMethod::Hlt)
    );
    assert_eq!(config.host.profile.costs.irq_ns, 1_000);
    assert!(!config.host.profile.features.x2apic);
    assert_eq!(config.knobs.host.nohz_full, (8..16).collect::<Vec<_>>());
    assert_eq!(config.knobs.kvm.halt_poll.halt_poll_ns, 50_000);
    let names: Vec<&str> = config.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["web-1", "web-2", "db"]);
    assert_eq!(config.vms[1].pinning, Pinning::OneToOne(vec![4, 5, 6, 7]));
    assert_eq!(config.vms[1].cpu_max_ns, Some((50_000_000, 100_000_000)));
    assert_eq!(
        (config.vms[2].cpu_weight, config.vms[2].guest.pv_eoi),
        (200, false)
    );
    let params = &config.vms[0].workload.params;
    assert_eq!(params["send_ns"], ParamValue::Int(20_000));
    let task = &config.host.tasks[0];
    assert_eq!(
        (task.count, task.nice, &task.cpus[..]),
        (3, -5, &[0, 1, 2, 3][..])
    );
}

#[test]
fn a_variant_is_the_scenario_with_its_own_changes() {
    let scenario = right(WHOLE);
    let config = scenario
        .config(&scenario.variants[1], 3)
        .expect("it can be run");
    assert_eq!(config.vms[0].name, "web");
    assert_eq!(config.vms.len(), 2);
    assert_eq!(config.vms[0].pinning, Pinning::None);
    assert_eq!(config.vms[0].workload.params["groups"], ParamValue::Int(8));
    assert_eq!(
        config.knobs.kvm.halt_poll.halt_poll_ns, 50_000,
        "as [knobs] says"
    );
    assert_eq!(
        crate::knobs::get(&config, "xen.batch_min_targets"),
        Ok("4".to_owned())
    );
}

const SMALL: &str = "[host]\nprofile = \"skylake-sp\"\ncpus = 4\n[[vm]]\nvcpus = 2\n\
                     workload = \"busy\"\n";

#[test]
fn without_variants_there_is_one() {
    let scenario = right(SMALL);
    assert_eq!(scenario.variants.len(), 1);
    assert_eq!(
        (scenario.variants[0].name.as_str(), &scenario.seeds[..]),
        (BASE, &[1][..])
    );
}

#[test]
fn the_first_variant_is_the_scenario_as_it_is() {
    let scenario = right(&format!("{SMALL}[variants.off]\nkvm.halt_poll_ns = 0\n"));
    let names: Vec<&str> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, [BASE, "off"]);
    let clash = wrong(&format!("{SMALL}[variants.base]\nkvm.halt_poll_ns = 0\n"));
    assert!(clash.contains("call this one something else"), "{clash}");
}

#[test]
fn what_the_command_line_sets_holds_for_all_variants() {
    let mut scenario = right(WHOLE);
    scenario.set("kvm.halt_poll_ns", "0").expect("a knob");
    scenario.set("vm.web.count", "3").expect("a group");
    scenario.set_duration_ns(1_000);
    scenario.set_seeds(5);
    assert_eq!(scenario.seeds, [3, 5, 8, 9, 10]);
    let problem = scenario
        .check()
        .expect_err("eight CPUs for 12 vCPUs")
        .to_string();
    assert!(
        problem.contains("vm.web.pinning") && problem.contains("a.toml:"),
        "{problem}"
    );
    scenario.set("vm.web.pinning", "0-7").expect("a knob");
    scenario.check().expect("it can be run");
    let config = scenario
        .config(&scenario.variants[0], 3)
        .expect("it can be run");
    assert_eq!((config.vms.len(), config.run.duration_ns), (4, 1_000));
    scenario.set_seeds(2);
    assert_eq!(scenario.seeds, [3, 5]);
    assert!(scenario.set("vm.web.count", "0").is_err());
}

#[test]
fn a_problem_is_shown_with_its_line_and_the_nearest_name() {
    let text = "[host]\nprofile = \"skylake-sp\"\ncpus = 4\n\n[[vm]]\nvcpu = 2\nworkload = \"hackbanch\"\n";
    let expected = "\
error: vm.0.vcpu: no key `vcpu` is known in vm.0
 --> a.toml:6:1
  |
6 | vcpu = 2
  | ^^^^
  |
  = help: did you mean `vcpus`?

error: vm.0.workload: no workload \"hackbanch\"
 --> a.toml:7:12
  |
7 | workload = \"hackbanch\"
  |            ^^^^^^^^^^^
  |
  = help: did you mean `hackbench`?";
    assert_eq!(wrong(text), expected);
}

/// Changes of [`SMALL`] as `(from, to)`, the line that its diagnostic names, and a part of the message.
type Mistakes<'m> = &'m [((&'m str, &'m str), usize, &'m str)];

fn each_is_reported(mistakes: Mistakes<'_>) {
    for ((from, to), line, says) in mistakes {
        let text = SMALL.replace(from, to);
        assert_ne!(text, SMALL);
        let error = Scenario::from_text("a.toml", &text).expect_err(to);
        let is_reported = error
            .diagnostics()
            .iter()
            .any(|d| d.line == *line && d.to_string().contains(says));
        assert!(is_reported, "{to}: {error}");
    }
}

#[test]
fn each_mistake_of_the_host_is_named() {
    each_is_reported(&[
        (("cpus = 4", "cpus = 0"), 3, "0 is not within 1 to 4096"),
        (
            ("cpus = 4", "cpus = \"4\""),
            3,
            "a whole number must stand here",
        ),
        (("cpus = 4", "sockets = 9999"), 3, "not within 1 to 4096"),
        (("cpus = 4", "cpus = 4\nsockets = 1"), 3, "leave it out"),
        (
            ("cpus = 4", "cpus = 3\nthreads_per_core = 2"),
            3,
            "no whole cores",
        ),
        (
            ("cpus = 4", "cores_per_llc = 4096\nsockets = 64"),
            1,
            "262144 CPUs",
        ),
        (
            ("cpus = 4", "cores_per_llc = 4\nthreads_per_core = 3"),
            4,
            "not within 1 to 2",
        ),
        (("cpus = 4", ""), 1, "how many CPUs"),
        (
            ("cpus = 4", "cpus = 4\nhypervisor = \"zen\""),
            4,
            "did you mean `xen`",
        ),
        (
            ("cpus = 4", "cpus = 4\nidle = \"halt\""),
            4,
            "did you mean `hlt`",
        ),
        (("cpus = 4", "cpus = 4\nnohz_full = \"4\""), 4, "no CPU 4"),
        (
            ("cpus = 4", "cpus = 4\nhz = 24"),
            4,
            "not within 100 to 1000",
        ),
        (
            ("\"skylake-sp\"", "\"skylake\""),
            2,
            "did you mean `skylake-sp`",
        ),
        (("\"skylake-sp\"", "\"./none.toml\""), 2, "No such file"),
        (
            ("\"skylake-sp\"", "{ costs = { irq_ns = 1 } }"),
            2,
            "lacks costs.tsc_khz, costs.vmexit_ns",
        ),
        (
            (
                "\"skylake-sp\"",
                "{ base = \"skylake-sp\", costs = { irqns = 1 } }",
            ),
            2,
            "`irq_ns`",
        ),
    ]);
}

#[test]
fn each_mistake_of_a_guest_is_named() {
    each_is_reported(&[
        (("vcpus = 2", "vcpus = 0"), 5, "0 is not within 1 to 4096"),
        (
            ("vcpus = 2", "vcpus = 2\npinning = \"1:1 0-2\""),
            6,
            "3 CPUs for 2 vCPUs",
        ),
        (
            ("vcpus = 2", "vcpus = 2\npinning = \"1:1 3-4\""),
            6,
            "no CPU 4",
        ),
        (("vcpus = 2", "vcpus = 2\npinning = 5.5"), 6, "is no CPU"),
        (
            ("vcpus = 2", "vcpus = 2\ncpu_max = \"5 10\""),
            6,
            "a period of 10000ns: give 1ms to 1s",
        ),
        (("vcpus = 2", "name = \"a.b\""), 5, "letters, digits"),
        (
            ("vcpus = 2", "count = 65536\nvcpus = 4096"),
            4,
            "vCPUs in all",
        ),
        (("\"busy\"", "{ rate = 1 }"), 6, "which workload"),
        (
            ("\"busy\"", "{ name = \"busy\", x = [[1]] }"),
            6,
            "a number, a text",
        ),
        (("workload = \"busy\"", ""), 4, "what does it run?"),
        (("[[vm]]", "[vm]"), 4, "[[vm]] with two brackets"),
        (("[host]", "[hots]"), 1, "did you mean `host`"),
        (("[host]", "[host"), 1, ""),
    ]);
}

#[test]
fn each_mistake_behind_the_guests_is_named() {
    for (more, line, says) in [
        (
            "[knobs]\nkvm.halt_pol_ns = 0",
            8,
            "did you mean `kvm.halt_poll_ns`",
        ),
        ("[knobs]\nkvm.halt_poll_ns = \"5 MB\"", 8, "no unit of time"),
        ("[knobs]\nkvm.ple_gap = -1", 8, "not within 0 to"),
        (
            "[knobs]\nkvm.ple_gap = 1\n\"kvm.ple_gap\" = 2",
            9,
            "set twice",
        ),
        ("[knobs]\nkvm.ple_gap = 2000-01-01", 8, "a number, a text"),
        ("[knobs]\nvm.other.cpu_pm = true", 8, "known are vm"),
        ("[knobs]\nvm.vm.cpu_pm = 7", 8, "true or false"),
        ("[knobs]\na.b.c.d.e.f.g.h.i.j.k = 1", 8, "more than 8 parts"),
        ("[knobs]\nhost.nohz_full = \"9\"", 8, "no CPU 9"),
        (
            "[variants.a]\n[variants.b]\nvm.vm.pinning = \"1:1 0\"",
            9,
            "1 CPUs for 2 vCPUs",
        ),
        ("[variants.a]\nkvm.nonsense = 1", 8, "there is no such knob"),
        ("[variants]\na = 1", 8, "a table must stand here"),
        ("[run]\nduration = 5", 8, "5 has no unit"),
        ("[run]\nduration = \"1ns\"", 8, "1ns is not within 1us"),
        ("[run]\nseeds = 0", 8, "0 is not within 1 to 10000"),
        ("[run]\nseeds = [1, 1]", 8, "there twice"),
        ("[run]\nseeds = []", 8, "whole numbers"),
        ("[run]\nseeds = [-1]", 8, "not within 0"),
        ("[run]\nseed = 1", 8, "did you mean `seeds`"),
        (
            "[[vm]]\nname = \"vm\"\nworkload = \"idle\"",
            8,
            "there is a vm already",
        ),
        (
            "[[vm]]\nname = \"vm-1\"\nworkload = \"idle\"",
            8,
            "one group",
        ),
        (
            "[[task]]\nworkload = \"busy\"\ncpus = \"0-4\"",
            9,
            "no CPU 4",
        ),
        (
            "[[task]]\nworkload = \"busy\"\nnice = 20",
            9,
            "within -20 to 19",
        ),
        (
            "[[task]]\nworkload = \"busy\"\ncount = 0",
            9,
            "0 is not within",
        ),
        (
            "[[task]]\nworkload = \"hackbench\"",
            8,
            "it may be busy, ticks or idle",
        ),
        (
            "[knobs]\nsched.fair = \"cfs\"\nsched.base_slice_ns = \"3ms\"",
            9,
            "set sched.fair=eevdf too",
        ),
    ] {
        let error = Scenario::from_text("a.toml", &format!("{SMALL}{more}\n")).expect_err(more);
        let found = error
            .diagnostics()
            .iter()
            .any(|d| d.line == line && d.to_string().contains(says));
        assert!(found, "{more}: {error}");
    }
    assert!(wrong("[host]\nprofile = \"skylake-sp\"\ncpus = 1\n").contains("nothing to run"));
    assert!(wrong("").contains("there is no [host]"));
}

#[test]
fn what_a_machine_cannot_do_is_named() {
    let on_arm64 = SMALL.replace("skylake-sp", "altra");
    let other_khz = "[vm.migration]\nat = \"1ms\"\nto_cpus = \"1\"\ndestination.tsc_khz = 24000\n";
    let error = wrong(&format!("{on_arm64}{other_khz}"));
    assert!(error.contains("nothing scales an arm64 counter"), "{error}");
    let machine = "{ base = \"skylake-sp\", features.x2apic = false }\nhypervisor = \"xen\"";
    let xapic = |cpus: &str| {
        let on_xen = SMALL.replace("\"skylake-sp\"", machine);
        on_xen.replace("cpus = 4", cpus)
    };
    let error = wrong(&xapic("cpus = 256"));
    assert!(error.contains("255 at most in xAPIC mode"), "{error}");
    right(&xapic("cpus = 255"));
}

#[test]
fn a_knob_of_one_vm_is_kept_when_all_are_set() {
    let two = "[[vm]]\nname = \"web\"\nworkload = \"idle\"\n";
    let weights = |more: &str| {
        let scenario = right(&format!("{SMALL}{two}{more}"));
        let last = scenario.variants.last().expect("a variant");
        let config = scenario.config(last, 1).expect("it can be run");
        config
            .vms
            .iter()
            .map(|vm| vm.cpu_weight)
            .collect::<Vec<_>>()
    };
    let (one, all) = ("vm.web.cpu_weight = 50", "vm.\"*\".cpu_weight = 70");
    for table in ["[knobs]", "[variants.a]\n[variants.b]"] {
        for lines in [[one, all], [all, one]] {
            let text = format!("{table}\n{}\n", lines.join("\n"));
            assert_eq!(weights(&text), [70, 50], "{text}");
        }
    }
}

#[test]
fn a_guest_can_be_moved() {
    use stealtime_simulator::config::ClockMethod;
    let moved = "[vm.migration]\nat = \"100ms\"\nto_cpus = \"2-3\"\nmethod = \"value\"\n\
                 destination = { tsc_khz = 2_000_000, drift_ppb = -50, realtime_skew_ns = 7 }\n";
    let scenario = right(&format!("{SMALL}{moved}"));
    let config = scenario
        .config(&scenario.variants[0], 1)
        .expect("it can be run");
    let migration = config.vms[0].migration.as_ref().expect("it is moved");
    assert_eq!(
        (migration.at_ns, migration.method),
        (100_000_000, ClockMethod::Value)
    );
    assert_eq!(
        (migration.source.tsc_khz, migration.destination.drift_ppb),
        (2_500_000, -50)
    );
    for (from, to, says) in [
        ("\"value\"", "\"values\"", "did you mean `value`"),
        ("\"2-3\"", "\"4\"", "no CPU 4"),
        ("\"2-3\"", "\"\"", "name those of the destination"),
        ("-50", "-5000000", "within -1000000 to 1000000"),
        ("at = \"100ms\"", "", "when is it moved?"),
        ("\"100ms\"", "\"1100ms\"", "earlier time"),
        ("to_cpus = \"2-3\"", "", "where to?"),
        ("tsc_khz", "tsc_hz", "did you mean `tsc_khz`"),
    ] {
        let problem = wrong(&format!("{SMALL}{}", moved.replace(from, to)));
        assert!(problem.contains(says), "{to}: {problem}");
    }
}

#[test]
fn deep_and_long_files_end() {
    for text in [
        format!("{SMALL}[knobs]\n{} = 1\n", vec!["a"; 100_000].join(".")),
        format!(
            "{SMALL}x = {}{}\n",
            "[".repeat(100_000),
            "]".repeat(100_000)
        ),
        format!(
            "{SMALL}x = {}1{}\n",
            "{a=".repeat(100_000),
            "}".repeat(100_000)
        ),
        "[[vm]]\n".repeat(10_000),
    ] {
        assert!(Scenario::from_text("a.toml", &text).is_err());
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = Scenario::from_text("a.toml", &text);
    }

    #[test]
    fn no_file_of_toml_panics(lines in proptest::collection::vec(
        "(\\[\\[?(host|vm|task|knobs|variants\\.[a-b]|run)\\]\\]?|(name|cpus|vcpus|count|profile|workload|\
          pinning|seeds|duration|kvm\\.ple_gap|\"vm.vm.nice\") = ([0-9]{1,5}|\"[a-z0-9:,-]{0,8}\"|\
          \\[1,2\\]|true|-1|1\\.5|\\{ name = \"busy\" \\}))", 0..14)) {
        let _ = Scenario::from_text("a.toml", &lines.join("\n"));
    }

    #[test]
    fn no_change_of_a_file_panics(at in 0_usize..1200, len in 0_usize..8, with in "[\\PC\\n]{0,4}") {
        let mut text: Vec<char> = WHOLE.chars().collect();
        let start = at.min(text.len());
        let end = (start + len).min(text.len());
        text.splice(start..end, with.chars());
        let text: String = text.into_iter().collect();
        if let Ok(scenario) = Scenario::from_text("a.toml", &text) {
            for variant in &scenario.variants {
                prop_assert!(scenario.config(variant, 1).is_ok());
            }
        }
    }
}
