//! Pins: which CPUs vCPUs and other tasks may use.

use std::collections::BTreeMap;
use std::fmt;

use stealtime_lab::knobs::unquote;
use stealtime_lab::units::{self, CpuListError};
use stealtime_replay::RecordedTask;
use stealtime_replay::host::Assumed;

use crate::recorded::Recorded;

/// A vCPU: the index of its VM among the answers', and its number.
type Vcpu = (usize, u32);

/// The CPUs that some vCPUs, or some tasks that are no vCPUs, may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    text: String,
    vcpus: Vec<(Vcpu, Vec<u32>)>,
    /// By thread id.
    tasks: Vec<(i32, Vec<u32>)>,
}

/// Why a pin is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The pin does not name tasks and CPUs of this recording.
    #[error("--pin {text}: {problem}")]
    Wrong {
        /// The pin as given.
        text: String,
        /// What is wrong with it.
        problem: PinProblem,
    },
    /// Two pins are for the same task.
    #[error("--pin {first} and --pin {second} both say where {task} may run: say it once")]
    Twice {
        /// The pin given first.
        first: String,
        /// The other one.
        second: String,
        /// The task or vCPU.
        task: String,
    },
}

/// What is wrong with a pin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinProblem {
    /// No `=`.
    #[error("expected VM/VCPU=CPUS, VM=CPUS or task:NAME=CPUS")]
    Syntax,
    /// CPUs that do not parse.
    #[error(transparent)]
    Cpus(#[from] CpuListError),
    /// No CPUs at all.
    #[error("no CPUs: give 3, 0-3 or 0-3,8")]
    NoCpus,
    /// A CPU that the host has not.
    #[error("{cpu}: the host has CPUs {cpus}")]
    NoSuchCpu {
        /// The CPU given.
        cpu: u32,
        /// Those of the host.
        cpus: String,
    },
    /// A VM that the recording has not.
    #[error("no VM {name:?}; there are: {known}")]
    NoSuchVm {
        /// The name given.
        name: String,
        /// The VMs of the recording.
        known: String,
    },
    /// The part after the slash is no number.
    #[error("the vCPU is not a number")]
    NotANumber,
    /// A vCPU that the VM has not.
    #[error("VM {0:?} has no such vCPU")]
    NoSuchVcpu(String),
    /// A task that the recording has not.
    #[error("no task but vCPUs has the name or id {0:?}")]
    NoSuchTask(String),
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// CPUs of a pin: all of them for each task, or one for each in turn (`1:1`).
struct Cpus {
    list: Vec<u32>,
    in_turn: bool,
}

impl Cpus {
    fn parse(text: &str, recorded: &Recorded) -> Result<Self, PinProblem> {
        let in_turn = text.trim_start().strip_prefix("1:1 ");
        let parsed = units::cpus(in_turn.unwrap_or(text))?;
        let mut list: Vec<u32> = Vec::new();
        for cpu in parsed {
            if cpu >= recorded.recording.cpus {
                let cpus = recorded.cpu_range();
                return Err(PinProblem::NoSuchCpu { cpu, cpus });
            }
            if !list.contains(&cpu) {
                list.push(cpu);
            }
        }
        // An empty set would forbid every CPU.
        if list.is_empty() {
            return Err(PinProblem::NoCpus);
        }
        // The order matters only where CPUs are given out in turn.
        if in_turn.is_none() {
            list.sort_unstable();
        }
        Ok(Self {
            list,
            in_turn: in_turn.is_some(),
        })
    }

    /// The CPUs of the task at `index`.
    fn nth(&self, index: usize) -> Vec<u32> {
        match self.in_turn {
            true => vec![self.list[index % self.list.len()]],
            false => self.list.clone(),
        }
    }
}

impl Pin {
    /// Parses a pin; CPUs are as `0,2-3`:
    ///
    /// - `VM/VCPU=CPUS`, `VM=CPUS` for all vCPUs of a VM, `VM=1:1 CPUS` for a CPU each in turn;
    /// - `task:NAME=CPUS` and `task:TID=CPUS` for tasks that are no vCPUs.
    ///
    /// A VM's name may be in quotes, as in names of knobs.
    ///
    /// # Errors
    ///
    /// [`PinError::Wrong`]
    pub fn parse(text: &str, recorded: &Recorded) -> Result<Self, PinError> {
        Self::resolve(text, recorded).map_err(|problem| PinError::Wrong {
            text: text.to_owned(),
            problem,
        })
    }

    fn resolve(text: &str, recorded: &Recorded) -> Result<Self, PinProblem> {
        let (subject, list) = text.rsplit_once('=').ok_or(PinProblem::Syntax)?;
        let cpus = Cpus::parse(list, recorded)?;
        let mut pin = Self {
            text: text.to_owned(),
            vcpus: Vec::new(),
            tasks: Vec::new(),
        };
        let is_vm = |name: &str| recorded.vms.iter().any(|vm| vm == name);
        if let Some((name, rest)) = unquote(subject).filter(|(name, _)| is_vm(name)) {
            let number = rest.strip_prefix('/');
            if number.is_none() && !rest.is_empty() {
                return Err(PinProblem::Syntax);
            }
            pin.vcpus = vcpus(&name, number, &cpus, recorded)?;
            return Ok(pin);
        }
        // A VM may be called `task:x` or `a/0`: whole names of VMs come first.
        let (name, number) = match subject.rsplit_once('/') {
            Some((name, number)) if !is_vm(subject) => (name, Some(number)),
            _ => (subject, None),
        };
        match subject.strip_prefix("task:") {
            Some(task) if !is_vm(subject) => pin.tasks = tasks(task, &cpus, recorded)?,
            _ => pin.vcpus = vcpus(name, number, &cpus, recorded)?,
        }
        Ok(pin)
    }

    /// Restricts the tasks of a replay to it.
    pub(crate) fn apply(&self, assumed: &mut Assumed) {
        assumed.pins.extend(self.vcpus.iter().cloned());
        assumed.task_pins.extend(self.tasks.iter().cloned());
    }

    /// The CPUs that it allows a task; `None` for a task that it is not for.
    pub(crate) fn cpus(&self, task: &RecordedTask) -> Option<&[u32]> {
        let vcpus = self.vcpus.iter().rev();
        let mut vcpus = vcpus
            .filter(|pin| Some(pin.0) == task.vcpu)
            .map(|pin| &pin.1);
        let tasks = self.tasks.iter().rev();
        let mut tasks = tasks.filter(|pin| pin.0 == task.tid).map(|pin| &pin.1);
        vcpus.next().or_else(|| tasks.next()).map(Vec::as_slice)
    }

    /// The pinned tasks, for messages.
    fn subjects(&self, recorded: &Recorded) -> Vec<String> {
        let name = |vm: usize| recorded.vms.get(vm).map_or("", String::as_str);
        let vcpus = self.vcpus.iter().map(|((vm, vcpu), _)| {
            let vm = name(*vm);
            format!("vCPU {vcpu} of {vm}")
        });
        let tasks = self.tasks.iter().map(|(tid, _)| format!("task {tid}"));
        vcpus.chain(tasks).collect()
    }
}

/// Pins of all vCPUs of a VM, or of one.
fn vcpus(
    name: &str,
    number: Option<&str>,
    cpus: &Cpus,
    recorded: &Recorded,
) -> Result<Vec<(Vcpu, Vec<u32>)>, PinProblem> {
    let Some(vm) = recorded.vms.iter().position(|vm| vm == name) else {
        return Err(PinProblem::NoSuchVm {
            name: name.to_owned(),
            known: recorded.vms.join(", "),
        });
    };
    let number = match number.map(str::parse::<u32>) {
        None => None,
        Some(Ok(number)) => Some(number),
        Some(Err(_)) => return Err(PinProblem::NotANumber),
    };
    let rows = recorded.answers.vcpus.iter().filter(|row| row.vm == name);
    let rows = rows.filter(|row| number.is_none_or(|number| number == row.vcpu));
    let pins = rows.enumerate().map(|(index, row)| {
        let vcpu = (vm, row.vcpu);
        (vcpu, cpus.nth(index))
    });
    let pins: Vec<(Vcpu, Vec<u32>)> = pins.collect();
    match pins.is_empty() {
        true => Err(PinProblem::NoSuchVcpu(name.to_owned())),
        false => Ok(pins),
    }
}

/// Pins of tasks that are no vCPUs, by name or thread id.
fn tasks(
    subject: &str,
    cpus: &Cpus,
    recorded: &Recorded,
) -> Result<Vec<(i32, Vec<u32>)>, PinProblem> {
    let tid = subject.parse::<i32>().ok();
    let tasks = recorded.recording.tasks.iter();
    let tasks = tasks.filter(|task| task.vcpu.is_none());
    let found = tasks.filter(|task| task.name == subject || Some(task.tid) == tid);
    let pins: Vec<(i32, Vec<u32>)> = found.map(|task| (task.tid, cpus.list.clone())).collect();
    match pins.is_empty() {
        true => Err(PinProblem::NoSuchTask(subject.to_owned())),
        false => Ok(pins),
    }
}

/// Parses pins of which no two are for the same task: which of them holds would be a guess. (What
/// `--auto` tries comes on top of them, and holds.)
pub(crate) fn parse_all(texts: &[String], recorded: &Recorded) -> Result<Vec<Pin>, PinError> {
    let mut pinned: BTreeMap<String, &str> = BTreeMap::new();
    let mut pins = Vec::new();
    for text in texts {
        let pin = Pin::parse(text, recorded)?;
        for task in pin.subjects(recorded) {
            if let Some(first) = pinned.get(&task) {
                return Err(PinError::Twice {
                    first: (*first).to_owned(),
                    second: text.clone(),
                    task,
                });
            }
            pinned.insert(task, text);
        }
        pins.push(pin);
    }
    Ok(pins)
}
