//! CPUs with their topology, caches, idle states and times.

use std::collections::{BTreeMap, BTreeSet};

use crate::cpulist;
use crate::snapshot::{Cache, Cpu, CpuInfo, CpuTime, Idle, IdleState, IdleUse, Node};
use crate::tree::{Tree, in_parallel};

const CPUS: &str = "/sys/devices/system/cpu";
/// Enough of `/proc/cpuinfo` for the first CPU; the whole has megabytes on large hosts.
const CPUINFO_HEAD: usize = 16 << 10;
/// `/proc/stat` counts in `USER_HZ`, which is 100 on all architectures of KVM.
const MS_PER_TICK: u64 = 10;

pub(crate) fn read(tree: &Tree, cpuset_mount: Option<&str>) -> CpuInfo {
    let list = |key, name: &str| tree.value(key, &format!("{CPUS}/{name}"));
    let online = list("cpu.online", "online");
    let nohz_full = tree.optional("cpu.nohz_full", &format!("{CPUS}/nohz_full"));
    // Kernels without any print "(null)".
    let nohz_full = nohz_full.filter(|text| !text.starts_with('('));
    let set = |text: &Option<String>| text.as_deref().and_then(cpulist::parse);
    let housekeeping = set(&online).map(|online| {
        let full = set(&nohz_full).unwrap_or_default();
        cpulist::format(&online.difference(&full).copied().collect())
    });
    let numbers: Vec<u32> = set(&online).unwrap_or_default().into_iter().collect();
    let times = times(tree);
    let parts = in_parallel(&numbers, |cpu| Part::read(tree, *cpu));
    let nodes = nodes(tree);
    let mut info = CpuInfo {
        possible: list("cpu.possible", "possible"),
        isolated: tree.optional("cpu.isolated", &format!("{CPUS}/isolated")),
        cpuset_isolated: cpuset_mount.and_then(|mount| {
            tree.optional(
                "cpu.cpuset_isolated",
                &format!("{mount}/cpuset.cpus.isolated"),
            )
        }),
        smt_active: tree
            .number::<u8>("cpu.smt_active", &format!("{CPUS}/smt/active"))
            .map(|active| active != 0),
        smt_control: tree.optional("cpu.smt_control", &format!("{CPUS}/smt/control")),
        machine: tree.optional("cpu.machine", "/sys/class/dmi/id/product_name"),
        caches: caches(&parts),
        idle: Idle {
            driver: tree.optional("cpu.idle", &format!("{CPUS}/cpuidle/current_driver")),
            governor: tree.optional("cpu.idle", &format!("{CPUS}/cpuidle/current_governor")),
            states: idle_states(&parts),
        },
        online,
        nohz_full,
        housekeeping,
        ..CpuInfo::default()
    };
    model(tree, &mut info);
    info.cpus = parts.into_iter().map(|part| part.cpu).collect();
    for cpu in &mut info.cpus {
        cpu.time = times.get(&cpu.cpu).cloned();
        let holds = |node: &&Node| {
            let cpus = node.cpus.as_deref().and_then(cpulist::parse);
            cpus.is_some_and(|cpus| cpus.contains(&cpu.cpu))
        };
        cpu.node = nodes.iter().find(holds).map(|node| node.node);
    }
    info.nodes = nodes;
    info
}

/// A CPU, with the caches and idle states as it has them.
struct Part {
    cpu: Cpu,
    caches: Vec<Cache>,
    states: Vec<State>,
}

/// An idle state of a CPU.
struct State {
    state: IdleState,
    is_disabled: bool,
}

impl Part {
    fn read(tree: &Tree, number: u32) -> Self {
        let directory = format!("{CPUS}/cpu{number}");
        let topology = |name: &str| format!("{directory}/topology/{name}");
        let key = "cpu.cpus";
        let caches = part_caches(tree, &directory);
        let frequency = |name: &str| format!("{directory}/cpufreq/{name}");
        let mut cpu = Cpu {
            cpu: number,
            package: tree.number(key, &topology("physical_package_id")),
            die: tree.number(key, &topology("die_id")),
            core: tree.number(key, &topology("core_id")),
            siblings: tree.optional(key, &topology("thread_siblings_list")),
            llc: caches
                .iter()
                .filter(|cache| cache.kind != "Instruction")
                .max_by_key(|cache| cache.level)
                .map(|cache| cache.cpus.clone()),
            governor: tree.optional(key, &frequency("scaling_governor")),
            frequency_driver: tree.optional(key, &frequency("scaling_driver")),
            min_khz: tree.number(key, &frequency("scaling_min_freq")),
            max_khz: tree.number(key, &frequency("scaling_max_freq")),
            ..Cpu::default()
        };
        let mut states = Vec::new();
        for index in numbered(tree, &format!("{directory}/cpuidle"), "state") {
            let path = |name: &str| format!("{directory}/cpuidle/state{index}/{name}");
            cpu.idle.push(IdleUse {
                index,
                entries: tree.number("cpu.cpus.idle", &path("usage")),
                time_us: tree.number("cpu.cpus.idle", &path("time")),
            });
            let key = "cpu.idle.states";
            states.push(State {
                is_disabled: tree.number::<u64>(key, &path("disable")).unwrap_or(0) != 0,
                state: IdleState {
                    index,
                    name: tree.optional(key, &path("name")).unwrap_or_default(),
                    description: tree.optional(key, &path("desc")),
                    exit_latency_us: tree.number(key, &path("latency")),
                    target_residency_us: tree.number(key, &path("residency")),
                    ..IdleState::default()
                },
            });
        }
        Self {
            cpu,
            caches,
            states,
        }
    }
}

/// Numbers of the entries `prefixN` of a directory.
fn numbered(tree: &Tree, directory: &str, prefix: &str) -> BTreeSet<u32> {
    let names = tree.list(directory).unwrap_or_default();
    let numbers = names
        .iter()
        .filter_map(|name| name.strip_prefix(prefix)?.parse().ok());
    numbers.collect()
}

fn part_caches(tree: &Tree, directory: &str) -> Vec<Cache> {
    let key = "cpu.caches";
    let indexes = numbered(tree, &format!("{directory}/cache"), "index");
    let caches = indexes.into_iter().filter_map(|index| {
        let path = |name: &str| format!("{directory}/cache/index{index}/{name}");
        Some(Cache {
            level: tree.number(key, &path("level"))?,
            kind: tree.optional(key, &path("type"))?,
            size_bytes: tree
                .optional(key, &path("size"))
                .as_deref()
                .and_then(size_bytes),
            cpus: tree.optional(key, &path("shared_cpu_list"))?,
        })
    });
    caches.collect()
}

/// `32K` in bytes.
fn size_bytes(text: &str) -> Option<u64> {
    let unit = match text.chars().last()? {
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        _ => 1,
    };
    let number: u64 = text.trim_end_matches(['K', 'M', 'G']).parse().ok()?;
    number.checked_mul(unit)
}

/// Each cache once.
fn caches(parts: &[Part]) -> Vec<Cache> {
    let mut found: Vec<Cache> = Vec::new();
    let mut listed = BTreeSet::new();
    for cache in parts.iter().flat_map(|part| &part.caches) {
        if listed.insert((cache.level, cache.kind.clone(), cache.cpus.clone())) {
            found.push(cache.clone());
        }
    }
    found
}

/// Each idle state once, with the CPUs that have it: kinds of cores differ in theirs.
fn idle_states(parts: &[Part]) -> Vec<IdleState> {
    #[derive(Default)]
    struct Cpus {
        all: BTreeSet<u32>,
        disabled: BTreeSet<u32>,
    }
    let mut states: Vec<IdleState> = Vec::new();
    let mut sets: Vec<Cpus> = Vec::new();
    for part in parts {
        for State { state, is_disabled } in &part.states {
            let index = states.iter().position(|known| known == state);
            let index = index.unwrap_or_else(|| {
                states.push(state.clone());
                sets.push(Cpus::default());
                states.len() - 1
            });
            sets[index].all.insert(part.cpu.cpu);
            if *is_disabled {
                sets[index].disabled.insert(part.cpu.cpu);
            }
        }
    }
    for (state, cpus) in states.iter_mut().zip(sets) {
        state.cpus = cpulist::format(&cpus.all);
        state.disabled_cpus = cpulist::format(&cpus.disabled);
    }
    states
}

fn nodes(tree: &Tree) -> Vec<Node> {
    let directory = "/sys/devices/system/node";
    let key = "cpu.nodes";
    let nodes = numbered(tree, directory, "node").into_iter().map(|node| {
        let path = |name: &str| format!("{directory}/node{node}/{name}");
        let distances = tree.optional(key, &path("distance")).unwrap_or_default();
        let info = tree.optional(key, &path("meminfo")).unwrap_or_default();
        let total = info.lines().find_map(|line| line.split_once("MemTotal:"));
        let total = total.and_then(|(_, text)| text.split_whitespace().next());
        let total: Option<u64> = total.and_then(|text| text.parse().ok());
        Node {
            node,
            cpus: tree.optional(key, &path("cpulist")),
            memory_bytes: total.and_then(|kib| kib.checked_mul(1024)),
            distances: distances
                .split_whitespace()
                .filter_map(|d| d.parse().ok())
                .collect(),
        }
    });
    nodes.collect()
}

/// What `/proc/cpuinfo` has of the first CPU.
fn model(tree: &Tree, info: &mut CpuInfo) {
    let path = "/proc/cpuinfo";
    let head = match tree.head(path, CPUINFO_HEAD) {
        Ok(head) => String::from_utf8_lossy(&head).into_owned(),
        Err(error) => {
            tree.note("cpu.model", path, &error);
            String::new()
        }
    };
    let lines = head.lines().take_while(|line| !line.trim().is_empty());
    let fields = lines.filter_map(|line| line.split_once(':'));
    let fields: BTreeMap<&str, &str> = fields.map(|(k, v)| (k.trim(), v.trim())).collect();
    let field = |name: &str| fields.get(name).map(|value| (*value).to_owned());
    let words = |name: &str| -> Vec<String> {
        let words = fields
            .get(name)
            .into_iter()
            .flat_map(|text| text.split_whitespace());
        words.map(str::to_owned).collect()
    };
    info.vendor = field("vendor_id").or_else(|| field("CPU implementer"));
    info.model = field("model name").or_else(|| field("CPU part"));
    info.signature = match (field("cpu family"), field("model"), field("stepping")) {
        (Some(family), Some(model), Some(stepping)) => Some(format!("{family}/{model}/{stepping}")),
        _ => None,
    };
    info.microcode = field("microcode");
    info.flags = words("flags");
    if info.flags.is_empty() {
        info.flags = words("Features");
    }
    info.vmx_flags = words("vmx flags");
    // Arm has no such flag: there the host's own steal time alone shows it.
    let is_x86 = fields.contains_key("flags");
    info.is_guest = is_x86.then(|| info.flags.iter().any(|flag| flag == "hypervisor"));
}

/// CPU time of the host.
pub(crate) fn host_time(tree: &Tree) -> CpuTime {
    let stat = tree.value("cpu_time", "/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    line.map(cpu_time).unwrap_or_default()
}

/// CPU time of each CPU.
fn times(tree: &Tree) -> BTreeMap<u32, CpuTime> {
    let stat = tree
        .value("cpu.cpus.time", "/proc/stat")
        .unwrap_or_default();
    let lines = stat.lines().filter_map(|line| {
        let (cpu, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        Some((cpu.parse().ok()?, cpu_time(times)))
    });
    lines.collect()
}

fn cpu_time(text: &str) -> CpuTime {
    let mut ticks = text
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0));
    let mut next = || ticks.next().unwrap_or(0_u64).saturating_mul(MS_PER_TICK);
    CpuTime {
        user_ms: next(),
        nice_ms: next(),
        system_ms: next(),
        idle_ms: next(),
        iowait_ms: next(),
        irq_ms: next(),
        softirq_ms: next(),
        steal_ms: next(),
        guest_ms: next(),
        guest_nice_ms: next(),
    }
}
