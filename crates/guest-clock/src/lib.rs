//! Save and restore the clocks of a live KVM guest: exact, idempotent, explained.
//!
//! A VMM that saves a counter's *value* and writes it back adds the delay of its thread to guest
//! time. The delay may differ from vCPU to vCPU. Linux 5.16 and later have a remedy: instants of the
//! kvmclock, and TSC offsets. This crate applies it.
//!
//! | you have | you call |
//! |---|---|
//! | a stopped VM | [`GuestClocks::save`] |
//! | a file | [`Saved::load`], [`Saved::to_json`], [`Saved::to_bytes`] |
//! | a new VM that has not run | [`Saved::restore`], or [`Saved::plan`] and its steps |
//! | another host in mind | [`rehearse`], with a file of facts [`rehearse_on`] |
//! | vCPUs that belong to threads | [`vcpu_of_thread`] |
//! | a snapshot of another VMM | [`snapshot::inspect`] |
//! | a VM that was restored by value | [`GuestClocks::equalize`] |
//! | a snapshot by value | [`ByValue::to_saved`] |
//! | no device | [`fake`] |
//! | a failure that others have reported | [`reported`] |
//! | an arm64 VM | [`GuestClocks::save_arm64`], [`Saved::restore_arm64`] |
//! | a VMM in C | `include/guest_clock.h`, feature `capi` |
//!
//! # From beginning to end
//!
//! ```
//! use guest_clock::{GuestClocks, Options, Policy, Saved, Unequal, fake::FakeHost};
//!
//! // The source. With `kvm-ioctls` these are a `VmFd` and a slice of `VcpuFd`s; the vCPUs are
//! // out of KVM_RUN.
//! let source = FakeHost::new(2_500_000);
//! let (vm, vcpus) = source.vm(4);
//! let file = GuestClocks::save(&vm, &vcpus)?.to_bytes();
//!
//! // The destination: another frequency, another counter, another kernel. The VMM creates VM
//! // and vCPUs and restores LAPICs and MSRs, all but TSC, TSC_ADJUST and the deadline.
//! let destination = FakeHost::new(3_000_000);
//! destination.pass(60_000_000_000);
//! let (vm, vcpus) = destination.vm(4);
//! let saved = Saved::load(&file)?;
//! let how = Options::new(Policy::Elapsed { refuse_above_ns: 3_600_000_000_000 })
//!     .unequal(Unequal::Highest)
//!     .accept_inexact();
//! let plan = saved.plan(&vm, &vcpus, &how)?; // only reads
//! let explanation = plan.carry_out(&vm, &vcpus)?; // may be repeated, at any time
//! println!("{explanation}");
//!
//! // Now, not before, the vCPUs run.
//! let reading = vcpus[0].read_clocks()?;
//! assert!(reading.stable && reading.tsc > explanation.vcpus[0].tsc_at_save);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the types see to
//!
//! Everything is computed and checked before the first write ([`Plan`]). The one order of writes is
//! counters, clock, timers ([`CountersWritten`], [`ClockWritten`], [`TimersArmed`]). An error after the
//! first write lists all writes ([`RestoreError`]). The arithmetic is that of
//! [`stealtime_hypervisor::counter`].
//!
//! # Features
//!
//! None is on by default: a VMM needs none.
//!
//! | feature | adds |
//! |---|---|
//! | `capi` | `capi`, the functions of `include/guest_clock.h` |
//! | `guest` | `guest`: small guests of our own, which read their clocks and find steps back |
//! | `drill` | `drill`: a guest is saved and restored many times, by value and by offset; `reported`, and hosts as files |
//! | `bench` | `bench`, `readings`: what reading a clock costs, and saving and restoring |
//! | `doctor` | `doctor`: what a host's KVM offers, tried out |
//!
//! # What others' versions mean for this crate's
//!
//! Enumerations, and structures that may grow, are `#[non_exhaustive]`: they have constructors, and
//! fields to be changed. The interface has three parts of other crates:
//!
//! - `kvm_ioctls::{VmFd, VcpuFd}`, which implement its traits;
//! - `serde`'s traits;
//! - the types in [`arithmetic`], named here so that a caller does not depend on that crate.
//!
//! A version of those that breaks its users breaks this one's. Descriptors of any crate fit, as `RawVm`
//! and `RawVcpu`. A saved state's version is its own: [`VERSION`].

pub mod arm64;
#[cfg(all(feature = "bench", target_os = "linux", target_arch = "x86_64"))]
pub mod bench;
mod binary;
mod by_value;
#[cfg(all(
    feature = "capi",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub mod capi;
#[cfg(feature = "drill")]
mod destination;
pub mod device;
#[cfg(all(feature = "doctor", target_os = "linux", target_arch = "x86_64"))]
pub mod doctor;
#[cfg(feature = "drill")]
pub mod drill;
mod equalize;
mod error;
mod explanation;
pub mod fake;
#[cfg(all(feature = "guest", target_os = "linux", target_arch = "x86_64"))]
pub mod guest;
#[cfg(all(feature = "guest", target_os = "linux", target_arch = "aarch64"))]
#[path = "guest/arm64.rs"]
pub mod guest;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub mod kvm;
mod named;
#[cfg(feature = "drill")]
mod observed;
mod plan;
mod policy;
#[cfg(all(
    feature = "bench",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub mod readings;
#[cfg(feature = "drill")]
pub mod reported;
mod restore;
mod save;
mod saved;
pub mod snapshot;
mod thread;
mod vcpus;
mod written;

/// Types of the arithmetic that this interface has in it.
pub mod arithmetic {
    pub use stealtime_hypervisor::counter::arm64::CounterMigrationError;
    pub use stealtime_hypervisor::counter::kvm_clock::{
        KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KVM_CLOCK_TSC_STABLE, KvmClockData,
    };
    pub use stealtime_hypervisor::counter::migration::{Account, MigrationError, Uncertainty};
    pub use stealtime_hypervisor::counter::scaling::{
        ClockMode, HostTsc, RatioFormat, SetTscKhzError,
    };
    pub use stealtime_hypervisor::counter::tsc_sync::HostInstant;
}

pub use by_value::ByValue;
#[cfg(feature = "drill")]
pub use destination::{FACTS_VERSION, Facts, Outcome, Rehearsed, Restored, rehearse_on};
pub use equalize::{Equalize, Equalized};
pub use error::{
    EqualizeError, Errno, FactsError, HostError, ImportError, IoctlError, Jump, LoadError,
    NoThread, PlanError, RestoreError, SaveError, Unloadable, WrongVcpus,
};
pub use explanation::{Bounds, Explanation, ForGuest, OffsetsOutcome, Reason, VcpuExplanation};
pub use plan::{Anchor, Plan, PlannedVcpu, rehearse};
pub use policy::{
    Inexact, Options, Policy, Unequal, WallClockBehind, WallClocks, WallClocksDiffer,
};
pub use restore::{ClockWritten, CountersWritten, TimersArmed};
pub use save::GuestClocks;
pub use saved::{
    Arm64State, Instant, MAX_BYTES, MAX_VCPUS, Saved, State, VERSION, VcpuState, X86State,
};
pub use thread::{ThreadVcpu, VcpuThread, vcpu_of_thread};
pub use written::Written;

/// The examples of README.md, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
