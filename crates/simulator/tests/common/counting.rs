//! The system's allocator, counting what is held: for tests and benchmarks of memory, which include
//! this file and thereby allocate by it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: each call goes to the system's allocator unchanged; counting touches no memory of it.
// Needed to tell what a simulated vCPU takes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `at` came from `alloc` above with this layout, so from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What is allocated and not freed, in bytes, reserves included.
pub fn held() -> usize {
    HELD.load(Relaxed)
}
