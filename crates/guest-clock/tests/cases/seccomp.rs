//! Filters of system calls, as a VMM's jail has them.

use libc::sock_filter;

fn instruction(code: u32, k: u32, [jt, jf]: [u8; 2]) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Loads a word of `struct seccomp_data`, which begins with the call's number.
pub fn word(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, [0; 2])
}

/// Skips so many instructions if the word is `value`, and others if not.
pub fn equal(value: u32, skipped: u8, otherwise: u8) -> sock_filter {
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    instruction(jump, value, [skipped, otherwise])
}

/// Ends with a verdict on the call.
pub fn end(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, [0; 2])
}

/// From now on the program judges the calls of this thread.
pub fn install(program: &mut [sock_filter]) {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: both calls change this thread only; the kernel copies the program, which lives over the calls.
    // Needed: there is no safe way to forbid oneself a call.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ) == 0
    };
    assert!(set, "{}", std::io::Error::last_os_error());
}
