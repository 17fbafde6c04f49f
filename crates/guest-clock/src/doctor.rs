//! What this host's KVM offers to guests' clocks, tried out, and what that means.
//!
//! ```no_run
//! let checkup = guest_clock::doctor::examine(false)?;
//! println!("exact restores: {}", checkup.exact);
//! for finding in &checkup.findings {
//!     println!("{}: {}; {}", finding.what, finding.found, finding.meaning);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use kvm_bindings::{
    KVM_CAP_GET_TSC_KHZ, KVM_CAP_KVMCLOCK_CTRL, KVM_CAP_TSC_DEADLINE_TIMER, KVM_CAP_VCPU_ATTRIBUTES,
};
use serde::Serialize;
use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KVM_CLOCK_TSC_STABLE,
};

use crate::bench::{Costs, IoctlTimes, costs, ioctls};
use crate::device::{HostFacts, TscMeans, Vcpu, Vm};
use crate::drill::DrillError;
use crate::error::SaveError;
use crate::guest::Guest;
use crate::kvm::{Backend, backend, check_extension, clocksource, host};
use crate::save::of;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What.
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// What that means for guests' clocks.
    pub meaning: &'static str,
}

/// The whole examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Checkup {
    /// Guests can be saved and restored exactly.
    pub exact: bool,
    /// Everything that was looked at.
    pub findings: Vec<Finding>,
    /// What reading the clocks costs, if it was measured.
    pub costs: Option<Costs>,
    /// How long saving and restoring take, if it was measured.
    pub times: Option<IoctlTimes>,
}

/// Examines this host's KVM, with small guests.
///
/// # Errors
/// [`DrillError`] where `/dev/kvm` is not there, may not be used, or runs no guests.
pub fn examine(measure: bool) -> Result<Checkup, DrillError> {
    let facts = host().map_err(SaveError::Host)?.facts();
    let mut guest = Guest::new(2)?;
    guest.run(10)?;
    let observed = guest.seen();
    let clock = Vm::get_clock(&guest.vm).map_err(of("KVM_GET_CLOCK", None))?;
    let master = clock.flags & KVM_CLOCK_TSC_STABLE != 0;
    let instant = KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
    let instant = clock.flags & instant == instant;
    let mut findings = vec![of_backend(), of_clocksource(), of_flags(&facts)];
    findings.push(of_attribute(&guest));
    findings.push(of_means(facts.means));
    findings.push(of_scaling(&facts));
    findings.push(of_master_clock(master, instant, observed.unstable));
    findings.extend(of_capabilities(&guest));
    let costs = measure.then(costs).transpose()?;
    let times = measure.then(|| ioctls(TIMED.0, TIMED.1)).transpose()?;
    findings.extend(costs.as_ref().map(of_costs));
    findings.extend(costs.as_ref().map(of_spreads));
    findings.extend(times.as_ref().map(of_times));
    Ok(Checkup {
        exact: facts.means == TscMeans::Offsets && master && instant,
        findings,
        costs,
        times,
    })
}

fn of_backend() -> Finding {
    let (found, meaning) = match backend() {
        Backend::Intel => (
            "kvm_intel",
            "VMX: TSC offsets in hardware, ratios with 48 bits",
        ),
        Backend::Amd => (
            "kvm_amd",
            "SVM: TSC offsets in hardware, ratios with 32 bits",
        ),
        Backend::Pvm => (
            "kvm_pvm",
            "no hardware virtualization: TSC offsets may be ignored, ordinary guests are emulated",
        ),
        Backend::Unknown => ("unknown", "judged by what it does, below"),
    };
    Finding {
        what: "KVM",
        found: found.to_owned(),
        meaning,
    }
}

fn of_clocksource() -> Finding {
    let found = clocksource().unwrap_or_else(|| "unknown".to_owned());
    let meaning = match found.as_str() {
        "tsc" | "hyperv_clocksource_tsc_page" => "the master clock is possible",
        _ => "no master clock: kvmclock differs between vCPUs and cannot be saved exactly",
    };
    Finding {
        what: "host clocksource",
        found,
        meaning,
    }
}

fn of_flags(facts: &HostFacts) -> Finding {
    let names = [
        (KVM_CLOCK_TSC_STABLE, "TSC_STABLE"),
        (KVM_CLOCK_REALTIME, "REALTIME"),
        (KVM_CLOCK_HOST_TSC, "HOST_TSC"),
    ];
    let known = names.iter().filter(|(bit, _)| facts.clock_flags & bit != 0);
    let known: Vec<&str> = known.map(|(_, name)| *name).collect();
    let meaning = match known.len() {
        3 => "KVM_GET_CLOCK and KVM_SET_CLOCK work with instants: delays do no harm",
        _ => "Linux before 5.16: the kvmclock is saved and set by value, with a bound",
    };
    Finding {
        what: "clock flags",
        found: format!("{:#x} {}", facts.clock_flags, known.join(" ")),
        meaning,
    }
}

fn of_attribute(guest: &Guest) -> Finding {
    let offset = guest.vcpus.first().map(Vcpu::tsc_offset);
    let exists = matches!(offset, Some(Ok(_)));
    let capability = check_extension(&guest.vm, KVM_CAP_VCPU_ATTRIBUTES);
    Finding {
        what: "TSC offset",
        found: format!(
            "{} (KVM_CAP_VCPU_ATTRIBUTES {capability})",
            if exists {
                "attribute there"
            } else {
                "no attribute"
            }
        ),
        meaning: "whether KVM has a name for it; the next line tells whether it does it",
    }
}

fn of_means(means: TscMeans) -> Finding {
    let (found, meaning) = match means {
        TscMeans::Offsets => (
            "offsets",
            "TSCs are restored exactly, however often and late",
        ),
        TscMeans::Values => (
            "values",
            "TSCs are restored by value: equal on all vCPUs, off by a measured bound",
        ),
        TscMeans::Fixed => (
            "nothing",
            "writes are accepted and ignored: guests have the host's TSC. Within one boot of one \
             host that is where it should be, to a few ns, and that is in the stated bound; after \
             a boot, on another host or with a policy that stops guest time a restore is refused, \
             or on demand done with the whole difference as its bound",
        ),
    };
    Finding {
        what: "TSC is moved by",
        found: found.to_owned(),
        meaning,
    }
}

fn of_scaling(facts: &HostFacts) -> Finding {
    Finding {
        what: "TSC frequency",
        found: format!(
            "{} kHz, tolerance {} ppm, scaling {}",
            facts.tsc_khz,
            facts.tolerance_ppm,
            if facts.has_scaling { "yes" } else { "no" }
        ),
        meaning: if facts.has_scaling {
            "guests of other frequencies can be restored here"
        } else {
            "only guests of this frequency, give or take the tolerance, can be restored here"
        },
    }
}

fn of_master_clock(master: bool, instant: bool, unstable: u64) -> Finding {
    Finding {
        what: "master clock",
        found: format!(
            "{}, instants {}, {unstable} unstable readings by a guest of 2 vCPUs",
            if master { "on" } else { "off" },
            if instant { "yes" } else { "no" }
        ),
        meaning: if master {
            "a new guest's kvmclock is one for all vCPUs, and quick to read"
        } else {
            "kvmclock may differ between vCPUs, and guests fall back to slower clocks"
        },
    }
}

fn of_capabilities(guest: &Guest) -> [Finding; 1] {
    let support = |capability, name: &str| {
        let exists = check_extension(&guest.vm, capability) > 0;
        format!("{name} {}", if exists { "yes" } else { "no" })
    };
    [Finding {
        what: "capabilities",
        found: [
            support(KVM_CAP_GET_TSC_KHZ, "GET_TSC_KHZ"),
            support(KVM_CAP_TSC_DEADLINE_TIMER, "TSC_DEADLINE_TIMER"),
            support(KVM_CAP_KVMCLOCK_CTRL, "KVMCLOCK_CTRL"),
        ]
        .join(", "),
        meaning: "frequency, deadline timers and the notice of a pause can be carried over",
    }]
}

/// vCPUs of the guest that is saved and restored to see how long that takes, and how often.
const TIMED: (usize, u32) = (64, 50);

fn of_times(times: &IoctlTimes) -> Finding {
    let micros = |ns: u64| ns / 1000;
    Finding {
        what: "ioctls' time, us",
        found: format!(
            "{} vCPUs saved in {} ({} ioctls), restored in {} ({} ioctls)",
            times.vcpus,
            micros(times.save.ioctl_median_ns),
            times.save.calls,
            micros(times.restore.ioctl_median_ns),
            times.restore.calls
        ),
        meaning: "by so much a guest of that size stands still longer; it is not in its time",
    }
}

fn of_spreads(costs: &Costs) -> Finding {
    let ns = |ps: u64| format!("{}.{}", ps / 1000, ps % 1000 / 100);
    let readings = [
        ("TSC", &costs.each_native_tsc),
        ("kvmclock page", &costs.each_kvmclock),
        ("CLOCK_MONOTONIC", &costs.each_monotonic),
    ];
    let readings = readings.map(|(name, s)| {
        let [average, deviation, p95] = [s.average_ps, s.deviation_ps, s.p95_ps].map(ns);
        format!("{name} {average}, deviation {deviation}, 95 % {p95}")
    });
    Finding {
        what: "each reading, ns",
        found: readings.join("; "),
        meaning: "on average and as they scatter, each from one RDTSC to the next: interrupts of this \
                  host are in them",
    }
}

fn of_costs(costs: &Costs) -> Finding {
    let ns = |ps: u64| format!("{}.{}", ps / 1000, ps % 1000 / 100);
    Finding {
        what: "reading costs, ns",
        found: format!(
            "native TSC {}, kvmclock page {}, CLOCK_MONOTONIC {}; in a guest: empty loop {}, with \
             RDTSC {}, with RDMSR {}, with IN from the VMM {}",
            ns(costs.native_tsc_ps),
            ns(costs.kvmclock_ps),
            ns(costs.monotonic_ps),
            ns(costs.guest_loop_ps),
            ns(costs.guest_rdtsc_ps),
            ns(costs.guest_rdmsr_ps),
            ns(costs.guest_port_ps)
        ),
        meaning: if costs.guest_loop_ps > 50_000 {
            "this KVM emulates guests' real-mode code: an empty turn costs far above a nanosecond, \
             take it off the others"
        } else {
            "what RDMSR and IN cost above an empty turn is the trap"
        },
    }
}
