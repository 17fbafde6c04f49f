# The session of docs/live-session.md: record, doctor, analyze, whatif, the change, and what came of it.
. /test/lib.sh
few_symbols
hold_patches
run() { echo "$ $*"; eval "$*"; echo; }
alias_dir=/usr/bin; ln -sf "$STEALTIME" $alias_dir/stealtime
mkdir -p /out/session; cd /out/session

group vms/web cpu.weight=50; group vms/batch
vm web vms/web 2 request:15000:300000
vm batch vms/batch 2 hog:1:100000
sleep 2
echo "window begins"
run stealtime record -o before.dat --seconds 5
echo "window ends"
run stealtime snapshot before.dat
run stealtime doctor before.dat
run stealtime analyze before.dat
run stealtime whatif before.dat --auto
run "echo 400 >/sys/fs/cgroup/vms/web/cpu.weight"
sleep 2
run stealtime record -o after.dat --seconds 5
if stealtime help diff >/dev/null 2>&1; then run stealtime diff before.dat after.dat; fi
run stealtime whatif before.dat --set vm.web.cpu_weight=400 --seen after.dat
stop_vms
