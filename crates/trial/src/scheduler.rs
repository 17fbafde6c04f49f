//! The scheduler of sched_ext as a value: `fair` without one, `scx-stealtime` while its program runs.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::target::{AccessError, Host};

/// No scheduler of sched_ext is loaded.
const FAIR: &str = "fair";
/// The one that `stealtime sched load` loads.
const SCX_STEALTIME: &str = "scx-stealtime";
/// The beginning of the name that its program gives the kernel.
const OPS: &str = "stealtime";
const STATE: &str = "/sys/kernel/sched_ext/state";
const NAME: &str = "/sys/kernel/sched_ext/root/ops";
/// The kernel checks the program first, which takes seconds on an emulated host.
const PATIENCE: Duration = Duration::from_secs(60);
/// A program that does not end with its input is killed: the kernel's scheduler takes over at once.
const POLITE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);

/// The present scheduler. One that loads or ends is waited for.
pub(crate) fn read(host: &Host) -> Result<String, AccessError> {
    let begin = Instant::now();
    loop {
        match host.text(STATE)?.as_str() {
            "disabled" => return Ok(FAIR.to_owned()),
            "enabled" => break,
            state if begin.elapsed() > PATIENCE => {
                return Err(AccessError::Scheduler(format!("it stays {state}")));
            }
            _ => std::thread::sleep(LOOK),
        }
    }
    let name = host.text(NAME)?;
    match name.starts_with(OPS) {
        true => Ok(SCX_STEALTIME.to_owned()),
        false => Ok(name),
    }
}

pub(crate) fn write(host: &Host, value: &str) -> Result<(), AccessError> {
    match value {
        FAIR => unload(host),
        SCX_STEALTIME => load(host),
        value => Err(AccessError::Value(value.to_owned())),
    }
}

/// Whether the scheduler can be loaded, as far as that shows.
pub(crate) fn check(host: &Host) -> Result<(), AccessError> {
    let refused = |reason: &str| Err(AccessError::Scheduler(reason.to_owned()));
    match read(host) {
        Err(AccessError::Gone) => refused(
            "this kernel has no sched_ext: use Linux 6.12 or newer with CONFIG_SCHED_CLASS_EXT",
        ),
        Err(error) => Err(error),
        Ok(name) => {
            host.program()?;
            match name == FAIR {
                true => Ok(()),
                false => refused(&format!("{name} is loaded: end it first")),
            }
        }
    }
}

fn load(host: &Host) -> Result<(), AccessError> {
    let program = host.program()?;
    let mut command = Command::new(program);
    // Its input ends with this process, even if that is killed. Ctrl-C is for this process alone.
    command.arg("--until-eof").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().map_err(kernel("start scx_stealtime"))?;
    let loaded = await_load(host, &mut child);
    match loaded {
        Ok(()) => *host.loaded() = Some(child),
        Err(_) => {
            // It may have ended. The kernel's scheduler takes over in any case.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
    loaded
}

fn await_load(host: &Host, child: &mut Child) -> Result<(), AccessError> {
    let begin = Instant::now();
    while host.text(STATE)? != "enabled" {
        let ended = child.try_wait().map_err(kernel("wait for scx_stealtime"))?;
        let reason = match ended {
            Some(status) => format!("scx_stealtime ended: {status}"),
            None if begin.elapsed() > PATIENCE => {
                "scx_stealtime does not load within a minute".to_owned()
            }
            None => {
                std::thread::sleep(LOOK);
                continue;
            }
        };
        return Err(AccessError::Scheduler(reason));
    }
    Ok(())
}

/// Ends the program. That of a trial which was killed ends by itself, and is waited for.
fn unload(host: &Host) -> Result<(), AccessError> {
    let mut child = host.loaded().take();
    if let Some(child) = &mut child {
        drop(child.stdin.take());
    }
    let begin = Instant::now();
    while host.text(STATE)? != "disabled" {
        if begin.elapsed() > POLITE {
            let Some(child) = &mut child else {
                let reason = "another process has loaded it: end that";
                return Err(AccessError::Scheduler(reason.to_owned()));
            };
            // Again and again, which does no harm: the kernel may need a moment.
            let _ = child.kill();
        }
        if begin.elapsed() > PATIENCE {
            return Err(AccessError::Scheduler(
                "scx_stealtime does not end".to_owned(),
            ));
        }
        std::thread::sleep(LOOK);
    }
    if let Some(mut child) = child {
        // The state has said that it ended.
        let _ = child.wait();
    }
    Ok(())
}

fn kernel(action: &'static str) -> impl FnOnce(std::io::Error) -> AccessError {
    move |source| AccessError::Kernel { action, source }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;
    use crate::target::{NoProgram, Target};

    /// A program that loads as the kernel shows it, and ends with its input.
    const FAKE: &str = "#!/bin/sh
cd \"${0%/*}/sys/kernel/sched_ext\"
echo stealtime_1 >root/ops
echo enabled >state
cat
echo disabled >state
";

    fn host(root: &Path, program: &str) -> Host {
        let folder = root.join("sys/kernel/sched_ext");
        fs::create_dir_all(folder.join("root")).expect("a folder");
        fs::write(folder.join("state"), "disabled\n").expect("a file");
        let path = root.join("scx_stealtime");
        fs::write(root.join("text"), program).expect("a file");
        // A process that another test starts meanwhile may hold what this one has open to write: ETXTBSY.
        let copied = Command::new("cp")
            .arg(root.join("text"))
            .arg(&path)
            .status();
        assert!(copied.expect("cp runs").success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can run");
        Host::new(root).with_scheduler(Ok(path))
    }

    #[test]
    fn it_is_loaded_and_ended() {
        let root = tempfile::tempdir().expect("a folder");
        let host = host(root.path(), FAKE);
        let target = Target::Scheduler;
        host.check_writable(&target).expect("it can be loaded");
        host.write(&target, FAIR).expect("it is so already");
        for _ in 0..2 {
            host.write(&target, SCX_STEALTIME).expect("loaded");
            assert_eq!(host.read(&target).expect("read"), SCX_STEALTIME);
            host.write(&target, FAIR).expect("ended");
            assert_eq!(host.read(&target).expect("read"), FAIR);
        }
    }

    #[test]
    fn what_cannot_be_loaded_is_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let reason = |host: &Host| {
            let refused = host.check_writable(&Target::Scheduler);
            refused.expect_err("refused").to_string()
        };
        assert!(reason(&Host::new(root.path())).contains("no sched_ext"));
        let host = host(root.path(), "#!/bin/sh\nexit 3\n");
        let none = Host::new(root.path())
            .with_scheduler(Err(NoProgram("name it in SCX_STEALTIME".to_owned())));
        assert!(reason(&none).contains("SCX_STEALTIME"));
        let ended = host.write(&Target::Scheduler, SCX_STEALTIME);
        let ended = ended.expect_err("it ends").to_string();
        assert_eq!(ended, "scx_stealtime ended: exit status: 3");
        fs::write(root.path().join(&STATE[1..]), "enabled\n").expect("a file");
        fs::write(root.path().join(&NAME[1..]), "simple\n").expect("a file");
        assert_eq!(reason(&host), "simple is loaded: end it first");
    }
}
