//! Rules about the host.

use std::collections::BTreeSet;

use stealtime_host::{Cpu, IdleState, Thread, cpulist};

use crate::change::{Change, write_each_cpu};
use crate::view::{POSTS_FEW, View, cpus_in};
use crate::{Finding, Urgency};

/// Steal of this host from which it is a cost, in tenths of a percent of the time since boot.
const STEAL_PER_MILLE: u64 = 10;
/// Exit latency from which an idle state is deep: a few times the cost of a wakeup.
const DEEP_US: u64 = 100;
/// Drivers that choose frequencies by load under `powersave`.
const ADAPTIVE_DRIVERS: [&str; 3] = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];
/// Clocksources with which KVM has a master clock.
const MASTER_CLOCKS: [&str; 2] = ["tsc", "hyperv_clocksource_tsc_page"];
/// Turns on a CPU from which their mean wait says something.
const MIN_TURNS: u64 = 1_000;
/// Mean wait for a turn that is worth a look: the largest slice by default is 2.8 ms, on 8 CPUs or more.
const LONG_WAIT_NS: u64 = 3_000_000;
/// Entries of lists that evidence quotes.
const QUOTED: usize = 8;

pub(crate) fn findings(view: &View<'_>) -> Vec<Finding> {
    let rules: [fn(&View<'_>) -> Option<Finding>; 17] = [
        host_steal,
        clocksource,
        posted_timers,
        nohz_full_unused,
        apicv_off,
        ipiv_off,
        ipiv_off_amd,
        ple_off,
        halt_polling_off,
        deep_idle,
        idle_parameter,
        governor,
        lazy_preemption,
        long_turns,
        stacked_vcpus,
        smt_shared,
        l1d_flush,
    ];
    rules.iter().filter_map(|rule| rule(view)).collect()
}

/// A host that is a VM itself waits for CPUs, and all of its guests with it.
fn host_steal(view: &View<'_>) -> Option<Finding> {
    let time = &view.snapshot.cpu_time;
    let total = time.total_ms();
    if view.snapshot.cpu.is_guest == Some(false) || total == 0 {
        return None;
    }
    let per_mille = time.steal_ms.saturating_mul(1000) / total;
    (per_mille >= STEAL_PER_MILLE).then(|| {
        let title = "This host is a VM, and the hypervisor below takes time from all guests";
        Finding::new("host_steal", Urgency::Costs, title)
            .shown_by(format!(
                "steal {} ms of {total} ms since boot: {}.{} %",
                time.steal_ms,
                per_mille / 10,
                per_mille % 10
            ))
            .advising("Give the host CPUs of its own on the machine below; no setting here helps")
    })
}

/// `gtod_is_based_on_tsc` of arch/x86/kvm/x86.c: KVM has a master clock on the TSC and on the TSC page
/// of Hyper-V alone. Without one the guests' kvmclock is not stable, and reads of it are system calls.
fn clocksource(view: &View<'_>) -> Option<Finding> {
    let clocksource = &view.snapshot.clocksource;
    let current = clocksource.current.as_deref()?;
    let is_x86 = view.snapshot.identity.architecture.as_deref() == Some("x86_64");
    if !is_x86 || MASTER_CLOCKS.contains(&current) {
        return None;
    }
    let has_tsc = clocksource.available.iter().any(|name| name == "tsc");
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let change = Change::command(
        "the host's clocksource is tsc",
        format!("echo tsc > {path}"),
        format!("echo {current} > {path}"),
    );
    let title = format!("The host's clocksource is {current}: KVM has no master clock for guests");
    let available = clocksource.available.join(" ");
    let finding = Finding::new("clocksource", Urgency::Likely, title)
        .shown_by(format!("current {current}, available {available}"))
        .shown_by("guests on kvmclock read the time by a system call")
        .advising(match (has_tsc, current) {
            (true, _) => "Find in dmesg why the kernel chose another one; then change to the TSC",
            (false, "kvm-clock") => {
                "Give this VM an invariant TSC on the machine below (QEMU: -cpu MODEL,+invtsc)"
            }
            (false, _) => {
                "The kernel found the TSC unstable: look for `clocksource` and `TSC` in dmesg, and \
                 for firmware that changes it"
            }
        });
    Some(finding.changing(has_tsc.then_some(change)))
}

/// `kvm_can_post_timer_interrupt` of arch/x86/kvm/lapic.c: the parameter, APICv, and a VM that runs HLT
/// or MWAIT itself.
fn posted_timers(view: &View<'_>) -> Option<Finding> {
    let value = view.parameter("kvm", "pi_inject_timer")?;
    let is_on = value.trim() == "1";
    let full = view.snapshot.cpu.nohz_full.as_deref().unwrap_or_default();
    let posting = view
        .snapshot
        .vms
        .iter()
        .filter(|vm| vm.cpu_pm == Some(true));
    let posting = posting.count();
    let evidence =
        format!("pi_inject_timer {value}, nohz_full {full:?}, VMs with cpu-pm: {posting}");
    let has_apicv = view.has_apicv();
    if !is_on && posting > 0 && has_apicv == Some(true) {
        let title = "Timers of guests that idle by themselves cost exits: they are not posted";
        return Some(
            Finding::new("timers_not_posted", Urgency::Likely, title)
                .shown_by(evidence)
                .advising("Post them; with nohz_full= their expiries can move to housekeeping CPUs")
                .changing(Change::knob(view.vendor, "kvm.pi_inject_timer", "1", value)),
        );
    }
    let posts_few = view.kernel().is_some_and(|release| release >= POSTS_FEW);
    if is_on && posting == 0 && posts_few && !view.snapshot.vms.is_empty() {
        let title = "Timers may be posted, but no VM is known to have what KVM asks for";
        return Some(
            Finding::new("posted_timers_idle", Urgency::Depends, title)
                .shown_by(evidence)
                .advising(
                    "KVM posts timers of VMs that run HLT or MWAIT without exits \
                     (-overcommit cpu-pm=on): use that where a vCPU has a CPU of its own",
                ),
        );
    }
    None
}

/// CPUs without ticks that no vCPU is bound to.
fn nohz_full_unused(view: &View<'_>) -> Option<Finding> {
    let used: BTreeSet<u32> = view.pinned.keys().copied().collect();
    let reserved = |cpu: &&u32| view.nohz_full.contains(*cpu) || view.isolated.contains(*cpu);
    let free: BTreeSet<u32> = view
        .online
        .iter()
        .filter(reserved)
        .filter(|cpu| !used.contains(cpu))
        .copied()
        .collect();
    if free.is_empty() || view.vcpus == 0 {
        return None;
    }
    let title = "CPUs are kept free of other work, and no vCPU is bound to them";
    let list = cpulist::format(&free);
    Some(
        Finding::new("isolated_unused", Urgency::Likely, title)
            .shown_by(format!(
                "isolated or in nohz_full, without a bound vCPU: {list}"
            ))
            .shown_by(format!(
                "isolated {}, nohz_full {}",
                cpulist::format(&view.isolated),
                cpulist::format(&view.nohz_full)
            ))
            .advising("Bind one vCPU to each, or boot without isolcpus= and nohz_full= for them"),
    )
}

fn apicv_off(view: &View<'_>) -> Option<Finding> {
    let title = "Each interrupt of a guest costs an exit: APIC virtualization is off";
    let finding = Finding::new("apicv_off", Urgency::Likely, title);
    let has_apicv = view.has_vmx_flag("apicv") || view.has_vmx_flag("posted_intr");
    if view.is_on("kvm_intel", "enable_apicv") == Some(false) && has_apicv {
        return Some(
            finding
                .shown_by("kvm_intel.enable_apicv N; the CPUs have APICv and posted interrupts")
                .advising("Stop all VMs, and load kvm_intel with it")
                .changing(Change::knob(view.vendor, "kvm.enable_apicv", "Y", "N")),
        );
    }
    if view.is_on("kvm_amd", "avic") == Some(false) && view.has_flag("avic") {
        let note = "guests in x2APIC mode have all of it with the CPU flag x2avic alone";
        let change = Change::knob(view.vendor, "kvm.enable_apicv", "Y", "N");
        return Some(
            finding
                .shown_by("kvm_amd.avic N; the CPUs have AVIC")
                .advising("Stop all VMs, and load kvm_amd with it")
                .changing(change.map(|change| change.noting(note))),
        );
    }
    None
}

fn ipiv_off(view: &View<'_>) -> Option<Finding> {
    let is_off = view.is_on("kvm_intel", "enable_ipiv") == Some(false);
    (is_off && view.has_vmx_flag("ipi_virt")).then(|| {
        let title = "Each IPI of a guest costs an exit: IPI virtualization is off";
        Finding::new("ipiv_off", Urgency::Likely, title)
            .shown_by("kvm_intel.enable_ipiv N; the CPUs have IPI virtualization")
            .advising("Stop all VMs, and load kvm_intel with it")
            .changing(Change::knob(view.vendor, "kvm.enable_ipiv", "Y", "N"))
    })
}

/// `kvm_amd.enable_ipiv` is there from Linux 6.17 on. KVM clears it on family 17h for erratum 1235.
fn ipiv_off_amd(view: &View<'_>) -> Option<Finding> {
    let is_off = view.is_on("kvm_amd", "enable_ipiv") == Some(false);
    let has_avic = view.is_on("kvm_amd", "avic") == Some(true);
    (is_off && has_avic).then(|| {
        let title = "Each IPI of a guest costs an exit: AVIC leaves IPIs to KVM";
        Finding::new("ipiv_off_amd", Urgency::Depends, title)
            .shown_by("kvm_amd.avic Y, kvm_amd.enable_ipiv N")
            .advising(
                "On family 17h KVM itself switches it off for an erratum; on other CPUs load \
                 kvm_amd with enable_ipiv=1",
            )
    })
}

/// A spinning vCPU leaves the guest only by PLE, and only then is there a directed yield.
fn ple_off(view: &View<'_>) -> Option<Finding> {
    let intel = view.parameter("kvm_intel", "ple_gap");
    let amd = view.parameter("kvm_amd", "pause_filter_count");
    let is_off = intel.or(amd)? == "0";
    (is_off && view.is_overcommitted()).then(|| {
        let title =
            "Spinning vCPUs keep their CPU: pause-loop exiting is off while CPUs are shared";
        Finding::new("ple_off", Urgency::Likely, title)
            .shown_by(format!(
                "{} vCPUs on {} CPUs",
                view.vcpus,
                view.online.len()
            ))
            .shown_by(match intel {
                Some(gap) => format!("kvm_intel.ple_gap {gap}"),
                None => "kvm_amd.pause_filter_count 0".to_owned(),
            })
            .advising("Stop all VMs, and load the module with pause-loop exiting")
            .changing(match intel {
                Some(gap) => Change::knob(view.vendor, "kvm.ple_gap", "128", gap),
                None => Some(pause_filter(3_000, 0)),
            })
    })
}

/// Loads `kvm_amd` anew: 0 PAUSEs switch its exits off, and are no window of the knob's.
fn pause_filter(count: u32, former: u32) -> Change {
    let load = |count| format!("modprobe -r kvm_amd; modprobe kvm_amd pause_filter_count={count}");
    let change = format!("kvm_amd.pause_filter_count={count}");
    Change::command(change, load(count), load(former)).reloading_module()
}

fn halt_polling_off(view: &View<'_>) -> Option<Finding> {
    let value = view.parameter("kvm", "halt_poll_ns")?;
    (value == "0" && !view.is_overcommitted() && view.vcpus > 0).then(|| {
        let title = "Halted vCPUs sleep at once: each wakeup pays for a switch and an idle state";
        Finding::new("halt_polling_off", Urgency::Depends, title)
            .shown_by(format!(
                "halt_poll_ns 0, {} vCPUs on {} CPUs",
                view.vcpus,
                view.online.len()
            ))
            .advising(
                "Where latency matters and CPUs are free, poll; a recording and `stealtime whatif \
                 --set kvm.halt_poll_ns=200us` show the cost",
            )
            .changing(Change::knob(
                view.vendor,
                "kvm.halt_poll_ns",
                "200000",
                value,
            ))
    })
}

fn deep_idle(view: &View<'_>) -> Option<Finding> {
    let states = view.snapshot.cpu.idle.states.iter();
    let deep = states.filter(|state| {
        state
            .exit_latency_us
            .is_some_and(|latency_us| latency_us >= DEEP_US)
    });
    let enabled: Vec<(&IdleState, BTreeSet<u32>)> = deep
        .map(|state| {
            let disabled = cpus_in(Some(&state.disabled_cpus));
            let cpus = cpus_in(Some(&state.cpus));
            (state, cpus.difference(&disabled).copied().collect())
        })
        .filter(|(_, cpus): &(_, BTreeSet<u32>)| !cpus.is_empty())
        .collect();
    if enabled.is_empty() || view.vcpus == 0 {
        return None;
    }
    let name = |state: &IdleState| {
        let latency_us = state.exit_latency_us.unwrap_or(0);
        format!("{} {latency_us} us", state.name)
    };
    let names: Vec<String> = enabled.iter().map(|(state, _)| name(state)).collect();
    let title = "Wakeups of vCPUs on idle CPUs wait until these leave a deep idle state";
    let mut finding = Finding::new("deep_idle", Urgency::Depends, title)
        .shown_by(format!(
            "states with their exit latency: {}",
            names.join(", ")
        ))
        .advising(
            "Where wakeup latency matters more than energy, switch these states off; the table \
             `latency` of `stealtime analyze` has the wakeups",
        );
    for (state, cpus) in &enabled {
        let file = format!("cpuidle/state{}/disable", state.index);
        finding = finding.changing(Some(Change::command(
            format!("idle state {} off", state.name),
            write_each_cpu(cpus, &file, "1"),
            write_each_cpu(cpus, &file, "0"),
        )));
    }
    Some(finding)
}

/// `idle=` of the command line: with `halt` and `nomwait` a CPU is woken by an IPI instead of a store.
fn idle_parameter(view: &View<'_>) -> Option<Finding> {
    let line = view.snapshot.kernel.command_line.as_deref()?;
    let mut words = line.split_whitespace();
    let value = words.find_map(|word| word.strip_prefix("idle="))?;
    let title = match value {
        "poll" => "Idle CPUs poll: SMT siblings have less of their core, and turbo less headroom",
        "halt" | "nomwait" => "Idle CPUs wait in HLT, and each wakeup of one takes an interrupt",
        _ => return None,
    };
    Some(
        Finding::new("idle_parameter", Urgency::Depends, title)
            .shown_by(format!("kernel command line: idle={value}"))
            .advising("Boot without it, unless it is there for a measured reason"),
    )
}

fn governor(view: &View<'_>) -> Option<Finding> {
    let is_slow = |cpu: &&Cpu| {
        let driver = cpu.frequency_driver.as_deref().unwrap_or_default();
        cpu.governor.as_deref() == Some("powersave") && !ADAPTIVE_DRIVERS.contains(&driver)
    };
    let cpus: BTreeSet<u32> = view
        .snapshot
        .cpu
        .cpus
        .iter()
        .filter(is_slow)
        .map(|cpu| cpu.cpu)
        .collect();
    (!cpus.is_empty()).then(|| {
        let title = "CPUs stay at their lowest frequency";
        let set = |governor| write_each_cpu(&cpus, "cpufreq/scaling_governor", governor);
        let list = cpulist::format(&cpus);
        Finding::new("lowest_frequency", Urgency::Likely, title)
            .shown_by(format!("governor powersave on CPUs {list}"))
            .advising("Use schedutil or performance")
            .changing(Some(Change::command(
                "governor schedutil",
                set("schedutil"),
                set("powersave"),
            )))
    })
}

/// Lazy preemption (Linux 6.13). A request to reschedule within the fair class waits for the way out of
/// the kernel, and the tick enforces it. A vCPU without exits runs until the tick.
fn lazy_preemption(view: &View<'_>) -> Option<Finding> {
    let preempt = &view.snapshot.kernel.preempt;
    if preempt.mode.as_deref() != Some("lazy") || view.vcpus == 0 {
        return None;
    }
    let tick = view.snapshot.kernel.hz.map_or(String::new(), |hz| {
        format!("; a tick is {:.1} ms", 1000.0 / f64::from(hz.max(1)))
    });
    let can_change = preempt.choices.iter().any(|mode| mode == "full");
    let title = "Woken tasks wait until the vCPU before them leaves the guest, or for the tick";
    Some(
        Finding::new("lazy_preemption", Urgency::Depends, title)
            .shown_by(format!("preemption lazy{tick}"))
            .advising(
                "Where wakeup latency matters, compare: `stealtime whatif RECORDING --set \
                 sched.preempt=full`",
            )
            .changing(
                can_change
                    .then(|| Change::knob(view.vendor, "sched.preempt", "full", "lazy"))
                    .flatten(),
            ),
    )
}

/// How long vCPUs wait for each of their turns, against the slice and the tick that end it.
fn long_turns(view: &View<'_>) -> Option<Finding> {
    let vcpus = || view.snapshot.vms.iter().flat_map(|vm| vm.vcpus());
    let sum =
        |value: fn(&Thread) -> Option<u64>| vcpus().filter_map(value).fold(0, u64::saturating_add);
    let turns = sum(|vcpu| vcpu.timeslices);
    let wait_ns = sum(|vcpu| vcpu.wait_ns) / turns.max(1);
    if turns < MIN_TURNS || wait_ns < LONG_WAIT_NS {
        return None;
    }
    let slice = view.snapshot.sched.values.get("base_slice_ns");
    let title = "vCPUs wait long for each turn on a CPU";
    let ms = wait_ns as f64 / 1e6;
    let mut finding = Finding::new("long_turns", Urgency::Costs, title).shown_by(format!(
        "{ms:.1} ms on average before each of {turns} turns"
    ));
    if let Some(slice) = slice {
        finding = finding.shown_by(format!("base_slice_ns {slice}"));
    }
    if let Some(hz) = view.snapshot.kernel.hz {
        finding = finding.shown_by(format!(
            "{hz} Hz: without the feature HRTICK a slice ends at a tick"
        ));
    }
    Some(finding.advising(
        "Record the host; `stealtime whatif RECORDING --auto` tries slices, preemption and weights",
    ))
}

/// Several vCPUs that are bound to one CPU each wait for the other.
fn stacked_vcpus(view: &View<'_>) -> Option<Finding> {
    let stacked = view.pinned.iter().filter(|(_, pins)| pins.len() > 1);
    let stacked: Vec<_> = stacked.collect();
    if stacked.is_empty() {
        return None;
    }
    let names: BTreeSet<&str> = stacked
        .iter()
        .flat_map(|(_, pins)| pins.iter().map(|pin| pin.vm.name.as_str()))
        .collect();
    let title = "Several vCPUs are bound to one CPU, and wait for each other";
    let mut finding = Finding::new("stacked_vcpus", Urgency::Likely, title);
    finding.vms = names.into_iter().map(str::to_owned).collect();
    for (cpu, pins) in stacked.iter().take(QUOTED) {
        let labels: Vec<String> = pins.iter().take(QUOTED).map(|pin| pin.label()).collect();
        let count = pins.len();
        finding
            .evidence
            .push(format!("CPU {cpu} has {count}: {}", labels.join(", ")));
    }
    let free = view
        .online
        .iter()
        .filter(|cpu| !view.pinned.contains_key(cpu))
        .copied();
    let free: BTreeSet<u32> = free.collect();
    Some(finding.advising(match free.is_empty() {
        true => {
            "Let the scheduler place them (bind each to all of these CPUs), or use fewer".to_owned()
        }
        false => format!(
            "Bind them to CPUs without a bound vCPU: {}",
            cpulist::format(&free)
        ),
    }))
}

/// Threads of a core share its units and its caches: another VM's work slows a guest without steal.
fn smt_shared(view: &View<'_>) -> Option<Finding> {
    let mut shared = Vec::new();
    let mut names = BTreeSet::new();
    let mut cores = BTreeSet::new();
    for cpu in &view.snapshot.cpu.cpus {
        let siblings = cpus_in(cpu.siblings.as_deref());
        if siblings.len() < 2 || !cores.insert(siblings.clone()) {
            continue;
        }
        let pins = siblings
            .iter()
            .filter_map(|cpu| view.pinned.get(cpu))
            .flatten();
        let vms: BTreeSet<&str> = pins.map(|pin| pin.vm.name.as_str()).collect();
        if vms.len() > 1 {
            let vms_here: Vec<&str> = vms.iter().copied().collect();
            let list = cpulist::format(&siblings);
            shared.push(format!("CPUs {list} of one core: {}", vms_here.join(", ")));
            names.extend(vms);
        }
    }
    if shared.is_empty() {
        return None;
    }
    let title = "VMs share cores: vCPUs of several are bound to SMT siblings";
    let mut finding = Finding::new("smt_shared", Urgency::Depends, title);
    finding.vms = names.into_iter().map(str::to_owned).collect();
    finding.evidence = shared.into_iter().take(QUOTED).collect();
    Some(finding.advising("Bind both siblings of a core to one VM"))
}

fn l1d_flush(view: &View<'_>) -> Option<Finding> {
    let value = view.parameter("kvm_intel", "vmentry_l1d_flush")?;
    (value == "always").then(|| {
        let title = "Each VM entry empties the L1 data cache";
        Finding::new("l1d_flush", Urgency::Likely, title)
            .shown_by("kvm_intel.vmentry_l1d_flush always")
            .advising(
                "cond is the kernel's default, and empties it only after code that may be misused; \
                 decide by how far the guests are trusted",
            )
            .changing(Change::knob(
                view.vendor,
                "kvm.vmentry_l1d_flush",
                "cond",
                value,
            ))
    })
}
