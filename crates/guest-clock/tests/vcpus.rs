//! Which vCPUs are given, whether they can be asked, and what a chain of restores adds up to.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::device::{TscMeans, Vcpu, Vm};
use guest_clock::fake::{FakeHost, FakeVcpu, FakeVm};
use guest_clock::{
    GuestClocks, OffsetsOutcome, Options, PlanError, Policy, Reason, RestoreError, SaveError,
    Saved, State, Unequal, WrongVcpus,
};

const KHZ: u32 = 2_500_000;

fn running(host: &FakeHost, vcpus: usize) -> (FakeVm, Vec<FakeVcpu>) {
    let (vm, vcpus) = host.vm(vcpus);
    vm.set_clock(&Default::default()).unwrap();
    host.pass(1_000_000_000);
    (vm, vcpus)
}

/// The same error from a save and from a restore, which writes nothing.
fn refused(host: &FakeHost, saved: &Saved, vm: &FakeVm, vcpus: &[FakeVcpu], why: WrongVcpus) {
    let error = GuestClocks::save(vm, vcpus).unwrap_err();
    assert_eq!(error, SaveError::Vcpus(why));
    let _ = host.calls();
    let error = saved.restore(vm, vcpus, Policy::ELAPSED).unwrap_err();
    assert_eq!(error, RestoreError::Refused(PlanError::Vcpus(why)));
    let wrote = host.calls().iter().any(|call| call.contains("SET"));
    assert!(!wrote, "{error}");
}

#[test]
fn the_wrong_vcpus_are_refused() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = running(&host, 2);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let (vm, mut vcpus) = running(&host, 3);
    let (_other, others) = running(&host, 2);

    let twice = [vcpus[1].clone(), vcpus[1].clone()];
    let why = WrongVcpus::Twice {
        first: 0,
        again: 1,
        id: 1,
    };
    refused(&host, &saved, &vm, &twice, why);

    let mixed = [vcpus[0].clone(), others[1].clone()];
    let why = WrongVcpus::AnotherVm { vcpu: 1, id: 1 };
    refused(&host, &saved, &vm, &mixed, why);
    let why = WrongVcpus::AnotherVm { vcpu: 0, id: 0 };
    refused(&host, &saved, &vm, &others, why);

    let third = vcpus.pop().unwrap();
    let why = WrongVcpus::LeftOut { id: 2, given: 2 };
    refused(&host, &saved, &vm, &vcpus, why);
    vcpus.push(third);
    GuestClocks::save(&vm, &vcpus).unwrap();
}

/// KVM reads the wall clock some 80 ns after the instant that it counts from. Left in, a guest that is
/// saved and restored a thousand times is 80 us ahead.
#[test]
fn a_thousand_restores_do_not_add_up() {
    let host = FakeHost::new(KHZ);
    host.read_wall_clock_late(80);
    let (mut vm, mut vcpus) = running(&host, 2);
    let ahead = |vm: &FakeVm| {
        let data = vm.get_clock().unwrap();
        data.clock_ns.wrapping_sub(data.realtime_ns) as i64
    };
    let before = ahead(&vm);
    for _ in 0..1000 {
        let saved = GuestClocks::save(&vm, &vcpus).unwrap();
        host.pass(5_000_000);
        let (next, next_vcpus) = host.vm(2);
        let done = saved.restore(&next, &next_vcpus, Policy::ELAPSED).unwrap();
        assert!(done.clock_residual_ns.unwrap().abs() <= 8, "{done}");
        (vm, vcpus) = (next, next_vcpus);
    }
    let off = ahead(&vm) - before;
    assert!(off.abs() < 8_000, "{off} ns after 1000 restores");
}

/// An interruption between the two readings is not taken for what KVM usually takes.
#[test]
fn an_attempt_that_was_interrupted_is_not_aimed_by() {
    for late in [1, 80, 5_000] {
        let host = FakeHost::new(KHZ);
        let (vm, vcpus) = running(&host, 2);
        let saved = GuestClocks::save(&vm, &vcpus).unwrap();
        host.read_wall_clock_late(late);
        let (vm, vcpus) = host.vm(2);
        let done = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap();
        assert!(
            done.clock_residual_ns.unwrap().abs() <= 20,
            "{late}: {done}"
        );
    }
}

/// What is said of offsets that differ is what became of them.
#[test]
fn offsets_that_kvm_changes_are_not_called_kept() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = running(&host, 2);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let State::X86(mut x86) = saved.state().clone() else {
        panic!("{saved:?}");
    };
    // Behind, so that the fixed offsets set nothing back.
    for (vcpu, behind) in x86.vcpus.iter_mut().zip([1 << 40, (1 << 40) + 1000]) {
        vcpu.tsc_offset = vcpu.tsc_offset.wrapping_sub(behind);
    }
    let saved = Saved::new(State::X86(x86)).unwrap();
    let how = Options::new(Policy::ELAPSED)
        .unequal(Unequal::Keep)
        .accept_inexact();
    for (means, expected, text) in [
        (TscMeans::Offsets, OffsetsOutcome::Kept, ": kept"),
        (TscMeans::Values, OffsetsOutcome::MadeEqual, ": made equal"),
        (
            TscMeans::Fixed,
            OffsetsOutcome::AsKvmHasThem,
            ": not carried over, this KVM moves no TSC",
        ),
    ] {
        host.set_means(means);
        let (vm, vcpus) = host.vm(2);
        let done = saved.restore(&vm, &vcpus, how).unwrap();
        let outcome = done.reasons.iter().find_map(|reason| match reason {
            Reason::OffsetsDiffered { outcome, .. } => Some(*outcome),
            _ => None,
        });
        assert_eq!(outcome, Some(expected), "{done}");
        assert!(done.to_string().contains(text), "{done}");
        if means == TscMeans::Offsets {
            let apart = vcpus[0].tsc_offset().unwrap() - vcpus[1].tsc_offset().unwrap();
            assert_eq!(apart, 1000);
        }
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod threads {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use guest_clock::Errno;
    use guest_clock::device::{NoAnswer, Stopping, Vcpu};
    use guest_clock::kvm::RawVcpu;

    use crate::seccomp::{end, equal, install, word};

    /// From now on this thread starts no other: `clone` and `clone3` fail with `EAGAIN`, as under a
    /// pids limit or a VMM's filter.
    fn forbid_threads() {
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32;
        let mut program = [
            word(0),
            equal(libc::SYS_clone as u32, 2, 0),
            equal(libc::SYS_clone3 as u32, 1, 0),
            end(libc::SECCOMP_RET_ALLOW),
            end(refuse),
        ];
        install(&mut program);
    }

    /// It panicked, and through the C interface aborted the VMM.
    #[test]
    fn where_no_thread_can_be_had_that_is_an_error_and_stopped_vcpus_need_none() {
        // In a thread of its own: what it gives up is gone with it.
        let tried = std::thread::spawn(|| {
            forbid_threads();
            let file = File::open("/dev/null").unwrap();
            let vcpus = [RawVcpu::new(file.as_fd())];
            let within = Stopping::Within(Duration::from_millis(1));
            let errno = Errno(libc::EAGAIN);
            let asked = RawVcpu::frequencies(&vcpus, within);
            assert_eq!(asked, Err(NoAnswer::NoThread { errno }));
            // Asked directly: what is no vCPU says so itself.
            let errno = Errno(libc::ENOTTY);
            let asked = RawVcpu::frequencies(&vcpus, Stopping::Done);
            assert_eq!(asked, Err(NoAnswer::Failed { vcpu: 0, errno }));
        });
        tried.join().unwrap();
    }

    #[test]
    fn the_error_says_what_to_do() {
        let errno = Errno(libc::EAGAIN);
        let error = guest_clock::SaveError::from(NoAnswer::NoThread { errno }).to_string();
        assert!(
            error.contains("pids") && error.contains("Stopping::Done"),
            "{error}"
        );
    }
}
