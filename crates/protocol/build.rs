//! Generates Rust from `proto/session.proto`. `protox` parses it, so no `protoc` program is needed.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::Context as _;
use prost::Message as _;

fn main() -> anyhow::Result<()> {
    let proto = "../../proto";
    println!("cargo::rerun-if-changed={proto}/session.proto");
    let descriptors = protox::compile(["session.proto"], [proto])?;
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    fs::write(out_dir.join("session.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        // The generated code neither dials nor listens: callers supply the connection.
        .build_transport(false)
        // It may contain a private key: see `incoming.rs`.
        .skip_debug([".standin.session.v1.TargetTls"])
        .compile_fds(descriptors)?;
    Ok(())
}
