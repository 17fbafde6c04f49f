//! SHA-256 (FIPS 180-4) and HMAC (RFC 2104), by which a machine's id is shown.
//!
//! The manual page machine-id(5) asks programs to show no more than a keyed hash of it.

const BLOCK: usize = 64;

/// The first bits of the fractional parts of the square roots of the first primes.
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The fractional part of the cube root of each of the first 64 primes.
fn constants() -> [u32; 64] {
    let mut constants = [0; 64];
    let mut found = 0;
    let mut candidate = 2_u128;
    while found < constants.len() {
        if (2..candidate).all(|divisor| !candidate.is_multiple_of(divisor)) {
            // Root of candidate · 2^96 is the cube root times 2^32; the low half is the fraction.
            constants[found] = cube_root(candidate << 96) as u32;
            found += 1;
        }
        candidate += 1;
    }
    constants
}

/// The integer cube root, below 2^40.
fn cube_root(value: u128) -> u64 {
    let mut root = 0_u128;
    for bit in (0..40).rev() {
        let tried = root | 1 << bit;
        if tried * tried * tried <= value {
            root = tried;
        }
    }
    root as u64
}

/// The hash of a text.
pub(crate) fn sha256(text: &[u8]) -> [u8; 32] {
    let constants = constants();
    let mut state = INITIAL;
    let mut padded = text.to_vec();
    padded.push(0x80);
    while padded.len() % BLOCK != BLOCK - 8 {
        padded.push(0);
    }
    padded.extend_from_slice(&(text.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(BLOCK) {
        compress(&mut state, block, &constants);
    }
    let mut hash = [0; 32];
    for (bytes, word) in hash.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    hash
}

fn compress(state: &mut [u32; 8], block: &[u8], constants: &[u32; 64]) {
    let mut words = [0_u32; 64];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes
            .iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    for i in 16..words.len() {
        let (w15, w2) = (words[i - 15], words[i - 2]);
        let s0 = w15.rotate_right(7) ^ w15.rotate_right(18) ^ w15 >> 3;
        let s1 = w2.rotate_right(17) ^ w2.rotate_right(19) ^ w2 >> 10;
        let sum = words[i - 16].wrapping_add(s0).wrapping_add(words[i - 7]);
        words[i] = sum.wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (word, constant) in words.iter().zip(constants) {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = e & f ^ !e & g;
        let sum = h
            .wrapping_add(s1)
            .wrapping_add(choice)
            .wrapping_add(*constant);
        let first = sum.wrapping_add(*word);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let second = s0.wrapping_add(a & b ^ a & c ^ b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(second));
    }
    for (word, added) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(added);
    }
}

/// HMAC-SHA-256 in hexadecimal digits; the key has at most 64 bytes.
pub(crate) fn keyed(key: &[u8], text: &[u8]) -> String {
    debug_assert!(key.len() <= BLOCK, "a longer key would have to be hashed");
    let mut padded = [0; BLOCK];
    for (byte, key) in padded.iter_mut().zip(key) {
        *byte = *key;
    }
    let padded_with = |pad: u8, text: &[u8]| {
        let mut bytes: Vec<u8> = padded.iter().map(|byte| byte ^ pad).collect();
        bytes.extend_from_slice(text);
        sha256(&bytes)
    };
    let hash = padded_with(0x5c, &padded_with(0x36, text));
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Vectors of FIPS 180-4's examples and of RFC 4231, test case 2.
    #[test]
    fn hashes_are_those_of_the_standards() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let two_blocks = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
        assert_eq!(hex(&sha256(b"")), empty);
        assert_eq!(hex(&sha256(b"abc")), abc);
        let text = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(&sha256(text)), two_blocks);
        let keyed_text = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(keyed(b"Jefe", b"what do ya want for nothing?"), keyed_text);
    }
}
