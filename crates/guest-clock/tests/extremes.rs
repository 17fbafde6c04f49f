//! Plans at the ends of their ranges, against arithmetic in 128 bits: right, or refused.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::arm64::Arm64Error;
use guest_clock::device::HostFacts;
use guest_clock::fake::{FakeArm64Vm, FakeHost};
use guest_clock::{
    Anchor, Arm64State, Instant, Options, PlanError, Policy, Saved, State, VcpuState, X86State,
    rehearse,
};
use proptest::prelude::*;

/// Numbers near the places where something could wrap, and any others.
fn word() -> impl Strategy<Value = u64> {
    let edges = [0, 1, 1 << 32, 1 << 53, 1 << 63, u64::MAX];
    prop_oneof![
        (prop::sample::select(edges.to_vec()), 0u64..3).prop_map(|(e, n)| e.wrapping_sub(n)),
        (any::<u64>(), 0u32..64).prop_map(|(word, shift)| word >> shift),
        any::<u64>(),
    ]
}

fn khz() -> impl Strategy<Value = u32> {
    prop_oneof![
        prop::sample::select(vec![1, 2, 1000, 0x7fff_fffd]),
        800_000u32..6_000_000,
        1u32..0x7fff_fffe,
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Stopped),
        Just(Policy::ELAPSED),
        word().prop_map(|max_ns| Policy::AtMost { max_ns }),
    ]
}

fn advance(policy: Policy, elapsed: u64) -> u128 {
    u128::from(match policy {
        Policy::Stopped => 0,
        Policy::AtMost { max_ns } => elapsed.min(max_ns),
        _ => elapsed,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// kvmclock and TSC of a plan advance by the same time, exactly, or the plan is refused.
    #[test]
    fn plans_are_right_or_refused(
        guest_khz in khz(),
        host_khz in khz(),
        (clock, real) in (word(), word()).prop_map(|(c, r)| (c >> 1, r >> 1)),
        (host_tsc, offset) in (word(), word()),
        (here_real, here_tsc) in (word(), word()),
        policy in policy(),
    ) {
        let vcpus = vec![VcpuState::new(offset)];
        let instant = Instant::new(clock, real, host_tsc);
        let state = X86State::new(guest_khz, instant, vcpus);
        let saved = Saved::new(State::X86(state)).unwrap();
        let anchor = Anchor { realtime_ns: here_real, host_tsc: here_tsc, bound_ns: 0 };
        let how = Options::new(policy).accept_inexact();
        let advance = advance(policy, here_real.saturating_sub(real));
        let cycles = advance * u128::from(guest_khz) / 1_000_000;
        match rehearse(&saved, &HostFacts::complete(host_khz), anchor, &how) {
            Ok(plan) => {
                let vcpu = plan.vcpus()[0];
                let advanced = vcpu.tsc_at_anchor.wrapping_sub(vcpu.tsc_at_save);
                prop_assert_eq!(u128::from(advanced), cycles);
                prop_assert_eq!(u128::from(plan.clock_ns()), u128::from(clock) + advance);
            }
            Err(PlanError::TscOverflow { .. }) => prop_assert!(cycles >= 1 << 63),
            Err(PlanError::ClockOverflow { .. }) => {
                prop_assert!(u128::from(clock) + advance > u128::from(u64::MAX));
            }
            Err(refused) => {
                prop_assert!(matches!(refused, PlanError::Frequency { .. }), "{}", refused);
            }
        }
    }

    #[test]
    fn arm64_plans_are_right_or_refused(
        mhz in 1u32..4_200,
        real in word().prop_map(|r| r >> 1),
        (count, offset) in (word(), word()),
        step in any::<i64>(),
        policy in policy(),
    ) {
        let host = FakeHost::new(mhz * 1000);
        host.step_wall_clock(step);
        let hz = mhz * 1_000_000;
        let state = Arm64State::new(hz, offset, count, real, 1);
        let saved = Saved::new(State::Arm64(state)).unwrap();
        let vm = FakeArm64Vm::new(&host, 1);
        match saved.plan_arm64(&vm, &Options::new(policy)) {
            Ok(plan) => {
                let done = plan.explanation();
                let elapsed = u64::try_from(done.elapsed_ns).unwrap_or(0);
                let advance = advance(policy, elapsed);
                prop_assert_eq!(u128::from(done.advanced_ns), advance);
                let ticks = advance * u128::from(hz) / 1_000_000_000;
                let advanced = done.count_at_anchor.wrapping_sub(done.count_at_save);
                prop_assert_eq!(u128::from(advanced), ticks);
            }
            Err(Arm64Error::WallClockBehind(behind)) => {
                prop_assert!(policy != Policy::Stopped && real >= behind.by_ns);
            }
            Err(refused) => {
                let overflow = matches!(refused, Arm64Error::Overflow { .. });
                prop_assert!(overflow, "{}", refused);
            }
        }
    }
}
