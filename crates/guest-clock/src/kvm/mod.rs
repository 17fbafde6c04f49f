//! The real device: `kvm-ioctls`' descriptors and raw ones.
//!
//! On x86 two pairs of types implement [`Vm`](crate::device::Vm) and [`Vcpu`](crate::device::Vcpu).
//! `kvm_ioctls::VmFd` and `VcpuFd` keep a vCPU from running while it is borrowed. [`RawVm`] and
//! [`RawVcpu`] cannot, so they query a vCPU with a time limit. On arm64 `KvmArm64Vm` is both.
//!
//! ```no_run
//! # #[cfg(target_arch = "x86_64")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::os::fd::{AsRawFd, BorrowedFd};
//! use guest_clock::device::Stopping;
//! use guest_clock::kvm::{RawVcpu, RawVm, host};
//! use guest_clock::GuestClocks;
//!
//! // Before the VMM gives up its rights: later calls open no device.
//! host()?;
//! let vm = kvm_ioctls::Kvm::new()?.create_vm()?;
//! let vcpu = vm.create_vcpu(0)?;
//! // SAFETY: both stay open to the end.
//! let (raw, vcpus) = unsafe {
//!     let vcpu = BorrowedFd::borrow_raw(vcpu.as_raw_fd());
//!     (RawVm::new(BorrowedFd::borrow_raw(vm.as_raw_fd())), [RawVcpu::new(vcpu)])
//! };
//! let saved = GuestClocks::save_with(&raw, &vcpus, Stopping::Done)?;
//! # let _ = saved;
//! # Ok(())
//! # }
//! # #[cfg(not(target_arch = "x86_64"))]
//! # fn main() {}
//! ```

#[cfg(target_arch = "aarch64")]
mod arm64;
#[cfg(target_arch = "x86_64")]
mod frequency;
#[cfg(target_arch = "x86_64")]
mod host;
#[cfg(target_arch = "x86_64")]
mod identity;
mod ioctl;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(any(target_arch = "x86_64", feature = "guest"))]
use crate::error::{Errno, HostError};

#[cfg(target_arch = "aarch64")]
pub use arm64::{KvmArm64Vm, count, counter_hz};
#[cfg(target_arch = "x86_64")]
pub use host::{Backend, Host, backend, clocksource, host};
#[cfg(target_arch = "x86_64")]
pub use x86::{RawVcpu, RawVm, bracket, rdtsc};

#[cfg(target_arch = "x86_64")]
pub(crate) use identity::are_all_of_the_process;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::check_extension;
#[cfg(target_arch = "x86_64")]
use x86::{borrow, instant};

/// Opens `/dev/kvm`.
#[cfg(any(target_arch = "x86_64", feature = "guest"))]
pub(crate) fn open() -> Result<kvm_ioctls::Kvm, HostError> {
    kvm_ioctls::Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => HostError::NoDevice,
        libc::EACCES | libc::EPERM => HostError::Permission,
        errno => HostError::Open {
            errno: Errno(errno),
        },
    })
}

/// The wall clock, in ns since the epoch. Before 1970 it reads 0: then nothing has elapsed.
fn real_ns() -> u64 {
    let real = SystemTime::now().duration_since(UNIX_EPOCH);
    real.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}
