//! Timers, idleness and the guest's own clock.

use super::{MS, config, done, latency, named, pinned, run, run_recipe, with};

/// A wakeup's price, from its parts: what `cyclictest` sees is between the C1 exit alone and all
/// that can come together.
#[test]
fn cyclictest_measures_what_a_timer_costs() {
    let mut config = pinned(config(1, 1, 1, named("cyclictest")));
    config.host.profile.cstates.truncate(1);
    config.knobs.kvm.halt_poll.halt_poll_ns = 0;
    config.knobs.kvm.lapic_timer_advance = false;
    config.run.duration_ns = 1000 * MS;
    let costs = config.host.profile.costs;
    let outcome = run(&config);
    let parts = [
        config.host.profile.cstates[0].exit_latency_ns,
        costs.irq_ns,
        costs.hrtimer_expiry_ns,
        costs.wakeup_ns,
        costs.context_switch_ns,
        costs.vcpu_load_ns,
        costs.handle_wake_ns,
        costs.vmentry_ns,
        costs.guest_irq_ns,
        costs.guest_wakeup_ns,
        costs.guest_switch_ns,
    ];
    let all: u64 = parts.iter().map(|&ns| u64::from(ns)).sum();
    let mean = latency(&outcome);
    assert!(
        mean > all * 8 / 10 && mean < all * 13 / 10,
        "{mean} of {all}"
    );
}

/// A round trip of `sched-pipe` on a host that neither sleeps deeply nor polls, from its parts.
#[test]
fn sched_pipe_is_the_sum_of_its_parts() {
    let mut config = pinned(config(1, 2, 2, named("sched-pipe")));
    config.host.profile.cstates.truncate(1);
    config.knobs.kvm.halt_poll.halt_poll_ns = 0;
    let costs = config.host.profile.costs;
    let c1 = config.host.profile.cstates[0].exit_latency_ns;
    // The reschedule IPI: an exit for the ICR, a wakeup of the host's CPU by its flag, a switch, an
    // entry, an interrupt, and a switch in the guest. Then the work of a write and a read.
    let one_way = [
        costs.guest_syscall_ns,
        costs.guest_wakeup_ns,
        costs.vmexit_ns + costs.handle_icr_ns + costs.wakeup_ns,
        costs.cache_line_ns + c1,
        costs.context_switch_ns + costs.vcpu_load_ns + costs.vmentry_ns,
        costs.guest_irq_ns + costs.guest_switch_ns,
        2 * 250,
    ];
    let sum: u64 = 2 * one_way.iter().map(|&ns| u64::from(ns)).sum::<u64>();
    let mean = latency(&run(&config));
    assert!(
        mean > sum * 8 / 10 && mean < sum * 13 / 10,
        "{mean} of {sum}"
    );
}

#[test]
fn polling_guests_are_woken_without_ipis() {
    let of = |poll: u32, mwait: bool| {
        let mut config = pinned(config(1, 2, 2, named("sched-pipe")));
        config.vms[0].guest.guest_halt_poll_ns = poll;
        config.vms[0].guest.mwait_in_guest = mwait;
        run(&config)
    };
    let (halting, polling, mwaiting) = (of(0, false), of(200_000, false), of(0, true));
    // One that finds the other on its way to HLT.
    assert!(halting.stats.guest_ipis_spared * 100 < done(&halting));
    for other in [&polling, &mwaiting] {
        assert!(other.stats.guest_ipis_spared > done(other));
        assert!(
            other.stats.guest_ipis * 10 < done(other),
            "{}",
            other.stats.guest_ipis
        );
        assert!(
            latency(other) * 3 < latency(&halting) * 2,
            "{}",
            latency(other)
        );
    }
    assert!(
        mwaiting.vms[0]
            .vcpus
            .iter()
            .all(|vcpu| !vcpu.vcpu.exits.contains_key(&12))
    );
}

/// Two threads of equal weight on a vCPU with 50 % steal get equal parts of the rest. With steal time
/// subtracted from the guest's clock, slices have their nominal length.
#[test]
fn stolen_time_belongs_to_no_thread() {
    for steal_time in [true, false] {
        let mut config = config(
            2,
            1,
            1,
            with("busy", &[("threads", 2), ("chunk_ns", 100_000)]),
        );
        config.vms[0].guest.steal_time = steal_time;
        config.run.duration_ns = 1000 * MS;
        let ran = std::rc::Rc::new(std::cell::RefCell::new(vec![0u64; 4]));
        let of = std::rc::Rc::clone(&ran);
        let mut vm = 0;
        run_recipe(&config, |guest| {
            for n in 0..2 {
                let (ran, own) = (std::rc::Rc::clone(&of), vm * 2 + n);
                guest.spawn(&format!("busy/{n}"), None, move |thread| async move {
                    loop {
                        thread.compute(10_000).await;
                        ran.borrow_mut()[own] += 10_000;
                    }
                })?;
            }
            vm += 1;
            Ok(())
        })
        .unwrap();
        let ran = ran.borrow();
        assert!(ran.iter().sum::<u64>() > 950 * MS);
        if steal_time {
            let error = ran[0].abs_diff(ran[1]) * 100 / (ran[0] + ran[1]);
            assert!(error <= 2, "{ran:?}");
        }
    }
}

/// An idle guest's vCPUs do nothing at all: no ticks, no events. What goes on is the VMM's own
/// thread, once a second, however many vCPUs there are.
#[test]
fn idle_vcpus_cost_nothing() {
    let of = |vcpus, seconds: u64| {
        let mut config = config(4, vcpus, 16, named("idle"));
        config.run.duration_ns = seconds * 1000 * MS;
        run(&config).stats.events
    };
    let (one, sixteen) = (of(1, 50) - of(1, 2), of(16, 50) - of(16, 2));
    assert_eq!(one, sixteen);
    assert!(one < 48 * 4 * 12, "{one}");
}

#[test]
fn broadcasts_cost_more_the_more_must_be_woken() {
    let of = |vcpus, busy| {
        let mut config = pinned(config(
            1,
            vcpus,
            vcpus,
            with("broadcast", &[("busy", busy)]),
        ));
        config.run.duration_ns = 500 * MS;
        latency(&run(&config))
    };
    let (four, sixteen) = (of(4, 0), of(16, 0));
    // Each halted vCPU is a wakeup for the sender.
    assert!(sixteen > four * 3, "{four} {sixteen}");
    assert!(of(16, 1) < sixteen, "{} {sixteen}", of(16, 1));
}

#[test]
fn a_guest_that_does_nothing_but_leave_has_its_ticks() {
    // Two threads on a vCPU: only a tick gives the second its turn. It is due in the host, as the guest takes
    // no time between two exits.
    for preemption_timer in [true, false] {
        let mut config = config(1, 1, 1, with("cpuid-loop", &[("threads", 2)]));
        config.knobs.kvm.preemption_timer = preemption_timer;
        let outcome = run(&config);
        let taken = outcome.vms[0].vcpus[0].vcpu.irqs_taken;
        // 250 Hz for 200 ms.
        assert!(
            (45..=55).contains(&taken),
            "preemption timer {preemption_timer}: {taken}"
        );
    }
}
