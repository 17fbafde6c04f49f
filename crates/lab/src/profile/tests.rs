use super::*;

fn wrong(text: &str) -> Vec<String> {
    let error = from_text("mine.toml", text, &Origin::File(Path::new("mine.toml"), 0));
    let error = error.expect_err("it is wrong");
    error
        .diagnostics()
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn right(text: &str) -> Machine {
    let read = from_text("mine.toml", text, &Origin::File(Path::new("mine.toml"), 0));
    read.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_profile_that_comes_along_has_a_source_for_each_figure() {
    for name in NAMES {
        let text = FILES.iter().find(|file| file.0 == name).expect("a file").1;
        let machine = from_text(name, text, &Origin::Inside);
        let machine = machine.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(machine.profile.name, name);
        assert!(
            !machine.about.is_empty() && machine.figures.len() > 40,
            "{name}"
        );
        for figure in &machine.figures {
            assert!(!figure.source.is_empty(), "{name}: {}", figure.key);
        }
        let estimates = machine
            .figures
            .iter()
            .filter(|f| f.source.starts_with("estimate"));
        let high = estimates
            .filter(|f| f.confidence == Confidence::High)
            .count();
        assert_eq!(high, 0, "{name}: an estimate is no measurement");
        assert_eq!(builtin(name), Some(machine));
    }
    assert_eq!(builtin("epyc"), None);
}

#[test]
fn parts_of_a_total_add_up_to_it() {
    let costs = builtin("skylake-sp").expect("it comes along").profile.costs;
    assert_eq!(costs.vmexit_ns + costs.vmentry_ns, 620);
    let timer = costs.irq_ns + costs.hrtimer_expiry_ns;
    assert_eq!(timer, 700);
    assert_eq!(timer + costs.handle_external_interrupt_ns, 710);
    assert_eq!(costs.context_switch_ns + costs.vcpu_load_ns, 1500);
}

#[test]
fn a_base_gives_what_a_file_does_not_say() {
    let machine = right(
        "base = \"skylake-sp\"\nname = \"mine\"\n[costs]\nirq_ns = \"1.5us\"\n\
         [features]\nipiv = { value = true, confidence = \"M\", source = \"try\" }\n",
    );
    let base = builtin("skylake-sp").expect("it comes along");
    assert_eq!(machine.profile.name, "mine");
    assert_eq!(machine.profile.costs.irq_ns, 1_500);
    assert!(machine.profile.features.ipiv);
    assert_eq!(machine.profile.costs.tick_ns, base.profile.costs.tick_ns);
    assert_eq!(machine.profile.cstates, base.profile.cstates);
    assert_eq!(machine.figures.len(), base.figures.len());
    let irq = machine
        .figures
        .iter()
        .find(|f| f.key == "costs.irq_ns")
        .expect("a figure");
    assert_eq!(
        (irq.value.as_str(), irq.confidence),
        ("1500", Confidence::Low)
    );
}

#[test]
fn a_missing_figure_is_named_with_its_file() {
    let (_, text) = FILES[2];
    let without: Vec<&str> = text.lines().filter(|l| !l.starts_with("irq_ns")).collect();
    let problems = wrong(&without.join("\n"));
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].contains("mine.toml lacks costs.irq_ns"),
        "{}",
        problems[0]
    );
    let problems = wrong("");
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("costs.vmexit_ns") && problems[0].contains(" more"));
}

#[test]
fn a_misspelt_figure_is_shown_with_the_right_name() {
    let problems = wrong("base = \"skylake-sp\"\n[costs]\nirqs_ns = 3\n");
    assert!(problems[0].contains("mine.toml:3:1"), "{}", problems[0]);
    assert!(
        problems[0].contains("did you mean `irq_ns`?"),
        "{}",
        problems[0]
    );
    let problems = wrong("base = \"skylake\"\n");
    assert!(
        problems[0].contains("did you mean `skylake-sp`?"),
        "{}",
        problems[0]
    );
}

#[test]
fn figures_out_of_range_are_refused() {
    for (line, says) in [
        ("[costs]\ntsc_khz = 0", "not within 1"),
        ("[costs]\nirq_ns = -1", "no time"),
        ("[costs]\nirq_ns = \"2s\"", "not within 0 to 1000000000"),
        ("[costs]\nirq_ns = \"2MB\"", "no unit of time"),
        ("[costs]\nirq_ns = { confidence = \"H\" }", "no `value`"),
        (
            "[costs]\nirq_ns = { value = 1, confidence = \"X\" }",
            "none of H, M and L",
        ),
        ("[features]\nipiv = 1", "neither true nor false"),
        ("[features]\nhv_timer_shift = 32", "not within 0 to 31"),
        (
            "[[cstate]]\nname = \"C1\"\nexit_latency_ns = 1",
            "target_residency_ns",
        ),
        ("costs = 1", "a table"),
        ("[cstate]\nname = 1", "array of tables"),
        ("base = \"skylake-sp\"", "duplicate key"),
    ] {
        let problems = wrong(&format!("base = \"skylake-sp\"\n{line}\n"));
        assert!(
            problems.iter().any(|p| p.contains(says)),
            "{line}: {problems:?}"
        );
    }
}

#[test]
fn profiles_that_build_on_each_other_in_a_circle_end() {
    let folder = std::env::temp_dir().join(format!("stealtime-profile-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("a.toml");
    std::fs::write(&file, "base = \"./a.toml\"\n").expect("a file");
    let error = Machine::load(&file).expect_err("a circle");
    assert!(error.to_string().contains("build on each other"), "{error}");
    std::fs::remove_dir_all(&folder).expect("it is there");
    assert!(matches!(Machine::load(&file), Err(LoadError::Read { .. })));
}
