//! Which VMs to move between hosts, so that all limits hold on every host.
//!
//! Each single move is tried. Sets of more moves continue the best few sets found so far.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use serde::Serialize;
use stealtime_results::parallel;

use crate::capacity::Replays;
use crate::capacity::cause::Taker;
use crate::capacity::curve::FEW_SEEDS;
use crate::capacity::document;
use crate::capacity::error::FitError;
use crate::capacity::figures::{Check, Measure, Outcome, Point};
use crate::capacity::fleet::Fleet;
use crate::capacity::limit::{Figure, Limit};
use crate::count::VmCount;

/// Sets of moves that are continued by one more move.
pub(crate) const CONTINUED: usize = 4;
/// No larger set of moves is tried.
pub(crate) const MOST_MOVES: usize = 8;

/// A move of a VM.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Migration {
    /// The VM.
    pub vm: String,
    /// The host that it leaves.
    pub source: String,
    /// The host that it comes to.
    pub destination: String,
    /// The host that it leaves, after this move; absent if no VM remains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_after: Option<Point>,
    /// The host that it comes to, after this move.
    pub destination_after: Point,
}

/// A host before and after all moves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostChange {
    /// Its name.
    pub host: String,
    /// CPUs.
    pub cpus: u32,
    /// As recorded, replayed.
    pub before: Point,
    /// After all moves; absent if no VM remains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Point>,
}

/// The limit that is broken by most on any host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostFailure {
    /// The host.
    pub host: String,
    /// The limit with its VM.
    pub check: Check,
    /// What has the CPUs while that VM is ready; empty where it is not ready.
    pub takers: Vec<Taker>,
}

/// The moves with which all limits hold, or those that come nearest to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rebalance {
    /// Limits that were held against each host.
    pub limits: Vec<Limit>,
    /// How the limit is defined that stands in for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<&'static str>,
    /// The answer in words.
    pub sentence: String,
    /// Whether all limits hold after the moves.
    pub is_balanced: bool,
    /// The moves, one after the other.
    pub moves: Vec<Migration>,
    /// The hosts.
    pub hosts: Vec<HostChange>,
    /// The limit that is broken by most as recorded; absent if all hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<HostFailure>,
    /// The same after the moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<HostFailure>,
    /// Sets of moves that were predicted.
    pub sets: usize,
}

impl Rebalance {
    /// Whether a limit that holds on average may fail within its band.
    pub(crate) fn is_unsure(&self) -> bool {
        let points = self.hosts.iter().filter_map(|host| host.after.as_ref());
        let mut checks = points.flat_map(|point| &point.checks);
        checks.any(|check| check.outcome == Outcome::ProbablyHolds)
    }
}

/// The host of each VM, by the VM's index.
type Places = Vec<usize>;

/// A host with some of the fleet's VMs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Crowd {
    host: usize,
    /// By the VM's index.
    is_present: Vec<bool>,
}

impl Crowd {
    fn new(places: &Places, host: usize) -> Self {
        let is_present = places.iter().map(|place| *place == host).collect();
        Self { host, is_present }
    }
}

/// How far a fleet is from its limits; fields in the order of their weight.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Excess {
    /// Hosts on which a limit is broken.
    hosts: usize,
    /// Sum over all broken limits, as shares of each.
    sum: f64,
    /// Limits that may be broken within the band.
    unsure: usize,
    /// Sum of ready time over all VMs, in percent: decides between fleets within all limits.
    ready: f64,
}

/// A set of moves.
#[derive(Debug, Clone)]
struct Path {
    /// The moved VM and its new host, in order.
    moves: Vec<(usize, usize)>,
    places: Places,
    excess: Excess,
}

struct Search<'s, R: ?Sized> {
    fleet: &'s Fleet<'s, R>,
    measures: Vec<Measure<'s>>,
    seeds: u64,
    jobs: NonZeroUsize,
    /// `None`: no VM remains.
    points: BTreeMap<Crowd, Option<Point>>,
    /// Sets of moves that were predicted.
    sets: usize,
}

impl<R: Replays + ?Sized> Search<'_, R> {
    /// The counts of a host's VMs, as its replays name them.
    fn counts(&self, crowd: &Crowd) -> Vec<VmCount> {
        let vms = self.fleet.vms.iter().zip(&crowd.is_present);
        let vms = vms.filter(|(vm, _)| self.fleet.can_host(crowd.host, vm));
        let counts = vms.map(|(vm, is_present)| VmCount {
            vm: vm.name_on(crowd.host).to_owned(),
            count: u32::from(*is_present),
        });
        counts.collect()
    }

    fn predict(&self, crowd: &Crowd) -> Result<Option<Point>, FitError> {
        let host = self.fleet.hosts.get(crowd.host);
        let Some((replays, measure)) = host.zip(self.measures.get(crowd.host)) else {
            debug_assert!(false, "a crowd is of a host");
            return Ok(None);
        };
        let present = crowd.is_present.iter().filter(|is_present| **is_present);
        let count = u32::try_from(present.count()).unwrap_or(u32::MAX);
        if count == 0 {
            return Ok(None);
        }
        let counts = self.counts(crowd);
        let point = |seeds: u64| {
            let replays = replays.replay(std::slice::from_ref(&counts), seeds)?;
            let replays = replays.first().map(Vec::as_slice).unwrap_or_default();
            measure.point(count, replays).ok_or(FitError::Stopped)
        };
        let fewest = FEW_SEEDS.min(self.seeds);
        let mut found = point(fewest)?;
        if fewest < self.seeds && !found.is_clear() {
            found = point(self.seeds)?;
        }
        Ok(Some(self.fleet.renamed(crowd.host, found)))
    }

    /// Predicts the hosts of these fleets that are not known yet.
    fn predict_all(&mut self, fleets: &[Places]) -> Result<(), FitError> {
        let mut unknown: Vec<Crowd> = Vec::new();
        for places in fleets {
            let crowds = (0..self.fleet.hosts.len()).map(|host| Crowd::new(places, host));
            unknown.extend(crowds.filter(|crowd| !self.points.contains_key(crowd)));
        }
        unknown.sort();
        unknown.dedup();
        let found = parallel::map(&unknown, self.jobs, |crowd| self.predict(crowd));
        for (crowd, point) in unknown.into_iter().zip(found) {
            self.points.insert(crowd, point?);
        }
        Ok(())
    }

    fn point(&self, places: &Places, host: usize) -> Option<&Point> {
        self.points.get(&Crowd::new(places, host))?.as_ref()
    }

    fn excess(&self, places: &Places) -> Excess {
        let mut excess = Excess {
            hosts: 0,
            sum: 0.0,
            unsure: 0,
            ready: 0.0,
        };
        for point in (0..self.fleet.hosts.len()).filter_map(|host| self.point(places, host)) {
            let broken = point.checks.iter().filter(|check| !check.outcome.is_held());
            excess.hosts += usize::from(point.broken().is_some());
            excess.sum += broken.map(Check::excess).sum::<f64>();
            let unsure = |check: &&Check| check.outcome == Outcome::ProbablyHolds;
            excess.unsure += point.checks.iter().filter(unsure).count();
            excess.ready += point
                .vms
                .iter()
                .map(|vm| vm.ready_percent.mean)
                .sum::<f64>();
        }
        excess
    }

    /// Each move of a VM from a host with a broken limit, after those of `path`. A VM moves once.
    fn continued(&self, path: &Path) -> Vec<Path> {
        let is_broken = |host: usize| {
            let point = self.point(&path.places, host);
            point.is_some_and(|point| point.broken().is_some())
        };
        let mut paths = Vec::new();
        for (index, (vm, &source)) in self.fleet.vms.iter().zip(&path.places).enumerate() {
            let is_moved = path.moves.iter().any(|moved| moved.0 == index);
            if is_moved || !is_broken(source) {
                continue;
            }
            for host in 0..self.fleet.hosts.len() {
                if host == source || !self.fleet.can_host(host, vm) {
                    continue;
                }
                let mut continued = path.clone();
                continued.moves.push((index, host));
                if let Some(place) = continued.places.get_mut(index) {
                    *place = host;
                }
                paths.push(continued);
            }
        }
        paths
    }

    /// The fewest moves found, or those that come nearest to all limits.
    fn search(&mut self, start: &Places) -> Result<Path, FitError> {
        let mut best = Path {
            moves: Vec::new(),
            places: start.clone(),
            excess: self.excess(start),
        };
        let mut paths = vec![best.clone()];
        let mut length = 0;
        // One move more than the best set has: an exchange of two VMs may be worse halfway.
        while best.excess.hosts > 0 && length <= best.moves.len() + 1 && length < MOST_MOVES {
            let mut continued: Vec<Path> =
                paths.iter().flat_map(|path| self.continued(path)).collect();
            if continued.is_empty() {
                break;
            }
            length += 1;
            // Where the VMs are in the end does not depend on the order of moves.
            continued.sort_by(|a, b| a.places.cmp(&b.places));
            continued.dedup_by(|a, b| a.places == b.places);
            self.sets += continued.len();
            let fleets: Vec<Places> = continued.iter().map(|path| path.places.clone()).collect();
            self.predict_all(&fleets)?;
            for path in &mut continued {
                path.excess = self.excess(&path.places);
            }
            continued.sort_by(|a, b| {
                let order = a.excess.partial_cmp(&b.excess);
                order.unwrap_or(Ordering::Equal)
            });
            continued.truncate(CONTINUED);
            if let Some(first) = continued.first().filter(|first| first.excess < best.excess) {
                best = first.clone();
            }
            paths = continued;
        }
        Ok(best)
    }

    /// The moves of a path with the hosts after each.
    fn migrations(&mut self, start: &Places, path: &Path) -> Result<Vec<Migration>, FitError> {
        let mut places = start.clone();
        let mut migrations = Vec::new();
        for &(vm, destination) in &path.moves {
            let (Some(place), Some(moved)) = (places.get_mut(vm), self.fleet.vms.get(vm)) else {
                debug_assert!(false, "a move is of a VM");
                continue;
            };
            let source = core::mem::replace(place, destination);
            self.predict_all(std::slice::from_ref(&places))?;
            let destination_after = self.point(&places, destination).cloned();
            migrations.push(Migration {
                vm: moved.name.clone(),
                source: self.fleet.host_name(source).to_owned(),
                destination: self.fleet.host_name(destination).to_owned(),
                source_after: self.point(&places, source).cloned(),
                destination_after: destination_after.ok_or(FitError::Stopped)?,
            });
        }
        Ok(migrations)
    }

    /// The limit that is broken by most, with what has the CPUs meanwhile.
    fn failure(&self, places: &Places) -> Result<Option<HostFailure>, FitError> {
        let hosts = 0..self.fleet.hosts.len();
        let broken = hosts.filter_map(|host| Some((host, self.point(places, host)?.broken()?)));
        let worst = broken.max_by(|a, b| a.1.excess().total_cmp(&b.1.excess()));
        let Some((host, check)) = worst else {
            return Ok(None);
        };
        let mut takers = Vec::new();
        let ready = check.vm.as_ref().zip(self.fleet.hosts.get(host));
        if let Some((name, replays)) = ready {
            let vm = self.fleet.vms.iter().find(|vm| vm.name == *name);
            let known = vm.map_or(name.as_str(), |vm| vm.name_on(host));
            let counts = self.counts(&Crowd::new(places, host));
            takers = replays.takers(&counts, known)?;
            for taker in &mut takers {
                taker.name = self.fleet.fleet_name(host, &taker.name);
            }
        }
        Ok(Some(HostFailure {
            host: self.fleet.host_name(host).to_owned(),
            check: check.clone(),
            takers,
        }))
    }
}

/// Finds the fewest moves with which all limits hold on every host. Without limits the knee stands in.
/// `seeds`: replays of a host that is near a limit; `jobs`: hosts that are replayed at a time.
///
/// # Errors
///
/// [`FitError`]
pub fn rebalance<R: Replays + ?Sized>(
    fleet: &Fleet<'_, R>,
    limits: &[Limit],
    seeds: u64,
    jobs: NonZeroUsize,
) -> Result<Rebalance, FitError> {
    fleet.check_limits(limits)?;
    let (limits, knee) = document::limits_or_knee(limits);
    fleet.check_bounds(&limits)?;
    let has_work = limits.iter().any(|limit| limit.figure == Figure::Work);
    let hosts = 0..fleet.hosts.len();
    let translated: Vec<Vec<Limit>> = hosts.map(|host| fleet.limits_on(host, &limits)).collect();
    let mut measures = Vec::new();
    for (replays, limits) in fleet.hosts.iter().zip(&translated) {
        let alone = match has_work {
            true => document::alone(*replays, FEW_SEEDS.min(seeds))?,
            false => Vec::new(),
        };
        let recorded = replays.recorded(seeds)?;
        measures.push(Measure::new(*replays, limits, alone, &recorded));
    }
    let mut search = Search {
        fleet,
        measures,
        seeds,
        jobs,
        points: BTreeMap::new(),
        sets: 0,
    };
    let start: Places = fleet.vms.iter().map(|vm| vm.home).collect();
    search.predict_all(std::slice::from_ref(&start))?;
    let path = search.search(&start)?;
    let moves = search.migrations(&start, &path)?;
    let mut hosts = Vec::new();
    for (host, replays) in fleet.hosts.iter().enumerate() {
        let recorded = search.point(&start, host).cloned();
        hosts.push(HostChange {
            host: fleet.host_name(host).to_owned(),
            cpus: replays.cpus(),
            before: recorded.ok_or(FitError::Stopped)?,
            after: search.point(&path.places, host).cloned(),
        });
    }
    let mut answer = Rebalance {
        limits,
        knee,
        sentence: String::new(),
        is_balanced: path.excess.hosts == 0,
        moves,
        hosts,
        before: search.failure(&start)?,
        after: search.failure(&path.places)?,
        sets: search.sets,
    };
    answer.sentence = super::sentence::of_rebalance(&answer);
    Ok(answer)
}
