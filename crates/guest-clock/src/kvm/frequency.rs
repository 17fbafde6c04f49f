//! Frequencies of vCPUs that may still run. `KVM_RUN` holds a vCPU's lock (`vcpu->mutex`), and a fatal
//! signal alone ends an ioctl that waits for it. So a helper thread makes the ioctl.
//!
//! A vCPU that does not answer keeps its helper, and one copy of its descriptor, until it leaves
//! `KVM_RUN`. The next call for the same vCPU waits for that helper and starts no other. So a vCPU that
//! runs costs one thread and one descriptor, after any number of attempts.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::ioctl::{self, by_number};
use crate::device::{NoAnswer, Stopping};
use crate::error::Errno;

type Answer = Result<i32, Errno>;

/// The queries of a helper.
#[derive(Debug, Default)]
struct Queries {
    remaining: VecDeque<OwnedFd>,
    /// The vCPU of the query in progress.
    current: Option<Arc<OwnedFd>>,
}

/// A helper in an ioctl that has not returned.
#[derive(Debug)]
struct Waiting {
    vcpu: Arc<OwnedFd>,
    answers: Receiver<Answer>,
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
    let queries = Arc::new(Mutex::new(Queries {
        remaining,
        current: None,
    }));
    let (answer, answers) = mpsc::channel();
    let helper = Arc::clone(&queries);
    let started = thread::Builder::new()
        .name("guest-clock".to_owned())
        .spawn(move || query_all(&helper, &answer));
    started.map_err(|error| NoAnswer::NoThread {
        errno: errno(&error, libc::EAGAIN),
    })?;
    let mut frequencies = Vec::with_capacity(vcpus.len());
    for vcpu in 0..vcpus.len() {
        match receive(&answers, deadline) {
            Ok(answer) => frequencies.push(frequency(vcpu, answer)?),
            Err(_) => {
                let mut queries = lock(&queries);
                queries.remaining.clear();
                if let Some(vcpu) = queries.current.take() {
                    lock(&WAITING).push(Waiting { vcpu, answers });
                }
                return Err(NoAnswer::Busy { vcpu });
            }
        }
    }
    Ok(frequencies)
}

fn errno(error: &std::io::Error, otherwise: i32) -> Errno {
    Errno(error.raw_os_error().unwrap_or(otherwise))
}

fn receive(
    answers: &Receiver<Answer>,
    deadline: Option<Instant>,
) -> Result<Answer, RecvTimeoutError> {
    match deadline {
        Some(deadline) => answers.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        None => Ok(answers.recv()?),
    }
}

fn query_all(queries: &Mutex<Queries>, answer: &Sender<Answer>) {
    let next = || {
        let mut queries = lock(queries);
        let next = queries.remaining.pop_front().map(Arc::new);
        queries.current.clone_from(&next);
        next
    };
    while let Some(vcpu) = next() {
        let khz = query(vcpu.as_fd());
        // The last copy of the descriptor must not outlive its answer.
        drop(vcpu);
        lock(queries).current = None;
        if answer.send(khz).is_err() {
            return;
        }
    }
}

/// Waits for helpers of earlier calls that are in an ioctl of one of these vCPUs.
fn await_earlier(vcpus: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Result<(), NoAnswer> {
    for (vcpu, fd) in vcpus.iter().enumerate() {
        let mut waiting = lock(&WAITING);
        waiting.retain(|w| !came_back(w));
        let Some(position) = waiting.iter().position(|w| same_file(*fd, w.vcpu.as_fd())) else {
            continue;
        };
        let earlier = waiting.swap_remove(position);
        drop(waiting);
        loop {
            match receive(&earlier.answers, deadline) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    lock(&WAITING).push(earlier);
                    return Err(NoAnswer::Busy { vcpu });
                }
            }
        }
    }
    Ok(())
}

fn came_back(waiting: &Waiting) -> bool {
    loop {
        match waiting.answers.try_recv() {
            Ok(_) => {}
            Err(error) => return error == mpsc::TryRecvError::Disconnected,
        }
    }
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
