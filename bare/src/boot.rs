//! Boot sector, settings, and the switch to 64 bits for all CPUs.

use core::arch::global_asm;

/// The settings: a sector of the disk image that `scripts/bare` fills in.
pub const SETTINGS: usize = 0x7e00;
/// Its length in bytes.
pub const SETTINGS_LEN: usize = 512;
/// Startup vector of the other CPUs: the trampoline's page.
pub const STARTUP_PAGE: u32 = 0x8;
/// CPUs with a stack.
pub const MAX_CPUS: usize = 8;

global_asm!(
    r#"
.section .boot,"awx"
.code16
.global boot_sector
boot_sector:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %ss
    movw $0x7c00, %sp
    movb %dl, boot_drive
    movw $__load_pieces, %cx
1:  pushw %cx
    movb $0x42, %ah
    movb boot_drive, %dl
    movw $boot_packet, %si
    int $0x13
    jc 2f
    addw $0x400, boot_packet + 6
    addl $32, boot_packet + 8
    popw %cx
    loop 1b
    ljmp $0, $0x8000
2:  hlt
    jmp 2b
boot_drive: .byte 0
.balign 4
boot_packet:
    .byte 16, 0
    .word 32
    .word 0, 0x7e0
    .quad 1
.org 510
.word 0xaa55

.section .settings,"aw"
.fill 512, 1, 0

.section .trampoline,"awx"
.code16
    cli
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl boot_gdtr
    movl $0x20, %eax
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl $0x80000031, %eax
    movl %eax, %cr0
    ljmp $8, $boot_long
.code64
boot_long:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw %ax, %fs
    movw %ax, %gs
    movl $1, %eax
    cpuid
    shrl $24, %ebx
    movl %ebx, %edi
    cmpl ${cpus}, %edi
    jae 3f
    leal 1(%rdi), %eax
    shll $16, %eax
    addl $boot_stacks, %eax
    movl %eax, %esp
    xorl %ebp, %ebp
    call kmain
3:  hlt
    jmp 3b
.balign 16
boot_gdt: .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff
boot_gdtr:
    .word 23
    .long boot_gdt
// Accessed and dirty bits are set: guests walk these tables too, and may not write them.
.balign 4096
boot_pml4:
    .quad boot_pdpt + 0x23
    .fill 511, 8, 0
boot_pdpt:
    .quad boot_pages + 0x23
    .fill 511, 8, 0
// 1 GB in pages of 2 MB, which every 64-bit processor has.
boot_pages:
.set page, 0
.rept 512
    .quad page + 0xe3
    .set page, page + 0x200000
.endr

.section .bss.stacks,"aw",@nobits
.balign 4096
boot_stacks:
    .skip 65536 * {cpus}
.text
"#,
    cpus = const MAX_CPUS,
    options(att_syntax)
);
