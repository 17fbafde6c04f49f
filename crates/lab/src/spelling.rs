//! Suggestions for misspelt names.
//!
//! ```
//! use stealtime_lab::spelling::suggestion;
//!
//! let known = ["kvm.halt_poll_ns", "kvm.ple_gap"];
//! assert_eq!(suggestion("halt_poll_ns", &known), "did you mean `kvm.halt_poll_ns`?");
//! ```

/// How alike two names must be (Jaro–Winkler, 0 to 1) for one to be suggested for the other.
const ALIKE: f64 = 0.75;
/// At most so many names are listed.
const MOST: usize = 24;

/// The candidate closest to `name`, or `None` if none is. The first of equals.
pub(crate) fn closest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let lower = name.to_ascii_lowercase().replace('-', "_");
    let mut best: Option<(f64, &str)> = None;
    for candidate in candidates {
        let spelled = candidate.to_ascii_lowercase().replace('-', "_");
        // The last part alone counts too: `halt_poll_ns` stands for `kvm.halt_poll_ns`.
        let last = spelled.rsplit('.').next().unwrap_or(&spelled);
        let alike = if last == lower {
            1.0
        } else {
            strsim::jaro_winkler(&lower, &spelled)
        };
        if alike >= ALIKE && best.is_none_or(|(likeness, _)| alike > likeness) {
            best = Some((alike, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// "did you mean `x`?", or what there is if nothing is like it.
#[must_use]
pub fn suggestion(name: &str, candidates: &[&str]) -> String {
    match closest(name, candidates.iter().copied()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None if candidates.is_empty() => "none is known".to_owned(),
        None if candidates.len() <= MOST => format!("known are {}", candidates.join(", ")),
        None => {
            let (first, rest) = (candidates[..MOST].join(", "), candidates.len() - MOST);
            format!("known are {first}, and {rest} more")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_are_recognized() {
        let names = ["kvm.halt_poll_ns", "kvm.halt_poll_ns_grow", "kvm.ple_gap"];
        for (wrong, right) in [
            ("kvm.halt_pol_ns", "kvm.halt_poll_ns"),
            ("halt_poll_ns", "kvm.halt_poll_ns"),
            ("kvm.ple-gap", "kvm.ple_gap"),
            ("KVM.PLE_GAP", "kvm.ple_gap"),
        ] {
            assert_eq!(closest(wrong, names), Some(right), "{wrong}");
        }
        assert_eq!(closest("zebra", names), None);
        assert!(suggestion("zebra", &names).contains("kvm.ple_gap"));
        let many: Vec<String> = (0..30).map(|n| format!("q{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(suggestion("zebra", &many).ends_with("q22, q23, and 6 more"));
        assert_eq!(suggestion("zebra", &[]), "none is known");
    }
}
