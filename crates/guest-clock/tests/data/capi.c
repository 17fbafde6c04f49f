/* Saves and restores the clocks of a VM that never runs, and tries what must be refused. C11 and C++. */
#include <fcntl.h>
#include <guest_clock.h>
#include <linux/filter.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static char message[GUEST_CLOCK_MESSAGE_BYTES];
static uint8_t state[4096];
static size_t length;

static void check(int ok, const char *what)
{
	printf("%s: %s %s\n", ok ? "ok" : "FAILED", what, message);
	if (!ok)
		exit(1);
}

/* The calls that docs/guest-clocks-c.md names, and what this program itself needs. */
static const unsigned calls[] = {
	SYS_mmap, SYS_munmap, SYS_brk, SYS_openat, SYS_getdents64, SYS_fstat, SYS_newfstatat,
	SYS_fcntl, SYS_readlink, SYS_close, SYS_write, SYS_exit_group,
};
static const unsigned ioctls[] = {
	KVM_GET_CLOCK, KVM_SET_CLOCK, KVM_GET_TSC_KHZ, KVM_SET_TSC_KHZ, KVM_GET_DEVICE_ATTR,
	KVM_SET_DEVICE_ATTR, KVM_KVMCLOCK_CTRL,
	/* KVM_GET_MSRS and KVM_SET_MSRS. In C++ the header's have another size: that of an empty array is 1. */
	0xc008ae88, 0x4008ae89,
};

static struct sock_filter filter[64];
static unsigned short filled;

static void add(unsigned code, unsigned k, unsigned char unequal)
{
	struct sock_filter step;

	step.code = (unsigned short)code;
	step.k = k;
	step.jt = 0;
	step.jf = unequal;
	filter[filled++] = step;
}

static void allow(const unsigned *values, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		add(BPF_JMP | BPF_JEQ | BPF_K, values[i], 1);
		add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0);
	}
}

/* From here on every other system call and every other ioctl ends the process. */
static void jail(void)
{
	struct sock_fprog program;

	add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0);
	allow(calls, LENGTH(calls));
	add(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 1);
	add(BPF_JMP | BPF_JA, 1, 0);
	add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0);
	add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1]), 0);
	allow(ioctls, LENGTH(ioctls));
	add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0);
	program.len = filled;
	program.filter = filter;
	fflush(stdout);
	check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
		      !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program),
	      "a jail");
}

/* A thread for each vCPU, as VMMs have them. It makes what it is handed. */
struct thread {
	pthread_t id;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	void (*work)(void *argument);
	void *argument;
	int ends;
	unsigned calls;
};

static void *serve(void *argument)
{
	struct thread *thread = (struct thread *)argument;

	pthread_mutex_lock(&thread->lock);
	while (!thread->ends) {
		if (thread->work) {
			thread->work(thread->argument);
			thread->calls++;
			thread->work = NULL;
			pthread_cond_broadcast(&thread->changed);
		}
		pthread_cond_wait(&thread->changed, &thread->lock);
	}
	pthread_mutex_unlock(&thread->lock);
	return NULL;
}

static void on_vcpu(void *context, size_t vcpu, void (*work)(void *argument), void *argument)
{
	struct thread *thread = (struct thread *)context + vcpu;

	pthread_mutex_lock(&thread->lock);
	thread->work = work;
	thread->argument = argument;
	pthread_cond_broadcast(&thread->changed);
	while (thread->work)
		pthread_cond_wait(&thread->changed, &thread->lock);
	pthread_mutex_unlock(&thread->lock);
}

static void forgets(void *context, size_t vcpu, void (*work)(void *argument), void *argument)
{
	(void)context, (void)vcpu, (void)work, (void)argument;
}

static void through_threads(struct guest_clock_vm vm, const struct guest_clock_options *options)
{
	struct thread threads[2];
	size_t bytes = sizeof(state);
	int got;

	memset(threads, 0, sizeof(threads));
	for (int i = 0; i < 2; i++) {
		pthread_mutex_init(&threads[i].lock, NULL);
		pthread_cond_init(&threads[i].changed, NULL);
		check(!pthread_create(&threads[i].id, NULL, serve, &threads[i]), "a vCPU's thread");
	}
	vm.context = threads;
	vm.on_vcpu = on_vcpu;
	got = guest_clock_save(&vm, state, &bytes, message);
	check(got == GUEST_CLOCK_DONE && bytes == length, "saved through threads");
	got = guest_clock_restore(&vm, state, length, options, NULL, message);
	check(got == GUEST_CLOCK_DONE, "restored through threads");
	check(threads[0].calls > 3 && threads[1].calls > 3, "both threads made ioctls");
	vm.patience_ms = 1;
	got = guest_clock_save(&vm, state, &bytes, message);
	check(got == GUEST_CLOCK_ARGUMENT && strstr(message, "patience_ms"), "a patience:");
	vm.patience_ms = 0;
	vm.on_vcpu = forgets;
	got = guest_clock_restore(&vm, state, length, options, NULL, message);
	check(got == GUEST_CLOCK_REFUSED, "work that is not called:");
	for (int i = 0; i < 2; i++) {
		pthread_mutex_lock(&threads[i].lock);
		threads[i].ends = 1;
		pthread_cond_broadcast(&threads[i].changed);
		pthread_mutex_unlock(&threads[i].lock);
		pthread_join(threads[i].id, NULL);
	}
}

/* KVM serves a VM's clocks to its own process alone. */
static void in_a_forked_child(const struct guest_clock_vm *vm,
			      const struct guest_clock_options *options)
{
	int status = -1;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		size_t bytes = sizeof(state);
		int saved = guest_clock_save(vm, state, &bytes, message);
		int has_text = strstr(message, "another process") != NULL;
		int restored = guest_clock_restore(vm, state, length, options, NULL, message);

		_exit(saved == GUEST_CLOCK_SAVE && restored == GUEST_CLOCK_REFUSED && has_text ?
			      7 :
			      1);
	}
	check(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
		      WEXITSTATUS(status) == 7,
	      "a forked child is refused");
}

static void by_value(void)
{
	struct guest_clock_values values[2];
	struct guest_clock_by_value snapshot;
	size_t bytes = sizeof(state);
	int got;

	memset(values, 0, sizeof(values));
	memset(&snapshot, 0, sizeof(snapshot));
	snapshot.size = sizeof(snapshot);
	snapshot.vcpus = values;
	snapshot.count = 2;
	snapshot.tsc_khz = 2500000;
	snapshot.clock_ns = 7000000000;
	values[0].tsc = 17500000000;
	values[1].tsc = 17500031000;
	got = guest_clock_import(&snapshot, state, &bytes, message);
	check(got == GUEST_CLOCK_ARGUMENT && strstr(message, " realtime_ns"), "no wall clock:");
	snapshot.realtime_ns = 1700000000000000000;
	got = guest_clock_import(&snapshot, state, &bytes, message);
	check(got == GUEST_CLOCK_ARGUMENT && strstr(message, "read_within_ns"), "no bound:");
	snapshot.read_within_ns = 50000;
	got = guest_clock_import(&snapshot, state, &bytes, message);
	check(got == GUEST_CLOCK_DONE && bytes > 50, "imported");
}

int main(void)
{
	char json[4096];
	size_t none = 0;
	int vcpus[2], kvm, got, zero = 0;
	uint64_t bound = 1;
	struct guest_clock_vm vm;
	struct guest_clock_options options;
	struct guest_clock_explanation explained;

	length = sizeof(state);
	memset(&vm, 0, sizeof(vm));
	memset(&options, 0, sizeof(options));
	memset(&explained, 0, sizeof(explained));
	got = guest_clock_save(&vm, state, &length, message);
	check(got == GUEST_CLOCK_ARGUMENT && strstr(message, "vm.size"), "no size:");
	vm.size = sizeof(vm);
	got = guest_clock_save(&vm, state, &length, message);
	check(got == GUEST_CLOCK_ARGUMENT && strstr(message, "vCPUs"), "no vCPUs:");
	vm.vcpus = &zero;
	vm.count = 1;
	got = guest_clock_restore(&vm, state, 8, &options, NULL, message);
	check(got == GUEST_CLOCK_ARGUMENT && strstr(message, "options.size"), "no size:");
	options.size = sizeof(options);
	options.policy = 7;
	got = guest_clock_restore(&vm, state, 8, &options, NULL, message);
	check(got == GUEST_CLOCK_ARGUMENT, "policy 7:");
	options.policy = GUEST_CLOCK_ELAPSED;
	options.limit_ns = UINT64_MAX;
	got = guest_clock_plan(&vm, state, 8, &options, &explained, message);
	check(got == GUEST_CLOCK_ARGUMENT && strstr(message, "explanation.size"), "no size:");
	explained.size = sizeof(explained);
	check(guest_clock_state_version() == 1 && strchr(guest_clock_version(), '.'), "version");
	by_value();

	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0) {
		printf("skipped: /dev/kvm cannot be opened\n");
		return 0;
	}
	for (int i = 0; i < 2; i++)
		check(guest_clock_init(message) == GUEST_CLOCK_DONE, "init");
	vm.vm = ioctl(kvm, KVM_CREATE_VM, 0);
	for (int i = 0; i < 2; i++)
		vcpus[i] = ioctl(vm.vm, KVM_CREATE_VCPU, i);
	check(vm.vm >= 0 && vcpus[1] >= 0, "a VM of two vCPUs");
	vm.vcpus = vcpus;
	vm.count = 2;
	struct kvm_clock_data data;
	memset(&data, 0, sizeof(data));
	check(ioctl(vm.vm, KVM_SET_CLOCK, &data) == 0, "its master clock");

	/* With a patience, so with a helper thread. */
	vm.patience_ms = 500;
	got = guest_clock_save(&vm, state, &none, message);
	check(got == GUEST_CLOCK_TOO_SMALL && none > 0, "no room:");
	vm.patience_ms = 0;
	length = sizeof(state);
	got = guest_clock_save(&vm, state, &length, message);
	check(got == GUEST_CLOCK_DONE && length == none && !message[0], "saved");

	got = guest_clock_plan(&vm, state, length, &options, &explained, message);
	check(got == GUEST_CLOCK_DONE && explained.vcpus == 2 && explained.json_bytes > 100 &&
		      explained.clock_residual_ns == INT64_MIN && explained.vmclock_utc_ns > 0,
	      "planned");
	through_threads(vm, &options);
	in_a_forked_child(&vm, &options);
	explained.json = json;
	jail();
	for (int i = 0; i < 2; i++) {
		explained.json_bytes = i ? sizeof(json) : 9;
		got = guest_clock_restore(&vm, state, length, &options, &explained, message);
		check(got == GUEST_CLOCK_DONE && explained.advanced_ns > 0, "restored");
		check(i ? json[0] == '{' && strlen(json) + 1 == explained.json_bytes : !json[0],
		      "explained");
	}
	vm.count = 1;
	got = guest_clock_restore(&vm, state, length, &options, NULL, message);
	check(got == GUEST_CLOCK_REFUSED && strstr(message, "2 vCPUs"), "one vCPU:");
	got = guest_clock_save(&vm, state, &none, message);
	check(got == GUEST_CLOCK_SAVE && strstr(message, "not among"), "one left out:");
	vm.count = 2;
	got = guest_clock_restore(&vm, state, length - 1, &options, NULL, message);
	check(got == GUEST_CLOCK_LOAD, "cut:");
	options.limit_ns = 0;
	got = guest_clock_restore(&vm, state, length, &options, NULL, message);
	check(got == GUEST_CLOCK_REFUSED && strstr(message, "GUEST_CLOCK_AT_MOST"),
	      "a limit of 0:");

	got = guest_clock_equalize(&vm, 1000, &bound, message);
	check(got == GUEST_CLOCK_DONE && bound == 0, "equal already");
	vcpus[1] = vcpus[0];
	got = guest_clock_save(&vm, state, &none, message);
	check(got == GUEST_CLOCK_SAVE && strstr(message, "same one"), "one twice:");
	return 0;
}
