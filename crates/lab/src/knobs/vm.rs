//! Knobs that each VM has: of its guest's features, its VMM and its cgroup.

use stealtime_simulator::config::{ClockMethod, GuestConfig, Pinning, VmConfig};

use super::Source::{Ours, Upstream};
use super::host_setting::{HostSetting, number, on_or_off, with_or_without};
use super::kvm::{EXITS, Words, YIELD_TARGETS};
use super::replay::{Part, Replay};
use super::value::{Kind, Value, ValueError};
use super::{Knob, knob};
use crate::units::{Plain, cpus, show_cpus, time};

/// `cpu.max` without a period has this one, in ns (`default_bw_period_us` of the cgroup).
const PERIOD_NS: u64 = 100_000_000;

fn show_pinning(pinning: &Pinning) -> Value {
    Value::Words(match pinning {
        Pinning::None => "none".to_owned(),
        Pinning::Pool(cpus) => show_cpus(cpus),
        Pinning::OneToOne(cpus) => format!("1:1 {}", show_cpus(cpus)),
    })
}

/// `none`, CPUs for all vCPUs together, or `1:1` and CPUs for one vCPU each.
fn pinning(value: &Value) -> Result<Pinning, ValueError> {
    let text = value.words()?;
    if text == "none" {
        return Ok(Pinning::None);
    }
    let (one_to_one, list) = match text.strip_prefix("1:1") {
        Some(list) => (true, list),
        None => (false, text),
    };
    let mut cpus = cpus(list)?;
    if cpus.is_empty() {
        return Err(ValueError::NoCpus);
    }
    if one_to_one {
        return Ok(Pinning::OneToOne(cpus));
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(Pinning::Pool(cpus))
}

fn show_cpu_max(vm: &VmConfig) -> Value {
    use crate::units::show_time;
    Value::Words(match vm.cpu_max_ns {
        None => "max".to_owned(),
        Some((quota, period)) => format!("{} {}", show_time(quota), show_time(period)),
    })
}

/// Quota and period of a value of `cpu_max` in ns; `None` without a limit, or for another text.
#[must_use]
pub fn cpu_max_ns(value: &Value) -> Option<(u64, u64)> {
    cpu_max(value).ok()?
}

/// `max`, or quota and period as the cgroup's file has them: numbers are in us.
pub(super) fn cpu_max(value: &Value) -> Result<Option<(u64, u64)>, ValueError> {
    let text = value.words()?;
    let mut words = text.split([' ', '/', ',']).filter(|word| !word.is_empty());
    let (quota, period) = (words.next().unwrap_or(""), words.next());
    if words.next().is_some() {
        return Err(ValueError::NoQuota(text.to_owned()));
    }
    let parse_us = |word: &str| match word.parse::<u64>() {
        Ok(number) => number
            .checked_mul(1_000)
            .ok_or_else(|| ValueError::TooLong(word.to_owned())),
        Err(_) => Ok(time(word, Plain::Refused)?),
    };
    let period = period.map_or(Ok(PERIOD_NS), parse_us)?;
    if quota == "max" {
        return Ok(None);
    }
    Ok(Some((parse_us(quota)?, period)))
}

/// How a guest's clocks are carried over, by name.
pub(crate) const CLOCKS: Words<ClockMethod> = Words(&[
    ("value", ClockMethod::Value),
    ("documented", ClockMethod::Documented),
    ("offset", ClockMethod::Offset),
]);

const fn all_exits_off(guest: &GuestConfig) -> bool {
    guest.mwait_in_guest && guest.hlt_in_guest && guest.pause_in_guest
}

const GUEST_SPINNING: Replay = Replay::simulate("how long a vCPU spins is part of its demand");
const CLOCKS_NOT_REPLAYED: Replay = Replay::simulate("guests' clocks are not replayed");

const CPU_PM: HostSetting = HostSetting::vmm("QEMU option: -overcommit cpu-pm={value}", on_or_off)
    .with_note("QEMU has one option for MWAIT, HLT and PAUSE; KVM_CAP_X86_DISABLE_EXITS has each");

macro_rules! switch {
    ($field:ident, $source:expr, $about:literal, $replay:expr, $host:expr) => {
        knob!(Vm stringify!($field), Kind::Switch, $source, $about, $replay, $host,
            |vm| Value::Switch(vm.guest.$field),
            |vm, v| vm.guest.$field = v.switch()?)
    };
}

pub(super) static KNOBS: &[Knob] = &[
    knob!(Vm "vcpus", Kind::Number { min: 1, max: 4096, unit: "vCPUs" },
        Upstream("QEMU -smp"),
        "How many vCPUs it has",
        Replay::simulate("each vCPU has its recorded work"),
        HostSetting::vmm("virsh setvcpus {vm} {value} --config", number),
        |vm| Value::Number(vm.vcpus.into()),
        |vm, v| vm.vcpus = v.number()?),
    knob!(Vm "pinning", Kind::Words("none, 0-3 (a pool), or 1:1 0-3 (a CPU each)"),
        Upstream("libvirt <vcpupin>"),
        "Where its vCPUs may run",
        Replay::Instead("--pin NAME=CPUS"),
        HostSetting::live_word("taskset -pc {value} {tid}")
            .with_note("libvirt: virsh vcpupin NAME VCPU CPUS --live --config keeps it over restarts"),
        |vm| show_pinning(&vm.pinning),
        |vm, v| vm.pinning = pinning(v)?),
    knob!(Vm "vcpu_cgroups", Kind::Switch,
        Upstream("libvirt's cgroups vcpuN and emulator"),
        "A cgroup for each vCPU and one for the other threads; off, all threads are in the VM's scope",
        Replay::Instead("`vcpu_cgroups = true` in a --host file"),
        HostSetting::vmm("start the VM {value} libvirt, which makes these cgroups", with_or_without),
        |vm| Value::Switch(vm.vcpu_cgroups),
        |vm, v| vm.vcpu_cgroups = v.switch()?),
    knob!(Vm "cpu_weight", Kind::Number { min: 1, max: 10_000, unit: "" },
        Upstream("cgroup file cpu.weight"),
        "Weight of its scope under machine.slice",
        Replay::Shows(Part::Weight),
        HostSetting::live(
            "echo {value} > \"/sys/fs/cgroup$(sed 's,^0::,,; s,/libvirt/.*,,' /proc/{tid}/cgroup)/cpu.weight\"",
        )
        .with_note("libvirt: virsh schedinfo NAME --live cpu_shares=VALUE"),
        |vm| Value::Number(vm.cpu_weight.into()),
        |vm, v| vm.cpu_weight = v.number()?),
    knob!(Vm "cpu_max", Kind::Words("max, or QUOTA PERIOD (50ms 100ms, or numbers of us)"),
        Upstream("cgroup file cpu.max"),
        "Bandwidth limit of its scope",
        Replay::Shows(Part::Limit),
        HostSetting::live_quota(
            "echo {value} > \"/sys/fs/cgroup$(sed 's,^0::,,; s,/libvirt/.*,,' /proc/{tid}/cgroup)/cpu.max\"",
        )
        .with_note("libvirt: virsh schedinfo NAME --live global_quota=US global_period=US"),
        |vm| show_cpu_max(vm),
        |vm, v| vm.cpu_max_ns = cpu_max(v)?),
    knob!(Vm "nice", Kind::Number { min: -20, max: 19, unit: "" },
        Upstream("nice(2)"),
        "Nice value of its threads",
        Replay::Shows(Part::Nice),
        HostSetting::live("renice -n {value} -p {tids}"),
        |vm| Value::Number(vm.nice.into()),
        |vm, v| vm.nice = v.number()?),
    knob!(Vm "cpu_pm", Kind::Switch,
    Upstream("QEMU -overcommit cpu-pm="),
    "MWAIT, HLT and PAUSE do not leave the guest",
    EXITS,
    CPU_PM,
    |vm| Value::Switch(all_exits_off(&vm.guest)),
    |vm, v| {
        let is_on = v.switch()?;
        vm.guest.mwait_in_guest = is_on;
        vm.guest.hlt_in_guest = is_on;
        vm.guest.pause_in_guest = is_on;
    }),
    switch!(
        mwait_in_guest,
        Upstream("KVM_X86_DISABLE_EXITS_MWAIT"),
        "MWAIT does not leave the guest",
        EXITS,
        CPU_PM
    ),
    switch!(
        hlt_in_guest,
        Upstream("KVM_X86_DISABLE_EXITS_HLT"),
        "HLT does not leave the guest",
        EXITS,
        CPU_PM
    ),
    switch!(
        pause_in_guest,
        Upstream("KVM_X86_DISABLE_EXITS_PAUSE"),
        "PAUSE does not leave the guest: no pause-loop exiting",
        EXITS,
        CPU_PM
    ),
    switch!(
        x2apic,
        Upstream("QEMU -cpu x2apic="),
        "Its LAPICs are in x2APIC mode",
        EXITS,
        HostSetting::vmm("QEMU option: -cpu MODEL,x2apic={value}", on_or_off)
    ),
    switch!(
        pv_eoi,
        Upstream("KVM_FEATURE_PV_EOI"),
        "End of interrupt without an exit",
        EXITS,
        HostSetting::vmm("QEMU option: -cpu MODEL,kvm-pv-eoi={value}", on_or_off)
    ),
    switch!(
        pv_send_ipi,
        Upstream("KVM_FEATURE_PV_SEND_IPI"),
        "IPIs to many by one hypercall",
        EXITS,
        HostSetting::vmm("QEMU option: -cpu MODEL,kvm-pv-ipi={value}", on_or_off)
    ),
    switch!(
        pv_tlb_flush,
        Upstream("KVM_FEATURE_PV_TLB_FLUSH"),
        "TLB shootdowns spare vCPUs that do not run",
        EXITS,
        HostSetting::vmm(
            "QEMU option: -cpu MODEL,kvm-pv-tlb-flush={value}",
            on_or_off
        )
    ),
    switch!(
        pv_spinlocks,
        Upstream("KVM_FEATURE_PV_UNHALT"),
        "Waiters for spinlocks halt; without it whoever comes first takes a free lock",
        GUEST_SPINNING,
        HostSetting::vmm("QEMU option: -cpu MODEL,kvm-pv-unhalt={value}", on_or_off)
    ),
    switch!(
        nopvspin,
        Upstream("boot parameter nopvspin of the guest"),
        "Spinlocks pass from waiter to waiter in order, as on bare metal",
        GUEST_SPINNING,
        HostSetting::guest(
            "guest's kernel command line: {value} nopvspin",
            with_or_without
        )
    ),
    switch!(
        spin_yield,
        Upstream("arch_spin_lock_wait of s390, DIAGNOSE 9c"),
        "A waiter for a spinlock yields to the vCPU of its owner by hypercall",
        GUEST_SPINNING,
        HostSetting::SimulationOnly("guests on s390 do it always, others never")
    ),
    switch!(
        pv_sched_yield,
        Upstream("KVM_FEATURE_PV_SCHED_YIELD"),
        "The sender of an IPI to a preempted vCPU yields to it",
        YIELD_TARGETS,
        HostSetting::vmm(
            "QEMU option: -cpu MODEL,kvm-pv-sched-yield={value}",
            on_or_off
        )
    ),
    switch!(
        steal_time,
        Upstream("KVM_FEATURE_STEAL_TIME"),
        "The guest's scheduler knows what was stolen",
        Replay::simulate("the guest's scheduler is not replayed"),
        HostSetting::vmm("QEMU option: -cpu MODEL,kvm-steal-time={value}", on_or_off)
    ),
    knob!(Vm "hz", Kind::Number { min: 24, max: 1000, unit: "Hz" },
        Upstream("CONFIG_HZ of the guest"),
        "The guest's tick",
        Replay::simulate("the guest's ticks are recorded"),
        HostSetting::guest_kernel("boot a guest kernel with CONFIG_HZ_{value}=y", number)
            .undone_by("boot the guest's former kernel"),
        |vm| Value::Number(vm.guest.hz.into()),
        |vm, v| vm.guest.hz = v.number()?),
    knob!(Vm "guest_halt_poll_ns", Kind::Time { min: 0, max: u32::MAX as u64 },
        Upstream("module parameter haltpoll.guest_halt_poll_ns of the guest"),
        "How long the guest's idle loop polls before HLT; 0: not",
        Replay::simulate("the guest's idle loop is part of its demand"),
        HostSetting::live("in the guest: echo {value} > /sys/module/haltpoll/parameters/guest_halt_poll_ns")
            .with_note("with the cpuidle governor haltpoll"),
        |vm| Value::Ns(vm.guest.guest_halt_poll_ns.into()),
        |vm, v| vm.guest.guest_halt_poll_ns = v.number()?),
    knob!(Vm "physical_counter_offset", Kind::Number { min: 0, max: i64::MAX, unit: "counts" },
        Ours("KVM_ARM_SET_COUNTER_OFFSET, or the attribute as posted"),
        "arm64: what the VMM has set its physical counter back by; without CNTPOFF_EL2 its reads trap",
        CLOCKS_NOT_REPLAYED,
        HostSetting::SimulationOnly("code of the VMM sets it"),
        |vm| Value::Number(i64::try_from(vm.physical_counter_offset).unwrap_or(i64::MAX)),
        |vm, v| vm.physical_counter_offset = v.number()?),
    knob!(Vm "assigned_device", Kind::Switch,
        Upstream("VFIO"),
        "A device is assigned, and the IOMMU may post its interrupts",
        Replay::simulate("interrupts of devices are recorded"),
        HostSetting::vmm("QEMU {value} option -device vfio-pci,host=ADDRESS", with_or_without),
        |vm| Value::Switch(vm.assigned_device),
        |vm, v| vm.assigned_device = v.switch()?),
    knob!(Vm "start_ns", Kind::Time { min: 0, max: 1_000_000_000_000 },
        Ours("when libvirt starts it"),
        "When the guest starts",
        Replay::simulate("VMs start as recorded"),
        HostSetting::SimulationOnly("the time when an operator starts the VM"),
        |vm| Value::Ns(vm.start_ns),
        |vm, v| vm.start_ns = v.ns()?),
    knob!(Vm "clock_method", Kind::Choice(|| CLOCKS.all()),
    Ours("KVM_SET_MSRS of IA32_TSC, KVM_VCPU_TSC_OFFSET as documented, and with scaled counters"),
    "How a migration carries its TSCs over",
    CLOCKS_NOT_REPLAYED,
    HostSetting::SimulationOnly("code of the VMM decides"),
    |vm| CLOCKS.show(&vm.migration.as_ref().map_or(ClockMethod::default(), |m| m.method)),
    |vm, v| match &mut vm.migration {
        Some(migration) => migration.method = CLOCKS.read(v)?,
        None => return Err(ValueError::Requires("[vm.migration]")),
    }),
];

/// Which VMs a knob is set in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VmPattern {
    name: String,
    /// A VM has this very name. VMs of a group are meant otherwise: `web-1` and `web-2` by `web`.
    is_exact: bool,
}

impl VmPattern {
    /// The VMs that `name` stands for; `None` if there are none.
    pub(super) fn find(vms: &[VmConfig], name: &str) -> Option<Self> {
        let pattern = Self {
            name: name.to_owned(),
            is_exact: vms.iter().any(|vm| vm.name == name),
        };
        let is_known = name == "*" || vms.iter().any(|vm| pattern.matches(&vm.name));
        is_known.then_some(pattern)
    }

    /// The name, or `*`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a VM of this name is meant.
    pub(super) fn matches(&self, vm_name: &str) -> bool {
        match vm_name.strip_prefix(self.name.as_str()) {
            Some("") => true,
            Some(rest) if !self.is_exact => rest.strip_prefix('-').is_some_and(|number| {
                !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
            }),
            _ => self.name == "*" && !self.is_exact,
        }
    }
}
