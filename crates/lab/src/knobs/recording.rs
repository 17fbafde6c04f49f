//! Knobs of replays alone. Scenarios have the numbers of VMs and CPUs in their files.

use super::Source::Ours;
use super::host_setting::HostSetting;
use super::replay::{Part, Replay};
use super::value::{Kind, Value};
use super::{Access, Knob, Scope};

/// The most of a VM.
const MOST: i64 = 10_000;
/// The value of `host.cpus` as recorded.
pub(super) const ALL: &str = "recorded";

pub(super) static OF_HOST: &[Knob] = &[Knob {
    name: "host.cpus",
    kind: Kind::Words("a number, or CPUs as recorded: 0-3,8"),
    about: "The CPUs of the host; CPUs beyond the recorded ones are like those",
    source: Ours("`cpus` of a scenario's `[host]`"),
    replay: Replay::Shows(Part::Cpus),
    class: None,
    host: HostSetting::SimulationOnly(
        "fewer CPUs: echo 0 > /sys/devices/system/cpu/cpuN/online; more are another machine's",
    ),
    access: Access::Replay(|| Value::Words(ALL.to_owned()), Scope::Host),
}];

pub(super) static OF_VM: &[Knob] = &[Knob {
    name: "count",
    kind: Kind::Number {
        min: 0,
        max: MOST,
        unit: "VMs",
    },
    about: "How many of it the host has: 0 takes it away; a copy is its recorded demand from another phase",
    source: Ours("`count` of a scenario's `[[vm]]`"),
    replay: Replay::Shows(Part::Count),
    class: None,
    host: HostSetting::SimulationOnly("an operator starts, stops or migrates VMs"),
    access: Access::Replay(|| Value::Number(1), Scope::Vm),
}];
