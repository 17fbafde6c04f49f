//! Function calls, TLB shootdowns and the IPIs that carry them.

use stealtime_events::{ExitReason, Kind};
use stealtime_simulator::config::{Config, Costs};
use stealtime_simulator::{Collected, GuestBuilder, Machine, Outcome, Sim};

use super::{MS, config, latency, named, pinned, run_recipe};

/// vCPU 0 shoots TLBs down; the other vCPUs compute, in the same process or in others.
fn shooter(guest: &mut GuestBuilder, flush: bool, apart: bool) -> Sim {
    guest.spawn("shooter", Some(0), move |thread| async move {
        loop {
            thread.compute(100_000).await;
            let began = thread.now();
            if flush {
                thread.flush_tlbs().await;
            } else {
                thread.call_others().await;
            }
            // What follows the last answer.
            thread.kernel(1).await;
            thread.took(thread.now() - began);
        }
    })?;
    for n in 1..guest.vcpus() {
        if apart {
            guest.new_process();
        }
        guest.spawn(&format!("busy/{n}"), Some(n), |thread| async move {
            loop {
                thread.compute(50_000).await;
            }
        })?;
    }
    Ok(())
}

fn shootdowns(cpus: u32, change: impl Fn(&mut Config)) -> Outcome {
    let mut config = config(1, 4, cpus, named("idle"));
    change(&mut config);
    run_recipe(&config, |guest| shooter(guest, true, false)).unwrap()
}

fn without_pv(config: &mut Config) {
    for vm in &mut config.vms {
        vm.guest.pv_tlb_flush = false;
        vm.guest.pv_sched_yield = false;
    }
}

/// Mean time from sending an IPI to its delivery. Two vCPUs on CPUs of their own always compute, and
/// only the operations that `change` sets have a cost.
fn response(change: impl Fn(&mut Costs)) -> u64 {
    let mut config = pinned(config(1, 2, 2, named("idle")));
    config.host.profile.costs = Costs::FREE;
    without_pv(&mut config);
    change(&mut config.host.profile.costs);
    let outcome = run_recipe(&config, |guest| shooter(guest, false, false)).unwrap();
    let ipis = &outcome.vms[0].answers.ipis;
    assert!(ipis.count > 1_000, "{}", ipis.count);
    ipis.mean().unwrap()
}

/// The sender exits, KVM posts the interrupt, a notification flies, and the receiver takes it without
/// leaving the guest.
#[test]
fn the_response_to_an_ipi_is_the_sum_of_its_way() {
    // The step in which the guest sends takes a nanosecond at the least.
    let least = response(|_| {});
    assert!(least <= 1, "{least}");
    let is = |change: &dyn Fn(&mut Costs), way: u64| {
        assert_eq!(response(change), least + way);
    };
    is(&|costs| costs.ipi_flight_ns = 700, 700);
    is(&|costs| costs.vmexit_ns = 400, 400);
    is(
        &|costs| (costs.vmexit_ns, costs.ipi_flight_ns) = (400, 700),
        1_100,
    );
}

#[test]
fn shootdowns_wait_for_vcpus_that_do_not_run() {
    let (alone, shared) = (shootdowns(4, without_pv), shootdowns(3, without_pv));
    assert!(latency(&alone) < 4_000, "{}", latency(&alone));
    assert!(
        latency(&shared) > 20 * latency(&alone),
        "{} {}",
        latency(&shared),
        latency(&alone)
    );
}

#[test]
fn the_paravirtual_flush_spares_them() {
    let (native, pv) = (shootdowns(3, without_pv), shootdowns(3, |_| {}));
    assert!(pv.stats.flushes_spared > 0);
    assert_eq!(native.stats.flushes_spared, 0);
    assert!(
        latency(&pv) * 2 < latency(&native),
        "{} {}",
        latency(&pv),
        latency(&native)
    );
    // The steal-time page is the only source by which the guest knows the running vCPUs.
    let blind = shootdowns(3, |config| {
        for vm in &mut config.vms {
            vm.guest.steal_time = false;
        }
    });
    assert_eq!(blind.stats.flushes_spared, 0);
}

#[test]
fn a_flush_stays_within_its_process() {
    let config = config(1, 4, 4, named("idle"));
    let calls = |flush, apart| {
        let outcome = run_recipe(&config, |guest| shooter(guest, flush, apart)).unwrap();
        outcome.stats.function_calls
    };
    assert!(calls(true, false) > 100);
    assert_eq!(calls(true, true), 0);
    assert!(calls(false, true) > 100);
}

/// Exits that a broadcast takes: one by shorthand or by hypercall; otherwise one for each vCPU.
#[test]
fn ipis_take_as_many_exits_as_the_mode_needs() {
    let exits = |vcpus: u32, all: bool, pv: bool, x2apic: bool| {
        let mut config = config(1, vcpus, vcpus, named("idle"));
        config.run.duration_ns = 20 * MS;
        config.vms[0].guest.pv_send_ipi = pv;
        config.vms[0].guest.x2apic = x2apic;
        let mut sink = Collected::default();
        let outcome = {
            let mut recipe = |_: &_, guest: &mut GuestBuilder| {
                guest.spawn("shooter", Some(0), |thread| async move {
                    loop {
                        thread.compute(1_000_000).await;
                        thread.flush_tlbs().await;
                    }
                })?;
                // All vCPUs but the last, or all, run threads of the process.
                for n in 1..guest.vcpus() - u32::from(!all) {
                    guest.spawn(&format!("busy/{n}"), Some(n), |thread| async move {
                        loop {
                            thread.compute(100_000).await;
                        }
                    })?;
                }
                Ok(())
            };
            let mut machine = Machine::with_recipes(&config, &mut sink, &mut recipe).unwrap();
            machine.run(&|| false).unwrap()
        };
        let hypercalls = sink
            .events
            .iter()
            .filter(|event| matches!(event.kind, Kind::KvmHypercall { nr: 10, .. }))
            .count() as u64;
        let icr = sink
            .events
            .iter()
            .filter(|event| matches!(event.kind, Kind::KvmApicIpi { .. }))
            .count() as u64;
        let calls = outcome.stats.function_calls;
        assert!(calls >= 15, "{calls}");
        let near = |n: u64| ((n + calls / 2) / calls, n);
        assert_eq!(ExitReason::vmx(18).code, 18);
        (near(hypercalls).0, near(icr).0)
    };
    assert_eq!(exits(40, true, true, true), (1, 0));
    assert_eq!(exits(40, false, true, true), (1, 0));
    assert_eq!(exits(40, true, false, true), (0, 1));
    assert_eq!(exits(40, false, false, true), (0, 38));
    assert_eq!(exits(8, false, false, false), (0, 6));
}
