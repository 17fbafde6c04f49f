//! Rights and the priority that a process needs no more once it follows the host.

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Keeps the capabilities that names of VMs need, for this thread and those that it starts: their processes
/// belong to other users. Files of tracefs belong to root, and root's rights stay. `writes_files`: in folders
/// of any user.
pub fn drop_capabilities(writes_files: bool) {
    let mut needed = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
    // Another user than root owns none of these files.
    if writes_files || !rustix::process::geteuid().is_root() {
        needed |= CapabilitySet::DAC_OVERRIDE;
    }
    let Ok(held) = rustix::thread::capabilities(None) else {
        debug_assert!(false, "capget of this thread");
        return;
    };
    let sets = CapabilitySets {
        effective: held.effective & needed,
        permitted: held.permitted & needed,
        inheritable: CapabilitySet::empty(),
    };
    // Less is always allowed.
    let dropped = rustix::thread::set_capabilities(None, sets);
    debug_assert!(dropped.is_ok(), "capset of this thread: {dropped:?}");
    let _ = rustix::thread::set_no_new_privs(true);
}

/// Gives this thread the priority of ordinary tasks: threads of a collector inherit its higher one.
pub fn usual_priority() {
    // A lower priority is always allowed.
    let _ = rustix::process::setpriority_process(None, 0);
}
