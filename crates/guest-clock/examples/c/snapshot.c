/* A VMM's clocks over a snapshot, with both VMs in one process: saved, planned, restored, explained.
 *
 * Valid as C11 and as C++. Ends with 77 where there is no /dev/kvm. */
#include <fcntl.h>
#include <guest_clock.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define VCPUS 2

static char message[GUEST_CLOCK_MESSAGE_BYTES];

static void done(int status, const char *what)
{
	if (status == GUEST_CLOCK_DONE)
		return;
	fprintf(stderr, "%s: status %d: %s\n", what, status, message);
	exit(1);
}

/* A VM with vCPUs that never run. */
static struct guest_clock_vm create(int kvm, int vcpus[VCPUS])
{
	struct guest_clock_vm clocks;
	int vm = ioctl(kvm, KVM_CREATE_VM, 0);

	for (int i = 0; i < VCPUS; i++) {
		vcpus[i] = vm < 0 ? -1 : ioctl(vm, KVM_CREATE_VCPU, i);
		if (vcpus[i] < 0) {
			perror("a VM");
			exit(1);
		}
#ifdef __aarch64__
		struct kvm_vcpu_init init;

		memset(&init, 0, sizeof(init));
		if (ioctl(vm, KVM_ARM_PREFERRED_TARGET, &init) ||
		    ioctl(vcpus[i], KVM_ARM_VCPU_INIT, &init)) {
			perror("a vCPU");
			exit(1);
		}
#endif
	}
	memset(&clocks, 0, sizeof(clocks));
	clocks.size = sizeof(clocks);
	clocks.vm = vm;
	clocks.vcpus = vcpus;
	clocks.count = VCPUS;
	return clocks;
}

int main(void)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	int vcpus[VCPUS];
	struct guest_clock_vm vm;
	uint8_t state[4096];
	size_t length = sizeof(state);
	char json[4096];
	struct guest_clock_options options;
	struct guest_clock_explanation explanation;

	printf("guest_clock %s, states of version %u\n", guest_clock_version(),
	       (unsigned)guest_clock_state_version());
	if (kvm < 0) {
		printf("skipped: /dev/kvm cannot be opened\n");
		return 77;
	}
	/* Before the VMM gives up its rights. */
	done(guest_clock_init(message), "init");

	vm = create(kvm, vcpus);
#ifdef __aarch64__
	done(guest_clock_save_arm64(&vm, NULL, state, &length, message), "save");
#else
	/* A VM that never ran has no master clock yet. */
	struct kvm_clock_data clock;

	memset(&clock, 0, sizeof(clock));
	if (ioctl(vm.vm, KVM_SET_CLOCK, &clock)) {
		perror("KVM_SET_CLOCK");
		return 1;
	}
	done(guest_clock_save(&vm, state, &length, message), "save");
#endif
	printf("saved %zu bytes\n", length);

	vm = create(kvm, vcpus);
	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.policy = GUEST_CLOCK_ELAPSED;
	options.limit_ns = 3600000000000;
	options.accept_inexact = 1;
	memset(&explanation, 0, sizeof(explanation));
	explanation.size = sizeof(explanation);
	done(guest_clock_plan(&vm, state, length, &options, &explanation, message), "plan");
	printf("planned: guest time advances by %llu ns\n",
	       (unsigned long long)explanation.advanced_ns);

	explanation.json = json;
	explanation.json_bytes = sizeof(json);
	done(guest_clock_restore(&vm, state, length, &options, &explanation, message), "restore");
	printf("restored: %d vCPUs at %u kHz, guest time advanced by %llu ns, bound %llu ns\n%s\n",
	       (int)explanation.vcpus, (unsigned)explanation.counter_khz,
	       (unsigned long long)explanation.advanced_ns,
	       (unsigned long long)explanation.clock_against_real_ns, json);
	return 0;
}
