//! x86's: the clock, device attributes, model-specific registers.

use super::{Argument, READ, WRITE, code};

pub(in crate::kvm) const SET_CLOCK: u64 = code(WRITE, 0x7b, 48);
pub(in crate::kvm) const GET_CLOCK: u64 = code(READ, 0x7c, 48);
pub(in crate::kvm) const GET_MSRS: u64 = code(READ | WRITE, 0x88, 8);
pub(in crate::kvm) const SET_MSRS: u64 = code(WRITE, 0x89, 8);
pub(in crate::kvm) const SET_TSC_KHZ: u64 = code(0, 0xa2, 0);
pub(in crate::kvm) const GET_TSC_KHZ: u64 = code(0, 0xa3, 0);
pub(in crate::kvm) const KVMCLOCK_CTRL: u64 = code(0, 0xad, 0);
pub(in crate::kvm) const SET_DEVICE_ATTR: u64 = code(WRITE, 0xe1, 24);
pub(in crate::kvm) const GET_DEVICE_ATTR: u64 = code(WRITE, 0xe2, 24);

/// `struct kvm_clock_data`, 48 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in crate::kvm) struct ClockData {
    pub(in crate::kvm) clock: u64,
    pub(in crate::kvm) flags: u32,
    pub(in crate::kvm) pad0: u32,
    pub(in crate::kvm) realtime: u64,
    pub(in crate::kvm) host_tsc: u64,
    pub(in crate::kvm) pad: [u32; 4],
}

/// `struct kvm_device_attr`, 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::kvm) struct DeviceAttr {
    pub(in crate::kvm) flags: u32,
    pub(in crate::kvm) group: u32,
    pub(in crate::kvm) attr: u64,
    pub(in crate::kvm) addr: u64,
}

/// `struct kvm_msrs` with one entry.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in crate::kvm) struct OneMsr {
    pub(in crate::kvm) count: u32,
    pub(in crate::kvm) pad: u32,
    pub(in crate::kvm) index: u32,
    pub(in crate::kvm) reserved: u32,
    pub(in crate::kvm) data: u64,
}

/// `struct kvm_msr_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in crate::kvm) struct MsrEntry {
    pub(in crate::kvm) index: u32,
    pub(in crate::kvm) reserved: u32,
    pub(in crate::kvm) data: u64,
}

/// `struct kvm_msrs` with two entries.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in crate::kvm) struct TwoMsrs {
    pub(in crate::kvm) count: u32,
    pub(in crate::kvm) pad: u32,
    pub(in crate::kvm) entries: [MsrEntry; 2],
}

impl Argument for ClockData {}
impl Argument for DeviceAttr {}
impl Argument for OneMsr {}
impl Argument for TwoMsrs {}

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
