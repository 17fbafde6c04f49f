//! Input that hardware does not take: refused with every operand, and nothing overflows.

use proptest::prelude::*;
use stealtime_hypervisor::counter::scaling::{
    HostTsc, RatioError, RatioFormat, RatioOperands, SetTscKhzError, TscRate,
};
use stealtime_hypervisor::counter::tsc_sync::VcpuTsc;

use crate::host::Machine;

const VMX: RatioFormat = RatioFormat::VMX;

fn operands(guest_khz: u32, host_khz: u32) -> RatioOperands {
    RatioOperands {
        guest_khz,
        host_khz,
        frac_bits: 32,
        max_ratio: (1 << 40) - 1,
    }
}

#[test]
fn ratios_that_no_hardware_holds() {
    let ratio = |guest, host| RatioFormat::SVM.ratio(guest, host);
    let zero_host = operands(1, 0);
    assert_eq!(ratio(1, 0), Err(RatioError::HostFrequencyZero(zero_host)));
    assert_eq!(ratio(0, 7), Err(RatioError::Zero(operands(0, 7))));
    let large = operands(256_000, 1000);
    assert_eq!(ratio(256_000, 1000), Err(RatioError::TooLarge(large)));
    let shown = RatioError::TooLarge(large).to_string();
    for operand in ["256000", "1000", "32", "0xffffffffff"] {
        assert!(shown.contains(operand), "{shown}");
    }
    // A ratio of 0 is legal for hardware: the guest's counter stands still at its offset.
    assert_eq!(VMX.read_l1(0, 42, u64::MAX), 42);
}

#[test]
fn frequencies_that_cannot_be_set() {
    let host = HostTsc::new(2_000_000, VMX);
    let mut rate = TscRate::default();
    let zero = SetTscKhzError::Zero {
        host_khz: 2_000_000,
    };
    assert_eq!(rate.set_khz(&host, 0), Err(zero));
    assert_eq!(rate.ratio, VMX.neutral());
    let rigid = HostTsc {
        has_scaling: false,
        ..host
    };
    let slower = SetTscKhzError::SlowerWithoutScaling {
        user_khz: 1_000_000,
        host_khz: 2_000_000,
        tolerance_ppm: 250,
    };
    assert_eq!(rate.set_khz(&rigid, 1_000_000), Err(slower));
    assert_eq!(rate.set_khz(&rigid, 3_000_000), Ok(()));
    assert!(rate.catchup && rate.always_catchup);
    let mut vcpu = VcpuTsc::zeroed(false);
    let above = SetTscKhzError::AboveMaximum {
        user_khz: u32::MAX,
        max_guest_khz: i32::MAX as u32,
    };
    assert_eq!(vcpu.set_tsc_khz(&host, u32::MAX), Err(above));
    assert!(!vcpu.tsc_catchup);
    assert_eq!(vcpu.set_tsc_khz(&rigid, 3_000_000), Ok(()));
    assert!(vcpu.tsc_catchup);
    let mut protected = VcpuTsc::zeroed(true);
    let refused = SetTscKhzError::Protected { user_khz: 5 };
    assert_eq!(protected.set_tsc_khz(&host, 5), Err(refused));
}

proptest! {
    /// No input makes the state machine panic, in a debug build either.
    #[test]
    fn no_input_panics(
        khz in any::<u32>(),
        guest_khz in any::<u32>(),
        tsc in any::<u64>(),
        ns in any::<u64>(),
        steps in prop::collection::vec((0u8..10, any::<u64>(), any::<u64>()), 0..40),
    ) {
        let mut m = Machine::new(khz, tsc);
        m.ns = ns >> 1;
        let now = m.now();
        let (vcpu, _) = m.vm.create_vcpu(&mut m.host, &now, 0, guest_khz, tsc & 1 != 0);
        m.vcpus.push(vcpu);
        for (what, value, later) in steps {
            m.ns = later >> 1;
            let now = m.now();
            let v = &mut m.vcpus[0];
            match what {
                0 => drop(m.vm.host_write(v, &m.host, &now, value)),
                1 => drop(m.vm.set_offset(v, &m.host, &now, value)),
                2 => v.guest_write(&m.host, &now, value),
                3 => v.write_tsc_adjust(value & 1 != 0, value),
                4 => drop(v.set_tsc_khz(&m.host, value as u32)),
                5 => v.load(&mut m.host, &now, value as u32, value),
                6 => v.put(&now),
                7 => drop(m.vm.guest_time_update(v, &m.host, &now, value & 1 != 0)),
                8 => drop(m.vm.get_clock(&m.host, &now, true)),
                _ => drop(m.vm.handle_masterclock_request(v, &m.host, &now)),
            }
        }
        prop_assert!(m.vcpus[0].rate.ratio <= VMX.max_ratio());
    }
}
