//! vCPUs that belong to threads.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::thread;
use std::time::Duration;

use guest_clock::device::{Stopping, Vcpu, Vm};
use guest_clock::fake::FakeHost;
use guest_clock::{Errno, GuestClocks, Policy, SaveError, ThreadVcpu, WrongVcpus, vcpu_of_thread};

#[test]
fn clocks_are_saved_and_restored_through_threads_as_without() {
    let host = FakeHost::new(2_500_000);
    let (vm, vcpus) = host.vm(3);
    vm.set_clock(&Default::default()).unwrap();
    let direct = GuestClocks::save(&vm, &vcpus).unwrap();
    let (mut handles, mut sides) = (Vec::new(), Vec::new());
    for vcpu in &vcpus {
        let (handle, side) = vcpu_of_thread();
        handles.push(handle);
        sides.push((vcpu.clone(), side));
    }
    thread::scope(|scope| {
        for (vcpu, side) in sides {
            scope.spawn(move || side.serve(&vcpu));
        }
        let saved = GuestClocks::save(&vm, &handles).unwrap();
        let offsets = |saved: &guest_clock::Saved| saved.to_json().matches("tsc_offset").count();
        assert_eq!(offsets(&saved), offsets(&direct));
        let done = direct.restore(&vm, &handles, Policy::ELAPSED).unwrap();
        assert!(
            done.is_exact() && done.for_guest.notified_vcpus == 3,
            "{done}"
        );
        // One handle twice is one vCPU twice.
        let twice: Vec<&ThreadVcpu> = vec![&handles[0], &handles[0], &handles[2]];
        let refused = GuestClocks::save_with(&vm, &twice, Stopping::Done);
        assert!(matches!(
            refused,
            Err(SaveError::Vcpus(WrongVcpus::Twice { .. }))
        ));
        drop(handles);
    });
}

#[test]
fn a_thread_that_does_not_serve_is_busy_and_one_that_is_gone_is_an_error() {
    let host = FakeHost::new(2_500_000);
    let (vm, vcpus) = host.vm(2);
    let (handles, sides): (Vec<_>, Vec<_>) = (0..2).map(|_| vcpu_of_thread()).unzip();
    let [first, second] = <[_; 2]>::try_from(sides).ok().unwrap();
    let serving = vcpus[0].clone();
    thread::scope(|scope| {
        scope.spawn(move || first.serve(&serving));
        let within = Stopping::Within(Duration::from_millis(20));
        let busy = GuestClocks::save_with(&vm, &handles, within);
        assert_eq!(busy, Err(SaveError::Busy { vcpu: 1 }));
        drop(second);
        assert_eq!(handles[1].tsc_offset(), Err(Errno(libc::ESRCH)));
        let gone = GuestClocks::save_with(&vm, &handles, Stopping::Done);
        assert!(matches!(gone, Err(SaveError::Ioctl(_))), "{gone:?}");
        drop(handles);
    });
}
