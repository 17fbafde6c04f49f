/*
 * A VMM for the guest of yield-guest.S: yield-vmm NAME VCPUS SECONDS LOAD
 * Prints a line each second: round trips (or lock sections) and work since the last, of all vCPUs, and
 * the time in ms. Waits since the last line follow, as US:COUNT.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SIZE (2 << 20)
#define CODE 0x8000
#define HANDLER (CODE + 0x200)
#define COUNTERS 0x20000
#define WAITS 0x28000
#define BUCKETS 512
#define MAX_VCPUS 16

static int kvm, vm, run_size, load, vcpus;
static char *memory;
static struct kvm_cpuid2 *supported;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *run(void *argument)
{
	long id = (long)argument;
	int fd = ioctl(vm, KVM_CREATE_VCPU, id);
	size_t size = sizeof(*supported) + supported->nent * sizeof(supported->entries[0]);
	struct kvm_cpuid2 *cpuid = malloc(size);
	struct kvm_mp_state runnable = { 0 };
	struct kvm_segment code = {
		.limit = ~0u, .selector = 8, .type = 11, .present = 1, .l = 1, .s = 1, .g = 1,
	};
	struct kvm_segment data = code;
	struct kvm_regs regs = { .rip = CODE, .rsp = 0x40000 + 0x1000 * (id + 1), .rdi = id, .rsi = load,
				 .r8 = vcpus, .rflags = 2 };
	struct kvm_sregs sregs;
	struct kvm_run *state;
	char name[16];

	if (fd < 0)
		die("vcpu");
	snprintf(name, sizeof(name), "CPU %ld/KVM", id);
	pthread_setname_np(pthread_self(), name);
	state = mmap(0, run_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memcpy(cpuid, supported, size);
	for (unsigned i = 0; i < cpuid->nent; i++) {
		struct kvm_cpuid_entry2 *entry = &cpuid->entries[i];

		if (entry->function == 1) {
			entry->ebx = (entry->ebx & 0xffffff) | (unsigned)id << 24;
			entry->ecx |= 1 << 21;
		}
		if (entry->function == 0xb)
			entry->edx = id;
	}
	if (ioctl(fd, KVM_SET_CPUID2, cpuid) || ioctl(fd, KVM_GET_SREGS, &sregs))
		die("cpuid");
	data.type = 3;
	data.selector = 16;
	data.l = 0;
	data.db = 1;
	sregs.cr3 = 0x1000;
	sregs.cr4 = 0x20;
	sregs.cr0 = 0x80000011;
	sregs.efer = 0x500;
	sregs.apic_base = 0xfee00000 | 0xc00 | (id ? 0 : 0x100);
	sregs.cs = code;
	sregs.ds = sregs.es = sregs.ss = sregs.fs = sregs.gs = data;
	sregs.gdt.base = 0x4000;
	sregs.gdt.limit = 23;
	sregs.idt.base = 0x5000;
	sregs.idt.limit = 0xfff;
	if (ioctl(fd, KVM_SET_SREGS, &sregs) || ioctl(fd, KVM_SET_REGS, &regs) ||
	    ioctl(fd, KVM_SET_MP_STATE, &runnable))
		die("registers");
	for (;;) {
		if (ioctl(fd, KVM_RUN, 0) < 0)
			continue;
		ioctl(fd, KVM_GET_REGS, &regs);
		fprintf(stderr, "vCPU %ld: exit %d at %llx\n", id, state->exit_reason, regs.rip);
		exit(2);
	}
}

/* Prints the waits of all vCPUs that the last call has not printed. A bucket is named by its lower bound. */
static void print_waits(long khz)
{
	static unsigned seen[BUCKETS];

	for (int bucket = 24; bucket < BUCKETS; bucket++) {
		unsigned sum = 0;
		double cycles = (8 + bucket % 8) * (double)(1ull << (bucket / 8)) / 8;

		for (int id = 0; id < vcpus; id++)
			sum += ((volatile unsigned *)(memory + WAITS))[id * BUCKETS + bucket];
		if (sum != seen[bucket])
			printf(" %.1f:%u", cycles * 1000 / khz, sum - seen[bucket]);
		seen[bucket] = sum;
	}
}

int main(int count, char **arguments)
{
	struct kvm_enable_cap x2apic = { .cap = KVM_CAP_X2APIC_API, .args = { 3 } };
	struct kvm_userspace_memory_region region = { .memory_size = SIZE };
	unsigned long long *words, seen[2] = { 0 };
	int seconds;
	long khz;
	struct timespec now;
	FILE *guest;

	if (count != 5)
		return 2;
	vcpus = atoi(arguments[2]);
	seconds = atoi(arguments[3]);
	load = !strcmp(arguments[4], "hog") ? 1 : !strcmp(arguments[4], "lock") ? 2 : 0;
	if (!strcmp(arguments[4], "tlb"))
		load = 3;
	if (!strcmp(arguments[4], "pv"))
		load = 5;
	if (!strcmp(arguments[4], "spin"))
		load = 4;
	if (vcpus < 1 + (load == 3 || load == 5) || vcpus > MAX_VCPUS)
		return 2;
	kvm = open("/dev/kvm", O_RDWR);
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0)
		die("/dev/kvm");
	khz = ioctl(vm, KVM_GET_TSC_KHZ, 0);
	if (khz <= 0)
		die("KVM_GET_TSC_KHZ");
	run_size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	ioctl(vm, KVM_SET_TSS_ADDR, 0xfffbd000);
	if (ioctl(vm, KVM_CREATE_IRQCHIP, 0) || ioctl(vm, KVM_ENABLE_CAP, &x2apic))
		die("irqchip");
	memory = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	region.userspace_addr = (unsigned long)memory;
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region))
		die("memory");
	supported = calloc(1, sizeof(*supported) + 256 * sizeof(supported->entries[0]));
	supported->nent = 256;
	if (ioctl(kvm, KVM_GET_SUPPORTED_CPUID, supported))
		die("cpuid");
	/* Page tables that map the first GB, two segments, and the gate of vector 0x40. */
	words = (void *)memory;
	words[0x1000 / 8] = 0x2003;
	words[0x2000 / 8] = 0x3003;
	words[0x3000 / 8] = 0x83;
	words[0x4000 / 8 + 1] = 0x00af9b000000ffff;
	words[0x4000 / 8 + 2] = 0x00cf93000000ffff;
	words[0x5000 / 8 + 0x40 * 2] = (HANDLER & 0xffff) | 8ull << 16 | 0x8e00ull << 32;
	guest = fopen(GUEST, "r");
	if (!guest || !fread(memory + CODE, 1, 0x1000, guest))
		die(GUEST);
	for (long id = 0; id < vcpus; id++) {
		pthread_t thread;

		pthread_create(&thread, 0, run, (void *)id);
	}
	for (int second = 0; second < seconds; second++) {
		unsigned long long sums[2] = { 0 };

		sleep(1);
		for (int id = 0; id < vcpus; id++) {
			volatile unsigned long long *counters = (void *)(memory + COUNTERS + 64 * id);

			sums[0] += counters[1];
			sums[1] += counters[2];
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
		printf("%s %llu %llu %lld", arguments[1], sums[0] - seen[0], sums[1] - seen[1],
		       now.tv_sec * 1000LL + now.tv_nsec / 1000000);
		print_waits(khz);
		putchar('\n');
		fflush(stdout);
		memcpy(seen, sums, sizeof(seen));
	}
	return 0;
}
