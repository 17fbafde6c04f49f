//! Workloads that deadlock are reported, with what each thread waits for and the thread that holds it.

use stealtime_simulator::{Fault, GuestBuilder, Sim};

use super::{MS, config, named, run_recipe};

fn fault(recipe: impl FnMut(&mut GuestBuilder) -> Sim) -> Fault {
    run_recipe(&config(1, 2, 2, named("idle")), recipe).unwrap_err()
}

fn waits(fault: Fault) -> Vec<String> {
    match fault {
        Fault::Deadlock { vm, waits } => {
            assert_eq!(vm, "vm0");
            waits
        }
        other => panic!("{other}"),
    }
}

#[test]
fn two_mutexes_in_different_order() {
    let waits = waits(fault(|guest| {
        let (a, b) = (guest.mutex("a"), guest.mutex("b"));
        for (name, first, second) in [("one", a, b), ("two", b, a)] {
            guest.spawn(name, None, move |thread| async move {
                thread.lock_mutex(first).await;
                thread.compute(MS).await;
                thread.lock_mutex(second).await;
            })?;
        }
        // A third thread that goes on does not hide it.
        guest.spawn("busy", None, |thread| async move {
            loop {
                thread.sleep(MS).await;
            }
        })
    }));
    assert_eq!(
        waits,
        [
            "one waits for mutex b, which two holds",
            "two waits for mutex a, which one holds"
        ]
    );
}

#[test]
fn two_spinlocks_in_different_order() {
    let waits = waits(fault(|guest| {
        let (a, b) = (guest.spinlock("a"), guest.spinlock("b"));
        for (n, (name, first, second)) in [("one", a, b), ("two", b, a)].into_iter().enumerate() {
            guest.spawn(name, Some(n as u32), move |thread| async move {
                thread.lock(first).await;
                thread.kernel(MS).await;
                thread.lock(second).await;
            })?;
        }
        Ok(())
    }));
    assert_eq!(
        waits,
        [
            "one waits for spinlock b, which two holds",
            "two waits for spinlock a, which one holds"
        ]
    );
}

/// A spin that goes on for ten seconds is looked at before the run is over.
#[test]
fn endless_spins_end_the_run_early() {
    let mut config = config(1, 2, 2, named("idle"));
    config.run.duration_ns = 100_000 * MS;
    config.vms[0].guest.pv_spinlocks = false;
    let start = std::time::Instant::now();
    let fault = run_recipe(&config, |guest| {
        let (lock, queue) = (guest.spinlock("lock"), guest.queue("never", 0));
        let mutex = guest.mutex("mutex");
        guest.spawn("holder", Some(0), move |thread| async move {
            thread.lock_mutex(mutex).await;
            thread.wait(queue).await;
        })?;
        guest.spawn("second", Some(0), move |thread| async move {
            thread.compute(MS).await;
            thread.lock(lock).await;
            thread.lock_mutex(mutex).await;
        })?;
        guest.spawn("spinner", Some(1), move |thread| async move {
            thread.compute(2 * MS).await;
            thread.lock(lock).await;
        })
    })
    .unwrap_err();
    // Sleeping with a spinlock held is refused at once.
    assert_eq!(
        fault.to_string(),
        "the workload of VM vm0: second sleeps or ends with a spinlock held: release it first"
    );
    assert!(start.elapsed().as_secs() < 60);
}

#[test]
fn a_mutex_with_a_holder_that_has_ended() {
    let waits = waits(fault(|guest| {
        let mutex = guest.mutex("journal");
        guest.spawn("gone", Some(0), move |thread| async move {
            thread.lock_mutex(mutex).await;
        })?;
        guest.spawn("left", Some(1), move |thread| async move {
            thread.compute(MS).await;
            thread.lock_mutex(mutex).await;
        })
    }));
    assert_eq!(
        waits,
        ["left waits for mutex journal, which gone, which has ended, holds"]
    );
}

#[test]
fn all_wait_for_counts_that_no_thread_gives() {
    let waits = waits(fault(|guest| {
        let queue = guest.queue("pipe", 1);
        for n in 0..2 {
            guest.spawn(&format!("reader/{n}"), None, move |thread| async move {
                loop {
                    thread.wait(queue).await;
                }
            })?;
        }
        Ok(())
    }));
    assert_eq!(
        waits,
        [
            "reader/0 waits for a count of pipe",
            "reader/1 waits for a count of pipe"
        ]
    );
}

#[test]
fn a_thread_that_waits_for_clients_or_time_is_not_stuck() {
    run_recipe(&config(1, 2, 2, named("idle")), |guest| {
        let arrivals = stealtime_simulator::Arrivals::Open {
            mean_gap_ns: 1_000_000_000_000,
        };
        let source = guest.source("unused", arrivals, 0);
        guest.spawn("server", None, move |thread| async move {
            thread.receive(source).await;
        })
    })
    .unwrap();
}

#[test]
fn what_no_kernel_allows_is_refused() {
    let own = fault(|guest| {
        let mutex = guest.mutex("m");
        guest.spawn("t", None, move |thread| async move {
            thread.lock_mutex(mutex).await;
            thread.lock_mutex(mutex).await;
        })
    });
    let message = "the workload of VM vm0: t takes mutex m, which it holds already";
    assert_eq!(own.to_string(), message);
    let spin = fault(|guest| {
        let lock = guest.spinlock("s");
        guest.spawn("t", None, move |thread| async move {
            thread.unlock(lock).await;
        })
    });
    let message = "the workload of VM vm0: t releases spinlock s, which it does not hold";
    assert_eq!(spin.to_string(), message);
}
