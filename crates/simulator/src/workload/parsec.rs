//! `dedup` and `vips`: a pipeline that unmaps memory, and threads that meet at barriers, after the
//! programs of these names in PARSEC.

use core::cell::Cell;
use std::rc::Rc;

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::{Barrier, Channel, Runs, THREADS, threads};
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::{MutexId, Thread};

pub(super) const DEDUP: Workload = Workload {
    name: "dedup",
    about: "a pipeline of five stages over bounded queues, the middle three with threads of their \
            own; buffers are mapped, touched and unmapped, so that TLBs are shot down; an \
            operation is a chunk",
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
            about: "chunks that fit between two stages (estimate)",
        },
        ParamDoc {
            name: "fragment_ns",
            default: 4_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of the first stage and of the last, each a single thread (estimate)",
        },
        ParamDoc {
            name: "refine_ns",
            default: 20_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of the second stage, which looks for anchors (estimate)",
        },
        ParamDoc {
            name: "hash_ns",
            default: 20_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of the third stage, SHA-1 and a look into the table (estimate)",
        },
        ParamDoc {
            name: "compress_ns",
            default: 80_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of the fourth stage, which compresses (estimate)",
        },
        ParamDoc {
            name: "munmap_percent",
            default: 50,
            min: 0,
            max: 100,
            unit: "%",
            about: "chunks whose buffer is unmapped when it is done with, in the second and the \
                    fourth stage (estimate: large ones, beyond malloc's threshold)",
        },
    ],
    build: build_dedup,
};

#[derive(Clone, Copy)]
struct Stage {
    from: Channel,
    to: Channel,
    work: u64,
    unmaps_percent: u64,
}

fn build_dedup(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let n = threads(params, guest);
    let capacity = params.count("queue");
    let mut channel = |name| Channel::new(guest, name, capacity);
    let (refine, hash) = (channel("refine"), channel("deduplicate"));
    let (compress, reorder) = (channel("compress"), channel("reorder"));
    let munmap = params.get("munmap_percent");
    let ends = params.get("fragment_ns");
    guest.spawn("fragment", None, move |thread| {
        fragment(thread, refine, ends)
    })?;
    let stage = |name: &str, from, to, unmaps_percent| Stage {
        from,
        to,
        work: params.get(name),
        unmaps_percent,
    };
    let stages = [
        ("refine", stage("refine_ns", refine, hash, munmap)),
        ("deduplicate", stage("hash_ns", hash, compress, 0)),
        ("compress", stage("compress_ns", compress, reorder, munmap)),
    ];
    for (name, stage) in stages {
        for k in 0..n {
            guest.spawn(&format!("{name}/{k}"), None, move |thread| {
                work_at(thread, stage)
            })?;
        }
    }
    guest.spawn("reorder", None, move |thread| {
        put_together(thread, reorder, ends)
    })
}

async fn fragment(mut thread: Thread, to: Channel, work: u64) {
    loop {
        let ns = thread.random.exponential(work);
        thread.compute(ns).await;
        to.send(&thread).await;
    }
}

async fn work_at(mut thread: Thread, stage: Stage) {
    loop {
        stage.from.receive(&thread).await;
        let ns = thread.random.exponential(stage.work);
        thread.compute(ns).await;
        if thread.random.below(100) < stage.unmaps_percent {
            // mmap_lock and the page tables.
            thread.kernel(800).await;
            thread.flush_tlbs().await;
        }
        stage.to.send(&thread).await;
    }
}

async fn put_together(mut thread: Thread, from: Channel, work: u64) {
    loop {
        from.receive(&thread).await;
        let ns = thread.random.exponential(work);
        thread.compute(ns).await;
        thread.done(1);
    }
}

pub(super) const VIPS: Workload = Workload {
    name: "vips",
    about: "threads that compute tiles of an image, take turns at a shared buffer and meet at a \
            barrier after each row of tiles; an operation is a tile, a latency is an image",
    params: &[
        THREADS,
        ParamDoc {
            name: "tile_ns",
            default: 150_000,
            min: 1_000,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of a tile (estimate: 128 by 128 pixels through a chain of operations)",
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
            name: "row",
            default: 4,
            min: 1,
            max: 10_000,
            unit: "",
            about: "tiles of each thread between two barriers (estimate)",
        },
        ParamDoc {
            name: "rows",
            default: 20,
            min: 1,
            max: 100_000,
            unit: "",
            about: "rows of an image (a size that short runs finish)",
        },
        ParamDoc {
            name: "buffer_ns",
            default: 2_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "time for which the buffer's mutex is held for a tile (estimate)",
        },
    ],
    build: build_vips,
};

#[derive(Clone)]
struct Image {
    tile: u64,
    spread: u32,
    row: u32,
    rows: u32,
    buffer_ns: u64,
    buffer: MutexId,
    line: Barrier,
    runs: Runs,
    done: Rc<Cell<u64>>,
}

fn build_vips(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let n = threads(params, guest);
    let image = Image {
        tile: params.get("tile_ns"),
        spread: params.count("spread_percent"),
        row: params.count("row"),
        rows: params.count("rows"),
        buffer_ns: params.get("buffer_ns"),
        buffer: guest.mutex("buffer"),
        line: Barrier::new(guest, "row", n),
        runs: Runs::new(guest, n),
        done: Rc::default(),
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
    loop {
        for _ in 0..image.rows {
            for _ in 0..image.row {
                let ns = thread.random.around(image.tile, image.spread);
                thread.compute(ns).await;
                thread.lock_mutex(image.buffer).await;
                thread.compute(image.buffer_ns).await;
                image.done.set(image.done.get() + 1);
                thread.unlock_mutex(image.buffer).await;
                thread.done(1);
            }
            image.line.wait(&thread).await;
        }
        image.runs.end(&thread).await;
    }
}
