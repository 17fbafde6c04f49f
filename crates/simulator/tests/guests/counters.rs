//! What the processor and its mitigations add to a guest's time: counters that trap, caches that are
//! emptied.

use stealtime_hypervisor::counter::arm64::traps::Mode;
use stealtime_simulator::config::{Config, L1dFlush};

use super::{MS, config, done, latency, named, pinned, run, with};

const READ_NS: u64 = 25;
const TRAP_NS: u32 = 125;

fn reader(offset: u64) -> Config {
    let params = [("read_ns", READ_NS as i64), ("slow_ppm", 0)];
    let mut config = pinned(config(1, 1, 1, with("counter-read", &params)));
    config.host.profile.costs.counter_trap_ns = TRAP_NS;
    config.vms[0].physical_counter_offset = offset;
    config.run.duration_ns = MS;
    config
}

#[test]
fn a_counter_with_an_offset_traps_unless_the_processor_takes_it_off() {
    let native = run(&reader(0));
    assert_eq!((latency(&native), native.stats.counter_traps), (READ_NS, 0));
    let trapped = run(&reader(1000));
    assert_eq!(latency(&trapped), READ_NS + u64::from(TRAP_NS));
    assert!(trapped.stats.counter_traps >= done(&trapped));
    // CNTPOFF_EL2 is used by a host at EL2 alone.
    let mut config = reader(1000);
    config.host.profile.features.ecv_cntpoff = true;
    assert_eq!(run(&config).stats.counter_traps, 0);
    config.knobs.kvm.arm_mode = Mode::Nvhe;
    assert_eq!(latency(&run(&config)), READ_NS + u64::from(TRAP_NS));
}

#[test]
fn a_machine_without_such_traps_refuses_an_offset() {
    let mut config = reader(1000);
    config.host.profile.costs.counter_trap_ns = 0;
    let refused = config.check().unwrap_err();
    assert_eq!(refused.key, "vm.0.physical_counter_offset");
}

/// A loop of CPUID: only interrupts of the host make its entries unsafe.
#[test]
fn the_cache_is_emptied_after_interrupts_of_the_host_or_always() {
    let exits = |flush| {
        let mut config = pinned(config(1, 1, 1, named("cpuid-loop")));
        config.host.profile.costs.l1d_flush_ns = 3_000;
        config.knobs.kvm.vmentry_l1d_flush = flush;
        config.run.duration_ns = 40 * MS;
        done(&run(&config))
    };
    let (never, cond, always) = (
        exits(L1dFlush::Never),
        exits(L1dFlush::Cond),
        exits(L1dFlush::Always),
    );
    // Ten ticks of the host, and what the guest's own need.
    assert!(cond < never && cond > never * 99 / 100, "{cond} of {never}");
    assert!(always < never / 3, "{always} of {never}");
}
