// What the kernel counts for VMs, with the time at which it was read:
//
//   sample FILE RAM PID...
//
// appends to FILE, for each process:
//
// - run and wait time of its threads (schedstat, ns);
// - the cpu.stat of its control group and of all groups above;
// - the counters of its guest, which has its memory at RAM/PID.
//
// Times are CLOCK_MONOTONIC, the clock of the recordings.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static FILE *out;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

// The file's text with blanks for line ends; empty if it cannot be read.
static char *text(const char *path) {
    static char buffer[4096];
    int file = open(path, O_RDONLY);
    ssize_t length = file < 0 ? 0 : read(file, buffer, sizeof buffer - 1);
    if (file >= 0) close(file);
    if (length < 0) length = 0;
    buffer[length] = 0;
    while (length && buffer[length - 1] == '\n') buffer[--length] = 0;
    for (char *c = buffer; *c; c++)
        if (*c == '\n') *c = ' ';
    return buffer;
}

static void threads(const char *pid) {
    char path[512], name[64];
    snprintf(path, sizeof path, "/proc/%s/task", pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%s/task/%.16s/comm", pid, entry->d_name);
        snprintf(name, sizeof name, "%s", text(path));
        for (char *c = name; *c; c++)
            if (*c == ' ') *c = '_';
        snprintf(path, sizeof path, "/proc/%s/task/%.16s/schedstat", pid, entry->d_name);
        char *counters = text(path);
        fprintf(out, "%.6f thread pid=%s tid=%s name=%s schedstat=%s\n", now(), pid, entry->d_name, name, counters);
    }
    if (folder) closedir(folder);
}

static void groups(const char *pid) {
    char path[512], group[256], file[600];
    snprintf(path, sizeof path, "/proc/%s/cgroup", pid);
    snprintf(group, sizeof group, "%s", text(path) + 3);  // 0::/path
    while (group[0] && group[1]) {
        snprintf(file, sizeof file, "/sys/fs/cgroup%s/cpu.stat", group);
        char *counters = text(file);
        fprintf(out, "%.6f group pid=%s path=%s %s\n", now(), pid, group, counters);
        *strrchr(group, '/') = 0;
    }
}

int main(int count, char **arguments) {
    if (count < 4 || !(out = fopen(arguments[1], "a"))) return 1;
    for (int i = 3; i < count; i++) threads(arguments[i]);
    for (int i = 3; i < count; i++) groups(arguments[i]);
    fclose(out);
    char command[4096];
    int used = snprintf(command, sizeof command, "echo %.6f counters >>%s; qemu-system-x86_64 counters", now(), arguments[1]);
    for (int i = 3; i < count; i++)
        used += snprintf(command + used, sizeof command - used, " %s/%s", arguments[2], arguments[i]);
    snprintf(command + used, sizeof command - used, " >>%s", arguments[1]);
    return system(command) != 0;
}
