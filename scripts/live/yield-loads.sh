# Loads, kills and refusals of the scheduler: docs/live-yield.md. Runs in the nested host.
. /test/lib.sh
hold_patches
. /test/yield-lib.sh
mkdir -p /out/yield

say "loads and unloads under load"
guest a '' 4 100 ipi; a=$!
guest b '' 4 100 hog; b=$!
loads=0
while [ $loads -lt "${LOADS:-20}" ]; do
    load again
    expect "load $loads" is_state enabled
    unload
    await is_state disabled
    loads=$((loads + 1))
done

say "the user side is killed"
for n in 1 2 3; do
    load killed
    kill -9 $scheduler; wait $scheduler
    sleep 1
    expect "the kernel's scheduler is back within a second" is_state disabled
done

say "refusals, and the end by time"
load first
$SCHED >/tmp/second.txt 2>&1
expect "a second scheduler is refused by name" grep -q 'another sched_ext scheduler is loaded' /tmp/second.txt
unload
$SCHED --for 1 >/tmp/timed.txt 2>&1
expect "--for ends it well" [ $? = 0 ]
expect "with counters" grep -q '^yields' /tmp/timed.txt

say "a canary"
# Field 41 of stat is the policy; the name in parentheses holds no further one.
extended() { sed 's/.*) //' /proc/$a/task/*/stat | cut -d' ' -f39 | grep -c '^7$'; }
load canary --canary "VM=$a"
sleep 2
expect "its threads have the policy SCHED_EXT" [ "$(extended)" -ge 4 ]
unload
expect "they are the kernel's again" [ "$(extended)" = 0 ]

say "a CPU goes and comes"
load hotplug
echo 0 >/sys/devices/system/cpu/cpu1/online
await grep -q 'loading again' /tmp/hotplug.err
echo 1 >/sys/devices/system/cpu/cpu1/online
await has_lines 2 'loading again' /tmp/hotplug.err
await has_lines 3 ': loaded' /tmp/hotplug.err
unload

say "the watchdog ends a scheduler if its tasks wait too long"
guest c '' 16 30 hog; c=$!
$SCHED --watchdog-ms 50 --for 20 >/tmp/watchdog.txt 2>&1
expect "it fails" [ $? != 0 ]
expect "with the reason" grep -q 'the kernel.s scheduler has taken over: .*watchdog: task' /tmp/watchdog.txt
grep 'taken over' /tmp/watchdog.txt
kill $a $b $c
cp /tmp/*.err /out/yield/ 2>/dev/null
