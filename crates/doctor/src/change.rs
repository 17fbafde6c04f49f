//! Commands that make a change and undo it: on this host, over its reboots, and by a VM's manager.

use std::collections::BTreeSet;

use serde::Serialize;
use stealtime_host::{Snapshot, cpulist};
use stealtime_lab::knobs::{
    self, Acts, HostSetting, Knob, Location, Step, StepTarget, Steps, Value, Vendor,
};

use crate::manager::ByManager;

/// A change of the host or of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The knob with its value, or the change in words.
    pub change: String,
    /// Commands and other steps, for root; empty if no host can make the change.
    pub set: Vec<String>,
    /// Those that restore the former value.
    pub undo: Vec<String>,
    /// From when on the change acts; `None` if no host can make it.
    pub acts: Option<String>,
    /// Whether another kernel must be booted for it.
    pub needs_kernel: bool,
    /// Conditions and equivalents, or why no host can make the change; empty for none.
    pub note: String,
    /// What keeps it over reboots of the host; empty where nothing is known.
    pub keep: Vec<String>,
    /// What undoes that.
    pub forget: Vec<String>,
    /// The same change by the managers of the VMs.
    pub managers: Vec<ByManager>,
}

impl Change {
    /// A command that the table of knobs lacks.
    pub(crate) fn command(
        change: impl Into<String>,
        set: impl Into<String>,
        undo: impl Into<String>,
    ) -> Self {
        Self {
            change: change.into(),
            acts: Some(Acts::AtOnce.to_string()),
            ..Self::default()
        }
        .with_steps(Steps {
            set: vec![set.into()],
            undo: vec![undo.into()],
        })
    }

    /// The change of a knob by its steps in the table.
    #[must_use]
    pub fn by_step(change: String, step: &Step, steps: Steps) -> Self {
        Self {
            change,
            acts: Some(step.acts.to_string()),
            needs_kernel: step.needs_kernel(),
            note: step.note_for(&steps).to_owned(),
            ..Self::default()
        }
        .with_steps(steps)
    }

    /// A change that only the simulated host can make.
    #[must_use]
    pub fn simulation_only(change: String, note: String) -> Self {
        Self {
            change,
            note,
            ..Self::default()
        }
    }

    /// A knob of the host. `None` where the value is the former one, where the table has no step, or
    /// where a text is no value of the knob.
    #[must_use]
    pub fn knob(vendor: Vendor, name: &str, value: &str, former: &str) -> Option<Self> {
        let knob = knobs::find(name)?;
        let HostSetting::Step(step) = knob.host else {
            return None;
        };
        let (value, former) = (knob.kind.read(value).ok()?, knob.kind.read(former).ok()?);
        let target = StepTarget {
            vendor,
            ..StepTarget::default()
        };
        let steps = step.fill(&value, &former, &target);
        let differs = value != former && !steps.set.is_empty();
        differs.then(|| Self::by_step(format!("{name}={value}"), &step, steps))
    }

    fn with_steps(self, steps: Steps) -> Self {
        let lasting = steps.set.iter().filter_map(|step| keep(step));
        let (keep, forget) = lasting.unzip();
        Self {
            set: steps.set,
            undo: steps.undo,
            keep,
            forget,
            ..self
        }
    }

    pub(crate) fn noting(self, note: impl Into<String>) -> Self {
        Self {
            note: note.into(),
            ..self
        }
    }

    pub(crate) fn reloading_module(self) -> Self {
        Self {
            acts: Some(Acts::ModuleReload.to_string()),
            ..self
        }
    }

    /// Whether the running host can make it by commands.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        !self.set.is_empty() && !self.needs_kernel
    }
}

/// The vendor of a host's CPUs, by the module of KVM that is loaded.
#[must_use]
pub fn vendor(snapshot: &Snapshot) -> Vendor {
    match snapshot.kvm.modules.contains_key(Vendor::Amd.module()) {
        true => Vendor::Amd,
        false => Vendor::Intel,
    }
}

/// The text of a host's knob as a snapshot has it: that of the file or module parameter which the step
/// of the knob writes. `None` where it has no such file, or the snapshot lacks it.
#[must_use]
pub fn present_text<'s>(snapshot: &'s Snapshot, knob: &Knob) -> Option<&'s str> {
    let HostSetting::Step(step) = knob.host else {
        return None;
    };
    let vendor = vendor(snapshot);
    let mut locations = step.locations().iter();
    let text = match locations.find(|location| location.is_of(vendor))? {
        Location::Parameter { module, name } => snapshot.kvm.modules.get(*module)?.get(*name)?,
        Location::Scheduler("preempt") => snapshot.kernel.preempt.mode.as_ref()?,
        Location::Scheduler(name) => snapshot.sched.values.get(*name)?,
        Location::Sysctl(_) => return None,
    };
    Some(text)
}

/// The same as a value of the knob.
#[must_use]
pub fn present_value(snapshot: &Snapshot, knob: &Knob) -> Option<Value> {
    knob.kind.read(present_text(snapshot, knob)?).ok()
}

/// What keeps a step over reboots, and what undoes that. modprobe.d(5), sysctl.d(5), and tmpfiles.d(5)
/// for files of debugfs and sysfs. Files of control groups and of processes are lost with these.
fn keep(step: &str) -> Option<(String, String)> {
    let in_file = |line: String, folder: &str, name: &str| {
        let file = format!("/etc/{folder}/stealtime-{name}.conf");
        (format!("echo '{line}' > {file}"), format!("rm {file}"))
    };
    let is_word = |text: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./,=".contains(c);
        !text.is_empty() && text.chars().all(plain)
    };
    if let Some((value, path)) = step
        .strip_prefix("echo ")
        .and_then(|rest| rest.split_once(" > "))
    {
        if !is_word(value) || !is_word(path) {
            return None;
        }
        if let Some((module, name)) = path
            .strip_prefix("/sys/module/")
            .and_then(|rest| rest.split_once("/parameters/"))
        {
            let line = format!("options {module} {name}={value}");
            return Some(in_file(line, "modprobe.d", &format!("{module}-{name}")));
        }
        let name = path.rsplit('/').next()?;
        let line = format!("w {path} - - - - {value}");
        let is_kept = path.starts_with("/sys/kernel/") || path.starts_with("/sys/devices/");
        return is_kept.then(|| in_file(line, "tmpfiles.d", name));
    }
    if let Some(setting) = step.strip_prefix("sysctl ") {
        let name = setting.split('=').next()?;
        return Some(in_file(setting.to_owned(), "sysctl.d", name));
    }
    // Of several loads the one with a parameter.
    let mut loads = step
        .split("; ")
        .filter_map(|load| load.strip_prefix("modprobe "));
    let (module, parameter) =
        loads.find_map(|load| load.split_once(' ').filter(|load| load.1.contains('=')))?;
    let name = parameter.split('=').next()?;
    let line = format!("options {module} {parameter}");
    Some(in_file(line, "modprobe.d", &format!("{module}-{name}")))
}

/// A word of a shell: quoted unless it is plain.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Writes a value to a file below the directories of CPUs.
pub(crate) fn write_each_cpu(cpus: &BTreeSet<u32>, file: &str, value: &str) -> String {
    let list = cpulist::format(cpus);
    let words = list.split(',').map(|range| match range.split_once('-') {
        Some((first, end)) => format!("$(seq {first} {end})"),
        None => range.to_owned(),
    });
    let words: Vec<String> = words.collect();
    let path = format!("/sys/devices/system/cpu/cpu$cpu/{file}");
    format!(
        "for cpu in {}; do echo {value} > {path}; done",
        words.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_in_a_shell() {
        assert_eq!(shell_word("db-1"), "db-1");
        assert_eq!(shell_word("a b'c;$(d)"), "'a b'\\''c;$(d)'");
        assert_eq!(shell_word("machine\\x2d1"), "'machine\\x2d1'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn knobs_have_steps_unless_nothing_changes() {
        let change =
            Change::knob(Vendor::Intel, "kvm.halt_poll_ns", "50000", "200000").expect("a change");
        assert_eq!(
            change.set,
            ["echo 50000 > /sys/module/kvm/parameters/halt_poll_ns"]
        );
        assert_eq!(
            change.undo,
            ["echo 200000 > /sys/module/kvm/parameters/halt_poll_ns"]
        );
        assert_eq!(
            Change::knob(Vendor::Intel, "kvm.halt_poll_ns", "200us", "200000"),
            None
        );
        assert_eq!(
            Change::knob(Vendor::Intel, "kvm.yield_order", "scan", "priority"),
            None
        );
        assert_eq!(Change::knob(Vendor::Intel, "no.such", "1", "2"), None);
    }

    #[test]
    fn steps_are_kept_over_reboots() {
        let shown = |step: &str| keep(step).map_or(String::new(), |steps| steps.0);
        assert_eq!(
            shown("echo 50000 > /sys/module/kvm/parameters/halt_poll_ns"),
            "echo 'options kvm halt_poll_ns=50000' > /etc/modprobe.d/stealtime-kvm-halt_poll_ns.conf"
        );
        assert_eq!(
            shown(
                "modprobe -r kvm_intel kvm; modprobe kvm lapic_timer_advance=N; modprobe kvm_intel"
            ),
            "echo 'options kvm lapic_timer_advance=N' > /etc/modprobe.d/stealtime-kvm-lapic_timer_advance.conf"
        );
        assert_eq!(
            shown("echo 3000000 > /sys/kernel/debug/sched/base_slice_ns"),
            "echo 'w /sys/kernel/debug/sched/base_slice_ns - - - - 3000000' > \
             /etc/tmpfiles.d/stealtime-base_slice_ns.conf"
        );
        assert_eq!(
            shown("sysctl kernel.timer_migration=0"),
            "echo 'kernel.timer_migration=0' > /etc/sysctl.d/stealtime-kernel.timer_migration.conf"
        );
        for step in [
            "echo 200 > \"/sys/fs/cgroup$(sed 's,^0::,,' /proc/1/cgroup)/cpu.weight\"",
            "echo 200 > /sys/fs/cgroup/machine.slice/cpu.weight",
            "renice -n 5 -p 1 2",
            "boot a kernel with CONFIG_HZ_250=y",
        ] {
            assert_eq!(keep(step), None, "{step}");
        }
    }

    #[test]
    fn values_are_read_from_a_snapshot() {
        let mut snapshot = Snapshot::default();
        let modules = &mut snapshot.kvm.modules;
        let kvm = modules.entry("kvm".to_owned()).or_default();
        kvm.insert("halt_poll_ns".to_owned(), "200000".to_owned());
        let intel = modules.entry("kvm_intel".to_owned()).or_default();
        intel.insert("ple_gap".to_owned(), "128".to_owned());
        let values = &mut snapshot.sched.values;
        values.insert("base_slice_ns".to_owned(), "2800000".to_owned());
        snapshot.kernel.preempt.mode = Some("full".to_owned());
        let shown = |name: &str| {
            let value = present_value(&snapshot, knobs::find(name).expect(name));
            value.map_or(String::new(), |value| value.to_string())
        };
        assert_eq!(shown("kvm.halt_poll_ns"), "200us");
        assert_eq!(shown("kvm.ple_gap"), "128");
        assert_eq!(shown("sched.base_slice_ns"), "2800us");
        assert_eq!(shown("sched.preempt"), "full");
        for unknown in ["kvm.enable_apicv", "sched.fair", "kernel.timer_migration"] {
            assert_eq!(shown(unknown), "", "{unknown}");
        }
    }

    #[test]
    fn loops_over_cpus() {
        let cpus = BTreeSet::from([0, 1, 2, 5]);
        assert_eq!(
            write_each_cpu(&cpus, "cpuidle/state3/disable", "1"),
            "for cpu in $(seq 0 2) 5; do echo 1 > \
             /sys/devices/system/cpu/cpu$cpu/cpuidle/state3/disable; done"
        );
    }
}
