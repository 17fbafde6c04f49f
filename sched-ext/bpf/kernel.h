/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel's types and functions that the scheduler uses, as far as it uses them. Offsets are
 * relocated at load (CO-RE), so no vmlinux.h is needed.
 *
 * Differences between kernels 6.12 and 7.3 are handled at the end of this file, each in one place.
 */
#ifndef STEALTIME_KERNEL_H
#define STEALTIME_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
/* Names of the same types in libbpf's headers. */
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef short __s16;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_F_NO_PREALLOC = 1, BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };

struct bpf_spin_lock {
	u32 val;
};
struct bpf_timer {
	u64 opaque[2];
} __attribute__((aligned(8)));

/* include/uapi/linux/kvm_para.h */
#define KVM_HC_SEND_IPI 10

#define CORE __attribute__((preserve_access_index))

struct cpumask {
	unsigned long bits[1];
};
/*
 * clang reduces a struct that it meets first behind a member's pointer to a forward declaration,
 * and then libbpf refuses functions that take it. A typedef keeps the two pointers apart.
 */
typedef struct cpumask cpumask_t;
struct kernfs_node {
	u64 id;
} CORE;
struct cgroup {
	struct kernfs_node *kn;
	s32 level;
} CORE;
struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
	u64 dsq_vtime;
} CORE;
struct sched_entity {
	u64 exec_start;
} CORE;
struct task_struct {
	u32 flags;
	s32 pid;
	s32 tgid;
	s32 nr_cpus_allowed;
	const cpumask_t *cpus_ptr;
	struct sched_entity se;
	struct sched_ext_entity scx;
	char comm[16];
} CORE;
struct kvm_vcpu {
	s32 vcpu_id;
} CORE;
struct kvm_lapic;

struct bpf_iter_num {
	u64 opaque[1];
} __attribute__((aligned(8)));
struct bpf_iter_scx_dsq {
	u64 opaque[6];
} __attribute__((aligned(8)));

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
} CORE;
struct scx_exit_task_args;
struct scx_cgroup_init_args {
	u32 weight;
	u64 bw_period_us;
	u64 bw_quota_us;
} CORE;
enum scx_exit_kind { SCX_EXIT_NONE };
struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
} CORE;

/* libbpf matches members by name; what this kernel lacks must be 0. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	void (*set_weight)(struct task_struct *p, u32 weight);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	s32 (*cgroup_init)(struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgrp);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_weight)(struct cgroup *cgrp, u32 weight);
	void (*cgroup_set_bandwidth)(struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	u64 hotplug_seq;
	char name[128];
};

#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_ENQ_HEAD (1ULL << 16)
#define SCX_ENQ_PREEMPT (1ULL << 32)
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL
#define SCX_TASK_QUEUED 1
#define BPF_F_TIMER_CPU_PIN (1ULL << 1)
#define PF_EXITING 0x4
#define PF_KTHREAD 0x00200000

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/*
 * A kfunc's bool is in bits 7:0 of its register, with anything above (System V ABI, AAPCS64). clang takes the whole
 * register of a bool for BPF: these kfuncs return u64.
 */
static __always_inline bool is_true(u64 result)
{
	return result & 0xff;
}

s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed, u64 flags) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
u64 scx_bpf_task_running(const struct task_struct *p) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
void scx_bpf_error_bstr(char *fmt, unsigned long long *data, u32 data__sz) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym __weak;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym __weak;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym __weak;
struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
void bpf_task_release(struct task_struct *p) __ksym;
struct cgroup *bpf_cgroup_ancestor(struct cgroup *cgrp, int level) __ksym;
void bpf_cgroup_release(struct cgroup *cgrp) __ksym;
u64 bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
void bpf_rcu_read_lock(void) __ksym;
void bpf_rcu_read_unlock(void) __ksym;

#define BPF_STRUCT_OPS(name, args...) SEC("struct_ops/" #name) BPF_PROG(name, ##args)
#define BPF_STRUCT_OPS_SLEEPABLE(name, args...) SEC("struct_ops.s/" #name) BPF_PROG(name, ##args)

static __always_inline bool may_run(const struct task_struct *p, u32 cpu)
{
	return is_true(bpf_cpumask_test_cpu(cpu, p->cpus_ptr));
}

static __always_inline bool is_running(const struct task_struct *p)
{
	return is_true(scx_bpf_task_running(p));
}

/* 6.13 renamed dispatch to insert and consume to move_to_local. */
void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym __weak;
void scx_bpf_dispatch(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym __weak;
void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime,
			      u64 enq_flags) __ksym __weak;
void scx_bpf_dispatch_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime,
			    u64 enq_flags) __ksym __weak;
u64 scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym __weak;
u64 scx_bpf_consume(u64 dsq_id) __ksym __weak;
void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it__iter, u64 slice) __ksym __weak;
void scx_bpf_dispatch_from_dsq_set_slice(struct bpf_iter_scx_dsq *it__iter, u64 slice) __ksym __weak;
u64 scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id,
		     u64 enq_flags) __ksym __weak;
u64 scx_bpf_dispatch_from_dsq(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id,
			      u64 enq_flags) __ksym __weak;

static __always_inline void insert_local(struct task_struct *p, u64 slice, u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert))
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice, flags);
	else
		scx_bpf_dispatch(p, SCX_DSQ_LOCAL, slice, flags);
}

static __always_inline void insert_ordered(struct task_struct *p, u64 dsq, u64 slice, u64 key, u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert_vtime))
		scx_bpf_dsq_insert_vtime(p, dsq, slice, key, flags);
	else
		scx_bpf_dispatch_vtime(p, dsq, slice, key, flags);
}

static __always_inline bool move_to_local(u64 dsq)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local))
		return is_true(scx_bpf_dsq_move_to_local(dsq));
	return is_true(scx_bpf_consume(dsq));
}

static __always_inline bool move_task(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 slice,
				      u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move)) {
		if (slice)
			scx_bpf_dsq_move_set_slice(it, slice);
		return is_true(scx_bpf_dsq_move(it, p, SCX_DSQ_LOCAL, flags));
	}
	if (slice)
		scx_bpf_dispatch_from_dsq_set_slice(it, slice);
	return is_true(scx_bpf_dispatch_from_dsq(it, p, SCX_DSQ_LOCAL, flags));
}

/* 6.19 added a function that sets a task's slice; earlier kernels let programs write the field. */
u64 scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym __weak;

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice);
	else
		p->scx.slice = slice;
}

/* 6.14 caches the time of the run queue's clock. */
u64 scx_bpf_now(void) __ksym __weak;

static __always_inline u64 clock_ns(void)
{
	if (bpf_ksym_exists(scx_bpf_now))
		return scx_bpf_now();
	return bpf_ktime_get_ns();
}

#endif
