//! Memory: pages of 4 KiB and a heap, neither of which is given back.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Begin of the free memory, above the image's statics (checked at start).
const HEAP: usize = 0x100_0000;
/// Its end: 512 MB of RAM.
const END: usize = 0x2000_0000;

struct Bump {
    next: AtomicUsize,
}

#[global_allocator]
static MEMORY: Bump = Bump {
    next: AtomicUsize::new(HEAP),
};

// SAFETY: every block is handed out once, aligned, and lies within RAM that nothing else uses.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let take = |next: usize| {
            let begin = next.next_multiple_of(layout.align());
            Some(begin + layout.size()).filter(|&end| end <= END)
        };
        match self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        {
            Ok(next) => next.next_multiple_of(layout.align()) as *mut u8,
            Err(_) => core::ptr::null_mut(),
        }
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

/// Physical address of a fresh page, all zeros. The mapping is the identity.
pub fn page() -> u64 {
    let layout = Layout::from_size_align(4096, 4096).expect("a page");
    // SAFETY: the size is not 0.
    let page = unsafe { alloc::alloc::alloc_zeroed(layout) };
    assert!(!page.is_null(), "no memory left");
    page as u64
}

/// Clears the statics: Bochs starts with zeros, another loader may not.
pub fn check_statics() {
    unsafe extern "C" {
        static __bss_end: u8;
    }
    assert!(
        &raw const __bss_end as usize <= HEAP,
        "statics reach into the heap"
    );
}
