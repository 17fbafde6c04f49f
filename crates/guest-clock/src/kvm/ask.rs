//! Asking vCPUs that may still run: `KVM_RUN` holds a vCPU's lock, and an ioctl that waits for it
//! ends by a fatal signal only. So a helper thread asks.
//!
//! A vCPU that does not answer keeps its helper, and one copy of its descriptor, until it leaves
//! `KVM_RUN`. The next call about the same vCPU waits for that helper and starts no other: however
//! often is tried, a vCPU that runs costs one thread and one descriptor.

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

/// What a helper still has to ask.
#[derive(Debug, Default)]
struct Questions {
    left: VecDeque<OwnedFd>,
    /// The vCPU that it asks now.
    asked: Option<Arc<OwnedFd>>,
}

/// A helper that has not come back.
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

fn ask(vcpu: BorrowedFd<'_>) -> Answer {
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
            let all = vcpus.iter().enumerate();
            return all.map(|(at, vcpu)| frequency(at, ask(*vcpu))).collect();
        }
        Stopping::Within(patience) => patience,
    };
    // A patience beyond the end of time is one without end.
    let until = Instant::now().checked_add(patience);
    await_earlier(vcpus, until)?;
    let mut left = VecDeque::with_capacity(vcpus.len());
    for (vcpu, fd) in vcpus.iter().enumerate() {
        let copy = fd.try_clone_to_owned();
        left.push_back(copy.map_err(|error| NoAnswer::Failed {
            vcpu,
            errno: errno(&error, libc::EMFILE),
        })?);
    }
    let questions = Arc::new(Mutex::new(Questions { left, asked: None }));
    let (answer, answers) = mpsc::channel();
    let helper = Arc::clone(&questions);
    let started = thread::Builder::new()
        .name("guest-clock".to_owned())
        .spawn(move || ask_all(&helper, &answer));
    started.map_err(|error| NoAnswer::NoThread {
        errno: errno(&error, libc::EAGAIN),
    })?;
    let mut all = Vec::with_capacity(vcpus.len());
    for vcpu in 0..vcpus.len() {
        match receive(&answers, until) {
            Ok(answer) => all.push(frequency(vcpu, answer)?),
            Err(_) => {
                let mut questions = lock(&questions);
                questions.left.clear();
                if let Some(vcpu) = questions.asked.take() {
                    lock(&WAITING).push(Waiting { vcpu, answers });
                }
                return Err(NoAnswer::Busy { vcpu });
            }
        }
    }
    Ok(all)
}

fn errno(error: &std::io::Error, otherwise: i32) -> Errno {
    Errno(error.raw_os_error().unwrap_or(otherwise))
}

fn receive(answers: &Receiver<Answer>, until: Option<Instant>) -> Result<Answer, RecvTimeoutError> {
    match until {
        Some(until) => answers.recv_timeout(until.saturating_duration_since(Instant::now())),
        None => Ok(answers.recv()?),
    }
}

fn ask_all(questions: &Mutex<Questions>, answer: &Sender<Answer>) {
    loop {
        let next = {
            let mut questions = lock(questions);
            let next = questions.left.pop_front().map(Arc::new);
            questions.asked.clone_from(&next);
            next
        };
        let Some(vcpu) = next else {
            return;
        };
        let khz = ask(vcpu.as_fd());
        // The last copy must not outlive its answer.
        drop(vcpu);
        lock(questions).asked = None;
        if answer.send(khz).is_err() {
            return;
        }
    }
}

/// Helpers of earlier calls that wait for one of these vCPUs come back first.
fn await_earlier(vcpus: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<(), NoAnswer> {
    for (vcpu, fd) in vcpus.iter().enumerate() {
        let mut waiting = lock(&WAITING);
        waiting.retain(|w| !came_back(w));
        let Some(same) = waiting.iter().position(|w| same_file(*fd, w.vcpu.as_fd())) else {
            continue;
        };
        let earlier = waiting.swap_remove(same);
        drop(waiting);
        loop {
            match receive(&earlier.answers, until) {
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
