//! The fake, driven by its ioctls, against recorded runs of the kernel's own functions: family
//! `tsc-sync`, the hypervisor crate's small set and those below `STEALTIME_GOLDEN`.
//!
//! What a VMM does goes through [`Vm`] and [`Vcpu`]; what the kernel does by itself (loading a
//! vCPU, serving requests) goes to the state below. Results and what ioctls can read of the state
//! are compared after each operation.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stealtime_hypervisor::counter::kvm_clock::KvmClockData;
use stealtime_hypervisor::counter::pvclock::PvclockTime;
use stealtime_hypervisor::counter::scaling::{ClockMode, HostTsc, RatioFormat};
use stealtime_hypervisor::counter::tsc_sync::HostInstant;

use super::{FakeHost, FakeVcpu, FakeVm};
use crate::device::{HostFacts, MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, Vcpu, Vm};

fn number(op: &Value, key: &str) -> u64 {
    let value = &op[key];
    let signed = || value.as_i64().map(i64::cast_unsigned);
    value.as_u64().or_else(signed).unwrap()
}

fn instant(op: &Value) -> HostInstant {
    HostInstant {
        ns: number(op, "ns"),
        tsc: number(op, "tsc"),
        real_ns: number(op, "real"),
    }
}

fn mode(mode: u64) -> ClockMode {
    match mode {
        1 => ClockMode::Tsc,
        2 => ClockMode::Pvclock,
        3 => ClockMode::HvClock,
        _ => ClockMode::None,
    }
}

struct Machine {
    host: FakeHost,
    vm: FakeVm,
    vcpus: BTreeMap<u64, FakeVcpu>,
    default_khz: u32,
}

impl Machine {
    fn new(line: &Value) -> Self {
        let khz = number(line, "host_tsc_khz") as u32;
        let host = FakeHost::with(HostFacts::complete(khz));
        host.state().tsc = HostTsc {
            khz,
            format: match number(line, "frac") {
                48 => RatioFormat::VMX,
                _ => RatioFormat::SVM,
            },
            has_scaling: number(line, "has_tsc_control") != 0,
            tolerance_ppm: 250,
            clock_mode: mode(number(line, "vclock_mode")),
            unstable: number(line, "unstable") != 0,
        };
        host.tell(instant(line));
        let (vm, _) = host.vm(0);
        Self {
            host,
            vm,
            vcpus: BTreeMap::new(),
            default_khz: number(line, "default_tsc_khz") as u32,
        }
    }

    fn run(&mut self, op: &Value) -> Value {
        self.host.tell(instant(op));
        let status = |is_accepted: bool| json!({"r": if is_accepted { 0 } else { -22 }});
        match op["op"].as_str().unwrap() {
            "create" => {
                let (cpu, protected) = (number(op, "cpu") as u32, number(op, "protected") != 0);
                let vcpu = self.vm.create_vcpu(cpu, self.default_khz, protected);
                self.vcpus.insert(number(op, "v"), vcpu);
                json!({})
            }
            "get_clock" => {
                self.host.state().instants = number(op, "wall") != 0;
                let data = self.vm.get_clock().unwrap();
                json!({"clock": data.clock_ns, "flags": data.flags,
                       "realtime": data.realtime_ns, "host_tsc": data.host_tsc})
            }
            "set_clock" => {
                let data = KvmClockData {
                    clock_ns: number(op, "clock"),
                    flags: number(op, "flags") as u32,
                    realtime_ns: number(op, "realtime"),
                    host_tsc: 0,
                };
                status(self.vm.set_clock(&data).is_ok())
            }
            "flag" => {
                let value = number(op, "value");
                match op["name"].as_str().unwrap() {
                    "vclock_mode" => self.host.state().tsc.clock_mode = mode(value),
                    "unstable" => self.host.state().tsc.unstable = value != 0,
                    "backwards" => self.vm.state().tsc.backwards_tsc_observed = value != 0,
                    _ => self.vm.state().tsc.boot_vcpu_runs_old_kvmclock = value != 0,
                }
                json!({})
            }
            _ => self.on_vcpu(op),
        }
    }

    fn on_vcpu(&self, op: &Value) -> Value {
        let vcpu = &self.vcpus[&number(op, "v")];
        match op["op"].as_str().unwrap() {
            "host_write" => {
                assert_eq!(vcpu.set_msr(MSR_IA32_TSC, number(op, "value")), Ok(true));
            }
            "set_offset" => vcpu.set_tsc_offset(number(op, "offset")).unwrap(),
            "guest_write" => vcpu.guest_writes_tsc(number(op, "value")).unwrap(),
            "adjust_write" if number(op, "host") != 0 => {
                let value = number(op, "value");
                assert_eq!(vcpu.set_msr(MSR_IA32_TSC_ADJUST, value), Ok(true));
            }
            "read" => return json!({"r": vcpu.msr(MSR_IA32_TSC).unwrap().unwrap()}),
            "set_khz" => {
                let is_accepted = vcpu.set_tsc_khz(number(op, "khz") as u32).is_ok();
                return json!({"r": if is_accepted { 0 } else { -22 }});
            }
            _ => return self.by_the_kernel(vcpu, op),
        }
        json!({"r": 0})
    }

    fn by_the_kernel(&self, vcpu: &FakeVcpu, op: &Value) -> Value {
        let now = instant(op);
        let mut host = self.host.state();
        let mut state = self.vm.state();
        let super::VmState { tsc: vm, vcpus } = &mut *state;
        let tsc = &mut vcpus[vcpu.index].tsc;
        match op["op"].as_str().unwrap() {
            "adjust_write" => tsc.write_tsc_adjust(false, number(op, "value")),
            "masterclock" => {
                let served = vm.handle_masterclock_request(tsc, &host.tsc, &now);
                return json!({"r": u8::from(served)});
            }
            "load" => {
                let (cpu, adjust) = (number(op, "cpu") as u32, number(op, "suspend_adjust"));
                tsc.load(&mut host.tsc, &now, cpu, adjust);
            }
            "put" => tsc.put(&now),
            "time_update" => {
                // The page's version and what the guest has not acknowledged are the page's.
                let time: PvclockTime = vm.guest_time_update(tsc, &host.tsc, &now, false).unwrap();
                let recorded = &op["out"]["page"];
                assert_eq!(json!(time.tsc_timestamp), recorded[1], "{op}");
                assert_eq!(json!(time.system_time_ns), recorded[2], "{op}");
                let stable = recorded[5].as_u64().unwrap() & 1;
                assert_eq!(u64::from(time.flags) & 1, stable, "{op}");
            }
            name => panic!("no operation {name}"),
        }
        json!({})
    }
}

/// Recorded: frequency, offset, `TSC_ADJUST` by vCPU; here: what the ioctls read.
fn compare(machine: &Machine, recorded: &BTreeMap<u64, Value>, place: &str) {
    for (id, tuple) in recorded {
        let vcpu = &machine.vcpus[id];
        let adjust = vcpu.msr(MSR_IA32_TSC_ADJUST).unwrap().unwrap();
        let read = json!([
            vcpu.tsc_khz().unwrap(),
            vcpu.tsc_offset().unwrap(),
            adjust.cast_signed()
        ]);
        assert_eq!(read, json!([tuple[0], tuple[4], tuple[9]]), "{place}: {id}");
    }
}

fn files() -> Vec<PathBuf> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hypervisor/tests/data/golden");
    let further = std::env::var_os("STEALTIME_GOLDEN").map(PathBuf::from);
    let roots = [Some(committed), further].into_iter().flatten();
    let files = roots.map(|root| root.join("kvm/tsc-sync.jsonl.zst"));
    files.filter(|file| file.exists()).collect()
}

#[test]
fn the_fake_does_what_was_recorded() {
    let (mut operations, mut sequences) = (0, 0);
    for file in files() {
        let lines = BufReader::new(zstd::Decoder::new(File::open(&file).unwrap()).unwrap());
        for line in lines.lines().skip(1) {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let mut machine = Machine::new(&line);
            let mut recorded = BTreeMap::new();
            for (step, op) in line["ops"].as_array().unwrap().iter().enumerate() {
                let place = format!("{}: seed {} step {step}", file.display(), line["seed"]);
                let results = machine.run(op);
                for (key, value) in results.as_object().unwrap() {
                    assert_eq!(value, &op["out"][key], "{place}: {key} of {op}");
                }
                for (id, tuple) in op["out"]["v"].as_object().into_iter().flatten() {
                    recorded.insert(id.parse().unwrap(), tuple.clone());
                }
                compare(&machine, &recorded, &place);
                operations += 1;
            }
            sequences += 1;
        }
    }
    assert!(operations > 100, "{operations} of {sequences} sequences");
}
