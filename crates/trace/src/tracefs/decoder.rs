//! Raw tracepoint records to events.

use stealtime_events::{
    Context, CpuId, Event, ExitReason, HostVector, Isa, Kind, NameId, Names, Tid, VcpuId,
};

use super::format::Formats;
use super::functions::{Functions, Symbols};
use super::load::{Endian, Record, Slot};
use super::plan::{Body, MAX_FIELDS, Plan};
use super::queue::EventSink;
use super::tasks::{Tasks, comm_of};
use crate::point::Point;
use crate::{NameTable, SourceInfo};

/// When and where a record was written: what its container says.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    /// In units of the source's clock.
    pub time_ns: u64,
    /// The host CPU.
    pub cpu: CpuId,
}

impl Stamp {
    /// An event that no task is known for.
    pub(crate) fn event(self, kind: Kind) -> Event {
        Event {
            time_ns: self.time_ns,
            tid: Tid::IDLE,
            cpu: self.cpu,
            context: Context::UNKNOWN,
            kind,
        }
    }
}

/// Turns raw tracepoint records of one file into events.
pub struct Decoder {
    endian: Endian,
    id: Slot,
    /// Index into `plans` for each `common_type`; [`NO_PLAN`] for one without description.
    by_id: Vec<u16>,
    plans: Vec<Plan>,
    tasks: Tasks,
    functions: Functions,
}

const NO_PLAN: u16 = u16::MAX;

/// How the records of one event are read, in the [`Decoder`] that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanId(u16);

impl Decoder {
    /// Compiles the descriptions. Only names of tracepoints are added to `names`.
    #[must_use]
    pub fn new(formats: &Formats, endian: Endian, symbols: Symbols, names: &mut NameTable) -> Self {
        let events = formats.events();
        let last = events
            .iter()
            .map(|event| usize::from(event.id) + 1)
            .max()
            .unwrap_or(0);
        let mut by_id = vec![NO_PLAN; last];
        let mut plans = Vec::with_capacity(events.len());
        let mut id = Slot::default();
        for format in events {
            if let Some(entry) = by_id.get_mut(usize::from(format.id)) {
                *entry = u16::try_from(plans.len()).unwrap_or(NO_PLAN);
            }
            plans.push(Plan::compile(format, names.intern(&format.name)));
            if !id.exists() {
                id = format
                    .field("common_type")
                    .and_then(Slot::of)
                    .unwrap_or_default();
            }
        }
        Self {
            endian,
            id,
            by_id,
            plans,
            tasks: Tasks::default(),
            functions: Functions::new(symbols),
        }
    }

    /// Decodes one record: puts exactly one counted event ([`Kind::is_host_event`]) into `out`, and
    /// before it the names of tasks that the record tells anew.
    ///
    /// A record of an unknown event, one that is too short, or one whose description lacks a needed
    /// field becomes [`Kind::Other`] and a note in `info`.
    pub fn decode(
        &mut self,
        record: &[u8],
        at: Stamp,
        names: &mut NameTable,
        info: &mut SourceInfo,
        out: &mut impl EventSink,
    ) {
        let id = self.id.load(record, self.endian) as usize;
        let plan = self.by_id.get(id).copied().unwrap_or(NO_PLAN);
        if self.id.end() <= record.len() && usize::from(plan) < self.plans.len() {
            self.decode_as(PlanId(plan), record, at, (names, info), out);
        } else {
            out.push(self.unknown(id, record, at, names, info));
        }
    }

    /// The same for a record of which it is known which event it is.
    #[inline(always)]
    pub fn decode_as(
        &mut self,
        plan: PlanId,
        record: &[u8],
        at: Stamp,
        (names, info): (&mut NameTable, &mut SourceInfo),
        out: &mut impl EventSink,
    ) {
        let Some(least) = self.plans.get(usize::from(plan.0)).map(|plan| plan.min_len) else {
            return;
        };
        let told = (names, info);
        match Record::short(record, self.endian, least) {
            Some(record) => self.decode_record(plan, record, at, told, out),
            None => self.decode_any(plan, record, at, told, out),
        }
    }

    /// Records of the other byte order, and those that are too short.
    #[cold]
    fn decode_any(
        &mut self,
        plan: PlanId,
        record: &[u8],
        at: Stamp,
        told: (&mut NameTable, &mut SourceInfo),
        out: &mut impl EventSink,
    ) {
        let record = Record::any(record, self.endian);
        self.decode_record(plan, record, at, told, out);
    }

    #[inline(always)]
    fn decode_record<const SHORT: bool>(
        &mut self,
        plan: PlanId,
        record: Record<'_, SHORT>,
        at: Stamp,
        (names, info): (&mut NameTable, &mut SourceInfo),
        out: &mut impl EventSink,
    ) {
        let Some(plan) = self.plans.get_mut(usize::from(plan.0)) else {
            return;
        };
        let mut event = Event {
            time_ns: at.time_ns,
            tid: Tid(record.load(&plan.pid) as i32),
            cpu: at.cpu,
            context: match plan.flags.exists() {
                true => Context::from_bits(record.load(&plan.flags) as u8),
                false => Context::UNKNOWN,
            },
            kind: Kind::Other { name: plan.name },
        };
        if let Body::Point(point) = plan.body
            && plan.min_len <= record.bytes.len()
        {
            for comm in plan.comms.iter().map_while(Option::as_ref) {
                // The idle task's names are not told: a cheap test before the costlier ones.
                let tid = plan.slots.get(comm.tid).map_or(0, |slot| record.load(slot));
                let tid = match (tid as i32, point) {
                    // `task_rename` has no pid from 6.15 on: a task renames itself.
                    (0, Point::TaskRename) => event.tid.0,
                    (tid, _) => tid,
                };
                if tid != 0
                    && let Some(comm) = comm.load(record.bytes, record.endian)
                    && let Some(kind) = self.tasks.named(tid, None, comm, names)
                {
                    out.push(Event { kind, ..event });
                }
            }
            let fields = Fields {
                record,
                slots: &plan.slots,
            };
            if let Some(kind) = fields.kind(point, &mut self.functions, names) {
                if let Kind::SchedProcessExit { tid } = kind {
                    self.tasks.ended(tid.0);
                }
                event.kind = kind;
            }
        } else {
            note_named(plan, names, info);
        }
        out.push(event);
    }

    /// Notes that the container itself says what a task is called (saved command lines, records of
    /// `exec` and `fork`), and tells it if that is new. `process` is the thread group's id where it
    /// is known; later events that tell only a name keep it.
    pub fn task_named(
        &mut self,
        tid: Tid,
        process: Option<Tid>,
        comm: &[u8],
        at: Stamp,
        names: &mut NameTable,
        out: &mut impl EventSink,
    ) {
        let process = process.map(|process| process.0);
        if let Some(kind) = self.tasks.named(tid.0, process, comm_of(comm), names) {
            out.push(at.event(kind));
        }
    }

    /// Notes that the container itself says which process a thread is of, and tells it if that is
    /// new.
    #[inline]
    pub fn task_of(
        &mut self,
        tid: Tid,
        process: Tid,
        at: Stamp,
        names: &mut NameTable,
        out: &mut impl EventSink,
    ) {
        if let Some(kind) = self.tasks.of_process(tid.0, process.0, names) {
            out.push(at.event(kind));
        }
    }

    /// How records that begin with this id are read; `None` where no description has it, or where
    /// the descriptions have it elsewhere than at the beginning.
    #[must_use]
    pub fn plan(&self, id: u16) -> Option<PlanId> {
        let plan = *self.by_id.get(usize::from(id))?;
        let is_there = usize::from(plan) < self.plans.len() && self.id.is_first_half_word();
        is_there.then_some(PlanId(plan))
    }

    /// The tracepoint's name for an id, or `None` where no description has it.
    #[must_use]
    pub fn event_name(&self, id: u16) -> Option<NameId> {
        let plan = *self.by_id.get(usize::from(id))?;
        self.plans.get(usize::from(plan)).map(|plan| plan.name)
    }

    #[cold]
    fn unknown(
        &self,
        id: usize,
        record: &[u8],
        at: Stamp,
        names: &mut NameTable,
        info: &mut SourceInfo,
    ) -> Event {
        let name = if self.id.exists() && self.id.end() <= record.len() {
            info.note(
                true,
                format!("events with ID {id}: the file has no description of them"),
            );
            names.intern(&format!("unknown-{id}"))
        } else {
            info.note(true, "records too short to say which event they are");
            names.intern("unknown")
        };
        let event = at.event(Kind::Other { name });
        // What all entries begin with is where the described events have it. As the idle task's, this one
        // would say that the current task is not.
        let is_whole = |plan: &&Plan| {
            plan.pid.exists() && plan.flags.exists() && plan.header_end() <= record.len()
        };
        self.plans
            .iter()
            .find(is_whole)
            .map_or(event, |plan| Event {
                tid: Tid(plan.pid.load(record, self.endian) as i32),
                context: Context::from_bits(plan.flags.load(record, self.endian) as u8),
                ..event
            })
    }
}

/// Says why a record became a mere name.
fn note_named(plan: &mut Plan, names: &NameTable, info: &mut SourceInfo) {
    match plan.body {
        Body::Named => {}
        Body::Lacks(field) => {
            let event = names.name(plan.name);
            info.note(
                false,
                format!("{event}: its format has no field {field}; what needs it is left out"),
            );
            plan.body = Body::Named;
        }
        Body::Point(_) => short(plan, names, info),
    }
}

#[cold]
fn short(plan: &Plan, names: &NameTable, info: &mut SourceInfo) {
    let (event, needed) = (names.name(plan.name), plan.min_len);
    info.note(
        true,
        format!("{event}: records shorter than the {needed} bytes that its format needs"),
    );
}

/// The fields of one record in the order of its specification.
struct Fields<'a, const SHORT: bool> {
    record: Record<'a, SHORT>,
    slots: &'a [Slot; MAX_FIELDS],
}

impl<const SHORT: bool> Fields<'_, SHORT> {
    #[inline(always)]
    fn get<const N: usize>(&self) -> u64 {
        const { assert!(N < MAX_FIELDS) };
        self.record.load(&self.slots[N])
    }

    #[inline(always)]
    fn u32<const N: usize>(&self) -> u32 {
        self.get::<N>() as u32
    }

    #[inline(always)]
    fn i32<const N: usize>(&self) -> i32 {
        self.get::<N>() as i32
    }

    #[inline(always)]
    fn tid<const N: usize>(&self) -> Tid {
        Tid(self.i32::<N>())
    }

    #[inline(always)]
    fn bool<const N: usize>(&self) -> bool {
        self.get::<N>() != 0
    }

    /// The vCPU, unknown where the field is not there.
    #[inline(always)]
    fn vcpu<const N: usize>(&self) -> VcpuId {
        const { assert!(N < MAX_FIELDS) };
        match self.slots[N].exists() {
            true => VcpuId(self.u32::<N>()),
            false => VcpuId::UNKNOWN,
        }
    }

    #[inline(always)]
    fn function<const N: usize>(&self, functions: &mut Functions, names: &mut NameTable) -> NameId {
        functions.name(self.get::<N>(), names)
    }

    /// The event's kind; `None` keeps the name alone.
    #[inline]
    fn kind(&self, point: Point, functions: &mut Functions, names: &mut NameTable) -> Option<Kind> {
        Some(match point {
            Point::KvmEntry => Kind::KvmEntry {
                vcpu: self.vcpu::<0>(),
            },
            Point::KvmExit => self.exit_x86()?,
            Point::KvmExitArm64 => self.exit_arm64(),
            Point::KvmExitRiscv => self.exit_riscv(),
            Point::SchedSwitch => Kind::SchedSwitch {
                prev: self.tid::<0>(),
                next: self.tid::<1>(),
                prev_prio: self.i32::<2>() as i16,
                next_prio: self.i32::<3>() as i16,
                prev_state: self.u32::<4>(),
            },
            Point::VectorEntry(class) => self.vector(class, true),
            Point::VectorExit(class) => self.vector(class, false),
            Point::TaskRename => return None,
            // A look at which group it is, and then at which of the group: two jumps. One group
            // asked after the other would take as many loads as all of them together.
            Point::HrtimerSetup
            | Point::HrtimerStart
            | Point::HrtimerCancel
            | Point::HrtimerExpireEntry
            | Point::HrtimerExpireExit
            | Point::IpiSendCpu
            | Point::IpiSendCpumask
            | Point::CsdQueueCpu
            | Point::CsdFunctionEntry
            | Point::CsdFunctionExit => return self.timer(point, functions, names),
            Point::SchedWaking
            | Point::SchedWakeup
            | Point::SchedWakeupNew
            | Point::SchedMigrateTask
            | Point::SchedStatRuntime
            | Point::SchedStatWait
            | Point::SchedProcessFork
            | Point::SchedProcessExit
            | Point::IrqHandlerEntry
            | Point::IrqHandlerExit
            | Point::SoftirqEntry
            | Point::SoftirqExit
            | Point::SoftirqRaise => return self.sched(point),
            Point::KvmUserspaceExit
            | Point::KvmHypercall
            | Point::KvmPio
            | Point::KvmMmio
            | Point::KvmMsr
            | Point::KvmCpuid
            | Point::KvmPageFault
            | Point::KvmApic => return self.kvm_access(point),
            Point::KvmApicIpi
            | Point::KvmApicAcceptIrq
            | Point::KvmApicvAcceptIrq
            | Point::KvmInjVirq
            | Point::KvmInjException
            | Point::KvmEoi
            | Point::KvmPvEoi
            | Point::KvmSetIrq
            | Point::KvmMsiSetIrq
            | Point::KvmPiIrteUpdate
            | Point::KvmAvicIncompleteIpi
            | Point::KvmApicvInhibitChanged => return self.kvm_interrupt(point),
            Point::KvmVcpuWakeup
            | Point::KvmHaltPollNs
            | Point::KvmPleWindowUpdate
            | Point::KvmHvTimerState
            | Point::KvmWaitLapicExpire
            | Point::KvmWriteTscOffset
            | Point::KvmTrackTsc
            | Point::KvmUpdateMasterClock
            | Point::KvmPvclockUpdate
            | Point::KvmPvTlbFlush => return self.kvm_time(point),
        })
    }

    fn vector(&self, class: HostVector, entry: bool) -> Kind {
        let vector = self.u32::<0>() as u8;
        match entry {
            true => Kind::VectorEntry { class, vector },
            false => Kind::VectorExit { class, vector },
        }
    }

    /// `kvm_exit` of x86. `isa` is `KVM_ISA_VMX` (1) or `KVM_ISA_SVM` (2) of arch/x86/kvm/trace.h; other
    /// modules (`kvm_pvm`) have numbers of their own.
    #[inline]
    fn exit_x86(&self) -> Option<Kind> {
        /// `VECTORING_INFO_VALID_MASK`, Intel SDM vol. 3 table 26-19.
        const VALID: u32 = 1 << 31;
        let code = self.u32::<0>();
        let intr_info = self.u32::<4>();
        let (reason, intr_vector) = match self.u32::<1>() {
            1 => {
                let vector = (intr_info & VALID != 0).then_some(intr_info as u8);
                (ExitReason::vmx(code), vector)
            }
            // SVM's `intr_info` is EXITINTINFO: what was being delivered, not why the guest was left.
            2 => (ExitReason::svm(code), None),
            _ => {
                let isa = Isa::Other;
                (ExitReason { isa, code }, None)
            }
        };
        Some(Kind::KvmExit {
            reason,
            vcpu: self.vcpu::<3>(),
            intr_vector,
            info1: self.get::<2>(),
        })
    }

    /// `kvm_exit` of arm64: the exception class of a trap, else the exception's kind.
    fn exit_arm64(&self) -> Kind {
        const ARM_EXCEPTION_TRAP: u32 = 2;
        /// `ARM_EXCEPTION_HYP_GONE`: `HVC_STUB_ERR`, of no use as a number.
        const HYP_GONE: u32 = 0x0bad_ca11;
        let code = match self.u32::<0>() {
            ARM_EXCEPTION_TRAP => self.u32::<1>(),
            HYP_GONE => 0x104,
            ret => ret.saturating_add(0x100),
        };
        self.exit(Isa::Arm64, code)
    }

    /// `kvm_exit` of RISC-V: `scause`, its interrupt bit (the topmost) moved to bit 31.
    fn exit_riscv(&self) -> Kind {
        let scause = self.get::<0>();
        let interrupt = ((scause >> 63) as u32) << 31;
        self.exit(Isa::Riscv, scause as u32 | interrupt)
    }

    fn exit(&self, isa: Isa, code: u32) -> Kind {
        Kind::KvmExit {
            reason: ExitReason { isa, code },
            vcpu: VcpuId::UNKNOWN,
            intr_vector: None,
            info1: 0,
        }
    }
}

mod kinds;
