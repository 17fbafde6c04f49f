//! Text on Bochs's debugger console (port 0xe9), and the end after a panic.

use core::fmt::{self, Write};

use crate::cpu;

pub struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| cpu::out8(0xe9, byte));
        Ok(())
    }
}

/// Prints a line.
macro_rules! say {
    ($($argument:tt)*) => {{
        use core::fmt::Write as _;
        // The console cannot fail.
        let _ = writeln!($crate::console::Console, $($argument)*);
    }};
}
pub(crate) use say;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    say!("PANIC on CPU {}: {info}", cpu::id());
    cpu::power_off()
}
