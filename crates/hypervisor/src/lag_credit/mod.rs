//! Lag credit for directed yield: the scheduler half of the directed-yield series, version 3.
//!
//! `yield_to` nominates its target on each level of the target's cgroup chain. A pick honours a
//! nomination only where the entity is eligible: its `vruntime` is not ahead of the queue's
//! average. The feature `YIELD_TO_LAG_CREDIT` *credits* the target. On each level where it is not
//! eligible its virtual runtime is set back to a small lag above zero.
//!
//! The lag after a credit is `margin * (n - 1)`, within the bound of any lag, where `n` is the
//! number of entities of the level. Like any `vlag` it is virtual time, worth as much service as
//! the entity weighs. A guest's group spreads its weight over the CPUs. So the group receives
//! little more than its turn, and the vCPU in it the margin.
//!
//! According to the series the margin is small, grows with the queue, and keeps the target
//! eligible for several decisions. Its size is not published. While the target has the credit, the
//! other entities of the queue may be ineligible. Yields to them from other CPUs then have no
//! effect: see `docs/eevdf.md`.
//!
//! A credit has two forms:
//!
//! - an entity in the tree is removed, placed with that lag by `place_entity`, and inserted again,
//!   so that the queue's sums agree with its members;
//! - the current entity of a level, an ancestor of yielder and target, is not in the tree. It is
//!   shifted in place, with its deadline and its protected slice.
//!
//! The other entities of the level lose what the target gains: the weighted lags still sum to
//! zero.
//!
//! After the credit the yielder forfeits its request, and its CPU is forced to reschedule: slice
//! protection ends along the yielder's chain. The forcing is limited to once per 6 ms and run
//! queue; see [`RateLimit`].
//!
//! With the feature off, or with yielder and target on different run queues, a yield behaves as in
//! Linux 7.2. Options of [`LagCredit`] cover what the series leaves open.
//!
//! # Example
//!
//! ```
//! use stealtime_hypervisor::fair::{Attr, Config, Error, Fair, Feature, PickMode, YieldTo};
//!
//! let mut config = Config::linux_7_2(1);
//! config.features = config.features.with(Feature::YieldToLagCredit);
//! let mut fair = Fair::new(config)?;
//! let cpu = fair.create_rq(PickMode::Hierarchical)?;
//! let spinner = fair.create_task(Attr::default(), None)?;
//! let holder = fair.create_task(Attr::default(), None)?;
//! fair.fork(holder, cpu, 0)?;
//! fair.pick(cpu, 0)?;
//! fair.fork(spinner, cpu, 0)?;
//! // The holder of a lock runs ahead of its share, and the CPU switches to a waiter.
//! fair.tick(cpu, 2_000_000)?;
//! assert_eq!(fair.pick(cpu, 2_000_000)?.task, Some(spinner));
//!
//! // The waiter yields. The holder is not eligible, and the credit makes it so.
//! let YieldTo::Yielded { credit, .. } = fair.yield_to(cpu, holder, 2_010_000)? else {
//!     panic!("the holder waits on this CPU");
//! };
//! assert_eq!(credit.levels, 1);
//! assert_eq!(fair.pick(cpu, 2_010_000)?.task, Some(holder));
//! # Ok::<(), Error>(())
//! ```

pub mod arithmetic;
mod config;
mod credit;
mod debooster;
mod force;
mod guard;
mod state;

pub use config::{CreditFault, Guard, LagCredit, Method, RateLimit};
pub use credit::Credited;
pub(crate) use credit::credit_yield;
pub(crate) use state::LagCredits;

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
