# The longest wait of a thread of nice 19 next to two VMs, by scheduler: docs/live-yield.md. Runs in the nested host.
. /test/lib.sh
hold_patches
. /test/yield-lib.sh
guest a '' 4 9999 ipi; a=$!
guest b '' 4 9999 hog; b=$!
sleep 3

# light SCHEDULER: sleeps of 10 ms for SECS seconds.
light() {
    /test/yield-tasks light "${SECS:-40}" light >/tmp/light.$1
    awk -v n=$1 '{ trips += $2; most += $3 } END { print n, "rounds of 10 ms:", trips, "longest ms:", int(most / 1000) }' /tmp/light.$1
}
for _ in 1 2; do
    say "eevdf"; light eevdf
    load full --watchdog-ms 20000
    say "scx"; light scx
    unload; cat /tmp/full.err
    load refuse --watchdog-ms 20000 --yield refuse
    say "scx refuse"; light refuse
    unload; cat /tmp/refuse.err
done
kill $a $b
