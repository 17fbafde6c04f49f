//! Conclusions from the names of threads: vCPUs, VMMs and the kernel's own threads.
//!
//! ```
//! use stealtime_events::{Tid, VcpuId};
//! use stealtime_track::names::{is_vmm_name, served_process, vcpu_in_name};
//!
//! assert_eq!(vcpu_in_name("CPU 3/KVM"), Some(VcpuId(3)));
//! assert!(is_vmm_name("qemu-system-x86"));
//! assert_eq!(served_process("vhost-1234"), Some(Tid(1234)));
//! ```

use stealtime_events::{Tid, VcpuId};

/// The vCPU number in the name of a thread, as VMMs name them: QEMU `CPU 3/KVM`, Firecracker
/// `fc_vcpu 3`, Cloud Hypervisor `vcpu3`, crosvm `crosvm_vcpu3`.
#[must_use]
pub fn vcpu_in_name(name: &str) -> Option<VcpuId> {
    let digits = if let Some(rest) = name.strip_prefix("CPU ") {
        rest.strip_suffix("/KVM")
            .or_else(|| rest.strip_suffix("/TCG"))?
    } else {
        let rest = name
            .strip_prefix("fc_")
            .or_else(|| name.strip_prefix("crosvm_"))
            .unwrap_or(name);
        rest.strip_prefix("vcpu")?.trim_start_matches([' ', '_'])
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| digits.parse::<u32>().ok()).flatten()?;
    (number != VcpuId::UNKNOWN.0).then_some(VcpuId(number))
}

/// Names with which the kernel's own threads begin.
const KERNEL_NAMES: [&str; 22] = [
    "kworker/",
    "ksoftirqd/",
    "migration/",
    "rcu",
    "irq/",
    "kthreadd",
    "khugepaged",
    "ksmd",
    "kcompactd",
    "kswapd",
    "cpuhp/",
    "idle_inject/",
    "watchdog",
    "kauditd",
    "jbd2/",
    "kblockd",
    "kdevtmpfs",
    "khungtaskd",
    "oom_reaper",
    "pool_workqueue",
    "kdamond",
    "kvm-pit/",
];

/// Whether a name is that of a thread of the kernel.
#[must_use]
pub fn is_kernel_name(name: &str) -> bool {
    KERNEL_NAMES.iter().any(|start| name.starts_with(start))
}

/// Names with which the threads of VMMs begin that are not vCPUs.
const VMM_NAMES: [&str; 12] = [
    "qemu-",
    "qemu:",
    "vhost-",
    "kvm-nx-lpage",
    "IO ",
    "call_rcu",
    "fc_api",
    "firecracker",
    "cloud-hyperv",
    "crosvm",
    "vmm",
    "virtiofsd",
];

/// Whether a name is that of a VMM's thread other than a vCPU.
#[must_use]
pub fn is_vmm_name(name: &str) -> bool {
    VMM_NAMES.iter().any(|start| name.starts_with(start)) && vcpu_in_name(name).is_none()
}

/// The process id in the name of a kernel thread that serves one VMM (`vhost-1234`,
/// `kvm-pit/1234`).
#[must_use]
pub fn served_process(name: &str) -> Option<Tid> {
    let digits = name
        .strip_prefix("vhost-")
        .or_else(|| name.strip_prefix("kvm-pit/"))?;
    digits.parse::<i32>().ok().filter(|&pid| pid > 0).map(Tid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_vmms_are_understood() {
        for (name, id) in [
            ("CPU 0/KVM", Some(0)),
            ("CPU 117/KVM", Some(117)),
            ("fc_vcpu 2", Some(2)),
            ("vcpu 3", Some(3)),
            ("vcpu7", Some(7)),
            ("crosvm_vcpu12", Some(12)),
            ("CPU x/KVM", None),
            ("vcpu", None),
            ("vcpu4294967295", None),
            ("qemu-system-x86", None),
        ] {
            assert_eq!(vcpu_in_name(name).map(|id| id.0), id, "{name}");
        }
    }
}
