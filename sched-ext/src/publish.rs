//! The counters as a file, for `stealtime top` and `stealtime metrics`.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::counters::Counters;

/// Where readers look for it.
pub(crate) const PLACE: &str = "/run/stealtime/sched.json";
/// Version of the keys.
const VERSION: u32 = 1;
/// Shortest time between two walks over all control groups.
const WALK_EVERY: Duration = Duration::from_secs(10);

/// The file; it goes with its owner.
#[derive(Debug)]
pub(crate) struct Published {
    place: PathBuf,
    paths: HashMap<u64, String>,
    walked: Option<Instant>,
    has_warned: bool,
}

/// What the file says in addition to the counters.
#[derive(Debug, Serialize)]
struct Document<'c> {
    version: u32,
    pid: u32,
    /// Whether it runs all tasks, or canaries only.
    all_tasks: bool,
    /// The mode of `--yield`.
    yields: &'static str,
    #[serde(flatten)]
    counters: &'c Counters,
    /// Paths of the control groups with run time, in the order of `groups`; empty where unknown.
    group_paths: Vec<&'c str>,
}

impl Published {
    pub(crate) fn new(place: &Path) -> Self {
        Self {
            place: place.to_owned(),
            paths: HashMap::new(),
            walked: None,
            has_warned: false,
        }
    }

    /// Writes the counters, whole or not at all. A failure is printed once: the scheduler goes on.
    pub(crate) fn write(&mut self, counters: &Counters, all_tasks: bool, yields: &'static str) {
        self.name_groups(counters);
        if let Err(error) = self.try_write(counters, all_tasks, yields)
            && !self.has_warned
        {
            self.has_warned = true;
            eprintln!(
                "scx_stealtime: warning: {}: {error}: top and metrics show no counters",
                self.place.display()
            );
        }
    }

    fn try_write(
        &self,
        counters: &Counters,
        all_tasks: bool,
        yields: &'static str,
    ) -> io::Result<()> {
        let document = Document {
            version: VERSION,
            pid: std::process::id(),
            all_tasks,
            yields,
            counters,
            group_paths: counters
                .groups
                .iter()
                .map(|group| self.paths.get(&group.cgroup_id).map_or("", String::as_str))
                .collect(),
        };
        if let Some(folder) = self.place.parent() {
            fs::create_dir_all(folder)?;
        }
        let unfinished = self.place.with_extension("json.new");
        fs::write(&unfinished, serde_json::to_vec(&document)?)?;
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o644))?;
        fs::rename(&unfinished, &self.place)
    }

    /// A control group's id is the inode number of its directory.
    fn name_groups(&mut self, counters: &Counters) {
        let is_known = |id| self.paths.contains_key(&id);
        let is_due = self.walked.is_none_or(|time| time.elapsed() >= WALK_EVERY);
        if !is_due
            || counters
                .groups
                .iter()
                .all(|group| is_known(group.cgroup_id))
        {
            return;
        }
        self.walked = Some(Instant::now());
        self.paths = group_paths(Path::new("/sys/fs/cgroup"));
        // The root has no id in the table.
        self.paths.insert(0, "/".to_owned());
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // Another instance may have replaced and removed it.
        let _ = fs::remove_file(&self.place);
    }
}

fn group_paths(root: &Path) -> HashMap<u64, String> {
    let mut paths = HashMap::new();
    let mut next = vec![root.to_owned()];
    while let Some(path) = next.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                let path = entry.path();
                let name = path.strip_prefix(root).unwrap_or(&path);
                paths.insert(metadata.ino(), format!("/{}", name.to_string_lossy()));
                next.push(path);
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_there_as_long_as_its_owner() {
        let folder = std::env::temp_dir().join(format!("scx_stealtime-{}", std::process::id()));
        let place = folder.join("sched.json");
        let mut published = Published::new(&place);
        published.write(&Counters::default(), true, "receiver");
        let text = fs::read_to_string(&place).expect("written");
        assert!(text.starts_with("{\"version\":1,"), "{text}");
        assert!(text.contains("\"yields\":\"receiver\""), "{text}");
        let mode = fs::metadata(&place).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        drop(published);
        assert!(!place.exists());
        fs::remove_dir(&folder).expect("empty");
    }
}
