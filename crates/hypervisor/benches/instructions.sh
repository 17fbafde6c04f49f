#!/bin/sh
# Instructions per operation of the fair class and of its red-black peer, without and with load
# tracking, counted by callgrind.
# Use: benches/instructions.sh   (from the crate's folder; needs valgrind)
# scripts/kernel-eevdf gives a program and two other worlds of it, each with its title.
set -eu
if [ $# -eq 0 ]; then
    cargo build -q --release -p stealtime-hypervisor --example eevdf_ops
    target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    set -- "$target/release/examples/eevdf_ops" peer peer tracking "peer, load tracking"
fi
ops=$1
rounds=300
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "| entities | operation | this crate | $3 | ratio | $5 | ratio |"
echo "|---|---|---|---|---|---|---|"
for tasks in 2 8 64 1024; do
    for op in enqueue dequeue pick; do
        for which in ours "$2" "$4"; do
            valgrind --tool=callgrind --callgrind-out-file="$out/cg" --collect-atstart=no \
                --toggle-collect="*batch_$op*" "$ops" "$which" "$tasks" "$rounds" \
                >"$out/count" 2>"$out/log"
            total=$(sed -n 's/^summary: //p; s/^totals: //p' "$out/cg" | head -n 1)
            done=$(sed -n "s/^$op //p" "$out/count")
            sed -n 's/^picks //p' "$out/log" >"$out/picks_$which"
            cmp -s "$out/picks_$which" "$out/picks_ours" || { echo "$which picks other tasks" >&2; exit 1; }
            echo "$total $done" >"$out/$which"
        done
        cat "$out/ours" "$out/$2" "$out/$4" | tr '\n' ' ' |
            awk -v n="$tasks" -v op="$op" '{
                a = $1 / $2; b = $3 / $4; c = $5 / $6
                printf "| %s | %s | %.0f | %.0f | %.2f | %.0f | %.2f |\n", n, op, a, b, a / b, c, a / c
            }'
    done
done
