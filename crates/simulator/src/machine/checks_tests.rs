//! Checks that find nothing prove nothing: each is shown something broken.

use super::Machine;
use crate::config::{Config, Pinning, VmConfig, WorkloadConfig};
use crate::fault::Fault;
use crate::host::{TaskState, hrtimer, injected};
use crate::ids::{CpuNr, TaskNr, TimerNr, VcpuNr, VmNr};
use crate::inject::{Incident, Injection};
use crate::swarm;

fn config() -> Config {
    let mut config = swarm::scenario(1);
    config.knobs = crate::config::Knobs::default();
    config.host.topology = crate::config::Topology::flat(2);
    config.host.tasks.clear();
    config.vms = vec![VmConfig {
        vcpus: 3,
        workload: WorkloadConfig::named("busy"),
        pinning: Pinning::Pool(vec![0, 1]),
        ..VmConfig::default()
    }];
    config.run.duration_ns = 20_000_000;
    config.run.warmup_ns = 0;
    config
}

/// Runs, breaks something, runs on; the name of the check that noticed.
fn noticed(breaks: impl FnOnce(&mut Machine<'_>)) -> String {
    noticed_in("busy", breaks)
}

/// The same with another workload.
fn noticed_in(workload: &str, breaks: impl FnOnce(&mut Machine<'_>)) -> String {
    let mut config = config();
    config.vms[0].workload = WorkloadConfig::named(workload);
    let mut sink = ();
    let mut machine = Machine::new(&config, &mut sink).unwrap();
    machine.set_checks(true);
    machine.host.set_duration(10_000_000);
    machine.run(&|| false).unwrap();
    breaks(&mut machine);
    machine.host.checks_mut().look_now();
    machine.host.set_duration(20_000_000);
    match machine.run(&|| false) {
        Err(Fault::Broken { what, .. }) => {
            let rest = what.strip_prefix("check ").unwrap_or(&what);
            rest.split(':').next().unwrap_or("").to_owned()
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn a_wrong_count_is_noticed() {
    assert_eq!(
        noticed(|m| m.host.cpus_mut()[CpuNr(0)].runnable += 1),
        "runnable-count"
    );
}

#[test]
fn a_lost_interrupt_is_noticed() {
    let lost = |m: &mut Machine<'_>| {
        m.kvm.vcpus_mut()[VcpuNr(0)]
            .books
            .accepted(m.host.now(), 77)
    };
    assert_eq!(noticed(lost), "interrupt-lost");
}

#[test]
fn an_interrupt_from_nowhere_is_noticed() {
    let posts = |m: &mut Machine<'_>| {
        m.kvm.vcpus_mut()[VcpuNr(0)]
            .shared
            .desc
            .test_and_set_pir(99);
    };
    assert_eq!(noticed(posts), "interrupt-once");
}

#[test]
fn a_forgotten_timer_is_noticed() {
    let forgets = |m: &mut Machine<'_>| {
        let armed = (0..m.host.timers().len() as u32).map(TimerNr);
        let timer = armed
            .into_iter()
            .find(|&t| m.host.timers()[t].queued().is_some());
        m.host.timers_mut()[timer.unwrap()].take_off();
    };
    let name = noticed(forgets);
    assert!(name == "timer-once" || name == "timer-early", "{name}");
}

#[test]
fn time_counted_twice_is_noticed() {
    assert_eq!(
        noticed(|m| m.host.books_mut().cpus[1].busy_ns += 1),
        "time-once"
    );
}

#[test]
fn a_task_in_two_places_is_noticed() {
    let moves = |m: &mut Machine<'_>| {
        let waits = (0..m.host.tasks().len() as u32).map(TaskNr);
        let task = waits
            .into_iter()
            .find(|&t| m.host.tasks()[t].state == crate::host::TaskState::Runnable);
        m.host.tasks_mut()[task.unwrap()].state = crate::host::TaskState::Running;
    };
    assert_eq!(noticed(moves), "one-place");
}

#[test]
fn a_lost_guest_timer_is_noticed() {
    let cancels = |m: &mut Machine<'_>| {
        let vcpus = m.kvm.vcpu_numbers().map(|vcpu| m.kvm.vcpu(vcpu).hrtimer);
        let mut queued = vcpus.filter(|&timer| m.host.timers()[timer].queued().is_some());
        let timer = queued.next().unwrap();
        drop(queued);
        hrtimer::cancel(&mut m.host, timer, CpuNr(0));
    };
    assert_eq!(noticed_in("ticks", cancels), "timer-lost");
}

/// Without the kick its vCPUs sleep on.
#[test]
fn a_kill_that_goes_unnoticed_is_noticed() {
    let kills = |m: &mut Machine<'_>| {
        m.inject(&Injection::default()).unwrap();
        let now = m.host.now();
        injected::state_mut(&mut m.host).unwrap().kill(VmNr(0), now);
    };
    assert_eq!(noticed_in("idle", kills), "kill-ends");
}

/// The machine of [`config`] with two VMs, after 20 ms with this injection.
fn after(injection: &Injection, looks: impl FnOnce(&Machine<'_>)) {
    after_in("busy", injection, looks);
}

fn after_in(workload: &str, injection: &Injection, looks: impl FnOnce(&Machine<'_>)) {
    let mut config = config();
    config.vms[0].workload = WorkloadConfig::named(workload);
    config.vms.push(config.vms[0].clone());
    let mut sink = ();
    let mut machine = Machine::new(&config, &mut sink).unwrap();
    machine.set_checks(true);
    machine.inject(injection).unwrap();
    machine.run(&|| false).unwrap();
    looks(&machine);
}

fn incidents(incidents: &[(u64, Incident)]) -> Injection {
    Injection {
        incidents: incidents.to_vec(),
        ..Injection::default()
    }
}

#[test]
fn a_killed_vm_ends_and_the_other_has_its_cpus() {
    let injection = incidents(&[(5_000_000, Incident::Kill { vm: 0 })]);
    after(&injection, |m| {
        let run_ns = |vcpu| m.host.tasks()[m.kvm.vcpu(vcpu).task].books.run_ns;
        let state = |vcpu| m.host.tasks()[m.kvm.vcpu(vcpu).task].state;
        let (first, second) = ([0, 1, 2].map(VcpuNr), [3, 4, 5].map(VcpuNr));
        assert!(first.iter().all(|&vcpu| state(vcpu) == TaskState::Dead));
        let workers = m.host.workers(VmNr(0)).unwrap();
        for task in [workers.main_loop, workers.io] {
            assert_eq!(m.host.tasks()[task].state, TaskState::Dead);
        }
        // Two CPUs for 5 ms between both VMs, then for 15 ms.
        let sums = [first, second].map(|vcpus| vcpus.map(run_ns).iter().sum::<u64>());
        assert!((4_500_000..=6_500_000).contains(&sums[0]), "{sums:?}");
        assert!(sums[0] + sums[1] > 39_000_000, "{sums:?}");
        assert_eq!(m.injected().killed, 1);
    });
}

#[test]
fn a_thread_that_hangs_does_not_run_again() {
    let hangs = |vcpu| (5_000_000, Incident::Hang { vm: 1, vcpu });
    after(&incidents(&[hangs(1)]), |m| {
        let task = &m.host.tasks()[m.kvm.vcpu(VcpuNr(4)).task];
        assert_eq!(task.state, TaskState::Blocked);
        // It notices at its next exit, a tick later at most.
        assert!(task.books.sleep_ns >= 10_000_000, "{:?}", task.books);
        assert_eq!(m.injected().hung, 1);
    });
}

#[test]
fn a_stalled_cpu_does_nothing_else() {
    let stall = Incident::Stall {
        cpu: 1,
        ns: 3_000_000,
    };
    after(&incidents(&[(5_000_000, stall)]), |m| {
        let irq_ns = |cpu: usize| m.host.out().books().cpus[cpu].irq_ns;
        assert!(irq_ns(1) >= 3_000_000 && irq_ns(0) < 1_000_000);
    });
}

#[test]
fn what_does_not_exist_is_refused() {
    let config = config();
    for incident in [
        Incident::Stall { cpu: 2, ns: 1 },
        Incident::Kill { vm: 1 },
        Incident::Hang { vm: 0, vcpu: 3 },
        Incident::ClockStep { vm: 7, ns: 1 },
    ] {
        let mut sink = ();
        let mut machine = Machine::new(&config, &mut sink).unwrap();
        let refused = machine.inject(&incidents(&[(0, incident)]));
        assert!(matches!(refused, Err(Fault::Config(error)) if error.key == "incident.0"));
    }
}

/// Each chance alone, certain: late and repeated interrupts break nothing, and lost ones end no run.
#[test]
fn interrupts_may_be_late_repeated_or_lost() {
    let chances = |lost, late, twice| Injection {
        lost_of_1000: lost,
        late_of_1000: late,
        late_ns: 50_000,
        twice_of_1000: twice,
        ..Injection::default()
    };
    after_in("ipi-pairs", &chances(0, 1000, 0), |m| {
        let injected = m.injected();
        assert!(injected.late > 100 && injected.lost == 0, "{injected:?}");
    });
    after_in("ipi-pairs", &chances(0, 0, 1000), |m| {
        assert!(m.injected().twice > 100, "{:?}", m.injected());
    });
    after_in("ipi-pairs", &chances(1000, 0, 0), |m| {
        assert!(m.injected().lost > 20, "{:?}", m.injected());
    });
}

/// A run that loses interrupts, watched as if it lost none.
#[test]
fn what_lost_interrupts_leave_undone_is_noticed() {
    let loses = |m: &mut Machine<'_>| {
        let injection = Injection {
            lost_of_1000: 1000,
            ..Injection::default()
        };
        m.inject(&injection).unwrap();
        m.host.checks_mut().expect_faults(0, false);
    };
    let name = noticed_in("ipi-pairs", loses);
    assert!(
        ["wakeup-lost", "interrupt-taken", "interrupt-wakes"].contains(&&*name),
        "{name}"
    );
}
