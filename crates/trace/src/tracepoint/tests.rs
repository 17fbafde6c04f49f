use super::*;

#[test]
fn numbers_are_places() {
    for (number, tracepoint) in (0..).zip(all()) {
        assert_eq!(tracepoint.point.number(), number, "{}", tracepoint.name);
    }
}

#[test]
fn fields_have_names_and_tasks() {
    for tracepoint in all() {
        for field in tracepoint.fields {
            assert!(
                field
                    .name()
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '_'),
                "{}",
                field.declaration
            );
            if let Role::Comm { task } = field.role {
                assert!(tracepoint.place_of(task).is_some(), "{}", tracepoint.name);
            }
        }
    }
}
