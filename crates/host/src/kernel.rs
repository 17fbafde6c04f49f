//! The kernel, the scheduler, KVM, clocksources, mitigations and memory.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::scheduler::Scheduler;
use crate::sha256;
use crate::snapshot::{Clocksource, Identity, Kernel, Kvm, Memory, Preempt, Sched, Time};
use crate::tree::Tree;

/// The key of the hash of machine ids: only hashes of this program can be compared.
const MACHINE_ID_KEY: &[u8] = b"stealtime host identity";
/// Bytes of a kernel's configuration at most.
const MAX_CONFIG: u64 = 4 << 20;
const DEBUG_SCHED: &str = "/sys/kernel/debug/sched";
/// What `scx_stealtime` publishes.
const COUNTERS: &str = "/run/stealtime/sched.json";
/// Options of the build that are kept: how they begin.
const CONFIG: [&str; 15] = [
    "CONFIG_HZ",
    "CONFIG_PREEMPT",
    "CONFIG_NO_HZ",
    "CONFIG_SCHED_",
    "CONFIG_FAIR_GROUP_SCHED",
    "CONFIG_CFS_BANDWIDTH",
    "CONFIG_RT_GROUP_SCHED",
    "CONFIG_CPUSETS",
    "CONFIG_CPU_ISOLATION",
    "CONFIG_CPU_IDLE",
    "CONFIG_HIGH_RES_TIMERS",
    "CONFIG_KVM",
    "CONFIG_PARAVIRT",
    "CONFIG_RCU_NOCB",
    "CONFIG_TICK_CPU_ACCOUNTING",
];
/// Settings of sysctl that concern scheduling, next to all that begin with `sched_`.
const SYSCTL: [&str; 3] = ["timer_migration", "numa_balancing", "watchdog_thresh"];
/// Files of debugfs that are no single values.
const NO_VALUES: [&str; 5] = ["debug", "domains", "features", "preempt", "verbose"];
const KVM_MODULES: [&str; 4] = ["kvm", "kvm_intel", "kvm_amd", "irqbypass"];

pub(crate) fn identity(tree: &Tree) -> Identity {
    let machine_id = machine_id_hash(tree);
    let key = "identity.architecture";
    Identity {
        hostname: tree.value("identity.hostname", "/proc/sys/kernel/hostname"),
        machine_id_hash: machine_id,
        boot_id: tree.value("identity.boot_id", "/proc/sys/kernel/random/boot_id"),
        kernel_release: tree.value("identity.kernel_release", "/proc/sys/kernel/osrelease"),
        architecture: tree.optional(key, "/proc/sys/kernel/arch"),
    }
}

/// The hash of the machine id. The record has the hash in place of the id, so that an id of another
/// length than machine-id(5) gives is a hash already.
fn machine_id_hash(tree: &Tree) -> Option<String> {
    const DIGITS: usize = 32;
    let path = "/etc/machine-id";
    let hash = tree.part(path, |bytes| {
        let id = String::from_utf8_lossy(bytes);
        match id.trim() {
            id if id.len() == DIGITS => sha256::keyed(MACHINE_ID_KEY, id.as_bytes()).into_bytes(),
            hash => hash.as_bytes().to_vec(),
        }
    });
    let hash = hash.map_err(|error| tree.note_refusal("identity.machine_id_hash", path, &error));
    let hash = String::from_utf8(hash.ok()?).ok()?;
    (!hash.is_empty()).then_some(hash)
}

pub(crate) fn time(tree: &Tree) -> Time {
    let uptime = tree.value("time.uptime_ns", "/proc/uptime");
    let uptime = uptime.as_deref().and_then(|text| text.split(' ').next());
    let stat = tree.value("time.boot_s", "/proc/stat").unwrap_or_default();
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime "));
    Time {
        uptime_ns: uptime.and_then(seconds_as_ns),
        boot_s: boot.and_then(|boot| boot.trim().parse().ok()),
    }
}

/// `12.34` in ns.
fn seconds_as_ns(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.')?;
    let part = format!("{part:0<9}");
    let (whole, part): (u64, u64) = (whole.parse().ok()?, part.get(..9)?.parse().ok()?);
    whole.checked_mul(1_000_000_000)?.checked_add(part)
}

pub(crate) fn kernel(tree: &Tree) -> Kernel {
    let release = tree.value("kernel.release", "/proc/sys/kernel/osrelease");
    let command_line = tree.value("kernel.command_line", "/proc/cmdline");
    let version = tree.value("kernel.version", "/proc/version");
    let build = Build::read(tree, release.as_deref());
    let preempt = preempt(tree, command_line.as_deref(), version.as_deref(), &build);
    let mut hz = build.config.get("CONFIG_HZ").and_then(|hz| hz.parse().ok());
    let mut hz_source = hz.and(build.source.clone());
    if hz.is_none() {
        hz = ticks_per_second(tree);
        hz_source = hz.map(|_| "jiffies".to_owned());
    }
    if hz.is_none() {
        let reason = "neither the kernel's configuration nor debugfs sched/debug can be read";
        tree.note_reason("kernel.hz", reason, reason);
    }
    Kernel {
        release,
        version,
        command_line,
        hz,
        hz_source,
        preempt,
        config: build.config,
        config_source: build.source,
    }
}

/// The kernel's configuration.
#[derive(Default)]
struct Build {
    config: BTreeMap<String, String>,
    source: Option<String>,
}

impl Build {
    fn read(tree: &Tree, release: Option<&str>) -> Self {
        let release = release.unwrap_or_default();
        let plain = [
            format!("/boot/config-{release}"),
            format!("/lib/modules/{release}/config"),
            format!("/usr/lib/modules/{release}/config"),
            format!("/lib/modules/{release}/build/.config"),
        ];
        for path in plain.iter().filter(|_| !release.is_empty()) {
            match tree.lines(path, is_kept) {
                Ok(text) => return Self::parse(&text, path),
                Err(error) => tree.note_refusal("kernel.config", path, &error),
            }
        }
        let path = "/proc/config.gz";
        // The record has the lines that are kept, packed again.
        let packed = tree.part(path, |bytes| {
            let text = unpack(bytes).unwrap_or_default();
            let lines = text.split_inclusive('\n').filter(|line| is_kept(line));
            pack(&lines.collect::<String>())
        });
        match packed.and_then(|bytes| unpack(&bytes)) {
            Ok(text) => Self::parse(&text, path),
            Err(error) => {
                tree.note("kernel.config", path, &error);
                Self::default()
            }
        }
    }

    fn parse(text: &str, path: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let values = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            config: values.collect(),
            source: Some(path.to_owned()),
        }
    }
}

/// Whether a line of a kernel's configuration is kept.
fn is_kept(line: &str) -> bool {
    CONFIG.iter().any(|begin| line.starts_with(begin))
}

fn unpack(bytes: &[u8]) -> io::Result<String> {
    let mut text = String::new();
    GzDecoder::new(bytes)
        .take(MAX_CONFIG)
        .read_to_string(&mut text)?;
    Ok(text)
}

fn pack(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to a Vec cannot fail.
    let _ = encoder.write_all(text.as_bytes());
    encoder.finish().unwrap_or_default()
}

/// `HZ` from the count of ticks, which begins at -300 s as a 32-bit number (`INITIAL_JIFFIES` of
/// include/linux/jiffies.h), and from the time since the boot.
fn ticks_per_second(tree: &Tree) -> Option<u32> {
    const HEAD: usize = 1024;
    const BEFORE_ZERO_S: f64 = 300.0;
    let head = tree.head(&format!("{DEBUG_SCHED}/debug"), HEAD).ok()?;
    let head = String::from_utf8_lossy(&head);
    let value = |name: &str| -> Option<f64> {
        let line = head.lines().find(|line| line.starts_with(name))?;
        line.split_once(':')?.1.trim().parse().ok()
    };
    let uptime_s = value("ktime")? / 1000.0;
    let ticks = value("jiffies")? - f64::from(u32::MAX) - 1.0;
    // At 300 s both are 0, and near it the quotient is noise.
    if (uptime_s - BEFORE_ZERO_S).abs() < 1.0 {
        return None;
    }
    let hz = ticks / (uptime_s - BEFORE_ZERO_S);
    // Values of `CONFIG_HZ` on x86 and arm64. Ticks that idle CPUs have yet to count are few.
    [100, 250, 300, 1000]
        .into_iter()
        .find(|tried| (hz / f64::from(*tried) - 1.0).abs() < 0.02)
}

fn preempt(tree: &Tree, command: Option<&str>, version: Option<&str>, build: &Build) -> Preempt {
    let path = format!("{DEBUG_SCHED}/preempt");
    if let Some(text) = tree.optional("kernel.preempt", &path) {
        let words = text.split_whitespace();
        let chosen = words.clone().find(|word| word.starts_with('('));
        return Preempt {
            mode: chosen.map(|word| word.trim_matches(['(', ')']).to_owned()),
            source: Some(path),
            choices: words
                .map(|word| word.trim_matches(['(', ')']).to_owned())
                .collect(),
        };
    }
    let found = |mode: &str, source: &str| Preempt {
        mode: Some(mode.to_owned()),
        source: Some(source.to_owned()),
        choices: Vec::new(),
    };
    let is_set = |name: &str| build.config.get(name).is_some_and(|value| value == "y");
    let version = version.unwrap_or_default();
    if is_set("CONFIG_PREEMPT_RT") || version.contains("PREEMPT_RT") {
        return found("rt", "config");
    }
    let words = command.unwrap_or_default().split_whitespace();
    // Of several the last one counts, as for the kernel (`setup_preempt_mode`).
    if let Some(mode) = words
        .filter_map(|word| word.strip_prefix("preempt="))
        .next_back()
    {
        return found(mode, "preempt= of the command line");
    }
    let modes = [
        ("CONFIG_PREEMPT_NONE", "none"),
        ("CONFIG_PREEMPT_VOLUNTARY", "voluntary"),
        ("CONFIG_PREEMPT_LAZY", "lazy"),
        ("CONFIG_PREEMPT", "full"),
    ];
    match modes.into_iter().find(|(name, _)| is_set(name)) {
        Some((_, mode)) => found(mode, "config"),
        None => Preempt::default(),
    }
}

pub(crate) fn sched(tree: &Tree) -> Sched {
    let features = tree.value("sched.features", &format!("{DEBUG_SCHED}/features"));
    let names = tree.optional_list("sched.values", DEBUG_SCHED);
    let names = names
        .iter()
        .filter(|name| !NO_VALUES.contains(&name.as_str()));
    let values = names.filter_map(|name| {
        let text = tree.text(&format!("{DEBUG_SCHED}/{name}")).ok()?;
        Some((name.clone(), chosen(text.trim())))
    });
    let directory = "/proc/sys/kernel";
    let names = tree.optional_list("sched.sysctl", directory);
    let names = names
        .iter()
        .filter(|name| name.starts_with("sched_") || SYSCTL.contains(&name.as_str()));
    let sysctl = names.filter_map(|name| {
        let text = tree.text(&format!("{directory}/{name}")).ok()?;
        Some((name.clone(), text.trim().to_owned()))
    });
    let ext_ops = tree.optional("sched.ext_ops", "/sys/kernel/sched_ext/root/ops");
    // The file of a program that was killed stays.
    let publishes = ext_ops.as_deref() == Some("stealtime");
    let counters = publishes.then(|| tree.optional("sched.counters", COUNTERS));
    Sched {
        features: features
            .iter()
            .flat_map(|text| text.split_whitespace())
            .map(str::to_owned)
            .collect(),
        values: values.collect(),
        sysctl: sysctl.collect(),
        ext_state: tree.optional("sched.ext_state", "/sys/kernel/sched_ext/state"),
        ext_ops,
        counters: counters.flatten().as_deref().and_then(Scheduler::parse),
    }
}

/// The word in brackets of `none (logarithmic) linear`, or the whole text.
fn chosen(text: &str) -> String {
    let mut words = text.split_whitespace();
    let word = words.find(|word| word.starts_with(['(', '[']) && word.len() > 2);
    word.unwrap_or(text)
        .trim_matches(['(', ')', '[', ']'])
        .to_owned()
}

pub(crate) fn kvm(tree: &Tree) -> Kvm {
    let modules = KVM_MODULES.iter().filter_map(|module| {
        let directory = format!("/sys/module/{module}/parameters");
        let names = match tree.list(&directory) {
            Ok(names) => names,
            Err(error) => {
                tree.note_refusal("kvm.modules", &directory, &error);
                return None;
            }
        };
        let values = names.into_iter().filter_map(|name| {
            let value = tree.optional("kvm.modules", &format!("{directory}/{name}"))?;
            Some((name, value))
        });
        Some(((*module).to_owned(), values.collect()))
    });
    Kvm {
        modules: modules.collect(),
        device: tree.exists("/dev/kvm"),
    }
}

pub(crate) fn clocksource(tree: &Tree) -> Clocksource {
    let directory = "/sys/devices/system/clocksource/clocksource0";
    let path = |name: &str| format!("{directory}/{name}_clocksource");
    let available = tree.value("clocksource.available", &path("available"));
    let available = available.unwrap_or_default();
    Clocksource {
        current: tree.value("clocksource.current", &path("current")),
        available: available.split_whitespace().map(str::to_owned).collect(),
    }
}

pub(crate) fn mitigations(tree: &Tree) -> BTreeMap<String, String> {
    let directory = "/sys/devices/system/cpu/vulnerabilities";
    let names = tree.optional_list("mitigations", directory);
    let states = names.into_iter().filter_map(|name| {
        let state = tree.optional("mitigations", &format!("{directory}/{name}"))?;
        Some((name, state))
    });
    states.collect()
}

pub(crate) fn memory(tree: &Tree) -> Memory {
    let info = tree
        .value("memory.total_bytes", "/proc/meminfo")
        .unwrap_or_default();
    let value = |name: &str| -> Option<u64> {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let bytes = |name: &str| value(name)?.checked_mul(1024);
    let key = "memory.transparent_hugepages";
    let thp = tree.optional(key, "/sys/kernel/mm/transparent_hugepage/enabled");
    Memory {
        total_bytes: bytes("MemTotal:"),
        available_bytes: bytes("MemAvailable:"),
        transparent_hugepages: thp.as_deref().map(chosen),
        hugepages: value("HugePages_Total:"),
        hugepage_bytes: bytes("Hugepagesize:"),
        ksm_run: tree.number("memory.ksm_run", "/sys/kernel/mm/ksm/run"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_chosen_words() {
        assert_eq!(seconds_as_ns("12.34"), Some(12_340_000_000));
        assert_eq!(seconds_as_ns("0.00"), Some(0));
        for wrong in ["", "1", "a.b", "99999999999999999999.00"] {
            assert_eq!(seconds_as_ns(wrong), None, "{wrong}");
        }
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen("none (logarithmic) linear"), "logarithmic");
        assert_eq!(chosen("2800000"), "2800000");
    }
}
