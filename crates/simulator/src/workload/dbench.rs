//! `dbench`: clients of a file server, each in directories of its own, that share a journal.

use core::cell::Cell;
use std::rc::Rc;

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::{THREADS, threads};
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::{DeviceId, MutexId, QueueId, SpinId, Thread};

pub(super) const DBENCH: Workload = Workload {
    name: "dbench",
    about: "clients that look up, read, write, create and delete files, each below its own \
        directory. Spinlocks guard the lists of inodes and of the journal's buffers. Flushes wait \
        for a commit of the journal's thread. An operation is one of the file server",
    params: &[
        THREADS,
        ParamDoc {
            name: "directories",
            default: 0,
            min: 0,
            max: 65_536,
            unit: "",
            about: "directories that are changed, each behind a mutex; 0 for one a client \
                    (dbench's clients each work below clients/clientN)",
        },
        ParamDoc {
            name: "lookup_ns",
            default: 3_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean kernel work of a lookup or a small read, which take no shared lock (estimate)",
        },
        ParamDoc {
            name: "update_ns",
            default: 6_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean kernel work of a write or a change to a directory (estimate)",
        },
        ParamDoc {
            name: "locked_ns",
            default: 480,
            min: 0,
            max: 1_000_000,
            unit: "ns",
            about: "mean time for which a spinlock is held (the mean of unix_table_lock, of a list \
                    too, in the lock_stat that the kernel's lockstat.rst shows; its lru_lock: 930 \
                    ns, its d_lockref: 270 ns)",
        },
        ParamDoc {
            name: "client_ns",
            default: 2_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of a client between two operations, in user mode (estimate)",
        },
        ParamDoc {
            name: "flush_ns",
            default: 60_000,
            min: 1_000,
            max: 1_000_000_000,
            unit: "ns",
            about: "latency of the device to a flush (estimate: an NVMe disk with a write cache)",
        },
    ],
    build,
};

/// Blocks that a change to a directory needs in the journal (ext4): entries and inode of the
/// directory, inode of the file, bitmap of inodes.
const BUFFERS_OF_UPDATE: u32 = 4;
/// … for a write: those of the inode and of its extents.
const BUFFERS_OF_WRITE: u32 = 2;

/// Operations in a thousand that look up or read.
const LOOKS: u64 = 811;
/// Most of them that are taken together.
const LOOKS_IN_A_ROW: u64 = 16;

/// What all clients share.
#[derive(Clone)]
struct Disk {
    /// The super block's list of inodes.
    inodes: SpinId,
    /// The running transaction's list of buffers.
    buffers: SpinId,
    journal: Journal,
}

/// A journal with a thread that commits. A flush waits for the next commit; flushes that come
/// meanwhile share the one after that (`jbd2_log_wait_commit`).
#[derive(Clone)]
struct Journal {
    asked: QueueId,
    /// Threads that wait for even and for odd commits.
    committed: [QueueId; 2],
    commits: Rc<Cell<usize>>,
    waiting: Rc<Cell<u32>>,
    /// Buffers of the running transaction.
    filed: Rc<Cell<u32>>,
}

impl Journal {
    fn next(&self) -> QueueId {
        let [even, odd] = self.committed;
        if self.commits.get().is_multiple_of(2) {
            even
        } else {
            odd
        }
    }

    async fn flush(&self, thread: &Thread) {
        let next = self.next();
        self.waiting.set(self.waiting.get() + 1);
        if self.waiting.get() == 1 {
            thread.wake(self.asked, 1).await;
        }
        thread.wait(next).await;
    }
}

#[derive(Clone, Copy)]
struct Work {
    lookup: u64,
    update: u64,
    locked: u64,
    client: u64,
}

fn build(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let device = guest.device("disk", params.get("flush_ns"), 30, 0);
    let disk = Disk {
        inodes: guest.spinlock("s_inode_list_lock"),
        buffers: guest.spinlock("j_list_lock"),
        journal: Journal {
            asked: guest.queue("commit", 0),
            committed: [0, 1].map(|n| guest.queue(&format!("committed/{n}"), 0)),
            commits: Rc::default(),
            waiting: Rc::default(),
            filed: Rc::default(),
        },
    };
    let work = Work {
        lookup: params.get("lookup_ns"),
        update: params.get("update_ns"),
        locked: params.get("locked_ns"),
        client: params.get("client_ns"),
    };
    let clients = threads(params, guest);
    let directories = match params.count("directories") {
        0 => clients,
        shared => shared,
    };
    let directories: Vec<MutexId> = (0..directories)
        .map(|n| guest.mutex(&format!("directory/{n}")))
        .collect();
    let single_directory = params.count("directories") == 0;
    let directories: Rc<[MutexId]> = directories.into();
    let journal = disk.clone();
    guest.spawn("jbd2", None, move |thread| {
        commit(thread, journal, device, work)
    })?;
    for n in 0..clients {
        let disk = disk.clone();
        let mine = directories.get(n as usize).filter(|_| single_directory);
        let choice = mine.map_or_else(|| Rc::clone(&directories), |&mine| Rc::new([mine]));
        guest.new_process();
        guest.spawn(&format!("dbench/{n}"), None, move |thread| {
            client(thread, disk, choice, work)
        })?;
    }
    Ok(())
}

/// An operation of the file server, as often as dbench's loadfile has it. As many files are created
/// as are deleted; the rest of NTCreateX opens existing ones.
///
/// | ReadX | NTCreateX | QPathInfo | Close | WriteX | Find | Unlink | QFsInfo | QFileInfo | SFileInfo | Flush | Rename |
/// |---|---|---|---|---|---|---|---|---|---|---|---|
/// | 27.1 % | 17.3 % | 15.7 % | 12.7 % | 8.6 % | 6.1 % | 3.5 % | 2.9 % | 2.7 % | 1.4 % | 1.2 % | 0.7 % |
async fn client(mut thread: Thread, disk: Disk, directories: Rc<[MutexId]>, work: Work) {
    loop {
        // Operations in a row that touch nothing shared are one stretch in each mode.
        let mut user = thread.random.exponential(work.client);
        let (mut kernel, mut looks) = (0, 0);
        let mut operation = thread.random.below(1000);
        while operation < LOOKS && looks < LOOKS_IN_A_ROW {
            kernel += thread.random.exponential(work.lookup);
            user += thread.random.exponential(work.client);
            looks += 1;
            operation = thread.random.below(1000);
        }
        thread.compute(user).await;
        if looks > 0 {
            thread.kernel(kernel).await;
        }
        match operation {
            0..LOOKS => look(&mut thread, work).await,
            LOOKS..911 => write(&mut thread, &disk, work).await,
            911..988 => {
                let index = thread.random.below(directories.len() as u64) as usize;
                if let Some(&directory) = directories.get(index) {
                    update(&mut thread, &disk, directory, work).await;
                }
            }
            _ => disk.journal.flush(&thread).await,
        }
        thread.done(looks + 1);
    }
}

/// A spinlock is held for a while; `then_ns` of kernel work follow.
async fn hold(thread: &mut Thread, lock: SpinId, locked: u64, then_ns: u64) {
    let ns = thread.random.exponential(locked);
    thread.section(lock, ns, then_ns).await;
}

/// Names are looked up, and pages found, under RCU.
async fn look(thread: &mut Thread, work: Work) {
    let ns = thread.random.exponential(work.lookup);
    thread.kernel(ns).await;
}

async fn write(thread: &mut Thread, disk: &Disk, work: Work) {
    let ns = thread.random.exponential(work.update) / u64::from(BUFFERS_OF_WRITE);
    thread.kernel(ns).await;
    change(thread, disk, BUFFERS_OF_WRITE, ns, work).await;
}

/// Each buffer is filed with the running transaction as it comes up
/// (`jbd2_journal_get_write_access`), after `ns` of work, which for the first one is done.
async fn change(thread: &mut Thread, disk: &Disk, buffers: u32, ns: u64, work: Work) {
    for next in (0..buffers).rev() {
        let then_ns = if next > 0 { ns } else { 0 };
        hold(thread, disk.buffers, work.locked, then_ns).await;
        let filed = &disk.journal.filed;
        filed.set(filed.get() + 1);
    }
}

async fn update(thread: &mut Thread, disk: &Disk, directory: MutexId, work: Work) {
    thread.lock_mutex(directory).await;
    let inode = thread.random.exponential(work.locked);
    let ns = thread.random.exponential(work.update) / u64::from(BUFFERS_OF_UPDATE);
    thread.section(disk.inodes, inode, ns).await;
    change(thread, disk, BUFFERS_OF_UPDATE, ns, work).await;
    thread.unlock_mutex(directory).await;
}

/// The journal's thread takes the transaction apart, a buffer at a time.
async fn commit(mut thread: Thread, disk: Disk, device: DeviceId, work: Work) {
    let journal = &disk.journal;
    loop {
        thread.wait(journal.asked).await;
        let (waiting, gate) = (journal.waiting.take(), journal.next());
        journal.commits.set(journal.commits.get() + 1);
        let filed = journal.filed.take();
        if filed > 0 {
            thread.kernel(work.locked).await;
        }
        for next in (0..filed).rev() {
            let then_ns = if next > 0 { work.locked } else { 0 };
            hold(&mut thread, disk.buffers, work.locked, then_ns).await;
        }
        thread.io(device).await;
        thread.wake(gate, waiting).await;
    }
}
