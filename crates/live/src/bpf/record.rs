//! Records of the programs, and the events that they become.
//!
//! A record begins with a head of 16 bytes: time, current thread, kind and count of losses. Words follow by
//! kind, and for some a task's name. Fields of events that no sample reads are 0, and the programs do not
//! record them.

use stealtime_events::{
    Context, CpuId, Event, ExitReason, HostVector, Isa, Kind, NameId, Tid, VcpuId,
};
use stealtime_trace::NameTable;

/// Positions in a record.
pub(super) mod place {
    pub(in super::super) const TIME: i16 = 0;
    pub(in super::super) const TID: i16 = 8;
    /// The kind in the low byte, above it the losses of the CPU so far.
    pub(in super::super) const KIND: i16 = 12;
    pub(in super::super) const FIRST: i16 = 16;
    pub(in super::super) const SECOND: i16 = 20;
    pub(in super::super) const THIRD: i16 = 24;
    pub(in super::super) const NAME: i16 = 24;
}

/// Bit of the first word of a switch: the task was preempted.
pub(super) const PREEMPTED: u32 = 1 << 31;
/// Low bits of the kind's word.
const KIND_BITS: u32 = 8;
/// Entry and exit of each host vector follow from here on.
const VECTORS: u8 = 32;

/// What a record is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordKind {
    Switch,
    Waking,
    Wakeup,
    WakeupNew,
    Migrate,
    Fork,
    Exit,
    Rename,
    Period,
    Entry,
    KvmExit,
    HaltEnd,
    PollWindow,
    VectorEntry(HostVector),
    VectorExit(HostVector),
}

/// All kinds but those of vectors, by number.
const KINDS: [RecordKind; 13] = {
    use RecordKind::{
        Entry, Exit, Fork, HaltEnd, KvmExit, Migrate, Period, PollWindow, Rename, Switch, Wakeup,
        WakeupNew, Waking,
    };
    [
        Switch, Waking, Wakeup, WakeupNew, Migrate, Fork, Exit, Rename, Period, Entry, KvmExit,
        HaltEnd, PollWindow,
    ]
};

impl RecordKind {
    /// Its number in records.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::VectorEntry(class) => VECTORS + 2 * class as u8,
            Self::VectorExit(class) => VECTORS + 2 * class as u8 + 1,
            kind => {
                let position = KINDS.iter().position(|known| *known == kind);
                debug_assert!(position.is_some(), "{kind:?} has no number");
                position.unwrap_or_default() as u8
            }
        }
    }

    #[inline]
    fn of_number(number: u8) -> Option<Self> {
        if let Some(vector) = number.checked_sub(VECTORS) {
            let class = *HostVector::ALL.get(usize::from(vector / 2))?;
            return Some(match vector % 2 {
                0 => Self::VectorEntry(class),
                _ => Self::VectorExit(class),
            });
        }
        KINDS.get(usize::from(number)).copied()
    }

    /// Bytes of its records.
    pub(super) const fn size(self) -> i32 {
        match self {
            Self::Entry => 16,
            Self::Switch | Self::Waking | Self::Wakeup | Self::WakeupNew => 24,
            Self::Exit | Self::Period | Self::VectorEntry(_) | Self::VectorExit(_) => 24,
            Self::Migrate | Self::KvmExit | Self::HaltEnd | Self::PollWindow => 32,
            Self::Fork | Self::Rename => 40,
        }
    }
}

/// Names for events.
pub(super) struct Naming {
    pub(super) names: NameTable,
    /// The function that refills bandwidth.
    period: NameId,
}

impl Naming {
    pub(super) fn new() -> Self {
        let mut names = NameTable::default();
        let period = names.intern(super::programs::PERIOD_TIMER);
        Self { names, period }
    }
}

/// A thread that a record names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) tid: i32,
    pub(super) name: &'a [u8],
}

/// A record as the program wrote it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// `None`: it is shorter than its head.
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= 16).then_some(Self { bytes })
    }

    #[inline]
    fn word(&self, position: i16) -> u32 {
        let bytes = self.bytes.get(position as usize..);
        let bytes = bytes.and_then(|bytes| bytes.first_chunk());
        debug_assert!(bytes.is_some(), "a record without word {position}");
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    #[inline]
    fn double(&self, position: i16) -> u64 {
        u64::from(self.word(position)) | u64::from(self.word(position + 4)) << 32
    }

    /// Its time, in ns of CLOCK_MONOTONIC.
    #[inline]
    pub(super) fn time(&self) -> u64 {
        self.double(place::TIME)
    }

    /// Losses of its CPU so far, modulo 2^24.
    #[inline]
    pub(super) fn losses(&self) -> u32 {
        self.word(place::KIND) >> KIND_BITS
    }

    #[inline]
    fn record_kind(&self) -> Option<RecordKind> {
        let number = self.word(place::KIND).to_le_bytes()[0];
        let kind = RecordKind::of_number(number);
        debug_assert!(kind.is_some(), "records of kind {number} are not written");
        kind
    }

    /// The thread that it names.
    #[inline]
    pub(super) fn thread(&self) -> Option<Named<'a>> {
        if !matches!(self.record_kind()?, RecordKind::Fork | RecordKind::Rename) {
            return None;
        }
        let name = self.bytes.get(place::NAME as usize..).unwrap_or_default();
        let end = name.iter().position(|byte| *byte == 0);
        let name = &name[..end.unwrap_or(name.len())];
        let tid = self.word(place::FIRST).cast_signed();
        Some(Named { tid, name })
    }

    /// Gives its events.
    #[inline]
    pub(super) fn events(
        &self,
        cpu: u16,
        naming: &mut Naming,
        take: &mut dyn FnMut(&Event, &NameTable),
    ) {
        let event = |context, kind| Event {
            time_ns: self.time(),
            tid: Tid(self.word(place::TID).cast_signed()),
            cpu: CpuId(cpu),
            context,
            kind,
        };
        // Of a new name it is all.
        if let Some(kind) = self.record_kind()
            && kind != RecordKind::Rename
        {
            take(
                &event(context(kind), self.kind(kind, naming)),
                &naming.names,
            );
        }
        if let Some(Named { tid, name }) = self.thread() {
            let task = Kind::Task {
                tid: Tid(tid),
                process: Tid(self.word(place::SECOND).cast_signed()),
                name: naming.names.intern_bytes(name),
            };
            take(&event(Context::UNKNOWN, task), &naming.names);
        }
    }

    #[inline]
    fn kind(&self, kind: RecordKind, naming: &Naming) -> Kind {
        let first = self.word_of(kind, place::FIRST);
        let second = self.word_of(kind, place::SECOND);
        let tid = Tid(first.cast_signed());
        match kind {
            RecordKind::Switch => Kind::SchedSwitch {
                prev: Tid(self.word(place::TID).cast_signed()),
                prev_prio: 0,
                prev_state: reported_state(first),
                next: Tid(second.cast_signed()),
                next_prio: 0,
            },
            RecordKind::Waking => Kind::SchedWaking {
                tid,
                prio: 0,
                target_cpu: second,
            },
            RecordKind::Wakeup => Kind::SchedWakeup {
                tid,
                prio: 0,
                target_cpu: second,
            },
            RecordKind::WakeupNew => Kind::SchedWakeupNew {
                tid,
                prio: 0,
                target_cpu: second,
            },
            RecordKind::Migrate => Kind::SchedMigrateTask {
                tid,
                prio: 0,
                orig_cpu: self.word(place::THIRD),
                dest_cpu: second,
            },
            RecordKind::Fork | RecordKind::Rename => Kind::SchedProcessFork {
                parent: Tid(self.word(place::TID).cast_signed()),
                child: tid,
            },
            RecordKind::Exit => Kind::SchedProcessExit { tid },
            RecordKind::Period => Kind::HrtimerExpireEntry {
                hrtimer: 0,
                now_ns: self.time(),
                function: naming.period,
            },
            RecordKind::Entry => Kind::KvmEntry {
                vcpu: VcpuId::UNKNOWN,
            },
            RecordKind::KvmExit => Kind::KvmExit {
                reason: exit_reason(self.word(place::THIRD), first),
                vcpu: VcpuId(second),
                intr_vector: None,
                info1: 0,
            },
            RecordKind::HaltEnd => Kind::KvmVcpuWakeup {
                ns: self.double(place::FIRST),
                waited: self.word(place::THIRD) != 0,
                valid: false,
            },
            RecordKind::PollWindow => Kind::KvmHaltPollNs {
                grow: first > second,
                vcpu: VcpuId(self.word(place::THIRD)),
                new: first,
                old: second,
            },
            RecordKind::VectorEntry(class) => Kind::VectorEntry {
                class,
                vector: first.to_le_bytes()[0],
            },
            RecordKind::VectorExit(class) => Kind::VectorExit {
                class,
                vector: first.to_le_bytes()[0],
            },
        }
    }

    /// A word, 0 where records of the kind end before it.
    #[inline]
    fn word_of(&self, kind: RecordKind, position: i16) -> u32 {
        match i32::from(position) < kind.size() {
            true => self.word(position),
            false => 0,
        }
    }
}

/// Whether a handler can trace it. KVM's events are of the vCPU's thread, and switches of the current task.
const fn context(kind: RecordKind) -> Context {
    match kind {
        RecordKind::Entry
        | RecordKind::KvmExit
        | RecordKind::HaltEnd
        | RecordKind::PollWindow
        | RecordKind::Switch => Context::from_bits(0),
        _ => Context::UNKNOWN,
    }
}

/// `isa` of `kvm_exit`: 1 is VMX and 2 is SVM.
const fn exit_reason(isa: u32, code: u32) -> ExitReason {
    let isa = match isa {
        1 => Isa::Vmx,
        2 => Isa::Svm,
        _ => Isa::Other,
    };
    ExitReason { isa, code }
}

/// `prev_state` as `sched_switch` reports it (`__trace_sched_switch_state`), of the task's own states.
const fn reported_state(state: u32) -> u32 {
    /// `TASK_REPORT`.
    const REPORTED: u32 = 0x7f;
    const UNINTERRUPTIBLE: u32 = 2;
    if state & PREEMPTED != 0 {
        0x100
    } else if state & REPORTED != 0 {
        1 << (state & REPORTED).ilog2()
    } else if state != 0 {
        // Frozen, or in wait for a lock of a real-time kernel.
        UNINTERRUPTIBLE
    } else {
        0
    }
}

/// Records as the programs write them, for tests.
#[cfg(test)]
pub(super) fn written(
    kind: RecordKind,
    time: u64,
    tid: i32,
    losses: u32,
    words: [u32; 3],
) -> Vec<u8> {
    let mut bytes = time.to_ne_bytes().to_vec();
    bytes.extend(tid.to_ne_bytes());
    bytes.extend((losses << KIND_BITS | u32::from(kind.number())).to_ne_bytes());
    words
        .iter()
        .for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes.resize(kind.size() as usize, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use stealtime_events::Names;

    use super::*;

    #[test]
    fn every_kind_has_a_number() {
        for number in 0..=u8::MAX {
            if let Some(kind) = RecordKind::of_number(number) {
                assert_eq!(kind.number(), number);
            }
        }
        let vectors = HostVector::ALL.map(|class| RecordKind::VectorExit(class).number());
        assert!(
            vectors
                .iter()
                .all(|number| RecordKind::of_number(*number).is_some())
        );
    }

    #[test]
    fn states_are_those_of_the_tracepoint() {
        for (state, expected) in [
            (0, 0),
            (1, 1),
            (PREEMPTED | 1, 0x100),
            // TASK_KILLABLE and TASK_IDLE.
            (0x102, 2),
            (0x402, 2),
            // TASK_DEAD and EXIT_ZOMBIE.
            (0x80 | 0x20, 0x20),
            // TASK_RTLOCK_WAIT.
            (0x1000, 2),
        ] {
            assert_eq!(reported_state(state), expected, "{state:#x}");
        }
    }

    fn events_of(bytes: &[u8]) -> (Vec<Event>, Naming) {
        let (mut events, mut naming) = (Vec::new(), Naming::new());
        let record = Record::new(bytes).expect("a head");
        record.events(3, &mut naming, &mut |event, _| events.push(*event));
        (events, naming)
    }

    #[test]
    fn a_record_becomes_its_event() {
        let bytes = written(RecordKind::KvmExit, 77, 5, 9, [0x78, 1, 2]);
        let (events, _) = events_of(&bytes);
        assert_eq!(
            events,
            [Event {
                time_ns: 77,
                tid: Tid(5),
                cpu: CpuId(3),
                context: Context::from_bits(0),
                kind: Kind::KvmExit {
                    reason: ExitReason::svm(0x78),
                    vcpu: VcpuId(1),
                    intr_vector: None,
                    info1: 0
                },
            }]
        );
        assert_eq!(Record::new(&bytes).map(|record| record.losses()), Some(9));
        let bytes = written(RecordKind::HaltEnd, 77, 5, 0, [7, 1, 1]);
        let kind = events_of(&bytes).0.first().map(|event| event.kind);
        let expected = Kind::KvmVcpuWakeup {
            ns: 1 << 32 | 7,
            waited: true,
            valid: false,
        };
        assert_eq!(kind, Some(expected));
    }

    #[test]
    fn a_thread_that_begins_has_a_name_and_a_process() {
        let mut bytes = written(RecordKind::Fork, 77, 5, 0, [8, 5, 0]);
        bytes[24..33].copy_from_slice(b"CPU 0/KVM");
        let (events, naming) = events_of(&bytes);
        let kinds: Vec<Kind> = events.iter().map(|event| event.kind).collect();
        let name = naming.names.id("CPU 0/KVM").expect("it is known");
        let fork = Kind::SchedProcessFork {
            parent: Tid(5),
            child: Tid(8),
        };
        let task = Kind::Task {
            tid: Tid(8),
            process: Tid(5),
            name,
        };
        assert_eq!(kinds, [fork, task]);
        assert_eq!(naming.names.name(name), "CPU 0/KVM");
        bytes[12] = RecordKind::Rename.number();
        let kinds: Vec<Kind> = events_of(&bytes).0.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [task]);
    }
}
