# CPU time of a switch under each scheduler: docs/live-yield.md. Runs in the nested host.
. /test/lib.sh
hold_patches
. /test/yield-lib.sh
mkdir -p /out/yield

# Lines of a turn: `switch LOAD MODE`, and ns of CPU time, of busy time and by the clock. Hosts of VMs have groups:
# `grouped` is `pinned` in one.
turn() {
    for kind in ${KINDS:-pinned grouped pipe}; do
        pinned=$kind within=$G
        [ $kind != grouped ] || { pinned=pinned; within=$G/vms/tasks; }
        sh -c "echo 0 >$within/cgroup.procs; exec /test/yield-tasks 'switch $kind $1' ${ROUNDS:-10000} $pinned"
    done
}
group vms/tasks
costs() { grep '^cost' /tmp/$1.err | sed "s/^/$1 /"; }

load first
unload
say "ns a switch of two processes that exchange words by pipes"
for _ in $(seq "${TURNS:-5}"); do
    echo "round"
    for mode in ${MODES:-eevdf full simple flatcg partial}; do
        case $mode in
            full) load full --watchdog-ms 5000 ;;
            simple | flatcg) load $mode --sample /test/scx_$mode.bpf.o ;;
            partial) load partial --watchdog-ms 5000 --canary VM=none ;;
        esac
        sleep 1
        turn $mode
        [ $mode = eevdf ] || unload
    done
done
say "runs of the BPF programs, with the kernel's own counting of them"
load full --watchdog-ms 5000 --costs
turn counted
unload
costs full
for mode in simple flatcg; do
    load $mode --sample /test/scx_$mode.bpf.o --costs
    turn counted
    unload
    costs $mode
done
cp /tmp/*.err /out/yield/ 2>/dev/null
