/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Directed yield. KVM's kvm_vcpu_on_spin() calls yield_to(), which calls ops.yield(from, to) with
 * both run queues locked. A refusal lets KVM try its next candidate.
 *
 * A confirmed receiver of the yielder's IPI comes before a vCPU with a pending interrupt, and
 * that before the vCPU that KVM nominates.
 *
 * The target borrows the rest of the yielder's request: it runs at the yielder's cost, a confirmed
 * receiver until shortly after its EOI, others until a timer ends the loan. A yielder that has sent no IPI
 * lately gives a nominee the rest of its request. The VM's share stays, and no third party pays.
 *
 * KVM may nominate no vCPU: without APICv it passes over those preempted in user mode, even if an interrupt
 * of theirs is pending. Then the PAUSE exit itself is a yield to the receiver.
 *
 * Without loans the target is credited as in the series, within the guard, and the yielder forfeits its
 * request.
 */
#ifndef STEALTIME_YIELD_H
#define STEALTIME_YIELD_H

/* Shortest loan: an interrupt's handler needs some time. */
#define MIN_LOAN_NS 100000

/* Decides about a target that waits in a shared queue. */
struct choice {
	s32 tid;
	/* What a served yield counts as. */
	u32 reason;
	/* It is to answer an IPI. */
	bool is_receiver;
	/* The yielder has sent no IPI lately: it may wait for a lock. */
	bool hands_over;
};

/* Lag credit of the target, as credit_level(): false if the guard refuses. */
static __always_inline bool credit_target(struct task_ctx *task, struct cpu_state *cpu, u64 now)
{
	struct domain *domain = domain_at(task->domain);
	u64 v, members, total, shift;
	s64 lag, aim, reached;

	if (!domain || !task->weight)
		return false;
	bpf_spin_lock(&domain->lock);
	v = average_locked(domain);
	members = domain->members;
	total = domain->weight;
	bpf_spin_unlock(&domain->lock);
	lag = (s64)(v - task->vruntime);
	if (lag >= 0)
		return true;
	if (!credit)
		return false;
	aim = st_credit_lag(members, margin_ns, st_lag_bound(slice_ns, tick_ns, task->weight));
	if (aim < 0)
		return true;
	reached = aim;
	if (guard_per_mille) {
		reached = st_tokens_spend(&cpu->tokens, guard_per_mille, guard_burst_ns, now, lag, aim,
					  task->weight);
		if (reached < 0)
			return false;
	}
	shift = st_credit_shift(lag, reached, task->weight, total);
	shift_vruntime(task, -(s64)shift);
	task->deadline -= shift;
	count(CREDITS, 1);
	count(CREDIT_NS, st_service((u64)reached - (u64)lag, task->weight));
	return true;
}

static __always_inline bool is_due(struct task_ctx *task)
{
	struct domain *domain = domain_at(task->domain);

	return domain && task->weight && is_eligible(task->vruntime, average(domain));
}

/* A task loses the rest of its request. */
static __always_inline void end_request(struct task_ctx *task)
{
	s64 rest = (s64)(task->deadline - task->vruntime);

	if (rest > 0)
		shift_vruntime(task, rest);
	task->deadline = task->vruntime + st_vtime(slice_ns, task->weight);
}

/* yield_task_fair: an eligible yielder loses the rest of its request. */
static __always_inline void forfeit(struct task_ctx *task)
{
	if (is_due(task))
		end_request(task);
}

/* A yielder keeps no more lag than a sleeper would: it could hold the CPU for as long otherwise. */
static __always_inline void forfeit_excess(struct task_ctx *task)
{
	struct domain *domain = domain_at(task->domain);
	s64 excess;

	if (!domain || !task->weight)
		return;
	excess = (s64)(average(domain) - task->vruntime) - st_lag_bound(slice_ns, tick_ns, task->weight);
	if (excess <= 0)
		return;
	shift_vruntime(task, excess);
	task->deadline += excess;
}

/* Real time that is left of a task's request. */
static __always_inline u64 request_left(struct task_ctx *task)
{
	s64 left = (s64)(task->deadline - task->vruntime);

	return left > 0 && task->weight ? st_service(left, task->weight) : 0;
}

/*
 * The yielder gives the rest of its request to the target, if that is due by it. A spinner that waits for a
 * lock has no use of its request, and a loan would end with it.
 */
static __always_inline bool hand_over(struct task_ctx *yielder, struct task_ctx *task)
{
	struct domain *domain = domain_at(task->domain);
	u64 left = request_left(yielder), gain, v;

	if (!left || !domain || !task->weight || task->domain != yielder->domain)
		return false;
	gain = st_vtime(left, task->weight);
	v = average(domain);
	if (!is_eligible(yielder->vruntime, v) || !is_eligible(task->vruntime - gain, v))
		return false;
	end_request(yielder);
	shift_vruntime(task, -(s64)gain);
	task->deadline -= gain;
	count(HANDED_OVER, 1);
	return true;
}

/* The order of candidates; `nominee` is KVM's. */
static __always_inline struct choice choose(struct task_ctx *yielder, struct task_struct *nominee,
					    struct task_ctx *nominated, u64 now)
{
	struct choice choice = { .tid = nominee->pid, .reason = YIELD_NOMINEE };
	struct vcpu *awaited, *self;

	if (nominated->slot && vcpu_at(nominated->slot - 1)->pending_ns)
		choice.reason = YIELD_PENDING;
	if (yield_mode != YIELD_TAKE_RECEIVER || !yielder->slot)
		return choice;
	self = vcpu_at(yielder->slot - 1);
	awaited = first_due(self, now);
	if (awaited) {
		choice.tid = awaited->tid;
		choice.reason = YIELD_RECEIVER;
		choice.is_receiver = true;
	}
	choice.hands_over = !st_answers_has_sent(&self->answers, ipi_window_ns, now);
	return choice;
}

/* Serves the yield to `target`: what it counts as. */
static __always_inline u32 serve(struct task_struct *from, struct task_ctx *yielder,
				  struct task_struct *target, struct task_ctx *task, struct choice choice, u64 now)
{
	u32 here = bpf_get_smp_processor_id() & (MAX_CPUS - 1), cpu_id = here;
	struct cpu_state *cpu = &cpus[here];
	bool loan = lend;
	bool may_run_here = may_run(target, here);
	struct vcpu *receiver = task->slot ? vcpu_at(task->slot - 1) : NULL;
	bool shows_eoi = receiver && receiver->shows_eoi && !receiver->defers_eoi;
	u64 slice = 0;
	bool timed = false, handed_over;

	/* One CPU each, and not the same: nothing to move. */
	if (!may_run_here && from->nr_cpus_allowed == 1 && target->nr_cpus_allowed == 1) {
		return REFUSED_PINNED;
	}
	/* A yielder that has had more than its share lends nothing: pairs that take turns would never end. */
	if (loan ? !is_due(yielder) && !is_due(task) : !credit_target(task, cpu, now))
		return REFUSED_GUARD;
	if (!may_run_here) {
		cpu_id = scx_bpf_task_cpu(target) & (MAX_CPUS - 1);
		cpu = &cpus[cpu_id];
	}
	if (loan) {
		slice = st_max(request_left(yielder), MIN_LOAN_NS);
		handed_over = choice.hands_over && hand_over(yielder, task);
		/* Without an EOI to end the loan, a target that is due pays for itself. */
		if (handed_over || (is_due(task) && (!choice.is_receiver || !is_due(yielder))))
			loan = false;
		else
			timed = !choice.is_receiver || !shows_eoi;
		if (loan && choice.is_receiver && !shows_eoi)
			slice = st_min(slice, loan_max_ns);
		forfeit_excess(yielder);
	} else {
		forfeit(yielder);
	}
	cpu->want_domain = task->domain;
	ST_STORE(cpu->want, st_want(target->pid, loan ? from->pid : 0, slice / 1000, timed));
	task->wanted_ns = now;
	if (!may_run_here) {
		/* yield_to_local_force_resched: limited for each run queue. */
		if (st_is_due(cpu->forced_ns ? cpu->forced_ns : ST_NEVER, force_interval_ns, now)) {
			cpu->forced_ns = now;
			scx_bpf_kick_cpu(cpu_id, SCX_KICK_PREEMPT);
			count(KICKED_REMOTE, 1);
		} else {
			count(KICK_LIMITED, 1);
		}
	}
	set_slice(from, 0);
	if (loan)
		count(LOANS, 1);
	return choice.reason;
}

/* True ends KVM's scan of candidates. */
static __always_inline bool ends_scan(struct task_struct *from, u32 outcome)
{
	count(outcome, 1);
	switch (outcome) {
	case REFUSED_PINNED:
		return false;
	case REFUSED_GUARD:
		/* The yielder's CPU picks once KVM's scan is over: tasks that are due run. */
		if (lend && from->scx.slice) {
			set_slice(from, 0);
			scx_bpf_kick_cpu(bpf_get_smp_processor_id(), SCX_KICK_PREEMPT);
		}
		return false;
	}
	return true;
}

/* Whether a CPU's current task has run for less than `spin_ns` since a time. */
static __always_inline bool is_near(struct cpu_state *cpu, u64 time_ns, u64 now)
{
	return (s64)(now - st_max(time_ns, cpu->since_ns)) < (s64)spin_ns;
}

/*
 * The receiver runs already, and its answer is near: the yielder spins on. An answer that takes longer
 * than an interrupt does is held up, and the yielder's CPU is of use to another vCPU.
 */
static __always_inline bool answer_is_near(struct task_ctx *yielder, struct task_struct *receiver, u64 now)
{
	return is_near(cpu_at(scx_bpf_task_cpu(receiver)), vcpu_at(yielder->slot - 1)->answers.time_ns, now);
}

/* All receivers have answered, and the yielder has hardly run its guest since: it sees the answers next. */
static __always_inline bool sees_answers_next(struct task_ctx *yielder, u64 now)
{
	struct vcpu *self;

	if (!yielder->slot)
		return false;
	self = vcpu_at(yielder->slot - 1);
	if (self->answered)
		return true;
	return self->answered_ns && st_answers_has_sent(&self->answers, ipi_window_ns, now) &&
	       !st_answers_due(&self->answers, ipi_window_ns, now) && is_near(this_cpu(), self->answered_ns, now);
}

/* In ops.dispatch: `from` spins, and KVM nominates no vCPU. */
static __always_inline void serve_spinner(struct task_struct *from, struct task_ctx *yielder, u64 now)
{
	struct choice choice = { .reason = PAUSE_RECEIVER, .is_receiver = true };
	struct task_struct *receiver;
	struct task_ctx *task;
	struct vcpu *awaited;

	if (!yielder->slot)
		return;
	awaited = first_due(vcpu_at(yielder->slot - 1), now);
	if (!awaited)
		return;
	choice.tid = awaited->tid;
	receiver = bpf_task_from_pid(choice.tid);
	if (!receiver)
		return;
	task = ctx_of(receiver);
	if (task && task->queued_ns && serve(from, yielder, receiver, task, choice, now) == PAUSE_RECEIVER)
		count(PAUSE_RECEIVER, 1);
	bpf_task_release(receiver);
}

bool BPF_STRUCT_OPS(stealtime_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_ctx *yielder = ctx_of(from), *nominated, *task;
	struct task_struct *receiver;
	struct choice choice;
	u64 now = clock_ns();
	bool served = false, runs = false;

	if (!yielder)
		return false;
	if (!to) {
		count(YIELD_UNDIRECTED, 1);
		charge_running(from, yielder);
		forfeit(yielder);
		set_slice(from, 0);
		return false;
	}
	count(YIELD_DIRECTED, 1);
	if (yielder->slot)
		vcpu_at(yielder->slot - 1)->spins = false;
	nominated = ctx_of(to);
	if (yield_mode == YIELD_REFUSE || !nominated) {
		count(REFUSED_BY_MODE, 1);
		return false;
	}
	charge_running(from, yielder);
	if (sees_answers_next(yielder, now)) {
		count(REFUSED_ANSWERED, 1);
		return false;
	}
	choice = choose(yielder, to, nominated, now);
	if (choice.tid != to->pid) {
		receiver = bpf_task_from_pid(choice.tid);
		if (receiver) {
			task = ctx_of(receiver);
			runs = is_running(receiver);
			if (runs && answer_is_near(yielder, receiver, now)) {
				count(REFUSED_RECEIVER_RUNS, 1);
				bpf_task_release(receiver);
				return false;
			}
			if (!runs && task && task->queued_ns) {
				served = ends_scan(from, serve(from, yielder, receiver, task, choice, now));
				if (served)
					count(REDIRECTED, 1);
				bpf_task_release(receiver);
				return served;
			}
			bpf_task_release(receiver);
		}
		/* It runs, sleeps, or its class is another: KVM's nominee is next in order. */
		choice.reason = nominated->slot && vcpu_at(nominated->slot - 1)->pending_ns ?
					YIELD_PENDING : YIELD_NOMINEE;
		choice.is_receiver = false;
	}
	if (!nominated->queued_ns) {
		count(REFUSED_NOT_QUEUED, 1);
		return false;
	}
	served = ends_scan(from, serve(from, yielder, to, nominated, choice, now));
	if (served && runs)
		count(RECEIVER_RUNS, 1);
	return served;
}

/* In ops.dispatch: moves the wanted task to this CPU; true if it runs next. */
static __always_inline bool pick_wanted(struct cpu_state *cpu, u32 cpu_id)
{
	struct task_struct *p;
	struct task_ctx *task;
	u32 index = cpu->want_domain;
	bool found = false;
	s32 tid, lender;
	u64 want, slice;
	u32 seen = first_count;

	if (!ST_LOAD(cpu->want))
		return false;
	want = __sync_lock_test_and_set(&cpu->want, 0);
	tid = st_want_tid(want);
	lender = st_want_lender(want);
	slice = st_want_slice_us(want) * 1000;
	bpf_for_each(scx_dsq, p, index, 0) {
		if (p->pid == tid) {
			if (!may_run(p, cpu_id))
				break;
			task = ctx_of(p);
			/* Out of order only on a loan, or if it is due. */
			if (!lender && !(task && is_due(task)))
				break;
			found = move_task(BPF_FOR_EACH_ITER, p, slice, 0);
			if (found && task) {
				task->lender = lender;
				task->loan_ns = lender ? slice : 0;
				task->loan_timed = want & ST_TIMED;
			}
			break;
		}
		if (++seen >= 4096)
			break;
	}
	count(found ? WANT_PICKED : WANT_MISSED, 1);
	return found;
}

#endif
