//! Frequencies of vCPUs that may still run. `KVM_RUN` holds a vCPU's lock (`vcpu->mutex`), and a fatal
//! signal alone ends an ioctl that waits for it. So a helper thread makes the ioctl.
//!
//! A vCPU that does not answer keeps its helper, and one copy of its descriptor, until it leaves
//! `KVM_RUN`. The next call for the same vCPU waits for that helper and starts no other. So a vCPU that
//! runs costs one thread and one descriptor, after any number of attempts.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::ioctl::{self, by_number};
use crate::device::{NoAnswer, Stopping};
use crate::error::Errno;

type Answer = Result<i32, Errno>;

/// The queries of a helper, and its answers. A channel of the standard library costs a VMM some 40 kB of text
/// more.
#[derive(Debug, Default)]
struct Queries {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    remaining: VecDeque<OwnedFd>,
    /// The vCPU of the query in progress.
    current: Option<Arc<OwnedFd>>,
    /// In the order of the queries.
    answers: VecDeque<Answer>,
    /// The helper makes no further query.
    has_ended: bool,
}

impl Queries {
    /// Waits until `found` gives something; `None` after the deadline.
    fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut found: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = found(&mut state) {
                return Some(found);
            }
            let Some(deadline) = deadline else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, remaining);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A helper in an ioctl that has not returned.
#[derive(Debug)]
struct Waiting {
    vcpu: Arc<OwnedFd>,
    queries: Arc<Queries>,
}

static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No holder panics halfway through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn query(vcpu: BorrowedFd<'_>) -> Answer {
    by_number(vcpu, ioctl::GET_TSC_KHZ, 0)
}

fn frequency(vcpu: usize, answer: Answer) -> Result<u32, NoAnswer> {
    let khz = answer.map_err(|errno| NoAnswer::Failed { vcpu, errno })?;
    Ok(khz.cast_unsigned())
}

/// `KVM_GET_TSC_KHZ` of each.
pub(super) fn frequencies(
    vcpus: &[BorrowedFd<'_>],
    stopping: Stopping,
) -> Result<Vec<u32>, NoAnswer> {
    let patience = match stopping {
        Stopping::Done => {
            let queries = vcpus.iter().enumerate();
            return queries
                .map(|(index, vcpu)| frequency(index, query(*vcpu)))
                .collect();
        }
        Stopping::Within(patience) => patience,
    };
    // A deadline beyond the range of `Instant` is none.
    let deadline = Instant::now().checked_add(patience);
    await_earlier(vcpus, deadline)?;
    let mut remaining = VecDeque::with_capacity(vcpus.len());
    for (vcpu, fd) in vcpus.iter().enumerate() {
        let copy = fd.try_clone_to_owned();
        remaining.push_back(copy.map_err(|error| NoAnswer::Failed {
            vcpu,
            errno: errno(&error, libc::EMFILE),
        })?);
    }
    let queries = Arc::new(Queries {
        state: Mutex::new(State {
            remaining,
            ..State::default()
        }),
        ..Queries::default()
    });
    let helper = Arc::clone(&queries);
    let started = thread::Builder::new()
        .name("guest-clock".to_owned())
        .spawn(move || query_all(&helper));
    started.map_err(|error| NoAnswer::NoThread {
        errno: errno(&error, libc::EAGAIN),
    })?;
    let mut frequencies = Vec::with_capacity(vcpus.len());
    for vcpu in 0..vcpus.len() {
        let answer = queries.wait(deadline, |state| state.answers.pop_front());
        let khz = answer.map_or(Err(NoAnswer::Busy { vcpu }), |answer| {
            frequency(vcpu, answer)
        });
        match khz {
            Ok(khz) => frequencies.push(khz),
            Err(error) => {
                let mut state = lock(&queries.state);
                state.remaining.clear();
                let current = state.current.take();
                drop(state);
                if let Some(vcpu) = current {
                    lock(&WAITING).push(Waiting { vcpu, queries });
                }
                return Err(error);
            }
        }
    }
    Ok(frequencies)
}

fn errno(error: &std::io::Error, otherwise: i32) -> Errno {
    Errno(error.raw_os_error().unwrap_or(otherwise))
}

fn query_all(queries: &Queries) {
    let next = || {
        let mut state = lock(&queries.state);
        let next = state.remaining.pop_front().map(Arc::new);
        state.current.clone_from(&next);
        state.has_ended = next.is_none();
        next
    };
    while let Some(vcpu) = next() {
        let khz = query(vcpu.as_fd());
        // The last copy of the descriptor must not outlive its answer.
        drop(vcpu);
        let mut state = lock(&queries.state);
        state.current = None;
        state.answers.push_back(khz);
        drop(state);
        queries.changed.notify_all();
    }
    queries.changed.notify_all();
}

/// Waits for helpers of earlier calls that are in an ioctl of one of these vCPUs.
fn await_earlier(vcpus: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Result<(), NoAnswer> {
    for (vcpu, fd) in vcpus.iter().enumerate() {
        let mut waiting = lock(&WAITING);
        waiting.retain(|w| !lock(&w.queries.state).has_ended);
        let Some(position) = waiting.iter().position(|w| same_file(*fd, w.vcpu.as_fd())) else {
            continue;
        };
        let earlier = waiting.swap_remove(position);
        drop(waiting);
        let ended = earlier
            .queries
            .wait(deadline, |state| state.has_ended.then_some(()));
        if ended.is_none() {
            lock(&WAITING).push(earlier);
            return Err(NoAnswer::Busy { vcpu });
        }
    }
    Ok(())
}

/// Whether two descriptors are of one open file (`kcmp`, `KCMP_FILE`). Where that call is missing or
/// forbidden, equal numbers count: a copy has another number, so a helper may be started twice.
fn same_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    const KCMP_FILE: libc::c_int = 0;
    let pid = std::process::id();
    // SAFETY: the call compares two descriptors of this process and touches no memory. Needed:
    // there is no safe one.
    let compared = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            pid,
            pid,
            KCMP_FILE,
            a.as_raw_fd(),
            b.as_raw_fd(),
        )
    };
    compared == 0
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_copy_is_the_same_file_and_another_opening_is_not() {
        let open = || File::open("/dev/null").expect("/dev/null");
        let (file, other) = (open(), open());
        let copy = file.try_clone().expect("a descriptor");
        if !same_file(file.as_fd(), file.as_fd()) {
            println!("skipped: no kcmp here");
            return;
        }
        assert!(same_file(file.as_fd(), copy.as_fd()));
        assert!(!same_file(file.as_fd(), other.as_fd()));
    }

    #[test]
    fn an_endless_patience_is_no_overflow() {
        let file = File::open("/dev/null").expect("/dev/null");
        let stopping = Stopping::Within(std::time::Duration::MAX);
        let errno = Errno(libc::ENOTTY);
        let failed = Err(NoAnswer::Failed { vcpu: 0, errno });
        assert_eq!(frequencies(&[file.as_fd()], stopping), failed);
        assert_eq!(frequencies(&[file.as_fd()], Stopping::Done), failed);
    }
}
