//! What a replay of a recording can do with a knob.

/// What a replay of a recording can do with a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// It shows the effect, if the recording has the part that the knob acts on.
    Shows(Part),
    /// The recording fixes what the knob would change; a simulation has it.
    Simulate {
        /// What the recording fixes, as a clause.
        why: &'static str,
        /// A scenario below `scenarios/` that shows the effect.
        scenario: Option<&'static str>,
    },
    /// Another option of `whatif` has the same effect.
    Instead(&'static str),
}

/// The part of a replay that a knob acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The choice among runnable tasks, which every recording has.
    Tasks,
    /// Halts of vCPUs.
    Halts,
    /// Directed yields of vCPUs.
    DirectedYields,
    /// The cgroups of VMs.
    Cgroups,
    /// Nice values of a VM's threads, where it has no cgroup of its own.
    Nice,
    /// `cpu.weight` of a VM's cgroup.
    Weight,
    /// `cpu.max` of a VM's cgroup.
    Limit,
    /// The tasks of a VM, as often as there are VMs.
    Count,
    /// The CPUs of the host.
    Cpus,
}

/// The fair classes of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FairClass {
    /// From 6.6 on.
    Eevdf,
    /// Before 6.6.
    Cfs,
}

impl Replay {
    pub(super) const fn simulate(reason: &'static str) -> Self {
        Self::Simulate {
            why: reason,
            scenario: None,
        }
    }

    pub(super) const fn scenario(reason: &'static str, scenario: &'static str) -> Self {
        Self::Simulate {
            why: reason,
            scenario: Some(scenario),
        }
    }

    /// One word, for programs: `shows`, `simulate` or `instead`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shows(_) => "shows",
            Self::Simulate { .. } => "simulate",
            Self::Instead(_) => "instead",
        }
    }

    /// What a reader needs to know of it, as a clause.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Shows(part) => part.describe().to_owned(),
            Self::Simulate { why, scenario } => match scenario {
                Some(scenario) => format!("not answered: {why}; see scenarios/{scenario}"),
                None => format!("not answered: {why}"),
            },
            Self::Instead(option) => format!("refused: say {option}"),
        }
    }
}

impl Part {
    const fn describe(self) -> &'static str {
        match self {
            Self::Tasks | Self::Count | Self::Cpus => "answered",
            Self::Halts => "answered, if halts and their polling are recorded",
            Self::DirectedYields => "answered, if directed yields are recorded",
            Self::Cgroups => "answered, if VMs have cgroups",
            Self::Nice => "answered, if the VM has no cgroup of its own",
            Self::Weight | Self::Limit => "answered; the VM gets a cgroup if it has none",
        }
    }
}

impl FairClass {
    /// The value of `sched.fair`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eevdf => "eevdf",
            Self::Cfs => "cfs",
        }
    }
}
