//! Family `tsc-arith`: scaling, offsets, rates and pvclock arithmetic.

use serde_json::Value;
use stealtime_hypervisor::counter::arith::{
    NSEC_PER_SEC, TimeScale, adjust_khz, mul_shr, mul_shr_signed, scale_delta,
};
use stealtime_hypervisor::counter::pvclock::PvclockTime;
use stealtime_hypervisor::counter::scaling::{ClockMode, HostTsc, RatioFormat, TscRate};
use stealtime_hypervisor::counter::tsc_sync::VcpuTsc;

use crate::files;

/// A column as 64 bits: signed numbers in two's complement.
fn column(v: &Value) -> u64 {
    v.as_u64()
        .or_else(|| v.as_i64().map(|signed| signed as u64))
        .unwrap_or_else(|| panic!("not a 64-bit integer: {v}"))
}

fn format(frac: u64) -> RatioFormat {
    match frac {
        48 => RatioFormat::VMX,
        32 => RatioFormat::SVM,
        _ => panic!("no format has {frac} fraction bits"),
    }
}

/// The outputs of `function` for the inputs at the start of `v`.
fn outputs(function: &str, v: &[u64]) -> Vec<u64> {
    let low = |i: usize| v[i] as u32;
    match function {
        "kvm_get_time_scale" => {
            let scale = TimeScale::new(v[0], v[1]).unwrap();
            vec![i64::from(scale.shift) as u64, u64::from(scale.mul)]
        }
        "mul_u64_u64_shr" => vec![mul_shr(v[0], v[1], low(2))],
        "mul_s64_u64_shr" => vec![mul_shr_signed(v[0] as i64, v[1], low(2))],
        "kvm_scale_tsc" => vec![format(v[0]).scale(v[1], v[2])],
        "kvm_compute_l1_tsc_offset" => vec![format(v[0]).l1_offset(v[1], v[2], v[3])],
        "kvm_read_l1_tsc" => vec![format(v[0]).read_l1(v[1], v[2], v[3])],
        "kvm_calc_nested_tsc_offset" => vec![format(v[0]).nested_offset(v[1], v[2], v[3])],
        "kvm_calc_nested_tsc_multiplier" => vec![format(v[0]).nested_ratio(v[1], v[2])],
        "adjust_tsc_khz" => vec![u64::from(adjust_khz(low(0), v[1] as i32))],
        "kvm_set_tsc_khz" => set_tsc_khz(v),
        "pvclock_scale_delta" => vec![scale_delta(v[0], low(1), v[2] as i8)],
        "__pvclock_read_cycles" => {
            let time = PvclockTime {
                tsc_timestamp: v[0],
                system_time_ns: v[1],
                scale: TimeScale {
                    mul: low(2),
                    shift: v[3] as i8,
                },
                flags: 0,
            };
            vec![time.at(v[4])]
        }
        "nsec_to_cycles" => {
            let scale = TimeScale::new(1000 * v[0], NSEC_PER_SEC).unwrap();
            assert_eq!(TimeScale::ns_to_cycles(low(0)), Ok(scale));
            let shift = i64::from(scale.shift) as u64;
            vec![u64::from(scale.mul), shift, scale.scale(v[1])]
        }
        "compute_guest_tsc" => {
            let mut vcpu = VcpuTsc::zeroed(false);
            vcpu.rate.ns_to_cycles = TimeScale::ns_to_cycles(low(0)).unwrap();
            (vcpu.this_tsc_nsec, vcpu.this_tsc_write) = (v[1], v[2]);
            vec![vcpu.compute_guest_tsc(v[3])]
        }
        _ => panic!("no such function in this family: {function}"),
    }
}

fn set_tsc_khz(v: &[u64]) -> Vec<u64> {
    let host = HostTsc {
        khz: v[2] as u32,
        format: format(v[0]),
        has_scaling: v[1] != 0,
        tolerance_ppm: v[3] as u32,
        clock_mode: ClockMode::Tsc,
        unstable: false,
    };
    let mut rate = TscRate::default();
    let ret = match rate.set_khz(&host, v[4] as u32) {
        Ok(()) => 0,
        Err(_) => u64::MAX,
    };
    vec![
        ret,
        rate.ratio,
        u64::from(rate.virtual_khz),
        u64::from(rate.ns_to_cycles.mul),
        i64::from(rate.ns_to_cycles.shift) as u64,
        u64::from(rate.catchup),
        u64::from(rate.always_catchup),
    ]
}

#[test]
fn tsc_arith() {
    for file in files::of("tsc-arith") {
        for sequence in file.sequences() {
            let function = sequence["fn"].as_str().unwrap();
            for (step, vector) in sequence["v"].as_array().unwrap().iter().enumerate() {
                let columns: Vec<u64> = vector.as_array().unwrap().iter().map(column).collect();
                let got = outputs(function, &columns);
                let expected = &columns[columns.len() - got.len()..];
                assert_eq!(
                    got,
                    expected,
                    "{}: family tsc-arith, seed {}, {function}, step {step}: {vector}",
                    file.path.display(),
                    sequence["seed"]
                );
            }
        }
    }
}
