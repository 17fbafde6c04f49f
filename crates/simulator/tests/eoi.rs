//! Paravirtual EOIs: the hypervisor sees them at the next exit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use stealtime_events::Kind;
use stealtime_simulator::config::{
    Config, HostConfig, Knobs, RunConfig, SchedPolicy, ScxKnobs, Topology, VmConfig, WorkloadConfig,
};
use stealtime_simulator::{Collected, run};

/// `apic_sync_pv_eoi_from_guest` ends the interrupt by `kvm_eoi`, then traces `kvm_pv_eoi`.
#[test]
fn a_paravirtual_eoi_settles_the_record_of_its_ipi() {
    let mut guest = VmConfig {
        vcpus: 4,
        workload: WorkloadConfig::named("ipi-pairs"),
        ..VmConfig::default()
    };
    (guest.guest.pv_eoi, guest.guest.pv_send_ipi) = (true, false);
    let mut knobs = Knobs::default();
    knobs.kvm.enable_apicv = false;
    knobs.sched.policy = SchedPolicy::ScxStealtime(ScxKnobs::default());
    let config = Config {
        host: HostConfig::generic(Topology::flat(2)),
        vms: vec![guest],
        scripts: Default::default(),
        knobs,
        run: RunConfig {
            duration_ns: 300_000_000,
            warmup_ns: 0,
            seed: 5,
        },
    };
    let mut sink = Collected::default();
    let outcome = run(&config, &mut sink).unwrap();
    let (mut ended, mut deferred) = (None, 0);
    for event in &sink.events {
        match event.kind {
            Kind::KvmEoi { apicid, vector } => ended = Some((event.cpu, apicid, vector)),
            Kind::KvmPvEoi { apicid, vector } => {
                assert_eq!(ended.take(), Some((event.cpu, apicid, vector)));
                deferred += 1;
            }
            _ => {}
        }
    }
    assert!(deferred > 100, "{deferred} paravirtual EOIs");
    let counts = &outcome.stats.mechanisms;
    let (recorded, settled) = (counts.ipis_recorded.get(), counts.ipis_settled.get());
    assert!(settled * 10 > recorded * 9, "{settled} of {recorded} IPIs");
}
