/* Save and restore the clocks of a KVM guest: exact, idempotent, explained.
 *
 * Call from the process that created the VM, with all vCPUs out of KVM_RUN. Save before LAPICs are
 * saved: a timer that fires between the two is then in both states, not in neither. Restore before
 * the first KVM_RUN, after CPUID, LAPICs and MSRs (without IA32_TSC, IA32_TSC_ADJUST,
 * IA32_TSC_DEADLINE).
 * A restore may be repeated at any later time with the same outcome.
 *
 * Threads: any function may be called from any thread, and from several at once for different VMs. A
 * forked child cannot use its parent's VM.
 *
 * Structures begin with their size. Set all of one to 0, then size, then what is wanted.
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
	GUEST_CLOCK_PARTIAL = -5,   /* do not run the vCPUs; the same call once more is safe */
	GUEST_CLOCK_TOO_SMALL = -6, /* *length has the bytes needed */
	GUEST_CLOCK_FAULT = -7,     /* a fault of this library: do not run the vCPUs */
	GUEST_CLOCK_HOST = -8,      /* this host's KVM cannot be used */
	GUEST_CLOCK_EQUALIZE = -9   /* TSCs not made equal, nothing was written */
};

/* What guest time does over the pause. */
enum guest_clock_policy {
	GUEST_CLOCK_STOPPED = 0, /* it stands still */
	GUEST_CLOCK_ELAPSED = 1, /* it advances; refused above limit_ns (UINT64_MAX: never) */
	GUEST_CLOCK_AT_MOST = 2  /* it advances by at most limit_ns */
};

/* vCPUs that were saved with different TSC offsets. */
enum guest_clock_unequal {
	GUEST_CLOCK_UNEQUAL_REFUSE = 0,
	GUEST_CLOCK_UNEQUAL_HIGHEST = 1, /* all get the most advanced one */
	GUEST_CLOCK_UNEQUAL_FIRST = 2,   /* all get vCPU 0's; refused where one would go back */
	GUEST_CLOCK_UNEQUAL_KEEP = 3     /* the guest itself has set them apart */
};

/* A VM of this process. */
struct guest_clock_vm {
	size_t size;          /* sizeof(struct guest_clock_vm) */
	const int *vcpus;     /* descriptors of all its vCPUs */
	size_t count;
	int vm;               /* its descriptor */
	/* How long the call waits for vCPUs to leave KVM_RUN, as a helper thread requests of them. One that has not
	 * left after this time is refused by its position. 0: all have been stopped; no thread is started, and a
	 * vCPU that runs nevertheless holds the call up until it leaves. arm64 has no such wait. */
	uint32_t patience_ms;
	/* NULL, or for VMMs with vCPU threads that make all ioctls of their vCPUs: calls work(argument) in the thread
	 * of the vCPU at this position, and returns when work has returned. patience_ms is 0 then. */
	void (*on_vcpu)(void *context, size_t vcpu, void (*work)(void *argument), void *argument);
	void *context;        /* for on_vcpu */
};

/* How to restore. */
struct guest_clock_options {
	size_t size;                  /* sizeof(struct guest_clock_options) */
	int policy;                   /* enum guest_clock_policy */
	int unequal;                  /* enum guest_clock_unequal */
	int accept_inexact;           /* not 0: with a bound where exactness cannot be had */
	uint32_t frequency_error_ppb; /* of each host's TSC against its nominal frequency */
	uint64_t limit_ns;            /* of the policy */
	uint64_t realtime_skew_ns;    /* how far the hosts' wall clocks may be apart */
	uint64_t master_clock_age_ns; /* of a guest that was scaled; 0: not known */
	int64_t wall_clocks_ahead_ns; /* measured: this host's wall clock minus the source's */
	uint64_t wall_clocks_at_most_ns; /* the largest such difference that is trusted; 0: any */
};

/* What a restore did, or would do. Set json and json_bytes if wanted. */
struct guest_clock_explanation {
	size_t size;                      /* sizeof(struct guest_clock_explanation) */
	size_t json_bytes;                /* room at json; becomes the bytes needed, with the final 0 */
	char *json;                       /* NULL, or where all of it goes as JSON; empty if too small */
	int64_t elapsed_ns;               /* by the hosts' wall clocks; below 0: this one's is behind */
	uint64_t advanced_ns;             /* by so much guest time advanced */
	uint64_t clock_from_ns;           /* saved kvmclock (x86) */
	uint64_t clock_to_ns;             /* kvmclock at the instant of the plan (x86) */
	uint64_t offset_from;             /* saved: vCPU 0's TSC offset, or the VM's counter offset */
	uint64_t offset_to;               /* new; on arm64 keep it for the next save */
	uint64_t tsc_against_kvmclock_ns; /* bounds; UINT64_MAX: not known */
	uint64_t clock_against_real_ns;
	uint64_t tsc_against_its_rate_ns;
	int64_t clock_residual_ns;        /* measured afterwards; INT64_MIN: not measured */
	uint32_t counter_khz;
	uint32_t vcpus;
	/* 1: only rounding is between the clocks and the ideal, on arm64 also the width of the readings */
	int is_exact;
	int master_clock;                 /* 1: KVM's master clock is on; a plan takes it for on */
	/* For a VMClock device, with a new disruption_marker: vCPU 0's TSC, or the virtual counter; the time at
	 * that value; its error, without that of this host's wall clock. */
	uint64_t vmclock_counter;
	uint64_t vmclock_utc_ns;
	uint64_t vmclock_max_error_ns;
	int64_t wall_clock_late_ns;       /* the guest's behind this host's: the first offset of a PTP clock */
	uint64_t notified_vcpus;          /* by KVM_KVMCLOCK_CTRL; 0 on arm64 */
};

/* What a snapshot by value has of a vCPU. */
struct guest_clock_values {
	uint64_t tsc;          /* IA32_TSC */
	uint64_t tsc_adjust;   /* IA32_TSC_ADJUST */
	uint64_t tsc_deadline; /* IA32_TSC_DEADLINE in guest cycles, 0 if not armed */
	int has_tsc_adjust;
	int has_tsc_deadline;
};

/* A snapshot by value of an x86 guest: struct kvm_clock_data, registers and frequencies. */
struct guest_clock_by_value {
	size_t size;             /* sizeof(struct guest_clock_by_value) */
	const struct guest_clock_values *vcpus;
	size_t count;
	uint64_t clock_ns;       /* kvm_clock_data.clock */
	uint64_t realtime_ns;    /* its realtime; without KVM_CLOCK_REALTIME the wall clock at the snapshot */
	uint64_t host_tsc;       /* its host_tsc */
	uint64_t read_within_ns; /* all was read within this time: the bound of a restore */
	uint32_t clock_flags;    /* its flags */
	uint32_t tsc_khz;        /* KVM_GET_TSC_KHZ */
	uint32_t host_tsc_khz;   /* 0: the same */
	uint32_t frac_bits;      /* of TSC ratios on the source: 48 (VMX, as is 0) or 32 (SVM) */
};

/* "0.1.0", and the newest version of states that can be loaded, which is the one that is saved. */
const char *guest_clock_version(void);
uint32_t guest_clock_state_version(void);

/* Opens and probes /dev/kvm, once. Call it before the process gives up its rights: what comes later opens
 * no device. Without it the first call does it. */
int guest_clock_init(char *message);

#if defined(__x86_64__)
/* Saves into `buffer` of `*length` bytes; `*length` becomes the bytes used, or needed. */
int guest_clock_save(const struct guest_clock_vm *vm, uint8_t *buffer, size_t *length, char *message);

/* Gives all vCPUs the most advanced TSC among them, for VMMs that restore TSCs by value. Call it after
 * KVM_SET_MSRS of all vCPUs and before KVM_SET_CLOCK. Refused if they are more than at_most_ns apart.
 * `bound_ns` is NULL, or gets the error that remains. */
int guest_clock_equalize(const struct guest_clock_vm *vm, uint64_t at_most_ns, uint64_t *bound_ns,
			 char *message);
#elif defined(__aarch64__)
/* The same; `offset` is what the VMM has set by KVM_ARM_SET_COUNTER_OFFSET, which KVM does not report. NULL:
 * it is measured, with a bound. */
int guest_clock_save_arm64(const struct guest_clock_vm *vm, const uint64_t *offset, uint8_t *buffer,
			   size_t *length, char *message);
#endif

/* Makes a state of a snapshot by value, into `buffer` as guest_clock_save does. Needs no KVM. A restore of it has
 * a bound: accept_inexact. */
int guest_clock_import(const struct guest_clock_by_value *snapshot, uint8_t *buffer, size_t *length,
		       char *message);

/* Computes and checks a restore. Writes nothing. `explanation` may be NULL. */
int guest_clock_plan(const struct guest_clock_vm *vm, const uint8_t *state, size_t length,
		     const struct guest_clock_options *options,
		     struct guest_clock_explanation *explanation, char *message);

/* Restores a state. `explanation` may be NULL; it is set if all went well. */
int guest_clock_restore(const struct guest_clock_vm *vm, const uint8_t *state, size_t length,
			const struct guest_clock_options *options,
			struct guest_clock_explanation *explanation, char *message);

#ifdef __cplusplus
}
#endif

#endif
