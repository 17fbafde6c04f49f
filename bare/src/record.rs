//! The event stream: recorded in memory, written to the printer port at the end.
//!
//! `stealtime import` reads it; docs/bare.md describes it.

use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::boot::MAX_CPUS;
use crate::cpu;

/// Events of one CPU.
const CAPACITY: usize = 400_000;
/// The format, which `stealtime import` has too.
#[path = "../../crates/stealtime/src/verb/import/format.rs"]
#[allow(dead_code, reason = "the reader needs more of it")]
mod format;

use format::{HEADER_LEN, MAGIC, VERSION, add_to_checksum};
pub(crate) use format::{Kind, RESCHEDULE_VECTOR, TIMER_VECTOR};

const _: () = assert!(
    format::WAKEUP_VECTOR == stealtime_hypervisor::posted_interrupt::POSTED_INTR_WAKEUP_VECTOR
);

/// One event. The operands' meaning depends on the kind.
#[derive(Clone, Copy)]
struct Record {
    tsc: u64,
    first: u64,
    second: u64,
    small: u32,
    kind: Kind,
}

struct Buffer {
    records: UnsafeCell<Vec<Record>>,
    lost: AtomicU64,
}

// SAFETY: each CPU writes its own buffer with interrupts off; CPU 0 reads them while the others wait.
unsafe impl Sync for Buffer {}

static BUFFERS: [Buffer; MAX_CPUS] = [const {
    Buffer {
        records: UnsafeCell::new(Vec::new()),
        lost: AtomicU64::new(0),
    }
}; MAX_CPUS];

/// Whether events are recorded. Long scenarios only count.
pub static ENABLED: AtomicBool = AtomicBool::new(true);

/// Makes room on a CPU.
pub fn prepare(cpu: u32) {
    // SAFETY: before any event, see `Buffer`.
    let records = unsafe { &mut *BUFFERS[cpu as usize].records.get() };
    records.reserve_exact(CAPACITY);
}

/// Records an event on the CPU that runs.
pub fn event(cpu: u32, kind: Kind, small: u32, first: u64, second: u64) {
    if !ENABLED.load(Relaxed) {
        return;
    }
    let buffer = &BUFFERS[cpu as usize];
    // SAFETY: this CPU's own, see `Buffer`.
    let records = unsafe { &mut *buffer.records.get() };
    if records.len() < records.capacity() {
        records.push(Record {
            tsc: cpu::tsc(),
            first,
            second,
            small,
            kind,
        });
    } else {
        buffer.lost.fetch_add(1, Relaxed);
    }
}

/// The printer port, which takes a byte without delay when its strobe falls.
struct Printer {
    sum: u16,
}

impl Printer {
    fn byte(&mut self, byte: u8) {
        cpu::out8(0x378, byte);
        cpu::out8(0x37a, 0x0d);
        cpu::out8(0x37a, 0x0c);
        self.sum = add_to_checksum(self.sum, byte);
    }
    fn bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.byte(byte));
    }
    fn frame(&mut self, kind: Kind, cpu: u8, tsc: u64, parts: &[&[u8]]) {
        self.sum = 0;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.bytes(&[kind as u8, cpu]);
        self.bytes(&(len as u16).to_le_bytes());
        self.bytes(&tsc.to_le_bytes());
        parts.iter().for_each(|part| self.bytes(part));
        let sum = self.sum;
        self.bytes(&sum.to_le_bytes());
    }
}

/// Begins the stream.
pub fn header(cpus: u16, tsc_khz: u32, seed: u64) {
    let mut printer = Printer { sum: 0 };
    printer.bytes(MAGIC);
    printer.bytes(&VERSION.to_le_bytes());
    printer.bytes(&HEADER_LEN.to_le_bytes());
    printer.bytes(&cpus.to_le_bytes());
    printer.bytes(&0u16.to_le_bytes());
    printer.bytes(&tsc_khz.to_le_bytes());
    printer.bytes(&0u32.to_le_bytes());
    printer.bytes(&seed.to_le_bytes());
}

/// Writes a frame with text at once.
pub fn text(kind: Kind, first: u64, second: u64, text: &str) {
    let (first, second) = (first.to_le_bytes(), second.to_le_bytes());
    let parts: [&[u8]; 3] = [&first, &second, text.as_bytes()];
    Printer { sum: 0 }.frame(kind, 0, cpu::tsc(), &parts);
}

/// Writes the events of all CPUs in the order of time, and forgets them. Only while the others wait.
pub fn write_out() -> u64 {
    let mut next = [0usize; MAX_CPUS];
    let mut written = 0;
    loop {
        let mut earliest: Option<(u64, usize)> = None;
        for (cpu, buffer) in BUFFERS.iter().enumerate() {
            // SAFETY: the other CPUs wait, see `Buffer`.
            let records = unsafe { &*buffer.records.get() };
            if let Some(record) = records.get(next[cpu])
                && earliest.is_none_or(|(tsc, _)| record.tsc < tsc)
            {
                earliest = Some((record.tsc, cpu));
            }
        }
        let Some((_, cpu)) = earliest else { break };
        // SAFETY: as above; the index was in bounds.
        let record = unsafe { (&*BUFFERS[cpu].records.get())[next[cpu]] };
        next[cpu] += 1;
        written += 1;
        let Record {
            tsc,
            first,
            second,
            small,
            kind,
        } = record;
        let operands = [first.to_le_bytes(), second.to_le_bytes()];
        let parts: [&[u8]; 3] = [&small.to_le_bytes(), &operands[0], &operands[1]];
        Printer { sum: 0 }.frame(kind, cpu as u8, tsc, &parts);
    }
    for buffer in &BUFFERS {
        // SAFETY: as above.
        unsafe { (*buffer.records.get()).clear() };
    }
    written
}

/// Ends the stream: its number of events, and how many were lost.
pub fn end(events: u64) -> u64 {
    let lost = BUFFERS.iter().map(|buffer| buffer.lost.load(Relaxed)).sum();
    text(Kind::End, events, lost, "");
    lost
}
