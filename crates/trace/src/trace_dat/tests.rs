//! Small things of the reader itself.

use super::*;

#[test]
fn lines_of_saved_command_lines() {
    assert_eq!(
        cmdline(b"  77 CPU 0/KVM"),
        Some((Tid(77), &b"CPU 0/KVM"[..]))
    );
    assert_eq!(cmdline(b"77 <...>"), None);
    assert_eq!(cmdline(b"x y"), None);
    assert_eq!(cmdline(b""), None);
}

#[test]
fn a_beginning_is_recognised() {
    assert!(TraceDat::recognise(b"\x17\x08\x44tracing6\0"));
    assert!(!TraceDat::recognise(b"\x17\x08\x44tracin"));
    assert_eq!(TraceDat::HEAD, 10);
}
