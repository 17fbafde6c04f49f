# The directed-yield series on a kernel of scripts/kernel-series: docs/yield-series.md. Runs in the nested host.
. /test/lib.sh
. /test/yield-lib.sh
# This shell measures, next to guests that compute.
echo 0 >$G/loader/cgroup.procs
mkdir -p /out/series
has_series || { say "FAILED: a kernel without the series"; exit; }

# counters FILE: those of the scheduler and of KVM, as "name value". One process reads all, at nearly one time.
counters() {
    grep -H . $F/yield_to/stats /sys/kernel/debug/kvm/dy_* /sys/kernel/debug/kvm/ipi_* |
        sed 's/.*stats://; s,.*/,,; s/:/ /' >"$1"
}

# run_us PID...: the run time of their threads, in us.
run_us() { for pid; do cat /proc/$pid/task/*/schedstat; done | awk '{ run += $1 } END { print int(run / 1000) }'; }

# turn KIND MODE PID NAME...: a line with what the named guests complete and what the counters count. With the PID
# of a process, its share of the time that all guests run.
turn() {
    kind=$1; mode=$2; third=$3; shift 3
    series_mode "$mode"
    sleep 0.5
    counters /tmp/before
    used=0; all=1
    [ -z "$third" ] || { used=$(run_us $third); all=$(run_us $pids); }
    done_in=$(window "$SECS" "$@")
    [ -z "$third" ] || { used=$(($(run_us $third) - used)); all=$(($(run_us $pids) - all)); }
    counters /tmp/after
    counted=$(paste -d' ' /tmp/before /tmp/after | awk '{ if ($4 != $2) printf " %s=%d", $1, $4 - $2 }')
    for pid in $pids; do kill -0 $pid 2>/dev/null || { lost=1; return; }; done
    shares="third=$((1000 * used / all))$counted"
    set -- $done_in
    echo "turn $kind $mode trips=$1 work=$2 wait=$3 $shares"
}

SECS=${SECS:-3}
TURNS=${TURNS:-4}

# rounds KIND MODES: turns of each mode, again and again. begin starts the guests, and again where the
# emulation has lost one.
end() { kill $pids 2>/dev/null; wait $pids 2>/dev/null; }
rounds() {
    lost=
    begin
    sleep 2
    for _ in $(seq "$TURNS"); do
        [ -z "$lost" ] || { end; lost=; begin; sleep 2; }
        echo "round $1"
        for each in $2; do turn $1 $each "$third" $names; done
    done
    end
}

# Two VMs of 4 vCPUs on all CPUs.
begin_trips() {
    guest a '' 4 9999 $load; a=$!
    guest b '' 4 9999 $load; b=$!
    pids="$a $b"; third=; names="a b"
}
# A pair of vCPUs and a third one, which computes, on one CPU: in one group, or each VM in its own.
begin_flat() {
    guest a flat 2 9999 $load; a=$!
    guest c flat 1 9999 hog; c=$!
    pids="$a $c"; third=$c; names=a
}
begin_groups() {
    guest a one/pair 2 9999 $load; a=$!
    guest c one/third 1 9999 hog; c=$!
    pids="$a $c"; third=$c; names=a
}

group flat cpuset.cpus=1
group one/pair cpuset.cpus=1
group one/third cpuset.cpus=1

for kind in ${KINDS:-trips third sweep credits}; do
    case $kind in
        trips)
            say "round trips of two VMs on all CPUs"
            for load in ipi lock tlb pv; do
                begin() { begin_trips; }
                rounds $load "${MODES:-stock credit guard tracking series guarded first series_first}"
            done
            ;;
        third)
            say "the share of a third party"
            for load in spin ipi lock; do
                begin() { begin_flat; }
                rounds flat-$load "${MODES:-stock credit guard}"
                begin() { begin_groups; }
                rounds groups-$load "${MODES:-stock credit guard}"
            done
            ;;
        sweep)
            say "margin and interval, without the guard"
            for load in spin ipi; do
                begin() { begin_flat; }
                rounds margin-$load "stock margin_5000 margin_50000 margin_500000 margin_1400000 margin_5600000"
                rounds interval-$load "stock interval_0 interval_1000000 interval_6000000 interval_24000000"
            done
            ;;
        credits)
            # See crates/hypervisor/src/lag_credit/recorded.rs.
            say "credits, entity by entity"
            mkdir $T/instances/credits
            echo 0 >$T/instances/credits/tracing_on
            for event in sched_yield_to_entity sched_yield_to_credit; do
                echo 1 >$T/instances/credits/events/sched/$event/enable
            done
            record() {
                echo >$T/instances/credits/trace
                echo 1 >$T/instances/credits/tracing_on
                sleep 1
                echo 0 >$T/instances/credits/tracing_on
                # Whole groups alone: of the first one entities may be missing.
                sed -n 's/.*: sched_yield_to_\(entity\|credit\): /\1 /p' $T/instances/credits/trace |
                    sed 's/[a-z_]*=//g' |
                    awk '{ group = group $0 "\n" }
                        /^credit/ { if (++n > 1 && n < 40) printf "%s", group; group = "" }' \
                        >>/out/series/credits.txt
            }
            for load in ipi lock; do
                for at in flat groups; do
                    begin_$at
                    guest d $([ $at = flat ] && echo flat || echo one/pair) 2 9999 ipi; d=$!
                    renice -n 5 -p /proc/$d/task/* >/dev/null 2>&1
                    for each in credit guard margin_1400000; do
                        sleep 1
                        series_mode $each
                        record
                    done
                    kill $pids $d; wait $pids $d 2>/dev/null
                done
            done
            say "$(grep -c '^credit' /out/series/credits.txt) credits"
            ;;
    esac
done
series_mode guarded
dmesg | grep 'WARNING:\|BUG:\|Oops:' && say "FAILED: the kernel complains"
