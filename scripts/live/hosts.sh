# Recordings of hosts with control groups, weights, quotas and pins (tests/data/live). Runs in the nested host.
. /test/lib.sh
few_symbols
hold_patches

plain() {
    vm web '' 2 request:10000:300000
    vm db '' 2 timer:5000:150000
    vm batch '' 1 hog:1:100000
}
weights() {
    group vms/gold cpu.weight=400; group vms/silver; group vms/bronze cpu.weight=25
    vm gold vms/gold 2 hog:1:100000
    vm silver vms/silver 2 timer:10000:500000
    vm bronze vms/bronze 2 hog:1:100000
}
quotas() {
    group vms cpu.max='170000 100000'
    group vms/web cpu.max='20000 50000'; group vms/db cpu.max='40000 100000'; group vms/batch
    vm web vms/web 2 hog:1:100000
    vm db vms/db 2 timer:10000:500000
    vm batch vms/batch 1 hog:1:100000
}
pins() {
    group vms/web cpuset.cpus=0; group vms/db; group vms/batch
    vm web vms/web 2 request:20000:500000
    vm db vms/db 2 pingpong:1:100000
    vm batch vms/batch 1 hog:1:100000
    sleep 1
    for n in 0 1; do taskset -p $((1 << n)) "$(vcpu db $n)" >/dev/null; done
    renice -n 5 -p "$(vcpu batch 0)"
}
nested() {
    group prod cpu.weight=300; group prod/web; group prod/db cpu.max='60000 100000' cpu.weight=200
    group test cpu.weight=100; group test/ci; group test/bench cpuset.cpus=1
    vm web prod/web 2 request:15000:500000
    vm db prod/db 2 timer:10000:600000
    vm ci test/ci 1 hog:1:100000
    vm bench test/bench 2 timer:20000:500000
}

for host in ${HOSTS:-plain weights quotas pins nested}; do
    say "host $host"
    $host
    recording "$host" 5
    stop_vms
    rmdir $G/vms/* $G/vms $G/prod/* $G/prod $G/test/* $G/test 2>/dev/null
done
