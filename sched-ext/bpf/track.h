/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * IPI tracking: the vCPU that a spinning vCPU probably waits for.
 *
 * The words and rules of the crate stealtime-hypervisor (ipi_tracking::settle: an EOI clears only the record of
 * its vector, as in version 3 of the series). sched-ext/arithmetic compares them to the bit.
 *
 * `outgoing` packs receiver (bits 0-23), vector (24-31), pending (32), and the low 24 bits of the
 * time (40-63), by which a reader detects a half-written pair.
 */
#ifndef STEALTIME_TRACK_H
#define STEALTIME_TRACK_H

#include "credit.h"

#define ST_NO_VCPU ((1ULL << 24) - 1)
#define ST_VECTOR_SHIFT 24
#define ST_PENDING (1ULL << 32)
#define ST_TAG_SHIFT 40
#define ST_TAG_MASK ((1ULL << 24) - 1)
/* Intel SDM vol. 3, "Valid Interrupt Vectors". */
#define ST_FIRST_LEGAL_VECTOR 16

struct st_ipi {
	u64 outgoing;
	u64 time_ns;
	u64 sender;
};

#define ST_LOAD(x) (*(volatile __typeof__(x) *)&(x))
#define ST_STORE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))

ST_INLINE void st_ipi_reset(struct st_ipi *ipi)
{
	ST_STORE(ipi->outgoing, ST_NO_VCPU);
	ST_STORE(ipi->sender, ST_NO_VCPU);
	ST_STORE(ipi->time_ns, 0);
}

/* `from` has sent `vector` to `to` alone. */
ST_INLINE void st_ipi_record(struct st_ipi *source, u32 from, struct st_ipi *target, u32 to,
			     u32 vector, u64 now_ns)
{
	ST_STORE(source->time_ns, now_ns);
	ST_STORE(source->outgoing, (to & ST_NO_VCPU) | ST_PENDING |
					   (u64)(vector & 0xff) << ST_VECTOR_SHIFT |
					   (now_ns & ST_TAG_MASK) << ST_TAG_SHIFT);
	ST_STORE(target->sender, from & ST_NO_VCPU);
}

/* The receiver that `ipi`'s owner waits for, or ST_NO_VCPU. A time of the future is stale. */
ST_INLINE u32 st_ipi_awaited(const struct st_ipi *ipi, u64 window_ns, u64 now_ns)
{
	u64 outgoing = ST_LOAD(ipi->outgoing), time_ns = ST_LOAD(ipi->time_ns);

	if (!(outgoing & ST_PENDING) || outgoing >> ST_TAG_SHIFT != (time_ns & ST_TAG_MASK))
		return ST_NO_VCPU;
	if (now_ns - time_ns > window_ns)
		return ST_NO_VCPU;
	return outgoing & ST_NO_VCPU;
}

/* The sender that the EOI of `vector` at `me` may settle, or ST_NO_VCPU. */
ST_INLINE u32 st_ipi_sender(const struct st_ipi *ipi)
{
	return ST_LOAD(ipi->sender) & ST_NO_VCPU;
}

/*
 * EOI of `vector` at `me`, whose last sender has `source`: true if it settles that record. The sender's name stays,
 * as in ipi_tracking::settle: it may be that of a further IPI.
 */
ST_INLINE bool st_ipi_eoi(struct st_ipi *source, u32 me, u32 vector)
{
	u64 outgoing = ST_LOAD(source->outgoing);

	if (!(outgoing & ST_PENDING) || (outgoing & ST_NO_VCPU) != me ||
	    (outgoing >> ST_VECTOR_SHIFT & 0xff) != vector)
		return false;
	/* A concurrent newer record stays. */
	return __sync_val_compare_and_swap(&source->outgoing, outgoing, outgoing & ~ST_PENDING) == outgoing;
}

/*
 * The task that a CPU is to run next: its thread (bits 0-21), the thread that pays for it (22-43, 0: itself), its
 * slice in us (44-62, 0: the slice that it has), and whether a timer ends the loan (63). One word, because a yield
 * writes it under the run queue's lock, and a returned loan without (scx::Wanted of stealtime-hypervisor).
 */
#define ST_TID_BITS 22
#define ST_TID_MASK ((1ULL << ST_TID_BITS) - 1)
#define ST_SLICE_SHIFT (2 * ST_TID_BITS)
#define ST_SLICE_MASK ((1ULL << 19) - 1)
#define ST_TIMED (1ULL << 63)

ST_INLINE u64 st_want(u32 tid, u32 lender, u64 slice_us, bool timed)
{
	return (tid & ST_TID_MASK) | (lender & ST_TID_MASK) << ST_TID_BITS |
	       st_min(slice_us, ST_SLICE_MASK) << ST_SLICE_SHIFT | (timed ? ST_TIMED : 0);
}

ST_INLINE u32 st_want_tid(u64 want)
{
	return want & ST_TID_MASK;
}

ST_INLINE u32 st_want_lender(u64 want)
{
	return want >> ST_TID_BITS & ST_TID_MASK;
}

ST_INLINE u64 st_want_slice_us(u64 want)
{
	return want >> ST_SLICE_SHIFT & ST_SLICE_MASK;
}

#endif
