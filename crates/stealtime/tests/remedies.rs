//! What answers end with: commands that make a change on the recorded host, and those that undo it.

use crate::common;

/// Arguments are relative to the repository, so that answers name the same path everywhere.
fn shown(arguments: &[&str]) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (status, out, error) = common::run(common::stealtime(arguments).current_dir(root));
    assert_eq!((status, error.as_str()), (Some(0), ""), "{arguments:?}");
    out
}

fn recording(name: &str) -> String {
    format!("tests/data/live/{name}/trace.dat.zst")
}

/// Weights, a quota and a pin: each finding has the commands that are for its VM.
#[test]
fn findings_have_commands() {
    for name in ["nested", "pins", "weights"] {
        let out = shown(&["analyze", &recording(name), "--key", "findings"]);
        insta::assert_snapshot!(format!("remedies_{name}"), out);
    }
}

#[test]
fn a_recording_is_judged_as_its_host() {
    insta::assert_snapshot!("doctor_recording", shown(&["doctor", &recording("nested")]));
}

/// The last lines of `whatif --auto`: the change, what undoes it, and what makes it.
#[test]
fn whatif_ends_with_what_to_type() {
    let trace = "tests/data/traces/svm-cfs/trace.dat";
    let out = shown(&["whatif", trace, "--auto", "--seeds", "2"]);
    let mut lines: Vec<&str> = out.lines().rev().take(3).collect();
    lines.reverse();
    insta::assert_snapshot!("whatif_end", lines.join("\n"));
}
