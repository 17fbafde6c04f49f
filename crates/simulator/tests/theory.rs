//! Where theory knows the answer: queues, shares, break-even points, sums and maxima.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use stealtime_hypervisor::wakeup_batch::policy::BatchPolicy;
use stealtime_simulator::config::{
    CState, Config, HostConfig, Hypervisor, IdleMethod, Knobs, ParamValue, Pinning, RunConfig,
    TaskConfig, Topology, VmConfig, WorkloadConfig, XenScheduler,
};
use stealtime_simulator::program::{SourceId, Thread};
use stealtime_simulator::{Arrivals, Machine, Outcome, run};

fn config(cpus: u32, vms: Vec<VmConfig>, ms: u64) -> Config {
    Config {
        host: HostConfig::generic(Topology::flat(cpus)),
        vms,
        scripts: stealtime_simulator::script::Scripts::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: ms * 1_000_000,
            warmup_ns: 50_000_000,
            seed: 7,
        },
    }
}

fn vm(vcpus: u32, workload: WorkloadConfig) -> VmConfig {
    VmConfig {
        vcpus,
        workload,
        ..VmConfig::default()
    }
}

fn task(name: &str, nice: i8, cpu: u32) -> TaskConfig {
    TaskConfig {
        name: name.to_owned(),
        workload: WorkloadConfig::named("busy").with("chunk_ns", ParamValue::Int(10_000)),
        count: 1,
        nice,
        cpus: vec![cpu],
    }
}

const SERVICE_NS: u64 = 1_000_000;

async fn serve(mut thread: Thread, source: SourceId, exponential: bool) {
    loop {
        let arrived = thread.receive(source).await;
        let work = if exponential {
            thread.random.exponential(SERVICE_NS)
        } else {
            SERVICE_NS
        };
        thread.compute(work).await;
        thread.took(thread.now() - arrived);
    }
}

/// Mean time from arrival to answer, in services, of an open queue at half load.
fn response(exponential: bool) -> f64 {
    let mut config = config(2, vec![vm(1, WorkloadConfig::named("idle"))], 100_000);
    // Without states that take long to leave.
    config.host.profile.cstates.truncate(1);
    let mut sink = ();
    let mut recipe = |_: &VmConfig, guest: &mut stealtime_simulator::GuestBuilder| {
        let arrivals = Arrivals::Open {
            mean_gap_ns: 2 * SERVICE_NS,
        };
        let source = guest.source("clients", arrivals, 0);
        guest.spawn("server", None, move |thread| {
            serve(thread, source, exponential)
        })
    };
    let mut machine = Machine::with_recipes(&config, &mut sink, &mut recipe).unwrap();
    machine.set_checks(false);
    let outcome = machine.run(&|| false).unwrap();
    let latency = &outcome.stats.meters[outcome.vms[0].meter].latency;
    assert!(latency.count > 45_000, "{}", latency.count);
    latency.sum as f64 / latency.count as f64 / SERVICE_NS as f64
}

/// M/M/1: 1 / (1 - load) services. The way through the host adds less than a fiftieth.
#[test]
fn exponential_services_wait_as_mm1_says() {
    let mean = response(true);
    assert!((1.93..2.10).contains(&mean), "{mean}");
}

/// M/D/1 (Pollaczek and Khinchine): 1 + load / (2 (1 - load)).
#[test]
fn constant_services_wait_as_md1_says() {
    let mean = response(false);
    assert!((1.47..1.57).contains(&mean), "{mean}");
}

/// Two tasks share a CPU as their weights: 1024 to 335 at nice 0 and 5.
#[test]
fn nice_tasks_share_by_weight() {
    let mut config = config(1, Vec::new(), 5_000);
    config.host.tasks = vec![task("plain", 0, 0), task("nice", 5, 0)];
    let outcome = run(&config, &mut ()).unwrap();
    let ran: Vec<f64> = outcome
        .tasks
        .iter()
        .map(|t| t.books.run_ns as f64)
        .collect();
    let share = ran[0] / (ran[0] + ran[1]);
    let expected = 1024.0 / (1024.0 + 335.0);
    assert!((share - expected).abs() < 0.005, "{share} {expected}");
}

/// Halts of this length: how many of them slept, and what part of them was polled.
fn halts(period_ns: i64) -> (f64, f64) {
    let workload = WorkloadConfig::named("ticks")
        .with("period_ns", ParamValue::Int(period_ns))
        .with("work_ns", ParamValue::Int(1_000));
    let config = config(2, vec![vm(1, workload)], 1_000);
    let outcome = run(&config, &mut ()).unwrap();
    let vcpu = &outcome.vms[0].vcpus[0];
    let halted = vcpu.task.sleep_ns + vcpu.vcpu.poll_ns;
    let slept = outcome.stats.context_switches as f64 / 2.0 / vcpu.vcpu.halts as f64;
    (slept, vcpu.vcpu.poll_ns as f64 / halted as f64)
}

/// Polling pays for halts shorter than `halt_poll_ns` (200 us): those are all polled; longer ones
/// are not, and polling shrinks away.
#[test]
fn halts_are_polled_up_to_the_break_even() {
    let (slept, polled) = halts(60_000);
    assert!(slept < 0.05 && polled > 0.95, "{slept} {polled}");
    let (slept, polled) = halts(170_000);
    assert!(slept < 0.05 && polled > 0.95, "{slept} {polled}");
    let (slept, polled) = halts(260_000);
    assert!(slept > 0.9 && polled < 0.1, "{slept} {polled}");
    let (slept, polled) = halts(2_000_000);
    assert!(slept > 0.9 && polled < 0.01, "{slept} {polled}");
}

const WAKE_NS: u32 = 50_000;
const VCPUS: u32 = 8;

fn broadcast(idle: IdleMethod, mwait_elision: bool) -> Outcome {
    let workload = WorkloadConfig::named("broadcast");
    let mut guest = vm(VCPUS, workload);
    guest.pinning = Pinning::OneToOne((0..VCPUS).collect());
    let mut config = config(VCPUS, vec![guest], 1_000);
    config.host.hypervisor = Hypervisor::Xen;
    config.host.idle = idle;
    config.host.profile.features.x2apic = false;
    config.host.profile.features.apicv = false;
    config.host.profile.cstates = vec![CState {
        name: "C3".to_owned(),
        exit_latency_ns: WAKE_NS,
        target_residency_ns: 1_000,
    }];
    config.knobs.xen.batch_wakeups = BatchPolicy::Off;
    config.knobs.xen.mwait_elision = mwait_elision;
    run(&config, &mut ()).unwrap()
}

/// Interrupts to sleeping CPUs one after the other, each waiting until the last was accepted: the
/// sender waits for the sum of their wake latencies. Where a store to a line that they monitor goes
/// before the interrupt, each other one wakes while the sender waits for the one before. Without
/// interrupts they wake all at once, and the sender waits for none.
#[test]
fn a_broadcast_takes_the_sum_or_half_of_it_or_the_maximum() {
    // The last target is not waited for.
    let sum = u64::from(WAKE_NS) * u64::from(VCPUS - 2);
    for (idle, expected) in [(IdleMethod::Hlt, sum), (IdleMethod::Mwait, sum / 2)] {
        let outcome = broadcast(idle, false);
        let mean = outcome.stats.broadcast_ns.mean().unwrap();
        assert!(
            (expected..expected * 5 / 4).contains(&mean),
            "{idle:?}: {mean} {expected}"
        );
        assert!(outcome.stats.icr_wait_ns > 0);
    }
    let most = broadcast(IdleMethod::Mwait, true);
    let mean = most.stats.broadcast_ns.mean().unwrap();
    assert!(mean < u64::from(WAKE_NS), "{mean}");
    assert_eq!(most.stats.icr_wait_ns, 0);
}

/// 32 vCPUs on CPUs that halt, in x2APIC clusters: an IPI wakes each, and costs its sender little.
fn wakes(batch_wakeups: BatchPolicy) -> Outcome {
    const VCPUS: u32 = 32;
    let mut guest = vm(VCPUS, WorkloadConfig::named("broadcast"));
    guest.pinning = Pinning::OneToOne((0..VCPUS).collect());
    let mut config = config(VCPUS + 1, vec![guest], 1_000);
    config.host.hypervisor = Hypervisor::Xen;
    config.host.idle = IdleMethod::Hlt;
    config.host.profile.features.x2apic = true;
    config.host.profile.features.x2apic_cluster = true;
    config.knobs.xen.batch_wakeups = batch_wakeups;
    run(&config, &mut ()).unwrap()
}

/// A batch saves its sender ICR writes, and its targets pay: the first waits for the whole loop, the
/// last for the flush alone. A policy that weighs both does not batch here; one that weighs the
/// sender alone would.
#[test]
fn targets_of_a_batch_wait_for_the_rest_of_the_loop() {
    let (alone, batched) = (wakes(BatchPolicy::Off), wakes(BatchPolicy::Form));
    let sender = |outcome: &Outcome| outcome.stats.broadcast_ns.mean().unwrap();
    assert!(sender(&batched) < sender(&alone));
    let delay = |outcome: &Outcome| outcome.stats.target_delay_ns.mean().unwrap();
    let icr = HostConfig::generic(Topology::flat(1))
        .profile
        .costs
        .icr_x2apic_ns;
    // By its own write, at once: the mean is rounded down, and the last target may need none.
    let alone_ns = u64::from(icr) * 9 / 10..=u64::from(icr);
    assert!(alone_ns.contains(&delay(&alone)), "{}", delay(&alone));
    let quarters = batched.stats.target_delay_quarters.each_ref();
    let quarters = quarters.map(|quarter| quarter.mean().unwrap());
    assert!(quarters.is_sorted_by(|a, b| a > b), "{quarters:?}");
    let longest = batched.stats.target_delay_ns.max;
    assert!(longest * 10 > sender(&batched) * 8, "{longest}");
    let responses = |outcome: &Outcome| outcome.vms[0].answers.ipis.mean().unwrap();
    let later = responses(&batched).saturating_sub(responses(&alone));
    assert!(later * 4 > delay(&batched), "{later} {}", delay(&batched));
    // Per broadcast and target one value.
    let stats = &batched.stats;
    assert_eq!(stats.target_delay_ns.count, stats.broadcasts * 31);
    // One broadcast of 64 is batched, to know what that costs.
    let adaptive = wakes(BatchPolicy::Adaptive);
    assert!(delay(&adaptive) * 20 < delay(&batched));
    assert!(adaptive.stats.icr_writes > stats.icr_writes * 10);
}

/// `vcpu_kick` asks whether a vCPU runs before it wakes it: one write for each vCPU woken, and none
/// to kick what was woken.
#[test]
fn a_woken_vcpu_is_not_kicked_as_well() {
    let stats = broadcast(IdleMethod::Hlt, false).stats;
    let each = u64::from(VCPUS - 1);
    let writes = stats.icr_writes;
    assert!(stats.broadcasts > 500);
    assert!(
        (stats.broadcasts * each..=(stats.broadcasts + 1) * each).contains(&writes),
        "{writes} for {} broadcasts",
        stats.broadcasts
    );
}

/// A wakeup that preempts tickles, with credit1, an idle CPU in the same mask.
#[test]
fn credit1_tickles_an_idle_cpu_too() {
    let writes = |sched| {
        let mut guest = vm(4, WorkloadConfig::named("broadcast"));
        guest.pinning = Pinning::OneToOne((0..4).collect());
        let mut config = config(8, vec![guest], 500);
        config.host.hypervisor = Hypervisor::Xen;
        config.host.idle = IdleMethod::Hlt;
        config.host.tasks = (1..4).map(|cpu| task("other", 10, cpu)).collect();
        config.knobs.xen.sched = sched;
        run(&config, &mut ()).unwrap().stats.ipis_sent
    };
    let (one, two) = (writes(XenScheduler::Credit2), writes(XenScheduler::Credit));
    assert!(two > one * 5 / 4, "{one} {two}");
}

/// `cpu.max` of two CPUs for four vCPUs that compute.
#[test]
fn a_limit_is_kept_and_used() {
    for (quota, period) in [(20_000_000, 10_000_000), (200_000_000, 100_000_000)] {
        let mut guest = vm(4, WorkloadConfig::named("busy"));
        guest.cpu_max_ns = Some((quota, period));
        let config = config(4, vec![guest], 2_000);
        let outcome = run(&config, &mut ()).unwrap();
        let ran: u64 = outcome.vms[0].vcpus.iter().map(|v| v.task.run_ns).sum();
        let cpus = ran as f64 / outcome.measured_ns as f64;
        assert!(
            (1.93..2.07).contains(&cpus),
            "{cpus} of {quota} in {period}"
        );
    }
}

/// Two threads of a core run at the profile's 62 % each; one of them alone at full speed.
#[test]
fn threads_of_a_core_slow_each_other() {
    let done = |tasks: Vec<TaskConfig>| {
        let mut config = config(1, Vec::new(), 1_000);
        config.host.topology.threads_per_core = 2;
        config.host.tasks = tasks;
        let outcome = run(&config, &mut ()).unwrap();
        outcome.stats.meters[outcome.tasks[0].meter].done as f64
    };
    let alone = done(vec![task("one", 0, 0)]);
    let both = done(vec![task("one", 0, 0), task("other", 0, 1)]);
    let ratio = both / alone;
    assert!((0.615..0.625).contains(&ratio), "{ratio}");
}

/// A `nohz_full` CPU has no tick with one task, and one with two.
#[test]
fn full_dynticks_stop_with_one_task() {
    let ticks = |tasks: Vec<TaskConfig>| {
        let mut config = config(2, Vec::new(), 1_000);
        config.knobs.host.nohz_full = vec![1];
        config.host.tasks = tasks;
        run(&config, &mut ()).unwrap().stats.ticks
    };
    let (one, two) = (
        ticks(vec![task("one", 0, 1)]),
        ticks(vec![task("one", 0, 1), task("two", 0, 1)]),
    );
    assert!(one < 10, "{one}");
    assert!((240..290).contains(&two), "{two}");
}
