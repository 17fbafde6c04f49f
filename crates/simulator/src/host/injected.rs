//! The faults that are injected into a run, if any.

use super::Host;
use crate::inject::InjectionState;

#[inline(always)]
pub(crate) fn state<'h>(host: &'h Host<'_>) -> Option<&'h InjectionState> {
    host.injection.as_deref()
}

#[inline(always)]
pub(crate) fn state_mut<'h>(host: &'h mut Host<'_>) -> Option<&'h mut InjectionState> {
    host.injection.as_deref_mut()
}

/// Faults are injected from now on.
pub(crate) fn begin(host: &mut Host<'_>, state: InjectionState) {
    host.injection = Some(Box::new(state));
}
