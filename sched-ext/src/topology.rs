//! Which CPUs share a cache.

use std::fs;
use std::path::Path;

/// Most CPUs and cache domains that the BPF program knows (`bpf/shared.h`).
pub(crate) const MAX_CPUS: usize = 1024;
const MAX_DOMAINS: usize = 64;

/// The cache domain of each CPU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) domains: u32,
    pub(crate) of_cpu: Vec<u8>,
}

/// Reads `sys/devices/system/cpu` below `root`. CPUs without known caches are one domain.
pub(crate) fn read(root: &Path) -> Topology {
    let cpus = root.join("sys/devices/system/cpu");
    let mut lists: Vec<String> = Vec::new();
    let mut of_cpu = Vec::new();
    for cpu in 0..MAX_CPUS {
        let cpu = cpus.join(format!("cpu{cpu}"));
        if !cpu.exists() {
            break;
        }
        // index3 is the last cache of all current CPUs; without it, the second.
        let list = ["index3", "index2"]
            .iter()
            .find_map(|index| {
                fs::read_to_string(cpu.join("cache").join(index).join("shared_cpu_list")).ok()
            })
            .unwrap_or_default();
        let domain = lists
            .iter()
            .position(|known| *known == list)
            .unwrap_or_else(|| {
                lists.push(list);
                lists.len() - 1
            });
        // More domains than there are numbers: the last takes the rest.
        of_cpu.push(domain.min(MAX_DOMAINS - 1) as u8);
    }
    Topology {
        domains: lists.len().clamp(1, MAX_DOMAINS) as u32,
        of_cpu,
    }
}

/// The kernel's count of CPUs that came or went (`/sys/kernel/sched_ext/hotplug_seq`). 0, which the kernel
/// does not compare: there is none.
pub(crate) fn hotplugs(root: &Path) -> u64 {
    let text = fs::read_to_string(root.join("sys/kernel/sched_ext/hotplug_seq"));
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// The kernel's base slice: 0.7 ms times 1 + log2 of the CPUs, of which it counts 8 at most.
pub(crate) fn base_slice_ns(cpus: usize) -> u64 {
    700_000 * (1 + u64::from(cpus.clamp(1, 8).ilog2()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_those_of_the_kernel() {
        assert_eq!(base_slice_ns(1), 700_000);
        assert_eq!(base_slice_ns(2), 1_400_000);
        assert_eq!(base_slice_ns(7), 2_100_000);
        assert_eq!(base_slice_ns(96), 2_800_000);
    }

    #[test]
    fn cpus_of_a_cache_are_a_domain() {
        let root =
            std::env::temp_dir().join(format!("scx_stealtime-topology-{}", std::process::id()));
        for (cpu, list) in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")] {
            let cache = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cache/index3"));
            fs::create_dir_all(&cache).expect("created");
            fs::write(cache.join("shared_cpu_list"), list).expect("written");
        }
        assert_eq!(hotplugs(&root), 0);
        fs::create_dir_all(root.join("sys/kernel/sched_ext")).expect("created");
        fs::write(root.join("sys/kernel/sched_ext/hotplug_seq"), "7\n").expect("written");
        assert_eq!(hotplugs(&root), 7);
        assert_eq!(
            read(&root),
            Topology {
                domains: 2,
                of_cpu: vec![0, 0, 1, 1]
            }
        );
    }
}
