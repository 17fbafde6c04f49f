//! The system calls: `bpf` (include/uapi/linux/bpf.h) and what attaches a program to a tracepoint.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Resource, Rlimit};

use crate::perf::attributes::{self, Attributes};

/// Commands.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
/// Types of programs, and `BPF_TRACE_RAW_TP`.
const TRACEPOINT: u32 = 5;
const RAW_TRACEPOINT: u32 = 17;
const TRACING: u32 = 26;
const TRACE_RAW_TP: u32 = 23;
/// Types of maps, and `BPF_F_MMAPABLE`.
const ARRAY: u32 = 2;
const ARRAY_OF_MAPS: u32 = 12;
const RINGBUF: u32 = 27;
const MMAPABLE: u32 = 1 << 10;
/// The kernel lets programs of such a licence read its structures.
const LICENSE: &core::ffi::CStr = c"Dual MIT/GPL";
/// Bytes of the verifier's report.
const LOG: usize = 64 << 10;
/// Bytes of a program's name with its zero.
const NAME: usize = 16;

/// How a program gets its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attach {
    /// Those of the tracepoint, with their types.
    Typed {
        /// The tracepoint in the kernel's type information.
        type_id: u32,
    },
    /// Those of the tracepoint, as numbers.
    Raw,
    /// The record that tracefs describes.
    Record {
        /// The tracepoint's id in tracefs.
        id: u64,
    },
}

/// `union bpf_attr` of `BPF_MAP_CREATE`.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner: u32,
}

/// The same of `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
#[derive(Default)]
struct MapUpdate {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The same of `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    kind: u32,
    count: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME],
    interface: u32,
    expected_attach: u32,
    types: u32,
    function_size: u32,
    functions: u64,
    function_count: u32,
    line_size: u32,
    lines: u64,
    line_count: u32,
    attach_type_id: u32,
}

/// The same of `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
#[derive(Default)]
struct RawTracepointOpen {
    name: u64,
    program: u32,
    padding: u32,
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads as many bytes of the attributes as they have. All addresses in them are of
    // values that outlive the call. No wrapper of this system call is among the dependencies.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    match i32::try_from(result) {
        Ok(result @ 0..) => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

fn opened<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the command returned a new descriptor, which no other value owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>().addr() as u64
}

/// The number of a descriptor in attributes.
fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// Kernels before 5.11 count maps as locked memory.
pub(super) fn allow_locked_memory() {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    // Without it those kernels refuse the maps, and say so.
    let _ = rustix::process::setrlimit(Resource::Memlock, unlimited);
}

/// A map of one value of `len` bytes, zeros at first, which this process can map.
pub(super) fn shared_value(len: usize) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        kind: ARRAY,
        key_size: 4,
        value_size: len as u32,
        max_entries: 1,
        flags: MMAPABLE,
        ..MapCreate::default()
    };
    opened(MAP_CREATE, &attributes)
}

/// A ring of `len` bytes, a power of two of pages.
pub(super) fn ring(len: usize) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        kind: RINGBUF,
        max_entries: len as u32,
        ..MapCreate::default()
    };
    opened(MAP_CREATE, &attributes)
}

/// A map of rings like `example`, by number.
pub(super) fn rings(count: usize, example: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        kind: ARRAY_OF_MAPS,
        key_size: 4,
        value_size: 4,
        max_entries: count as u32,
        inner: number(example),
        ..MapCreate::default()
    };
    opened(MAP_CREATE, &attributes)
}

/// Puts a ring into a map of rings.
pub(super) fn set_ring(map: BorrowedFd<'_>, key: u32, ring: BorrowedFd<'_>) -> io::Result<()> {
    let ring = number(ring);
    let attributes = MapUpdate {
        map: number(map),
        key: address(&key),
        value: address(&ring),
        ..MapUpdate::default()
    };
    bpf(MAP_UPDATE, &attributes).map(drop)
}

/// Loads a program.
///
/// # Errors
/// The kernel's error, and the end of the verifier's report where it refuses the code.
pub(super) fn load(
    name: &str,
    attach: Attach,
    code: &[u64],
) -> Result<OwnedFd, (io::Error, String)> {
    let mut attributes = ProgLoad {
        kind: match attach {
            Attach::Typed { .. } => TRACING,
            Attach::Raw => RAW_TRACEPOINT,
            Attach::Record { .. } => TRACEPOINT,
        },
        count: code.len() as u32,
        code: address(code),
        license: address(LICENSE.to_bytes_with_nul()),
        ..ProgLoad::default()
    };
    let shown = name.bytes().take(NAME - 1);
    attributes
        .name
        .iter_mut()
        .zip(shown)
        .for_each(|(place, byte)| *place = byte);
    if let Attach::Typed { type_id } = attach {
        attributes.expected_attach = TRACE_RAW_TP;
        attributes.attach_type_id = type_id;
    }
    let error = match opened(PROG_LOAD, &attributes) {
        Ok(program) => return Ok(program),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            return Err((error, String::new()));
        }
        Err(error) => error,
    };
    // Once more for the report, which costs time.
    let mut log = vec![0_u8; LOG];
    attributes.log_level = 1;
    attributes.log_size = LOG as u32;
    attributes.log = log.as_mut_ptr().addr() as u64;
    match opened(PROG_LOAD, &attributes) {
        Ok(program) => Ok(program),
        Err(_) => Err((error, last_line(&log))),
    }
}

/// The last line of a report that says something: the verifier's counts come behind it.
fn last_line(log: &[u8]) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let mut lines = text.lines().filter(|line| !line.starts_with("processed "));
    lines.next_back().unwrap_or_default().trim().to_owned()
}

/// What keeps a program attached until it is closed.
pub(super) fn attach(name: &str, attach: Attach, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match attach {
        Attach::Typed { .. } => open_raw(0, program),
        Attach::Raw => {
            let name = CString::new(name)?;
            open_raw(address(name.to_bytes_with_nul()), program)
        }
        Attach::Record { id } => {
            // Of any CPU: all run the programs of an event.
            let mut opened =
                (0..=u16::MAX).map(|cpu| attributes::open(&Attributes::tracepoint(id), cpu));
            let offline = |opened: &io::Result<OwnedFd>| matches!(opened, Err(error) if error.raw_os_error() == Some(libc::ENODEV));
            let event = opened.find(|opened| !offline(opened));
            let event = event.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))?;
            attributes::set_program(event.as_fd(), program)?;
            attributes::enable(event.as_fd())?;
            Ok(event)
        }
    }
}

fn open_raw(name: u64, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attributes = RawTracepointOpen {
        name,
        program: number(program),
        padding: 0,
    };
    opened(RAW_TRACEPOINT_OPEN, &attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_laid_out_as_the_kernel_reads_them() {
        assert_eq!(size_of::<MapCreate>(), 24);
        assert_eq!(size_of::<MapUpdate>(), 32);
        assert_eq!(size_of::<RawTracepointOpen>(), 16);
        assert_eq!(std::mem::offset_of!(ProgLoad, name), 48);
        assert_eq!(std::mem::offset_of!(ProgLoad, expected_attach), 68);
        assert_eq!(std::mem::offset_of!(ProgLoad, attach_type_id), 108);
        assert_eq!(size_of::<ProgLoad>(), 112);
    }

    #[test]
    fn the_report_ends_with_its_reason() {
        let log = b"0: (85) call 1\nR0 invalid mem access 'scalar'\nprocessed 3 insns\n\0\0";
        assert_eq!(last_line(log), "R0 invalid mem access 'scalar'");
        assert_eq!(last_line(&[0; 4]), "");
    }
}
