//! Reading ahead of need: a hint to the processor, which changes nothing but when memory comes.
//!
//! A host of thousands of CPUs is larger than the processor's caches, and what one operation needs
//! hangs together by indexes: a miss for each. Who knows what comes next asks for it here before.

use alloc::vec::Vec;

/// Asks for `value`, or its first kilobyte, so that it is near when it is needed. Nothing happens on
/// machines for which stable Rust has no such instruction.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    let start = core::ptr::from_ref(value).cast::<i8>();
    lines(start, size_of_val(value), align_of_val(value));
}

/// Asks for a list's memory, that of which nothing is in use yet too: an empty list is about to be
/// filled.
#[inline(always)]
pub fn prefetch_room<T>(list: &Vec<T>) {
    let size = list.capacity() * size_of::<T>();
    lines(list.as_ptr().cast::<i8>(), size, align_of::<T>());
}

#[inline(always)]
fn lines(start: *const i8, size: usize, align: usize) {
    let size = size.min(MOST);
    let mut at = 0;
    while at < size {
        line(start.wrapping_add(at));
        at += LINE;
    }
    if align < LINE && size > 1 {
        // It may begin within a line and end in one more.
        line(start.wrapping_add(size - 1));
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes that are asked for at most: a processor takes few requests at a time.
const MOST: usize = 1024;

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn line(at: *const i8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: PREFETCHT0 is in every x86-64 processor, reads nothing as far as a program can tell,
    // and faults for no address. It is needed because a read instead would make the processor wait.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn line(_at: *const i8) {}

#[cfg(test)]
mod tests {
    use super::{prefetch, prefetch_room};

    /// Nothing but time can tell that it was called: whatever it is asked for is as it was.
    #[test]
    fn any_value_may_be_asked_for() {
        let values = [7u64; 1000];
        prefetch(&values);
        prefetch(&values[..0]);
        prefetch(&());
        prefetch("abc");
        prefetch(&values[3] as &dyn core::fmt::Debug);
        assert_eq!(values, [7; 1000]);
        let mut list = alloc::vec::Vec::with_capacity(100);
        prefetch_room(&list);
        list.push(7);
        prefetch_room(&list);
        prefetch_room(&alloc::vec::Vec::<u64>::new());
        assert_eq!(list, [7]);
    }
}
