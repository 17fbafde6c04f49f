//! Event bodies in all the forms that kernels and trace-cmd print.

use stealtime_events::exit_reason::VMX_FAILED_VMENTRY;
use stealtime_events::{ExitReason, HostVector, NameId, Names, VcpuId};

use super::*;

const V: VcpuId = VcpuId::UNKNOWN;

fn source(text: &str) -> TextSource {
    from_bytes(text.as_bytes(), &Options::default()).expect("a text")
}

fn all(source: &mut TextSource) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = source.next_event().expect("memory reads") {
        events.push(event);
    }
    events
}

/// The kinds of bodies, each with its event's name before it.
fn kinds(bodies: &[&str]) -> Vec<Kind> {
    let line = |body: &&str| format!("  sh-5 [000] ..... 1.000001: {body}\n");
    let text: String = bodies.iter().map(line).collect();
    let mut source = source(&text);
    let events = all(&mut source);
    assert!(source.info().notes.is_empty(), "{:?}", source.info().notes);
    let events = events.into_iter().map(|event| event.kind);
    events.filter(|kind| kind.is_host_event()).collect()
}

fn kind(body: &str) -> Kind {
    *kinds(&[body]).first().expect("an event")
}

#[test]
fn exits_of_all_kernels() {
    let exit = |reason, vcpu, intr_vector, info1| Kind::KvmExit {
        reason,
        vcpu,
        intr_vector,
        info1,
    };
    // 5.10 and later.
    let body = "kvm_exit: vcpu 3 reason EXTERNAL_INTERRUPT rip 0xffffffff8107e914 info1 \
                0x0000000000000000 info2 0x0000000000000000 intr_info 0x800000ec \
                error_code 0x00000000";
    let reason = ExitReason::vmx(1);
    assert_eq!(kind(body), exit(reason, VcpuId(3), Some(0xec), 0));
    // 7.2 adds requests.
    let body = "kvm_exit: vcpu 1 reason npf rip 0x10 info1 0x0000000100000006 info2 0x12 \
                intr_info 0x800000ec error_code 0x00000000 requests 0x0000000000000020";
    assert_eq!(
        kind(body),
        exit(ExitReason::svm(0x400), VcpuId(1), None, 0x1_0000_0006)
    );
    // Before 5.10, and trace-cmd's plugin.
    let body = "kvm_exit: reason EXIT_MSR rip 0xffffffff8107e914 info 1 0";
    assert_eq!(kind(body), exit(ExitReason::svm(0x7c), V, None, 1));
    let body = "kvm_exit: reason EPT_VIOLATION rip 0x1 info 7a1 800000ec";
    assert_eq!(kind(body), exit(ExitReason::vmx(48), V, None, 0x7a1));
    // Raw fields.
    let body = "kvm_exit: exit_reason=124 guest_rip=0x1 isa=2 info1=0x1 info2=0x0 \
                intr_info=0x000000ec error_code=0x00000000 vcpu_id=1 requests=0x0";
    assert_eq!(kind(body), exit(ExitReason::svm(0x7c), VcpuId(1), None, 1));
    let body = "kvm_exit: vcpu 0 reason INVALID_STATE FAILED_VMENTRY rip 0x1 info1 0x0 info2 0x0 \
                intr_info 0x0 error_code 0x0";
    let reason = ExitReason::vmx(VMX_FAILED_VMENTRY | 33);
    assert_eq!(kind(body), exit(reason, VcpuId(0), None, 0));
    // arm64.
    let body = "kvm_exit: TRAP: HSR_EC: 0x0024 (DABT_LOW), PC: 0xffff800010a0c8f4";
    let Kind::KvmExit { reason, .. } = kind(body) else {
        panic!()
    };
    assert_eq!((reason.code, reason.name()), (0x24, Some("DABT_LOW")));
}

#[test]
fn an_exit_without_a_name_is_of_the_table_in_use() {
    let named = "kvm_exit: reason hlt rip 0x1 info 0 0";
    let found = kinds(&[named, "kvm_exit: reason 0x77f rip 0x1 info 0 0"]);
    let is = |kind: &Kind, code| match kind {
        Kind::KvmExit { reason, .. } => *reason == ExitReason::svm(code),
        _ => false,
    };
    assert!(is(&found[0], 0x78) && is(&found[1], 0x77f), "{found:?}");
    let found = kinds(&[named, "kvm_exit: reason UNKNOWN (1919) rip 0x1 info 0 0"]);
    assert!(is(&found[1], 1919), "{found:?}");
}

#[test]
fn entries_and_userspace_exits() {
    for body in [
        "kvm_entry: vcpu 2, rip 0xffffffff8107e914",
        "kvm_entry:             vcpu 2 rip 0x401d20",
        "kvm_entry: vcpu 2, rip 0x1 intr_info 0x800000ec error_code 0x00000000",
        "kvm_entry: vcpu_id=2 rip=0x4f3a640 immediate_exit=0 intr_info=0x0 error_code=0x0",
        "kvm_entry: vcpu 2",
    ] {
        assert_eq!(kind(body), Kind::KvmEntry { vcpu: VcpuId(2) }, "{body}");
    }
    let exit = |reason, errno| Kind::KvmUserspaceExit { reason, errno };
    assert_eq!(
        kind("kvm_userspace_exit: reason KVM_EXIT_IO (2)"),
        exit(2, 0)
    );
    assert_eq!(kind("kvm_userspace_exit: reason restart (4)"), exit(0, -4));
    assert_eq!(kind("kvm_userspace_exit: reason error (14)"), exit(0, -14));
    assert_eq!(kind("kvm_userspace_exit: reason=2 errno=-4"), exit(2, -4));
}

#[test]
fn what_the_guest_reaches_for() {
    assert_eq!(
        kind("kvm_pio: pio_write at 0x3fd size 1 count 1 val 0x60 "),
        Kind::KvmPio {
            write: true,
            port: 0x3fd,
            size: 1,
            count: 1,
            val: 0x60
        }
    );
    assert_eq!(
        kind("kvm_pio: rw=0 port=0x3fd size=1 count=2 val=0x60"),
        Kind::KvmPio {
            write: false,
            port: 0x3fd,
            size: 1,
            count: 2,
            val: 0x60
        }
    );
    assert_eq!(
        kind("kvm_mmio: mmio unsatisfied-read len 4 gpa 0xfee00020 val 0x0"),
        Kind::KvmMmio {
            mmio_type: 0,
            len: 4,
            gpa: 0xfee0_0020,
            val: 0
        }
    );
    let msr = |write, exception, ecx, data| Kind::KvmMsr {
        write,
        exception,
        ecx,
        data,
    };
    assert_eq!(
        kind("kvm_msr: msr_write 6e0 = 0x2e45e38684"),
        msr(true, false, 0x6e0, 0x2e_45e3_8684)
    );
    assert_eq!(
        kind("kvm_msr: msr_read 3b = 0x0 (#GP)"),
        msr(false, true, 0x3b, 0)
    );
    assert_eq!(
        kind("kvm_msr: write=1 ecx=6e0 data=0x2 exception=0"),
        msr(true, false, 0x6e0, 2)
    );
    let cpuid = |function, index| Kind::KvmCpuid { function, index };
    let body = "kvm_cpuid: func 80000000 idx 1f rax 1 rbx 2 rcx 3 rdx 4, cpuid entry found";
    assert_eq!(kind(body), cpuid(0x8000_0000, 0x1f));
    assert_eq!(
        kind("kvm_cpuid: func d rax 1 rbx 2, cpuid entry found"),
        cpuid(0xd, 0)
    );
    let fault = |vcpu, address, error_code| Kind::KvmPageFault {
        vcpu,
        address,
        error_code,
    };
    assert_eq!(
        kind("kvm_page_fault: vcpu 0 rip 0x4f address 0x0000000001c00000 error_code 0x100000006"),
        fault(VcpuId(0), 0x1c0_0000, 0x1_0000_0006)
    );
    assert_eq!(
        kind("kvm_page_fault: address fe003000 error_code 182"),
        fault(V, 0xfe00_3000, 0x182)
    );
    let call = Kind::KvmHypercall {
        nr: 0xb,
        a0: 1,
        a1: 0xff11,
    };
    assert_eq!(
        kind("kvm_hypercall: nr 0xb a0 0x1 a1 0xff11 a2 0x1 a3 0x1"),
        call
    );
}

#[test]
fn interrupts_between_vcpus() {
    let apic = |write, reg, val| Kind::KvmApic { write, reg, val };
    assert_eq!(
        kind("kvm_apic: apic_write APIC_EOI = 0x0"),
        apic(true, 0xb0, 0)
    );
    assert_eq!(
        kind("kvm_apic: apic_read APIC_TMCCT = 0x12"),
        apic(false, 0x390, 0x12)
    );
    assert_eq!(
        kind("kvm_apic: apic_read 0x3a0 = 0x12"),
        apic(false, 0x3a0, 0x12)
    );
    assert_eq!(kind("kvm_apic: rw=1 reg=176 val=0x0"), apic(true, 0xb0, 0));
    let ipi = |icr_low, dest_id| Kind::KvmApicIpi { icr_low, dest_id };
    assert_eq!(
        kind("kvm_apic_ipi: dst 1f vec 251 (Fixed|physical|assert|edge|dst)"),
        ipi(0x40fb, 0x1f)
    );
    assert_eq!(
        kind("kvm_apic_ipi: dst 0 vec 2 (NMI|logical|de-assert|level|all-but-self)"),
        ipi(0x02 | 0x400 | 0x800 | 0x8000 | 0xc_0000, 0)
    );
    assert_eq!(kind("kvm_apic_ipi: icr_low=251 dest_id=1f"), ipi(251, 0x1f));
    let accept = |apicid, dm, tm, vec| Kind::KvmApicAcceptIrq {
        apicid,
        dm,
        tm,
        vec,
    };
    assert_eq!(
        kind("kvm_apic_accept_irq: apicid a vec 236 (Fixed|edge)"),
        accept(10, 0, 0, 236)
    );
    assert_eq!(
        kind("kvm_apic_accept_irq: apicid 0 vec 48 (LowPrio|level) (coalesced)"),
        accept(0, 0x100, 1, 48)
    );
    assert_eq!(
        kind("kvm_apic_accept_irq: apicid=3 dm=256 tm=0 vec=236"),
        accept(3, 256, 0, 236)
    );
}

#[test]
fn interrupts_that_reach_guests() {
    let virq = |vector, soft, reinjected| Kind::KvmInjVirq {
        vector,
        soft,
        reinjected,
    };
    assert_eq!(kind("kvm_inj_virq: IRQ 0xec"), virq(0xec, false, false));
    assert_eq!(
        kind("kvm_inj_virq: Soft/INTn 0x80 [reinjected]"),
        virq(0x80, true, true)
    );
    assert_eq!(kind("kvm_inj_virq: irq 48"), virq(48, false, false));
    assert_eq!(
        kind("kvm_inj_virq: vector=0xec soft=0 reinjected=1"),
        virq(0xec, false, true)
    );
    let exception = |exception, error_code| Kind::KvmInjException {
        exception,
        error_code,
    };
    assert_eq!(
        kind("kvm_inj_exception: #PF (0x10) [reinjected]"),
        exception(14, 16)
    );
    assert_eq!(kind("kvm_inj_exception: #UD"), exception(6, 0));
    assert_eq!(
        kind(
            "kvm_inj_exception: [FAILED TO PARSE] exception=14 has_error=1 error_code=16 \
             reinjected=1"
        ),
        exception(14, 16)
    );
    assert_eq!(
        kind("kvm_eoi: apicid 2 vector -1"),
        Kind::KvmEoi {
            apicid: 2,
            vector: -1
        }
    );
    assert_eq!(
        kind("kvm_pv_eoi: apicid 1f vector 236"),
        Kind::KvmPvEoi {
            apicid: 31,
            vector: 236
        }
    );
    assert_eq!(
        kind("kvm_set_irq: gsi 4 level 1 source 0"),
        Kind::KvmSetIrq { gsi: 4, level: 1 }
    );
    assert_eq!(
        kind("kvm_msi_set_irq: dst 1 vec 37 (Fixed|physical|edge)"),
        Kind::KvmMsiSetIrq {
            address: 0xfee0_1000,
            data: 37
        }
    );
    let update = Kind::KvmPiIrteUpdate {
        host_irq: 55,
        vcpu: VcpuId(3),
        gsi: 0x18,
        gvec: 0x22,
        set: true,
    };
    assert_eq!(
        kind(
            "kvm_pi_irte_update: PI is enabled for irq 55, vcpu 3, gsi: 0x18, \
             gvec: 0x22, pi_desc_addr: 0x1"
        ),
        update
    );
    assert_eq!(
        kind("kvm_avic_incomplete_ipi: vcpu=2, icrh:icrl=0x00000001:000000fb, id=1, index=3"),
        Kind::KvmAvicIncompleteIpi {
            vcpu: VcpuId(2),
            icrh: 1,
            icrl: 0xfb,
            id: 1
        }
    );
    assert_eq!(
        kind("kvm_apicv_inhibit_changed: cleared reason=6, inhibits=0x41 DISABLED"),
        Kind::KvmApicvInhibitChanged {
            reason: 6,
            set: false,
            inhibits: 0x41
        }
    );
}

#[test]
fn halts_and_polls_of_guests() {
    let wakeup = |ns, waited, valid| Kind::KvmVcpuWakeup { ns, waited, valid };
    assert_eq!(
        kind("kvm_vcpu_wakeup: wait time 20815187 ns, polling valid"),
        wakeup(20_815_187, true, true)
    );
    assert_eq!(
        kind("kvm_vcpu_wakeup: poll time 5 ns, polling invalid"),
        wakeup(5, false, false)
    );
    assert_eq!(
        kind("kvm_vcpu_wakeup: ns=5 waited=1 valid=0"),
        wakeup(5, true, false)
    );
    let poll = |grow, new, old| Kind::KvmHaltPollNs {
        vcpu: VcpuId(2),
        grow,
        new,
        old,
    };
    assert_eq!(
        kind("kvm_halt_poll_ns: vcpu 2: halt_poll_ns 10000 (grow 0)"),
        poll(true, 10_000, 0)
    );
    assert_eq!(
        kind("kvm_halt_poll_ns: vcpu 2: halt_poll_ns 0 (shrink 10000)"),
        poll(false, 0, 10_000)
    );
    assert_eq!(
        kind("kvm_halt_poll_ns: grow=1 vcpu_id=2 new=10000 old=0"),
        poll(true, 10_000, 0)
    );
    let ple = Kind::KvmPleWindowUpdate {
        vcpu: VcpuId(2),
        new: 3000,
        old: 6000,
    };
    assert_eq!(
        kind("kvm_ple_window_update: vcpu 2 old 6000 new 3000 (shrinked)"),
        ple
    );
    assert_eq!(
        kind("kvm_ple_window: vcpu 2: ple_window 3000 (shrink 6000)"),
        ple
    );
}

#[test]
fn clocks_of_guests() {
    let timer = Kind::KvmHvTimerState {
        vcpu: VcpuId(0x1f),
        hv_timer_in_use: true,
    };
    assert_eq!(kind("kvm_hv_timer_state: vcpu_id 1f hv_timer 1"), timer);
    let expire = Kind::KvmWaitLapicExpire {
        vcpu: VcpuId(2),
        delta: -77,
    };
    assert_eq!(
        kind("kvm_wait_lapic_expire: vcpu 2: delta -77 (early)"),
        expire
    );
    let (prev, next) = (18_446_744_052_704_503_856, 5);
    let offset = Kind::KvmWriteTscOffset {
        vcpu: VcpuId(3),
        prev,
        next,
    };
    assert_eq!(
        kind("kvm_write_tsc_offset: vcpu=3 prev=18446744052704503856 next=5"),
        offset
    );
    for (body, host_clock) in [
        ("hostclock tsc", 1),
        ("hostclock 0x1", 1),
        ("hostclock none", 0),
    ] {
        let body =
            format!("kvm_track_tsc: vcpu_id 1 masterclock 0 offsetmatched 1 nr_online 2 {body}");
        let (vcpu, use_master_clock) = (VcpuId(1), false);
        let track = Kind::KvmTrackTsc {
            vcpu,
            matched: 1,
            online: 2,
            use_master_clock,
            host_clock,
        };
        assert_eq!(kind(&body), track);
    }
    assert_eq!(
        kind("kvm_update_master_clock: masterclock 1 hostclock tsc offsetmatched 1"),
        Kind::KvmUpdateMasterClock {
            use_master_clock: true,
            host_clock: 1,
            offset_matched: true
        }
    );
    assert_eq!(
        kind(
            "kvm_pvclock_update: vcpu_id 3, pvclock { version 7600, tsc_timestamp 0x21, \
             system_time 0xe7, tsc_shift 255 }"
        ),
        Kind::KvmPvclockUpdate {
            vcpu: VcpuId(3),
            tsc_timestamp: 0x21,
            system_time: 0xe7
        }
    );
    let flush = Kind::KvmPvTlbFlush {
        vcpu: VcpuId(2),
        need_flush_tlb: true,
    };
    assert_eq!(kind("kvm_pv_tlb_flush: vcpu 2 need_flush_tlb true"), flush);
}

#[test]
fn switches_of_kernel_plugin_and_raw() {
    let switch = |prev_state| Kind::SchedSwitch {
        prev: Tid(513),
        next: Tid(18),
        prev_prio: 105,
        next_prio: 0,
        prev_state,
    };
    for (state, number) in [
        ("R", 0),
        ("R+", 0x100),
        ("S", 1),
        ("D|I", 0x82),
        ("Z", 0x20),
    ] {
        let body = format!(
            "sched_switch: prev_comm=a pid=5 b prev_pid=513 prev_prio=105 prev_state={state} ==> \
             next_comm=migration/0 next_pid=18 next_prio=0"
        );
        assert_eq!(kind(&body), switch(number), "{state}");
    }
    for (state, number) in [("R", 0), ("W", 0x80), ("I", 0x80), ("S|T", 5)] {
        let body = format!("sched_switch: trace-cmd:513 [105] {state} ==> migration/0:18 [0]");
        assert_eq!(kind(&body), switch(number), "{state}");
    }
    let body = "sched_switch: prev_comm=t prev_pid=513 prev_prio=105 prev_state=256 \
                next_comm=migration/0 next_pid=18 next_prio=0";
    assert_eq!(kind(body), switch(256));
}

#[test]
fn tasks_wake_fork_move_and_run() {
    let (tid, prio, target_cpu) = (Tid(18), 0, 3);
    for body in [
        "sched_wakeup: comm=x pid=9 y pid=18 prio=0 target_cpu=003",
        "sched_wakeup: comm=migration/0 pid=18 prio=0 success=1 target_cpu=003",
        "sched_wakeup: migration/0:18 [0] CPU:003",
        "sched_wakeup: migration/0:18 [0] success=1 CPU:003",
    ] {
        assert_eq!(
            kind(body),
            Kind::SchedWakeup {
                tid,
                prio,
                target_cpu
            },
            "{body}"
        );
    }
    let fork = Kind::SchedProcessFork {
        parent: Tid(5),
        child: Tid(6),
    };
    assert_eq!(
        kind("sched_process_fork: comm=a pid=5 child_comm=b child_pid=6"),
        fork
    );
    assert_eq!(
        kind("sched_process_fork: parent_comm=a parent_pid=5 child_comm=b child_pid=6"),
        fork
    );
    assert_eq!(
        kind("sched_migrate_task: comm=CPU 0/KVM pid=18 prio=120 orig_cpu=1 dest_cpu=0"),
        Kind::SchedMigrateTask {
            tid,
            prio: 120,
            orig_cpu: 1,
            dest_cpu: 0
        }
    );
    let run = Kind::SchedStatRuntime {
        tid,
        runtime_ns: 77,
    };
    assert_eq!(
        kind("sched_stat_runtime: comm=x pid=18 runtime=77 [ns] vruntime=5 [ns]"),
        run
    );
    let wait = Kind::SchedStatWait { tid, delay_ns: 77 };
    assert_eq!(kind("sched_stat_wait: comm=x pid=18 delay=77 [ns]"), wait);
}

#[test]
fn interrupts_and_timers_of_the_host() {
    let text = "sh-5 [000] ..... 1.1: csd_queue_cpu: cpu=1 callsite=f+0x33/0x80 \
                func=nohz_csd_func csd=0000\n\
                sh-5 [000] ..... 1.2: ipi_send_cpu: cpu=1 callsite=f+0x3/0x8 callback=g+0x0/0x10\n\
                sh-5 [000] ..... 1.3: hrtimer_start: hrtimer=00000000ab \
                function=t/0x0 expires=5 softexpires=5\n\
                sh-5 [000] ..... 1.4: ipi_send_cpu: cpu=1 callsite=f+0x3/0x8 callback=0x0\n\
                sh-5 [000] ..... 1.5: csd_function_entry: func=f, csd=(nil)\n";
    let mut source = source(text);
    let events = all(&mut source);
    let name = |index: usize| match events[index + 1].kind {
        Kind::CsdQueueCpu { cpu: 1, func } => source.names().name(func),
        Kind::IpiSendCpu { cpu: 1, callback } => source.names().name(callback),
        Kind::HrtimerStart {
            hrtimer: 0xab,
            expires_ns: 5,
            function,
        } => source.names().name(function),
        Kind::CsdFunctionEntry { func } => source.names().name(func),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        [name(0), name(1), name(2), name(3), name(4)],
        ["nohz_csd_func", "g", "t", "", "f"]
    );
    let class = HostVector::CallFunctionSingle;
    let body = "call_function_single_entry: vector=251";
    assert_eq!(kind(body), Kind::VectorEntry { class, vector: 251 });
    let class = HostVector::Reschedule;
    assert_eq!(
        kind("reschedule_exit: vector=253"),
        Kind::VectorExit { class, vector: 253 }
    );
    let raise = Kind::SoftirqRaise { vec: 1 };
    assert_eq!(kind("softirq_raise: vec=1 [action=TIMER]"), raise);
    assert_eq!(
        kind("irq_handler_entry: irq=24 name=virtio0"),
        Kind::IrqHandlerEntry { irq: 24 }
    );
    let body = "hrtimer_expire_entry: hrtimer=0xff function=0 now=127276994563";
    let function = NameId::NONE;
    assert_eq!(
        kind(body),
        Kind::HrtimerExpireEntry {
            hrtimer: 0xff,
            now_ns: 127_276_994_563,
            function
        }
    );
}

#[test]
fn what_cannot_be_read_is_counted_by_name_and_noted() {
    let text = "cpus=2\nsh-5 [000] ..... 1.1: kvm_entry: something else\n\
                sh-5 [000] ..... 1.2: kvm_exit: vcpu 4294967296 reason HLT rip 0x1 info1 0x0\n\
                sh-5 [000] ..... 1.3: my_event: x=1\nnonsense\n\
                sh-5 [000] ..... 1.2: schedule <-x\n";
    let mut source = source(text);
    let events = all(&mut source);
    let names: Vec<&str> = events
        .iter()
        .filter_map(|event| match event.kind {
            Kind::Other { name } => Some(source.names().name(name)),
            _ => None,
        })
        .collect();
    assert_eq!(names, ["kvm_entry", "kvm_exit", "my_event", "function"]);
    let info = source.info();
    assert_eq!((info.out_of_order, info.cpus), (1, Some(2)));
    let notes: Vec<&str> = info.notes.iter().map(|note| note.text.as_str()).collect();
    assert!(info.is_partial());
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(
        notes[0].starts_with("1 lines are no events; the first, at offset"),
        "{notes:?}"
    );
    assert!(
        notes[1].contains("1 kvm_entry could not be read"),
        "{notes:?}"
    );
}

#[test]
fn losses_come_before_the_event_after_them() {
    let text = "# tracer: nop\n# entries-in-buffer/entries-written: 2/12   #P:2\r\n\
                sh-5 [000] ..... 1.1: my_event: a\nCPU:1 [LOST 7 EVENTS]\nCPU:0 [EVENTS DROPPED]\n\
                sh-5 [001] ..... 1.3: my_event: b\nCPU:1 [2 EVENTS DROPPED]\n";
    let mut source = source(text);
    let events = all(&mut source);
    let lost: Vec<(usize, u64, u16, Kind)> = events
        .iter()
        .enumerate()
        .filter(|(_, event)| matches!(event.kind, Kind::Lost { .. }))
        .map(|(index, event)| (index, event.time_ns, event.cpu.0, event.kind))
        .collect();
    let late = 1_300_000_000;
    assert_eq!(
        lost,
        [
            (2, late, 1, Kind::Lost { count: 7 }),
            (3, late, 0, Kind::Lost { count: 0 }),
            (5, late, 1, Kind::Lost { count: 2 })
        ]
    );
    let info = source.info();
    assert_eq!(
        (info.lost.counted, info.lost.uncounted_gaps),
        (10 + 7 + 2, 1)
    );
    assert!(
        info.notes[0]
            .text
            .starts_with("10 of 12 events were overwritten")
    );
    assert!(!info.is_partial());
}

#[test]
fn tasks_are_named_before_they_are_needed() {
    let text = "sleep-650 (   600) [000] ..... 1.1: \
                sched_stat_runtime: comm=trace-cmd pid=650 runtime=1 [ns]\n\
                <...>-651 (-------) [000] ..... 1.2: my_event: x\n\
                sleep-650 (   600) [000] ..... 1.3: my_event: x\n";
    let mut source = source(text);
    let tasks: Vec<(i32, i32, String)> = all(&mut source)
        .into_iter()
        .filter_map(|event| match event.kind {
            Kind::Task { tid, process, name } => {
                Some((tid.0, process.0, source.names().name(name).to_owned()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        tasks,
        [(650, 600, "sleep".into()), (650, 600, "trace-cmd".into())]
    );
}

#[test]
fn ticks_without_a_frequency_stay_ticks() {
    let text = "sh-5 [000] ..... 100: my_event: x\nsh-5 [000] ..... 200: my_event: x\n";
    let mut bare = source(text);
    let times: Vec<u64> = all(&mut bare).iter().map(|event| event.time_ns).collect();
    assert_eq!(times, [100, 100, 200]);
    assert_eq!(bare.info().clock.unit, ClockUnit::Ticks);
    assert!(bare.info().notes[0].text.contains("--tsc-khz"));
    let options = Options {
        tsc_khz: Some(500_000),
        ..Options::default()
    };
    let mut known = from_bytes(text.as_bytes(), &options).expect("a text");
    let times: Vec<u64> = all(&mut known).iter().map(|event| event.time_ns).collect();
    assert_eq!(times, [200, 200, 400]);
    assert_eq!(known.info().clock.unit, ClockUnit::Ns);
}

#[test]
fn beginnings_of_texts() {
    assert!(looks_like_text(b"\xef\xbb\xbf\r\n\r\n# tracer: nop\r\n"));
    assert!(looks_like_text(b"cpus=2\n"));
    assert!(looks_like_text(b"warning\nsh-5 [000] 1.1: e: b\n"));
    assert!(looks_like_text(b"CPU:0 [EVENTS DROPPED]\n"));
    for input in [
        &b""[..],
        b"\n\n",
        b"hello\nworld\n",
        b"# a comment\n",
        b"\x7fELF\x02\x01\x01\0\0",
    ] {
        assert!(!looks_like_text(input), "{}", input.escape_ascii());
    }
}

#[test]
fn any_bytes_are_survived() {
    let text = "sh-5 (   77) [000] dNh2. 1.1: sched_switch: prev_comm=a prev_pid=5 prev_prio=1 \
                prev_state=S ==> next_comm=b next_pid=6 next_prio=2\n\
                a-6 [001] 1.2: kvm_exit: vcpu 1 reason npf rip 0x1 info1 0x2 info2 0x0 \
                intr_info 0x0\n\
                b-7 [001] 1.3: kvm_apic_ipi: dst 1 vec 251 (Fixed|physical|assert|edge|dst)\n\
                CPU:0 [LOST 5 EVENTS]\n";
    for at in 0..text.len() {
        let mut cut = source(&text[..at]);
        all(&mut cut);
        for byte in [0, b' ', b'-', b'9', 0xff] {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = byte;
            let mut flipped = from_bytes(&bytes, &Options::default()).expect("a text");
            assert!(all(&mut flipped).len() <= 12);
        }
    }
}
