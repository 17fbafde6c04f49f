# Functions for the parts series, yield and yield-loads. Run in the nested host.
SCHED=/test/scx_stealtime
. /test/settings
is_state() { [ "$(cat /sys/kernel/sched_ext/state)" = "$1" ]; }
has_lines() { [ "$(grep -c "$2" "$3")" -ge "$1" ]; }
expect() {
    name=$1; shift
    if "$@"; then say "ok: $name"; else say "FAILED: $name"; fi
}
await() { for _ in $(seq "${PATIENCE:-450}"); do "$@" && return; sleep 0.2; done; say "FAILED: never: $*"; }

is_loaded_or_dead() { grep -q '^scx_stealtime: loaded' "$1" || is_dead; }
is_dead() { ! kill -0 $scheduler 2>/dev/null; }

F=/sys/kernel/debug/sched
K=/sys/module/kvm/parameters
has_series() { [ -e $F/yield_to/stats ]; }
# series_mode NAME: features and parameters of a kernel of scripts/kernel-series. The first three have the candidates
# of 7.2.
series_mode() {
    credit=NO_; guard=NO_; aware=0; first=0; margin=50000; interval=6000000
    case $1 in
        stock) ;;
        credit) credit= ;;
        guard) credit=; guard= ;;
        tracking) aware=1 ;;
        series) credit=; aware=1 ;;
        guarded) credit=; guard=; aware=1 ;;
        first) credit=; guard=; aware=1; first=1 ;;
        series_first) credit=; aware=1; first=1 ;;
        margin_*) credit=; margin=${1#margin_} ;;
        guard_*) credit=; guard=; margin=${1#guard_} ;;
        interval_*) credit=; interval=${1#interval_} ;;
        *) say "FAILED: no mode $1" ;;
    esac
    echo ${credit}YIELD_TO_LAG_CREDIT >$F/features
    echo ${guard}YIELD_TO_GUARD >$F/features
    echo $margin >$F/yield_to/margin_ns
    echo $interval >$F/yield_to/interval_ns
    echo $aware >$K/ipi_aware_yield
    echo $first >$K/ipi_receiver_first
}

group loader cpu.weight=10000

# start NAME OPTIONS... and load NAME OPTIONS..., which waits until it is loaded: $scheduler is its process,
# /tmp/NAME.json has its counters. Next to guests that compute, it needs a weight of its own: the kernel's
# checks of the program take long on emulated CPUs.
start() {
    name=$1; shift
    sh -c 'echo 0 >'"$G/loader"'/cgroup.procs; exec '"$SCHED --json $*" >"/tmp/$name.json" 2>"/tmp/$name.err" & scheduler=$!
}
load() {
    start "$@"
    await is_loaded_or_dead "/tmp/$name.err"
    ! is_dead || { say "FAILED: $name ended"; cat "/tmp/$name.err"; }
}
# foreground OPTIONS...: until its end, with text.
foreground() { sh -c 'echo 0 >'"$G/loader"'/cgroup.procs; exec '"$SCHED $*"; }
unload() { kill -INT $scheduler; wait $scheduler; }

# guest NAME GROUP VCPUS SECONDS LOAD: a VM in a control group ('' for the root), in the background.
guest() {
    sh -c 'echo 0 >'"$G/$2"'/cgroup.procs; exec /test/yield-vmm '"$1 $3 $4 $5" >"/tmp/$1.guest" &
}
# tasks NAME SECONDS LOAD: a load of the host itself, in the background.
tasks() { /test/yield-tasks "$1" "$2" "$3" >"/tmp/$1.guest" & }
# linux NAME KIND: a Linux guest with 4 vCPUs (scripts/live/linux-guests), in the background.
linux() {
    qemu=/test/linux/qemu
    $qemu/ld-linux-x86-64.so.2 --library-path $qemu $qemu/qemu-system-x86_64 -L $qemu -accel kvm -cpu host -M pc \
        -name "guest=$1,debug-threads=on" -smp 4 -m 320 -nodefaults -no-user-config -display none -no-reboot \
        -serial stdio -kernel /test/linux/vmlinuz -initrd "/test/linux/$2.gz" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off name=$1 load=${2#linux_}" </dev/null >"/tmp/$1.guest" 2>&1 &
}
# window SECONDS NAME...: round trips a second and work a second of all, between lines of their own. The third figure
# is the 99th percentile of their waits in us, 0 without any.
window() {
    seconds=$1; shift
    for f; do wc -l <"/tmp/$f.guest" >"/tmp/$f.first"; done
    sleep "$seconds"
    for f; do tail -n "+$(cat "/tmp/$f.first")" "/tmp/$f.guest" | awk -v name="$f" '
        $1 != name { next }
        !begin { begin = $4; next }
        { trips += $2; work += $3; end = $4; for (i = 5; i <= NF; i++) { split($i, wait, ":"); print "wait", wait[1], wait[2] } }
        END { if (end > begin) print "rate", trips * 1000 / (end - begin), work * 1000 / (end - begin) }'
    done | sort -k1,1 -k2,2n | awk '
        $1 == "rate" { a += $2; b += $3 }
        $1 == "wait" { us[++n] = $2; all += $3; upto[n] = all }
        END { for (i = 1; i < n && upto[i] < 0.99 * all; i++); printf "%.1f %.0f %.1f\n", a, b, us[i] }'
}
