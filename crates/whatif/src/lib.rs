//! What changed knobs would do to the guests of a recording.
//!
//! A [`Recorded`] is replayed under the recorded knobs ([`Baseline`]) and with each [`Plan`] of
//! [`Change`]s. Both are measured over the same seeds and compared with 95 % intervals. All results
//! are one [`Document`]; terminal, HTML and JSON are renderings of it. Nothing here prints or opens
//! files.

mod added;
mod answerable;
mod apply;
mod assumptions;
mod auto;
mod baseline;
mod candidates;
pub mod capacity;
mod condition;
mod count;
mod coverage;
mod decision;
mod document;
mod error;
mod facts;
mod fair_class;
mod figure;
mod fit;
mod gain;
mod host_file;
mod host_snapshot;
mod known;
mod marked;
mod observed;
mod on_host;
mod pin;
mod plan;
mod population;
mod population_change;
mod preempt;
mod presence;
mod question;
mod recorded;
mod remedy;
mod replays;
mod result;
mod self_test;
mod turns;
mod variants;

pub use added::{AddError, AddedVm};
pub use auto::{Auto, Tried};
pub use baseline::Baseline;
pub use candidates::Cannot;
pub use condition::{Condition, ConditionError, Met, Watched};
pub use count::{CountError, VmCount};
pub use coverage::{Answered, Lack, Unreplayable, check_replayable};
pub use decision::of_answers;
pub use document::Document;
pub use error::Error;
pub use fit::{DimensionValue, Fit, MisfitShares, SecondBest};
pub use gain::{Effect, Gain, HOST_TASKS, Outcome, VmEffect, Word};
pub use host_file::{HostFacts, HostFileError};
pub use known::Fact;
pub use observed::{Observation, Observed, ObservedFigure, ObservedRow};
pub use pin::{Pin, PinError};
pub use plan::{Change, Host, Plan, Prepared};
pub use population::{Population, VmFigures, populations, populations_with};
pub use population_change::PopulationChange;
pub use presence::{Partly, Presence};
pub use question::{Question, QuestionError};
pub use recorded::Recorded;
pub use remedy::{Remedy, remedies};
pub use replays::Run;
pub use result::{
    CLOSE, Closeness, Delta, Exits, Ranked, ReplayedVcpu, Shares, TOO_FAR, Variant, VcpuError,
    Waits, ranked,
};
pub use self_test::SelfTestRow;
pub use turns::{RecordedTurns, SeenTurns, Shown, TurnFigure, host_changes};
