//! How many more VMs the host's memory holds, by its snapshot.

use serde::Serialize;

use crate::baseline::Baseline;
use crate::capacity::curve::{Curve, Subject};

/// Memory of the host as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What new VMs can have without swapping (`MemAvailable`), in bytes.
    pub available_bytes: u64,
    /// VMs of known size, in the order of the recording.
    pub vms: Vec<VmMemory>,
}

/// Memory of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VmMemory {
    /// Its name.
    pub vm: String,
    /// What its process occupies, in bytes.
    pub resident_bytes: u64,
    /// How many more of its size what is available holds.
    pub further: u64,
}

/// `4.0 GiB`, `512 MiB`.
fn shown(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    match bytes >= GIB {
        true => format!("{:.1} GiB", bytes as f64 / GIB as f64),
        false => format!("{} MiB", bytes >> 20),
    }
}

impl VmMemory {
    /// `None` of a VM that occupies nothing.
    fn new(vm: &str, resident_bytes: u64, available_bytes: u64) -> Option<Self> {
        Some(Self {
            vm: vm.to_owned(),
            resident_bytes,
            further: available_bytes.checked_div(resident_bytes)?,
        })
    }
}

impl Memory {
    /// Of the snapshot of a recorded host; `None` where it lacks this.
    #[must_use]
    pub fn of(base: &Baseline) -> Option<Self> {
        let facts = base.facts.snapshot();
        let available_bytes = facts.available_bytes?;
        let vms = facts.resident_bytes.iter().filter_map(|(&vm, &bytes)| {
            let name = base.recorded.vms.get(vm)?;
            VmMemory::new(name, bytes, available_bytes)
        });
        let vms: Vec<VmMemory> = vms.collect();
        (!vms.is_empty()).then_some(Self {
            available_bytes,
            vms,
        })
    }

    fn vm(&self, curve: &Curve) -> Option<&VmMemory> {
        let Subject::Vm(name) = &curve.of else {
            return None;
        };
        self.vms.iter().find(|vm| vm.vm == *name)
    }

    /// How many more of the VMs that these curves count are held; `None` if no size is known.
    #[must_use]
    pub fn sentence(&self, curves: &[Curve]) -> Option<String> {
        let vms = curves.iter().filter_map(|curve| self.vm(curve)).map(|vm| {
            let size = shown(vm.resident_bytes);
            format!("{} more of {} ({size} each)", vm.further, vm.vm)
        });
        let vms: Vec<String> = vms.collect();
        (!vms.is_empty()).then(|| {
            format!(
                "Memory: {} are available, which hold {}, as large as they are now.",
                shown(self.available_bytes),
                vms.join(" or ")
            )
        })
    }

    /// A sentence on a curve with more VMs than are held.
    #[must_use]
    pub fn excess(&self, curve: &Curve) -> Option<String> {
        let vm = self.vm(curve)?;
        let further = curve.largest?.saturating_sub(curve.first);
        (u64::from(further) > vm.further)
            .then(|| format!("Memory holds {} more of {} only.", vm.further, vm.vm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_holds_whole_vms() {
        let further = |bytes| Some(VmMemory::new("web", bytes, 10 << 30)?.further);
        assert_eq!((further(3 << 30), further(512 << 20)), (Some(3), Some(20)));
        assert_eq!(further(0), None);
        assert_eq!(
            (shown(512 << 20), shown(3 << 29)),
            ("512 MiB".to_owned(), "1.5 GiB".to_owned())
        );
    }
}
