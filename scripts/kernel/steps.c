/* Random operations of a vCPU's thread, of posters and of the wakeup interrupt, one after the other, on the
 * kernel's own functions. Prints each with the state after it. The example posted_steps of
 * stealtime-hypervisor repeats them. Run by scripts/kernel-harness. */
#include "stubs.h"
#include "extracted.c"

#define VECTOR 0x52
#define VECTORS 4

int this_cpu, preempt_count;
bool interrupts_off[CPUS], bypass, ipiv;
struct task_struct vcpu_task;
static struct kvm kvm;
static struct kvm_vcpu vcpu;
static bool is_loaded, in_guest;
/* The last IPI; vector 0: none. */
static int ipi_cpu, ipi_vector;

/* One operation after the other: no other agent runs in between. */
void access_point(const char *what) { (void)what; }
void access_to(const volatile void *word, const char *what) { (void)word; (void)what; }
void take_lock(raw_spinlock_t *lock) { lock->taken = true; }
void schedule(void) {}
void flaw(const char *what)
{
	fprintf(stderr, "a warning of the kernel: %s\n", what);
	exit(2);
}
void send_ipi(int cpu, int vector)
{
	ipi_cpu = cpu;
	ipi_vector = vector;
}

static uint64_t random_state = 1;
static unsigned int below(unsigned int bound)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return (random_state * 0x2545f4914f6cdd1dULL >> 33) % bound;
}

static bool waits(void) { return vcpu.wait.task && vcpu_task.state != TASK_RUNNING; }

/* What VT-d does, in one step. */
static void post_by_device(int vector)
{
	struct pi_desc *desc = &vcpu.vt.pi_desc;
	__set_bit(vector, desc->pir);
	if (desc->notifications & (BIT(POSTED_INTR_ON) | BIT(POSTED_INTR_SN)))
		return;
	desc->notifications |= BIT(POSTED_INTR_ON);
	send_ipi(desc->ndst - cpu_physical_id(0), desc->nv);
}

static void load(int cpu)
{
	this_cpu = cpu;
	vmx_vcpu_pi_load(&vcpu, cpu);
	vcpu.cpu = cpu;
	vcpu.preempted = false;
	is_loaded = true;
}

static void put(bool preempted)
{
	vcpu.preempted = preempted;
	interrupts_off[this_cpu] = true;
	vmx_vcpu_pi_put(&vcpu);
	interrupts_off[this_cpu] = false;
	is_loaded = false;
}

/* One turn of kvm_vcpu_block(). */
static void check(void)
{
	set_current_state(TASK_INTERRUPTIBLE);
	if (kvm_vcpu_check_block(&vcpu) < 0)
		finish_rcuwait(&vcpu.wait);
}

static void enter(void)
{
	vcpu.mode = IN_GUEST_MODE;
	vmx_sync_pir_to_irr(&vcpu);
	in_guest = true;
}

static void leave(void)
{
	vcpu.mode = OUTSIDE_GUEST_MODE;
	in_guest = false;
}

/* Whether the operation is possible; then it is done and named. */
static bool step(void)
{
	int operand = below(CPUS), vector = VECTOR + below(VECTORS);
	bool blocking = kvm_vcpu_is_blocking(&vcpu);
	ipi_vector = 0;
	switch (below(10)) {
	case 0:
		if (is_loaded || (waits() && !vcpu.preempted))
			return false;
		load(operand);
		return printf("load %d", operand);
	case 1:
		/* A task that still waits sleeps, any other one is preempted. */
		if (!is_loaded || in_guest || (!operand && blocking && !waits()))
			return false;
		put(operand);
		return printf("put %d", operand);
	case 2:
		if (!is_loaded || in_guest || blocking)
			return false;
		prepare_to_rcuwait(&vcpu.wait);
		check();
		return printf("block");
	case 3:
		if (!is_loaded || !blocking)
			return false;
		check();
		return printf("check");
	case 4:
		if (!is_loaded || blocking || in_guest)
			return false;
		enter();
		return printf("enter");
	case 5:
		if (!in_guest)
			return false;
		leave();
		return printf("leave");
	case 6:
		if (!is_loaded || blocking)
			return false;
		memset(vcpu.irr, 0, sizeof(vcpu.irr));
		return printf("take");
	case 7:
		__vmx_deliver_posted_interrupt(&vcpu, &vcpu.vt.pi_desc, vector);
		return printf("post %d", vector);
	case 8:
		if (!bypass)
			return false;
		post_by_device(vector);
		return printf("device %d", vector);
	default: {
		int cpu = this_cpu;
		this_cpu = operand;
		pi_wakeup_handler();
		this_cpu = cpu;
		return printf("wakeup %d", operand);
	}
	}
}

static int listed_on(void)
{
	for (int cpu = 0; cpu < CPUS; cpu++)
		for (struct list_head *at = per_cpu(wakeup_vcpus_on_cpu, cpu).next; at != &per_cpu(wakeup_vcpus_on_cpu, cpu);
		     at = at->next)
			return cpu;
	return -1;
}

static void show(void)
{
	struct pi_desc *desc = &vcpu.vt.pi_desc;
	printf(": pir %lx on %d sn %d nv %x ndst %x irr %lx waits %d list %d ipi %d %x\n", desc->pir[VECTOR / 64],
	       pi_test_on(desc), pi_test_sn(desc), desc->nv, desc->ndst, vcpu.irr[VECTOR / 64], waits(), listed_on(),
	       ipi_vector ? ipi_cpu : -1, ipi_vector);
}

static void reset(void)
{
	memset(&vcpu, 0, sizeof(vcpu));
	vcpu.kvm = &kvm;
	kvm.vcpu = &vcpu;
	kvm.arch.nr_possible_bypass_irqs = bypass;
	vcpu.vt.pi_desc.nv = POSTED_INTR_VECTOR;
	vcpu.vt.pi_desc.ndst = cpu_physical_id(0);
	vcpu_task.state = TASK_RUNNING;
	ipi_vector = 0;
	is_loaded = in_guest = false;
	for (int cpu = 0; cpu < CPUS; cpu++) {
		INIT_LIST_HEAD(&per_cpu(wakeup_vcpus_on_cpu, cpu));
		raw_spin_lock_init(&per_cpu(wakeup_vcpus_on_cpu_lock, cpu));
	}
	load(0);
	printf("begin %d", bypass);
	show();
}

/* steps RUNS: so many runs of 100 operations each. */
int main(int count, char **arguments)
{
	long runs = count > 1 ? atol(arguments[1]) : 1;
	for (long run = 0; run < runs; run++) {
		bypass = ipiv = run % 2;
		reset();
		for (int done = 0; done < 100;)
			if (step()) {
				show();
				done++;
			}
	}
	return 0;
}
