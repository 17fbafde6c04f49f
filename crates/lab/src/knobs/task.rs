//! Knobs of the host's tasks: `task.NAME.count`, `task.NAME.nice`, `task.NAME.workload.PARAMETER`.

use stealtime_simulator::config::{ParamValue, TaskConfig};

use super::name::{KnobError, check_parameter, parameter_value};
use super::value::ValueError;
use crate::spelling::suggestion;

/// The most tasks of a name, as in `[[task]]`.
const MOST: u32 = 65_536;

/// What a name behind `task.` stands for.
pub(super) struct Target<'n> {
    task: &'n str,
    key: &'n str,
}

/// Finds the task of a knob `task.NAME.KEY`: names of tasks have no dots.
///
/// # Errors
///
/// [`KnobError::NoTask`]
pub(super) fn target<'n>(tasks: &[TaskConfig], name: &'n str) -> Result<Target<'n>, KnobError> {
    let rest = name.strip_prefix("task.").unwrap_or(name);
    let (task, key) = rest.split_once('.').unwrap_or((rest, ""));
    if tasks.iter().any(|known| known.name == task) {
        return Ok(Target { task, key });
    }
    let names: Vec<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
    Err(KnobError::NoTask {
        name: name.to_owned(),
        help: match names.is_empty() {
            true => "there are no tasks".to_owned(),
            false => suggestion(task, &names),
        },
    })
}

impl Target<'_> {
    /// Sets it.
    ///
    /// # Errors
    ///
    /// [`ValueError`]
    pub(super) fn set(&self, tasks: &mut [TaskConfig], text: &str) -> Result<(), ValueError> {
        let Some(task) = tasks.iter_mut().find(|task| task.name == self.task) else {
            return Ok(());
        };
        let text = text.trim();
        match self.key {
            "count" => {
                let count = text.parse::<u32>().ok();
                let count = count.filter(|count| (1..=MOST).contains(count));
                task.count = count.ok_or_else(|| ValueError::out_of_range(text, 1, MOST))?;
            }
            "nice" => {
                let nice = text.parse::<i8>().ok();
                let nice = nice.filter(|nice| (-20..=19).contains(nice));
                task.nice = nice.ok_or_else(|| ValueError::out_of_range(text, -20, 19))?;
            }
            key => {
                let Some(parameter) = key.strip_prefix("workload.") else {
                    let help = suggestion(key, &["count", "nice", "workload.PARAMETER"]);
                    return Err(ValueError::NoTaskKnob {
                        key: key.to_owned(),
                        help,
                    });
                };
                let value = parameter_value(text);
                check_parameter(&task.workload.name, parameter, &value)
                    .map_err(|wrong| ValueError::Parameter(wrong.0))?;
                task.workload.params.insert(parameter.to_owned(), value);
            }
        }
        Ok(())
    }

    /// The value; `None` for what it has not, or has by default.
    pub(super) fn get(&self, tasks: &[TaskConfig]) -> Option<String> {
        let task = tasks.iter().find(|task| task.name == self.task)?;
        match self.key {
            "count" => Some(task.count.to_string()),
            "nice" => Some(task.nice.to_string()),
            key => match task.workload.params.get(key.strip_prefix("workload.")?)? {
                ParamValue::Int(number) => Some(number.to_string()),
                ParamValue::Text(text) => Some(text.clone()),
                ParamValue::Bool(on) => Some(on.to_string()),
            },
        }
    }
}
