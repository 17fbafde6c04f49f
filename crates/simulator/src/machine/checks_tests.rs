//! Checks that find nothing prove nothing: each is shown something broken.

use super::Machine;
use crate::config::{Config, Pinning, VmConfig, WorkloadConfig};
use crate::fault::Fault;
use crate::ids::{CpuNr, TaskNr, TimerNr, VcpuNr};
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
    let config = config();
    let mut sink = ();
    let mut machine = Machine::new(&config, &mut sink).unwrap();
    machine.set_checks(true);
    machine.host.set_duration(10_000_000);
    machine.run(&|| false).unwrap();
    breaks(&mut machine);
    machine.host.checks_mut().now();
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
