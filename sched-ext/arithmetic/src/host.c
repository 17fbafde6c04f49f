/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* The arithmetic of bpf/credit.h and bpf/track.h, compiled for the host. */
#include "track.h"

u64 host_mul_div(u64 a, u64 b, u64 d)
{
	return st_mul_div(a, b, d);
}

u64 host_vtime(u64 ns, u64 weight)
{
	return st_vtime(ns, weight);
}

s64 host_floor_div(s64 a, u64 b)
{
	return st_floor_div(a, b);
}

s64 host_credit_lag(u64 members, u64 margin_ns, s64 bound)
{
	return st_credit_lag(members, margin_ns, bound);
}

u64 host_credit_shift(s64 lag, s64 target, u64 weight, u64 total)
{
	return st_credit_shift(lag, target, weight, total);
}

s64 host_spend(struct st_tokens *tokens, u64 per_mille, u64 burst_ns, u64 now_ns, s64 vlag, s64 target,
	       u64 weight)
{
	return st_tokens_spend(tokens, per_mille, burst_ns, now_ns, vlag, target, weight);
}

u64 host_want(u32 tid, u32 lender, u64 slice_us, bool timed)
{
	return st_want(tid, lender, slice_us, timed);
}

u32 host_want_tid(u64 want)
{
	return st_want_tid(want);
}

u32 host_want_lender(u64 want)
{
	return st_want_lender(want);
}

u64 host_want_slice_us(u64 want)
{
	return st_want_slice_us(want);
}

bool host_is_due(u64 last_ns, u64 interval_ns, u64 now_ns)
{
	return st_is_due(last_ns, interval_ns, now_ns);
}

void host_send(struct st_answers *source, u64 now_ns)
{
	st_answers_send(source, now_ns);
}

void host_accept(struct st_answers *source, u32 from, struct st_answers *target, u32 to, u32 index, u32 vector)
{
	st_answers_accept(source, from, target, to, index, vector);
}

u64 host_due(const struct st_answers *source, u64 window_ns, u64 now_ns)
{
	return st_answers_due(source, window_ns, now_ns);
}

u32 host_sender(u64 received)
{
	return st_answers_sender(received);
}

u64 host_eoi(struct st_answers *source, u64 received, u32 vector)
{
	return st_answers_eoi(source, received, vector);
}
