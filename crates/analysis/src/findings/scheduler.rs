//! Directed yields that `scx_stealtime` refused.

use super::{Weighted, percent};
use crate::answers::Answers;
use crate::stats::total;

/// With fewer directed yields a reason is chance.
pub(super) const MIN_YIELDS: u64 = 1_000;
/// From this share of the yields on refusals are what they mostly come to.
pub(super) const REFUSED_PER_MILLE: u64 = 500;
/// Reasons with something to do about them. In the others the answer is near, or given.
const REASONS: [(&str, &str); 4] = [
    (
        "by_mode",
        "Load it with --yield receiver: it refuses all yields by option.",
    ),
    (
        "guard",
        "Yielders and targets have had more than their share: give these VMs more weight, or fewer vCPUs for \
         each CPU.",
    ),
    (
        "pinned",
        "vCPUs that are pinned to one CPU each cannot run on the yielder's: pin each VM to a set of CPUs.",
    ),
    (
        "not_queued",
        "The vCPUs that KVM nominates run or sleep: look at what the guests spin for (--key yield).",
    ),
];

/// Adds that most yields were refused.
pub(crate) fn find(answers: &Answers, found: &mut Vec<Weighted>) {
    let rows = || answers.scheduler.iter();
    let sum = |group: &str| total(rows().filter(|row| row.what == group).map(|row| row.count));
    let (served, refused) = (sum("served"), sum("refused"));
    let yields = served.saturating_add(refused);
    let of_reason = |reason: &str| {
        let refusals = rows().filter(|row| row.what == "refused" && row.kind == reason);
        total(refusals.map(|row| row.count))
    };
    let counted = REASONS.map(|(reason, next)| (of_reason(reason), reason, next));
    let avoidable = total(counted.iter().map(|(count, ..)| *count));
    if yields < MIN_YIELDS || super::per_mille(avoidable, yields) < REFUSED_PER_MILLE {
        return;
    }
    let leading = counted.into_iter().max_by_key(|(count, ..)| *count);
    let (count, reason, next) = leading.unwrap_or_default();
    let spun = total(answers.vcpus.iter().filter_map(|vcpu| vcpu.spin_ns));
    found.push(Weighted::new(
        "yields_refused",
        "",
        spun,
        [
            "scx_stealtime refused most directed yields: spinning vCPUs kept their CPUs."
                .to_owned(),
            format!(
                "{refused} of {yields} yields refused, {} of them by {}",
                percent(count, refused),
                reason.replace('_', " ")
            ),
            next.to_owned(),
        ],
    ));
}
