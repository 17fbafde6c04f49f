//! What a beginning belongs to.

use crate::{TraceDat, text};

/// The container, as its first bytes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    /// trace-cmd.
    TraceDat,
    /// perf, with a header that points to sections.
    PerfFile,
    /// perf, records one after the other.
    PerfPipe,
    /// Lines.
    Text,
}

/// The container whose beginning is `head`.
pub(super) fn container(head: &[u8]) -> Option<Container> {
    if TraceDat::recognise(head) {
        return Some(Container::TraceDat);
    }
    let size = head.get(8..16).and_then(|bytes| bytes.try_into().ok());
    let size = size.map(|bytes: [u8; 8]| {
        if head.starts_with(b"PERFILE2") {
            u64::from_le_bytes(bytes)
        } else {
            u64::from_be_bytes(bytes)
        }
    });
    if head.starts_with(b"PERFILE2") || head.starts_with(b"2ELIFREP") {
        return Some(match size {
            Some(16) => Container::PerfPipe,
            _ => Container::PerfFile,
        });
    }
    text::looks_like_text(head).then_some(Container::Text)
}

/// Which compression these first bytes are of.
pub(super) fn compression(head: &[u8]) -> Option<&'static str> {
    let skippable = head.get(1..4) == Some(b"\x2a\x4d\x18")
        && head.first().is_some_and(|byte| byte & 0xf0 == 0x50);
    if head.starts_with(b"\x28\xb5\x2f\xfd") || skippable {
        Some("zstd")
    } else if head.starts_with(b"\xfd7zXZ\0") {
        Some("xz")
    } else if head.starts_with(b"\x1f\x8b") {
        Some("gzip")
    } else {
        None
    }
}

/// The first bytes for a message: printable ASCII as it is, the rest as `\xNN`.
pub(super) fn escaped(head: &[u8]) -> String {
    let bytes = head.get(..24).unwrap_or(head);
    bytes.escape_ascii().to_string()
}
