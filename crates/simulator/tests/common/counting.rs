//! The system's allocator, counting what is held: for tests and benchmarks of memory, which include
//! this file and thereby allocate by it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Of each thread by itself: what a test's harness allocates meanwhile does not count.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: each call goes to the system's allocator unchanged; counting touches no memory of it.
// Needed to tell what a simulated vCPU takes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps `alloc`'s contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: `at` came from `alloc` above with this layout, so from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What this thread has allocated and not freed, in bytes, reserves included.
pub fn held() -> usize {
    HELD.get()
}
