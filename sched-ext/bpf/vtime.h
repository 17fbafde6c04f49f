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

/* The task leaves the sums; its lag is kept. */
static __always_inline void leave_domain(struct task_ctx *task)
{
	struct domain *domain = domain_at(task->domain);
	u64 v, weight = task->weight;
	s64 bound;

	if (!domain || !weight)
		return;
	bpf_spin_lock(&domain->lock);
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
	bound = st_lag_bound(slice_ns, tick_ns, weight);
	task->vlag = (s64)(v - task->vruntime);
	if (task->vlag > bound)
		task->vlag = bound;
	if (task->vlag < -bound)
		task->vlag = -bound;
}

/*
 * place_entity: joins the sums with its lag, which it keeps although the average moves with it.
 * A task that slept keeps no debt that the queue has passed meanwhile.
 */
static __always_inline void join_domain(struct task_ctx *task, u32 index, u64 weight, bool slept)
{
	struct domain *domain = domain_at(index);
	u64 v, total, lag;

	if (!domain)
		return;
	bpf_spin_lock(&domain->lock);
	v = average_locked(domain);
	total = domain->weight;
	bpf_spin_unlock(&domain->lock);
	if (slept && task->vlag < 0 && task->domain == index) {
		s64 left = (s64)(v - task->vruntime);

		if (left > task->vlag)
			task->vlag = left < 0 ? left : 0;
	}
	lag = task->vlag < 0 ? -(u64)task->vlag : (u64)task->vlag;
	if (total && lag)
		lag = st_mul_div(lag, total + weight, total);
	task->vruntime = task->vlag < 0 ? v + lag : v - lag;
	task->deadline = task->vruntime + st_vtime(slice_ns, weight);
	task->domain = index;
	bpf_spin_lock(&domain->lock);
	task->weight = weight;
	domain->sum += (s64)(task->vruntime - domain->zero) * (s64)weight;
	domain->weight += weight;
	domain->members++;
	bpf_spin_unlock(&domain->lock);
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
	u64 v, size, request;
	s64 lag;

	if (!domain || !task->weight || task->weight == weight)
		return;
	v = average(domain);
	lag = (s64)(v - task->vruntime);
	size = st_mul_div(lag < 0 ? -(u64)lag : (u64)lag, task->weight, weight);
	request = task->deadline - task->vruntime;
	if ((s64)request < 0)
		request = 0;
	request = st_mul_div(request, task->weight, weight);
	bpf_spin_lock(&domain->lock);
	domain->sum -= (s64)(task->vruntime - domain->zero) * (s64)task->weight;
	domain->weight += weight - task->weight;
	task->vruntime = lag < 0 ? v + size : v - size;
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

/* Charges the running task up to now. */
static __always_inline void charge_running(struct task_struct *p, struct task_ctx *task)
{
	u64 now = clock_ns(), ns = now - task->exec_start;

	if ((s64)ns <= 0 || !task->exec_start)
		return;
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
	if (ns)
		charge(task, ns);
	reweight(task, flat_weight(task->group, p->scx.weight));
}

#endif
