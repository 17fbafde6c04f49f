/* SPDX-License-Identifier: GPL-2.0 */
/*
 * scx_stealtime: a sched_ext scheduler for hosts of VMs, which serves KVM's directed yield.
 *
 * Each cache domain has one queue, ordered by virtual deadline. A CPU that needs a task takes the
 * first eligible one (EEVDF): eligible tasks have had no more than their share. One queue for all
 * CPUs of a cache makes a wanted vCPU reachable from each of them. The weight of a task is its
 * share in the tree of control groups.
 */
#include "kernel.h"
#include "track.h"
#include "shared.h"

char _license[] SEC("license") = "GPL";

#define BPF_FOR_EACH_ITER (&___it)

#include "state.h"
#include "groups.h"
#include "vtime.h"
#include "tracking.h"
#include "yield.h"

/* How many entries of a queue are asked for an eligible one. */
#define ELIGIBLE_SCAN 16
/* A running task is not interrupted by a woken one before this. */
#define MIN_RUN_NS 700000
/* No switch takes longer, unless the CPU itself is taken away. */
#define MAX_SWITCH_NS 50000
#define WATCHDOG_PERIOD_NS 200000000
#define WATCHDOG_SCAN 64

struct watchdog {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct watchdog);
} watchdog_map SEC(".maps");

static __always_inline u32 domain_of(u32 cpu)
{
	return domain_of_cpu[cpu & (MAX_CPUS - 1)] & (MAX_DOMAINS - 1);
}

/*
 * The task is runnable. A task that the kernel puts on an idle CPU's own list is counted when it runs,
 * which is at once: ops.runnable and ops.select_cpu would be further calls of each wakeup. The kernel's
 * choice of an idle CPU knows SMT siblings, caches and nodes.
 */
static __always_inline void join(struct task_struct *p, struct task_ctx *task, u32 cpu)
{
	u32 own = p->scx.weight;

	task->counted = own;
	group_count(task->group, own, 1);
	join_domain(task, domain_of(cpu), weight_of(p, task), task->placed);
	task->placed = true;
}

/* A woken task with an earlier deadline interrupts the running one. */
static __always_inline void preempt_later(struct task_ctx *task, s32 cpu_id, u64 now)
{
	struct cpu_state *cpu = &cpus[cpu_id & (MAX_CPUS - 1)];
	struct domain *domain;

	if (!cpu->since_ns || (s64)(task->deadline - cpu->deadline) >= 0 ||
	    now - cpu->since_ns < MIN_RUN_NS)
		return;
	domain = domain_at(task->domain);
	if (!domain || !is_eligible(task->vruntime, average(domain)))
		return;
	scx_bpf_kick_cpu(cpu_id, SCX_KICK_PREEMPT);
	count(WAKE_PREEMPTED, 1);
}

void BPF_STRUCT_OPS(stealtime_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *task = ctx_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	u64 now;

	if (!task) {
		insert_local(p, slice_ns, enq_flags);
		return;
	}
	if (!task->weight)
		join(p, task, cpu);
	now = clock_ns();
	task->queued_ns = now;
	insert_ordered(p, task->domain, slice_ns, task->deadline, enq_flags);
	/*
	 * Its only CPU reschedules if it idles. Where the kernel has looked for an idle CPU, one that idles since
	 * then takes the task when it is queued again: after a slice and a tick at most.
	 */
	if (p->nr_cpus_allowed > 1 && !(enq_flags & cpu_selected)) {
		s32 idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

		if (idle >= 0) {
			scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
			return;
		}
	}
	if (enq_flags & SCX_ENQ_WAKEUP)
		preempt_later(task, cpu, now);
}

/* pick_eevdf: the running task competes as well. True if it goes on. */
static __always_inline bool goes_on(struct task_struct *prev, struct task_ctx *running, u64 v, u64 deadline)
{
	if (!prev || !running || !is_eligible(running->vruntime, v) ||
	    (s64)(running->deadline - deadline) >= 0)
		return false;
	set_slice(prev, st_max(request_left(running), MIN_RUN_NS));
	count(KEPT, 1);
	return true;
}

/* Takes the first eligible task of a queue that may run here, else the head. */
static __always_inline bool pick_eligible(u32 index, u32 cpu_id, struct task_struct *prev,
					  struct task_ctx *running)
{
	struct domain *domain = domain_at(index);
	struct task_struct *p;
	struct task_ctx *task;
	bool found = false;
	u32 seen = first_count;
	s32 queued;
	u32 members;
	u64 v;

	if (!domain)
		return false;
	/* Tasks that wait are members: a look at the number spares a look for the queue. */
	members = ST_LOAD(domain->members);
	if (!members)
		return false;
	queued = !prev && members == 1 ? 1 : scx_bpf_dsq_nr_queued(index);
	if (queued <= 0)
		return false;
	/* A task that waits alone runs, eligible or not. */
	if (queued == 1 && !prev) {
		if (!move_to_local(index))
			return false;
		count(PICKED_HEAD, 1);
		return true;
	}
	v = average(domain);
	bpf_for_each(scx_dsq, p, index, 0) {
		task = ctx_of(p);
		if (task && is_eligible(task->vruntime, v) && may_run(p, cpu_id)) {
			if (goes_on(prev, running, v, task->deadline))
				return true;
			found = move_task(BPF_FOR_EACH_ITER, p, 0, 0);
			if (found)
				break;
		}
		if (++seen >= ELIGIBLE_SCAN)
			break;
	}
	if (found) {
		count(PICKED_ELIGIBLE, 1);
		return true;
	}
	if (!move_to_local(index))
		return false;
	count(PICKED_HEAD, 1);
	return true;
}

void BPF_STRUCT_OPS(stealtime_dispatch, s32 cpu_id, struct task_struct *prev)
{
	struct cpu_state *cpu = &cpus[cpu_id & (MAX_CPUS - 1)];
	u32 here = domain_of(cpu_id), i;
	struct task_ctx *running = NULL;

	if (prev && !(prev->scx.flags & SCX_TASK_QUEUED))
		prev = NULL;
	if (prev)
		running = ctx_of(prev);
	if (running) {
		/* A yield has charged its own task just now. */
		if (!ST_LOAD(cpu->want) || running->lender)
			charge_running(prev, running);
		if (running->lender && !running->loan_ns && !cpu->want)
			give_back(cpu, running);
		/* A loan is one slice: a task that goes on pays for itself. */
		running->lender = 0;
		cpu->borrower = 0;
	}
	if (cpu->spinner) {
		if (running && prev->pid == cpu->spinner && !ST_LOAD(cpu->want))
			serve_spinner(prev, running, clock_ns());
		cpu->spinner = 0;
	}
	if (pick_wanted(cpu, cpu_id))
		return;
	if (pick_eligible(here, cpu_id, prev, running))
		return;
	/* An idle CPU helps the next cache domain; a task that runs goes on instead. */
	if (prev) {
		/* The kernel's default of 20 ms is long for those that wake meanwhile. */
		set_slice(prev, slice_ns);
		return;
	}
	if (domains <= 1)
		return;
	bpf_for(i, 1, MAX_DOMAINS) {
		if (i >= domains)
			break;
		if (move_to_local((here + i) % domains)) {
			count(STOLEN, 1);
			return;
		}
	}
}

/* The CPU's current task stops. */
static __always_inline void forget_current(struct task_ctx *task)
{
	struct cpu_state *cpu = cpu_at(task->cpu);

	task->exec_start = 0;
	task->lender = 0;
	cpu->since_ns = 0;
	cpu->borrower = 0;
}

/* The task is not runnable. */
static __always_inline void leave(struct task_struct *p, struct task_ctx *task, u64 ns)
{
	task->queued_ns = 0;
	charge_and_leave(task, ns, weight_of(p, task));
	if (task->counted) {
		group_count(task->group, task->counted, -1);
		task->counted = 0;
	}
}

static __always_inline void count_wait(u64 ns)
{
	u64 us = ns / 1000;
	u32 bucket = 0, step;

	/* The bits of `us`. */
	for (step = 32; step; step /= 2) {
		if (us >> step) {
			us >>= step;
			bucket += step;
		}
	}
	bucket += us;
	this_cpu()->waits_us[bucket < WAIT_BUCKETS ? bucket : WAIT_BUCKETS - 1]++;
}

/*
 * The kernel accounts a task's time from the switch on, and what the switch takes is that of the next task. Its clock
 * may lack interrupts and steal: a time that is too far from ours counts for nothing.
 */
static __always_inline u64 switched_ns(struct task_struct *p, u64 now)
{
	u64 switched = p->se.exec_start;

	return now - switched < MAX_SWITCH_NS ? switched : now;
}

void BPF_STRUCT_OPS(stealtime_running, struct task_struct *p)
{
	struct task_ctx *task = ctx_of(p);
	/* Another CPU may call this, after it has changed the task. */
	u32 number = scx_bpf_task_cpu(p), here = domain_of(number);
	struct cpu_state *cpu = cpu_at(number);

	if (!task)
		return;
	if (!task->weight) {
		join(p, task, number);
	} else if (task->domain != here) {
		u64 weight = task->weight;

		leave_domain(task);
		join_domain(task, here, weight, false);
	}
	task->cpu = number;
	task->exec_start = switched_ns(p, clock_ns());
	task->queued_ns = 0;
	if (task->wanted_ns) {
		count_wait(task->exec_start - task->wanted_ns);
		count(YIELD_TO_RUN_NS, task->exec_start - task->wanted_ns);
		task->wanted_ns = 0;
	}
	cpu->deadline = task->deadline;
	cpu->since_ns = task->exec_start;
	if (task->lender && task->loan_ns && task->loan_timed) {
		struct loan_timer *timer = bpf_map_lookup_elem(&loan_timers, &number);

		cpu->borrower = p->pid;
		if (timer)
			bpf_timer_start(&timer->timer, task->loan_ns, BPF_F_TIMER_CPU_PIN);
	}
}

void BPF_STRUCT_OPS(stealtime_stopping, struct task_struct *p, bool runnable)
{
	struct task_ctx *task = ctx_of(p);

	if (!task)
		return;
	/*
	 * A task that sleeps runs until then, so that ops.quiescent would be a further call of each switch. What waits
	 * stays a member while its settings change.
	 */
	if (runnable)
		charge_running(p, task);
	else
		leave(p, task, own_run_ns(task));
	forget_current(task);
}

void BPF_STRUCT_OPS(stealtime_tick, struct task_struct *p)
{
	struct task_ctx *task = ctx_of(p);
	struct cpu_state *cpu = this_cpu();

	if (!task)
		return;
	charge_running(p, task);
	cpu->deadline = task->deadline;
	/*
	 * A task that the kernel puts on an idle CPU's own list has its slice of 20 ms, which is long for those that
	 * wake meanwhile. Slices end at ticks: it is cut there, and not at each start.
	 */
	if (p->scx.slice > slice_ns && !task->lender) {
		u64 ran = clock_ns() - cpu->since_ns;

		set_slice(p, ran < slice_ns ? slice_ns - ran : 0);
	}
}

/* A change of the nice value. */
void BPF_STRUCT_OPS(stealtime_set_weight, struct task_struct *p, u32 weight)
{
	struct task_ctx *task = ctx_of(p);

	if (!task || !task->counted || task->counted == weight)
		return;
	group_recount(task->group, task->counted, weight);
	task->counted = weight;
	reweight(task, weight_of(p, task));
}

void BPF_STRUCT_OPS(stealtime_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task_ctx *task = ctx_of(p);

	if (!task)
		return;
	if (task->counted)
		group_count(task->group, task->counted, -1);
	task->group = group_of(to);
	if (!task->counted)
		return;
	group_count(task->group, task->counted, 1);
	reweight(task, weight_of(p, task));
}

s32 BPF_STRUCT_OPS(stealtime_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *task = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!task)
		return -12; /* ENOMEM */
	task->group = group_of(args->cgroup);
	return 0;
}

/* Its class is another, or it ends. */
void BPF_STRUCT_OPS(stealtime_disable, struct task_struct *p)
{
	struct task_ctx *task = ctx_of(p);

	if (task)
		leave(p, task, 0);
}

void BPF_STRUCT_OPS(stealtime_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_ctx *task = ctx_of(p);

	if (task)
		forget_vcpu(task);
}

/* A loan is over: the borrower's CPU picks. */
static int end_loan(void *map, u32 *key, struct loan_timer *timer)
{
	struct cpu_state *cpu = &cpus[*key & (MAX_CPUS - 1)];

	/* Each loan sets the timer anew; the one that it was for may have ended. */
	if (!cpu->borrower)
		return 0;
	if (cpu->borrower != RETURNING)
		count(LOANS_EXPIRED, 1);
	scx_bpf_kick_cpu(*key, SCX_KICK_PREEMPT);
	return 0;
}

static __always_inline void report_stall(struct task_struct *p, u64 ns)
{
	static char format[] = "watchdog: task %d (%s, weight %u, CPUs allowed: %d) has waited for %llu ms";
	unsigned long long values[5];

	values[0] = p->pid;
	values[1] = (unsigned long long)p->comm;
	values[2] = p->scx.weight;
	values[3] = p->nr_cpus_allowed;
	values[4] = ns / 1000000;
	scx_bpf_error_bstr(format, values, sizeof(values));
}

/*
 * The bound of a task's wait. A light task waits long by fairness alone: behind it are a lag of at most a
 * slice and a tick, and a slice, each of service. At its share of the CPUs these take longer by the
 * inverse of the share. Twice that: ticks come late where the host is itself a guest.
 */
static __always_inline u64 longest_wait(struct task_struct *p, struct task_ctx *task, u32 domain_index)
{
	u32 index = domain_index & (MAX_DOMAINS - 1);
	u64 cpus = st_max(st_min(cpus_of_domain[index], p->nr_cpus_allowed), 1);
	struct domain *domain = bpf_map_lookup_elem(&domain_map, &index);
	u64 fair = 0;

	if (domain && task->weight)
		fair = st_mul_div(2 * (2 * slice_ns + tick_ns), ST_LOAD(domain->weight), task->weight * cpus);
	return st_min(st_max(fair, watchdog_ns), 10 * watchdog_ns);
}

/* A task that waits beyond the bound ends the scheduler, and the kernel's takes over. */
static int watch(void *map, u32 *key, struct watchdog *watchdog)
{
	u64 now = clock_ns();
	struct task_struct *p;
	struct task_ctx *task;
	u32 i;

	bpf_rcu_read_lock();
	bpf_for(i, 0, MAX_DOMAINS) {
		u32 seen = first_count;

		if (i >= domains)
			break;
		bpf_for_each(scx_dsq, p, i, 0) {
			task = ctx_of(p);
			if (task && task->queued_ns) {
				s64 waited = now - task->queued_ns;

				if (waited > (s64)watchdog_ns && waited > (s64)longest_wait(p, task, i)) {
					report_stall(p, waited);
					break;
				}
			}
			if (++seen >= WATCHDOG_SCAN)
				break;
		}
	}
	bpf_rcu_read_unlock();
	bpf_timer_start(&watchdog->timer, WATCHDOG_PERIOD_NS, 0);
	return 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(stealtime_init)
{
	struct watchdog *watchdog;
	u32 key = 0, i;
	s32 failed;

	bpf_for(i, 0, MAX_DOMAINS) {
		if (i >= domains)
			break;
		failed = scx_bpf_create_dsq(i, -1);
		if (failed)
			return failed;
	}
	bpf_for(i, 0, MAX_CPUS) {
		struct loan_timer *timer;

		cpus[i & (MAX_CPUS - 1)].tokens.filled_ns = ST_NEVER;
		key = i;
		timer = bpf_map_lookup_elem(&loan_timers, &key);
		if (!timer)
			continue;
		bpf_timer_init(&timer->timer, &loan_timers, 1 /* CLOCK_MONOTONIC */);
		bpf_timer_set_callback(&timer->timer, end_loan);
	}
	key = 0;
	watchdog = bpf_map_lookup_elem(&watchdog_map, &key);
	if (!watchdog)
		return -2; /* ENOENT */
	bpf_timer_init(&watchdog->timer, &watchdog_map, 1 /* CLOCK_MONOTONIC */);
	bpf_timer_set_callback(&watchdog->timer, watch);
	return bpf_timer_start(&watchdog->timer, WATCHDOG_PERIOD_NS, 0);
}

void BPF_STRUCT_OPS(stealtime_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(exit_record.reason, sizeof(exit_record.reason),
				  BPF_CORE_READ(info, reason));
	bpf_probe_read_kernel_str(exit_record.message, sizeof(exit_record.message),
				  BPF_CORE_READ(info, msg));
	exit_record.code = BPF_CORE_READ(info, exit_code);
	exit_record.kind = BPF_CORE_READ(info, kind);
}

SEC(".struct_ops.link")
struct sched_ext_ops stealtime_ops = {
	.enqueue = (void *)stealtime_enqueue,
	.dispatch = (void *)stealtime_dispatch,
	.tick = (void *)stealtime_tick,
	.running = (void *)stealtime_running,
	.stopping = (void *)stealtime_stopping,
	.yield = (void *)stealtime_yield,
	.set_weight = (void *)stealtime_set_weight,
	.disable = (void *)stealtime_disable,
	.init_task = (void *)stealtime_init_task,
	.exit_task = (void *)stealtime_exit_task,
	.cgroup_init = (void *)stealtime_cgroup_init,
	.cgroup_exit = (void *)stealtime_cgroup_exit,
	.cgroup_move = (void *)stealtime_cgroup_move,
	.cgroup_set_weight = (void *)stealtime_cgroup_set_weight,
	.init = (void *)stealtime_init,
	.exit = (void *)stealtime_exit,
	.timeout_ms = 5000,
	.name = "stealtime",
};
