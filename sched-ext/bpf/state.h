/* SPDX-License-Identifier: GPL-2.0 */
/* Maps, options and counters. */
#ifndef STEALTIME_STATE_H
#define STEALTIME_STATE_H

/* Options that the user side may change while the scheduler runs. */
volatile u32 yield_mode SEC(".data") = YIELD_TAKE_RECEIVER;
volatile u64 spin_ns SEC(".data") = 50000;
/* Options; times in ns. */
const volatile bool lend = true;
const volatile bool credit = true;
const volatile u64 slice_ns = 1400000;
const volatile u64 tick_ns = 4000000;
const volatile u64 margin_ns = 50000;
/* 0: no guard, as in the series. */
const volatile u64 guard_per_mille = 125;
const volatile u64 guard_burst_ns = 20000000;
const volatile u64 force_interval_ns = 6000000;
const volatile u64 loan_max_ns = 200000;
const volatile u64 answer_ns = 50000;
const volatile u64 ipi_window_ns = 50000000;
const volatile u64 watchdog_ns = 1000000000;
const volatile u32 domains = 1;
/* SCX_ENQ_CPU_SELECTED of this kernel: it has looked for an idle CPU. 0: this kernel does not say so. */
const volatile u64 cpu_selected;
const volatile u8 domain_of_cpu[MAX_CPUS];
const volatile u32 cpus_of_domain[MAX_DOMAINS];

/*
 * 0, which the kernel's verifier does not know: it follows a loop that counts from here a few times. A loop that
 * counts from a constant has a state for each value, and a load takes four times as long.
 */
u32 first_count;

/* A task, or a vCPU's thread. */
struct task_ctx {
	u64 vruntime;
	u64 deadline;
	/* Lag at the last sleep, in virtual ns. */
	s64 vlag;
	/* Weight in the sums of its domain; 0: not a member. */
	u64 weight;
	u64 exec_start;
	/* Time of the entry to a shared queue; 0: in none. */
	u64 queued_ns;
	/* Time of the yield that is to run it; 0: none. */
	u64 wanted_ns;
	u32 domain;
	u32 group;
	/* The CPU that it runs on, or ran on last. */
	u32 cpu;
	/* Weight that its group counts; 0: not runnable. */
	u32 counted;
	/* Number of its vCPU in `vcpus`, + 1; 0: no vCPU. */
	u32 slot;
	/* The thread that pays for its run time; 0: itself. */
	s32 lender;
	bool placed;
	/* Run time that the lender still pays for. */
	u64 loan_ns;
	/* No EOI ends its loan: a timer does. */
	bool loan_timed;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} tasks SEC(".maps");

/* A cache domain, with one queue: the sums of EEVDF over its runnable tasks, running ones too. */
struct domain {
	struct bpf_spin_lock lock;
	u32 members;
	u64 weight;
	s64 sum;
	u64 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_DOMAINS);
	__type(key, u32);
	__type(value, struct domain);
} domain_map SEC(".maps");

/* A control group. Weights are those of cpu.weight: 100 is the default. */
struct group {
	u32 parent;
	u32 weight;
	/* Weight that the parent counts; 0 while no task below is runnable. */
	u32 counted;
	/* Runnable tasks and counted children, and the sum of their weights. */
	s32 active;
	s64 level;
	u64 id;
	u64 runtime_ns;
};

struct group groups[MAX_GROUPS];
u32 groups_used = 1;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GROUPS * 2);
	__type(key, u64);
	__type(value, u32);
} group_of_cgroup SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, MAX_GROUPS);
	__type(value, u32);
} free_groups SEC(".maps");

/* A vCPU. */
struct vcpu {
	struct st_answers answers;
	s32 tid;
	s32 tgid;
	u32 id;
	/* The delivery of an IPI: its vector, and the vCPUs that accepted it. */
	u32 icr_low;
	u32 accepted;
	bool delivers;
	/* All awaited answers have come since the last entry. */
	bool answered;
	/* It has left its guest by PAUSE, and KVM has asked for no yield since. */
	bool spins;
	/* KVM sees its EOIs: none where the hardware completes them (APICv). */
	bool shows_eoi;
	/* Paravirtual EOI: KVM sees them at a later exit. */
	bool defers_eoi;
	/* The EOI has ended its loan: its next entry gives the slice back. */
	bool returns;
	/* Time of the last answer to its last IPI that had all; 0: none. */
	u64 answered_ns;
	/* Time of the oldest interrupt without an EOI; 0: none. */
	u64 pending_ns;
};

struct vcpu vcpus[MAX_VCPUS];
u32 vcpus_used;

struct vcpu_key {
	s32 tgid;
	u32 id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_VCPUS);
	__type(key, struct vcpu_key);
	__type(value, u32);
} slot_of_vcpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, MAX_VCPUS);
	__type(value, u32);
} free_slots SEC(".maps");

#define RETURNING (-1)

/* A CPU. `want` (st_want) is written under its run queue's lock, and by tracing programs on the CPU. */
struct cpu_state {
	u64 want;
	/* Where the wanted task waits: another domain's queue has no such task. */
	u32 want_domain;
	/* The running task, if it runs on a loan; RETURNING: it gives the loan back. */
	s32 borrower;
	/* The task that spins, and KVM nominates no vCPU; 0: none. */
	s32 spinner;
	/* Deadline of the running task, and when it began. */
	u64 deadline;
	u64 since_ns;
	u64 forced_ns;
	struct st_tokens tokens;
	u64 counters[COUNTERS];
	u64 waits_us[WAIT_BUCKETS];
};

struct cpu_state cpus[MAX_CPUS];

/* Ends loans: the kernel's ticks are too coarse for them. */
struct loan_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct loan_timer);
} loan_timers SEC(".maps");

struct {
	s32 kind;
	s64 code;
	char reason[128];
	char message[512];
} exit_record;

static __always_inline struct cpu_state *cpu_at(u32 cpu)
{
	return &cpus[cpu & (MAX_CPUS - 1)];
}

static __always_inline struct cpu_state *this_cpu(void)
{
	return cpu_at(bpf_get_smp_processor_id());
}

static __always_inline void count(enum counter what, u64 n)
{
	this_cpu()->counters[what] += n;
}

static __always_inline struct task_ctx *ctx_of(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

#endif
