//! Descriptor tables and interrupt gates of the host and of its guests.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::boot::MAX_CPUS;
use crate::console::say;
use crate::cpu;
use crate::memory;

pub const CODE: u16 = 8;
pub const DATA: u16 = 16;
pub const TASK: u16 = 24;
pub const DESCRIPTORS_LIMIT: u64 = 0x27;

global_asm!(
    r#"
.text
.balign 16
.global host_stubs
host_stubs:
.set vector, 0
.rept 256
    .balign 16
    push vector
    jmp host_common
    .set vector, vector + 1
.endr
host_common:
    push rax
    push rcx
    push rdx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push rbx
    mov rbx, rsp
    mov rdi, [rsp + 80]
    mov rsi, [rsp + 88]
    and rsp, -16
    call host_interrupt
    mov rsp, rbx
    pop rbx
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rax
    add rsp, 8
    iretq

// A guest's handler counts its vector in the guest's page, which GS points to, and ends the interrupt.
.balign 16
.global guest_stubs
guest_stubs:
.set vector, 0
.rept 256
    .balign 16
    push vector
    jmp guest_common
    .set vector, vector + 1
.endr
guest_common:
    push rax
    push rcx
    push rdx
    mov rax, [rsp + 24]
    cmp rax, 32
    jb 1f
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov gs:[2048], rax
    mov rax, [rsp + 24]
    lock inc qword ptr gs:[rax * 8]
    mov ecx, 0x80b
    xor eax, eax
    xor edx, edx
    wrmsr
    pop rdx
    pop rcx
    pop rax
    add rsp, 8
    iretq
1:  mov rbx, rax
    mov eax, 0xdead
    vmcall
2:  hlt
    jmp 2b
"#
);

unsafe extern "C" {
    static host_stubs: u8;
    static guest_stubs: u8;
}

static TABLES: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static TASKS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static HOST_GATES: AtomicU64 = AtomicU64::new(0);
static GUEST_GATES: AtomicU64 = AtomicU64::new(0);

pub fn descriptor_table(cpu: u32) -> u64 {
    TABLES[cpu as usize].load(Relaxed)
}
pub fn task_segment(cpu: u32) -> u64 {
    TASKS[cpu as usize].load(Relaxed)
}
pub fn host_gates() -> u64 {
    HOST_GATES.load(Relaxed)
}
pub fn guest_gates() -> u64 {
    GUEST_GATES.load(Relaxed)
}

/// A table of 256 interrupt gates to stubs of 16 bytes each.
fn gates(stubs: u64) -> u64 {
    let table = memory::page();
    for vector in 0..256u64 {
        let target = stubs + 16 * vector;
        let low =
            target & 0xffff | u64::from(CODE) << 16 | 0x8e00 << 32 | (target >> 16 & 0xffff) << 48;
        // SAFETY: a fresh page with room for 256 gates of 16 bytes.
        unsafe {
            let gate = (table as *mut u64).add(2 * vector as usize);
            gate.write(low);
            gate.add(1).write(target >> 32);
        }
    }
    table
}

/// Makes what the CPUs share. Guest gates lie in memory that guests may read.
pub fn make_gates(guest_page: u64) {
    HOST_GATES.store(gates(&raw const host_stubs as u64), Relaxed);
    let table = gates(&raw const guest_stubs as u64);
    // SAFETY: both are whole pages, and no guest runs yet.
    unsafe { core::ptr::copy_nonoverlapping(table as *const u8, guest_page as *mut u8, 4096) };
    GUEST_GATES.store(guest_page, Relaxed);
}

/// Loads this CPU's tables. `page` holds its descriptors and its task segment. That of CPU 0 is guest
/// memory: a processor in guest mode reads descriptors when it returns from an interrupt.
pub fn load(cpu: u32, page: u64) {
    let task = page + 0x100;
    let descriptors = [
        0,
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x67 | (task & 0xff_ffff) << 16 | 0x89 << 40 | (task >> 24) << 56,
        0,
    ];
    // SAFETY: the page is this CPU's alone.
    unsafe { (page as *mut [u64; 5]).write(descriptors) };
    TABLES[cpu as usize].store(page, Relaxed);
    TASKS[cpu as usize].store(task, Relaxed);
    load_register(page, DESCRIPTORS_LIMIT as u16, true);
    load_register(host_gates(), 0xfff, false);
    // SAFETY: the descriptor was just made, and is available.
    unsafe { asm!("ltr {:x}", in(reg) u32::from(TASK)) };
}

fn load_register(base: u64, limit: u16, descriptors: bool) {
    let mut image = [0u8; 10];
    image[..2].copy_from_slice(&limit.to_le_bytes());
    image[2..].copy_from_slice(&base.to_le_bytes());
    // SAFETY: the tables stay where they are for good, and have the descriptors that are loaded now.
    unsafe {
        if descriptors {
            asm!("lgdt [{}]", in(reg) image.as_ptr());
        } else {
            asm!("lidt [{}]", in(reg) image.as_ptr());
        }
    }
}

/// Masks the two interrupt controllers of the PC: only APICs interrupt.
pub fn mask_controllers() {
    cpu::out8(0x21, 0xff);
    cpu::out8(0xa1, 0xff);
}

/// An interrupt or exception of the host.
#[unsafe(no_mangle)]
extern "C" fn host_interrupt(vector: u64, first: u64) {
    if vector < 32 {
        say!(
            "exception {vector} in the host on CPU {}: {first:#x} on the stack",
            cpu::id()
        );
        cpu::power_off();
    }
    // The vector is below 256: there are no more stubs.
    crate::host::interrupt(cpu::id(), vector as u8);
}
