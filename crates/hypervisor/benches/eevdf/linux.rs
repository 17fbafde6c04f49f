//! The fair class of Linux itself, compiled and linked by `scripts/kernel-eevdf`.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ffi::{c_int, c_ulong};
use std::marker::PhantomData;

use stealtime_hypervisor::fair::weights;

use super::worlds::{World, nice};

/// The functions of `scripts/kernel/eevdf.c`, in one of its builds.
pub(crate) trait Build {
    unsafe fn sizes(rq: *mut c_ulong, task: *mut c_ulong);
    unsafe fn init_queue(rq: *mut u8, idle: *mut u8, cpu: c_int);
    unsafe fn fork(rq: *mut u8, task: *mut u8, number: c_int, nice: c_int, weight: c_ulong);
    unsafe fn enqueue(rq: *mut u8, task: *mut u8, now: u64);
    unsafe fn dequeue(rq: *mut u8, task: *mut u8, now: u64);
    unsafe fn pick(rq: *mut u8, now: u64) -> c_int;
}

macro_rules! build {
    ($name:ident: $sizes:ident $init:ident $fork:ident $enqueue:ident $dequeue:ident $pick:ident) => {
        pub(crate) struct $name;

        unsafe extern "C" {
            fn $sizes(rq: *mut c_ulong, task: *mut c_ulong);
            fn $init(rq: *mut u8, idle: *mut u8, cpu: c_int);
            fn $fork(rq: *mut u8, task: *mut u8, number: c_int, nice: c_int, weight: c_ulong);
            fn $enqueue(rq: *mut u8, task: *mut u8, now: u64);
            fn $dequeue(rq: *mut u8, task: *mut u8, now: u64);
            fn $pick(rq: *mut u8, now: u64) -> c_int;
        }

        // SAFETY: each forwards to the function that the script links, and has its contract.
        #[allow(
            clippy::undocumented_unsafe_blocks,
            reason = "one reason for all, above"
        )]
        impl Build for $name {
            unsafe fn sizes(rq: *mut c_ulong, task: *mut c_ulong) {
                unsafe { $sizes(rq, task) }
            }
            unsafe fn init_queue(rq: *mut u8, idle: *mut u8, cpu: c_int) {
                unsafe { $init(rq, idle, cpu) }
            }
            unsafe fn fork(
                rq: *mut u8,
                task: *mut u8,
                number: c_int,
                nice: c_int,
                weight: c_ulong,
            ) {
                unsafe { $fork(rq, task, number, nice, weight) }
            }
            #[inline]
            unsafe fn enqueue(rq: *mut u8, task: *mut u8, now: u64) {
                unsafe { $enqueue(rq, task, now) }
            }
            #[inline]
            unsafe fn dequeue(rq: *mut u8, task: *mut u8, now: u64) {
                unsafe { $dequeue(rq, task, now) }
            }
            #[inline]
            unsafe fn pick(rq: *mut u8, now: u64) -> c_int {
                unsafe { $pick(rq, now) }
            }
        }
    };
}

build!(Tracking: kernel_sizes kernel_init_queue kernel_fork kernel_enqueue kernel_dequeue kernel_pick);
build!(Untracked: untracked_sizes untracked_init_queue untracked_fork untracked_enqueue untracked_dequeue
    untracked_pick);

/// The kernel maps its memory by large pages.
const LARGE_PAGE: usize = 2 << 20;
const MADV_HUGEPAGE: c_int = 14;

unsafe extern "C" {
    fn madvise(memory: *mut u8, size: usize, advice: c_int) -> c_int;
}

/// Zeroed memory in large pages, where the system has them.
struct Block {
    memory: *mut u8,
    layout: Layout,
}

impl Block {
    fn new(size: usize) -> Self {
        let layout = Layout::from_size_align(size, LARGE_PAGE)
            .unwrap()
            .pad_to_align();
        // SAFETY: the size is above zero, and `madvise` is given this block alone.
        let memory = unsafe { alloc(layout) };
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: as above. A refusal leaves small pages.
        unsafe {
            madvise(memory, layout.size(), MADV_HUGEPAGE);
            memory.write_bytes(0, layout.size());
        }
        Self { memory, layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it with this layout.
        unsafe { dealloc(self.memory, self.layout) };
    }
}

/// Run queues of the kernel. Their CPUs are numbered from 0: one world of a build is in use at a time.
pub(crate) struct Linux<B> {
    rqs: Vec<*mut u8>,
    tasks: Vec<Vec<*mut u8>>,
    _block: Block,
    build: PhantomData<B>,
}

impl<B: Build> Linux<B> {
    pub(crate) fn new(queues: usize, tasks: usize) -> Self {
        let (mut rq_size, mut task_size) = (0, 0);
        // SAFETY: the two places are valid.
        unsafe { B::sizes(&raw mut rq_size, &raw mut task_size) };
        // Cache lines of their own, as the kernel's allocators give them.
        let [rq_size, task_size] =
            [rq_size, task_size].map(|size| (size as usize).next_multiple_of(64));
        let queue_size = rq_size + (tasks + 1) * task_size;
        let block = Block::new(queues * queue_size);
        let (mut rqs, mut all_tasks) = (Vec::new(), Vec::new());
        for cpu in 0..queues {
            let rq = block.memory.wrapping_add(cpu * queue_size);
            let task = |n: usize| rq.wrapping_add(rq_size + n * task_size);
            // SAFETY: both are zeroed, of the sizes that the kernel names, and live as long as the block.
            unsafe { B::init_queue(rq, task(tasks), cpu as c_int) };
            for n in 0..tasks {
                let weight = weights::weight_of_nice(nice(n));
                // SAFETY: as above.
                unsafe { B::fork(rq, task(n), n as c_int, nice(n).into(), weight) };
            }
            rqs.push(rq);
            all_tasks.push((0..tasks).map(task).collect());
        }
        Self {
            rqs,
            tasks: all_tasks,
            _block: block,
            build: PhantomData,
        }
    }
}

// SAFETY of the calls below: queue and task are initialized and live, and one thread uses them.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all, above"
)]
impl<B: Build> World for Linux<B> {
    fn dequeue(&mut self, queue: usize, task: usize, now: u64) {
        unsafe { B::dequeue(self.rqs[queue], self.tasks[queue][task], now) }
    }

    fn enqueue(&mut self, queue: usize, task: usize, now: u64) {
        unsafe { B::enqueue(self.rqs[queue], self.tasks[queue][task], now) }
    }

    fn pick(&mut self, queue: usize, now: u64) -> usize {
        unsafe { B::pick(self.rqs[queue], now) as usize }
    }
}
