//! Cuts a perf.data file to its first samples, so that it can be shipped with the tests.
//!
//! `cargo run -p stealtime-trace --example cut_perf -- SAMPLES IN OUT`
//!
//! Header, attributes and the sections behind the records stay as they are; records that are no
//! samples stay whole until the cut. Little-endian files only.

use std::error::Error;

/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u64 = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [samples, input, output] = args.as_slice() else {
        return Err("usage: cut_perf SAMPLES IN OUT".into());
    };
    let samples: u64 = samples.parse()?;
    let bytes = std::fs::read(input)?;
    let number = |at: usize, len: usize| -> Result<usize, Box<dyn Error>> {
        let field = bytes.get(at..at + len).ok_or("the file is cut short")?;
        let value = field
            .iter()
            .rev()
            .fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        Ok(usize::try_from(value)?)
    };
    let (start, size) = (number(40, 8)?, number(48, 8)?);
    let end = start + size;
    let (mut at, mut seen) = (start, 0);
    while at < end && seen < samples {
        seen += u64::from(number(at, 4)? as u64 == SAMPLE);
        at += number(at + 6, 2)?.max(8);
    }
    let cut = end - at;

    let mut out = bytes
        .get(..at)
        .ok_or("records behind the file's end")?
        .to_vec();
    put(&mut out, 48, at - start);
    let flags: Vec<u8> = bytes.get(72..104).ok_or("no header")?.to_vec();
    let sections: u32 = flags.iter().map(|byte| byte.count_ones()).sum();
    out.extend_from_slice(bytes.get(end..).ok_or("no sections")?);
    for section in 0..sections as usize {
        let place = at + 16 * section;
        put(&mut out, place, number(end + 16 * section, 8)? - cut);
    }
    std::fs::write(output, out)?;
    println!("{output}: {seen} samples");
    Ok(())
}

fn put(out: &mut [u8], at: usize, value: usize) {
    if let Some(field) = out.get_mut(at..at + 8) {
        field.copy_from_slice(&(value as u64).to_le_bytes());
    }
}
