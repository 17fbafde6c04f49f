//! What is simulated: host, guests, knobs and how long.
//!
//! These are plain values, filled by a scenario file, a replay or a test. [`Config::check`] refuses
//! what cannot run, and names the key.

mod check;
mod generic;
mod host;
mod knobs;
mod migration;
mod profile;
mod vm;
mod workload;

pub use check::ConfigError;
pub use host::{HostConfig, Hypervisor, IdleMethod, TaskConfig, Topology};
pub use knobs::{
    CfsKnobs, HostKnobs, Knobs, KvmKnobs, L1dFlush, SchedKnobs, SchedPolicy, ScxKnobs, XenKnobs,
    XenScheduler,
};
pub use migration::{ClockMethod, HostClock, MigrationConfig};
pub use profile::{CState, Costs, Features, Profile};
pub use stealtime_hypervisor::fair::Cfs;
pub use stealtime_hypervisor::scx::Yields;
pub use vm::{GuestConfig, Pinning, VmConfig};
pub use workload::{ParamValue, WorkloadConfig};

use crate::script::Scripts;

/// How long a run takes and what its random numbers grow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunConfig {
    /// Time that is measured, in ns after the warm-up, [1 000, 10^15].
    pub duration_ns: u64,
    /// Time before that, which counts for nothing, in ns, [0, 10^15].
    pub warmup_ns: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            duration_ns: 1_000_000_000,
            warmup_ns: 100_000_000,
            seed: 1,
        }
    }
}

/// One run: a pure function of this gives every number and event.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The machine, and what runs on it in addition to guests.
    pub host: HostConfig,
    /// The guests.
    pub vms: Vec<VmConfig>,
    /// Tasks that do what was recorded.
    pub scripts: Scripts,
    /// Everything that a user could switch.
    pub knobs: Knobs,
    /// Duration and seed.
    pub run: RunConfig,
}
