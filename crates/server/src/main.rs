//! `standind`, the program that runs beside services.

use clap::Parser;

/// The server side of Standin: one program, one role per process.
#[derive(Debug, Parser)]
#[command(name = "standind", version, arg_required_else_help = true)]
struct Arguments {}

fn main() {
    Arguments::parse();
}
