//! Compiles the BPF programs.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed=bpf");
    for name in ["scx_stealtime", "self_test"] {
        SkeletonBuilder::new()
            .source(format!("bpf/{name}.bpf.c"))
            .clang_args(["-mcpu=v3", "-Wall"])
            .build_and_generate(folder.join(format!("{name}.rs")))?;
    }
    Ok(())
}
