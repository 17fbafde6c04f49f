//! All programs of a host, loaded and attached.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::mm::ProtFlags;
use stealtime_trace::tracefs::format;

use super::BpfError;
use super::btf::Btf;
use super::programs::{CPUS, ExitFields, Maker, Maps, PERIOD_TIMER, Program, SLACK_TIMER, TIDS};
use super::ring::{CpuRing, Shared};
use super::sys;
use crate::select::{Selection, Tracepoint};
use crate::tracefs::Folder;

/// Programs that run until this is dropped.
pub(super) struct Loaded {
    /// First: a program is detached before what it writes to goes.
    _links: Vec<OwnedFd>,
    programs: Vec<OwnedFd>,
    pub(super) rings: Vec<CpuRing>,
    /// Lost records by CPU.
    lost: Shared,
    pub(super) marks: Marks,
}

/// A byte for each thread id, which the programs read: 1 for a thread that runs a vCPU.
pub(super) struct Marks(Shared);

impl Marks {
    /// The thread runs a vCPU: its wakeups are recorded from here on.
    pub(super) fn mark(&self, tid: i32) {
        if let Some(tid) = usize::try_from(tid).ok().filter(|tid| *tid < TIDS) {
            self.0.set_byte(tid, 1);
        }
    }
}

/// What the kernel has counted of the programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) run_ns: u64,
    pub(super) runs: u64,
    /// Runs that did not take place, because the program ran on that CPU already.
    pub(super) misses: u64,
}

impl Loaded {
    /// Loads the programs of the tracepoints, and takes those out of the selection that this kernel refuses.
    /// `ring` is the size of each CPU's ring, in bytes.
    pub(super) fn new(
        tracefs: &Folder,
        selection: &mut Selection,
        cpus: &[u16],
        ring: usize,
    ) -> Result<Self, BpfError> {
        let btf = Btf::read()?;
        sys::allow_locked_memory();
        let (maps, rings) = maps(cpus, ring)?;
        let maker = Maker::new(&btf, &maps, timers(), exit_fields(tracefs))?;
        let (mut programs, mut links, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let names = Tracepoint {
            system: "task".to_owned(),
            name: "task_rename".to_owned(),
        };
        for point in selection.tracepoints.iter().chain([&names]) {
            let id = tracefs.text(&point.file("id"));
            let id = id.ok().and_then(|id| id.parse().ok());
            let Some(program) = maker.program(&point.name, id)? else {
                refused.push(point.clone());
                continue;
            };
            let (loaded, link) = load(&program)?;
            match link {
                Ok(link) => links.push(link),
                Err(source) if point.is_switch() => {
                    return Err(BpfError::new("attach the program of sched_switch", source));
                }
                Err(_) => refused.push(point.clone()),
            }
            programs.push(loaded);
        }
        selection.refuse(&refused);
        name_loss(selection);
        let shared = |map: &OwnedFd, len, protection| {
            let mapped = Shared::new(map, 0, len, protection);
            mapped.map_err(|source| BpfError::new("share a BPF map", source))
        };
        Ok(Self {
            _links: links,
            programs,
            rings,
            lost: shared(&maps.lost, CPUS * 8, ProtFlags::READ)?,
            marks: Marks(shared(
                &maps.vcpus,
                TIDS,
                ProtFlags::READ | ProtFlags::WRITE,
            )?),
        })
    }

    /// Lost records of all CPUs.
    pub(super) fn lost(&self) -> u64 {
        let cpus = self.rings.iter().map(|ring| usize::from(ring.cpu));
        let counts = cpus.map(|cpu| {
            self.lost
                .word(8 * cpu)
                .load(std::sync::atomic::Ordering::Relaxed)
        });
        counts.sum()
    }

    /// The kernel's counts. Times are 0 unless `kernel.bpf_stats_enabled` is 1.
    pub(super) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for program in &self.programs {
            let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
            // Without it the kernel counts nothing: before Linux 5.1.
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let counts = Counts::parse(&text);
            sum.run_ns += counts.run_ns;
            sum.runs += counts.runs;
            sum.misses += counts.misses;
        }
        sum
    }
}

impl Counts {
    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value
                .and_then(|value| value.trim().parse().ok())
                .unwrap_or(0)
        };
        Self {
            run_ns: field("run_time_ns"),
            runs: field("run_cnt"),
            misses: field("recursion_misses"),
        }
    }
}

fn maps(cpus: &[u16], len: usize) -> Result<(Maps, Vec<CpuRing>), BpfError> {
    let failed = |source| BpfError::new("create a BPF ring buffer", source);
    let mut created = Vec::new();
    for &cpu in cpus {
        created.push((cpu, sys::ring(len).map_err(failed)?));
    }
    let no_cpu = || failed(io::ErrorKind::NotFound.into());
    let (_, example) = created.first().ok_or_else(no_cpu)?;
    let count = cpus.iter().max().map_or(0, |cpu| usize::from(*cpu) + 1);
    let map = |source| BpfError::new("create a BPF map", source);
    let maps = Maps {
        rings: sys::rings(count, example.as_fd()).map_err(map)?,
        lost: sys::shared_value(CPUS * 8).map_err(map)?,
        vcpus: sys::shared_value(TIDS).map_err(map)?,
    };
    let mut rings = Vec::new();
    for (cpu, ring) in created {
        let number = u32::from(cpu);
        sys::set_ring(maps.rings.as_fd(), number, ring.as_fd()).map_err(map)?;
        rings.push(CpuRing::new(cpu, &ring, len).map_err(failed)?);
    }
    Ok((maps, rings))
}

/// The program, and what keeps it attached.
fn load(program: &Program) -> Result<(OwnedFd, io::Result<OwnedFd>), BpfError> {
    let Program { name, attach, code } = program;
    let loaded = sys::load(name, *attach, code);
    let loaded = loaded.map_err(|(source, report)| BpfError::loading(name, source, report))?;
    let link = sys::attach(name, *attach, loaded.as_fd());
    Ok((loaded, link))
}

/// The layout of the records of `kvm_exit`; `None`: it is not there, or of another architecture.
fn exit_fields(tracefs: &Folder) -> Option<ExitFields> {
    let text = tracefs.read("events/kvm/kvm_exit/format").ok()?;
    let format = format::parse("kvm", &text).ok()?;
    let offset = |name: &str| {
        let mut fields = format.fields.iter();
        let field = fields.find(|field| &*field.name == name && field.size == 4)?;
        i16::try_from(field.offset).ok()
    };
    Some(ExitFields {
        reason: offset("exit_reason")?,
        isa: offset("isa")?,
        vcpu: offset("vcpu_id"),
    })
}

/// Samples use the expiry of timers for bandwidth alone, and recordings for more.
fn name_loss(selection: &mut Selection) {
    let rows = selection.missing.iter_mut();
    for row in rows.filter(|row| row.events == ["timer:hrtimer_expire_entry"]) {
        row.without =
            "throttled time counts as idle; CAP_SYSLOG shows the addresses of the kernel's timers";
    }
}

/// Addresses of the timers of bandwidth limits. `None`: the kernel does not show addresses (`kptr_restrict`),
/// or has no limits.
fn timers() -> Option<[u64; 2]> {
    let text = std::fs::read("/proc/kallsyms").ok()?;
    let address = |name: &str| {
        let mut lines = text.split(|byte| *byte == b'\n');
        let symbol = format!(" {name}");
        let line = lines.find(|line| line.ends_with(symbol.as_bytes()))?;
        let line = std::str::from_utf8(line).ok()?;
        let address = u64::from_str_radix(line.split_once(' ')?.0, 16).ok()?;
        (address != 0).then_some(address)
    };
    Some([address(PERIOD_TIMER)?, address(SLACK_TIMER)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_samples_lose_without_timers_is_named() {
        let point = |system: &str, name: &str| Tracepoint {
            system: system.to_owned(),
            name: name.to_owned(),
        };
        let points = [
            point("timer", "hrtimer_expire_entry"),
            point("sched", "sched_waking"),
        ];
        let mut selection = Selection {
            tracepoints: points.to_vec(),
            missing: Vec::new(),
        };
        selection.refuse(&points);
        name_loss(&mut selection);
        let losses: Vec<&str> = selection.missing.iter().map(|row| row.without).collect();
        assert!(losses[0].starts_with("throttled time counts as idle"));
        assert!(losses[1].starts_with("wakers are unknown"));
    }

    /// `exit` without a result. The verifier of the host itself refuses it, where it is asked.
    #[test]
    fn a_refusal_names_program_reason_and_kernel() {
        const EXIT: u64 = 0x95;
        let program = Program {
            name: "sched_switch".to_owned(),
            attach: sys::Attach::Raw,
            code: vec![EXIT],
        };
        match load(&program).map(drop) {
            Err(error @ BpfError::Verifier { .. }) => {
                let text = error.to_string();
                assert!(text.starts_with("the verifier of Linux "), "{text}");
                let end = "refuses the program of sched_switch: R0 !read_ok";
                assert!(text.ends_with(end), "{text}");
            }
            Err(error @ (BpfError::Forbidden { .. } | BpfError::Kernel { .. })) => {
                println!("skipped: {error}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn counts_are_those_of_a_program() {
        let text =
            "pos:\t0\nprog_type:\t26\nrun_time_ns:\t1200\nrun_cnt:\t3\nrecursion_misses:\t2\n";
        let expected = Counts {
            run_ns: 1200,
            runs: 3,
            misses: 2,
        };
        assert_eq!(Counts::parse(text), expected);
        assert_eq!(Counts::parse(""), Counts::default());
    }
}
