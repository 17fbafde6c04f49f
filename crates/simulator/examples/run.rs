//! Runs a small host and prints what came of it: `run VMS VCPUS CPUS WORKLOAD [SECONDS]`.

use std::time::Instant;

use stealtime_simulator::config::{
    Config, HostConfig, Knobs, RunConfig, Topology, VmConfig, WorkloadConfig,
};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, or: u32| args.get(n).and_then(|a| a.parse().ok()).unwrap_or(or);
    let (vms, vcpus, cpus, seconds) = (number(0, 2), number(1, 4), number(2, 4), number(4, 1));
    let workload = args.get(3).map_or("busy", String::as_str);
    let config = Config {
        host: HostConfig::generic(Topology::flat(cpus)),
        vms: (0..vms)
            .map(|n| VmConfig {
                name: format!("vm{n}"),
                vcpus,
                workload: WorkloadConfig::named(workload),
                ..VmConfig::default()
            })
            .collect(),
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: u64::from(seconds) * 1_000_000_000,
            ..RunConfig::default()
        },
    };
    let start = Instant::now();
    let outcome = match stealtime_simulator::run(&config, &mut ()) {
        Ok(outcome) => outcome,
        Err(fault) => {
            eprintln!("{fault}");
            std::process::exit(1);
        }
    };
    let took = start.elapsed().as_secs_f64();
    let stats = &outcome.stats;
    for vm in &outcome.vms {
        let sum = |f: &dyn Fn(&stealtime_simulator::VcpuOutcome) -> u64| {
            vm.vcpus.iter().map(f).sum::<u64>() / 1000
        };
        let meter = &stats.meters[vm.meter];
        println!(
            "{}: done {} mean {:?} p99 {:?} | run {} wait {} sleep {} guest {} poll {} spin {} us",
            vm.name,
            meter.done,
            meter.latency.mean(),
            meter.latency.quantile(990),
            sum(&|v| v.task.run_ns),
            sum(&|v| v.task.wait_ns),
            sum(&|v| v.task.sleep_ns),
            sum(&|v| v.vcpu.guest_ns),
            sum(&|v| v.vcpu.poll_ns),
            sum(&|v| v.vcpu.spin_ns),
        );
        let mut exits = std::collections::BTreeMap::new();
        for vcpu in &vm.vcpus {
            for (&reason, &count) in &vcpu.vcpu.exits {
                *exits.entry(reason).or_insert(0u64) += count;
            }
        }
        println!("  exits {exits:?}");
    }
    println!("{:?}", Stats(stats));
    println!(
        "{} events in {took:.3} s: {:.2} M/s, {:.1} simulated s/s",
        stats.events,
        stats.events as f64 / took / 1e6,
        f64::from(seconds) / took,
    );
}

struct Stats<'a>(&'a stealtime_simulator::Stats);

impl std::fmt::Debug for Stats<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = self.0;
        f.debug_struct("stats")
            .field("switches", &s.context_switches)
            .field("migrations", &s.migrations)
            .field("host_irqs", &s.host_irqs)
            .field("ipis", &s.ipis_sent)
            .field("exits", &s.exits)
            .field("notifications", &s.notifications)
            .field("spurious", &s.spurious_notifications)
            .field("guest_ipis", &s.guest_ipis)
            .field("pause", &s.pause_exits)
            .field("yields", &s.directed_yields)
            .field("awaited", &s.yields_to_awaited)
            .field("lock_waits", &s.lock_waits)
            .finish()
    }
}
