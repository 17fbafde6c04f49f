//! The control groups of a snapshot by path.

use crate::snapshot::{Cgroup, Snapshot, ThreadKind, Vm};

impl Snapshot {
    /// The group of a path in the hierarchy of the cpu controller.
    #[must_use]
    pub fn group(&self, path: &str) -> Option<&Cgroup> {
        let mut groups = self.cgroups.iter();
        groups.find(|group| group.path == path && group.hierarchy != "cpuset")
    }

    /// A group and those above it, from the inside out.
    pub fn groups_above<'t>(&'t self, path: &'t str) -> impl Iterator<Item = &'t Cgroup> {
        let mut next = Some(path);
        let paths = std::iter::from_fn(move || {
            let path = next?;
            next = path.rsplit_once('/').and_then(|(parent, _)| match parent {
                "" if path == "/" => None,
                "" => Some("/"),
                parent => Some(parent),
            });
            Some(path)
        });
        paths.filter_map(|path| self.group(path))
    }
}

impl Cgroup {
    /// Its quota in CPUs; `None` without a limit.
    #[must_use]
    pub fn limit_cpus(&self) -> Option<f64> {
        let (quota, period) = (self.quota_us?, self.period_us?);
        (period > 0).then(|| quota as f64 / period as f64)
    }
}

impl Vm {
    /// The group of the VM as a whole: the deepest one with all of its threads. It has the VM's weight.
    /// libvirt keeps these in a group `libvirt` without settings of its own.
    #[must_use]
    pub fn whole_group(&self) -> Option<&str> {
        let whole = self.cgroup.as_deref()?;
        let is_of_vm = |kind| !matches!(kind, ThreadKind::Vhost | ThreadKind::Kernel);
        let threads = self.threads.iter().filter(|thread| is_of_vm(thread.kind));
        let paths = threads.filter_map(|thread| thread.cgroup.as_deref());
        let common = paths.fold(whole, |common, path| common_group(common, path));
        Some(match common.strip_suffix("/libvirt") {
            Some(parent) if !parent.is_empty() => parent,
            _ => common,
        })
    }
}

/// The deepest group above or at two paths.
fn common_group<'t>(first: &'t str, second: &str) -> &'t str {
    let is_above = |group: &str| match second.strip_prefix(group) {
        Some(rest) => rest.is_empty() || rest.starts_with('/') || group == "/",
        None => false,
    };
    let mut group = first;
    while !is_above(group) {
        group = match group.rsplit_once('/') {
            Some((parent, _)) if !parent.is_empty() => parent,
            _ => return "/",
        };
    }
    group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_in_common() {
        assert_eq!(common_group("/a/b/c", "/a/b/d"), "/a/b");
        assert_eq!(common_group("/a/b", "/a/b/d"), "/a/b");
        assert_eq!(common_group("/a/b", "/a/bc"), "/a");
        assert_eq!(common_group("/a", "/b"), "/");
        assert_eq!(common_group("/", "/b"), "/");
    }

    #[test]
    fn groups_from_the_inside_out() {
        let group = |path: &str| Cgroup {
            path: path.to_owned(),
            hierarchy: "v2".to_owned(),
            ..Cgroup::default()
        };
        let snapshot = Snapshot {
            cgroups: ["/", "/a", "/a/b"].map(group).to_vec(),
            ..Snapshot::default()
        };
        let paths = |path: &str| -> Vec<String> {
            snapshot
                .groups_above(path)
                .map(|group| group.path.clone())
                .collect()
        };
        assert_eq!(paths("/a/b"), ["/a/b", "/a", "/"]);
        assert_eq!(paths("/a"), ["/a", "/"]);
        assert_eq!(paths("/"), ["/"]);
    }
}
