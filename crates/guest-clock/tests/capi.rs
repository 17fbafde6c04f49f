//! The C interface, from C: compiled against the header where there is a compiler, and run against
//! the device where there is one.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use guest_clock::capi::{COptions, CVm};

/// Arguments of a strict compilation, by the name of a compiler.
const COMPILERS: [(&str, &[&str]); 4] = [
    ("gcc", &["-std=c11"]),
    ("clang", &["-std=c11"]),
    ("g++", &["-x", "c++", "-std=c++17"]),
    ("clang++", &["-x", "c++", "-std=c++17"]),
];

/// The static library, which Cargo builds unless it has.
fn library() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["rustc", "--quiet", "--lib", "--features", "capi"])
        .args(["--crate-type", "staticlib"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    let messages = String::from_utf8_lossy(&built.stdout);
    let mut texts = messages.split('"');
    let library = texts.find(|text| text.ends_with("libguest_clock.a"));
    library.expect("Cargo names the library").into()
}

/// Compiles a source by each compiler of this machine, and runs it: its status may be 0 or 77.
fn compile_and_run(source: &str, library: &Path) {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (compiler, standard) in COMPILERS {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("skipped: no {compiler}");
            continue;
        }
        let name = Path::new(source).file_stem().unwrap().to_string_lossy();
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{compiler}"));
        let compiled = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"])
            .args(standard)
            .arg("-I")
            .arg(crate_dir.join("include"))
            .arg(crate_dir.join(source))
            // The library is no source in C++.
            .args(["-x", "none"])
            .arg(library)
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(&program)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{compiler}: {errors}");
        let ran = Command::new(&program).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        println!("{compiler}: {said}");
        assert!(
            matches!(ran.status.code(), Some(0 | 77)),
            "{compiler}: {:?} {said}{}",
            ran.status,
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}

#[test]
fn programs_in_c_and_cpp_save_restore_and_are_refused() {
    let library = library();
    compile_and_run("tests/data/capi.c", &library);
    compile_and_run("examples/c/snapshot.c", &library);
}

/// A length that went below 0 in C: refused before the bytes are looked at.
#[test]
fn a_length_that_no_state_has_is_refused_unread() {
    let state = 0u8;
    let mut message = [0; 512];
    // SAFETY: zeroes are a valid value of structures of integers and pointers.
    let (vm, mut options): (CVm, COptions) = unsafe { std::mem::zeroed() };
    options.size = size_of_val(&options);
    // SAFETY: a length above the most that a state may have is refused before `state` or `vm` is read;
    // the message has its 512 bytes.
    let status = unsafe {
        guest_clock::capi::guest_clock_restore(
            &vm,
            &state,
            usize::MAX,
            &options,
            std::ptr::null_mut(),
            message.as_mut_ptr(),
        )
    };
    assert_eq!(status, guest_clock::capi::Status::Load as i32);
    // SAFETY: the call ends it with 0.
    let text = unsafe { std::ffi::CStr::from_ptr(message.as_ptr()) };
    let text = text.to_str().unwrap();
    assert!(text.contains("18446744073709551615 bytes"), "{text}");
}
