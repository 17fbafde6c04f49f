# Bad input on a live host: each case says what it saw, and ends with "ok" or "FAILED". Runs in the nested host.
. /test/lib.sh
few_symbols
hold_patches
mkdir -p /out/faults

# expect NAME COMMAND...: a case is right if the command succeeds.
expect() {
    name=$1; shift
    if "$@"; then say "ok: $name"; else say "FAILED: $name"; fi
}
instances() { ls $T/instances | grep -c '^stealtime-'; }
# Waits for a condition, but not for ever.
await() { for _ in $(seq 150); do "$@" && return; sleep 0.2; done; say "FAILED: never: $*"; }
is_recording() { grep -q 1 $T/instances/stealtime-*/tracing_on 2>/dev/null; }
has_vcpu() { grep -qx 'CPU 0/KVM' /proc/"$1"/task/*/comm 2>/dev/null; }
# A whole file: it is read to its end.
is_whole() { $STEALTIME analyze "$1" --key vms >/tmp/analyzed.txt 2>&1 && grep -q 'events, none lost' /tmp/analyzed.txt; }

vm web '' 2 timer:5000:20000

say "a recorder that is killed"
$STEALTIME record -o /tmp/killed.dat --seconds 60 >/dev/null 2>&1 & recorder=$!
await is_recording
kill -9 $recorder; wait $recorder
expect "its instance is left, and records nothing" [ "$(instances) $(cat $T/instances/stealtime-*/tracing_on)" = "1 0" ]
expect "no file is left" [ ! -e /tmp/killed.dat ]
$STEALTIME record -o /tmp/next.dat --seconds 1 >/out/faults/after-kill.txt 2>&1
expect "the next start says that it removes it" grep -q 'removed a tracing instance' /out/faults/after-kill.txt
expect "no instance is left" [ "$(instances)" = 0 ]
expect "the file is whole" is_whole /tmp/next.dat

say "two recorders at once, and a stop by SIGTERM"
$STEALTIME record -o /tmp/one.dat --seconds 10 >/out/faults/one.txt 2>&1 & one=$!
$STEALTIME record -o /tmp/two.dat --seconds 60 >/out/faults/two.txt 2>&1 & two=$!
two_record() { [ "$(cat $T/instances/stealtime-*/tracing_on 2>/dev/null | grep -c 1)" = 2 ]; }
await two_record
sleep 2; kill -TERM $two
expect "the first ends well" wait $one
expect "the second ends well" wait $two
expect "both files are whole" eval 'is_whole /tmp/one.dat && is_whole /tmp/two.dat'
expect "no instance is left" [ "$(instances)" = 0 ]

say "a full disk"
mkdir -p /tmp/small; mount -t tmpfs -o size=1m small /tmp/small
$STEALTIME record -o /tmp/small/trace.dat --seconds 2 >/out/faults/full.txt 2>&1
expect "a disk of 1 MB is refused" [ $? != 0 ]
expect "the message names the file and the reason" grep -qi 'small/trace.dat.*no.*space\|small/trace.dat.*full' /out/faults/full.txt
mount -o remount,size=14m /tmp/small
vm loud '' 2 timer:200:1000
$STEALTIME record -o /tmp/small/trace.dat --seconds 60 >/out/faults/filled.txt 2>&1
expect "a disk that fills ends the recording" [ $? != 0 ]
expect "the file until then is whole" is_whole /tmp/small/trace.dat
expect "no instance is left" [ "$(instances)" = 0 ]
umount /tmp/small

say "a CPU goes and comes"
$STEALTIME record -o /tmp/cpu.dat --seconds 5 >/out/faults/cpu.txt 2>&1 & recorder=$!
await is_recording
sleep 1; echo 0 >/sys/devices/system/cpu/cpu1/online
sleep 2; echo 1 >/sys/devices/system/cpu/cpu1/online
expect "the recording ends well" wait $recorder
expect "the file is whole" is_whole /tmp/cpu.dat
expect "both CPUs are in it" grep -q 'on 2 CPUs' /tmp/analyzed.txt

say "VMs come and go"
$STEALTIME record -o /tmp/go.dat --seconds 120 >/out/faults/go.txt 2>&1 & recorder=$!
await is_recording
for n in 1 2 3; do
    vm "brief$n" '' 1 hog:1:10000
    await has_vcpu "$pid"
    sleep 1; kill "$pid"
done
kill -TERM $recorder
expect "the recording ends well" wait $recorder
expect "the file is whole" is_whole /tmp/go.dat
cp /tmp/analyzed.txt /out/faults/vms.txt
expect "the processes of all five VMs are known" [ "$(grep -c "their process$\|the host's snapshot$" /tmp/analyzed.txt)" = 5 ]

say "a snapshot while VMs come and go"
(for n in 1 2 3 4 5 6; do vm "brief$n" '' 1 hog:1:10000; sleep 0.3; kill "$pid"; done) &
for n in 1 2 3; do $STEALTIME snapshot -o /tmp/host.json >/out/faults/snapshot.txt 2>&1 || break; done
expect "it is written" $STEALTIME snapshot /tmp/host.json >/dev/null
cp /tmp/*.log /out/faults/
tail /out/faults/*.txt /out/faults/*.log
stop_vms
