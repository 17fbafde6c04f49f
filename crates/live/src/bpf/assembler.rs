//! Instructions of BPF (Documentation/bpf/standardization/instruction-set.rst), and jumps to the two ends of
//! a program.

use std::os::fd::{AsRawFd, BorrowedFd};

/// A register. `R0` has results. `R1` to `R5` have arguments, and are lost in calls. `R6` to `R9` are kept.
/// `R10` is the end of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reg(u8);

pub(super) const R0: Reg = Reg(0);
pub(super) const R1: Reg = Reg(1);
pub(super) const R2: Reg = Reg(2);
pub(super) const R3: Reg = Reg(3);
pub(super) const R6: Reg = Reg(6);
pub(super) const R7: Reg = Reg(7);
pub(super) const R8: Reg = Reg(8);
pub(super) const R9: Reg = Reg(9);
pub(super) const R10: Reg = Reg(10);

/// Bytes of a load or store, as bits of its opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Word = 0x00,
    Byte = 0x10,
    Double = 0x18,
}

/// Functions of the kernel by number (include/uapi/linux/bpf.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Helper {
    MapLookup = 1,
    KtimeGetNs = 5,
    GetSmpProcessorId = 8,
    GetCurrentPidTgid = 14,
    ProbeReadKernelStr = 115,
    RingbufReserve = 131,
    RingbufSubmit = 132,
}

/// The two ends of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It returns.
    Return,
    /// It counts a lost record and returns.
    Lost,
}

/// What a 64-bit constant means.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wide<'a> {
    Number(u64),
    /// A map (`BPF_PSEUDO_MAP_FD`).
    Map(BorrowedFd<'a>),
    /// The value of a map that has one (`BPF_PSEUDO_MAP_VALUE`).
    Value(BorrowedFd<'a>),
}

/// A program as it grows.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<u64>,
    /// Positions of jumps to an end that has no place yet.
    jumps: Vec<(usize, End)>,
}

impl Assembler {
    fn push(&mut self, opcode: u8, target: Reg, source: Reg, offset: i16, immediate: i32) {
        let registers = u64::from(source.0 << 4 | target.0);
        let offset = u64::from(offset.cast_unsigned());
        let immediate = u64::from(immediate.cast_unsigned());
        self.code
            .push(u64::from(opcode) | registers << 8 | offset << 16 | immediate << 32);
    }

    /// `target = source`
    pub(super) fn copy(&mut self, target: Reg, source: Reg) {
        self.push(0xbf, target, source, 0, 0);
    }

    /// `target = number`, sign-extended.
    pub(super) fn set(&mut self, target: Reg, number: i32) {
        self.push(0xb7, target, R0, 0, number);
    }

    /// `target = constant`; two instructions.
    pub(super) fn set_wide(&mut self, target: Reg, constant: Wide<'_>) {
        let (kind, low, high) = match constant {
            Wide::Number(number) => (0, number as u32, (number >> 32) as u32),
            Wide::Map(map) => (1, map.as_raw_fd().cast_unsigned(), 0),
            Wide::Value(map) => (2, map.as_raw_fd().cast_unsigned(), 0),
        };
        self.push(0x18, target, Reg(kind), 0, low.cast_signed());
        self.push(0, R0, R0, 0, high.cast_signed());
    }

    /// `target += source`
    pub(super) fn add(&mut self, target: Reg, source: Reg) {
        self.push(0x0f, target, source, 0, 0);
    }

    /// `target += number`
    pub(super) fn add_number(&mut self, target: Reg, number: i32) {
        self.push(0x07, target, R0, 0, number);
    }

    /// `target |= source`
    pub(super) fn or(&mut self, target: Reg, source: Reg) {
        self.push(0x4f, target, source, 0, 0);
    }

    /// `target |= number`
    pub(super) fn or_number(&mut self, target: Reg, number: i32) {
        self.push(0x47, target, R0, 0, number);
    }

    /// `target &= number`
    pub(super) fn and_number(&mut self, target: Reg, number: i32) {
        self.push(0x57, target, R0, 0, number);
    }

    /// `target <<= bits`
    pub(super) fn shift(&mut self, target: Reg, bits: i32) {
        self.push(0x67, target, R0, 0, bits);
    }

    /// `target = [source + offset]`
    pub(super) fn load(&mut self, size: Size, target: Reg, source: Reg, offset: i16) {
        self.push(0x61 | size as u8, target, source, offset, 0);
    }

    /// `[target + offset] = source`
    pub(super) fn store(&mut self, size: Size, target: Reg, offset: i16, source: Reg) {
        self.push(0x63 | size as u8, target, source, offset, 0);
    }

    /// `[target + offset] = number`
    pub(super) fn store_number(&mut self, size: Size, target: Reg, offset: i16, number: i32) {
        self.push(0x62 | size as u8, target, R0, offset, number);
    }

    /// `[target] += source`, 64 bits, in one step even against an interrupt.
    pub(super) fn add_atomically(&mut self, target: Reg, source: Reg) {
        self.push(0xdb, target, source, 0, 0);
    }

    /// Calls a function.
    pub(super) fn call(&mut self, helper: Helper) {
        self.push(0x85, R0, R0, 0, helper as i32);
    }

    /// Skips so many instructions if `reg` is `number`.
    pub(super) fn skip_if(&mut self, reg: Reg, number: i32, instructions: i16) {
        self.push(0x15, reg, R0, instructions, number);
    }

    /// Skips so many instructions if `reg` is not `number`.
    pub(super) fn skip_unless(&mut self, reg: Reg, number: i32, instructions: i16) {
        self.push(0x55, reg, R0, instructions, number);
    }

    /// Skips so many instructions if the registers are equal.
    pub(super) fn skip_if_equal(&mut self, a: Reg, b: Reg, instructions: i16) {
        self.push(0x1d, a, b, instructions, 0);
    }

    /// Goes to an end if `reg` is 0.
    pub(super) fn end_if_zero(&mut self, reg: Reg, end: End) {
        self.jumps.push((self.code.len(), end));
        self.skip_if(reg, 0, 0);
    }

    /// Goes to an end if the registers differ.
    pub(super) fn end_unless_equal(&mut self, a: Reg, b: Reg, end: End) {
        self.jumps.push((self.code.len(), end));
        self.push(0x5d, a, b, 0, 0);
    }

    /// Returns 0.
    pub(super) fn exit(&mut self) {
        self.set(R0, 0);
        self.push(0x95, R0, R0, 0, 0);
    }

    /// The end begins at the next instruction.
    pub(super) fn place(&mut self, end: End) {
        let target = self.code.len();
        let code = &mut self.code;
        self.jumps.retain(|&(jump, goal)| {
            if goal == end
                && let Some(word) = code.get_mut(jump)
            {
                // Jumps count from the instruction behind them.
                *word |= ((target - jump - 1) as u64 & 0xffff) << 16;
            }
            goal != end
        });
    }

    /// The instructions.
    pub(super) fn finish(self) -> Vec<u64> {
        debug_assert!(self.jumps.is_empty(), "a jump without a target");
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_those_of_the_specification() {
        let mut code = Assembler::default();
        code.copy(R6, R1);
        code.load(Size::Word, R2, R6, -4);
        code.end_if_zero(R2, End::Return);
        code.set_wide(R1, Wide::Number(0x1122_3344_5566_7788));
        code.call(Helper::RingbufSubmit);
        code.place(End::Return);
        code.exit();
        let expected = [
            0x0000_0000_0000_16bf,
            0x0000_0000_fffc_6261,
            // Three instructions ahead: the wide constant has two.
            0x0000_0000_0003_0215,
            0x5566_7788_0000_0118,
            0x1122_3344_0000_0000,
            0x0000_0084_0000_0085,
            0x0000_0000_0000_00b7,
            0x0000_0000_0000_0095,
        ];
        assert_eq!(code.finish(), expected);
    }
}
