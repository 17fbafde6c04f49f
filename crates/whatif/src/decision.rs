//! What `analyze` and `whatif --auto` end with: the one thing to do.
//!
//! A change is offered by the rule of the verdicts. Its interval is beyond 0 and beyond the error of the
//! replay, it is enough to matter, and no VM loses. `analyze` replays nothing: it offers what
//! counters of the snapshot show, else a replay where enough time is at stake.

use stealtime_analysis::Answers;
use stealtime_doctor::{Change, Decision, diagnose};
use stealtime_host::Snapshot;

use crate::auto::Tried;
use crate::coverage::check_replayable;
use crate::facts::Facts;
use crate::gain::{Gain, Outcome};
use crate::result::TOO_FAR;

/// The best change that the running host can make.
pub(crate) fn of_tried(tried: &[Tried], is_close: bool) -> Decision {
    if tried.is_empty() {
        return Decision::nothing("no time of 1% or more is lost to what a replay can change");
    }
    if !is_close {
        return Decision::nothing(TOO_FAR);
    }
    let pays = || tried.iter().filter(|tried| is_gain(&tried.gain));
    let possible = |tried: &&Tried| {
        let changes = &tried.on_host;
        !changes.is_empty() && changes.iter().all(Change::is_possible)
    };
    if let Some(best) = pays().find(possible) {
        return Decision::apply(&best.on_host, gains(best));
    }
    let mut mixed = tried.iter().filter(|tried| is_shift(&tried.gain));
    Decision::nothing(match pays().next().or_else(|| mixed.next()) {
        Some(best) if is_shift(&best.gain) => format!(
            "what gives time back takes it from a VM or from tasks of the host: {} ({})",
            best.name,
            gains(best)
        ),
        Some(best) => format!(
            "what gives time back needs another kernel or none has it: {} ({})",
            best.name,
            gains(best)
        ),
        None => "no change gives back more than noise and than the replay is off by".to_owned(),
    })
}

/// Whether a verdict would say that it is better.
fn is_gain(gain: &Gain) -> bool {
    match gain.outcome {
        Outcome::Better => gain.is_relevant,
        Outcome::LessCpu => gain.cpu_freed.is_relevant,
        _ => false,
    }
}

/// Whether it gives to some what others lose: a choice that evidence cannot make.
fn is_shift(gain: &Gain) -> bool {
    gain.outcome == Outcome::Mixed && gain.net > 0.0
}

fn gains(tried: &Tried) -> String {
    let (estimate, noun) = match tried.gain.outcome {
        Outcome::LessCpu => (&tried.gain.cpu_freed.change, "less CPU time in halts"),
        _ => (&tried.gain.net_change, "net, over all VMs"),
    };
    let interval = estimate.half_width.unwrap_or(0.0);
    format!("{:+.1} ±{interval:.1} ms/s {noun}", estimate.mean)
}

/// Of what `analyze` found in the recording at `path`, with the snapshot of its host.
#[must_use]
pub fn of_answers(answers: &Answers, snapshot: Option<&Snapshot>, path: &str) -> Decision {
    let diagnosed = snapshot.map(|snapshot| diagnose(snapshot).decision);
    if let Some(decision) =
        diagnosed.filter(|decision| decision.worth_doing && !decision.undo.is_empty())
    {
        return decision;
    }
    if answers.vms.is_empty() {
        return Decision::nothing("no VM is recorded");
    }
    let facts = Facts::new(answers);
    let waits = facts.all(|vm| vm.woken.saturating_add(vm.preempted));
    let polls = facts.all(|vm| vm.polled);
    let stake = waits.saturating_add(polls);
    let is_at_stake = facts.minds(stake) || facts.vms.iter().any(|vm| vm.minds(vm.wasted));
    if !is_at_stake {
        let share = facts.share(stake);
        return Decision::nothing(format!("waiting for CPUs and polling take {share}"));
    }
    if let Err(reason) = check_replayable(answers) {
        return Decision::nothing(format!("a replay could not show it: {reason}"));
    }
    let evidence = format!(
        "{} waiting for a CPU, {} polling",
        facts.share(waits),
        facts.share(polls)
    );
    let command = format!(
        "stealtime whatif {} --auto",
        stealtime_doctor::shell_word(path)
    );
    Decision::look("replay the recording with changed knobs", evidence, command)
}

#[cfg(test)]
mod tests {
    use stealtime_analysis::answers::{EventCount, VcpuTime, Vm};

    use super::*;

    #[test]
    fn a_replay_is_offered_where_enough_is_at_stake() {
        let mut answers = Answers::default();
        let shown = |answers: &Answers| of_answers(answers, None, "a b.dat").to_string();
        let verdict = "nothing here is worth doing";
        assert_eq!(shown(&answers), format!("{verdict}: no VM is recorded"));
        answers.vms.push(Vm {
            vm: "db".to_owned(),
            pid: None,
            vcpus: 1,
            grouped_by: "recorded".to_owned(),
            guessed: false,
        });
        answers.vcpus.push(VcpuTime {
            vm: "db".to_owned(),
            span_ns: 1_000_000_000,
            preempted_ns: 9_000_000,
            ..VcpuTime::default()
        });
        let share = "waiting for CPUs and polling take 0.9% of vCPUs' time (9 ms)";
        assert_eq!(shown(&answers), format!("{verdict}: {share}"));
        answers.vcpus[0].preempted_ns = 10_000_000;
        let refused = shown(&answers);
        assert!(
            refused.starts_with(&format!("{verdict}: a replay could not show it")),
            "{refused}"
        );
        answers.events.push(EventCount {
            name: "sched_switch".to_owned(),
            count: 1,
            today: None,
        });
        assert_eq!(
            shown(&answers),
            "do this: stealtime whatif 'a b.dat' --auto"
        );
    }
}
