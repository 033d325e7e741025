//! Turns `proto/shop.proto` into Rust. `protox` reads it, so no `protoc` program is needed.

fn main() -> anyhow::Result<()> {
    let proto = "../../proto";
    println!("cargo::rerun-if-changed={proto}/shop.proto");
    let descriptors = protox::compile(["shop.proto"], [proto])?;
    tonic_prost_build::configure()
        .type_attribute(
            "Identity",
            "#[derive(serde::Serialize, serde::Deserialize)]",
        )
        .compile_fds(descriptors)?;
    Ok(())
}
