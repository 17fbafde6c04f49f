//! Threads that a limit of address space has room for.
//!
//! glibc reserves 64 MiB for the heap of a thread, and twice as much for a moment, to align it. Where
//! others have taken all, the next small allocation aborts the process.

use rustix::process::Resource;

/// The program, its libraries, its first heap and files.
const PROGRAM: u64 = 256 << 20;
/// A heap while it is aligned, as all threads may start at once, and a stack of 2 MiB.
const THREAD: u64 = 130 << 20;

/// The limit of this process in bytes, if there is one.
pub(crate) fn limit() -> Option<u64> {
    rustix::process::getrlimit(Resource::As).current
}

/// Bytes that so many threads need.
pub(crate) fn needed(threads: usize) -> u64 {
    PROGRAM + threads as u64 * THREAD
}

/// How many threads fit into the limit of address space of this process.
#[must_use]
pub fn room_for_threads() -> usize {
    limit().map_or(usize::MAX, room_in)
}

/// The same for a limit in bytes.
fn room_in(limit: u64) -> usize {
    usize::try_from(limit.saturating_sub(PROGRAM) / THREAD).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_threads_fit_as_their_need_allows() {
        assert_eq!((room_in(0), room_in(needed(0))), (0, 0));
        for threads in [1, 2, 400] {
            assert_eq!(room_in(needed(threads)), threads);
            assert_eq!(room_in(needed(threads) - 1), threads - 1);
        }
    }
}
