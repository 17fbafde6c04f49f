//! How a `kvm_exit` of x86 prints its reason.

use std::sync::LazyLock;

use stealtime_events::{ExitReason, Isa};

/// Stands for the reason's name in the table. Its text comes from the tables of [`ExitReason`].
pub(super) const REASON: &str = "@REASON@";

/// The argument that prints the reason's name: made once, because it looks up some thousand codes.
pub(super) fn reason() -> &'static str {
    static ARGUMENT: LazyLock<String> = LazyLock::new(argument);
    &ARGUMENT
}

fn argument() -> String {
    let names = |isa| {
        // No code of either table is larger, but for SVM's last (-1, VMEXIT_INVALID).
        let codes = (0..0x500).chain([u32::MAX]);
        let names = codes.filter_map(|code| {
            let name = ExitReason { isa, code }.name()?;
            Some(format!("{{ {code:#x}, \"{name}\" }}"))
        });
        names.collect::<Vec<_>>().join(", ")
    };
    // The table of VMX is that of basic reasons, the lower half: u32::MAX would be its last again.
    format!(
        "(REC->isa == 1) ? __print_symbolic(REC->exit_reason & 0xffff, {}) : \
         __print_symbolic(REC->exit_reason, {})",
        names(Isa::Vmx),
        names(Isa::Svm)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_names() {
        let reason = reason();
        for part in ["{ 0xc, \"HLT\" }", "{ 0x400, \"npf\" }"] {
            assert!(reason.contains(part), "{part}: {reason}");
        }
    }
}
