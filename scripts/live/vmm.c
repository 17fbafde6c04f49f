// A VMM of 150 lines for scripts/test-live: it is called and it names its threads as QEMU.
//
//   qemu-system-x86_64 -accel kvm -name guest=web,debug-threads=on -smp 2 -load timer:5000:20000 -ram FILE
//   qemu-system-x86_64 counters FILE...
//   qemu-system-x86_64 hold
//
// -load NAME:PERIOD_US:WORK, NAME of hog, timer, request, spin, pingpong, burst. Guest memory is FILE,
// so that anyone may read the guest's counters while it runs.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "layout.h"

__asm__(".section .rodata\nguest_code: .incbin \"" GUEST "\"\nguest_end: .byte 0\n.text\n");
extern const char guest_code[], guest_end[];

static const char *LOADS[] = {"hog", "timer", "request", "spin", "pingpong", "burst"};
static int kvm, vm, run_size;
static char *ram;
static struct kvm_cpuid2 *cpuid;
static u64 vcpus = 1, load, period_us = 10000, loops = 10000;

static void die(const char *what) {
    perror(what);
    exit(1);
}
static int call(int fd, unsigned long request, u64 argument, const char *what) {
    int result = ioctl(fd, request, argument);
    if (result < 0) die(what);
    return result;
}
static struct vcpu *page(char *memory, u64 id) { return (struct vcpu *)(memory + VCPUS + id * VCPU_SIZE); }

// 64-bit mode, one page of 2 MiB, GS at the vCPU's page, x2APIC.
static void set_registers(int fd, u64 id) {
    struct kvm_sregs s;
    call(fd, KVM_GET_SREGS, (u64)&s, "KVM_GET_SREGS");
    s.cr3 = 0x1000, s.cr4 = 0x20, s.cr0 = 0x80000011, s.efer = 0x500;
    s.apic_base = 0xfee00000 | 0xc00 | (id ? 0 : 0x100);
    struct kvm_segment code = {.limit = ~0u, .selector = 8, .type = 11, .present = 1, .l = 1, .s = 1, .g = 1};
    struct kvm_segment data = {.limit = ~0u, .selector = 16, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1};
    s.cs = code;
    s.ds = s.es = s.ss = s.fs = s.gs = data;
    s.gs.base = VCPUS + id * VCPU_SIZE;
    s.gdt.base = 0x4000, s.gdt.limit = 23, s.idt.base = 0x5000, s.idt.limit = 0xfff;
    call(fd, KVM_SET_SREGS, (u64)&s, "KVM_SET_SREGS");
    struct kvm_regs r = {.rip = CODE, .rsp = STACKS + 0x1000 * (id + 1), .rdi = s.gs.base, .rflags = 2};
    call(fd, KVM_SET_REGS, (u64)&r, "KVM_SET_REGS");
    struct kvm_mp_state running = {0};
    call(fd, KVM_SET_MP_STATE, (u64)&running, "KVM_SET_MP_STATE");
}

static void *run_vcpu(void *argument) {
    u64 id = (u64)argument;
    char name[16];
    snprintf(name, sizeof name, "CPU %lu/KVM", id);
    pthread_setname_np(pthread_self(), name);
    int fd = call(vm, KVM_CREATE_VCPU, id, "KVM_CREATE_VCPU");
    struct kvm_run *run = mmap(0, run_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    size_t size = sizeof *cpuid + cpuid->nent * sizeof *cpuid->entries;
    struct kvm_cpuid2 *own = memcpy(malloc(size), cpuid, size);
    for (unsigned i = 0; i < own->nent; i++) {
        struct kvm_cpuid_entry2 *entry = &own->entries[i];
        if (entry->function == 1) {
            entry->ebx = (entry->ebx & 0xffffff) | id << 24;
            entry->ecx |= 1 << 21 | 1 << 24;  // x2APIC, TSC deadline
        }
        if (entry->function == 0xb) entry->edx = id;
    }
    call(fd, KVM_SET_CPUID2, (u64)own, "KVM_SET_CPUID2");
    set_registers(fd, id);
    struct vcpu *v = page(ram, id);
    u64 khz = call(fd, KVM_GET_TSC_KHZ, 0, "KVM_GET_TSC_KHZ");
    v->id = id, v->vcpus = vcpus, v->load = load, v->work = loops, v->period = period_us * khz / 1000;
    for (;;) {
        if (ioctl(fd, KVM_RUN, 0) < 0) continue;
        if (run->exit_reason == KVM_EXIT_IO) continue;
        fprintf(stderr, "vCPU %lu: exit %u\n", id, run->exit_reason);
        exit(2);
    }
}

static void make_vm(const char *path) {
    kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0) die("/dev/kvm");
    vm = call(kvm, KVM_CREATE_VM, 0, "KVM_CREATE_VM");
    run_size = call(kvm, KVM_GET_VCPU_MMAP_SIZE, 0, "KVM_GET_VCPU_MMAP_SIZE");
    call(vm, KVM_SET_TSS_ADDR, 0xfffbd000, "KVM_SET_TSS_ADDR");
    call(vm, KVM_CREATE_IRQCHIP, 0, "KVM_CREATE_IRQCHIP");
    struct kvm_enable_cap x2apic = {.cap = KVM_CAP_X2APIC_API, .args = {3}};
    call(vm, KVM_ENABLE_CAP, (u64)&x2apic, "KVM_CAP_X2APIC_API");
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || ftruncate(file, RAM)) die(path);
    ram = mmap(0, RAM, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (ram == MAP_FAILED) die(path);
    struct kvm_userspace_memory_region region = {.memory_size = RAM, .userspace_addr = (u64)ram};
    call(vm, KVM_SET_USER_MEMORY_REGION, (u64)&region, "KVM_SET_USER_MEMORY_REGION");
    cpuid = calloc(1, sizeof *cpuid + 256 * sizeof *cpuid->entries);
    cpuid->nent = 256;
    call(kvm, KVM_GET_SUPPORTED_CPUID, (u64)cpuid, "KVM_GET_SUPPORTED_CPUID");
    u64 *q = (u64 *)ram;
    q[0x1000 / 8] = 0x2003, q[0x2000 / 8] = 0x3003, q[0x3000 / 8] = 0x83;
    q[0x4000 / 8 + 1] = 0x00af9b000000ffff, q[0x4000 / 8 + 2] = 0x00cf93000000ffff;
    for (u64 i = 0; i < 2; i++) {
        u64 handler = CODE + 64 * (i + 1), gate = 0x5000 / 8 + 2 * (VECTOR_TIMER + i);
        q[gate] = (handler & 0xffff) | 8ul << 16 | 0x8e00ul << 32 | (handler >> 16 & 0xffff) << 48;
    }
    memcpy(ram + CODE, guest_code, guest_end - guest_code);
}

// Keeps a vCPU that never runs, so that KVM's static keys (a virtual machine, an APIC that is off) stay as
// they are. The process that made it ends: it is no VM of anyone.
static int hold(void) {
    make_vm("/tmp/held");
    call(vm, KVM_CREATE_VCPU, 0, "KVM_CREATE_VCPU");
    if (fork()) return 0;
    close(vm);
    close(kvm);
    setsid();
    for (;;) pause();
}

static int print_counters(int count, char **paths) {
    for (int i = 0; i < count; i++) {
        int file = open(paths[i], O_RDONLY);
        char *memory = mmap(0, RAM, PROT_READ, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED) die(paths[i]);
        for (u64 id = 0; id < page(memory, 0)->vcpus; id++) {
            struct vcpu *v = page(memory, id);
            printf("%s vcpu=%lu load=%s ops=%lu drops=%lu late_sum=%lu late_count=%lu late_max=%lu\n", paths[i],
                   id, LOADS[v->load], v->ops, v->drops, v->late_sum, v->late_count, v->late_max);
        }
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "counters")) return print_counters(count - 2, arguments + 2);
    if (count > 1 && !strcmp(arguments[1], "hold")) return hold();
    const char *path = "/tmp/ram";
    for (int i = 1; i + 1 < count; i++) {
        char *value = arguments[i + 1], name[16] = "";
        if (!strcmp(arguments[i], "-smp")) vcpus = strtoul(value, 0, 10);
        if (!strcmp(arguments[i], "-ram")) path = value;
        if (strcmp(arguments[i], "-load")) continue;
        sscanf(value, "%15[a-z]:%lu:%lu", name, &period_us, &loops);
        while (load < 5 && strcmp(name, LOADS[load])) load++;
    }
    if (vcpus > MAX_VCPUS) vcpus = MAX_VCPUS;
    make_vm(path);
    for (u64 id = 0; id < vcpus; id++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, run_vcpu, (void *)id)) die("pthread_create");
    }
    for (;;) usleep(100000);  // The main loop of a VMM wakes now and then.
}
