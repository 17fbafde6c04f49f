//! From accounts to the rows of a sample.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use stealtime_track::{Cause, ReasonIndex, Reasons, Run, Tracker, VcpuIndex, Wait};

use crate::account::{Account, Counts};
use crate::histogram::Histogram;
use crate::meter::Meter;
use crate::sample::{Exits, Ready, Stall, Times, Vcpu, Vm, Wakeups};
use crate::vms::{Occupant, VmKey};

/// Longest waits of a VM that a sample has.
const STALLS: usize = 10;
/// A wait that goes on is shown from this length on, in ns: a shorter one is a switch.
const SHORT_NS: u64 = 100_000;

/// The part of a sample of a vCPU that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    key: VmKey,
    vcpu: Vcpu,
    counts: Counts,
    stalls: Vec<Unnamed>,
}

/// A wait, perhaps without the name of its cause: a name takes some 100 ns, and most waits are not shown.
#[derive(Debug, Clone)]
struct Unnamed {
    stall: Stall,
    /// `None`: it has its name.
    cause: Option<Cause>,
}

impl Unnamed {
    fn name(&mut self, occupant: impl Fn(Cause) -> Occupant) {
        if let Some(cause) = self.cause.take() {
            let Occupant { cause, name } = occupant(cause);
            (self.stall.cause, self.stall.who) = (cause, name);
        }
    }
}

impl Row {
    /// The part of a vCPU of which the interval is settled. `resolve` gives the causes of its waits, and
    /// `occupant` their names, while their tasks have their numbers.
    pub(crate) fn ended(
        key: VmKey,
        vcpu: VcpuIndex,
        tracker: &Tracker<Meter>,
        resolve: impl Fn(Cause) -> &'static str,
        occupant: impl Fn(Cause) -> Occupant,
    ) -> Self {
        let account = &tracker.observer().accounts[vcpu.index()];
        let mut stalls: Vec<Unnamed> = stalls(vcpu, tracker).collect();
        stalls.iter_mut().for_each(|wait| wait.name(&occupant));
        Self {
            key,
            vcpu: Vcpu {
                has_ended: true,
                ..row(vcpu, tracker, resolve)
            },
            counts: account.counts.clone(),
            stalls,
        }
    }

    fn add(&mut self, added: &Self) {
        self.vcpu.times.add(&added.vcpu.times);
        self.counts.add(&added.counts);
        self.vcpu.wakeups = wakeups(self.counts.wakeups.histogram());
        self.vcpu.stall_ns = self.vcpu.stall_ns.max(added.vcpu.stall_ns);
    }
}

/// Adds a row to another one of its VM: there are too many.
pub(crate) fn join(rows: &mut [Row], added: Row) {
    if let Some(row) = rows.iter_mut().rev().find(|row| row.key == added.key) {
        row.add(&added);
    } else if let Some(last) = rows.last_mut() {
        // More VMs end than are kept apart: the last one stands for them.
        last.add(&added);
    }
}

/// A vCPU of which the interval is settled.
fn row(vcpu: VcpuIndex, tracker: &Tracker<Meter>, resolve: impl Fn(Cause) -> &'static str) -> Vcpu {
    let account = &tracker.observer().accounts[vcpu.index()];
    Vcpu {
        vcpu: tracker.vcpu(vcpu).id().0,
        tid: tracker.thread_of(vcpu).tid.0,
        times: times(account, resolve),
        wakeups: wakeups(account.counts.wakeups.histogram()),
        stall_ns: waits(account).map(|(wait, _)| wait.ns).max().unwrap_or(0),
        has_ended: false,
    }
}

/// Waits that are shown, and whether each goes on.
fn waits(account: &Account) -> impl Iterator<Item = (Wait, bool)> {
    let ended = account.waits.iter().map(|wait| (*wait, false));
    let open = account.open_wait().filter(|wait| wait.ns >= SHORT_NS);
    ended.chain(open.map(|wait| (wait, true)))
}

/// The waits of a vCPU.
fn stalls(vcpu: VcpuIndex, tracker: &Tracker<Meter>) -> impl Iterator<Item = Unnamed> {
    let number = tracker.vcpu(vcpu).id().0;
    let tid = tracker.thread_of(vcpu).tid.0;
    let stall = move |(wait, goes_on): (Wait, bool)| Unnamed {
        stall: Stall {
            vcpu: number,
            tid,
            start_ns: wait.start,
            ns: wait.ns,
            kind: match wait.run {
                Run::Waking => "waking",
                _ => "preempted",
            },
            cpu: wait.cpu,
            goes_on,
            ..Stall::default()
        },
        cause: Some(wait.cause),
    };
    waits(&tracker.observer().accounts[vcpu.index()]).map(stall)
}

fn times(account: &Account, resolve: impl Fn(Cause) -> &'static str) -> Times {
    let mut ready = Ready::default();
    for (&occupant, &ns) in &account.ready {
        let sum = match resolve(occupant) {
            "vcpu_same_vm" => &mut ready.vcpu_same_vm,
            "vcpu_other_vm" => &mut ready.vcpu_other_vm,
            "vmm_thread" => &mut ready.vmm_thread,
            "kernel_thread" => &mut ready.kernel_thread,
            "host_task" => &mut ready.host_task,
            "irq" => &mut ready.irq,
            "throttled" => &mut ready.throttled,
            "idle" => &mut ready.idle,
            _ => &mut ready.unknown,
        };
        *sum += ns;
    }
    let sums = &account.sums;
    Times {
        guest_ns: sums.guest,
        exit_ns: sums.exit + sums.mode_unknown,
        poll_ns: sums.poll,
        halt_ns: sums.halt,
        ready_ns: ready.total(),
        ready,
        unknown_ns: sums.unknown,
        exits: sums.exits,
    }
}

fn wakeups(histogram: &Histogram) -> Wakeups {
    Wakeups {
        count: histogram.count(),
        p50_ns: histogram.quantile(500),
        p99_ns: histogram.quantile(990),
        max_ns: histogram.max(),
    }
}

/// A vCPU that has not ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) key: VmKey,
    pub(crate) vcpu: VcpuIndex,
}

/// VMs of the vCPUs that have ended, and of those that live. `resolve` gives causes of waits, `name` names
/// of VMs, and `occupant` the names of causes.
pub(crate) fn vms(
    ended: Vec<Row>,
    mut live: Vec<Live>,
    tracker: &Tracker<Meter>,
    resolve: impl Fn(Cause, VmKey) -> &'static str,
    name: impl Fn(VmKey) -> Option<String>,
    occupant: impl Fn(Cause, VmKey) -> Occupant,
) -> Vec<Vm> {
    live.sort_by_key(|vcpu| vcpu.key);
    let mut by_vm = BTreeMap::<VmKey, Vec<Row>>::new();
    for row in ended {
        by_vm.entry(row.key).or_default().push(row);
    }
    let mut group = Group::default();
    let mut vm = |key, rows: Option<Vec<Row>>, live: &[Live]| {
        for row in rows.into_iter().flatten() {
            group.add(row.vcpu, &row.counts, row.stalls);
        }
        group.vcpus.reserve_exact(live.len());
        for &Live { vcpu, .. } in live {
            let account = &tracker.observer().accounts[vcpu.index()];
            let row = row(vcpu, tracker, |cause| resolve(cause, key));
            group.add(row, &account.counts, stalls(vcpu, tracker));
        }
        Vm {
            vm: name(key).unwrap_or_default(),
            pid: key.process(),
            guessed: matches!(key, VmKey::Linked(_)),
            ..group.take(tracker.reasons(), |cause| occupant(cause, key))
        }
    };
    let mut vms = Vec::new();
    for vcpus in live.chunk_by(|a, b| a.key == b.key) {
        if let Some(&Live { key, .. }) = vcpus.first() {
            vms.push(vm(key, by_vm.remove(&key), vcpus));
        }
    }
    for (key, rows) in by_vm {
        vms.push(vm(key, Some(rows), &[]));
    }
    if let [single] = &mut *vms {
        single.guessed = false;
    }
    let lowest_tid = |vm: &Vm| vm.vcpus.iter().map(|vcpu| vcpu.tid).min();
    vms.sort_by_key(lowest_tid);
    name_apart(&mut vms);
    vms
}

/// Gives each VM a name of its own, as the analysis does.
fn name_apart(vms: &mut [Vm]) {
    let names = vms.iter().map(|vm| vm.vm.clone());
    let known: BTreeSet<String> = names.filter(|name| !name.is_empty()).collect();
    let mut numbered = (0..)
        .map(|number| format!("vm{number}"))
        .filter(|name| !known.contains(name));
    let mut used = BTreeSet::new();
    for vm in vms {
        if vm.vm.is_empty() {
            vm.vm = numbered.next().unwrap_or_default();
        }
        let id = vm.pid.or_else(|| vm.vcpus.first().map(|vcpu| vcpu.tid));
        while !used.insert(vm.vm.clone()) {
            vm.vm = format!("{} ({})", vm.vm, id.unwrap_or(0));
        }
    }
}

/// The sums of a VM. Its room serves one VM after another.
#[derive(Debug, Default)]
struct Group {
    times: Times,
    vcpus: Vec<Vcpu>,
    counts: Counts,
    stalls: Vec<Unnamed>,
}

impl Group {
    /// Adds a vCPU.
    fn add(&mut self, vcpu: Vcpu, counts: &Counts, stalls: impl IntoIterator<Item = Unnamed>) {
        self.times.add(&vcpu.times);
        self.counts.add(counts);
        self.stalls.extend(stalls);
        self.vcpus.push(vcpu);
    }

    /// The VM without its name. The group is empty then.
    fn take(&mut self, reasons: &Reasons, occupant: impl Fn(Cause) -> Occupant) -> Vm {
        let order = |wait: &Unnamed| (Reverse(wait.stall.ns), wait.stall.start_ns, wait.stall.tid);
        if self.stalls.len() > STALLS {
            self.stalls.select_nth_unstable_by_key(STALLS, order);
            self.stalls.truncate(STALLS);
        }
        self.stalls.sort_unstable_by_key(order);
        self.stalls.iter_mut().for_each(|wait| wait.name(&occupant));
        let mut vcpus = std::mem::take(&mut self.vcpus);
        vcpus.sort_by_key(|vcpu| (vcpu.vcpu, vcpu.tid));
        let counts = &self.counts;
        let slots = (0..).map(ReasonIndex).zip(&counts.slots);
        let slots = slots.filter(|(_, slot)| slot.count > 0 || slot.ns > 0);
        let exits = slots.map(|(reason, slot)| Exits {
            reason: reason_name(reason, reasons),
            count: slot.count,
            ns: slot.ns,
        });
        let mut exits: Vec<Exits> = exits.collect();
        exits.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.reason.cmp(&b.reason)));
        let vm = Vm {
            times: std::mem::take(&mut self.times),
            wakeups: wakeups(counts.wakeups.histogram()),
            wakeup_buckets: counts.wakeups.histogram().buckets(),
            wakeup_classes: *counts.wakeups.classes(),
            stall_buckets: counts.waits.histogram().buckets(),
            stall_classes: *counts.waits.classes(),
            stalls: self.stalls.drain(..).map(|wait| wait.stall).collect(),
            exits_by_reason: exits,
            vcpus,
            ..Vm::default()
        };
        self.counts.clear();
        vm
    }
}

/// The name of an exit reason as `analyze` prints it.
fn reason_name(index: ReasonIndex, reasons: &Reasons) -> String {
    if index == ReasonIndex::NO_EXIT {
        return "(no exit seen)".to_owned();
    }
    let Some(reason) = reasons.get(index) else {
        return "(others)".to_owned();
    };
    match reason.name() {
        Some(name) if reason.is_failed_vmentry() => format!("{name} FAILED_VMENTRY"),
        Some(name) => name.to_owned(),
        None => format!("UNKNOWN({:#x})", reason.code),
    }
}
