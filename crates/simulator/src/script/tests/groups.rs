//! Cgroups of several VMs, and policies of tasks.

use stealtime_hypervisor::fair::Policy;

use super::{config, work};
use crate::config::Config;
use crate::run;
use crate::script::{ScriptGroup, SharedGroup};

#[test]
fn groups_of_several_vms_share_a_cpu_by_their_weights() {
    let mut config = config(1, 0, vec![vec![work(1_000_000_000)]; 3]);
    for (vm, task) in (0..).zip(&mut config.scripts.tasks) {
        task.vm = Some(vm);
    }
    let group = |cpu_weight| ScriptGroup {
        cpu_weight,
        ..ScriptGroup::default()
    };
    // Two VMs share the half of a group as 1 to 3; the third VM has the other group alone.
    config.scripts.groups = vec![Some(group(100)), Some(group(300)), Some(group(100))];
    let shared = |parent, weight| SharedGroup {
        parent,
        group: group(weight),
    };
    config.scripts.shared_groups = vec![shared(None, 100), shared(None, 100)];
    config.scripts.shared_by_vm = [(0, 0), (1, 0), (2, 1)].into();
    config.scripts.slice = false;
    let ran_ms = |config: &Config| {
        let outcome = run(config, &mut ()).unwrap();
        let ran = outcome.scripts.iter().map(|s| s.books.run_ns / 1_000_000);
        ran.collect::<Vec<u64>>()
    };
    let near = |ran: &[u64], expected: [u64; 3]| {
        let pairs = ran.iter().zip(expected);
        assert!(
            pairs.clone().all(|(ms, due)| ms.abs_diff(due) <= 4),
            "{ran:?}"
        );
    };
    near(&ran_ms(&config), [12, 37, 50]);
    // 20 of 50 ms for both VMs of the first group together.
    config.scripts.shared_groups[0].group.cpu_max_ns = Some((10_000_000, 50_000_000));
    near(&ran_ms(&config), [5, 15, 80]);
    config.scripts.shared_groups[0].parent = Some(1);
    assert!(
        run(&config, &mut ()).is_err(),
        "the group above comes later"
    );
}

#[test]
fn idle_tasks_leave_the_cpu_to_others() {
    let mut config = config(1, 0, vec![vec![work(1_000_000_000)]; 2]);
    config.scripts.tasks[1].policy = Policy::Idle;
    let outcome = run(&config, &mut ()).unwrap();
    // Weights of 1024 and 3.
    assert!(outcome.scripts[0].books.run_ns > 95_000_000);
}
