/* Saves and restores the clocks of a VM that never runs, and tries what must be refused. */
#include <fcntl.h>
#include <guest_clock.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

static void check(int ok, const char *what, const char *message)
{
	printf("%s: %s %s\n", ok ? "ok" : "FAILED", what, message);
	if (!ok)
		exit(1);
}

int main(void)
{
	char message[GUEST_CLOCK_MESSAGE_BYTES];
	uint8_t state[4096];
	size_t length = sizeof(state), none = 0;
	int vcpus[2], kvm, vm, got;

	got = guest_clock_save(-1, NULL, 0, 0, state, &length, message);
	check(got == GUEST_CLOCK_ARGUMENT && message[0], "no vCPUs:", message);

	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0) {
		printf("skipped: /dev/kvm cannot be opened\n");
		return 0;
	}
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	for (int i = 0; i < 2; i++)
		vcpus[i] = ioctl(vm, KVM_CREATE_VCPU, i);
	check(vm >= 0 && vcpus[1] >= 0, "a VM of two vCPUs", "");
	struct kvm_clock_data data = { 0 };
	check(ioctl(vm, KVM_SET_CLOCK, &data) == 0, "its master clock", "");

	got = guest_clock_save(vm, vcpus, 2, 500, state, &none, message);
	check(got == GUEST_CLOCK_TOO_SMALL && none > 0, "no room:", message);
	length = sizeof(state);
	got = guest_clock_save(vm, vcpus, 2, 0, state, &length, message);
	check(got == GUEST_CLOCK_DONE && length == none && !message[0], "saved", message);

	for (int i = 0; i < 2; i++) {
		got = guest_clock_restore(vm, vcpus, 2, i ? 0 : 500, state, length,
					  GUEST_CLOCK_ELAPSED, UINT64_MAX, 0, message);
		check(got == GUEST_CLOCK_DONE, "restored", message);
	}
	got = guest_clock_restore(vm, vcpus, 1, 0, state, length, GUEST_CLOCK_ELAPSED, UINT64_MAX,
				  0, message);
	check(got == GUEST_CLOCK_REFUSED && strstr(message, "2 vCPUs"), "one vCPU:", message);
	got = guest_clock_restore(vm, vcpus, 2, 0, state, length - 1, GUEST_CLOCK_ELAPSED,
				  UINT64_MAX, 0, message);
	check(got == GUEST_CLOCK_LOAD, "cut:", message);
	got = guest_clock_restore(vm, vcpus, 2, 0, state, length, 7, 0, 0, message);
	check(got == GUEST_CLOCK_ARGUMENT, "policy 7:", message);

	int twice[2] = { vcpus[0], vcpus[0] };
	got = guest_clock_save(vm, twice, 2, 0, state, &length, message);
	check(got == GUEST_CLOCK_SAVE && strstr(message, "same one"), "one twice:", message);
	got = guest_clock_save(vm, vcpus, 1, 0, state, &length, message);
	check(got == GUEST_CLOCK_SAVE && strstr(message, "not among"), "one left out:", message);
	return 0;
}
