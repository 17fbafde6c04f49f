# `stealtime try`: a knob that helps, one that does not, one that a guard stops, and a kill. Runs in the
# nested host. docs/try.md has its output.
. /test/lib.sh
few_symbols
hold_patches
ln -sf "$STEALTIME" /usr/bin/stealtime
mkdir -p /out/try
cd /out/try
run() { echo "$ $*"; "$@" 2>&1; echo; }
is() { [ "$(cat "$1")" = "$2" ] || echo "FAILED: $1 is $(cat "$1"), not $2"; }
# Waits until a file has this text, 30 s at most.
await() {
    i=0
    until [ "$(cat "$1")" = "$2" ] || [ $i -ge 300 ]; do sleep 0.1; i=$((i + 1)); done
}

# web's vCPUs want at least twice the quota, also where the emulation is fast. They wait most of the time. batch
# leaves CPUs idle.
quota=$G/vms/web/cpu.max
limit='10000 100000'
group vms/web "cpu.max=$limit"
group vms/batch cpu.weight=100
vm web vms/web 2 request:15000:500000
vm batch vms/batch 1 request:50000:50000
# An emulator translates code when it first runs.
stealtime record -o warm.dat --seconds 1 >/dev/null 2>&1
rm -f warm.dat

say "a knob that helps"
run stealtime try --set vm.web.cpu_max=max --baseline 1500ms --turn 1500ms --for 9s --seeds 2 --yes >helps.txt
cat helps.txt
grep -q better helps.txt || echo "FAILED: it does not help"
is $quota "$limit"

say "a knob that does not"
parameter=/sys/module/kvm/parameters/halt_poll_ns_grow_start
former=$(cat $parameter)
run stealtime try --set kvm.halt_poll_ns_grow_start=9000 --baseline 1s --turn 1s --for 6s --no-prediction \
    --yes >same.txt
cat same.txt
if grep -q '^Keep it' same.txt; then echo "FAILED: it is to be kept"; fi
is $parameter "$former"

say "a guard that stops it"
# vCPUs wait 90 ms of each period, and 990 ms of the longer one.
run stealtime try --set 'vm.web.cpu_max=20ms 1s' --stop-if 'vm.web.stall>600ms' --baseline 1s --turn 2s \
    --slice 2s --for 8s --no-prediction --yes >guard.txt
cat guard.txt
# The slice of turn 2 may end just before the wait does.
grep -q '^Stopped in turn [24] of 4 (B)' guard.txt || echo "FAILED: no guard stopped it"
is $quota "$limit"

say "the scheduler of sched_ext"
# Quotas are the kernel's alone.
echo max >$quota
for name in a b; do vm $name '' 2 spin; done
export SCX_STEALTIME=/test/scx_stealtime
state=/sys/kernel/sched_ext/state
run stealtime try --set sched.policy=scx-stealtime --baseline 1s --turn 2s --for 8s --seeds 2 --yes >sched.txt
cat sched.txt
grep -q 'fair, as before\|fair again' sched.txt || echo "FAILED: no turn had the scheduler"
is $state disabled
stealtime try --set sched.policy=scx-stealtime --baseline 1s --turn 2s --for 80s --no-prediction --yes >kill.txt 2>&1 &
pid=$!
await $state enabled
kill -9 $pid
wait $pid 2>/dev/null
await $state disabled
is $state disabled
cat kill.txt
run stealtime try --restore
stop_vm a b
echo "$limit" >$quota

say "a kill while the knob is turned"
stealtime try --set vm.web.cpu_max=max --baseline 1s --turn 1s --for 80s --no-prediction --yes >kill.txt 2>&1 &
pid=$!
await $quota 'max 100000'
kill -9 $pid
wait $pid 2>/dev/null
await $quota "$limit"
is $quota "$limit"
cat kill.txt
run stealtime try --restore

# KILLS=N kills so many trials at random moments, each third one with its watchdog.
. /test/kills
# watchdogs PID: children of the process, of which none has a blank in its name.
watchdogs() { cat /proc/[0-9]*/stat 2>/dev/null | awk -v parent="$1" '$4 == parent { print $1 }'; }
by_start=0
n=0
while [ $n -lt "$KILLS" ]; do
    n=$((n + 1))
    stealtime try --set vm.web.cpu_max=max --set kvm.halt_poll_ns_grow_start=9000 --baseline 500ms --turn 500ms \
        --for 80s --no-prediction --yes >kills.txt 2>&1 &
    pid=$!
    # Each fourth one may be killed before anything is turned.
    i=0
    until [ $((n % 4)) = 0 ] || [ "$(cat $quota)" = 'max 100000' ] || [ $i -ge 300 ]; do sleep 0.1; i=$((i + 1)); done
    sleep $((RANDOM % 3)).$((RANDOM % 10))
    if [ $((n % 3)) = 0 ]; then
        kill -STOP $pid
        for watchdog in $(watchdogs $pid); do kill -9 "$watchdog"; done
    fi
    kill -9 $pid
    wait $pid 2>/dev/null
    # The watchdog holds the lock while it restores.
    i=0
    until stealtime try --restore >restored.txt 2>&1 || [ $i -ge 60 ]; do sleep 0.5; i=$((i + 1)); done
    if ! grep -q 'nothing: ' restored.txt; then by_start=$((by_start + 1)); fi
    cat restored.txt
    is $quota "$limit"
    is $parameter "$former"
done
[ $n = 0 ] || say "$n kills: the values are back each time, after $by_start of them by the next start"
stop_vms
