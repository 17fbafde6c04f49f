use crate::config::{
    ClockMethod, Config, HostClock, HostConfig, Knobs, MigrationConfig, Pinning, RunConfig,
    TaskConfig, Topology, VmConfig, WorkloadConfig,
};
use crate::{ClockOutcome, GuestBuilder, Machine, run};

/// A guest of four vCPUs is moved from CPUs 0 to 3 to CPUs 4 to 7, where others compute too. The
/// seed also says when.
fn migrated(method: ClockMethod, destination: HostClock, seed: u64) -> ClockOutcome {
    migrated_with(method, destination, seed, 20_000)
}

fn migrated_with(
    method: ClockMethod,
    destination: HostClock,
    seed: u64,
    step_ns: u64,
) -> ClockOutcome {
    let config = moving(method, destination, seed, step_ns);
    run(&config, &mut ()).unwrap().vms[0].clocks.unwrap()
}

fn moving(method: ClockMethod, destination: HostClock, seed: u64, step_ns: u64) -> Config {
    Config {
        host: HostConfig {
            tasks: vec![TaskConfig {
                name: "hog".to_owned(),
                workload: WorkloadConfig::named("busy"),
                count: 8,
                nice: 0,
                cpus: vec![4, 5, 6, 7],
            }],
            ..HostConfig::generic(Topology::flat(8))
        },
        vms: vec![VmConfig {
            vcpus: 4,
            pinning: Pinning::Pool(vec![0, 1, 2, 3]),
            workload: WorkloadConfig::named("clock-reader"),
            migration: Some(MigrationConfig {
                at_ns: 30_000_000 + seed * 700_000,
                to_cpus: vec![4, 5, 6, 7],
                method,
                transfer_ns: 5_000_000,
                load_ns: 0,
                step_ns,
                source: HostClock::exact(2_500_000),
                destination,
            }),
            ..VmConfig::default()
        }],
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 200_000_000,
            warmup_ns: 0,
            seed,
        },
    }
}

/// The destination's vCPUs are created there: no record of an IPI comes along.
#[test]
fn records_of_ipis_stay_behind() {
    let left = |migrates: bool| {
        let mut config = moving(ClockMethod::Offset, HostClock::exact(2_500_000), 1, 20_000);
        config.host.tasks.clear();
        let vm = &mut config.vms[0];
        vm.guest.pv_tlb_flush = false;
        vm.guest.pv_send_ipi = false;
        if !migrates {
            vm.migration = None;
        }
        config.knobs.kvm.enable_apicv = false;
        config.knobs.kvm.directed_yield.ipi.ipi_tracking_enabled = true;
        let mut recipe = |_: &VmConfig, guest: &mut GuestBuilder| {
            for n in 0..2 {
                guest.spawn(&format!("half/{n}"), Some(n), move |thread| async move {
                    while thread.now() < 20_000_000 {
                        thread.compute(50_000).await;
                        thread.flush_tlbs().await;
                    }
                    thread.compute(1_000_000_000).await;
                })?;
            }
            Ok(())
        };
        let mut sink = ();
        let mut machine = Machine::with_recipes(&config, &mut sink, &mut recipe).unwrap();
        machine.run(&|| false).unwrap();
        let vm = &machine.vms.as_slice()[0];
        vm.ipi_contexts
            .iter()
            .filter(|c| c.awaited().is_some())
            .count()
    };
    assert_eq!((left(false), left(true)), (2, 0));
}

#[test]
fn by_offset_the_guest_sees_nothing() {
    let far = HostClock {
        tsc_khz: 2_100_000,
        tsc_at_start: 1 << 60,
        drift_ppb: 0,
        realtime_skew_ns: 0,
    };
    for (destination, seed) in [(HostClock::exact(2_500_000), 1), (far, 2), (far, 3)] {
        let seen = migrated(ClockMethod::Offset, destination, seed);
        assert!(seen.reads > 1000, "{seen:?}");
        assert_eq!((seen.steps_back, seen.difference_ns), (0, 0), "{seen:?}");
        assert!(seen.error_ns.unsigned_abs() <= seen.bound_ns, "{seen:?}");
        assert!(
            seen.blackout_ns > 5_000_000 && seen.master_clock,
            "{seen:?}"
        );
    }
}

#[test]
fn wall_clocks_apart_move_the_guest_by_so_much() {
    let destination = HostClock {
        realtime_skew_ns: 1_000_000,
        ..HostClock::exact(2_500_000)
    };
    let seen = migrated(ClockMethod::Offset, destination, 1);
    assert!((999_000..=1_001_000).contains(&seen.error_ns), "{seen:?}");
    assert!(seen.bound_ns >= 1_000_000, "{seen:?}");
}

#[test]
fn by_value_the_vmms_delays_become_the_guests() {
    let here = HostClock::exact(2_500_000);
    let seen = migrated(ClockMethod::Value, here, 1);
    // One step lies between the computing and the writing.
    assert_eq!(seen.error_ns, -20_000, "{seen:?}");
    // A slow VMM is preempted by the others there, and its wait becomes the guest's loss.
    let steps = (3..20).map(|tenths| tenths * 100_000);
    let errors = steps.map(|step_ns| {
        (
            migrated_with(ClockMethod::Value, here, 1, step_ns).error_ns,
            step_ns,
        )
    });
    let errors: Vec<(i64, u64)> = errors.collect();
    assert!(
        errors
            .iter()
            .any(|&(ns, step)| ns.unsigned_abs() > step + 2_000_000),
        "{errors:?}"
    );
    let seen = migrated_with(ClockMethod::Offset, here, 1, 900_000);
    assert!(seen.error_ns.unsigned_abs() <= seen.bound_ns, "{seen:?}");
}

#[test]
fn the_documented_formula_fails_where_the_guest_is_scaled() {
    let destination = HostClock {
        tsc_at_start: 1 << 50,
        ..HostClock::exact(2_100_000)
    };
    let seen = migrated(ClockMethod::Documented, destination, 1);
    assert!(seen.error_ns.unsigned_abs() > 1_000_000_000, "{seen:?}");
    let same = migrated(ClockMethod::Documented, HostClock::exact(2_500_000), 1);
    assert!(same.error_ns.unsigned_abs() <= same.bound_ns, "{same:?}");
}
