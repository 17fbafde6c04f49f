//! Numbers of VMs and CPUs that a plan sets.

use stealtime_lab::knobs::{Part, Setting, Value};
use stealtime_lab::spelling::suggestion;
use stealtime_lab::units::{cpus, show_cpus};
use stealtime_replay::{Counts, NoCpuLeft, copy_bytes};

use crate::answerable;
use crate::baseline::Baseline;
use crate::recorded::Recorded;

/// A replay with more than this for copies is not begun, in bytes.
const MOST_BYTES: u64 = 8 << 30;
/// The most CPUs of a host.
const MOST_CPUS: u32 = 4096;
/// The value of `host.cpus` as recorded.
const AS_RECORDED: &str = "recorded";

/// How many of a VM a host has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmCount {
    /// Its name in the recording.
    pub vm: String,
    /// 0 takes it away, 1 is as recorded, more adds copies.
    pub count: u32,
}

/// Why a host cannot have so many VMs or CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CountError {
    /// No VM of this name.
    #[error("the recording has no VM {name}; {help}")]
    NoSuchVm {
        /// The name.
        name: String,
        /// The nearest VM, or all.
        help: String,
    },
    /// Several VMs have this name.
    #[error("{count} VMs of the recording are named {name}: name their threads apart by --vm-of")]
    Ambiguous {
        /// The name.
        name: String,
        /// VMs with it.
        count: usize,
    },
    /// No VM is left.
    #[error("no VM is left: at least one needs a count of 1 or more")]
    Empty,
    /// The copies take too much memory.
    #[error(
        "the copies take {} MB of memory in each replay, and {} MB is the most; {vm} takes {} MB a copy",
        bytes >> 20, MOST_BYTES >> 20, each >> 20
    )]
    TooLarge {
        /// Memory of all copies, in bytes.
        bytes: u64,
        /// The VM with the largest part.
        vm: String,
        /// Memory of one copy of it, in bytes.
        each: u64,
    },
    /// No number of CPUs, and no list.
    #[error(
        "host.cpus={text}: give a number of CPUs, or a list of recorded ones ({recorded}); {problem}"
    )]
    NoCpus {
        /// The value.
        text: String,
        /// The recorded ones.
        recorded: String,
        /// What is wrong.
        problem: String,
    },
    /// A task is bound to CPUs that are left out.
    #[error("host.cpus: {}, thread {}, may use CPUs {} only, of which none is left; bind it elsewhere by --pin",
        .0.name, .0.tid, show_cpus(&.0.cpus))]
    NoCpuLeft(NoCpuLeft),
}

/// The VM of this name, by its index.
pub(crate) fn vm_index(recorded: &Recorded, name: &str) -> Result<usize, CountError> {
    let mut named = (0..).zip(&recorded.vms).filter(|(_, vm)| *vm == name);
    let first = named.next();
    let namesakes = named.count();
    match (first, namesakes) {
        (Some((vm, _)), 0) => Ok(vm),
        (Some(_), namesakes) => Err(CountError::Ambiguous {
            name: name.to_owned(),
            count: namesakes + 1,
        }),
        (None, _) => {
            let names: Vec<&str> = recorded.vms.iter().map(String::as_str).collect();
            Err(CountError::NoSuchVm {
                name: name.to_owned(),
                help: suggestion(name, &names),
            })
        }
    }
}

/// The counts that these settings have; a later one replaces an earlier one.
pub(crate) fn counts(settings: &[Setting], base: &Baseline) -> Result<Counts, CountError> {
    let recorded = &base.recorded;
    let mut counts = Counts::default();
    for setting in settings {
        let (Some(Part::Count), Some(&Value::Number(count))) =
            (answerable::part(setting), setting.value())
        else {
            continue;
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        for (vm, name) in recorded.vms.iter().enumerate() {
            if setting.is_for(name) {
                vm_index(recorded, name)?;
                counts.set(vm, count);
            }
        }
        for (vm, added) in (recorded.vms.len()..).zip(&base.added) {
            if setting.is_for(&added.name) {
                counts.set_guest(vm, count);
            }
        }
    }
    check(&counts, base)?;
    Ok(counts)
}

/// Refuses counts without a VM, and those with copies that take too much memory.
pub(crate) fn check(counts: &Counts, base: &Baseline) -> Result<(), CountError> {
    if counts.is_as_recorded() {
        return Ok(());
    }
    let recorded = &base.recorded;
    let vms = recorded.vms.len();
    if !counts.has_guests() && (0..vms).all(|vm| counts.of_vm(vm) == 0) {
        return Err(CountError::Empty);
    }
    let copied = recorded.vms.iter().enumerate().map(|(vm, name)| {
        let copies = counts.of_vm(vm).saturating_sub(1);
        (name, copies, copy_bytes(&recorded.recording, vm))
    });
    let guests = (vms..).zip(&base.added).map(|(vm, added)| {
        let copy = copy_bytes(added.demand.recording(), added.demand.vm());
        (&added.name, counts.of_guest(vm), copy)
    });
    let (mut bytes, mut largest) = (0u64, (0, "", 0));
    for (name, copies, copy) in copied.chain(guests) {
        let total = u64::from(copies).saturating_mul(copy);
        bytes = bytes.saturating_add(total);
        largest = largest.max((total, name.as_str(), copy));
    }
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let (_, vm, copy) = largest;
    Err(CountError::TooLarge {
        bytes,
        vm: vm.to_owned(),
        each: copy,
    })
}

/// The recorded CPU that each CPU of the host is like; `None` as recorded.
pub(crate) fn host_cpus(
    settings: &[Setting],
    recorded: &Recorded,
) -> Result<Option<Vec<u32>>, CountError> {
    let mut chosen = None;
    for setting in settings {
        if answerable::part(setting) == Some(Part::Cpus) {
            chosen = like(setting.text(), recorded)?;
        }
    }
    Ok(chosen)
}

fn like(text: &str, recorded: &Recorded) -> Result<Option<Vec<u32>>, CountError> {
    let known = recorded.recording.cpus.max(1);
    let wrong = |problem: String| CountError::NoCpus {
        text: text.to_owned(),
        recorded: recorded.cpu_range(),
        problem,
    };
    if text == AS_RECORDED {
        return Ok(None);
    }
    let list = match text.parse::<u32>() {
        Ok(count) if (1..=MOST_CPUS).contains(&count) => {
            (0..count).map(|cpu| cpu % known).collect()
        }
        Ok(_) => return Err(wrong(format!("1 to {MOST_CPUS} CPUs"))),
        Err(_) => {
            let mut list = cpus(text).map_err(|error| wrong(error.to_string()))?;
            list.sort_unstable();
            list.dedup();
            list
        }
    };
    if let Some(cpu) = list.iter().find(|&&cpu| cpu >= known) {
        return Err(wrong(format!("CPU {cpu} is not recorded")));
    }
    if list.is_empty() {
        return Err(wrong("the list is empty".to_owned()));
    }
    Ok((list.iter().copied().ne(0..known)).then_some(list))
}
