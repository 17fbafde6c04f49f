//! The line that an answer ends with.

use std::fmt::Write as _;

use stealtime_doctor::Decision;
use stealtime_host::Manager;

use super::Style;
use crate::escape;
use crate::units::wrap;

/// The decision as the last line; what it rests on and what undoes it stand above. Commands are not
/// wrapped, so that they can be copied.
#[must_use]
pub fn render(decision: &Decision, style: Style) -> String {
    let mut page = String::from("\n");
    if decision.worth_doing {
        let mut text = format!("{}: {}", decision.what, decision.why);
        if let Some(manager) = decision.manager {
            let _ = write!(text, "; by {}", manager_name(manager));
        }
        for line in wrap(&escape::terminal(&text), style.width) {
            let _ = writeln!(page, "{}", style.dim(&line));
        }
        if !decision.undo.is_empty() {
            let undo = decision.undo.join("; ");
            let _ = writeln!(page, "{}{}", style.dim("undo: "), escape::terminal(&undo));
        }
    }
    let _ = writeln!(
        page,
        "{}",
        style.bold(&escape::terminal(&decision.to_string()))
    );
    page
}

/// A manager as its makers write it.
pub(crate) const fn manager_name(manager: Manager) -> &'static str {
    match manager {
        Manager::Libvirt => "libvirt",
        Manager::Openstack => "OpenStack",
        Manager::Proxmox => "Proxmox",
        Manager::Kubevirt => "KubeVirt",
        Manager::Kata => "Kata",
        Manager::Firecracker => "Firecracker",
        Manager::CloudHypervisor => "Cloud Hypervisor",
        Manager::Systemd => "systemd",
        Manager::Qemu => "QEMU",
        Manager::Process => "the process",
    }
}
