//! The five mechanisms on this host: whether the kernel has each, its state, and whether it would pay.

use serde::Serialize;
use stealtime_lab::knobs::Vendor;

use crate::view::{POSTS_FEW, Release, View};

/// State of a mechanism on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It works.
    On,
    /// It is switched off.
    Off,
    /// The kernel lacks it.
    Absent,
    /// The snapshot does not show it.
    Unknown,
}

/// A mechanism.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mechanism {
    /// Its name in docs/mechanisms.md.
    pub name: &'static str,
    /// Its state.
    pub state: State,
    /// Whether this kernel has it.
    pub kernel: String,
    /// The values that show it.
    pub evidence: String,
    /// Whether it would pay here.
    pub pays: String,
}

pub(crate) fn all(view: &View<'_>) -> Vec<Mechanism> {
    vec![
        posted_timers(view),
        suppression(view),
        batched_wakeups(view),
        counters(view),
        directed_yield(view),
    ]
}

fn is_since(view: &View<'_>, release: Release) -> Option<bool> {
    view.kernel().map(|kernel| kernel >= release)
}

fn kernel_text(is_there: Option<bool>, release: &str) -> String {
    match is_there {
        Some(true) => format!("yes, {release}"),
        Some(false) => format!("no: {release}"),
        None => format!("unknown: {release}"),
    }
}

fn posted_timers(view: &View<'_>) -> Mechanism {
    let is_there = is_since(view, Release { major: 5, minor: 3 });
    let parameter = view.parameter("kvm", "pi_inject_timer");
    let apicv = view.has_apicv();
    let state = match (parameter, apicv) {
        _ if is_there == Some(false) => State::Absent,
        (Some("1"), Some(true)) => State::On,
        (Some(_), _) => State::Off,
        (None, _) => State::Unknown,
    };
    let users = view
        .snapshot
        .vms
        .iter()
        .filter(|vm| vm.cpu_pm == Some(true))
        .count();
    let posts_few = is_since(view, POSTS_FEW) != Some(false);
    let pays = match (users, view.nohz_full.is_empty()) {
        (0, _) if !posts_few => {
            "maybe: this kernel posts timers of all VMs; that pays where vCPUs idle in the guest"
                .to_owned()
        }
        (0, _) => "no: KVM posts timers of VMs with cpu-pm=on alone, and none is known".to_owned(),
        (_, true) => "maybe: without nohz_full= expiries interrupt CPUs of other vCPUs".to_owned(),
        (count, false) => {
            format!("yes: {count} VMs idle by themselves, and nohz_full gives housekeeping")
        }
    };
    Mechanism {
        name: "posted timers",
        state,
        kernel: kernel_text(is_there, "Linux 5.3"),
        evidence: format!("pi_inject_timer {}", parameter.unwrap_or("?")),
        pays,
    }
}

/// `vmx_vcpu_pi_put`: SN is set for a preempted vCPU if devices may post to it (Linux 4.4) or IPIs are
/// virtualized (6.0). AVIC has no SN.
fn suppression(view: &View<'_>) -> Mechanism {
    let is_there = is_since(view, Release { major: 4, minor: 4 });
    let is_amd = view.vendor == Vendor::Amd;
    let apicv = view.is_on("kvm_intel", "enable_apicv");
    let ipiv = view.is_on("kvm_intel", "enable_ipiv");
    let state = match (apicv, ipiv) {
        _ if is_there == Some(false) || is_amd => State::Absent,
        (Some(true), Some(true)) => State::On,
        (Some(false), _) => State::Off,
        _ => State::Unknown,
    };
    let value = |name| view.parameter("kvm_intel", name).unwrap_or("?");
    let (apicv, ipiv) = (value("enable_apicv"), value("enable_ipiv"));
    Mechanism {
        name: "notification suppression",
        state,
        kernel: match is_amd {
            true => "no: AVIC has no such bit".to_owned(),
            false => kernel_text(
                is_there,
                "for preempted vCPUs, with assigned devices from Linux 4.4 on, with IPI \
                 virtualization from 6.0 on; more is not merged",
            ),
        },
        evidence: format!(
            "enable_apicv {apicv}, enable_ipiv {ipiv}; a snapshot does not show assigned devices"
        ),
        pays: match view.is_overcommitted() {
            true => "maybe: vCPUs share CPUs, so that preempted ones are notified".to_owned(),
            false => "no: each vCPU can have a CPU".to_owned(),
        },
    }
}

fn batched_wakeups(view: &View<'_>) -> Mechanism {
    let has_kvm = view.snapshot.kvm.device;
    Mechanism {
        name: "batched wakeups",
        state: State::Absent,
        kernel: "no: of Xen".to_owned(),
        evidence: format!(
            "/dev/kvm {}",
            if has_kvm { "exists" } else { "does not exist" }
        ),
        pays: "no: this host does not run Xen".to_owned(),
    }
}

fn counters(view: &View<'_>) -> Mechanism {
    let is_there = is_since(
        view,
        Release {
            major: 5,
            minor: 16,
        },
    );
    let tsc = view.snapshot.clocksource.current.as_deref();
    let unequal = view.snapshot.vms.iter().filter(|vm| {
        let mut offsets = vm.vcpus().filter_map(|vcpu| vcpu.tsc_offset);
        let first = offsets.next();
        offsets.any(|offset| Some(offset) != first)
    });
    let unequal = unequal.count();
    Mechanism {
        name: "idempotent counters",
        state: match is_there {
            Some(true) if view.snapshot.kvm.device => State::On,
            Some(false) => State::Absent,
            _ => State::Unknown,
        },
        kernel: kernel_text(is_there, "KVM_VCPU_TSC_OFFSET from Linux 5.16 on"),
        evidence: format!(
            "clocksource {}, VMs with unequal offsets: {unequal}",
            tsc.unwrap_or("?")
        ),
        pays: match unequal {
            0 => "when VMs are saved, restored or migrated: `stealtime clock`".to_owned(),
            count => format!("yes: {count} VMs have unequal offsets"),
        },
    }
}

fn directed_yield(view: &View<'_>) -> Mechanism {
    let has_series = view.parameter("kvm", "ipi_tracking_enabled").is_some();
    let gap = view.parameter("kvm_intel", "ple_gap");
    let count = view.parameter("kvm_amd", "pause_filter_count");
    let state = match (gap.or(count), has_series) {
        (Some("0"), _) => State::Off,
        (Some(_), true) => State::On,
        (Some(_), false) => State::Absent,
        (None, _) => State::Unknown,
    };
    let stat = |name: &str| -> u64 {
        let values = view
            .snapshot
            .vms
            .iter()
            .filter_map(|vm| vm.kvm_stats.get(name));
        values.fold(0, |sum, value| sum.saturating_add(*value))
    };
    let (attempts, successes) = (
        stat("directed_yield_attempted"),
        stat("directed_yield_successful"),
    );
    Mechanism {
        name: "directed yield by IPIs and lag credit",
        state,
        kernel: match has_series {
            true => "yes: the series of patches is applied".to_owned(),
            false => "no: the plain directed yield alone; the series is not merged".to_owned(),
        },
        evidence: match (gap, count) {
            (Some(gap), _) => format!("ple_gap {gap}, directed yields {successes} of {attempts}"),
            (None, count) => format!(
                "pause_filter_count {}, directed yields {successes} of {attempts}",
                count.unwrap_or("?")
            ),
        },
        pays: match (view.is_overcommitted(), attempts) {
            (_, 0) => "no: no vCPU has spun for long enough".to_owned(),
            (true, _) => {
                "maybe: vCPUs share CPUs and spin; a recording shows for how long".to_owned()
            }
            (false, _) => "hardly: each vCPU can have a CPU".to_owned(),
        },
    }
}
