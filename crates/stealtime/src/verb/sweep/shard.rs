//! `--shard`: which part of a sweep this machine runs, and what it says when it is done.

use std::env;

use serde::Serialize;
use stealtime_lab::sweep::{Shard, ShardError, Sweep};
use stealtime_report::{escape, json};

use crate::error::CliError;
use crate::output;

/// Why a text is no shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ShardTextError {
    #[error(transparent)]
    Shard(#[from] ShardError),
    #[error("{0}")]
    Environment(String),
}

/// `K/N`, `auto` or `auto/N`.
pub(super) fn shard(text: &str) -> Result<Shard, ShardTextError> {
    from(text, &|name| env::var(name).ok())
}

/// The same with another environment.
fn from(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Shard, ShardTextError> {
    let Some(rest) = text.strip_prefix("auto") else {
        return Ok(text.parse()?);
    };
    let number = |name: &str| -> Result<Option<u64>, ShardTextError> {
        let Some(text) = variable(name) else {
            return Ok(None);
        };
        let wrong = |_| ShardTextError::Environment(format!("{name} is no number: {text:?}"));
        text.trim().parse().map(Some).map_err(wrong)
    };
    let wanted = match rest {
        "" => None,
        rest => {
            let count = rest.strip_prefix('/').and_then(|count| count.parse().ok());
            Some(count.ok_or(ShardError::Form)?)
        }
    };
    // sbatch(1): ids of an array run from MIN in steps.
    if let Some(id) = number("SLURM_ARRAY_TASK_ID")? {
        let first = number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
        let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
        let tasks = number("SLURM_ARRAY_TASK_COUNT")?;
        let Some(count) = wanted.or(tasks) else {
            let problem = "SLURM_ARRAY_TASK_COUNT is not set: use auto/N";
            return Err(ShardTextError::Environment(problem.to_owned()));
        };
        return Ok(Shard::new(id.saturating_sub(first) / step + 1, count)?);
    }
    let Some(count) = wanted else {
        let problem =
            "no array task of Slurm: use K/N, or auto/N where the number is in the environment";
        return Err(ShardTextError::Environment(problem.to_owned()));
    };
    if let Some(index) = number("JOB_COMPLETION_INDEX")? {
        return Ok(Shard::new(index.saturating_add(1), count)?);
    }
    match number("PARALLEL_SEQ")? {
        Some(number) => Ok(Shard::new(number, count)?),
        None => {
            let problem =
                "none of SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX and PARALLEL_SEQ is set";
            Err(ShardTextError::Environment(problem.to_owned()))
        }
    }
}

#[derive(Debug, Serialize)]
struct Output {
    folder: String,
    shard: String,
    /// Runs of this shard.
    runs: u64,
    /// Runs of the whole sweep.
    of: u64,
}

/// Says which part is done.
pub(super) fn show(sweep: &Sweep, shard: Shard, is_json: bool) -> Result<(), CliError> {
    let folder = sweep.path().display().to_string();
    output::to_stdout(|writer| {
        if is_json {
            let output = Output {
                folder: folder.clone(),
                shard: shard.to_string(),
                runs: sweep.runs(),
                of: sweep.plan.runs(),
            };
            return json::write_any(&output, writer);
        }
        writeln!(
            writer,
            "shard {shard}: {} of {} runs are in {}; `stealtime sweep merge` makes the whole of all shards",
            sweep.runs(),
            sweep.plan.runs(),
            escape::terminal(&folder)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        from(text, &variable)
            .map(|shard| shard.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn managers_of_jobs_number_their_parts() {
        let slurm = [
            ("SLURM_ARRAY_TASK_ID", "14"),
            ("SLURM_ARRAY_TASK_MIN", "10"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
            ("SLURM_ARRAY_TASK_COUNT", "8"),
        ];
        assert_eq!(read("auto", &slurm), Ok("3/8".to_owned()));
        assert_eq!(read("auto/4", &slurm), Ok("3/4".to_owned()));
        assert_eq!(read("2/5", &slurm), Ok("2/5".to_owned()));
        let kubernetes = [("JOB_COMPLETION_INDEX", "0")];
        assert_eq!(read("auto/4", &kubernetes), Ok("1/4".to_owned()));
        let parallel = [("PARALLEL_SEQ", "4")];
        assert_eq!(read("auto/4", &parallel), Ok("4/4".to_owned()));
    }

    #[test]
    fn a_part_that_is_unknown_is_refused() {
        for (text, variables, problem) in [
            ("auto", &[("JOB_COMPLETION_INDEX", "0")][..], "auto/N"),
            ("auto/4", &[], "none of SLURM_ARRAY_TASK_ID"),
            (
                "auto/4",
                &[("JOB_COMPLETION_INDEX", "4")],
                "no shard 5 of 4",
            ),
            (
                "auto/4",
                &[("PARALLEL_SEQ", "x")],
                "PARALLEL_SEQ is no number",
            ),
            (
                "auto",
                &[("SLURM_ARRAY_TASK_ID", "1")],
                "SLURM_ARRAY_TASK_COUNT",
            ),
            ("auto/x", &[], "expected K/N"),
            ("automatic", &[], "expected K/N"),
        ] {
            let error = read(text, variables).expect_err(text);
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
