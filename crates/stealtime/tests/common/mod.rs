//! What tests of the command share.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

/// A VM that makes a run fail. No ratio makes its counter of the other host's: known as it arrives there.
pub const FAULTY_VM: &str = "[[vm]]\nname = \"moved\"\nworkload = \"idle\"\n\
    [vm.migration]\nat = \"100us\"\ntransfer = \"100us\"\nto_cpus = \"1\"\n\
    destination = { tsc_khz = 1 }\n";

/// The command with these arguments, and nothing on its standard input.
pub fn stealtime(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stealtime"));
    command.args(arguments).stdin(Stdio::null());
    // The width of a terminal that is not there, and colours that go into pipes.
    for variable in ["COLUMNS", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command
}

/// Its exit status, standard output and standard error.
pub fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("the command runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A snapshot with memory of the host of `svm-cfs`, as a file in a folder.
pub fn host_of_cfs(folder: &Path) -> String {
    let snapshot = folder.join("host.json");
    let vm = |name: &str, pid: i32, tids: [i32; 2], bytes: u64| {
        let threads = (0..)
            .zip(tids)
            .map(|(vcpu, tid): (u32, i32)| json!({ "tid": tid, "kind": "vcpu", "vcpu": vcpu }));
        json!({
            "name": name,
            "process": { "pid": pid, "resident_bytes": bytes },
            "threads": threads.collect::<Vec<_>>(),
        })
    };
    let host = json!({
        "version": 1,
        "memory": { "available_bytes": 3u64 << 30 },
        "vms": [
            vm("vm0", 100, [119, 121], 4 << 30),
            vm("vm1", 101, [120, 122], 1 << 30),
        ],
    });
    fs::write(&snapshot, host.to_string()).expect("a file");
    snapshot.display().to_string()
}

/// A host's tree of crates/host, with what all share, as a file in a folder.
pub fn host_tree(folder: &Path, name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/tests/data");
    let read = |name: &str| fs::read_to_string(data.join(format!("{name}.tree"))).expect(name);
    let path = folder.join(format!("{name}.tree"));
    fs::write(&path, read("base") + &read(name)).expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}
