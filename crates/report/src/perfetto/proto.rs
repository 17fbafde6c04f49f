//! Protobuf's wire format, the part that is written here.
//!
//! <https://protobuf.dev/programming-guides/encoding/>: a field is a varint of `number << 3 | type`
//! and its value; type 0 is a varint, 1 eight bytes little-endian, 2 a length and bytes.

/// A message being written. Fields come out in the order of the calls.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// What was written.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets what was written.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// A `uint64`, `uint32`, `bool` or `enum` field.
    pub(super) fn uint(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    /// An `int64` or `int32` field: two's complement in 64 bits.
    pub(super) fn int(&mut self, field: u32, value: i64) {
        self.uint(field, value.cast_unsigned());
    }

    /// A `fixed64` field.
    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        self.key(field, 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A `string` field.
    pub(super) fn text(&mut self, field: u32, text: &str) {
        self.raw(field, text.as_bytes());
    }

    /// A `bytes` field, or a message that was encoded before.
    pub(super) fn raw(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A message within the message.
    pub(super) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        self.key(field, 2);
        let start = self.bytes.len();
        fill(self);
        // The length goes before what was written, so that moves: messages here are short.
        let mut length = Self::default();
        length.varint((self.bytes.len() - start) as u64);
        self.bytes.splice(start..start, length.bytes);
    }

    fn key(&mut self, field: u32, wire_type: u64) {
        self.varint(u64::from(field) << 3 | wire_type);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of protobuf's own description of the format.
    #[test]
    fn the_published_examples() {
        let mut message = Encoder::default();
        message.uint(1, 150);
        assert_eq!(message.bytes(), [0x08, 0x96, 0x01]);
        message.clear();
        message.text(2, "testing");
        assert_eq!(message.bytes(), b"\x12\x07testing");
        message.clear();
        message.message(3, |inner| inner.uint(1, 150));
        assert_eq!(message.bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        message.clear();
        message.int(1, -2);
        assert_eq!(
            message.bytes(),
            [
                0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01
            ]
        );
    }

    #[test]
    fn a_long_message_has_a_long_length() {
        let mut message = Encoder::default();
        message.message(1, |inner| inner.raw(2, &[7; 300]));
        assert_eq!(&message.bytes()[..6], [0x0a, 0xaf, 0x02, 0x12, 0xac, 0x02]);
        assert_eq!(message.bytes().len(), 3 + 3 + 300);
    }
}
