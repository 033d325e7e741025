//! The repository's own commands.
mod generate;

fn main() {}
