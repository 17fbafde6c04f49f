//! Guest programs that do nothing but read a counter, to time it.
//!
//! As in [`program`](super::program): real mode, `DI` points to the block with the number of
//! rounds, and the end is a byte to the port.

/// What a guest reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reader {
    /// Nothing: what the loop itself costs.
    Nothing,
    /// `RDTSC`.
    Rdtsc,
    /// `RDMSR` of `IA32_TIME_STAMP_COUNTER`, which a hypervisor may trap.
    Rdmsr,
    /// `IN` from [`COUNTER_PORT`](super::program::COUNTER_PORT), which the VMM answers.
    Port,
    /// `RDTSC`, each timed by the TSC.
    EachRdtsc,
    /// `RDMSR` of `IA32_TIME_STAMP_COUNTER`, each timed by the TSC.
    EachRdmsr,
}

core::arch::global_asm!(
    r#"
    .pushsection .rodata.guest_clock_readers, "a"
    .balign 16
    .globl guest_clock_readers_begin
    .globl guest_clock_readers_rdtsc
    .globl guest_clock_readers_rdmsr
    .globl guest_clock_readers_port
    .globl guest_clock_readers_each_rdtsc
    .globl guest_clock_readers_each_rdmsr
    .globl guest_clock_readers_end
    .code16
guest_clock_readers_begin:
10: movl (%di), %ebx
11: movl %ebx, %eax
    decl %ebx
    jnz 11b
    outb %al, $0x10
    jmp 10b
guest_clock_readers_rdtsc:
20: movl (%di), %ebx
21: rdtsc
    decl %ebx
    jnz 21b
    outb %al, $0x10
    jmp 20b
guest_clock_readers_rdmsr:
30: movl (%di), %ebx
    movl $0x10, %ecx
31: rdmsr
    decl %ebx
    jnz 31b
    outb %al, $0x10
    jmp 30b
guest_clock_readers_port:
40: movl (%di), %ebx
41: inl $0x14, %eax
    decl %ebx
    jnz 41b
    outb %al, $0x10
    jmp 40b
    # Times each reading, and keeps the cycles as words of 32 bits.
    .macro gc_each reading:vararg
50: movl (%di), %ebp
    movw $0x4000, %bx
51: rdtsc
    movl %eax, %esi
    movl $0x10, %ecx
    \reading
    rdtsc
    subl %esi, %eax
    movl %eax, (%bx)
    addw $4, %bx
    decl %ebp
    jnz 51b
    outb %al, $0x10
    jmp 50b
    .endm
guest_clock_readers_each_rdtsc:
    gc_each rdtsc
guest_clock_readers_each_rdmsr:
    gc_each rdmsr
    .purgem gc_each
guest_clock_readers_end:
    .code64
    .popsection
    "#,
    options(att_syntax)
);

// SAFETY: labels of the assembly above, in a read-only section of this binary, in this order.
// Needed: Rust has no other way to take assembled code as data.
unsafe extern "C" {
    static guest_clock_readers_begin: u8;
    static guest_clock_readers_rdtsc: u8;
    static guest_clock_readers_rdmsr: u8;
    static guest_clock_readers_port: u8;
    static guest_clock_readers_each_rdtsc: u8;
    static guest_clock_readers_each_rdmsr: u8;
    static guest_clock_readers_end: u8;
}

impl Reader {
    /// Its program.
    #[must_use]
    pub fn code(self) -> &'static [u8] {
        let begin = &raw const guest_clock_readers_begin;
        let rdtsc = &raw const guest_clock_readers_rdtsc;
        let rdmsr = &raw const guest_clock_readers_rdmsr;
        let port = &raw const guest_clock_readers_port;
        let each_rdtsc = &raw const guest_clock_readers_each_rdtsc;
        let each_rdmsr = &raw const guest_clock_readers_each_rdmsr;
        let end = &raw const guest_clock_readers_end;
        let (start, end) = match self {
            Self::Nothing => (begin, rdtsc),
            Self::Rdtsc => (rdtsc, rdmsr),
            Self::Rdmsr => (rdmsr, port),
            Self::Port => (port, each_rdtsc),
            Self::EachRdtsc => (each_rdtsc, each_rdmsr),
            Self::EachRdmsr => (each_rdmsr, end),
        };
        let length = end.addr().saturating_sub(start.addr());
        // SAFETY: from label to label there are `length` bytes of initialised, read-only, never
        // freed data of this binary. Needed: labels have no length.
        unsafe { core::slice::from_raw_parts(start, length) }
    }
}
