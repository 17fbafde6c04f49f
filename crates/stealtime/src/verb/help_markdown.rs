//! `stealtime help-markdown`: docs/command-line.md.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, Args, Command, CommandFactory};

use crate::error::CliError;
use crate::output;

/// Print the reference of verbs and options as Markdown: docs/command-line.md.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct HelpMarkdown {}

impl HelpMarkdown {
    /// Prints it.
    pub(crate) fn run() -> Result<(), CliError> {
        let page = page(crate::Cli::command());
        output::to_stdout(|writer| writer.write_all(page.as_bytes()))
    }
}

/// The page: a section for the command, and one for each verb that its help lists.
fn page(mut command: Command) -> String {
    // Adds `help` and the usages with the names of the commands above.
    command.build();
    let mut page =
        "# Command line\n\nWritten by `stealtime help-markdown`; `stealtime VERB --help` \
                    prints the same for one verb.\n"
            .to_owned();
    section(&mut page, &mut command);
    page
}

/// The section of one command, then those of its subcommands.
fn section(page: &mut String, command: &mut Command) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let _ = write!(page, "\n## `{name}`\n\n");
    let about = command.get_long_about().or(command.get_about());
    let _ = writeln!(page, "{}", about.map(prose).unwrap_or_default());
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let _ = write!(page, "\n```text\n{usage}\n```\n");

    let verbs: Vec<&Command> = command
        .get_subcommands()
        .filter(|verb| listed(verb))
        .collect();
    if !verbs.is_empty() {
        page.push_str("\n| verb | does |\n|---|---|\n");
    }
    for verb in verbs {
        let full_name = verb.get_bin_name().unwrap_or(verb.get_name());
        let about = verb.get_about().map(prose).unwrap_or_default();
        let anchor = full_name.replace(' ', "-");
        let _ = writeln!(page, "| [`{}`](#{anchor}) | {about} |", verb.get_name());
    }

    for (title, positional) in [("Arguments", true), ("Options", false)] {
        // Every verb has --help and --version.
        let arguments: Vec<&Arg> = command
            .get_arguments()
            .filter(|a| a.is_positional() == positional && !a.is_hide_set())
            .filter(|a| !["help", "version"].contains(&a.get_id().as_str()))
            .collect();
        if !arguments.is_empty() {
            let _ = write!(page, "\n{title}:\n\n");
        }
        for argument in arguments {
            item(page, argument);
        }
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        let after = after.to_string();
        let _ = write!(page, "\n```text\n{}\n```\n", after.trim_end());
    }
    for verb in command.get_subcommands_mut().filter(|verb| listed(verb)) {
        section(page, verb);
    }
}

/// Whether the help lists a subcommand with a section of its own.
fn listed(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// One argument: its name and values, what it does, its values and its default.
fn item(page: &mut String, argument: &Arg) {
    let help = argument.get_long_help().or(argument.get_help());
    let help = help.map(prose).unwrap_or_default();
    // Further paragraphs stay in the item.
    let help = help.replace("\n\n", "\n\n  ");
    page.push_str("- ");
    if let Some(short) = argument
        .get_short()
        .filter(|_| argument.get_long().is_some())
    {
        let _ = write!(page, "`-{short}`, ");
    }
    let _ = write!(page, "`{argument}`: {help}");
    let aliases = argument.get_visible_aliases().unwrap_or_default();
    for alias in aliases {
        let _ = write!(page, " (alias: `--{alias}`)");
    }
    let takes_value = argument.get_action().takes_values();
    let defaults = argument.get_default_values();
    if takes_value && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        let defaults: Vec<_> = defaults
            .iter()
            .map(|value| value.to_string_lossy())
            .collect();
        let _ = write!(page, " (default: `{}`)", defaults.join(" "));
    }
    page.push('\n');
    let shown = takes_value && !argument.is_hide_possible_values_set();
    let values = argument.get_possible_values();
    for value in values.iter().filter(|value| shown && !value.is_hide_set()) {
        let _ = write!(page, "  - `{}`", value.get_name());
        if let Some(help) = value.get_help() {
            let _ = write!(page, ": {}", prose(help));
        }
        page.push('\n');
    }
}

/// Help as Markdown: outside of code, characters that Markdown or HTML would take are escaped.
fn prose(help: &StyledStr) -> String {
    let text = help.to_string();
    let mut escaped = String::with_capacity(text.len());
    let mut in_code = false;
    for character in text.trim_end().chars() {
        in_code ^= character == '`';
        if !in_code && matches!(character, '<' | '>' | '*' | '_' | '[' | ']' | '|' | '\\') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_help_is_text() {
        let of = |text: &'static str| prose(&StyledStr::from(text));
        assert_eq!(of("A_B <C> [[d]] a|b"), r"A\_B \<C\> \[\[d\]\] a\|b");
        assert_eq!(of("`A_B <C>` d_e"), r"`A_B <C>` d\_e");
    }

    #[test]
    fn hidden_commands_and_options_are_left_out() {
        let command = Command::new("x")
            .arg(Arg::new("seen").long("seen").short('s').help("Is there"))
            .arg(Arg::new("unseen").long("unseen").hide(true))
            .subcommand(Command::new("verb").about("Does"))
            .subcommand(Command::new("unlisted").hide(true));
        let page = page(command);
        for part in [
            "- `-s`, `--seen <seen>`: Is there\n",
            "| [`verb`](#x-verb) | Does |\n",
            "## `x verb`\n",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        for part in ["unseen", "unlisted", "--help", "x help"] {
            assert!(
                !page.replace("VERB --help", "").contains(part),
                "{part}\n{page}"
            );
        }
    }
}
