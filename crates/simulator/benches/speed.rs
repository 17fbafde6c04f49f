//! How fast the simulator is, and how much memory a vCPU takes.
//!
//! `cargo bench -p stealtime-simulator --bench speed` prints a table: engine events a second of
//! processor time on one core, simulated seconds a second of it, and what is allocated for each
//! vCPU. `-- --only WORD` runs the rows with the word in their name, `--ms N` simulates N ms of each
//! (`scripts/count-instructions`).

#[path = "../tests/common/counting.rs"]
mod counting;

use counting::held;
use stealtime_simulator::Machine;
use stealtime_simulator::config::{
    Config, HostConfig, Knobs, Pinning, RunConfig, Topology, VmConfig, WorkloadConfig,
};

/// Processor time of this thread, in ns: other processes of the machine do not count.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn topology(cpus: u32) -> Topology {
    if cpus <= 64 {
        return Topology::flat(cpus);
    }
    Topology {
        sockets: cpus / 128,
        llcs_per_socket: 8,
        cores_per_llc: 8,
        threads_per_core: 2,
    }
}

fn config(cpus: u32, vms: u32, vcpus: u32, workload: &str, ms: u64) -> Config {
    Config {
        host: HostConfig::generic(topology(cpus)),
        vms: (0..vms)
            .map(|n| VmConfig {
                name: format!("vm{n}"),
                vcpus,
                workload: WorkloadConfig::named(workload),
                pinning: Pinning::None,
                ..VmConfig::default()
            })
            .collect(),
        scripts: stealtime_simulator::script::Scripts::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: ms * 1_000_000,
            warmup_ns: 0,
            seed: 1,
        },
    }
}

/// Each VM on 16 CPUs of its own and its neighbours', as in a fleet.
fn pooled(mut config: Config) -> Config {
    let pools = config.host.topology.cpus() / 16;
    for (n, vm) in config.vms.iter_mut().enumerate() {
        let pool = n as u32 % pools;
        vm.pinning = Pinning::Pool((pool * 16..pool * 16 + 16).collect());
    }
    config
}

/// As the guests of the publication on directed yield: without what a paravirtual guest spares
/// itself, without APICv, and with their vCPUs in one cgroup.
fn plain(mut config: Config) -> Config {
    config.knobs.kvm.enable_apicv = false;
    for vm in &mut config.vms {
        vm.vcpu_cgroups = false;
        let guest = &mut vm.guest;
        guest.pv_spinlocks = false;
        guest.pv_tlb_flush = false;
        guest.pv_send_ipi = false;
        guest.pv_sched_yield = false;
    }
    config
}

fn run(name: &str, config: &Config) {
    let mut sink = ();
    let before = held();
    let mut machine = match Machine::new(config, &mut sink) {
        Ok(machine) => machine,
        Err(fault) => return println!("{name}: {fault}"),
    };
    let start = cpu_ns();
    let outcome = match machine.run(&|| false) {
        Ok(outcome) => outcome,
        Err(fault) => return println!("{name}: {fault}"),
    };
    let took = (cpu_ns() - start).max(1) as f64 / 1e9;
    let bytes = held() - before;
    let vcpus: u32 = config.vms.iter().map(|vm| vm.vcpus).sum();
    let simulated = config.run.duration_ns as f64 / 1e9;
    println!(
        "| {name} | {} | {vcpus} | {} | {:.2} | {:.0} | {:.2} | {} |",
        config.host.topology.cpus(),
        outcome.stats.events,
        outcome.stats.events as f64 / took / 1e6,
        took * 1e9 / outcome.stats.events.max(1) as f64,
        simulated / took,
        bytes / vcpus as usize,
    );
}

/// Memory of this process that was written to, in bytes (`Rss`): reserves that never were do not count.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1);
    pages
        .and_then(|word| word.parse::<usize>().ok())
        .unwrap_or(0)
        * 4096
}

/// What a vCPU takes beyond its workload: guests without threads, run for a while.
fn memory(name: &str, config: &Config) {
    let hold = |config: &Config| {
        let mut sink = ();
        let before = (held(), resident());
        let mut machine = Machine::new(config, &mut sink).ok()?;
        machine.run(&|| false).ok()?;
        Some((held() - before.0, resident().saturating_sub(before.1)))
    };
    let mut bare = config.clone();
    bare.vms.truncate(1);
    if let Some(vm) = bare.vms.first_mut() {
        vm.vcpus = 1;
    }
    let (Some(bare), Some(full)) = (hold(&bare), hold(config)) else {
        return println!("{name}: cannot run");
    };
    let vcpus = config.vms.iter().map(|vm| vm.vcpus as usize).sum::<usize>() - 1;
    println!(
        "{name}: {} bytes a vCPU resident, {} allocated",
        full.1.saturating_sub(bare.1) / vcpus,
        (full.0 - bare.0) / vcpus
    );
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |option: &str| {
        let place = words.iter().position(|word| word == option)?;
        words.get(place + 1)
    };
    let only = value("--only").map_or("", String::as_str);
    let ms: Option<u64> = value("--ms").and_then(|word| word.parse().ok());
    if only.is_empty() || only == "memory" {
        let idle = |cpus, vms| pooled(config(cpus, vms, 16, "idle", 50));
        memory("1024 vCPUs on 128 CPUs", &idle(128, 64));
        memory("8192 vCPUs on 1024 CPUs", &idle(1024, 512));
    }
    println!(
        "| scenario | pCPUs | vCPUs | events | M events/s | ns/event | simulated s/s | bytes/vCPU |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let row = |name: &str, mut config: Config| {
        if name.contains(only) {
            if let Some(ms) = ms {
                config.run.duration_ns = ms * 1_000_000;
            }
            run(name, &config);
        }
    };
    row("small", config(4, 2, 4, "ticks", 1000));
    let sized = |vms, workload| config(16, vms, 16, workload, 1000);
    for vms in [2, 4] {
        let name = format!("published size: {vms} x hackbench");
        row(&name, sized(vms, "hackbench"));
    }
    for workload in ["dedup", "vips", "dbench"] {
        let name = format!("published size: 4 x {workload}");
        row(&name, sized(4, workload));
        for vms in [2, 4] {
            let name = format!("published: {vms} x {workload}");
            row(&name, plain(sized(vms, workload)));
        }
    }
    row(
        "published size: broadcast",
        config(64, 1, 64, "broadcast", 500),
    );
    for cpus in [16u32, 64, 256, 1024] {
        // Long enough for the first milliseconds, in which all is touched for the first time, not to count.
        let ms = (8192 / u64::from(cpus)).clamp(60, 500);
        row("curve: ticks", config(cpus, cpus / 2, 16, "ticks", ms));
        row(
            "curve: ticks, pools",
            pooled(config(cpus, cpus / 2, 16, "ticks", ms)),
        );
    }
}
