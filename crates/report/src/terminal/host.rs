//! A snapshot of a host for a terminal.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use stealtime_host::{Cgroup, Cpu, Snapshot, ThreadKind, Vm, cpulist};

use super::grid::{Grid, number, text};
use super::{Screen, Style};
use crate::escape;
use crate::units::{counted, share, wrap};

/// VMs that are shown.
const MOST_VMS: usize = 50;
/// Columns of the labels.
const LABEL: usize = 12;
/// What an unknown value is.
const UNKNOWN: &str = "?";

/// The host, its VMs, and what could not be read.
#[must_use]
pub fn render(snapshot: &Snapshot, style: Style) -> String {
    let mut screen = String::new();
    let name = snapshot.identity.hostname.as_deref().unwrap_or("unnamed");
    let _ = writeln!(
        screen,
        "{}",
        style.bold(&format!("Host {}", escape::terminal(name)))
    );
    for (label, text) in facts(snapshot) {
        fact(label, &text, style, &mut screen);
    }
    vms(snapshot, style, &mut screen);
    missing(snapshot, style, &mut screen);
    screen
}

fn fact(label: &str, text: &str, style: Style, screen: &mut String) {
    let text = escape::terminal(text);
    let lines = wrap(&text, style.width.saturating_sub(LABEL + 2));
    for (index, line) in lines.iter().enumerate() {
        let label = if index == 0 { label } else { "" };
        let label = style.dim(&format!("{label:LABEL$}"));
        let _ = writeln!(screen, "  {label}{line}");
    }
}

fn facts(snapshot: &Snapshot) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("kernel", kernel(snapshot)),
        ("scheduler", scheduler(snapshot)),
        ("KVM", kvm(snapshot)),
        ("CPUs", cpus(snapshot)),
        ("idle", idle(snapshot)),
        ("clock", clock(snapshot)),
        ("cgroups", snapshot.cgroup.version.clone()),
        ("CPU time", cpu_time(snapshot)),
    ];
    facts.retain(|(_, text)| !text.is_empty());
    facts
}

fn known(value: Option<&String>) -> &str {
    value.map_or(UNKNOWN, String::as_str)
}

fn kernel(snapshot: &Snapshot) -> String {
    let kernel = &snapshot.kernel;
    let hz = kernel.hz.map_or(UNKNOWN.to_owned(), |hz| hz.to_string());
    format!(
        "Linux {} {}, {hz} Hz, preemption {}",
        known(kernel.release.as_ref()),
        snapshot
            .identity
            .architecture
            .as_deref()
            .unwrap_or_default(),
        known(kernel.preempt.mode.as_ref()),
    )
}

fn scheduler(snapshot: &Snapshot) -> String {
    let sched = &snapshot.sched;
    let names = [
        "base_slice_ns",
        "min_granularity_ns",
        "wakeup_granularity_ns",
        "migration_cost_ns",
    ];
    let values = names
        .iter()
        .filter_map(|name| Some((*name, sched.values.get(*name)?)));
    let mut parts: Vec<String> = values
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let features = &sched.features;
    if !features.is_empty() {
        let disabled = features.iter().filter(|name| name.starts_with("NO_"));
        let disabled: Vec<&str> = disabled.map(String::as_str).collect();
        parts.push(format!(
            "{} features, {}",
            features.len(),
            disabled.join(" ")
        ));
    }
    if let Some(ops) = &sched.ext_ops {
        parts.push(format!("sched_ext {ops}"));
    }
    match parts.is_empty() {
        true => "settings unknown: debugfs cannot be read".to_owned(),
        false => parts.join(", "),
    }
}

fn kvm(snapshot: &Snapshot) -> String {
    let kvm = &snapshot.kvm;
    if !kvm.device && kvm.modules.is_empty() {
        return "none: no /dev/kvm".to_owned();
    }
    let names = [
        "halt_poll_ns",
        "pi_inject_timer",
        "enable_apicv",
        "enable_ipiv",
        "avic",
        "preemption_timer",
        "ple_gap",
        "ple_window",
        "pause_filter_count",
    ];
    let values = names.iter().filter_map(|name| {
        let value = kvm.modules.values().find_map(|values| values.get(*name))?;
        Some(format!("{name} {value}"))
    });
    let values: Vec<String> = values.collect();
    let modules: Vec<&str> = kvm.modules.keys().map(String::as_str).collect();
    format!("{}: {}", modules.join(", "), values.join(", "))
}

fn cpus(snapshot: &Snapshot) -> String {
    let info = &snapshot.cpu;
    let distinct = |key: fn(&Cpu) -> String| {
        let keys: BTreeSet<String> = info.cpus.iter().map(key).collect();
        keys.len() as u64
    };
    let packages = distinct(|cpu| format!("{:?}", cpu.package));
    let cores = distinct(|cpu| format!("{:?}", cpu.siblings));
    let caches = distinct(|cpu| format!("{:?}", cpu.llc));
    let mut parts = vec![
        format!(
            "{}: {}",
            known(info.online.as_ref()),
            known(info.model.as_ref())
        ),
        counted(packages, "package"),
        counted(cores, "core"),
        counted(caches, "last-level cache"),
        counted(info.nodes.len() as u64, "node"),
    ];
    let lists = [("isolated", &info.isolated), ("nohz_full", &info.nohz_full)];
    for (label, list) in lists {
        if let Some(list) = list.as_deref().filter(|list| !list.is_empty()) {
            parts.push(format!("{label} {list}"));
        }
    }
    if info.smt_active == Some(true) {
        parts.push("SMT".to_owned());
    }
    if info.is_guest == Some(true) {
        parts.push("a VM itself".to_owned());
    }
    let governors: BTreeSet<&str> = info
        .cpus
        .iter()
        .filter_map(|cpu| cpu.governor.as_deref())
        .collect();
    parts.extend(
        governors
            .iter()
            .map(|governor| format!("governor {governor}")),
    );
    parts.join(", ")
}

fn idle(snapshot: &Snapshot) -> String {
    let idle = &snapshot.cpu.idle;
    let states = idle.states.iter().map(|state| {
        let latency = state
            .exit_latency_us
            .map_or(UNKNOWN.to_owned(), |latency| latency.to_string());
        let disabled = match state.disabled_cpus.as_str() {
            "" => String::new(),
            cpus => format!(" (off on {cpus})"),
        };
        format!("{} {latency} us{disabled}", state.name)
    });
    let states: Vec<String> = states.collect();
    let driver = known(idle.driver.as_ref());
    let governor = known(idle.governor.as_ref());
    match states.is_empty() {
        true => format!("driver {driver}, no states"),
        false => format!("{driver}, {governor}: {}", states.join(", ")),
    }
}

fn clock(snapshot: &Snapshot) -> String {
    let clocksource = &snapshot.clocksource;
    let available = clocksource.available.join(", ");
    format!("{} of {available}", known(clocksource.current.as_ref()))
}

fn cpu_time(snapshot: &Snapshot) -> String {
    let time = &snapshot.cpu_time;
    let total = time.total_ms();
    let idle = time.idle_ms + time.iowait_ms;
    format!(
        "since boot: busy {}, guests {}, steal of this host {}",
        share(total.saturating_sub(idle), total),
        share(time.guest_ms + time.guest_nice_ms, total),
        share(time.steal_ms, total),
    )
}

fn vms(snapshot: &Snapshot, style: Style, screen: &mut String) {
    screen.push('\n');
    let count = snapshot.vms.len();
    let _ = writeln!(screen, "{}", style.bold(&counted(count as u64, "VM")));
    if count == 0 {
        screen.push_str("  No process has a KVM virtual machine.\n");
        return;
    }
    let mut grid = Grid::new(&[
        text("VM"),
        text("manager"),
        number("process"),
        number("vCPUs"),
        text("on CPUs"),
        number("weight"),
        number("limit"),
        number("throttled"),
        number("waits"),
    ]);
    for vm in snapshot.vms.iter().take(MOST_VMS) {
        grid.row(row(snapshot, vm));
    }
    let mut table = Screen::new(style);
    grid.render(&mut table);
    screen.push_str(&table.text);
    let mut notes = vec![
        "limit: CPUs of the tightest quota, throttled: periods in which it was used up, \
         waits: ready without a CPU, of the vCPUs' time running or ready."
            .to_owned(),
    ];
    if count > MOST_VMS {
        notes.push(format!(
            "{} more VMs: --format json has all.",
            count - MOST_VMS
        ));
    }
    for line in wrap(&notes.join(" "), style.width.saturating_sub(2)) {
        let _ = writeln!(screen, "  {}", style.dim(&line));
    }
}

fn row(snapshot: &Snapshot, vm: &Vm) -> [String; 9] {
    let manager = serde_json::to_value(vm.manager);
    let manager = manager
        .ok()
        .and_then(|value| Some(value.as_str()?.to_owned()));
    let cpus = vm
        .vcpus()
        .filter_map(|vcpu| cpulist::parse(vcpu.affinity.as_deref()?));
    let cpus: BTreeSet<u32> = cpus.flatten().collect();
    let group = vm.whole_group().and_then(|path| snapshot.group(path));
    let weight = group.and_then(|group| group.weight.or(group.shares));
    let paths = vm
        .threads
        .iter()
        .filter(|thread| thread.kind == ThreadKind::Vcpu);
    let path = paths.filter_map(|thread| thread.cgroup.as_deref()).next();
    let path = path.or(vm.cgroup.as_deref()).unwrap_or_default();
    let limits = snapshot
        .groups_above(path)
        .filter(|group| group.limit_cpus().is_some());
    let tightest = limits.min_by(|a, b| {
        let limit = |group: &Cgroup| group.limit_cpus().unwrap_or(f64::INFINITY);
        limit(a).total_cmp(&limit(b))
    });
    let sum = |value: fn(&stealtime_host::Thread) -> Option<u64>| -> u64 {
        vm.vcpus().filter_map(value).fold(0, u64::saturating_add)
    };
    let (run, wait) = (sum(|vcpu| vcpu.run_ns), sum(|vcpu| vcpu.wait_ns));
    [
        vm.name.clone(),
        manager.unwrap_or_default(),
        vm.process.pid.to_string(),
        vm.vcpus().count().to_string(),
        cpulist::format(&cpus),
        weight.map_or("-".to_owned(), |weight| weight.to_string()),
        tightest
            .and_then(Cgroup::limit_cpus)
            .map_or("-".to_owned(), |cpus| format!("{cpus:.2}")),
        tightest.map_or("-".to_owned(), |group| {
            share(
                group.throttled_periods.unwrap_or(0),
                group.periods.unwrap_or(0),
            )
        }),
        share(wait, run.saturating_add(wait)),
    ]
}

fn missing(snapshot: &Snapshot, style: Style, screen: &mut String) {
    if snapshot.missing.is_empty() {
        return;
    }
    let _ = writeln!(screen, "\n{}", style.bold("Not read"));
    for missing in &snapshot.missing {
        let times = match missing.times {
            0 | 1 => String::new(),
            times => format!(" ({} in all)", counted(times, "file")),
        };
        let text = format!("{}: {}{times}", missing.what, missing.why);
        for line in wrap(&escape::terminal(&text), style.width.saturating_sub(2)) {
            let _ = writeln!(screen, "  {line}");
        }
    }
}
