//! A deterministic simulation of a virtualization host and its guests.
//!
//! `stealtime-hypervisor` makes the host's decisions, as in a real host. What happens is emitted as
//! the events that traces of real hosts hold. A run is a pure function of its
//! [`Config`](config::Config).
//!
//! ```
//! use stealtime_simulator::config::{
//!     Config, HostConfig, Knobs, RunConfig, Topology, VmConfig, WorkloadConfig,
//! };
//! use stealtime_simulator::{books, script, workload};
//!
//! assert!(workload::find("busy").is_some());
//! let config = Config {
//!     host: HostConfig::generic(Topology::flat(1)),
//!     vms: vec![VmConfig {
//!         name: "vm".to_owned(),
//!         vcpus: 2,
//!         workload: WorkloadConfig::named("busy"),
//!         ..VmConfig::default()
//!     }],
//!     scripts: script::Scripts::default(),
//!     knobs: Knobs::default(),
//!     run: RunConfig { duration_ns: 10_000_000, ..RunConfig::default() },
//! };
//! // `()` takes the events and drops them.
//! let outcome = stealtime_simulator::run(&config, &mut ())?;
//! // Two vCPUs on one CPU: each nanosecond of a vCPU is in its books once.
//! for vcpu in &outcome.vms[0].vcpus {
//!     let books: books::TaskBooks = vcpu.task;
//!     assert_eq!(books.total_ns(), 10_000_000);
//!     assert!(books.wait_ns > 0);
//! }
//! # Ok::<(), stealtime_simulator::Fault>(())
//! ```

mod at;
pub mod books;
pub mod config;
pub mod engine;
mod fault;
mod guest;
mod host;
pub mod ids;
pub mod inject;
mod kvm;
mod machine;
mod migration;
mod outcome;
pub mod program;
mod scale;
pub mod script;
mod sink;
mod stats;
pub mod swarm;
pub mod workload;
mod xen;

pub use fault::{Fault, Sim};
pub use guest::{Arrivals, GuestBuilder};
pub use machine::{CHECKS, Machine, Recipe};
pub use migration::ClockOutcome;
pub use outcome::{Outcome, TaskOutcome, VcpuOutcome, VmOutcome};
pub use sink::{Collected, NameList, Sink};
pub use stats::{ExitTimes, Histogram, Mechanisms, Meter, Stats};

/// Runs a configuration to its end; events go to `sink`.
///
/// # Errors
///
/// [`Fault`].
pub fn run(config: &config::Config, sink: &mut dyn Sink) -> Result<Outcome, Fault> {
    Machine::new(config, sink)?.run(&|| false)
}
