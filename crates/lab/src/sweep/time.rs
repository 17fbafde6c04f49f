//! Where the time of vCPUs went, by each value of what is varied.

use super::effects::{Values, axes, means};
use super::plan::Plan;
use super::table::Column;
use crate::metric::{Subject, VCPU_TIME};
use crate::stats::estimate;

/// The time of a VM's vCPUs, by the values of one thing that is varied.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    /// The VM, or the group of equal ones.
    pub of: Subject,
    /// What is varied.
    pub knob: String,
    /// Its values.
    pub levels: Vec<String>,
    /// By metric: its name, and the mean for each value, in percent. The mean is over the rest of the
    /// grid and all seeds; `None` where no run has ended with the value.
    pub states: Vec<(&'static str, Vec<Option<f64>>)>,
}

/// Which of [`VCPU_TIME`] a column is, if it is one of a VM.
pub(super) fn state(column: &Column) -> Option<(&Subject, &'static str)> {
    let metric = column.metric.as_ref()?;
    let name = VCPU_TIME.into_iter().find(|name| *name == metric.name)?;
    matches!(metric.of, Subject::Vm(_)).then_some((&metric.of, name))
}

/// Of each VM and each thing that is varied.
pub(super) fn times(plan: &Plan, values: &[Values<'_>]) -> Vec<Time> {
    let mut times: Vec<Time> = Vec::new();
    for values in values {
        let Some((subject, name)) = state(values.column) else {
            continue;
        };
        for (knob, levels, stride) in axes(plan) {
            let count = levels.len();
            if count < 2 {
                continue;
            }
            let mean = |place| estimate(&means(plan, values, stride, count, place)).map(|e| e.mean);
            let row = (name, (0..count).map(mean).collect());
            match times
                .iter_mut()
                .find(|t| t.of == *subject && t.knob == knob)
            {
                Some(time) => time.states.push(row),
                None => times.push(Time {
                    of: subject.clone(),
                    knob,
                    levels,
                    states: vec![row],
                }),
            }
        }
    }
    times
}
