# Functions for scripts that run as root in the nested host (scripts/test-live). POSIX sh of busybox.
G=/sys/fs/cgroup
T=/sys/kernel/tracing
STEALTIME=${STEALTIME:-/test/stealtime}
mkdir -p /tmp/ram

say() { echo "[$(cut -d' ' -f1 /proc/uptime)] $*"; }

# Symbols that answers name: all 200,000 cost a recording of a few seconds more than its events.
few_symbols() {
    grep -E '_timer|timer_|tick|apic|hrtimer_wakeup|watchdog' /proc/kallsyms >/tmp/kallsyms
    mount --bind /tmp/kallsyms /proc/kallsyms
}

# Switches on, before any load, what makes the kernel patch its code. Emulated CPUs may run a breakpoint of
# the patching that is gone already, and then the kernel panics. Two stopped instances hold the tracepoints:
# the kernel calls one probe directly and several by a list. A group holds the keys of cpusets and quotas. A
# vCPU that never runs holds those of KVM.
hold_patches() {
    for name in held1 held2; do
        mkdir -p $T/instances/$name
        echo 0 >$T/instances/$name/tracing_on
        for event in sched/sched_switch sched/sched_waking sched/sched_wakeup sched/sched_wakeup_new \
            sched/sched_migrate_task sched/sched_process_fork sched/sched_process_exit timer/hrtimer_start \
            timer/hrtimer_cancel timer/hrtimer_expire_entry timer/hrtimer_expire_exit kvm ipi irq_vectors; do
            echo 1 >$T/instances/$name/events/$event/enable
        done
    done
    echo '+cpu +cpuset' >$G/cgroup.subtree_control
    mkdir $G/held
    echo '50000 100000' >$G/held/cpu.max
    echo 0 >$G/held/cpuset.cpus
    qemu-system-x86_64 hold
}

# group PATH [FILE=VALUE...]: a control group with the cpu and cpuset controllers, and its settings.
group() {
    path=$1; shift; above=$G
    for part in $(echo "$path" | tr / ' '); do
        echo '+cpu +cpuset' >"$above/cgroup.subtree_control"
        above=$above/$part
        mkdir -p "$above"
    done
    for setting; do echo "${setting#*=}" >"$above/${setting%%=*}"; done
}

# vm NAME GROUP VCPUS LOAD: starts a VM in a group ('' for the root); $pid is its process.
VMS=
vm() {
    sh -c 'echo 0 >'"$G/$2"'/cgroup.procs
        exec qemu-system-x86_64 -accel kvm -name guest='"$1"',debug-threads=on -smp '"$3"' -load '"$4"' -ram /tmp/ram/$$' \
        >"/tmp/$1.log" 2>&1 &
    pid=$!
    VMS="$VMS $pid"
    eval "pid_$1=$pid"
}

# vcpu NAME NUMBER: the id of a vCPU's thread.
vcpu() {
    eval "process=\$pid_$1"
    grep -lx "CPU $2/KVM" /proc/$process/task/*/comm | cut -d/ -f5
}

# stop_vm NAME...: stops these ones.
stop_vm() {
    for name; do
        eval "pid=\$pid_$name"
        kill "$pid"
        wait "$pid"
        VMS=$(echo "$VMS " | sed "s/ $pid / /")
    done
}

stop_vms() {
    for pid in $VMS; do kill "$pid"; done
    wait
    VMS=
}

# recording NAME SECONDS: records, and samples the kernel's and the guests' counters in the middle of it. The
# recorder is stopped after the second sample, however slow the emulated CPUs are.
recording() {
    out=/out/$1; mkdir -p "$out"
    sleep 1
    echo "window begins"
    sleep 0.5
    $STEALTIME record -o "$out/trace.dat" --seconds 120 >"$out/record.txt" 2>&1 &
    recorder=$!
    until grep -q 1 $T/instances/stealtime-*/tracing_on 2>/dev/null; do sleep 0.1; done
    sleep 0.3
    /test/sample "$out/before.txt" /tmp/ram $VMS
    sleep "$(($2 - 2))"
    /test/sample "$out/after.txt" /tmp/ram $VMS
    sleep 0.5
    kill -TERM $recorder
    wait $recorder
    say "record $1: status $?"
    echo "window ends"
    grep -q 'none lost' "$out/record.txt" || cat "$out/record.txt"
}
