use stealtime_simulator::config::*;
use stealtime_simulator::*;
fn main() {
    let a: Vec<u64> = std::env::args()
        .skip(1)
        .map(|x| x.parse().unwrap())
        .collect();
    for vms in [1u32, 2, 3] {
        for pv in [false, true] {
            for ple in [true, false] {
                let mut c = Config {
                    host: HostConfig {
                        profile: Profile::generic(),
                        topology: Topology::flat(a[2] as u32),
                        hypervisor: Hypervisor::Kvm,
                        idle: IdleMethod::Mwait,
                        tasks: vec![],
                    },
                    vms: (0..vms)
                        .map(|n| VmConfig {
                            name: format!("vm{n}"),
                            vcpus: 4,
                            workload: WorkloadConfig::named("idle"),
                            ..VmConfig::default()
                        })
                        .collect(),
                    scripts: Default::default(),
                    knobs: Knobs::default(),
                    run: RunConfig {
                        duration_ns: 200_000_000,
                        warmup_ns: 0,
                        seed: 7,
                    },
                };
                for vm in &mut c.vms {
                    vm.guest.pv_spinlocks = pv;
                    vm.guest.pause_in_guest = !ple;
                }
                let (comp, hold) = (a[0], a[1]);
                let mut s = ();
                let mut r = |_: &_, guest: &mut GuestBuilder| {
                    let lock = guest.spinlock("l");
                    for n in 0..4 {
                        guest.spawn("c", Some(n), move |mut thread| async move {
                            loop {
                                let ns = thread.random.exponential(comp);
                                thread.compute(ns).await;
                                thread.lock(lock).await;
                                thread.kernel(hold).await;
                                thread.unlock(lock).await;
                                thread.done(1);
                            }
                        })?;
                    }
                    Ok(())
                };
                let o = {
                    let mut m = Machine::with_recipes(&c, &mut s, &mut r).unwrap();
                    m.run(&|| false).unwrap()
                };
                let g: u64 = o
                    .vms
                    .iter()
                    .flat_map(|v| &v.vcpus)
                    .map(|v| v.vcpu.guest_ns)
                    .sum();
                let sp: u64 = o
                    .vms
                    .iter()
                    .flat_map(|v| &v.vcpus)
                    .map(|v| v.vcpu.spin_ns)
                    .sum();
                let d: u64 = o.vms.iter().map(|v| o.stats.meters[v.meter].done).sum();
                println!(
                    "vms {vms} pv {pv} ple {ple}: spun {} permille, done {d}, waits {} pause {} yields {} awaited {} pvwaits {} kicks {} switches {}",
                    sp * 1000 / g.max(1),
                    o.stats.lock_waits,
                    o.stats.pause_exits,
                    o.stats.directed_yields,
                    o.stats.yields_to_awaited,
                    o.stats.pv_waits,
                    o.stats.pv_kicks,
                    o.stats.context_switches
                );
            }
        }
    }
}
