//! One line: task, CPU, time and event.

use stealtime_events::{Context, CpuId, Tid};

/// The time of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stamp {
    /// Seconds with a decimal point, as ns.
    Ns(u64),
    /// A bare number: ticks, in a unit that the text does not say.
    Ticks(u64),
}

/// The fields before the event's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// The task's name as the tracer knew it when the text was made; empty for `<...>`.
    pub(super) comm: &'a [u8],
    /// `common_pid`.
    pub(super) tid: Tid,
    /// The process, where the column is there and filled.
    pub(super) tgid: Option<Tid>,
    pub(super) cpu: CpuId,
    pub(super) context: Context,
    pub(super) stamp: Stamp,
    /// The tracepoint; empty for a line of the function tracer.
    pub(super) event: &'a [u8],
    /// What the event prints.
    pub(super) body: &'a [u8],
}

/// The kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parsed<'a> {
    /// An event.
    Event(Line<'a>),
    /// Events of this CPU are missing here; `None`: their number is not known.
    Lost { cpu: CpuId, count: Option<u64> },
    /// `entries-in-buffer/entries-written: A/B   #P:N`.
    Entries {
        in_buffer: u64,
        written: u64,
        cpus: Option<u32>,
    },
    /// `cpus=N`.
    Cpus(u32),
    /// No event: a header, an empty line, a line of a stack.
    Nothing,
    /// None of these.
    Unknown,
}

/// Parses a line, which has no line end.
pub(super) fn parse(line: &[u8]) -> Parsed<'_> {
    let trimmed = line.trim_ascii();
    match trimmed.first() {
        None => return Parsed::Nothing,
        Some(b'#') => return header(trimmed),
        Some(b'=') if trimmed.starts_with(b"=> ") => return Parsed::Nothing,
        Some(b'C') if trimmed.starts_with(b"CPU:") => {
            if let Some(lost) = lost(trimmed) {
                return lost;
            }
        }
        Some(b'c') => {
            if let Some(cpus) = trimmed.strip_prefix(b"cpus=").and_then(decimal) {
                return u32::try_from(cpus).map_or(Parsed::Unknown, Parsed::Cpus);
            }
        }
        Some(b'v') if trimmed.starts_with(b"version = ") => return Parsed::Nothing,
        Some(_) => {}
    }
    // A name may hold a dash and digits: the pid is the first number with a valid rest behind it.
    for dash in memchr::memchr_iter(b'-', trimmed) {
        if let Some(parsed) = event(trimmed, dash) {
            return Parsed::Event(parsed);
        }
    }
    Parsed::Unknown
}

fn header(line: &[u8]) -> Parsed<'_> {
    let text = b"entries-in-buffer/entries-written:";
    let Some(position) = memchr::memmem::find(line, text) else {
        return Parsed::Nothing;
    };
    let rest = line.get(position + text.len()..).unwrap_or_default();
    let mut words = rest
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    let mut counts = words.next().unwrap_or_default().split(|byte| *byte == b'/');
    let (in_buffer, written) = (
        counts.next().and_then(decimal),
        counts.next().and_then(decimal),
    );
    let cpus = words.find_map(|word| decimal(word.strip_prefix(b"#P:")?));
    match (in_buffer, written) {
        (Some(in_buffer), Some(written)) => Parsed::Entries {
            in_buffer,
            written,
            cpus: cpus.and_then(|n| u32::try_from(n).ok()),
        },
        _ => Parsed::Nothing,
    }
}

/// `CPU:0 [12 EVENTS DROPPED]` (trace-cmd), `CPU:0 [LOST 12 EVENTS]` (kernel), with or without a
/// number.
fn lost(line: &[u8]) -> Option<Parsed<'_>> {
    let rest = line.strip_prefix(b"CPU:")?;
    let space = memchr::memchr(b' ', rest)?;
    let cpu = CpuId(u16::try_from(decimal(rest.get(..space)?)?).ok()?);
    let words = rest
        .get(space..)?
        .trim_ascii()
        .strip_prefix(b"[")?
        .strip_suffix(b"]")?;
    let mut count = None;
    let mut says = false;
    for word in words.split(|byte| *byte == b' ') {
        says |= word == b"LOST" || word == b"DROPPED";
        count = count.or_else(|| decimal(word));
    }
    says.then_some(Parsed::Lost { cpu, count })
}

/// The event of a line with its pid behind the dash at `dash`.
fn event(line: &[u8], dash: usize) -> Option<Line<'_>> {
    let (tid, rest) = number(line.get(dash + 1..)?)?;
    let tid = Tid(i32::try_from(tid).ok()?);
    let rest = rest.strip_prefix(b" ")?.trim_ascii_start();
    let (tgid, rest) = tgid(rest)?;
    let (cpu, context, rest) = cpu_and_flags(rest)?;
    let (stamp, rest) = stamp(rest)?;
    let rest = rest.trim_ascii_start();
    let comm = line.get(..dash)?;
    let comm = if comm == b"<...>" { &[][..] } else { comm };
    let (event, body) = name(rest);
    Some(Line {
        comm,
        tid,
        tgid,
        cpu,
        context,
        stamp,
        event,
        body,
    })
}

/// The column `(  1234) ` or `(-------) `, where it is there.
fn tgid(rest: &[u8]) -> Option<(Option<Tid>, &[u8])> {
    let Some(inner) = rest.strip_prefix(b"(") else {
        return Some((None, rest));
    };
    let close = memchr::memchr(b')', inner)?;
    let number = inner.get(..close)?.trim_ascii();
    let rest = inner.get(close + 1..)?.trim_ascii_start();
    let tgid = decimal(number).and_then(|tgid| i32::try_from(tgid).ok());
    let filled = number.iter().any(|byte| *byte != b'-');
    if tgid.is_none() && filled {
        return None;
    }
    Some((tgid.filter(|tgid| *tgid > 0).map(Tid), rest))
}

/// `[001] d..2. `, `[001] `, `[001]-0x9 ` or, in the latency format, `  1d..2. `.
fn cpu_and_flags(rest: &[u8]) -> Option<(CpuId, Context, &[u8])> {
    let Some(inner) = rest.strip_prefix(b"[") else {
        let (cpu, rest) = number(rest)?;
        let space = memchr::memchr(b' ', rest)?;
        let context = context(rest.get(..space)?)?;
        let rest = rest.get(space..)?.trim_ascii_start();
        return Some((CpuId(u16::try_from(cpu).ok()?), context, rest));
    };
    let (cpu, rest) = number(inner)?;
    let cpu = CpuId(u16::try_from(cpu).ok()?);
    let rest = rest.strip_prefix(b"]")?;
    if let Some(raw) = rest.strip_prefix(b"-0x") {
        let space = memchr::memchr(b' ', raw)?;
        let digits = std::str::from_utf8(raw.get(..space)?).ok()?;
        let bits = u8::from_str_radix(digits, 16).ok()?;
        return Some((
            cpu,
            Context::from_bits(bits),
            raw.get(space..)?.trim_ascii_start(),
        ));
    }
    let rest = rest.strip_prefix(b" ")?.trim_ascii_start();
    if rest.first()?.is_ascii_digit() {
        return Some((cpu, Context::UNKNOWN, rest));
    }
    let space = memchr::memchr(b' ', rest)?;
    let context = context(rest.get(..space)?)?;
    Some((cpu, context, rest.get(space..)?.trim_ascii_start()))
}

/// The flag columns: irqs-off, need-resched, interrupt, preempt-depth, and on newer kernels
/// migrate-disable (trace_print_lat_fmt).
fn context(flags: &[u8]) -> Option<Context> {
    const BH_OFF: u8 = 0x80;
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'#' | b'*');
    let [irqs, resched, interrupt, depths @ ..] = flags else {
        return None;
    };
    if !(1..=4).contains(&depths.len()) || !flags.iter().all(fits) {
        return None;
    }
    let irqs = match irqs {
        b'd' => Context::IRQS_OFF,
        b'D' => Context::IRQS_OFF | BH_OFF,
        b'b' => BH_OFF,
        _ => 0,
    };
    let resched = match resched {
        b'B' => Context::NEED_RESCHED | Context::NEED_RESCHED_LAZY | Context::PREEMPT_RESCHED,
        b'N' => Context::NEED_RESCHED | Context::PREEMPT_RESCHED,
        b'L' => Context::NEED_RESCHED_LAZY | Context::PREEMPT_RESCHED,
        b'b' => Context::NEED_RESCHED | Context::NEED_RESCHED_LAZY,
        b'n' => Context::NEED_RESCHED,
        b'p' => Context::PREEMPT_RESCHED,
        b'l' => Context::NEED_RESCHED_LAZY,
        _ => 0,
    };
    let interrupt = match interrupt {
        b'Z' => Context::NMI | Context::HARDIRQ,
        b'z' => Context::NMI,
        b'H' => Context::HARDIRQ | Context::SOFTIRQ,
        b'h' => Context::HARDIRQ,
        b's' => Context::SOFTIRQ,
        _ => 0,
    };
    Some(Context::from_bits(irqs | resched | interrupt))
}

/// `12.345678:` or `123456789:`.
fn stamp(rest: &[u8]) -> Option<(Stamp, &[u8])> {
    let (whole, rest) = number(rest)?;
    let Some(fraction) = rest.strip_prefix(b".") else {
        return Some((Stamp::Ticks(whole), rest.strip_prefix(b":")?));
    };
    let digits = fraction
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let scale = 10_u64.checked_pow(9_u32.checked_sub(u32::try_from(digits).ok()?)?)?;
    let (value, rest) = number(fraction)?;
    let ns = whole
        .checked_mul(1_000_000_000)?
        .checked_add(value.checked_mul(scale)?)?;
    Some((Stamp::Ns(ns), rest.strip_prefix(b":")?))
}

/// `NAME: BODY`; a line of the function tracer has no name.
fn name(rest: &[u8]) -> (&[u8], &[u8]) {
    let len = rest
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
        .count();
    match (
        rest.get(..len),
        rest.get(len..).and_then(|rest| rest.strip_prefix(b":")),
    ) {
        (Some(name), Some(body)) if !name.is_empty() => (name, body.trim_ascii()),
        _ => (&[], rest),
    }
}

/// The decimal number that these bytes begin with, and what follows.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let len = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    Some((decimal(bytes.get(..len)?)?, bytes.get(len..)?))
}

/// The decimal number that these bytes are.
pub(super) fn decimal(bytes: &[u8]) -> Option<u64> {
    let first = bytes.first()?;
    let start = u64::from(first.checked_sub(b'0').filter(|digit| *digit < 10)?);
    bytes.iter().skip(1).try_fold(start, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
