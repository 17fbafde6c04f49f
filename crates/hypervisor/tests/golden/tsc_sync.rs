//! Family `tsc-sync`: generations, offsets, master clock, kvmclock ioctls, the guest's page.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde_json::{Value, json};
use stealtime_hypervisor::counter::kvm_clock::KvmClockData;
use stealtime_hypervisor::counter::pvclock::PvclockPage;
use stealtime_hypervisor::counter::scaling::{ClockMode, HostTsc, RatioFormat};
use stealtime_hypervisor::counter::tsc_sync::{HostInstant, VcpuTsc, VmTsc};

use crate::files;

struct Vcpu {
    tsc: VcpuTsc,
    page: PvclockPage<Cell<u64>>,
}

/// One VM of a sequence.
struct Machine {
    host: HostTsc,
    vm: VmTsc,
    default_khz: u32,
    vcpus: BTreeMap<u64, Vcpu>,
}

fn number(op: &Value, key: &str) -> u64 {
    op[key]
        .as_u64()
        .or_else(|| op[key].as_i64().map(|signed| signed as u64))
        .unwrap_or_else(|| panic!("{key} is not a 64-bit integer in {op}"))
}

fn clock_mode(mode: u64) -> ClockMode {
    match mode {
        0 => ClockMode::None,
        1 => ClockMode::Tsc,
        2 => ClockMode::Pvclock,
        3 => ClockMode::HvClock,
        _ => panic!("no clock mode {mode}"),
    }
}

fn instant(op: &Value) -> HostInstant {
    HostInstant {
        ns: number(op, "ns"),
        tsc: number(op, "tsc"),
        real_ns: number(op, "real"),
    }
}

impl Machine {
    fn new(line: &Value) -> Self {
        let host = HostTsc {
            khz: number(line, "host_tsc_khz") as u32,
            format: match number(line, "frac") {
                48 => RatioFormat::VMX,
                _ => RatioFormat::SVM,
            },
            has_scaling: number(line, "has_tsc_control") != 0,
            tolerance_ppm: 250,
            clock_mode: clock_mode(number(line, "vclock_mode")),
            unstable: number(line, "unstable") != 0,
        };
        if host.has_scaling {
            let max = number(line, "max_guest_tsc_khz");
            assert_eq!(u64::from(host.max_guest_khz()), max, "max_guest_tsc_khz");
        }
        Self {
            vm: VmTsc::new(&host, &instant(line)),
            host,
            default_khz: number(line, "default_tsc_khz") as u32,
            vcpus: BTreeMap::new(),
        }
    }

    /// Carries out `op` and returns its results, without the state.
    fn run(&mut self, op: &Value) -> Value {
        let now = instant(op);
        match op["op"].as_str().unwrap() {
            "create" => self.create(op, &now),
            "get_clock" => {
                let wall = number(op, "wall") != 0;
                let data = self.vm.get_clock(&self.host, &now, wall).unwrap();
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
                let done = self.vm.set_clock(&self.host, &now, &data).is_ok();
                json!({"r": if done { 0 } else { -22 }})
            }
            "flag" => self.flag(op),
            _ => self.on_vcpu(op, &now),
        }
    }

    fn create(&mut self, op: &Value, now: &HostInstant) -> Value {
        let (tsc, khz) = self.vm.create_vcpu(
            &mut self.host,
            now,
            number(op, "cpu") as u32,
            self.default_khz,
            number(op, "protected") != 0,
        );
        let page = PvclockPage::new();
        self.vcpus.insert(number(op, "v"), Vcpu { tsc, page });
        json!({"khz_ret": if khz.is_ok() { 0 } else { -1 }})
    }

    fn flag(&mut self, op: &Value) -> Value {
        let value = number(op, "value");
        match op["name"].as_str().unwrap() {
            "vclock_mode" => self.host.clock_mode = clock_mode(value),
            "unstable" => self.host.unstable = value != 0,
            "backwards" => self.vm.backwards_tsc_observed = value != 0,
            "old_kvmclock" => self.vm.boot_vcpu_runs_old_kvmclock = value != 0,
            name => panic!("no flag {name}"),
        }
        json!({"r": 0})
    }

    fn on_vcpu(&mut self, op: &Value, now: &HostInstant) -> Value {
        let Self {
            host, vm, vcpus, ..
        } = self;
        let vcpu = vcpus.get_mut(&number(op, "v")).unwrap();
        let tsc = &mut vcpu.tsc;
        match op["op"].as_str().unwrap() {
            "host_write" => {
                vm.host_write(tsc, host, now, number(op, "value"));
            }
            "set_offset" => {
                vm.set_offset(tsc, host, now, number(op, "offset"));
            }
            "guest_write" => tsc.guest_write(host, now, number(op, "value")),
            "adjust_write" => {
                tsc.write_tsc_adjust(number(op, "host") != 0, number(op, "value"));
            }
            "read" => return json!({"r": tsc.read(host, now)}),
            "set_khz" => {
                let done = tsc.set_tsc_khz(host, number(op, "khz") as u32).is_ok();
                return json!({"r": if done { 0 } else { -22 }});
            }
            "masterclock" => {
                let served = vm.handle_masterclock_request(tsc, host, now);
                return json!({"r": u8::from(served)});
            }
            "load" => tsc.load(
                host,
                now,
                number(op, "cpu") as u32,
                number(op, "suspend_adjust"),
            ),
            "put" => tsc.put(now),
            "time_update" => {
                if number(op, "ack") != 0 {
                    vcpu.page.acknowledge_stopped();
                }
                let stopped = number(op, "stopped") != 0;
                let time = vm.guest_time_update(tsc, host, now, stopped).unwrap();
                let written = vcpu.page.publish(time);
                let page = json!([
                    vcpu.page.version(),
                    written.tsc_timestamp,
                    written.system_time_ns,
                    written.scale.mul,
                    written.scale.shift,
                    written.flags
                ]);
                return json!({"r": 0, "page": page});
            }
            name => panic!("no operation {name}"),
        }
        json!({"r": 0})
    }

    /// The VM's tuple, in the order of the header's `vm`.
    fn vm_tuple(&self) -> Value {
        let vm = &self.vm;
        json!([
            vm.online_vcpus,
            vm.last_tsc_nsec,
            vm.last_tsc_write,
            vm.last_tsc_khz,
            vm.last_tsc_offset,
            vm.cur_tsc_generation,
            vm.cur_tsc_nsec,
            vm.cur_tsc_write,
            vm.cur_tsc_offset,
            vm.nr_vcpus_matched_tsc,
            u8::from(vm.user_set_tsc),
            u8::from(vm.use_master_clock),
            signed(vm.master_kernel_ns),
            vm.master_cycle_now,
            signed(vm.kvmclock_offset),
            u8::from(self.host.unstable),
        ])
    }

    /// A vCPU's tuple, in the order of the header's `vcpu`.
    fn vcpu_tuple(&self, id: u64) -> Value {
        let v = &self.vcpus[&id].tsc;
        json!([
            v.rate.virtual_khz,
            v.rate.ns_to_cycles.mul,
            v.rate.ns_to_cycles.shift,
            v.rate.ratio,
            v.l1_tsc_offset,
            v.this_tsc_generation,
            v.this_tsc_nsec,
            v.this_tsc_write,
            v.last_guest_tsc,
            signed(v.ia32_tsc_adjust),
            u8::from(v.tsc_catchup),
            u8::from(v.rate.always_catchup),
            v.last_host_tsc,
            v.cpu.map_or(-1, i64::from),
            u8::from(v.masterclock_request),
            u8::from(v.guest_tsc_protected),
        ])
    }
}

/// JSON has one integer for a negative and its two's complement: the vectors list it signed.
fn signed(value: u64) -> Value {
    json!(value as i64)
}

#[test]
fn tsc_sync() {
    for file in files::of("tsc-sync") {
        for line in file.sequences() {
            let mut machine = Machine::new(&line);
            let mut shown = BTreeMap::new();
            let mut vm_shown = Value::Null;
            for (step, op) in line["ops"].as_array().unwrap().iter().enumerate() {
                let place = format!(
                    "{}: family tsc-sync, seed {}, step {step}: {op}",
                    file.path.display(),
                    line["seed"]
                );
                let results = machine.run(op);
                let out = op["out"].as_object().unwrap();
                for (key, value) in results.as_object().unwrap() {
                    assert_eq!(Some(value), out.get(key), "{place}: {key}");
                }
                if let Some(vm) = out.get("vm") {
                    vm_shown = vm.clone();
                }
                if let Some(vcpus) = out.get("v") {
                    for (id, tuple) in vcpus.as_object().unwrap() {
                        shown.insert(id.parse::<u64>().unwrap(), tuple.clone());
                    }
                }
                if !vm_shown.is_null() {
                    assert_eq!(machine.vm_tuple(), vm_shown, "{place}: vm");
                }
                for (&id, tuple) in &shown {
                    assert_eq!(&machine.vcpu_tuple(id), tuple, "{place}: vCPU {id}");
                }
            }
        }
    }
}
