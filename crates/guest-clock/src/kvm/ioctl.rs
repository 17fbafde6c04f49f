//! The ioctls themselves, on descriptors: those of `kvm-ioctls` take types that hold more than a
//! clock needs, and it has none for the offset attribute's reading or arm64's counter offset.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::Errno;

const KVMIO: u64 = 0xae;
const WRITE: u64 = 1;
const READ: u64 = 2;

const fn code(direction: u64, number: u64, size: u64) -> u64 {
    direction << 30 | size << 16 | KVMIO << 8 | number
}

pub(super) const CHECK_EXTENSION: u64 = code(0, 0x03, 0);
pub(super) const SET_CLOCK: u64 = code(WRITE, 0x7b, 48);
pub(super) const GET_CLOCK: u64 = code(READ, 0x7c, 48);
pub(super) const GET_MSRS: u64 = code(READ | WRITE, 0x88, 8);
pub(super) const SET_MSRS: u64 = code(WRITE, 0x89, 8);
pub(super) const SET_TSC_KHZ: u64 = code(0, 0xa2, 0);
pub(super) const GET_TSC_KHZ: u64 = code(0, 0xa3, 0);
pub(super) const KVMCLOCK_CTRL: u64 = code(0, 0xad, 0);
pub(super) const SET_DEVICE_ATTR: u64 = code(WRITE, 0xe1, 24);
pub(super) const GET_DEVICE_ATTR: u64 = code(WRITE, 0xe2, 24);

/// `struct kvm_clock_data`, 48 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ClockData {
    pub(super) clock: u64,
    pub(super) flags: u32,
    pub(super) pad0: u32,
    pub(super) realtime: u64,
    pub(super) host_tsc: u64,
    pub(super) pad: [u32; 4],
}

/// `struct kvm_device_attr`, 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    pub(super) flags: u32,
    pub(super) group: u32,
    pub(super) attr: u64,
    pub(super) addr: u64,
}

/// `struct kvm_msrs` with one entry.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct OneMsr {
    pub(super) count: u32,
    pub(super) pad: u32,
    pub(super) index: u32,
    pub(super) reserved: u32,
    pub(super) data: u64,
}

/// `struct kvm_msr_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct MsrEntry {
    pub(super) index: u32,
    pub(super) reserved: u32,
    pub(super) data: u64,
}

/// `struct kvm_msrs` with two entries.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct TwoMsrs {
    pub(super) count: u32,
    pub(super) pad: u32,
    pub(super) entries: [MsrEntry; 2],
}

/// What may be handed to the kernel by address: plain integers, in C's layout.
pub(super) trait Argument {}
impl Argument for ClockData {}
impl Argument for DeviceAttr {}
impl Argument for OneMsr {}
impl Argument for TwoMsrs {}

fn outcome(returned: libc::c_int) -> Result<i32, Errno> {
    if returned >= 0 {
        return Ok(returned);
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    Err(Errno(errno.unwrap_or(libc::EIO)))
}

/// An ioctl whose argument is a number.
pub(super) fn by_number(fd: BorrowedFd<'_>, request: u64, number: u64) -> Result<i32, Errno> {
    // SAFETY: the kernel takes the argument of these requests as a number and touches no memory
    // of ours; the descriptor is open for the borrow's life. Needed: there is no safe ioctl.
    outcome(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, number as libc::c_ulong) })
}

/// An ioctl whose argument is a structure, read or written by the kernel.
pub(super) fn by_structure<T: Argument>(
    fd: BorrowedFd<'_>,
    request: u64,
    argument: &mut T,
) -> Result<i32, Errno> {
    // SAFETY: `argument` is exclusively borrowed, in C's layout, and of the size that the request
    // is coded with (a test holds them together), so the kernel stays within it; a `DeviceAttr`'s
    // address is that of a local `u64` that its maker keeps alive over the call; any bytes that
    // the kernel writes are valid integers. Needed: there is no safe ioctl.
    outcome(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(argument)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_bindings() {
        use kvm_bindings as c;
        assert_eq!(size_of::<ClockData>(), size_of::<c::kvm_clock_data>());
        assert_eq!(size_of::<DeviceAttr>(), size_of::<c::kvm_device_attr>());
        assert_eq!(
            size_of::<OneMsr>(),
            size_of::<c::kvm_msrs>() + size_of::<c::kvm_msr_entry>()
        );
        assert_eq!(SET_CLOCK >> 16 & 0x3fff, size_of::<ClockData>() as u64);
        assert_eq!(GET_CLOCK >> 16 & 0x3fff, size_of::<ClockData>() as u64);
        assert_eq!(
            GET_DEVICE_ATTR >> 16 & 0x3fff,
            size_of::<DeviceAttr>() as u64
        );
        assert_eq!(GET_MSRS >> 16 & 0x3fff, size_of::<c::kvm_msrs>() as u64);
        assert_eq!(
            std::mem::offset_of!(ClockData, host_tsc),
            std::mem::offset_of!(c::kvm_clock_data, host_tsc)
        );
        assert_eq!(std::mem::offset_of!(OneMsr, data), 16);
        // As <linux/kvm.h> makes them.
        assert_eq!(SET_CLOCK, 0x4030_ae7b);
        assert_eq!(GET_CLOCK, 0x8030_ae7c);
        assert_eq!(GET_MSRS, 0xc008_ae88);
        assert_eq!(SET_DEVICE_ATTR, 0x4018_aee1);
    }
}
