//! EOIs as `scx_stealtime` sees them: paravirtual ones at the next exit, others before the answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use stealtime_events::Kind;
use stealtime_simulator::config::{
    Config, HostConfig, Knobs, RunConfig, SchedPolicy, ScxKnobs, Topology, VmConfig, WorkloadConfig,
};
use stealtime_simulator::{Collected, run};

/// VMs with pairs of vCPUs, on two CPUs without APICv.
fn pairs(vms: usize, pv_eoi: bool, policy: SchedPolicy) -> Config {
    let guest = || {
        let mut guest = VmConfig {
            vcpus: 4,
            workload: WorkloadConfig::named("ipi-pairs"),
            ..VmConfig::default()
        };
        (guest.guest.pv_eoi, guest.guest.pv_send_ipi) = (pv_eoi, false);
        guest
    };
    let mut knobs = Knobs::default();
    knobs.kvm.enable_apicv = false;
    knobs.sched.policy = policy;
    Config {
        host: HostConfig::generic(Topology::flat(2)),
        vms: (0..vms).map(|_| guest()).collect(),
        scripts: Default::default(),
        knobs,
        run: RunConfig {
            duration_ns: 300_000_000,
            warmup_ns: 0,
            seed: 5,
        },
    }
}

/// `apic_sync_pv_eoi_from_guest` ends the interrupt by `kvm_eoi`, then traces `kvm_pv_eoi`.
#[test]
fn a_paravirtual_eoi_settles_the_record_of_its_ipi() {
    let config = pairs(1, true, SchedPolicy::ScxStealtime(ScxKnobs::default()));
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

/// The receivers compute in user mode and KVM has no APICv, so it nominates none of them. Linux ends the
/// interrupt of a function call first and calls the function then. So a loan that ends with the EOI ends too
/// early.
#[test]
fn receivers_in_user_mode_answer_on_the_time_of_the_spinning_vcpu() {
    let completed = |scx: Option<ScxKnobs>| {
        let policy = scx.map_or(SchedPolicy::Fair, SchedPolicy::ScxStealtime);
        let mut config = pairs(2, false, policy);
        (config.knobs.kvm.ple.window, config.knobs.kvm.ple.max) = (1, 1);
        run(&config, &mut Collected::default())
            .unwrap()
            .stats
            .guest_ipis
    };
    let usual = ScxKnobs::default();
    let at_once = ScxKnobs {
        answer_ns: 0,
        ..usual
    };
    let [usual, at_once, fair] = [Some(usual), Some(at_once), None].map(completed);
    assert!(
        usual > fair && usual > at_once,
        "{usual}, {at_once} at once, {fair} by EEVDF"
    );
}
