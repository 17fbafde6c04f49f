//! Whether what a user picked is there.

use stealtime_analysis::Answers;

use crate::error::CliError;
use crate::input::Analyzed;

/// At most so many names in a message.
const NAMED: usize = 20;

/// The VM is one of the recording.
pub(super) fn vms(asked: &[String], there: &[String]) -> Result<(), CliError> {
    match asked.iter().find(|name| !there.contains(name)) {
        None => Ok(()),
        Some(asked) => Err(CliError::NoVm {
            asked: asked.clone(),
            there: match there {
                [] => "run without --vm to see which there are".to_owned(),
                there => format!("there are {}", list(there)),
            },
        }),
    }
}

/// Some selected VM has the vCPU.
pub(super) fn vcpus(asked: &[u32], there: &[u32]) -> Result<(), CliError> {
    match asked.iter().find(|number| !there.contains(number)) {
        None => Ok(()),
        Some(asked) => Err(CliError::NoVcpu {
            asked: *asked,
            there: list(there),
        }),
    }
}

/// The host has the CPU.
pub(super) fn cpus(asked: &[u16], answers: &Answers) -> Result<(), CliError> {
    cpus_of(asked, answers.source.cpus)
}

/// A host with so many CPUs has the CPU.
pub(super) fn cpus_of(asked: &[u16], cpus: u32) -> Result<(), CliError> {
    match asked.iter().find(|cpu| u32::from(**cpu) >= cpus) {
        None => Ok(()),
        Some(asked) => Err(CliError::NoCpu {
            asked: *asked,
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
pub(super) fn window_of(
    window: crate::args::Window,
    first: u64,
    last: u64,
) -> Result<(), CliError> {
    let from = window.from.map(|from| from.resolve(first));
    let to = window.until.map(|until| until.resolve(first));
    let wrong = |option, asked: u64, problem| {
        let after = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        Err(CliError::Window {
            option,
            asked: format!("@{}", after(asked)),
            problem,
            span: format!("@{} to @{}", after(first), after(last)),
        })
    };
    match (from, to) {
        (Some(from), Some(to)) if to <= from => wrong("--until", to, "not after --from"),
        (_, Some(to)) if to <= first => wrong("--until", to, "before the first event"),
        (Some(from), _) if from > last => wrong("--from", from, "after the last event"),
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
