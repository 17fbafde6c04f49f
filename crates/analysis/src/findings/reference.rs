//! Every finding, for the reference.

use super::{clock_reads, clocks, cost, scheduler, waiting};

/// A finding that an analysis can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The `id` of such findings.
    pub id: &'static str,
    /// `recording`, `VM` or `host`.
    pub about: &'static str,
    /// When it is found.
    pub condition: String,
}

/// Every finding, those about the recording first.
#[must_use]
pub fn reference() -> Vec<Entry> {
    [recording(), waits(), costs(), clock()].concat()
}

/// Whether a finding has this id.
pub(super) fn has(id: &str) -> bool {
    reference().iter().any(|entry| entry.id == id)
}

fn entry(id: &'static str, about: &'static str, condition: impl Into<String>) -> Entry {
    Entry {
        id,
        about,
        condition: condition.into(),
    }
}

/// A share in per mille as text.
fn share(per_mille: u64) -> String {
    match (per_mille / 10, per_mille % 10) {
        (percent, 0) => format!("{percent} %"),
        (percent, tenths) => format!("{percent}.{tenths} %"),
    }
}

fn recording() -> Vec<Entry> {
    let about = "recording";
    let silence = stealtime_track::LONGEST_SILENCE_NS / 1_000_000_000;
    vec![
        entry("lost_events", about, "Events are lost."),
        entry(
            "time_goes_back",
            about,
            "An event is earlier than the event before it.",
        ),
        entry(
            "time_jumps",
            about,
            format!("There is no event for more than {silence} s."),
        ),
        entry(
            "no_exit_events",
            about,
            "There are vCPU threads, but no `kvm_exit`.",
        ),
        entry(
            "no_sched_events",
            about,
            "There are vCPU threads, but no `sched_switch`.",
        ),
        entry(
            "no_wakeup_events",
            about,
            "There is `sched_switch`, but neither `sched_waking` nor `sched_wakeup`.",
        ),
        entry(
            "vms_guessed",
            about,
            "The order of thread ids is the only evidence for the threads of a VM.",
        ),
        entry(
            "too_many_tasks",
            about,
            "There are more tasks than the tracker keeps apart (1,048,576).",
        ),
    ]
}

fn waits() -> Vec<Entry> {
    let steal = share(waiting::STEAL_PER_MILLE);
    vec![
        entry(
            "steal",
            "VM",
            format!("Its vCPUs are runnable and do not run for {steal} of their time or more."),
        ),
        entry(
            "vcpus_stacked",
            "VM",
            format!(
                "As `steal`, and {} of that or more is waiting for vCPUs of the same VM, while the \
                 host's CPUs are idle for {} of the time or more.",
                share(waiting::STACKED_PER_MILLE),
                share(waiting::IDLE_PER_MILLE)
            ),
        ),
        entry(
            "throttled",
            "VM",
            format!(
                "A bandwidth timer ends its waits next to idle CPUs; these are {} of its vCPUs' \
                 time or more.",
                share(waiting::THROTTLED_PER_MILLE)
            ),
        ),
        entry(
            "bandwidth_limit",
            "host",
            "There are `__cfsb_csd_unthrottle` calls or starts of `sched_cfs_slack_timer`.",
        ),
    ]
}

fn costs() -> Vec<Entry> {
    vec![
        entry(
            "polls_wasted",
            "VM",
            format!(
                "Of {} halt polls or more, {} or more end in sleep, and they take {} of its vCPUs' \
                 time or more.",
                cost::MIN_POLLS,
                share(cost::WASTED_PER_MILLE),
                share(cost::POLL_COST_PER_MILLE)
            ),
        ),
        entry(
            "spinning",
            "VM",
            format!(
                "Its vCPUs have {} PAUSE exits or more, and spin for {} of their time on a CPU or \
                 more.",
                cost::MIN_PAUSES,
                share(cost::SPIN_PER_MILLE)
            ),
        ),
        entry(
            "yields_refused",
            "host",
            format!(
                "`scx_stealtime` decides on {} directed yields or more, and refuses {} or more of them by option, \
                 because yielder and target have had their share, because they are pinned, or because the \
                 target waits in no queue.",
                scheduler::MIN_YIELDS,
                share(scheduler::REFUSED_PER_MILLE)
            ),
        ),
        entry(
            "timer_exits",
            "VM",
            format!(
                "On a VMX host with posted interrupts, {} of its exits or more arm or deliver the \
                 LAPIC timer, and no expiry is posted.",
                share(cost::TIMER_PER_MILLE)
            ),
        ),
        entry(
            "host_interrupts",
            "VM",
            format!(
                "{} or more host interrupts hit each second of its guest time.",
                cost::HITS_PER_SECOND
            ),
        ),
        entry(
            "spurious_notifications",
            "VM",
            format!(
                "{} of its exits or more are by notification vectors of posted interrupts.",
                cost::MIN_SPURIOUS
            ),
        ),
    ]
}

fn clock() -> Vec<Entry> {
    vec![
        entry(
            "tsc_unstable",
            "host",
            format!(
                "KVM rewrites the TSC offset at {} or more of the switches to vCPUs.",
                share(clocks::REWRITES_PER_MILLE)
            ),
        ),
        entry(
            "tsc_offsets_differ",
            "VM",
            "Its vCPUs have different TSC offsets.",
        ),
        entry(
            "master_clock_off",
            "VM",
            "Its last `kvm_update_master_clock` is without a master clock.",
        ),
        entry(
            "tsc_not_matched",
            "VM",
            "In its last `kvm_track_tsc`, not all TSCs match the first.",
        ),
        entry(
            "deadline_far_ahead",
            "VM",
            format!(
                "One of its vCPUs arms a TSC deadline at least {} s beyond one that it arms later, without a \
                 new TSC offset between them.",
                clocks::DEADLINE_AHEAD_S
            ),
        ),
        entry(
            "kvmclock_disabled",
            "VM",
            "Its vCPUs' last writes of `MSR_KVM_SYSTEM_TIME` switch the kvmclock off.",
        ),
        entry(
            "clock_reads_exit",
            "VM",
            format!(
                "It reads the Hyper-V reference counter, the ACPI PM timer or the HPET by exits, {} \
                 times or more in each second of its vCPUs' time on CPUs.",
                clock_reads::PER_SECOND
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_listed_once() {
        let entries = reference();
        for entry in &entries {
            let same = entries.iter().filter(|known| known.id == entry.id);
            assert_eq!(same.count(), 1, "{}", entry.id);
        }
    }
}
