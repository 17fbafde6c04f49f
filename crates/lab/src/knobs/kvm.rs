//! Knobs of kvm and `kvm_intel`.

use stealtime_hypervisor::counter::arm64::traps::Mode;
use stealtime_hypervisor::directed_yield::{CandidateOrder, LastBoosted};
use stealtime_hypervisor::ipi_tracking::EoiRule;
use stealtime_hypervisor::lapic_timer::TimerPolicy;
use stealtime_hypervisor::posted_interrupt::Suppression;
use stealtime_simulator::config::L1dFlush;

use super::Source::{Ours, Upstream};
use super::host_setting::{HostSetting, kvm, vendor};
use super::replay::{Part, Replay};
use super::value::{Kind, Value, ValueError};
use super::{Knob, knob};

const U32: i64 = u32::MAX as i64;
const ORDERS: Words<CandidateOrder> = Words(&[
    ("scan", CandidateOrder::Scan),
    ("priority", CandidateOrder::Priority),
]);
const LAST_BOOSTED: Words<LastBoosted> =
    Words(&[("index", LastBoosted::Index), ("steps", LastBoosted::Steps)]);
const FLUSHES: Words<L1dFlush> = Words(&[
    ("never", L1dFlush::Never),
    ("cond", L1dFlush::Cond),
    ("always", L1dFlush::Always),
]);
const MODES: Words<Mode> = Words(&[("vhe", Mode::Vhe), ("nvhe", Mode::Nvhe)]);
const EOI_RULES: Words<EoiRule> = Words(&[
    ("vector-matched", EoiRule::VectorMatched),
    ("any-vector", EoiRule::AnyVector),
]);

/// Values by their words.
pub(crate) struct Words<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Words<T> {
    /// The value of a word.
    pub(crate) fn find(&self, word: &str) -> Option<T> {
        self.0.iter().find(|row| row.0 == word).map(|row| row.1)
    }

    pub(super) fn read(&self, value: &Value) -> Result<T, ValueError> {
        let word = value.words()?;
        let unknown = || ValueError::UnknownWord(word.to_owned());
        self.find(word).ok_or_else(unknown)
    }

    pub(super) fn show(&self, value: &T) -> Value {
        let row = self.0.iter().find(|row| row.1 == *value);
        Value::Words(row.map_or("?", |row| row.0).to_owned())
    }

    /// All words.
    pub(crate) fn all(&self) -> Vec<&'static str> {
        self.0.iter().map(|row| row.0).collect()
    }
}

/// A count of `ns`.
const fn ns(max: u64) -> Kind {
    Kind::Time { min: 0, max }
}

const fn number(min: i64, max: i64, unit: &'static str) -> Kind {
    Kind::Number { min, max, unit }
}

/// Exits and their times are demand.
pub(super) const EXITS: Replay = Replay::simulate("exits are demand with their recorded times");
pub(super) const YIELD_TARGETS: Replay =
    Replay::simulate("the targets of directed yields are recorded");
const TIMER_EXITS: Replay = Replay::scenario(
    "exits for timers are demand with the times that they had",
    "posted-timers.toml",
);
pub(super) const SPINNING: Replay = Replay::scenario(
    "how long a vCPU spins is part of its demand, though a replay shows which task gets its CPU",
    "lock-holder.toml",
);

const YIELD_SERIES: &str = "of the directed-yield series of patches, which is not merged";
const BY_VERSION: &str =
    "the version of the kernel determines the rule, and some rules are not merged";

fn last_boosted_kernel(value: &Value) -> Option<String> {
    let text = match value.to_string().as_str() {
        "index" => "a kernel with commit 32bd348be3fa",
        "steps" => "a kernel with commit 7e513617da71 and without 32bd348be3fa",
        _ => return None,
    };
    Some(text.to_owned())
}

pub(super) static KNOBS: &[Knob] = &[
    knob!(Knobs "kvm.pi_inject_timer", number(-1, 1, ""),
        Upstream("module parameter kvm.pi_inject_timer"),
        "Post expiries of guests' timers instead of leaving the guest: 0, 1, or -1 for 1 exactly where \
         nohz_full gives housekeeping CPUs",
        TIMER_EXITS,
        HostSetting::file(kvm!("pi_inject_timer")),
        |k| Value::Number(k.kvm.pi_inject_timer.into()),
        |k, v| k.kvm.pi_inject_timer = v.number()?),
    knob!(Knobs "kvm.timer_policy",
        Kind::Choice(|| TimerPolicy::ALL.iter().map(|policy| policy.name()).collect()),
        Ours("the rules of Linux 5.3, of 2021 and of 7.2, and an adaptive one"),
        "Which vCPUs' timers may be posted",
        TIMER_EXITS,
        HostSetting::SimulationOnly(BY_VERSION),
        |k| Value::Words(k.kvm.timer_policy.name().to_owned()),
        |k, v| k.kvm.timer_policy = v.words()?.parse::<TimerPolicy>().map_err(|_| ValueError::UnknownWord(v.to_string()))?),
    knob!(Knobs "kvm.lapic_timer_advance", Kind::Switch,
        Upstream("module parameter kvm.lapic_timer_advance"),
        "Let timers fire early by what their delivery takes",
        EXITS,
        HostSetting::module_switch(kvm!("lapic_timer_advance")),
        |k| Value::Switch(k.kvm.lapic_timer_advance),
        |k, v| k.kvm.lapic_timer_advance = v.switch()?),
    knob!(Knobs "kvm.halt_poll_ns", ns(u32::MAX as u64),
        Upstream("module parameter kvm.halt_poll_ns"),
        "How long a halted vCPU polls for its wakeup at most; 0 switches polling off",
        Replay::Shows(Part::Halts),
        HostSetting::file(kvm!("halt_poll_ns"))
            .with_note("some kernels from 5.8 to 6.1 read it only when a VM starts"),
        |k| Value::Ns(k.kvm.halt_poll.halt_poll_ns.into()),
        |k, v| k.kvm.halt_poll.halt_poll_ns = v.number()?),
    knob!(Knobs "kvm.halt_poll_ns_grow", number(0, U32, ""),
        Upstream("module parameter kvm.halt_poll_ns_grow"),
        "By what the polling window is multiplied after a wakeup that polling just missed; 0: never",
        Replay::Shows(Part::Halts),
        HostSetting::file(kvm!("halt_poll_ns_grow")),
        |k| Value::Number(k.kvm.halt_poll.grow.into()),
        |k, v| k.kvm.halt_poll.grow = v.number()?),
    knob!(Knobs "kvm.halt_poll_ns_grow_start", ns(u32::MAX as u64),
        Upstream("module parameter kvm.halt_poll_ns_grow_start"),
        "The polling window that growing begins with",
        Replay::Shows(Part::Halts),
        HostSetting::file(kvm!("halt_poll_ns_grow_start")),
        |k| Value::Ns(k.kvm.halt_poll.grow_start_ns.into()),
        |k, v| k.kvm.halt_poll.grow_start_ns = v.number()?),
    knob!(Knobs "kvm.halt_poll_ns_shrink", number(0, U32, ""),
        Upstream("module parameter kvm.halt_poll_ns_shrink"),
        "By what the polling window is divided after a long halt; 0: to nothing at once",
        Replay::Shows(Part::Halts),
        HostSetting::file(kvm!("halt_poll_ns_shrink")),
        |k| Value::Number(k.kvm.halt_poll.shrink.into()),
        |k, v| k.kvm.halt_poll.shrink = v.number()?),
    knob!(Knobs "kvm.ple_gap", number(0, U32, "cycles"),
        Upstream("module parameter kvm_intel.ple_gap; kvm_amd.pause_filter_thresh"),
        "PAUSEs farther apart do not belong to one loop; 0 switches pause-loop exiting off",
        SPINNING,
        HostSetting::module(vendor!("ple_gap", "pause_filter_thresh")),
        |k| Value::Number(k.kvm.ple.gap.into()),
        |k, v| k.kvm.ple.gap = v.number()?),
    knob!(Knobs "kvm.ple_window", number(1, U32, "cycles"),
        Upstream("module parameter kvm_intel.ple_window; kvm_amd.pause_filter_count, in PAUSEs, from 3000"),
        "How long a pause loop may spin before it leaves the guest, to begin with",
        SPINNING,
        HostSetting::module(vendor!("ple_window", "pause_filter_count")),
        |k| Value::Number(k.kvm.ple.window.into()),
        |k, v| k.kvm.ple.window = v.number()?),
    knob!(Knobs "kvm.ple_window_grow", number(0, U32, ""),
        Upstream("module parameter kvm_intel.ple_window_grow; kvm_amd.pause_filter_count_grow"),
        "Factor of the window after a PAUSE exit (a step, if not below the window); 0 resets",
        SPINNING,
        HostSetting::module(vendor!("ple_window_grow", "pause_filter_count_grow")),
        |k| Value::Number(k.kvm.ple.grow.into()),
        |k, v| k.kvm.ple.grow = v.number()?),
    knob!(Knobs "kvm.ple_window_shrink", number(0, U32, ""),
        Upstream("module parameter kvm_intel.ple_window_shrink; kvm_amd.pause_filter_count_shrink"),
        "Divisor of the window after the vCPU was scheduled out (a step, if not below the window); 0 \
         resets",
        SPINNING,
        HostSetting::module(vendor!("ple_window_shrink", "pause_filter_count_shrink")),
        |k| Value::Number(k.kvm.ple.shrink.into()),
        |k, v| k.kvm.ple.shrink = v.number()?),
    knob!(Knobs "kvm.ple_window_max", number(1, U32, "cycles"),
        Upstream("module parameter kvm_intel.ple_window_max; kvm_amd.pause_filter_count_max, 65535"),
        "The largest pause-loop window",
        SPINNING,
        HostSetting::module(vendor!("ple_window_max", "pause_filter_count_max")),
        |k| Value::Number(k.kvm.ple.max.into()),
        |k, v| k.kvm.ple.max = v.number()?),
    knob!(Knobs "kvm.ipi_aware_yield", Kind::Switch,
        Ours("the filter of the directed-yield series, version 3, as a whole"),
        "Choose the target of a directed yield as the series does; off, as 7.2 does",
        SPINNING,
        HostSetting::SimulationOnly(YIELD_SERIES),
        |k| Value::Switch(k.kvm.directed_yield.ipi_aware),
        |k, v| k.kvm.directed_yield.ipi_aware = v.switch()?),
    knob!(Knobs "kvm.ipi_tracking_enabled", Kind::Switch,
    Upstream("module parameter of the directed-yield series, version 3; not merged"),
    "Remember the target of a vCPU's last IPI, and yield to it first",
    SPINNING,
    HostSetting::SimulationOnly(YIELD_SERIES),
    |k| Value::Switch(k.kvm.directed_yield.ipi.ipi_tracking_enabled),
    |k, v| {
        k.kvm.directed_yield.ipi.ipi_tracking_enabled = v.switch()?;
    }),
    knob!(Knobs "kvm.ipi_window_ns", ns(1_000_000_000),
    Upstream("module parameter of the directed-yield series, version 3; not merged"),
    "For how long a remembered IPI is believed",
    SPINNING,
    HostSetting::SimulationOnly(YIELD_SERIES),
    |k| Value::Ns(k.kvm.directed_yield.ipi.ipi_window_ns),
    |k, v| {
        k.kvm.directed_yield.ipi.ipi_window_ns = v.ns()?;
    }),
    knob!(Knobs "kvm.ipi_eoi_rule", Kind::Choice(|| EOI_RULES.all()),
    Ours("versions 3 and 2 of the directed-yield series"),
    "What an EOI makes forget: the record of its vector, or everything",
    SPINNING,
    HostSetting::SimulationOnly(YIELD_SERIES),
    |k| EOI_RULES.show(&k.kvm.directed_yield.ipi.eoi_rule),
    |k, v| {
        k.kvm.directed_yield.ipi.eoi_rule = EOI_RULES.read(v)?;
    }),
    knob!(Knobs "kvm.guest_yield_hint", Kind::Switch,
    Ours("a word that guest and host share"),
    "Let a guest name the vCPU that it waits for: read at each PAUSE exit, it takes the place of a \
     tracked IPI",
    YIELD_TARGETS,
    HostSetting::SimulationOnly("no kernel has it"),
    |k| Value::Switch(k.kvm.directed_yield.ipi.guest_yield_hint),
    |k, v| {
        k.kvm.directed_yield.ipi.guest_yield_hint = v.switch()?;
    }),
    knob!(Knobs "kvm.enable_relaxed_boost", Kind::Switch,
        Upstream("module parameter of the directed-yield series, version 3; not merged"),
        "Look a second time for any preempted vCPU if the first look found none",
        SPINNING,
        HostSetting::SimulationOnly(YIELD_SERIES),
        |k| Value::Switch(k.kvm.directed_yield.enable_relaxed_boost),
        |k, v| k.kvm.directed_yield.enable_relaxed_boost = v.switch()?),
    knob!(Knobs "kvm.yield_order", Kind::Choice(|| ORDERS.all()),
        Ours("the series scans; its text promises priorities"),
        "Take the first candidate of a scan, or the one with the strongest reason",
        YIELD_TARGETS,
        HostSetting::SimulationOnly(YIELD_SERIES),
        |k| ORDERS.show(&k.kvm.directed_yield.order),
        |k, v| k.kvm.directed_yield.order = ORDERS.read(v)?),
    knob!(Knobs "kvm.last_boosted", Kind::Choice(|| LAST_BOOSTED.all()),
        Ours("a fault of Linux up to 6.18: commit 7e513617da71, fixed by 32bd348be3fa"),
        "What a search for a vCPU to yield to leaves for where the next one begins: the vCPU's index, or how \
         many it had looked past",
        YIELD_TARGETS,
        HostSetting::kernel("boot {value}", last_boosted_kernel),
        |k| LAST_BOOSTED.show(&k.kvm.directed_yield.last_boosted),
        |k, v| k.kvm.directed_yield.last_boosted = LAST_BOOSTED.read(v)?),
    knob!(Knobs "kvm.suppress_notification",
    Kind::Choice(|| Suppression::ALL.iter().map(|policy| policy.name()).collect()),
    Ours("Linux before 2022 and 7.2, two posted versions, and a corrected one"),
    "When posted interrupts are kept from notifying (SN)",
    Replay::scenario(
            "the exits that notifications cause are demand",
            "suppressed-notifications.toml",
        ),
    HostSetting::SimulationOnly(BY_VERSION),
    |k| Value::Words(k.kvm.suppress_notification.name().to_owned()),
    |k, v| {
        let policy = v.words()?.parse::<Suppression>();
        k.kvm.suppress_notification = policy.map_err(|_| ValueError::UnknownWord(v.to_string()))?;
    }),
    knob!(Knobs "kvm.enable_apicv", Kind::Switch,
        Upstream("module parameter kvm_intel.enable_apicv; kvm_amd.avic"),
        "Use APIC virtualization and posted interrupts, where the machine has them",
        EXITS,
        HostSetting::module_switch(vendor!("enable_apicv", "avic")),
        |k| Value::Switch(k.kvm.enable_apicv),
        |k, v| k.kvm.enable_apicv = v.switch()?),
    knob!(Knobs "kvm.enable_ipiv", Kind::Switch,
        Upstream("module parameter kvm_intel.enable_ipiv; kvm_amd.enable_ipiv, from Linux 6.17 on"),
        "Use IPI virtualization, where the machine has it",
        EXITS,
        HostSetting::module_switch(vendor!("enable_ipiv", "enable_ipiv")),
        |k| Value::Switch(k.kvm.enable_ipiv),
        |k, v| k.kvm.enable_ipiv = v.switch()?),
    knob!(Knobs "kvm.vmentry_l1d_flush", Kind::Choice(|| FLUSHES.all()),
        Upstream("module parameter kvm_intel.vmentry_l1d_flush"),
        "Empty the L1 data cache before VM entries: never, cond (Linux's default where there is L1TF), or \
         always",
        EXITS,
        HostSetting::word_file(vendor!("vmentry_l1d_flush")),
        |k| FLUSHES.show(&k.kvm.vmentry_l1d_flush),
        |k, v| k.kvm.vmentry_l1d_flush = FLUSHES.read(v)?),
    knob!(Knobs "kvm.preemption_timer", Kind::Switch,
        Upstream("module parameter kvm_intel.preemption_timer"),
        "Use the VMX preemption timer for guests' timers, where the machine has it",
        EXITS,
        HostSetting::module_switch(vendor!("preemption_timer")),
        |k| Value::Switch(k.kvm.preemption_timer),
        |k, v| k.kvm.preemption_timer = v.switch()?),
    knob!(Knobs "kvm_arm.mode", Kind::Choice(|| MODES.all()),
        Upstream("kernel parameter kvm-arm.mode"),
        "arm64: whether the host's kernel runs at EL2",
        EXITS,
        HostSetting::boot(
            "kernel command line: kvm-arm.mode={value}",
            "kernel command line: without kvm-arm.mode=",
        ),
        |k| MODES.show(&k.kvm.arm_mode),
        |k, v| k.kvm.arm_mode = MODES.read(v)?),
];
