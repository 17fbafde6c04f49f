//! Moves between hosts with figures of a formula: ready time grows with demand beyond half of the CPUs.

use crate::capacity::fleet::{Fleet, HostNames, named};
use crate::capacity::rebalance::{Rebalance, rebalance};
use crate::capacity::tests::{Formula, THREADS, vm};
use crate::capacity::{HostVm, Limit};

/// VMs by host, each with its CPU time in ms per second.
type Hosts<'h> = &'h [&'h [(&'h str, f64)]];

fn path(host: usize) -> String {
    format!("host{}.dat", host + 1)
}

/// Hosts with one CPU: `ready<5%` holds up to 750 ms per second.
fn fleet_answer(hosts: Hosts<'_>, noise: f64, limits: &[&str]) -> Result<Rebalance, String> {
    let paths: Vec<String> = (0..hosts.len()).map(path).collect();
    let names = hosts
        .iter()
        .map(|vms| vms.iter().map(|vm| vm.0.to_owned()).collect());
    let names: Vec<Vec<String>> = names.collect();
    let pairs = paths.iter().zip(&names);
    let pairs = pairs.map(|(host, vms)| HostNames { host, vms });
    let vms = named(&pairs.collect::<Vec<_>>()).map_err(|error| error.to_string())?;
    let formula = |host: usize| {
        let own = hosts[host].iter().map(|own| vm(own.0, own.1, false));
        let demands = hosts.iter().flat_map(|vms| vms.iter().map(|vm| vm.1));
        let foreign = vms.iter().zip(demands).filter(|(vm, _)| vm.home != host);
        let foreign = foreign.map(|(foreign, run_ms)| HostVm {
            is_added: true,
            first: 0,
            ..vm(&foreign.name, run_ms, false)
        });
        Formula::new(own.chain(foreign).collect(), 1, noise)
    };
    let formulas: Vec<Formula> = (0..hosts.len()).map(formula).collect();
    let fleet = Fleet {
        hosts: formulas.iter().collect(),
        names: paths,
        vms,
    };
    let limits: Vec<String> = limits.iter().map(|limit| (*limit).to_owned()).collect();
    let limits = Limit::parse_all(&limits).expect("limits");
    rebalance(&fleet, &limits, 5, THREADS).map_err(|error| error.to_string())
}

fn answer(hosts: Hosts<'_>, limits: &[&str]) -> Rebalance {
    fleet_answer(hosts, 0.0, limits).expect("an answer")
}

/// The moves: VM, host that it leaves, host that it comes to.
fn moves(answer: &Rebalance) -> Vec<[&str; 3]> {
    let moves = answer.moves.iter();
    moves
        .map(|step| [&*step.vm, &*step.source, &*step.destination])
        .collect()
}

#[test]
fn limits_that_hold_need_no_move() {
    let answer = answer(
        &[&[("db", 300.0), ("web", 400.0)], &[("app", 100.0)]],
        &["ready<5%"],
    );
    assert!(answer.is_balanced && answer.moves.is_empty());
    assert_eq!(answer.sets, 0);
    assert_eq!(
        answer.sentence,
        "No VM has to move: all limits hold on every host as recorded."
    );
}

#[test]
fn the_single_move_that_suffices_is_found() {
    // web would overload the other host.
    let hosts: Hosts<'_> = &[&[("db", 300.0), ("web", 700.0)], &[("app", 100.0)]];
    let answer = answer(hosts, &["ready<5%"]);
    assert!(answer.is_balanced);
    assert_eq!(moves(&answer), [["db", "host1.dat", "host2.dat"]]);
    assert_eq!(answer.sets, 2);
    let step = &answer.moves[0];
    let names = |point: &crate::capacity::Point| -> Vec<String> {
        point.vms.iter().map(|vm| vm.vm.clone()).collect()
    };
    assert_eq!(names(step.source_after.as_ref().expect("web")), ["web"]);
    assert_eq!(names(&step.destination_after), ["app", "db"]);
    assert_eq!(
        answer.sentence,
        "Move db from host1.dat to host2.dat: with this one move all limits hold on every host. As \
         recorded, web on host1.dat waits 10.0 % ±0.0 of its time (limit 5.0 %), taken by its own vCPUs."
    );
}

#[test]
fn two_vms_change_places_where_no_single_move_suffices() {
    let hosts: Hosts<'_> = &[&[("a", 600.0), ("b", 400.0)], &[("c", 300.0), ("d", 100.0)]];
    let answer = answer(hosts, &["ready<5%"]);
    assert!(answer.is_balanced, "{}", answer.sentence);
    let mut found = moves(&answer);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ["b", "host1.dat", "host2.dat"],
            ["d", "host2.dat", "host1.dat"]
        ]
    );
    assert!(
        answer
            .sentence
            .contains("these 2 moves all limits hold on every host. No single move suffices."),
        "{}",
        answer.sentence
    );
}

#[test]
fn what_no_moves_bring_within_limits_is_said() {
    let hosts: Hosts<'_> = &[&[("a", 600.0), ("b", 500.0)], &[("c", 700.0)]];
    let answer = answer(hosts, &["ready<5%"]);
    assert!(!answer.is_balanced);
    let failure = answer.after.as_ref().expect("a broken limit");
    assert!(!failure.takers.is_empty());
    let sentence = &answer.sentence;
    assert!(
        sentence.starts_with("No moves are found with which all limits hold")
            && sentence.contains("(limit 5.0 %)")
            && sentence.ends_with("Another set may suffice."),
        "{sentence}"
    );
}

#[test]
fn a_name_of_two_hosts_has_the_host_in_it() {
    let hosts: Hosts<'_> = &[&[("web", 300.0), ("db", 700.0)], &[("web", 100.0)]];
    let answer = answer(hosts, &["web.ready<5%"]);
    assert_eq!(
        moves(&answer),
        [["web@host1.dat", "host1.dat", "host2.dat"]]
    );
    let limits = &answer.moves[0].destination_after.checks;
    let limits: Vec<String> = limits.iter().map(|check| check.limit.to_string()).collect();
    assert_eq!(limits, ["web@host1.dat.ready<5%", "web@host2.dat.ready<5%"]);
    assert!(
        answer.sentence.ends_with(
            "As recorded, web@host1.dat waits 10.0 % ±0.0 of its time (limit 5.0 %), taken by its own \
             vCPUs."
        ),
        "{}",
        answer.sentence
    );
    // The limit of one of them.
    let answer = self::answer(hosts, &["web@host2.dat.ready<5%"]);
    assert!(answer.moves.is_empty());
}

#[test]
fn names_of_several_hosts_are_checked() {
    let refused = |hosts, limits: &[&str]| fleet_answer(hosts, 0.0, limits).expect_err("refused");
    let twice: Hosts<'_> = &[&[("web", 1.0), ("web", 1.0)], &[("db", 1.0)]];
    assert_eq!(
        refused(twice, &["ready<5%"]),
        "host1.dat has two VMs named \"web\", and --rebalance cannot say which of them to move: record it \
         when each VM has a name of its own"
    );
    let hosts: Hosts<'_> = &[&[("web", 1.0)], &[("db", 1.0)]];
    let error = refused(hosts, &["webb.ready<5%"]);
    assert!(
        error.starts_with("--limit webb.ready<5%: no VM \"webb\""),
        "{error}"
    );
}

#[test]
fn limits_within_the_band_are_unsure() {
    let hosts: Hosts<'_> = &[&[("db", 300.0), ("web", 430.0)], &[("app", 100.0)]];
    let answer = fleet_answer(hosts, 0.5, &["ready<5%"]).expect("an answer");
    assert!(
        answer.is_balanced && answer.sentence.contains("may still fail"),
        "{}",
        answer.sentence
    );
}
