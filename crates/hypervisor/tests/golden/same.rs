//! Comparing a step with its vector.

use std::fmt::Debug;

use serde_json::Value;

/// Where a step is, for the message of a mismatch.
pub(crate) struct Step<'a> {
    pub(crate) family: &'a str,
    pub(crate) seed: u64,
    pub(crate) step: usize,
    pub(crate) what: &'a Value,
}

impl Step<'_> {
    /// Panics with family, seed, step, expected and got unless they agree.
    pub(crate) fn same<T: PartialEq + Debug>(&self, field: &str, expected: &T, got: &T) {
        assert!(
            expected == got,
            "family {} seed {} step {}: {field}\n  expected {expected:?}\n       got {got:?}\n  of {}",
            self.family,
            self.seed,
            self.step,
            self.what
        );
    }
}

/// An unsigned integer or a boolean given as 0 and 1.
pub(crate) fn uint(v: &Value) -> u64 {
    v.as_u64()
        .unwrap_or_else(|| panic!("{v} is no unsigned number"))
}

pub(crate) fn int(v: &Value) -> i64 {
    v.as_i64()
        .unwrap_or_else(|| panic!("{v} is no signed number"))
}

pub(crate) fn flag(v: &Value) -> bool {
    uint(v) != 0
}

pub(crate) fn small(v: &Value) -> u32 {
    u32::try_from(uint(v)).unwrap()
}

pub(crate) fn byte(v: &Value) -> u8 {
    u8::try_from(uint(v)).unwrap()
}

pub(crate) fn index(v: &Value) -> usize {
    usize::try_from(uint(v)).unwrap()
}

/// -1 is none.
pub(crate) fn optional(v: &Value) -> Option<usize> {
    usize::try_from(int(v)).ok()
}
