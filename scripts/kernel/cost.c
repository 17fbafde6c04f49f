/* Posted interrupts by the kernel's own functions, or by the fewest instructions (least.h), in each state of
 * cases.txt. A profiler counts the functions measured_*(), without send_ipi() and wake_up_process(). Prints the
 * state after each. Run by scripts/kernel-harness cost. */
#define NATIVE
#include "stubs.h"
#include "extracted.c"

#define NOIPA __attribute__((noipa))

int this_cpu, preempt_count;
bool interrupts_off[CPUS], bypass, ipiv, enable_apicv = true;
u16 vmcs_status;
struct task_struct vcpu_task;
struct kvm_vcpu *running_vcpu;
static struct kvm kvm;
struct kvm_vcpu vcpu;
static u8 regs[4096] __aligned(64);
static struct kvm_lapic lapic = { regs, true, true };
static int ipi_cpu, ipi_vector, woken;

NOIPA void send_ipi(int cpu, int vector)
{
	ipi_cpu = cpu;
	ipi_vector = vector;
}
NOIPA int wake_up_process(struct task_struct *task)
{
	woken++;
	task->state = TASK_RUNNING;
	return 1;
}
NOIPA void flaw(const char *what)
{
	fprintf(stderr, "a warning of the kernel: %s\n", what);
	exit(2);
}

/* The profiler writes what it has counted. */
NOIPA void mark_end(void) { asm volatile(""); }
/* For kvm_vcpu_block(), which is not counted. */
void schedule(void) {}

/* The callers' part in KVM, where a function has one. */
NOIPA void measured_post(struct kvm_vcpu *vcpu, long vector) { vmx_deliver_posted_interrupt(vcpu, vector); }
NOIPA void measured_sync(struct kvm_vcpu *vcpu, long unused) { vmx_sync_pir_to_irr(vcpu); }
NOIPA void measured_load(struct kvm_vcpu *vcpu, long cpu)
{
	vmx_vcpu_pi_load(vcpu, cpu);
	vcpu->cpu = cpu;
}
NOIPA void measured_put(struct kvm_vcpu *vcpu, long unused) { vmx_vcpu_pi_put(vcpu); }
NOIPA void measured_wakeup(struct kvm_vcpu *unused, long cpu) { pi_wakeup_handler(); }
NOIPA int measured_entry(struct kvm_vcpu *vcpu, long unused) { return enter_guest(vcpu); }
NOIPA int measured_reentry(struct kvm_vcpu *vcpu, long unused)
{
	vmx_sync_pir_to_irr(vcpu);
	return kvm_vcpu_exit_request(vcpu);
}
NOIPA void measured_exit(struct kvm_vcpu *vcpu, long unused)
{
	vcpu->mode = OUTSIDE_GUEST_MODE;
	smp_wmb();
}

#include "least.h"

struct state {
	char operation[16], pir[8], policy[16], title[64];
	int argument, on, sn, nv, mode, waits, requests, posts;
};

static void prepare(const struct state *state)
{
	memset(&vcpu, 0, sizeof(vcpu));
	memset(regs, 0, sizeof(regs));
	vcpu.kvm = &kvm;
	vcpu.arch.apic = &lapic;
	vcpu.mode = state->mode;
	vcpu.requests = state->requests;
	vcpu.preempted = !strcmp(state->operation, "put") && state->argument;
	bypass = ipiv = state->posts;
	kvm.arch.nr_possible_bypass_irqs = state->posts;
	struct pi_desc *desc = &vcpu.vt.pi_desc;
	for (const char *word = state->pir; *word && *word != '-'; word++)
		desc->pir[*word - '0'] = BIT(9);
	desc->notifications = state->on | state->sn << 1;
	desc->nv = state->nv;
	desc->ndst = cpu_physical_id(0);
	if (state->waits)
		vcpu.wait.task = &vcpu_task;
	vcpu_task.state = state->waits ? TASK_INTERRUPTIBLE : TASK_RUNNING;
	for (int cpu = 0; cpu < CPUS; cpu++) {
		INIT_LIST_HEAD(&per_cpu(wakeup_vcpus_on_cpu, cpu));
		raw_spin_lock_init(&per_cpu(wakeup_vcpus_on_cpu_lock, cpu));
	}
	if (state->nv == POSTED_INTR_WAKEUP_VECTOR)
		list_add_tail(&vcpu.vt.pi_wakeup_list, &per_cpu(wakeup_vcpus_on_cpu, 0));
	vmcs_status = 0;
	this_cpu = ipi_vector = woken = 0;
	ipi_cpu = -1;
}

static int listed_on(void)
{
	for (int cpu = 0; cpu < CPUS; cpu++)
		if (per_cpu(wakeup_vcpus_on_cpu, cpu).next != &per_cpu(wakeup_vcpus_on_cpu, cpu))
			return cpu;
	return -1;
}

static void show(const struct state *state)
{
	const struct pi_desc *desc = &vcpu.vt.pi_desc;
	printf("%s, %s, %s: pir", state->operation, state->policy, state->title);
	for (int n = 0; n < NR_PIR_WORDS; n++)
		printf(" %lx", desc->pir[n]);
	printf(" control %lx irr", desc->control);
	/* The kernel's words are in the page, and those of the fewest instructions are words. */
	for (int n = 0; n < 4; n++) {
		u64 low = *(u32 *)(regs + APIC_IRR + 0x20 * n), high = *(u32 *)(regs + APIC_IRR + 0x20 * n + 0x10);
		printf(" %lx", vcpu.irr[n] | low | high << 32);
	}
	printf(" rvi %x mode %d requests %lx cpu %d listed %d ipi %d %x woken %d\n", vmcs_status, vcpu.mode,
	       vcpu.requests, vcpu.cpu, listed_on(), ipi_cpu, ipi_vector, woken);
}

typedef void (*function)(struct kvm_vcpu *vcpu, long argument);
static const struct operation {
	const char *name;
	function linux_7, least, least_corrected;
} operations[] = {
	{ "post", measured_post, measured_least_post, measured_least_post },
	{ "sync", measured_sync, measured_least_sync, measured_least_sync },
	{ "load", measured_load, measured_least_load, measured_least_load_corrected },
	{ "put", measured_put, measured_least_put, measured_least_put_corrected },
	{ "wakeup", measured_wakeup, measured_least_wakeup, measured_least_wakeup },
	{ "entry", (function)measured_entry, measured_least_entry, measured_least_entry_corrected },
	{ "reentry", (function)measured_reentry, measured_least_reentry, measured_least_reentry },
	{ "exit", measured_exit, measured_least_exit, measured_least_exit_corrected },
};

static const struct operation *operation_of(const struct state *state)
{
	for (const struct operation *each = operations; each < operations + sizeof(operations) / sizeof(*operations); each++)
		if (!strcmp(each->name, state->operation))
			return each;
	fprintf(stderr, "no operation %s\n", state->operation);
	exit(2);
}

/* cost linux|least: the states come from standard input. Linux has the policy "put" alone. */
int main(int count, char **arguments)
{
	bool is_linux = count > 1 && !strcmp(arguments[1], "linux");
	char line[256];
	while (fgets(line, sizeof(line), stdin)) {
		struct state state;
		if (line[0] == '#' ||
		    sscanf(line, "%15s %d %7s %d %d %x %d %d %d %d %15s %63[^\n]", state.operation, &state.argument,
			   state.pir, &state.on, &state.sn, (unsigned int *)&state.nv, &state.mode, &state.waits,
			   &state.requests, &state.posts, state.policy, state.title) != 12)
			continue;
		if (is_linux && strcmp(state.policy, "put"))
			continue;
		const struct operation *operation = operation_of(&state);
		function least = strcmp(state.policy, "put") ? operation->least_corrected : operation->least;
		prepare(&state);
		(is_linux ? operation->linux_7 : least)(&vcpu, state.argument);
		mark_end();
		show(&state);
	}
	return 0;
}
