//! Traces made by hand.

use stealtime_events::{Context, CpuId, Event, ExitReason, Kind, NameId, Names, Tid, VcpuId};

use crate::answers::{Answers, VcpuTime};
use crate::{Analysis, Options, Selection};

/// Names by number: `NameId(n)` is the n-th of the list, from 1 on.
#[derive(Debug, Clone)]
pub(super) struct List(pub(super) Vec<&'static str>);

impl Names for List {
    fn name(&self, id: NameId) -> &str {
        (id.0 as usize)
            .checked_sub(1)
            .and_then(|at| self.0.get(at))
            .copied()
            .unwrap_or("")
    }
}

/// A trace in the making.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    pub(super) events: Vec<Event>,
    pub(super) names: List,
}

impl Trace {
    /// A trace with these names of tasks (thread id and name).
    pub(super) fn new(tasks: &[(i32, &'static str)]) -> Self {
        let mut trace = Self {
            events: Vec::new(),
            names: List(Vec::new()),
        };
        for &(tid, name) in tasks {
            let name = trace.name(name);
            trace.add(
                0,
                0,
                0,
                Kind::Task {
                    tid: Tid(tid),
                    process: Tid(0),
                    name,
                },
            );
        }
        trace
    }

    pub(super) fn name(&mut self, name: &'static str) -> NameId {
        self.names.0.push(name);
        NameId(u32::try_from(self.names.0.len()).unwrap())
    }

    pub(super) fn add(&mut self, time_ns: u64, cpu: u16, tid: i32, kind: Kind) -> &mut Self {
        self.add_in(Context::default(), time_ns, cpu, tid, kind)
    }

    pub(super) fn irq(&mut self, time_ns: u64, cpu: u16, tid: i32, kind: Kind) -> &mut Self {
        self.add_in(
            Context::from_bits(Context::HARDIRQ),
            time_ns,
            cpu,
            tid,
            kind,
        )
    }

    /// In a recording without context flags.
    pub(super) fn unknown(&mut self, time_ns: u64, cpu: u16, tid: i32, kind: Kind) -> &mut Self {
        self.add_in(Context::UNKNOWN, time_ns, cpu, tid, kind)
    }

    fn add_in(
        &mut self,
        context: Context,
        time_ns: u64,
        cpu: u16,
        tid: i32,
        kind: Kind,
    ) -> &mut Self {
        self.events.push(Event {
            time_ns,
            tid: Tid(tid),
            cpu: CpuId(cpu),
            context,
            kind,
        });
        self
    }

    pub(super) fn entry(&mut self, time: u64, cpu: u16, tid: i32, vcpu: u32) -> &mut Self {
        self.add(time, cpu, tid, Kind::KvmEntry { vcpu: VcpuId(vcpu) })
    }

    /// An exit of VMX.
    pub(super) fn exit(
        &mut self,
        time: u64,
        cpu: u16,
        tid: i32,
        vcpu: u32,
        code: u32,
    ) -> &mut Self {
        let reason = ExitReason::vmx(code);
        let vcpu = VcpuId(vcpu);
        self.add(
            time,
            cpu,
            tid,
            Kind::KvmExit {
                reason,
                vcpu,
                intr_vector: None,
                info1: 0,
            },
        )
    }

    pub(super) fn switch(
        &mut self,
        time: u64,
        cpu: u16,
        prev: i32,
        next: i32,
        prev_state: u32,
    ) -> &mut Self {
        let (prev_tid, next) = (Tid(prev), Tid(next));
        self.add(
            time,
            cpu,
            prev,
            Kind::SchedSwitch {
                prev: prev_tid,
                next,
                prev_prio: 120,
                next_prio: 120,
                prev_state,
            },
        )
    }

    pub(super) fn waking(&mut self, time: u64, cpu: u16, by: i32, tid: i32, to: u32) -> &mut Self {
        self.add(
            time,
            cpu,
            by,
            Kind::SchedWaking {
                tid: Tid(tid),
                prio: 120,
                target_cpu: to,
            },
        )
    }

    pub(super) fn wakeup(&mut self, time: u64, cpu: u16, by: i32, tid: i32, to: u32) -> &mut Self {
        self.add(
            time,
            cpu,
            by,
            Kind::SchedWakeup {
                tid: Tid(tid),
                prio: 120,
                target_cpu: to,
            },
        )
    }

    pub(super) fn migrate(&mut self, time: u64, cpu: u16, by: i32, tid: i32, to: u32) -> &mut Self {
        self.add(
            time,
            cpu,
            by,
            Kind::SchedMigrateTask {
                tid: Tid(tid),
                prio: 120,
                orig_cpu: 0,
                dest_cpu: to,
            },
        )
    }

    /// Tasks of this process, by thread id and name.
    pub(super) fn process(&mut self, pid: i32, tasks: &[(i32, &'static str)]) -> &mut Self {
        for &(tid, name) in tasks {
            let name = self.name(name);
            let (tid, process) = (Tid(tid), Tid(pid));
            self.add(0, 0, 0, Kind::Task { tid, process, name });
        }
        self
    }

    pub(super) fn answers(&self) -> Answers {
        self.answers_with(Options::default())
    }

    /// Those of this part of it.
    pub(super) fn selected(&self, selection: Selection) -> Answers {
        self.answers_with(Options {
            selection,
            ..Options::default()
        })
    }

    /// Those of the time between these, in ns since its begin.
    pub(super) fn within(&self, from_ns: Option<u64>, to_ns: Option<u64>) -> Answers {
        self.selected(Selection {
            from_ns,
            to_ns,
            ..Selection::default()
        })
    }

    pub(super) fn answers_with(&self, options: Options) -> Answers {
        let mut analysis = Analysis::new(options);
        analysis.events(&self.events, &self.names);
        analysis.finish(&self.names)
    }
}

/// A halt of so many ns is over. It `waited` asleep, or polling ended it.
pub(super) const fn halted(ns: u64, waited: bool) -> Kind {
    Kind::KvmVcpuWakeup {
        ns,
        waited,
        valid: true,
    }
}

/// VMX exit reasons.
pub(super) const INTERRUPT: u32 = 1;
pub(super) const HLT: u32 = 12;
pub(super) const MSR_WRITE: u32 = 32;
pub(super) const PAUSE: u32 = 40;
pub(super) const EPT: u32 = 48;
pub(super) const PREEMPTION_TIMER: u32 = 52;

/// Task states as `sched_switch` traces them.
pub(super) const RUNNABLE: u32 = 0;
pub(super) const SLEEPS: u32 = 1;
pub(super) const PREEMPTED: u32 = 0x100;

/// The vCPU of this thread.
pub(super) fn of_tid(answers: &Answers, tid: i32) -> &VcpuTime {
    answers.vcpus.iter().find(|vcpu| vcpu.tid == tid).unwrap()
}

/// Time of a vCPU's waiting by cause.
pub(super) fn waited(answers: &Answers, vcpu: &VcpuTime, cause: &str) -> u64 {
    let rows = answers.ready.iter();
    rows.filter(|row| row.vm == vcpu.vm && row.vcpu == vcpu.vcpu && row.cause == cause)
        .map(|row| row.ns)
        .sum()
}

/// What must hold of all answers.
pub(super) fn check(answers: &Answers) {
    for vcpu in &answers.vcpus {
        let parts = vcpu.halt_ns + vcpu.preempted_ns + vcpu.wake_wait_ns;
        assert_eq!(vcpu.span_ns, vcpu.on_cpu_ns + parts, "{vcpu:?}");
        if let (Some(guest), Some(exit), Some(poll)) = (vcpu.guest_ns, vcpu.exit_ns, vcpu.poll_ns) {
            assert_eq!(vcpu.on_cpu_ns, guest + exit + poll, "{vcpu:?}");
            let reasons: u64 = vcpu.exit_ns_by_reason.iter().map(|reason| reason.ns).sum();
            assert_eq!(exit, reasons, "{vcpu:?}");
        }
        assert!(vcpu.blocked_ns <= vcpu.halt_ns, "{vcpu:?}");
        assert!(vcpu.spin_ns.unwrap_or(0) <= vcpu.on_cpu_ns, "{vcpu:?}");
        let total = u128::from(vcpu.span_ns) + u128::from(vcpu.unknown_ns);
        assert!(total <= u128::from(answers.source.span_ns), "{vcpu:?}");
    }
    let wide = |sum: u128, ns: u64| sum + u128::from(ns);
    let waits = answers
        .vcpus
        .iter()
        .flat_map(|vcpu| [vcpu.preempted_ns, vcpu.wake_wait_ns]);
    let causes = answers.ready.iter().map(|row| row.ns);
    assert_eq!(waits.fold(0, wide), causes.fold(0, wide));
    let samples =
        |rows: &[crate::answers::KeyRow]| rows.iter().map(|row| row.samples).fold(0, wide);
    assert_eq!(samples(&answers.exits), samples(&answers.exit_totals));
}
