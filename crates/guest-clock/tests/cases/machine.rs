//! What the first process of a machine does before and after its work.

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

/// Mounts what the cases read, and loads the modules of `/mod` in the order of their names.
pub fn begin() {
    for (kind, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        let [kind, target] = [kind, target].map(|text| CString::new(text).unwrap());
        // SAFETY: strings that end with 0 and live over the call. Needed: there is no safe mount.
        let mounted = unsafe {
            libc::mount(
                kind.as_ptr(),
                target.as_ptr(),
                kind.as_ptr(),
                0,
                std::ptr::null(),
            )
        };
        // The kernel may have mounted `/dev` itself.
        if mounted != 0 {
            println!("{target:?}: {}", std::io::Error::last_os_error());
        }
    }
    for path in files("/mod") {
        let file = fs::File::open(&path).unwrap();
        // SAFETY: an open descriptor and a string that ends with 0. Needed: there is no safe call.
        let loaded =
            unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
        if loaded != 0 {
            println!(
                "FAILED: {}: {}",
                path.display(),
                std::io::Error::last_os_error()
            );
        }
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!("up {}, Linux {}", uptime(), release.trim());
}

/// Runs the programs of `/programs`. They end with 0, or with 77 where they cannot run. The number of others.
pub fn failed_programs() -> u32 {
    let mut failed = 0;
    for path in files("/programs") {
        let ended = Command::new(&path).status();
        let is_fine = ended
            .as_ref()
            .is_ok_and(|status| matches!(status.code(), Some(0 | 77)));
        println!("program {} ... {ended:?}", path.display());
        failed += u32::from(!is_fine);
    }
    failed
}

/// Files of a directory in the order of their names, none where it is missing.
fn files(directory: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).map(|entries| entries.map(|entry| entry.unwrap().path()));
    let mut files: Vec<_> = entries.into_iter().flatten().collect();
    files.sort();
    files
}

fn uptime() -> String {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    format!("{} s", text.split(' ').next().unwrap_or_default())
}

/// Powers the machine off.
pub fn end() {
    println!("end {}", uptime());
    std::io::stdout().flush().unwrap();
    // SAFETY: no argument of either is an address. Needed: there is no safe call.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
}
