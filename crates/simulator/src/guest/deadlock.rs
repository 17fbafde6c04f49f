//! Deadlocks: threads of a guest that wait for each other, or for a count that no thread will give.

use super::{Guests, Kernel, SpinOn, ThreadState};
use crate::fault::{Fault, Sim};
use crate::ids::{ThreadNr, VmNr};
use crate::program::QueueId;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Nothing, or what comes without any thread: time, a device, clients.
    Nothing,
    /// A count of a queue, from any thread.
    Queue(u32),
    /// A lock, from its owner.
    Lock(SpinOn, Option<ThreadNr>),
}

/// At the end: whether a guest's threads wait for each other.
pub(crate) fn check_deadlock(guests: &Guests) -> Sim {
    for vm in guests.vms.numbers() {
        check_guest(guests, vm)?;
    }
    Ok(())
}

/// Whether threads of a guest can never go on.
///
/// # Errors
///
/// [`Fault::Deadlock`], with what each thread waits for.
pub(crate) fn check_guest(guests: &Guests, vm: VmNr) -> Sim {
    let kernel = &guests.vms[vm].kernel;
    let waits: Vec<Wait> = kernel
        .threads
        .numbers()
        .map(|thread| what_awaits(guests, vm, thread))
        .collect();
    let alive = |thread: ThreadNr| kernel.threads[thread].state != ThreadState::Dead;
    let goes_on = kernel
        .threads
        .numbers()
        .any(|t| alive(t) && waits[t.0 as usize] == Wait::Nothing);
    let stuck = |thread: ThreadNr| is_stuck(kernel, &waits, thread, goes_on);
    if !kernel.threads.numbers().any(|t| alive(t) && stuck(t)) {
        return Ok(());
    }
    let lines = kernel
        .threads
        .numbers()
        .filter(|&t| alive(t) && stuck(t))
        .map(|t| {
            format!(
                "{} waits for {}",
                kernel.threads[t].name,
                describe(kernel, waits[t.0 as usize])
            )
        })
        .collect();
    Err(Box::new(Fault::Deadlock {
        vm: guests.vms[vm].cfg.name.to_string(),
        waits: lines,
    }))
}

fn what_awaits(guests: &Guests, vm: VmNr, thread: ThreadNr) -> Wait {
    let kernel = &guests.vms[vm].kernel;
    let t = &kernel.threads[thread];
    let mutex = |id: u32| {
        let awaited = SpinOn::Mutex(crate::program::MutexId(id));
        match kernel.mutexes[id as usize].owner {
            // It is free, or handed over: the thread is about to go on.
            None => Wait::Nothing,
            Some(owner) if owner == thread => Wait::Nothing,
            owner => Wait::Lock(awaited, owner),
        }
    };
    match t.state {
        ThreadState::Waits(queue) if kernel.queues.is_from_outside(QueueId(queue)) => Wait::Nothing,
        ThreadState::Waits(queue) => Wait::Queue(queue),
        ThreadState::WaitsMutex(id) => mutex(id),
        ThreadState::Runnable => {
            let g = &guests.cpus[guests.vcpu_of(vm, t.vcpu)];
            match g.spin.filter(|_| g.current == Some(thread)) {
                Some(spin) => match spin.on {
                    SpinOn::Lock(lock) => {
                        let owner = kernel.spinlocks[lock.0 as usize].owner;
                        match owner.and_then(|owner| owner.thread) {
                            Some(owner) if owner != thread => Wait::Lock(spin.on, Some(owner)),
                            _ => Wait::Nothing,
                        }
                    }
                    SpinOn::Mutex(id) => mutex(id.0),
                    SpinOn::Call | SpinOn::IdlePoll | SpinOn::Mwait => Wait::Nothing,
                },
                None => Wait::Nothing,
            }
        }
        ThreadState::WaitsDevice | ThreadState::Sleeps | ThreadState::Dead => Wait::Nothing,
    }
}

/// Follows the chain of waits. It ends in a circle, at a thread that has ended, or at a wait for a
/// count that no thread will give.
fn is_stuck(kernel: &Kernel, waits: &[Wait], thread: ThreadNr, goes_on: bool) -> bool {
    let mut current = thread;
    for _ in 0..=waits.len() {
        match waits[current.0 as usize] {
            Wait::Nothing => return kernel.threads[current].state == ThreadState::Dead,
            Wait::Queue(_) => return !goes_on,
            Wait::Lock(_, Some(owner)) => current = owner,
            Wait::Lock(_, None) => return false,
        }
    }
    true
}

fn describe(kernel: &Kernel, wait: Wait) -> String {
    let holder = |owner: Option<ThreadNr>| match owner {
        Some(owner) if kernel.threads[owner].state == ThreadState::Dead => {
            format!("{}, which has ended, holds", kernel.threads[owner].name)
        }
        Some(owner) => format!("{} holds", kernel.threads[owner].name),
        None => "no thread holds".to_owned(),
    };
    match wait {
        Wait::Nothing => "nothing".to_owned(),
        Wait::Queue(queue) => format!("a count of {}", kernel.queues.name(QueueId(queue))),
        Wait::Lock(SpinOn::Lock(lock), owner) => {
            let name = &kernel.spinlocks[lock.0 as usize].name;
            format!("spinlock {name}, which {}", holder(owner))
        }
        Wait::Lock(SpinOn::Mutex(mutex), owner) => {
            let name = &kernel.mutexes[mutex.0 as usize].name;
            format!("mutex {name}, which {}", holder(owner))
        }
        Wait::Lock(_, owner) => holder(owner),
    }
}
