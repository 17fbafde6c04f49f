# Directed yield on a stock kernel by sched_ext: docs/live-yield.md. Runs in the nested host.
. /test/lib.sh
hold_patches
. /test/yield-lib.sh
mkdir -p /out/yield

# turn MODE LOAD OPTIONS...: two VMs of 4 vCPUs; a line for the table.
turn() {
    mode=$1; kind=$2; shift 2
    [ "$mode" = eevdf ] || load "$mode" "$@"
    guest a '' 4 "$SECS" "$kind"; a=$!
    guest b '' 4 "$SECS" "$kind"; wait $! $a
    echo "$kind $mode $(progress a b)" | tee -a /out/yield/turns.txt
    [ "$mode" = eevdf ] && return
    unload
    sed "s/^/$mode /" "/tmp/$mode.json" >>/out/yield/counters.txt
}

SECS=${SECS:-5}
say "the same guests under each scheduler, in turns"
for _ in $(seq "${TURNS:-3}"); do
    turn eevdf ipi
    turn refuse ipi --yield refuse
    turn nominee ipi --yield nominee
    turn receiver ipi
done
for _ in $(seq "${TURNS:-3}"); do
    turn eevdf lock
    turn refuse lock --yield refuse
    turn receiver lock
done

say "shares of two VMs by weight 300:100, while both yield without pause"
group vms/gold cpu.weight=300
group vms/silver cpu.weight=100
usage() { sed -n 's/usage_usec //p' "$G/vms/$1/cpu.stat"; }
share() { # NAME LOADS OPTIONS...
    name=$1; one=$2; two=$3; shift 3
    [ "$name" = eevdf ] || load "$name" "$@"
    guest gold vms/gold 4 8 "$one"; a=$!
    guest silver vms/silver 4 8 "$two"; b=$!
    sleep 2; g=$(usage gold); s=$(usage silver)
    sleep 5; g=$(($(usage gold) - g)); s=$(($(usage silver) - s))
    per_mille=$((1000 * g / (g + s)))
    echo "$name $one/$two gold $per_mille per mille" | tee -a /out/yield/shares.txt
    wait $a $b
    [ "$name" = eevdf ] || unload
}
share eevdf ipi ipi
share receiver ipi ipi
expect "gold has 750 of 1000, within 20" [ $per_mille -ge 730 -a $per_mille -le 770 ]
share receiver lock hog
expect "gold's locks have 750 of 1000, within 40" [ $per_mille -ge 710 -a $per_mille -le 790 ]
share receiver hog lock
expect "a third party that computes keeps its share within 40" [ $per_mille -ge 710 -a $per_mille -le 790 ]
cp /tmp/*.err /out/yield/ 2>/dev/null
