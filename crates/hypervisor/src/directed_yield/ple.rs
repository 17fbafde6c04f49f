//! Pause-loop windows: the length of a spin after which the guest exits.
//!
//! `ple_window` grows with every PAUSE exit and shrinks as a vCPU is scheduled in.
//! Kernel: `__grow_ple_window`, `__shrink_ple_window`, `grow_ple_window`, `shrink_ple_window`.
//!
//! ```
//! use stealtime_hypervisor::directed_yield::ple::{PleKnobs, PleWindow};
//!
//! let knobs = PleKnobs::VMX;
//! let mut ple = PleWindow::new(&knobs);
//! assert_eq!(ple.enter(), Some(4096)); // The first entry writes the VMCS field.
//! ple.grow(&knobs);
//! assert_eq!(ple.enter(), Some(8192));
//! ple.shrink(&knobs); // `ple_window_shrink` of 0 resets the window.
//! assert_eq!(ple.window(), 4096);
//! ```

/// The vendor, which decides the width of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PleVendor {
    /// VMCS field `PLE_WINDOW`, 32 bits.
    Vmx,
    /// VMCB field `pause_filter_count`, 16 bits: results are cut to that.
    Svm,
}

/// Whether a PAUSE exit is a spin in kernel mode, for
/// [`DirectedYield::on_spin`](super::DirectedYield::on_spin). VMX exits at CPL 0 only. On SVM the
/// CPL of a guest with encrypted registers (SEV-ES) is unknown.
#[must_use]
pub const fn spins_in_kernel(vendor: PleVendor, cpl: u8, sev_es: bool) -> bool {
    match vendor {
        PleVendor::Vmx => true,
        PleVendor::Svm => cpl == 0 && !sev_es,
    }
}

/// Parameters of `kvm_intel` or `kvm_amd` (read-only after load), in cycles (VMX) or PAUSEs (SVM).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PleKnobs {
    /// The vendor.
    pub vendor: PleVendor,
    /// `ple_gap` / `pause_filter_thresh`: PAUSEs farther apart do not belong to one loop.
    pub gap: u32,
    /// `ple_window` / `pause_filter_count`: the window to start with.
    pub window: u32,
    /// `ple_window_grow`: below the window it multiplies, else it is added; 0 resets.
    pub grow: u32,
    /// `ple_window_shrink`: below the window it divides, else it is subtracted; 0 resets.
    pub shrink: u32,
    /// `ple_window_max`.
    pub max: u32,
}

impl PleKnobs {
    /// `kvm_intel`'s defaults.
    pub const VMX: Self = Self {
        vendor: PleVendor::Vmx,
        gap: 128,
        window: 4096,
        grow: 2,
        shrink: 0,
        max: u32::MAX,
    };
    /// `kvm_amd`'s defaults.
    pub const SVM: Self = Self {
        vendor: PleVendor::Svm,
        gap: 128,
        window: 3000,
        grow: 2,
        shrink: 0,
        max: u16::MAX as u32,
    };

    /// SVM's parameters and windows are 16 bits wide.
    const fn cut(&self, value: u32) -> u32 {
        match self.vendor {
            PleVendor::Vmx => value,
            PleVendor::Svm => value as u16 as u32,
        }
    }
}

/// The next larger window.
#[must_use]
pub const fn grow_ple_window(value: u32, base: u32, modifier: u32, max: u32) -> u32 {
    if modifier < 1 {
        return base;
    }
    // `__grow_ple_window` computes in u64: the maximum must apply to the whole product.
    let grown = if modifier < base {
        value as u64 * modifier as u64
    } else {
        value as u64 + modifier as u64
    };
    if grown < max as u64 {
        grown as u32
    } else {
        max
    }
}

/// The next smaller window. A subtraction below 0 wraps in 32 bits, as upstream.
#[must_use]
pub const fn shrink_ple_window(value: u32, base: u32, modifier: u32, min: u32) -> u32 {
    if modifier < 1 {
        return base;
    }
    let shrunk = if modifier < base {
        value / modifier
    } else {
        value.wrapping_sub(modifier)
    };
    if shrunk > min { shrunk } else { min }
}

/// A vCPU's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PleWindow {
    window: u32,
    dirty: bool,
}

impl PleWindow {
    /// The window of a new vCPU.
    #[must_use]
    pub const fn new(knobs: &PleKnobs) -> Self {
        Self {
            window: knobs.cut(knobs.window),
            // `init_vmcs` leaves the field to the first entry, and `init_vmcb` writes its count
            // itself.
            dirty: matches!(knobs.vendor, PleVendor::Vmx),
        }
    }

    /// The window.
    #[must_use]
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Whether the register has to be written before the next entry.
    #[must_use]
    pub const fn dirty(&self) -> bool {
        self.dirty
    }

    /// The guest spun for a whole window: a PAUSE exit. Not to be called where PAUSE exits are off
    /// for the VM; the yield is tried there all the same.
    pub const fn grow(&mut self, knobs: &PleKnobs) {
        let base = knobs.cut(knobs.window);
        let max = knobs.cut(knobs.max);
        let grow = knobs.cut(knobs.grow);
        self.set(knobs.cut(grow_ple_window(self.window, base, grow, max)));
    }

    /// The vCPU is loaded after it was scheduled out.
    pub const fn shrink(&mut self, knobs: &PleKnobs) {
        let base = knobs.cut(knobs.window);
        let shrink = knobs.cut(knobs.shrink);
        self.set(knobs.cut(shrink_ple_window(self.window, base, shrink, base)));
    }

    const fn set(&mut self, window: u32) {
        if window != self.window {
            self.window = window;
            self.dirty = true;
        }
    }

    /// The guest is entered: the value to write to the register, if it changed.
    pub const fn enter(&mut self) -> Option<u32> {
        if self.dirty {
            self.dirty = false;
            Some(self.window)
        } else {
            None
        }
    }
}
