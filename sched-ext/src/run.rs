//! From load to unload.

use std::error::Error;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use libbpf_rs::Link;
use libbpf_rs::btf::{
    Btf,
    types::{Enum, Enum64, Struct},
};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::costs::Costs;
use crate::counters::Counters;
use crate::host;
use crate::options::{Options, Yields};
use crate::publish::{PLACE, Published};
use crate::refusal::{Refusal, refusal};
use crate::skeleton::{OpenScxStealtimeSkel, ScxStealtimeSkel, ScxStealtimeSkelBuilder, types};
use crate::topology;

/// `SCX_OPS_SWITCH_PARTIAL`: only threads of policy SCHED_EXT.
const SWITCH_PARTIAL: u64 = 1 << 3;
/// `SCX_OPS_ENQ_MIGRATION_DISABLED`: a task that is preempted in a tracing program is queued like others.
/// Without it the kernel lets such a task run first, and for 20 ms.
const ENQ_MIGRATION_DISABLED: &str = "SCX_OPS_ENQ_MIGRATION_DISABLED";
/// A woken task is queued by its own CPU, as in the kernel's scheduler, and not by the one that wakes it.
const ALLOW_QUEUED_WAKEUP: &str = "SCX_OPS_ALLOW_QUEUED_WAKEUP";
/// In the flags of `ops.enqueue`: the kernel has looked for an idle CPU.
const ENQ_CPU_SELECTED: &str = "SCX_ENQ_CPU_SELECTED";
/// `SCX_ECODE_ACT_RESTART`: a CPU came or went, and the scheduler is to be loaded again.
const RESTART: i64 = 1 << 48;
/// `SCX_EXIT_ERROR`: exits of this kind and above are failures.
const EXIT_ERROR: i32 = 1024;

/// How often all control groups are asked for their limits, some us each, and the counters are published.
const QUOTAS_EVERY: Duration = Duration::from_secs(1);

/// How a loaded scheduler ended.
enum End {
    /// By a signal, or the end of its time or its input.
    Asked,
    /// The kernel ended it.
    ByKernel {
        kind: i32,
        code: i64,
        reason: String,
    },
    /// A control group has a limit since the start.
    Quota(PathBuf),
}

/// Loads the scheduler and stays until its end.
///
/// # Errors
/// What the kernel refuses, in a sentence.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    // SAFETY: no memory is passed.
    let is_root = unsafe { libc::geteuid() } == 0;
    if let Some(reason) = refusal(Path::new("/"), is_root, !options.canary.is_empty()) {
        return Err(reason.to_string().into());
    }
    if options.check {
        println!("the scheduler can start");
        return Ok(ExitCode::SUCCESS);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let on_signal = Arc::clone(&stop);
    ctrlc::set_handler(move || on_signal.store(true, Ordering::Relaxed))?;
    if options.until_eof {
        let on_end = Arc::clone(&stop);
        thread::spawn(move || {
            // An input that cannot be read has ended too.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            on_end.store(true, Ordering::Relaxed);
        });
    }
    let mut deadline = None;
    loop {
        match run_once(options, &stop, &mut deadline)? {
            End::Asked => return Ok(ExitCode::SUCCESS),
            End::Quota(group) => {
                eprintln!(
                    "scx_stealtime: the kernel's scheduler has taken over: {}",
                    Refusal::Quota(group)
                );
                return Ok(ExitCode::FAILURE);
            }
            End::ByKernel { code, reason, .. } if code & RESTART != 0 => {
                eprintln!("scx_stealtime: {reason}: loading again");
            }
            End::ByKernel { kind, reason, .. } => {
                eprintln!("scx_stealtime: the kernel's scheduler has taken over: {reason}");
                let failed = kind >= EXIT_ERROR;
                return Ok(if failed {
                    ExitCode::FAILURE
                } else {
                    ExitCode::SUCCESS
                });
            }
        }
    }
}

fn run_once(
    options: &Options,
    stop: &AtomicBool,
    deadline: &mut Option<Instant>,
) -> Result<End, Box<dyn Error>> {
    let mut object = MaybeUninit::uninit();
    let mut open = ScxStealtimeSkelBuilder::default().open(&mut object)?;
    configure(&mut open, options);
    let tracks = adapt(&mut open)?;
    let mut skel = open
        .load()
        .map_err(|error| format!("the kernel refuses the program: {error}"))?;
    let mut links = Vec::new();
    if tracks {
        links = track(&mut skel)?;
    }
    let costs = options.costs.then(Costs::begin).transpose()?;
    let scheduler = skel.maps.stealtime_ops.attach_struct_ops()?;
    let canaries = start_canaries(options);
    eprintln!("scx_stealtime: loaded");
    // Loaded again after a CPU has come or gone, the scheduler ends when it would have.
    if let Some(seconds) = options.run_for {
        deadline.get_or_insert_with(|| Instant::now() + Duration::from_secs_f64(seconds));
    }
    let end = watch(&mut skel, options, &canaries, stop, *deadline);
    for tid in canaries.iter().flat_map(|pid| host::threads(*pid)) {
        // A thread that has ended needs nothing.
        let _ = host::set_extended(tid, false);
    }
    print(&skel, options);
    if costs.is_some() {
        eprint!("{}", Costs::text());
    }
    drop(scheduler);
    drop(links);
    Ok(end)
}

/// Options become constants of the program.
fn configure(open: &mut OpenScxStealtimeSkel<'_>, options: &Options) {
    // Before the CPUs: the kernel then refuses a topology that has become stale during the load.
    let hotplugs = topology::hotplugs(Path::new("/"));
    let topology = topology::read(Path::new("/"));
    if let Some(data) = open.maps.data_data.as_deref_mut() {
        set_modes(data, options.yields, options.spin_us);
    }
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.lend = !options.no_loan;
        data.credit = !options.no_credit;
        data.slice_ns = options.slice_us.map_or_else(
            || topology::base_slice_ns(topology.of_cpu.len()),
            |slice_us| slice_us * 1_000,
        );
        data.margin_ns = options.margin_us * 1_000;
        data.guard_per_mille = options.guard_per_mille;
        data.guard_burst_ns = options.guard_burst_ms * 1_000_000;
        data.force_interval_ns = options.force_interval_ms * 1_000_000;
        data.loan_max_ns = options.loan_us * 1_000;
        data.answer_ns = options.answer_us * 1_000;
        data.ipi_window_ns = options.ipi_window_ms * 1_000_000;
        data.watchdog_ns = options.watchdog_ms * 1_000_000;
        data.domains = topology.domains;
        data.domain_of_cpu[..topology.of_cpu.len()].copy_from_slice(&topology.of_cpu);
        for domain in &topology.of_cpu {
            data.cpus_of_domain[usize::from(*domain)] += 1;
        }
    }
    let ops = open.struct_ops.stealtime_ops_mut();
    ops.hotplug_seq = hotplugs;
    // The kernel's own bound on waits, for what our watchdog does not see.
    ops.timeout_ms = u32::try_from(options.watchdog_ms * 10 + 2_000)
        .unwrap_or(30_000)
        .min(30_000);
    if !options.canary.is_empty() {
        ops.flags |= SWITCH_PARTIAL;
    }
}

/// The numbers are those of `bpf/shared.h`.
fn set_modes(data: &mut types::data, yields: Yields, spin_us: u64) {
    data.yield_mode = match yields {
        Yields::Refuse => 0,
        Yields::Nominee => 1,
        Yields::Receiver => 2,
    };
    data.spin_ns = spin_us * 1_000;
}

/// Modes in the text of --follow: two words. `None` while it is written.
fn modes(text: &str) -> Option<(Yields, u64)> {
    let mut words = text.split_whitespace();
    let yields = Yields::from_str(words.next()?, false).ok()?;
    let spin_us = words
        .next()?
        .parse()
        .ok()
        .filter(|spin_us| *spin_us <= 1_000_000)?;
    Some((yields, spin_us))
}

/// Leaves out what this kernel lacks. True if KVM's tracepoints are there.
fn adapt(open: &mut OpenScxStealtimeSkel<'_>) -> Result<bool, Box<dyn Error>> {
    let kernel = Btf::from_vmlinux()?;
    let has_member = |name: &str| {
        let ops = kernel.type_by_name::<Struct<'_>>("sched_ext_ops");
        ops.is_some_and(|ops| {
            ops.iter()
                .any(|member| member.name.is_some_and(|known| known == name))
        })
    };
    for name in [ENQ_MIGRATION_DISABLED, ALLOW_QUEUED_WAKEUP] {
        if let Some(flag) = flag_of(&kernel, "scx_ops_flags", name) {
            open.struct_ops.stealtime_ops_mut().flags |= flag;
        }
    }
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.cpu_selected = flag_of(&kernel, "scx_enq_flags", ENQ_CPU_SELECTED).unwrap_or(0);
    }
    if !has_member("cgroup_init") {
        eprintln!(
            "scx_stealtime: this kernel's sched_ext knows no control groups: cpu.weight has no effect"
        );
        let ops = open.struct_ops.stealtime_ops_mut();
        ops.cgroup_init = std::ptr::null_mut();
        ops.cgroup_exit = std::ptr::null_mut();
        ops.cgroup_move = std::ptr::null_mut();
        ops.cgroup_set_weight = std::ptr::null_mut();
        open.progs.stealtime_cgroup_init.set_autoload(false);
        open.progs.stealtime_cgroup_exit.set_autoload(false);
        open.progs.stealtime_cgroup_move.set_autoload(false);
        open.progs.stealtime_cgroup_set_weight.set_autoload(false);
    }
    // As a module or built in.
    let tracks = Path::new("/sys/kernel/btf/kvm").exists()
        || Path::new("/sys/module/kvm").exists()
            && !Path::new("/sys/module/kvm/initstate").exists();
    if !tracks {
        eprintln!(
            "scx_stealtime: module kvm is not loaded: no IPIs are tracked until the next start"
        );
        open.progs.on_entry.set_autoload(false);
        open.progs.on_ipi.set_autoload(false);
        open.progs.on_hypercall.set_autoload(false);
        open.progs.on_accept.set_autoload(false);
        open.progs.on_eoi.set_autoload(false);
        open.progs.on_pv_eoi.set_autoload(false);
        open.progs.on_spin.set_autoload(false);
    }
    Ok(tracks)
}

/// A flag of an enumeration by its name; `None` where this kernel does not have it.
fn flag_of(kernel: &Btf<'_>, flags: &str, name: &str) -> Option<u64> {
    let is_it = |known: Option<&std::ffi::OsStr>| known.is_some_and(|known| known == name);
    if let Some(flags) = kernel.type_by_name::<Enum64<'_>>(flags) {
        let flag = flags.iter().find(|flag| is_it(flag.name))?;
        return Some(flag.value as u64);
    }
    let flags = kernel.type_by_name::<Enum<'_>>(flags)?;
    let flag = flags.iter().find(|flag| is_it(flag.name))?;
    u64::try_from(flag.value).ok()
}

/// One by one: attaching the whole skeleton attaches the scheduler as well.
fn track(skel: &mut ScxStealtimeSkel<'_>) -> Result<Vec<Link>, Box<dyn Error>> {
    let mut links = vec![
        skel.progs.on_entry.attach()?,
        skel.progs.on_ipi.attach()?,
        skel.progs.on_hypercall.attach()?,
        skel.progs.on_accept.attach()?,
        skel.progs.on_eoi.attach()?,
        skel.progs.on_pv_eoi.attach()?,
    ];
    // A function, not a tracepoint: a kernel without CONFIG_FUNCTION_TRACER has no such hook.
    match skel.progs.on_spin.attach() {
        Ok(link) => links.push(link),
        Err(error) => eprintln!(
            "scx_stealtime: PAUSE exits run no vCPU but those that KVM nominates: {error}"
        ),
    }
    Ok(links)
}

/// Changes the canaries' policy; returns their processes.
fn start_canaries(options: &Options) -> Vec<i32> {
    let mut canaries = Vec::new();
    for name in &options.canary {
        let processes = host::processes_of(name);
        if processes.is_empty() {
            eprintln!("scx_stealtime: warning: there is no VM {name}");
        }
        for tid in processes.iter().flat_map(|pid| host::threads(*pid)) {
            if !host::is_fair(tid) {
                continue;
            }
            if let Some(group) = host::limit_of(Path::new("/"), tid) {
                warn_of_limit(tid, &group);
                continue;
            }
            if let Err(error) = host::set_extended(tid, true) {
                eprintln!("scx_stealtime: warning: thread {tid} stays with the kernel: {error}");
            }
        }
        canaries.extend(processes);
    }
    canaries
}

fn warn_of_limit(tid: i32, group: &Path) {
    eprintln!(
        "scx_stealtime: warning: thread {tid} stays with the kernel: {} has a limit in cpu.max",
        group.display()
    );
}

/// The group with a limit that ends a scheduler of all tasks: quotas are the kernel's alone. Threads
/// of canaries in a group with a limit return to the kernel's scheduler.
fn group_with_quota(options: &Options, canaries: &[i32]) -> Option<PathBuf> {
    let root = Path::new("/");
    if options.canary.is_empty() {
        return host::limited_groups(root).into_iter().next();
    }
    for tid in canaries.iter().flat_map(|pid| host::threads(*pid)) {
        if host::is_extended(tid)
            && let Some(group) = host::limit_of(root, tid)
            && host::set_extended(tid, false).is_ok()
        {
            warn_of_limit(tid, &group);
        }
    }
    None
}

fn follow(options: &Options) -> Option<(Yields, u64)> {
    modes(&fs::read_to_string(options.follow.as_ref()?).ok()?)
}

fn watch(
    skel: &mut ScxStealtimeSkel<'_>,
    options: &Options,
    canaries: &[i32],
    stop: &AtomicBool,
    deadline: Option<Instant>,
) -> End {
    let mut next = options
        .stats
        .map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut next_quotas = Instant::now() + QUOTAS_EVERY;
    let mut published = Published::new(Path::new(PLACE));
    loop {
        if let Some(end) = ended(skel) {
            return end;
        }
        let now = Instant::now();
        if stop.load(Ordering::Relaxed) || deadline.is_some_and(|deadline| now >= deadline) {
            return End::Asked;
        }
        if now >= next_quotas {
            if let Some(group) = group_with_quota(options, canaries) {
                return End::Quota(group);
            }
            next_quotas = now + QUOTAS_EVERY;
            publish(skel, options, &mut published);
        }
        if let Some((due, seconds)) = next.as_mut().zip(options.stats)
            && now >= *due
        {
            *due = now + Duration::from_secs_f64(seconds);
            print(skel, options);
        }
        if let Some((yields, spin_us)) = follow(options)
            && let Some(data) = skel.maps.data_data.as_deref_mut()
        {
            set_modes(data, yields, spin_us);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// What `ops.exit` has recorded.
fn ended(skel: &ScxStealtimeSkel<'_>) -> Option<End> {
    let record = &skel.maps.bss_data.as_deref()?.exit_record;
    if record.kind == 0 {
        return None;
    }
    let text = |bytes: &[libc::c_char]| {
        let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
        CStr::from_bytes_until_nul(&bytes)
            .map(|text| text.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let (reason, message) = (text(&record.reason), text(&record.message));
    Some(End::ByKernel {
        kind: record.kind,
        code: record.code,
        reason: match message.as_str() {
            "" => reason,
            message => format!("{reason}: {message}"),
        },
    })
}

fn counters(skel: &ScxStealtimeSkel<'_>) -> Option<Counters> {
    let used = skel.maps.data_data.as_deref()?.groups_used;
    Some(Counters::read(skel.maps.bss_data.as_deref()?, used))
}

fn publish(skel: &ScxStealtimeSkel<'_>, options: &Options, published: &mut Published) {
    let mode = skel.maps.data_data.as_deref().map(|data| data.yield_mode);
    let yields = match mode {
        Some(0) => "refuse",
        Some(1) => "nominee",
        _ => "receiver",
    };
    if let Some(counters) = counters(skel) {
        published.write(&counters, options.canary.is_empty(), yields);
    }
}

fn print(skel: &ScxStealtimeSkel<'_>, options: &Options) {
    let Some(counters) = counters(skel) else {
        return;
    };
    if options.json {
        match serde_json::to_string(&counters) {
            Ok(line) => println!("{line}"),
            Err(error) => eprintln!("scx_stealtime: {error}"),
        }
    } else {
        print!("{}", counters.text());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_the_words_of_the_options() {
        assert_eq!(modes("receiver 50\n"), Some((Yields::Receiver, 50)));
        assert_eq!(modes("receiver"), None);
        assert_eq!(modes("receiver 2000000"), None);
    }
}
