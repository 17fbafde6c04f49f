/* Saves and restores the clocks of a VM that never runs, and tries what must be refused. C11 and C++. */
#include <fcntl.h>
#include <guest_clock.h>
#include <linux/filter.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void check(int ok, const char *what, const char *message)
{
	printf("%s: %s %s\n", ok ? "ok" : "FAILED", what, message);
	if (!ok)
		exit(1);
}

/* From here on another system call than docs/guest-clocks-c.md names ends the process. */
static void jail(void)
{
	static const int allowed[] = { SYS_ioctl, SYS_mmap, SYS_munmap, SYS_openat, SYS_getdents64,
				       SYS_readlink, SYS_fstat, SYS_newfstatat, SYS_fcntl,
				       SYS_close, SYS_brk, SYS_write,
				       SYS_exit_group };
	enum { COUNT = sizeof(allowed) / sizeof(allowed[0]) };
	struct sock_filter filter[2 * COUNT + 2];
	struct sock_fprog program;
	int n = 0;

	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						   offsetof(struct seccomp_data, nr));
	for (int i = 0; i < COUNT; i++) {
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							   (unsigned)allowed[i], 0, 1);
		filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	program.len = n;
	program.filter = filter;
	check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
		      !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program),
	      "a jail", "");
}

int main(void)
{
	char message[GUEST_CLOCK_MESSAGE_BYTES], json[4096];
	uint8_t state[4096];
	size_t length = sizeof(state), none = 0;
	int vcpus[2], kvm, vm, got;
	uint64_t bound = 1;
	struct guest_clock_options options;
	struct guest_clock_explanation explained;

	memset(&options, 0, sizeof(options));
	memset(&explained, 0, sizeof(explained));
	got = guest_clock_save(-1, NULL, 0, 0, state, &length, message);
	check(got == GUEST_CLOCK_ARGUMENT && message[0], "no vCPUs:", message);
	got = guest_clock_restore(0, &got, 1, state, 8, &options, NULL, message);
	check(got == GUEST_CLOCK_ARGUMENT && strstr(message, "options.size"), "no size:", message);
	options.size = sizeof(options);
	options.policy = 7;
	got = guest_clock_restore(0, &got, 1, state, 8, &options, NULL, message);
	check(got == GUEST_CLOCK_ARGUMENT, "policy 7:", message);
	options.policy = GUEST_CLOCK_ELAPSED;
	options.limit_ns = UINT64_MAX;
	options.patience_ms = 0;
	got = guest_clock_plan(0, &got, 1, state, 8, &options, &explained, message);
	check(got == GUEST_CLOCK_ARGUMENT && strstr(message, "explanation.size"),
	      "no size:", message);
	explained.size = sizeof(explained);
	check(guest_clock_state_version() == 1 && strchr(guest_clock_version(), '.'),
	      "version", guest_clock_version());

	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0) {
		printf("skipped: /dev/kvm cannot be opened\n");
		return 0;
	}
	for (int i = 0; i < 2; i++)
		check(guest_clock_init(message) == GUEST_CLOCK_DONE, "init", message);
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	for (int i = 0; i < 2; i++)
		vcpus[i] = ioctl(vm, KVM_CREATE_VCPU, i);
	check(vm >= 0 && vcpus[1] >= 0, "a VM of two vCPUs", "");
	struct kvm_clock_data data;
	memset(&data, 0, sizeof(data));
	check(ioctl(vm, KVM_SET_CLOCK, &data) == 0, "its master clock", "");

	/* With a patience, so with a helper thread. */
	got = guest_clock_save(vm, vcpus, 2, 500, state, &none, message);
	check(got == GUEST_CLOCK_TOO_SMALL && none > 0, "no room:", message);
	length = sizeof(state);
	got = guest_clock_save(vm, vcpus, 2, 0, state, &length, message);
	check(got == GUEST_CLOCK_DONE && length == none && !message[0], "saved", message);

	got = guest_clock_plan(vm, vcpus, 2, state, length, &options, &explained, message);
	check(got == GUEST_CLOCK_DONE && explained.vcpus == 2 && explained.json_bytes > 100 &&
		      explained.clock_residual_ns == INT64_MIN,
	      "planned", message);
	explained.json = json;
	fflush(stdout);
	jail();
	for (int i = 0; i < 2; i++) {
		explained.json_bytes = i ? sizeof(json) : 9;
		got = guest_clock_restore(vm, vcpus, 2, state, length, &options, &explained, message);
		check(got == GUEST_CLOCK_DONE && explained.advanced_ns > 0, "restored", message);
		check(i ? json[0] == '{' && strlen(json) + 1 == explained.json_bytes : !json[0],
		      "explained:", json);
	}
	got = guest_clock_restore(vm, vcpus, 1, state, length, &options, NULL, message);
	check(got == GUEST_CLOCK_REFUSED && strstr(message, "2 vCPUs"), "one vCPU:", message);
	got = guest_clock_restore(vm, vcpus, 2, state, length - 1, &options, NULL, message);
	check(got == GUEST_CLOCK_LOAD, "cut:", message);
	options.limit_ns = 0;
	got = guest_clock_restore(vm, vcpus, 2, state, length, &options, NULL, message);
	check(got == GUEST_CLOCK_REFUSED && strstr(message, "GUEST_CLOCK_AT_MOST"),
	      "a limit of 0:", message);

	got = guest_clock_equalize(vm, vcpus, 2, 0, 1000, &bound, message);
	check(got == GUEST_CLOCK_DONE && bound == 0, "equal already", message);
	int twice[2] = { vcpus[0], vcpus[0] };
	got = guest_clock_save(vm, twice, 2, 0, state, &length, message);
	check(got == GUEST_CLOCK_SAVE && strstr(message, "same one"), "one twice:", message);
	got = guest_clock_save(vm, vcpus, 1, 0, state, &length, message);
	check(got == GUEST_CLOCK_SAVE && strstr(message, "not among"), "one left out:", message);
	return 0;
}
