//! Guest counters: what a guest reads from its TSC, its kvmclock or its generic timer, and how
//! that survives a migration.
//!
//! | module | is |
//! |---|---|
//! | [`arith`] | the exact 128-bit products and the scale factors everything below uses |
//! | [`scaling`] | TSC ratios: hardware formats, offsets under scaling, nested guests, `KVM_SET_TSC_KHZ` |
//! | [`pvclock`] | the kvmclock page: its layout, its version protocol, its reader |
//! | [`tsc_sync`] | generations, the one-second rule, offset writes: `kvm_synchronize_tsc` |
//! | [`kvm_clock`] | master clock, `KVM_GET_CLOCK`, `KVM_SET_CLOCK`, the update of a guest's page |
//! | [`migration`] | new offsets on the destination, with an account of what was added |
//! | [`arm64`] | virtual and physical counter offsets, as posted and as merged; traps and ECV |
//!
//! ```
//! use stealtime_hypervisor::counter::kvm_clock::{
//!     KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KvmClockData,
//! };
//! use stealtime_hypervisor::counter::migration::{Side, Uncertainty, by_offsets};
//! use stealtime_hypervisor::counter::scaling::RatioFormat;
//!
//! // A guest of 2 GHz moves from a host of 2 GHz to one of 2.5 GHz, and is off for a millisecond.
//! let (guest_khz, format) = (2_000_000, RatioFormat::VMX);
//! let side = |clock_ns, host_tsc, host_khz| Side {
//!     clock: KvmClockData {
//!         clock_ns,
//!         flags: KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC,
//!         realtime_ns: clock_ns,
//!         host_tsc,
//!     },
//!     format,
//!     ratio: format.ratio(guest_khz, host_khz).unwrap(),
//! };
//! let source = side(5_000_000_000, 10_000_000_000, 2_000_000);
//! let destination = side(5_001_000_000, 70_000_000_000, 2_500_000);
//! let migration = by_offsets(&source, &destination, guest_khz, &Uncertainty::default())?;
//! assert_eq!(migration.account.added_cycles, 2_000_000);
//!
//! // The guest reads 2,000,000 cycles more than as it stopped.
//! let offset = migration.offset(0);
//! let read = format.scale(destination.clock.host_tsc, destination.ratio).wrapping_add(offset);
//! assert_eq!(read, 10_002_000_000);
//! # Ok::<(), stealtime_hypervisor::counter::migration::MigrationError>(())
//! ```
//!
//! Nothing here reads a clock. Every operation takes the host's instant as a parameter.
//! Unsigned counters wrap modulo 2^64 exactly where the hardware's do; every other overflow is a
//! typed error.

pub mod arith;
pub mod arm64;
pub mod kvm_clock;
pub mod migration;
pub mod pvclock;
pub mod scaling;
pub mod tsc_sync;
