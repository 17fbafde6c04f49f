//! The arithmetic of the BPF program (`sched-ext/bpf/credit.h`, `track.h`), compiled for the host.
//!
//! Its tests compare it with `stealtime-hypervisor` bit by bit. They need a C compiler, and neither clang
//! nor libbpf.
#![allow(
    missing_docs,
    reason = "the declarations are those of host.c, and the headers explain them"
)]

/// `struct st_tokens`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostTokens {
    pub ns: u64,
    pub filled_ns: u64,
}

/// `struct st_answers`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HostAnswers {
    pub due: u64,
    pub time_ns: u64,
    pub received: u64,
    pub receivers: [u64; 32],
}

// SAFETY: the declarations are those of `host.c`.
unsafe extern "C" {
    pub safe fn host_mul_div(a: u64, b: u64, d: u64) -> u64;
    pub safe fn host_vtime(ns: u64, weight: u64) -> u64;
    pub safe fn host_floor_div(a: i64, b: u64) -> i64;
    pub safe fn host_credit_lag(members: u64, margin_ns: u64, bound: i64) -> i64;
    pub safe fn host_credit_shift(lag: i64, target: i64, weight: u64, total: u64) -> u64;
    pub safe fn host_spend(
        tokens: &mut HostTokens,
        per_mille: u64,
        burst_ns: u64,
        now_ns: u64,
        vlag: i64,
        target: i64,
        weight: u64,
    ) -> i64;
    pub safe fn host_want(tid: u32, lender: u32, slice_us: u64, timed: bool) -> u64;
    pub safe fn host_want_tid(want: u64) -> u32;
    pub safe fn host_want_lender(want: u64) -> u32;
    pub safe fn host_want_slice_us(want: u64) -> u64;
    pub safe fn host_is_due(last_ns: u64, interval_ns: u64, now_ns: u64) -> bool;
    pub safe fn host_send(source: &mut HostAnswers, now_ns: u64);
    pub safe fn host_accept(
        source: &mut HostAnswers,
        from: u32,
        target: &mut HostAnswers,
        to: u32,
        index: u32,
        vector: u32,
    );
    pub safe fn host_due(source: &HostAnswers, window_ns: u64, now_ns: u64) -> u64;
    pub safe fn host_sender(received: u64) -> u32;
    pub safe fn host_eoi(source: &mut HostAnswers, received: u64, vector: u32) -> u64;
}
