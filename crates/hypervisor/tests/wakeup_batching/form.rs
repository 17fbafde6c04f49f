//! Guest IPIs that open a batch, and the vCPUs that they kick: items 7–11.

use stealtime_hypervisor::wakeup_batch::multicast::{GuestIpi, KickTarget, vcpu_kick};

const FLAT: u32 = 0xffff_ffff;
const CLUSTER: u32 = 0x0fff_ffff;

fn xapic(logical: bool, dest: u32, dfr: u32) -> GuestIpi {
    GuestIpi {
        shorthand: 0,
        logical,
        dest,
        x2apic: false,
        dfr,
    }
}

fn x2apic(logical: bool, dest: u32) -> GuestIpi {
    GuestIpi {
        x2apic: true,
        ..xapic(logical, dest, FLAT)
    }
}

fn shorthand(shorthand: u8) -> GuestIpi {
    GuestIpi {
        shorthand,
        ..xapic(false, 0, FLAT)
    }
}

#[test]
fn wakeup_sloppy_07_two_vcpus_never_batch() {
    for max_vcpus in [0, 1, 2] {
        for ipi in [shorthand(2), shorthand(3), xapic(false, 0xff, FLAT)] {
            assert!(!ipi.is_multicast(max_vcpus));
            assert!(ipi.is_multicast(3));
        }
    }
}

#[test]
fn wakeup_sloppy_08_self_never_all_including_self_does() {
    assert!(!shorthand(1).is_multicast(64));
    assert!(shorthand(2).is_multicast(64));
    assert!(shorthand(3).is_multicast(64));
    // The shorthand decides, whatever the destination's form.
    let odd = GuestIpi {
        shorthand: 1,
        ..xapic(false, 0xff, FLAT)
    };
    assert!(!odd.is_multicast(64));
}

#[test]
fn wakeup_sloppy_09_the_dfr_masks_cluster_bits() {
    assert!(!xapic(true, 0x11, CLUSTER).is_multicast(64));
    assert!(xapic(true, 0x13, CLUSTER).is_multicast(64));
    assert!(xapic(true, 0x11, FLAT).is_multicast(64));
    assert!(!xapic(true, 0x10, FLAT).is_multicast(64));
    assert!(!xapic(false, 0x13, FLAT).is_multicast(64));
}

#[test]
fn wakeup_sloppy_10_an_x2apic_cluster_number_is_no_crowd() {
    assert!(!x2apic(true, 0xffff_0001).is_multicast(64));
    assert!(x2apic(true, 0x0000_0003).is_multicast(64));
    assert!(
        x2apic(true, 0xffff_ffff).is_multicast(64),
        "by its low half"
    );
    assert!(x2apic(false, 0xffff_ffff).is_multicast(64));
    assert!(!x2apic(false, 0xff).is_multicast(64));
    assert!(!x2apic(false, 0xffff).is_multicast(64));
}

#[test]
fn the_form_names_so_many() {
    assert_eq!(shorthand(1).likely_targets(64), 1);
    assert_eq!(shorthand(2).likely_targets(64), 64);
    assert_eq!(shorthand(3).likely_targets(64), 63);
    assert_eq!(x2apic(true, 0x1_00ff).likely_targets(64), 8);
    assert_eq!(x2apic(true, 0xffff).likely_targets(4), 4);
    assert_eq!(x2apic(false, u32::MAX).likely_targets(64), 64);
    assert_eq!(x2apic(false, 5).likely_targets(64), 1);
    assert_eq!(xapic(true, 0x13, CLUSTER).likely_targets(64), 2);
    assert_eq!(xapic(false, 0x13, FLAT).likely_targets(64), 1);
    assert_eq!(xapic(false, 0xff, FLAT).likely_targets(64), 64);
    let self_in_the_form_of_many = GuestIpi {
        shorthand: 1,
        ..x2apic(true, 0x1_00ff)
    };
    assert_eq!(self_in_the_form_of_many.likely_targets(64), 1);
}

struct Vcpu {
    running: bool,
    blocked: bool,
}

impl KickTarget for Vcpu {
    fn is_running(&self) -> bool {
        self.running
    }
    fn unblock(&mut self) {
        // On an idle CPU a woken vCPU may run before the kick goes on.
        self.running |= self.blocked;
        self.blocked = false;
    }
}

#[test]
fn wakeup_sloppy_11_a_vcpu_just_woken_is_not_kicked() {
    let vcpu = |running, blocked| Vcpu { running, blocked };
    assert!(!vcpu_kick(&mut vcpu(false, true), false, false));
    assert!(!vcpu_kick(&mut vcpu(false, false), false, false));
    assert!(vcpu_kick(&mut vcpu(true, false), false, false));
    // The current vCPU passes the check on its way back, unless this is a handler.
    assert!(!vcpu_kick(&mut vcpu(true, false), false, true));
    assert!(vcpu_kick(&mut vcpu(true, false), true, true));
}
