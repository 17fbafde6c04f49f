//! From accounts to the rows of a sample.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_track::{Cause, ReasonIndex, Reasons, Run, Tracker, VcpuIndex};

use crate::account::{Account, Slot, Wait};
use crate::histogram::{Classes, Histogram};
use crate::meter::Meter;
use crate::sample::{Exits, Ready, Stall, Times, Vcpu, Vm, Wakeups};
use crate::vms::{Occupant, VmKey};

/// Longest waits of a VM that a sample has.
const STALLS: usize = 10;
/// A wait that goes on is shown from this length on, in ns: a shorter one is a switch.
const SHORT_NS: u64 = 100_000;

/// A vCPU's part of a sample, with what its VM adds up.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    key: VmKey,
    pub(crate) vcpu: Vcpu,
    wakeups: Histogram,
    wakeup_classes: Classes,
    stall_classes: Classes,
    stall_lengths: Histogram,
    slots: Vec<Slot>,
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
    /// The part of a vCPU of which the interval is settled. `resolve` gives the causes of its waits.
    pub(crate) fn new(
        key: VmKey,
        vcpu: VcpuIndex,
        tracker: &Tracker<Meter>,
        resolve: impl Fn(Cause) -> &'static str,
    ) -> Self {
        let account = &tracker.observer().accounts[vcpu.index()];
        let (number, tid) = (tracker.vcpu(vcpu).id().0, tracker.thread_of(vcpu).tid.0);
        let stall = |wait: &Wait, goes_on| {
            let stall = Stall {
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
            };
            let cause = Some(wait.cause);
            Unnamed { stall, cause }
        };
        let ended = account.waits.iter().map(|wait| stall(wait, false));
        let open = account.open_wait().filter(|wait| wait.ns >= SHORT_NS);
        let open = open.iter().map(|wait| stall(wait, true));
        let stalls: Vec<Unnamed> = ended.chain(open).collect();
        Self {
            key,
            vcpu: Vcpu {
                vcpu: number,
                tid,
                times: times(account, &resolve),
                wakeups: wakeups(&account.wakeups),
                stall_ns: stalls.iter().map(|wait| wait.stall.ns).max().unwrap_or(0),
                has_ended: false,
            },
            wakeups: account.wakeups.clone(),
            wakeup_classes: account.wakeup_classes,
            stall_classes: account.wait_classes,
            stall_lengths: account.wait_lengths.clone(),
            slots: account.slots.clone(),
            stalls,
        }
    }

    /// Names the causes of its waits, while their tasks have their numbers.
    pub(crate) fn name(&mut self, occupant: impl Fn(Cause) -> Occupant) {
        self.stalls.iter_mut().for_each(|wait| wait.name(&occupant));
    }

    /// Its VM.
    pub(crate) const fn key(&self) -> VmKey {
        self.key
    }

    fn add(&mut self, added: &Self) {
        self.vcpu.times.add(&added.vcpu.times);
        self.wakeups.merge(&added.wakeups);
        self.wakeup_classes.add(&added.wakeup_classes);
        self.stall_classes.add(&added.stall_classes);
        self.stall_lengths.merge(&added.stall_lengths);
        add_slots(&mut self.slots, &added.slots);
        self.vcpu.wakeups = wakeups(&self.wakeups);
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

fn add_slots(sums: &mut Vec<Slot>, added: &[Slot]) {
    if sums.len() < added.len() {
        sums.resize(added.len(), Slot::default());
    }
    for (sum, slot) in sums.iter_mut().zip(added) {
        sum.count += slot.count;
        sum.ns += slot.ns;
    }
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

/// Rows by VM. `name` has the names of those that have one, and `occupant` the names of causes.
pub(crate) fn vms(
    rows: Vec<Row>,
    reasons: &Reasons,
    name: impl Fn(VmKey) -> Option<String>,
    occupant: impl Fn(Cause, VmKey) -> Occupant,
) -> Vec<Vm> {
    let mut groups = BTreeMap::<VmKey, Vec<Row>>::new();
    for row in rows {
        groups.entry(row.key).or_default().push(row);
    }
    let has_several = groups.len() > 1;
    let group = |(key, rows): (VmKey, Vec<Row>)| Vm {
        vm: name(key).unwrap_or_default(),
        pid: match key {
            VmKey::Process(pid) => Some(pid),
            _ => None,
        },
        guessed: has_several && matches!(key, VmKey::Linked(_)),
        ..vm(rows, reasons, |cause| occupant(cause, key))
    };
    let mut vms: Vec<Vm> = groups.into_iter().map(group).collect();
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

/// The sums of a VM.
fn vm(rows: Vec<Row>, reasons: &Reasons, occupant: impl Fn(Cause) -> Occupant) -> Vm {
    let mut vm = Vm::default();
    let mut stalls = Vec::new();
    let (mut latencies, mut lengths) = (Histogram::default(), Histogram::default());
    let mut slots = Vec::new();
    for row in rows {
        vm.times.add(&row.vcpu.times);
        latencies.merge(&row.wakeups);
        vm.wakeup_classes.add(&row.wakeup_classes);
        vm.stall_classes.add(&row.stall_classes);
        lengths.merge(&row.stall_lengths);
        add_slots(&mut slots, &row.slots);
        stalls.extend(row.stalls);
        vm.vcpus.push(row.vcpu);
    }
    vm.wakeups = wakeups(&latencies);
    (vm.wakeup_buckets, vm.stall_buckets) = (latencies.buckets(), lengths.buckets());
    stalls.sort_by_key(|wait| (std::cmp::Reverse(wait.stall.ns), wait.stall.start_ns));
    stalls.truncate(STALLS);
    stalls.iter_mut().for_each(|wait| wait.name(&occupant));
    vm.stalls = stalls.into_iter().map(|wait| wait.stall).collect();
    vm.vcpus.sort_by_key(|vcpu| (vcpu.vcpu, vcpu.tid));
    let exits = (0..).map(ReasonIndex).zip(slots);
    let exits = exits.filter(|(_, slot)| slot.count > 0 || slot.ns > 0);
    let exits = exits.map(|(reason, slot)| Exits {
        reason: reason_name(reason, reasons),
        count: slot.count,
        ns: slot.ns,
    });
    vm.exits_by_reason = exits.collect();
    vm.exits_by_reason
        .sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.reason.cmp(&b.reason)));
    vm
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
