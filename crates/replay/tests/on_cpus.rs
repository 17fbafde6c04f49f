//! A small recording on other CPUs than its own.

use common::text::{late, task, trace};
use stealtime_replay::host::{Assumed, Placement};
use stealtime_replay::{NoCpuLeft, OnCpus, Recording};

use crate::common;

/// A vCPU on CPUs 0 and 2, tasks 20 and 21 on CPU 1, a thread of CPU 2, and a task on CPUs 1 and 2. Each CPU
/// has a tick: it ends a slice on CPUs 0 and 1, and is 3 us late on CPU 2. There events are lost.
fn recorded() -> Recording {
    let log = trace(
        "
      0 0 10 name 10 10
      0 1 20 name 20 20 daemon
      0 2 30 name 30 2 ksoftirqd/2
      0 0 10 settimer 100 tick_nohz_handler 100
      0 1 20 settimer 101 tick_nohz_handler 100
      0 2 30 settimer 102 tick_nohz_handler 100
      5 0 10 entry 0
    101 0 10! expiretimer 100 tick_nohz_handler 101
    102 1 20! expiretimer 101 tick_nohz_handler 102
    103 2 30! expiretimer 102 tick_nohz_handler 103
    200 0 10 exit 0 1
    201 0 10 switch 10 0
    202 2 30 switch 30 40 sleeps
    203 2 40 switch 40 10
    204 2 10 entry 0
    300 1 20 switch 20 21
    310 1 21 switch 21 40
    320 1 40 switch 40 20 sleeps
    400 2 10 exit 0 1
    500 1 20 canceltimer 5
    500 2 10 lost 3
    600 2 10 entry 0
    700 2 10 exit 0 1
",
    );
    log.extracted()
}

#[test]
fn cpus_are_like_recorded_ones() {
    let recording = recorded();
    assert_eq!(late(&recording.tick_late), "100+101 | 100+200 | 100+3");
    let gaps = |recording: &Recording| -> Vec<usize> {
        recording.gaps.iter().map(|gaps| gaps.0.len()).collect()
    };
    assert_eq!(gaps(&recording), [0, 0, 1]);
    let fewer = OnCpus::new(&recording, vec![2, 0]).recording;
    assert_eq!((recording.cpus, fewer.cpus), (3, 2));
    assert_eq!(late(&fewer.tick_late), "100+3 | 100+101");
    assert_eq!(
        late(&fewer.without_stalls.tick_late),
        late(&fewer.tick_late)
    );
    assert_eq!(gaps(&fewer), [1, 0]);
    // Tasks of CPU 1 begin where their number among all says.
    let place = |tid: i32| {
        let task = task(&fewer, tid);
        (task.first_cpu, task.ran_on.clone())
    };
    assert_eq!(place(10), (1, vec![1, 0]));
    assert_eq!(place(20), (1, vec![]));
    assert_eq!(place(21), (0, vec![]));
    assert_eq!(place(30), (0, vec![0]));
    assert_eq!(place(40), (0, vec![0]));
    let moves = |tid| task(&fewer, tid).moves.to_vec();
    assert_eq!(moves(10), [(203_000, 0)]);
    // The last of five tasks.
    assert_eq!(moves(40), [(310_000, 0)]);
    let more = OnCpus::new(&recording, vec![0, 1, 2, 0]).recording;
    assert_eq!(late(&more.tick_late), "100+101 | 100+200 | 100+3 | 100+101");
    assert_eq!(task(&more, 20).first_cpu, 1);
}

#[test]
fn threads_of_cpus_that_are_left_out_are_too() {
    let tids = |like: &[u32]| -> Vec<i32> {
        let changed = OnCpus::new(&recorded(), like.to_vec());
        let tasks = changed.recording.tasks.iter();
        tasks.map(|task| task.tid).collect()
    };
    assert_eq!(tids(&[2, 0]), [10, 20, 21, 30, 40]);
    assert_eq!(tids(&[0, 1]), [10, 20, 21, 40]);
}

/// What tasks may use on CPUs that are like 2 and 0.
fn allowed(assumed: &Assumed) -> Result<Assumed, NoCpuLeft> {
    OnCpus::new(&recorded(), vec![2, 0]).assumed(assumed)
}

#[test]
fn cpus_of_tasks_have_their_new_numbers() {
    let assumed = Assumed {
        affinity: [
            // Pins replace these two.
            (10, vec![1]),
            (21, vec![1]),
            (20, vec![0, 1]),
            (30, vec![0, 1, 2]),
            (99, vec![1]),
        ]
        .into(),
        pins: vec![((0, 0), vec![1, 2, 0])],
        task_pins: vec![(21, vec![0])],
        timed_moves: true,
        ..Assumed::default()
    };
    let changed = allowed(&assumed).expect("a CPU for each");
    let affinity = [
        (10, vec![0, 1]),
        (20, vec![1]),
        (21, vec![0, 1]),
        (30, vec![0, 1]),
        // It is no task.
        (99, vec![1]),
    ];
    assert_eq!(changed.affinity, affinity.into());
    assert_eq!(changed.pins, [((0, 0), vec![0, 1])]);
    assert_eq!(changed.task_pins, [(21, vec![1])]);
    assert!(!changed.timed_moves && changed.other_load);
    assert_eq!(changed.placement, Some(Placement::Simulated));
    // A VM's thread may use all, where the host does not say which.
    let free = allowed(&Assumed::default()).expect("no task is bound");
    assert_eq!(free.affinity, [(10, vec![0, 1])].into());
}

#[test]
fn a_task_without_a_cpu_is_named() {
    let no_cpu = |tid: i32, name: &str| NoCpuLeft {
        tid,
        name: name.to_owned(),
        cpus: vec![1],
    };
    let affinity = |tid: i32| Assumed {
        affinity: [(tid, vec![1])].into(),
        // Another one's pins replace nothing.
        pins: vec![((3, 0), vec![0])],
        task_pins: vec![(40, vec![0])],
        ..Assumed::default()
    };
    let [daemon, vcpu] = [20, 10].map(|tid| allowed(&affinity(tid)).err());
    assert_eq!(daemon, Some(no_cpu(20, "daemon")));
    assert_eq!(vcpu, Some(no_cpu(10, "")));
    let pin = Assumed {
        pins: vec![((0, 0), vec![1])],
        ..Assumed::default()
    };
    assert_eq!(allowed(&pin).err(), Some(no_cpu(10, "")));
    let task_pin = Assumed {
        task_pins: vec![(20, vec![1])],
        ..Assumed::default()
    };
    assert_eq!(allowed(&task_pin).err(), Some(no_cpu(20, "daemon")));
}
