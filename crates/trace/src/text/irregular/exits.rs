//! `kvm_exit` as text: reasons are names, which the kernel and trace-cmd spell differently.

use stealtime_events::exit_reason::VMX_FAILED_VMENTRY;
use stealtime_events::{ExitReason, Isa, Kind};

use crate::text::fields::{after, bare_hex, number, vcpu_if_printed};
use crate::tracepoint;

/// Exit reasons by the words that the text has for them.
#[derive(Debug, Default)]
pub(in crate::text) struct Exits {
    /// The few that a recording has, with the words they came from.
    known: Vec<(Box<[u8]>, ExitReason)>,
    isa: Option<Isa>,
}

impl Exits {
    /// The reason that `words` (`npf`, `EXIT_NPF`, `INVALID_STATE FAILED_VMENTRY`, `0x1234`) stand
    /// for. A bare number belongs to the table of the names seen before it, if that has no name for it.
    fn reason(&mut self, words: &[u8]) -> Option<ExitReason> {
        if let Some((_, reason)) = self.known.iter().find(|(known, _)| **known == *words) {
            return Some(*reason);
        }
        let mut parts = words
            .split(|byte| *byte == b' ')
            .filter(|part| !part.is_empty());
        let name = parts.next()?;
        let text = std::str::from_utf8(name).ok()?;
        let unknown = text == "UNKNOWN";
        let mut reason = match (ExitReason::from_name(text), unknown) {
            (Some(reason), false) => reason,
            _ => {
                let digits = if unknown {
                    parts.next()?.trim_ascii_start()
                } else {
                    name
                };
                let digits = digits.strip_prefix(b"(").unwrap_or(digits);
                let digits = digits.strip_suffix(b")").unwrap_or(digits);
                let code = u32::try_from(number(digits)?).ok()?;
                // A module prints a number where its table lacks a name. If the table of the earlier names
                // has one, the number is another module's (`kvm_pvm` next to `kvm_intel`).
                let in_table = self.isa.map(|isa| ExitReason { isa, code });
                let number_only = ExitReason {
                    isa: Isa::Other,
                    code,
                };
                return Some(
                    in_table
                        .filter(|reason| reason.name().is_none())
                        .unwrap_or(number_only),
                );
            }
        };
        self.isa = Some(reason.isa);
        if reason.isa == Isa::Vmx && parts.any(|flag| flag == b"FAILED_VMENTRY") {
            reason.code |= VMX_FAILED_VMENTRY;
        }
        // Bounds memory on a text with ever new words; more than any table has.
        if self.known.len() < 256 {
            self.known.push((words.into(), reason));
        }
        Some(reason)
    }
}

/// The exit of a text that names the reason.
pub(super) fn parse(body: &[u8], exits: &mut Exits) -> Option<Kind> {
    let reason = match after(body, "reason") {
        Some(words) => {
            let end = memchr::memmem::find(words, b" rip ");
            let end = end.or_else(|| memchr::memmem::find(words, b" info"));
            exits.reason(words.get(..end.unwrap_or(words.len()))?.trim_ascii())?
        }
        None => arm64_exit(body)?,
    };
    let info1 = match after(body, "info1") {
        Some(value) => u64::try_from(number(value)?).ok()?,
        // Before 5.10: `info 7a1 800000ec`, hexadecimal without `0x`.
        None => after(body, "info").map_or(Some(0), bare_hex)?,
    };
    let intr_info = match after(body, "intr_info") {
        Some(value) => u32::try_from(number(value)?).ok()?,
        None => 0,
    };
    Some(Kind::KvmExit {
        reason,
        vcpu: vcpu_if_printed(body)?,
        intr_vector: tracepoint::interrupt_vector(reason.isa, intr_info),
        info1,
    })
}

/// `TRAP: HSR_EC: 0x0024 (DABT_LOW), PC: …`, `IRQ: HSR_EC: …`.
fn arm64_exit(body: &[u8]) -> Option<ExitReason> {
    let class = after(body, "HSR_EC").or_else(|| after(body, "ESR_EC"))?;
    if body.starts_with(b"TRAP") {
        let code = u32::try_from(number(class)?).ok()?;
        return Some(ExitReason {
            isa: Isa::Arm64,
            code,
        });
    }
    let name = body.get(..memchr::memchr(b':', body)?)?;
    ExitReason::from_name(std::str::from_utf8(name).ok()?).filter(|reason| reason.isa == Isa::Arm64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_the_table_of_the_names_has_is_of_another_module() {
        let mut exits = Exits::default();
        let mut of = |words: &str| {
            let reason = exits.reason(words.as_bytes()).expect("a reason");
            (reason.isa, reason.code, reason.name())
        };
        assert_eq!(of("0x20"), (Isa::Other, 0x20, None));
        assert_eq!(of("HLT"), (Isa::Vmx, 12, Some("HLT")));
        // KVM on VMX prints a name for it.
        assert_eq!(of("0x0"), (Isa::Other, 0, None));
        assert_eq!(of("0x3e7"), (Isa::Vmx, 0x3e7, None));
    }
}
