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
	SEND,
	ACCEPT,
	DUE,
	EOI,
};

/* All members are of 64 bits: src/self_test.rs has them as words. */
struct test_case {
	u64 kind;
	u64 input[6];
	u64 result;
	struct st_tokens tokens;
	struct st_answers source;
	struct st_answers target;
};

/*
 * Atomic operations need memory of the program's own, and the stack is too small. One case runs at a time. It is
 * copied as a whole: the verifier of 6.12 refuses an access by the address of a member of the context.
 */
struct test_case test;

SEC("syscall")
int self_test(struct test_case *given)
{
	u64 a, b, c, d, e, f, result = 0;

	test = *given;
	a = test.input[0];
	b = test.input[1];
	c = test.input[2];
	d = test.input[3];
	e = test.input[4];
	f = test.input[5];
	switch (test.kind) {
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
		result = st_tokens_spend(&test.tokens, a, b, c, d, e, f);
		break;
	case IS_DUE:
		result = st_is_due(a, b, c);
		break;
	case SEND:
		st_answers_send(&test.source, a);
		break;
	case ACCEPT:
		st_answers_accept(&test.source, a, &test.target, b, c, d);
		break;
	case DUE:
		result = st_answers_due(&test.source, a, b);
		break;
	case EOI:
		result = st_answers_eoi(&test.source, a, b);
		break;
	}
	test.result = result;
	*given = test;
	return 0;
}
