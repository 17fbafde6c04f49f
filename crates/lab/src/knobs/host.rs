//! Knobs of the host's kernel and of Xen.

use stealtime_hypervisor::wakeup_batch::policy::BatchPolicy;
use stealtime_simulator::config::{IdleMethod, XenScheduler};

use super::Source::{Ours, Upstream};
use super::host_setting::{HostSetting, number};
use super::kvm::Words;
use super::replay::{Part, Replay};
use super::value::{Kind, Value, ValueError};
use super::{Knob, knob};

/// Ways of idle CPUs to wait, by name.
pub(crate) const IDLE: Words<IdleMethod> = Words(&[
    ("mwait", IdleMethod::Mwait),
    ("hlt", IdleMethod::Hlt),
    ("poll", IdleMethod::Poll),
]);

const SCHEDULERS: Words<XenScheduler> = Words(&[
    ("credit", XenScheduler::Credit),
    ("credit2", XenScheduler::Credit2),
]);

/// The least targets of a batch by default.
const MIN_TARGETS: u32 = 8;

const BATCH: [&str; 4] = ["off", "form", "threshold", "adaptive"];

const fn batch_name(policy: &BatchPolicy) -> &'static str {
    match policy {
        BatchPolicy::Off => BATCH[0],
        BatchPolicy::Form => BATCH[1],
        BatchPolicy::Threshold { .. } => BATCH[2],
        BatchPolicy::Adaptive => BATCH[3],
    }
}

fn batch(old: BatchPolicy, value: &Value) -> Result<BatchPolicy, ValueError> {
    Ok(match (value.words()?, old) {
        ("off", _) => BatchPolicy::Off,
        ("form", _) => BatchPolicy::Form,
        ("adaptive", _) => BatchPolicy::Adaptive,
        (_, old @ BatchPolicy::Threshold { .. }) => old,
        _ => BatchPolicy::Threshold {
            min_targets: MIN_TARGETS,
        },
    })
}

const XEN: Replay = Replay::scenario("recordings are of KVM hosts", "xen-broadcast.toml");

fn idle_parameter(value: &Value) -> Option<String> {
    let text = match value.to_string().as_str() {
        "mwait" => "without idle=",
        "hlt" => "idle=halt",
        "poll" => "idle=poll",
        _ => return None,
    };
    Some(text.to_owned())
}

pub(super) static KNOBS: &[Knob] = &[
    knob!(Knobs "host.hz", Kind::Number { min: 100, max: 1000, unit: "Hz" },
        Upstream("CONFIG_HZ"),
        "The host's tick",
        Replay::Shows(Part::Tasks),
        HostSetting::kernel("boot a kernel with CONFIG_HZ_{value}=y", number)
            .undone_by("boot the former kernel"),
        |k| Value::Number(k.sched.hz.into()),
        |k, v| k.sched.hz = v.number()?),
    knob!(Idle "host.idle", Kind::Choice(|| IDLE.all()),
        Upstream("boot parameter idle=, drivers intel_idle and acpi_idle"),
        "How idle CPUs wait: a store wakes (mwait), an interrupt wakes (hlt), or they poll",
        Replay::simulate("idle CPUs wake as late as recorded"),
        HostSetting::boot_by("kernel command line: {value}", idle_parameter),
        |idle| IDLE.show(idle),
        |idle, v| *idle = IDLE.read(v)?),
    knob!(Knobs "host.nohz_full", Kind::Cpus,
        Upstream("boot parameter nohz_full="),
        "CPUs without a tick while one task runs; the others do the housekeeping",
        Replay::scenario("interrupts' time is part of what they interrupted", "posted-timers.toml"),
        HostSetting::boot(
            "kernel command line: nohz_full={value}",
            "kernel command line: without nohz_full=",
        ),
        |k| Value::Cpus(k.host.nohz_full.clone()),
        |k, v| k.host.nohz_full = v.cpus()?),
    knob!(Knobs "host.isolcpus", Kind::Cpus,
        Upstream("boot parameter isolcpus=domain,"),
        "CPUs that load balancing leaves alone",
        Replay::simulate("tasks change CPUs as recorded, or by --pin"),
        HostSetting::boot(
            "kernel command line: isolcpus=domain,{value}",
            "kernel command line: without isolcpus=",
        ),
        |k| Value::Cpus(k.host.isolcpus.clone()),
        |k, v| k.host.isolcpus = v.cpus()?),
    knob!(Knobs "host.cold_cache_ns", Kind::Time { min: 0, max: 10_000_000 },
        Ours("a few us to over 1 ms, by what the tasks work on: Li, Ding and Shen, Quantifying the Cost of \
              Context Switch, 2007"),
        "How much longer a task runs after another has used its CPU, since its data has left the caches",
        Replay::simulate("recorded CPU time has it already"),
        HostSetting::SimulationOnly("a property of the CPUs and of the tasks' memory"),
        |k| Value::Ns(k.host.cold_cache_ns.into()),
        |k, v| k.host.cold_cache_ns = v.number()?),
    knob!(Knobs "xen.batch_wakeups", Kind::Choice(|| BATCH.to_vec()),
        Ours("Xen batches always (form)"),
        "Whether a multicast IPI gathers its wakeups in one batch",
        XEN,
        HostSetting::SimulationOnly("Xen batches always"),
        |k| Value::Words(batch_name(&k.xen.batch_wakeups).to_owned()),
        |k, v| k.xen.batch_wakeups = batch(k.xen.batch_wakeups, v)?),
    knob!(Knobs "xen.batch_min_targets", Kind::Number { min: 1, max: 65_536, unit: "vCPUs" },
    Ours("Xen batches always (form)"),
    "The least targets of a batch, with xen.batch_wakeups=threshold",
    XEN,
    HostSetting::SimulationOnly("Xen batches always"),
    |k| Value::Number(match k.xen.batch_wakeups {
        BatchPolicy::Threshold { min_targets } => min_targets.into(),
        _ => MIN_TARGETS.into(),
    }),
    |k, v| match &mut k.xen.batch_wakeups {
        BatchPolicy::Threshold { min_targets } => *min_targets = v.number()?,
        _ => return Err(ValueError::Requires("xen.batch_wakeups=threshold")),
    }),
    knob!(Knobs "xen.mwait_elision", Kind::Switch,
        Ours("Xen does it always"),
        "No IPI to a CPU that monitors its softirq word",
        XEN,
        HostSetting::SimulationOnly("Xen does it always"),
        |k| Value::Switch(k.xen.mwait_elision),
        |k, v| k.xen.mwait_elision = v.switch()?),
    knob!(Knobs "xen.sched", Kind::Choice(|| SCHEDULERS.all()),
        Upstream("Xen boot parameter sched="),
        "CPUs that a wakeup tickles: the chosen one (credit2), or also an idle one (credit)",
        XEN,
        HostSetting::boot("Xen's command line: sched={value}", "Xen's command line: without sched="),
        |k| SCHEDULERS.show(&k.xen.sched),
        |k, v| k.xen.sched = SCHEDULERS.read(v)?),
];
