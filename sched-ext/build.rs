//! Compiles the BPF program.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed=bpf");
    SkeletonBuilder::new()
        .source("bpf/scx_stealtime.bpf.c")
        .clang_args(["-mcpu=v3", "-Wall"])
        .build_and_generate(folder.join("skeleton.rs"))?;
    Ok(())
}
