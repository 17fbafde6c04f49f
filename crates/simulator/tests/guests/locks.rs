//! Spinning: what oversubscription does to it, and what helps.

use stealtime_hypervisor::directed_yield::CandidateOrder;
use stealtime_simulator::config::{Config, Knobs};
use stealtime_simulator::{GuestBuilder, Outcome, Sim};

use super::{MS, config, done, named, pinned, run, run_recipe, spun};

/// Threads, one a vCPU, that hold one spinlock a quarter of the time.
fn contend(guest: &mut GuestBuilder) -> Sim {
    let lock = guest.spinlock("lock");
    for n in 0..guest.vcpus() {
        guest.spawn(
            &format!("contender/{n}"),
            Some(n),
            move |mut thread| async move {
                loop {
                    let ns = thread.random.exponential(12_000);
                    thread.compute(ns).await;
                    thread.lock(lock).await;
                    thread.kernel(1_500).await;
                    thread.unlock(lock).await;
                    thread.done(1);
                }
            },
        )?;
    }
    Ok(())
}

/// How a guest's spinlocks work.
#[derive(Clone, Copy, PartialEq)]
enum Locks {
    Paravirtual,
    TestAndSet,
    Native,
    Yielding,
}

/// Guests of four vCPUs on as many CPUs or on fewer, where pause loops exit or not.
fn contended(cpus: u32, locks: Locks, ple: bool) -> Outcome {
    let mut config = config(1, 4, cpus, named("idle"));
    for vm in &mut config.vms {
        vm.guest.pv_spinlocks = locks == Locks::Paravirtual;
        vm.guest.nopvspin = locks == Locks::Native;
        vm.guest.spin_yield = locks == Locks::Yielding;
        vm.guest.pause_in_guest = !ple;
    }
    run_recipe(&config, contend).unwrap()
}

/// Share of the guests' time on CPUs that was spent spinning, in tenths of a percent.
fn spun_per_mille(outcome: &Outcome) -> u64 {
    spun(outcome) * 1000 / super::sum(outcome, |vcpu| vcpu.vcpu.guest_ns)
}

#[test]
fn lock_holders_are_preempted_when_cpus_are_short() {
    let (enough, short) = (
        contended(4, Locks::Native, true),
        contended(3, Locks::Native, true),
    );
    let spun = [spun_per_mille(&enough), spun_per_mille(&short)];
    assert!(enough.stats.lock_waits > 1000);
    assert!(spun[0] < 60, "{spun:?}");
    assert!(spun[1] > 4 * spun[0], "{spun:?}");
    assert_eq!(enough.stats.directed_yields, 0);
    assert!(short.stats.pause_exits > 100 * enough.stats.pause_exits);
    assert!(short.stats.directed_yields > 1000);
    assert!(short.stats.yields_to_awaited > 1000);
    // Without pause-loop exiting, a vCPU that spins keeps its CPU until the tick.
    let blind = contended(3, Locks::Native, false);
    assert_eq!(blind.stats.pause_exits, 0);
    assert!(spun_per_mille(&blind) > 800, "{}", spun_per_mille(&blind));
    assert!(done(&blind) * 2 < done(&short));
}

#[test]
fn paravirtual_locks_halt_instead_of_spinning() {
    let native = contended(3, Locks::Native, false);
    let pv = contended(3, Locks::Paravirtual, false);
    assert!(pv.stats.pv_waits > 0 && pv.stats.pv_kicks > 0);
    assert_eq!((native.stats.pv_waits, native.stats.pv_kicks), (0, 0));
    let spun = [spun_per_mille(&native), spun_per_mille(&pv)];
    assert!(spun[1] * 3 < spun[0], "{spun:?}");
    assert!(
        done(&pv) > 4 * done(&native),
        "{} {}",
        done(&pv),
        done(&native)
    );
}

/// Threads that take one spinlock and sleep now and then, so that vCPUs idle.
fn nap(guest: &mut GuestBuilder) -> Sim {
    let lock = guest.spinlock("lock");
    for n in 0..guest.vcpus() {
        let name = format!("contender/{n}");
        guest.spawn(&name, Some(n), move |mut thread| async move {
            loop {
                for _ in 0..300 {
                    let ns = thread.random.exponential(4_000);
                    thread.compute(ns).await;
                    thread.lock(lock).await;
                    thread.kernel(1_500).await;
                    thread.unlock(lock).await;
                }
                thread.sleep(300_000).await;
                thread.done(1);
            }
        })?;
    }
    Ok(())
}

/// A kick that comes before its vCPU has halted ends that one HLT. Once it ended all that came
/// after: an idle vCPU then left the guest without pause.
#[test]
fn an_early_kick_ends_one_halt() {
    let mut config = config(1, 4, 2, named("idle"));
    for vm in &mut config.vms {
        vm.guest.pv_spinlocks = true;
        vm.guest.pause_in_guest = true;
    }
    let outcome = run_recipe(&config, nap).unwrap();
    let stats = &outcome.stats;
    assert!(stats.pv_kicks > 40, "{}", stats.pv_kicks);
    // Naps, waits and kicks, each with a timer, a halt and an interrupt at the most; not 168 000.
    let reasons = done(&outcome) + stats.pv_waits + stats.pv_kicks;
    assert!(stats.exits < 10 * reasons, "{} {reasons}", stats.exits);
}

/// A lock that whoever comes first takes is not passed to a waiter that does not run, with which
/// the lock would wait for a CPU.
#[test]
fn test_and_set_locks_do_not_wait_for_preempted_waiters() {
    let (fair, unfair) = (
        contended(3, Locks::Native, true),
        contended(3, Locks::TestAndSet, true),
    );
    let spun = [spun_per_mille(&fair), spun_per_mille(&unfair)];
    assert!(spun[1] * 3 < spun[0] * 2, "{spun:?}");
    assert!(done(&unfair) > done(&fair));
    assert_eq!(unfair.stats.pv_waits, 0);
}

/// A spinner that knows the owner's vCPU yields the CPU to it at once, without a pause-loop exit and a
/// search.
#[test]
fn yielding_locks_hand_the_cpu_to_the_owner() {
    let [blind, ple] = [false, true].map(|ple| contended(3, Locks::TestAndSet, ple));
    let yielding = contended(3, Locks::Yielding, false);
    let stats = &yielding.stats;
    assert_eq!((stats.pause_exits, stats.directed_yields), (0, 0));
    assert!(stats.yield_hypercalls > 1000, "{}", stats.yield_hypercalls);
    assert_eq!(ple.stats.yield_hypercalls, 0);
    let spun = [&blind, &ple, &yielding].map(spun_per_mille);
    assert!(spun[2] < spun[1] && spun[1] < spun[0], "{spun:?}");
    assert!(done(&yielding) > done(&blind));
    // With a CPU for each vCPU the owner runs: all that is left are rounds of spinning.
    let enough = contended(4, Locks::Yielding, false);
    assert!(enough.stats.yield_hypercalls * 20 < stats.yield_hypercalls);
}

/// A guest that names the vCPU that it waits for is believed where the knob is on: more yields reach
/// that vCPU, and less time is spent spinning.
#[test]
fn a_guests_hint_names_the_vcpu_to_yield_to() {
    let of = |hint: bool| {
        let mut config = config(2, 8, 4, named("idle"));
        for vm in &mut config.vms {
            vm.guest.pv_spinlocks = false;
        }
        let knobs = &mut config.knobs.kvm.directed_yield;
        knobs.ipi_aware = true;
        knobs.order = CandidateOrder::Priority;
        knobs.ipi.guest_yield_hint = hint;
        run_recipe(&config, contend).unwrap()
    };
    let (blind, hinted) = (of(false), of(true));
    assert_eq!(blind.stats.mechanisms.guest_hints.get(), 0);
    assert!(hinted.stats.mechanisms.guest_hints.get() > 100);
    let awaited = |outcome: &Outcome| {
        let stats = &outcome.stats;
        stats.yields_to_awaited * 1000 / stats.directed_yields
    };
    let shares = [&blind, &hinted].map(awaited);
    let spun = [&blind, &hinted].map(spun_per_mille);
    assert!(shares[1] > 2 * shares[0], "{shares:?} {spun:?}");
    assert!(spun[1] < spun[0], "{spun:?}");
}

/// What a task works on leaves the caches when another uses its CPU: that costs where vCPUs take turns,
/// and nothing where each has a CPU.
#[test]
fn caches_grow_cold_where_vcpus_take_turns() {
    let of = |vms: u32, ns: u32| {
        let mut config = config(vms, 4, 4, named("busy"));
        for vm in &mut config.vms {
            vm.workload = super::with("busy", &[("chunk_ns", 10_000)]);
        }
        config.knobs.host.cold_cache_ns = ns;
        done(&run(&config))
    };
    let (alone, shared) = ([of(1, 0), of(1, 100_000)], [of(2, 0), of(2, 100_000)]);
    assert!(alone[1] * 1000 > alone[0] * 990, "{alone:?}");
    assert!(shared[1] * 100 < shared[0] * 99, "{shared:?}");
}

/// VMX counts pause loops at CPL 0 alone, SVM at any: there a program's spinner gives its CPU away,
/// and to vCPUs that were preempted in user mode.
#[test]
fn user_mode_spins_leave_the_guest_on_svm_alone() {
    let of = |svm: bool, workload: &str| {
        let mut config = config(1, 4, 3, named(workload));
        config.vms[0].guest.pv_spinlocks = false;
        let features = &mut config.host.profile.features;
        features.svm = svm;
        (features.apicv, features.ipiv, features.hv_timer_shift) = (false, false, None);
        config.knobs = Knobs::on(features);
        match workload {
            "idle" => run_recipe(&config, contend).unwrap(),
            _ => run(&config),
        }
    };
    let [vmx, svm] = [false, true].map(|svm| of(svm, "user-lock"));
    assert_eq!((vmx.stats.pause_exits, vmx.stats.directed_yields), (0, 0));
    assert!(svm.stats.pause_exits > 10, "{}", svm.stats.pause_exits);
    assert!(
        svm.stats.yields_to_awaited > 5,
        "{}",
        svm.stats.yields_to_awaited
    );
    assert!(spun_per_mille(&svm) < spun_per_mille(&vmx));
    assert!(done(&svm) > done(&vmx));
    // 3000 PAUSEs of 140 cycles are a hundred times VMX's window of 4096 cycles.
    let [vmx, svm] = [false, true].map(|svm| of(svm, "idle"));
    assert!(vmx.stats.pause_exits > 5 * svm.stats.pause_exits);
    assert!(svm.stats.pause_exits > 0);
}

/// KVM records an IPI that one vCPU takes, sent by the ICR in either mode; none by hypercall.
#[test]
fn ipis_by_hypercall_are_not_tracked() {
    let of = |pv: bool, x2apic: bool, vcpus: u32| {
        let mut config = config(1, vcpus, vcpus, named("idle"));
        let guest = &mut config.vms[0].guest;
        (guest.pv_send_ipi, guest.x2apic, guest.pv_tlb_flush) = (pv, x2apic, false);
        let knobs = &mut config.knobs.kvm;
        knobs.enable_apicv = false;
        knobs.directed_yield.ipi.ipi_tracking_enabled = true;
        let outcome = run_recipe(&config, |guest| {
            for n in 0..2 {
                let name = format!("half/{n}");
                guest.spawn(&name, Some(n), move |thread| async move {
                    loop {
                        thread.compute(50_000).await;
                        thread.flush_tlbs().await;
                        thread.done(1);
                    }
                })?;
            }
            Ok(())
        });
        let stats = outcome.unwrap().stats;
        assert!(stats.guest_ipis > 1000, "{}", stats.guest_ipis);
        let counts = &stats.mechanisms;
        (
            stats.guest_ipis,
            counts.ipis_recorded.get(),
            counts.ipis_settled.get(),
        )
    };
    // In xAPIC mode with more than eight vCPUs there are no logical ids.
    for (x2apic, vcpus) in [(true, 4), (false, 4), (false, 12)] {
        let (sent, recorded, settled) = of(false, x2apic, vcpus);
        assert_eq!(recorded, sent);
        assert!(settled <= recorded);
        assert_eq!(of(true, x2apic, vcpus).1, 0);
    }
}

/// What does not exit on HLT cannot be kicked: whoever comes first has the lock.
#[test]
fn no_paravirtual_locks_where_hlt_stays_in_the_guest() {
    let mut config = config(1, 4, 4, named("idle"));
    config.vms[0].guest.hlt_in_guest = true;
    let outcome = run_recipe(&config, contend).unwrap();
    assert!(outcome.stats.lock_waits > 1000);
    assert_eq!(outcome.stats.pv_waits, 0);
}

/// Matched and pinned, a spinner's candidates all run: the knobs change nothing, as published.
#[test]
fn one_to_one_pinning_leaves_directed_yield_nothing_to_do() {
    let of = |change: &dyn Fn(&mut Config)| {
        let mut config = pinned(config(1, 8, 8, named("dbench")));
        config.run.duration_ns = 100 * MS;
        change(&mut config);
        run(&config)
    };
    let plain = of(&|_| {});
    assert!(spun(&plain) > 0);
    for change in [
        &(|config: &mut Config| config.knobs.kvm.directed_yield.ipi.ipi_tracking_enabled = true)
            as &dyn Fn(&mut Config),
        &|config| config.knobs.kvm.directed_yield.enable_relaxed_boost = true,
    ] {
        let other = of(change);
        assert_eq!(done(&plain), done(&other));
        assert_eq!(spun(&plain), spun(&other));
    }
}

/// Threads spin for a mutex that is held briefly, and do not sleep, as long as its owner runs. With
/// two on a vCPU they must sleep.
#[test]
fn mutexes_spin_while_the_owner_runs() {
    let of = |threads: u32, vcpus: u32| {
        run_recipe(&config(1, vcpus, vcpus, named("idle")), |guest| {
            let mutex = guest.mutex("mutex");
            for n in 0..threads {
                guest.spawn(
                    &format!("thread/{n}"),
                    Some(n),
                    move |mut thread| async move {
                        loop {
                            let ns = thread.random.exponential(8_000);
                            thread.compute(ns).await;
                            thread.lock_mutex(mutex).await;
                            thread.kernel(2_000).await;
                            thread.unlock_mutex(mutex).await;
                            thread.done(1);
                        }
                    },
                )?;
            }
            Ok(())
        })
        .unwrap()
    };
    let apart = of(4, 4);
    assert!(spun(&apart) > MS);
    // A spinner gives up now and then: for a tick's reschedule.
    assert!(
        apart.stats.mutex_waits * 50 < done(&apart),
        "{}",
        apart.stats.mutex_waits
    );
    let together = of(2, 1);
    assert_eq!(spun(&together), 0);
}

/// Mutual exclusion: what is read under a lock has not been written by another since.
#[test]
fn locks_exclude() {
    use std::cell::Cell;
    use std::rc::Rc;
    let kinds = [Locks::Native, Locks::TestAndSet, Locks::Paravirtual];
    let guests = kinds.map(|locks| (3, locks)).into_iter();
    for (vms, locks) in guests.chain([(1, Locks::Native), (1, Locks::TestAndSet)]) {
        let mut config = config(vms, 4, 4, named("idle"));
        config.vms[0].guest.pv_spinlocks = locks == Locks::Paravirtual;
        config.vms[0].guest.nopvspin = locks == Locks::Native;
        let taken = Rc::new(Cell::new(0u64));
        run_recipe(&config, |guest| {
            let (lock, mutex) = (guest.spinlock("lock"), guest.mutex("mutex"));
            let inside = [Rc::new(Cell::new(0u32)), Rc::new(Cell::new(0u32))];
            for n in 0..8 {
                let (inside, taken) = (inside.clone(), Rc::clone(&taken));
                guest.spawn(&format!("thread/{n}"), None, move |mut thread| async move {
                    let [spins, sleeps] = inside;
                    loop {
                        let ns = thread.random.exponential(5_000);
                        thread.compute(ns).await;
                        thread.lock_mutex(mutex).await;
                        sleeps.set(sleeps.get() + 1);
                        thread.compute(1_000).await;
                        assert_eq!(sleeps.get(), 1);
                        thread.lock(lock).await;
                        spins.set(spins.get() + 1);
                        thread.kernel(500).await;
                        assert_eq!(spins.get(), 1);
                        spins.set(0);
                        thread.unlock(lock).await;
                        sleeps.set(0);
                        thread.unlock_mutex(mutex).await;
                        thread.lock(lock).await;
                        spins.set(spins.get() + 1);
                        thread.kernel(300).await;
                        assert_eq!(spins.get(), 1);
                        spins.set(0);
                        thread.unlock(lock).await;
                        taken.set(taken.get() + 1);
                    }
                })?;
            }
            Ok(())
        })
        .unwrap();
        assert!(taken.get() > 1000, "{}", taken.get());
    }
}
