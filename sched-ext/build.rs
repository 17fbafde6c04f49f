//! Compiles the BPF program, and the same arithmetic for the host, which the tests compare.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=tests/host.c");
    SkeletonBuilder::new()
        .source("bpf/scx_stealtime.bpf.c")
        .clang_args(["-mcpu=v3", "-Wall"])
        .build_and_generate(folder.join("skeleton.rs"))?;
    cc::Build::new()
        .file("tests/host.c")
        .include("bpf")
        .cargo_metadata(false)
        .try_compile("stealtime_host")?;
    println!(
        "cargo:rustc-link-arg-tests={}",
        folder.join("libstealtime_host.a").display()
    );
    Ok(())
}
