//! How far VMs are from the CPU time that their weights give them.

use stealtime_simulator::Outcome;
use stealtime_simulator::config::Config;

/// What a party has got, would have taken at most, and counts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Party {
    got: f64,
    wanted: f64,
    weight: f64,
}

/// The largest difference between what a VM has got and its share by `cpu.weight`, in percent of
/// the CPU time of all VMs. `None` for a single VM, or if nothing ran.
///
/// A share goes up to what a VM wanted (ran or waited for a CPU); what it leaves is divided among
/// the others. The host is taken as one pool of CPUs. Where VMs are pinned to different CPUs, the
/// difference shows the cost of the pinning, not the scheduler's.
pub(super) fn share_error(config: &Config, outcome: &Outcome) -> Option<f64> {
    let parties: Vec<Party> = outcome
        .vms
        .iter()
        .zip(&config.vms)
        .map(|(vm, vm_config)| {
            let sum = |value: fn(&stealtime_simulator::VcpuOutcome) -> u64| {
                vm.vcpus.iter().map(value).sum::<u64>() as f64
            };
            let received = sum(|vcpu| vcpu.task.run_ns);
            Party {
                got: received,
                wanted: received + sum(|vcpu| vcpu.task.wait_ns),
                weight: f64::from(vm_config.cpu_weight),
            }
        })
        .collect();
    error_of(&parties)
}

fn error_of(parties: &[Party]) -> Option<f64> {
    let total: f64 = parties.iter().map(|party| party.got).sum();
    if parties.len() < 2 || total <= 0.0 {
        return None;
    }
    let shares = shares(parties, total);
    let differences = parties
        .iter()
        .zip(shares)
        .map(|(party, share)| (party.got - share).abs());
    Some(differences.fold(0.0, f64::max) / total * 100.0)
}

/// Divides `total` by weight; no party gets more than it wants. The party that wants least for its weight is
/// served first: what it leaves is there for all others.
fn shares(parties: &[Party], total: f64) -> Vec<f64> {
    let mut order: Vec<(usize, &Party)> = parties.iter().enumerate().collect();
    order.sort_by(|a, b| {
        let per_weight = |party: &Party| party.wanted / party.weight;
        per_weight(a.1).total_cmp(&per_weight(b.1))
    });
    let mut remaining = total;
    let mut weight: f64 = parties.iter().map(|party| party.weight).sum();
    let mut shares = vec![0.0; parties.len()];
    for (index, party) in order {
        let share = (remaining * party.weight / weight).min(party.wanted);
        remaining -= share;
        weight -= party.weight;
        if let Some(slot) = shares.get_mut(index) {
            *slot = share;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(got: f64, wanted: f64, weight: f64) -> Party {
        Party {
            got,
            wanted,
            weight,
        }
    }

    #[test]
    fn shares_go_by_weight_up_to_what_is_wanted() {
        let parties = [
            party(0.0, 100.0, 1.0),
            party(0.0, 100.0, 3.0),
            party(0.0, 10.0, 4.0),
        ];
        assert_eq!(shares(&parties, 90.0), [20.0, 60.0, 10.0]);
    }

    #[test]
    fn the_error_is_the_largest_difference() {
        let fair = [party(25.0, 100.0, 1.0), party(75.0, 100.0, 3.0)];
        assert_eq!(error_of(&fair), Some(0.0));
        let unfair = [party(50.0, 100.0, 1.0), party(50.0, 100.0, 3.0)];
        assert_eq!(error_of(&unfair), Some(25.0));
        assert_eq!(error_of(&fair[..1]), None);
        assert_eq!(error_of(&[party(0.0, 0.0, 1.0); 2]), None);
    }
}
