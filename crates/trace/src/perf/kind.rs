//! Kinds of records (`enum perf_event_type` and `enum perf_user_event_type`:
//! include/uapi/linux/perf_event.h, tools/lib/perf/include/perf/event.h).

pub(super) const LOST: u32 = 2;
pub(super) const COMM: u32 = 3;
pub(super) const SAMPLE: u32 = 9;
pub(super) const LOST_SAMPLES: u32 = 13;
pub(super) const HEADER_ATTR: u32 = 64;
pub(super) const TRACING_DATA: u32 = 66;
pub(super) const FINISHED_ROUND: u32 = 68;
pub(super) const ID_INDEX: u32 = 69;
/// Data follow the record.
pub(super) const AUXTRACE: u32 = 71;
pub(super) const THREAD_MAP: u32 = 73;
pub(super) const EVENT_UPDATE: u32 = 78;
pub(super) const HEADER_FEATURE: u32 = 80;
/// Records follow in zstd, a stream over all such records.
pub(super) const COMPRESSED: u32 = 81;
/// The same behind its length (Linux 6.16).
pub(super) const COMPRESSED2: u32 = 83;
