//! Notifications of a device that posts to a guest that exits often, by policy of suppression.
//!
//! `notifications POLICY=GUEST,EXIT,HOST,ENTRY,FLIGHT...`: lengths in ns. EXIT lasts until the vCPU's
//! mode is "outside", HOST until PIR is synchronized, ENTRY until the guest runs, GUEST until it exits
//! again. FLIGHT is that of a notification. Nothing else costs time. For each policy: interrupts,
//! notifications sent, spared, spurious (they reach the host) and late (they find an empty PIR in guest
//! mode). `scripts/compare-bare` runs it with the parts that the hypervisor of `bare/` measures.

use std::error::Error;

use stealtime_hypervisor::posted_interrupt::Suppression;
use stealtime_simulator::Stats;
use stealtime_simulator::config::{
    Config, Costs, HostConfig, Knobs, ParamValue, Pinning, RunConfig, Topology, VmConfig,
    WorkloadConfig,
};

/// Interrupts of a run, on average.
const INTERRUPTS: u64 = 20_000;
/// Exits between two interrupts, on average.
const EXITS: u64 = 10;

/// Lengths in ns.
struct Parts {
    guest: u32,
    exit: u32,
    host: u32,
    entry: u32,
    flight: u32,
}

impl Parts {
    fn read(text: &str) -> Option<Self> {
        let numbers: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
        let [guest, exit, host, entry, flight] = numbers.ok()?.try_into().ok()?;
        Some(Self {
            guest,
            exit,
            host,
            entry,
            flight,
        })
    }

    fn sum_ns(&self) -> u64 {
        [self.guest, self.exit, self.host, self.entry]
            .map(u64::from)
            .iter()
            .sum()
    }
}

fn config(policy: Suppression, parts: &Parts) -> Config {
    let mut host = HostConfig::generic(Topology::flat(2));
    host.profile.costs = Costs {
        vmexit_ns: parts.exit,
        handle_cpuid_ns: parts.host,
        vmentry_ns: parts.entry,
        ipi_flight_ns: parts.flight,
        ..Costs::FREE
    };
    let gap_ns = parts.sum_ns() * EXITS;
    let mut vm = VmConfig {
        assigned_device: true,
        pinning: Pinning::OneToOne(vec![1]),
        workload: WorkloadConfig::named("cpuid-loop")
            .with("work_ns", ParamValue::Int(i64::from(parts.guest)))
            .with("interrupt_ns", ParamValue::Int(gap_ns as i64)),
        ..VmConfig::default()
    };
    vm.guest.hz = 24;
    let mut knobs = Knobs::default();
    knobs.kvm.suppress_notification = policy;
    // The guest's CPU has no tick of the host.
    knobs.host.nohz_full = vec![1];
    knobs.host.isolcpus = vec![1];
    Config {
        host,
        vms: vec![vm],
        scripts: Default::default(),
        knobs,
        run: RunConfig {
            duration_ns: gap_ns * INTERRUPTS,
            ..RunConfig::default()
        },
    }
}

fn row(name: &str, stats: &Stats) -> String {
    let counts = &stats.mechanisms;
    let (sent, spared) = (stats.notifications, counts.notifications_spared.get());
    let interrupts = sent + spared + counts.hw_on_already_set.get();
    let late = counts.notified_too_late.get();
    format!(
        "{name} {interrupts} {sent} {spared} {} {late}",
        stats.spurious_notifications
    )
}

fn main() -> Result<(), Box<dyn Error>> {
    for argument in std::env::args().skip(1) {
        let (name, parts) = argument.split_once('=').ok_or("POLICY=PARTS")?;
        let policy: Suppression = name.parse()?;
        let parts = Parts::read(parts).ok_or("PARTS: GUEST,EXIT,HOST,ENTRY,FLIGHT in ns")?;
        let outcome = stealtime_simulator::run(&config(policy, &parts), &mut ())?;
        println!("{}", row(name, &outcome.stats));
    }
    Ok(())
}
