//! The faulty versions of posted interrupts that `stealtime check` refutes, and the sound ones, where a
//! processor posts: which of them lose interrupts.

use alloc::vec;
use alloc::vec::Vec;

use stealtime_hypervisor::posted_interrupt::{Capabilities, Fault, Suppression};

use crate::console::say;
use crate::guest::Program;
use crate::phase::{self, Guest, Phase, Poster};
use crate::scenario::{CAPABILITIES, check, exiting, posts, setup};
use crate::vcpu::{Setup, Shared};

/// What the guest does while it is posted to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rig {
    /// It exits often.
    Exits,
    /// It halts.
    Halts,
    /// It halts, and shares its CPU with a busy one; ticks preempt both.
    Preempted,
    /// It halts, and moves to the next CPU at each preemption.
    Migrates,
}

impl Rig {
    const ALL: [Self; 4] = [Self::Exits, Self::Halts, Self::Preempted, Self::Migrates];

    fn name(self) -> &'static str {
        match self {
            Self::Exits => "exits often",
            Self::Halts => "halts",
            Self::Preempted => "halts, preempted",
            Self::Migrates => "halts, migrates",
        }
    }

    fn phase(self, name: &'static str, setup: Setup, poster: Poster, count: u64) -> Phase {
        let halting = Guest::new(0, Program::Halt);
        let busy = Guest {
            work: 50,
            ..Guest::new(0, Program::Busy)
        };
        let guest = if self == Self::Exits {
            exiting()
        } else {
            halting
        };
        let mut phase = Phase {
            poster: Some(poster),
            ..posts(name, setup, guest, count)
        };
        phase.pause = 3_000;
        match self {
            Self::Exits => {}
            Self::Halts => phase.linger = 200,
            Self::Preempted => {
                phase.guests = vec![halting, busy];
                phase.tick = 2_500;
                phase.linger = 1_000;
            }
            Self::Migrates => {
                phase.tick = 1_500;
                phase.linger = 2_000;
                phase.migrate = true;
            }
        }
        phase
    }
}

/// Interrupts bypass the host: the wakeup vector is used.
const BYPASS: Capabilities = CAPABILITIES;
/// Plain APICv: neither IPI virtualization nor VT-d posts, so that software wakes.
const PLAIN: Capabilities = Capabilities {
    ipiv: false,
    vtd_posting: false,
    ..CAPABILITIES
};

struct Version {
    name: &'static str,
    policy: Suppression,
    fault: Fault,
    capabilities: Capabilities,
    poster: Poster,
    rig: Rig,
}

/// The versions with a known flaw, each in the rig that its counterexample needs.
fn refuted() -> Vec<Version> {
    use Rig::{Exits, Halts, Migrates, Preempted};
    use Suppression::{AsPostedV1, AsPostedV2, AsPostedV3, Off, Put};
    let version = |name, policy, capabilities, poster, rig| Version {
        name,
        policy,
        fault: Fault::None,
        capabilities,
        poster,
        rig,
    };
    let released = |name, fault, rig| Version {
        fault,
        ..version(name, Put, BYPASS, Poster::Device, rig)
    };
    vec![
        version(
            "v1: ON tested, not PIR (1, 2)",
            AsPostedV1,
            BYPASS,
            Poster::Device,
            Halts,
        ),
        version(
            "v1: software obeys SN (5)",
            AsPostedV1,
            PLAIN,
            Poster::Software,
            Halts,
        ),
        version(
            "v1: software obeys SN, busy",
            AsPostedV1,
            PLAIN,
            Poster::Software,
            Exits,
        ),
        version(
            "v2: software obeys SN (5)",
            AsPostedV2,
            PLAIN,
            Poster::Software,
            Halts,
        ),
        version(
            "v3: ON tested, not PIR (1, 2)",
            AsPostedV3,
            BYPASS,
            Poster::Device,
            Halts,
        ),
        version(
            "v3: preempted blocker (8)",
            AsPostedV3,
            BYPASS,
            Poster::Device,
            Preempted,
        ),
        version("put, plain APICv", Put, PLAIN, Poster::Software, Migrates),
        version("off, plain APICv", Off, PLAIN, Poster::Software, Migrates),
        released(
            "ON not recomputed (2019)",
            Fault::OnNotRecomputed,
            Preempted,
        ),
        released("self-IPI lost (ACRN 4978)", Fault::SelfIpiLost, Halts),
    ]
}

/// The historic fault that an entry shows which looks at ON alone after SN was cleared.
pub fn not_recomputed(count: u64) -> Phase {
    let setup = Setup {
        fault: Fault::OnNotRecomputed,
        host_work: 100,
        ..setup()
    };
    Rig::Preempted.phase("put, ON not recomputed", setup, Poster::Device, count)
}

/// A sound version in all rigs, with all posters that it allows.
fn sound(policy: Suppression) -> Vec<Version> {
    let mut versions = Vec::new();
    for rig in Rig::ALL {
        for (poster, capabilities) in [
            (Poster::Device, BYPASS),
            (Poster::Software, BYPASS),
            (Poster::Software, PLAIN),
        ] {
            // The other policies lose interrupts of a migrating vCPU on plain APICv.
            if !capabilities.ipiv && policy != Suppression::Corrected {
                continue;
            }
            let name = match (poster, capabilities.ipiv) {
                (Poster::Device, _) => "by a device",
                (Poster::Software, true) => "by software",
                (Poster::Software, false) => "plain APICv",
            };
            versions.push(Version {
                name,
                policy,
                fault: Fault::None,
                capabilities,
                poster,
                rig,
            });
        }
    }
    versions
}

/// A poster is interrupted between PIR and ON, while the vCPU is preempted between its last check and
/// its sleep, and moves. On plain APICv the kernel's load then loses the wakeup.
pub fn preempted_poster(count: u64, machine: &Shared) {
    line(["version", "guest"], ["interr.", "lost", "first", "twice"]);
    for (name, policy, capabilities, wakes_after_load, loses) in [
        ("off, as in Linux 7.2", Suppression::Off, PLAIN, false, true),
        ("put, as in Linux 7.2", Suppression::Put, PLAIN, false, true),
        ("put, with the patch", Suppression::Put, PLAIN, true, false),
        ("off, with the patch", Suppression::Off, PLAIN, true, false),
        (
            "put, IPI virtualization",
            Suppression::Put,
            BYPASS,
            false,
            false,
        ),
        ("corrected", Suppression::Corrected, PLAIN, false, false),
    ] {
        let setup = Setup {
            policy,
            capabilities,
            wakes_after_load,
            host_work: 100,
            ..setup()
        };
        let mut phase = Rig::Migrates.phase(name, setup, Poster::Software, count);
        phase.poster_gap = 3_000;
        let o = phase::run(phase, machine);
        let figures = [count, o.lost, o.first_lost, o.twice];
        line([name, Rig::Migrates.name()], figures);
        check(
            (o.lost > 0) == loses && o.twice == 0,
            format_args!("expected {}", if loses { "a loss" } else { "no loss" }),
        );
    }
}

fn line<F: core::fmt::Display>(
    [version, guest]: [&str; 2],
    [interrupts, lost, first, twice]: [F; 4],
) {
    say!("{version:<32} {guest:<18} {interrupts:>9} {lost:>7} {first:>9} {twice:>6}");
}

/// Runs the versions, and prints what each lost. `count` posts of each faulty and each corrected one. With
/// a `sound_policy` only its versions run, with so many posts in all; the first `skip` are left out.
pub fn table(
    sound_policy: Option<Suppression>,
    count: u64,
    skip: usize,
    cpus: u32,
    machine: &Shared,
) {
    line(["version", "guest"], ["interr.", "lost", "first", "twice"]);
    let policy = sound_policy.unwrap_or(Suppression::Corrected);
    let must_pass = sound(policy);
    let (versions, share) = match sound_policy {
        Some(_) => (Vec::new(), count / must_pass.len() as u64 + 1),
        None => (refuted(), count),
    };
    let (mut interrupts, mut lost, mut twice) = (0, 0, 0);
    for (is_sound, version) in versions
        .iter()
        .map(|version| (false, version))
        .chain(must_pass.iter().skip(skip).map(|version| (true, version)))
    {
        if version.rig == Rig::Migrates && cpus < 3 {
            say!(
                "{:<32} {:<18} needs cpus=3",
                version.name,
                version.rig.name()
            );
            continue;
        }
        let setup = Setup {
            policy: version.policy,
            fault: version.fault,
            capabilities: version.capabilities,
            host_work: 100,
            ..setup()
        };
        let phase = version
            .rig
            .phase(version.name, setup, version.poster, share);
        let outcome = phase::run(phase, machine);
        let name = version.name;
        line(
            [name, version.rig.name()],
            [share, outcome.lost, outcome.first_lost, outcome.twice],
        );
        if is_sound {
            interrupts += share;
            lost += outcome.lost;
            twice += outcome.twice;
        }
    }
    line(
        [policy.name(), "all of these"],
        [interrupts, lost, 0, twice],
    );
}
