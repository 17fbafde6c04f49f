//! `--report`: a result as one HTML file.

use std::path::{Path, PathBuf};

use clap::Args;
use stealtime_report::html::Page;

use crate::error::CliError;
use crate::output;

/// Where the report goes, if one is wanted.
#[derive(Debug, Args)]
pub(crate) struct ReportTo {
    /// Write the result as one HTML file with charts too; `-` is standard output, without tables then
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl ReportTo {
    /// Whether there is to be one.
    pub(crate) fn is_wanted(&self) -> bool {
        self.report.is_some()
    }

    /// Whether standard output is the report's.
    pub(crate) fn is_stdout(&self) -> bool {
        self.report.as_deref() == Some(Path::new("-"))
    }

    /// The file, if it is to be one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.report.as_deref().filter(|_| !self.is_stdout())
    }

    /// Whether a file is to be written, whoever reads standard output.
    pub(crate) fn is_file(&self) -> bool {
        self.is_wanted() && !self.is_stdout()
    }

    /// Refuses a report that cannot be written or would replace one of `inputs`, and two results on
    /// standard output. `has_stdout`: another form of the result goes there.
    pub(crate) fn check(&self, has_stdout: bool, inputs: &[&Path]) -> Result<(), CliError> {
        if has_stdout && self.is_stdout() {
            return Err(CliError::ReportToStdout("another form of the result"));
        }
        match &self.report {
            Some(path) if !self.is_stdout() => {
                let apart = |input: &&Path| output::check_apart(path, input);
                inputs.iter().try_for_each(apart)?;
                output::check(path)
            }
            _ => Ok(()),
        }
    }

    /// Writes what `page` makes, which is given the command line, if it is wanted: whole or not at
    /// all. Says on standard error where.
    pub(crate) fn write(&self, page: impl FnOnce(&str) -> Page) -> Result<(), CliError> {
        let Some(path) = &self.report else {
            return Ok(());
        };
        let page = page(&command(
            std::env::args_os()
                .skip(1)
                .map(|argument| argument.to_string_lossy().into_owned()),
        ));
        if self.is_stdout() {
            return output::to_stdout(|writer| page.write(writer));
        }
        output::to_file(path, |writer| {
            page.write(writer).map_err(|source| CliError::Write {
                path: path.clone(),
                source,
            })
        })?;
        output::note(&format!("report: {}", path.display()));
        Ok(())
    }
}

/// Options that say where a result goes, or how many run at a time.
const NOT_OF_THE_RESULT: [&str; 3] = ["--report", "--jobs", "--threads"];

/// The command line that gives the same result: without what only says where it goes, and how many
/// run at a time.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut shown = "stealtime".to_owned();
    let mut is_value = false;
    for argument in arguments {
        if std::mem::take(&mut is_value) {
            continue;
        }
        let name = argument.split('=').next().unwrap_or_default();
        if NOT_OF_THE_RESULT.contains(&name) {
            is_value = !argument.contains('=');
            continue;
        }
        shown.push(' ');
        shown.push_str(&quoted(&argument));
    }
    shown
}

/// An argument as a shell takes it.
pub(crate) fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_that_of_the_result() {
        let of = |arguments: &[&str]| command(arguments.iter().map(|a| (*a).to_owned()));
        let given = [
            "simulate", "a b.toml", "--report", "x.html", "--jobs=2", "--set", "k='1'", "--jobs",
            "3",
        ];
        assert_eq!(
            of(&given),
            "stealtime simulate 'a b.toml' --set 'k='\\''1'\\'''"
        );
        assert_eq!(of(&["analyze", "", "--report=-"]), "stealtime analyze ''");
    }
}
