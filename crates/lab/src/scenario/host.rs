//! `[host]`.

use stealtime_simulator::config::{HostConfig, Hypervisor, IdleMethod, Topology};

use crate::document::{Item, Notes, Table};
use crate::error::LoadError;
use crate::profile::{Machine, Origin, machine_in, named};
use crate::spelling::suggestion;

/// Knobs of the host that may stand in `[host]`, without `host.`.
pub(super) const KNOBS: [&str; 4] = ["idle", "nohz_full", "isolcpus", "hz"];

const HYPERVISORS: [(&str, Hypervisor); 2] = [("kvm", Hypervisor::Kvm), ("xen", Hypervisor::Xen)];

/// The most of each level of the topology.
const MOST: u64 = 4096;

/// What `[host]` says.
pub(super) struct Read<'t, 'a> {
    pub(super) host: HostConfig,
    pub(super) machine: Machine,
    /// Knobs found in it.
    pub(super) knobs: Vec<(String, Item<'t, 'a>)>,
}

/// Reads `[host]`; `profile` takes the place of the one that it names, or of its `base`.
pub(super) fn read<'t, 'a>(
    mut table: Table<'t, 'a>,
    profile: Option<&str>,
    file: &str,
    origin: &Origin<'_>,
    notes: &mut Notes,
) -> Result<Option<Read<'t, 'a>>, LoadError> {
    let machine = machine(&mut table, profile, file, origin, notes)?;
    let topology = topology(&mut table, notes);
    let hypervisor = hypervisor(&mut table, notes);
    let mut knobs = Vec::new();
    for name in KNOBS {
        if let Some(item) = table.take(name) {
            knobs.push((format!("host.{name}"), item));
        }
    }
    table.finish(&[], notes);
    let (Some(machine), Some(topology)) = (machine, topology) else {
        return Ok(None);
    };
    Ok(Some(Read {
        host: HostConfig {
            profile: machine.profile.clone(),
            topology,
            hypervisor,
            idle: IdleMethod::default(),
            tasks: Vec::new(),
        },
        machine,
        knobs,
    }))
}

fn machine(
    table: &mut Table<'_, '_>,
    replacement: Option<&str>,
    file: &str,
    origin: &Origin<'_>,
    notes: &mut Notes,
) -> Result<Option<Machine>, LoadError> {
    let Some(item) = table.take("profile") else {
        let help = "give a machine's name, such as profile = \"skylake-sp\", or a file's path";
        let place = notes.place(&table.key);
        notes.push(
            "host.profile",
            place,
            "which machine is it?".into(),
            Some(help.into()),
        );
        return Ok(None);
    };
    if item.value.is_table() {
        return match item.table(notes) {
            Some(table) => machine_in(table, replacement, file, origin, notes),
            None => Ok(None),
        };
    }
    match replacement.or_else(|| item.text(notes)) {
        Some(name) => named(&item, name, origin, notes),
        None => Ok(None),
    }
}

fn topology(table: &mut Table<'_, '_>, notes: &mut Notes) -> Option<Topology> {
    let cpus = table.take("cpus");
    let mut part = |name: &str| {
        let item = table.take(name);
        let number = item.as_ref().map(|item| item.number(1..MOST + 1, notes));
        // A number out of range was noted: going on with 1 finds more of what is wrong.
        number.map(|number| number.and_then(|n| u32::try_from(n).ok()).unwrap_or(1))
    };
    let sockets = part("sockets");
    let llcs = part("llcs_per_socket");
    let cores = part("cores_per_llc");
    let threads = part("threads_per_core");
    if let Some(item) = cpus {
        if sockets.is_some() || llcs.is_some() || cores.is_some() {
            let problem = "cpus is one socket of cores without SMT: leave it out with sockets, \
                           llcs_per_socket or cores_per_llc";
            item.wrong(problem.into(), notes);
            return None;
        }
        let cpus = u32::try_from(item.number(1..MOST + 1, notes)?).ok()?;
        let threads = threads.unwrap_or(1);
        if cpus % threads != 0 {
            item.wrong(
                format!("{cpus} CPUs are no whole cores of {threads} threads"),
                notes,
            );
            return None;
        }
        return Some(Topology {
            threads_per_core: threads,
            ..Topology::flat(cpus / threads)
        });
    }
    let Some(cores_per_llc) = cores else {
        let help = "give cpus = 8, or sockets, llcs_per_socket, cores_per_llc, threads_per_core";
        let place = notes.place(&table.key);
        notes.push(
            "host.cpus",
            place,
            "how many CPUs has it?".into(),
            Some(help.into()),
        );
        return None;
    };
    let topology = Topology {
        sockets: sockets.unwrap_or(1),
        llcs_per_socket: llcs.unwrap_or(1),
        cores_per_llc,
        threads_per_core: threads.unwrap_or(1),
    };
    // Each factor is at most MOST: the product of four fits in 64 bits.
    let factors = [
        topology.sockets,
        topology.llcs_per_socket,
        cores_per_llc,
        topology.threads_per_core,
    ];
    let total: u64 = factors.into_iter().map(u64::from).product();
    if total > MOST {
        let place = notes.place(&table.key);
        notes.problem("host", place, format!("{total} CPUs: {MOST} at most"));
        return None;
    }
    Some(topology)
}

fn hypervisor(table: &mut Table<'_, '_>, notes: &mut Notes) -> Hypervisor {
    let Some(item) = table.take("hypervisor") else {
        return Hypervisor::default();
    };
    let Some(name) = item.text(notes) else {
        return Hypervisor::default();
    };
    if let Some(row) = HYPERVISORS.iter().find(|row| row.0 == name) {
        return row.1;
    }
    let help = suggestion(name, &HYPERVISORS.map(|row| row.0));
    notes.push(
        &item.key,
        item.span,
        format!("no hypervisor {name:?}"),
        Some(help),
    );
    Hypervisor::default()
}
