//! The host that made a recording, as far as the recording leaves it open.
//!
//! A [`Hypothesis`] has one value of each [`Dimension`]. It is replayed, and its [`Misfit`] measures the
//! replay against the recording. [`fit`] searches dimension by dimension:
//!
//! 1. All hosts with moves at recorded progress: guests, cgroups and preemption in each combination that the
//!    recording and the user leave open.
//! 2. The other moves (placement, move times) on the best of these.
//! 3. If one of those fits better, all hosts with these moves.
//! 4. Each VM alone in a cgroup, in turn on the best so far, unless cgroups are known.
//! 5. No wakeup preemption on the best, if fewer wakeups preempt in the recording.
//! 6. Unequal weights on the best, if its misfit is large. If they are taken: all hosts and the other moves
//!    again with these weights.
//! 7. Tasks that stall with their CPU, with each kind of guests and moves, if the misfit is large.
//!
//! A later hypothesis replaces the best one if it fits better beyond the variation between seeds, so the
//! order is part of the answer. Simple hosts come first.

mod hypothesis;
mod misfit;
mod search;
#[cfg(test)]
mod tests;
mod weights;

pub use hypothesis::{CgroupLayout, Dimension, Hypothesis, Row, Source};
pub use misfit::{Misfit, Term, Trial};
pub use search::{Fitted, RunnerUp, fit, fit_among};
