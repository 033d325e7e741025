//! The repository's own commands: `cargo xtask <command>`. Each command is a module.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries diagnostics"
)]

mod aws;
mod bench;
mod changes;
mod delve;
mod demo;
mod duration;
mod environment;
mod generate;
mod git;
mod image;
mod lab;
mod node;
mod operator;
mod packages;
mod privilege;
mod process;
mod release;
mod soak;
mod table;
mod test;
mod tidy;
mod web;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// The repository's own commands
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Show a session on this machine: the same program outside and inside
    Demo(demo::DemoArguments),
    /// Manage real clusters on this machine
    Lab(lab::LabArguments),
    /// Build the container image of `standind`, the program that runs next to services
    Image(image::ImageArguments),
    /// Install what is missing, then run every check and every test
    Test(test::TestArguments),
    /// Run benchmarks and compare the results with a baseline and a goal
    Bench(bench::BenchArguments),
    /// Repeat a test many times, to find rare failures
    Soak(soak::SoakArguments),
    /// Prepare a release, and build the release artifacts
    Release(release::ReleaseArguments),
    /// Decide which checks the changes of a pull request need
    #[command(subcommand)]
    Changes(changes::ChangesCommand),
    /// Build the page of `standin ui`, which the next build of `standin` embeds
    Web,
    /// Check the rules of this repository that the compiler does not check
    Tidy,
    /// Write the generated files, or check that they are up to date
    Generate(generate::GenerateArguments),
}

fn main() -> ExitCode {
    ::lab::role::run_if_requested();
    let result = match Command::parse() {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Lab(arguments) => lab::run(arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Release(arguments) => release::run(&arguments),
        Command::Changes(command) => changes::run(&command),
        Command::Web => web::run(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every line of a text that calls a command of this repository, as words.
    fn calls(text: &str) -> Vec<Vec<String>> {
        let after_name = text.lines().filter_map(|line| {
            let (_, arguments) = line.split_once("cargo xtask")?;
            let end = arguments.find([')', '>', '|', '&', '`', '#']);
            Some(&arguments[..end.unwrap_or(arguments.len())])
        });
        let words = |line: &str| -> Vec<String> {
            let words = line.split_whitespace().map(|word| word.trim_matches('"'));
            words.map(str::to_owned).collect()
        };
        after_name.map(words).collect()
    }

    /// Documents have placeholders, and mention commands without their required arguments.
    #[test]
    fn documents_call_commands_that_exist() {
        use clap::error::ErrorKind;
        let root = workspace::root().unwrap();
        let pages = std::fs::read_dir(root.join("docs")).unwrap();
        let pages = pages.map(|page| page.unwrap().path());
        let others = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name));
        let mut count = 0;
        for page in pages.chain(others) {
            let text = std::fs::read_to_string(&page).unwrap();
            for call in calls(&text) {
                let complete = call.iter().take_while(|word| !word.starts_with(['[', '…']));
                let words = std::iter::once("xtask").chain(complete.map(String::as_str));
                let Err(error) = Command::try_parse_from(words) else {
                    count += 1;
                    continue;
                };
                let is_wrong = matches!(
                    error.kind(),
                    ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
                );
                assert!(!is_wrong, "{}: {call:?}: {error}", page.display());
            }
        }
        assert!(count >= 20, "only {count} calls were found");
    }

    #[test]
    fn workflows_call_commands_that_exist() {
        let root = workspace::root().unwrap();
        let mut count = 0;
        for entry in std::fs::read_dir(root.join(".github/workflows")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display();
            let text = std::fs::read_to_string(&path).unwrap();
            for call in calls(&text) {
                // A comment mentions the command without arguments.
                if call.first().is_none_or(|word| word.starts_with('`')) {
                    continue;
                }
                let words = std::iter::once("xtask".to_owned()).chain(call.iter().cloned());
                if let Err(error) = Command::try_parse_from(words) {
                    panic!("{name}: {call:?}: {error}");
                }
                count += 1;
            }
        }
        assert!(count >= 10, "only {count} calls were found");
    }
}
