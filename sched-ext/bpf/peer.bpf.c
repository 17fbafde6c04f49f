/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The least scheduler by virtual time, for comparisons of cost: one queue, no groups, no directed yield.
 * What it costs more than the kernel's own is the price of sched_ext.
 */
#include "kernel.h"

char _license[] SEC("license") = "GPL";

#define SHARED_QUEUE 0
#define SLICE_NS 20000000

static u64 latest;

/* A sleeper keeps one slice of credit. */
void BPF_STRUCT_OPS(peer_enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 vtime = p->scx.dsq_vtime;

	if ((s64)(vtime - (latest - SLICE_NS)) < 0)
		vtime = latest - SLICE_NS;
	insert_ordered(p, SHARED_QUEUE, SLICE_NS, vtime, enq_flags);
}

s32 BPF_STRUCT_OPS(peer_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);

	if (is_idle)
		insert_local(p, SLICE_NS, 0);
	return cpu;
}

void BPF_STRUCT_OPS(peer_dispatch, s32 cpu, struct task_struct *prev)
{
	move_to_local(SHARED_QUEUE);
}

void BPF_STRUCT_OPS(peer_running, struct task_struct *p)
{
	if ((s64)(p->scx.dsq_vtime - latest) > 0)
		latest = p->scx.dsq_vtime;
}

void BPF_STRUCT_OPS(peer_stopping, struct task_struct *p, bool runnable)
{
	set_vtime(p, p->scx.dsq_vtime + (SLICE_NS - p->scx.slice) * 100 / p->scx.weight);
}

void BPF_STRUCT_OPS(peer_enable, struct task_struct *p)
{
	set_vtime(p, latest);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(peer_init)
{
	return scx_bpf_create_dsq(SHARED_QUEUE, -1);
}

SEC(".struct_ops.link")
struct sched_ext_ops peer_ops = {
	.select_cpu = (void *)peer_select_cpu,
	.enqueue = (void *)peer_enqueue,
	.dispatch = (void *)peer_dispatch,
	.running = (void *)peer_running,
	.stopping = (void *)peer_stopping,
	.enable = (void *)peer_enable,
	.init = (void *)peer_init,
	.timeout_ms = 5000,
	.name = "stealtime_peer",
};
