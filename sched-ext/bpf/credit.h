/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Lag credit and virtual time: arithmetic without kernel types.
 *
 * The BPF program and a host library compile the same text. Each function has a twin in the crate
 * stealtime-hypervisor (lag_credit::arithmetic); sched-ext/arithmetic compares them to the bit.
 *
 * BPF has neither 128-bit products nor signed division: both are written out here.
 */
#ifndef STEALTIME_CREDIT_H
#define STEALTIME_CREDIT_H

#ifndef __bpf__
#include <stdbool.h>
#include <stdint.h>
typedef uint64_t u64;
typedef int64_t s64;
typedef uint32_t u32;
#define ST_INLINE static inline
#define ST_FUNCTION static inline
#else
#define ST_INLINE static __always_inline
/*
 * The verifier checks such a function by itself. In a loop, 6.18 refuses one that is called on some paths alone
 * ("global subprog unexpected regs"): each branch of a calculation is within the function.
 */
#define ST_FUNCTION __noinline
#endif

#define ST_NICE_0_SHIFT 20
#define ST_NICE_0_LOAD (1ULL << ST_NICE_0_SHIFT)
#define ST_U64_MAX (~0ULL)
#define ST_S64_MAX ((s64)(ST_U64_MAX >> 1))
#define ST_S64_MIN (-ST_S64_MAX - 1)
/* Time of the last fill before the first credit, which finds a full bucket. */
#define ST_NEVER ST_U64_MAX

struct st_u128 {
	u64 hi;
	u64 lo;
};

ST_INLINE struct st_u128 st_mul(u64 a, u64 b)
{
	u64 al = (u32)a, ah = a >> 32, bl = (u32)b, bh = b >> 32;
	u64 low = al * bl, mid = ah * bl + (low >> 32), cross = al * bh + (u32)mid;
	struct st_u128 product = {
		.hi = ah * bh + (mid >> 32) + (cross >> 32),
		.lo = cross << 32 | (u32)low,
	};
	return product;
}

/* floor((hi:lo) / d), at most U64_MAX; d is not 0. Long division: 64 steps at most. */
ST_FUNCTION u64 st_div_slow(u64 hi, u64 lo, u64 d)
{
	u64 rest = hi;
	int bit;

	if (!d || hi >= d)
		return ST_U64_MAX;
	for (bit = 0; bit < 64; bit++) {
		u64 carry = rest >> 63;

		rest = rest << 1 | lo >> 63;
		lo <<= 1;
		if (carry || rest >= d) {
			rest -= d;
			lo |= 1;
		}
	}
	return lo;
}

/* floor(a * b / d), at most U64_MAX; d is not 0. */
ST_FUNCTION u64 st_mul_div(u64 a, u64 b, u64 d)
{
	struct st_u128 product;

	/* Nearly always: short times, and weights. */
	if (!((a | b) >> 32))
		return d ? a * b / d : ST_U64_MAX;
	product = st_mul(a, b);
	if (!product.hi)
		return d ? product.lo / d : ST_U64_MAX;
	return st_div_slow(product.hi, product.lo, d);
}

ST_INLINE u64 st_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

ST_INLINE u64 st_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

/* calc_delta_fair: virtual time of `ns` at `weight`. */
ST_FUNCTION u64 st_vtime(u64 ns, u64 weight)
{
	if (weight == ST_NICE_0_LOAD)
		return ns;
	return st_mul_div(ns, ST_NICE_0_LOAD, weight);
}

/* The inverse: service in ns of a virtual time at `weight`, floored. */
ST_INLINE u64 st_service(u64 vtime, u64 weight)
{
	return st_mul_div(vtime, weight, ST_NICE_0_LOAD);
}

/* floor(a / b) for b > 0. */
ST_INLINE s64 st_floor_div(s64 a, u64 b)
{
	u64 size = a < 0 ? -(u64)a : (u64)a, quotient;

	if (!b)
		return 0;
	/* Most distances are shorter than a division takes. */
	quotient = size < b ? 0 : size / b;
	if (a >= 0)
		return (s64)quotient;
	return -(s64)(quotient + (size != quotient * b));
}

/* Largest lag of an entity, in virtual ns (the bound in entity_lag). */
ST_INLINE s64 st_lag_bound(u64 longest_slice_ns, u64 tick_ns, u64 weight)
{
	return (s64)st_min(st_vtime(longest_slice_ns + tick_ns, weight), ST_S64_MAX);
}

/* Lag after a credit: margin * (n - 1), within `bound`; -1 for the only member. */
ST_INLINE s64 st_credit_lag(u64 members, u64 margin_ns, s64 bound)
{
	struct st_u128 margin;

	if (members <= 1)
		return -1;
	margin = st_mul(margin_ns, members - 1);
	if (margin.hi || margin.lo > (u64)ST_S64_MAX)
		return bound;
	return (s64)margin.lo < bound ? (s64)margin.lo : bound;
}

/*
 * Distance by which a member of weight `weight` moves back for its lag to rise from `lag` to
 * `target`, in a queue of weight `total`: the average moves with it. 0 without other members.
 */
ST_INLINE u64 st_credit_shift(s64 lag, s64 target, u64 weight, u64 total)
{
	if (total <= weight || target <= lag)
		return 0;
	return st_min(st_mul_div((u64)target - (u64)lag, total, total - weight), ST_S64_MAX);
}

/* The guard: a token bucket of service in ns at nice 0. */
struct st_tokens {
	u64 ns;
	u64 filled_ns;
};

ST_INLINE void st_tokens_fill(struct st_tokens *tokens, u64 per_mille, u64 burst_ns, u64 now_ns)
{
	if (tokens->filled_ns == ST_NEVER) {
		tokens->ns = burst_ns;
	} else {
		u64 earned = st_mul_div(now_ns - tokens->filled_ns, per_mille, 1000);
		u64 sum = tokens->ns + earned;

		tokens->ns = st_min(sum < earned ? ST_U64_MAX : sum, burst_ns);
	}
	tokens->filled_ns = now_ns;
}

/*
 * Pays for a credit from `vlag` to `target` (not below vlag). Returns the lag that is reached, or
 * -1, and nothing is paid, if the tokens do not make the entity eligible.
 */
ST_INLINE s64 st_tokens_spend(struct st_tokens *tokens, u64 per_mille, u64 burst_ns, u64 now_ns,
			      s64 vlag, s64 target, u64 weight)
{
	u64 wanted = (u64)target - (u64)vlag, gain, cost;
	struct st_u128 service;
	s64 reached;

	st_tokens_fill(tokens, per_mille, burst_ns, now_ns);
	weight = st_max(weight, 1);
	gain = st_min(wanted, st_mul_div(tokens->ns, ST_NICE_0_LOAD, weight));
	reached = (s64)((u64)vlag + gain);
	if (reached < 0)
		return -1;
	/* Rounded up, so that many small credits are not free. */
	service = st_mul(gain, weight);
	service.lo += ST_NICE_0_LOAD - 1;
	if (service.lo < ST_NICE_0_LOAD - 1)
		service.hi++;
	if (service.hi >> ST_NICE_0_SHIFT)
		cost = ST_U64_MAX;
	else
		cost = service.hi << (64 - ST_NICE_0_SHIFT) | service.lo >> ST_NICE_0_SHIFT;
	tokens->ns -= st_min(cost, tokens->ns);
	return reached;
}

/* Whether a limit of once per `interval_ns` allows another; `last_ns` is ST_NEVER at first. */
ST_INLINE bool st_is_due(u64 last_ns, u64 interval_ns, u64 now_ns)
{
	return last_ns == ST_NEVER || now_ns - last_ns >= interval_ns;
}

#endif
