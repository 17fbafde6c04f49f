//! `dbench`: clients of a file server that contend for directories and for the journal.

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::{THREADS, threads};
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::{DeviceId, MutexId, SpinId, Thread};

pub(super) const DBENCH: Workload = Workload {
    name: "dbench",
    about: "clients that create, look up, read, write and delete files; directories are mutexes, \
            the name cache and the journal's state are spinlocks, flushes wait for the device; an \
            operation is one of the file server's",
    params: &[
        THREADS,
        ParamDoc {
            name: "directories",
            default: 4,
            min: 1,
            max: 65_536,
            unit: "",
            about: "directories that the clients share (estimate: all of dbench's clients work \
                    below one tree)",
        },
        ParamDoc {
            name: "lookup_ns",
            default: 3_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean kernel work of a lookup or a small read (estimate)",
        },
        ParamDoc {
            name: "update_ns",
            default: 6_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean kernel work of a change to a directory, its mutex held (estimate)",
        },
        ParamDoc {
            name: "locked_ns",
            default: 400,
            min: 0,
            max: 1_000_000,
            unit: "ns",
            about: "mean time for which a spinlock is held (estimate)",
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

/// What all clients share.
#[derive(Clone, Copy)]
struct Disk {
    names: SpinId,
    journal: SpinId,
    commit: MutexId,
    device: DeviceId,
}

#[derive(Clone, Copy)]
struct Work {
    lookup: u64,
    update: u64,
    locked: u64,
    client: u64,
}

fn build(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let disk = Disk {
        names: guest.spinlock("dcache"),
        journal: guest.spinlock("j_state_lock"),
        commit: guest.mutex("commit"),
        device: guest.device("disk", params.get("flush_ns"), 30, 0),
    };
    let work = Work {
        lookup: params.get("lookup_ns"),
        update: params.get("update_ns"),
        locked: params.get("locked_ns"),
        client: params.get("client_ns"),
    };
    let directories: std::rc::Rc<[MutexId]> = (0..params.count("directories"))
        .map(|n| guest.mutex(&format!("directory/{n}")))
        .collect();
    for n in 0..threads(params, guest) {
        let directories = std::rc::Rc::clone(&directories);
        guest.new_process();
        guest.spawn(&format!("dbench/{n}"), None, move |thread| {
            client(thread, disk, directories, work)
        })?;
    }
    Ok(())
}

/// An operation of the file server, as often as dbench's loadfile has it (27 % ReadX, 17 %
/// NTCreateX, 16 % QPathInfo, 13 % Close, 9 % WriteX, 6 % Find, 3 % Unlink, 1 % Flush, …): 42 % look
/// at names and attributes, 27 % read, 9 % write, 21 % change directories, 1 % flush.
async fn client(mut thread: Thread, disk: Disk, directories: std::rc::Rc<[MutexId]>, work: Work) {
    loop {
        let ns = thread.random.exponential(work.client);
        thread.compute(ns).await;
        match thread.random.below(1000) {
            0..418 => look_up(&mut thread, disk, work).await,
            418..688 => read(&mut thread, work).await,
            688..778 => write(&mut thread, disk, work).await,
            778..988 => {
                let which = thread.random.below(directories.len() as u64) as usize;
                if let Some(&directory) = directories.get(which) {
                    update(&mut thread, disk, directory, work).await;
                }
            }
            _ => flush(&thread, disk).await,
        }
        thread.done(1);
    }
}

async fn hold(thread: &mut Thread, lock: SpinId, locked: u64) {
    let ns = thread.random.exponential(locked);
    thread.lock(lock).await;
    thread.kernel(ns).await;
    thread.unlock(lock).await;
}

async fn look_up(thread: &mut Thread, disk: Disk, work: Work) {
    let ns = thread.random.exponential(work.lookup);
    thread.kernel(ns).await;
    hold(thread, disk.names, work.locked).await;
}

async fn read(thread: &mut Thread, work: Work) {
    let ns = thread.random.exponential(work.lookup);
    thread.kernel(ns).await;
}

async fn write(thread: &mut Thread, disk: Disk, work: Work) {
    let ns = thread.random.exponential(work.update);
    thread.kernel(ns).await;
    hold(thread, disk.journal, work.locked).await;
}

async fn update(thread: &mut Thread, disk: Disk, directory: MutexId, work: Work) {
    let ns = thread.random.exponential(work.update);
    thread.lock_mutex(directory).await;
    thread.kernel(ns).await;
    hold(thread, disk.names, work.locked).await;
    hold(thread, disk.journal, work.locked).await;
    thread.unlock_mutex(directory).await;
}

async fn flush(thread: &Thread, disk: Disk) {
    thread.lock_mutex(disk.commit).await;
    thread.io(disk.device).await;
    thread.unlock_mutex(disk.commit).await;
}
