//! Large memory in huge pages: what a host of thousands of vCPUs needs for an event lies all over its
//! memory, and in pages of 4 KiB the processor's table of pages has no room for it.

use core::ops::Range;

/// Bytes of a huge page on x86-64, and on arm64 with pages of 4 KiB. Elsewhere the kernel finds none
/// to make in what it is asked for, or makes larger ones.
const HUGE_PAGE: usize = 2 << 20;

/// Memory that is to be in huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HugePages {
    /// Of each page that something of it lies in, its number; in any order, some more than once.
    pages: Vec<usize>,
}

impl HugePages {
    /// Adds the memory of `items`, and with it what lies near: small blocks that are allocated one
    /// after the other need not be added one by one.
    pub(crate) fn add<T>(&mut self, items: &[T]) {
        self.add_value(items);
    }

    /// The same of one value.
    pub(crate) fn add_value<T: ?Sized>(&mut self, value: &T) {
        let start: *const u8 = core::ptr::from_ref(value).cast();
        self.add_range(start..start.wrapping_add(size_of_val(value)));
    }

    /// Adds a list's memory, that of which nothing is in use yet too.
    pub(crate) fn add_room<T>(&mut self, list: &Vec<T>) {
        let start: *const u8 = list.as_ptr().cast();
        self.add_range(start..start.wrapping_add(list.capacity() * size_of::<T>()));
    }

    /// Adds memory by where it begins and ends.
    pub(crate) fn add_range(&mut self, range: Range<*const u8>) {
        let (start, end) = (range.start.addr(), range.end.addr());
        if start < end {
            self.pages.extend(start / HUGE_PAGE..=(end - 1) / HUGE_PAGE);
        }
    }

    /// The addresses of the pages, each once.
    fn addresses(mut self) -> Vec<usize> {
        self.pages.sort_unstable();
        self.pages.dedup();
        self.pages.iter().map(|page| page * HUGE_PAGE).collect()
    }

    /// Asks the kernel to make them now. Each by itself: the first and the last of a mapping may be
    /// partly outside it and are refused, and a kernel that has no memory in one piece for one may have
    /// it for the next. What it will not or cannot do it leaves as it is.
    pub(crate) fn ask(self) {
        self.addresses().into_iter().for_each(collapse);
    }
}

/// `madvise(MADV_COLLAPSE)`, since Linux 6.1 (`include/uapi/asm-generic/mman-common.h`; not every C
/// library's headers have it).
#[cfg(all(target_os = "linux", not(miri)))]
fn collapse(address: usize) {
    const MADV_COLLAPSE: libc::c_int = 25;
    let start = core::ptr::without_provenance_mut(address);
    // SAFETY: the advice changes where memory is, never what is in it or whether it is mapped, be it
    // this process's own or that of its libraries; what is not mapped is an error. It is needed
    // because allocators do not ask for it.
    unsafe { libc::madvise(start, HUGE_PAGE, MADV_COLLAPSE) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn collapse(_address: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_those_that_something_lies_in() {
        let room = vec![7u8; 8 * HUGE_PAGE];
        let at = room.as_ptr().addr();
        let page = |n: usize| (at.next_multiple_of(HUGE_PAGE) - at) + n * HUGE_PAGE;
        let mut pages = HugePages::default();
        pages.add(&room[page(5) + 10..page(5) + 20]);
        pages.add(&room[page(1) - 1..page(1) + 1]);
        pages.add(&room[page(3)..page(4)]);
        pages.add(&room[page(5) + 30..page(6)]);
        pages.add(&room[page(6)..page(6)]);
        pages.add(&[(); 9]);
        pages.add_room(&Vec::<u64>::new());
        assert_eq!(pages.addresses(), [0, 1, 3, 5].map(|n| at + page(n)));

        // A list's room counts, whatever is in it.
        let list: Vec<u8> = Vec::with_capacity(3 * HUGE_PAGE);
        let mut pages = HugePages::default();
        pages.add_room(&list);
        assert!((3..=4).contains(&pages.addresses().len()));
    }

    /// Whether the kernel did it depends on the machine; that nothing else happens does not.
    #[test]
    fn what_is_asked_for_is_as_it_was() {
        let mut values: Vec<u64> = (0..1 << 20).collect();
        let small: Vec<Box<u64>> = (0..1000).map(Box::new).collect();
        let mut pages = HugePages::default();
        pages.add(&values);
        for value in &small {
            pages.add_value(&**value);
        }
        pages.ask();
        assert!(values.iter().copied().eq(0..1 << 20));
        assert!(small.iter().map(|value| **value).eq(0..1000));
        values.extend(0..1 << 20);
        assert_eq!(values.iter().sum::<u64>(), 2 * (0..1u64 << 20).sum::<u64>());
    }
}
