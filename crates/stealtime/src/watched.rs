//! Samples of this host as it runs, or of a recording.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use stealtime_collector::{Collector, KnownVm, Sample};
use stealtime_events::Event;
use stealtime_host::{Manager, Scheduler, Snapshot};
use stealtime_live::{BpfError, BpfFollower, Flight, Follower, Keep, KernelCost, Missing};
use stealtime_trace::EventSource;
use stealtime_track::names::vcpu_in_name;

use crate::error::CliError;
use crate::output;
use crate::scheduler::{self, PLACE};

/// Time between rounds over the buffers of all CPUs: they hold seconds.
pub(crate) const ROUND: Duration = Duration::from_millis(50);
/// Shortest time between snapshots of the host, which cost some 100 ms of CPU time on a large one.
const SNAPSHOTS: Duration = Duration::from_secs(5);

/// What the host knows of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VmFacts {
    /// Its name.
    pub(crate) name: String,
    /// What runs it, as in a snapshot.
    pub(crate) manager: String,
    /// Its name in libvirt.
    pub(crate) domain: Option<String>,
    pub(crate) pod: Option<String>,
    pub(crate) namespace: Option<String>,
}

/// How events of a live host are collected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Means {
    /// By BPF where the kernel allows it, else by tracefs; a note says why
    #[default]
    Auto,
    /// By BPF programs
    Bpf,
    /// By a tracing instance
    Tracefs,
}

/// How a live host is watched.
#[derive(Debug, Args)]
pub(crate) struct Collection {
    /// MiB of each CPU's ring buffer; by default by the memory and the CPUs of the host
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1024))]
    buffer: Option<u64>,

    /// How events are collected
    #[arg(
        long,
        value_name = "MEANS",
        value_enum,
        default_value_t,
        conflicts_with = "replay"
    )]
    collector: Means,
}

/// What collecting has cost in one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Cost {
    /// `bpf` or `tracefs`; `None`: of a recording.
    pub(crate) by: Option<&'static str>,
    /// CPU time of this process, in ns; `None`: of a recording.
    pub(crate) cpu_ns: Option<u64>,
    /// Time of BPF programs in the kernel, in ns; `None` without them, and unless the kernel counts it.
    pub(crate) kernel_ns: Option<u64>,
    /// Their runs.
    pub(crate) kernel_runs: Option<u64>,
}

impl Cost {
    /// Adds that of a further interval.
    pub(crate) fn add(&mut self, added: &Self) {
        let sums = [
            (&mut self.cpu_ns, added.cpu_ns),
            (&mut self.kernel_ns, added.kernel_ns),
            (&mut self.kernel_runs, added.kernel_runs),
        ];
        for (sum, added) in sums {
            if let Some(added) = added {
                *sum.get_or_insert(0) += added;
            }
        }
        self.by = added.by;
    }
}

/// Where samples come from.
pub(crate) struct Watched {
    feed: Feed,
    collector: Collector,
    facts: Facts,
    cost: Cost,
    cpu_before: Duration,
    kernel_before: KernelCost,
    /// Where `scx_stealtime` publishes its counters; `None` for a recording.
    scheduler: Option<PathBuf>,
}

enum Feed {
    Bpf(Box<BpfFollower>),
    Tracefs(Box<Follower>),
    Recording(Replay),
}

/// A recording that is read as if it happened.
struct Replay {
    source: Box<dyn EventSource>,
    /// An event that is not due yet.
    next: Option<Event>,
    /// Time of the first event, in ns of its clock.
    first: Option<u64>,
    /// When the reading began, if it goes at the recording's own pace.
    began: Option<Instant>,
    is_over: bool,
}

fn warn(text: &str) {
    output::note(&format!("stealtime: {text}"));
}

impl Watched {
    /// This host, with a sample each `interval`. The caller starts so many threads.
    pub(crate) fn host(
        interval: Duration,
        collection: &Collection,
        threads: usize,
    ) -> Result<Self, CliError> {
        stealtime_live::check_address_space(threads).map_err(CliError::Follow)?;
        let buffer_kb = collection.buffer.map(|mib| mib * 1024);
        let mut watched = match Self::bpf(buffer_kb, collection.collector)? {
            Some(follower) => Self::follow(Feed::Bpf(Box::new(follower)), interval),
            None => {
                let follower = Follower::start(None, buffer_kb, &mut warn);
                let follower = follower.map_err(CliError::Follow)?;
                Self::follow(Feed::Tracefs(Box::new(follower)), interval)
            }
        };
        watched.facts.read();
        Ok(watched)
    }

    /// This host's BPF programs; `None`: tracefs is to be used.
    fn bpf(buffer_kb: Option<u64>, means: Means) -> Result<Option<BpfFollower>, CliError> {
        if means == Means::Tracefs {
            return Ok(None);
        }
        match BpfFollower::start(buffer_kb, |name| vcpu_in_name(name).is_some()) {
            Ok(follower) => Ok(Some(follower)),
            Err(error) if means == Means::Bpf => Err(CliError::Bpf(error)),
            // Collection by tracefs fails in the same way, and says so.
            Err(BpfError::Tracefs(_)) => Ok(None),
            Err(error) => {
                warn(&format!(
                    "events are collected by tracefs, not by BPF: {error}"
                ));
                Ok(None)
            }
        }
    }

    /// This host, with its latest events for [`Watched::flight`]. The caller starts so many threads.
    pub(crate) fn recorder(
        interval: Duration,
        buffer_kb: Option<u64>,
        keep: Keep,
        threads: usize,
    ) -> Result<Self, CliError> {
        stealtime_live::check_address_space(threads).map_err(CliError::Follow)?;
        // Before the first event: conditions name VMs.
        let snapshot = Snapshot::read(Path::new("/"));
        let follower = Follower::start_keeping(keep, buffer_kb, &mut warn);
        let follower = Box::new(follower.map_err(CliError::Follow)?);
        let mut watched = Self::follow(Feed::Tracefs(follower), interval);
        watched.facts.keeps_snapshot = true;
        match snapshot {
            Ok(snapshot) => watched.facts.keep(snapshot, &mut watched.collector),
            Err(error) => warn(&format!("names of VMs are not known: {error}")),
        }
        Ok(watched)
    }

    fn follow(feed: Feed, interval: Duration) -> Self {
        let missing: &[Missing] = match &feed {
            Feed::Bpf(follower) => follower.missing(),
            Feed::Tracefs(follower) => follower.missing(),
            Feed::Recording(_) => &[],
        };
        for missing in missing {
            warn(&format!(
                "without {}: {} ({})",
                missing.events.join(" "),
                missing.without,
                missing.reason.text()
            ));
        }
        let mut watched = Self::new(feed, interval);
        watched.scheduler = Some(PathBuf::from(PLACE));
        watched
    }

    /// A recording of the latest events, and the latest snapshot of the host; `None` of a recording.
    pub(crate) fn flight(&mut self) -> Option<(Flight, Option<Arc<Snapshot>>)> {
        match &mut self.feed {
            Feed::Tracefs(follower) => Some((follower.flight()?, self.facts.snapshot.clone())),
            Feed::Bpf(_) | Feed::Recording(_) => None,
        }
    }

    /// A recording; at its own pace if it is shown on a screen.
    pub(crate) fn recording(
        path: &Path,
        interval: Duration,
        is_paced: bool,
    ) -> Result<Self, CliError> {
        let source = stealtime_trace::open(path).map_err(CliError::Open)?;
        let snapshot = source.info().snapshot.as_deref().map(Snapshot::from_json);
        let replay = Replay {
            source,
            next: None,
            first: None,
            began: is_paced.then(Instant::now),
            is_over: false,
        };
        let mut watched = Self::new(Feed::Recording(replay), interval);
        match snapshot {
            Some(Ok(snapshot)) => watched.facts.learn(&snapshot, &mut watched.collector),
            Some(Err(error)) => output::note(&format!(
                "stealtime: the host's snapshot in the recording is not used: {error}"
            )),
            None => {}
        }
        Ok(watched)
    }

    fn new(feed: Feed, interval: Duration) -> Self {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let cost = Cost {
            by: match &feed {
                Feed::Bpf(_) => Some("bpf"),
                Feed::Tracefs(_) => Some("tracefs"),
                Feed::Recording(_) => None,
            },
            ..Cost::default()
        };
        Self {
            feed,
            collector: Collector::new(interval_ns),
            facts: Facts::default(),
            cost,
            cpu_before: Duration::ZERO,
            kernel_before: KernelCost::default(),
            scheduler: None,
        }
    }

    /// Reads the scheduler's counters from another file, also for a recording.
    pub(crate) fn set_scheduler(&mut self, place: Option<&Path>) {
        if let Some(place) = place {
            self.scheduler = Some(place.to_owned());
        }
    }

    /// What `scx_stealtime` has counted, if it schedules this host.
    pub(crate) fn scheduler(&self) -> Option<Scheduler> {
        scheduler::read(self.scheduler.as_deref()?)
    }

    /// Takes the events that are due. Returns whether more may come.
    pub(crate) fn poll(&mut self) -> Result<bool, CliError> {
        let collector = &mut self.collector;
        match &mut self.feed {
            Feed::Bpf(follower) => {
                let limit = follower.round(&mut |event, names| collector.event(event, names));
                collector.advance(limit, follower.names());
            }
            Feed::Tracefs(follower) => {
                let limit = follower
                    .round(&mut |event, names| collector.event(event, names))
                    .map_err(CliError::Follow)?;
                collector.advance(limit, follower.names());
            }
            Feed::Recording(replay) => return replay.poll(collector),
        }
        self.facts.refresh(collector);
        Ok(true)
    }

    /// Whether the events come by themselves, so that there is a time to wait between polls.
    pub(crate) const fn is_timed(&self) -> bool {
        match &self.feed {
            Feed::Bpf(_) | Feed::Tracefs(_) => true,
            Feed::Recording(replay) => replay.began.is_some(),
        }
    }

    /// The next sample, and what collecting it has cost.
    pub(crate) fn sample(&mut self) -> Option<(Sample, Cost)> {
        let sample = self.collector.next_sample()?;
        let now = match &self.feed {
            Feed::Bpf(follower) => {
                if let Some(now) = follower.kernel_cost() {
                    let former = std::mem::replace(&mut self.kernel_before, now);
                    self.cost.kernel_ns = Some(now.ns.saturating_sub(former.ns));
                    self.cost.kernel_runs = Some(now.runs.saturating_sub(former.runs));
                }
                Some(follower.cpu_time())
            }
            Feed::Tracefs(follower) => Some(follower.cpu_time()),
            Feed::Recording(_) => None,
        };
        if let Some(now) = now {
            let spent = now.saturating_sub(std::mem::replace(&mut self.cpu_before, now));
            self.cost.cpu_ns = u64::try_from(spent.as_nanos()).ok();
        }
        Some((sample, self.cost))
    }

    /// What the host knows of the VM of a process.
    pub(crate) fn facts(&self, pid: i32) -> Option<&VmFacts> {
        let facts = &self.facts;
        facts.by_pid.get(&pid).or_else(|| facts.former.get(&pid))
    }

    /// Ends it: the host is left as it was.
    pub(crate) fn stop(self) {
        if let Feed::Tracefs(follower) = self.feed
            && let Err(error) = follower.stop()
        {
            output::note(&format!(
                "stealtime: {error}; the next start of stealtime removes it"
            ));
        }
    }
}

impl Replay {
    fn poll(&mut self, collector: &mut Collector) -> Result<bool, CliError> {
        /// Events between looks at the samples, without a pace.
        const BATCH: usize = 1 << 14;
        if self.is_over {
            return Ok(false);
        }
        let due = self.began.zip(self.first).map(|(began, first)| {
            let elapsed = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            first.saturating_add(elapsed)
        });
        for _ in 0..BATCH {
            let event = match self.next.take() {
                Some(event) => Some(event),
                None => self.source.next_event().map_err(CliError::Open)?,
            };
            let Some(event) = event else {
                self.is_over = true;
                collector.finish(self.source.names());
                return Ok(false);
            };
            if event.kind.is_host_event() {
                self.first.get_or_insert(event.time_ns);
                if due.is_some_and(|due| event.time_ns > due) {
                    self.next = Some(event);
                    return Ok(true);
                }
            }
            collector.event(&event, self.source.names());
        }
        Ok(true)
    }
}

/// Names and labels of VMs, read in a thread of its own when a VM without a name shows up.
#[derive(Default)]
struct Facts {
    by_pid: BTreeMap<i32, VmFacts>,
    /// Those of the snapshot before: a VM that has ended since is in the next sample yet.
    former: BTreeMap<i32, VmFacts>,
    /// Processes that a snapshot has been read for.
    tried: BTreeSet<i32>,
    reading: Option<Receiver<Snapshot>>,
    latest: Option<Instant>,
    /// Whether `snapshot` is kept.
    keeps_snapshot: bool,
    /// The latest snapshot.
    snapshot: Option<Arc<Snapshot>>,
}

impl Facts {
    /// Begins to read the host.
    fn read(&mut self) {
        let (sender, receiver) = channel();
        let read = move || {
            // The collector's own would preempt VMs for as long as it takes.
            stealtime_live::usual_priority();
            if let Ok(snapshot) = Snapshot::read(Path::new("/")) {
                // The collector may have ended meanwhile.
                let _ = sender.send(snapshot);
            }
        };
        self.latest = Some(Instant::now());
        let thread = std::thread::Builder::new().name("names of VMs".to_owned());
        self.reading = thread.spawn(read).ok().map(|_| receiver);
    }

    fn refresh(&mut self, collector: &mut Collector) {
        match self.reading.as_ref().map(Receiver::try_recv) {
            Some(Ok(snapshot)) => {
                self.reading = None;
                self.keep(snapshot, collector);
            }
            Some(Err(TryRecvError::Disconnected)) => self.reading = None,
            Some(Err(TryRecvError::Empty)) => {}
            None => {
                let unnamed = collector.unnamed();
                let is_due = self.latest.is_none_or(|time| time.elapsed() >= SNAPSHOTS);
                if is_due && !unnamed.is_subset(&self.tried) {
                    self.tried = unnamed;
                    self.read();
                }
            }
        }
    }

    fn keep(&mut self, snapshot: Snapshot, collector: &mut Collector) {
        self.learn(&snapshot, collector);
        self.snapshot = self.keeps_snapshot.then(|| Arc::new(snapshot));
    }

    fn learn(&mut self, snapshot: &Snapshot, collector: &mut Collector) {
        self.former = std::mem::take(&mut self.by_pid);
        let mut known = Vec::new();
        for vm in snapshot.all_vms() {
            let is_libvirt = matches!(
                vm.manager,
                Manager::Libvirt | Manager::Openstack | Manager::Kubevirt
            );
            self.by_pid
                .entry(vm.process.pid)
                .or_insert_with(|| VmFacts {
                    name: vm.name.clone(),
                    manager: manager(vm.manager),
                    domain: vm.id.clone().filter(|_| is_libvirt),
                    pod: vm.pod.clone(),
                    namespace: vm.namespace.clone(),
                });
            known.push(KnownVm {
                name: vm.name.clone(),
                pid: vm.process.pid,
                threads: vm.threads.iter().map(|thread| thread.tid).collect(),
            });
        }
        collector.set_vms(&known);
    }
}

/// The manager's name in snapshots.
fn manager(manager: Manager) -> String {
    let value = serde_json::to_value(manager).ok();
    let name = value
        .as_ref()
        .and_then(|value| value.as_str())
        .unwrap_or("");
    name.to_owned()
}
