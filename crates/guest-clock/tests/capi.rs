//! The C interface, from C: compiled against the header where there is a compiler, and run against
//! the device where there is one.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::path::Path;
use std::process::Command;

#[test]
fn a_c_program_saves_restores_and_is_refused() {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: no C compiler");
        return;
    }
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new(env!("CARGO"))
        .args(["rustc", "--quiet", "--lib", "--crate-type", "staticlib"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(crate_dir)
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let messages = String::from_utf8_lossy(&built.stdout);
    let library = messages
        .split('"')
        .find(|text| text.ends_with("libguest_clock.a"))
        .expect("cargo names the library");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
    let compiled = Command::new("cc")
        .args([
            "-Wall",
            "-Wextra",
            "-Werror",
            "-std=c11",
            "-D_GNU_SOURCE",
            "-I",
        ])
        .arg(crate_dir.join("include"))
        .arg(crate_dir.join("tests/data/capi.c"))
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let ran = Command::new(&program).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    println!("{said}");
    assert!(
        ran.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// A length that went below 0 in C: refused before the bytes are looked at.
#[test]
fn a_length_that_no_state_has_is_refused_unread() {
    let (state, vcpu) = (0u8, 0);
    let mut message = [0; 512];
    // SAFETY: a length above the most that a state may have is refused before `state` is read; the
    // message has its 512 bytes.
    let status = unsafe {
        guest_clock::capi::guest_clock_restore(
            0,
            &vcpu,
            1,
            0,
            &state,
            usize::MAX,
            0,
            0,
            0,
            message.as_mut_ptr(),
        )
    };
    assert_eq!(status, guest_clock::capi::Status::Load as i32);
    // SAFETY: the call ends it with 0.
    let text = unsafe { std::ffi::CStr::from_ptr(message.as_ptr()) };
    let text = text.to_str().unwrap();
    assert!(text.contains("18446744073709551615 bytes"), "{text}");
}
