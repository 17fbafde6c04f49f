//! `--with FILE:VM[=NAME]`: VMs of other recordings.

use std::path::PathBuf;
use std::str::FromStr;

use stealtime_whatif::{AddedVm, Recorded};

use crate::args::Recording;
use crate::error::CliError;
use crate::input::Twice;
use crate::replayable;

/// A VM of another recording: `FILE:VM`, `FILE:VM=NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddedFrom {
    pub(crate) file: PathBuf,
    vm: String,
    /// Its name on this host.
    name: String,
}

/// Neither `FILE:VM` nor `FILE:VM=NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected FILE:VM or FILE:VM=NAME")]
pub(crate) struct NoAddedVm;

impl FromStr for AddedFrom {
    type Err = NoAddedVm;

    fn from_str(text: &str) -> Result<Self, NoAddedVm> {
        let wrong = || NoAddedVm;
        let (file, names) = text.rsplit_once(':').ok_or_else(wrong)?;
        let (vm, name) = names.split_once('=').unwrap_or((names, names));
        match file.is_empty() || vm.is_empty() || name.is_empty() {
            true => Err(wrong()),
            false => Ok(Self {
                file: PathBuf::from(file),
                vm: vm.to_owned(),
                name: name.to_owned(),
            }),
        }
    }
}

impl AddedFrom {
    /// Reads its recording.
    ///
    /// # Errors
    ///
    /// What cannot be read or replayed; a VM that is not there or cannot be scaled.
    pub(crate) fn read(&self, host: &Recorded) -> Result<AddedVm, CliError> {
        let twice = Twice::new(&self.file)?;
        let opened = Recording::plain(&self.file);
        let foreign = replayable::read(twice.path(), &opened, true)?.recorded;
        let shown = self.file.display().to_string();
        let added = AddedVm::new(host, &shown, &foreign, &self.vm, &self.name);
        Ok(added.map_err(stealtime_whatif::Error::from)?)
    }
}
