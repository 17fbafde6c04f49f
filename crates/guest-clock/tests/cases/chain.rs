//! Many restores of one guest, each of what was saved from the one before.

use guest_clock::device::{Vcpu, Vm};
use guest_clock::guest::Guest;
use guest_clock::kvm::host;
use guest_clock::{GuestClocks, Options, Policy, State};

use super::drift::{Drift, cycles};
use super::{Outcome, guest};

/// Two VMs in turn, with one memory. A new pair each 500 restores: one that never ran has no master clock.
pub fn chain() -> Outcome {
    let mut source = guest(2)?;
    let khz = host().map_err(|error| error.to_string())?.facts().tsc_khz;
    let mut target = Guest::with_memory(source.memory(), 2).unwrap();
    let options = Options::new(Policy::ELAPSED);
    let (mut clock, mut tsc) = (Drift::default(), Drift::default());
    source.run(2).unwrap();
    for cycle in 0..cycles() {
        let saved = GuestClocks::save(&source.vm, &source.vcpus).unwrap();
        let State::X86(state) = saved.state() else {
            unreachable!("an x86 guest");
        };
        if cycle % 500 == 499 {
            target = Guest::with_memory(source.memory(), 2).unwrap();
        }
        let plan = saved.plan(&target.vm, &target.vcpus, &options).unwrap();
        let explained = plan.carry_out(&target.vm, &target.vcpus).unwrap();
        let now = Vm::get_clock(&target.vm).unwrap();
        let elapsed = now.realtime_ns as i64 - state.instant.realtime_ns as i64;
        let off = now.clock_ns as i64 - state.instant.clock_ns as i64 - elapsed;
        // The bounds hold at the anchor. No restore knows how far the wall clock is steered away from the TSC
        // since.
        let anchor = plan.anchor();
        let cycles = now.host_tsc - anchor.host_tsc;
        let by_tsc_ns = (u128::from(cycles) * 1_000_000 / u128::from(khz)) as u64;
        let steered_ns = (now.realtime_ns - anchor.realtime_ns).abs_diff(by_tsc_ns);
        // KVM's two readings of an instant are made as one, but each is cut to whole ns.
        let beyond_ns = steered_ns + 2;
        clock.add(off, explained.kvmclock_against_real_ns + beyond_ns);
        let [first, second] = [0, 1].map(|index| target.vcpus[index].tsc_offset().unwrap());
        assert_eq!(first, second, "vCPUs are apart");
        let advanced = now.host_tsc.wrapping_add(first).wrapping_sub(
            state
                .instant
                .host_tsc
                .wrapping_add(state.vcpus[0].tsc_offset),
        );
        let advanced_ns = (i128::from(advanced) * 1_000_000 / i128::from(khz)) as i64;
        tsc.add(
            advanced_ns - elapsed,
            explained.tsc_against_its_rate_ns + beyond_ns,
        );
        target.run(2).unwrap();
        std::mem::swap(&mut source, &mut target);
    }
    let seen = source.seen();
    println!("  {} readings by the guest", seen.rounds);
    clock.judge("kvmclock");
    tsc.judge("TSC");
    assert_eq!(
        (seen.tsc_back, seen.clock_back_ns, seen.unstable),
        (0, 0, 0),
        "{seen:?}"
    );
    Ok(())
}
