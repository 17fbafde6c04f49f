//! VMs of other recordings, to add to a host.

use stealtime_host::Snapshot;
use stealtime_lab::spelling::suggestion;
use stealtime_replay::Guest;

use crate::capacity::HostVm;
use crate::capacity::recorded_vms;
use crate::recorded::Recorded;

/// A VM of another recording, to add to a host.
#[derive(Debug, Clone)]
pub struct AddedVm {
    /// Its name on this host.
    pub(crate) name: String,
    /// Its demand.
    pub(crate) demand: Guest,
    /// Its figures in its own recording.
    pub(crate) figures: HostVm,
    /// Recorded wakeups.
    pub(crate) wakeups: usize,
    /// Where it comes from, and how its demand is scaled.
    pub(crate) source: String,
}

/// Why a VM of another recording cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// No VM of this name.
    #[error("{file} has no VM {name}; {help}")]
    NoSuchVm {
        /// The other recording.
        file: String,
        /// The name.
        name: String,
        /// The nearest VM, or all.
        help: String,
    },
    /// A VM of this host has the name.
    #[error("this host has a VM {0}: give the other one a name by FILE:VM=NAME")]
    NameTaken(String),
    /// Another CPU.
    #[error(
        "{file} is of a host with another CPU ({there}; here {here}): CPU time of the one says nothing of \
         the other, so that the VM's demand cannot be scaled"
    )]
    OtherCpu {
        /// The other recording.
        file: String,
        /// Its CPU.
        there: String,
        /// This host's.
        here: String,
    },
}

/// How CPU time of another host counts here, in thousandths, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scale {
    cost_permille: u64,
    reason: String,
}

/// The CPU of a host: its model, and its highest clock in kHz.
fn cpu(snapshot: &Snapshot) -> Option<(String, Option<u64>)> {
    let info = &snapshot.cpu;
    let model = info.model.clone()?;
    let signature = info.signature.as_deref().unwrap_or_default();
    let khz = info.cpus.first().and_then(|cpu| cpu.max_khz);
    Some((format!("{model} {signature}").trim().to_owned(), khz))
}

impl Scale {
    /// Between two hosts. CPUs of one model do the same work in a cycle.
    fn between(
        file: &str,
        host: Option<&Snapshot>,
        foreign: Option<&Snapshot>,
    ) -> Result<Self, AddError> {
        let unscaled = |reason: String| Self {
            cost_permille: 1000,
            reason,
        };
        let (Some((model, own_khz)), Some((foreign_model, foreign_khz))) =
            (host.and_then(cpu), foreign.and_then(cpu))
        else {
            return Ok(unscaled(
                "the CPUs of the two hosts are not both known, and taken for equally fast"
                    .to_owned(),
            ));
        };
        if model != foreign_model {
            return Err(AddError::OtherCpu {
                file: file.to_owned(),
                there: foreign_model,
                here: model,
            });
        }
        Ok(match (own_khz, foreign_khz) {
            (Some(own_khz), Some(foreign_khz)) if own_khz != foreign_khz => Self {
                cost_permille: foreign_khz * 1000 / own_khz.max(1),
                reason: format!(
                    "its CPU time is scaled from {} to {} MHz",
                    foreign_khz / 1000,
                    own_khz / 1000
                ),
            },
            _ => unscaled(format!("both hosts have CPUs of one model, {model}")),
        })
    }
}

impl AddedVm {
    /// The VM `vm` of another recording, `file` by name, for `host`. `name` is its name there.
    ///
    /// # Errors
    ///
    /// No such VM, or one that cannot be scaled.
    pub fn new(
        host: &Recorded,
        file: &str,
        foreign: &Recorded,
        vm: &str,
        name: &str,
    ) -> Result<Self, AddError> {
        let Some(index) = foreign.vms.iter().position(|known| known == vm) else {
            let names: Vec<&str> = foreign.vms.iter().map(String::as_str).collect();
            return Err(AddError::NoSuchVm {
                file: file.to_owned(),
                name: vm.to_owned(),
                help: suggestion(vm, &names),
            });
        };
        if host.vms.iter().any(|known| known == name) {
            return Err(AddError::NameTaken(name.to_owned()));
        }
        let scale = Scale::between(file, host.snapshot.as_ref(), foreign.snapshot.as_ref())?;
        let Some(mut figures) = recorded_vms(foreign).into_iter().nth(index) else {
            debug_assert!(false, "each VM has figures");
            return Err(AddError::NameTaken(name.to_owned()));
        };
        name.clone_into(&mut figures.name);
        figures.is_added = true;
        figures.first = 0;
        let factor = scale.cost_permille as f64 / 1000.0;
        figures.run_ms *= factor;
        figures.work_ms *= factor;
        let vcpus = foreign.times.vcpus.iter().filter(|time| time.vm == index);
        Ok(Self {
            name: name.to_owned(),
            demand: Guest::new(&foreign.recording, index, scale.cost_permille),
            figures,
            wakeups: vcpus.map(|time| time.wakeups.len()).sum(),
            source: format!(
                "{name} is {vm} of {file}: {}{}{}",
                scale.reason,
                kernels(host, foreign),
                partial(foreign)
            ),
        })
    }
}

impl AddedVm {
    /// Its name on this host.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What differs between the kernels of two hosts, as a clause.
fn kernels(host: &Recorded, foreign: &Recorded) -> String {
    match (host.recording.release, foreign.recording.release) {
        (Some(own), Some(release)) if own != release => {
            format!("; exits cost what they cost on {release}, and this host has {own}")
        }
        _ => String::new(),
    }
}

/// Whether its demand may be of a part only, as a clause.
const fn partial(foreign: &Recorded) -> &'static str {
    match foreign.answers.source.partial {
        true => "; less of that recording was read than was recorded",
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use stealtime_host::Snapshot;

    use super::*;

    fn snapshot(model: &str, khz: Option<u64>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.cpu.model = Some(model.to_owned());
        snapshot.cpu.cpus = vec![stealtime_host::Cpu {
            max_khz: khz,
            ..Default::default()
        }];
        snapshot
    }

    #[test]
    fn demand_is_scaled_by_the_clock_of_one_model() {
        let (here, there) = (
            snapshot("A", Some(2_000_000)),
            snapshot("A", Some(3_000_000)),
        );
        let scale = Scale::between("other.dat", Some(&here), Some(&there)).expect("one model");
        assert_eq!(scale.cost_permille, 1500);
        assert_eq!(scale.reason, "its CPU time is scaled from 3000 to 2000 MHz");
        let scale = Scale::between("other.dat", Some(&here), None).expect("unknown");
        assert_eq!(scale.cost_permille, 1000);
        let error = Scale::between("other.dat", Some(&here), Some(&snapshot("B", None)));
        let error = error.expect_err("two models").to_string();
        assert!(
            error.starts_with("other.dat is of a host with another CPU (B; here A)"),
            "{error}"
        );
    }
}
