//! The arithmetic of the BPF program, compiled for the host, equals that of stealtime-hypervisor.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use stealtime_bpf_arithmetic::{
    HostAnswers, HostTokens, host_accept, host_credit_lag, host_credit_shift, host_due, host_eoi,
    host_floor_div, host_is_due, host_mul_div, host_send, host_sender, host_spend, host_vtime,
    host_want, host_want_lender, host_want_slice_us, host_want_tid,
};
use stealtime_hypervisor::ipi_tracking::IpiKnobs;
use stealtime_hypervisor::lag_credit::arithmetic::{
    CreditRequest, Tokens, credit_lag, credit_shift, is_due,
};
use stealtime_hypervisor::lag_credit::{Guard, LagCredit};
use stealtime_hypervisor::scx::{Answers, Receiver, Wanted};

const NEVER: u64 = u64::MAX;

/// Numbers of all lengths: uniform ones are nearly all long.
fn any_length() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(x, shift)| x >> shift)
}

fn lag() -> impl Strategy<Value = i64> {
    (any_length(), any::<bool>()).prop_map(|(x, negative)| {
        let size = (x >> 1) as i64;
        if negative { -size } else { size }
    })
}

/// One credit: time since the last, lag, target at or above it, weight.
fn credit() -> impl Strategy<Value = (u64, i64, i64, u64)> {
    let lags = (lag(), lag()).prop_map(|(a, b)| (a.min(b), a.max(b)));
    (any_length(), lags, any_length())
        .prop_map(|(gap, (vlag, target), weight)| (gap >> 8, vlag, target, weight))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn products_and_quotients_are_exact(a in any_length(), b in any_length(), d in any_length()) {
        let d = d.max(1);
        let exact = u128::from(a) * u128::from(b) / u128::from(d);
        prop_assert_eq!(host_mul_div(a, b, d), u64::try_from(exact).unwrap_or(u64::MAX));
        let vtime = u128::from(a) * (1 << 20) / u128::from(d);
        prop_assert_eq!(host_vtime(a, d), u64::try_from(vtime).unwrap_or(u64::MAX));
    }

    #[test]
    fn division_floors(a in lag(), b in any_length()) {
        let b = (b >> 1).max(1);
        prop_assert_eq!(host_floor_div(a, b), a.div_euclid(b as i64));
    }

    #[test]
    fn margins_are_equal(members in any_length(), margin in any_length(), bound in lag()) {
        let bound = bound.max(0);
        let expected = credit_lag(members, margin, bound).unwrap_or(-1);
        prop_assert_eq!(host_credit_lag(members, margin, bound), expected);
    }

    #[test]
    fn shifts_are_equal(a in lag(), b in lag(), weight in any_length(), total in any_length()) {
        let expected = credit_shift(a, b, weight, total).unwrap_or(0);
        prop_assert_eq!(host_credit_shift(a, b, weight, total), expected);
    }

    #[test]
    fn guards_grant_the_same_credits(
        per_mille in 1..=1_000_u32,
        burst_ns in any_length(),
        credits in prop::collection::vec(credit(), 1..40),
    ) {
        let guard = Guard { per_mille, burst_ns };
        let (mut ours, mut theirs) = (Tokens::default(), HostTokens { ns: 0, filled_ns: NEVER });
        let mut now_ns = 0_u64;
        for (gap, vlag, target, weight) in credits {
            now_ns = now_ns.saturating_add(gap).min(NEVER - 1);
            let expected = ours.spend(guard, now_ns, CreditRequest { vlag, target, weight });
            let reached = host_spend(
                &mut theirs, u64::from(per_mille), burst_ns, now_ns, vlag, target, weight,
            );
            prop_assert_eq!(reached, expected.unwrap_or(-1));
            prop_assert_eq!(theirs.ns, ours.left_ns());
        }
    }

    #[test]
    fn wanted_tasks_are_the_same_words(
        thread in 1..1_u32 << 22,
        lender in 0..1_u32 << 22,
        slice_us in any_length(),
        is_timed in any::<bool>(),
    ) {
        let word = Wanted { thread, lender, slice_us, is_timed }.to_word();
        prop_assert_eq!(host_want(thread, lender, slice_us, is_timed), word);
        let wanted = Wanted::from_word(word).unwrap();
        prop_assert_eq!(host_want_tid(word), wanted.thread);
        prop_assert_eq!(host_want_lender(word), wanted.lender);
        prop_assert_eq!(host_want_slice_us(word), wanted.slice_us);
    }

    #[test]
    fn limits_are_equal(
        last in proptest::option::of(any_length()),
        gap in any_length(),
        interval in any_length(),
    ) {
        let now = last.unwrap_or(0).saturating_add(gap).min(NEVER - 1);
        prop_assume!(last.is_none_or(|last| last <= now));
        prop_assert_eq!(host_is_due(last.unwrap_or(NEVER), interval, now), is_due(last, interval, now));
    }

    /// Four vCPUs send to others, answer and ask in any order.
    #[test]
    fn tracking_is_equal(steps in prop::collection::vec(
        (any::<bool>(), 0..4_usize, 0..16_u32, 14..20_u8, 0..60_000_000_u64), 1..200,
    )) {
        let contexts = [(); 4].map(|()| Answers::<AtomicU64>::new());
        let mut words = [HostAnswers::default(); 4];
        let window_ns = IpiKnobs::default().ipi_window_ns;
        let mut now_ns = 1_u64 << 23;
        for (ends, vcpu, others, vector, gap) in steps {
            now_ns += gap >> (vector % 4 * 6);
            let receivers = (0..4).filter(|other| others >> other & 1 != 0 && *other != vcpu);
            if ends {
                let received = words[vcpu].received;
                let expected = Answers::eoi(&contexts, vcpu as u32, vector);
                let source = &mut words[host_sender(received) as usize];
                let due = host_eoi(source, received, u32::from(vector));
                prop_assert_eq!(due != 0, expected.is_some());
                if let Some(answered) = expected {
                    prop_assert_eq!(answered.sender, host_sender(received));
                    prop_assert_eq!(answered.is_last, due as u32 == 0);
                }
            } else if vector >= 16 {
                contexts[vcpu].send(now_ns);
                host_send(&mut words[vcpu], now_ns);
                for (index, other) in receivers.enumerate() {
                    let receiver = Receiver { vcpu: other as u32, index, vector };
                    contexts[vcpu].accept(vcpu as u32, &contexts[other], receiver);
                    let [source, target] = words.get_disjoint_mut([vcpu, other]).unwrap();
                    let (from, to) = (vcpu as u32, other as u32);
                    host_accept(source, from, target, to, index as u32, u32::from(vector));
                }
            }
            for (context, word) in contexts.iter().zip(&words) {
                let due = host_due(word, window_ns, now_ns);
                let receivers = (0..32).filter(|index| due >> index & 1 != 0);
                let receivers = receivers.map(|index| word.receivers[index] as u32);
                prop_assert!(context.due(window_ns, now_ns).eq(receivers));
            }
        }
    }
}

/// The default guard of the scheduler is [`LagCredit::GUARDED`].
#[test]
fn defaults_are_those_of_the_crate() {
    let Some(Guard {
        per_mille,
        burst_ns,
    }) = LagCredit::GUARDED.guard
    else {
        panic!("the guarded credit has a guard")
    };
    let state = include_str!("../../bpf/state.h");
    for line in [
        format!("const volatile u64 guard_per_mille = {per_mille};"),
        format!("const volatile u64 guard_burst_ns = {burst_ns};"),
        "const volatile u64 margin_ns = 50000;".to_owned(),
        "const volatile u64 force_interval_ns = 6000000;".to_owned(),
        format!(
            "const volatile u64 ipi_window_ns = {};",
            IpiKnobs::default().ipi_window_ns
        ),
    ] {
        assert!(state.contains(&line), "{line}");
    }
}

/// Vectors that both sides must reach whatever becomes of either: worked by hand.
#[test]
fn golden_vectors() {
    // Three tasks, 50 us each; a bound below it.
    assert_eq!(host_credit_lag(3, 50_000, 5_400_000), 100_000);
    assert_eq!(host_credit_lag(100, 50_000, 4_000_000), 4_000_000);
    assert_eq!(host_credit_lag(1, 50_000, 4_000_000), -1);
    // Of three equal tasks one moves by 3/2 of what its lag gains.
    assert_eq!(
        host_credit_shift(-1_000_000, 100_000, 1 << 20, 3 << 20),
        1_650_000
    );
    let mut tokens = HostTokens {
        ns: 0,
        filled_ns: NEVER,
    };
    // A full bucket of 20 ms pays 1.1 ms; an eighth of 8 ms comes back.
    assert_eq!(
        host_spend(
            &mut tokens,
            125,
            20_000_000,
            0,
            -1_000_000,
            100_000,
            1 << 20
        ),
        100_000
    );
    assert_eq!(tokens.ns, 18_900_000);
    assert_eq!(
        host_spend(&mut tokens, 125, 20_000_000, 8_000_000, -1, 0, 1 << 20),
        0
    );
    assert_eq!(tokens.ns, 19_899_999);
}
