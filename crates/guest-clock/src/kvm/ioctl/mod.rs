//! The ioctls on descriptors. Those of `kvm-ioctls` take types that hold more than a clock needs. It lacks
//! those that read the offset attribute and set arm64's counter offset.

// On x86 for its tests of layout only.
#[cfg(any(target_arch = "aarch64", test))]
mod arm64;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::Errno;

#[cfg(target_arch = "aarch64")]
pub(super) use arm64::*;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::*;

const KVMIO: u64 = 0xae;
const WRITE: u64 = 1;
#[cfg(target_arch = "x86_64")]
const READ: u64 = 2;

const fn code(direction: u64, number: u64, size: u64) -> u64 {
    direction << 30 | size << 16 | KVMIO << 8 | number
}

pub(super) const CHECK_EXTENSION: u64 = code(0, 0x03, 0);

/// What may be handed to the kernel by address: plain integers, in C's layout.
pub(super) trait Argument {}

fn outcome(returned: libc::c_int) -> Result<i32, Errno> {
    if returned >= 0 {
        return Ok(returned);
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    Err(Errno(errno.unwrap_or(libc::EIO)))
}

/// An ioctl with a number as argument.
pub(super) fn by_number(fd: BorrowedFd<'_>, request: u64, number: u64) -> Result<i32, Errno> {
    // SAFETY: the kernel takes the argument of these requests as a number, and touches no memory of
    // this process. The descriptor is open for the borrow's life. Needed: there is no safe ioctl.
    outcome(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, number as libc::c_ulong) })
}

/// An ioctl with a structure as argument, which the kernel reads or writes.
pub(super) fn by_structure<T: Argument>(
    fd: BorrowedFd<'_>,
    request: u64,
    argument: &mut T,
) -> Result<i32, Errno> {
    // SAFETY: `argument` is exclusively borrowed and in C's layout. It has the size in the request's
    // code (a test compares them), so the kernel stays within it. The address in a `DeviceAttr` or a
    // `OneRegister` is that of a local `u64` that lives over the call. Any bytes that the kernel
    // writes are valid integers. Needed: there is no safe ioctl.
    outcome(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(argument)) })
}
