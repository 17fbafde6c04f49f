//! Posted interrupts in each state of `scripts/kernel/cases.txt`, as a hypervisor calls them.
//!
//! A profiler counts the functions `measured_*`, without `send_ipi` and `wake_up_process`, which are the
//! hypervisor's. Prints the state after each operation, as `scripts/kernel/cost.c` does. `scripts/bare cost`
//! runs it.

use std::hint::black_box;
use std::io::{Error, stdin};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::posted_interrupt::{
    Capabilities, Control, CpuId, Delivery, Descriptor, Entry, POSTED_INTR_WAKEUP_VECTOR,
    PostedVcpu, PutReason, Requests, SharedVcpu, Suppression, VcpuId, VcpuMode, WakeupList,
    WakeupLists, deliver, wake_up, wakeup_handler,
};

const CPUS: usize = 2;
/// APIC id of CPU 0.
const FIRST_APIC: u32 = 0x10;
/// The vCPU that all operations are for.
const VCPU: VcpuId = 0;
/// The heads of the CPUs' lists follow the vCPU.
const FIRST_HEAD: u32 = 1;
/// Links of a vCPU on no list.
const NO_NODE: u32 = u32::MAX;

struct Node {
    next: AtomicU32,
    previous: AtomicU32,
}

static NODES: [Node; 1 + CPUS] = [const {
    Node {
        next: AtomicU32::new(NO_NODE),
        previous: AtomicU32::new(NO_NODE),
    }
}; 1 + CPUS];
static LOCKS: [AtomicBool; CPUS] = [const { AtomicBool::new(false) }; CPUS];

fn node(index: u32) -> Option<&'static Node> {
    NODES.get(index as usize)
}

/// The list of a CPU; its lock is held. It links the vCPUs, as Linux does.
struct List {
    head: u32,
}

impl List {
    fn insert(&self, vcpu: VcpuId) -> Option<()> {
        let (head, entry) = (node(self.head)?, node(vcpu)?);
        let last = head.previous.load(Relaxed);
        entry.next.store(self.head, Relaxed);
        entry.previous.store(last, Relaxed);
        node(last)?.next.store(vcpu, Relaxed);
        head.previous.store(vcpu, Relaxed);
        Some(())
    }

    fn unlink(&self, vcpu: VcpuId) -> Option<()> {
        let entry = node(vcpu)?;
        let (next, previous) = (entry.next.load(Relaxed), entry.previous.load(Relaxed));
        node(previous)?.next.store(next, Relaxed);
        node(next)?.previous.store(previous, Relaxed);
        entry.next.store(NO_NODE, Relaxed);
        Some(())
    }
}

impl WakeupList for List {
    fn append(&mut self, vcpu: VcpuId) {
        self.insert(vcpu);
    }

    fn remove(&mut self, vcpu: VcpuId) -> bool {
        self.unlink(vcpu).is_some()
    }

    fn for_each(&self, mut visit: impl FnMut(VcpuId)) {
        let mut index = NODES[self.head as usize].next.load(Relaxed);
        while index != self.head {
            visit(index);
            index = NODES[index as usize].next.load(Relaxed);
        }
    }
}

struct Lists;

impl WakeupLists for Lists {
    type List = List;

    fn locked<R>(&self, cpu: CpuId, body: impl FnOnce(&mut List) -> R) -> Option<R> {
        let lock = LOCKS.get(cpu as usize)?;
        while lock
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_err()
        {}
        let result = body(&mut List {
            head: FIRST_HEAD + cpu,
        });
        lock.store(false, Release);
        Some(result)
    }
}

/// The last IPI: CPU, and vector; 0: none.
static IPI: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];
static WOKEN: AtomicU32 = AtomicU32::new(0);
/// The vCPU that this CPU has loaded.
static RUNNING: AtomicU32 = AtomicU32::new(NO_NODE);

#[inline(never)]
fn send_ipi(cpu: CpuId, vector: u8) {
    IPI[0].store(cpu, Relaxed);
    IPI[1].store(u32::from(vector), Relaxed);
}

#[inline(never)]
fn wake_up_process() {
    WOKEN.fetch_add(1, Relaxed);
}

/// The profiler writes what it has counted.
#[inline(never)]
fn mark_end() {
    black_box(());
}

struct Vcpu {
    shared: SharedVcpu<AtomicU64>,
    own: PostedVcpu,
    lapic: Lapic,
    policy: Suppression,
    put: PutReason,
}

#[inline(never)]
fn measured_post(vcpu: &Vcpu, vector: u8) {
    let on_loaded_cpu = RUNNING.load(Relaxed) == VCPU;
    match deliver(&vcpu.shared, vector, on_loaded_cpu, vcpu.policy, &()) {
        Delivery::Ipi {
            cpu: Some(cpu),
            vector,
        } => send_ipi(cpu, vector),
        Delivery::Wake if wake_up(&vcpu.shared) => wake_up_process(),
        _ => {}
    }
}

#[inline(never)]
fn measured_sync(vcpu: &mut Vcpu) -> Option<u8> {
    vcpu.own.sync(&vcpu.shared, &mut vcpu.lapic, &())
}

#[inline(never)]
fn measured_load(vcpu: &mut Vcpu, cpu: CpuId) -> bool {
    let loaded = vcpu
        .own
        .load(&vcpu.shared, cpu, FIRST_APIC + cpu, &Lists, &());
    loaded.is_ok()
}

#[inline(never)]
fn measured_put(vcpu: &Vcpu) {
    let put = vcpu.own.put(&vcpu.shared, vcpu.put, &Lists, &());
    if put.is_ok_and(|put| put.self_ipi) {
        send_ipi(0, POSTED_INTR_WAKEUP_VECTOR);
    }
}

#[inline(never)]
fn measured_wakeup(vcpu: &Vcpu, cpu: CpuId) {
    let wake = |_| {
        if wake_up(&vcpu.shared) {
            wake_up_process();
        }
    };
    wakeup_handler(cpu, &Lists, |_| Some(&vcpu.shared), &(), wake);
}

#[inline(never)]
fn measured_entry(vcpu: &mut Vcpu) -> Entry {
    vcpu.own.enter(&vcpu.shared, &mut vcpu.lapic, &())
}

#[inline(never)]
fn measured_reentry(vcpu: &mut Vcpu) -> Entry {
    vcpu.own.reenter(&vcpu.shared, &mut vcpu.lapic, &())
}

#[inline(never)]
fn measured_exit(vcpu: &Vcpu) {
    vcpu.own.vm_exit(&vcpu.shared, &());
    vcpu.own.leave(&vcpu.shared, &());
}

/// A line of the table.
struct State<'a> {
    operation: &'a str,
    argument: u32,
    pir: &'a str,
    on: bool,
    sn: bool,
    nv: u8,
    in_guest: bool,
    waits: bool,
    requests: u64,
    posts: bool,
    policy: Suppression,
    title: String,
}

impl<'a> State<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let mut word = || words.next();
        Some(Self {
            operation: word()?,
            argument: word()?.parse().ok()?,
            pir: word()?,
            on: word()? == "1",
            sn: word()? == "1",
            nv: u8::from_str_radix(word()?, 16).ok()?,
            in_guest: word()? == "1",
            waits: word()? == "1",
            requests: word()?.parse().ok()?,
            posts: word()? == "1",
            policy: word()?.parse().ok()?,
            title: words.collect::<Vec<_>>().join(" "),
        })
    }

    /// A vCPU in that state, last loaded on CPU 0.
    fn vcpu(&self) -> Option<Vcpu> {
        let capabilities = Capabilities {
            apicv: true,
            irqchip: true,
            ipiv: self.posts,
            vtd_posting: self.posts,
            host_x2apic: true,
        };
        for (index, node) in (0..).zip(&NODES) {
            let link = if index == VCPU { NO_NODE } else { index };
            node.next.store(link, Relaxed);
            node.previous.store(link, Relaxed);
        }
        let shared = SharedVcpu::new(true);
        let mut own = PostedVcpu::new(VCPU, capabilities, self.policy);
        own.load(&shared, 0, FIRST_APIC, &Lists, &()).ok()?;
        let mut lapic = Lapic::new(true);
        if self.waits {
            own.begin_blocking(&shared, &());
            own.wait(&shared, &mut lapic, true, &());
        }
        if self.nv == POSTED_INTR_WAKEUP_VECTOR {
            List { head: FIRST_HEAD }.append(VCPU);
        }
        let mut image = [0; 8];
        for word in self.pir.bytes().filter(u8::is_ascii_digit) {
            image[usize::from(word - b'0')] = 1 << 9;
        }
        let control = Control(u64::from(self.on)).with_sn(self.sn);
        image[4] = control.with_nv(self.nv).with_ndst(FIRST_APIC).0;
        let mut shared = shared;
        shared.desc = Descriptor::from_image(image);
        if self.in_guest {
            shared.set_mode(VcpuMode::InGuest);
        }
        shared.request(Requests(self.requests));
        IPI.iter()
            .chain([&WOKEN])
            .for_each(|word| word.store(0, Relaxed));
        Some(Vcpu {
            shared,
            own,
            lapic,
            policy: self.policy,
            put: PutReason {
                preempted: self.operation == "put" && self.argument != 0,
                irq_blocked: false,
                device_assigned: self.posts,
            },
        })
    }

    /// Does the operation; `None`: there is no such one.
    fn run(&self, vcpu: &mut Vcpu) -> Option<()> {
        let argument = black_box(self.argument);
        match self.operation {
            "post" => measured_post(black_box(vcpu), argument as u8),
            "sync" => _ = black_box(measured_sync(black_box(vcpu))),
            "load" => _ = black_box(measured_load(black_box(vcpu), argument)),
            "put" => measured_put(black_box(vcpu)),
            "wakeup" => measured_wakeup(black_box(vcpu), argument),
            "entry" => _ = black_box(measured_entry(black_box(vcpu))),
            "reentry" => _ = black_box(measured_reentry(black_box(vcpu))),
            "exit" => measured_exit(black_box(vcpu)),
            _ => return None,
        }
        Some(())
    }

    fn show(&self, vcpu: &Vcpu) {
        let [p0, p1, p2, p3, control, ..] = vcpu.shared.desc.image();
        let [i0, i1, i2, i3] = vcpu.shared.irr.snapshot().0;
        let heads = (0..).zip(&NODES[FIRST_HEAD as usize..]);
        let listed = heads.filter(|(_, head)| head.next.load(Relaxed) == VCPU);
        let listed_on = listed.map(|(cpu, _): (i64, _)| cpu).next().unwrap_or(-1);
        let [ipi_cpu, vector] = [0, 1].map(|n: usize| IPI[n].load(Relaxed));
        let ipi_cpu = if vector == 0 { -1 } else { i64::from(ipi_cpu) };
        println!(
            "{}, {}, {}: pir {p0:x} {p1:x} {p2:x} {p3:x} control {control:x} irr {i0:x} {i1:x} {i2:x} {i3:x} \
             rvi {:x} mode {} requests {:x} cpu {} listed {listed_on} ipi {ipi_cpu} {vector:x} woken {}",
            self.operation,
            self.policy.name(),
            self.title,
            vcpu.lapic.rvi(),
            vcpu.shared.mode() as u8,
            vcpu.shared.requests().0,
            vcpu.shared.cpu().unwrap_or(u32::MAX),
            WOKEN.load(Relaxed)
        );
    }
}

fn main() -> Result<(), Error> {
    for line in stdin().lines() {
        let line = line?;
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let invalid = || Error::other(format!("no such state: {line}"));
        let state = State::parse(&line).ok_or_else(invalid)?;
        let mut vcpu = state.vcpu().ok_or_else(invalid)?;
        state.run(&mut vcpu).ok_or_else(invalid)?;
        mark_end();
        state.show(&vcpu);
    }
    Ok(())
}
