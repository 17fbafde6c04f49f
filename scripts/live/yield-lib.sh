# Functions for the parts yield and yield-loads. Run in the nested host.
SCHED=/test/scx_stealtime
is_state() { [ "$(cat /sys/kernel/sched_ext/state)" = "$1" ]; }
has_lines() { [ "$(grep -c "$2" "$3")" -ge "$1" ]; }
expect() {
    name=$1; shift
    if "$@"; then say "ok: $name"; else say "FAILED: $name"; fi
}
await() { for _ in $(seq 150); do "$@" && return; sleep 0.2; done; say "FAILED: never: $*"; }

# load NAME OPTIONS...: $scheduler is its process, /tmp/NAME.json its counters.
load() {
    name=$1; shift
    $SCHED --json "$@" >"/tmp/$name.json" 2>"/tmp/$name.err" & scheduler=$!
    await grep -q loaded "/tmp/$name.err"
}
unload() { kill -INT $scheduler; wait $scheduler; }

# guest NAME GROUP VCPUS SECONDS LOAD: a VM in a control group ('' for the root), in the background.
guest() {
    sh -c 'echo 0 >'"$G/$2"'/cgroup.procs; exec /test/yield-vmm '"$1 $3 $4 $5" >"/tmp/$1.guest" &
}
# Sum of the guests' lines after the first second: round trips and work.
progress() { for f; do tail -n +2 "/tmp/$f.guest"; done | awk '{a += $2; b += $3} END {print a + 0, b + 0}'; }
