# Loads, kills and refusals of the scheduler: docs/live-yield.md. Runs in the nested host.
. /test/lib.sh
hold_patches
. /test/yield-lib.sh
mkdir -p /out/yield

# The watchdogs see tasks that wait in a queue. These see one that is lost, or a stall of the machine.
longest_ms() { awk '{ most += $3 } END { print int(most / 1000) }' /tmp/sleeper.guest; }
is_short() { [ "$(longest_ms)" -lt 1000 ]; }
# Each vCPU of each VM has worked since; a thread that is lost is runnable and never runs.
run_ms() { for tid in /proc/$a/task/* /proc/$b/task/*; do cut -d' ' -f1 $tid/schedstat; done; }
all_run() {
    run_ms >/tmp/before
    sleep 2
    run_ms >/tmp/after
    [ "$(paste /tmp/before /tmp/after | awk '$2 > $1' | wc -l)" -ge 8 ]
}

say "the arithmetic in this kernel"
$SCHED --self-test >/tmp/arithmetic.txt 2>&1
expect "it is the library's" [ $? = 0 ]
cat /tmp/arithmetic.txt

if [ ! -e /sys/kernel/sched_ext ]; then
    foreground >/tmp/none.txt 2>&1
    expect "a kernel without sched_ext is refused" grep -q 'this kernel has no sched_ext' /tmp/none.txt
    exit
fi

say "loads and unloads under load"
load first
unload
guest a '' 4 9999 ipi; a=$!
guest b '' 4 9999 hog; b=$!
/test/yield-tasks sleeper 9999 sleep >/tmp/sleeper.guest & sleeper=$!
sleep 2
loads=0
failures=0
until=$(($(cut -d. -f1 /proc/uptime) + ${LOADS_FOR:-150}))
while [ $loads -lt "${LOADS:-200}" ] && [ "$(cut -d. -f1 /proc/uptime)" -lt $until ]; do
    load again --watchdog-ms 5000
    is_state enabled || failures=$((failures + 1))
    unload
    await is_state disabled
    loads=$((loads + 1))
    # A boot that is cut short leaves a count.
    [ $((loads % 20)) != 0 ] || say "$loads loads, $failures failures, longest wait $(longest_ms) ms"
done
expect "$loads loads, $failures failures" [ $failures = 0 ]

say "the user side is killed at any moment"
kills=0
failures=0
until=$(($(cut -d. -f1 /proc/uptime) + ${KILLS_FOR:-90}))
while [ $kills -lt "${KILLS:-40}" ] && [ "$(cut -d. -f1 /proc/uptime)" -lt $until ]; do
    start killed --watchdog-ms 5000
    # From within the load to two seconds after it.
    sleep $((kills % 4)).$((kills * 7 % 10))
    kill -9 $scheduler; wait $scheduler 2>/dev/null
    sleep 1
    is_state disabled || { failures=$((failures + 1)); await is_state disabled; }
    kills=$((kills + 1))
done
expect "$kills kills: the kernel's scheduler is back within a second, but for $failures" [ $failures = 0 ]
expect "all vCPUs run" all_run
expect "no task has waited longer than $(longest_ms) ms" is_short
kill $sleeper

say "refusals, and the end by time"
load first
$SCHED >/tmp/second.txt 2>&1
expect "a second scheduler is refused by name" grep -q 'another sched_ext scheduler is loaded' /tmp/second.txt
unload
foreground --for 1 >/tmp/timed.txt 2>&1
expect "--for ends it well" [ $? = 0 ]
expect "with counters" grep -q '^yields' /tmp/timed.txt

say "a recording under the scheduler"
few_symbols
load recorded --watchdog-ms 20000
# Counters are published each second.
sleep 2
$STEALTIME record -o /tmp/recorded.dat --seconds 3 >/out/yield/record.txt 2>&1
expect "it is made" [ $? = 0 ]
unload
$STEALTIME analyze /tmp/recorded.dat --key scheduler --json >/out/yield/scheduler.json 2>&1
expect "it has the yields that were served" grep -q '"served"' /out/yield/scheduler.json
expect "and the IPIs that were confirmed" grep -q '"confirmed"' /out/yield/scheduler.json

say "a canary"
# Field 41 of stat is the policy; the name in parentheses holds no further one.
extended() { sed 's/.*) //' /proc/$a/task/*/stat | cut -d' ' -f39 | grep -c '^7$'; }
load canary --canary "VM=$a" --watchdog-ms 20000
sleep 2
expect "its threads have the policy SCHED_EXT" [ "$(extended)" -ge 4 ]
unload
expect "they are the kernel's again" [ "$(extended)" = 0 ]

say "a CPU goes and comes"
load hotplug --watchdog-ms 20000
echo 0 >/sys/devices/system/cpu/cpu1/online
await grep -q 'loading again' /tmp/hotplug.err
echo 1 >/sys/devices/system/cpu/cpu1/online
await has_lines 2 'loading again' /tmp/hotplug.err
await has_lines 3 ': loaded' /tmp/hotplug.err
unload

say "the watchdog ends a scheduler if its tasks wait too long"
start watchdog --watchdog-ms 50 --for 60
await is_loaded_or_dead /tmp/watchdog.err
/test/yield-tasks first 4 fifo >/dev/null
wait $scheduler
expect "it fails" [ $? != 0 ]
expect "with the reason" grep -q 'the kernel.s scheduler has taken over: .*watchdog: task' /tmp/watchdog.err
grep 'taken over' /tmp/watchdog.err
kill $a $b
cp /tmp/*.err /out/yield/ 2>/dev/null
