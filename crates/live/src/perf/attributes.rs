//! `struct perf_event_attr` and the system call that takes it (include/uapi/linux/perf_event.h).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of the fields up to `__reserved_2`, PERF_ATTR_SIZE_VER5: Linux 4.1 and later.
pub(crate) const SIZE: usize = 112;

/// PERF_TYPE_SOFTWARE and PERF_COUNT_SW_DUMMY.
const SOFTWARE: u32 = 1;
const DUMMY: u64 = 9;
/// PERF_TYPE_TRACEPOINT.
const TRACEPOINT: u32 = 2;
/// PERF_SAMPLE_TID, TIME, CPU, RAW and IDENTIFIER.
const SAMPLE: u64 = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 10 | 1 << 16;
/// PERF_FORMAT_ID, as `perf record` asks for.
const READ_ID: u64 = 1 << 2;
/// PERF_FLAG_FD_CLOEXEC.
const CLOEXEC: libc::c_ulong = 8;
/// `_IO('$', 0)` and `_IO('$', 5)`.
const ENABLE: libc::c_ulong = 0x2400;
const SET_OUTPUT: libc::c_ulong = 0x2405;
/// `_IOW('$', 8, __u32)`.
const SET_BPF: libc::c_ulong = 0x4004_2408;
/// `_IOR('$', 7, __u64 *)`.
const ID: libc::c_ulong = 0x8008_2407;

/// Bits of the flags.
mod flag {
    pub(super) const DISABLED: u64 = 1;
    /// Records of names and processes of threads.
    pub(super) const COMM: u64 = 1 << 9;
    pub(super) const TASK: u64 = 1 << 13;
    pub(super) const WATERMARK: u64 = 1 << 14;
    /// Time, thread and CPU behind records that are no samples.
    pub(super) const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub(super) const COMM_EXEC: u64 = 1 << 24;
    pub(super) const USE_CLOCKID: u64 = 1 << 25;
}

/// The attributes of an event.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == SIZE);

impl Attributes {
    /// Each event of a tracepoint, disabled at first.
    pub(crate) fn tracepoint(id: u64) -> Self {
        Self {
            kind: TRACEPOINT,
            size: SIZE as u32,
            config: id,
            sample_period: 1,
            sample_type: SAMPLE,
            read_format: READ_ID,
            flags: flag::DISABLED | flag::SAMPLE_ID_ALL | flag::WATERMARK,
            wakeup_watermark: 1 << 16,
            ..Self::default()
        }
    }

    /// An event that never happens, disabled: its page alone is wanted.
    pub(crate) fn dummy() -> Self {
        Self {
            kind: SOFTWARE,
            size: SIZE as u32,
            config: DUMMY,
            flags: flag::DISABLED,
            ..Self::default()
        }
    }

    /// With the time of a clock of `clock_gettime`.
    pub(crate) const fn clock(mut self, id: i32) -> Self {
        self.clockid = id;
        self.flags |= flag::USE_CLOCKID;
        self
    }

    /// With names and processes of threads: one event of each CPU has these.
    pub(crate) const fn threads(mut self) -> Self {
        self.flags |= flag::COMM | flag::TASK | flag::COMM_EXEC;
        self
    }

    /// The fields, in the byte order of the host.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SIZE);
        bytes.extend_from_slice(&self.kind.to_ne_bytes());
        bytes.extend_from_slice(&self.size.to_ne_bytes());
        for word in [
            self.config,
            self.sample_period,
            self.sample_type,
            self.read_format,
            self.flags,
        ] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&self.wakeup_watermark.to_ne_bytes());
        // All fields up to the clock are 0.
        bytes.resize(SIZE - 20, 0);
        bytes.extend_from_slice(&self.clockid.to_ne_bytes());
        bytes.resize(SIZE, 0);
        bytes
    }
}

/// Opens an event of all tasks on a CPU.
pub(crate) fn open(attributes: &Attributes, cpu: u16) -> io::Result<OwnedFd> {
    let (any_process, no_group) = (-1, -1);
    // SAFETY: the kernel reads `size` bytes of the attributes, which live until the call returns. No wrapper
    // of this system call is among the dependencies.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attributes),
            any_process,
            libc::c_int::from(cpu),
            no_group,
            CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor, which no other value owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The number of the event in its samples.
pub(crate) fn id(event: BorrowedFd<'_>) -> io::Result<u64> {
    let mut id = 0_u64;
    control(event, ID, (&raw mut id) as libc::c_ulong)?;
    Ok(id)
}

/// Lets an event write into the ring of another one of its CPU.
pub(crate) fn redirect(event: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    control(event, SET_OUTPUT, target.as_raw_fd() as libc::c_ulong)
}

/// Runs a BPF program at each event.
pub(crate) fn set_program(event: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    control(event, SET_BPF, program.as_raw_fd() as libc::c_ulong)
}

/// Switches an event on.
pub(crate) fn enable(event: BorrowedFd<'_>) -> io::Result<()> {
    control(event, ENABLE, 0)
}

fn control(
    event: BorrowedFd<'_>,
    request: libc::c_ulong,
    argument: libc::c_ulong,
) -> io::Result<()> {
    // SAFETY: of the requests only `ID` takes a pointer, and its number outlives the call. rustix has no
    // wrappers of these.
    match unsafe { libc::ioctl(event.as_raw_fd(), request as libc::Ioctl, argument) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_readers_look() {
        let bytes = Attributes::tracepoint(372).clock(1).bytes();
        assert_eq!(bytes.len(), SIZE);
        let word = |offset: usize| {
            let part = bytes[offset..offset + 8].try_into().expect("eight bytes");
            u64::from_ne_bytes(part)
        };
        assert_eq!((word(8), word(16), word(24)), (372, 1, SAMPLE));
        let clock = bytes[92..96].try_into().expect("four bytes");
        assert_eq!(i32::from_ne_bytes(clock), 1);
    }

    #[test]
    fn an_event_that_is_not_there_is_refused() {
        // Ids of tracepoints have 16 bits.
        assert!(open(&Attributes::tracepoint(1 << 40), 0).is_err());
    }
}
