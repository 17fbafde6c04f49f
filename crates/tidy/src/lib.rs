//! The project's own style, as tests: `cargo test -p stealtime-tidy`.
//!
//! What a formatter and a linter cannot know: how long files and functions may be, what simulated
//! and hypervisor code must not touch, what the tree must not say, what dependencies may be, and
//! whether the tests, scenarios and protocols exist that `docs/mechanisms.md` names.
//! Each finding is a line `path:line: error: what`.
