/*
 * Loads of the host itself, as yield-vmm's for guests: yield-tasks NAME SECONDS LOAD
 *   hackbench   8 threads write messages of 100 bytes to each of 8 others in turn, by pipes
 *   membarrier  2 threads order a membarrier of the process again and again, 4 threads compute
 *   sleep       a thread sleeps for 10 ms at a time; work is what its longest delay has grown, in us
 *   light       the same at nice 19
 *   fifo        a thread of SCHED_FIFO computes on each CPU: all others wait
 * Prints a line each second: messages (or barriers) and work since the last, and the time in ms.
 *
 * yield-tasks NAME ROUNDS pipe|pinned: two processes send a word to and fro by pipes, as `perf bench sched pipe`
 * does; pinned on one CPU. Prints ns a switch once: CPU time of both, busy time of the host, time that passed.
 */
#define _GNU_SOURCE
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS 8
#define MESSAGE 100

static int pipes[THREADS][2];
/* A cache line each: operations, work. */
static volatile unsigned long long counters[2 * THREADS][8];

static void *send_messages(void *argument)
{
	char message[MESSAGE] = { 0 };

	for (unsigned n = (long)argument;; n++)
		if (write(pipes[n % THREADS][1], message, sizeof(message)) < 0)
			exit(1);
}

static void *receive_messages(void *argument)
{
	long id = (long)argument;
	char message[MESSAGE];

	for (;;) {
		if (read(pipes[id][0], message, sizeof(message)) <= 0)
			exit(1);
		counters[id][0]++;
	}
}

static void *order(void *argument)
{
	long id = (long)argument;

	for (;;) {
		if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0))
			exit(1);
		counters[id][0]++;
	}
}

static void *compute(void *argument)
{
	for (;;)
		counters[(long)argument][1]++;
	return 0;
}

static long long now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void *sleep_again(void *argument)
{
	long id = (long)argument;
	long long before, late;

	for (;;) {
		before = now_us();
		usleep(10000);
		late = now_us() - before - 10000;
		counters[id][0]++;
		if (late > (long long)counters[id][1])
			counters[id][1] = late;
	}
	return 0;
}

/* CPU time of this process and of its children that ended, in us. */
static long long cpu_us(void)
{
	struct rusage usage;
	long long sum = 0;

	for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++) {
		getrusage(who, &usage);
		sum += (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000LL + usage.ru_utime.tv_usec +
		       usage.ru_stime.tv_usec;
	}
	return sum;
}

/* Time of all CPUs that were not idle, in us: the kernel counts it by ticks. */
static long long busy_us(void)
{
	unsigned long long user = 0, nice = 0, system = 0, idle, wait, irq = 0, softirq = 0;
	FILE *file = fopen("/proc/stat", "r");

	if (!file || fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait,
			    &irq, &softirq) != 7)
		exit(1);
	fclose(file);
	return (user + nice + system + irq + softirq) * 1000000LL / sysconf(_SC_CLK_TCK);
}

/* The one that does not begin reads first: each word is a switch. */
static void exchange(int in, int out, long rounds, int begins)
{
	int word = 0;

	if (begins && write(out, &word, sizeof(word)) != sizeof(word))
		_exit(1);
	while (rounds--) {
		if (read(in, &word, sizeof(word)) != sizeof(word))
			_exit(1);
		if ((rounds || !begins) && write(out, &word, sizeof(word)) != sizeof(word))
			_exit(1);
	}
}

static int ping_pong(const char *name, long rounds, int pinned)
{
	long long cpu, busy, passed;
	double switches = 2.0 * rounds;
	cpu_set_t first;
	int status;

	CPU_ZERO(&first);
	CPU_SET(0, &first);
	if (pipe(pipes[0]) || pipe(pipes[1]) || (pinned && sched_setaffinity(0, sizeof(first), &first)))
		return 1;
	busy = busy_us();
	passed = now_us();
	if (!fork()) {
		exchange(pipes[0][0], pipes[1][1], rounds, 0);
		_exit(0);
	}
	exchange(pipes[1][0], pipes[0][1], rounds, 1);
	wait(&status);
	passed = now_us() - passed;
	busy = busy_us() - busy;
	cpu = cpu_us();
	printf("%s %.0f %.0f %.0f\n", name, cpu * 1e3 / switches, busy * 1e3 / switches, passed * 1e3 / switches);
	return status != 0;
}

static void be_first(int priority)
{
	struct sched_param first = { .sched_priority = priority };

	if (sched_setscheduler(0, SCHED_FIFO, &first))
		exit(1);
}

static void start(void *(*run)(void *), long id)
{
	pthread_t thread;

	pthread_create(&thread, 0, run, (void *)id);
}

int main(int count, char **arguments)
{
	unsigned long long seen[2] = { 0 };

	if (count != 4)
		return 2;
	if (arguments[3][0] == 'p')
		return ping_pong(arguments[1], atol(arguments[2]), !strcmp(arguments[3], "pinned"));
	if (!strcmp(arguments[3], "membarrier")) {
		if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0))
			return 1;
		for (long id = 0; id < 6; id++)
			start(id < 2 ? order : compute, id);
	} else if (!strcmp(arguments[3], "sleep") || !strcmp(arguments[3], "light")) {
		if (arguments[3][0] == 'l' && nice(19) != 19)
			return 1;
		start(sleep_again, 0);
	} else if (!strcmp(arguments[3], "fifo")) {
		/* Threads inherit the policy. Only a higher priority ends them. */
		be_first(1);
		for (long id = 0; id < sysconf(_SC_NPROCESSORS_ONLN); id++)
			start(compute, id);
		be_first(2);
	} else {
		for (long id = 0; id < THREADS; id++) {
			if (pipe(pipes[id]))
				return 1;
		}
		for (long id = 0; id < THREADS; id++) {
			start(send_messages, id);
			start(receive_messages, id);
		}
	}
	for (int second = 0; second < atoi(arguments[2]); second++) {
		unsigned long long sums[2] = { 0 };

		sleep(1);
		for (int id = 0; id < 2 * THREADS; id++) {
			sums[0] += counters[id][0];
			sums[1] += counters[id][1];
		}
		printf("%s %llu %llu %lld\n", arguments[1], sums[0] - seen[0], sums[1] - seen[1],
		       now_us() / 1000);
		fflush(stdout);
		memcpy(seen, sums, sizeof(seen));
	}
	return 0;
}
