// Guest memory as the VMM and its guest share it. All times are TSC ticks.
#pragma once
typedef unsigned long u64;

enum { RAM = 2 << 20, CODE = 0x10000, STACKS = 0x40000, VCPUS = 0x80000, VCPU_SIZE = 0x1000, MAX_VCPUS = 16 };
enum { VECTOR_TIMER = 0x40, VECTOR_IPI = 0x41, REQUEST_PORT = 0x510 };
enum load { HOG, TIMER, REQUEST, SPIN, PINGPONG, BURST };

// The first two counters are raised by interrupt handlers (guest.c names their offsets).
struct vcpu {
    volatile u64 timers, ipis;
    u64 id, vcpus, load, period, work;
    volatile u64 ops, late_sum, late_max, late_count, drops;
    volatile u64 answered, generation, arrived;
};
