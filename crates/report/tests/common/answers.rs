//! Answers made by hand: two VMs, one of them with a hostile name.

use stealtime_analysis::Answers;
use stealtime_analysis::answers::*;

/// A name that would clear the screen, turn the direction of writing and be a formula.
pub(crate) const HOSTILE: &str = "=vm\u{1b}[2J\u{202e}b";

pub(crate) fn answers() -> Answers {
    Answers {
        source: source(),
        events: vec![count("kvm_exit", 31_652), count("sched_switch", 7_789)],
        vms: vec![vm("vm-a", Some(346), "process"), vm(HOSTILE, None, "order")],
        host: host(),
        stalls: vec![stall(HOSTILE, "vcpu_other_vm"), stall("vm-a", "idle")],
        waits: vec![waits()],
        vm_states: vec![state("vm-a"), state(HOSTILE)],
        vmm_threads: vec![vmm("vm-a"), vmm("")],
        over_time: over_time(),
        exits: vec![
            row(HOSTILE, "npf", 20_972, 3_082_000_000),
            row("vm-a", "msr", 5_034, 1_230_000_000),
            row("vm-a", "hlt", 0, 0),
        ],
        exit_totals: vec![row("*", "npf", 20_972, 3_082_000_000)],
        msr: vec![row("*", "0x6e0:W", 11_362, 1_530_000_000)],
        ioport: Vec::new(),
        mmio: vec![row("*", "0xfee000b0:W", 3, 4_321)],
        vcpus: vec![vcpu(), blind_vcpu()],
        ready: vec![
            ready("vm-a", "vcpu_other_vm", HOSTILE, 1_038_208_000),
            ready("vm-a", "idle", "", 6_020_000),
            ready("vm-a", "host_task", "absent", 0),
        ],
        latencies: vec![
            latency("wakeup", "hrtimer", 443),
            latency("ipi_inject", "", 0),
        ],
        yields: vec![
            Yields {
                vm: "vm-a".into(),
                vm_guessed: false,
                pause_exits: 100,
                switched_to_same_vm: 60,
                switched_elsewhere: 10,
                ple_grow: 5,
                ple_shrink: 2,
                ple_window_max: 8_192,
            },
            Yields {
                vm: HOSTILE.into(),
                vm_guessed: true,
                ..Yields::default()
            },
        ],
        scheduler: vec![
            decided("served", "receiver", 20),
            decided("refused", HOSTILE, 6),
            SchedulerCount {
                ns: Some(480_000),
                half_within_ns: Some(8_000),
                ..decided("target", "picked", 19)
            },
        ],
        halt_polls: vec![HaltPolls {
            vm: "vm-a".into(),
            vm_guessed: false,
            halts: 1_123,
            poll_success: 14,
            poll_fail: 13,
            poll_success_ns: 5_190_000,
            poll_fail_ns: 140_000,
            grow: 14,
            shrink: 0,
        }],
        interrupts: vec![
            interrupt(Some(236), "local_timer", 3_501),
            interrupt(None, "unknown", 7),
        ],
        histograms: Vec::new(),
        findings: vec![
            finding(
                "steal",
                "vm-a",
                "The vCPUs of vm-a were runnable but not running.",
            ),
            finding("lost_events", "", "Events were lost."),
            finding("polls_wasted", HOSTILE, "Polling is mostly in vain."),
        ],
    }
}

fn decided(what: &str, kind: &str, count: u64) -> SchedulerCount {
    SchedulerCount {
        what: what.into(),
        kind: kind.into(),
        count,
        ..SchedulerCount::default()
    }
}

fn source() -> Source {
    Source {
        path: "trace.dat\n".into(),
        format: "trace.dat v7".into(),
        compression: Some("zstd".into()),
        clock: "local".into(),
        clock_unit: "ns".into(),
        uname: Some("Linux host 7.2.13".into()),
        cpus: 2,
        events: 234_910,
        lost: 12,
        lost_gaps: 1,
        out_of_order: 0,
        first_ns: 56_182_316_129,
        last_ns: 60_683_483_925,
        span_ns: 4_501_167_796,
        partial: true,
        notes: vec!["the file is cut short".into()],
    }
}

fn host() -> Host {
    let cpu = |cpu, vcpu_ns| CpuUse {
        cpu,
        vcpu_ns: Some(vcpu_ns),
        other_ns: Some(500_000_000),
        idle_ns: Some(1_000_000_000),
        waiting_ns: Some(2_600_000_000),
        switches: 3_900,
    };
    Host {
        vcpus: 2,
        switches: 7_800,
        span_ns: 4_501_167_796,
        cpus: vec![cpu(0, 3_000_000_000), cpu(1, 0)],
    }
}

fn stall(vm: &str, cause: &str) -> Stall {
    let is_task = cause == "vcpu_other_vm";
    Stall {
        vm: vm.into(),
        vm_guessed: vm == HOSTILE,
        vcpu: 0,
        tid: 358,
        start_ns: 57_000_000_000,
        ns: 123_400_000,
        kind: "preempted".into(),
        cpu: 1,
        cause: cause.into(),
        who: if is_task { "vm-a" } else { "" }.into(),
        task: is_task.then(|| "CPU 0/KVM".into()),
        task_tid: is_task.then_some(4_194_303),
        cause_ns: 100_000_000,
        export: Some("stealtime export 'trace.dat' --to perfetto".into()),
    }
}

fn waits() -> Waits {
    let class = |from_ns, below_ns, count| WaitClass {
        from_ns,
        below_ns,
        count,
    };
    Waits {
        vm: "vm-a".into(),
        count: 12,
        ns: 150_000_000,
        p50_ns: 9_000,
        p90_ns: 2_000_000,
        p99_ns: 123_400_000,
        max_ns: 123_400_000,
        longer: Some(1),
        longer_ns: Some(123_400_000),
        classes: vec![
            class(0, Some(10_000), 7),
            class(10_000, Some(100_000), 0),
            class(100_000, Some(1_000_000), 2),
            class(1_000_000, Some(10_000_000), 2),
            class(10_000_000, Some(100_000_000), 0),
            class(100_000_000, None, 1),
        ],
        ..Waits::default()
    }
}

fn state(vm: &str) -> VmState {
    VmState {
        vm: vm.into(),
        vm_guessed: vm == HOSTILE,
        vcpus: 1,
        instants: 1_000,
        full_run: 300,
        full_contention: 500,
        blocked: 100,
        unknown: 100,
        ..VmState::default()
    }
}

fn vmm(vm: &str) -> VmmThreads {
    VmmThreads {
        vm: vm.into(),
        role: "iothread".into(),
        threads: 2,
        cpu_ns: 45_000_000,
        task: "IO iothread1".into(),
        tid: 360,
        task_ns: 30_000_000,
        ..VmmThreads::default()
    }
}

fn over_time() -> OverTime {
    let vm = |vm: &str, steal_ns| VmOverTime {
        vm: vm.into(),
        vm_guessed: vm == HOSTILE,
        vcpus: 1,
        steal_ns,
    };
    OverTime {
        start_ns: 56_182_316_129,
        width_ns: 1 << 31,
        buckets: 3,
        vms: vec![
            vm("vm-a", vec![2_000_000_000, 600_000_000, 0]),
            vm(HOSTILE, vec![0, 0, 0]),
        ],
        cpus: vec![CpuOverTime {
            cpu: 0,
            busy_ns: vec![2_147_483_648, 1_000_000_000, 300_000_000],
            vcpu_ns: vec![2_000_000_000, 900_000_000, 100_000_000],
            waiting_ns: vec![2_000_000_000, 600_000_000, 0],
        }],
    }
}

fn count(name: &str, count: u64) -> EventCount {
    EventCount {
        name: name.into(),
        count,
        today: None,
    }
}

fn vm(name: &str, pid: Option<i32>, how: &str) -> Vm {
    Vm {
        vm: name.into(),
        pid,
        vcpus: 1,
        grouped_by: how.into(),
        guessed: how == "order",
    }
}

fn row(vm: &str, reason: &str, samples: u64, time_ns: u64) -> KeyRow {
    KeyRow {
        vm: vm.into(),
        vm_guessed: vm == HOSTILE,
        reason: reason.into(),
        samples,
        samples_percent: 35.26,
        time_ns,
        time_percent: 6.06,
        min_ns: 10_820,
        max_ns: 19_484_570,
        avg_ns: 146_990.4,
        stddev_percent: 3.44,
        p50_ns: 13_800,
        p90_ns: 99_950,
        p99_ns: 4_150_000,
        p999_ns: 9_000_000,
    }
}

fn vcpu() -> VcpuTime {
    let reason = |reason: &str, count, ns| ReasonTime {
        reason: reason.into(),
        count,
        ns,
    };
    VcpuTime {
        vm: "vm-a".into(),
        vm_guessed: false,
        vcpu: 0,
        task: "CPU 0/KVM".into(),
        tid: 4_194_303,
        span_ns: 4_500_000_000,
        on_cpu_ns: 1_500_000_000,
        guest_ns: Some(900_000_000),
        exit_ns: Some(599_000_000),
        poll_ns: Some(1_000_000),
        halt_ns: 400_000_000,
        preempted_ns: 2_200_000_000,
        wake_wait_ns: 400_000_000,
        blocked_ns: 0,
        poll_useful_ns: 1_000_000,
        poll_wasted_ns: 0,
        polls_at_first: false,
        spin_ns: Some(0),
        unknown_ns: 1_000_000,
        exit_ns_by_reason: vec![reason("msr", 10, 99_000_000), reason("npf", 2, 500_000_000)],
    }
}

/// A vCPU of a recording without `kvm_entry` and `kvm_exit`, with no number.
fn blind_vcpu() -> VcpuTime {
    VcpuTime {
        vm: HOSTILE.into(),
        vm_guessed: true,
        vcpu: u32::MAX,
        task: "=cmd".into(),
        tid: 358,
        span_ns: 1_000,
        on_cpu_ns: 400,
        halt_ns: 600,
        ..VcpuTime::default()
    }
}

fn ready(vm: &str, cause: &str, who: &str, ns: u64) -> Ready {
    Ready {
        vm: vm.into(),
        vm_guessed: vm == HOSTILE,
        vcpu: 0,
        cause: cause.into(),
        who: who.into(),
        ns,
    }
}

fn latency(kind: &str, detail: &str, count: u64) -> Latency {
    Latency {
        vm: "vm-a".into(),
        vm_guessed: false,
        kind: kind.into(),
        detail: detail.into(),
        count,
        p50_ns: 1_290_000,
        p90_ns: 2_930_000,
        p99_ns: 6_330_000,
        max_ns: 11_100_000,
    }
}

fn interrupt(vector: Option<u8>, name: &str, count: u64) -> Interrupts {
    Interrupts {
        vm: "vm-a".into(),
        vm_guessed: false,
        vector,
        name: name.into(),
        count,
    }
}

fn finding(id: &str, vm: &str, what: &str) -> Finding {
    Finding {
        id: id.into(),
        vm: vm.into(),
        vm_guessed: vm == HOSTILE,
        what: what.into(),
        evidence: format!("1 of 2 in {vm}"),
        next: "Look again.".into(),
    }
}
