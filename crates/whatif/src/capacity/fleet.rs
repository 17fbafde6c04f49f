//! Hosts of several recordings, each with the VMs of all others to add.

use std::collections::BTreeSet;

use stealtime_lab::spelling::suggestion;

use crate::added::{AddError, AddedVm};
use crate::baseline::Baseline;
use crate::capacity::error::FitError;
use crate::capacity::figures::Point;
use crate::capacity::limit::{Figure, Limit};
use crate::capacity::{HostVm, Replays};
use crate::error::Error;

/// A VM of a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetVm {
    /// The index of the host on which it was recorded.
    pub home: usize,
    /// Its name there.
    pub home_name: String,
    /// Its name in answers, and on other hosts: that of no other VM.
    pub name: String,
}

impl FleetVm {
    /// Its name in replays of a host.
    pub(crate) fn name_on(&self, host: usize) -> &str {
        match host == self.home {
            true => &self.home_name,
            false => &self.name,
        }
    }

    /// Whether a name is of it. A name that several hosts have is of each of these VMs.
    fn is_named(&self, name: &str) -> bool {
        self.home_name == name || self.name == name
    }
}

/// Names for the hosts of these recordings: their paths without what all begin or end with, if something of
/// each remains.
#[must_use]
pub fn host_names(paths: &[String]) -> Vec<String> {
    let parts: Vec<Vec<&str>> = paths.iter().map(|path| path.split('/').collect()).collect();
    let is_common = |part: &dyn Fn(&[&str]) -> Option<String>| {
        let mut parts = parts.iter().map(|parts| part(parts));
        let first = parts.next().flatten();
        first.is_some() && parts.all(|part| part == first)
    };
    let owned = |part: Option<&&str>| part.map(|part| (*part).to_owned());
    let heads = (0..).take_while(|head| is_common(&|parts| owned(parts.get(*head))));
    let tails = (1..).take_while(|tail| {
        is_common(&|parts| {
            owned(
                parts
                    .len()
                    .checked_sub(*tail)
                    .and_then(|tail| parts.get(tail)),
            )
        })
    });
    let (head, tail) = (heads.count(), tails.count());
    let middle = |parts: &Vec<&str>| {
        let middle = parts.get(head..parts.len().saturating_sub(tail));
        middle.unwrap_or_default().join("/")
    };
    let names: Vec<String> = parts.iter().map(middle).collect();
    match names.iter().any(String::is_empty) {
        true => paths.to_vec(),
        false => names,
    }
}

/// A host with the names of its VMs.
pub(crate) struct HostNames<'n> {
    pub(crate) host: &'n str,
    pub(crate) vms: &'n [String],
}

/// All VMs of several hosts: `web`, or `web@host2.dat` where two hosts have a web.
///
/// # Errors
///
/// [`FitError::TwoVmsOn`]: two VMs of one host have one name.
pub(crate) fn named(hosts: &[HostNames<'_>]) -> Result<Vec<FleetVm>, FitError> {
    let mut vms = Vec::new();
    for (home, HostNames { host, vms: names }) in hosts.iter().enumerate() {
        let mut known = BTreeSet::new();
        for name in *names {
            if !known.insert(name) {
                return Err(FitError::TwoVmsOn {
                    host: (*host).to_owned(),
                    name: name.clone(),
                });
            }
            let mut namesakes = hosts.iter().enumerate();
            let is_shared =
                namesakes.any(|(index, known)| index != home && known.vms.contains(name));
            vms.push(FleetVm {
                home,
                home_name: name.clone(),
                name: match is_shared {
                    true => format!("{name}@{host}"),
                    false => name.clone(),
                },
            });
        }
    }
    Ok(vms)
}

/// The VMs of several hosts, joined.
#[derive(Debug)]
pub struct FleetVms {
    /// All of them, host by host.
    pub vms: Vec<FleetVm>,
    /// Pairs of hosts between which no VM moves, with the reason.
    pub refused: Vec<String>,
}

/// Adds to each host the VMs of all others. Hosts with other CPUs get none of them.
///
/// # Errors
///
/// [`FitError::TwoVmsOn`]; the reason if no VM can be on another host.
pub fn join(hosts: &mut [Baseline], names: &[String]) -> Result<FleetVms, FitError> {
    let pairs = names.iter().map(String::as_str).zip(hosts.iter());
    let pairs = pairs.map(|(host, base)| HostNames {
        host,
        vms: &base.recorded().vms,
    });
    let vms = named(&pairs.collect::<Vec<_>>())?;
    let mut refused: Vec<AddError> = Vec::new();
    let mut added: Vec<Vec<AddedVm>> = Vec::new();
    for (host, base) in hosts.iter().enumerate() {
        let mut guests = Vec::new();
        for vm in vms.iter().filter(|vm| vm.home != host) {
            let (Some(foreign), Some(home)) = (hosts.get(vm.home), names.get(vm.home)) else {
                continue;
            };
            let foreign = foreign.recorded();
            match AddedVm::new(base.recorded(), home, foreign, &vm.home_name, &vm.name) {
                Ok(guest) => guests.push(guest),
                Err(error @ AddError::OtherCpu { .. }) if refused.contains(&error) => {}
                Err(error @ AddError::OtherCpu { .. }) => refused.push(error),
                Err(error) => return Err(Error::from(error).into()),
            }
        }
        added.push(guests);
    }
    if added.iter().all(Vec::is_empty)
        && let Some(error) = refused.first()
    {
        return Err(Error::from(error.clone()).into());
    }
    for (base, guests) in hosts.iter_mut().zip(added) {
        for guest in guests {
            base.add(guest).map_err(Error::from)?;
        }
    }
    let refused = refused.iter().map(ToString::to_string).collect();
    Ok(FleetVms { vms, refused })
}

/// The hosts of a fleet with their VMs.
#[derive(Debug)]
pub struct Fleet<'f, R: ?Sized> {
    /// Each host. It has its own VMs, and can have those of others under their fleet's names.
    pub hosts: Vec<&'f R>,
    /// The name of each.
    pub names: Vec<String>,
    /// All VMs.
    pub vms: Vec<FleetVm>,
}

impl<R: Replays + ?Sized> Fleet<'_, R> {
    /// The name of a host.
    pub(crate) fn host_name(&self, host: usize) -> &str {
        self.names.get(host).map_or("", String::as_str)
    }

    /// Whether a VM can be on a host.
    pub(crate) fn can_host(&self, host: usize, vm: &FleetVm) -> bool {
        let vms = self.hosts.get(host).map(|replays| replays.vms());
        let mut vms = vms.into_iter().flatten();
        vms.any(|known| known.name == vm.name_on(host))
    }

    /// The limits as a host's replays name its VMs.
    pub(crate) fn limits_on(&self, host: usize, limits: &[Limit]) -> Vec<Limit> {
        let mut translated = Vec::new();
        for limit in limits {
            let Some(name) = &limit.vm else {
                translated.push(limit.clone());
                continue;
            };
            let vms = self.vms.iter().filter(|vm| vm.is_named(name));
            translated.extend(vms.map(|vm| Limit {
                vm: Some(vm.name_on(host).to_owned()),
                ..limit.clone()
            }));
        }
        translated
    }

    /// Names the VMs of a host's figures as the fleet does.
    pub(crate) fn renamed(&self, host: usize, mut point: Point) -> Point {
        let name = |known: &mut String| *known = self.fleet_name(host, known);
        for vm in &mut point.vms {
            name(&mut vm.vm);
        }
        for check in &mut point.checks {
            check.vm.as_mut().map(name);
            check.limit.vm.as_mut().map(name);
        }
        point
    }

    /// The fleet's name of a VM that a host's replays name so.
    pub(crate) fn fleet_name(&self, host: usize, name: &str) -> String {
        let vm = self.vms.iter().find(|vm| vm.name_on(host) == name);
        vm.map_or_else(|| name.to_owned(), |vm| vm.name.clone())
    }

    /// A VM on the host on which it was recorded.
    fn at_home(&self, vm: &FleetVm) -> Option<&HostVm> {
        let vms = self.hosts.get(vm.home)?.vms();
        vms.iter().find(|known| known.name == vm.home_name)
    }

    /// Checks that each of these limits bounds something on some host.
    pub(crate) fn check_bounds(&self, limits: &[Limit]) -> Result<(), FitError> {
        for limit in limits {
            let is_meant = |vm: &&FleetVm| limit.vm.as_ref().is_none_or(|name| vm.is_named(name));
            let vms = self.vms.iter().filter(is_meant);
            let vms: Vec<&HostVm> = vms.filter_map(|vm| self.at_home(vm)).collect();
            limit.check_bounds(&vms)?;
        }
        Ok(())
    }

    /// Checks the names of VMs in limits.
    pub(crate) fn check_limits(&self, limits: &[Limit]) -> Result<(), FitError> {
        for limit in limits {
            let Some(name) = limit
                .vm
                .as_ref()
                .filter(|_| limit.figure != Figure::Overhead)
            else {
                continue;
            };
            if !self.vms.iter().any(|vm| vm.is_named(name)) {
                let names: Vec<&str> = self.vms.iter().map(|vm| vm.name.as_str()).collect();
                return Err(FitError::NoVm {
                    option: format!("--limit {limit}"),
                    name: name.clone(),
                    help: suggestion(name, &names),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_by_what_their_paths_differ_in() {
        for (paths, names) in [
            (["a.dat", "b.dat"], ["a.dat", "b.dat"]),
            (["t/a/trace.dat", "t/b/trace.dat"], ["a", "b"]),
            (["t/a/1/trace.dat", "t/b/trace.dat"], ["a/1", "b"]),
            (["trace.dat", "b/trace.dat"], ["trace.dat", "b/trace.dat"]),
        ] {
            assert_eq!(host_names(&paths.map(str::to_owned)), names);
        }
    }
}
