//! Control groups of version 2, version 1 and of hosts with both.

use std::collections::BTreeSet;

use crate::snapshot::{Cgroup, CgroupInfo, Vm};
use crate::tree::{Tree, in_parallel};

/// Levels of a path that are read at most.
const MAX_DEPTH: usize = 64;
/// Groups next to the VMs' ones that are read at most. Hosts have about ten.
const MAX_SIBLINGS: usize = 64;

/// A hierarchy that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    point: String,
    /// The group that is mounted there: another than `/` within a container.
    root: String,
    /// Its controllers; `None` for version 2.
    controllers: Option<Vec<String>>,
}

/// The hierarchies of a host.
#[derive(Debug, Default)]
pub(crate) struct Hierarchies {
    cpu: Option<Mount>,
    /// Of the cpuset controller, where it is not in the same hierarchy.
    cpuset: Option<Mount>,
    info: CgroupInfo,
}

/// The groups of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paths {
    pub(crate) cpu: Option<String>,
    pub(crate) cpuset: Option<String>,
}

impl Hierarchies {
    pub(crate) fn read(tree: &Tree) -> Self {
        let mounts = tree
            .value("cgroup", "/proc/self/mountinfo")
            .unwrap_or_default();
        let mounts: Vec<Mount> = mounts.lines().filter_map(mount).collect();
        let unified = mounts.iter().find(|mount| mount.controllers.is_none());
        let mount_of = |controller: &str| {
            let controls = |mount: &&Mount| {
                let controllers = mount.controllers.iter().flatten();
                controllers.into_iter().any(|name| name == controller)
            };
            mounts.iter().find(controls)
        };
        let (cpu_v1, cpuset_v1) = (mount_of("cpu"), mount_of("cpuset"));
        let version = match (cpu_v1, unified) {
            (Some(_), Some(_)) => "hybrid",
            (Some(_), None) => "v1",
            (None, Some(_)) => "v2",
            (None, None) => "none",
        };
        let cpu = cpu_v1.or(unified).cloned();
        let cpuset = cpuset_v1.or(unified).cloned();
        let info = CgroupInfo {
            version: version.to_owned(),
            cpu_mount: cpu.as_ref().map(|mount| mount.point.clone()),
            cpuset_mount: cpuset.as_ref().map(|mount| mount.point.clone()),
        };
        let cpuset = cpuset.filter(|mount| Some(mount) != cpu.as_ref());
        Self { cpu, cpuset, info }
    }

    pub(crate) fn info(&self) -> CgroupInfo {
        self.info.clone()
    }

    pub(crate) fn cpuset_mount(&self) -> Option<&str> {
        self.info.cpuset_mount.as_deref()
    }

    /// The groups of a task out of its `/proc/PID/cgroup`.
    pub(crate) fn paths(&self, text: &str) -> Paths {
        let path = |mount: &Option<Mount>| {
            let mount = mount.as_ref()?;
            let path = text.lines().find_map(|line| mount.path_in(line))?;
            Some(mount.below_root(path).to_owned())
        };
        Paths {
            cpu: path(&self.cpu),
            cpuset: path(&self.cpuset),
        }
    }

    /// The groups of VMs, their ancestors, and the groups next to these below the root, which share
    /// the CPUs with them.
    pub(crate) fn groups(&self, tree: &Tree, vms: &[Vm]) -> Vec<Cgroup> {
        let threads = || vms.iter().flat_map(|vm| &vm.threads);
        let of_vms = vms.iter().filter_map(|vm| vm.cgroup.as_deref());
        let of_threads = threads().filter_map(|thread| thread.cgroup.as_deref());
        let mut groups = Vec::new();
        if let Some(mount) = &self.cpu {
            let mut paths = with_ancestors(of_vms.chain(of_threads));
            paths.extend(mount.top_groups(tree));
            groups = mount.groups(tree, "cpu", paths);
        }
        if let Some(mount) = &self.cpuset {
            let of_vms = vms.iter().filter_map(|vm| vm.cpuset_cgroup.as_deref());
            let of_threads = threads().filter_map(|thread| thread.cpuset_cgroup.as_deref());
            let paths = with_ancestors(of_vms.chain(of_threads));
            groups.extend(mount.groups(tree, "cpuset", paths));
        }
        groups
    }
}

impl Mount {
    /// The path of a line of `/proc/PID/cgroup`, if the line is of this hierarchy: `0::/a` of version
    /// 2, `4:cpu,cpuacct:/a` of version 1.
    fn path_in<'t>(&self, line: &'t str) -> Option<&'t str> {
        let mut parts = line.splitn(3, ':');
        let (_, names, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_own = match &self.controllers {
            None => names.is_empty(),
            Some(controllers) => {
                let mut names = names.split(',').filter(|name| !name.is_empty());
                names.any(|name| controllers.iter().any(|wanted| wanted == name))
            }
        };
        is_own.then_some(path)
    }

    /// A path as seen below the mount point.
    fn below_root<'t>(&self, path: &'t str) -> &'t str {
        let below = path.strip_prefix(self.root.trim_end_matches('/'));
        match below {
            Some("") => "/",
            Some(below) if below.starts_with('/') => below,
            _ => path,
        }
    }

    /// Groups directly below the root.
    fn top_groups(&self, tree: &Tree) -> Vec<String> {
        let mark = match self.controllers {
            None => "cgroup.procs",
            Some(_) => "cpu.shares",
        };
        let names = tree.optional_list("cgroups", &self.point);
        // Files of the controllers have a dot after the controller's name; so have units, which end
        // by their kind.
        let kinds = ["slice", "scope", "service", "partition"];
        let is_group = |name: &&String| match name.rsplit_once('.') {
            Some((_, kind)) => kinds.contains(&kind),
            None => *name != "tasks" && *name != "notify_on_release",
        };
        let names = names.iter().filter(is_group);
        let names = names.filter(|name| tree.exists(&format!("{}/{name}/{mark}", self.point)));
        names
            .take(MAX_SIBLINGS)
            .map(|name| format!("/{name}"))
            .collect()
    }

    fn groups(&self, tree: &Tree, controller: &str, paths: BTreeSet<String>) -> Vec<Cgroup> {
        let paths: Vec<String> = paths.into_iter().collect();
        in_parallel(&paths, |path| match &self.controllers {
            None => self.group_v2(tree, path),
            Some(_) if controller == "cpu" => self.group_v1(tree, path),
            Some(_) => self.cpuset_v1(tree, path),
        })
    }

    fn file(&self, path: &str, name: &str) -> String {
        format!("{}{}/{name}", self.point, path.trim_end_matches('/'))
    }

    fn group_v2(&self, tree: &Tree, path: &str) -> Cgroup {
        let key = "cgroups";
        let text = |name: &str| tree.optional(key, &self.file(path, name));
        let stat = text("cpu.stat").unwrap_or_default();
        let mut group = Cgroup {
            path: path.to_owned(),
            hierarchy: "v2".to_owned(),
            effective_cpus: text("cpuset.cpus.effective"),
            kind: text("cgroup.type"),
            usage_us: field(&stat, "usage_usec"),
            periods: field(&stat, "nr_periods"),
            throttled_periods: field(&stat, "nr_throttled"),
            throttled_us: field(&stat, "throttled_usec"),
            ..Cgroup::default()
        };
        // Without its first file a controller is not enabled here, and has no others.
        group.weight = tree.number(key, &self.file(path, "cpu.weight"));
        if group.weight.is_some() {
            let max = text("cpu.max").unwrap_or_default();
            let mut max = max.split_whitespace().map(|word| word.parse().ok());
            (group.quota_us, group.period_us) = (max.next().flatten(), max.next().flatten());
            group.weight_nice = tree.number(key, &self.file(path, "cpu.weight.nice"));
            group.idle = text("cpu.idle").map(|text| text == "1");
            group.burst_us = tree.number(key, &self.file(path, "cpu.max.burst"));
        }
        if group.effective_cpus.is_some() {
            group.cpus = text("cpuset.cpus");
            group.partition = text("cpuset.cpus.partition");
        }
        group
    }

    fn group_v1(&self, tree: &Tree, path: &str) -> Cgroup {
        let key = "cgroups";
        let number = |name: &str| tree.number::<u64>(key, &self.file(path, name));
        let quota: Option<i64> = tree.number(key, &self.file(path, "cpu.cfs_quota_us"));
        let stat = tree.optional(key, &self.file(path, "cpu.stat"));
        let stat = stat.unwrap_or_default();
        Cgroup {
            path: path.to_owned(),
            hierarchy: "cpu".to_owned(),
            shares: number("cpu.shares"),
            idle: number("cpu.idle").map(|idle| idle == 1),
            // -1 is no limit.
            quota_us: quota.and_then(|quota| quota.try_into().ok()),
            period_us: number("cpu.cfs_period_us"),
            burst_us: number("cpu.cfs_burst_us"),
            usage_us: number("cpuacct.usage").map(|ns| ns / 1000),
            periods: field(&stat, "nr_periods"),
            throttled_periods: field(&stat, "nr_throttled"),
            throttled_us: field(&stat, "throttled_time").map(|ns| ns / 1000),
            ..Cgroup::default()
        }
    }

    fn cpuset_v1(&self, tree: &Tree, path: &str) -> Cgroup {
        let text = |name: &str| tree.optional("cgroups", &self.file(path, name));
        Cgroup {
            path: path.to_owned(),
            hierarchy: "cpuset".to_owned(),
            cpus: text("cpuset.cpus"),
            effective_cpus: text("cpuset.effective_cpus"),
            ..Cgroup::default()
        }
    }
}

/// A value of `cpu.stat`.
fn field(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|line| line.0 == name)?.1.trim().parse().ok()
}

/// Paths with all groups above them.
fn with_ancestors<'t>(leaves: impl Iterator<Item = &'t str>) -> BTreeSet<String> {
    let mut paths = BTreeSet::from(["/".to_owned()]);
    let leaves: BTreeSet<&str> = leaves.collect();
    for path in leaves {
        let ends = path.match_indices('/').map(|(index, _)| index);
        let ends = ends.filter(|index| *index > 0).chain([path.len()]);
        paths.extend(ends.take(MAX_DEPTH).map(|end| path[..end].to_owned()));
    }
    paths
}

/// The lines of mountinfo with control groups and `/proc`.
pub(crate) fn mounts(tree: &Tree) -> String {
    let path = "/proc/self/mountinfo";
    let wanted = |line: &str| line.contains(" - cgroup") || line.contains(" - proc ");
    let lines = tree.lines(path, wanted);
    let lines = lines.map_err(|error| tree.note("cgroup", path, &error));
    lines.unwrap_or_default()
}

/// A line of mountinfo, if it is of a hierarchy: `30 23 0:26 / /sys/fs/cgroup rw - cgroup2 c rw`.
fn mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, point) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let (kind, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
    let controllers = match kind {
        "cgroup2" => None,
        "cgroup" => Some(options.split(',').map(str::to_owned).collect()),
        _ => return None,
    };
    Some(Mount {
        point: unescape(point),
        root: unescape(root),
        controllers,
    })
}

/// `\040` and the like as the characters that they stand for.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_paths() {
        let line = "30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup \
                    rw,cpu,cpuacct";
        let v1 = mount(line).expect("a hierarchy");
        assert_eq!(v1.path_in("4:cpu,cpuacct:/a:b"), Some("/a:b"));
        assert_eq!(v1.path_in("0::/a"), None);
        assert_eq!(v1.path_in("1:name=systemd:/a"), None);
        let v2 = "1 2 0:3 /pod /sys/fs/c\\040g rw - cgroup2 cgroup2 rw";
        let v2 = mount(v2).expect("a hierarchy");
        assert_eq!(v2.point, "/sys/fs/c g");
        assert_eq!(v2.path_in("0::/a"), Some("/a"));
        assert_eq!(v2.below_root("/pod/a"), "/a");
        assert_eq!(v2.below_root("/pod"), "/");
        assert_eq!(v2.below_root("/podium"), "/podium");
        assert_eq!(mount("1 2 0:3 / /proc rw - proc proc rw"), None);
    }

    #[test]
    fn ancestors_are_there_once() {
        let paths = with_ancestors(["/a/b/c", "/a/d", "/"].into_iter());
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        assert_eq!(paths, ["/", "/a", "/a/b", "/a/b/c", "/a/d"]);
    }
}
