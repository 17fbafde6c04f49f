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
