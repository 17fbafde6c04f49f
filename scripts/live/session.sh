# The session of docs/live-session.md. Runs in the nested host.
. /test/lib.sh
few_symbols
hold_patches
ln -sf "$STEALTIME" /usr/bin/stealtime
mkdir -p /out/session
cd /out/session
run() { echo "$ $*"; eval "$*" 2>&1 | cat; echo; }

group vms/web cpu.weight=50
group vms/batch
vm web vms/web 2 request:15000:300000
vm batch vms/batch 2 hog:1:100000
# An emulator translates code when it first runs. That of the recorder would slow the first second.
stealtime record -o warm.dat --seconds 2 >/dev/null 2>&1
rm -f warm.dat
sleep 4
run stealtime record -o before.dat --seconds 5
run stealtime doctor
run stealtime analyze before.dat
run stealtime whatif before.dat --auto
run 'echo 150 >/sys/fs/cgroup/vms/web/cpu.weight'
sleep 1
run stealtime record -o after.dat --seconds 5
run stealtime diff before.dat after.dat
run stealtime whatif before.dat --set vm.web.cpu_weight=150 --seen after.dat
stop_vms
