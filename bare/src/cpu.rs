//! Registers, ports and the local APIC (x2APIC mode) of the CPU that runs.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// A CPU register that VMCS and controls need.
#[derive(Clone, Copy)]
pub enum Control {
    Cr0,
    Cr3,
    Cr4,
}

pub const IA32_APIC_BASE: u32 = 0x1b;
pub const IA32_FEATURE_CONTROL: u32 = 0x3a;
pub const IA32_TSC_ADJUST: u32 = 0x3b;
pub const IA32_TSC_DEADLINE: u32 = 0x6e0;
pub const IA32_EFER: u32 = 0xc000_0080;
pub const X2APIC_EOI: u32 = 0x80b;
pub const X2APIC_SPURIOUS: u32 = 0x80f;
pub const X2APIC_ICR: u32 = 0x830;
pub const X2APIC_LVT_TIMER: u32 = 0x832;

pub fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: every register that is read exists: the CPU's features are checked at the start.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nomem, nostack))
    };
    u64::from(high) << 32 | u64::from(low)
}

pub fn wrmsr(msr: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: only registers of the APIC, the timer and VMX are written, with valid values. Not
    // `nomem`: an ICR write makes earlier stores visible to the CPU that is interrupted.
    unsafe { asm!("wrmsr", in("ecx") msr, in("eax") low, in("edx") high, options(nostack)) };
}

/// The time stamp counter: Bochs counts instructions of one CPU, on all CPUs alike.
pub fn tsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter. Not `nomem`, so that it stays between the accesses around it.
    unsafe { asm!("rdtsc", out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// What was added to this CPU's time stamp counter.
pub fn tsc_adjustment() -> u64 {
    rdmsr(IA32_TSC_ADJUST)
}

pub fn out8(port: u16, value: u8) {
    // SAFETY: the ports written are those of Bochs's debugger console, its power switch, the printer and
    // the interrupt controllers, none of which touches memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) };
}

pub fn control(register: Control) -> u64 {
    let value: u64;
    // SAFETY: reads of control registers change nothing.
    unsafe {
        match register {
            Control::Cr0 => asm!("mov {}, cr0", out(reg) value, options(nomem, nostack)),
            Control::Cr3 => asm!("mov {}, cr3", out(reg) value, options(nomem, nostack)),
            Control::Cr4 => asm!("mov {}, cr4", out(reg) value, options(nomem, nostack)),
        }
    }
    value
}

/// Sets bits of CR4.
pub fn set_cr4(bits: u64) {
    let value = control(Control::Cr4) | bits;
    // SAFETY: the bits enable instruction sets and do not change the translation of addresses.
    unsafe { asm!("mov cr4, {}", in(reg) value, options(nostack)) };
}

/// This CPU's number, which is its APIC id.
pub fn id() -> u32 {
    core::arch::x86_64::__cpuid(1).ebx >> 24
}

/// Enables the APIC in x2APIC mode.
pub fn enable_apic() {
    let base = rdmsr(IA32_APIC_BASE);
    wrmsr(IA32_APIC_BASE, base | 1 << 11);
    wrmsr(IA32_APIC_BASE, base | 3 << 10);
    wrmsr(X2APIC_SPURIOUS, 0x1ff);
}

pub fn eoi() {
    wrmsr(X2APIC_EOI, 0);
}

/// Sends a fixed interrupt. The fence orders earlier stores: an x2APIC write is not serializing.
pub fn send_ipi(cpu: u32, vector: u8) {
    core::sync::atomic::fence(Ordering::SeqCst);
    wrmsr(
        X2APIC_ICR,
        u64::from(cpu) << 32 | 0x4000 | u64::from(vector),
    );
}

/// Takes interrupts that wait, and returns with interrupts off.
pub fn interrupt_window() {
    // SAFETY: handlers share only atomics and locks with the code around a window, and no lock is held here.
    unsafe { asm!("sti", "nop", "nop", "cli") };
}

/// Waits for an interrupt, takes it, and returns with interrupts off. One that arrived before the
/// call ends the wait, because STI takes effect after the HLT only.
pub fn wait_for_interrupt() {
    // SAFETY: as in `interrupt_window`.
    unsafe { asm!("sti", "hlt", "cli") };
}

/// Spins for so many cycles.
pub fn delay(cycles: u64) {
    let start = tsc();
    while tsc().wrapping_sub(start) < cycles {
        core::hint::spin_loop();
    }
}

/// Ends the emulation.
pub fn power_off() -> ! {
    for byte in b"Shutdown" {
        out8(0x8900, *byte);
    }
    loop {
        // SAFETY: nothing runs any more.
        unsafe { asm!("cli", "hlt") };
    }
}

/// A lock for data that interrupt handlers use too: interrupts are off whenever it is taken.
pub struct SpinLock<T> {
    locked: AtomicBool,
    data: UnsafeCell<T>,
}

// SAFETY: the lock gives the data to one CPU at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub const fn new(data: T) -> Self {
        let locked = AtomicBool::new(false);
        Self {
            locked,
            data: UnsafeCell::new(data),
        }
    }

    pub fn lock(&self) -> Locked<'_, T> {
        while self.locked.swap(true, Ordering::Acquire) {
            while self.locked.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        }
        Locked { lock: self }
    }
}

/// A taken lock.
pub struct Locked<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this CPU has the lock.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this CPU has the lock.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
    }
}
