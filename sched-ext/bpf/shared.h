/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What the BPF program and the user side both know. src/bpf.rs mirrors the order of the counters. */
#ifndef STEALTIME_SHARED_H
#define STEALTIME_SHARED_H

#define MAX_CPUS 1024
#define MAX_DOMAINS 64
#define MAX_GROUPS 4096
#define MAX_VCPUS 8192
#define MAX_DEPTH 16
#define WAIT_BUCKETS 24

enum counter {
	YIELD_UNDIRECTED,	/* sched_yield without a target */
	YIELD_DIRECTED,		/* calls that name a target */
	YIELD_RECEIVER,		/* served: the confirmed receiver of the yielder's IPI */
	YIELD_PENDING,		/* served: a vCPU with a pending interrupt */
	YIELD_NOMINEE,		/* served: the vCPU that KVM nominates */
	REFUSED_BY_MODE,	/* every yield is refused by option */
	REFUSED_RECEIVER_RUNS,	/* the receiver runs, and the yielder spins on */
	REFUSED_ANSWERED,	/* the yielder has hardly run since the receivers answered */
	REFUSED_GUARD,		/* nothing to lend, or the guard's tokens are spent */
	REFUSED_PINNED,		/* both vCPUs are pinned to CPUs of their own */
	REFUSED_NOT_QUEUED,	/* the target waits in no queue */
	PAUSE_RECEIVER,		/* served without a yield: KVM nominates no vCPU at a PAUSE exit */
	REDIRECTED,		/* the receiver is not the vCPU that KVM nominates */
	KICKED_REMOTE,		/* the target waits on another CPU, which is interrupted */
	KICK_LIMITED,		/* not interrupted: the limit on forced reschedules */
	CREDITS,		/* credits paid */
	CREDIT_NS,		/* service that credits moved, at nice 0 */
	LOANS,			/* slices lent to a target */
	LOANS_RETURNED,		/* ended by the receiver's EOI */
	LOANS_EXPIRED,		/* ended by their timer */
	HANDED_OVER,		/* requests given to a target */
	LENT_NS,		/* time that targets ran at the lender's cost */
	WANT_PICKED,		/* the wanted vCPU ran next */
	WANT_MISSED,		/* it had left the queue, or is not due */
	IPIS_TRACKED,		/* IPIs of a vCPU to others */
	IPIS_BROADCAST,		/* of them, those that a second vCPU accepted */
	IPIS_SETTLED,		/* IPIs that all receivers have answered, by an EOI of their vector */
	VCPUS_FULL,		/* vCPUs beyond the table: not tracked */
	GROUPS_FULL,		/* cgroups beyond the table: counted with their parent */
	PICKED_ELIGIBLE,	/* picks by deadline among eligible tasks */
	PICKED_HEAD,		/* picks without an eligible task at the head of the queue */
	KEPT,			/* the running task continues: eligible, and its deadline is earlier */
	STOLEN,			/* picks from another cache domain */
	WAKE_PREEMPTED,		/* a woken task interrupts one with a later deadline */
	RECEIVER_RUNS,		/* served: another vCPU, because the receiver runs */
	YIELD_TO_RUN_NS,	/* time from yields until their targets ran */
	COUNTERS
};

/* Options of the user side. */
enum { YIELD_REFUSE, YIELD_TAKE_NOMINEE, YIELD_TAKE_RECEIVER };

#endif
