//! Why a host cannot be followed by BPF.

use std::io;

use crate::RecordError;
use crate::error::{CONFIDENTIALITY, lockdown};

use super::btf::VMLINUX;

/// Why BPF programs do not collect events here. The messages are reasons: tracefs may still be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The records of `kvm_exit` and interrupts differ.
    #[error("programs are made for x86-64 alone")]
    Machine,
    /// The kernel has no type information.
    #[error(
        "{VMLINUX}: {source}{}",
        if source.kind() == io::ErrorKind::NotFound {
            "; the kernel is built without CONFIG_DEBUG_INFO_BTF"
        } else {
            ""
        }
    )]
    NoTypes {
        /// The operating system's error.
        source: io::Error,
    },
    /// The kernel's type information lacks what programs need.
    #[error("{VMLINUX}: {0}")]
    Types(String),
    /// The right to load programs is missing.
    #[error(
        "the kernel refuses to {doing}: {source}; it needs root, or CAP_BPF and CAP_PERFMON{}",
        lockdown.as_ref().map(|mode| format!(" (lockdown: {mode})")).unwrap_or_default()
    )]
    Forbidden {
        /// What was tried.
        doing: String,
        /// The operating system's error.
        source: io::Error,
        /// The mode of `/sys/kernel/security/lockdown`, unless `none`.
        lockdown: Option<String>,
    },
    /// A locked-down kernel forbids programs to read its memory.
    #[error(
        "the kernel is locked down ({CONFIDENTIALITY}), which forbids programs to read its memory"
    )]
    LockedDown,
    /// The kernel's verifier refuses a program.
    #[error("the verifier of Linux {kernel} refuses the program of {program}: {report}")]
    Verifier {
        /// The tracepoint.
        program: String,
        /// The last line of the verifier's report.
        report: String,
        /// The kernel's release.
        kernel: String,
    },
    /// A system call fails.
    #[error("Linux {kernel} cannot {doing}: {source}")]
    Kernel {
        /// What was tried.
        doing: String,
        /// The operating system's error.
        source: io::Error,
        /// The kernel's release.
        kernel: String,
    },
    /// tracefs has the numbers of tracepoints, and the layout of `kvm_exit`.
    #[error("{0}")]
    Tracefs(RecordError),
}

impl BpfError {
    /// The error of a system call.
    pub(super) fn new(doing: impl Into<String>, source: io::Error) -> Self {
        let doing = doing.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Forbidden {
                doing,
                source,
                lockdown: lockdown(),
            },
            _ => Self::Kernel {
                doing,
                source,
                kernel: release(),
            },
        }
    }

    /// The error of loading a program, with the verifier's report.
    pub(super) fn loading(program: &str, source: io::Error, report: String) -> Self {
        let is_locked = || lockdown().as_deref() == Some(CONFIDENTIALITY);
        match report.is_empty() {
            true => Self::new(format!("load the program of {program}"), source),
            // The verifier names the helper that is missing then, not why.
            false if report.contains("bpf_probe_read_kernel") && is_locked() => Self::LockedDown,
            false => Self::Verifier {
                program: program.to_owned(),
                report,
                kernel: release(),
            },
        }
    }
}

/// The kernel's release.
fn release() -> String {
    let uname = rustix::system::uname();
    uname.release().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_cause() {
        let missing = BpfError::NoTypes {
            source: io::ErrorKind::NotFound.into(),
        };
        assert_eq!(
            missing.to_string(),
            "/sys/kernel/btf/vmlinux: entity not found; the kernel is built without CONFIG_DEBUG_INFO_BTF"
        );
        let forbidden = BpfError::Forbidden {
            doing: "load the program of kvm_exit".to_owned(),
            source: io::Error::from_raw_os_error(libc::EPERM),
            lockdown: Some("confidentiality".to_owned()),
        };
        assert_eq!(
            forbidden.to_string(),
            "the kernel refuses to load the program of kvm_exit: Operation not permitted (os error 1); it needs \
             root, or CAP_BPF and CAP_PERFMON (lockdown: confidentiality)"
        );
        let refused = BpfError::Verifier {
            program: "sched_switch".to_owned(),
            report: "invalid access to map value".to_owned(),
            kernel: "5.8.0".to_owned(),
        };
        assert_eq!(
            refused.to_string(),
            "the verifier of Linux 5.8.0 refuses the program of sched_switch: invalid access to map value"
        );
        let old = BpfError::loading(
            "sched_switch",
            io::Error::from_raw_os_error(libc::EINVAL),
            String::new(),
        );
        assert!(
            old.to_string()
                .contains("cannot load the program of sched_switch"),
            "{old}"
        );
    }
}
