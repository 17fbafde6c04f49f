//! Exits and entries: the exit table of `perf kvm stat report`, and what they do to the time split.

use stealtime_events::exit_reason::Class;
use stealtime_events::{ExitReason, Isa, VcpuId};

use crate::Analysis;
use crate::hash::IntMap;
use crate::vcpu::{Begun, Mode, Vcpu};

/// Most different exit reasons; further ones share the last slot.
const MAX_REASONS: usize = 1024;
/// The slot of on-CPU time outside the guest for which no exit was seen.
pub(crate) const NO_EXIT: usize = 0;

/// The exit reasons seen, numbered. Number 0 is [`NO_EXIT`].
#[derive(Debug)]
pub(crate) struct Reasons {
    list: Vec<(ExitReason, Class)>,
    by_code: IntMap<u64, usize>,
    /// Keys that were looked for last, and their slots: in front of the map.
    recent: [(u64, usize); RECENT],
}

/// Entries of the direct-mapped cache: few reasons make up most exits.
const RECENT: usize = 32;
/// What no reason has as key.
const NO_KEY: (u64, usize) = (u64::MAX, NO_EXIT);

impl Default for Reasons {
    fn default() -> Self {
        let none = ExitReason {
            isa: Isa::Vmx,
            code: u32::MAX,
        };
        Self {
            list: vec![(none, Class::Other)],
            by_code: IntMap::default(),
            recent: [NO_KEY; RECENT],
        }
    }
}

impl Reasons {
    /// The slot of a reason, new or known.
    #[inline]
    fn slot(&mut self, reason: ExitReason) -> usize {
        let key = (reason.isa as u64) << 32 | u64::from(reason.code);
        let recent = self.recent[reason.code as usize % RECENT];
        if recent.0 == key {
            return recent.1;
        }
        let slot = self.look_up(key, reason);
        self.recent[reason.code as usize % RECENT] = (key, slot);
        slot
    }

    #[cold]
    fn look_up(&mut self, key: u64, reason: ExitReason) -> usize {
        if let Some(&slot) = self.by_code.get(&key) {
            return slot;
        }
        if self.list.len() >= MAX_REASONS {
            return self.list.len();
        }
        let slot = self.list.len();
        self.list.push((reason, reason.class()));
        self.by_code.insert(key, slot);
        slot
    }

    /// What exits of this slot are for.
    pub(crate) fn class(&self, slot: usize) -> Class {
        self.list.get(slot).map_or(Class::Other, |entry| entry.1)
    }

    /// Whether exits of this slot are halts.
    pub(crate) fn is_halt(&self, slot: usize) -> bool {
        self.class(slot) == Class::Halt
    }

    /// The hardware of a slot.
    pub(crate) fn isa(&self, slot: usize) -> Option<Isa> {
        self.list
            .get(slot)
            .filter(|_| slot != NO_EXIT)
            .map(|entry| entry.0.isa)
    }

    /// The name of a slot's reason as perf prints it. Reasons that perf calls `UNKNOWN` keep their
    /// number, and failed entries are told from exits.
    pub(crate) fn name(&self, slot: usize) -> String {
        if slot == NO_EXIT {
            return "(no exit seen)".to_owned();
        }
        let Some((reason, _)) = self.list.get(slot) else {
            return "(others)".to_owned();
        };
        match reason.name() {
            Some(name) if reason.is_failed_vmentry() => format!("{name} FAILED_VMENTRY"),
            Some(name) => name.to_owned(),
            None => format!("UNKNOWN({:#x})", reason.code),
        }
    }
}

impl Analysis {
    /// `kvm_exit`. `time` is the event's own time, `now` the time of the trace.
    pub(crate) fn on_exit(
        &mut self,
        index: u32,
        place: (u16, u64, u64),
        reason: ExitReason,
        vector: Option<u8>,
    ) {
        let (cpu, now, time) = place;
        self.settle(index, now);
        let slot = self.reasons.slot(reason);
        let class = self.reasons.class(slot);
        let counts = self.window.has(now, cpu);
        let Some(vcpu) = self.vcpus.get_mut(index as usize) else {
            return;
        };
        if vcpu.mode == Mode::Unknown {
            // It can only have come out of the guest.
            vcpu.time.guest += std::mem::take(&mut vcpu.time.mode_unknown);
        }
        if class == Class::Pause {
            vcpu.on_pause_exit(counts);
        } else {
            vcpu.after_pause = false;
        }
        vcpu.has_exits = true;
        vcpu.mode = Mode::Exit(slot);
        vcpu.mode_start = now;
        vcpu.stretches.clear();
        vcpu.slot(slot).count += u64::from(counts);
        if vcpu.perf_counts {
            vcpu.begun = Some(Begun { time, slot });
        }
        // Also where this exit is not counted: a handler from here on is not that of the one before.
        vcpu.hits.close();
        if class == Class::HostInterrupt && counts {
            vcpu.hits.exit(vector);
        }
        let perf_counts = vcpu.perf_counts;
        if class == Class::PreemptionTimer {
            self.on_preemption_timer(index, now);
        }
        if let Some(cpu) = self.cpus.get_mut(usize::from(cpu)) {
            cpu.sent = None;
            cpu.accepted = None;
        }
        if perf_counts && !self.options.skip.keys {
            self.keys.mmio.begin(index, time, None);
        }
    }

    /// `kvm_entry`.
    pub(crate) fn on_entry(&mut self, index: u32, cpu: u16, now: u64, time: u64) {
        self.settle(index, now);
        let counts = self.window.has(now, cpu);
        let Some(vcpu) = self.vcpus.get_mut(index as usize) else {
            return;
        };
        if vcpu.mode == Mode::Unknown {
            let ns = std::mem::take(&mut vcpu.time.mode_unknown);
            vcpu.slot(NO_EXIT).ns += ns;
        }
        vcpu.has_exits = true;
        vcpu.perf_counts = true;
        vcpu.close_sleep();
        vcpu.mode = Mode::Guest;
        vcpu.mode_start = now;
        vcpu.stretches.clear();
        vcpu.stretch = 0;
        vcpu.pause_open = false;
        vcpu.hits.close();
        if let Some(begun) = vcpu.begun.take()
            && let Some(ns) = time.checked_sub(begun.time)
            && counts
        {
            vcpu.slot(begun.slot).durations.record(ns);
        }
        if let Some(cpu) = self.cpus.get_mut(usize::from(cpu)) {
            cpu.sent = None;
            cpu.accepted = None;
        }
        if !self.options.skip.keys {
            self.keys.msr.end(index, time, None, counts);
            self.keys.ioport.end(index, time, None, counts);
            self.keys.mmio.end(index, time, None, counts);
        }
    }

    /// The number of a vCPU has shown in an event of its own.
    #[inline]
    pub(crate) fn renumber(&mut self, index: u32, id: VcpuId) {
        let is_news = |vcpu: &Vcpu| id != VcpuId::UNKNOWN && vcpu.id != id;
        if self.vcpus.get(index as usize).is_some_and(is_news) {
            self.change_number(index, id);
        }
    }

    #[cold]
    fn change_number(&mut self, index: u32, id: VcpuId) {
        let Some(vcpu) = self.vcpus.get_mut(index as usize) else {
            return;
        };
        let old = std::mem::replace(&mut vcpu.id, id);
        self.links.renumber(index, old.0, id.0);
        if let Some(list) = self.by_id.get_mut(&old.0) {
            list.retain(|&other| other != index);
        }
        self.by_id.entry(id.0).or_default().push(index);
    }
}
