//! `stealtime sched`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Subcommand};
use serde::Serialize;
use stealtime_report::json;
use stealtime_trial::NoProgram;

use crate::args::{Form, Format};
use crate::error::CliError;
use crate::output;

/// The scheduler's program.
const PROGRAM: &str = "scx_stealtime";
/// Names it, for tests and for programs elsewhere.
const VARIABLE: &str = "SCX_STEALTIME";

/// Schedule this host's VMs so that directed yields reach the vCPU that a spinning vCPU waits for
///
/// A scheduler of sched_ext, for Linux 6.12 and newer. It stays while the command runs. When that
/// ends or is killed, the kernel's own scheduler takes over at once. Its program, scx_stealtime, is
/// built separately: see sched-ext/ in the sources.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime sched status
  sudo stealtime sched check
  sudo stealtime sched load --for 60
  sudo stealtime sched load --canary VM=web --stats 5")]
pub(crate) struct Sched {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Load the scheduler, until Ctrl-C or the time of --for
    ///
    /// All options are those of scx_stealtime: `stealtime sched load --help` shows them.
    #[command(disable_help_flag = true)]
    Load {
        /// Options of scx_stealtime
        #[arg(
            value_name = "OPTIONS",
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        options: Vec<OsString>,
    },
    /// Say whether the scheduler could be loaded, without loading it
    Check,
    /// Show which scheduler of sched_ext is loaded
    Status {
        /// Read /sys below this directory
        #[arg(long, value_name = "DIR", default_value = "/")]
        root: PathBuf,

        #[command(flatten)]
        form: Form,
    },
}

impl Sched {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match &self.action {
            Action::Load { options } => replace_by_program(options),
            Action::Check => replace_by_program(&["--check".into()]),
            Action::Status { root, form } => {
                let status = Status::read(&root.join("sys/kernel/sched_ext"))?;
                output::to_stdout(|writer| match form.get() {
                    Format::Table => writer.write_all(status.text().as_bytes()),
                    Format::Json => json::write_any(&status, writer),
                })
            }
        }
    }
}

/// The program takes the place of this command, so that signals and the exit status are its own.
fn replace_by_program(options: &[OsString]) -> Result<(), CliError> {
    let program = find().map_err(|reason| CliError::Sched(reason.to_string()))?;
    let error = Command::new(&program).args(options).exec();
    Err(CliError::Sched(format!("{}: {error}", program.display())))
}

/// The scheduler's program: as named, next to this command, or in PATH. Without one, what to do.
pub(super) fn find() -> Result<PathBuf, NoProgram> {
    if let Some(named) = env::var_os(VARIABLE) {
        return Ok(named.into());
    }
    let command = env::current_exe().ok();
    let folder = command
        .as_deref()
        .and_then(Path::parent)
        .map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    folder
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(PROGRAM))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            NoProgram(format!(
                "{PROGRAM} is neither next to this command nor in PATH: build it by `cargo build --release` \
                 in sched-ext/, or name it in {VARIABLE}"
            ))
        })
}

/// What `/sys/kernel/sched_ext` says.
#[derive(Debug, Serialize)]
struct Status {
    /// The kernel's word: `disabled`, `enabling`, `enabled` or `disabling`.
    state: String,
    /// Name of the loaded scheduler; `None` without one, and where the kernel names none.
    scheduler: Option<String>,
    /// Whether it runs all tasks of the fair class, or those of the policy SCHED_EXT only.
    all_tasks: Option<bool>,
    /// Schedulers loaded since the start of the kernel.
    loads: Option<u64>,
}

impl Status {
    fn read(folder: &Path) -> Result<Self, CliError> {
        let read = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let Some(state) = read("state") else {
            return Err(CliError::Sched(format!(
                "{}: this kernel has no sched_ext: use Linux 6.12 or newer with CONFIG_SCHED_CLASS_EXT",
                folder.display()
            )));
        };
        let is_loaded = state != "disabled";
        Ok(Self {
            scheduler: read("root/ops").filter(|_| is_loaded),
            all_tasks: is_loaded.then(|| read("switch_all").is_none_or(|flag| flag != "0")),
            loads: read("enable_seq").and_then(|count| count.parse().ok()),
            state,
        })
    }

    fn text(&self) -> String {
        let mut text = match (&self.scheduler, self.all_tasks) {
            (Some(name), _) => format!("{name} is loaded ({})\n", self.state),
            (None, Some(_)) => format!("a scheduler is loaded ({})\n", self.state),
            (None, None) => {
                "no sched_ext scheduler is loaded: the kernel's own schedules all tasks\n"
                    .to_owned()
            }
        };
        text.push_str(match self.all_tasks {
            Some(false) => "it runs tasks of the policy SCHED_EXT only\n",
            Some(true) => "it runs all tasks but real-time and deadline ones\n",
            None => "",
        });
        if let Some(loads) = self.loads {
            text.push_str(&format!(
                "schedulers loaded since the start of the kernel: {loads}\n"
            ));
        }
        text
    }
}
