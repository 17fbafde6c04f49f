/* The kernel's own instructions for accesses that several CPUs make (arch/x86/include/asm/bitops.h, cmpxchg.h,
 * barrier.h), and the declarations that its LAPIC needs. Included by stubs.h to count instructions. */
#define unlikely(x) __builtin_expect(!!(x), 0)
#define likely(x) __builtin_expect(!!(x), 1)
#define access_point(what) ((void)0)
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))
#define barrier() asm volatile("" ::: "memory")
#define smp_load_acquire(p) ({ __typeof__(*(p)) value_ = READ_ONCE(*(p)); barrier(); value_; })
#define smp_store_release(p, value) ({ barrier(); WRITE_ONCE(*(p), value); })
#define smp_mb() asm volatile("lock addl $0, -4(%%rsp)" ::: "memory", "cc")
#define smp_mb__after_atomic() barrier()
#define smp_wmb() barrier()
#define smp_rmb() barrier()
#define rcu_dereference(p) READ_ONCE(p)
#define rcu_read_lock() ((void)0)
#define rcu_read_unlock() ((void)0)

#define BIT_BYTE(bit, map) (((volatile u8 *)(map))[(bit) / 8])
static __attribute__((always_inline)) inline void set_bit(long bit, volatile unsigned long *map)
{
	if (__builtin_constant_p(bit))
		asm volatile("lock orb %b1, %0" : "+m"(BIT_BYTE(bit, map)) : "iq"(1 << (bit & 7)) : "memory");
	else
		asm volatile("lock btsq %1, %0" : "+m"(*map) : "Ir"(bit) : "memory");
}
static __attribute__((always_inline)) inline void clear_bit(long bit, volatile unsigned long *map)
{
	if (__builtin_constant_p(bit))
		asm volatile("lock andb %b1, %0" : "+m"(BIT_BYTE(bit, map)) : "iq"(~(1 << (bit & 7))) : "memory");
	else
		asm volatile("lock btrq %1, %0" : "+m"(*map) : "Ir"(bit) : "memory");
}
#define LOCKED_TEST(operation, bit, map) ({ \
	bool carry_; \
	asm volatile("lock " operation " %2, %0" : "+m"(*(map)), "=@ccc"(carry_) : "Ir"((long)(bit)) : "memory"); \
	carry_; })
#define test_and_set_bit(bit, map) LOCKED_TEST("btsq", bit, map)
#define test_and_clear_bit(bit, map) LOCKED_TEST("btrq", bit, map)
static __attribute__((always_inline)) inline bool test_bit(long bit, const volatile unsigned long *map)
{
	return map[bit / 64] >> (bit % 64) & 1;
}
static inline void __set_bit(long bit, volatile unsigned long *map) { map[bit / 64] |= 1UL << bit % 64; }
/* bitmap_empty() of 256 bits is a call: the first set bit is beyond the last one. */
static __attribute__((noipa)) unsigned long _find_first_bit(const unsigned long *map, unsigned long bits)
{
	for (unsigned long n = 0; n * 64 < bits; n++)
		if (map[n])
			return n * 64 + __builtin_ctzl(map[n]);
	return bits;
}
#define bitmap_empty(map, bits) (_find_first_bit(map, bits) == (bits))
#define xchg(p, value) ({ \
	__typeof__(*(p)) old_ = (value); \
	asm volatile("xchg %0, %1" : "+r"(old_), "+m"(*(p)) : : "memory"); \
	old_; })
#define arch_xchg xchg
#define try_cmpxchg(p, expected, value) ({ \
	bool same_; \
	__typeof__(*(p)) old_ = *(expected); \
	asm volatile("lock cmpxchg %3, %1" : "=@ccz"(same_), "+m"(*(p)), "+a"(old_) \
		     : "r"((__typeof__(*(p)))(value)) : "memory"); \
	if (unlikely(!same_)) *(expected) = old_; \
	likely(same_); })
#define try_cmpxchg64 try_cmpxchg
static __attribute__((always_inline)) inline unsigned long __fls(unsigned long word)
{
	asm("bsr %1, %0" : "=r"(word) : "rm"(word));
	return word;
}

/* The fast path of a queued spinlock, and its release. */
#define take_lock(lock) ({ \
	bool free_ = false; \
	if (unlikely(!try_cmpxchg(&(lock)->taken, &free_, true))) flaw("a lock that is taken"); })
#define raw_spin_unlock(lock) smp_store_release(&(lock)->taken, false)

#define APIC_IRR 0x200
#define MAX_APIC_VECTOR 256
#define APIC_VECTORS_PER_REG 32
#define APIC_VECTOR_TO_REG_OFFSET(v) ((unsigned int)(v) / 32 * 0x10)
extern bool enable_apicv;
#define kvm_vcpu_apicv_active(vcpu) ((vcpu)->arch.apic->apicv_active)
/* A VMCS field that is a word in memory. */
#define GUEST_INTR_STATUS 0
extern u16 vmcs_status;
#define vmcs_read16(field) READ_ONCE(vmcs_status)
#define vmcs_write16(field, value) WRITE_ONCE(vmcs_status, value)
extern struct kvm_vcpu *running_vcpu;
#define kvm_get_running_vcpu() READ_ONCE(running_vcpu)
struct task_struct;
int wake_up_process(struct task_struct *task);

/* vcpu_enter_guest(): no work of the thread is pending. SRCU's own counters are left out. */
#define kvm_vcpu_srcu_read_unlock(vcpu) smp_mb()
#define kvm_vcpu_srcu_read_lock(vcpu) ((void)0)
#define smp_mb__after_srcu_read_unlock() barrier()
#define kvm_lapic_enabled(vcpu) true
#define kvm_x86_call(function) vmx_##function
#define local_irq_enable() ((void)0)
#define xfer_to_guest_mode_prepare() ((void)0)
#define xfer_to_guest_mode_work_pending() false
#define kvm_request_pending(vcpu) READ_ONCE((vcpu)->requests)
/* No nested guest is active. */
#define vmx_deliver_nested_posted_interrupt(vcpu, vector) (-1)
