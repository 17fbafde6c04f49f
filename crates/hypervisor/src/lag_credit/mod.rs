//! Lag credit for directed yield: the scheduler half of the directed-yield series, version 3.
//!
//! `yield_to` nominates its target on each level of the target's cgroup chain, but a pick honours
//! a nomination only where the entity is eligible: where `vruntime` is not ahead of the queue's
//! average. With the feature `YIELD_TO_LAG_CREDIT` the target is *credited*: on each level where
//! it is not eligible its virtual runtime is set back to a small lag above zero.
//!
//! The lag aimed at is `margin * (n - 1)`, within the bound that any entity's lag has, where `n`
//! is the entities of the level. Like any `vlag` it is virtual time: in service it is worth as much
//! as the entity weighs, so that a guest's group, whose weight is spread over the CPUs, is given
//! little more than its turn, and the vCPU in it the margin. The series says that it is small, grows
//! with the queue, and keeps the target eligible for several decisions of the scheduler; how large
//! it is, it does not. While the target has it, no other entity of the queue may be eligible, and
//! yields to them from other CPUs are lost: see `docs/eevdf.md`.
//!
//! How the credit is given:
//! - an entity in the tree is taken out, placed with that lag as `place_entity` does, and put
//!   back, so that the queue's sums stay what its members say;
//! - the running entity of a level (an ancestor that yielder and target share) is not in the
//!   tree: it is shifted in place, its deadline and its protected period with it.
//!
//! Nothing is created: what the target gains the other entities of the level lose, and the
//! weighted lags still sum to zero.
//!
//! After the credit the yielder forfeits its request as ever, and its CPU is forced to
//! reschedule: slice protection ends along the yielder's chain. Only that forcing is limited, to
//! once per 6 ms and run queue; see [`RateLimit`].
//!
//! With the feature off, and where yielder and target are on different run queues, all is as in
//! Linux 7.2. [`LagCredit`] has what the series leaves open, or to the future, as options.

mod config;
mod credit;
mod debooster;
mod force;
mod guard;

pub use config::{CreditFault, Guard, LagCredit, Method, RateLimit};
pub use credit::Credited;
pub(crate) use force::CreditState;
pub(crate) use guard::Tokens;

#[cfg(test)]
mod tests;
