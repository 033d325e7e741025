//! The repository's own commands: `cargo xtask <command>`. This file is the map; each command is a module.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries talk"
)]

mod bench;
mod demo;
mod duration;
mod environment;
mod generate;
mod image;
mod lab;
mod node;
mod packages;
mod privilege;
mod process;
mod release;
mod soak;
mod table;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// The repository's own commands
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Show a session on this machine: the same program outside and inside
    Demo(demo::DemoArguments),
    /// Real clusters on this machine, by hand
    Lab(lab::LabArguments),
    /// Make the container image of the program beside services
    Image(image::ImageArguments),
    /// Install what is missing, then run every check and every test
    Test(test::TestArguments),
    /// Measure something and compare it with a baseline and a goal
    Bench(bench::BenchArguments),
    /// Repeat something many times and see whether it always works
    Soak(soak::SoakArguments),
    /// Prepare a release, and make what is given away
    Release(release::ReleaseArguments),
    /// Check the rules of this repository that no compiler knows
    Tidy,
    /// Write the files that are made from other files, or check that they are up to date
    Generate(generate::GenerateArguments),
}

fn main() -> ExitCode {
    ::lab::role::run_if_asked();
    let result = match Command::parse() {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Lab(arguments) => lab::run(arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Release(arguments) => release::run(&arguments),
        Command::Tidy => tidy::run(),
        Command::Generate(arguments) => generate::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        if let Some(hint) = error
            .chain()
            .find_map(|cause| cause.downcast_ref::<::lab::Error>()?.hint())
        {
            eprintln!("hint: {hint}");
        }
        ExitCode::FAILURE
    })
}
