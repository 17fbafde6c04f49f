//! The shipped recording with changes.

use std::path::Path;

use stealtime_events::{CpuId, Event};
use stealtime_trace::write::{Options, TraceDatWriter};

use super::{HACKBENCH, traces};

/// The recording with the events that `keep` accepts, and a gap on CPU 1 at `gap_ns`. `keep` takes the
/// time since the begin of the recording, in ns.
pub(crate) fn cut(path: &Path, gap_ns: Option<u64>, keep: impl Fn(&Event, u64) -> bool) {
    edited(path, gap_ns, |event, since| {
        keep(event, since).then_some(*event)
    });
}

/// The recording with what `edit` makes of each event.
pub(crate) fn edited(
    path: &Path,
    gap_ns: Option<u64>,
    edit: impl Fn(&Event, u64) -> Option<Event>,
) {
    edited_of(path, None, gap_ns, edit);
}

/// The same, of a host with this `uname`.
pub(crate) fn edited_of(
    path: &Path,
    uname: Option<&str>,
    gap_ns: Option<u64>,
    edit: impl Fn(&Event, u64) -> Option<Event>,
) {
    let source = traces().join(HACKBENCH);
    let mut source = stealtime_trace::open_with(&source, &Default::default()).expect("opened");
    let mut file = std::fs::File::create(path).expect("a file");
    let options = Options {
        uname: uname.map(str::to_owned),
        ..Options::default()
    };
    let mut writer = TraceDatWriter::new(options).expect("a writer");
    let (mut first, mut gap) = (None, gap_ns);
    while let Some(event) = source.next_event().expect("read") {
        let is_name = !event.kind.is_host_event();
        let since = match is_name {
            true => 0,
            false => event.time_ns - *first.get_or_insert(event.time_ns),
        };
        if gap.is_some_and(|gap| since >= gap) {
            gap = None;
            writer.lost(CpuId(1), 7);
        }
        let edited = match is_name {
            true => Some(event),
            false => edit(&event, since),
        };
        if let Some(event) = edited {
            writer.push(&event, source.names()).expect("written");
        }
    }
    writer.finish(&mut file).expect("a whole file");
}
