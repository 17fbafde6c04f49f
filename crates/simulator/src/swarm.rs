//! Random scenarios, each short, with everything that must always hold watched.
//!
//! A scenario is a pure function of its seed, so that a seed is a whole report of a failure.

use stealtime_hypervisor::fair::{Features, PickMode};
use stealtime_hypervisor::posted_interrupt::Suppression;
use stealtime_hypervisor::wakeup_batch::policy::BatchPolicy;

use crate::config::{
    CState, CfsKnobs, ClockMethod, Config, GuestConfig, HostClock, HostConfig, Hypervisor,
    IdleMethod, Knobs, MigrationConfig, ParamValue, Pinning, Profile, RunConfig, TaskConfig,
    Topology, VmConfig, WorkloadConfig, XenScheduler,
};
use crate::engine::{Random, Streams};
use crate::fault::Fault;
use crate::inject::{Incident, Injected, Injection};
use crate::machine::Machine;
use crate::migration::ClockOutcome;
use crate::outcome::Outcome;
use crate::workload::{LIBRARY, Workload};

/// The scenario of a seed.
#[must_use]
pub fn scenario(seed: u64) -> Config {
    let mut random = Streams::new(seed).named("swarm");
    let r = &mut random;
    let topology = topology(r);
    let cpus = topology.cpus();
    let mut config = Config {
        host: HostConfig {
            profile: profile(r),
            topology,
            hypervisor: if r.chance(200) {
                Hypervisor::Xen
            } else {
                Hypervisor::Kvm
            },
            idle: match r.below(4) {
                0 => IdleMethod::Hlt,
                1 => IdleMethod::Poll,
                _ => IdleMethod::Mwait,
            },
            tasks: Vec::new(),
        },
        vms: Vec::new(),
        scripts: crate::script::Scripts::default(),
        knobs: knobs(r, cpus),
        run: RunConfig {
            duration_ns: r.between(1, 20) * 1_000_000,
            warmup_ns: r.below(3) * r.below(1_000_000),
            seed: r.bits(),
        },
    };
    for n in 0..r.between(1, 4) {
        let vm = vm(r, n, cpus);
        config.vms.push(vm);
    }
    for n in 0..r.below(3) {
        config.host.tasks.push(TaskConfig {
            name: format!("task{n}"),
            workload: host_workload(r),
            count: r.between(1, 3) as u32,
            nice: nice(r),
            cpus: if r.chance(300) {
                some_cpus(r, cpus)
            } else {
                Vec::new()
            },
        });
    }
    config
}

/// Runs a scenario with all checks on.
///
/// # Errors
///
/// [`Fault`]: any but [`Fault::Stopped`] is a defect, of the simulator, of a mechanism or of the
/// scenario.
pub fn run(config: &Config, stop: &dyn Fn() -> bool) -> Result<Outcome, Fault> {
    let (outcome, _) = run_disturbed(config, &Injection::default(), stop)?;
    Ok(outcome)
}

/// The scenario of a seed with guests that migrate, and the faults that are injected into it.
#[must_use]
pub fn disturbed(seed: u64) -> (Config, Injection) {
    let mut config = scenario(seed);
    let mut random = Streams::new(seed).named("swarm/faults");
    let r = &mut random;
    let cpus = config.host.topology.cpus();
    // Most faults show within a millisecond or two; short runs try more scenarios.
    if r.chance(750) {
        config.run.duration_ns = config.run.duration_ns.div_ceil(4);
    }
    let end_ns = config.run.warmup_ns + config.run.duration_ns;
    for vm in &mut config.vms {
        if r.chance(250) {
            vm.migration = Some(migration(r, end_ns, cpus));
            vm.workload = WorkloadConfig::named("clock-reader");
        }
    }
    let often = |r: &mut Random, chance: u32| match r.chance(chance) {
        true => r.between(1, 100) as u32,
        false => 0,
    };
    let mut injection = Injection {
        seed: r.bits(),
        lost_of_1000: often(r, 300),
        late_of_1000: often(r, 500),
        late_ns: r.between(1, 200_000),
        twice_of_1000: often(r, 400),
        unanswered_of_1000: often(r, 300),
        incidents: Vec::new(),
    };
    for _ in 0..r.below(8) {
        let incident = incident(r, &config, cpus);
        injection.incidents.push((r.below(end_ns), incident));
    }
    (config, injection)
}

/// Runs a scenario with faults, all checks on. Also says how often each fault has happened.
///
/// # Errors
///
/// As [`run`]. [`Fault::Broken`] is also for a guest that migrates by offsets. Its clocks step back, differ
/// among its vCPUs, or are further off than the method's bound.
pub fn run_disturbed(
    config: &Config,
    injection: &Injection,
    stop: &dyn Fn() -> bool,
) -> Result<(Outcome, Injected), Fault> {
    let mut sink = ();
    let mut machine = Machine::new(config, &mut sink)?;
    machine.set_checks(true);
    if *injection != Injection::default() {
        machine.inject(injection)?;
    }
    let outcome = machine.run(stop)?;
    for (vm, result) in (0..).zip(&outcome.vms) {
        let migration = config
            .vms
            .get(vm as usize)
            .and_then(|vm| vm.migration.as_ref());
        if let (Some(migration), Some(clocks)) = (migration, result.clocks)
            && migration.method == ClockMethod::Offset
            && !keeps_time(migration, &clocks, injection.steps_clock_of(vm))
        {
            return Err(Fault::Broken {
                at_ns: config.run.warmup_ns + config.run.duration_ns,
                what: format!("check clocks-kept: VM {vm}: {clocks:?}"),
            });
        }
    }
    Ok((outcome, machine.injected()))
}

/// Whether the clocks of a guest that was moved by offsets are as promised. The method's bound ends at the
/// reading on the destination; until the guest runs, the difference of both rates comes on top.
fn keeps_time(migration: &MigrationConfig, clocks: &ClockOutcome, wall_clock_steps: bool) -> bool {
    let (s, d) = (&migration.source, &migration.destination);
    let ppb = u64::from(s.drift_ppb.unsigned_abs()) + u64::from(d.drift_ppb.unsigned_abs());
    let bound_ns = clocks.bound_ns + (clocks.blackout_ns * ppb).div_ceil(1_000_000_000);
    let agrees = clocks.steps_back == 0 && clocks.difference_ns == 0;
    agrees && (wall_clock_steps || clocks.error_ns.unsigned_abs() <= bound_ns)
}

fn incident(r: &mut Random, config: &Config, cpus: u32) -> Incident {
    let vm = r.below(config.vms.len() as u64) as u32;
    match r.below(4) {
        0 => Incident::Kill { vm },
        1 => Incident::Hang {
            vm,
            vcpu: r.below(u64::from(config.vms[vm as usize].vcpus)) as u32,
        },
        2 => Incident::ClockStep {
            vm,
            ns: r.below(20_000_000_000) as i64 - 10_000_000_000,
        },
        _ => {
            // Up to a millisecond, shorter ones more often.
            let most_ns = 1 << r.between(10, 20);
            let (cpu, ns) = (r.below(cpus.into()) as u32, r.between(1_000, most_ns));
            Incident::Stall { cpu, ns }
        }
    }
}

fn migration(r: &mut Random, end_ns: u64, cpus: u32) -> MigrationConfig {
    let method = match r.below(5) {
        0 => ClockMethod::Value,
        1 => ClockMethod::Documented,
        _ => ClockMethod::Offset,
    };
    let source = host_clock(r);
    let mut destination = host_clock(r);
    if r.chance(500) {
        destination.tsc_khz = source.tsc_khz;
    }
    MigrationConfig {
        at_ns: r.below(end_ns / 2),
        to_cpus: some_cpus(r, cpus),
        method,
        transfer_ns: r.below(end_ns / 4),
        load_ns: r.below(2) * r.below(end_ns / 8),
        step_ns: r.between(1, 20_000),
        source,
        destination,
    }
}

fn host_clock(r: &mut Random) -> HostClock {
    let booted = 1 << r.below(63);
    HostClock {
        tsc_khz: r.between(800_000, 5_000_000) as u32,
        tsc_at_start: r.below(booted),
        drift_ppb: r.below(200_001) as i32 - 100_000,
        realtime_skew_ns: if r.chance(500) {
            r.below(2_000_001) as i64 - 1_000_000
        } else {
            0
        },
    }
}

fn topology(r: &mut Random) -> Topology {
    if r.chance(500) {
        return Topology::flat(r.between(1, 8) as u32);
    }
    Topology {
        sockets: r.between(1, 2) as u32,
        llcs_per_socket: r.between(1, 2) as u32,
        cores_per_llc: r.between(1, 4) as u32,
        threads_per_core: r.between(1, 2) as u32,
    }
}

fn profile(r: &mut Random) -> Profile {
    let mut profile = Profile::generic();
    let f = &mut profile.features;
    f.apicv = r.chance(700);
    f.ipiv = r.chance(400);
    f.hv_timer_shift = r.chance(700).then(|| r.below(8) as u32);
    f.ple = r.chance(700);
    f.vtd_posting = r.chance(700);
    f.x2apic = r.chance(700);
    f.x2apic_cluster = r.chance(500);
    if r.chance(300) {
        profile.cstates.truncate(r.between(1, 3) as usize);
    }
    if r.chance(100) {
        profile.cstates.push(CState {
            name: "deep".to_owned(),
            exit_latency_ns: r.below(400_000) as u32,
            target_residency_ns: r.below(1_000_000) as u32,
        });
    }
    profile
}

fn knobs(r: &mut Random, cpus: u32) -> Knobs {
    let mut knobs = Knobs::default();
    let kvm = &mut knobs.kvm;
    kvm.pi_inject_timer = r.between(0, 2) as i8 - 1;
    kvm.lapic_timer_advance = r.chance(500);
    kvm.directed_yield.ipi.ipi_tracking_enabled = r.chance(300);
    kvm.enable_apicv = r.chance(800);
    kvm.enable_ipiv = r.chance(800);
    kvm.preemption_timer = r.chance(700);
    kvm.suppress_notification = match r.below(3) {
        0 => Suppression::Off,
        1 => Suppression::Corrected,
        _ => Suppression::Put,
    };
    if r.chance(300) {
        kvm.halt_poll.halt_poll_ns = r.below(400_000) as u32;
    }
    let sched = &mut knobs.sched;
    sched.hz = [100, 250, 300, 1000][r.below(4) as usize];
    sched.timer_migration = r.chance(700);
    if r.chance(300) {
        sched.pick = PickMode::Flat;
    }
    if r.chance(300) {
        sched.base_slice_ns = Some(r.between(100_000, 10_000_000));
    }
    for word in [
        "YIELD_TO_LAG_CREDIT",
        "NO_RUN_TO_PARITY",
        "NEXT_BUDDY",
        "HRTICK",
    ] {
        if r.chance(250) {
            // A kernel without a feature of this name would say so; so may this one.
            let _ = sched.features.set(word);
        }
    }
    if sched.features == Features::LINUX_7_2 && sched.pick == PickMode::Hierarchical {
        // Half of these.
        let cfs = (sched.base_slice_ns.is_none() && r.chance(500)).then(CfsKnobs::default);
        sched.cfs = cfs;
    }
    if r.chance(250) {
        knobs.host.nohz_full = (1..cpus).filter(|_| r.chance(500)).collect();
    }
    if r.chance(200) {
        knobs.host.isolcpus = (1..cpus).filter(|_| r.chance(300)).collect();
    }
    knobs.xen.mwait_elision = r.chance(500);
    knobs.xen.batch_wakeups = match r.below(3) {
        0 => BatchPolicy::Off,
        1 => BatchPolicy::Adaptive,
        _ => BatchPolicy::Form,
    };
    if r.chance(500) {
        knobs.xen.sched = XenScheduler::Credit;
    }
    knobs
}

fn vm(r: &mut Random, n: u64, cpus: u32) -> VmConfig {
    let vcpus = r.between(1, 8) as u32;
    let pinning = match r.below(4) {
        0 => Pinning::Pool(some_cpus(r, cpus)),
        1 => Pinning::OneToOne((0..vcpus).map(|_| r.below(cpus.into()) as u32).collect()),
        _ => Pinning::None,
    };
    VmConfig {
        name: format!("vm{n}"),
        vcpus,
        pinning,
        guest: guest(r),
        workload: workload(r),
        cpu_weight: r.between(1, 400) as u32,
        cpu_max_ns: r.chance(200).then(|| {
            let period = r.between(1, 100) * 1_000_000;
            (r.between(1_000_000, period * 4), period)
        }),
        nice: nice(r),
        physical_counter_offset: 0,
        assigned_device: r.chance(400),
        migration: None,
        start_ns: if r.chance(200) { r.below(3_000_000) } else { 0 },
        vcpu_cgroups: r.chance(700),
    }
}

fn guest(r: &mut Random) -> GuestConfig {
    GuestConfig {
        mwait_in_guest: r.chance(100),
        hlt_in_guest: r.chance(100),
        pause_in_guest: r.chance(200),
        x2apic: r.chance(700),
        pv_eoi: r.chance(500),
        pv_send_ipi: r.chance(500),
        pv_tlb_flush: r.chance(500),
        pv_spinlocks: r.chance(500),
        nopvspin: r.chance(200),
        spin_yield: r.chance(100),
        pv_sched_yield: r.chance(500),
        steal_time: r.chance(500),
        hz: [100, 250, 1000][r.below(3) as usize],
        guest_halt_poll_ns: if r.chance(200) {
            r.below(300_000) as u32
        } else {
            0
        },
    }
}

fn nice(r: &mut Random) -> i8 {
    if r.chance(700) {
        0
    } else {
        r.below(40) as i8 - 20
    }
}

/// At least one CPU.
fn some_cpus(r: &mut Random, cpus: u32) -> Vec<u32> {
    let mut chosen: Vec<u32> = (0..cpus).filter(|_| r.chance(500)).collect();
    if chosen.is_empty() {
        chosen.push(r.below(cpus.into()) as u32);
    }
    chosen
}

/// Workloads that are not drawn, so that a seed keeps its scenario. Others have their steps.
const NEWER: [&str; 2] = ["kernel-lock", "shootdown"];

fn workload(r: &mut Random) -> WorkloadConfig {
    let drawn = LIBRARY.iter().filter(|known| !NEWER.contains(&known.name));
    let drawn: Vec<&Workload> = drawn.collect();
    let workload = drawn[r.below(drawn.len() as u64) as usize];
    with_params(r, workload)
}

/// Some parameters differ from their defaults by up to fourfold, within their ranges.
fn with_params(r: &mut Random, workload: &Workload) -> WorkloadConfig {
    let mut config = WorkloadConfig::named(workload.name);
    // Digests of random runs are kept, and older than the times of this workload.
    let is_drawn = |name| workload.name != "cpuid-loop" || name == "threads";
    for doc in workload.params.iter().filter(|doc| is_drawn(doc.name)) {
        if !r.chance(250) {
            continue;
        }
        let (low, high) = (doc.default / 4, doc.default.saturating_mul(4).max(4));
        let value = r.between(low.max(doc.min), high.min(doc.max));
        let value = ParamValue::Int(value.min(i64::MAX as u64) as i64);
        config = config.with(doc.name, value);
    }
    config
}

fn host_workload(r: &mut Random) -> WorkloadConfig {
    let names = ["busy", "ticks", "idle"];
    let name = names[r.below(3) as usize];
    match LIBRARY.iter().find(|workload| workload.name == name) {
        Some(workload) => with_params(r, workload),
        None => WorkloadConfig::named(name),
    }
}
