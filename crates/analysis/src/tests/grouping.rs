//! Which threads are one VM.

use stealtime_events::{Kind, Tid, VcpuId};

use super::build::{EPT, HLT, PREEMPTED, SLEEPS, Trace, of_tid, waited};
use crate::answers::Answers;
use crate::{HostThread, HostVm, HostVms, Options};

fn groups(answers: &Answers) -> Vec<(String, Vec<i32>)> {
    let of = |vm: &str| {
        answers
            .vcpus
            .iter()
            .filter(|vcpu| vcpu.vm == vm)
            .map(|vcpu| vcpu.tid)
            .collect()
    };
    answers
        .vms
        .iter()
        .map(|vm| (vm.grouped_by.clone(), of(&vm.vm)))
        .collect()
}

/// vCPUs as (thread, number), each entering its guest once.
fn vcpus(list: &[(i32, u32)]) -> Trace {
    let mut trace = Trace::new(&[]);
    for (cpu, &(tid, vcpu)) in (0..).zip(list) {
        trace.entry(10 + u64::from(cpu), cpu, tid, vcpu);
    }
    trace
}

#[test]
fn the_process_tells() {
    let mut trace = vcpus(&[]);
    for (tid, process) in [(7, 5), (8, 6), (9, 5)] {
        let name = trace.name("CPU");
        trace.add(
            0,
            0,
            0,
            Kind::Task {
                tid: Tid(tid),
                process: Tid(process),
                name,
            },
        );
    }
    trace
        .entry(10, 0, 7, 0)
        .entry(11, 1, 8, 0)
        .entry(12, 2, 9, 1);
    let answers = trace.answers();
    let process = "process".to_owned();
    assert_eq!(
        groups(&answers),
        [(process.clone(), vec![7, 9]), (process, vec![8])]
    );
    assert_eq!(
        (answers.vms[0].vm.as_str(), answers.vms[0].pid),
        ("pid5", Some(5))
    );
}

#[test]
fn the_user_and_the_recording_go_first() {
    let mut trace = vcpus(&[(7, 0), (8, 1), (9, 0)]);
    let vm = trace.name("db");
    trace.add(
        50,
        0,
        0,
        Kind::VcpuThread {
            tid: Tid(9),
            vm,
            vcpu: VcpuId(0),
        },
    );
    let web = |tid| (tid, "web".to_owned());
    let options = Options {
        groups: [web(7), web(8), web(9)].into_iter().collect(),
        ..Options::default()
    };
    let answers = trace.answers_with(options);
    assert_eq!(
        groups(&answers),
        [
            ("user".to_owned(), vec![7, 8]),
            ("recorded".to_owned(), vec![9])
        ]
    );
    assert_eq!(answers.vms[1].vm, "db");
}

#[test]
fn interaction_tells_interleaved_threads_apart() {
    // VM a: 7, 10. VM b: 8, 9. By order, 7 would go with 9.
    let mut trace = vcpus(&[(7, 0), (8, 0), (9, 1), (10, 1)]);
    for (from, to, cpu) in [(7, 10, 0), (8, 9, 1)] {
        let target = if to == 10 { 3 } else { 2 };
        trace
            .exit(100, target, to, 1, HLT)
            .switch(110, target, to, 0, SLEEPS);
        trace.exit(120, cpu, from, 0, EPT);
        trace.add(
            130,
            cpu,
            from,
            Kind::KvmApicAcceptIrq {
                apicid: 1,
                dm: 0,
                tm: 0,
                vec: 253,
            },
        );
        trace
            .waking(131, cpu, from, to, u32::from(target))
            .entry(140, cpu, from, 0);
    }
    let interaction = "interaction".to_owned();
    assert_eq!(
        groups(&trace.answers()),
        [
            (interaction.clone(), vec![7, 10]),
            (interaction, vec![8, 9])
        ]
    );
}

/// A shell wakes vCPUs of all VMs, and so does the kernel.
#[test]
fn vcpus_that_a_thread_of_a_vmm_wakes_are_one_vm() {
    for (name, expected) in [
        (
            "qemu-system-x86",
            [("interaction", [7, 9]), ("order", [8, 10])],
        ),
        ("make", [("order", [7, 10]), ("order", [8, 9])]),
        ("kworker/0:1", [("order", [7, 10]), ("order", [8, 9])]),
    ] {
        let mut trace = Trace::new(&[(50, name)]);
        for (cpu, (tid, vcpu)) in (0..).zip([(7, 0), (8, 0), (9, 1), (10, 1)]) {
            trace.entry(10, cpu, tid, vcpu);
        }
        for n in 0..3 {
            trace
                .waking(100 + n, 4, 50, 7, 0)
                .waking(200 + n, 4, 50, 9, 2);
        }
        let found = groups(&trace.answers());
        let expected = expected.map(|(grouped, tids)| (grouped.to_owned(), tids.to_vec()));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn order_is_the_last_resort_and_called_so() {
    let answers = vcpus(&[(7, 0), (8, 1), (9, 0), (10, 1), (11, 2)]).answers();
    let order = "order".to_owned();
    // 11 could be of either VM: the nearest vCPU 1 before it is 10.
    assert_eq!(
        groups(&answers),
        [(order.clone(), vec![7, 8]), (order, vec![9, 10, 11])]
    );
    assert!(
        answers
            .findings
            .iter()
            .any(|finding| finding.id == "vms_guessed")
    );
}

#[test]
fn threads_of_equal_vms_that_interleave_go_behind_the_nearest() {
    // The VM of 9 starts while the VM of 7 has one vCPU, and is complete before it goes on.
    let answers = vcpus(&[(7, 0), (9, 0), (10, 1), (12, 1)]).answers();
    let order = "order".to_owned();
    assert_eq!(
        groups(&answers),
        [(order.clone(), vec![7, 12]), (order.clone(), vec![9, 10])]
    );
    // A number that never shows leaves the vCPU before it as the predecessor.
    let answers = vcpus(&[(7, 0), (8, 1), (9, 0), (11, 2), (12, 3)]).answers();
    assert_eq!(
        groups(&answers),
        [(order.clone(), vec![7, 8, 11, 12]), (order, vec![9])]
    );
}

#[test]
fn a_guess_is_flagged_on_every_row_and_shown_with_a_mark() {
    let mut trace = vcpus(&[(7, 0), (8, 1), (9, 0)]);
    for (cpu, tid, vcpu) in [(0, 7, 0), (1, 8, 1), (2, 9, 0)] {
        trace
            .exit(100, cpu, tid, vcpu, EPT)
            .entry(200, cpu, tid, vcpu)
            .exit(300, cpu, tid, vcpu, EPT);
    }
    let answers = trace.answers_with(Options {
        groups: [(9, "web".to_owned())].into_iter().collect(),
        ..Options::default()
    });
    let flags: Vec<_> = answers.vms.iter().map(|vm| vm.guessed).collect();
    assert_eq!(flags, [true, false]);
    assert!(answers.exits.iter().any(|row| row.vm == "vm0"));
    for row in &answers.exits {
        assert_eq!(row.vm_guessed, row.vm == "vm0", "{row:?}");
    }
    let shown = answers.with_guesses_shown();
    let names: Vec<_> = shown.vcpus.iter().map(|vcpu| vcpu.vm.as_str()).collect();
    assert_eq!(names, ["vm0?", "vm0?", "web"]);
    // A single VM cannot be mistaken for another.
    let alone = vcpus(&[(7, 0), (8, 1)]).answers();
    assert!(!alone.vms[0].guessed && alone.vms[0].grouped_by == "order");
    // A selection leaves the others out of the answers, and the guess is as uncertain as before.
    let one = vcpus(&[(7, 0), (8, 1), (9, 0)]).answers_with(Options {
        selection: crate::Selection {
            vms: vec!["vm1".to_owned()],
            ..crate::Selection::default()
        },
        ..Options::default()
    });
    assert_eq!(one.vms.len(), 1);
    assert!(one.vms[0].guessed);
}

#[test]
fn a_mark_is_on_guessed_vms_that_had_the_cpu_and_on_nothing_else() {
    let mut trace = Trace::new(&[(40, "vm0")]);
    for (cpu, tid, vcpu) in [(0, 7, 0), (1, 8, 1), (2, 9, 0), (3, 20, 0)] {
        trace
            .entry(10, cpu, tid, vcpu)
            .exit(100, cpu, tid, vcpu, EPT);
    }
    trace
        .switch(110, 0, 7, 0, SLEEPS)
        .switch(110, 3, 20, 0, SLEEPS);
    // A VM with a guess, one without, and a task that has the name of a VM.
    for (start, next, ns) in [(200, 7, 30), (300, 20, 40), (400, 40, 50)] {
        trace
            .switch(start, 2, 9, next, PREEMPTED)
            .switch(start + ns, 2, next, 9, SLEEPS);
    }
    let answers = trace.answers_with(Options {
        groups: [(20, "web".to_owned())].into_iter().collect(),
        ..Options::default()
    });
    let shown = answers.with_guesses_shown();
    let expected = [
        ("vm1?", "host_task", "vm0", 50),
        ("vm1?", "vcpu_other_vm", "web", 40),
        ("vm1?", "vcpu_other_vm", "vm0?", 30),
    ];
    let ready = shown.ready.iter();
    let ready: Vec<_> = ready
        .map(|row| (&*row.vm, &*row.cause, &*row.who, row.ns))
        .collect();
    assert_eq!(ready, expected);
    let stalls = shown.stalls.iter();
    let stalls: Vec<_> = stalls
        .map(|row| (&*row.vm, &*row.cause, &*row.who, row.ns))
        .collect();
    assert_eq!(stalls, expected);
}

#[test]
fn a_thread_id_given_out_again_is_another_vcpu() {
    for number in [0, 1] {
        given_out_again(number);
    }
}

/// The second vCPU of the thread id has this number.
fn given_out_again(number: u32) {
    let mut trace = vcpus(&[(7, 0)]);
    trace
        .exit(20, 0, 7, 0, EPT)
        .add(30, 0, 7, Kind::SchedProcessExit { tid: Tid(7) });
    trace.switch(40, 0, 7, 50, 64);
    trace.add(
        100,
        0,
        50,
        Kind::SchedProcessFork {
            parent: Tid(50),
            child: Tid(7),
        },
    );
    trace
        .switch(110, 0, 50, 7, SLEEPS)
        .entry(120, 0, 7, number)
        .exit(150, 0, 7, number, EPT);
    let answers = trace.answers();
    let spans: Vec<_> = answers
        .vcpus
        .iter()
        .map(|vcpu| (vcpu.tid, vcpu.guest_ns))
        .collect();
    assert_eq!(spans, [(7, Some(10)), (7, Some(30))]);
    assert_eq!(answers.vms.len(), 2, "equal ids are never one VM");
}

/// A host with a VM of each name: thread 10 n is its vCPU 0, 10 n + 1 its emulator, and 10 n + 9 its process.
fn host(names: &[&str]) -> HostVms {
    let mut host = HostVms::default();
    for (vm, name) in names.iter().enumerate() {
        let first = 10 * (vm as i32 + 1);
        host.vms.push(HostVm {
            name: (*name).to_owned(),
            pid: first + 9,
        });
        for (tid, vcpu) in [(first, Some(0)), (first + 1, None)] {
            let thread = HostThread {
                vm,
                is_vcpu: vcpu.is_some(),
                vcpu,
            };
            host.threads.insert(tid, thread);
        }
    }
    host
}

fn names(answers: &Answers) -> Vec<&str> {
    answers.vms.iter().map(|vm| vm.vm.as_str()).collect()
}

#[test]
fn the_snapshot_names_vms() {
    let answers = vcpus(&[(10, 0), (20, 0), (30, 0)]).answers_with(Options {
        host: host(&["web \"a.b\"\n}", "db"]),
        ..Options::default()
    });
    assert_eq!(names(&answers), ["web \"a.b\"\n}", "db", "vm0"]);
    let grouping: Vec<_> = answers.vms.iter().map(|vm| &*vm.grouped_by).collect();
    assert_eq!(grouping, ["snapshot", "snapshot", "order"]);
    assert_eq!(answers.vms[0].pid, Some(19));
}

/// vCPUs of two guests take turns on a CPU, and no event of KVM shows any of them.
#[test]
fn without_kvm_events_the_snapshot_or_the_user_says_which_threads_are_vcpus() {
    let mut trace = Trace::new(&[(10, "CPU 0/KVM"), (20, "CPU 0/KVM"), (30, "CPU 0/KVM")]);
    trace
        .switch(100, 0, 10, 20, PREEMPTED)
        .switch(150, 0, 20, 10, PREEMPTED)
        .switch(250, 0, 10, 20, PREEMPTED);
    assert!(
        trace.answers().vms.is_empty(),
        "a name alone is no evidence"
    );
    let by_host = trace.answers_with(Options {
        host: host(&["web", "db", "idle"]),
        ..Options::default()
    });
    assert_eq!(names(&by_host), ["web", "db"]);
    let web = of_tid(&by_host, 10);
    assert_eq!((web.guest_ns, web.on_cpu_ns), (None, 100));
    assert_eq!(waited(&by_host, web, "vcpu_other_vm"), 50);
    // The name of the thread and the snapshot disagree on its number.
    let mut others = host(&["web"]);
    others.threads.get_mut(&10).expect("web's").vcpu = Some(7);
    let disagreed = trace.answers_with(Options {
        host: others,
        ..Options::default()
    });
    assert!(disagreed.vms.is_empty());
    let by_user = trace.answers_with(Options {
        groups: [(10, "mine".to_owned())].into(),
        ..Options::default()
    });
    assert_eq!(names(&by_user), ["mine"]);
    assert!(by_user.source.notes.is_empty());
}

#[test]
fn a_thread_id_that_was_used_again_has_no_name() {
    let answers = vcpus(&[(10, 3), (11, 0)]).answers_with(Options {
        host: host(&["web"]),
        ..Options::default()
    });
    assert!(answers.vms.iter().all(|vm| vm.grouped_by != "snapshot"));
}

#[test]
fn the_snapshot_knows_vcpus_by_their_process() {
    let mut host = host(&["web"]);
    // A VM that is off has no process, and a damaged list can name a VM that there is not.
    host.vms.push(HostVm {
        name: "off".to_owned(),
        pid: 0,
    });
    let (is_vcpu, vcpu) = (true, None);
    host.threads.insert(
        15,
        HostThread {
            vm: 2,
            is_vcpu,
            vcpu,
        },
    );
    let mut trace = vcpus(&[]);
    for (tid, process) in [(12, 19), (13, 77), (14, 0), (15, 0)] {
        let name = trace.name("CPU");
        let (tid, process) = (Tid(tid), Tid(process));
        trace.add(0, 0, 0, Kind::Task { tid, process, name });
    }
    for (cpu, tid) in (0..).zip(12..=15) {
        trace.entry(10 + u64::from(cpu), cpu, tid, 0);
    }
    let answers = trace.answers_with(Options {
        host,
        ..Options::default()
    });
    assert_eq!(names(&answers), ["web", "pid77", "vm0", "vm1"]);
    let grouping: Vec<_> = answers.vms.iter().map(|vm| &*vm.grouped_by).collect();
    assert_eq!(grouping, ["snapshot", "process", "order", "order"]);
}

#[test]
fn threads_of_the_snapshot_that_are_no_vcpus_work_for_their_vms() {
    let mut host = host(&["web", "db"]);
    // A vCPU that never enters its guest is no helper of it.
    let (is_vcpu, vcpu) = (true, Some(1));
    host.threads.insert(
        12,
        HostThread {
            vm: 0,
            is_vcpu,
            vcpu,
        },
    );
    let mut trace = vcpus(&[(10, 0), (20, 0)]);
    trace
        .exit(100, 0, 10, 0, EPT)
        .switch(200, 0, 10, 21, PREEMPTED)
        .switch(230, 0, 21, 11, SLEEPS)
        .switch(300, 0, 11, 12, SLEEPS)
        .switch(400, 0, 12, 10, SLEEPS);
    let answers = trace.answers_with(Options {
        host,
        ..Options::default()
    });
    let rows = answers.vmm_threads.iter();
    let rows: Vec<_> = rows
        .map(|row| (&*row.vm, row.threads, row.tid, row.cpu_ns))
        .collect();
    assert_eq!(rows, [("web", 1, 11, 70), ("db", 1, 21, 30)]);
}

#[test]
fn the_user_goes_before_the_snapshot_and_adds_to_its_vms() {
    let options = |groups: &[(i32, &str)], processes: &[(i32, &str)]| {
        let owned = |list: &[(i32, &str)]| {
            let list = list.iter().map(|(id, name)| (*id, (*name).to_owned()));
            list.collect()
        };
        Options {
            groups: owned(groups),
            processes: owned(processes),
            host: host(&["web", "db"]),
            ..Options::default()
        }
    };
    let trace = || vcpus(&[(10, 0), (20, 0), (30, 1)]);
    let answers = trace().answers_with(options(&[(20, "mine"), (30, "web")], &[]));
    assert_eq!(names(&answers), ["web", "mine"]);
    assert_eq!(groups(&answers)[0], ("user".to_owned(), vec![10, 30]));
    let answers = trace().answers_with(options(&[], &[(19, "mine")]));
    assert_eq!(names(&answers), ["mine", "db", "vm0"]);
    assert!(
        answers.source.notes.is_empty(),
        "{:?}",
        answers.source.notes
    );
    let answers = trace().answers_with(options(&[], &[(77, "mine")]));
    assert!(answers.source.notes[0].starts_with("process 77, given as mine, has no vCPU"));
}

#[test]
fn a_process_with_a_name_of_its_own_gives_it_and_equal_names_are_distinguished() {
    let mut trace = vcpus(&[]);
    let task = |trace: &mut Trace, tid, process, name: &'static str| {
        let name = trace.name(name);
        let (tid, process) = (Tid(tid), Tid(process));
        trace.add(0, 0, 0, Kind::Task { tid, process, name });
    };
    let leaders = [
        (5, "web"),
        (6, "web"),
        (7, "qemu-system-x86"),
        (8, "vm0"),
        (9, "CPU 1/KVM"),
        (10, "kworker/0:1"),
        (11, ""),
    ];
    for (pid, name) in leaders {
        task(&mut trace, pid, pid, name);
        task(&mut trace, pid + 10, pid, "CPU 0/KVM");
    }
    // A vCPU may have any name.
    task(&mut trace, 30, 30, "alpha");
    for (cpu, tid) in (0..).zip([15, 16, 17, 18, 19, 20, 21, 30, 40]) {
        trace.entry(10 + u64::from(cpu), cpu, tid, 0);
    }
    let answers = trace.answers();
    let of_leaders = [
        "web", "web (6)", "pid7", "vm0", "pid9", "pid10", "pid11", "pid30",
    ];
    assert_eq!(names(&answers)[..8], of_leaders);
    assert_eq!(names(&answers)[8..], ["vm1"]);
}
