// The guest: 64-bit code without an operating system, one load for all vCPUs.
// GS holds the vCPU's page. Built with -ffreestanding at CODE, and embedded into the VMM.
#include "layout.h"

__asm__(".text\n.globl _start\n_start: call run\n"
        ".balign 64\n.globl timer_handler\ntimer_handler:\n"  // at CODE + 64
        "push %rax\npush %rcx\npush %rdx\nincq %gs:0\njmp end_of_interrupt\n"
        ".balign 64\n.globl ipi_handler\nipi_handler:\n"  // at CODE + 128
        "push %rax\npush %rcx\npush %rdx\nincq %gs:8\n"
        "end_of_interrupt:\ncmpq $halt_point, 24(%rsp)\njne 1f\nincq 24(%rsp)\n1:\n"
        "mov $0x80b, %ecx\nxor %eax, %eax\nxor %edx, %edx\nwrmsr\n"
        "pop %rdx\npop %rcx\npop %rax\niretq\n");

static struct vcpu *page(u64 id) { return (struct vcpu *)(VCPUS + id * VCPU_SIZE); }
static void wrmsr(unsigned msr, u64 value) {
    __asm__ volatile("wrmsr" ::"c"(msr), "a"((unsigned)value), "d"((unsigned)(value >> 32)) : "memory");
}
static u64 now(void) {
    unsigned low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return low | (u64)high << 32;
}
static void relax(void) { __asm__ volatile("pause" ::: "memory"); }
static void work(u64 count) {
    u64 x = 1;
    for (u64 i = 0; i < count; i++) {
        x = x * 6364136223846793005UL + 1442695040888963407UL;
        __asm__ volatile("" : "+r"(x));
    }
}

// Halts until `counter` differs from `seen`. The shadow of STI keeps interrupts from HLT, but emulated
// SVM loses it at exits: handlers that return to HLT skip it.
static __attribute__((noinline, noclone)) void halt_while(volatile u64 *counter, u64 seen) {
    for (;;) {
        __asm__ volatile("cli" ::: "memory");
        if (*counter != seen) break;
        __asm__ volatile("sti\n.globl halt_point\nhalt_point: hlt" ::: "memory");
    }
    __asm__ volatile("sti" ::: "memory");
}
static void sleep_until(struct vcpu *v, u64 deadline) {
    while (now() < deadline) {
        u64 seen = v->timers;
        wrmsr(0x6e0, deadline);  // IA32_TSC_DEADLINE
        halt_while(&v->timers, seen);
    }
}
static void send_ipi(u64 id) { wrmsr(0x830, VECTOR_IPI | id << 32); }  // x2APIC ICR
static void late(struct vcpu *v, u64 due) {
    u64 time = now(), by = time > due ? time - due : 0;
    v->late_sum += by;
    v->late_count++;
    if (by > v->late_max) v->late_max = by;
}

// An exponential distribution: -ln(u) by the position of the highest bit of a random number.
static u64 random_gap(u64 *state, u64 mean) {
    u64 x = *state;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    *state = x;
    int zeros = __builtin_clzl(x);
    u64 fraction = (x << zeros << 1) >> 44;          // 20 bits behind the highest one
    u64 log2 = ((u64)(zeros + 1) << 20) - fraction;  // 20 bits behind the point
    return (mean * log2 >> 20) * 693 / 1000;
}

static void run_timer(struct vcpu *v) {
    u64 next = now(), state = (v->id + 1) * 0x9e3779b97f4a7c15UL;
    for (;;) {
        next += v->load == REQUEST ? random_gap(&state, v->period) : v->period;
        v->arrived++;
        // A bounded queue: what is 50 periods late is dropped.
        if (now() > next + 50 * v->period) {
            v->drops++;
            continue;
        }
        sleep_until(v, next);
        if (v->load == TIMER) late(v, next);
        work(v->work);
        v->ops++;
        if (v->load == REQUEST) {
            late(v, next);
            __asm__ volatile("out %%eax, %%dx" ::"a"(0), "d"(REQUEST_PORT));
        }
    }
}

// Even vCPUs interrupt their neighbour and spin until its handler has run; it computes all the time.
static void run_spin(struct vcpu *v) {
    struct vcpu *peer = page(v->id ^ 1);
    if (v->id & 1)
        for (;;) work(v->work), v->ops++;
    while (peer->ops == 0) relax();  // An IPI to an APIC that is off is dropped.
    for (;;) {
        u64 seen = peer->ipis, sent = now();
        send_ipi(v->id ^ 1);
        while (peer->ipis == seen) relax();
        late(v, sent);
        work(v->work);
        v->ops++;
    }
}

// Even vCPUs interrupt their neighbour and halt until it interrupts them.
static void run_pingpong(struct vcpu *v) {
    struct vcpu *peer = page(v->id ^ 1);
    v->answered = 1;
    while (peer->answered == 0) relax();
    for (;;) {
        u64 seen = v->ipis, sent = now();
        if (v->id & 1) {
            halt_while(&v->ipis, v->ops);
        } else {
            send_ipi(v->id ^ 1);
            halt_while(&v->ipis, seen);
            late(v, sent);
        }
        work(v->work);
        v->ops++;
        if (v->id & 1) send_ipi(v->id ^ 1);
    }
}

// All vCPUs begin together and wait for each other, spinning, after each sixth of the work.
static void run_burst(struct vcpu *v) {
    u64 next = now();
    for (;;) {
        if (v->id == 0) {
            next += v->period;
            if (now() > next + 10 * v->period) v->drops++, next = now();
            sleep_until(v, next);
            for (u64 i = 1; i < v->vcpus; i++) send_ipi(i);
        } else {
            halt_while(&v->ipis, v->ops);
        }
        for (int part = 0; part < 6; part++) {
            work(v->work / 6);
            u64 mine = ++v->generation;
            for (u64 i = 0; i < v->vcpus; i++)
                while (page(i)->generation < mine) relax();
        }
        if (v->id == 0) late(v, next);
        v->ops++;
    }
}

void run(struct vcpu *v) {
    wrmsr(0x80f, 0x1ff);                     // the APIC is on
    wrmsr(0x832, VECTOR_TIMER | 2UL << 17);  // TSC-deadline mode
    __asm__ volatile("sti");
    switch (v->load) {
    case TIMER:
    case REQUEST: run_timer(v); break;
    case SPIN: run_spin(v); break;
    case PINGPONG: run_pingpong(v); break;
    case BURST: run_burst(v); break;
    default:
        for (;;) work(v->work), v->ops++;
    }
}
