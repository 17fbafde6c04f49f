/* What the extracted functions of the kernel need of it, for one thread in user space. Each access to shared
 * memory is a point at which another agent may run: access_point(). With NATIVE it is the kernel's instruction,
 * to be counted (native.h). */
#include <errno.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
#define __init
#define __packed __attribute__((packed))
#define __aligned(n) __attribute__((aligned(n)))
#define BIT(n) (1UL << (n))
#define BIT_ULL(n) (1ULL << (n))
#define BITS_PER_LONG 64
#define BITS_TO_LONGS(n) (((n) + 63) / 64)
#define DECLARE_BITMAP(name, bits) unsigned long name[BITS_TO_LONGS(bits)]
#define for_each_set_bit(bit, map, size) \
	for ((bit) = 0; (bit) < (size); (bit)++) \
		if ((map)[(bit) / 64] >> ((bit) % 64) & 1)
#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))
#define WARN(condition, ...) ({ bool warned_ = (condition); if (warned_) flaw(#condition); warned_; })
#define WARN_ON(condition) WARN(condition)
#define WARN_ON_ONCE(condition) WARN(condition)
#define BUG_ON(condition) WARN(condition)
#define static_assert _Static_assert
#define BUILD_BUG_ON(x)

void flaw(const char *what);
#ifdef NATIVE
#include "native.h"
#else
#define unlikely(x) (x)
#define likely(x) (x)
void access_point(const char *what);
/* The same, if another agent accesses that word. */
void access_to(const volatile void *word, const char *what);

/* Atomics. One step each: what a sequentially consistent machine does, every machine can do. */
#define READ_ONCE(x) ({ access_to(&(x), "read " #x); (x); })
#define WRITE_ONCE(x, value) ({ access_to(&(x), "write " #x); (x) = (value); })
#define smp_load_acquire(p) READ_ONCE(*(p))
#define smp_store_release(p, value) WRITE_ONCE(*(p), value)
#define smp_mb() ((void)0)
#define smp_mb__after_atomic() ((void)0)
#define smp_wmb() ((void)0)
#define smp_rmb() ((void)0)
#define barrier() ((void)0)

static inline unsigned long *word_of(long bit, volatile unsigned long *map)
{
	return (unsigned long *)map + bit / 64;
}
static inline void set_bit(long bit, volatile unsigned long *map)
{
	access_to(word_of(bit, map), "set a bit");
	*word_of(bit, map) |= 1UL << bit % 64;
}
static inline void clear_bit(long bit, volatile unsigned long *map)
{
	access_to(word_of(bit, map), "clear a bit");
	*word_of(bit, map) &= ~(1UL << bit % 64);
}
static inline bool test_bit(long bit, const volatile unsigned long *map)
{
	access_to(word_of(bit, (volatile unsigned long *)map), "test a bit");
	return *word_of(bit, (volatile unsigned long *)map) >> bit % 64 & 1;
}
static inline bool test_and_set_bit(long bit, volatile unsigned long *map)
{
	access_to(word_of(bit, map), "test and set a bit");
	bool old = *word_of(bit, map) >> bit % 64 & 1;
	*word_of(bit, map) |= 1UL << bit % 64;
	return old;
}
static inline bool test_and_clear_bit(long bit, volatile unsigned long *map)
{
	access_to(word_of(bit, map), "test and clear a bit");
	bool old = *word_of(bit, map) >> bit % 64 & 1;
	*word_of(bit, map) &= ~(1UL << bit % 64);
	return old;
}
static inline void __set_bit(long bit, volatile unsigned long *map)
{
	*word_of(bit, map) |= 1UL << bit % 64;
}
static inline bool bitmap_empty(const unsigned long *map, unsigned int bits)
{
	/* Word by word in the kernel: a posted vector of the harness lies in one of them. */
	access_point("read PIR");
	for (unsigned int n = 0; n < bits / 64; n++)
		if (map[n])
			return false;
	return true;
}
#define xchg(p, value) ({ access_to(p, "exchange"); __typeof__(*(p)) old_ = *(p); *(p) = (value); old_; })
#define arch_xchg xchg
#define raw_atomic_xchg xchg
#define try_cmpxchg64(p, expected, value) ({ \
	access_to(p, "compare and exchange"); \
	bool same_ = *(p) == *(expected); \
	if (same_) *(p) = (value); else *(expected) = *(p); \
	same_; })
#endif

/* Lists, as far as the wakeup lists need them. */
struct list_head { struct list_head *next, *prev; };
static inline void INIT_LIST_HEAD(struct list_head *head) { head->next = head->prev = head; }
static inline void list_add_tail(struct list_head *entry, struct list_head *head)
{
#ifndef NATIVE
	/* As CONFIG_DEBUG_LIST has it. */
	if (entry->next) {
		flaw("list_add: the vCPU is on a wakeup list already");
		return;
	}
#endif
	entry->prev = head->prev; entry->next = head;
	head->prev->next = entry; head->prev = entry;
}
static inline void list_del(struct list_head *entry)
{
	entry->prev->next = entry->next;
	entry->next->prev = entry->prev;
	entry->next = entry->prev = NULL;
}
#define list_for_each_entry(entry, head, member) \
	for (entry = container_of((head)->next, __typeof__(*entry), member); &entry->member != (head); \
	     entry = container_of(entry->member.next, __typeof__(*entry), member))

/* CPUs: a section with interrupts off runs as one step of its CPU, but other CPUs run in between. */
#define CPUS 2
extern int this_cpu;
extern bool interrupts_off[CPUS];
#define DEFINE_PER_CPU(type, name) type name[CPUS]
#define per_cpu(name, cpu) ((name)[cpu])
#define smp_processor_id() (this_cpu)
#ifdef NATIVE
#define local_irq_save(flags) ((void)(flags))
#define local_irq_restore(flags) ((void)(flags))
#else
#define local_irq_save(flags) \
	((void)((flags) = interrupts_off[this_cpu]), (void)(interrupts_off[this_cpu] = true))
#define local_irq_restore(flags) ((void)(interrupts_off[this_cpu] = (flags)))
#endif
#define lockdep_assert_irqs_disabled() ((void)0)
#define irqs_disabled() (interrupts_off[this_cpu])
#define cpu_physical_id(cpu) (0x10u + (cpu))
static const bool x2apic_mode = true;

struct dep_map { int unused; };
typedef struct { bool taken; struct dep_map dep_map; } raw_spinlock_t;
#ifndef NATIVE
void take_lock(raw_spinlock_t *lock);
#define raw_spin_unlock(lock) ((lock)->taken = false)
#endif
#define raw_spin_lock_init(lock) ((lock)->taken = false)
#define raw_spin_lock(lock) take_lock(lock)
#define raw_spin_lock_nested(lock, depth) take_lock(lock)
#define spin_release(map, ip) ((void)0)
#define spin_acquire(map, a, b, ip) ((void)0)
#define SINGLE_DEPTH_NESTING 1
#define _RET_IP_ 0

/* The task of the vCPU. */
enum { TASK_RUNNING, TASK_INTERRUPTIBLE };
struct task_struct { int state; };
struct rcuwait { struct task_struct *task; };
extern struct task_struct vcpu_task;
#define current (&vcpu_task)
#define set_current_state(value) ({ access_point("write the task's state"); vcpu_task.state = (value); })
static inline void prepare_to_rcuwait(struct rcuwait *wait)
{
	access_point("publish the waiter");
	wait->task = current;
}
static inline void finish_rcuwait(struct rcuwait *wait)
{
	access_point("remove the waiter");
	wait->task = NULL;
	vcpu_task.state = TASK_RUNNING;
}
#ifndef NATIVE
static inline bool rcuwait_wake_up(struct rcuwait *wait)
{
	access_point("read the waiter");
	struct task_struct *task = wait->task;
	if (!task)
		return false;
	access_point("wake the task");
	bool slept = task->state != TASK_RUNNING;
	task->state = TASK_RUNNING;
	return slept;
}
#endif
extern int preempt_count;
#define preempt_disable() ((void)preempt_count++)
#define preempt_enable() ((void)preempt_count--)
#define signal_pending(task) false
void schedule(void);

/* KVM's structures and helpers, as far as the functions use them. */
#define POSTED_INTR_VECTOR 0xf2
#define POSTED_INTR_WAKEUP_VECTOR 0xf1
#define NR_VECTORS 256
#include "asm/posted_intr.h"

enum { OUTSIDE_GUEST_MODE, IN_GUEST_MODE, EXITING_GUEST_MODE };
#define KVM_REQ_EVENT 0
#define KVM_REQ_UNBLOCK 1
struct kvm_vcpu;
struct kvm {
	int srcu;
	struct { unsigned long nr_possible_bypass_irqs; } arch;
	/* The only one. */
	struct kvm_vcpu *vcpu;
};
struct kvm_lapic { void *regs; bool apicv_active, irr_pending; };
struct vcpu_vt { struct pi_desc pi_desc; struct list_head pi_wakeup_list; };
struct kvm_vcpu {
	struct kvm *kvm;
	int cpu, mode;
	bool preempted, ready;
	struct { struct { long blocking, halt_wakeup; } generic; } stat;
	struct rcuwait wait;
	unsigned long requests, irr[4];
	struct { struct kvm_lapic *apic; } arch;
	struct vcpu_vt vt;
};
/* Whether the IOMMU can post, and the processor. */
extern bool bypass, ipiv;
#ifndef NATIVE
static const bool enable_apicv = true;
#endif
#define to_vt(vcpu) (&(vcpu)->vt)
#define vt_to_vcpu(vt_) container_of(vt_, struct kvm_vcpu, vt)
#define lapic_in_kernel(vcpu) true
#define irqchip_in_kernel(kvm) true
#define kvm_arch_has_irq_bypass() bypass
#define vmx_can_use_ipiv(vcpu) ipiv
#define is_td_vcpu(vcpu) false
#define tdx_interrupt_allowed(vcpu) true
#define vmx_interrupt_blocked(vcpu) false
#define is_guest_mode(vcpu) false
#ifndef NATIVE
#define kvm_vcpu_apicv_active(vcpu) true
#define vmx_set_rvi(vector) ((void)(vector))
#define kvm_get_running_vcpu() NULL
#endif
#define KVM_BUG_ON(condition, kvm) WARN(condition)
#define kvm_arch_vcpu_blocking(vcpu) ((void)0)
#define kvm_arch_vcpu_unblocking(vcpu) ((void)0)
#define kvm_cpu_has_pending_timer(vcpu) false
#define srcu_read_lock(srcu) 0
#define srcu_read_unlock(srcu, index) ((void)(index))
#define get_cpu_mask(cpu) (cpu)
void send_ipi(int cpu, int vector);
#define __apic_send_IPI_mask(cpu, vector) send_ipi(cpu, vector)
#define __apic_send_IPI_self(vector) send_ipi(this_cpu, vector)
static inline struct rcuwait *kvm_arch_vcpu_get_wait(struct kvm_vcpu *vcpu) { return &vcpu->wait; }
#define kvm_vcpu_is_blocking(vcpu) ((vcpu)->wait.task != NULL)
#define __kvm_vcpu_wake_up(vcpu) rcuwait_wake_up(kvm_arch_vcpu_get_wait(vcpu))
#define kvm_make_request(request, vcpu) __set_bit(request, &(vcpu)->requests)
#define __kvm_make_request(request, vcpu) set_bit(request, &(vcpu)->requests)
#define KVM_REQUEST_NO_WAKEUP BIT(8)
#define KVM_REQUEST_WAIT BIT(9)
#define KVM_REQUEST_NO_ACTION BIT(10)
/* No vCPU is in guest mode: none has to leave it. */
struct cpumask { int unused; };
#define kvm_request_needs_ipi(vcpu, request) false
#define kvm_kick_many_cpus(cpus, wait) ((void)(cpus), false)
#define __cpumask_set_cpu(cpu, mask) ((void)(mask))
#define cpumask_clear(mask) ((void)(mask))
#define this_cpu_cpumask_var_ptr(name) NULL
#define get_cpu() (this_cpu)
#define put_cpu() ((void)0)
#define kvm_for_each_vcpu(n, each, kvm) for ((n) = 0, (each) = (kvm)->vcpu; (n) < 1; (n)++)
bool kvm_make_all_cpus_request(struct kvm *kvm, unsigned int req);
static inline bool kvm_check_request(int request, struct kvm_vcpu *vcpu)
{
	return test_bit(request, &vcpu->requests) && test_and_clear_bit(request, &vcpu->requests);
}
#ifndef NATIVE
static inline int kvm_lapic_find_highest_irr(struct kvm_vcpu *vcpu)
{
	for (int vector = 255; vector >= 0; vector--)
		if (vcpu->irr[vector / 64] >> (vector % 64) & 1)
			return vector;
	return -1;
}
static inline bool kvm_apic_update_irr(struct kvm_vcpu *vcpu, unsigned long *pir, int *max_irr)
{
	unsigned long taken[NR_PIR_WORDS];
	bool any = pi_harvest_pir(pir, taken);
	for (int n = 0; any && n < NR_PIR_WORDS; n++)
		vcpu->irr[n] |= taken[n];
	*max_irr = kvm_lapic_find_highest_irr(vcpu);
	return any;
}
#endif
int vmx_sync_pir_to_irr(struct kvm_vcpu *vcpu);
#define kvm_arch_vcpu_runnable(vcpu) (vmx_sync_pir_to_irr(vcpu) >= 0)
bool kvm_vcpu_wake_up(struct kvm_vcpu *vcpu);
