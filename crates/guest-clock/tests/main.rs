//! All tests in one binary: each binary costs a link, and tests of one run side by side.

mod arm64;
mod by_value;
mod capi;
mod chain;
mod destinations;
mod example;
mod extremes;
mod formats;
mod reported;
mod restore;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cases/seccomp.rs"]
mod seccomp;
mod snapshots;
mod state;
mod threads;
mod vcpus;
