//! Random programs that take locks in order: none is lost, none stops the rest.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;
use stealtime_simulator::config::{Hypervisor, IdleMethod, Pinning};
use stealtime_simulator::program::{QueueId, Thread};
use stealtime_simulator::{Arrivals, GuestBuilder, Sim};

use super::{config, named, run_recipe};

/// A step of a random program, free of numbers that depend on the guest.
#[derive(Clone, Copy, Debug)]
enum Step {
    Compute(u16),
    IrqsOff(u16),
    Sleep(u16),
    Spin(u8, u16),
    Nested(u16),
    Mutex(u8, u16),
    MutexAndIo,
    Give,
    Take,
    Call,
    Flush,
    Kick,
    KickOthers,
    Io,
    Yield,
    Cpuid,
    Fault,
    Request,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u16>().prop_map(Step::Compute),
        1 => (0u16..5000).prop_map(Step::IrqsOff),
        2 => any::<u16>().prop_map(Step::Sleep),
        4 => (any::<u8>(), 0u16..3000).prop_map(|(lock, ns)| Step::Spin(lock, ns)),
        1 => (0u16..3000).prop_map(Step::Nested),
        4 => (any::<u8>(), 0u16..8000).prop_map(|(mutex, ns)| Step::Mutex(mutex, ns)),
        1 => Just(Step::MutexAndIo),
        3 => Just(Step::Give),
        3 => Just(Step::Take),
        1 => Just(Step::Call),
        1 => Just(Step::Flush),
        1 => Just(Step::Kick),
        1 => Just(Step::KickOthers),
        1 => Just(Step::Io),
        1 => Just(Step::Yield),
        1 => Just(Step::Cpuid),
        1 => Just(Step::Fault),
        1 => Just(Step::Request),
    ]
}

/// How often the program went round, and the counts that it gave and took.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    rounds: u64,
    gave: u64,
    took: u64,
}

/// How often each program goes round.
const ROUNDS: u64 = 5;

type Tallies = Rc<RefCell<Vec<Tally>>>;

fn build(guest: &mut GuestBuilder, programs: &[Vec<Step>], tallies: &Tallies) -> Sim {
    let spins: Rc<[_]> = (0..3).map(|n| guest.spinlock(&format!("s{n}"))).collect();
    let mutexes: Rc<[_]> = (0..3).map(|n| guest.mutex(&format!("m{n}"))).collect();
    let queue = guest.queue("q", 0);
    let disk = guest.device("disk", 20_000, 50, 0);
    let card = guest.source(
        "card",
        Arrivals::Closed {
            clients: 2,
            think_ns: 30_000,
        },
        1,
    );
    // A thread that takes counts always gets some in the end.
    let all = Rc::clone(tallies);
    guest.spawn("giver", None, move |thread| give(thread, queue, all))?;
    for (n, program) in programs.iter().enumerate() {
        let (program, tallies) = (program.clone(), Rc::clone(tallies));
        let (spins, mutexes) = (Rc::clone(&spins), Rc::clone(&mutexes));
        let vcpu = (n % 3 == 0).then_some(n as u32);
        let own = tallies.borrow().len();
        tallies.borrow_mut().push(Tally::default());
        guest.spawn(&format!("random/{n}"), vcpu, move |thread| async move {
            for _ in 0..ROUNDS {
                for &step in &program {
                    match step {
                        Step::Compute(ns) => drop(thread.compute(ns.into()).await),
                        Step::IrqsOff(ns) => drop(thread.irqs_off(ns.into()).await),
                        Step::Sleep(ns) => drop(thread.sleep(ns.into()).await),
                        Step::Spin(which, ns) => {
                            let lock = spins[which as usize % spins.len()];
                            thread.lock(lock).await;
                            thread.kernel(ns.into()).await;
                            thread.unlock(lock).await;
                        }
                        Step::Nested(ns) => {
                            for &lock in spins.iter() {
                                thread.lock(lock).await;
                            }
                            thread.kernel(ns.into()).await;
                            for &lock in spins.iter().rev() {
                                thread.unlock(lock).await;
                            }
                        }
                        Step::Mutex(which, ns) => {
                            let from = which as usize % mutexes.len();
                            for &mutex in &mutexes[from..] {
                                thread.lock_mutex(mutex).await;
                            }
                            thread.compute(ns.into()).await;
                            for &mutex in mutexes[from..].iter().rev() {
                                thread.unlock_mutex(mutex).await;
                            }
                        }
                        Step::MutexAndIo => {
                            thread.lock_mutex(mutexes[0]).await;
                            thread.io(disk).await;
                            thread.unlock_mutex(mutexes[0]).await;
                        }
                        Step::Give => {
                            tallies.borrow_mut()[own].gave += 1;
                            thread.wake(queue, 1).await;
                        }
                        Step::Take => {
                            thread.wait(queue).await;
                            tallies.borrow_mut()[own].took += 1;
                        }
                        Step::Call => drop(thread.call_others().await),
                        Step::Flush => drop(thread.flush_tlbs().await),
                        Step::Kick => drop(thread.kick(0).await),
                        Step::KickOthers => drop(thread.kick_others().await),
                        Step::Io => drop(thread.io(disk).await),
                        Step::Yield => drop(thread.yield_now().await),
                        Step::Cpuid => drop(thread.cpuid().await),
                        Step::Fault => drop(thread.page_fault().await),
                        Step::Request => {
                            thread.receive(card).await;
                            thread.respond(card).await;
                        }
                    }
                }
                tallies.borrow_mut()[own].rounds += 1;
            }
        })?;
    }
    Ok(())
}

/// Gives counts until all others have come to their end.
async fn give(thread: Thread, queue: QueueId, tallies: Tallies) {
    while tallies.borrow().iter().any(|tally| tally.rounds < ROUNDS) {
        thread.sleep(20_000).await;
        thread.wake(queue, 1).await;
        tallies.borrow_mut()[0].gave += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_thread_is_lost(
        programs in vec(vec(step(), 1..8), 1..6),
        (vms, vcpus, cpus) in (1u32..3, 1u32..5, 1u32..5),
        switches in any::<u16>(),
        seed in any::<u64>(),
    ) {
        let on = |bit: u32| switches >> bit & 1 == 1;
        let mut config = config(vms, vcpus, cpus, named("idle"));
        config.run.seed = seed;
        config.run.duration_ns = 10_000_000_000;
        if on(0) {
            config.host.hypervisor = Hypervisor::Xen;
        }
        config.host.idle = if on(1) { IdleMethod::Hlt } else { IdleMethod::Mwait };
        config.host.profile.features.ipiv = on(2);
        config.knobs.kvm.enable_apicv = on(3) || on(4);
        for vm in &mut config.vms {
            let guest = &mut vm.guest;
            guest.pv_spinlocks = on(5);
            guest.pv_send_ipi = on(6);
            guest.pv_tlb_flush = on(7);
            guest.steal_time = on(8);
            guest.x2apic = on(9);
            guest.guest_halt_poll_ns = if on(10) { 200_000 } else { 0 };
            guest.mwait_in_guest = on(11) && on(12);
            guest.hlt_in_guest = on(13) && on(12);
            vm.assigned_device = on(14);
            if on(15) {
                vm.pinning = Pinning::Pool((0..cpus.div_ceil(2)).collect());
            }
        }
        let tallies = Tallies::default();
        let made = run_recipe(&config, |guest| build(guest, &programs, &tallies));
        prop_assert!(made.is_ok(), "{}", made.unwrap_err());
        let tallies = tallies.borrow();
        prop_assert!(tallies.iter().all(|tally| tally.rounds == ROUNDS), "{tallies:?}");
        let gave: u64 = tallies.iter().map(|tally| tally.gave).sum();
        let took: u64 = tallies.iter().map(|tally| tally.took).sum();
        prop_assert!(took <= gave, "{tallies:?}");
    }
}
