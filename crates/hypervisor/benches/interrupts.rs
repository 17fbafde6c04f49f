//! Posted interrupts and IPI decoding: nanoseconds per operation, next to the locked
//! operations that the protocol requires, measured in the same run.
//!
//! `cargo bench --bench interrupts` prints a table and ends with status 1 if an operation that
//! has a floor takes more than 1.5 times that floor. `-- --only NAME --iterations N` runs one
//! operation N times and nothing else, for an instruction counter
//! (`scripts/count-instructions`).

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use stealtime_hypervisor::lapic::{Apic, ApicBus, ApicMode, BusOptions, Interrupt, Lapic, xen};
use stealtime_hypervisor::posted_interrupt::ipi_virtualization::PidPointerTable;
use stealtime_hypervisor::posted_interrupt::{
    Capabilities, PostedVcpu, SharedVcpu, Suppression, VcpuMode, deliver, suppress, unsuppress,
};

/// How often a measurement is repeated; the fastest counts.
const REPEATS: u32 = 15;
const ITERATIONS: u64 = 200_000;
/// The bound on an operation's time, in its floor's.
const BOUND: f64 = 1.5;

type Shared = SharedVcpu<AtomicU64>;
type Body = Box<dyn FnMut(u64)>;

struct Operation {
    name: &'static str,
    body: Body,
    /// The locked operations alone, with the same preparation.
    floor: Option<Body>,
}

/// Two cache lines as the descriptor and the IRR have them.
#[repr(C, align(64))]
struct Line([AtomicU64; 8]);

impl Line {
    fn new() -> Self {
        Self([(); 8].map(|()| AtomicU64::new(0)))
    }
}

fn vcpu(mode: VcpuMode) -> Shared {
    let vcpu = Shared::new(true);
    vcpu.desc.clear_sn();
    vcpu.set_mode(mode);
    vcpu
}

fn own(policy: Suppression) -> PostedVcpu {
    let capabilities = Capabilities {
        apicv: true,
        irqchip: true,
        ipiv: true,
        vtd_posting: true,
        host_x2apic: true,
    };
    PostedVcpu::new(0, capabilities, policy)
}

fn post(vcpu: &Shared, vector: u8) {
    let policy = Suppression::Put;
    let _ = black_box(deliver(vcpu, black_box(vector), false, policy, &()));
}

/// Both ON and the vector's PIR bit are clear: the post that notifies.
fn post_notifies() -> Operation {
    let target = vcpu(VcpuMode::InGuest);
    let line = Line::new();
    Operation {
        name: "post-on-clear",
        body: Box::new(move |n| {
            post(&target, n as u8);
            // What makes it possible again belongs to both sides.
            target.desc.harvest();
            target.desc.clear_on();
        }),
        floor: Some(Box::new(move |n| {
            let (word, bit) = ((n as u8 >> 6) as usize, 1 << (n & 63));
            black_box(line.0[word].fetch_or(black_box(bit), SeqCst));
            black_box(line.0[4].fetch_or(1, SeqCst));
            for word in &line.0[..4] {
                if word.load(SeqCst) != 0 {
                    black_box(word.swap(0, SeqCst));
                }
            }
            line.0[4].fetch_and(!1, SeqCst);
        })),
    }
}

/// ON is set, the PIR bit is clear: two locked operations and no notification.
fn post_on_set() -> Operation {
    let target = vcpu(VcpuMode::InGuest);
    target.desc.set_on();
    let line = Line::new();
    Operation {
        name: "post-on-set",
        body: Box::new(move |n| {
            post(&target, n as u8);
            if n % 256 == 255 {
                target.desc.harvest();
            }
        }),
        floor: Some(Box::new(move |n| {
            let (word, bit) = ((n as u8 >> 6) as usize, 1 << (n & 63));
            black_box(line.0[word].fetch_or(black_box(bit), SeqCst));
            black_box(line.0[4].fetch_or(1, SeqCst));
            if n % 256 == 255 {
                line.0[..4].iter().for_each(|word| word.store(0, SeqCst));
            }
        })),
    }
}

/// The PIR bit is set: one locked operation.
fn post_coalesced() -> Operation {
    let target = vcpu(VcpuMode::InGuest);
    let line = Line::new();
    target.desc.test_and_set_pir(77);
    Operation {
        name: "post-coalesced",
        body: Box::new(move |_| post(&target, 77)),
        floor: Some(Box::new(move |_| {
            black_box(line.0[1].fetch_or(black_box(1 << 13), SeqCst));
        })),
    }
}

/// ON is clear: nothing to take over, no locked operation at all.
fn sync_empty() -> Operation {
    let target = vcpu(VcpuMode::OutsideGuest);
    let (own, mut lapic) = (own(Suppression::Put), Lapic::new(true));
    Operation {
        name: "sync-empty",
        body: Box::new(move |_| {
            black_box(own.sync(black_box(&target), &mut lapic, &()));
        }),
        floor: None,
    }
}

/// ON is set, but PIR is empty: one locked operation to clear ON, one here to set it again.
fn sync_spurious() -> Operation {
    let target = vcpu(VcpuMode::OutsideGuest);
    let (own, mut lapic) = (own(Suppression::Put), Lapic::new(true));
    let line = Line::new();
    Operation {
        name: "sync-on-set-empty",
        body: Box::new(move |_| {
            target.desc.set_on();
            black_box(own.sync(black_box(&target), &mut lapic, &()));
        }),
        floor: Some(Box::new(move |_| {
            black_box(line.0[4].fetch_or(1, SeqCst));
            black_box(line.0[4].fetch_and(!1, SeqCst));
        })),
    }
}

/// All 256 vectors are posted: clear ON, take four words, merge four words.
fn sync_full() -> Operation {
    let target = vcpu(VcpuMode::OutsideGuest);
    let (own, mut lapic) = (own(Suppression::Put), Lapic::new(true));
    let (pid, irr) = (Line::new(), Line::new());
    Operation {
        name: "sync-full",
        body: Box::new(move |_| {
            for vector in [0, 64, 128, 192] {
                // One bit a word is as full as all: each word is exchanged and merged.
                target.desc.test_and_set_pir(vector);
            }
            target.desc.set_on();
            black_box(own.sync(black_box(&target), &mut lapic, &()));
        }),
        floor: Some(Box::new(move |_| {
            for word in &pid.0[..4] {
                black_box(word.fetch_or(1, SeqCst));
            }
            pid.0[4].fetch_or(1, SeqCst);
            pid.0[4].fetch_and(!1, SeqCst);
            for (from, to) in pid.0[..4].iter().zip(&irr.0) {
                let bits = black_box(from.swap(0, SeqCst));
                black_box(to.fetch_or(bits, SeqCst));
            }
        })),
    }
}

/// Suppress and unsuppress, as each round trip through the host does.
fn round_trip() -> Operation {
    let target = vcpu(VcpuMode::OutsideGuest);
    let line = Line::new();
    Operation {
        name: "suppress-round-trip",
        body: Box::new(move |_| {
            suppress(black_box(&target), &());
            black_box(unsuppress(black_box(&target), &()));
        }),
        floor: Some(Box::new(move |_| {
            black_box(line.0[4].fetch_or(2, SeqCst));
            black_box(line.0[4].fetch_and(!2, SeqCst));
        })),
    }
}

fn apics(count: u32, x2apic: bool, cluster: bool) -> Vec<Apic> {
    let ldr = |n: u32| match (x2apic, cluster) {
        (true, _) => (n >> 4) << 16 | 1 << (n & 15),
        (false, true) => ((n >> 2) << 4 | 1 << (n & 3)) << 24,
        (false, false) => (1 << (n & 7)) << 24,
    };
    let apic = |n| Apic {
        vcpu_id: n,
        mode: if x2apic {
            ApicMode::X2apic
        } else {
            ApicMode::Xapic
        },
        sw_enabled: true,
        id: if x2apic { n } else { n << 24 },
        ldr: ldr(n),
        dfr: if cluster { 0x0fff_ffff } else { u32::MAX },
        arb_prio: 0,
    };
    (0..count).map(apic).collect()
}

/// Decoding an ICR write and finding the destination in a VM's map.
fn ipi(
    name: &'static str,
    apics: Vec<Apic>,
    low: u32,
    high: impl Fn(u64) -> u32 + 'static,
) -> Operation {
    let x2apic = apics[0].x2apic();
    let bus = ApicBus::new(apics, BusOptions::default());
    Operation {
        name,
        body: Box::new(move |n| {
            let ipi = Interrupt::from_icr(black_box(low), black_box(high(n)), x2apic);
            black_box(bus.fast_path(Some(0), &ipi));
        }),
        floor: None,
    }
}

fn ipi_virtualized() -> Operation {
    let entries: Vec<u64> = (0..64).map(|n| 0x10_0000 + n * 64 + 1).collect();
    Operation {
        name: "ipi-virtualization-route",
        body: Box::new(move |n| {
            let table = PidPointerTable { entries: &entries };
            let ipi = Interrupt::from_icr(black_box(0x40fd), black_box(n as u32 & 63), true);
            black_box(table.route(&ipi, true, &()));
        }),
        floor: None,
    }
}

fn ipi_xen() -> Operation {
    let vlapic = |n: u32| xen::Vlapic {
        x2apic: true,
        id: n,
        ldr: (n >> 4) << 16 | 1 << (n & 15),
        dfr: u32::MAX,
        enabled: true,
        ppr: 0,
    };
    let vlapics: Vec<_> = (0..64).map(vlapic).collect();
    Operation {
        name: "ipi-xen-multicast",
        body: Box::new(move |n| {
            let ipi = Interrupt::from_icr(black_box(0x48fd), black_box(n as u32), true);
            black_box(xen::is_multicast(&vlapics, 0, &ipi));
        }),
        floor: None,
    }
}

fn operations() -> Vec<Operation> {
    let logical = 0x48fd;
    let physical = 0x40fd;
    vec![
        post_notifies(),
        post_on_set(),
        post_coalesced(),
        sync_empty(),
        sync_spurious(),
        sync_full(),
        round_trip(),
        ipi("ipi-physical", apics(64, true, false), physical, |n| {
            n as u32 & 63
        }),
        ipi("ipi-flat", apics(8, false, false), logical, |n| {
            (n as u32 & 0xff) << 24
        }),
        ipi("ipi-cluster", apics(60, false, true), logical, |n| {
            (n as u32 & 0xff) << 24
        }),
        ipi("ipi-x2apic-cluster", apics(64, true, false), logical, |n| {
            (n as u32 & 3) << 16 | 0xffff
        }),
        ipi_virtualized(),
        ipi_xen(),
    ]
}

fn time(body: &mut Body) -> f64 {
    let start = Instant::now();
    for n in 0..ITERATIONS {
        body(n);
    }
    start.elapsed().as_secs_f64() * 1e9 / ITERATIONS as f64
}

/// The fastest of several runs, each of the operation next to one of its floor.
fn measure(op: &mut Operation) -> (f64, Option<f64>) {
    let (mut fastest, mut floor) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..REPEATS {
        fastest = fastest.min(time(&mut op.body));
        if let Some(body) = &mut op.floor {
            floor = floor.min(time(body));
        }
    }
    (fastest, op.floor.is_some().then_some(floor))
}

fn run_only(name: &str, iterations: u64) -> ExitCode {
    let Some(mut op) = operations().into_iter().find(|op| op.name == name) else {
        eprintln!("no operation {name:?}");
        return ExitCode::from(2);
    };
    (0..iterations).for_each(|n| (op.body)(n));
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let value = |flag: &str| {
        let at = args.iter().position(|a| a == flag)?;
        args.get(at + 1)
    };
    if args.iter().any(|a| a == "--list") {
        operations().iter().for_each(|op| println!("{}", op.name));
        return ExitCode::SUCCESS;
    }
    if let Some(name) = value("--only") {
        let iterations = value("--iterations").and_then(|n| n.parse().ok());
        return run_only(name, iterations.unwrap_or(1000));
    }
    let mut within = true;
    println!(
        "{:26} {:>8} {:>9} {:>6}",
        "operation", "ns", "floor ns", "ratio"
    );
    for mut op in operations() {
        let (ns, floor) = measure(&mut op);
        match floor {
            None => println!("{:26} {ns:8.2}", op.name),
            Some(floor) => {
                let ratio = ns / floor;
                within &= ratio <= BOUND;
                let mark = if ratio <= BOUND {
                    ""
                } else {
                    "  over the bound"
                };
                println!("{:26} {ns:8.2} {floor:9.2} {ratio:6.2}{mark}", op.name);
            }
        }
    }
    if within {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
