//! Simulated hosts drawn by a seed, and limits for their VMs.

use stealtime_simulator::config::{
    Config, HostConfig, Knobs, ParamValue, RunConfig, Topology, VmConfig, WorkloadConfig,
};
use stealtime_simulator::script::Looks;

/// Length of a run, in ns, with bursts of up to 80 ms: work of single runs differs by chance, the more so the
/// fewer bursts there are.
const SPAN_OF_BURSTS_NS: u64 = 6_000_000_000;
/// The same without bursts.
const SPAN_NS: u64 = 2_000_000_000;

/// What a VM does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Demand {
    /// An open stream of requests with exponential gaps and costs.
    Requests,
    /// Threads with short periods and exponential work.
    Timers,
    /// The same with periods of 20 to 80 ms.
    Bursts,
    /// Threads that send each other messages: all its vCPUs are busy.
    Hackbench,
    /// Clients of a file server that share a journal.
    Dbench,
}

impl Demand {
    pub const ALL: [Self; 5] = [
        Self::Requests,
        Self::Timers,
        Self::Bursts,
        Self::Hackbench,
        Self::Dbench,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Timers => "timers",
            Self::Bursts => "bursts",
            Self::Hackbench => "hackbench",
            Self::Dbench => "dbench",
        }
    }

    /// Whether it leaves its vCPUs idle for a part of the time that can be chosen.
    const fn has_load(self) -> bool {
        matches!(self, Self::Requests | Self::Timers | Self::Bursts)
    }

    /// A workload that is busy for `permille` thousandths of each vCPU's time.
    fn workload(self, random: &mut Random, vcpus: u32, permille: u64) -> WorkloadConfig {
        let named = |name: &str, params: &[(&str, u64)]| {
            params
                .iter()
                .fold(WorkloadConfig::named(name), |workload, (name, value)| {
                    workload.with(name, ParamValue::Int(*value as i64))
                })
        };
        let ticks = |period_ns: u64| {
            // A thread sleeps for the period after its work.
            let work_ns = period_ns * permille / (1_000 - permille);
            named("ticks", &[("period_ns", period_ns), ("work_ns", work_ns)])
        };
        match self {
            Self::Requests => {
                let command_ns = random.between(200, 2_000) * 1_000;
                let gap_ns = command_ns * 1_000 / permille;
                let params = [
                    ("servers", u64::from(vcpus)),
                    ("clients", 0),
                    ("think_ns", gap_ns),
                    ("command_ns", command_ns),
                ];
                named("redis", &params)
            }
            Self::Timers => ticks(random.between(1_000, 8_000) * 1_000),
            Self::Bursts => ticks(random.between(20, 80) * 1_000_000),
            Self::Hackbench => named("hackbench", &[("groups", 1), ("fds", vcpus.into())]),
            Self::Dbench => named("dbench", &[]),
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn between(&mut self, least: u64, greatest: u64) -> u64 {
        least + self.below(greatest - least + 1)
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// A host as it is, and the question about it.
pub struct DrawnHost {
    pub seed: u64,
    config: Config,
    /// What each VM does, the counted one first.
    demands: Vec<Demand>,
    /// Limits, as an operator writes them.
    pub limits: Vec<String>,
}

impl DrawnHost {
    /// 2 to 16 CPUs. The counted VM is as large as lets 1 to 8 of it fit, roughly; 0 to 2 others are there.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let cpus = random.between(2, 16) as u32;
        let fitting = random.between(1, 8);
        let demand = random.one_of(&Demand::ALL);
        let permille = match demand.has_load() {
            true => random.between(200, 700),
            false => 1_000,
        };
        let vcpus = u64::from(cpus) * 850 / (fitting * permille);
        let vcpus = (vcpus as u32).clamp(1, cpus);
        let mut demands = vec![demand];
        let mut vms = vec![VmConfig {
            name: "counted".to_owned(),
            vcpus,
            workload: demand.workload(&mut random, vcpus, permille),
            ..VmConfig::default()
        }];
        for number in 1..=random.below(3) {
            let demand = random.one_of(&Demand::ALL);
            let vcpus = random.between(1, u64::from(cpus / 4).max(1)) as u32;
            let permille = random.between(100, 400);
            demands.push(demand);
            vms.push(VmConfig {
                name: format!("neighbour{number}"),
                vcpus,
                workload: demand.workload(&mut random, vcpus, permille),
                ..VmConfig::default()
            });
        }
        let limits = match random.below(10) {
            0..4 => vec![format!("ready<{}%", random.one_of(&[5, 10, 20]))],
            4..6 => vec![format!("wakeup.p99<{}ms", random.one_of(&[2, 5, 10]))],
            6..8 => vec![format!("work>{}%", random.one_of(&[80, 90]))],
            8 => vec!["ready<20%".to_owned(), "wakeup.p99<10ms".to_owned()],
            _ => vec!["work>95%".to_owned()],
        };
        let mut config = Config {
            host: HostConfig::generic(Topology::flat(cpus)),
            vms,
            scripts: Default::default(),
            knobs: Knobs::default(),
            run: RunConfig {
                duration_ns: match demands.contains(&Demand::Bursts) {
                    true => SPAN_OF_BURSTS_NS,
                    false => SPAN_NS,
                },
                warmup_ns: 0,
                seed,
            },
        };
        // A kernel of today: a CPU that runs out of tasks looks for others as often as it finds them.
        config.scripts.searches_by_utilization = true;
        config.scripts.looks = Looks::Learned(None);
        Self {
            seed,
            config,
            demands,
            limits,
        }
    }

    pub fn cpus(&self) -> u32 {
        self.config.host.topology.cpus()
    }

    /// What the counted VM does.
    pub fn counted(&self) -> Demand {
        self.demands[0]
    }

    /// Its VMs: `requests x2, hackbench x4`.
    pub fn shown(&self) -> String {
        let vms = self.demands.iter().zip(&self.config.vms);
        let vms: Vec<String> = vms
            .map(|(demand, vm)| format!("{} x{}", demand.name(), vm.vcpus))
            .collect();
        vms.join(", ")
    }

    pub fn vms(&self) -> usize {
        self.config.vms.len()
    }

    /// The host with so many of the counted VM; runs differ by `run`.
    pub fn with_count(&self, count: u32, run: u64) -> Config {
        let mut config = self.config.clone();
        let copies = (2..=count).map(|number| VmConfig {
            name: format!("copy{number}"),
            ..self.config.vms[0].clone()
        });
        config.vms.extend(copies);
        config.run.seed = self.seed.wrapping_mul(1_000).wrapping_add(run);
        config
    }

    /// The host with this VM alone.
    pub fn alone(&self, vm: usize, run: u64) -> Config {
        let mut config = self.with_count(1, run);
        config.vms = vec![self.config.vms[vm].clone()];
        config
    }
}
