/* SPDX-License-Identifier: GPL-2.0 */
/* Virtual time: membership in a domain's sums, placement with lag, and charging. */
#ifndef STEALTIME_VTIME_H
#define STEALTIME_VTIME_H

static __always_inline struct domain *domain_at(u32 index)
{
	return bpf_map_lookup_elem(&domain_map, &index);
}

/* Moves the base of the sums to the average, and returns it. Under the lock. */
static __always_inline u64 average_locked(struct domain *domain)
{
	if (domain->weight) {
		s64 delta = st_floor_div(domain->sum, domain->weight);

		domain->zero += delta;
		domain->sum -= delta * (s64)domain->weight;
	}
	return domain->zero;
}

/* With the base at the average, a vruntime is eligible unless it is after the base. */
static __always_inline bool is_eligible(u64 vruntime, u64 average)
{
	return (s64)(vruntime - average) <= 0;
}

static __always_inline u64 average(struct domain *domain)
{
	u64 v;

	bpf_spin_lock(&domain->lock);
	v = average_locked(domain);
	bpf_spin_unlock(&domain->lock);
	return v;
}

/* A lag of the same service at another weight. */
static __always_inline s64 scale_lag(s64 lag, u64 weight, u64 to_weight)
{
	u64 size;

	if (weight == to_weight)
		return lag;
	size = st_mul_div(lag < 0 ? -(u64)lag : (u64)lag, weight, to_weight);
	return lag < 0 ? -(s64)size : (s64)size;
}

/* The task runs for `ns` more at its own cost, and leaves the sums; its lag is kept for `to_weight`. */
static __always_inline void charge_and_leave(struct task_ctx *task, u64 ns, u64 to_weight)
{
	struct domain *domain = domain_at(task->domain);
	u64 v, weight = task->weight, delta;
	s64 bound;

	if (!domain || !weight)
		return;
	delta = ns ? st_vtime(ns, weight) : 0;
	bpf_spin_lock(&domain->lock);
	task->vruntime += delta;
	domain->sum += delta * weight;
	v = average_locked(domain);
	domain->sum -= (s64)(task->vruntime - v) * (s64)weight;
	domain->weight -= weight;
	domain->members--;
	/* A borrower on another CPU may charge it: from here on it finds no member. */
	task->weight = 0;
	/* Without members the average stays where it was. */
	if (!domain->weight)
		domain->sum = 0;
	bpf_spin_unlock(&domain->lock);
	bound = st_lag_bound(slice_ns, tick_ns, to_weight);
	task->vlag = scale_lag((s64)(v - task->vruntime), weight, to_weight);
	if (task->vlag > bound)
		task->vlag = bound;
	if (task->vlag < -bound)
		task->vlag = -bound;
}

static __always_inline void leave_domain(struct task_ctx *task)
{
	charge_and_leave(task, 0, task->weight);
}

static __always_inline void add_member_locked(struct domain *domain, struct task_ctx *task, u64 weight)
{
	task->weight = weight;
	domain->sum += (s64)(task->vruntime - domain->zero) * (s64)weight;
	domain->weight += weight;
	domain->members++;
}

/*
 * place_entity: joins the sums with its lag, which it keeps although the average moves with it.
 * A task that slept keeps no debt that the queue has passed meanwhile.
 */
static __always_inline void join_domain(struct task_ctx *task, u32 index, u64 weight, bool slept)
{
	struct domain *domain = domain_at(index);
	bool same = slept && task->domain == index, is_short;
	u64 v, total, size, lag;

	if (!domain)
		return;
	task->domain = index;
	bpf_spin_lock(&domain->lock);
	v = average_locked(domain);
	total = domain->weight;
	if (same && task->vlag < 0) {
		s64 left = (s64)(v - task->vruntime);

		if (left > task->vlag)
			task->vlag = left < 0 ? left : 0;
	}
	lag = size = task->vlag < 0 ? -(u64)task->vlag : (u64)task->vlag;
	/* Nearly always the product has 64 bits: no function may be called under the lock. */
	is_short = !total || !((size | (total + weight)) >> 32);
	if (is_short) {
		if (total && size)
			lag = size * (total + weight) / total;
		task->vruntime = task->vlag < 0 ? v + lag : v - lag;
		add_member_locked(domain, task, weight);
	}
	bpf_spin_unlock(&domain->lock);
	if (!is_short) {
		lag = st_mul_div(size, total + weight, total);
		task->vruntime = task->vlag < 0 ? v + lag : v - lag;
		bpf_spin_lock(&domain->lock);
		add_member_locked(domain, task, weight);
		bpf_spin_unlock(&domain->lock);
	}
	task->deadline = task->vruntime + st_vtime(slice_ns, weight);
}

/* Moves a member by `delta` virtual ns. */
static __always_inline void shift_vruntime(struct task_ctx *task, s64 delta)
{
	struct domain *domain = domain_at(task->domain);

	if (!domain || !task->weight)
		return;
	bpf_spin_lock(&domain->lock);
	if (task->weight) {
		task->vruntime += delta;
		domain->sum += delta * (s64)task->weight;
	}
	bpf_spin_unlock(&domain->lock);
}

/* A new weight scales the lag, so that the service it is worth stays. */
static __always_inline void reweight(struct task_ctx *task, u64 weight)
{
	struct domain *domain = domain_at(task->domain);
	u64 v, request;
	s64 lag;

	if (!domain || !task->weight || task->weight == weight)
		return;
	v = average(domain);
	lag = scale_lag((s64)(v - task->vruntime), task->weight, weight);
	request = task->deadline - task->vruntime;
	if ((s64)request < 0)
		request = 0;
	request = st_mul_div(request, task->weight, weight);
	bpf_spin_lock(&domain->lock);
	domain->sum -= (s64)(task->vruntime - domain->zero) * (s64)task->weight;
	domain->weight += weight - task->weight;
	task->vruntime = v - (u64)lag;
	task->weight = weight;
	domain->sum += (s64)(task->vruntime - domain->zero) * (s64)weight;
	bpf_spin_unlock(&domain->lock);
	task->deadline = task->vruntime + request;
}

/* Charges `ns` of run time to a task, and starts the next request at the end of one. */
static __always_inline void charge(struct task_ctx *task, u64 ns)
{
	if (!task->weight)
		return;
	shift_vruntime(task, st_vtime(ns, task->weight));
	if ((s64)(task->vruntime - task->deadline) >= 0)
		task->deadline = task->vruntime + st_vtime(slice_ns, task->weight);
}

/* The other side of a loan: the lender pays what the receiver runs. False if it is gone. */
static __always_inline bool charge_lender(s32 tid, u64 ns)
{
	struct task_struct *lender = bpf_task_from_pid(tid);
	struct task_ctx *task;
	bool paid = false;

	if (!lender)
		return false;
	task = ctx_of(lender);
	if (task && task->weight) {
		charge(task, ns);
		paid = true;
	}
	bpf_task_release(lender);
	return paid;
}

/* Run time since the last charge, as far as the task pays for it itself: a lender pays for the rest. */
static __always_inline u64 own_run_ns(struct task_ctx *task)
{
	u64 now, ns;

	if (!task->exec_start)
		return 0;
	now = clock_ns();
	ns = now - task->exec_start;
	if ((s64)ns <= 0)
		return 0;
	task->exec_start = now;
	__sync_fetch_and_add(&group_at(task->group)->runtime_ns, ns);
	/* Beyond the loan, as ticks are coarser than slices, the task pays for itself. */
	if (task->lender && task->loan_ns) {
		u64 lent = st_min(ns, task->loan_ns);

		if (charge_lender(task->lender, lent)) {
			count(LENT_NS, lent);
			task->loan_ns -= lent;
			ns -= lent;
		}
	}
	return ns;
}

static __always_inline u64 weight_of(struct task_struct *p, struct task_ctx *task)
{
	u32 own = p->scx.weight;

	if (!task->group)
		return own == 100 ? ST_NICE_0_LOAD : (u64)own * ST_NICE_0_LOAD / 100;
	return flat_weight(task->group, own);
}

/* Charges the running task up to now. */
static __always_inline void charge_running(struct task_struct *p, struct task_ctx *task)
{
	u64 ns = own_run_ns(task);

	if (ns)
		charge(task, ns);
	reweight(task, weight_of(p, task));
}

#endif
