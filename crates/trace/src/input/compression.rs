//! Compression around a container, by its magic number.

/// The compression that these first bytes begin, by the name of its program.
pub(super) fn recognise(head: &[u8]) -> Option<&'static str> {
    // RFC 8878, section 3.1.2: skippable frames have magic numbers 0x184D2A50 to 0x184D2A5F.
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
