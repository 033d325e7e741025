//! `standin`, the developer's program.

use clap::Parser;

/// Run a process on your machine as the stand-in for a service, wherever that service runs.
#[derive(Debug, Parser)]
#[command(name = "standin", version, arg_required_else_help = true)]
struct Arguments {}

fn main() {
    Arguments::parse();
}
