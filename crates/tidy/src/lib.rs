//! The project's own style, as tests (`cargo test -p stealtime-tidy`), and the measures of any Rust
//! tree (`scripts/measures`).
//!
//! The tests check what a formatter and a linter cannot know. They measure files, functions and types.
//! They look for clocks and floats in simulated time, and at the words of comments and pages. They check
//! dependencies, links, interfaces of published crates, and the names in `docs/mechanisms.md`,
//! `docs/described.md` and `ARCHITECTURE.md`. A finding is a line `path:line: error: what`.

pub mod counts;
pub mod interface;
pub mod measures;
pub mod names;
pub mod prose;
pub mod source;
pub mod tree;
