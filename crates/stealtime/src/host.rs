//! The snapshot of a recording's host, and the VMs that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use stealtime_analysis::{Answers, HostThread, HostVm, HostVms};
use stealtime_host::{Snapshot, ThreadKind, cpulist};
use stealtime_trace::SourceInfo;

use crate::args::Recording;
use crate::error::CliError;

/// Where unified control groups are mounted, for paths that are copied from there.
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

/// The snapshot of a recording's host.
#[derive(Debug, Default)]
pub(crate) struct HostOfRecording {
    /// None is embedded, and none was given.
    pub(crate) snapshot: Option<Snapshot>,
    /// Why an embedded one is not used.
    pub(crate) notes: Vec<String>,
    /// The file that has it.
    source: String,
}

impl HostOfRecording {
    /// The snapshot of `--snapshot`, else the one in the recording.
    ///
    /// # Errors
    /// The file of `--snapshot` cannot be read, or is of another host.
    pub(crate) fn find(recording: &Recording, info: &SourceInfo) -> Result<Self, CliError> {
        let embedded = info.snapshot.as_deref().map(Snapshot::from_json);
        let Some(path) = &recording.snapshot else {
            let mut host = Self {
                source: recording.trace.display().to_string(),
                ..Self::default()
            };
            match embedded {
                Some(Ok(snapshot)) => host.snapshot = Some(snapshot),
                Some(Err(error)) => host.notes.push(format!(
                    "the host's snapshot in the recording is not used: {error}"
                )),
                None => {}
            }
            return Ok(host);
        };
        let snapshot = read(path)?;
        let source = path.display().to_string();
        let differs = embedded
            .and_then(Result::ok)
            .and_then(|embedded| snapshot.identity.mismatch(&embedded.identity))
            .map(|mismatch| mismatch.to_string());
        match differs.or_else(|| of_another_host(&snapshot, info)) {
            Some(reason) => Err(CliError::OtherHost(source, reason)),
            None => Ok(Self {
                snapshot: Some(snapshot),
                notes: Vec::new(),
                source,
            }),
        }
    }

    /// The VMs with their threads.
    pub(crate) fn vms(&self) -> HostVms {
        self.snapshot.as_ref().map(vms).unwrap_or_default()
    }

    /// The threads of VMs in a control group, or below it.
    ///
    /// # Errors
    /// There is no snapshot, or none of its VMs is there.
    pub(crate) fn threads_in(&self, cgroup: &str) -> Result<BTreeSet<i32>, CliError> {
        let wrong = |reason| CliError::NoCgroup {
            path: cgroup.to_owned(),
            reason,
        };
        let Some(snapshot) = &self.snapshot else {
            return Err(wrong(
                "neither the recording nor --snapshot has the control groups of threads",
            ));
        };
        let group = cgroup.strip_prefix(CGROUP_MOUNT).unwrap_or(cgroup);
        let group = group.trim_matches('/');
        let is_in = |path: &String| {
            let rest = path.trim_start_matches('/').strip_prefix(group);
            rest.is_some_and(|rest| group.is_empty() || rest.is_empty() || rest.starts_with('/'))
        };
        let threads = snapshot.all_vms().flat_map(|vm| &vm.threads);
        let inside = threads.filter(|thread| thread.cgroup.as_ref().is_some_and(is_in));
        let tids: BTreeSet<i32> = inside.map(|thread| thread.tid).collect();
        match tids.is_empty() {
            true => Err(wrong("no thread of a VM in the snapshot is there")),
            false => Ok(tids),
        }
    }

    /// Threads that are no vCPUs, and the index of their VM among the answers'.
    pub(crate) fn vmm_threads(&self, answers: &Answers) -> BTreeMap<i32, usize> {
        let host = self.vms();
        let threads = host.threads.iter().filter(|(_, thread)| !thread.is_vcpu);
        let vm_of = |thread: &HostThread| {
            let pid = host.vms.get(thread.vm)?.pid;
            answers.vms.iter().position(|vm| vm.pid == Some(pid))
        };
        threads
            .filter_map(|(&tid, thread)| Some((tid, vm_of(thread)?)))
            .collect()
    }

    /// Adds what the snapshot does not know of the recording's VMs.
    pub(crate) fn compare(&mut self, answers: &Answers) {
        let groups = self.snapshot.iter().flat_map(Snapshot::throttled);
        self.notes.extend(groups.map(|group| {
            format!(
                "{}: its cpu.max was used up in {} of {} periods, and stopped it for {:.1} s, added over CPUs",
                group.path,
                group.throttled_periods,
                group.periods,
                group.throttled_us as f64 / 1e6
            )
        }));
        let has_restarted = self
            .snapshot
            .as_ref()
            .is_some_and(crate::scheduler::has_restarted);
        self.notes.extend(has_restarted.then(|| {
            "scx_stealtime ended or was loaded again meanwhile: its counters before that are missing".to_owned()
        }));
        let unknown = self
            .snapshot
            .as_ref()
            .and_then(|snapshot| unknown(snapshot, answers));
        self.notes.extend(unknown.map(|unknown| {
            format!(
                "{unknown} in the snapshot of {}: VMs that began or ended between the two have no name",
                self.source
            )
        }));
    }
}

/// How many vCPU threads a snapshot lacks, as the begin of a sentence; `None` if it has all.
fn unknown(snapshot: &Snapshot, answers: &Answers) -> Option<String> {
    let host = vms(snapshot);
    let is_known = |tid: i32, vcpu: u32| {
        let thread = host.threads.get(&tid).filter(|thread| thread.is_vcpu);
        thread.is_some_and(|thread| thread.vcpu.is_none_or(|number| number == vcpu))
    };
    let total = answers.vcpus.len();
    let rows = answers.vcpus.iter();
    match rows.filter(|row| is_known(row.tid, row.vcpu)).count() {
        known if known == total => None,
        0 => Some(format!("none of the {total} vCPU threads is")),
        known => Some(format!("only {known} of the {total} vCPU threads are")),
    }
}

/// Reads a snapshot's file, or the snapshot in a recording; `-` is a snapshot's text.
pub(crate) fn read(path: &Path) -> Result<Snapshot, CliError> {
    let name = crate::error::input(path);
    let failed = |error: &dyn std::fmt::Display| CliError::Snapshot(format!("{name}: {error}"));
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin()).map_err(|error| failed(&error))?
    } else if is_json(path).map_err(|error| failed(&error))? {
        std::fs::read_to_string(path).map_err(|error| failed(&error))?
    } else {
        let source = stealtime_trace::open(path);
        // The error names the file.
        let source = source.map_err(|error| CliError::Snapshot(error.to_string()))?;
        let text = source.info().snapshot.clone();
        text.ok_or_else(|| failed(&"the recording has no snapshot: `stealtime record` adds one"))?
    };
    Snapshot::from_json(&text).map_err(|error| failed(&error))
}

/// Whether a file begins as JSON does: no recording begins so, and recordings can be large.
fn is_json(path: &Path) -> std::io::Result<bool> {
    let mut begin = Vec::new();
    std::fs::File::open(path)?
        .take(64)
        .read_to_end(&mut begin)?;
    Ok(begin.trim_ascii_start().starts_with(b"{"))
}

/// The first sign that a recording is of another host than a snapshot.
fn of_another_host(snapshot: &Snapshot, info: &SourceInfo) -> Option<String> {
    let differs = |property: &str, first: &str, second: &str| {
        Some(format!(
            "{property} is {first} in the snapshot and {second} in the recording"
        ))
    };
    let identity = &snapshot.identity;
    // `uname -snrm`: system, host, release, machine.
    let words: Vec<&str> = info
        .uname
        .iter()
        .flat_map(|uname| uname.split(' '))
        .collect();
    if let [_, host, release, rest @ ..] = words.as_slice() {
        let machine = rest.first();
        let pairs = [
            (
                "the kernel",
                identity.kernel_release.as_deref(),
                Some(release),
            ),
            (
                "the architecture",
                identity.architecture.as_deref(),
                machine,
            ),
            (
                "the host's name",
                identity.hostname.as_deref(),
                Some(host).filter(|host| **host != "(none)"),
            ),
        ];
        for (property, first, second) in pairs {
            if let (Some(first), Some(second)) = (first, second)
                && first != *second
            {
                return differs(property, first, second);
            }
        }
    }
    let possible = snapshot.cpu.possible.as_deref().and_then(cpulist::parse)?;
    let possible = possible.last().map_or(0, |last| last + 1);
    let recorded = info.cpus.filter(|&cpus| possible > 0 && cpus > possible)?;
    differs(
        "the number of CPUs",
        &possible.to_string(),
        &recorded.to_string(),
    )
}

/// VMs of a snapshot with their threads, as the analysis takes them.
fn vms(snapshot: &Snapshot) -> HostVms {
    let mut host = HostVms::default();
    let mut names = BTreeSet::new();
    for (index, vm) in snapshot.all_vms().enumerate() {
        let mut name = vm.name.clone();
        // The VM of a former process of the name.
        while !names.insert(name.clone()) {
            name = format!("{name} ({})", vm.process.pid);
        }
        host.vms.push(HostVm {
            name,
            pid: vm.process.pid,
        });
        for thread in &vm.threads {
            let fact = HostThread {
                vm: index,
                is_vcpu: thread.kind == ThreadKind::Vcpu,
                vcpu: thread.vcpu,
            };
            // An id that was used again is that of the end.
            host.threads.entry(thread.tid).or_insert(fact);
        }
    }
    host
}
