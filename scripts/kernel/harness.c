/* A blocking vCPU, which is preempted, and posted interrupts, on the kernel's own functions (extracted.c): all
 * interleavings of one preemption and one post, or random ones of several. Run by scripts/kernel-harness. */
#include "stubs.h"
#include "extracted.c"
#include <ucontext.h>

enum { VCPU, POSTER, IRQ0, IRQ1, AGENTS, PREEMPT_STAY = AGENTS, PREEMPT_MOVE };
static const char *const names[] = {
	"vCPU", "poster", "IRQ CPU 0", "IRQ CPU 1", "preempted, stays", "preempted, moves",
};
#define VECTOR 0x52
#define LONGEST 1024

int this_cpu, preempt_count;
/* The CPU of the vCPU's thread. */
static int thread_cpu;
bool interrupts_off[CPUS], bypass, ipiv;
struct task_struct vcpu_task;
static bool by_device;
/* The VM's first device comes while the vCPU may block. */
static bool late;
/* Interrupts and preemptions of a run, and interrupts that the vCPU has taken. */
static int posts = 1, preemptions = 1, taken;
/* 0: paths in order. */
static uint64_t random_state;
static struct kvm kvm;
static struct kvm_vcpu vcpu;

static struct agent {
	jmp_buf where;
	ucontext_t context;
	bool begun, active, done;
	/* Its next access, and the word if it is in the descriptor. */
	const char *next, *word;
	char stack[65536];
} agents[AGENTS];
static int running = -1, preemption, preemptions_left;
static bool asleep, switching, wakeup_pending[CPUS];
static jmp_buf scheduler;
static ucontext_t scheduler_context;
static const char *flawed;

void flaw(const char *what) { flawed = what; }

/* Longjmp between stacks: a swapcontext() is a system call, and there are a hundred million switches. */
static void yield_to_scheduler(void)
{
	if (!_setjmp(agents[running].where))
		_longjmp(scheduler, 1);
}

static void load(int cpu)
{
	vmx_vcpu_pi_load(&vcpu, cpu);
	vcpu.cpu = cpu;
}

/* The context switch: interrupts are off until the next task runs. */
static void put(bool preempted)
{
	vcpu.preempted = preempted;
	interrupts_off[this_cpu] = true;
	vmx_vcpu_pi_put(&vcpu);
	interrupts_off[this_cpu] = false;
}

void access_point(const char *what)
{
	if (running < 0)
		return;
	struct agent *self = &agents[running];
	const char *word = self->word ? self->word : "";
	self->next = what;
	yield_to_scheduler();
	self->word = NULL;
	if (running == VCPU && preemption) {
		bool moves = preemption == PREEMPT_MOVE;
		preemption = 0;
		switching = true;
		put(true);
		if (moves)
			thread_cpu = this_cpu = !this_cpu;
		vcpu.preempted = false;
		load(this_cpu);
		switching = false;
		/* The preempted access is yet to come. */
		self->word = word;
		access_point(what);
	}
}

void access_to(const volatile void *word, const char *what)
{
	const struct pi_desc *desc = &vcpu.vt.pi_desc;
	const char *name = word == &desc->control ? "control: " :
			   word == &desc->pir[VECTOR / 64] ? "PIR: " :
			   late && word == &vcpu.requests ? "requests: " :
			   late && word == &kvm.arch.nr_possible_bypass_irqs ? "devices: " : NULL;
	if (running < 0 || !name)
		return;
	agents[running].word = name;
	access_point(what);
}

void schedule(void)
{
	access_point("schedule: test the task's state");
	if (vcpu_task.state == TASK_RUNNING)
		return;
	switching = true;
	put(false);
	asleep = true;
	yield_to_scheduler();
	asleep = false;
	load(this_cpu);
	switching = false;
}

void take_lock(raw_spinlock_t *lock)
{
	access_point("take a wakeup list's lock");
	while (lock->taken)
		yield_to_scheduler();
	lock->taken = true;
}

void send_ipi(int cpu, int vector)
{
	if (vector == POSTED_INTR_WAKEUP_VECTOR)
		wakeup_pending[cpu] = true;
}

/* What VT-d does, in one step. */
static void post_by_device(int vector)
{
	struct pi_desc *desc = &vcpu.vt.pi_desc;
	access_point("the IOMMU posts");
	__set_bit(vector, desc->pir);
	if (desc->notifications & (BIT(POSTED_INTR_ON) | BIT(POSTED_INTR_SN)))
		return;
	desc->notifications |= BIT(POSTED_INTR_ON);
	send_ipi(desc->ndst - cpu_physical_id(0), desc->nv);
}

/* As kvm_arch_irq_bypass_add_producer() does it. */
static void attach_device(void)
{
	access_point("attach the VM's first device");
	if (!kvm.arch.nr_possible_bypass_irqs++)
		vmx_pi_start_bypass(&kvm);
}

/* The guest handles what is in its IRR. */
static void take_interrupts(void)
{
	for (int n = 0; n < posts; n++) {
		unsigned long bit = 1UL << (VECTOR + n) % 64;
		taken += !!(vcpu.irr[VECTOR / 64] & bit);
		vcpu.irr[VECTOR / 64] &= ~bit;
	}
}

static void post(int vector)
{
	if (by_device)
		post_by_device(vector);
	else
		__vmx_deliver_posted_interrupt(&vcpu, &vcpu.vt.pi_desc, vector);
}

static void agent_body(int agent)
{
	for (;;) {
		switch (agent) {
		case VCPU:
			while (taken < posts) {
				kvm_vcpu_block(&vcpu);
				take_interrupts();
			}
			break;
		case POSTER:
			if (late)
				attach_device();
			for (int n = 0; n < posts; n++)
				post(VECTOR + n);
			break;
		default: pi_wakeup_handler();
		}
		agents[agent].done = true;
		agents[agent].active = false;
		yield_to_scheduler();
	}
}

static void run_agent(int agent)
{
	struct agent *a = &agents[agent];
	running = agent;
	this_cpu = agent >= IRQ0 ? agent - IRQ0 : thread_cpu;
	a->active = true;
	if (!_setjmp(scheduler)) {
		if (a->begun)
			_longjmp(a->where, 1);
		a->begun = true;
		getcontext(&a->context);
		a->context.uc_stack.ss_sp = a->stack;
		a->context.uc_stack.ss_size = sizeof(a->stack);
		makecontext(&a->context, (void (*)(void))agent_body, 1, agent);
		swapcontext(&scheduler_context, &a->context);
	}
	running = -1;
}

static void reset(void)
{
	memset(&vcpu, 0, sizeof(vcpu));
	vcpu.kvm = &kvm;
	kvm.vcpu = &vcpu;
	kvm.arch.nr_possible_bypass_irqs = bypass && !late;
	vcpu.vt.pi_desc.nv = POSTED_INTR_VECTOR;
	vcpu.vt.pi_desc.ndst = cpu_physical_id(0);
	vcpu_task.state = TASK_RUNNING;
	thread_cpu = preempt_count = preemption = 0;
	preemptions_left = preemptions;
	taken = 0;
	asleep = switching = false;
	flawed = NULL;
	for (int cpu = 0; cpu < CPUS; cpu++) {
		INIT_LIST_HEAD(&per_cpu(wakeup_vcpus_on_cpu, cpu));
		raw_spin_lock_init(&per_cpu(wakeup_vcpus_on_cpu_lock, cpu));
		interrupts_off[cpu] = wakeup_pending[cpu] = false;
	}
	for (int n = 0; n < AGENTS; n++) {
		/* One that was left in the middle begins anew. */
		if (agents[n].active)
			agents[n].begun = false;
		agents[n].active = agents[n].done = false;
		agents[n].next = "begin";
		agents[n].word = NULL;
	}
}

static bool can_run(int agent)
{
	struct agent *a = &agents[agent];
	if (agent >= IRQ0) {
		int cpu = agent - IRQ0;
		return a->active || (wakeup_pending[cpu] && !interrupts_off[cpu]);
	}
	if (a->done)
		return false;
	if (agent == VCPU)
		return !agents[IRQ0 + thread_cpu].active && !(asleep && vcpu_task.state != TASK_RUNNING);
	return true;
}

struct path {
	int length, switches;
	int choice[LONGEST], count[LONGEST];
	const char *what[LONGEST], *word[LONGEST];
};

static void name_steps(const struct path *path)
{
	for (int n = 0; n < path->length; n++)
		printf("%4d  %-18s %s%s\n", n + 1, names[path->choice[n]], path->word[n], path->what[n]);
}

/* xorshift64* */
static uint64_t next_random(void)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return random_state * 0x2545f4914f6cdd1dULL >> 33;
}

/* Three times of four the agent that ran last: a vCPU takes many steps to sleep, and a poster few to post. */
static int random_option(const int *options, int count, int last)
{
	if (next_random() % 4)
		for (int n = 0; n < count; n++)
			if (options[n] == last)
				return n;
	return next_random() % count;
}

/* Runs one path: the first choices as given, then the first option each time. Whether it was lost. */
static bool run(struct path *path, const int *forced, int forced_count)
{
	int last = -1;
	reset();
	path->length = path->switches = 0;
	for (;;) {
		int options[8], count = 0;
		for (int n = 0; n < AGENTS; n++)
			if (can_run(n))
				options[count++] = n;
		if (!count)
			break;
		if (can_run(VCPU) && agents[VCPU].active && preemptions_left && !preempt_count && !switching &&
		    !interrupts_off[thread_cpu]) {
			options[count++] = PREEMPT_STAY;
			options[count++] = PREEMPT_MOVE;
		}
		int step = path->length++;
		if (step >= LONGEST) {
			fprintf(stderr, "a path of more than %d steps\n", LONGEST);
			exit(2);
		}
		int index = step < forced_count ? forced[step] : 0;
		if (random_state)
			index = random_option(options, count, last);
		int chosen = options[index];
		path->count[step] = count;
		path->choice[step] = chosen;
		int agent = chosen >= AGENTS ? VCPU : chosen;
		path->what[step] = chosen >= AGENTS ? "" : agents[agent].active ? agents[agent].next : "begin";
		path->word[step] = chosen < AGENTS && agents[agent].active && agents[agent].word ? agents[agent].word : "";
		path->switches += agent != last;
		last = agent;
		if (chosen >= AGENTS) {
			preemption = chosen;
			preemptions_left--;
		}
		if (agent >= IRQ0 && !agents[agent].active)
			wakeup_pending[agent - IRQ0] = false;
		run_agent(agent);
	}
	return asleep;
}

/* All paths, or so many random ones. Whether an interrupt was lost, or the kernel warned. */
static bool explore(const char *title, bool bypass_, bool by_device_, bool late_, long random_runs)
{
	static int index[LONGEST];
	static struct path path, shortest;
	long runs = 0, lost = 0;
	int depth = 0;
	bypass = bypass_;
	by_device = by_device_;
	late = late_;
	ipiv = bypass && !late;
	memset(index, 0, sizeof(index));
	random_state = random_runs ? 1 : 0;
	posts = random_runs ? 3 : 1;
	/* With a preemption, too many paths. */
	preemptions = random_runs ? 4 : late ? 0 : 1;
	while (!random_runs || runs < random_runs) {
		bool is_lost = run(&path, index, depth);
		runs++;
		if (flawed) {
			printf("%-44s a warning of the kernel: %s\n", title, flawed);
			return true;
		}
		if (is_lost && (!lost++ || path.switches < shortest.switches ||
				(path.switches == shortest.switches && path.length < shortest.length)))
			shortest = path;
		if (random_runs)
			continue;
		/* The next path in order: the last choice with another option. */
		for (int n = depth; n < path.length; n++)
			index[n] = 0;
		depth = path.length;
		while (depth && index[depth - 1] + 1 >= path.count[depth - 1])
			depth--;
		if (!depth)
			break;
		index[depth - 1]++;
	}
	printf("%-44s %9ld %s, %6ld lose an interrupt\n", title, runs,
	       random_runs ? "at random" : "interleavings", lost);
	if (lost && !random_runs) {
		printf("\none of them, with the fewest switches:\n\n");
		name_steps(&shortest);
		printf("\nthe vCPU sleeps, %#x is posted, and no wakeup is pending\n\n", VECTOR);
	}
	return lost;
}

/* harness [RUNS]: so many random interleavings of each kind instead of all. */
int main(int count, char **arguments)
{
	long random_runs = count > 1 ? atol(arguments[1]) : 0;
	int lost = explore("plain APICv, software posts", false, false, false, random_runs);
	lost += explore("IPI virtualization or VT-d, software posts", true, false, false, random_runs);
	lost += explore("IPI virtualization or VT-d, a device posts", true, true, false, random_runs);
	lost += explore("VT-d, the first device comes late and posts", true, true, true, random_runs);
	return lost ? 1 : 0;
}
