//! Changes of a VM by its manager. Each keeps limits, weights and pins in a place of its own. A file of
//! the host that is written directly has the former value again when the VM starts anew.

use serde::Serialize;
use stealtime_host::{Cgroup, Manager, Snapshot, Vm};
use stealtime_lab::knobs::Acts;

use crate::change::{Change, shell_word};

/// The period that a limit in CPUs stands for.
const PERIOD_US: u64 = 100_000;

/// A change by the manager of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ByManager {
    /// The manager.
    pub manager: Manager,
    /// Commands. Words in capitals are names that no snapshot has.
    pub set: Vec<String>,
    /// Commands that undo it.
    pub undo: Vec<String>,
    /// From when on it acts.
    pub acts: String,
    /// Conditions; empty for none.
    pub note: String,
}

impl ByManager {
    pub(crate) fn acts_at_once(&self) -> bool {
        self.acts == Acts::AtOnce.to_string()
    }
}

/// A CPU limit in µs for each period; `None` is no limit.
pub type Quota = Option<(u64, u64)>;

/// A setting of a VM with its value and the former one.
#[derive(Clone, Copy, Debug)]
pub enum VmSetting<'t> {
    /// `cpu.max` of the whole VM.
    Limit {
        /// The limit.
        quota: Quota,
        /// The former one.
        former: Quota,
    },
    /// `cpu.max` of each vCPU.
    VcpuLimit {
        /// The limit.
        quota: Quota,
        /// The former one.
        former: Quota,
    },
    /// `cpu.weight`
    Weight {
        /// The weight.
        weight: u32,
        /// The former one.
        former: u32,
    },
    /// CPUs of a vCPU.
    Vcpu {
        /// Number of the vCPU.
        vcpu: u32,
        /// CPUs.
        cpus: &'t str,
        /// The former ones.
        former: &'t str,
    },
    /// CPUs of the device model.
    Emulator {
        /// CPUs.
        cpus: &'t str,
        /// The former ones.
        former: &'t str,
    },
}

/// The setting by the VM's manager; `None` where nothing but files of the host keeps it.
#[must_use]
pub fn by_manager(vm: &Vm, setting: VmSetting<'_>) -> Option<ByManager> {
    let pair = |command: &dyn Fn(bool) -> Option<String>| Some((command(false)?, command(true)?));
    let ((set, undo), acts, note) = match vm.manager {
        Manager::Libvirt => (
            pair(&|is_undo| Some(virsh(vm, setting, is_undo)))?,
            Acts::AtOnce,
            "--config instead of --live keeps it over restarts of the VM",
        ),
        Manager::Openstack => (
            pair(&|is_undo| flavor(setting, is_undo))?,
            Acts::VmRestart,
            "FLAVOR is the server's flavor; it acts when the server is resized to it. virsh on this \
             host acts at once, and is undone by a hard reboot",
        ),
        Manager::Proxmox => (pair(&|is_undo| qm(vm, setting, is_undo))?, Acts::AtOnce, ""),
        Manager::Kubevirt => (
            pair(&|is_undo| kubevirt(vm, setting, is_undo))?,
            Acts::VmRestart,
            "virtctl restart NAME starts it anew",
        ),
        Manager::Systemd => (
            pair(&|is_undo| systemd(vm, setting, is_undo))?,
            Acts::AtOnce,
            "without --runtime it stays over reboots",
        ),
        Manager::Firecracker => (
            pair(&|is_undo| jailer(setting, is_undo))?,
            Acts::VmRestart,
            "with the jailer",
        ),
        Manager::Kata | Manager::CloudHypervisor | Manager::Qemu | Manager::Process => return None,
    };
    Some(ByManager {
        manager: vm.manager,
        set: vec![set],
        undo: vec![undo],
        acts: acts.to_string(),
        note: note.to_owned(),
    })
}

fn chosen<T>(is_undo: bool, value: T, former: T) -> T {
    if is_undo { former } else { value }
}

fn id(vm: &Vm) -> String {
    shell_word(vm.id.as_deref().unwrap_or(&vm.name))
}

fn virsh(vm: &Vm, setting: VmSetting<'_>, is_undo: bool) -> String {
    let id = id(vm);
    match setting {
        VmSetting::Limit { quota, former } => match chosen(is_undo, quota, former) {
            Some((quota, period)) => {
                format!("virsh schedinfo {id} --live global_period={period} global_quota={quota}")
            }
            None => format!("virsh schedinfo {id} --live global_quota=-1"),
        },
        VmSetting::VcpuLimit { quota, former } => match chosen(is_undo, quota, former) {
            Some((quota, period)) => {
                format!("virsh schedinfo {id} --live vcpu_period={period} vcpu_quota={quota}")
            }
            None => format!("virsh schedinfo {id} --live vcpu_quota=-1"),
        },
        VmSetting::Weight { weight, former } => {
            format!(
                "virsh schedinfo {id} --live cpu_shares={}",
                chosen(is_undo, weight, former)
            )
        }
        VmSetting::Vcpu { vcpu, cpus, former } => {
            format!(
                "virsh vcpupin {id} {vcpu} {} --live",
                chosen(is_undo, cpus, former)
            )
        }
        VmSetting::Emulator { cpus, former } => {
            format!(
                "virsh emulatorpin {id} {} --live",
                chosen(is_undo, cpus, former)
            )
        }
    }
}

/// Nova's extra specs. Its quota is that of each vCPU.
fn flavor(setting: VmSetting<'_>, is_undo: bool) -> Option<String> {
    let set = |properties: &str| Some(format!("openstack flavor set FLAVOR {properties}"));
    match setting {
        // The quota of a whole VM has no extra spec.
        VmSetting::Limit { .. } => None,
        VmSetting::VcpuLimit { quota, former } => match chosen(is_undo, quota, former) {
            Some((quota, period)) => set(&format!(
                "--property quota:cpu_quota={quota} --property quota:cpu_period={period}"
            )),
            None => Some("openstack flavor unset FLAVOR --property quota:cpu_quota".to_owned()),
        },
        VmSetting::Weight { weight, former } => {
            let shares = chosen(is_undo, weight, former);
            set(&format!("--property quota:cpu_shares={shares}"))
        }
        VmSetting::Vcpu { .. } => set(match is_undo {
            false => "--property hw:cpu_policy=dedicated",
            true => "--property hw:cpu_policy=shared",
        }),
        VmSetting::Emulator { .. } => match is_undo {
            false => set("--property hw:emulator_threads_policy=share"),
            true => Some(
                "openstack flavor unset FLAVOR --property hw:emulator_threads_policy".to_owned(),
            ),
        },
    }
}

fn qm(vm: &Vm, setting: VmSetting<'_>, is_undo: bool) -> Option<String> {
    let option = match setting {
        VmSetting::Limit { quota, former } => {
            let limit = chosen(is_undo, quota, former);
            let cpus = limit.map_or(0.0, |(quota, period)| quota as f64 / period.max(1) as f64);
            format!("--cpulimit {cpus}")
        }
        VmSetting::Weight { weight, former } => {
            format!("--cpuunits {}", chosen(is_undo, weight, former))
        }
        // Proxmox limits and binds a VM as a whole.
        VmSetting::VcpuLimit { .. } | VmSetting::Vcpu { .. } | VmSetting::Emulator { .. } => {
            return None;
        }
    };
    Some(format!("qm set {} {option}", id(vm)))
}

fn kubevirt(vm: &Vm, setting: VmSetting<'_>, is_undo: bool) -> Option<String> {
    let domain = match setting {
        VmSetting::Limit { quota, former } => {
            let limit = match chosen(is_undo, quota, former) {
                Some((quota, period)) => {
                    format!("\"{}m\"", quota.saturating_mul(1000) / period.max(1))
                }
                None => "null".to_owned(),
            };
            format!("\"resources\":{{\"limits\":{{\"cpu\":{limit}}}}}")
        }
        // A weight follows from the pod's request; the rule differs by version.
        VmSetting::Weight { .. } | VmSetting::VcpuLimit { .. } => return None,
        VmSetting::Vcpu { .. } => format!("\"cpu\":{{\"dedicatedCpuPlacement\":{}}}", !is_undo),
        VmSetting::Emulator { .. } => format!("\"cpu\":{{\"isolateEmulatorThread\":{}}}", !is_undo),
    };
    let namespace = vm.namespace.as_deref().map_or(String::new(), |namespace| {
        format!(" -n {}", shell_word(namespace))
    });
    let name = shell_word(&vm.name);
    let patch = format!("{{\"spec\":{{\"template\":{{\"spec\":{{\"domain\":{{{domain}}}}}}}}}}}");
    Some(format!(
        "kubectl patch vm {name}{namespace} --type merge -p '{patch}'"
    ))
}

fn systemd(vm: &Vm, setting: VmSetting<'_>, is_undo: bool) -> Option<String> {
    let property = match setting {
        VmSetting::Limit { quota, former } => match chosen(is_undo, quota, former) {
            Some((quota, period)) => {
                let percent = quota.saturating_mul(100) / period.max(1);
                let default = period == PERIOD_US;
                let period_ms = period / 1000;
                let period = if default {
                    String::new()
                } else {
                    format!(" CPUQuotaPeriodSec={period_ms}ms")
                };
                format!("CPUQuota={percent}%{period}")
            }
            None => "CPUQuota=".to_owned(),
        },
        VmSetting::Weight { weight, former } => {
            format!("CPUWeight={}", chosen(is_undo, weight, former))
        }
        VmSetting::VcpuLimit { .. } | VmSetting::Vcpu { .. } | VmSetting::Emulator { .. } => {
            return None;
        }
    };
    Some(format!(
        "systemctl set-property --runtime {} {property}",
        id(vm)
    ))
}

fn jailer(setting: VmSetting<'_>, is_undo: bool) -> Option<String> {
    let file = match setting {
        VmSetting::Limit { quota, former } => match chosen(is_undo, quota, former) {
            Some((quota, period)) => format!("cpu.max='{quota} {period}'"),
            None => "cpu.max=max".to_owned(),
        },
        VmSetting::Weight { weight, former } => {
            format!("cpu.weight={}", chosen(is_undo, weight, former))
        }
        VmSetting::VcpuLimit { .. } | VmSetting::Vcpu { .. } | VmSetting::Emulator { .. } => {
            return None;
        }
    };
    Some(format!("jailer option: --cgroup {file}"))
}

/// The files of a control group with a VM's weight and limit.
#[derive(Clone, Copy, Debug)]
pub struct GroupFile<'t> {
    mount: &'t str,
    path: &'t str,
    is_v2: bool,
}

impl<'t> GroupFile<'t> {
    /// Those of a group of a snapshot.
    #[must_use]
    pub fn new(snapshot: &'t Snapshot, group: &'t Cgroup) -> Self {
        let mount = snapshot.cgroup.cpu_mount.as_deref();
        Self {
            mount: mount.unwrap_or("/sys/fs/cgroup"),
            path: &group.path,
            is_v2: group.hierarchy == "v2",
        }
    }

    fn write(&self, file: &str, value: &str) -> String {
        let file = shell_word(&format!("{}{}/{file}", self.mount, self.path));
        format!("echo {value} > {file}")
    }

    /// Writes a limit.
    #[must_use]
    pub fn limit(&self, quota: Quota) -> String {
        match (self.is_v2, quota) {
            (true, None) => self.write("cpu.max", "max"),
            (true, Some((quota, period))) => self.write("cpu.max", &format!("{quota} {period}")),
            (false, None) => self.write("cpu.cfs_quota_us", "-1"),
            (false, Some((quota, period))) => {
                let period = self.write("cpu.cfs_period_us", &period.to_string());
                format!(
                    "{period}; {}",
                    self.write("cpu.cfs_quota_us", &quota.to_string())
                )
            }
        }
    }

    /// Writes a weight. The defaults are 100 in v2, and 1024 in v1.
    #[must_use]
    pub fn weight(&self, weight: u32) -> String {
        match self.is_v2 {
            true => self.write("cpu.weight", &weight.to_string()),
            false => {
                let shares = (u64::from(weight) * 1024).div_ceil(100);
                self.write("cpu.shares", &shares.to_string())
            }
        }
    }
}

/// A limit of a control group that a VM is in: by its file, and by the manager where the group is the
/// VM's own. `None` where it is the group's limit already.
#[must_use]
pub fn limit(vm: &Vm, snapshot: &Snapshot, group: &Cgroup, quota: Quota) -> Option<Change> {
    let former = group.quota_us.zip(group.period_us);
    if quota == former {
        return None;
    }
    let file = GroupFile::new(snapshot, group);
    let value = quota.map_or("max".to_owned(), |(quota_us, period)| {
        format!("{quota_us} {period}")
    });
    let name = format!("cpu.max of {} = {value}", group.path);
    let mut change = Change::command(name, file.limit(quota), file.limit(former));
    let folder = group.path.rsplit('/').next().unwrap_or_default();
    let is_vms = vm
        .cgroup
        .as_deref()
        .is_some_and(|path| is_below(path, &group.path));
    let setting = if folder.starts_with("vcpu") {
        Some(VmSetting::VcpuLimit { quota, former })
    } else {
        let is_own = is_vms && group.path != "/" && !is_shared(snapshot, vm, group);
        is_own.then_some(VmSetting::Limit { quota, former })
    };
    let commands = setting.and_then(|setting| by_manager(vm, setting));
    change.managers.extend(commands);
    Some(change)
}

/// Commands of the same manager in one.
#[must_use]
pub fn merge(several: impl IntoIterator<Item = ByManager>) -> Vec<ByManager> {
    let mut merged: Vec<ByManager> = Vec::new();
    for commands in several {
        let known = merged
            .iter_mut()
            .find(|known| known.manager == commands.manager);
        match known {
            Some(known) => {
                known.set.extend(commands.set);
                known.undo.extend(commands.undo);
            }
            None => merged.push(commands),
        }
    }
    for commands in &mut merged {
        commands.set.dedup();
        commands.undo.dedup();
    }
    merged
}

/// Whether a path is a group or below it.
pub(crate) fn is_below(path: &str, group: &str) -> bool {
    let rest = path.strip_prefix(group);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || group == "/")
}

/// Whether another VM is in a group too.
fn is_shared(snapshot: &Snapshot, vm: &Vm, group: &Cgroup) -> bool {
    let rivals = snapshot.vms.iter().filter(|rival| rival.name != vm.name);
    let mut groups = rivals.filter_map(|rival| rival.cgroup.as_deref());
    groups.any(|path| is_below(path, &group.path))
}

/// CPUs of threads that are no vCPUs.
pub(crate) fn pin_emulator(vm: &Vm, tids: &[i32], cpus: &str, former: &str) -> Change {
    let command = |cpus: &str| {
        let commands = tids.iter().map(|tid| format!("taskset -pc {cpus} {tid}"));
        commands.collect::<Vec<_>>().join("; ")
    };
    let name = format!("threads of {}'s device model on CPUs {cpus}", vm.name);
    let mut change = Change::command(name, command(cpus), command(former));
    change
        .managers
        .extend(by_manager(vm, VmSetting::Emulator { cpus, former }));
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(manager: Manager) -> Vm {
        Vm {
            name: "db 1".to_owned(),
            id: matches!(manager, Manager::Proxmox).then(|| "101".to_owned()),
            namespace: Some("prod".to_owned()),
            manager,
            ..Vm::default()
        }
    }

    const LIMIT: VmSetting<'_> = VmSetting::Limit {
        quota: None,
        former: Some((150_000, 100_000)),
    };
    const WEIGHT: VmSetting<'_> = VmSetting::Weight {
        weight: 200,
        former: 100,
    };

    #[test]
    fn each_manager_has_its_commands() {
        let shown = |manager: Manager, setting| {
            let commands = by_manager(&vm(manager), setting).expect("commands");
            format!("{} | {}", commands.set.join("; "), commands.undo.join("; "))
        };
        assert_eq!(
            shown(Manager::Libvirt, LIMIT),
            "virsh schedinfo 'db 1' --live global_quota=-1 | \
             virsh schedinfo 'db 1' --live global_period=100000 global_quota=150000"
        );
        assert_eq!(
            shown(Manager::Proxmox, LIMIT),
            "qm set 101 --cpulimit 0 | qm set 101 --cpulimit 1.5"
        );
        assert_eq!(
            shown(Manager::Proxmox, WEIGHT),
            "qm set 101 --cpuunits 200 | qm set 101 --cpuunits 100"
        );
        assert_eq!(
            shown(Manager::Systemd, LIMIT),
            "systemctl set-property --runtime 'db 1' CPUQuota= | \
             systemctl set-property --runtime 'db 1' CPUQuota=150%"
        );
        assert_eq!(
            shown(Manager::Kubevirt, LIMIT),
            "kubectl patch vm 'db 1' -n prod --type merge -p \
             '{\"spec\":{\"template\":{\"spec\":{\"domain\":{\"resources\":{\"limits\":{\"cpu\":null}}}}}}}' | \
             kubectl patch vm 'db 1' -n prod --type merge -p \
             '{\"spec\":{\"template\":{\"spec\":{\"domain\":{\"resources\":{\"limits\":{\"cpu\":\"1500m\"}}}}}}}'"
        );
        assert_eq!(
            shown(Manager::Openstack, WEIGHT),
            "openstack flavor set FLAVOR --property quota:cpu_shares=200 | \
             openstack flavor set FLAVOR --property quota:cpu_shares=100"
        );
        assert_eq!(
            shown(Manager::Firecracker, LIMIT),
            "jailer option: --cgroup cpu.max=max | jailer option: --cgroup cpu.max='150000 100000'"
        );
        let pin = VmSetting::Vcpu {
            vcpu: 1,
            cpus: "4",
            former: "0-7",
        };
        assert_eq!(
            shown(Manager::Libvirt, pin),
            "virsh vcpupin 'db 1' 1 4 --live | virsh vcpupin 'db 1' 1 0-7 --live"
        );
        assert_eq!(by_manager(&vm(Manager::Proxmox), pin), None);
        assert_eq!(by_manager(&vm(Manager::Qemu), LIMIT), None);
    }
}
