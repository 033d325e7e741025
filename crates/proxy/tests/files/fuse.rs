//! Descriptors through FUSE.
//!
//! Nothing is mapped here: a process that serves a file must not wait for it in a page fault. See `programs`.

mod descriptors;
mod reading;
mod waiting;
mod writing;

use std::fs::File;
use std::io::Read as _;

use proxy::FilesThrough;

use crate::world::World;

fn world() -> World {
    World::new(FilesThrough::Fuse)
}

fn read_all(file: &mut File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}
