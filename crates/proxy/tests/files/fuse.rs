//! Descriptors with FUSE.
//!
//! These tests map no files: a process that serves a file must not wait for it in a page fault. See `programs`.

mod blocking;
mod descriptors;
mod reading;
mod writing;

use std::fs::File;
use std::io::Read as _;

use proxy::FileBackend;

use crate::environment::Environment;

fn test_env() -> Environment {
    Environment::new(FileBackend::Fuse)
}

fn read_all(file: &mut File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}
