//! What keeps a guest of our own from running.

use crate::error::{Errno, HostError, IoctlError};

/// A guest could not be made or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// An ioctl.
    #[error("a guest of our own: {0}")]
    Ioctl(#[from] IoctlError),
    /// Too many or too few vCPUs.
    #[error("{given} vCPUs: a guest of our own has from 1 to {most}")]
    Vcpus {
        /// Asked for.
        given: usize,
        /// The most.
        most: usize,
    },
    /// A vCPU left its program.
    #[error("vCPU {vcpu} left its program: {exit} (does this KVM run real-mode code?)")]
    Exit {
        /// Its position.
        vcpu: usize,
        /// How.
        exit: String,
    },
    /// A vCPU's thread was not started.
    #[error("no thread for vCPU {vcpu}: {errno}; raise the limit of threads (pids)")]
    NoThread {
        /// Its position.
        vcpu: usize,
        /// What the kernel said.
        errno: Errno,
    },
    /// A vCPU's thread panicked.
    #[error("the thread of vCPU {vcpu} panicked")]
    Thread {
        /// Its position.
        vcpu: usize,
    },
}
