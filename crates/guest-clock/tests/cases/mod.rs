//! What the kernel's own selftests check, and more, against the real KVM.

mod chain;
mod deadline;
mod descriptors;
mod drift;
mod errors;
pub mod limits;

use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use guest_clock::bench::ioctls;
use guest_clock::device::{
    MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE, MSR_KVM_SYSTEM_TIME_NEW, MsrValue,
    Stopping, TscMeans, Vcpu, Vm,
};
use guest_clock::drill::{Device, Drill};
use guest_clock::fake::FakeHost;
use guest_clock::guest::Guest;
use guest_clock::kvm::{RawVcpu, RawVm, host, rdtsc};
use guest_clock::{
    Errno, GuestClocks, HostError, Options, PlanError, Policy, RestoreError, SaveError, Saved,
    WrongVcpus,
};
use stealtime_hypervisor::counter::kvm_clock::KvmClockData;

/// Done, or why not here.
pub type Outcome = Result<(), String>;

/// A name, and what is tried.
pub type Case = (&'static str, fn() -> Outcome);

/// Every case.
pub const ALL: [Case; 24] = [
    (
        "descriptors that were not to be had for the first call are there for the next",
        first_failure,
    ),
    (
        "kvm_clock_test: guest's kvmclock lies between two of the host's",
        kvm_clock_test,
    ),
    (
        "flags: unknown refused, known ignored, no step back",
        clock_flags,
    ),
    (
        "system_counter_offset_test: guest's TSC lies between two of the host's",
        offset_test,
    ),
    (
        "tsc_msrs_test: TSC_ADJUST by the VMM moves no TSC",
        msrs_test,
    ),
    ("tsc_scaling_sync: scaled vCPUs see one TSC", scaling_sync),
    ("one mismatching vCPU turns the master clock off", mismatch),
    ("restore twice: same guest time, no step back", twice),
    ("drill: every promise kept", drill),
    (
        "deadline timer armed before the save fires after the restore",
        deadline::fires_after_the_restore,
    ),
    (
        "deadline that passed meanwhile fires at once",
        deadline::fires_if_it_passed_meanwhile,
    ),
    (
        "deadline that fired between stop and save is not lost",
        deadline::fires_if_it_was_lost_to_the_save,
    ),
    (
        "deadline without a restored LAPIC is named",
        deadline::says_if_the_lapic_was_not_restored,
    ),
    (
        "64 vCPUs saved and restored within a millisecond",
        sixty_four,
    ),
    ("a running vCPU is reported, not waited for", busy),
    (
        "a running vCPU costs one thread and one descriptor, however often is tried",
        busy_again,
    ),
    (
        "one vCPU twice, one left out, one of another VM",
        wrong_vcpus,
    ),
    limits::JAIL,
    descriptors::RUN_OUT,
    errors::ERRORS,
    limits::FORKED,
    (
        "restores in a row: no step back, vCPUs equal, no drift",
        chain::chain,
    ),
    ("a guest's readings of its TSC, native and trapped", reads),
    (
        "the model without a device agrees with this device",
        model_agrees,
    ),
];

/// System calls of a save and a restore, without threads (docs/guest-clocks-c.md).
const CALLS: [libc::c_long; 10] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_openat,
    libc::SYS_getdents64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_fcntl,
    libc::SYS_readlink,
    libc::SYS_close,
];
/// Their ioctls: `KVM_GET_CLOCK`, `_SET_CLOCK`, `_GET_TSC_KHZ`, `_SET_TSC_KHZ`, `_GET_MSRS`, `_SET_MSRS`,
/// `_GET_DEVICE_ATTR`, `_SET_DEVICE_ATTR`, `KVM_KVMCLOCK_CTRL`.
const IOCTLS: [u32; 9] = [
    0x8030_ae7c,
    0x4030_ae7b,
    0xaea3,
    0xaea2,
    0xc008_ae88,
    0x4008_ae89,
    0x4018_aee2,
    0x4018_aee1,
    0xaead,
];

/// Saves a stopped guest, and restores into a VM that has not run.
fn save_and_restore(source: &Guest, target: &Guest, stopping: Stopping) -> Outcome {
    let raw = |vcpus: &[kvm_ioctls::VcpuFd]| -> Vec<RawVcpu<'static>> {
        let raw = |vcpu: &kvm_ioctls::VcpuFd| {
            // SAFETY: both guests live to the end of this function.
            RawVcpu::new(unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) })
        };
        vcpus.iter().map(raw).collect()
    };
    let saved = GuestClocks::save_with(&source.vm, &raw(&source.vcpus), stopping);
    let saved = saved.map_err(|error| error.to_string())?;
    let options = Options::new(Policy::ELAPSED).stopping(stopping);
    let done = saved.restore(&target.vm, &raw(&target.vcpus), options);
    done.map(|_| ()).map_err(|error| error.to_string())
}

/// What is refused of a stopped guest and of a VM that has not run.
fn refusals(source: &Guest, target: &Guest) -> Vec<Outcome> {
    let file = std::fs::File::open("/dev/null").unwrap();
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let save = |vm: BorrowedFd, vcpus: &[BorrowedFd]| {
        let vcpus: Vec<_> = vcpus.iter().map(|vcpu| RawVcpu::new(*vcpu)).collect();
        GuestClocks::save(&RawVm::new(vm), &vcpus).map_err(|error| text(&error))
    };
    // SAFETY: both guests live to the end of this function.
    let borrow = |raw: &dyn AsRawFd| unsafe { BorrowedFd::borrow_raw(raw.as_raw_fd()) };
    let (vm, null) = (borrow(&source.vm), borrow(&file));
    let [first, second] = [0, 1].map(|index| borrow(&source.vcpus[index]));
    let saved = save(vm, &[first, second]).unwrap();
    let restore = |options: Options, vcpus: &[kvm_ioctls::VcpuFd]| {
        let done = saved.restore(&target.vm, vcpus, options);
        done.map(|_| ()).map_err(|error| text(&error))
    };
    let elapsed = Options::new(Policy::ELAPSED);
    vec![
        save(vm, &[]).map(|_| ()),
        save(vm, &[first, first]).map(|_| ()),
        save(vm, &[first, borrow(&target.vcpus[1])]).map(|_| ()),
        save(vm, &[first, null]).map(|_| ()),
        save(null, &[first, second]).map(|_| ()),
        restore(elapsed, &target.vcpus[..1]),
        restore(elapsed.wall_clocks(2, 1), &target.vcpus),
        restore(
            Options::new(Policy::Elapsed { refuse_above_ns: 0 }),
            &target.vcpus,
        ),
    ]
}

fn guest(vcpus: usize) -> Result<Guest, String> {
    match host() {
        Ok(_) => Guest::new(vcpus).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

fn set(vm: &impl Vm, clock_ns: u64, flags: u32, realtime_ns: u64) -> Result<(), Errno> {
    vm.set_clock(&KvmClockData {
        clock_ns,
        flags,
        realtime_ns,
        host_tsc: 0,
    })
}

fn kvm_clock_test() -> Outcome {
    const OFFSET: i64 = 180_000_000_000;
    let mut guest = guest(1)?;
    for (base, offset) in [
        (0, None),
        (OFFSET, None),
        (0, Some(-OFFSET)),
        (0, Some(OFFSET)),
    ] {
        let now = guest.vm.bracket().realtime_ns;
        let (flags, real) = match offset {
            Some(offset) => (4, now.wrapping_add_signed(offset)),
            None => (0, 0),
        };
        set(&guest.vm, base.cast_unsigned(), flags, real).unwrap();
        let start = Vm::get_clock(&guest.vm).unwrap();
        if start.flags & 12 != 12 {
            return Err(format!("no instants, flags {:#x}", start.flags));
        }
        guest.run(1).unwrap();
        let end = Vm::get_clock(&guest.vm).unwrap();
        assert_eq!(end.flags & 12, 12);
        let (_, clock) = guest.last(0);
        assert!(
            start.clock_ns <= clock && clock <= end.clock_ns,
            "{start:?} {clock} {end:?}"
        );
        // The kvmclock goes on by the wall clock, and never back.
        let least = base.cast_unsigned()
            + if offset == Some(-OFFSET) {
                180_000_000_000
            } else {
                0
            };
        assert!(
            (least..least + 10_000_000_000).contains(&start.clock_ns),
            "{start:?}"
        );
    }
    Ok(())
}

fn clock_flags() -> Outcome {
    let guest = guest(1)?;
    assert_eq!(set(&guest.vm, 0, 1, 0), Err(Errno(22)));
    assert_eq!(set(&guest.vm, 0, 16, 0), Err(Errno(22)));
    assert_eq!(set(&guest.vm, 5_000_000_000, 2 | 8, 0), Ok(()));
    let far = guest.vm.bracket().realtime_ns + 3_600_000_000_000;
    assert_eq!(set(&guest.vm, 7_000_000_000, 4, far), Ok(()));
    let clock = Vm::get_clock(&guest.vm).unwrap().clock_ns;
    assert!((7_000_000_000..8_000_000_000).contains(&clock), "{clock}");
    Ok(())
}

fn needs_offsets() -> Outcome {
    match host().map_err(|error| error.to_string())?.facts().means {
        TscMeans::Offsets => Ok(()),
        TscMeans::Fixed => Err("this KVM accepts TSC offsets and ignores them".to_owned()),
        _ => Err("this KVM has no TSC offsets".to_owned()),
    }
}

fn offset_test() -> Outcome {
    let mut guest = guest(1)?;
    for wanted in [0i64, 180_000_000_000, -180_000_000_000] {
        if guest.vcpus[0]
            .set_tsc_offset(wanted.cast_unsigned())
            .is_err()
        {
            break;
        }
        // Where offsets are ignored the guest's TSC must be where KVM says that it is.
        let offset = guest.vcpus[0].tsc_offset().unwrap().cast_signed();
        let before = rdtsc().wrapping_add_signed(offset);
        guest.run(1).unwrap();
        let after = rdtsc().wrapping_add_signed(offset);
        let (tsc, _) = guest.last(0);
        assert!((before..=after).contains(&tsc), "{before} {tsc} {after}");
    }
    needs_offsets()
}

/// What the VMM writes to `TSC_ADJUST` is there afterwards, and moves no TSC.
fn msrs_test() -> Outcome {
    let guest = guest(1)?;
    let vcpu = &guest.vcpus[0];
    let kvm = kvm_ioctls::Kvm::new().unwrap();
    let mut cpuid = kvm
        .get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES)
        .unwrap();
    for entry in cpuid.as_mut_slice().iter_mut() {
        // TSC_ADJUST
        entry.ebx |= u32::from(entry.function == 7 && entry.index == 0) << 1;
    }
    vcpu.set_cpuid2(&cpuid).unwrap();
    let offset = vcpu.tsc_offset();
    for adjust in [5, 0u64.wrapping_sub(7), 0] {
        if vcpu.set_msr(MSR_IA32_TSC_ADJUST, adjust) != Ok(true) {
            return Err("this KVM has no TSC_ADJUST".to_owned());
        }
        let read = vcpu.msr(MSR_IA32_TSC_ADJUST).unwrap();
        if adjust == 5 && read == Some(0) {
            return Err("this KVM ignores TSC_ADJUST".to_owned());
        }
        assert_eq!(read, Some(adjust));
        assert_eq!(vcpu.tsc_offset(), offset);
    }
    Ok(())
}

/// Scaled vCPUs that begin at once see one TSC.
fn scaling_sync() -> Outcome {
    let mut guest = guest(4)?;
    // A guest that is faster than a host without scaling is accepted, and its TSC set forward at each entry.
    if !host()
        .map_err(|error| error.to_string())?
        .facts()
        .has_scaling
    {
        return Err("this KVM scales no TSC".to_owned());
    }
    for vcpu in &guest.vcpus {
        if let Err(error) = Vcpu::set_tsc_khz(vcpu, 2_345_678) {
            return Err(format!("this KVM scales no TSC: {error}"));
        }
    }
    for vcpu in &guest.vcpus {
        vcpu.set_msr(MSR_IA32_TSC, 0).unwrap();
    }
    guest.run(100).unwrap();
    assert_eq!(guest.seen().tsc_back, 0, "{:?}", guest.seen());
    Ok(())
}

fn mismatch() -> Outcome {
    needs_offsets()?;
    let guest = guest(3)?;
    for offset in [1_000, 1_000, 2_000].iter().zip(&guest.vcpus) {
        offset.1.set_tsc_offset(*offset.0).unwrap();
    }
    set(&guest.vm, 0, 0, 0).unwrap();
    assert_eq!(Vm::get_clock(&guest.vm).unwrap().flags, 0);
    guest.vcpus[2].set_tsc_offset(2_000).unwrap();
    for vcpu in &guest.vcpus {
        vcpu.set_tsc_offset(2_000).unwrap();
    }
    set(&guest.vm, 0, 0, 0).unwrap();
    assert_ne!(Vm::get_clock(&guest.vm).unwrap().flags & 2, 0);
    Ok(())
}

fn twice() -> Outcome {
    let mut guest = guest(2)?;
    guest.run(20).unwrap();
    let saved = GuestClocks::save(&guest.vm, &guest.vcpus).unwrap();
    let mut next = Guest::with_memory(guest.memory(), 2).unwrap();
    let options = Options::new(Policy::ELAPSED);
    let plan = saved.plan(&next.vm, &next.vcpus, &options).unwrap();
    for _ in 0..3 {
        let done = plan.carry_out(&next.vm, &next.vcpus).unwrap();
        assert!(done.master_clock);
        let clock = Vm::get_clock(&next.vm).unwrap();
        let since = clock.realtime_ns - plan.anchor().realtime_ns;
        let off = clock.clock_ns.abs_diff(plan.clock_ns() + since);
        assert!(off <= done.kvmclock_against_real_ns, "{off} {done}");
        std::thread::sleep(Duration::from_millis(30));
    }
    next.run(20).unwrap();
    let seen = next.seen();
    assert_eq!(
        (seen.tsc_back, seen.clock_back_ns, seen.unstable),
        (0, 0, 0),
        "{seen:?}"
    );
    Ok(())
}

fn drill() -> Outcome {
    guest(1)?;
    let mut drill = Drill::default();
    (drill.device, drill.times, drill.rounds) = (Device::Kvm, 40, 5);
    drill.load *= usize::from(std::process::id() != 1);
    let report = drill.run(&mut |_, _| ControlFlow::Continue(())).unwrap();
    assert!(report.promises_kept(), "{report:?}");
    // By value the kvmclock is late by what the writing thread lost.
    assert!(report.methods[0].kvmclock.least < -10_000, "{report:?}");
    Ok(())
}

fn reads() -> Outcome {
    guest(1)?;
    println!("  {}", guest_clock::readings::HEADING);
    for reading in guest_clock::readings::readings().unwrap() {
        println!("  {reading}");
    }
    Ok(())
}

fn sixty_four() -> Outcome {
    guest(64)?;
    let times = ioctls(64, 20).unwrap();
    println!("{times}");
    let slowest = times.save.ioctl_least_ns.max(times.restore.ioctl_least_ns);
    // Three ioctls a vCPU, five where TSCs can be moved: even slow ones stay below this.
    assert!(slowest < 10_000_000, "{times}");
    if slowest < 1_000_000 {
        return Ok(());
    }
    // There a ns is an instruction, whatever else the machine does.
    assert!(std::process::id() != 1, "{slowest} ns in ioctls");
    Err(format!("{slowest} ns in ioctls: this KVM's are slow"))
}

/// Saves until that is refused, as the vCPU runs, or its guest is done. Until it runs, clocks can be saved.
fn save_until_busy(
    save: impl Fn() -> Result<Saved, SaveError>,
    is_done: impl Fn() -> bool,
) -> Result<Saved, SaveError> {
    loop {
        let saved = save();
        if saved.is_err() || is_done() {
            return saved;
        }
        std::thread::yield_now();
    }
}

fn busy() -> Outcome {
    let mut guest = guest(1)?;
    let vm = guest.vm.as_raw_fd();
    let vcpu = guest.vcpus[0].as_raw_fd();
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| guest.run(200_000));
        // SAFETY: the guest, and so its descriptors, outlive the scope. Needed: `run` has the
        // guest borrowed, which is what raw descriptors can get around.
        let (vm, vcpu) = unsafe { (BorrowedFd::borrow_raw(vm), BorrowedFd::borrow_raw(vcpu)) };
        let within = Stopping::Within(Duration::from_millis(100));
        let (vm, vcpus) = (RawVm::new(vm), [RawVcpu::new(vcpu)]);
        let save = || GuestClocks::save_with(&vm, &vcpus, within);
        let saved = save_until_busy(save, || runs.is_finished());
        let still_running = !runs.is_finished();
        runs.join().unwrap().unwrap();
        if !still_running {
            return Err("the guest was done before it could be asked".to_owned());
        }
        assert_eq!(saved, Err(SaveError::Busy { vcpu: 0 }));
        Ok(())
    })
}

fn busy_again() -> Outcome {
    let mut guest = guest(1)?;
    let (vm, vcpu) = (guest.vm.as_raw_fd(), guest.vcpus[0].as_raw_fd());
    // 20 attempts end before the guest does, also where an emulated host counts instructions.
    let within = Stopping::Within(Duration::from_millis(1));
    // SAFETY: descriptors that outlive this function's use of them.
    let (vm, vcpu) = unsafe {
        (
            RawVm::new(BorrowedFd::borrow_raw(vm)),
            [RawVcpu::new(BorrowedFd::borrow_raw(vcpu))],
        )
    };
    let (refused, unexpected) = std::thread::scope(|scope| {
        let runs = scope.spawn(|| guest.run(30_000));
        let before = descriptors::used();
        let save = || GuestClocks::save_with(&vm, &vcpu, within);
        let mut refused = 0;
        let mut unexpected = None;
        // The host may preempt the vCPU's thread between two KVM_RUN, and then the vCPU answers.
        while refused < 20 && unexpected.is_none() && !runs.is_finished() {
            match save() {
                Ok(_) => std::thread::yield_now(),
                Err(SaveError::Busy { vcpu: 0 }) => refused += 1,
                other => unexpected = Some(other),
            }
        }
        // A helper that was started too late to ask ends by itself.
        let more = || {
            descriptors::used()
                .iter()
                .zip(before)
                .any(|(now, before)| *now > before + 1)
        };
        while more() && !runs.is_finished() {
            std::thread::yield_now();
        }
        runs.join().unwrap().unwrap();
        (refused, unexpected)
    });
    // Stopped: the helper of the calls before comes back first, and this one is answered.
    GuestClocks::save_with(&vm, &vcpu, Stopping::Within(Duration::from_secs(60))).unwrap();
    assert_eq!(unexpected, None);
    if refused < 20 {
        return Err(format!("the guest was done after {refused} refusals"));
    }
    Ok(())
}

fn wrong_vcpus() -> Outcome {
    let (guest, other) = (guest(3)?, guest(2)?);
    if guest.vcpus[0].identity().is_none() {
        return Err("this KVM does not name its vCPUs' files".to_owned());
    }
    let raw = |vcpus: &[&kvm_ioctls::VcpuFd]| -> Vec<RawVcpu<'static>> {
        let raw = |vcpu: &&kvm_ioctls::VcpuFd| {
            // SAFETY: both guests live to the end of this function.
            RawVcpu::new(unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) })
        };
        vcpus.iter().map(raw).collect()
    };
    let [first, second, third] = [0, 1, 2].map(|at| &guest.vcpus[at]);
    let save =
        |vcpus: &[&kvm_ioctls::VcpuFd]| GuestClocks::save(&guest.vm, &raw(vcpus)).map(|_| ());
    assert_eq!(save(&[first, second, third]), Ok(()));
    // In any order.
    assert_eq!(save(&[third, first, second]), Ok(()));
    let (at, again, id) = (0, 1, 0);
    let twice = WrongVcpus::Twice {
        first: at,
        again,
        id,
    };
    assert_eq!(save(&[first, first, third]), Err(SaveError::Vcpus(twice)));
    let left_out = WrongVcpus::LeftOut { id: 1, given: 2 };
    assert_eq!(save(&[first, third]), Err(SaveError::Vcpus(left_out)));
    let another = WrongVcpus::AnotherVm { vcpu: 1, id: 1 };
    let mixed = [first, &other.vcpus[1], third];
    assert_eq!(save(&mixed), Err(SaveError::Vcpus(another)));
    Ok(())
}

/// Must come first: what was found out is kept.
fn first_failure() -> Outcome {
    let earlier = descriptors::limit(3);
    let first = host().map(|_| ());
    descriptors::limit(earlier);
    let second = host().map(|_| ());
    if let Err(HostError::NoDevice | HostError::Permission) = second {
        return Err(second.unwrap_err().to_string());
    }
    let errno = Errno(libc::EMFILE);
    assert_eq!((first, second), (Err(HostError::Open { errno }), Ok(())));
    Ok(())
}

/// The same calls on both: the same refusals, flags, registers and offsets. The model is configured to
/// ignore what this KVM ignores.
fn model_agrees() -> Outcome {
    let guest = guest(2)?;
    let facts = host().map_err(|error| error.to_string())?.facts();
    let model = FakeHost::with(facts);
    let (vm, vcpus) = model.vm(2);
    let device = observe(&guest.vm, &guest.vcpus);
    let model = observe(&vm, &vcpus);
    for (device, model) in device.iter().zip(&model) {
        assert_eq!(device, model);
    }
    assert_eq!(device.len(), model.len());
    println!("  {} observations are the same", device.len());
    if facts.means == TscMeans::Fixed {
        println!("  this KVM ignores TSC offsets and values: so does the model");
    }
    Ok(())
}

fn observe<V: Vm, C: Vcpu>(vm: &V, vcpus: &[C]) -> Vec<String> {
    const SECOND: u64 = 1_000_000_000;
    let flags = || vm.get_clock().unwrap().flags;
    let mut seen = vec![format!("new {:#x}", flags())];
    for set_flags in [1, 16, 0x8000_0000, 4 | 16] {
        let now = vm.bracket().realtime_ns;
        seen.push(format!("{set_flags:#x} {:?}", set(vm, 1, set_flags, now)));
    }
    // To the second: REALTIME adds what has passed and takes nothing away.
    for (set_flags, ahead) in [(0, 0), (2, 0), (8, 0), (4, 180), (4, -180), (14, -7)] {
        let real = vm.bracket().realtime_ns;
        let real = real.wrapping_add_signed(ahead * SECOND.cast_signed());
        seen.push(format!("{:?}", set(vm, 5 * SECOND, set_flags, real)));
        let clock = vm.get_clock().unwrap();
        seen.push(format!("{set_flags:#x} {} s", clock.clock_ns / SECOND));
        seen.push(format!("{:#x}", clock.flags));
    }
    let zero = vcpus[0].tsc_offset().unwrap();
    for offset in [zero, zero.wrapping_sub(5), zero.wrapping_sub(5)] {
        for vcpu in vcpus {
            seen.push(format!("{:?}", vcpu.set_tsc_offset(offset)));
        }
        set(vm, 1, 0, 0).unwrap();
        let same = vcpus[0].tsc_offset() == vcpus[1].tsc_offset();
        let taken = vcpus[1].tsc_offset() == Ok(offset);
        seen.push(format!("{:#x} {same} {taken}", flags()));
    }
    for index in [
        MSR_IA32_TSC,
        MSR_IA32_TSC_ADJUST,
        MSR_IA32_TSC_DEADLINE,
        0xdead,
    ] {
        let there = vcpus[0].msr(index).unwrap().is_some();
        seen.push(format!(
            "MSR {index:#x}: {there} {:?}",
            vcpus[0].set_msr(index, 0)
        ));
    }
    let both = vcpus[0].two_msrs([MSR_IA32_TSC_ADJUST, 0xdead]).unwrap();
    seen.push(format!("{:?}", both.map(|value| value.is_some())));
    let taken = vcpus[0]
        .set_two_msrs([MSR_IA32_TSC_ADJUST, 0xdead].map(|index| MsrValue { index, value: 0 }));
    seen.push(format!("{taken:?}"));
    seen.push(format!("{:?}", vcpus[0].kvmclock_ctrl()));
    vcpus[1].set_msr(MSR_KVM_SYSTEM_TIME_NEW, 0).unwrap();
    seen.push(format!("off {:?}", vcpus[1].kvmclock_ctrl()));
    let saved = GuestClocks::save(vm, vcpus).unwrap();
    let done = saved.restore(vm, vcpus, Policy::ELAPSED).unwrap();
    seen.push(format!("{} {}", done.is_exact(), done.master_clock));
    let limit = Policy::Elapsed { refuse_above_ns: 0 };
    std::thread::sleep(Duration::from_millis(1));
    let refused = saved.restore(vm, vcpus, limit);
    let jump = matches!(refused, Err(RestoreError::Refused(PlanError::Jump(_))));
    seen.push(format!("{jump}"));
    // Last: a guest that is faster than its host is in catch-up mode from then on.
    for khz in [u32::MAX, i32::MAX as u32] {
        seen.push(format!("{khz} kHz {:?}", vcpus[0].set_tsc_khz(khz)));
    }
    seen.push(format!("{:?}", GuestClocks::save(vm, vcpus).map(|_| ())));
    seen
}
