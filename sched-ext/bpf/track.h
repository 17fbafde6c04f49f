/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * The vCPUs that a spinning vCPU probably waits for, and the task that a CPU is to run next.
 *
 * The words and rules are those of the crate stealtime-hypervisor (scx::Answers, scx::Wanted).
 * sched-ext/arithmetic compares them to the bit.
 */
#ifndef STEALTIME_TRACK_H
#define STEALTIME_TRACK_H

#include "credit.h"

#define ST_VCPU_MASK ((1ULL << 24) - 1)
/* Intel SDM vol. 3, "Valid Interrupt Vectors". */
#define ST_FIRST_LEGAL_VECTOR 16
/* Receivers of one IPI that have a bit. */
#define ST_RECEIVERS 32
#define ST_DUE_MASK ((1ULL << ST_RECEIVERS) - 1)
/* Of `due` and `received`: number of the IPI. */
#define ST_IPI_SHIFT 40
/* Of `received`. */
#define ST_INDEX_SHIFT 24
#define ST_VECTOR_SHIFT 32

/*
 * A vCPU's last IPI, and the last one that it received.
 *
 * `due` has a bit for each receiver without an answer (0-31), and the number of the IPI (40-63). `received` has the
 * sender (0-23), the index among its receivers (24-31), the vector (32-39), and that number (40-63).
 */
struct st_answers {
	u64 due;
	u64 time_ns;
	u64 received;
	u64 receivers[ST_RECEIVERS];
};

#define ST_LOAD(x) (*(volatile __typeof__(x) *)&(x))
#define ST_STORE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))

ST_INLINE void st_answers_reset(struct st_answers *answers)
{
	ST_STORE(answers->due, 0);
	ST_STORE(answers->received, 0);
	ST_STORE(answers->time_ns, 0);
}

/* An IPI begins: no answer to the one before is due. */
ST_INLINE void st_answers_send(struct st_answers *source, u64 now_ns)
{
	ST_STORE(source->time_ns, now_ns);
	ST_STORE(source->due, ((source->due >> ST_IPI_SHIFT) + 1) << ST_IPI_SHIFT);
}

/* `to` accepts the IPI of `from`, as its receiver of number `index`. */
ST_INLINE void st_answers_accept(struct st_answers *source, u32 from, struct st_answers *target, u32 to,
				 u64 index, u32 vector)
{
	if (index >= ST_RECEIVERS)
		return;
	ST_STORE(source->receivers[index], to);
	ST_STORE(target->received, (from & ST_VCPU_MASK) | index << ST_INDEX_SHIFT |
					   (u64)(vector & 0xff) << ST_VECTOR_SHIFT |
					   source->due >> ST_IPI_SHIFT << ST_IPI_SHIFT);
	__sync_fetch_and_or(&source->due, 1ULL << index);
}

/* Whether the last IPI is recent. A time of the future is too old. */
ST_INLINE bool st_answers_has_sent(const struct st_answers *source, u64 window_ns, u64 now_ns)
{
	return now_ns - source->time_ns <= window_ns;
}

/* Receivers without an answer, by index. */
ST_INLINE u64 st_answers_due(const struct st_answers *source, u64 window_ns, u64 now_ns)
{
	return st_answers_has_sent(source, window_ns, now_ns) ? ST_LOAD(source->due) & ST_DUE_MASK : 0;
}

ST_INLINE u32 st_answers_sender(u64 received)
{
	return received & ST_VCPU_MASK;
}

/*
 * EOI of `vector` at a vCPU that last `received` an IPI of `source`: the answers that are due without this one, with
 * the number of the IPI, or 0 if `source` waits for no such answer.
 */
ST_INLINE u64 st_answers_eoi(struct st_answers *source, u64 received, u32 vector)
{
	u64 bit = 1ULL << (received >> ST_INDEX_SHIFT & (ST_RECEIVERS - 1)), due = ST_LOAD(source->due), found;
	int tries;

	if ((received >> ST_VECTOR_SHIFT & 0xff) != vector || received >> ST_IPI_SHIFT != due >> ST_IPI_SHIFT)
		return 0;
	/* Each failure is another receiver's answer, or a further receiver. */
	for (tries = 0; tries < 2 * ST_RECEIVERS; tries++) {
		if (!(due & bit))
			return 0;
		found = __sync_val_compare_and_swap(&source->due, due, due & ~bit);
		if (found == due)
			return due & ~bit;
		/* A newer IPI is not answered. */
		if (found >> ST_IPI_SHIFT != due >> ST_IPI_SHIFT)
			return 0;
		due = found;
	}
	return 0;
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
