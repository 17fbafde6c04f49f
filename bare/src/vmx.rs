//! VMX on and off, the VMCS, and the world switch.

use core::arch::{asm, global_asm};

use stealtime_hypervisor::vmx::{Controls, POSTING};

use crate::console::say;
use crate::cpu::{self, Control, rdmsr, wrmsr};
use crate::interrupts::{self, CODE, DATA, TASK};
use crate::memory;

/// General registers of a guest: RAX, RBX, RCX, RDX, RSI, RDI, RBP, R8 to R15.
pub type Registers = [u64; 15];

global_asm!(
    r#"
.text
.global vm_enter
vm_enter:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push rdi
    mov eax, 0x6c14
    vmwrite rax, rsp
    lea rdx, [rip + vm_exited]
    mov eax, 0x6c16
    vmwrite rax, rdx
    test rsi, rsi
    mov rax, [rdi]
    mov rbx, [rdi + 8]
    mov rcx, [rdi + 16]
    mov rdx, [rdi + 24]
    mov rsi, [rdi + 32]
    mov rbp, [rdi + 48]
    mov r8, [rdi + 56]
    mov r9, [rdi + 64]
    mov r10, [rdi + 72]
    mov r11, [rdi + 80]
    mov r12, [rdi + 88]
    mov r13, [rdi + 96]
    mov r14, [rdi + 104]
    mov r15, [rdi + 112]
    mov rdi, [rdi + 40]
    jnz 1f
    vmlaunch
    jmp 2f
1:  vmresume
2:  pop rdi
    mov eax, 1
    jmp 3f
vm_exited:
    xchg rdi, [rsp]
    mov [rdi], rax
    mov [rdi + 8], rbx
    mov [rdi + 16], rcx
    mov [rdi + 24], rdx
    mov [rdi + 32], rsi
    mov [rdi + 48], rbp
    mov [rdi + 56], r8
    mov [rdi + 64], r9
    mov [rdi + 72], r10
    mov [rdi + 80], r11
    mov [rdi + 88], r12
    mov [rdi + 96], r13
    mov [rdi + 104], r14
    mov [rdi + 112], r15
    pop rax
    mov [rdi + 40], rax
    xor eax, eax
3:  pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
"#
);

unsafe extern "C" {
    fn vm_enter(registers: *mut Registers, launched: u64) -> u64;
}

pub const EXIT_REASON: u32 = 0x4402;
pub const EXIT_INTERRUPTION: u32 = 0x4404;
pub const INSTRUCTION_ERROR: u32 = 0x4400;
pub const EXIT_QUALIFICATION: u32 = 0x6400;
pub const GUEST_RIP: u32 = 0x681e;
pub const GUEST_RSP: u32 = 0x681c;
pub const GUEST_RFLAGS: u32 = 0x6820;
pub const GUEST_CR3: u32 = 0x6802;
pub const GUEST_ACTIVITY: u32 = 0x4826;
pub const GUEST_INTERRUPTIBILITY: u32 = 0x4824;
pub const GUEST_PHYSICAL: u32 = 0x2400;
pub const EXIT_INSTRUCTION_LEN: u32 = 0x440c;

const IA32_VMX_BASIC: u32 = 0x480;
const TRUE_PIN_BASED: u32 = 0x48d;
const TRUE_PRIMARY: u32 = 0x48e;
const SECONDARY: u32 = 0x48b;
const TRUE_EXIT: u32 = 0x48f;
const TRUE_ENTRY: u32 = 0x490;
const EPT_VPID: u32 = 0x48c;
const MISC: u32 = 0x485;

/// Secondary control: EPT.
const EPT: u32 = 1 << 1;
/// Primary controls: unconditional I/O exiting, MSR bitmaps.
const PRIMARY: u32 = 1 << 24 | 1 << 28;
/// Primary control: HLT exiting.
const HLT_EXITING: u32 = 1 << 7;
/// Exit controls: 64-bit host, save and load EFER.
const EXIT: u32 = 1 << 9 | 1 << 20 | 1 << 21;
/// Entry controls: IA-32e guest, load EFER.
const ENTRY: u32 = 1 << 9 | 1 << 15;

/// Bits by number, with their names.
type Bits = &'static [(u32, &'static str)];

/// Bits that this hypervisor needs, by register and its name.
const NEEDED: [(u32, &str, Bits); 5] = [
    (
        TRUE_PIN_BASED,
        "pin-based controls",
        &[
            (0, "external-interrupt exiting"),
            (6, "preemption timer"),
            (7, "posted interrupts"),
        ],
    ),
    (
        TRUE_PRIMARY,
        "primary controls",
        &[
            (3, "TSC offsetting"),
            (7, "HLT exiting"),
            (21, "TPR shadow"),
            (24, "unconditional I/O exiting"),
            (28, "MSR bitmaps"),
            (31, "secondary controls"),
        ],
    ),
    (
        SECONDARY,
        "secondary controls",
        &[
            (1, "EPT"),
            (4, "virtualize x2APIC mode"),
            (8, "APIC-register virtualization"),
            (9, "virtual-interrupt delivery"),
            (10, "PAUSE-loop exiting"),
            (25, "TSC scaling"),
        ],
    ),
    (
        TRUE_EXIT,
        "exit controls",
        &[
            (9, "64-bit host"),
            (15, "acknowledge interrupt"),
            (21, "load EFER"),
        ],
    ),
    (
        TRUE_ENTRY,
        "entry controls",
        &[(9, "IA-32e guest"), (15, "load EFER")],
    ),
];

/// Names each feature that this CPU lacks. Whether it has all.
pub fn check_features() -> bool {
    let leaf = core::arch::x86_64::__cpuid(1).ecx;
    let deadline = leaf & 1 << 24 != 0;
    let mut missing = 0;
    for (present, name) in [
        (leaf & 1 << 5 != 0, "VMX (CPUID.1:ECX.5)"),
        (leaf & 1 << 21 != 0, "x2APIC (CPUID.1:ECX.21)"),
        (deadline, "TSC-deadline timer (CPUID.1:ECX.24)"),
    ] {
        if !present {
            say!("missing: {name}");
            missing += 1;
        }
    }
    // The capability registers exist with VMX alone.
    if leaf & 1 << 5 == 0 {
        return false;
    }
    if rdmsr(IA32_VMX_BASIC) & 1 << 55 == 0 {
        say!("missing: true VMX controls (IA32_VMX_BASIC.55)");
        return false;
    }
    for (msr, register, bits) in NEEDED {
        // This register exists if the primary controls may activate the secondary ones.
        if msr == SECONDARY && rdmsr(TRUE_PRIMARY) >> 63 == 0 {
            continue;
        }
        let allowed = (rdmsr(msr) >> 32) as u32;
        for (bit, name) in bits {
            if allowed & 1 << bit == 0 {
                say!(
                    "missing: {name} ({register}, MSR {msr:#x}, bit {})",
                    bit + 32
                );
                missing += 1;
            }
        }
    }
    if missing == 0 && rdmsr(EPT_VPID) & (1 << 14 | 1 << 16) != 1 << 14 | 1 << 16 {
        say!("missing: write-back EPT with pages of 2 MB (MSR {EPT_VPID:#x}, bits 14 and 16)");
        missing += 1;
    }
    missing == 0
}

/// The rate of the preemption timer: one count each 2^shift TSC cycles.
pub fn preemption_timer_shift() -> u32 {
    rdmsr(MISC) as u32 & 31
}

/// Enters VMX operation on this CPU.
pub fn on() {
    let locked = rdmsr(cpu::IA32_FEATURE_CONTROL);
    if locked & 1 == 0 {
        wrmsr(cpu::IA32_FEATURE_CONTROL, locked | 5);
    }
    assert!(
        rdmsr(cpu::IA32_FEATURE_CONTROL) & 4 != 0,
        "the BIOS has switched VMX off"
    );
    cpu::set_cr4(1 << 13);
    let region = revised_page();
    let failed: u8;
    // SAFETY: the region is a fresh page with the revision, used for nothing else.
    unsafe { asm!("vmxon [{}]", "setbe {}", in(reg) &region, out(reg_byte) failed) };
    assert!(failed == 0, "VMXON failed");
}

/// A fresh page with the VMCS revision.
fn revised_page() -> u64 {
    let page = memory::page();
    // SAFETY: a fresh page.
    unsafe { (page as *mut u32).write(rdmsr(IA32_VMX_BASIC) as u32) };
    page
}

pub fn write(field: u32, value: u64) {
    let failed: u8;
    // SAFETY: a VMCS is current, and only its fields change. The processor checks them at VM entry.
    unsafe {
        asm!("vmwrite {:r}, {}", "setbe {}", in(reg) u64::from(field), in(reg) value, out(reg_byte) failed);
    }
    assert!(failed == 0, "VMWRITE of field {field:#x} failed");
}

pub fn read(field: u32) -> u64 {
    let value: u64;
    // SAFETY: a VMCS is current; reads change nothing.
    unsafe { asm!("vmread {}, {:r}", out(reg) value, in(reg) u64::from(field)) };
    value
}

/// Makes a VMCS current on this CPU.
pub fn load(vmcs: u64) {
    // SAFETY: the page is a VMCS, and current on no other CPU: its vCPU runs here.
    unsafe { asm!("vmptrld [{}]", in(reg) &vmcs) };
}

/// Takes a VMCS off this CPU. Its next entry is a launch.
pub fn clear(vmcs: u64) {
    // SAFETY: as for `load`.
    unsafe { asm!("vmclear [{}]", in(reg) &vmcs) };
}

/// Runs the guest of the current VMCS to its next exit.
pub fn enter(registers: &mut Registers, launched: bool) {
    // SAFETY: host state and guest state of the VMCS were written, and guest memory is bounded by EPT.
    let failed = unsafe { vm_enter(registers, u64::from(launched)) };
    assert!(
        failed == 0,
        "VM entry failed: VM-instruction error {}",
        read(INSTRUCTION_ERROR)
    );
}

/// What differs between the guests.
pub struct GuestState {
    pub vapic: u64,
    pub descriptor: u64,
    pub msr_bitmap: u64,
    pub ept: u64,
    pub notification: u8,
    pub rip: u64,
    pub rsp: u64,
    pub argument_page: u64,
    /// Exits that are optional.
    pub hlt_exiting: bool,
    pub posting: bool,
    pub more: Controls,
    pub ple: Option<(u32, u32)>,
    /// Ratio and offset of the guest's TSC, if it is not the host's.
    pub tsc: Option<(u64, u64)>,
}

fn controls(msr: u32, wanted: u32) -> u64 {
    let capability = rdmsr(msr);
    let (required, allowed) = (capability as u32, (capability >> 32) as u32);
    u64::from((wanted | required) & allowed)
}

/// Makes a VMCS with its guest and controls, and leaves it current on no CPU.
pub fn create(guest: &GuestState) -> u64 {
    let vmcs = revised_page();
    clear(vmcs);
    load(vmcs);
    write_controls(guest);
    write_guest(guest);
    clear(vmcs);
    vmcs
}

fn write_controls(guest: &GuestState) {
    use stealtime_hypervisor::vmx::field;
    let mut wanted = POSTING.and(guest.more);
    if !guest.posting {
        // Virtual-interrupt delivery stays; only notifications are no longer processed.
        wanted.pin_based &= !(1 << 7);
    }
    let hlt = if guest.hlt_exiting { HLT_EXITING } else { 0 };
    write(0x4000, controls(TRUE_PIN_BASED, wanted.pin_based));
    write(
        0x4002,
        controls(TRUE_PRIMARY, wanted.primary | PRIMARY | hlt),
    );
    write(0x401e, controls(SECONDARY, wanted.secondary | EPT));
    write(0x400c, controls(TRUE_EXIT, wanted.exit | EXIT));
    write(0x4012, controls(TRUE_ENTRY, ENTRY));
    if guest.posting {
        write(
            field::POSTED_INTERRUPT_VECTOR,
            u64::from(guest.notification),
        );
        write(field::POSTED_INTERRUPT_DESCRIPTOR, guest.descriptor);
    }
    write(field::VIRTUAL_APIC_PAGE, guest.vapic);
    write(0x2004, guest.msr_bitmap);
    write(0x201a, guest.ept | 3 << 3 | 6);
    for bitmap in field::EOI_EXIT_BITMAP {
        write(bitmap, 0);
    }
    if let Some((gap, window)) = guest.ple {
        write(field::PLE_GAP, u64::from(gap));
        write(field::PLE_WINDOW, u64::from(window));
    }
    if let Some((ratio, offset)) = guest.tsc {
        write(field::TSC_MULTIPLIER, ratio);
        write(field::TSC_OFFSET, offset);
    }
    // Exception bitmap, page-fault masks, CR3 targets, MSR areas, event, TPR threshold: none. CR masks: none.
    for field in [
        0x4004, 0x4006, 0x4008, 0x400a, 0x400e, 0x4010, 0x4014, 0x4016, 0x401c, 0x6000, 0x6002,
    ] {
        write(field, 0);
    }
    write(0x2800, u64::MAX);
}

fn write_guest(guest: &GuestState) {
    write(stealtime_hypervisor::vmx::field::GUEST_INTERRUPT_STATUS, 0);
    write(0x2806, rdmsr(cpu::IA32_EFER));
    write(0x6800, cpu::control(Control::Cr0));
    write(0x6802, cpu::control(Control::Cr3));
    write(0x6804, cpu::control(Control::Cr4));
    write(0x6004, cpu::control(Control::Cr0));
    write(0x6006, cpu::control(Control::Cr4));
    // ES, CS, SS, DS, FS, GS: selector, limit, access rights, base.
    let segments = [DATA, CODE, DATA, DATA, DATA, DATA];
    for (index, selector) in (0u32..).zip(segments) {
        let rights = if selector == CODE { 0xa09b } else { 0xc093 };
        write(0x800 + 2 * index, u64::from(selector));
        write(0x4800 + 2 * index, 0xffff_ffff);
        write(0x4814 + 2 * index, rights);
        write(0x6806 + 2 * index, 0);
    }
    write(0x6810, guest.argument_page);
    // LDTR: unusable. TR: the task segment of CPU 0, which the guest never leaves.
    write(0x80c, 0);
    write(0x480c, 0);
    write(0x4820, 0x10000);
    write(0x6812, 0);
    write(0x80e, u64::from(TASK));
    write(0x480e, 0x67);
    write(0x4822, 0x8b);
    write(0x6814, interrupts::task_segment(0));
    write(0x6816, interrupts::descriptor_table(0));
    write(0x4810, interrupts::DESCRIPTORS_LIMIT);
    write(0x6818, interrupts::guest_gates());
    write(0x4812, 0xfff);
    for zero in [
        0x482a,
        0x6824,
        0x6826,
        GUEST_INTERRUPTIBILITY,
        GUEST_ACTIVITY,
        0x6822,
        0x2802,
    ] {
        write(zero, 0);
    }
    write(0x681a, 0x400);
    write(GUEST_RSP, guest.rsp);
    write(GUEST_RIP, guest.rip);
    write(GUEST_RFLAGS, 2);
}

/// Host state for this CPU, in the current VMCS.
pub fn write_host(cpu: u32) {
    write(0x2c02, rdmsr(cpu::IA32_EFER));
    write(0x6c00, cpu::control(Control::Cr0));
    write(0x6c02, cpu::control(Control::Cr3));
    write(0x6c04, cpu::control(Control::Cr4));
    for (index, selector) in (0u32..).zip([DATA, CODE, DATA, DATA, DATA, DATA, TASK]) {
        write(0xc00 + 2 * index, u64::from(selector));
    }
    write(0x6c06, 0);
    write(0x6c08, 0);
    write(0x6c0a, interrupts::task_segment(cpu));
    write(0x6c0c, interrupts::descriptor_table(cpu));
    write(0x6c0e, interrupts::host_gates());
    write(0x4c00, 0);
    write(0x6c10, 0);
    write(0x6c12, 0);
}

/// The MSR bitmap: all MSRs exit on writes, but for TPR, EOI and self-IPI, which the processor
/// virtualizes. Reads do not exit.
pub fn msr_bitmap() -> u64 {
    let bitmap = memory::page();
    // SAFETY: a fresh page; writes of low MSRs begin at byte 2048, those of high MSRs at 3072.
    let bytes = unsafe { core::slice::from_raw_parts_mut(bitmap as *mut u8, 4096) };
    bytes[2048..].fill(0xff);
    for msr in [0x808, 0x80b, 0x83f] {
        bytes[2048 + msr / 8] &= !(1 << (msr % 8));
    }
    bitmap
}

/// EPT: the image below 2 MB may be read and executed, guest memory below 4 MB may be written too, and
/// there is nothing else.
pub fn ept() -> u64 {
    let (root, directories, pages) = (memory::page(), memory::page(), memory::page());
    // Bits 2:0 permit reads, writes and execution; 5:3 are the memory type, write-back; 7 is a large page.
    // SAFETY: fresh pages.
    unsafe {
        (root as *mut u64).write(directories | 7);
        (directories as *mut u64).write(pages | 7);
        (pages as *mut u64).write(0x80 | 6 << 3 | 5);
        (pages as *mut u64)
            .add(1)
            .write(0x20_0000 | 0x80 | 6 << 3 | 7);
    }
    root
}
