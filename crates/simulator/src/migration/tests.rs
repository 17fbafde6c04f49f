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
    let source = HostClock::exact(2_500_000);
    let config = config(method, source, destination, seed, step_ns);
    run(&config, &mut ()).unwrap().vms[0].clocks.unwrap()
}

fn config(
    method: ClockMethod,
    source: HostClock,
    destination: HostClock,
    seed: u64,
    step_ns: u64,
) -> Config {
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
                source,
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

/// The generic timer of an arm64 host. Reads of it trap where the physical offset is not 0.
fn on_arm64(method: ClockMethod, destination: HostClock) -> Result<ClockOutcome, String> {
    let source = HostClock::exact(25_000);
    let mut config = config(method, source, destination, 1, 20_000);
    config.host.profile.costs.counter_trap_ns = 125;
    config.host.profile.costs.tsc_khz = 25_000;
    config.vms[0].physical_counter_offset = 1_000_000;
    let outcome = run(&config, &mut ()).map_err(|error| error.to_string())?;
    Ok(outcome.vms[0].clocks.unwrap())
}

/// Another host, with a counter that began long before.
fn far_arm64() -> HostClock {
    HostClock {
        tsc_at_start: 1 << 50,
        ..HostClock::exact(25_000)
    }
}

#[test]
fn by_the_offset_attributes_both_counters_of_an_arm64_guest_go_on() {
    for destination in [HostClock::exact(25_000), far_arm64()] {
        let seen = on_arm64(ClockMethod::Offset, destination).unwrap();
        assert!(
            seen.reads > 1000 && seen.blackout_ns > 5_000_000,
            "{seen:?}"
        );
        assert_eq!((seen.steps_back, seen.difference_ns), (0, 0), "{seen:?}");
        assert!(seen.bound_ns >= 40, "a tick of 25 MHz: {seen:?}");
        let errors = [seen.error_ns, seen.physical_error_ns].map(i64::unsigned_abs);
        assert!(
            errors.iter().all(|error| *error <= seen.bound_ns),
            "{seen:?}"
        );
        // There is no kvmclock.
        assert_eq!(seen.clock_updates, 0);
    }
}

/// By value the VMM's delay is the guest's loss, and the physical counter has no register to be written:
/// it becomes the new host's.
#[test]
fn by_value_an_arm64_guest_loses_the_delay_and_its_physical_counter() {
    let seen = on_arm64(ClockMethod::Value, far_arm64()).unwrap();
    assert!(seen.error_ns <= -20_000, "{seen:?}");
    // KVM gives every write to all vCPUs: none is apart.
    assert_eq!(seen.difference_ns, 0, "{seen:?}");
    assert!(seen.physical_error_ns > 1_000_000_000_000, "{seen:?}");
}

#[test]
fn an_arm64_guest_is_not_moved_to_another_frequency() {
    let refused = on_arm64(ClockMethod::Offset, HostClock::exact(24_000)).unwrap_err();
    assert!(
        refused.contains("migration.destination.tsc_khz"),
        "{refused}"
    );
}

/// `KVM_SET_CLOCK` and the new master clock reach every vCPU's page before it reads it again.
#[test]
fn every_vcpu_brings_its_page_up_to_date_after_the_move() {
    let seen = migrated(ClockMethod::Offset, HostClock::exact(2_500_000), 1);
    // Four at boot, four after the move.
    assert_eq!(seen.clock_updates, 8, "{seen:?}");
}

/// The destination's vCPUs are created there: no record of an IPI comes along.
#[test]
fn records_of_ipis_stay_behind() {
    let left = |migrates: bool| {
        let exact = HostClock::exact(2_500_000);
        let mut config = config(ClockMethod::Offset, exact, exact, 1, 20_000);
        config.host.tasks.clear();
        let vm = &mut config.vms[0];
        vm.guest.pv_tlb_flush = false;
        vm.guest.pv_send_ipi = false;
        if !migrates {
            vm.migration = None;
        }
        // KVM sees the IPIs, and no EOI.
        config.knobs.kvm.enable_ipiv = false;
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
        let vm = machine.kvm.vm(crate::ids::VmNr(0));
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
