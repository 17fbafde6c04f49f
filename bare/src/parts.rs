//! Lengths of the parts of an exit, in a phase with a single vCPU. The simulator takes them as its costs.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::cpu;

/// A point between two VM entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Directly after the VM exit.
    Exit = 0,
    /// SN is set.
    Suppressed = 1,
    /// The vCPU's mode says that it is outside guest mode.
    Left = 2,
    /// The last window for interrupts of the host so far.
    Window = 3,
    /// SN is clear.
    Cleared = 4,
    /// The first synchronization of PIR before the entry.
    Synchronized = 5,
    /// The last synchronization before the entry.
    LastSynchronized = 6,
    /// Directly before the VM entry.
    Entry = 7,
}

const MARKS: usize = 8;
/// Instructions from the VM exit to its mark: the registers are saved first (`vm_exited`).
const EXIT_PATH: u64 = 30;

/// When each point was reached since the last exit, TSC; 0: not yet.
static REACHED: [AtomicU64; MARKS] = [const { AtomicU64::new(0) }; MARKS];
static ENABLED: AtomicBool = AtomicBool::new(false);
/// Cycles of the parts, in the order of [`Parts`].
static SUMS: [AtomicU64; 9] = [const { AtomicU64::new(0) }; 9];
static EXITS: AtomicU64 = AtomicU64::new(0);
static NOTIFICATIONS: AtomicU64 = AtomicU64::new(0);
/// Begins and ends of posts: odd while one is under way.
static POSTS: AtomicU64 = AtomicU64::new(0);
/// The same at the last exit.
static POSTS_AT_EXIT: AtomicU64 = AtomicU64::new(0);
/// When the device that posts has set ON, TSC.
static POSTED: AtomicU64 = AtomicU64::new(0);

/// Means over the exits of a phase that no post lengthens, in cycles.
#[derive(Clone, Copy, Default)]
pub struct Parts {
    pub exits: u64,
    /// From a VM entry to the next exit.
    pub guest: u64,
    /// From the exit until the mode is "outside".
    pub exit: u64,
    /// From there to the first synchronization.
    pub host: u64,
    /// From there to the VM entry.
    pub entry: u64,
    /// From the exit until SN is set; 0 under policies that do not set it.
    pub to_sn: u64,
    /// With SN set.
    pub under_sn: u64,
    /// From the last window for interrupts to the first synchronization.
    pub off: u64,
    /// From SN cleared to the synchronization after.
    pub clear: u64,
    /// From ON set to the notification's arrival.
    pub flight: u64,
}

/// Begins a phase. `measures`: whether the parts are to be measured.
pub fn begin(measures: bool) {
    let counts = [&EXITS, &NOTIFICATIONS, &POSTS, &POSTS_AT_EXIT];
    for word in REACHED.iter().chain(&SUMS).chain(counts) {
        word.store(0, Relaxed);
    }
    ENABLED.store(measures, Relaxed);
}

/// A post begins, or its interrupt has been handled.
pub fn disturb() {
    POSTS.fetch_add(1, Relaxed);
}

/// No post has been under way since the last exit.
fn is_undisturbed() -> bool {
    let posts = POSTS_AT_EXIT.load(Relaxed);
    posts.is_multiple_of(2) && posts == POSTS.load(Relaxed)
}

/// The vCPU reaches a point. Two instructions where nothing is measured.
#[inline(always)]
pub fn mark(mark: Mark) {
    if ENABLED.load(Relaxed) {
        measure(mark);
    }
}

#[cold]
#[inline(never)]
fn measure(mark: Mark) {
    let path = if mark == Mark::Exit { EXIT_PATH } else { 0 };
    let now = cpu::tsc() - path;
    let reached = |mark: Mark| REACHED[mark as usize].load(Relaxed);
    match mark {
        Mark::Exit => {
            if is_undisturbed() {
                add(0, reached(Mark::Entry), now);
            }
            POSTS_AT_EXIT.store(POSTS.load(Relaxed), Relaxed);
            for word in &REACHED {
                word.store(0, Relaxed);
            }
        }
        Mark::Entry if reached(Mark::Left) > 0 && is_undisturbed() => {
            add(1, reached(Mark::Exit), reached(Mark::Left));
            add(2, reached(Mark::Left), reached(Mark::Synchronized));
            add(3, reached(Mark::Synchronized), now);
            add(4, reached(Mark::Exit), reached(Mark::Suppressed));
            add(5, reached(Mark::Suppressed), reached(Mark::Cleared));
            add(6, reached(Mark::Window), reached(Mark::Synchronized));
            add(7, reached(Mark::Cleared), reached(Mark::LastSynchronized));
            EXITS.fetch_add(1, Relaxed);
        }
        // The second posting synchronizes twice.
        Mark::Synchronized => {
            REACHED[Mark::LastSynchronized as usize].store(now, Relaxed);
            if reached(mark) > 0 {
                return;
            }
        }
        _ => {}
    }
    REACHED[mark as usize].store(now, Relaxed);
}

/// The device has set ON, and is to send a notification.
pub fn posted() {
    if !ENABLED.load(Relaxed) {
        return;
    }
    POSTED.store(cpu::tsc(), Relaxed);
}

/// The notification is sent. Bochs delivers it at once.
pub fn notified() {
    if !ENABLED.load(Relaxed) {
        return;
    }
    add(8, POSTED.load(Relaxed), cpu::tsc());
    NOTIFICATIONS.fetch_add(1, Relaxed);
}

fn add(part: usize, begin: u64, end: u64) {
    if begin > 0 && end > begin {
        SUMS[part].fetch_add(end - begin, Relaxed);
    }
}

/// The parts of the phase that ends.
pub fn end() -> Parts {
    ENABLED.store(false, Relaxed);
    let exits = EXITS.load(Relaxed);
    let mean = |part: usize| SUMS[part].load(Relaxed) / exits.max(1);
    Parts {
        exits,
        guest: mean(0),
        exit: mean(1),
        host: mean(2),
        entry: mean(3),
        to_sn: mean(4),
        under_sn: mean(5),
        off: mean(6),
        clear: mean(7),
        flight: SUMS[8].load(Relaxed) / NOTIFICATIONS.load(Relaxed).max(1),
    }
}
