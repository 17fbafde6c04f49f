/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The arithmetic of credit.h and track.h in the kernel, one case a call (BPF_PROG_TEST_RUN).
 * src/self_test.rs compares the answers with the crate stealtime-hypervisor.
 */
#include "kernel.h"
#include "track.h"

char _license[] SEC("license") = "GPL";

/* The order is that of `enum Kind` in src/self_test.rs. */
enum kind {
	MUL_DIV,
	VTIME,
	FLOOR_DIV,
	CREDIT_LAG,
	CREDIT_SHIFT,
	SPEND,
	IS_DUE,
	RECORD,
	AWAITED,
	EOI,
};

/* All members are of 64 bits: src/self_test.rs has them as words. */
struct test_case {
	u64 kind;
	u64 input[6];
	u64 result;
	struct st_tokens tokens;
	struct st_ipi source;
	struct st_ipi target;
};

SEC("syscall")
int self_test(struct test_case *test)
{
	u64 a = test->input[0], b = test->input[1], c = test->input[2], d = test->input[3];
	u64 e = test->input[4], f = test->input[5], result = 0;
	/* Atomic operations need memory of the program's own. */
	struct st_tokens tokens = test->tokens;
	struct st_ipi source = test->source, target = test->target;

	switch (test->kind) {
	case MUL_DIV:
		result = st_mul_div(a, b, c);
		break;
	case VTIME:
		result = st_vtime(a, b);
		break;
	case FLOOR_DIV:
		result = st_floor_div(a, b);
		break;
	case CREDIT_LAG:
		result = st_credit_lag(a, b, c);
		break;
	case CREDIT_SHIFT:
		result = st_credit_shift(a, b, c, d);
		break;
	case SPEND:
		result = st_tokens_spend(&tokens, a, b, c, d, e, f);
		break;
	case IS_DUE:
		result = st_is_due(a, b, c);
		break;
	case RECORD:
		st_ipi_record(&source, a, &target, b, c, d);
		break;
	case AWAITED:
		result = st_ipi_awaited(&source, a, b);
		break;
	case EOI:
		result = st_ipi_eoi(&source, a, b);
		break;
	}
	test->result = result;
	test->tokens = tokens;
	test->source = source;
	test->target = target;
	return 0;
}
