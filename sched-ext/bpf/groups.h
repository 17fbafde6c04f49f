/* SPDX-License-Identifier: GPL-2.0 */
/* Weights of control groups, flattened: the share of a task in the tree of its group. */
#ifndef STEALTIME_GROUPS_H
#define STEALTIME_GROUPS_H

static __always_inline struct group *group_at(u32 index)
{
	return &groups[index & (MAX_GROUPS - 1)];
}

/*
 * Brings the parent's sums up to date, and its parent's, as far as something changed. Exchanges
 * telescope: a sum equals what was counted last, in whatever order CPUs arrive.
 */
static __noinline int group_sync(u32 index)
{
	int i;

	for (i = 0; i < MAX_DEPTH && index; i++) {
		struct group *group = group_at(index), *parent;
		u32 want = ST_LOAD(group->active) > 0 ? ST_LOAD(group->weight) : 0;
		u32 old = __sync_lock_test_and_set(&group->counted, want);
		s32 before;

		if (old == want)
			break;
		index = group->parent & (MAX_GROUPS - 1);
		parent = group_at(index);
		__sync_fetch_and_add(&parent->level, (s64)want - (s64)old);
		if (!old == !want)
			break;
		before = __sync_fetch_and_add(&parent->active, want ? 1 : -1);
		if (before != (want ? 0 : 1))
			break;
	}
	return 0;
}

/* A task of weight `weight` becomes runnable (sign 1) or sleeps (sign -1). */
static __always_inline void group_count(u32 index, u32 weight, s32 sign)
{
	struct group *group = group_at(index);
	s32 before;

	/* No weight is a share of the root's sum: its tasks compete with their own. */
	if (!index)
		return;
	__sync_fetch_and_add(&group->level, sign * (s64)weight);
	before = __sync_fetch_and_add(&group->active, sign);
	if (before == (sign > 0 ? 0 : 1))
		group_sync(index);
}

/* The weight of a task that its group counts changes. */
static __always_inline void group_recount(u32 index, u32 weight, u32 to_weight)
{
	if (index)
		__sync_fetch_and_add(&group_at(index)->level, (s64)to_weight - (s64)weight);
}

/*
 * The weight at which a task competes, in the kernel's units: its own, times at each level the
 * group's weight by the sum of the level below. At least 2, as MIN_SHARES.
 */
static __noinline u64 flat_weight(u32 index, u32 task_weight)
{
	u64 weight = (u64)task_weight * ST_NICE_0_LOAD / 100;
	int i;

	for (i = 0; i < MAX_DEPTH && index; i++) {
		struct group *group = group_at(index);
		s64 level = ST_LOAD(group->level);

		if (level > 0)
			weight = weight * ST_LOAD(group->weight) / (u64)level;
		index = group->parent & (MAX_GROUPS - 1);
	}
	return weight < 2 ? 2 : weight;
}

static __always_inline u64 cgroup_id(struct cgroup *cgrp)
{
	return BPF_CORE_READ(cgrp, kn, id);
}

static __always_inline u32 group_of(struct cgroup *cgrp)
{
	u64 id = cgrp ? cgroup_id(cgrp) : 0;
	u32 *index = bpf_map_lookup_elem(&group_of_cgroup, &id);

	return index ? *index : 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(stealtime_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	u64 id = cgroup_id(cgrp);
	u32 index = 0, parent = 0;
	struct group *group;

	if (cgrp->level > 0) {
		struct cgroup *above = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);

		if (above) {
			parent = group_of(above);
			bpf_cgroup_release(above);
		}
		if (bpf_map_pop_elem(&free_groups, &index))
			index = __sync_fetch_and_add(&groups_used, 1);
		if (index >= MAX_GROUPS) {
			groups_used = MAX_GROUPS;
			count(GROUPS_FULL, 1);
			index = parent;
		} else {
			group = group_at(index);
			__builtin_memset(group, 0, sizeof(*group));
			group->parent = parent;
			group->weight = args->weight;
			group->id = id;
		}
	}
	bpf_map_update_elem(&group_of_cgroup, &id, &index, BPF_ANY);
	return 0;
}

void BPF_STRUCT_OPS(stealtime_cgroup_exit, struct cgroup *cgrp)
{
	u64 id = cgroup_id(cgrp);
	u32 index = group_of(cgrp);

	bpf_map_delete_elem(&group_of_cgroup, &id);
	if (index && group_at(index)->id == id)
		bpf_map_push_elem(&free_groups, &index, BPF_ANY);
}

void BPF_STRUCT_OPS(stealtime_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	u32 index = group_of(cgrp);

	if (!index || group_at(index)->id != cgroup_id(cgrp))
		return;
	ST_STORE(group_at(index)->weight, weight);
	group_sync(index);
}

#endif
