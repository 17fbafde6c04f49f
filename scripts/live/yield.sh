# Directed yield on a stock kernel by sched_ext: docs/live-yield.md. Runs in the nested host.
. /test/lib.sh
hold_patches
. /test/yield-lib.sh
mkdir -p /out/yield

# counted MODE LOAD: keeps what a loaded scheduler has published.
counted() {
    [ ! -e /run/stealtime/sched.json ] || echo "$2 $1 $(cat /run/stealtime/sched.json)" >>/out/yield/counters.txt
}
# turn MODE LOAD: what two VMs of 4 vCPUs, or two programs, complete in a second under a scheduler.
turn() {
    case $1 in
        eevdf) ! has_series || series_mode stock ;;
        series | guarded | series_first) series_mode $1 ;;
        partial) ;;
        refuse | nominee) echo "$1 50" >/tmp/modes ;;
        receiver) echo "receiver 50" >/tmp/modes ;;
        any) echo "receiver 0" >/tmp/modes ;;
        spin) echo "receiver 1000000" >/tmp/modes ;;
    esac
    sleep 1
    counted "$@"
    done_in=$(window "$SECS" a b)
    # A crash of a guest is the emulation's.
    if kill -0 $a && kill -0 $b; then echo "$2 $1 $done_in"; else lost=1; fi
    counted "$@"
}

SECS=${SECS:-4}
# The first load reads the kernel's types, which takes long under emulation.
load first
unload
say "the same loads under each scheduler, in turns"
begin() {
    for name in a b; do
        case $1 in
            hackbench | membarrier) tasks $name 9999 $1 ;;
            linux_*) linux $name $1 ;;
            *) guest $name '' 4 9999 $1 ;;
        esac
        eval "$name=$!"
    done
    lost=
    sleep 2
    # A Linux guest boots first, in some minutes of emulated time.
    for name in a b; do PATIENCE=6000 await has_lines 3 "^$name [0-9]" /tmp/$name.guest; done
}
end() {
    kill $a $b 2>/dev/null
    wait $a $b 2>/dev/null
}
group vms/gold cpu.weight=300
group vms/silver cpu.weight=100
usage() { sed -n 's/usage_usec //p' "$G/vms/$1/cpu.stat"; }
share() { # NAME LOADS OPTIONS...
    name=$1; one=$2; two=$3; shift 3
    [ "$name" = eevdf ] || load "$name" --watchdog-ms 5000 "$@"
    guest gold vms/gold 4 8 "$one"; a=$!
    guest silver vms/silver 4 8 "$two"; b=$!
    sleep 2; g=$(usage gold); s=$(usage silver)
    sleep 5; g=$(($(usage gold) - g)); s=$(($(usage silver) - s))
    per_mille=$((1000 * g / (g + s)))
    echo "$name $one/$two gold $per_mille per mille" | tee -a /out/yield/shares.txt
    wait $a $b
    [ "$name" = eevdf ] || unload
}
# Two percent of 750.
is_due() { [ "$per_mille" -ge 735 ] && [ "$per_mille" -le 765 ]; }
shares() {
    say "shares of two VMs by weight 300:100, while they yield without pause"
    share eevdf ipi ipi
    for each in ipi lock tlb pv spin; do
        for pair in "$each $each" "$each hog" "hog $each"; do
            share receiver $pair
            expect "gold has 750 of 1000 with $pair, within 15" is_due
        done
    done
}
kernels=eevdf
! has_series || kernels=${KERNELS:-eevdf series guarded series_first}
for kind in ${KINDS:-ipi lock tlb hackbench membarrier shares}; do
    [ $kind != shares ] || { shares; continue; }
    begin $kind
    for _ in $(seq "${TURNS:-6}"); do
        [ -z "$lost" ] || { end; begin $kind; }
        echo "round $kind"
        [ -n "${MODES:-}" ] || for mode in $kernels; do turn $mode $kind; done
        ! has_series || series_mode stock
        load modes --watchdog-ms 5000 --follow /tmp/modes ${OPTIONS:-}
        for mode in ${MODES:-refuse nominee receiver}; do turn $mode $kind; done
        unload
        [ -z "${PARTIAL:-}" ] || {
            load partial --watchdog-ms 5000 --canary "VM=$a" --canary "VM=$b"
            turn partial $kind
            unload
        }
    done
    end
done
cp /tmp/*.err /out/yield/ 2>/dev/null
