//! `dedup` and `vips`: a pipeline of stages, and threads that compute tiles, after the programs of
//! these names in PARSEC.
//!
//! Both return memory to the kernel all the time, so that TLBs are shot down. A shootdown takes
//! milliseconds where vCPUs are preempted. Ouyang and others (VEE 2016) found up to 64 % of a
//! guest's CPU time in it. Ahn and others (EuroSys 2018) measured 28 us for dedup alone and 6.4 ms
//! next to another guest. For vips it was 55 us and 14.9 ms.

use core::cell::Cell;
use std::rc::Rc;

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::{Barrier, Channel, Runs, THREADS, threads};
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::{SpinId, Thread};

/// Chunks of a batch, as they pass from stage to stage (`ITEM_PER_FETCH`).
const BATCH: u64 = 20;

/// What deflate allocates in addition to its state: the window, two hash tables, pending output.
const BUFFERS: u64 = 4;

const FAULT_NS: ParamDoc = ParamDoc {
    name: "fault_ns",
    default: 500,
    min: 0,
    max: 1_000_000,
    unit: "ns",
    about: "kernel work of a page fault, clearing the page included (estimate)",
};

const PAGE_LOCK_NS: ParamDoc = ParamDoc {
    name: "page_lock_ns",
    default: 15,
    min: 0,
    max: 100_000,
    unit: "ns",
    about: "time for each page under the lock of the page lists, when pages are taken or returned \
        together (estimate)",
};

/// The memory of a guest's process, and of the guest.
///
/// Pages come from the list of the CPU, and go back to it. A thread that takes as many as it
/// returns leaves the zone's lock alone (`rmqueue_pcplist`). Its lists of pages in use have a lock
/// that is taken for a batch (`folio_batch_move_lru`, `folios_put_refs`).
#[derive(Clone, Copy, Debug)]
struct Memory {
    lists: SpinId,
    fault_ns: u64,
    page_lock_ns: u64,
}

impl Memory {
    fn new(params: &Params, guest: &mut GuestBuilder) -> Self {
        Self {
            lists: guest.spinlock("lru_lock"),
            fault_ns: params.get("fault_ns"),
            page_lock_ns: params.get("page_lock_ns"),
        }
    }

    async fn hold(self, thread: &Thread, lock: SpinId, pages: u64) {
        thread.section(lock, self.page_lock_ns * pages, 0).await;
    }

    /// Pages are touched that are not mapped.
    async fn touch(self, thread: &Thread, pages: u64) {
        thread.kernel(self.fault_ns * pages).await;
        self.hold(thread, self.lists, pages).await;
    }

    /// `madvise(MADV_DONTNEED)`, with which malloc gives back what is free at the end of a heap.
    async fn give_back(self, thread: &Thread, pages: u64) {
        // The page tables.
        thread.kernel(400 + 20 * pages).await;
        thread.flush_tlbs().await;
        self.hold(thread, self.lists, pages).await;
    }
}

/// Pages that glibc keeps at the end of a thread's heap (`M_TOP_PAD`, 128 KB).
const KEPT_PAGES: u64 = 32;

/// The end of a thread's heap. A thread that frees last what it allocated last returns memory again
/// and again. deflate and vips do so with their buffers. A free that reaches the end returns
/// the pages beyond [`KEPT_PAGES`] (`heap_trim`), and the next allocation touches them anew.
struct Heap {
    memory: Memory,
    /// Free pages at the end that are mapped.
    end: u64,
}

impl Heap {
    fn new(memory: Memory) -> Self {
        Self {
            memory,
            end: KEPT_PAGES,
        }
    }

    async fn take(&mut self, thread: &Thread, pages: u64) {
        let mapped = self.end.min(pages);
        self.end -= mapped;
        if pages > mapped {
            self.memory.touch(thread, pages - mapped).await;
        }
    }

    async fn free(&mut self, thread: &Thread, pages: u64) {
        self.end += pages;
        if self.end > KEPT_PAGES {
            let beyond = self.end - KEPT_PAGES;
            self.end = KEPT_PAGES;
            self.memory.give_back(thread, beyond).await;
        }
    }
}

pub(super) const DEDUP: Workload = Workload {
    name: "dedup",
    about: "a pipeline of five stages over bounded queues; the middle three have threads of their \
        own. The compressor touches and frees memory for each chunk, which causes TLB shootdowns. \
        An operation is a batch of 20 chunks",
    params: &[
        ParamDoc {
            name: "threads",
            default: 0,
            min: 0,
            max: 16_384,
            unit: "",
            about: "threads in each of the three parallel stages (dedup -t); 0 for one a vCPU",
        },
        ParamDoc {
            name: "queue",
            default: 64,
            min: 1,
            max: 1_048_576,
            unit: "",
            about: "batches that fit between two stages (estimate)",
        },
        ParamDoc {
            name: "fragment_ns",
            default: 30_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of the first stage for a batch, a single thread (2 % of 25 s of the \
                    native input's 370 000 chunks)",
        },
        ParamDoc {
            name: "refine_ns",
            default: 60_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of the second stage for a batch, which looks for anchors (5 %)",
        },
        ParamDoc {
            name: "hash_ns",
            default: 100_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of the third stage for a batch, SHA-1 and a look into the table (8 %)",
        },
        ParamDoc {
            name: "unique_percent",
            default: 45,
            min: 0,
            max: 100,
            unit: "%",
            about: "chunks that are not duplicates and so compressed (168 000 of 370 000)",
        },
        ParamDoc {
            name: "compress_ns",
            default: 100_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of the fourth stage for a chunk, without its page faults (80 %)",
        },
        ParamDoc {
            name: "pages",
            default: 16,
            min: 0,
            max: 100_000,
            unit: "pages",
            about: "size of each of the compressor's four buffers, allocated for each chunk and \
                    freed in the opposite order (zlib's deflateInit: 64 KB each; free memory at \
                    the heap's end beyond 128 KB is returned at each free)",
        },
        ParamDoc {
            name: "write_ns",
            default: 60_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of the last stage for a batch, a single thread (5 %)",
        },
        FAULT_NS,
        PAGE_LOCK_NS,
    ],
    build: build_dedup,
};

#[derive(Clone, Copy)]
struct Stage {
    from: Channel,
    to: Channel,
    work: u64,
}

#[derive(Clone, Copy)]
struct Compressor {
    stage: Stage,
    unique_percent: u64,
    pages: u64,
    memory: Memory,
}

fn build_dedup(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let n = threads(params, guest);
    let capacity = params.count("queue");
    let mut channel = |name| Channel::new(guest, name, capacity);
    let (refine, hash) = (channel("refine"), channel("deduplicate"));
    let (compress, reorder) = (channel("compress"), channel("reorder"));
    let memory = Memory::new(params, guest);
    let fragment_ns = params.get("fragment_ns");
    guest.spawn("fragment", None, move |thread| {
        fragment(thread, refine, fragment_ns)
    })?;
    let stage = |name: &str, source, target| Stage {
        from: source,
        to: target,
        work: params.get(name),
    };
    let stages = [
        ("refine", stage("refine_ns", refine, hash)),
        ("deduplicate", stage("hash_ns", hash, compress)),
    ];
    for (name, stage) in stages {
        for k in 0..n {
            guest.spawn(&format!("{name}/{k}"), None, move |thread| {
                work_at(thread, stage)
            })?;
        }
    }
    let compressor = Compressor {
        stage: stage("compress_ns", compress, reorder),
        unique_percent: params.get("unique_percent"),
        pages: params.get("pages"),
        memory,
    };
    for k in 0..n {
        guest.spawn(&format!("compress/{k}"), None, move |thread| {
            compress_batches(thread, compressor)
        })?;
    }
    let write_ns = params.get("write_ns");
    guest.spawn("reorder", None, move |thread| {
        put_together(thread, reorder, write_ns)
    })
}

async fn fragment(mut thread: Thread, output: Channel, work: u64) {
    loop {
        let ns = thread.random.exponential(work);
        thread.compute(ns).await;
        output.send(&thread).await;
    }
}

async fn work_at(mut thread: Thread, stage: Stage) {
    loop {
        stage.from.receive(&thread).await;
        let ns = thread.random.exponential(stage.work);
        thread.compute(ns).await;
        stage.to.send(&thread).await;
    }
}

async fn compress_batches(mut thread: Thread, compressor: Compressor) {
    let Compressor {
        stage,
        memory,
        pages,
        ..
    } = compressor;
    let mut heap = Heap::new(memory);
    loop {
        stage.from.receive(&thread).await;
        for _ in 0..BATCH {
            if thread.random.below(100) >= compressor.unique_percent {
                continue;
            }
            heap.take(&thread, BUFFERS * pages).await;
            let ns = thread.random.exponential(stage.work);
            thread.compute(ns).await;
            for _ in 0..BUFFERS {
                heap.free(&thread, pages).await;
            }
        }
        stage.to.send(&thread).await;
    }
}

async fn put_together(mut thread: Thread, input: Channel, work: u64) {
    loop {
        input.receive(&thread).await;
        let ns = thread.random.exponential(work);
        thread.compute(ns).await;
        thread.done(1);
    }
}

pub(super) const VIPS: Workload = Workload {
    name: "vips",
    about: "threads that compute tiles of an image and meet at the end of each strip. A tile is a \
        chain of operations that touch buffers; they are freed after the tile. An operation is a \
        tile, a latency is an image",
    params: &[
        THREADS,
        ParamDoc {
            name: "tile_ns",
            default: 2_600_000,
            min: 1_000,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of a tile (31 billion instructions for an image of 2662 by 5500 \
                    pixels, Bienia and others, PACT 2008, in tiles of 64 by 64; 1.3 a cycle and \
                    2.5 GHz are estimates)",
        },
        ParamDoc {
            name: "spread_percent",
            default: 20,
            min: 0,
            max: 100,
            unit: "%",
            about: "by how much tiles differ (estimate)",
        },
        ParamDoc {
            name: "buffers",
            default: 3,
            min: 0,
            max: 10_000,
            unit: "",
            about: "buffers of a tile, allocated one after the other and freed after the tile; \
                free memory at the heap's end beyond 128 KB is returned at each free (estimate: \
                    the same table has 9.3 locks for each of 3612 tiles, 4 of them for the tile to \
                    be handed out, and a buffer takes two)",
        },
        ParamDoc {
            name: "pages",
            default: 12,
            min: 0,
            max: 100_000,
            unit: "pages",
            about: "size of a buffer (estimate: 64 by 64 pixels of three 4-byte numbers)",
        },
        ParamDoc {
            name: "strip",
            default: 84,
            min: 1,
            max: 100_000,
            unit: "",
            about: "tiles of a strip; a free thread takes the next one, and all meet after the \
                last (estimate: two rows of 42)",
        },
        ParamDoc {
            name: "strips",
            default: 4,
            min: 1,
            max: 100_000,
            unit: "",
            about: "strips of an image (a size that short runs finish)",
        },
        FAULT_NS,
        PAGE_LOCK_NS,
    ],
    build: build_vips,
};

#[derive(Clone)]
struct Image {
    tile: u64,
    spread: u32,
    buffers: u64,
    pages: u64,
    strip: u32,
    strips: u32,
    memory: Memory,
    /// Tiles of the present strip that a thread has taken.
    taken: Rc<Cell<u32>>,
    end: Barrier,
    runs: Runs,
}

fn build_vips(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let n = threads(params, guest);
    let image = Image {
        tile: params.get("tile_ns"),
        spread: params.count("spread_percent"),
        buffers: params.get("buffers"),
        pages: params.get("pages"),
        strip: params.count("strip"),
        strips: params.count("strips"),
        memory: Memory::new(params, guest),
        taken: Rc::default(),
        end: Barrier::new(guest, "strip", n),
        runs: Runs::new(guest, n),
    };
    for k in 0..n {
        let image = image.clone();
        guest.spawn(&format!("vips/{k}"), None, move |thread| {
            tiles(thread, image)
        })?;
    }
    Ok(())
}

async fn tiles(mut thread: Thread, image: Image) {
    let mut heap = Heap::new(image.memory);
    loop {
        for _ in 0..image.strips {
            while image.taken.get() < image.strip {
                image.taken.set(image.taken.get() + 1);
                tile(&mut thread, &mut heap, &image).await;
                thread.done(1);
            }
            if image.end.others_are_here() {
                image.taken.set(0);
            }
            image.end.wait(&thread).await;
        }
        image.runs.end(&thread).await;
    }
}

async fn tile(thread: &mut Thread, heap: &mut Heap, image: &Image) {
    let steps = image.buffers.max(1);
    for _ in 0..steps {
        if image.buffers > 0 {
            heap.take(thread, image.pages).await;
        }
        let ns = thread.random.around(image.tile / steps, image.spread);
        thread.compute(ns).await;
    }
    for _ in 0..image.buffers {
        heap.free(thread, image.pages).await;
    }
}
