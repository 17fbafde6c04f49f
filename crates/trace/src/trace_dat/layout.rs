//! Numbers of the file format that the reader and the writer share (trace-cmd.dat.v6(5),
//! trace-cmd.dat.v7(5); kernel/trace/ring_buffer.c).

/// First bytes of every file.
pub(crate) const MAGIC: &[u8] = b"\x17\x08\x44tracing";

/// Options (`enum` in trace-cmd's trace-cmd-local.h). Sections of version 7 have the same numbers.
pub(crate) mod option {
    pub(crate) const DONE: u16 = 0;
    pub(crate) const DATE: u16 = 1;
    pub(crate) const CPUSTAT: u16 = 2;
    pub(crate) const BUFFER: u16 = 3;
    pub(crate) const TRACECLOCK: u16 = 4;
    pub(crate) const UNAME: u16 = 5;
    pub(crate) const OFFSET: u16 = 7;
    pub(crate) const CPUCOUNT: u16 = 8;
    pub(crate) const VERSION: u16 = 9;
    pub(crate) const TIME_SHIFT: u16 = 12;
    pub(crate) const GUEST: u16 = 13;
    pub(crate) const TSC2NSEC: u16 = 14;
    /// The first option that points to a section: the description of pages.
    pub(crate) const HEADER_INFO: u16 = 16;
    pub(crate) const FTRACE_EVENTS: u16 = 17;
    pub(crate) const EVENT_FORMATS: u16 = 18;
    pub(crate) const KALLSYMS: u16 = 19;
    pub(crate) const PRINTK: u16 = 20;
    pub(crate) const CMDLINES: u16 = 21;
    pub(crate) const BUFFER_TEXT: u16 = 22;
    /// `saved_tgids` of tracefs. Not of trace-cmd itself: gpuvis has it, and the writer of this crate.
    pub(crate) const SAVED_TGIDS: u16 = 32;
    /// The host's snapshot, JSON ("ST"). Of this project; other readers step over it.
    pub(crate) const HOST_SNAPSHOT: u16 = 0x5354;
}

/// Bits of a time delta in an event's header, `TS_SHIFT`.
pub(crate) const DELTA_BITS: u32 = 27;
/// `RB_MISSED_EVENTS`, of a page's commit: events before this page were lost.
pub(crate) const MISSED_EVENTS: u64 = 1 << 31;
/// `RB_MISSED_STORED`: their number stands behind the page's data.
pub(crate) const MISSED_STORED: u64 = 1 << 30;

/// `enum ring_buffer_type`. Smaller numbers are lengths in words of 4 bytes.
pub(crate) mod entry {
    pub(crate) const PADDING: u32 = 29;
    pub(crate) const TIME_EXTEND: u32 = 30;
    pub(crate) const TIME_STAMP: u32 = 31;
}
