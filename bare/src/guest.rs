//! The guests: small programs that run in guest mode, and the memory that they share with the host.
//!
//! They use no statics of the hypervisor: EPT lets them read those, but not write.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// vCPUs of a phase.
pub const MAX_VCPUS: usize = 16;
/// Vector of a guest's timer.
pub const TIMER_VECTOR: u8 = 0xec;
/// Vector that only wakes a guest, so that it sees that it is to stop.
pub const STOP_VECTOR: u8 = 0xe0;
/// Vector of a guest's IPI.
pub const IPI_VECTOR: u8 = 0x61;

/// What a guest executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Program {
    /// A loop. After `work` rounds a CPUID, if `work` is not 0.
    Busy = 0,
    /// HLT in a loop, with `work` rounds in between.
    Halt = 1,
    /// `count` timer interrupts by TSC deadline, `period` cycles apart; spins meanwhile.
    SpinTicks = 2,
    /// The same; halts meanwhile.
    HaltTicks = 3,
    /// Sends an IPI to vCPU `peer` and spins with PAUSE until its answer, `count` times.
    Ping = 4,
    /// Answers IPIs of vCPU `peer`; spins with PAUSE meanwhile.
    Pong = 5,
    /// Reports its TSC `count` times, after `work` rounds each. Every other report asks for another CPU.
    Clock = 6,
    /// Does number `work` of what no guest may do ([`FORBIDDEN`]).
    Forbidden = 7,
    /// As `Ping` and `Pong`, but halts until the other's IPI.
    PipeWriter = 8,
    PipeReader = 9,
    /// Takes the spinlock of vCPU 0 `count` times, for `work` rounds each.
    Locker = 10,
}

/// What the numbers mean.
pub const FORBIDDEN: [&str; 5] = [
    "a triple fault",
    "a port",
    "a write to the image",
    "INVD",
    "an invalid instruction",
];

/// What a guest and the host share. The guest's GS base points here.
#[repr(C)]
pub struct Page {
    /// Interrupts handled, by vector. Written by the stubs, as is the next field.
    pub handled: [AtomicU64; 256],
    /// When the last one was handled, TSC.
    pub handled_tsc: AtomicU64,
    pub loops: AtomicU64,
    pub program: AtomicU32,
    pub stop: AtomicU32,
    pub work: AtomicU32,
    pub count: AtomicU32,
    pub period: AtomicU64,
    pub peer: AtomicU32,
    /// Sum and maximum of the lateness of timer interrupts, cycles.
    pub late_sum: AtomicU64,
    pub late_max: AtomicU64,
    /// Reads of the TSC that were not above the one before.
    pub backward: AtomicU64,
    /// Spinlock of all guests of a phase, and how often it was taken; those of vCPU 0 are used.
    lock: AtomicU32,
    pub taken: AtomicU64,
}

/// A page with its stack.
#[repr(C, align(4096))]
struct Slot {
    page: Page,
    stack: [u8; 16384],
}

#[repr(C, align(4096))]
struct Memory {
    descriptors: [u8; 4096],
    gates: [u8; 4096],
    slots: [Slot; MAX_VCPUS],
}

// SAFETY: all bytes zero are a valid value. The linker script puts this section where EPT lets guests write.
#[unsafe(link_section = ".bss.guest")]
static mut MEMORY: core::mem::MaybeUninit<Memory> = core::mem::MaybeUninit::zeroed();

fn memory() -> *mut Memory {
    (&raw mut MEMORY).cast()
}

/// Descriptors and gates that guests read: a page each.
pub fn tables() -> (u64, u64) {
    // SAFETY: only addresses are taken.
    unsafe {
        (
            &raw mut (*memory()).descriptors as u64,
            &raw mut (*memory()).gates as u64,
        )
    }
}

/// The page of a vCPU.
pub fn page(vcpu: u32) -> &'static Page {
    assert!((vcpu as usize) < MAX_VCPUS, "at most {MAX_VCPUS} vCPUs");
    // SAFETY: in bounds; all fields are atomics.
    unsafe { &(*memory()).slots[vcpu as usize].page }
}

/// The top of its stack, as at the entry of a function.
pub fn stack_top(vcpu: u32) -> u64 {
    assert!((vcpu as usize) < MAX_VCPUS, "at most {MAX_VCPUS} vCPUs");
    // SAFETY: in bounds; only the address is taken.
    let stack = unsafe { &raw mut (*memory()).slots[vcpu as usize].stack } as u64;
    stack + 16384 - 8
}

impl Page {
    /// Ready for another guest.
    pub fn reset(&self) {
        self.handled.iter().for_each(|count| count.store(0, SeqCst));
        for word in [
            &self.handled_tsc,
            &self.loops,
            &self.period,
            &self.late_sum,
            &self.late_max,
            &self.backward,
            &self.taken,
        ] {
            word.store(0, SeqCst);
        }
        for word in [
            &self.program,
            &self.stop,
            &self.work,
            &self.count,
            &self.peer,
            &self.lock,
        ] {
            word.store(0, SeqCst);
        }
    }

    fn handled(&self, vector: u8) -> u64 {
        self.handled[usize::from(vector)].load(SeqCst)
    }
}

/// Entry point of all guests.
pub extern "C" fn start(page: &'static Page) -> ! {
    let program = page.program.load(SeqCst);
    if program == Program::Busy as u32 {
        busy(page);
    } else if program == Program::Halt as u32 {
        halt(page);
    } else if program == Program::SpinTicks as u32 {
        ticks(page, false);
    } else if program == Program::HaltTicks as u32 {
        ticks(page, true);
    } else if program == Program::Ping as u32 {
        ping(page);
    } else if program == Program::Clock as u32 {
        clock(page);
    } else if program == Program::Forbidden as u32 {
        forbidden(page);
    } else if program == Program::PipeWriter as u32 {
        pipe(page, true);
    } else if program == Program::PipeReader as u32 {
        pipe(page, false);
    } else if program == Program::Locker as u32 {
        take_locks(page);
    } else {
        pong(page);
    }
    loop {
        // SAFETY: ends the guest; it does not come back.
        unsafe { asm!("cli", "vmcall", in("eax") 0) };
    }
}

fn rounds(page: &Page, work: u32) {
    for _ in 0..work {
        page.loops.store(page.loops.load(Relaxed) + 1, Relaxed);
    }
}

fn interrupts_on() {
    // SAFETY: the guest has handlers for all vectors.
    unsafe { asm!("sti") };
}

fn busy(page: &Page) {
    interrupts_on();
    let work = page.work.load(SeqCst);
    while page.stop.load(SeqCst) == 0 {
        rounds(page, work.max(1));
        if work > 0 {
            core::arch::x86_64::__cpuid(0);
        }
    }
}

fn halt(page: &Page) {
    let work = page.work.load(SeqCst);
    interrupts_on();
    while page.stop.load(SeqCst) == 0 {
        // SAFETY: as in `interrupts_on`.
        unsafe { asm!("hlt") };
        rounds(page, work);
    }
}

fn wrmsr(msr: u32, value: u64) {
    // SAFETY: APIC registers of the guest, which the host emulates or the processor virtualizes.
    unsafe { asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32) };
}

fn tsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter.
    unsafe { asm!("rdtsc", out("eax") low, out("edx") high) };
    u64::from(high) << 32 | u64::from(low)
}

fn ticks(page: &Page, halts: bool) {
    let (count, period) = (u64::from(page.count.load(SeqCst)), page.period.load(SeqCst));
    // TSC-deadline mode.
    wrmsr(0x832, 2 << 17 | u64::from(TIMER_VECTOR));
    for tick in 1..=count {
        let deadline = tsc() + period;
        wrmsr(0x6e0, deadline);
        wait_for(page, TIMER_VECTOR, tick, halts);
        let late = page.handled_tsc.load(SeqCst).saturating_sub(deadline);
        page.late_sum.fetch_add(late, SeqCst);
        page.late_max.fetch_max(late, SeqCst);
    }
}

/// Waits for interrupt number `tick` of a vector.
fn wait_for(page: &Page, vector: u8, tick: u64, halts: bool) {
    while page.handled(vector) < tick && page.stop.load(SeqCst) == 0 {
        // SAFETY: as in `interrupts_on`. STI takes effect after HLT, so that no tick is missed in between.
        unsafe {
            if halts {
                asm!("cli");
                if page.handled(vector) < tick {
                    asm!("sti", "hlt");
                }
                asm!("sti");
            } else {
                asm!("sti");
                core::hint::spin_loop();
            }
        }
    }
}

/// RAX of a VMCALL: RCX is the TSC. The second asks for another CPU.
pub const REPORT: u64 = 1;
pub const REPORT_AND_MOVE: u64 = 2;

fn clock(page: &Page) {
    let (count, work) = (page.count.load(SeqCst), page.work.load(SeqCst));
    let mut last = 0;
    for report in 0..count {
        rounds(page, work);
        let value = tsc();
        if value <= last {
            page.backward.fetch_add(1, SeqCst);
        }
        last = value;
        let call = if report % 2 == 0 {
            REPORT
        } else {
            REPORT_AND_MOVE
        };
        // SAFETY: the host reads the registers, and changes none.
        unsafe { asm!("vmcall", in("rax") call, in("rcx") value) };
    }
}

fn forbidden(page: &Page) {
    let no_gates = [0u8; 10];
    // SAFETY: none of these comes back: each leaves the guest for good, which is what the host has to show.
    unsafe {
        match page.work.load(SeqCst) {
            0 => asm!("lidt [{}]", "ud2", in(reg) &raw const no_gates),
            1 => asm!("out 0x80, al"),
            2 => (start as *const () as *mut u8).write_volatile(0),
            3 => asm!("invd"),
            _ => asm!("ud2"),
        }
    }
}

fn send(peer: u32) {
    wrmsr(
        0x830,
        u64::from(peer) << 32 | 0x4000 | u64::from(IPI_VECTOR),
    );
}

/// A word goes to and fro: each side halts until it comes.
fn pipe(page: &Page, writes_first: bool) {
    let (count, peer) = (u64::from(page.count.load(SeqCst)), page.peer.load(SeqCst));
    for round in 1..=count {
        if writes_first {
            send(peer);
        }
        wait_for(page, IPI_VECTOR, round, true);
        if !writes_first {
            send(peer);
        }
    }
}

fn take_locks(page: &Page) {
    let shared = self::page(0);
    let (count, work) = (page.count.load(SeqCst), page.work.load(SeqCst));
    interrupts_on();
    for _ in 0..count {
        while shared.lock.swap(1, SeqCst) != 0 {
            core::hint::spin_loop();
        }
        rounds(page, work);
        // Two steps: a lock that two guests hold at a time loses some of them.
        let acquisitions = shared.taken.load(Relaxed);
        shared.taken.store(acquisitions + 1, Relaxed);
        shared.lock.store(0, SeqCst);
    }
}

fn ping(page: &Page) {
    interrupts_on();
    let (count, peer) = (u64::from(page.count.load(SeqCst)), page.peer.load(SeqCst));
    for round in 1..=count {
        send(peer);
        while page.handled(IPI_VECTOR) < round && page.stop.load(SeqCst) == 0 {
            core::hint::spin_loop();
        }
    }
}

fn pong(page: &Page) {
    interrupts_on();
    let (count, peer) = (u64::from(page.count.load(SeqCst)), page.peer.load(SeqCst));
    for round in 1..=count {
        while page.handled(IPI_VECTOR) < round {
            if page.stop.load(SeqCst) != 0 {
                return;
            }
            core::hint::spin_loop();
        }
        send(peer);
    }
}
