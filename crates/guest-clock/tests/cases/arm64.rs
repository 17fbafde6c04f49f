//! What the kernel's own selftests check of the counter offset, and more, against arm64's KVM.

mod descriptors;
mod drift;
mod errors;
pub mod limits;

use guest_clock::arm64::{Arm64Error, Arm64Vm};
use guest_clock::device::Stopping;
use guest_clock::guest::{Guest, GuestError};
use guest_clock::kvm::{KvmArm64Vm, count, counter_hz};
use guest_clock::{GuestClocks, HostError, Options, Policy, Saved};

use drift::{Drift, cycles};

/// Done, or why not here.
pub type Outcome = Result<(), String>;

/// A name, and what is tried.
pub type Case = (&'static str, fn() -> Outcome);

/// Every case.
pub const ALL: [Case; 10] = [
    (
        "system_counter_offset_test: both counters lie between two of the host's",
        offset_test,
    ),
    ("restore twice: same guest time, no step back", twice),
    ("policies: stopped, elapsed, at most, refused", policies),
    (
        "an offset that is not known has a bound that holds",
        unknown,
    ),
    ("an offset keeps what is written by value", written),
    (
        "restores in a row: no step back, vCPUs equal, no drift",
        chain,
    ),
    limits::JAIL,
    limits::FORKED,
    errors::ERRORS,
    (
        "a guest's readings of its counters, native and trapped",
        reads,
    ),
];

/// System calls of a save and a restore (docs/guest-clocks-c.md).
const CALLS: [libc::c_long; 3] = [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_brk];
/// Their ioctls: `KVM_CHECK_EXTENSION`, `KVM_GET_ONE_REG`, `KVM_ARM_SET_COUNTER_OFFSET`.
const IOCTLS: [u32; 3] = [0xae03, 0x4010_aeab, 0x4010_aeb5];

/// Saves a stopped guest, and restores into a VM that has not run.
fn save_and_restore(source: &Guest, target: &Guest, _: Stopping) -> Outcome {
    let saved = GuestClocks::save_arm64(&raw(source), None);
    let saved = saved.map_err(|error| error.to_string())?;
    let options = Options::new(Policy::ELAPSED).accept_inexact();
    let done = saved.restore_arm64(&raw(target), options);
    done.map(|_| ()).map_err(|error| error.to_string())
}

/// What is refused of a stopped guest and of a VM that has not run.
fn refusals(source: &Guest, target: &Guest) -> Vec<Outcome> {
    let saved = GuestClocks::save_arm64(&raw(source), Some(0)).unwrap();
    let restore = |vm: KvmArm64Vm, options: Options| {
        let done = saved.restore_arm64(&vm, options);
        done.map(|_| ()).map_err(|error| error.to_string())
    };
    let elapsed = Options::new(Policy::ELAPSED);
    vec![
        restore(KvmArm64Vm::of(&target.vm, &target.vcpus[..1]), elapsed),
        restore(raw(target), elapsed.wall_clocks(2, 1)),
        restore(
            raw(target),
            Options::new(Policy::Elapsed { refuse_above_ns: 0 }),
        ),
    ]
}

const SECOND: u64 = 1_000_000_000;

fn guest(vcpus: usize) -> Result<Guest, String> {
    match Guest::new(vcpus) {
        Ok(guest) if raw(&guest).has_counter_offset() => Ok(guest),
        Ok(_) => Err("this KVM has no KVM_CAP_COUNTER_OFFSET".to_owned()),
        Err(GuestError::Host(error @ (HostError::NoDevice | HostError::Permission))) => {
            Err(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}

fn raw(guest: &Guest) -> KvmArm64Vm<'_> {
    KvmArm64Vm::of(&guest.vm, &guest.vcpus)
}

fn offset_test() -> Outcome {
    let mut guest = guest(2)?;
    for offset in [0i64, 180, -180].map(|seconds| seconds * counter_hz() as i64) {
        let offset = offset.cast_unsigned();
        raw(&guest).set_counter_offset(offset).unwrap();
        guest.forget();
        let before = count().wrapping_sub(offset);
        guest.run(1).unwrap();
        let after = count().wrapping_sub(offset);
        let seen = guest.seen();
        // Both vCPUs have read, the second one last.
        assert_eq!(
            (seen.rounds, seen.virtual_back, seen.physical_back),
            (2, 0, 0)
        );
        for read in [seen.last_virtual, seen.last_physical] {
            // Counters wrap: how far into the interval.
            let width = after.wrapping_sub(before);
            assert!(
                read.wrapping_sub(before) <= width,
                "{before} {read} {after}"
            );
        }
    }
    Ok(())
}

/// A guest that has run, with the offset that its VMM set.
fn saved(offset: u64) -> Result<(Guest, Saved), String> {
    let mut guest = guest(2)?;
    raw(&guest).set_counter_offset(offset).unwrap();
    guest.run(20).unwrap();
    let saved = GuestClocks::save_arm64(&raw(&guest), Some(offset)).unwrap();
    Ok((guest, saved))
}

fn twice() -> Outcome {
    let (guest, saved) = saved(1 << 40)?;
    let mut next = Guest::with_memory(guest.memory(), 2).unwrap();
    let options = Options::new(Policy::ELAPSED);
    let plan = saved.plan_arm64(&raw(&next), &options).unwrap();
    let first = plan.carry_out(&raw(&next)).unwrap();
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_eq!(plan.carry_out(&raw(&next)).unwrap(), first);
        next.run(20).unwrap();
    }
    let seen = next.seen();
    assert_eq!((seen.virtual_back, seen.physical_back), (0, 0), "{seen:?}");
    Ok(())
}

fn policies() -> Outcome {
    let (guest, saved) = saved(0)?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    let next = Guest::with_memory(guest.memory(), 2).unwrap();
    let vm = raw(&next);
    let done = |policy| saved.restore_arm64(&vm, policy);
    let stopped = done(Policy::Stopped).unwrap();
    assert_eq!(
        (stopped.advanced_ns, stopped.count_at_anchor),
        (0, stopped.count_at_save)
    );
    let capped = done(Policy::AtMost { max_ns: 1000 }).unwrap();
    assert_eq!(capped.advanced_ns, 1000);
    let elapsed = done(Policy::ELAPSED).unwrap();
    assert!(
        (50_000_000..60 * SECOND).contains(&elapsed.advanced_ns),
        "{elapsed:?}"
    );
    let refused = done(Policy::Elapsed { refuse_above_ns: 0 });
    assert!(matches!(refused, Err(Arm64Error::Jump(_))), "{refused:?}");
    Ok(())
}

fn unknown() -> Outcome {
    let mut guest = guest(1)?;
    guest.run(5).unwrap();
    let saved = GuestClocks::save_arm64(&raw(&guest), None).unwrap();
    let next = Guest::with_memory(guest.memory(), 1).unwrap();
    let refused = saved.restore_arm64(&raw(&next), Policy::ELAPSED);
    assert!(
        matches!(refused, Err(Arm64Error::Inexact { .. })),
        "{refused:?}"
    );
    let accept = Options::new(Policy::ELAPSED).accept_inexact();
    let done = saved.restore_arm64(&raw(&next), accept).unwrap();
    // Of the old guest no offset is known: its counter lies between two of the host's.
    let before = count();
    let old = raw(&guest).guest_counter().unwrap();
    let after = count();
    let least = before.wrapping_sub(old);
    let off = done.offset_to.wrapping_sub(least) as i64;
    let width = after.wrapping_sub(before) as i64;
    // The offset is further on by less than the bound, in either direction.
    let bound = i128::from(done.bound_ns) * i128::from(counter_hz()) / 1_000_000_000 + 1;
    println!(
        "  {off} ticks from the least offset, {width} wide, bound {} ns",
        done.bound_ns
    );
    assert!(i128::from(off) >= -bound && i128::from(off) <= i128::from(width) + bound);
    Ok(())
}

/// With an offset of the VM, KVM drops what a VMM writes to the counter.
fn written() -> Outcome {
    let (guest, saved) = saved(7)?;
    let mut next = Guest::with_memory(guest.memory(), 2).unwrap();
    saved.restore_arm64(&raw(&next), Policy::ELAPSED).unwrap();
    // `KVM_REG_ARM_TIMER_CNT`
    let _ = next.vcpus[0].set_one_reg(0x6030_0000_0013_df1a, &0u64.to_le_bytes());
    next.run(5).unwrap();
    assert_eq!(next.seen().virtual_back, 0, "{:?}", next.seen());
    Ok(())
}

fn ticks_to_ns(ticks: u64) -> i128 {
    i128::from(ticks) * 1_000_000_000 / i128::from(counter_hz())
}

/// The guest's time minus the wall clock's, and how far off that may be, in ns: by the narrowest of some
/// readings of both.
fn against_wall_clock(guest: &Guest, offset: u64) -> (i128, u64) {
    let brackets = (0..8).map(|_| raw(guest).bracket());
    let narrowest = brackets.min_by_key(|bracket| bracket.width()).unwrap();
    let middle = narrowest.tsc_before.wrapping_add(narrowest.width() / 2);
    let ahead = ticks_to_ns(middle.wrapping_sub(offset)) - i128::from(narrowest.realtime_ns);
    (ahead, ticks_to_ns(narrowest.width().div_ceil(2)) as u64 + 1)
}

fn chain() -> Outcome {
    let (mut source, _) = saved(0)?;
    let mut target = Guest::with_memory(source.memory(), 2).unwrap();
    let (mut offset, mut drift) = (0, Drift::default());
    let mut latest = against_wall_clock(&source, offset);
    for cycle in 0..cycles() {
        let saved = GuestClocks::save_arm64(&raw(&source), Some(offset)).unwrap();
        if cycle % 500 == 499 {
            target = Guest::with_memory(source.memory(), 2).unwrap();
        }
        let done = saved.restore_arm64(&raw(&target), Policy::ELAPSED).unwrap();
        offset = done.offset_to;
        let now = against_wall_clock(&target, offset);
        let off = now.0 - latest.0;
        drift.add(off as i64, done.bound_ns + now.1 + latest.1);
        latest = now;
        target.run(2).unwrap();
        std::mem::swap(&mut source, &mut target);
    }
    let seen = source.seen();
    println!("  {} readings by the guest", seen.rounds);
    drift.judge("counter");
    assert_eq!((seen.virtual_back, seen.physical_back), (0, 0), "{seen:?}");
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
