//! Compiles the C of the BPF program that has no kernel types.

fn main() {
    println!("cargo:rerun-if-changed=../bpf");
    println!("cargo:rerun-if-changed=src/host.c");
    cc::Build::new()
        .file("src/host.c")
        .include("../bpf")
        .compile("stealtime_host");
}
