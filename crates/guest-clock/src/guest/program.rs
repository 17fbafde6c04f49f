//! The guest's program: reads TSC and kvmclock in turn, and records every step back.
//!
//! It is real-mode code, so that a vCPU needs no page tables and no state but a few registers. KVMs
//! without hardware virtualization emulate it instruction by instruction. It is assembled with this
//! crate and copied into the guest, so it uses no address of its own but those below.
//!
//! Each reading is compared with the latest that *any* vCPU made of the same clock: one shared word
//! each, replaced by compare-and-swap. A reading below it is a step back, on one vCPU, between two,
//! or over a restore.
//!
//! | address | holds |
//! |---|---|
//! | [`CODE`] | the program |
//! | [`LATEST_TSC`], [`LATEST_CLOCK`] | the latest readings of all vCPUs |
//! | [`BLOCKS`] + n·[`BLOCK_BYTES`] | what vCPU n does and found, as [`Block`] |
//! | [`EACH`] | cycles of single readings, of a [`Reader`](super::Reader) that times each |
//! | [`PAGES`] + n·[`PAGE_BYTES`] | vCPU n's kvmclock page |
//!
//! `DI` points to the block, `SI` to the page. After the block's number of rounds the program
//! writes a byte to [`DONE_PORT`], and starts over when the vCPU runs again.

/// Where the program is.
pub const CODE: u64 = 0x1000;
/// The latest TSC that any vCPU read.
pub const LATEST_TSC: u64 = 0x2000;
/// The latest kvmclock, in ns.
pub const LATEST_CLOCK: u64 = 0x2040;
/// Blocks begin here.
pub const BLOCKS: u64 = 0x3000;
/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 0x80;
/// Words of 32 bits with the cycles of single readings begin here, behind the first block.
pub const EACH: u64 = 0x4000;
/// kvmclock pages begin here.
pub const PAGES: u64 = 0x8000;
/// Bytes from one page to the next.
pub const PAGE_BYTES: u64 = 0x40;
/// All of the guest's memory.
pub const MEMORY_BYTES: usize = 0x10000;
/// The most vCPUs that it has room for.
pub const MOST_VCPUS: usize = 128;
/// Written to when the rounds are done.
pub const DONE_PORT: u16 = 0x10;
/// Reads the low half of the host's TSC, by the VMM.
pub const COUNTER_PORT: u16 = 0x14;

/// Fields of a block, as offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Block {
    /// Rounds to do: u32, set by the VMM.
    Rounds = 0,
    /// Rounds done altogether: u64.
    Done = 8,
    /// Largest step back of the TSC: u64, cycles.
    TscBack = 16,
    /// Largest step back of the kvmclock: u64, ns.
    ClockBack = 24,
    /// Last TSC of this vCPU: u64.
    LastTsc = 32,
    /// Last kvmclock of this vCPU: u64, ns.
    LastClock = 40,
    /// Rounds in which the page was not marked stable: u32.
    Unstable = 48,
}

core::arch::global_asm!(
    r#"
    .pushsection .rodata.guest_clock_program, "a"
    .balign 16
    .globl guest_clock_program_begin
    .globl guest_clock_program_end
    .code16
guest_clock_program_begin:
    # Reads a shared word into 64(%di), without tearing.
    .macro gc_latest word
    xorl %eax, %eax
    xorl %edx, %edx
    xorl %ebx, %ebx
    xorl %ecx, %ecx
    lock cmpxchg8b \word
    movl %eax, 64(%di)
    movl %edx, 68(%di)
    .endm

    # ecx:ebx is a reading made after 64(%di) was: judges it.
    .macro gc_judge word, back, last
    movl %ebx, \last(%di)
    movl %ecx, (\last+4)(%di)
    movl 64(%di), %eax
    movl 68(%di), %edx
    cmpl %edx, %ecx
    ja 2f
    jb 1f
    cmpl %eax, %ebx
    jae 2f
1:  # Back, by edx:eax; keeps the largest.
    subl %ebx, %eax
    sbbl %ecx, %edx
    cmpl (\back+4)(%di), %edx
    jb 3f
    ja 4f
    cmpl \back(%di), %eax
    jbe 3f
4:  movl %eax, \back(%di)
    movl %edx, (\back+4)(%di)
    jmp 3f
2:  # Not back: the latest now, unless another vCPU was faster.
    lock cmpxchg8b \word
3:
    .endm

    # Everything before is done before the TSC is read.
    .macro gc_rdtsc
    xorl %eax, %eax
    cpuid
    rdtsc
    .endm

10: movl (%di), %eax
    movl %eax, 4(%di)
11: gc_latest 0x2000
    gc_rdtsc
    movl %eax, %ebx
    movl %edx, %ecx
    gc_judge 0x2000, 16, 32

    gc_latest 0x2040
12: movl (%si), %eax
    testb $1, %al
    jnz 12b
    movl %eax, 72(%di)
    gc_rdtsc
    subl 8(%si), %eax
    sbbl 12(%si), %edx
    movb 28(%si), %cl
    testb %cl, %cl
    js 13f
    shldl %cl, %eax, %edx
    shll %cl, %eax
    jmp 14f
13: negb %cl
    shrdl %cl, %edx, %eax
    shrl %cl, %edx
14: movl %edx, %ebx
    mull 24(%si)
    movl %edx, %ecx
    movl %ebx, %eax
    mull 24(%si)
    addl %ecx, %eax
    adcl $0, %edx
    addl 16(%si), %eax
    adcl 20(%si), %edx
    movl %eax, %ebx
    movl %edx, %ecx
    movl (%si), %eax
    cmpl %eax, 72(%di)
    jne 12b
    testb $1, 29(%si)
    jnz 15f
    incl 48(%di)
15: gc_judge 0x2040, 24, 40

    addl $1, 8(%di)
    adcl $0, 12(%di)
    decl 4(%di)
    jnz 11b
    outb %al, $0x10
    jmp 10b
    .purgem gc_latest
    .purgem gc_judge
    .purgem gc_rdtsc
guest_clock_program_end:
    .code64
    .popsection
    "#,
    options(att_syntax)
);

// SAFETY: both are labels of the assembly above, in a read-only section of this binary, and the
// second lies behind the first. Needed: Rust has no other way to take assembled code as data.
unsafe extern "C" {
    static guest_clock_program_begin: u8;
    static guest_clock_program_end: u8;
}

/// The program's bytes.
#[must_use]
pub fn code() -> &'static [u8] {
    let begin = &raw const guest_clock_program_begin;
    let end = &raw const guest_clock_program_end;
    let length = end.addr().saturating_sub(begin.addr());
    // SAFETY: from the first label to the second there are `length` bytes of initialised,
    // read-only, never freed data of this binary. Needed: labels have no length.
    unsafe { core::slice::from_raw_parts(begin, length) }
}
