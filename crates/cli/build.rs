//! Embeds the page of `standin ui` into the program, if `cargo xtask web` has built it. Without it, the program explains how
//! to build the page.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a build script prints to cargo, and its errors fail the build"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let page = Path::new(&manifest).join("page");
    println!("cargo:rerun-if-changed={}", page.display());
    let dist = page.join("dist");
    let mut files = Vec::new();
    collect(&dist, &mut files);
    files.sort();
    let mut list = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&dist).expect("it was found there");
        let (name, file) = (name.display().to_string(), file.display().to_string());
        writeln!(list, "    ({name:?}, include_bytes!({file:?})),").expect("memory takes text");
    }
    list.push_str("]\n");
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("page.rs"), list).expect("the list is written");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
