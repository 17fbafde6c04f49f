//! The library is in order and says what its parameters are.

use stealtime_simulator::workload::LIBRARY;

#[test]
fn names_are_sorted_and_parameters_documented() {
    let names: Vec<&str> = LIBRARY.iter().map(|workload| workload.name).collect();
    assert!(names.is_sorted(), "{names:?}");
    for param in LIBRARY.iter().flat_map(|workload| workload.params) {
        assert!(
            (param.min..=param.max).contains(&param.default),
            "{}",
            param.name
        );
        assert!(!param.about.is_empty());
    }
}
