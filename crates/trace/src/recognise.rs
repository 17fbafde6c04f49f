//! Containers by their first bytes.

use crate::{TraceDat, text};

/// The container, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Container {
    /// trace-cmd.
    TraceDat,
    /// perf, with a header that points to sections.
    PerfFile,
    /// perf, records one after the other.
    PerfPipe,
    /// Lines.
    Text,
}

/// The container that begins with `head`.
pub(crate) fn container(head: &[u8]) -> Option<Container> {
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
        // `perf_pipe_file_header` is magic and size alone (tools/perf/util/header.h).
        return Some(match size {
            Some(16) => Container::PerfPipe,
            _ => Container::PerfFile,
        });
    }
    text::looks_like_text(head).then_some(Container::Text)
}

/// The first bytes for a message: printable ASCII as it is, the rest as `\xNN`.
pub(crate) fn escaped(head: &[u8]) -> String {
    let bytes = head.get(..24).unwrap_or(head);
    bytes.escape_ascii().to_string()
}
