# `stealtime watch`: recordings of triggers, two watchers at once, and bad input. Runs in the nested host;
# scripts/live/compare-watch reads the recordings outside of it.
. /test/lib.sh
few_symbols
hold_patches
mkdir -p /out/watch/one /out/watch/two
cd /out/watch

# expect NAME COMMAND...: a case is right if the command succeeds.
expect() {
    name=$1; shift
    if "$@"; then say "ok: $name"; else say "FAILED: $name"; fi
}
instances() { ls $T/instances | grep -c '^stealtime-'; }
await() { for _ in $(seq 150); do "$@" && return; sleep 0.2; done; say "FAILED: never: $*"; }
traces() { [ "$(cat $T/instances/stealtime-*/tracing_on 2>/dev/null | grep -c 1)" = "$1" ]; }
has_lines() { [ "$(cat "$1" 2>/dev/null | wc -l)" -ge "$2" ]; }
files() { ls "$1" | grep -c 'watch-.*\.dat$'; }

group vms/web cpu.max='40000 100000'; group vms/db
vm web vms/web 2 hog:1:100000
vm db vms/db 2 timer:10000:500000
db=$pid
sleep 2

say "two watchers, and a VM that vanishes"
$STEALTIME watch --when 'vm.web.stall>20ms' -o one --keep 3s --json >one.jsonl 2>one.txt & one=$!
$STEALTIME watch --when 'vm.web.throttled>10%' --when 'vm.db.ready>90%' -o two --keep 2s --after 0s \
    >two.txt 2>two-log.txt & two=$!
await traces 2
sleep 6
kill $db
await has_lines one.jsonl 1
await has_lines two.txt 1
kill -TERM $one $two
wait $one; expect "a watcher that has seen something ends with 1" [ $? = 1 ]
wait $two; expect "so does the other" [ $? = 1 ]
expect "no instance is left" [ "$(instances)" = 0 ]
expect "one has its recording" [ "$(files one)" = 1 ]
expect "two has one or one for each condition" [ "$(files two)" -ge 1 ]
for file in one/*.dat two/*.dat; do
    expect "analyze reads $file" sh -c "$STEALTIME analyze $file >$file.txt"
    expect "it has a snapshot" sh -c "$STEALTIME snapshot $file >$file.snapshot.txt"
done
cat two.txt two-log.txt one.txt

say "nothing to see"
$STEALTIME watch --when 'vm.web.stall>10s' -o none --for 2s >none.txt 2>none-log.txt
expect "it ends with 0" [ $? = 0 ]
expect "and without a file" [ "$(files none)" = 0 ]

say "a rate"
mkdir -p rate
$STEALTIME watch --when 'web.stall>20ms' --when 'db.stall>20ms' -o rate --at-most 1/h --keep 1s --after 0s --for 12s >rate.txt 2>rate-log.txt & rate=$!
await traces 1
sleep 1.5
# The VM stops for longer than an interval, and stalls again.
for _ in 1 2 3; do kill -STOP $pid_web; sleep 1.5; kill -CONT $pid_web; sleep 1.5; done
wait $rate
expect "one is recorded" [ "$(files rate)" = 1 ]
expect "others are counted" grep -q 'not recorded: --at-most 1/h' rate.txt
cat rate.txt rate-log.txt

say "a disk that is full"
mkdir -p /tmp/full
mount -t tmpfs -o size=64k tmpfs /tmp/full
$STEALTIME watch --when 'stall>20ms' -o /tmp/full --keep 1s --after 0s --for 4s >full.txt 2>full-log.txt
expect "it goes on to its end" [ $? = 1 ]
expect "and says why there is no file" grep -q 'not recorded: .*No space left' full.txt
expect "nothing is left" [ -z "$(ls -A /tmp/full)" ]
umount /tmp/full
$STEALTIME watch --when 'stall>20ms' -o small --max-size 100K --keep 1s --after 0s --for 4s >small.txt 2>small-log.txt
expect "a bound is kept" grep -q 'would pass --max-size' small.txt
expect "without a file" [ "$(files small)" = 0 ]
cat full.txt small.txt

say "a watcher that is killed"
$STEALTIME watch --when 'stall>10s' -o one & killed=$!
await traces 1
kill -9 $killed; wait $killed
expect "its instance is left, and records nothing" [ "$(instances) $(cat $T/instances/stealtime-*/tracing_on)" = "1 0" ]
$STEALTIME watch --when 'stall>10s' -o one --for 1s 2>after-kill.txt
expect "the next start says that it removes it" grep -q 'removed a tracing instance' after-kill.txt
expect "no instance is left" [ "$(instances)" = 0 ]
stop_vms
