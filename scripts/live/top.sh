# `stealtime top` by BPF and by tracefs next to `stealtime record` of the same seconds, `metrics` and its bad input.
# Runs in the nested host; scripts/live/compare-top compares outside of it.
. /test/lib.sh
few_symbols
hold_patches
mkdir -p /out/top
ifconfig lo up

# expect NAME COMMAND...: a case is right if the command succeeds.
expect() {
    name=$1; shift
    if "$@"; then say "ok: $name"; else say "FAILED: $name"; fi
}
instances() { ls $T/instances | grep -c '^stealtime-'; }
await() { for _ in $(seq 150); do "$@" && return; sleep 0.2; done; say "FAILED: never: $*"; }
traces() { [ "$(cat $T/instances/stealtime-*/tracing_on 2>/dev/null | grep -c 1)" = "$1" ]; }

group vms/web cpu.max='40000 100000'; group vms/db; group vms/batch cpu.weight=50
vm web vms/web 2 hog:1:100000
vm db vms/db 2 timer:10000:500000
vm batch vms/batch 1 request:10000:300000
sleep 2

say "top and record at once"
$STEALTIME record -o /out/top/trace.dat --seconds 120 >/out/top/record.txt 2>&1 & recorder=$!
await traces 1
sleep 0.5
# The kernel counts the time of BPF programs.
echo 1 >/proc/sys/kernel/bpf_stats_enabled
begin=$(cut -d' ' -f1 /proc/uptime)
$STEALTIME top --collector bpf --format json --for 8s >/out/top/bpf.jsonl 2>/out/top/bpf.txt & bpf=$!
await [ -s /out/top/bpf.jsonl ]
$STEALTIME top --collector tracefs --format json --for 6s >/out/top/tracefs.jsonl 2>/out/top/tracefs.txt
expect "top by tracefs ends well" [ $? = 0 ]
wait $bpf
expect "top by BPF ends well" [ $? = 0 ]
cat /out/top/bpf.txt
end=$(cut -d' ' -f1 /proc/uptime)
sleep 0.5
kill -TERM $recorder; wait $recorder
say "top took $begin to $end"
expect "six samples by tracefs" [ "$(wc -l </out/top/tracefs.jsonl)" = 6 ]
expect "eight by BPF" [ "$(wc -l </out/top/bpf.jsonl)" = 8 ]
expect "no instance is left" [ "$(instances)" = 0 ]
$STEALTIME top --batch --for 2s --vcpus --collector bpf --sort stall | tee /out/top/batch.txt

say "metrics by BPF"
$STEALTIME metrics --listen 127.0.0.1:9726 2>/out/top/metrics-bpf-log.txt & metrics=$!
fetched() { wget -q -O /out/top/metrics-bpf.txt http://127.0.0.1:9726/metrics 2>/dev/null && grep -q "$1" /out/top/metrics-bpf.txt; }
await fetched '^stealtime_collector_samples_total [4-9]'
expect "BPF is what it takes" grep -q '^stealtime_collector_info{by="bpf"} 1' /out/top/metrics-bpf.txt
expect "ready by cause" grep -q '^stealtime_ready_seconds_total{vm="web",cause="throttled"} [0-9]' /out/top/metrics-bpf.txt
grep Cap /proc/$metrics/status >/out/top/capabilities-bpf.txt
expect "capabilities are dropped" grep -q 'CapEff:.*0000000000080004' /out/top/capabilities-bpf.txt
expect "no instance is made" [ "$(instances)" = 0 ]
grep VmHWM /proc/$metrics/status
kill -9 $metrics; wait $metrics
say "a CPU goes and comes, by BPF"
$STEALTIME top --collector bpf --format json --for 8s >/out/top/cpu.jsonl 2>/out/top/cpu.txt & top=$!
await [ -s /out/top/cpu.jsonl ]
echo 0 >/sys/devices/system/cpu/cpu1/online
sleep 2
echo 1 >/sys/devices/system/cpu/cpu1/online
wait $top
expect "top goes on" [ $? = 0 ]
expect "each interval has its sample" [ "$(wc -l </out/top/cpu.jsonl)" = 8 ]
cpu1() { tail -1 /out/top/cpu.jsonl | grep -o '"cpu":1,"vcpu_ns":[0-9]*,"other_ns":[0-9]*'; }
cpu1
expect "the CPU is followed again" [ "$(cpu1 | tr -dc '0-9,' | cut -d, -f3)" -gt 0 ]
exits() { tail -1 /out/top/cpu.jsonl | grep -c '"vm":"db".*"exits":[1-9]'; }
expect "so are exits" [ "$(exits)" = 1 ]
say "BPF that is forbidden"
mount -t tmpfs none /sys/kernel/btf
$STEALTIME top --batch --for 1s >/dev/null 2>/out/top/no-btf.txt
expect "without BTF it falls back to tracefs" [ $? = 0 ]
expect "and says why" grep -q 'by tracefs, not by BPF: /sys/kernel/btf/vmlinux' /out/top/no-btf.txt
$STEALTIME top --batch --for 1s --collector bpf >/dev/null 2>&1
expect "unless BPF is asked for" [ $? = 2 ]
umount /sys/kernel/btf

say "metrics by tracefs, with a scraper that hangs"
$STEALTIME metrics --collector tracefs --listen 127.0.0.1:9725 2>/out/top/metrics-log.txt & metrics=$!
await traces 1
sleep 6
(printf 'GET /metr'; sleep 20) | nc 127.0.0.1 9725 >/dev/null & hanging=$!
wget -q -O /out/top/metrics.txt http://127.0.0.1:9725/metrics
expect "metrics are scraped" grep -q '^stealtime_ready_seconds_total{vm="web",cause="throttled"} [0-9]' /out/top/metrics.txt
expect "they end as OpenMetrics does" [ "$(tail -1 /out/top/metrics.txt)" = '# EOF' ]
expect "no event is lost" grep -q '^stealtime_collector_lost_events_total 0$' /out/top/metrics.txt
$STEALTIME metrics --collector tracefs --listen 127.0.0.1:9725 2>/out/top/in-use.txt
expect "a port in use is an error" [ $? = 2 ]
expect "its message says what to do" grep -q 'give another port' /out/top/in-use.txt
grep Cap /proc/$metrics/status >/out/top/capabilities.txt
expect "capabilities are dropped" grep -q 'CapEff:.*0000000000080004' /out/top/capabilities.txt

say "VMs that come and go"
for n in 1 2 3 4 5 6; do vm "short$n" '' 1 hog:1:1000; sleep 0.3; kill "$pid"; done
sleep 2
wget -q -O /out/top/metrics-2.txt http://127.0.0.1:9725/metrics
expect "metrics go on" grep -q '^stealtime_vcpus{vm="db"} 2' /out/top/metrics-2.txt

say "a collector that is killed"
kill -9 $metrics; wait $metrics
kill $hanging
expect "its instance is left, and records nothing" [ "$(instances) $(cat $T/instances/stealtime-*/tracing_on)" = "1 0" ]
$STEALTIME top --collector tracefs --batch --for 1s >/dev/null 2>/out/top/after-kill.txt
expect "the next start says that it removes it" grep -q 'removed a tracing instance' /out/top/after-kill.txt
expect "no instance is left" [ "$(instances)" = 0 ]

# Last: a kernel is not unlocked again.
say "a kernel that is locked down"
mount -t securityfs none /sys/kernel/security
lock() { echo "$1" >/sys/kernel/security/lockdown; }
locked() { "$@" >/dev/null 2>/out/top/locked.txt; }
lock integrity
for collector in bpf tracefs; do
    expect "integrity leaves $collector" locked $STEALTIME top --collector $collector --batch --for 1s
done
lock confidentiality
locked_file=/out/top/locked.dat
for collecting in "top --collector bpf --batch --for 1s" "top --batch --for 1s" "record -o $locked_file --seconds 1"; do
    locked $STEALTIME $collecting
    expect "confidentiality refuses: $collecting" [ $? = 2 ]
    cat /out/top/locked.txt
    expect "the message names it" grep -q 'locked down (confidentiality)' /out/top/locked.txt
done
expect "it leaves record --perf" locked $STEALTIME record --perf -o $locked_file --seconds 1
stop_vms
