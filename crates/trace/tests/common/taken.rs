//! Names that events carry, for comparisons of recordings: tables of names differ.

use stealtime_events::{Kind, NameId};

/// Takes the id of the name out of an event; `NONE` if it carries none.
pub(crate) fn take_name(kind: &mut Kind) -> NameId {
    match kind {
        Kind::Other { name: id }
        | Kind::IpiSendCpu { callback: id, .. }
        | Kind::IpiSendCpumask { callback: id }
        | Kind::CsdQueueCpu { func: id, .. }
        | Kind::CsdFunctionEntry { func: id }
        | Kind::CsdFunctionExit { func: id }
        | Kind::HrtimerStart { function: id, .. }
        | Kind::HrtimerExpireEntry { function: id, .. }
        | Kind::Task { name: id, .. } => std::mem::replace(id, NameId::NONE),
        _ => NameId::NONE,
    }
}
