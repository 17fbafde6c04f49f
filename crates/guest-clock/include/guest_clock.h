/* Save and restore the clocks of a KVM guest: exact, idempotent, explained.
 *
 * Call from the process that created the VM, with all vCPUs out of KVM_RUN. Save before LAPICs are
 * saved: a timer that fires between the two is then in both states, not in neither. Restore before
 * the first KVM_RUN, after CPUID, LAPICs and MSRs (without IA32_TSC, IA32_TSC_ADJUST,
 * IA32_TSC_DEADLINE).
 * A restore may be repeated at any later time with the same outcome.
 *
 * `patience_ms`: how long vCPUs on their way out of KVM_RUN are waited for; a helper thread asks them, and
 * one that has not left by then is refused by its position. 0: all have been stopped; no thread is started,
 * and a vCPU that runs nevertheless holds the call up until it leaves.
 *
 * Functions return GUEST_CLOCK_DONE or a negative status. `message` is NULL or has
 * GUEST_CLOCK_MESSAGE_BYTES bytes; it gets a text that ends with 0, empty when all went well. */
#ifndef GUEST_CLOCK_H
#define GUEST_CLOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GUEST_CLOCK_MESSAGE_BYTES 512

enum guest_clock_status {
	GUEST_CLOCK_DONE = 0,
	GUEST_CLOCK_ARGUMENT = -1,  /* an argument cannot be */
	GUEST_CLOCK_SAVE = -2,      /* not saved */
	GUEST_CLOCK_LOAD = -3,      /* the bytes are not a state */
	GUEST_CLOCK_REFUSED = -4,   /* nothing was written */
	GUEST_CLOCK_PARTIAL = -5,   /* do not run the vCPUs; restore once more */
	GUEST_CLOCK_TOO_SMALL = -6, /* *length has the bytes needed */
	GUEST_CLOCK_FAULT = -7      /* a fault of this library: do not run the vCPUs */
};

enum guest_clock_policy {
	GUEST_CLOCK_STOPPED = 0, /* guest time stands still over the pause */
	GUEST_CLOCK_ELAPSED = 1, /* it advances; refused above limit_ns (UINT64_MAX: never) */
	GUEST_CLOCK_AT_MOST = 2  /* it advances by at most limit_ns */
};

/* Saves into `buffer` of `*length` bytes; `*length` becomes the bytes used, or needed. */
int guest_clock_save(int vm, const int *vcpus, size_t count, uint32_t patience_ms, uint8_t *buffer,
		     size_t *length, char *message);

/* Restores a state; `accept_inexact` not 0: with a bound where exactness cannot be had. */
int guest_clock_restore(int vm, const int *vcpus, size_t count, uint32_t patience_ms,
			const uint8_t *state, size_t length, int policy, uint64_t limit_ns,
			int accept_inexact, char *message);

#ifdef __cplusplus
}
#endif

#endif
