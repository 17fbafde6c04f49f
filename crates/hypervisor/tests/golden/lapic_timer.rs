//! Arithmetic of the LAPIC timer and of the preemption timer.

use serde_json::Value;
use stealtime_hypervisor::lapic_timer::advance::{self, Spin};
use stealtime_hypervisor::lapic_timer::arithmetic::{self, Expiration, Rate, SwDeadline};
use stealtime_hypervisor::lapic_timer::{GuestTsc, Now, TimerMode, hv_timer};

use crate::files;
use crate::same::{Step, flag, int, small, uint};

#[test]
fn lapic_timer() {
    for file in files::of("lapic-timer") {
        for line in file.sequences() {
            let name = line["fn"].as_str().unwrap();
            for (n, v) in line["v"].as_array().unwrap().iter().enumerate() {
                let step = Step {
                    family: "lapic-timer",
                    seed: uint(&line["seed"]),
                    step: n,
                    what: v,
                };
                replay(name, v, &step);
            }
        }
    }
}

fn replay(name: &str, v: &Value, step: &Step) {
    match name {
        "adjust_lapic_timer_advance" => {
            let got = advance::adjust(small(&v[0]), small(&v[1]), int(&v[2]));
            step.same(name, &small(&v[3]), &got);
        }
        "wait_lapic_expire" => wait(v, step),
        "vmx_set_hv_timer" => set_hv(v, step),
        "vmx_update_hv_timer" => update_hv(v, step),
        "update_divide_count" => {
            step.same(name, &small(&v[1]), &arithmetic::divisor(small(&v[0])));
        }
        "set_target_expiration" => set_target(v, step),
        "update_target_expiration" => update_target(v, step),
        "advance_periodic_target_expiration" => {
            let (deadline, target) =
                arithmetic::next_period(&tsc(v), now(v), uint(&v[5]), int(&v[6]));
            step.same("tscdeadline", &uint(&v[7]), &deadline);
            step.same("target", &int(&v[8]), &target);
        }
        "start_sw_tscdeadline" => start_sw(v, step),
        other => panic!("function {other:?} is not known"),
    }
}

/// The first four columns of most functions: khz, ratio, offset, host TSC.
fn tsc(v: &Value) -> GuestTsc {
    GuestTsc::new(small(&v[0]), uint(&v[1]), uint(&v[2])).unwrap()
}

/// The fourth and the fifth column.
fn now(v: &Value) -> Now {
    Now {
        host_tsc: uint(&v[3]),
        ns: int(&v[4]),
    }
}

fn mode(v: &Value) -> TimerMode {
    match uint(v) {
        0 => TimerMode::OneShot,
        1 => TimerMode::Periodic,
        _ => TimerMode::TscDeadline,
    }
}

fn wait(v: &Value, step: &Step) {
    let got = advance::wait(&tsc(v), uint(&v[3]), uint(&v[4]), small(&v[5]));
    step.same("advance", &small(&v[6]), &got.advance_ns);
    let spin = match got.spin {
        Spin::None => (0, 0),
        Spin::Cycles(cycles) => (1, cycles),
        Spin::Ns(ns) => (2, u64::from(ns)),
    };
    step.same("kind and delay", &(uint(&v[7]), uint(&v[8])), &spin);
}

fn set_hv(v: &Value, step: &Step) {
    let got = hv_timer::set(
        &tsc(v),
        uint(&v[3]),
        small(&v[4]),
        small(&v[5]),
        uint(&v[6]),
    );
    let got = match got {
        Ok(armed) => (0, armed.host_deadline, armed.expired),
        Err(_) => (-34, hv_timer::UNARMED, false),
    };
    let expected = (int(&v[7]), uint(&v[8]), flag(&v[9]));
    step.same("ret, host deadline, expired", &expected, &got);
}

fn update_hv(v: &Value, step: &Step) {
    let mut soft_disabled = flag(&v[4]);
    let written = hv_timer::value_at_entry(
        uint(&v[0]),
        uint(&v[1]),
        small(&v[2]),
        flag(&v[3]),
        &mut soft_disabled,
    );
    let got = (written.is_some(), written.unwrap_or(0), soft_disabled);
    let expected = (flag(&v[5]), small(&v[6]), flag(&v[7]));
    step.same("written, value, soft_disabled", &expected, &got);
}

fn set_target(v: &Value, step: &Step) {
    let rate = Rate {
        bus_cycle_ns: small(&v[6]),
        min_period_us: small(&v[7]),
        divisor: small(&v[8]),
    };
    let (tmict, tmcct) = (small(&v[9]), small(&v[10]));
    let restored = flag(&v[11]).then_some(tmcct);
    let got = arithmetic::target_from_start(&tsc(v), now(v), mode(&v[5]), &rate, tmict, restored);
    step.same("ret", &flag(&v[12]), &got.is_some());
    // What the recording holds where nothing is written.
    let (period, deadline, target, tmcct) = match got {
        None => (0, 0, 88, tmcct),
        Some(t) => {
            let tmcct = if t.clear_tmcct { 0 } else { tmcct };
            (t.period_ns, t.tscdeadline, t.target_ns, tmcct)
        }
    };
    step.same("period", &uint(&v[13]), &period);
    step.same("tscdeadline", &uint(&v[14]), &deadline);
    step.same("target", &int(&v[15]), &target);
    step.same("TMCCT", &small(&v[16]), &tmcct);
}

fn update_target(v: &Value, step: &Step) {
    let tsc = GuestTsc::new(small(&v[0]), GuestTsc::NEUTRAL, 0).unwrap();
    let rate = Rate {
        bus_cycle_ns: small(&v[3]),
        min_period_us: small(&v[4]),
        divisor: small(&v[5]),
    };
    let got = arithmetic::target_from_divisor(
        &tsc,
        int(&v[1]),
        mode(&v[2]),
        &rate,
        small(&v[6]),
        small(&v[7]),
        Expiration {
            tscdeadline: uint(&v[8]),
            target_ns: int(&v[9]),
        },
    );
    let got = (got.period_ns, got.tscdeadline, got.target_ns);
    let expected = (uint(&v[10]), uint(&v[11]), int(&v[12]));
    step.same("period, tscdeadline, target", &expected, &got);
}

fn start_sw(v: &Value, step: &Step) {
    let got = arithmetic::sw_deadline_as_upstream(&tsc(v), now(v), small(&v[5]), uint(&v[6]));
    let got = match got {
        SwDeadline::Disarmed => (0, 0),
        SwDeadline::At(at_ns) => (1, at_ns),
        SwDeadline::Expired => (2, 0),
    };
    step.same("kind, expiry", &(uint(&v[7]), int(&v[8])), &got);
}
