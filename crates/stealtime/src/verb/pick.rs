//! Whether what a user picked is there.

use stealtime_analysis::Answers;

use crate::error::CliError;
use crate::input::Analyzed;

/// At most so many names in a message.
const NAMED: usize = 20;

/// The VM is one of the recording.
pub(super) fn vms(wanted: &[String], known: &[String]) -> Result<(), CliError> {
    match wanted.iter().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(wanted) => Err(CliError::NoVm {
            asked: wanted.clone(),
            there: match known {
                [] => "run without --vm to see which there are".to_owned(),
                known => format!("there are {}", list(known)),
            },
        }),
    }
}

/// Some selected VM has the vCPU.
pub(super) fn vcpus(wanted: &[u32], known: &[u32]) -> Result<(), CliError> {
    match wanted.iter().find(|number| !known.contains(number)) {
        None => Ok(()),
        Some(wanted) => Err(CliError::NoVcpu {
            asked: *wanted,
            there: list(known),
        }),
    }
}

/// The host has the CPU.
pub(super) fn cpus(wanted: &[u16], answers: &Answers) -> Result<(), CliError> {
    cpus_of(wanted, answers.source.cpus)
}

/// A host with so many CPUs has the CPU.
pub(super) fn cpus_of(wanted: &[u16], cpus: u32) -> Result<(), CliError> {
    match wanted.iter().find(|cpu| u32::from(**cpu) >= cpus) {
        None => Ok(()),
        Some(wanted) => Err(CliError::NoCpu {
            asked: *wanted,
            there: format!("0 to {}", cpus.saturating_sub(1)),
        }),
    }
}

/// The window holds part of the recording.
pub(super) fn window(window: crate::args::Window, analyzed: &Analyzed) -> Result<(), CliError> {
    let source = &analyzed.answers.source;
    window_of(window, analyzed.first_ns, source.last_ns)
}

/// The window holds part of a recording from `first` to `last`. There need be no event in it: what
/// lasts is there all the same.
pub(crate) fn window_of(
    window: crate::args::Window,
    first: u64,
    last: u64,
) -> Result<(), CliError> {
    let begin = window.from.map(|begin| begin.resolve(first));
    let end = window.until.map(|moment| moment.resolve(first));
    let wrong = |option, moment: u64, problem| {
        let after = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        Err(CliError::Window {
            option,
            asked: format!("@{}", after(moment)),
            problem,
            span: format!("@{} to @{}", after(first), after(last)),
        })
    };
    match (begin, end) {
        (Some(begin), Some(end)) if end <= begin => wrong("--until", end, "not after --from"),
        (_, Some(end)) if end <= first => wrong("--until", end, "before the first event"),
        (Some(begin), _) if begin > last => wrong("--from", begin, "after the last event"),
        _ => Ok(()),
    }
}

/// Numbers of the vCPUs in an answer.
pub(super) fn numbers(answers: &Answers) -> Vec<u32> {
    let mut numbers: Vec<_> = answers.vcpus.iter().map(|vcpu| vcpu.vcpu).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Names of the VMs in an answer.
pub(super) fn names(answers: &Answers) -> Vec<String> {
    answers.vms.iter().map(|vm| vm.vm.clone()).collect()
}

fn list<T: ToString>(items: &[T]) -> String {
    let mut names: Vec<_> = items.iter().take(NAMED).map(ToString::to_string).collect();
    if items.len() > NAMED {
        names.push(format!("{} more", items.len() - NAMED));
    }
    names.join(", ")
}
