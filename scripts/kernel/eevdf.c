/* Run queues of the kernel's fair class, driven as kernel/sched/core.c drives it, with a clock by the caller. Compiled
 * with the kernel's headers and flags by scripts/kernel-eevdf. The functions kernel_*() are the interface of
 * crates/hypervisor/benches/eevdf/linux.rs, which brings the memory. */
#include <linux/cgroup.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include "sched.h"
#include "pelt.h"

/* One root queue for each CPU, in memory of the caller: __per_cpu_offset leads there from the first. */
DEFINE_PER_CPU_SHARED_ALIGNED(struct rq, runqueues);
unsigned long __per_cpu_offset[NR_CPUS];
/* The functions under test run with a queue's lock held, and on one CPU. */
DEFINE_PER_CPU_CACHE_HOT(int, __preempt_count) = INIT_PREEMPT_COUNT;
DEFINE_PER_CPU_CACHE_HOT(int, cpu_number);
DEFINE_PER_CPU_READ_MOSTLY(unsigned long, arch_freq_scale) = SCHED_CAPACITY_SCALE;
unsigned int nr_cpu_ids = NR_CPUS;
struct task_group root_task_group;

static struct root_domain domain;
static struct signal_struct process;
static struct cgroup root_cgroup;
static struct css_set root_set = { .dfl_cgrp = &root_cgroup };

void kernel_sizes(unsigned long *rq, unsigned long *task);
void kernel_init_queue(struct rq *rq, struct task_struct *idle, int cpu);
void kernel_fork(struct rq *rq, struct task_struct *p, int number, int nice, unsigned long weight);
void kernel_enqueue(struct rq *rq, struct task_struct *p, u64 now);
void kernel_dequeue(struct rq *rq, struct task_struct *p, u64 now);
int kernel_pick(struct rq *rq, u64 now);

unsigned long arch_scale_cpu_capacity(int cpu) { return SCHED_CAPACITY_SCALE; }

static void request(struct rq *rq, int tif)
{
	struct thread_info *thread = task_thread_info(rq->curr);

	if (!(thread->flags & ((1 << tif) | _TIF_NEED_RESCHED)))
		set_ti_thread_flag(thread, tif);
}

void resched_curr(struct rq *rq) { request(rq, TIF_NEED_RESCHED); }
void resched_curr_lazy(struct rq *rq) { request(rq, TIF_NEED_RESCHED_LAZY); }

/* update_rq_clock(), for a given time. A time of 0 means to load tracking that an entity is new. */
static __always_inline void set_clock(struct rq *rq, u64 now)
{
	s64 delta = now + NSEC_PER_SEC - rq->clock;

	if (delta <= 0)
		return;
	rq->clock += delta;
	rq->clock_task += delta;
	update_rq_clock_pelt(rq, delta);
}

void kernel_sizes(unsigned long *rq, unsigned long *task)
{
	*rq = sizeof(struct rq);
	*task = sizeof(struct task_struct);
}

void kernel_init_queue(struct rq *rq, struct task_struct *idle, int cpu)
{
	sysctl_sched_base_slice = 2800000;
	__per_cpu_offset[cpu] = (unsigned long)rq - (unsigned long)&runqueues;
	rq->cpu = cpu;
	rq->rd = &domain;
	rq->clock = rq->clock_task = rq->clock_pelt = NSEC_PER_SEC;
	rq->clock_update_flags = RQCF_UPDATED;
	INIT_LIST_HEAD(&rq->cfs_tasks);
	INIT_LIST_HEAD(&rq->leaf_cfs_rq_list);
	rq->tmp_alone_branch = &rq->leaf_cfs_rq_list;
	init_cfs_rq(&rq->cfs);
	init_tg_cfs_entry(&root_task_group, &rq->cfs, NULL, cpu, NULL);
	idle->flags = PF_IDLE;
	idle->sched_class = rq->next_class = &idle_sched_class;
	rq->idle = rq->curr = rq->donor = idle;
}

/* wakeup_preempt() */
static __always_inline void check_preempt(struct rq *rq, struct task_struct *p, int flags)
{
	if (likely(p->sched_class == rq->next_class))
		rq->next_class->wakeup_preempt(rq, p, flags);
	if (task_on_rq_queued(rq->donor) && test_tsk_need_resched(rq->curr))
		rq_clock_skip_update(rq);
}

/* sched_fork() and wake_up_new_task() */
void kernel_fork(struct rq *rq, struct task_struct *p, int number, int nice, unsigned long weight)
{
	p->pid = number;
	p->static_prio = p->normal_prio = p->prio = NICE_TO_PRIO(nice);
	p->sched_class = &fair_sched_class;
	p->signal = &process;
	rcu_assign_pointer(p->cgroups, &root_set);
	p->sched_task_group = &root_task_group;
	p->nr_cpus_allowed = NR_CPUS;
	task_thread_info(p)->cpu = rq->cpu;
	INIT_LIST_HEAD(&p->se.group_node);
	p->se.load.weight = weight;
	p->se.load.inv_weight = div_u64(1ULL << 32, scale_load_down(weight));
	p->se.slice = sysctl_sched_base_slice;
	p->se.cfs_rq = &rq->cfs;
	init_entity_runnable_average(&p->se);
	post_init_entity_util_avg(p);
	WRITE_ONCE(p->on_rq, TASK_ON_RQ_QUEUED);
	p->sched_class->enqueue_task(rq, p, ENQUEUE_NOCLOCK | ENQUEUE_INITIAL);
	check_preempt(rq, p, WF_FORK);
}

void kernel_enqueue(struct rq *rq, struct task_struct *p, u64 now)
{
	set_clock(rq, now);
	p->sched_class->enqueue_task(rq, p, ENQUEUE_NOCLOCK);
	check_preempt(rq, p, 0);
}

void kernel_dequeue(struct rq *rq, struct task_struct *p, u64 now)
{
	set_clock(rq, now);
	p->sched_class->dequeue_task(rq, p, DEQUEUE_NOCLOCK);
}

/* __schedule() and its __pick_next_task(), where all tasks are fair. */
int kernel_pick(struct rq *rq, u64 now)
{
	struct task_struct *prev = rq->donor, *next;

	set_clock(rq, now);
	next = pick_task_fair(rq, NULL);
	if (unlikely(prev == rq->idle))
		next->sched_class->set_next_task(rq, next, true);
	else
		put_prev_set_next_task(rq, prev, next);
	clear_tsk_need_resched(prev);
	rq->next_class = next->sched_class;
	rq_set_donor(rq, next);
	RCU_INIT_POINTER(rq->curr, next);
	return next->pid;
}
