//! The repository's own commands.
mod lab;
use clap::Parser;

#[derive(Debug, Parser)]
enum Cli {
    Lab(lab::LabArguments),
}

fn main() -> anyhow::Result<()> {
    ::lab::role::run_if_asked();
    match Cli::parse() {
        Cli::Lab(a) => lab::run(a),
    }
}
