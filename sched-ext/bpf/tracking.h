/* SPDX-License-Identifier: GPL-2.0 */
/* Which vCPU waits for which: KVM's tracepoints. All records are hints. */
#ifndef STEALTIME_TRACKING_H
#define STEALTIME_TRACKING_H

static __always_inline struct vcpu *vcpu_at(u32 slot)
{
	return &vcpus[slot & (MAX_VCPUS - 1)];
}

/* The vCPU of the current thread, or null. */
static __always_inline struct vcpu *current_vcpu(u32 *slot)
{
	struct task_ctx *task = ctx_of(bpf_get_current_task_btf());

	if (!task || !task->slot)
		return NULL;
	*slot = task->slot - 1;
	return vcpu_at(*slot);
}

static __always_inline bool waits_in_queue(s32 tid)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_ctx *task;
	bool waits;

	if (!p)
		return false;
	task = ctx_of(p);
	waits = task && task->queued_ns;
	bpf_task_release(p);
	return waits;
}

/* The lender runs next, if it is due. */
static __always_inline void give_back(struct cpu_state *cpu, struct task_ctx *borrower)
{
	cpu->want_domain = borrower->domain;
	ST_STORE(cpu->want, st_want(borrower->lender, 0, 0, false));
}

/*
 * The CPU picks as soon as the task is in its guest. Interrupts are off at an entry. A kick with interrupts on
 * preempts the tracing program: its task cannot migrate, and would wait for this CPU.
 */
static __always_inline void pick_at_entry(void)
{
	scx_bpf_kick_cpu(bpf_get_smp_processor_id(), SCX_KICK_PREEMPT);
}

/*
 * The EOI is given: the lender has its slice back. Linux ends an interrupt first, and handles it then
 * (apic_eoi): the borrower runs on for `answer_ns`.
 */
static __always_inline void return_loan(struct vcpu *self, struct task_ctx *task)
{
	u32 here = bpf_get_smp_processor_id();
	struct loan_timer *timer = bpf_map_lookup_elem(&loan_timers, &here);
	struct cpu_state *cpu = cpu_at(here);

	self->returns = false;
	if (!task->lender)
		return;
	give_back(cpu, task);
	count(LOANS_RETURNED, 1);
	if (answer_ns && timer) {
		cpu->borrower = RETURNING;
		bpf_timer_start(&timer->timer, answer_ns, BPF_F_TIMER_CPU_PIN);
	} else {
		pick_at_entry();
	}
}

/* A receiver that has not answered and waits in a queue, else the first one that has not answered, or null. */
static __always_inline struct vcpu *first_due(struct vcpu *sender, u64 now)
{
	u64 due = st_answers_due(&sender->answers, ipi_window_ns, now);
	struct vcpu *first = NULL;
	int index;

	if (!due)
		return NULL;
	bpf_for(index, 0, ST_RECEIVERS) {
		struct vcpu *vcpu;

		if (!(due >> index))
			break;
		if (!(due >> index & 1))
			continue;
		vcpu = vcpu_at(sender->answers.receivers[index & (ST_RECEIVERS - 1)]);
		/* The number may be another VM's by now. */
		if (!vcpu->tid || vcpu->tgid != sender->tgid)
			continue;
		if (!first)
			first = vcpu;
		/* An only receiver is the answer: the caller looks at its task. */
		if (first == vcpu && due >> index == 1)
			break;
		if (waits_in_queue(vcpu->tid))
			return vcpu;
	}
	return first;
}

/* KVM nominates no vCPU for a spinning one: ops.dispatch runs a receiver of its IPI, if one waits. */
static __always_inline void ask_for_receiver(struct vcpu *self)
{
	struct vcpu *awaited;

	self->spins = false;
	if (yield_mode != YIELD_TAKE_RECEIVER || !lend)
		return;
	awaited = first_due(self, clock_ns());
	if (!awaited || !waits_in_queue(awaited->tid))
		return;
	this_cpu()->spinner = self->tid;
	pick_at_entry();
}

SEC("tp_btf/kvm_entry")
int BPF_PROG(on_entry, struct kvm_vcpu *vcpu)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *task = ctx_of(p);
	struct vcpu_key key;
	struct vcpu *self;
	u32 slot;

	if (!task || !vcpu)
		return 0;
	if (task->slot) {
		self = vcpu_at(task->slot - 1);
		/* The delivery of the IPI that caused the last exit has ended. */
		self->delivers = false;
		self->answered = false;
		if (self->spins)
			ask_for_receiver(self);
		if (self->returns)
			return_loan(self, task);
		return 0;
	}
	if (bpf_map_pop_elem(&free_slots, &slot))
		slot = __sync_fetch_and_add(&vcpus_used, 1);
	if (slot >= MAX_VCPUS) {
		vcpus_used = MAX_VCPUS;
		count(VCPUS_FULL, 1);
		return 0;
	}
	key.tgid = p->tgid;
	key.id = vcpu->vcpu_id;
	self = vcpu_at(slot);
	st_answers_reset(&self->answers);
	self->tid = p->pid;
	self->tgid = key.tgid;
	self->id = key.id;
	self->delivers = false;
	self->answered = false;
	self->spins = false;
	self->returns = false;
	self->shows_eoi = false;
	self->defers_eoi = false;
	self->answered_ns = 0;
	self->pending_ns = 0;
	bpf_map_update_elem(&slot_of_vcpu, &key, &slot, BPF_ANY);
	task->slot = slot + 1;
	return 0;
}

/* The current vCPU sends an IPI: its delivery follows in the same thread. */
static __always_inline void send(u32 icr_low)
{
	struct vcpu *self;
	u32 slot;

	self = current_vcpu(&slot);
	if (!self)
		return;
	self->icr_low = icr_low;
	self->accepted = 0;
	/* ICR bits 10:8 are the delivery mode (0: fixed). */
	self->delivers = !(icr_low & 0x700) && (icr_low & 0xff) >= ST_FIRST_LEGAL_VECTOR;
}

SEC("tp_btf/kvm_apic_ipi")
int BPF_PROG(on_ipi, u32 icr_low, u32 destination)
{
	send(icr_low);
	return 0;
}

/* kvm_pv_send_ipi: a1 to a3 of the tracepoint are the mask's second half, its first vCPU and the ICR. */
SEC("tp_btf/kvm_hypercall")
int BPF_PROG(on_hypercall, unsigned long nr, unsigned long a0, unsigned long a1, unsigned long a2,
	     unsigned long a3)
{
	if (nr == KVM_HC_SEND_IPI)
		send(a3);
	return 0;
}

SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(on_accept, u32 apic_id, u16 delivery_mode, u16 trigger_mode, u8 vector)
{
	struct vcpu_key key;
	struct vcpu *self, *receiver;
	u64 now = clock_ns();
	u32 slot, *to;

	self = current_vcpu(&slot);
	if (!self || delivery_mode)
		return 0;
	key.tgid = self->tgid;
	key.id = apic_id;
	to = bpf_map_lookup_elem(&slot_of_vcpu, &key);
	if (!to)
		return 0;
	receiver = vcpu_at(*to);
	if (!receiver->pending_ns)
		receiver->pending_ns = now;
	if (!self->delivers || (self->icr_low & 0xff) != vector || *to == slot)
		return 0;
	if (!self->accepted) {
		st_answers_send(&self->answers, now);
		count(IPIS_TRACKED, 1);
	} else if (self->accepted == 1) {
		count(IPIS_BROADCAST, 1);
	}
	st_answers_accept(&self->answers, slot, &receiver->answers, *to, self->accepted, vector);
	self->accepted++;
	return 0;
}

/* In the receiver's thread. */
SEC("tp_btf/kvm_eoi")
int BPF_PROG(on_eoi, struct kvm_lapic *apic, int vector)
{
	struct task_ctx *task = ctx_of(bpf_get_current_task_btf());
	struct vcpu *self, *source;
	u64 received, due;

	if (!task || !task->slot)
		return 0;
	self = vcpu_at(task->slot - 1);
	self->pending_ns = 0;
	self->shows_eoi = true;
	received = ST_LOAD(self->answers.received);
	if (vector < ST_FIRST_LEGAL_VECTOR)
		return 0;
	source = vcpu_at(st_answers_sender(received));
	due = st_answers_eoi(&source->answers, received, vector);
	if (!due)
		return 0;
	if (!(due & ST_DUE_MASK)) {
		count(IPIS_SETTLED, 1);
		source->answered = true;
		source->answered_ns = clock_ns();
	}
	self->returns = task->lender && task->lender == source->tid;
	return 0;
}

/* kvm_eoi has come before, for the same interrupt. */
SEC("tp_btf/kvm_pv_eoi")
int BPF_PROG(on_pv_eoi)
{
	struct task_ctx *task = ctx_of(bpf_get_current_task_btf());

	if (task && task->slot)
		vcpu_at(task->slot - 1)->defers_eoi = true;
	return 0;
}

/* A PAUSE exit. A yield to a vCPU that KVM nominates follows, or none does. */
SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(on_spin)
{
	struct vcpu *self;
	u32 slot;

	self = current_vcpu(&slot);
	if (self)
		self->spins = true;
	return 0;
}

/* A thread ends: its vCPU's number is free, and no record names it. */
static __always_inline void forget_vcpu(struct task_ctx *task)
{
	struct vcpu_key key;
	struct vcpu *self;
	u32 slot, *known;

	if (!task->slot)
		return;
	slot = task->slot - 1;
	task->slot = 0;
	self = vcpu_at(slot);
	key.tgid = self->tgid;
	key.id = self->id;
	known = bpf_map_lookup_elem(&slot_of_vcpu, &key);
	if (known && *known == slot)
		bpf_map_delete_elem(&slot_of_vcpu, &key);
	st_answers_reset(&self->answers);
	self->tid = 0;
	self->tgid = 0;
	bpf_map_push_elem(&free_slots, &slot, BPF_ANY);
}

#endif
